"""DP-MAC: a network trained layer by layer, with no backward pass through all of it, at (epsilon, delta) = (3, 1e-4).

With auxiliary coordinates (Carreira-Perpinan and Wang 2014) every record gets values of its own for the hidden units.
Given those, the layers have nothing to do with each other: each has a small objective, whose first-order coefficients
are clipped, added up, and released for all layers with one noise (Harder et al. 2018).  The coordinates themselves are
never released.  Sampling, ledger and account are those of any other run.  The records are scikit-learn's digits.
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
from hush.methods.mac import MAC, CrossEntropy, Expansion, ZSteps

EPSILON, DELTA = 3.0, 1e-4
RECORDS = 1437


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))


def train_privately(x: Tensor, y: Tensor, steps: int) -> hush.Private:
    """`Expansion(0.3)` is the clipping rule: every layer's coefficients, for every record, at norm 0.3."""
    plan = hush.Plan(records=RECORDS, batch=500, steps=steps, epsilon=EPSILON, delta=DELTA, clip=Expansion(0.3))
    model = network()
    private = hush.Private(model, torch.optim.Adam(model.parameters(), lr=0.01), plan, average=hush.Average(0.9))
    mac = MAC(private, CrossEntropy(), z_steps=ZSteps(10, 0.02))
    for images, labels in private.batches((x, y)):
        mac.step(images, labels)
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
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), train_size=RECORDS, random_state=0, stratify=labels)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return (model(x[test]).argmax(1) == y[test]).double().mean().item()

    private = train_privately(x[train], y[train], steps=3 if quick else 100)
    print(f"{private.plan}\n")
    with private.averaged() as model:
        spent = private.spent().epsilon(DELTA).upper
        print(f"DP-MAC:                            {accuracy(model):.1%}, epsilon {spent:.4f} certified")
    plain = train_plainly(x[train], y[train], steps=10 if quick else 200)
    print(f"without privacy, backpropagation:  {accuracy(plain):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
