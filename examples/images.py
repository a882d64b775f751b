"""Images through fixed features: what needs no training data costs no privacy, at (epsilon, delta) = (3, 1e-4).

A convolutional network learns its filters from the private images and pays for every one of them in noise.  Wavelets
were written down a century ago.  The scattering transform (Bruna and Mallat 2013) is a small network whose filters are
wavelets; a linear model on its output is all that has to be learnt, so little noise does it (Tramer and Boneh 2021).
The records are scikit-learn's digits; `demo.py` trains a convolutional network on them.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hush
from hush.features import Scattering, group_normalise

EPSILON, DELTA = 3.0, 1e-4
RECORDS = 1437


def features(images: np.ndarray) -> Tensor:
    """Nine channels of 4 x 4 for each image, scaled by the image's own statistics: other images have no part in it."""
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return group_normalise(Scattering(scales=1)(pixels), 3).flatten(1)


def train_privately(x: Tensor, y: Tensor, steps: int) -> hush.Private:
    """Every step on all records: with a linear model there is no gain in seeing them a few at a time."""
    plan = hush.Plan(records=RECORDS, batch=RECORDS, steps=steps, epsilon=EPSILON, delta=DELTA, clip=hush.Normalised())
    model = nn.Linear(x.shape[1], 10)
    optimiser = torch.optim.SGD(model.parameters(), lr=4.0)
    private = hush.Private(model, optimiser, plan, average=hush.Average(0.9))

    def losses(rows: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(rows), labels, reduction="none")

    for rows, labels in private.batches((x, y)):
        private.step(losses, rows, labels)
    return private


def train_plainly(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    model = nn.Linear(x.shape[1], 10)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def main(quick: bool) -> None:
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), train_size=RECORDS, random_state=0, stratify=labels)
    x, y = features(images), torch.tensor(labels)
    torch.manual_seed(0)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return (model(x[test]).argmax(1) == y[test]).double().mean().item()

    private = train_privately(x[train], y[train], steps=5 if quick else 60)
    print(f"{private.plan}\n")
    spent = private.spent().epsilon(DELTA).upper
    with private.averaged() as model:
        print(f"private:          {accuracy(model):.1%} of {len(test)} test images, epsilon {spent:.4f} certified")
    plain = train_plainly(x[train], y[train], steps=10 if quick else 300)
    print(f"without privacy:  {accuracy(plain):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
