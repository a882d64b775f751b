"""The moment generating function of a subsampled Gaussian step's loss, at complex arguments, with its error.

One step of the Poisson-subsampled Gaussian mechanism shows an attacker x ~ N(0, 1) if the record is absent and
(1-p) N(0, 1) + p N(1/sigma, 1) if it is present.  The ratio of the two densities is

    g(x) = 1 - p + p exp(u),   u = x/sigma - 1/(2 sigma^2),   l(x) = log g(x),   E[g(x)] = 1 for x ~ N(0, 1).

Both neighbouring directions are powers of the one variable g under N(0, 1):

    remove:  E_P[exp(s L)] = E[g^(1+s)]        add:  E_P[exp(s L)] = E[g^(-s)]

so this file computes E[g^r] for complex r, as 1 + E[g^r - 1 - r (g-1)]: the bracket has no cancellation left, which
matters at sampling rates like 1e-9 where it is 1e-18 and is multiplied by a billion steps.

The expectation is a trapezoidal sum over x in [left, right].  Its error is proved in docs/certificate.md: with
ends half way between nodes, for every strip half-width b below pi*sigma,

    |error| <= 2 R(b) / (exp(2 pi b / spacing) - 1)  +  (spacing/pi) * (size of the integrand at the two ends)

where R(b) bounds the integral of the modulus along x +- ib.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
Numbers = NDArray[Any]
"""Real or complex."""

UNIT_ROUNDOFF = 2.0**-53
LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_SERIES_RADIUS = 0.5
_FEW_STEPS = 200_000
_TERMS, _FEWER_TERMS = 19, 15
_FACTORIALS = np.cumprod(np.arange(1.0, 2 + _TERMS))[1:]
_BLOCK = 16
_LARGEST = 600.0
"""log of an E[g^r] that is a floating-point number with room to spare."""


@dataclass(frozen=True, order=True)
class Step:
    """`count` equal steps of the Gaussian mechanism on a Poisson sample (sensitivity 1)."""

    rate: float
    noise: float
    count: float
    """Whole, but for a step that stands for others in a search."""


@dataclass(frozen=True)
class Grid:
    """The nodes of the trapezoidal rule over x for one kind of step, all that does not depend on r."""

    step: Step
    left: float
    spacing: float
    size: int
    _moved: dict[float, tuple[Array, Array]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def nodes(self) -> Array:
        return np.asarray(self.left + self.spacing * (0.5 + np.arange(self.size)), dtype=np.float64)

    @property
    def right(self) -> float:
        return self.left + self.spacing * self.size

    @cached_property
    def exponent(self) -> Array:
        """u = x/sigma - 1/(2 sigma^2)."""
        return self.nodes / self.step.noise - 0.5 / self.step.noise**2

    @cached_property
    def loss(self) -> Array:
        return log_ratio(self.exponent, self.step.rate)

    @cached_property
    def log_weight(self) -> Array:
        return np.asarray(np.log(self.spacing) - LOG_SQRT_2PI - 0.5 * self.nodes**2)

    @cached_property
    def weight(self) -> Array:
        return np.asarray(np.exp(self.log_weight))

    @cached_property
    def hit(self) -> Array:
        """w = p e^u/g(x), the posterior chance that x is a hit."""
        return np.asarray(np.exp(np.log(self.step.rate) + self.exponent - self.loss))

    def moved(self, shift: float) -> tuple[Array, Array]:
        """log |g(x + i shift)| and arg g(x + i shift) at the nodes, |shift| < pi sigma; computed once."""
        if shift not in self._moved:
            angle = shift / self.step.noise  # g(x + ib) = g(x) (1 - w + w e^{i angle})
            real, imaginary = 1 - self.hit * (1 - np.cos(angle)), self.hit * np.sin(angle)
            change = 0.5 * np.log(np.maximum(real * real + imaginary * imaginary, 1e-300))
            self._moved[shift] = self.loss + change, np.arctan2(imaginary, real)
        return self._moved[shift]

    def refined(self, spacing: float) -> Grid:
        """The same interval with nodes at most `spacing` apart."""
        size = int(np.ceil((self.right - self.left) / spacing))
        return Grid(self.step, self.left, (self.right - self.left) / size, size)


def log_ratio(exponent: Array, rate: float) -> Array:
    """log(1 - p + p e^u), to a few units in its own last place: it is 1e-9 and matters at tiny rates."""
    change = rate * np.expm1(np.minimum(exponent, 500.0))
    low = np.log((1 - rate) + rate * np.exp(np.minimum(exponent, 0.0))) if rate > 0.5 else np.zeros(())
    moderate = np.where(change < -0.5, low, np.log1p(np.maximum(change, -0.6)))
    return np.where(exponent < 500.0, moderate, exponent + np.log(rate))


def tail_masses(step: Step, left: float, right: float) -> tuple[float, float]:
    """Mass outside [left, right] under N(0, 1) and under N(1/sigma, 1)."""
    shift = 1 / step.noise
    absent = float(ndtr(left) + ndtr(-right))
    present = float(ndtr(left - shift) + ndtr(shift - right))
    return absent, present


def log_tail_masses(step: Step, left: float, right: float) -> tuple[float, float]:
    """The logarithms of the same, raised by more than they may be off: they need not be floating-point numbers."""
    shift = 1 / step.noise
    ends = np.array([[left, -right], [left - shift, shift - right]])
    logs = np.logaddexp.reduce(log_ndtr(ends), axis=1)
    absent, present = logs + 1e-12 * (1 + np.abs(logs))
    return float(absent), float(present)


def grid_for(step: Step, log_mass: float) -> Grid:
    """A first grid over an interval outside which one step has at most that mass, given by its logarithm."""
    reach = _quantile(log_mass - np.log(4))
    hit = _quantile(min(log_mass - np.log(4 * step.rate), -np.log(2)))
    left, right = -reach, max(reach, 1 / step.noise + hit)
    spacing = min(0.2, 0.2 * step.noise)
    size = int(np.ceil((right - left) / spacing))
    return Grid(step, left, (right - left) / size, size)


def _quantile(log_mass: float) -> float:
    """Where a standard Gaussian has at most that mass above; far out by Phi(-x) <= exp(-x^2/2)."""
    return float(-ndtri(np.exp(log_mass))) if log_mass > -690.0 else float(np.sqrt(-2 * log_mass))


def expected_expm1_minus(powers: Numbers, loss: Numbers, weight: Numbers, radius: float) -> Numbers:
    """The sum over nodes of weight (e^z - 1 - z) at z = r loss, |z| <= radius <= 1, by the moments of the losses.

    The series of each, up to terms of 1e-18 of it, turned round: sum_k r^k/k! sum_j weight_j loss_j^k.
    """
    factorials = _FACTORIALS[: _TERMS if radius > 0.5 else _FEWER_TERMS]
    largest = float(np.max(np.abs(powers)))
    shares, scaled = powers / largest, np.broadcast_to(loss * largest, (len(factorials) + 1, len(loss)))
    moments = (np.cumprod(scaled, axis=0)[1:] * weight).sum(axis=1) / factorials
    total: Numbers = np.full(powers.shape, moments[-1])
    for moment in moments[-2::-1]:
        total = total * shares + moment
    return np.asarray(total * shares * shares)


def _near(grid: Grid, largest_power: float) -> NDArray[np.bool_]:
    """The nodes where the bracket is summed by its series.  With few steps its absolute rounding is harmless anyway."""
    if grid.step.count <= _FEW_STEPS:
        return np.zeros(grid.size, dtype=np.bool_)
    return np.asarray(np.abs(grid.loss) * max(largest_power, 1.0) < _SERIES_RADIUS)


def log_scale(grid: Grid, real_power: float) -> float:
    """What all sums on the line Re r = real_power are divided by, a logarithm: 0 unless they would overflow."""
    top = float((real_power * grid.loss + grid.log_weight).max())
    return top if top > _LARGEST else 0.0


def log_moments(grid: Grid, powers: Array) -> Array:
    """log of the sum over the nodes of g^r, at real r, where that is larger than a floating-point number may be."""
    terms = np.multiply.outer(powers, grid.loss) + grid.log_weight
    top = terms.max(axis=-1)
    return np.asarray(top + np.log(np.exp(terms - top[..., None]).sum(axis=-1)))


def overflows(grid: Grid, powers: Array) -> NDArray[np.bool_]:
    """Which real powers need the logarithm."""
    steepest = np.maximum(powers * grid.loss[0], powers * grid.loss[-1])
    large = np.asarray(steepest > _LARGEST)
    for k in np.flatnonzero(large):
        large[k] = log_scale(grid, float(powers[k])) > 0
    return large


def excess(grid: Grid, powers: Numbers, scale: float = 0.0, spacing: float = 0.0) -> Numbers:
    """Sum over the nodes of g^r - 1 - r (g-1), for each power r (real or complex), divided by e^scale.

    (With a scale the last two are next to nothing beside the first, or nothing: far less than rounding takes.)
    Powers that follow each other on a line Re r = a at such a `spacing`, the first of them real, take far less time.
    """
    loss, log_weight, weight = grid.loss, grid.log_weight, grid.weight
    near = _near(grid, float(np.max(np.abs(powers))))
    far = ~near
    result = np.zeros(powers.shape, dtype=powers.dtype)
    if near.any():
        series = expected_expm1_minus(np.append(powers, 1.0), loss[near], weight[near], _SERIES_RADIUS)
        result += (series[:-1] - powers * series[-1]) * np.exp(-scale)
    if far.any():
        with np.errstate(over="ignore"):
            if spacing != 0:
                tilted = np.exp(powers[0].real * loss[far] + (log_weight[far] - scale))
                result += turned_sums(tilted, loss[far], spacing, len(powers))
            else:
                result += np.exp(np.multiply.outer(powers, loss[far]) + (log_weight[far] - scale)).sum(axis=-1)
        rest = weight[far].sum() + powers * _weighted_ratio(grid, far).sum()
        result -= rest if scale == 0 else rest * np.exp(-scale)
    return result


def turned_sums(weights: Numbers, loss: Numbers, spacing: float, count: int) -> Complex:
    """The sums over nodes of weight e^(i k spacing loss), k = 0, 1, ..: each a product of two of few such numbers.

    Sums of 16 products are added up in pairs.
    """
    columns = math.isqrt(count) + 1
    rows, blocks = -(-count // columns), -(-len(loss) // _BLOCK)
    loss, weights = (np.append(each, np.zeros(blocks * _BLOCK - len(each))) for each in (loss, weights))
    turns = np.exp(1j * np.multiply.outer(loss, spacing * np.arange(columns)))
    leaps = np.exp(1j * np.multiply.outer(spacing * columns * np.arange(rows), loss)) * weights
    sums = leaps.reshape(rows, blocks, _BLOCK).transpose(1, 0, 2) @ turns.reshape(blocks, _BLOCK, columns)
    return np.asarray(np.ascontiguousarray(sums.reshape(blocks, -1).T).sum(axis=1)[:count])


def _weighted_ratio(grid: Grid, where: NDArray[np.bool_]) -> Array:
    """weight * (g - 1), neither cancelling for g near 1 nor overflowing where g is huge and the weight tiny."""
    loss, log_weight = grid.loss[where], grid.log_weight[where]
    small = np.exp(log_weight) * np.expm1(np.minimum(loss, 1.0))
    large = np.exp(np.maximum(loss, 1.0) + log_weight) - np.exp(log_weight)
    ratio: Array = np.where(loss < 1.0, small, large)
    return ratio


def exponent_doubt(nodes: Numbers, noise: float) -> Array:
    """How far u = x/sigma - 1/(2 sigma^2) may be off at the nodes, in units of 4 u.

    A node is rounded twice, by no more than its largest neighbours, x/sigma once, 1/(2 sigma^2) three times, and their
    difference once.  (What the node's rounding does to the weight is within 4 u |log weight|.)
    """
    size = np.abs(nodes)
    shift = 0.5 / noise**2
    return np.asarray((size + 2 * size.max()) / noise + 3 * shift + size / noise + shift) / 4


def rounding(grid: Grid, real_power: float, sizes: Array, scale: float = 0.0) -> Array:
    """A bound on the floating-point error of `excess` on the line Re r = real_power, |r| = sizes.

    In units of 4 u.  A node's loss l is off by 4 |l| and by |dl/du| times what u is off (`exponent_doubt`).  The
    argument r l + log weight of its exponential is off by r times that, by 2 |r l| for four operations on each of its
    turns, and by 1 |log weight|; the exponential by 1, and two turns and their products by 3; sums of 16 products, 32 u
    of their real and imaginary parts each in whatever order, by 12; and of n in pairs by (22 + log2(n/128)) u, less
    than 6 for any n here.
    The same in the sums of weights and of g - 1, and 1 |scale| where there is one.  By the series,
    |e^z - 1 - z| <= 0.6 |z|^2 with a slope of at most 1.3 |z|, all but what u is off is less than 60 |z|^2.
    """
    loss, weight = np.abs(grid.loss), grid.weight
    near = _near(grid, float(np.max(sizes)))
    far = ~near
    off = np.minimum(grid.hit, 1.0) * exponent_doubt(grid.nodes, grid.step.noise)
    quadratic = float((weight[near] * loss[near] * (60 * loss[near] + 1.3 * off[near])).sum())
    with np.errstate(over="ignore"):
        tilted = np.exp(real_power * grid.loss[far] + (grid.log_weight[far] - scale))
        ratio = np.exp(grid.loss[far] + grid.log_weight[far])
    constant = float((tilted * (23 + scale + np.abs(grid.log_weight[far]))).sum() + 8 * weight[far].sum())
    linear = float((tilted * (6 * loss[far] + off[far])).sum() + 16 * np.abs(_weighted_ratio(grid, far)).sum())
    linear += float((ratio * off[far]).sum())
    return 4 * UNIT_ROUNDOFF * (constant + sizes * linear + (sizes + sizes**2) * quadratic)
