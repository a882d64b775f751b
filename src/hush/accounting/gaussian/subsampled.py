"""Certified answers for compositions of Poisson-subsampled and plain Gaussian steps.

Chooses, for each direction, between the closed form of a single step, the contour integral (contour.py), its
variant for a few large jumps (jumps.py), and, where neither applies, the lattice (lattice.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from scipy.special import log_ndtr, ndtr

from hush.accounting.contours.crossing import EPSILON_LIMIT, Curve, certified_root, is_narrow, mirrored, within
from hush.accounting.contours.line import Line, chernoff, log_peak
from hush.accounting.contours.thinning import thinned
from hush.accounting.gaussian import contour, hits, jumps, landing
from hush.accounting.gaussian.closed import gaussian_curve, single_curve
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.gaussian.labels import reach_below
from hush.accounting.gaussian.transform import Array, Step
from hush.accounting.pairs.losses import GaussianPair, Pair, Poisson

_QUIETLY = np.errstate(all="ignore")
"""Overflows and NaNs are expected in corners and never pass for a bound: all that is returned has been compared."""
_FEW = 8
"""Epsilons that may each have a line of their own, and kinds of steps whose lines cost little."""
_LONELY = 4
"""Of many points, so many may each need a line of their own: then the lattice serves the rest together."""
_ENOUGH_FOR_MANY = 1e-6
_TINY = 1e-4
"""Below, both directions are so close that a rough look can't tell them apart."""
_SHARPEST = -31.0
_NOTHING = 1e-12
"""A delta that is this close to 1 is known well enough, and so is an epsilon this close to 0."""
_NUMBERS = -745.5
"""log of a number below the smallest that floating point has."""
_ALMOST, _FINER = 1 + 1e-4, -36.0
"""Where an interval is nearly narrow enough, and log of what its line may neglect instead."""
_NEARLY, _PROMISING = 0.1, 10
"""The relative width of an epsilon of some steps with which the line of all may be sharp; and that of a delta, as a
multiple of what is wanted."""
_BLUR, _ROUGHLY = 0.3, -9.0
"""The share of a scale that hides nothing, and log of what a rough line may neglect."""
_LATTICE_KNOWS = 1e-4
"""Of log delta: what the lattice tells at best."""
_ROUGH_LATTICE = 0.05
"""The relative width of an epsilon that says where to look."""
_SELDOM = 0.3
"""Hits below which a few equal jumps are a good guess."""
_OFTEN = 4.0
"""A delta within e^-4 of the chance of a hit: then one jump may decide."""


@dataclass(frozen=True)
class Composition:
    """Steps with a sampling rate below one, and the mu^2 of all the others together."""

    steps: tuple[Step, ...]
    gaussian: float = 0.0

    @property
    def most_added(self) -> float:
        """The largest total loss in the add direction, if no plain Gaussian is among the steps; from above."""
        return math.fsum(-step.count * np.log1p(-step.rate) for step in self.steps) * (1 + 1e-12)

    def pairs(self, direction: int) -> list[tuple[Pair, int]]:
        pairs: list[tuple[Pair, int]] = []
        for step in self.steps:
            pair: Pair = Poisson(GaussianPair(1 / step.noise), step.rate)
            pairs.append((pair if direction == REMOVE else pair.reverse(), int(step.count)))
        if self.gaussian > 0:
            pairs.append((GaussianPair(float(np.sqrt(self.gaussian))), 1))
        return pairs


def epsilon(composition: Composition, log_delta: float) -> tuple[float, float]:
    """Certified interval for the smallest epsilon >= 0 with delta(epsilon) <= delta, over both directions."""
    (low, high), curve = _epsilon(composition, REMOVE, log_delta)
    if (low, high) == (0.0, 0.0):
        return low, high  # delta(0) is the total variation, the same in both directions
    other = _mirrored_epsilon(curve, high, log_delta) if curve is not None and high < _TINY else None
    if other is None:
        if _is_below(composition, ADD, high, log_delta, curve):
            return low, high
        other, _ = _epsilon(composition, ADD, log_delta)
    return max(low, other[0]), max(high, other[1])


@_QUIETLY
def _mirrored_epsilon(curve: Curve, epsilon: float, target: float) -> tuple[float, float] | None:
    """The other direction's epsilon from this one's curve, if that is narrow: near 0 one integral serves both."""
    other = mirrored(curve)
    if other(np.array([epsilon]))[1][0] <= target:
        return 0.0, epsilon  # no larger than this one's
    low, high = certified_root(other, epsilon, target)
    return (low, high) if is_narrow(low, high) else None


