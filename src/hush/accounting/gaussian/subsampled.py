"""Certified answers for compositions of Poisson-subsampled and plain Gaussian steps.

Chooses, for each direction, between the closed form of a single step, the contour integral (contour.py), its
variant for a few large jumps (jumps.py), and, where neither applies, the lattice (lattice.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT, Curve, certified_root, is_narrow, mirrored, within
from hush.accounting.contours.line import chernoff
from hush.accounting.gaussian import contour, hits, landing
from hush.accounting.gaussian.closed import MORE, short_of_a_hit, single_curve
from hush.accounting.gaussian.composition import (
    QUIETLY,
    Composition,
    chernoff_curve,
    closed_curve,
    is_hopeless,
    log_short_of_one,
    log_surely_exceeded,
    log_total_variation,
)
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.gaussian.labels import reach_below
from hush.accounting.gaussian.sharpest import NEARLY, NOTHING, SELDOM, blurred, curve_at
from hush.accounting.gaussian.transform import Array

_FEW = 8
"""Epsilons that may each have a line of their own, and kinds of steps whose lines cost little."""
_LONELY = 4
"""Of many points, so many may each need a line of their own: then the lattice serves the rest together."""
_ENOUGH_FOR_MANY = 1e-6
_TINY = 1e-4
"""Below, both directions are so close that a rough look can't tell them apart."""
_SHARPEST = -31.0
_NUMBERS = -745.5
"""log of a number below the smallest that floating point has."""
_ALMOST, _FINER = 1 + 1e-4, -36.0
"""Where an interval is nearly narrow enough, and log of what its line may neglect instead."""
_LATTICE_KNOWS = 1e-4
"""Of log delta: what the lattice tells at best."""
_ROUGH_LATTICE = 0.05
"""The relative width of an epsilon that says where to look."""
_OFTEN = 4.0
"""A delta within e^-4 of the chance of a hit: then one jump may decide."""


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


@QUIETLY
def of_one_step(composition: Composition, delta: float) -> tuple[float, float]:
    """The same for a single step, also where delta is so close to a hit's chance p that log delta has too few digits.

    Between p/2 and p the difference p - delta is exact.  The other direction's epsilon is no larger where its delta is.
    """
    low, high = epsilon(composition, math.log(delta))
    (step,) = composition.steps
    if is_narrow(low, high) or not 0.5 * step.rate < delta < step.rate:
        return low, high
    short = -math.log((step.rate - delta) / step.rate) - MORE
    least, most = certified_root(short_of_a_hit(step), 1.0, short)
    low = max(low, least)
    if single_curve(step, ADD)(np.array([most]))[1][0] < math.log(delta) * (1 + 2.0**-50):
        high = min(high, most)
    return min(low, high), max(low, high)


@QUIETLY
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


@QUIETLY
def _is_below(composition: Composition, direction: int, epsilon: float, target: float, other: Curve | None) -> bool:
    """Whether delta(epsilon) <= target in this direction can be seen without computing it, or on the other's curve."""
    if not np.isfinite(epsilon):
        return True
    if direction == ADD and composition.gaussian == 0:
        # delta is convex in e^eps: below its chord from 0 to the largest loss, where it has fallen to 0
        fallen = np.expm1(epsilon) / np.expm1(composition.most_added)
        if fallen >= 1 or log_total_variation(composition, direction) + np.log1p(-fallen) < target - 1e-9:
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
    if len(composition.steps) > _FEW and blurred(composition, direction, epsilon) <= target:
        return True  # of few kinds the curve itself costs no more
    for tolerance in (landing.ROUGH, _SHARPEST) if epsilon < _TINY else (landing.ROUGH,):
        curve, _ = curve_at(composition, direction, epsilon, False, tolerance, contour.is_complement(target))
        lower, upper = (-np.inf, 0.0) if curve is None else (float(side[0]) for side in curve(np.array([epsilon])))
        if upper <= target or lower > target:
            break
    return upper <= target


@QUIETLY
def _epsilon(composition: Composition, direction: int, target: float) -> tuple[tuple[float, float], Curve | None]:
    """Certified interval for epsilon in one direction: what each way finds, until it is narrow enough.

    And the curve it was last read from.
    """
    if not composition.steps or composition.is_single:
        known = closed_curve(composition, direction)
        return certified_root(known, 1.0, target), known
    if composition.gaussian == 0 and log_total_variation(composition, direction) + 1e-9 <= target:
        return (0.0, 0.0), None
    if direction == REMOVE and log_surely_exceeded(composition) - 1e-9 > target:
        return (EPSILON_LIMIT, np.inf), None
    (low, high), curve = (0.0, np.inf), None
    few = composition.few
    many = len(few.steps) < len(composition.steps)
    if not many or is_narrow(*_epsilon_by_line(few, direction, target)[0], NEARLY):  # some of many kinds tell of all
        (low, high), curve = _epsilon_by_line(composition, direction, target)
    if not is_narrow(low, high) and is_hopeless(composition, direction, target):
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
    few, hits = composition.few, composition.hits
    often = direction == REMOVE and target > np.log(min(hits, 1.0)) - _OFTEN
    if often and (guess := landing.one_jump_epsilon(few.steps, target)) > NOTHING:
        yield guess
    if hits < SELDOM:
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


@QUIETLY
def _log_delta(
    composition: Composition, direction: int, epsilons: Array, shown: float = 0.0, rival: Array | None = None
) -> tuple[Array, Array, list[Curve]]:
    """Certified bounds on log delta in one direction, at ascending epsilons: one line serves all that are near it.

    And the curves that they were read from.  What lies below a rival need be known no better.
    """
    if not composition.steps or composition.is_single:
        known = closed_curve(composition, direction)
        return *known(epsilons), [known]
    curves: list[Curve] = []
    lower, upper = np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
    if direction == ADD and composition.gaussian == 0:
        upper[epsilons >= composition.most_added] = -np.inf
    many = len(epsilons) > _FEW
    short = np.exp(log_short_of_one(composition, direction, epsilons))
    lower = np.where(short < NOTHING, -1.001 * short, lower)
    waiting = np.flatnonzero(np.isfinite(upper) & ~(short < NOTHING))
    ahead, lonely = 0.0, 0
    poor: list[int] = []
    while waiting.size:
        left = epsilons[waiting[0]]
        place = min(int(np.searchsorted(epsilons[waiting], left + ahead)), waiting.size - 1)
        curve, spread = curve_at(composition, direction, float(epsilons[waiting[place]]), many)
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


def _lattice() -> ModuleType:
    """Imported when it is needed, which is seldom."""
    from hush.accounting.lattices import lattice

    return lattice
