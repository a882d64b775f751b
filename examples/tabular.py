"""A table, a loop of your own, and a promise: is a tumour malignant, at (epsilon, delta) = (3, 1e-4)?

The lesson is in the scaling.  Networks want numbers around zero, but a column's mean, deviation and extremes are
computed from the patients, so they would have to be paid for.  Bounds that a doctor would name without having seen any
of them cost nothing: no cell nucleus measures 100 micrometres.  The records are scikit-learn's breast-cancer data.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hush

EPSILON, DELTA = 3.0, 1e-4
LARGEST = {
    "radius": 50, "texture": 50, "perimeter": 300, "area": 5000, "smoothness": 0.3, "compactness": 1.0,
    "concavity": 1.0, "concave points": 0.5, "symmetry": 1.0, "fractal dimension": 0.3,
}  # fmt: skip


def features(table: np.ndarray, names: list[str]) -> Tensor:
    """Sizes spread over orders of magnitude: their logarithms between declared bounds, the bounds at -1 and 1."""
    columns = []
    for column, name in zip(table.T, names, strict=True):
        kind = name.removeprefix("mean ").removeprefix("worst ").removesuffix(" error")
        high = LARGEST[kind] / (10 if name.endswith("error") else 1)  # an error is smaller than what it is an error of
        low = high / 100
        columns.append(2 * np.log(np.clip(column, low, high) / low) / np.log(100) - 1)
    return torch.tensor(np.stack(columns, axis=1), dtype=torch.float32)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 2))


def train_privately(x: Tensor, y: Tensor, steps: int) -> hush.Private:
    plan = hush.Plan(records=455, batch=455, steps=steps, epsilon=EPSILON, delta=DELTA, clip=hush.Normalised())
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=3.0)
    private = hush.Private(model, optimiser, plan, average=hush.Average(0.9))

    def losses(rows: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(rows), labels, reduction="none")

    for rows, labels in private.batches((x, y)):
        private.step(losses, rows, labels)
    return private


def train_plainly(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def main(quick: bool) -> None:
    data = load_breast_cancer()
    x, y = features(data.data, list(data.feature_names)), torch.tensor(data.target)
    train, test = train_test_split(np.arange(len(y)), train_size=455, random_state=0, stratify=data.target)
    torch.manual_seed(0)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return (model(x[test]).argmax(1) == y[test]).double().mean().item()

    private = train_privately(x[train], y[train], steps=5 if quick else 60)
    print(f"{private.plan}\n")
    spent = private.spent().epsilon(DELTA).upper
    with private.averaged() as model:
        print(f"private:          {accuracy(model):.1%} of {len(test)} new patients, epsilon {spent:.4f} certified")
    plain = train_plainly(x[train], y[train], steps=10 if quick else 200)
    print(f"without privacy:  {accuracy(plain):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