def log_delta(composition: Composition, epsilons: Array, shown: float = 0.0) -> tuple[Array, Array]:
    """Certified bounds on log delta at ascending epsilons >= 0, the larger of the two directions.

    Where many are asked for and no line is sharp, delta itself need be known no better than what is `shown`.
    """
    lower, upper = hits.log_delta(composition.steps, composition.gaussian, epsilons)
    open_ones = upper - lower > hits.WIDTH
    if open_ones.any():
        lower[open_ones], upper[open_ones] = _composed(composition, epsilons[open_ones], shown)
    return lower, upper


def _composed(composition: Composition, epsilons: Array, shown: float) -> tuple[Array, Array]:
    lower, upper, curves = _log_delta(composition, REMOVE, epsilons, shown)
    if not composition.steps:
        return lower, upper
    rivals = (epsilons > 0) & (chernoff_curve(composition, ADD, epsilons) > lower)  # at 0 both are the same
    for curve in curves:
        if not rivals.any():
            break
        low, high = mirrored(curve)(epsilons)
        known = rivals & ((high - low < landing.ENOUGH) | (high <= lower))
        lower[known], upper[known] = np.maximum(lower[known], low[known]), np.maximum(upper[known], high[known])
        rivals &= ~known
    if rivals.any():
        low, high, _ = _log_delta(composition, ADD, epsilons[rivals], shown, upper[rivals])
        lower[rivals], upper[rivals] = np.maximum(lower[rivals], low), np.maximum(upper[rivals], high)
    poor = upper - lower > 1  # far beyond what any line resolves
    if poor.any():
        bounds = [chernoff_curve(composition, direction, epsilons[poor]) for direction in (REMOVE, ADD)]
        upper[poor] = np.fmin(upper[poor], np.maximum(*bounds))
    return lower, upper


def is_nothing(composition: Composition, epsilon: float) -> bool:
    """Whether it costs next to nothing to see that delta is smaller than any floating-point number."""
    if hits.log_delta(composition.steps, composition.gaussian, np.array([epsilon]))[0][0] > _NUMBERS:
        return False
    bounds = [chernoff_curve(composition, direction, np.array([epsilon]), _NUMBERS - 60) for direction in (REMOVE, ADD)]
    return bool(np.all(np.concatenate(bounds) < _NUMBERS))


@_QUIETLY
def _is_below(composition: Composition, direction: int, epsilon: float, target: float, other: Curve | None) -> bool:
    """Whether delta(epsilon) <= target in this direction can be seen without computing it, or on the other's curve."""
    if not np.isfinite(epsilon):
        return True
    if direction == ADD and composition.gaussian == 0:
        # delta is convex in e^eps: below its chord from 0 to the largest loss, where it has fallen to 0
        fallen = np.expm1(epsilon) / np.expm1(composition.most_added)
        if fallen >= 1 or _log_total_variation(composition, direction) + np.log1p(-fallen) < target - 1e-9:
            return True
    if epsilon <= 0:
        return False
    task = contour.problem(composition.steps, composition.gaussian, direction, target)
    points = np.geomspace(0.3, 300.0, 40) / epsilon
    bound = chernoff(task.log_mgf, epsilon, points)
    if np.logaddexp(bound + 1e-6, task.log_dropped) <= target:
        return True
    if other is not None and mirrored(other)(np.array([epsilon]))[1][0] <= target:
        return True
    if len(composition.steps) > _FEW and _blurred(composition, direction, epsilon) <= target:
        return True  # of few kinds the curve itself costs no more
    for tolerance in (landing.ROUGH, _SHARPEST) if epsilon < _TINY else (landing.ROUGH,):
        curve, _ = _curve_at(composition, direction, epsilon, False, tolerance, contour.is_complement(target))
        lower, upper = (-np.inf, 0.0) if curve is None else (float(side[0]) for side in curve(np.array([epsilon])))
        if upper <= target or lower > target:
            break
    return upper <= target


@_QUIETLY
def _blurred(composition: Composition, direction: int, epsilon: float) -> float:
    """An upper bound on log delta(epsilon), a few parts in a hundred too large, from a plain contour integral.

    It is that of the same steps and a Gaussian release beside them, which can only tell more.  A Gaussian of a share of
    the scale on which delta falls tells little, and with it the integrand decays soon, whatever near-atoms there are.
    """
    try:
        task, c, _ = contour.solve_for_epsilon(composition.steps, composition.gaussian, direction, epsilon)
        line = contour.line(replace(task, gaussian=task.gaussian + _BLUR**2 / (c * (c + 1))), c, _ROUGHLY)
    except contour.TooWideError:
        return 0.0
    return 0.0 if line is None else float(line.log_delta(np.array([epsilon]))[1][0])


