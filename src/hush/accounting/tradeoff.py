"""Trade-off functions: the algebra of f-differential privacy (Dong, Roth, Su 2022).

T(P, Q)(alpha) is the smallest type II error of a test of P against Q at type I error alpha. The larger the function,
the harder the test, the more private. Two representations carry the algebra:

- `PiecewiseLinear`: two discrete distributions, kept as their probabilities in order of likelihood ratio. Every
  operation on these is exact up to rounding.
- `Curve`: a formula for f and for the likelihood ratio |f'|. Products of two curves that have no closed form go
  through a discretisation, which by data processing errs upwards (it sees too much privacy, see `discretise`); the
  certified composition is in `contour`.

    >>> f = approximate(1.0, 0.0)
    >>> round(float((f ** 2)(0.1)), 4)
    0.4379
    >>> round(float(gaussian(1.0)(0.05)), 4)
    0.7405
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from hush.accounting.divergences import (
    chi_square,
    chi_square_plus,
    delta,
    epsilon,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_mu,
    kappa2,
    kappa3,
    kappa3_bar,
    kl,
    renyi,
    total_variation,
)
from hush.accounting.hulls import lower_hull
from hush.accounting.representations import (
    Array,
    Curve,
    PiecewiseLinear,
    TradeoffFunction,
    approximate,
    from_distributions,
    from_vertices,
    gaussian,
    identity,
    laplace,
    sorted_and_merged,
)
from hush.accounting.roots import bracketed_root

__all__ = [
    "Curve", "PiecewiseLinear", "TradeoffFunction", "approximate", "biconjugate", "chi_square", "chi_square_plus",
    "delta", "discretise", "distance", "epsilon", "from_distributions", "from_guarantees", "from_vertices", "gaussian",
    "gaussian_epsilon", "gaussian_log_delta", "gaussian_mu", "group", "identity", "kappa2", "kappa3", "kappa3_bar",
    "kl", "laplace", "maximum", "minimum", "plot", "poisson", "power", "renyi", "subsample", "tensor",
    "total_variation",
]  # fmt: skip

_EXACT_PAIRS, _BINS = 2**20, 1500


def from_guarantees(guarantees: Iterable[tuple[float, float]]) -> TradeoffFunction:
    """The largest f that a set of (epsilon, delta) guarantees proves, sup of the f_{epsilon,delta} (Proposition 5)."""
    functions: list[TradeoffFunction] = [approximate(e, d) for e, d in guarantees]
    if not functions:
        raise ValueError("At least one (epsilon, delta) guarantee is needed.")
    return reduce(maximum, functions)


def maximum(f: TradeoffFunction, g: TradeoffFunction) -> TradeoffFunction:
    """max{f, g}: what is proved by two guarantees that hold together."""
    if f is g:
        return f
    exact = isinstance(f, PiecewiseLinear) and isinstance(g, PiecewiseLinear)
    grid = np.concatenate([f.kinks(), g.kinks(), [0.0, 1.0], [] if exact else ndtr(np.linspace(-37, 8.2, 2001))])
    levels = np.unique(grid)
    gap = np.asarray(f(levels) - g(levels))
    change = np.flatnonzero((np.abs(gap[:-1]) > 1e-15) & (np.abs(gap[1:]) > 1e-15) & (gap[:-1] * gap[1:] < 0))
    if exact:
        share = gap[change] / (gap[change] - gap[change + 1])
        crossings = levels[change] + share * (levels[change + 1] - levels[change])
        levels = np.unique(np.concatenate([levels, crossings]))
        return from_vertices(levels, np.maximum(f(levels), g(levels)))
    crossed = [bracketed_root(lambda x: float(f(x) - g(x)), levels[i], levels[i + 1], absolute=1e-16) for i in change]
    return Curve(
        "max",
        lambda a: np.maximum(f(a), g(a)),
        lambda a: np.where(f(a) >= g(a), f.log_slope(a), g.log_slope(a)),
        mirror=lambda: maximum(f.inverse(), g.inverse()),
        corners=tuple(np.unique(np.concatenate([f.kinks(), g.kinks(), crossed]))),
    )


def minimum(f: TradeoffFunction, g: TradeoffFunction) -> PiecewiseLinear:
    """min{f, g}**: what holds when either of two guarantees does. Exact for piecewise-linear f and g."""
    corners = [np.stack(discretise(h).vertices) for h in (f, g)]
    return _lower_hull(*np.concatenate(corners, axis=1))


def biconjugate(function: Callable[[Array], Array], levels: ArrayLike | None = None) -> PiecewiseLinear:
    """h**, the greatest convex function below h, from the values of h at `levels` (a fine grid if none are given)."""
    grid = ndtr(np.linspace(-37, 8.2, 4001)) if levels is None else np.asarray(levels, dtype=np.float64)
    x = np.unique(np.concatenate([[0.0], grid, [1.0]]))
    return _lower_hull(x, np.clip(function(x), 0.0, 1 - x))


def _lower_hull(levels: Array, errors: Array) -> PiecewiseLinear:
    """The convex minorant of points."""
    return from_vertices(*lower_hull(levels, errors))


def discretise(f: TradeoffFunction, pieces: int = 2000) -> PiecewiseLinear:
    """Chords of f at `pieces` levels evenly spaced in Phi^-1(level), and at its kinks.

    A chord lies above a convex function: this sees too much privacy, by some 1e-6. Levels within 1e-12 of 0 and 1
    aren't resolved, so of deltas below that the result says nothing.
    """
    if isinstance(f, PiecewiseLinear):
        return f
    levels = np.unique(np.concatenate([[0.0, 1.0], ndtr(np.linspace(-7.0, 7.0, pieces)), f.kinks()]))
    return from_vertices(levels, np.append(f(levels[:-1]), 0.0))


def tensor(f: TradeoffFunction, g: TradeoffFunction) -> TradeoffFunction:
    """f (x) g = T(P x P', Q x Q'), the composition of two mechanisms (Definition 5, Theorem 4).

    Closed form for two Gaussians (Corollary 2) and for a factor f_{0,delta} (Eq. 12). Exact for piecewise-linear
    factors with at most a million pairs of outcomes; beyond, likelihood ratios are binned, and curves are discretised
    first: then the result is too large, by some 1e-5 after sixteen factors of G_{1/4}.
    """
    if f.mu is not None and g.mu is not None:
        return gaussian(math.hypot(f.mu, g.mu))
    for one, other in ((f, g), (g, f)):
        share = _pure_delta(one)
        if share is not None and isinstance(other, Curve):
            return _scaled(other, share) if share else other
    a, b = discretise(f), discretise(g)
    exact = len(a.null) * len(b.null) <= _EXACT_PAIRS
    if not exact:
        a, b = (h if len(h.null) <= _BINS else _binned(h.null, h.alternative) for h in (a, b))
    p, q = np.multiply.outer(a.null, b.null).ravel(), np.multiply.outer(a.alternative, b.alternative).ravel()
    return sorted_and_merged(p, q) if exact else _binned(p, q)


def _pure_delta(f: TradeoffFunction) -> float | None:
    """The delta where f = f_{0,delta}, otherwise None."""
    if not isinstance(f, PiecewiseLinear) or np.count_nonzero((f.null > 0) & (f.alternative > 0)) > 1:
        return None
    finite = (f.null > 0) & (f.alternative > 0)
    p, q = float(f.null[finite].sum()), float(f.alternative[finite].sum())
    return 1 - p if abs(p - q) <= 1e-15 else None


def _scaled(f: Curve, share: float) -> Curve:
    """f (x) f_{0,share}: the graph shrunk towards the origin by 1 - share (Eq. 12)."""
    keep = 1 - share

    def inner(a: Array) -> Array:
        return np.minimum(a / keep, 1.0) if keep > 0 else np.ones_like(a)

    return Curve(
        f"{f.name} (x) f_0,{share:g}",
        lambda a: np.where(a < keep, keep * f(inner(a)), 0.0),
        lambda a: np.where(a < keep, f.log_slope(inner(a)), -math.inf),
        mirror=None if f.mirror is None else lambda: tensor(f.inverse(), approximate(0.0, share)),
        corners=(*(keep * c for c in f.corners), keep),
    )


def _binned(p: Array, q: Array) -> PiecewiseLinear:
    """Join outcomes of similar likelihood ratio, a post-processing, in even bins over where the probability is."""
    p, q = p[(p > 0) | (q > 0)], q[(p > 0) | (q > 0)]
    with np.errstate(divide="ignore"):
        ratio = np.log(q) - np.log(p)
    both = np.isfinite(ratio)
    likely = ratio[both & (np.maximum(p, q) > 1e-18)]
    low, high = likely.min(), likely.max()
    index = np.zeros(len(ratio), dtype=np.int64)
    index[both] = np.clip((high - ratio[both]) / (high - low) * _BINS, 0, _BINS) + 1
    index[ratio == -math.inf] = _BINS + 2
    return sorted_and_merged(np.asarray(np.bincount(index, p), float), np.asarray(np.bincount(index, q), float))


def power(f: TradeoffFunction, times: int) -> TradeoffFunction:
    """f^(x)n, the n-fold composition, exact under the conditions of `tensor`.

    Two outcomes per factor make it binomial at any n: f_{epsilon,0}^(x)n = T(B(n, p), B(n, q)) with
    p = 1/(1 + e^epsilon) = 1 - q (Kairouz, Oh, Viswanath 2017); an f_{0,delta} beside it only scales.
    """
    if times != int(times) or times < 0:
        raise ValueError(f"A power must be a non-negative whole number, got {times}.")
    if times == 0:
        return identity()
    if f.mu is not None:
        return gaussian(f.mu * math.sqrt(times))
    if isinstance(f, PiecewiseLinear) and np.count_nonzero((f.null > 0) & (f.alternative > 0)) == 2:
        return _binomial_power(f, times)
    half = power(f, times // 2)
    square = tensor(half, half)
    return tensor(square, f) if times % 2 else square


def _binomial_power(f: PiecewiseLinear, times: int) -> PiecewiseLinear:
    """The n-fold product of two outcomes that both hypotheses can produce, beside any that give one of them away."""
    from scipy.stats import binom  # imports half of SciPy, so only where needed

    shared = (f.null > 0) & (f.alternative > 0)

    def sides(masses: Array) -> tuple[float, Array]:
        """The probability that some factor gives itself away, and of each count among those that don't."""
        log_kept = times * math.log1p(-float(masses[~shared].sum()))
        first = float(masses[shared][0] / masses[shared].sum())
        return -math.expm1(log_kept), math.exp(log_kept) * binom.pmf(np.arange(times + 1), times, first)

    (null_leak, null), (alternative_leak, alternative) = sides(f.null), sides(f.alternative)
    return sorted_and_merged(
        np.concatenate([[0.0], null, [null_leak]]), np.concatenate([[alternative_leak], alternative, [0.0]])
    )


