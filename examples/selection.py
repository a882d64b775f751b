"""Choose clip norm, learning rate and batch on scikit-learn's digits, all within one budget of (3, 1e-4).

1,257 of the 1,797 images are the private records and 180 are public, for scoring.  A geometric number of runs with mean
8, each of a candidate drawn by lot; the best is published, and only it.  `python examples/selection.py` runs this once,
charges it to selection/ledger.jsonl, and says what was found.  `--repeat 10` searches ten times and prints the mean
accuracy; `--compare` trains the same 18 candidates without a search, each with the whole budget.  Both only because
the digits are public: they tell what a search costs.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hush
from hush.methods import selection
from hush.methods.selection.running import Train

FOLDER = Path("selection")
EPSILON, DELTA = 3.0, 1e-4
RECORDS, PUBLIC = 1257, 180


def digits() -> tuple[tuple[Tensor, Tensor], ...]:
    """Private records, public images for scoring, images for testing."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
    rest, train = train_test_split(np.arange(len(labels)), test_size=RECORDS, random_state=0, stratify=labels)
    test, public = train_test_split(rest, test_size=PUBLIC, random_state=0, stratify=labels[rest])
    return tuple((x[part], y[part]) for part in (train, public, test))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return (model(data[0]).argmax(1) == data[1]).double().mean().item()


def settings() -> list[tuple[dict[str, float], dict[str, float]]]:
    """Candidates: what the training function needs, and the arguments of their plans."""
    found = []
    for clip, rate, batch in product((0.3, 1.0, 3.0), (0.5, 2.0, 8.0), (157, 628)):
        plan = {"records": RECORDS, "batch": batch, "steps": 50, "clip": clip}
        found.append(({"rate": rate / clip, "clip": clip, "batch": batch}, plan))
    return found


def fit(private: hush.Private, model: nn.Module, records: tuple[Tensor, Tensor]) -> None:
    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    for x, y in private.batches(records):
        private.step(losses, x, y)


def trainer(records: tuple[Tensor, Tensor], public: tuple[Tensor, Tensor]) -> Train:
    def train(trial: selection.Trial) -> tuple[nn.Module, float]:
        model = network()
        private = trial.private(model, torch.optim.SGD(model.parameters(), lr=trial.settings["rate"]))
        fit(private, model, records)
        return model, accuracy(model, public)

    return train


def find(console: Console, repeat: int) -> None:
    records, public, test = digits()
    search = selection.Search.within(EPSILON, DELTA, settings(), selection.Geometric(8))
    console.print(f"{search}\n", highlight=False)
    FOLDER.mkdir(exist_ok=True)
    ledger = FOLDER / "ledger.jsonl"
    found = []
    for _ in range(repeat):
        ledger.unlink(missing_ok=True)  # the digits are public, so this may be done again and again
        budget = hush.Budget(EPSILON, DELTA)
        best = selection.run(search, trainer(records, public), ledger=ledger, budget=budget)
        model = network()
        model.load_state_dict(best.state or {})
        found.append(accuracy(model, test))
        console.print(f"Found {best.settings}: {best.score:.1%} of the public images, {found[-1]:.1%} of the others.")
    console.print(f"Spent: epsilon {hush.Ledger(ledger).spent().epsilon(DELTA).upper:.4f} at delta {DELTA:g}.")
    if repeat > 1:
        console.print(
            f"Mean accuracy of {repeat} searches: {np.mean(found):.1%}, from {min(found):.1%} to {max(found):.1%}."
        )


def compare(console: Console) -> None:
    records, _, test = digits()
    found = []
    for chosen, arguments in settings():
        torch.manual_seed(0)
        model = network()
        plan = hush.Plan(**arguments, epsilon=EPSILON, delta=DELTA)
        fit(hush.Private(model, torch.optim.SGD(model.parameters(), lr=chosen["rate"]), plan), model, records)
        found.append(accuracy(model, test))
        console.print(f"{chosen}: {found[-1]:.1%}")
    console.print(f"Mean accuracy of the candidates: {np.mean(found):.1%}, from {min(found):.1%} to {max(found):.1%}.")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compare", action="store_true", help="train every candidate with the whole budget")
    parser.add_argument("--repeat", type=int, default=1, help="search so many times")
    options = parser.parse_args()
    compare(Console()) if options.compare else find(Console(), options.repeat)