@_QUIETLY
def chernoff_curve(composition: Composition, direction: int, epsilons: Array, deepest: float = -690.0) -> Array:
    """Upper bounds on log delta that cost next to nothing, of use down to about the deepest."""
    if _single(composition):
        return np.zeros(len(epsilons))
    task = contour.problem(composition.steps, composition.gaussian, direction, deepest)
    scale = max(float(np.max(epsilons)), 1e-12)
    points = np.geomspace(0.3, 1e5, 60) / scale
    exponents = task.log_mgf(points) + log_peak(points) - np.multiply.outer(epsilons, points)
    bound = np.logaddexp(exponents.min(axis=1) + 1e-6, task.log_dropped)
    if direction == ADD and composition.gaussian == 0:
        bound = np.where(epsilons >= composition.most_added, -np.inf, bound)
    return np.asarray(np.minimum(bound, 0.0))


def _single(composition: Composition) -> bool:
    return composition.gaussian == 0 and len(composition.steps) == 1 and composition.steps[0].count == 1


def _closed(composition: Composition, direction: int) -> Curve:
    """The curve of a single step, or of plain Gaussians."""
    if composition.steps:
        return single_curve(composition.steps[0], direction)
    return gaussian_curve(composition.gaussian)


@_QUIETLY
def _epsilon(composition: Composition, direction: int, target: float) -> tuple[tuple[float, float], Curve | None]:
    """Certified interval for epsilon in one direction: what each way finds, until it is narrow enough.

    And the curve it was last read from.
    """
    if not composition.steps or _single(composition):
        known = _closed(composition, direction)
        return certified_root(known, 1.0, target), known
    if composition.gaussian == 0 and _log_total_variation(composition, direction) + 1e-9 <= target:
        return (0.0, 0.0), None
    if direction == REMOVE and _log_surely_exceeded(composition) - 1e-9 > target:
        return (EPSILON_LIMIT, np.inf), None
    (low, high), curve = (0.0, np.inf), None
    few = _thinned(composition)
    many = len(few.steps) < len(composition.steps)
    if not many or is_narrow(*_epsilon_by_line(few, direction, target)[0], _NEARLY):  # some of many kinds tell of all
        (low, high), curve = _epsilon_by_line(composition, direction, target)
    if not is_narrow(low, high) and _is_hopeless(composition, direction, target):
        return (EPSILON_LIMIT, np.inf), None
    if not is_narrow(low, high) and composition.gaussian == 0:
        for guess in _guesses(composition, direction, target, (low, high)):
            found, curve = landing.epsilon(composition.steps, direction, target, guess)
            low, high = within((low, high), found)
            if _is_fairly_narrow(low, high):
                break
    if not _is_fairly_narrow(low, high):
        low, high = within((low, high), _lattice().epsilon(composition.pairs(direction), target))
    return (low, high), curve


def _is_fairly_narrow(low: float, high: float) -> bool:
    """Whether neither another guess nor the lattice would do better."""
    return is_narrow(low, high, 1e-4) or high - low < 1e-10


def _guesses(composition: Composition, direction: int, target: float, known: tuple[float, float]) -> Iterator[float]:
    """Where epsilon may be: what is known, the saddle point of the losses cut off, and what the lattice finds."""
    low, high = known
    if low > 0 and high < 1.5 * low:
        yield float(np.sqrt(low * high))
        return
    few, hits = _thinned(composition), _hits(composition)
    often = direction == REMOVE and target > np.log(min(hits, 1.0)) - _OFTEN
    if often and (guess := landing.one_jump_epsilon(few.steps, target)) > _NOTHING:
        yield guess
    if hits < _SELDOM:
        yield landing.few_jumps_epsilon(few.steps, direction, target)
    elif len(few.steps) < len(composition.steps):
        # a set-up takes as long as a rough lattice, which knows more than the saddle point does
        below, above = _lattice().epsilon(few.pairs(direction), target, tolerance=_ROUGH_LATTICE)
        if 0 < above < np.inf:
            yield float(np.sqrt(max(below, 0.25 * above) * above))
    else:
        try:
            task = contour.problem(few.steps, composition.gaussian, direction, target + 14)
            guess = contour.saddle_for_delta(task, target)[1]
        except contour.TooWideError:
            guess = 0.0
        if 0 < guess < np.inf:
            yield guess
    # near 0 the saddle point knows nothing: start at a small part of what the steps reach
    yield min(reach_below(few.steps) / 30, high)
    low, high = within(known, _lattice().epsilon(composition.pairs(direction), target, tolerance=_ROUGH_LATTICE))
    if np.isfinite(high) and high > 0:
        yield float(np.sqrt(low * high)) if low > 0 else 0.5 * high


