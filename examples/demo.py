"""Train a small convolutional network on scikit-learn's digits with differential privacy, and say how private it is.

1,437 of the 1,797 images are the private records; (epsilon, delta) = (3, 1e-4).  `make demo` runs this; the model, its
ledger and the picture of what an attacker can do go to demo/.  `--seeds 5` trains five times, each on its own split,
and prints the mean (with seeds for keys, so without any privacy).

The learning rate and the network were chosen on these digits, which are public.  On private records such a search costs
privacy as well.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hush

FOLDER = Path("demo")
EPSILON, DELTA = 3.0, 1e-4
RECORDS = 1437


@dataclass(frozen=True)
class Split:
    """The private records and the images for testing."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits(seed: int) -> Split:
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), train_size=RECORDS, random_state=seed, stratify=labels)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16  # a pixel is a number from 0 to 16
    x, y = 2 * x - 1, torch.tensor(labels)
    return Split(x[train], y[train], x[test], y[test])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def accuracy(model: nn.Module, split: Split) -> float:
    with torch.no_grad():
        return (model(split.test_x).argmax(1) == split.test_y).double().mean().item()


def train_privately(split: Split, progress: Progress, ledger: Path | None, key: hush.Key | None) -> hush.Private:
    """Few steps on half the records each: large batches carry most signal per unit of noise."""
    plan = hush.Plan(records=RECORDS, batch=RECORDS / 2, steps=50, epsilon=EPSILON, delta=DELTA, clip=hush.Normalised())
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=8.0)
    private = hush.Private(model, optimiser, plan, ledger=ledger, key=key, average=hush.Average(0.9))

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    task = progress.add_task("private", total=plan.steps, epsilon="", loss="")
    for x, y in private.batches((split.x, split.y)):
        private.step(losses, x, y)
        spent = private.spent().epsilon(DELTA).upper
        progress.update(task, advance=1, epsilon=f"epsilon {spent:.2f}", loss=f"loss {private.local.loss:.3f}")
    return private


def train_plainly(split: Split, progress: Progress, epochs: int = 40) -> nn.Module:
    """The same network by ordinary training, which promises nothing."""
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    task = progress.add_task("without privacy", total=epochs, epsilon="epsilon \N{INFINITY}", loss="")
    for _ in range(epochs):
        for part in torch.randperm(RECORDS).split(64):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(split.x[part]), split.y[part])
            loss.backward()
            optimiser.step()
        progress.update(task, advance=1, loss=f"loss {loss.item():.3f}")
    return model


def bars(console: Console) -> Progress:
    columns = ("[progress.description]{task.description:>15}", "{task.fields[loss]}", "{task.fields[epsilon]}")
    first, *others = (TextColumn(column) for column in columns)
    return Progress(first, BarColumn(24), MofNCompleteColumn(), *others, TimeElapsedColumn(), console=console)


def demonstrate(console: Console) -> None:
    FOLDER.mkdir(exist_ok=True)
    ledger = FOLDER / "ledger.jsonl"
    # The digits are public, so every demo may start over; on real records the ledger would refuse a second run.
    ledger.unlink(missing_ok=True)
    started = time.perf_counter()
    split = digits(seed=0)
    torch.manual_seed(0)
    with bars(console) as progress:
        private = train_privately(split, progress, ledger, key=None)
        plain = train_plainly(split, progress)
    console.print(f"\n{private.plan}\n", highlight=False)
    spent = private.spent()
    table = Table("digits, 360 test images", "accuracy", "epsilon at delta 1e-4", box=None, pad_edge=False)
    with private.averaged() as model:
        save_file(model.state_dict(), FOLDER / "model.safetensors")
        table.add_row("private", f"{accuracy(model, split):.1%}", f"{spent.epsilon(DELTA).upper:.4f}, certified")
    table.add_row("without privacy", f"{accuracy(plain, split):.1%}", "none")
    console.print(table)
    assert spent.mechanism is not None
    spent.mechanism.tradeoff().plot().figure.savefig(FOLDER / "tradeoff.png", dpi=150)
    console.print(
        f"\n{time.perf_counter() - started:.0f} s. {FOLDER}/ has the model, its ledger, and in tradeoff.png how often "
        "whoever looks for one of the records must be wrong.\nThe losses above are for your eyes only: not paid for."
    )


def repeat(console: Console, seeds: int) -> None:
    found = []
    with bars(console) as progress:
        for seed in range(seeds):
            split = digits(seed)
            torch.manual_seed(seed)
            private = train_privately(split, progress, None, hush.Key.from_seed(seed))
            with private.averaged() as model:
                ours = accuracy(model, split)
            found.append((ours, accuracy(train_plainly(split, progress), split)))
    for name, column in zip(("private", "without privacy"), zip(*found, strict=True), strict=True):
        console.print(f"{name}: mean {np.mean(column):.2%} of {', '.join(f'{value:.1%}' for value in column)}")


if __name__ == "__main__":
    mpl.use("Agg")
    torch.set_num_threads(1)  # so small a network gains nothing from more
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, help="train so many times and print the mean accuracy")
    seeds = parser.parse_args().seeds
    demonstrate(Console()) if seeds is None else repeat(Console(), seeds)
