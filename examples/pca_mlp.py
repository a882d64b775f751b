"""Private principal directions, then a private network on them: two methods, one plan, one ledger, one promise.

Abadi et al. (2016) project images on their principal directions first, so that the network has fewer weights to put
noise on.  The directions are computed from the private records, so they cost privacy as well: `beside=` counts them in
the plan, and the noise of the training is what then keeps (epsilon, delta) = (3, 1e-4) for both together, by one
certified account of the composition rather than by adding two epsilons up.  The records are scikit-learn's digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hush
from hush.methods.pca import PCA
from hush.spending import Spending, open_ledger

EPSILON, DELTA = 3.0, 1e-4
RECORDS, DIRECTIONS = 1437, 30


def head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIRECTIONS, 64), nn.Tanh(), nn.Linear(64, 10))


def train_privately(x: Tensor, y: Tensor, steps: int, ledger: Path) -> tuple[PCA, hush.Private]:
    pca = PCA(DIRECTIONS, records=RECORDS, noise_multiplier=8.0)  # public numbers, nothing computed yet
    plan = hush.Plan(
        records=RECORDS, batch=RECORDS, steps=steps, epsilon=EPSILON, delta=DELTA,
        clip=hush.Normalised(), beside=pca.mechanism,
    )  # fmt: skip
    run = Spending(open_ledger(ledger, plan), plan)
    pca.fit(x, ledger=run)  # charged first
    model = nn.Sequential(pca.layer(), head())  # the directions are a frozen first layer
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=6.0)
    private = hush.Private(model, optimiser, plan, ledger=run, average=hush.Average(0.9))

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, reduction="none")

    for images, labels in private.batches((x, y)):
        private.step(losses, images, labels)
    return pca, private


def train_plainly(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    svd = TruncatedSVD(DIRECTIONS, random_state=0).fit(x.numpy())
    first = nn.Linear(64, DIRECTIONS, bias=False)
    first.weight = nn.Parameter(torch.tensor(svd.components_, dtype=torch.float32), requires_grad=False)
    model = nn.Sequential(first, head())
    optimiser = torch.optim.Adam(model[1].parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def main(quick: bool) -> None:
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), train_size=RECORDS, random_state=0, stratify=labels)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return (model(x[test]).argmax(1) == y[test]).double().mean().item()

    with TemporaryDirectory() as folder:  # only because the digits are public: keep the ledger of real records
        pca, private = train_privately(x[train], y[train], 5 if quick else 100, Path(folder) / "ledger.jsonl")
        print(f"{private.plan}\n")
        spent = private.spent().epsilon(DELTA).upper
    alone = pca.mechanism.epsilon(DELTA).upper
    with private.averaged() as model:
        print(
            f"private:          {accuracy(model):.1%}, epsilon {spent:.4f} certified; the directions alone {alone:.4f}"
        )
    print(f"without privacy:  {accuracy(train_plainly(x[train], y[train], 10 if quick else 200)):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
