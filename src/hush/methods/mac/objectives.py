"""The objective of one layer: how far it misses its target, as a function of its pre-activations u.

All are sums over units, t(u; target) = sum_h t_h(u_h), or treated so: with z the layer's input and u = W z, the
gradient of a record's objective in W is t'(u) z^T, and the second derivative in unit h's weights is t''_h(u) z z^T.
Their norms are |t'| |z| and |t''| |z|^2, so all that clipping and analysis need are the vectors t' and t''.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.methods.mac.activations import IDENTITY, Activation


@dataclass(frozen=True, eq=False)
class Reach:
    """Where pre-activations can get: |u_h| <= each[h] for every unit, and |u| <= whole."""

    each: Tensor
    whole: float


@dataclass(frozen=True)
class Largest:
    """Bounds on a record's value t, and on the norms of the vectors t' (slope) and t'' (bend)."""

    value: float
    slope: float
    bend: float


class Objective(Protocol):
    """What a layer is fitted by."""

    def prepared(self, targets: Tensor, width: int) -> Tensor:
        """Targets as the formulas want them: one row a record, one column a unit, float64."""
        ...

    def value(self, u: Tensor, targets: Tensor) -> Tensor:
        """t, one number a record."""
        ...

    def slope(self, u: Tensor, targets: Tensor) -> Tensor:
        """t', one row a record."""
        ...

    def bend(self, u: Tensor, targets: Tensor) -> Tensor:
        """t'', one row a record."""
        ...

    def largest(self, reach: Reach, targets: float | None) -> Largest:
        """Bounds over all reachable u and all targets of norm at most `targets`."""
        ...


@dataclass(frozen=True)
class SquaredError:
    """t = |target - f(u)|^2/2.  Of every hidden layer, whose targets are its coordinates; for outputs, regression.

    The paper's T has no 1/2: its thresholds on derivatives are twice those here.
    """

    activation: Activation = IDENTITY

    def prepared(self, targets: Tensor, width: int) -> Tensor:
        return targets.reshape(len(targets), width).to(torch.float64)

    def value(self, u: Tensor, targets: Tensor) -> Tensor:
        return (self.activation.value(u) - targets).square().sum(dim=1) / 2

    def slope(self, u: Tensor, targets: Tensor) -> Tensor:
        return (self.activation.value(u) - targets) * self.activation.slope(u)

    def bend(self, u: Tensor, targets: Tensor) -> Tensor:
        f, slope, bend = self.activation.value(u), self.activation.slope(u), self.activation.bend(u)
        return slope.square() + (f - targets) * bend

    def largest(self, reach: Reach, targets: float | None) -> Largest:
        """With Z the targets' norm, and |f(u)| <= F by units or since f is Lipschitz, whichever is less:

        t <= (F + Z)^2/2,    |t'| <= min(max s F, |p|) + max s Z,    |t''| <= |k| + e Z.
        """
        limits = self.activation.limits
        if limits is None:
            raise ValueError(f"No bounds are known for {self.activation.name}; clip the parts, or give its Limits.")
        if targets is None:
            raise ValueError("To bound a squared error by analysis, targets need a bound on their norm; give targets.")
        a, s = limits.size(reach.each), limits.slope(reach.each)
        steepest = float(s.max())
        size = min(float(a.norm()), limits.offset * math.sqrt(len(a)) + steepest * reach.whole)
        product = (a * s).clamp_max(limits.product)
        square = (s.square() + a * limits.bend).clamp_max(limits.square)
        return Largest(
            value=(size + targets) ** 2 / 2,
            slope=min(steepest * size, float(product.norm())) + steepest * targets,
            bend=float(square.norm()) + limits.bend * targets,
        )


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """t = sum over outputs of log(1 + e^u) - y u, for y between 0 and 1: what the paper's classifier uses.

    Classes given as whole numbers become rows with a single one.
    """

    def prepared(self, targets: Tensor, width: int) -> Tensor:
        if not targets.is_floating_point() and targets.dim() == 1:
            return _classes(targets, width)
        return targets.reshape(len(targets), width).to(torch.float64).clamp(0, 1)

    def value(self, u: Tensor, targets: Tensor) -> Tensor:
        return (F.softplus(u) - targets * u).sum(dim=1)

    def slope(self, u: Tensor, targets: Tensor) -> Tensor:
        return torch.sigmoid(u) - targets

    def bend(self, u: Tensor, targets: Tensor) -> Tensor:
        return torch.sigmoid(u) * torch.sigmoid(-u)

    def largest(self, reach: Reach, targets: float | None) -> Largest:
        """t_h <= log(1 + e^r), |t'_h| <= 1/(1 + e^-r), t''_h <= 1/4, r being unit h's reach."""
        return Largest(
            value=float(F.softplus(reach.each).sum()),
            slope=float(torch.sigmoid(reach.each).norm()),
            bend=math.sqrt(len(reach.each)) / 4,
        )


@dataclass(frozen=True)
class CrossEntropy:
    """t = log sum e^u - u_y over the classes, y the right one.

    Its second derivative couples the outputs: diag(p) - p p^T, p the softmax.  Units are expanded apart by diag(p),
    which is at least as large, so that every step is at most as long as the exact curvature would have it.
    """

    def prepared(self, targets: Tensor, width: int) -> Tensor:
        if targets.is_floating_point() or targets.dim() != 1:
            raise ValueError(f"Classes are whole numbers, one a record, got {targets.dtype} {tuple(targets.shape)}.")
        return _classes(targets, width)

    def value(self, u: Tensor, targets: Tensor) -> Tensor:
        return torch.logsumexp(u, dim=1) - (targets * u).sum(dim=1)

    def slope(self, u: Tensor, targets: Tensor) -> Tensor:
        return torch.softmax(u, dim=1) - targets

    def bend(self, u: Tensor, targets: Tensor) -> Tensor:
        return torch.softmax(u, dim=1)

    def largest(self, reach: Reach, targets: float | None) -> Largest:
        """With r the largest reach and q = 1 - p_y <= 1 - 1/(1 + (n - 1) e^(2r)) for n classes:

        t = -log(1 - q),    |t'| <= (q^2 + (sum of the other p)^2)^(1/2) = 2^(1/2) q,    |t''| = |p| <= 1.
        """
        others = math.log(max(len(reach.each) - 1, 1e-300)) + 2 * float(reach.each.max())
        value = others + math.log1p(math.exp(-others)) if others > 0 else math.log1p(math.exp(others))
        return Largest(value=value, slope=math.sqrt(2) * -math.expm1(-value), bend=1.0)


def _classes(labels: Tensor, width: int) -> Tensor:
    """Rows with a single one; a label that is no class makes its row NaN, so that the record contributes nothing."""
    known = (labels >= 0) & (labels < width)
    rows = F.one_hot(labels.long().where(known, 0), width).to(torch.float64)
    return rows.where(known[:, None], torch.nan)