def poisson(f: TradeoffFunction, rate: float) -> TradeoffFunction:
    """f_p = p f + (1 - p) Id: T(M(S), M(S')) when S' has one record more, sampled with probability p.

    Bu et al. 2019, Eq. (3). Not symmetric. Removing the record is f_p.inverse(); compose each direction by itself and
    join them at the end.
    """
    _check_rate(rate)
    if isinstance(f, PiecewiseLinear):
        return sorted_and_merged(f.null, rate * f.alternative + (1 - rate) * f.null)
    if rate == 0:
        return identity()
    if rate == 1:
        return f
    mixed = Curve(
        f"{rate:g} {getattr(f, 'name', 'f')} + {1 - rate:g} Id",
        lambda a: rate * f(a) + (1 - rate) * (1 - a),
        lambda a: np.logaddexp(math.log(rate) + f.log_slope(a), math.log1p(-rate)),
        mirror=lambda: _numerical_inverse(mixed),
        corners=tuple(f.kinks()),
    )
    return mixed


def _numerical_inverse(f: Curve) -> Curve:
    """f^-1 by bisection on z, the level being Phi(-z): tiny levels keep their digits, and with them their slopes."""

    def level(beta: Array) -> Array:
        low, high = np.full(beta.shape, -8.3), np.full(beta.shape, 38.6)
        for _ in range(60):
            middle = 0.5 * (low + high)
            above = f(ndtr(-middle)) > beta
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.asarray(ndtr(-low))

    def mean(of: Callable[[Array], Array], bends: tuple[float, ...], growth: float) -> float:
        """E_Q[of(-l)] = E_P[of(-l) e^l], smooth in P's levels; and what Q alone has, where l is infinite."""

        def weighed(ratio: Array) -> Array:
            return of(-ratio) * np.exp(np.minimum(ratio, 0.0) + growth * np.maximum(-ratio, 0.0))

        told = 1 - float(f(0.0))
        alone = told * float(of(np.array([-math.inf]))[0]) if told > 0 else 0.0
        return f.expectation(weighed, tuple(-bend for bend in bends), growth=1.0) + alone

    return Curve(
        f"inverse of {f.name}",
        level,
        lambda b: -f.log_slope(level(b)),
        mirror=lambda: f,
        corners=tuple(np.sort(f(f.kinks()))),
        mean=mean,
    )


