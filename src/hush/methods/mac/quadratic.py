"""The W step: a layer's perturbed objective, a polynomial in its weights that was released, and its minimum.

    q(d) = <G, d> + 1/2 sum_h d_h^T H_h d_h,    d = W - V,

both divided by the expected batch.  Noise makes H indefinite, and q unbounded below; H is replaced by the nearest
positive semidefinite matrix, its negative eigenvalues set to zero.  What is done with q is post-processing: it may be
evaluated as often as wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hush.accounting.checks import check_positive, check_whole


@dataclass(frozen=True, eq=False)
class Quadratic:
    """q of one layer.  `edge` is how large noise alone makes the eigenvalues of H: about std (2n)^(1/2)."""

    gradient: Tensor
    curvature: Tensor | None
    edge: float = 0.0

    def slope(self, d: Tensor) -> Tensor:
        """The gradient of q at d."""
        return self.gradient if self.curvature is None else self.gradient + self.applied(d)

    def applied(self, d: Tensor) -> Tensor:
        """H d, unit by unit."""
        assert self.curvature is not None
        return (self.curvature @ d[:, :, None])[:, :, 0]

    def value(self, d: Tensor) -> Tensor:
        """q(d), without its constant."""
        linear = (self.gradient * d).sum()
        return linear if self.curvature is None else linear + (self.applied(d) * d).sum() / 2


def semidefinite(matrices: Tensor) -> Tensor:
    """The nearest positive semidefinite matrices in Frobenius norm: negative eigenvalues become zero."""
    values, vectors = torch.linalg.eigh(matrices)
    nearest: Tensor = (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT
    return nearest


class Solver(Protocol):
    """Where a quadratic, damped, has its minimum."""

    def __call__(self, quadratic: Quadratic) -> Tensor: ...


@dataclass(frozen=True)
class ConjugateGradient:
    """At most `iterations` steps of conjugate gradients for every unit's weights.

    The damping is added to H's diagonal; None: as much as noise alone makes the eigenvalues, since directions that
    H knows less well than that are directions of noise.
    """

    iterations: int = 50
    damping: float | None = None

    def __post_init__(self) -> None:
        _check(self.iterations, self.damping)

    def __call__(self, quadratic: Quadratic) -> Tensor:
        damping = _damping(quadratic, self.damping)
        d = torch.zeros_like(quadratic.gradient)
        residual = -quadratic.gradient
        direction = residual.clone()
        power = residual.square().sum(dim=1, keepdim=True)
        for _ in range(min(self.iterations, 2 * d.shape[1])):
            applied = quadratic.applied(direction) + damping * direction
            length = power / (direction * applied).sum(dim=1, keepdim=True).clamp_min(1e-300)
            d = d + length * direction
            residual = residual - length * applied
            left = residual.square().sum(dim=1, keepdim=True)
            direction = residual + left / power.clamp_min(1e-300) * direction
            power = left
            if float(power.max()) <= 1e-28 * float(quadratic.gradient.square().sum(dim=1).max()):
                break
        return d


@dataclass(frozen=True)
class LBFGS:
    """At most `iterations` of L-BFGS with a line search on the whole layer; damping as for conjugate gradients."""

    iterations: int = 50
    damping: float | None = None

    def __post_init__(self) -> None:
        _check(self.iterations, self.damping)

    def __call__(self, quadratic: Quadratic) -> Tensor:
        damping = _damping(quadratic, self.damping)
        d = torch.zeros_like(quadratic.gradient, requires_grad=True)
        # gradients of released coefficients are often small: what counts as zero must be relative to them
        tolerance = 1e-9 * float(quadratic.gradient.abs().max())
        inner = torch.optim.LBFGS(
            [d], max_iter=self.iterations, tolerance_grad=tolerance, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def evaluate() -> float:
            with torch.no_grad():
                d.grad = quadratic.slope(d) + damping * d
                return float(quadratic.value(d) + damping * d.square().sum() / 2)

        inner.step(evaluate)
        return d.detach()


def _damping(quadratic: Quadratic, given: float | None) -> float:
    return max(quadratic.edge, 1e-12) if given is None else given


def _check(iterations: int, damping: float | None) -> None:
    check_whole("The number of iterations", iterations)
    if damping is not None:
        check_positive("The damping", damping)
