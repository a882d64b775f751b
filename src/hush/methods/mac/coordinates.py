"""The Z step: auxiliary coordinates of every record, never released.

With z_0 the record and z_k the coordinates of hidden layer k, the penalty form of Carreira-Perpinan and Wang (2014) is

    E(z) = t_out(W_L z_{L-1}; y) + penalty * sum over hidden layers k of |z_k - f_k(W_k z_{k-1})|^2/2.

Coordinates start at the forward pass, are moved by a few steps of Adam, and projected to a ball after each.  Every
operation treats records apart: a record's coordinates depend on the record and on the weights, which are public.  It
all happens in float64: rounding differs with the size of the batch, and Adam, which divides by the size of gradients,
would carry float32's differences from one record into the others' coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.accounting.checks import check_positive
from hush.methods.mac.network import Layer


@dataclass(frozen=True)
class ZSteps:
    """How coordinates are moved: `count` steps of Adam with this learning rate; the paper's numbers."""

    count: int = 30
    rate: float = 0.003
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise ValueError(f"The number of Z steps is a whole number from 0 on, got {self.count}.")
        check_positive("The learning rate of Z steps", self.rate)
        check_positive("The penalty", self.penalty)


def projected(rows: Tensor, radius: float | None) -> Tensor:
    """Rows longer than the radius, shortened to it; without a radius, the rows."""
    if radius is None:
        return rows
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (radius / norms.clamp_min(radius))


def coordinates(
    layers: Sequence[Layer], x: Tensor, targets: Tensor, steps: ZSteps, radius: float | None
) -> list[Tensor]:
    """The coordinates z_1, ..., z_{L-1} of all records, x being z_0."""
    weights = [layer.weights() for layer in layers]
    start: list[Tensor] = []
    z = x
    for layer, weight in zip(layers[:-1], weights, strict=False):
        z = projected(layer.activation.value(layer.applied(layer.extended(z), weight)), radius)
        start.append(z)
    if not start or not len(x) or not steps.count:
        return start
    moving = [z.clone().requires_grad_() for z in start]
    adam = torch.optim.Adam(moving, lr=steps.rate)
    for _ in range(steps.count):
        with torch.enable_grad():
            total = penalised(layers, weights, x, moving, targets, steps.penalty).sum()
        for z, gradient in zip(moving, torch.autograd.grad(total, moving), strict=True):
            z.grad = _along(z.detach(), gradient, radius)
        adam.step()
        with torch.no_grad():
            for z in moving:
                z.copy_(projected(z, radius))
    return [z.detach() for z in moving]


def _along(rows: Tensor, gradient: Tensor, radius: float | None) -> Tensor:
    """The gradient without what would only lead out of the ball, for rows at its edge.

    Adam scales coordinates apart, so a step outwards that is projected back would move along the edge where the
    objective has no slope.
    """
    if radius is None:
        return gradient
    length = rows.square().sum(dim=1, keepdim=True)
    outwards = (gradient * rows).sum(dim=1, keepdim=True) / length.clamp_min(1e-300)
    held = (length >= radius**2 * (1 - 1e-6)) & (outwards < 0)
    return torch.where(held, gradient - outwards * rows, gradient)


def penalised(
    layers: Sequence[Layer], weights: Sequence[Tensor], x: Tensor, zs: Sequence[Tensor], targets: Tensor, penalty: float
) -> Tensor:
    """E of every record."""
    inputs, wanted = [x, *zs], [*zs, targets]
    total = x.new_zeros(len(x))
    for k, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
        missed = layer.objective.value(layer.applied(layer.extended(inputs[k]), weight), wanted[k])
        total = total + (missed if k == len(layers) - 1 else penalty * missed)
    return total