def subsample(f: TradeoffFunction, rate: float) -> TradeoffFunction:
    """C_p(f) = min{f_p, f_p^-1}**: a uniform sample of a share p of the records, one record replaced (Theorem 9).

    For a symmetric curve by Eq. (13): f_p up to its level x* = f(x*), slope -1 until f_p(x*), and mirrored beyond.
    Exact for piecewise-linear f: f_{epsilon,delta} gives the larger of f_{epsilon',delta'} and the line
    1 - 2 p delta/(1 + e^epsilon) - p tanh(epsilon/2) - alpha. (Corollary 3 prints p delta instead of
    2 p delta/(1 + e^epsilon), which is less than C_p where delta > 0.) A bound; it covers Poisson sampling too.
    """
    _check_rate(rate)
    sampled = poisson(f, rate)
    if not isinstance(f, Curve) or f.mirror is not None or not isinstance(sampled, Curve):
        return minimum(sampled, sampled.inverse())
    fixed = _fixed_point(f)
    turn = float(sampled(fixed))
    back = sampled.inverse()

    def value(a: Array) -> Array:
        near = np.where(a <= fixed, sampled(a), fixed + turn - a)
        return np.where(a < turn, near, back(np.maximum(a, turn))) if np.any(a >= turn) else near

    def log_ratio(a: Array) -> Array:
        near = np.where(a <= fixed, sampled.log_slope(a), 0.0)
        return np.where(a < turn, near, back.log_slope(np.maximum(a, turn))) if np.any(a >= turn) else near

    def mean(of: Callable[[Array], Array], bends: tuple[float, ...], growth: float) -> float:
        """f_p's outcomes with l > 0, their mirror images, and what has l = 0 between."""

        def both(ratio: Array) -> Array:
            up, down = of(ratio), of(-ratio)
            there = up * np.exp((growth - top) * ratio) + down * np.exp((1 - top) * ratio)
            return np.where(ratio > 0, there, 0.0)

        top = max(growth, 1.0)
        told = 1 - float(sampled(0.0))
        still, alone = (float(of(np.array([at]))[0]) for at in (0.0, -math.inf))
        found = sampled.expectation(both, (0.0, *(abs(bend) for bend in bends)), growth=top) + (turn - fixed) * still
        return found + told * alone if told > 0 else found

    corners = [c for c in f.corners if c < fixed]
    return Curve(
        f"C_{rate:g}({f.name})",
        value,
        log_ratio,
        corners=(*corners, fixed, turn, *(float(sampled(c)) for c in corners[::-1])),
        mean=mean,
    )


