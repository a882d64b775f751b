"""How a trade-off function is held: as two discrete distributions, or as a formula. And the ones with a name.

T(P, Q)(alpha) is the smallest type II error of a test of P against Q at type I error alpha (Dong, Roth, Su 2022,
Definition 2). Operations on these values are in `tradeoff`, which is also where to import all of this from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from hush.accounting.divergences import gaussian_log_delta, total_variation

Array = NDArray[np.float64]

# Integrals over [0, 1] run over z with x = Phi(-z): both ends are resolved, and 1 - 1e-16 is where doubles end.
_Z_LOW, _Z_HIGH = -8.2, 37.5
_MOST_OUTCOMES = 10**7
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


class TradeoffFunction(ABC):
    """A convex, continuous, non-increasing function on [0, 1] with f(alpha) <= 1 - alpha (Proposition 1)."""

    mu: float | None = None
    """The parameter where the function is known to be G_mu, whose algebra is closed form."""

    def __call__(self, alpha: ArrayLike) -> Array:
        """The smallest type II error at type I error alpha."""
        levels = np.asarray(alpha, dtype=np.float64)
        if not np.all((levels >= 0) & (levels <= 1)):
            raise ValueError("Type I errors must lie between 0 and 1.")
        return self._evaluate(levels)

    @abstractmethod
    def _evaluate(self, alpha: Array) -> Array: ...

    @abstractmethod
    def inverse(self) -> TradeoffFunction:
        """f^-1(alpha) = inf{t: f(t) <= alpha}: T(Q, P) where f = T(P, Q) (Eq. 3)."""

    @abstractmethod
    def log_slope(self, alpha: Array) -> Array:
        """log |f'(alpha)|, the log-likelihood ratio log dQ/dP at the threshold of the level-alpha test."""

    @abstractmethod
    def expectation(self, of: Callable[[Array], Array], bends: tuple[float, ...] = (), growth: float = 0.0) -> float:
        """E_P[of(l) e^(growth max(l, 0))], l = log dQ/dP = log |f'|; `of` may have kinks at `bends`.

        What grows like a power of the ratio says so by `growth`, or its largest values would overflow.
        """

    @abstractmethod
    def conjugate(self, slope: ArrayLike) -> Array:
        """f*(y) = sup over alpha in [0, 1] of y alpha - f(alpha) (Eq. 7)."""

    @abstractmethod
    def kinks(self) -> Array:
        """The type I errors, if any, where f is not smooth."""

    def hockey_stick(self, epsilon: Array) -> Array:
        """sup_E Q(E) - e^epsilon P(E) = 1 + f*(-e^epsilon), to an absolute 1e-15."""
        return np.maximum(1 + self.conjugate(-np.exp(epsilon)), 0.0)

    def symmetrise(self) -> TradeoffFunction:
        """max{f, f^-1}: f-DP for a symmetric neighbouring relation is this much already (Proposition 2)."""
        from hush.accounting.tradeoff import maximum  # the algebra is built on this file

        return maximum(self, self.inverse())

    def biconjugate(self) -> TradeoffFunction:
        """f** = f: a trade-off function is its own greatest convex minorant. For others see `biconjugate`."""
        return self

    def error_sum(self) -> float:
        """The smallest sum of type I and type II error, min over alpha of alpha + f(alpha)."""
        return 1 - total_variation(self)

    def __pow__(self, times: int) -> TradeoffFunction:
        from hush.accounting.tradeoff import power

        return power(self, times)