def _epsilon_by_line(
    composition: Composition, direction: int, target: float
) -> tuple[tuple[float, float], Curve | None]:
    try:
        task, c, guess = contour.solve_for_delta(composition.steps, composition.gaussian, direction, target)
        if guess > 0.99 * EPSILON_LIMIT:
            task, c, _ = contour.solve_for_epsilon(
                composition.steps, composition.gaussian, direction, EPSILON_LIMIT, contour.is_complement(target)
            )
        line = contour.line(task, c)
    except contour.TooWideError:
        line = None
    if line is None:
        return (0.0, np.inf), None
    found = certified_root(line.log_delta, guess, target)
    if not is_narrow(*found) and found[1] < _ALMOST * found[0] and (finer := contour.line(task, c, _FINER)) is not None:
        return within(found, certified_root(finer.log_delta, guess, target)), finer.log_delta
    return found, line.log_delta


def _is_hopeless(composition: Composition, direction: int, target: float) -> bool:
    """Whether delta(1e4) is above the target, so near 1 that Chernoff's inequality sees it."""
    short = _log_short_of_one(composition, direction, np.array([EPSILON_LIMIT]))[0]
    return bool(short < np.log(-np.expm1(target)))


def _log_total_variation(composition: Composition, direction: int) -> float:
    """log of an upper bound on delta(0): total variations add up at most, and without a hit there is none."""
    untouched = sum(step.count * np.log1p(-step.rate) for step in composition.steps)
    added = float(landing.sum_of_log_deltas(composition.steps, direction, np.zeros(1))[0])
    return min(added, float(np.log(-np.expm1(untouched))))


def _log_surely_exceeded(composition: Composition) -> float:
    """log of a lower bound on delta(1e4): P(A) - e^eps Q(A) for A = {some x above t}, whatever t (remove)."""
    best = -np.inf
    for short in (0.0, 2.0, 4.0, 8.0):
        log_none, log_absent = 0.0, -np.inf
        for step in composition.steps:
            tail = float(log_ndtr(short - 1 / step.noise))
            log_none += step.count * float(np.log1p(-step.rate * ndtr(short) - (1 - step.rate) * np.exp(tail)))
            log_absent = float(np.logaddexp(log_absent, np.log(step.count) + tail))
        kept = float(-np.expm1(log_none) - 1.001 * np.exp(min(EPSILON_LIMIT + log_absent, 700.0)))
        best = max(best, float(np.log(kept))) if kept > 0 else best
    return best


def _log_short_of_one(composition: Composition, direction: int, epsilons: Array) -> Array:
    """log of upper bounds on 1 - delta: exp(Lambda(t) - t eps) for any -1 <= t <= 0, by Chernoff."""
    task = contour.problem(composition.steps, composition.gaussian, direction, -40.0)
    points = contour.place(np.linspace(-12.0, 12.0, 25), complement=True)
    bounds = np.min(task.log_mgf(points) - np.multiply.outer(epsilons, points), axis=1) + 1e-6
    return np.asarray(np.logaddexp(bounds, task.log_dropped) + 1e-9)