def _fixed_point(f: TradeoffFunction) -> float:
    """The level x* = f(x*), by bisection on log x: with little privacy it is tiny."""
    low, high = -740.0, 0.0
    for _ in range(70):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(f(math.exp(middle))) > math.exp(middle) else (low, middle)
    return math.exp(0.5 * (low + high))


def group(f: TradeoffFunction, size: int) -> TradeoffFunction:
    """1 - (1 - f)^{o k}: f-DP for one record is this for groups of k (Theorem 3). G_mu becomes G_{k mu}."""
    if size != int(size) or size < 1:
        raise ValueError(f"A group has a whole number of members, at least 1, got {size}.")
    if f.mu is not None:
        return gaussian(size * f.mu)
    if isinstance(f, PiecewiseLinear):
        return reduce(_detect_further, [f] * (size - 1), f)

    def powers(a: Array) -> list[Array]:
        """a, h(a), h(h(a)), ...: the power h = 1 - f of the best test, iterated."""
        seen = [a]
        for _ in range(size):
            seen.append(1 - f(seen[-1]))
        return seen

    corners = {_preimage(f, float(corner), depth) for depth in range(size) for corner in f.kinks()}
    return Curve(
        f"group of {size}",
        lambda a: 1 - powers(a)[-1],
        lambda a: np.asarray(sum(f.log_slope(level) for level in powers(a)[:-1])),
        mirror=None if isinstance(f, Curve) and f.mirror is None else lambda: group(f.inverse(), size),
        corners=tuple(sorted(corners)),
    )


def _preimage(f: TradeoffFunction, level: float, depth: int) -> float:
    """The x with (1 - f)^{o depth}(x) = level."""
    back = f.inverse()
    return reduce(lambda x, _: float(back(1 - x)), range(depth), level)


def _detect_further(so_far: PiecewiseLinear, f: PiecewiseLinear) -> PiecewiseLinear:
    """1 - (1 - f) o (1 - so_far), corner by corner."""
    levels = np.unique(np.concatenate([so_far.vertices[0], so_far.inverse()(1 - f.vertices[0]), [0.0, 1.0]]))
    return from_vertices(levels, f(1 - so_far(levels)))


def distance(f: TradeoffFunction, g: TradeoffFunction) -> float:
    """The largest |f - g| over a grid that includes all corners (exact for piecewise-linear functions)."""
    grid = np.concatenate([np.linspace(0, 1, 2001), ndtr(np.linspace(-37, 8.2, 2001)), f.kinks(), g.kinks()])
    return float(np.max(np.abs(f(grid) - g(grid))))


def plot(functions: Sequence[TradeoffFunction], labels: Sequence[str], axes: Any = None) -> Any:
    """Draw type II against type I error; returns the matplotlib axes."""
    import matplotlib.pyplot as plt

    axes = plt.subplots()[1] if axes is None else axes
    levels = np.unique(np.concatenate([np.linspace(0, 1, 501), *(f.kinks() for f in functions)]))
    for f, label in zip(functions, labels, strict=True):
        axes.plot(levels, f(levels), label=label)
    axes.set(xlabel="type I error", ylabel="type II error", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend()
    return axes


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"A sampling rate lies between 0 and 1, got {rate}.")
