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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.bounds import Bounds
from hush.accounting.hulls import lower_hull
from hush.accounting.losses import Atoms, Enclosed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_ULPS = 1e-15  # nine units of rounding: more than what an exponential or a few operations lose
_POINTS = 1.6e-15  # how far off a corner between extended chords may be
_CORNERS = 8e-16  # how far off the powers at the corners of a curve may be
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
    found = [corner(epsilons, log_lower, log_upper, j) for j in range(len(y) - 1)]
    corners_y, corners = [math.exp(at) for at, _ in found], [math.exp(value) for _, value in found]
    # beyond the last epsilon delta is at least that: the steepest line
    intercepts = np.concatenate([lower, corners, [least]])
    above = Lines(intercepts, np.concatenate([y, corners_y, [y[-1] * 1.0]]), 1 - intercepts)
    below = Lines(upper, y, 1 - upper)
    return below.mirrored(), above.mirrored()


def corner(epsilons: Array, lower: Array, upper: Array, j: int) -> tuple[float, float]:
    """The corner within a cell where the chords on both sides, extended, meet: log of e^eps, and of delta at least.

    Between two points delta, convex in y = e^eps, lies above both chords, each of which starts at an upper bound and
    passes below a lower one: left - fall t and start - slower t, at t = y/y_j - 1.  *Any* point below both, joined to
    the cell's ends, bounds the least over the cell from below.  So t is taken no larger than where they meet, every
    number being rounded so that the first chord falls faster and the second lies higher and falls more slowly; it is
    that of a floating-point epsilon, and there the second chord is taken from below, relative to its own end.  Where
    there is no chord before, or it doesn't tell, the corner is at the left end, on the chord after.
    """
    at, end, there = float(epsilons[j]), float(epsilons[j + 1]), float(lower[j + 1])
    scale = float(upper[j])
    if not math.isfinite(scale) or lower[j] == -math.inf:
        return at, there
    rise = _chord_after(epsilons, lower, upper, j)
    place, low = at, float(lower[j])
    if j > 0 and upper[j - 1] - scale < _RANGE and scale - low < _RANGE:
        before = _exp(float(upper[j - 1]) - scale, 1)
        left = _exp(low - scale, -1)
        fall = max(before - left, 0.0) / -math.expm1(float(epsilons[j - 1]) - at) * (1 + 2 * _ULPS)
        start = _exp(there - scale, 1) * (1 + rise * -math.expm1(at - end)) * (1 + 2 * _ULPS)
        slower = _exp(there - scale - (end - at), -1) * rise * (1 - 2 * _ULPS)
        if left > start and fall > slower:
            t = (left - start) / (fall - slower) * (1 - _ULPS)
            place = min(at + math.log1p(t), end)
            while place > at and math.expm1(place - at) * (1 + 2 * _ULPS) > t:
                place = math.nextafter(place, at)
    value = there + math.log1p(rise * -math.expm1(place - end)) - _ULPS * (1 + abs(there))
    return place, max(value if place > at else min(value, low), there)


def _exp(x: float, sign: int) -> float:
    """e^x rounded up (1) or down (-1), where x is a difference that is rounded itself; nothing where it is nothing."""
    return math.exp(x) * (1 + sign * _ULPS * (1 + abs(x))) if x > -700 else 0.0


def _chord_after(epsilons: Array, lower: Array, upper: Array, j: int) -> float:
    """How much the chord after a cell rises from its right end to y = 0, as a part of what delta is there, at least."""
    if j + 2 >= epsilons.size or not math.isfinite(lower[j + 1]):
        return 0.0
    falls = -math.expm1(min(float(upper[j + 2]) - float(lower[j + 1]), 0.0))
    return falls / math.expm1(min(float(epsilons[j + 2] - epsilons[j + 1]), 700.0)) * (1 - 4 * _ULPS)


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

    def __repr__(self) -> str:
        return f"ErrorCurve({self.label}, {self.alpha.size} points, smallest error sum {self.error_sum.lower:.6f})"

    def __call__(self, alpha: ArrayLike) -> tuple[Array, Array]:
        """Lower and upper bounds on the type II error at any type I errors."""
        levels = np.asarray(alpha, dtype=np.float64)
        if not np.all((levels >= 0) & (levels <= 1)):
            raise ValueError("Type I errors must lie between 0 and 1.")
        low = 1 - self.below.power(levels) - _LAST_PLACES
        high = 1 - self.above.power(levels) + _LAST_PLACES
        rest = np.where(levels < 0.5, np.minimum(1 - levels + _LAST_PLACES, 1.0), 1 - levels)  # exact from 1/2 on
        return np.clip(low, 0.0, 1 - levels), np.clip(np.maximum(high, low), 0.0, rest)

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


# Trade-off functions given by points


