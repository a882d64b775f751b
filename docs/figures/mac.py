"""Draws the figures of docs/mac.md: the paper's Figures 4 (approximation quality) and 5 (learned features).

python docs/figures/mac.py     takes about a minute; the data are scikit-learn's digits
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import hush
from hush import noise
from hush.methods.mac import MAC, Analytic, BinaryCrossEntropy, CrossEntropy, Expansion, SquaredError, ZSteps
from hush.methods.mac.activations import IDENTITY, SOFTPLUS
from hush.methods.mac.coefficients import analytic_bounds, at_present
from hush.methods.mac.network import Layer
from hush.methods.sums import unpack

FOLDER = Path(__file__).parent.parent / "img"
RECORDS, NOISE = 500, 1.0


def approximation(axis: plt.Axes, layer: Layer, truth: float, x: Tensor, targets: Tensor, title: str) -> None:
    """One weight: the objective, its second-order expansion around 0, and what is left of it after the release."""
    records = at_present(layer, x, targets)
    weights = torch.linspace(-2, 2, 81, dtype=torch.float64)
    exact = torch.stack([layer.objective.value(w * records.z, targets).mean() for w in weights])
    ones = torch.ones(len(x), dtype=torch.float64)
    parts = [records.total(part, ones) for part in ("value", "gradient", "curvature")]
    bounds = analytic_bounds([layer], Expansion(Analytic(), inputs=1.0, coordinates=1.0, targets=1.0))[0]
    scale = math.sqrt(3)
    deltas = [bounds[part] for part in ("value", "gradient", "curvature")]

    def polynomial(value: Tensor, gradient: Tensor, curvature: Tensor) -> Tensor:
        bend = unpack(curvature, 1).flatten()
        return (value + weights * gradient.flatten() + weights.square() * bend / 2) / RECORDS

    axis.plot(weights, exact, color="black", label="objective")
    axis.plot(weights, polynomial(*parts), color="tab:red", label="second-order expansion at 0")
    for draw in range(40):
        noisy = noise.add(
            hush.Key.from_seed(draw), 0, [p / (scale * d) for p, d in zip(parts, deltas, strict=True)], [NOISE] * 3
        )
        released = polynomial(*(p * scale * d for p, d in zip(noisy, deltas, strict=True)))
        axis.plot(
            weights[::8], released[::8], "x", color="tab:blue", markersize=3, alpha=0.5,
            label="expansion as released (40 draws)" if draw == 0 else None,
        )  # fmt: skip
    axis.axvline(truth, color="grey", linewidth=0.7, linestyle=":")
    axis.set(title=title, xlabel="weight", ylabel="mean objective")


def figure_4() -> None:
    torch.manual_seed(0)
    x = torch.rand(RECORDS, 1, dtype=torch.float64) * 2 - 1
    linear = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(linear.weight)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    hidden = Layer(linear, SOFTPLUS, SquaredError(SOFTPLUS))
    approximation(left, hidden, -0.7, x, nn.functional.softplus(-0.7 * x), "a hidden layer, softplus")
    output = Layer(linear, IDENTITY, BinaryCrossEntropy())
    approximation(right, output, 0.7, x, torch.sigmoid(0.7 * x), "an output layer, binary cross-entropy")
    left.legend(fontsize=7)
    figure.savefig(FOLDER / "mac-approximation.png", dpi=90)


def features(epsilon: float | None, labels: tuple[int, ...]) -> tuple[list[Tensor], float]:
    """For each label, what its output gains from every pixel by way of all hidden units, and the test accuracy."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    target = {"noise_multiplier": 1e-9} if epsilon is None else {"epsilon": epsilon, "delta": 1e-4}
    plan = hush.Plan(records=1437, batch=500, steps=150, clip=Expansion(1.0), **target)
    private = hush.Private(model, torch.optim.Adam(model.parameters(), lr=0.01), plan, key=hush.Key.from_seed(0))
    mac = MAC(private, CrossEntropy(), z_steps=ZSteps(20, 0.02))
    for batch in private.batches((x[:1437], y[:1437])):
        mac.step(*batch)
    first, last = (layer.weights() for layer in mac.layers)
    accuracy = (model(x[1437:]).argmax(1) == y[1437:]).double().mean().item()
    gains = last[:, :-1] @ first[:, :-1]
    return [gains[label].view(8, 8) for label in labels], accuracy


def figure_5() -> None:
    labels = (0, 3, 5, 6, 8)
    rows = [("not private", None), ("epsilon 8", 8.0), ("epsilon 2", 2.0)]
    figure, axes = plt.subplots(len(rows), len(labels), figsize=(6, 3.9), layout="constrained")
    for axis, label in zip(axes[0], labels, strict=True):
        axis.set_title(f"label {label}", fontsize=9)
    for row, (name, epsilon) in zip(axes, rows, strict=True):
        images, accuracy = features(epsilon, labels)
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image, cmap="gray")
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"{name}\n{accuracy:.1%}", fontsize=8)
    figure.savefig(FOLDER / "mac-features.png", dpi=80)


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    figure_4()
    figure_5()