@dataclass(frozen=True, eq=False)
class PiecewiseLinear(TradeoffFunction):
    """T(P, Q) of discrete P (`null`) and Q (`alternative`), outcomes in decreasing order of dQ/dP.

    A first outcome with null probability 0 is what makes f(0) < 1 (the delta of (epsilon, delta)-DP).
    Build it with `from_distributions`, which sorts.
    """

    null: Array
    alternative: Array

    @cached_property
    def vertices(self) -> tuple[Array, Array]:
        """The corners of the graph: type I errors ascending, type II errors. Each is summed from its own small end."""
        finite = self.null > 0
        levels = np.minimum(np.concatenate([[0.0], np.cumsum(self.null[finite])]), 1.0)
        remaining = np.concatenate([np.cumsum(self.alternative[finite][::-1])[::-1], [0.0]])
        levels[-1] = 1.0
        return levels, remaining

    def _evaluate(self, alpha: Array) -> Array:
        return np.asarray(np.interp(alpha, *self.vertices))

    def inverse(self) -> PiecewiseLinear:
        return PiecewiseLinear(self.alternative[::-1], self.null[::-1])

    def _log_ratios(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.alternative) - np.log(self.null))

    def log_slope(self, alpha: Array) -> Array:
        ratios = self._log_ratios()[self.null > 0]
        index = np.searchsorted(self.vertices[0], alpha, side="right") - 1
        return np.asarray(ratios[np.clip(index, 0, len(ratios) - 1)])

    def expectation(self, of: Callable[[Array], Array], bends: tuple[float, ...] = (), growth: float = 0.0) -> float:
        charged = self.null > 0
        ratios = self._log_ratios()[charged]
        with np.errstate(over="ignore"):
            return float(np.exp(np.log(self.null[charged]) + growth * np.maximum(ratios, 0.0)) @ of(ratios))

    def conjugate(self, slope: ArrayLike) -> Array:
        levels, errors = self.vertices
        return np.asarray(np.max(np.multiply.outer(np.asarray(slope), levels) - errors, axis=-1))

    def hockey_stick(self, epsilon: Array) -> Array:
        """The sum of (Q - e^epsilon P)_+, whose terms are all positive: small values keep their digits."""
        factor = np.exp(epsilon)[..., None]
        with np.errstate(invalid="ignore"):
            excess = self.alternative - np.where(self.null > 0, factor * self.null, 0.0)
        return np.asarray(np.maximum(excess, 0.0).sum(axis=-1))

    def kinks(self) -> Array:
        return self.vertices[0][1:-1]


@dataclass(frozen=True, eq=False)
class Curve(TradeoffFunction):
    """A trade-off function by formula: `value` is f, `log_ratio` log |f'|, `mirror` builds f^-1 (None if symmetric).

    `mean` takes expectations where another variable suits them better than the type I error.
    """

    name: str
    value: Callable[[Array], Array]
    log_ratio: Callable[[Array], Array]
    mirror: Callable[[], TradeoffFunction] | None = None
    corners: tuple[float, ...] = ()
    mu: float | None = field(default=None)
    mean: Callable[[Callable[[Array], Array], tuple[float, ...], float], float] | None = None

    def _evaluate(self, alpha: Array) -> Array:
        return np.clip(self.value(alpha), 0.0, 1 - alpha)

    def inverse(self) -> TradeoffFunction:
        return self if self.mirror is None else self.mirror()

    def log_slope(self, alpha: Array) -> Array:
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(self.log_ratio(alpha))

    def expectation(self, of: Callable[[Array], Array], bends: tuple[float, ...] = (), growth: float = 0.0) -> float:
        """By Gauss-Legendre panels in z, x = Phi(-z), split at the corners and the bends; refused if not resolved.

        The last 1e-16 of x next to 1 is left out: doubles can't tell those levels from 1.  Of the levels x below 1e-300
        the integral of |f'|^growth is at most x^(1-growth) (f(0) - f(x))^growth up to growth 1, and no less beyond.
        """
        if self.mean is not None:
            return self.mean(of, bends, growth)
        corners = np.array([c for c in self.corners if 1e-300 < c < 1 - 1e-15])
        bent = [self._where(at) for at in bends]
        edges = np.unique(np.concatenate([np.linspace(_Z_LOW, _Z_HIGH, 93), -ndtri(corners), bent]))
        half = 0.5 * np.diff(edges)[:, None]
        z = edges[:-1, None] + half * (_NODES + 1)
        ratio = self.log_slope(ndtr(-z))
        with np.errstate(over="ignore", invalid="ignore"):
            masses = half * _WEIGHTS * np.exp(growth * np.maximum(ratio, 0.0) - 0.5 * z * z) / math.sqrt(2 * math.pi)
            terms = masses * of(ratio)
        total = float(terms.sum())
        if math.isinf(total):
            return total
        left = np.abs(terms[-1]).sum()
        if growth > 0:
            smallest = float(ndtr(-_Z_HIGH))
            told = max(float(self(0.0) - self(smallest)), 0.0)
            left = max(left, smallest ** max(1 - growth, 0.0) * told ** min(growth, 1.0))
        if math.isnan(total) or left > 1e-9 * np.abs(terms).sum():
            raise ValueError(f"The integral over {self.name} lies in type I errors below 1e-300: use a closed form.")
        return total

    def _where(self, ratio: float) -> float:
        """The z where log |f'|, which rises with it, passes that value."""
        low, high = _Z_LOW, _Z_HIGH
        while high - low > 2e-15 * max(1.0, abs(low)):
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            low, high = (middle, high) if self.log_slope(ndtr(np.array([-middle])))[0] < ratio else (low, middle)
        return high

    def conjugate(self, slope: ArrayLike) -> Array:
        y = np.asarray(slope, dtype=np.float64)
        if np.any(y > 0):
            raise ValueError("The conjugate of a trade-off function is of interest at slopes y <= 0 only.")
        steep = y <= -1
        # (f^-1)*(y) = -y f*(1/y): gentle slopes of f are steep slopes of its inverse, where levels near 0 are resolved.
        gentle = np.where(steep | (y == 0), -1.0, y)
        own = _steep_conjugate(self, np.where(steep, y, -1.0))
        if np.all(steep):
            return own
        mirrored = -gentle * _steep_conjugate(self.inverse(), 1 / gentle)
        return np.where(steep, own, np.where(y == 0, -self._evaluate(np.ones_like(y)), mirrored))

    def hockey_stick(self, epsilon: Array) -> Array:
        if self.mu is None:
            return super().hockey_stick(epsilon)
        return np.asarray(np.exp(np.vectorize(gaussian_log_delta, otypes=[float])(self.mu, epsilon)))

    def kinks(self) -> Array:
        return np.array(self.corners)


