"""Prints the table of docs/mac.md: DP-MAC beside gradients clipped as a whole, on scikit-learn's digits.

python docs/figures/mac_table.py     takes a few minutes on one core
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import hush
from hush.clipping import Clipping
from hush.methods.mac import MAC, Analytic, ConjugateGradient, CrossEntropy, Expansion, Histogram, ZSteps

SEEDS = 5
BALLS = {"inputs": 5.0, "coordinates": 5.0}
LEARNED = Histogram(records=1437, batch=1437, noise_multiplier=10.0)
METHODS: list[tuple[str, Clipping, dict[str, Any]]] = [
    ("gradients clipped as a whole at 1, Adam", hush.Flat(1.0), {}),
    ("DP-MAC, gradient clipped at 0.3, Adam", Expansion(0.3), {}),
    ("DP-MAC, gradient at a learned median, Adam", Expansion(0.3), {"learned": True}),
    ("DP-MAC, gradient by analysis, Adam", Expansion(Analytic(), **BALLS), {}),
    ("DP-MAC, gradient and curvature at 0.3, Adam", Expansion(0.3, curvature=0.3), {}),
    ("DP-MAC, gradient and curvature at 0.3, CG, 15 steps", Expansion(0.3, curvature=0.3), {"solved": True}),
]


def accuracy(clip: Clipping, epsilon: float, seed: int, learned: bool = False, solved: bool = False) -> float:
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(1797)
    x, y = torch.tensor(digits.data[order] / 16, dtype=torch.float32), torch.tensor(digits.target[order])
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    beside = LEARNED.mechanism if learned else None
    steps = 15 if solved else 100
    plan = hush.Plan(records=1437, batch=500, steps=steps, epsilon=epsilon, delta=1e-4, clip=clip, beside=beside)
    optimiser: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if solved:
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    private = hush.Private(model, optimiser, plan, key=hush.Key.from_seed(seed))
    data = (x[:1437], y[:1437])
    if isinstance(clip, Expansion):
        solver = ConjugateGradient() if solved else None
        mac = MAC(private, CrossEntropy(), z_steps=ZSteps(10, 0.02), solver=solver)
        if learned:
            for batch in private.batches(data, steps=10):
                mac.step(*batch)
            mac.learn(LEARNED, data)
        for batch in private.batches(data):
            mac.step(*batch)
    else:

        def losses(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y, reduction="none")

        for batch in private.batches(data):
            private.step(losses, *batch)
    return (model(x[1437:]).argmax(1) == y[1437:]).double().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    epsilons = (8.0, 2.0, 0.5)
    print("| test accuracy, 5 splits | " + " | ".join(f"epsilon {e:g}" for e in epsilons) + " |")  # noqa: T201
    print("|---|" + "---|" * len(epsilons))  # noqa: T201
    for name, clip, options in METHODS:
        means = [np.mean([accuracy(clip, e, seed, **options) for seed in range(SEEDS)]) for e in epsilons]
        print(f"| {name} | " + " | ".join(f"{m:.1%}" for m in means) + " |", flush=True)  # noqa: T201
