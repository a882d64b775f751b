"""Text through an LSTM: are these reviews kind, at (epsilon, delta) = (1, 1e-5)?

The 4,000 reviews are made on the spot, and turn on the order of words ("not good but great"), so that counting words
isn't enough.  `nn.LSTM` and `nn.Embedding` train as they are; no per-example gradient is ever formed.  Three things to
mind with text: the vocabulary is a public list rather than read off the private texts; every review is one record, so
whoever wrote ten is protected ten times less; padding has its own token, which carries no weight.
"""

from __future__ import annotations

import argparse
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush

EPSILON, DELTA = 1.0, 1e-5
RECORDS, TEST, LENGTH = 4000, 1000, 12
GOOD = ["good", "great", "lovely", "fine", "superb", "charming"]
BAD = ["bad", "awful", "dull", "poor", "dreadful", "boring"]
OTHER = ["the", "film", "story", "music", "cast", "plot", "was", "were", "felt", "and", "a", "bit", "really", "rather"]
WORDS = ["", "not", "but", *GOOD, *BAD, *OTHER]  # public, written down before any review


def review(rng: random.Random) -> tuple[list[int], int]:
    """A few words, a first verdict, and perhaps a second one, which counts; `not` turns a verdict round."""
    kind, negated, last = rng.random() < 0.5, rng.random() < 0.4, []
    if rng.random() < 0.5:
        last = [*(["not"] if rng.random() < 0.3 else []), rng.choice(GOOD + BAD), "but"]
    words = rng.choices(OTHER, k=rng.randint(2, 5)) + last + rng.choices(OTHER, k=rng.randint(0, 2))
    words += ["not", rng.choice(BAD if kind else GOOD)] if negated else [rng.choice(GOOD if kind else BAD)]
    places = [WORDS.index(word) for word in words][:LENGTH]
    return [0] * (LENGTH - len(places)) + places, int(kind)


def reviews(count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = random.Random(seed)
    texts, labels = zip(*(review(rng) for _ in range(count)), strict=True)
    return torch.tensor(texts), torch.tensor(labels)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 16, padding_idx=0)
        self.memory = nn.LSTM(16, 32, batch_first=True)
        self.verdict = nn.Linear(32, 2)

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.memory(self.words(text))
        return self.verdict(states[:, -1])


def train_privately(data: tuple[Tensor, Tensor], steps: int) -> hush.Private:
    plan = hush.Plan(records=RECORDS, batch=1000, steps=steps, epsilon=EPSILON, delta=DELTA, clip=hush.Normalised())
    model = Reader()
    optimiser = hush.optim.AdamBC(model.parameters(), lr=0.02)  # Adam that knows how much of a gradient is noise
    private = hush.Private(model, optimiser, plan, average=hush.Average(0.9))

    def losses(text: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(text), labels, reduction="none")

    for text, labels in private.batches(data):
        private.step(losses, text, labels)
    return private


def train_plainly(data: tuple[Tensor, Tensor], steps: int) -> nn.Module:
    model = Reader()
    text, labels = data
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(text), labels).backward()
        optimiser.step()
    return model


def main(quick: bool) -> None:
    data, (text, labels) = reviews(RECORDS, seed=0), reviews(TEST, seed=1)
    torch.manual_seed(0)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return (model(text).argmax(1) == labels).double().mean().item()

    private = train_privately(data, steps=3 if quick else 150)
    print(f"{private.plan}\n")
    with private.averaged() as model:
        spent = private.spent().epsilon(DELTA).upper
        print(f"private:          {accuracy(model):.1%} of {TEST} reviews, epsilon {spent:.4f} certified")
    print(f"without privacy:  {accuracy(train_plainly(data, 3 if quick else 100)):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