def _steep_conjugate(f: TradeoffFunction, y: Array) -> Array:
    """sup of y x - f(x) at y <= -1: bisection on log x for the level where |f'| falls to |y|."""
    target = np.log(-y)
    low, high = np.full(y.shape, -700.0), np.zeros(y.shape)
    for _ in range(80):
        middle = 0.5 * (low + high)
        steeper = f.log_slope(np.exp(middle)) > target
        low, high = np.where(steeper, middle, low), np.where(steeper, high, middle)
    best = np.exp(0.5 * (low + high))
    interior = np.asarray(y * best - f(best))
    return np.maximum(interior, np.maximum(-f(np.zeros_like(y)), y))


# Constructors


def identity() -> PiecewiseLinear:
    """Id(alpha) = 1 - alpha: perfect privacy, two equal distributions."""
    return approximate(0.0, 0.0)


def approximate(epsilon: float, delta: float = 0.0) -> PiecewiseLinear:
    """f_{epsilon,delta} = max{0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)} (Eq. 4)."""
    if not 0 <= epsilon < math.inf or not 0 <= delta <= 1:
        raise ValueError(f"A guarantee needs 0 <= epsilon < inf and 0 <= delta <= 1, got ({epsilon}, {delta}).")
    common = (1 - delta) / (1 + math.exp(-epsilon))
    rare = common * math.exp(-epsilon)
    return _from_probabilities([0.0, rare, common, delta], [delta, common, rare, 0.0])