@_QUIETLY
def _log_delta(
    composition: Composition, direction: int, epsilons: Array, shown: float = 0.0, rival: Array | None = None
) -> tuple[Array, Array, list[Curve]]:
    """Certified bounds on log delta in one direction, at ascending epsilons: one line serves all that are near it.

    And the curves that they were read from.  What lies below a rival need be known no better.
    """
    if not composition.steps or _single(composition):
        known = _closed(composition, direction)
        return *known(epsilons), [known]
    curves: list[Curve] = []
    lower, upper = np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
    if direction == ADD and composition.gaussian == 0:
        upper[epsilons >= composition.most_added] = -np.inf
    many = len(epsilons) > _FEW
    short = np.exp(_log_short_of_one(composition, direction, epsilons))
    lower = np.where(short < _NOTHING, -1.001 * short, lower)
    waiting = np.flatnonzero(np.isfinite(upper) & ~(short < _NOTHING))
    ahead, lonely = 0.0, 0
    poor: list[int] = []
    while waiting.size:
        left = epsilons[waiting[0]]
        place = min(int(np.searchsorted(epsilons[waiting], left + ahead)), waiting.size - 1)
        curve, spread = _curve_at(composition, direction, float(epsilons[waiting[place]]), many)
        if curve is None or lonely > _LONELY:
            if ahead > 0:
                ahead = 0.0
                continue
            poor += waiting.tolist()
            break
        curves.append(curve)
        low, high = curve(epsilons[waiting])
        done = high - low < (_ENOUGH_FOR_MANY if many else landing.ENOUGH)
        if not done[0] and ahead > 0:
            ahead = 0.0
            continue
        if not many and high[0] - low[0] > _LATTICE_KNOWS:
            rough = _lattice().log_delta(composition.pairs(direction), epsilons[waiting[:1]])
            low[0], high[0] = max(low[0], rough[0][0]), min(high[0], rough[1][0])
        if not done[0] and many:
            poor.append(int(waiting[0]))
        done[0] = True
        lonely += bool(many and done.sum() == 1)
        lower[waiting[done]], upper[waiting[done]] = low[done], high[done]
        waiting, ahead = waiting[~done], 4 * spread
    if poor:
        at = np.array(sorted(poor))
        others = None if rival is None else rival[at]
        low, high = _lattice().log_delta(composition.pairs(direction), epsilons[at], shown=shown, rival=others)
        lower[at], upper[at] = np.fmax(lower[at], low), np.fmin(upper[at], high)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), 0.0, upper), curves


def _curve_at(
    composition: Composition,
    direction: int,
    epsilon: float,
    many: bool,
    log_tolerance: float = jumps.LOG_TOLERANCE,
    complement: bool = False,
) -> tuple[Curve | None, float]:
    """A curve that is sharp at epsilon (and, for many points, far around it), and the spread of its tilted loss."""
    few = _thinned(composition)
    enough = landing.ENOUGH if log_tolerance >= jumps.LOG_TOLERANCE else float(np.exp(log_tolerance))
    line, width, target, spread = _line_at(few, direction, epsilon, many, complement)
    if len(few.steps) < len(composition.steps):  # some of many kinds tell of all: their line is about as wide
        line = None
        if many or width < _PROMISING * enough:
            line, width, target, spread = _line_at(composition, direction, epsilon, many, complement)
    if line is not None and (many or not width > enough):
        return line.log_delta, spread
    jump = None
    if composition.gaussian == 0 and not many:
        largest = _log_total_variation(composition, direction)
        if _hits(few) < _SELDOM and not complement:
            target = landing.few_jumps_log_delta(few.steps, direction, max(epsilon, _NOTHING))
        target = min(target, largest) if np.isfinite(target) else largest
        jump, jump_width = landing.sharpest(composition.steps, direction, epsilon, target, log_tolerance)
        if jump is not None and not jump_width > width:
            return jump.log_delta, 0.0
    if line is None and width < _NEARLY:
        line = _line_at(composition, direction, epsilon, many, complement)[0]
    best = jump if line is None else line
    return (None if best is None else best.log_delta), 0.0


def _line_at(
    composition: Composition, direction: int, epsilon: float, many: bool, complement: bool
) -> tuple[Line | None, float, float, float]:
    """The line of the saddle point at epsilon, its width there, about log delta, and the spread of the tilted loss."""
    try:
        task, c, target = contour.solve_for_epsilon(
            composition.steps, composition.gaussian, direction, epsilon, complement
        )
        line = contour.line(task, c, -45.0) if many else contour.line(task, c)
    except contour.TooWideError:
        target = float(landing.sum_of_log_deltas(composition.steps, direction, np.array([epsilon]))[0])
        return None, np.inf, target, 0.0
    target = contour.log_complement(min(target, -1e-300)) if complement else min(target, -0.7)
    if line is None:
        return None, np.inf, target, 0.0
    width = float(np.diff(np.ravel(line.log_delta(np.array([epsilon]))))[0])
    return line, width, target, float(np.sqrt(task.cumulants(c)[2]))


def _thinned(composition: Composition) -> Composition:
    """Some of many kinds of steps, counted for all: for searches."""
    return replace(composition, steps=tuple(thinned(composition.steps)))


def _hits(composition: Composition) -> float:
    """How often the record is drawn, on average."""
    return sum(step.count * step.rate for step in composition.steps)


def _lattice() -> ModuleType:
    """Imported when it is needed, which is seldom."""
    from hush.accounting.lattices import lattice

    return lattice
