"""An attacker's two errors: the certified trade-off curve of a mechanism.

Testing "the record is absent" against "present", an attacker with type I error alpha (false alarm) has a type II
error (miss) of at least f(alpha).  Every certified delta(eps) is a straight line below f, for f(alpha) >= 1 - delta -
e^eps alpha, and f is the highest point of all these lines (Dong, Roth, Su 2022, Proposition 6).  So

    lower band:  the lines through the *upper* bounds on delta at a grid of epsilons;
    upper band:  the lines through a *lower* bound of the whole delta curve.  Between grid points delta, as a function
                 of y = e^eps, is convex: it lies above the extensions of the neighbouring chords, and a line for the
                 corner where two extensions meet is all that is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.bounds import Bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_ULPS = 1e-15  # nine units of rounding: more than what an exponential or a few operations lose
_REACHES = 1, 2, 4, 8, 16, 32  # in cells: how long the chords are that are tried
_RANGE = 600.0  # logs of numbers that have all their digits beside each other
_LAST_PLACES = 4e-16  # what an intercept, a product, a sum and 1 less it lose together, all below 1


@dataclass(frozen=True, eq=False)
class Lines:
    """1 - f(alpha) = min over lines of intercept + slope * alpha: the power of the best attack, concave."""

    intercepts: Array
    slopes: Array
    misses: Array
    """1 - intercepts, to digits of its own: what is left of the type II error at alpha = 0."""

    def power(self, alpha: ArrayLike) -> Array:
        levels = np.asarray(alpha, dtype=np.float64)
        best = np.full(levels.shape, 1.0)
        for start in range(0, self.slopes.size, 256):
            part = slice(start, start + 256)
            values = self.intercepts[part] + np.multiply.outer(levels, self.slopes[part])
            best = np.minimum(best, values.min(axis=-1))
        return np.asarray(np.maximum(best, levels))

    def mirrored(self) -> Lines:
        """With the lines of the inverse function added: f made symmetric."""
        positive = self.slopes > 0
        slopes = 1 / self.slopes[positive]
        misses = self.misses[positive] * slopes
        return Lines(
            np.concatenate([self.intercepts, 1 - misses]),
            np.concatenate([self.slopes, slopes]),
            np.concatenate([self.misses, misses]),
        )

    def vertices(self) -> tuple[Array, Array]:
        """The corners (alpha, power) of the graph from alpha = 0 to 1."""
        return self.pieces()[:2]

    def pieces(self) -> tuple[Array, Array, Array]:
        """The corners, and the slopes between them."""
        slopes = np.append(self.slopes, [0.0, 1.0])
        intercepts = np.append(self.intercepts, [1.0, 1.0])
        misses = np.append(self.misses, [0.0, 0.0])
        order = np.lexsort((intercepts, -slopes))
        slopes, intercepts, misses = slopes[order], intercepts[order], misses[order]
        kept: list[int] = []
        starts: list[float] = []
        for k in range(slopes.size):
            meets = 0.0
            while kept:
                steeper, lower = slopes[kept[-1]] - slopes[k], intercepts[k] - intercepts[kept[-1]]
                if misses[kept[-1]] < 0.5:  # the difference of what is small keeps its digits
                    lower = misses[kept[-1]] - misses[k]
                meets = float(lower / steeper) if steeper > 0 else np.inf
                if meets > starts[-1]:
                    break
                kept.pop()
                starts.pop()
            if not kept:
                meets = 0.0
            if meets < 1:
                kept.append(k)
                starts.append(meets)
        alpha = np.append(starts, 1.0)
        power = np.append(intercepts[kept] + slopes[kept] * alpha[:-1], 1.0)
        return alpha, np.minimum(power, 1.0), slopes[kept]


def lines_from_curve(epsilons: Array, log_lower: Array, log_upper: Array, least: float = 0.0) -> tuple[Lines, Lines]:
    """Lines below and above f (made symmetric), from certified log delta at ascending epsilons >= 0.

    ``least`` is a lower bound on delta at every epsilon.
    """
    y = np.exp(epsilons)
    lower, upper = np.exp(log_lower), np.exp(log_upper)
    places, values = (np.exp(part) for part in corners(epsilons, log_lower, log_upper))
    # beyond the last epsilon delta is at least that: the steepest line
    intercepts = np.concatenate([lower, values, [least]])
    above = Lines(intercepts, np.concatenate([y, places, y[-1:]]), 1 - intercepts)
    below = Lines(upper, y, 1 - upper)
    return below.mirrored(), above.mirrored()


def corners(epsilons: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """The corner of every cell, from log delta at ascending epsilons: log of e^eps, and of delta at least."""
    before, after = _chords(epsilons, lower, upper)
    found = [corner(epsilons, lower, upper, j, int(before[j]), int(after[j])) for j in range(epsilons.size - 1)]
    return np.array([at for at, _ in found]), np.array([value for _, value in found])


@np.errstate(all="ignore")
def _chords(epsilons: Array, lower: Array, upper: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the chords before and after each cell begin and end: where that makes them highest within it.

    The longer a chord the less it hangs on how well its ends are known, and the more it lies below a curve that bends.
    """
    cells = np.arange(epsilons.size - 1)
    before, after = cells - 1, cells + 2
    fall, rise = np.full(cells.size, np.inf), np.full(cells.size, -np.inf)
    for reach in _REACHES:
        first, last = np.maximum(cells - reach, 0), np.minimum(cells + 1 + reach, epsilons.size - 1)
        # relative to the cell's own end, as logarithms may lie below any floating-point number
        falls = np.expm1(upper[first] - lower[cells]) / -np.expm1(epsilons[first] - epsilons[cells])
        rises = -np.expm1(upper[last] - lower[cells + 1]) / np.expm1(epsilons[last] - epsilons[cells + 1])
        flatter, steeper = (first < cells) & (falls < fall), (last > cells + 1) & (rises > rise)
        before, fall = np.where(flatter, first, before), np.where(flatter, falls, fall)
        after, rise = np.where(steeper, last, after), np.where(steeper, rises, rise)
    return before, after