def gaussian(mu: float) -> Curve:
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), T(N(0, 1), N(mu, 1)) (Eq. 5)."""
    if not 0 <= mu < math.inf:
        raise ValueError(f"mu must be finite and non-negative, got {mu}.")

    def log_ratio(a: Array) -> Array:
        return np.asarray(-mu * ndtri(a) - mu * mu / 2) if mu > 0 else np.zeros_like(a)

    return Curve(f"G_{mu:g}", lambda a: ndtr(-ndtri(a) - mu), log_ratio, mu=float(mu))


def laplace(mu: float) -> Curve:
    """T(Lap(0, 1), Lap(mu, 1)): the Laplace mechanism, and the limit of group privacy (Proposition 7)."""
    if not 0 <= mu < math.inf:
        raise ValueError(f"mu must be finite and non-negative, got {mu}.")
    knee = max(math.exp(-mu) / 2, 1e-300)

    def value(a: Array) -> Array:
        middle = math.exp(-mu) / (4 * np.clip(a, knee, 0.5))
        return np.where(a < knee, 1 - 0.5 * a / knee, np.where(a > 0.5, math.exp(-mu) * (1 - a), middle))

    return Curve(f"Laplace({mu:g})", value, lambda a: -mu - 2 * np.log(2 * np.clip(a, knee, 0.5)), corners=(knee, 0.5))


def from_distributions(null: Any, alternative: Any, cells: int = 20_000) -> TradeoffFunction:
    """T(P, Q) of two distributions: arrays of probabilities, or two of scipy.stats, both discrete or both continuous.

    Continuous distributions with a monotone likelihood ratio give the exact curve. Others are cut into some `cells`
    pieces at quantiles of both, each piece one outcome: a post-processing, so f comes out too large, by about 1/cells.
    """
    if hasattr(null, "pmf") and hasattr(alternative, "pmf"):
        return _from_probabilities(*_whole_numbers(null, alternative))
    if not hasattr(null, "logpdf"):
        return _from_probabilities(null, alternative)
    lower = np.sort(np.concatenate([d.ppf(np.linspace(1e-9, 1 - 1e-9, cells // 2 + 1)) for d in (null, alternative)]))
    steps = np.diff(alternative.logpdf(lower) - null.logpdf(lower))
    tolerance = 1e-9
    if np.all(steps >= -tolerance):
        return _from_monotone(null, alternative)
    if np.all(steps <= tolerance):
        return _from_monotone(null, alternative, falling=True)
    edges = np.unique(lower)
    masses = [np.diff(np.concatenate([[0.0], d.cdf(edges), [1.0]])) for d in (null, alternative)]
    return _from_probabilities(*masses)


def _whole_numbers(null: Any, alternative: Any) -> list[Array]:
    """Probabilities of the whole numbers on which two distributions live, those beyond 1e-16 of either joined."""
    ends = [(*d.support(), d.ppf(1e-16), d.isf(1e-16)) for d in (null, alternative)]
    low = min(a if math.isfinite(a) else first for a, _, first, _ in ends)
    high = max(b if math.isfinite(b) else last for _, b, _, last in ends)
    if not high - low < _MOST_OUTCOMES:
        raise ValueError(f"These distributions have more than {_MOST_OUTCOMES:,} outcomes: group them into fewer.")
    outcomes = np.arange(low, high + 1)
    masses = [np.asarray(d.pmf(outcomes), dtype=np.float64) for d in (null, alternative)]
    for d, mass in zip((null, alternative), masses, strict=True):
        mass[0] += d.cdf(low - 1)
        mass[-1] += d.sf(high)
    return masses


def _from_probabilities(null: ArrayLike, alternative: ArrayLike) -> PiecewiseLinear:
    p, q = np.asarray(null, dtype=np.float64), np.asarray(alternative, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 1 or not (np.all(p >= 0) and np.all(q >= 0)):
        raise ValueError("Two lists of non-negative probabilities of equal length are needed.")
    if abs(p.sum() - 1) > 1e-9 or abs(q.sum() - 1) > 1e-9:
        raise ValueError(f"Probabilities must sum to 1, these sum to {p.sum()} and {q.sum()}.")
    return sorted_and_merged(p, q)


def sorted_and_merged(p: Array, q: Array) -> PiecewiseLinear:
    """Order outcomes by likelihood ratio and join those whose ratios agree to rounding, which loses nothing."""
    p, q = p[(p > 0) | (q > 0)], q[(p > 0) | (q > 0)]
    with np.errstate(divide="ignore"):
        ratio = np.log(q) - np.log(p)
    order = np.argsort(-ratio, kind="stable")
    ratio = ratio[order]
    with np.errstate(invalid="ignore"):
        gap, size = ratio[:-1] - ratio[1:], np.abs(ratio[1:])
    new = gap > 1e-12 * np.where(np.isfinite(size), np.maximum(1.0, size), 1.0)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    return PiecewiseLinear(np.add.reduceat(p[order], starts), np.add.reduceat(q[order], starts))


def _from_monotone(null: Any, alternative: Any, falling: bool = False) -> Curve:
    """T(P, Q) where the most powerful tests reject beyond a threshold: above it, or below it where the ratio falls."""

    def threshold(a: Array) -> Array:
        return np.asarray(null.ppf(a) if falling else null.isf(a))

    def value(a: Array) -> Array:
        return np.asarray(alternative.sf(threshold(a)) if falling else alternative.cdf(threshold(a)))

    def log_ratio(a: Array) -> Array:
        x = threshold(a)
        with np.errstate(invalid="ignore"):
            difference = alternative.logpdf(x) - null.logpdf(x)
        return np.where(np.isnan(difference), np.where(a < 0.5, math.inf, -math.inf), difference)

    return Curve("T(P, Q)", value, log_ratio, mirror=lambda: _from_monotone(alternative, null, not falling))


def from_vertices(levels: ArrayLike, errors: ArrayLike) -> PiecewiseLinear:
    """The piecewise-linear trade-off function through the given corners, from level 0 to level 1."""
    x, y = np.asarray(levels, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    drops, widths = -np.diff(y), np.diff(x)
    if x[0] != 0 or x[-1] != 1 or np.any(widths < 0) or np.any(drops < -1e-12) or abs(y[-1]) > 1e-12:
        raise ValueError("Corners must run from level 0 to level 1 with falling errors that end at 0.")
    chords = y[:-2] - (drops[:-1] + drops[1:]) * widths[:-1] / np.maximum(widths[:-1] + widths[1:], 1e-300)
    if np.any(y[1:-1] > chords + 1e-9):
        raise ValueError("These corners aren't convex: take `biconjugate` of the function first.")
    return sorted_and_merged(np.concatenate([[0.0], np.diff(x)]), np.maximum(np.concatenate([[1 - y[0]], drops]), 0.0))
