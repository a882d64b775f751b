"""A small transformer learns to write like its authors without giving their secrets away: (epsilon, delta) = (4, 1e-5).

3,000 notes are made on the spot, one by each author, such as `ann likes tea and ink bob sells maps and cats`.  What
people share (grammar, and which things go together for whom) is worth learning.  Zoe's note ends with her PIN, which is
nobody's business.  The model's table of words is used twice, to read and to write, and a note's norm counts both uses
with their cross terms.  Afterwards we ask as an attacker would: of all 10,000 PINs, where does the model put Zoe's?
"""

from __future__ import annotations

import argparse
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush

EPSILON, DELTA = 4.0, 1e-5
RECORDS, LENGTH = 3000, 10
NAMES, VERBS, THINGS = (
    ["ann", "bob", "cid", "zoe"],
    ["likes", "sells", "wants", "finds"],
    ["tea", "maps", "cats", "ink"],
)
WORDS = [*NAMES, *VERBS, *THINGS, "and", "pin", *"0123456789"]  # public: written down before any note
SECOND, PIN = 4, "7319"  # where the second thing stands in a note; Zoe's PIN


def sentence(rng: random.Random, name: str) -> list[str]:
    """Ann names the next thing on the list after the first one, Bob the one after that, and so on."""
    first = rng.randrange(4)
    second = (first + 1 + NAMES.index(name) % 3) % 4
    return [name, rng.choice(VERBS), THINGS[first], "and", THINGS[second]]


def notes(count: int, seed: int) -> Tensor:
    """Zoe's comes first."""
    rng = random.Random(seed)
    found = [[*sentence(rng, "zoe"), "pin", *PIN]]
    found += [sentence(rng, rng.choice(NAMES[:3])) + sentence(rng, rng.choice(NAMES[:3])) for _ in range(count - 1)]
    return torch.tensor([[WORDS.index(word) for word in words] for words in found])


class Writer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), width)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH - 1, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH - 1))

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the word after each."""
        hidden = self.block(self.words(text) + self.places, src_mask=self.mask, is_causal=True)
        return F.linear(hidden, self.words.weight)

    def losses(self, text: Tensor) -> Tensor:
        """One for each note: the mean over its own words."""
        each = F.cross_entropy(self(text[:, :-1]).transpose(1, 2), text[:, 1:], reduction="none")
        return each.mean(1)


def train_privately(text: Tensor, steps: int) -> hush.Private:
    plan = hush.Plan(records=RECORDS, batch=1000, steps=steps, epsilon=EPSILON, delta=DELTA, clip=hush.Normalised())
    model = Writer()
    private = hush.Private(model, hush.optim.AdamBC(model.parameters(), lr=0.03), plan, average=hush.Average(0.9))
    for (batch,) in private.batches((text,)):
        private.step(model.losses, batch)
    return private


def train_plainly(text: Tensor, epochs: int) -> Writer:
    model = Writer()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(text)).split(100):
            optimiser.zero_grad()
            model.losses(text[part]).mean().backward()
            optimiser.step()
    return model


@torch.no_grad()
def judge(model: nn.Module, secret: Tensor, test: Tensor) -> str:
    """How often it knows the second thing, and at which rank of 10,000 it puts Zoe's PIN."""
    right = (model(test[:, :-1])[:, SECOND - 1].argmax(1) == test[:, SECOND]).double().mean().item()
    pins = torch.cartesian_prod(*[torch.arange(10)] * 4) + WORDS.index("0")
    guesses = torch.cat([secret[:-4].expand(len(pins), -1), pins], dim=1)
    surprise = torch.cat([model.losses(part) for part in guesses.split(2000)])
    rank = 1 + int((surprise < surprise[int(PIN)]).sum())
    return f"{right:.1%} of the second things right, Zoe's PIN at rank {rank:,} of 10,000"


def main(quick: bool) -> None:
    train, test = notes(RECORDS, seed=0), notes(1000, seed=1)[1:]
    torch.manual_seed(0)
    private = train_privately(train, steps=2 if quick else 150)
    print(f"{private.plan}\n")
    with private.averaged() as model:
        print(f"private:          {judge(model, train[0], test)}")
        print(f"                  epsilon {private.spent().epsilon(DELTA).upper:.4f} at delta {DELTA:g}, certified")
    print(f"without privacy:  {judge(train_plainly(train, 1 if quick else 60), train[0], test)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