def corner(epsilons: Array, lower: Array, upper: Array, j: int, first: int, last: int) -> tuple[float, float]:
    """The corner within cell j where the chords on both sides, extended, meet: log of e^eps, and of delta at least.

    Between two points delta, convex in y = e^eps, lies above both chords, each of which starts at an upper bound, of
    the `first` or the `last` point, and passes below a lower one, of the cell's end: left - fall t and start - slower
    t, at t = y/y_j - 1.  *Any* point below both, joined to the cell's ends, bounds the least over the cell from below.
    So t is taken no larger than where they meet, every number being rounded so that the first chord falls faster and
    the second lies higher and falls more slowly; it is that of a floating-point epsilon, and there the second chord is
    taken from below, relative to its own end.  Where there is no chord before (first < 0), or it doesn't tell, the
    corner is at the left end, on the chord after; without one of these (last beyond the points) that is level.
    """
    at, end, there = float(epsilons[j]), float(epsilons[j + 1]), float(lower[j + 1])
    scale = float(upper[j])
    if not math.isfinite(scale) or lower[j] == -math.inf:
        return at, there
    rise = _chord_after(epsilons, lower, upper, j, last)
    place, low = at, float(lower[j])
    if first >= 0 and upper[first] - scale < _RANGE and scale - low < _RANGE:
        above = _exp(float(upper[first]) - scale, 1)
        left = _exp(low - scale, -1)
        fall = max(above - left, 0.0) / -math.expm1(float(epsilons[first]) - at) * (1 + 2 * _ULPS)
        start = _exp(there - scale, 1) * (1 + rise * -math.expm1(at - end)) * (1 + 2 * _ULPS)
        slower = _exp(there - scale - (end - at), -1) * rise * (1 - 2 * _ULPS)
        if left > start and fall > slower:
            t = (left - start) / (fall - slower) * (1 - _ULPS)
            place = min(at + math.log1p(t), end)
            step = math.ulp(max(abs(place), abs(at)))  # next to 0 floating-point numbers are far denser than that
            while place > at and math.expm1(place - at) * (1 + 2 * _ULPS) > t:
                place, step = max(place - step, at), 2 * step
    value = there + math.log1p(rise * -math.expm1(place - end)) - _ULPS * (1 + abs(there))
    return place, max(value if place > at else min(value, low), there)