def check_tradeoff_points(alphas: Sequence[float], betas: Sequence[float]) -> None:
    a, b = np.asarray(alphas, dtype=float), np.asarray(betas, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or a.size < 2 or a[0] != 0 or a[-1] != 1:
        raise ValueError("A trade-off function needs as many type II as type I errors, the latter from 0 to 1.")
    if not (np.all(np.diff(a) > 0) and np.all(np.isfinite(b))):
        raise ValueError("The type I errors must ascend and the type II errors be numbers.")
    middle = (b[:-2] * (a[2:] - a[1:-1]) + b[2:] * (a[1:-1] - a[:-2])) / (a[2:] - a[:-2])
    wrong = (b < 0) | (b > 1 - a + 1e-14)
    wrong[1:] |= np.diff(b) > 1e-14
    wrong[1:-1] |= b[1:-1] > middle + 1e-14
    if np.any(wrong):
        at = float(a[np.argmax(wrong)])
        why = ": a formula in 1 - alpha loses its digits here" if 0 < at < 1e-8 else ""
        raise ValueError(
            f"A trade-off function is convex, falls, and lies between 0 and 1 - alpha; not so at alpha = {at:.3g}{why}."
        )


def sample_tradeoff(function: Callable[[Array], Array], points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    ends = np.geomspace(1e-14, 0.5, points // 2)
    deep = np.geomspace(1e-60, 1e-14, points // 4)
    alphas = np.unique(np.concatenate([[0.0], deep, ends, 1 - ends, [1.0]]))
    betas = np.minimum.accumulate(np.clip(_values(function, alphas), 0.0, 1 - alphas))
    return tuple(alphas.tolist()), tuple(betas.tolist())


def _values(function: Callable[[Array], Array], at: Array) -> Array:
    """The function of an array, or of one number at a time where it takes no arrays."""
    try:
        values = np.asarray(function(at), dtype=float)
    except (TypeError, ValueError):
        values = np.array([])
    return values if values.shape == at.shape else np.array([float(function(one)) for one in at])


def pair_of_points(alphas: Sequence[float], betas: Sequence[float], *, chords: bool) -> Enclosed:
    """The function below every convex one through the points (chords extended), between two pairs that rounding allows.

    With ``chords`` it may be any that is convex through the points: less revealing than it is that made of the chords.
    """
    a, b = np.asarray(alphas, dtype=float), np.asarray(betas, dtype=float)
    corners = _rounded_corners(a, b) if chords else _exact_corners(alphas, betas)
    corner_a, corner_b, steepness = (np.array(row) for row in zip(*corners, strict=True))
    # Of the points the lower hull: chords between points that rounding moved have slopes that are not those of f.
    above = lower_hull(a, b) if chords else lower_hull(np.append(corner_a, 1.0), np.append(corner_b, 0.0))
    # Lowered by what rounding may do to a point, upwards or, where f is flat, sideways: every line of the hull is then
    # below f from end to end.  Short ones near 1 would else, mirrored, be wrong by far more than rounding.
    lowered = np.maximum(corner_b - _POINTS * np.minimum(1.0, steepness), 0.0)
    hull = lower_hull(np.append(corner_a, 1.0), np.append(lowered, 0.0))
    below = _under(_lines_of_hull(*hull), *hull)
    lower = _lines_of_hull(*above).mirrored()
    return Enclosed(lower=_moved(atoms_of(lower), -1), upper=_moved(atoms_of(below.mirrored()), 1))


Corner = tuple[float, float, float]
"""A type I error, the least type II error there, and how steep the chord before it is."""


def _rounded_corners(a: Array, b: Array) -> list[Corner]:
    """Where neighbouring chords, extended, meet: between two points f lies above the chords before and after.

    The values of f were rounded, and a short chord that is extended far carries that along.
    """
    slopes = -np.diff(b) / np.diff(a)
    corners: list[Corner] = [(0.0, float(b[0]), 1.0)]
    for k in range(len(slopes)):
        before = slopes[k - 1] if k > 0 else np.inf
        after = slopes[k + 1] if k + 1 < len(slopes) else 0.0
        at = a[k]
        if np.isfinite(before) and before - after > 1e-300:
            at = float(np.clip((b[k] - b[k + 1] + before * a[k] - after * a[k + 1]) / (before - after), a[k], a[k + 1]))
        value = b[k + 1] + after * (a[k + 1] - at)
        if k + 1 < len(slopes):
            value -= 4e-16 * max((a[k + 1] - at) / (a[k + 2] - a[k + 1]) - 1, 0.0)
        if np.isfinite(before):
            carried = 4e-16 * max((at - a[k]) / (a[k] - a[k - 1]) - 1, 0.0)
            value = min(max(value, b[k] - before * (at - a[k]) - carried), b[k])
        corners.append((float(at), float(np.clip(value, 0.0, 1 - at)), float(before)))
    return corners


def _exact_corners(alphas: Sequence[float], betas: Sequence[float]) -> list[Corner]:
    """The same of points that are what they are: in fractions, each corner rounded once.

    Chords that rise, or don't flatten, by what rounding did to the points, are met at an end of the cell.
    """
    a, b = ([Fraction(number) for number in row] for row in (alphas, betas))
    slopes = [(y - last) / (end - x) for x, end, y, last in zip(a, a[1:], b, b[1:], strict=False)]
    corners: list[Corner] = [(0.0, float(b[0]), 1.0)]
    for k, start in enumerate(a[:-1]):
        after = max(slopes[k + 1], Fraction(0)) if k + 1 < len(slopes) else Fraction(0)
        if k == 0:
            corners.append((0.0, float(min(b[1] + after * a[1], b[0])), math.inf))
            continue
        before, rest = slopes[k - 1], b[k] - b[k + 1] - after * (a[k + 1] - start)
        at = start + min(max(rest / (before - after), Fraction(0)), a[k + 1] - start) if before > after else start
        value = min(b[k + 1] + after * (a[k + 1] - at), b[k])
        corners.append((float(at), max(float(min(value, 1 - at)), 0.0), float(before)))
    return corners


def _lines_of_hull(alpha: Array, beta: Array) -> Lines:
    slopes = -np.diff(beta) / np.diff(alpha)
    misses = beta[:-1] + slopes * alpha[:-1]
    return Lines(1 - misses, slopes, misses)


def _under(lines: Lines, alpha: Array, beta: Array) -> Lines:
    """Lowered until none is above any of the points: rounding turns short lines, and where f is straight that shows."""
    excess = np.zeros(lines.slopes.size)
    for start in range(0, lines.slopes.size, 256):
        part = slice(start, start + 256)
        values = lines.misses[part, None] - np.multiply.outer(lines.slopes[part], alpha)
        excess[part] = np.max(values - beta, axis=1, initial=0.0)
    misses = lines.misses - np.where(excess > 0, excess + 4e-16 * np.minimum(1.0, lines.slopes), 0.0)
    return Lines(1 - misses, lines.slopes, misses)


def _moved(atoms: Atoms, sign: int) -> Atoms:
    """The pair whose power is larger (+1) or smaller (-1) by what rounding may do to the corners of a curve.

    A corner lies on lines whose intercepts are good to 4e-16, above or, where they are flat, beside it: all powers
    together are off by no more than twice that.  (Masses are differences of corners, good to their own last places.)
    Larger, it is told at once; smaller, it is taken from the most revealing outcomes.  Before that, outcomes whose
    losses don't fall, as only rounding can have it, are seen as one: a sum over outcomes must not choose among them.
    """
    if sign > 0:
        masses = tuple(mass * (1 + 4e-16) for mass in atoms.p)
        return Atoms(atoms.losses, masses, atoms.q, min(atoms.infinite + _CORNERS, 1.0), atoms.vanishing)
    p, q = _falling(np.asarray(atoms.p), np.asarray(atoms.q))
    infinite, rest = max(atoms.infinite - _CORNERS, 0.0), max(_CORNERS - atoms.infinite, 0.0)
    left = np.minimum(p, np.maximum(np.cumsum(p) - rest, 0.0)) * (1 - 4e-16)
    kept = left > 0
    losses = np.log(left[kept]) - np.log(q[kept])
    return Atoms(tuple(losses.tolist()), tuple(left[kept].tolist()), tuple(q[kept].tolist()), infinite, atoms.vanishing)


def _falling(p: Array, q: Array) -> tuple[Array, Array]:
    """Neighbouring outcomes, the steepest first, joined where the loss of the next is no smaller."""
    joined: list[tuple[float, float]] = []
    for mass in zip(p.tolist(), q.tolist(), strict=True):
        joined.append(mass)
        while len(joined) > 1 and joined[-1][0] * joined[-2][1] >= joined[-2][0] * joined[-1][1]:
            last, before = joined.pop(), joined.pop()
            joined.append((before[0] + last[0], before[1] + last[1]))
    found = np.array(joined, dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def atoms_of(lines: Lines) -> Atoms:
    """The finite pair with this concave power curve: Q-mass the step in alpha, P-mass the rise of the power.

    Where the curve is flat the rise is slope times step: a difference of powers near 1 would have no digits.
    """
    alpha, power, slopes = lines.pieces()
    q, p = np.diff(alpha), np.diff(power)
    return _atoms(np.where(slopes < 1, slopes * q, p), q, float(power[0]))


def _atoms(p: Array, q: Array, infinite: float) -> Atoms:
    keep = (q > 0) & (p > 0)
    vanishing = float(q[(q > 0) & ~keep].sum())
    q, p = q[keep], p[keep]
    losses = np.log(p) - np.log(q)
    return Atoms(tuple(losses.tolist()), tuple(p.tolist()), tuple(q.tolist()), max(infinite, 0.0), vanishing)