def _exp(x: float, sign: int) -> float:
    """e^x rounded up (1) or down (-1), where x is a difference that is rounded itself; nothing where it is nothing."""
    return math.exp(x) * (1 + sign * _ULPS * (1 + abs(x))) if x > -700 else 0.0


def _chord_after(epsilons: Array, lower: Array, upper: Array, j: int, last: int) -> float:
    """How much the chord after a cell rises from its right end to y = 0, as a part of what delta is there, at least."""
    if last >= epsilons.size or not math.isfinite(lower[j + 1]):
        return 0.0
    falls = -math.expm1(min(float(upper[last]) - float(lower[j + 1]), 0.0))
    return falls / math.expm1(min(float(epsilons[last] - epsilons[j + 1]), 700.0)) * (1 - 4 * _ULPS)


@dataclass(frozen=True, eq=False, repr=False)
class ErrorCurve:
    """The certified band of type II errors at given type I errors."""

    alpha: Array
    lower: Array
    upper: Array
    below: Lines
    above: Lines
    error_sum: Bounds
    """The smallest sum of both errors."""
    label: str
    certain: float = 1.0
    """At most the chance that an outcome tells everything: without false alarms nothing else is found."""

    def __repr__(self) -> str:
        return f"ErrorCurve({self.label}, {self.alpha.size} points, smallest error sum {self.error_sum.lower:.6f})"

    def __call__(self, alpha: ArrayLike) -> tuple[Array, Array]:
        """Lower and upper bounds on the type II error at any type I errors."""
        levels = np.asarray(alpha, dtype=np.float64)
        if not np.all((levels >= 0) & (levels <= 1)):
            raise ValueError("Type I errors must lie between 0 and 1.")
        low = 1 - self.below.power(levels) - _LAST_PLACES
        low = np.where(levels == 0, np.maximum(low, 1 - self.certain - _LAST_PLACES * (self.certain > 0)), low)
        high = 1 - self.above.power(levels) + _LAST_PLACES
        rest = np.where(levels < 0.5, np.minimum(1 - levels + _LAST_PLACES, 1.0), 1 - levels)  # exact from 1/2 on
        return np.clip(low, 0.0, 1 - levels), np.clip(np.maximum(high, low), 0.0, rest)

    def drawn(self) -> tuple[Array, Array, Array]:
        """Type I errors and bounds on the type II error that may be joined by straight lines.

        A chord between two points of the lower bound, which is convex, would promise more: its corners are among them.
        """
        next_to_none = [math.ulp(0.0)]  # the bound may jump at 0
        corners = self.below.vertices()[0], self.above.vertices()[0]
        alpha = np.unique(np.concatenate([self.alpha, next_to_none, *corners]))
        return alpha, *self(alpha)

    @property
    def advantage(self) -> Bounds:
        """The largest true minus false positive rate."""
        return Bounds(1 - self.error_sum.upper, 1 - self.error_sum.lower)

    def plot(self, axes: Axes | None = None, label: str | None = None, **style: Any) -> Axes:
        """Draw type II against type I error with the certified band; returns the axes."""
        from hush.accounting.plotting import plot_errors

        return plot_errors(self, axes, label, **style)


def default_levels(points: int) -> Array:
    """Type I errors from 0 to 1, denser towards both ends."""
    t = np.linspace(0.0, 1.0, points)
    return np.asarray(0.5 * (1 - np.cos(np.pi * t)))
