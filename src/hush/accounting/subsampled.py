"""Certified answers for compositions of Poisson-subsampled and plain Gaussian steps.

Chooses, for each direction, between the closed form of a single step, the contour integral (contour.py), its
variant for a few large jumps (jumps.py), and, where neither applies, the lattice (lattice.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtr

from hush.accounting import contour, jumps, lattice
from hush.accounting.closed import gaussian_curve, single_curve, single_step_log_delta
from hush.accounting.contour import ADD, REMOVE
from hush.accounting.crossing import EPSILON_LIMIT, Curve, certified_root, search
from hush.accounting.labels import reach_below
from hush.accounting.line import chernoff, log_peak
from hush.accounting.losses import GaussianPair, Pair, Poisson
from hush.accounting.transform import Array, Step

_NARROW = 1e-6
_FAIRLY_NARROW = 1e-4
"""The lattice would not do better."""
_QUIETLY = np.errstate(all="ignore")
"""Overflows and NaNs are expected in corners and never pass for a bound: all that is returned has been compared."""
_FEW = 8
_LONELY = 4
"""Of many points, so many may each need a line of their own: then the lattice serves the rest together."""
_ENOUGH, _ENOUGH_FOR_MANY = 2e-7, 1e-6
_SMALLEST = 3e-13
"""An epsilon this small is known well enough."""
_TINY = 1e-4
"""Below, both directions are so close that a rough look can't tell them apart."""
_SHARPEST = -31.0
_ROUGH = -9.0
"""log of the relative accuracy of a delta that is good enough to find the place."""


@dataclass(frozen=True)
class Composition:
    """Steps with a sampling rate below one, and the mu^2 of all the others together."""

    steps: tuple[Step, ...]
    gaussian: float = 0.0

    @property
    def most_added(self) -> float:
        """The largest total loss in the add direction, if no plain Gaussian is among the steps; from above."""
        return float(sum(-step.count * np.log1p(-step.rate) for step in self.steps)) * (1 + 1e-12)

    def pairs(self, direction: int) -> list[tuple[Pair, int]]:
        pairs: list[tuple[Pair, int]] = []
        for step in self.steps:
            pair: Pair = Poisson(GaussianPair(1 / step.noise), step.rate)
            pairs.append((pair if direction == REMOVE else pair.reverse(), step.count))
        if self.gaussian > 0:
            pairs.append((GaussianPair(float(np.sqrt(self.gaussian))), 1))
        return pairs


def epsilon(composition: Composition, log_delta: float) -> tuple[float, float]:
    """Certified interval for the smallest epsilon >= 0 with delta(epsilon) <= delta, over both directions."""
    intervals = []
    floor = 0.0
    for direction in (REMOVE, ADD):
        if direction == ADD and _is_below(composition, direction, floor, log_delta):
            continue
        interval = _epsilon(composition, direction, log_delta)
        if interval == (0.0, 0.0):
            return interval  # delta(0) is the total variation, the same in both directions
        intervals.append(interval)
        floor = interval[1]
    return max(low for low, _ in intervals), max(high for _, high in intervals)


def log_delta(composition: Composition, epsilons: Array) -> tuple[Array, Array]:
    """Certified bounds on log delta at ascending epsilons >= 0, the larger of the two directions."""
    lower, upper = _log_delta(composition, REMOVE, epsilons)
    if not composition.steps:
        return lower, upper
    rivals = chernoff_curve(composition, ADD, epsilons) > lower
    if rivals.any():
        low, high = _log_delta(composition, ADD, epsilons[rivals])
        lower[rivals], upper[rivals] = np.maximum(lower[rivals], low), np.maximum(upper[rivals], high)
    poor = upper - lower > 1  # far beyond what any line resolves
    if poor.any():
        bounds = [chernoff_curve(composition, direction, epsilons[poor]) for direction in (REMOVE, ADD)]
        upper[poor] = np.fmin(upper[poor], np.maximum(*bounds))
    return lower, upper


@_QUIETLY
def _is_below(composition: Composition, direction: int, epsilon: float, target: float) -> bool:
    """Whether delta(epsilon) <= target in this direction can be seen without computing it."""
    if not np.isfinite(epsilon):
        return True
    if direction == ADD and composition.gaussian == 0 and epsilon >= composition.most_added:
        return True
    if epsilon <= 0:
        return False
    task = contour.problem(composition.steps, composition.gaussian, direction, target)
    points = np.geomspace(0.3, 300.0, 40) / epsilon
    bound = chernoff(task.log_mgf, epsilon, points)
    if np.logaddexp(bound + 1e-6, task.log_dropped) <= target:
        return True
    for tolerance in (_ROUGH, _SHARPEST) if epsilon < _TINY else (_ROUGH,):
        curve, _ = _curve_at(composition, direction, epsilon, False, tolerance, contour.is_complement(target))
        lower, upper = (-np.inf, 0.0) if curve is None else (float(side[0]) for side in curve(np.array([epsilon])))
        if upper <= target or lower > target:
            break
    return upper <= target


@_QUIETLY
def chernoff_curve(composition: Composition, direction: int, epsilons: Array) -> Array:
    """Upper bounds on log delta that cost next to nothing."""
    if _single(composition):
        return np.zeros(len(epsilons))
    task = contour.problem(composition.steps, composition.gaussian, direction, -690.0)
    scale = max(float(np.max(epsilons)), 1e-12)
    points = np.geomspace(0.3, 1e5, 60) / scale
    exponents = task.log_mgf(points) + log_peak(points) - np.multiply.outer(epsilons, points)
    bound = np.logaddexp(exponents.min(axis=1) + 1e-6, task.log_dropped)
    if direction == ADD and composition.gaussian == 0:
        bound = np.where(epsilons >= composition.most_added, -np.inf, bound)
    return np.asarray(np.minimum(bound, 0.0))


def _single(composition: Composition) -> bool:
    return composition.gaussian == 0 and len(composition.steps) == 1 and composition.steps[0].count == 1


@_QUIETLY
def _epsilon(composition: Composition, direction: int, target: float) -> tuple[float, float]:
    """Certified interval for epsilon in one direction: what each way finds, until it is narrow enough."""
    if not composition.steps:
        return certified_root(gaussian_curve(composition.gaussian), 1.0, target)
    if _single(composition):
        return certified_root(single_curve(composition.steps[0], direction), 1.0, target)
    if composition.gaussian == 0 and _log_total_variation(composition, direction) + 1e-9 <= target:
        return 0.0, 0.0
    if direction == REMOVE and _log_surely_exceeded(composition) - 1e-9 > target:
        return EPSILON_LIMIT, np.inf
    low, high = _epsilon_by_line(composition, direction, target)
    if not _is_narrow(low, high) and _log_short_of_one(composition, direction) < np.log(-np.expm1(target)):
        return EPSILON_LIMIT, np.inf
    if not _is_narrow(low, high):
        for guess in _guesses(composition, direction, target, (low, high)):
            low, high = _within((low, high), _epsilon_by_jumps(composition, direction, target, guess))
            if _is_narrow(low, high, _FAIRLY_NARROW):
                break
    if not _is_narrow(low, high, _FAIRLY_NARROW):
        low, high = _within((low, high), lattice.epsilon(composition.pairs(direction), target))
    return low, high


def _guesses(composition: Composition, direction: int, target: float, known: tuple[float, float]) -> Iterator[float]:
    """Where epsilon may be: what is known, the saddle point of the losses cut off, and what the lattice finds."""
    low, high = known
    if low > 0 and high < 1.5 * low:
        yield float(np.sqrt(low * high))
        return
    few = sum(step.count * step.rate for step in composition.steps) < 0.3
    if few:
        yield _few_jumps_epsilon(composition, direction, target)
    else:
        try:
            task = contour.problem(composition.steps, composition.gaussian, direction, target + 14)
            guess = contour.saddle_for_delta(task, target)[1]
        except contour.TooWideError:
            guess = 0.0
        if 0 < guess < np.inf:
            yield guess
    # near 0 the saddle point knows nothing: start at a small part of what the steps reach
    yield min(reach_below(composition.steps) / 30, high)
    low, high = _within(known, lattice.epsilon(composition.pairs(direction), target, tolerance=0.03))
    if np.isfinite(high) and high > 0:
        yield float(np.sqrt(low * high)) if low > 0 else 0.5 * high


def _is_narrow(low: float, high: float, share: float = _NARROW) -> bool:
    return high - low <= max(share * high, 1e-12) < np.inf or low >= EPSILON_LIMIT


def _within(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """What two certified intervals say together."""
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return min(low, high), max(low, high)


def _epsilon_by_line(composition: Composition, direction: int, target: float) -> tuple[float, float]:
    try:
        task, c, guess = contour.solve_for_delta(composition.steps, composition.gaussian, direction, target)
        if guess > 0.99 * EPSILON_LIMIT:
            task, c, _ = contour.solve_for_epsilon(
                composition.steps, composition.gaussian, direction, EPSILON_LIMIT, contour.is_complement(target)
            )
        line = contour.line(task, c)
    except contour.TooWideError:
        return 0.0, np.inf
    return (0.0, np.inf) if line is None else certified_root(line.log_delta, guess, target)


def _epsilon_by_jumps(composition: Composition, direction: int, target: float, guess: float) -> tuple[float, float]:
    """Set up roughly where epsilon is thought to be until that stands, then as sharply as the slope there asks for."""
    if composition.gaussian > 0 or guess <= 0:
        return 0.0, np.inf
    low, high = 0.0, np.inf
    guess = min(guess, EPSILON_LIMIT)
    below, above, tolerance, failed = 0.0, EPSILON_LIMIT, _ROUGH, 0
    before: jumps.Jumps | None = None
    # what falls with epsilon is log delta, or minus log(1 - delta)
    sign = -1 if contour.is_complement(target) else 1
    wanted = contour.log_complement(target) if sign < 0 else target
    for _ in range(14):
        jump = jumps.jumps(composition.steps, direction, guess, target, tolerance, before)
        values = None if jump is None else jump.log_value(guess * np.array([1.0, 1 + 1e-5]))
        if jump is None or values is None or (values[0][0] == -np.inf and values[1][0] == 0):
            failed += 1
            if failed > 3:
                break
            above, guess = guess, float(np.sqrt(max(below, 0.4 * guess) * guess))
            continue
        before = jump
        lower, upper = values
        is_below = lower[0] > wanted if sign > 0 else upper[0] < wanted
        is_above = upper[0] < wanted if sign > 0 else lower[0] > wanted
        below, above = (guess, above) if is_below else (below, guess) if is_above else (below, above)
        if guess == EPSILON_LIMIT and is_below:
            return EPSILON_LIMIT, np.inf
        if is_above and jump.log_delta(np.zeros(1))[1][0] <= target:
            return 0.0, 0.0
        slope = sign * float((upper[0] - upper[1]) / 1e-5)  # by the logarithm of epsilon
        short = sign * (0.5 * (lower[0] + upper[0]) - wanted)
        failed += bool(tolerance < _ROUGH and upper[0] - lower[0] > 0.5)
        if failed > 3:
            break
        known = bool(np.all(np.isfinite(lower)) and slope > 0)
        if not known:
            back = np.sqrt(below * guess) if below > 0 else guess
            root = 0.7 * guess if is_above else 1.4 * guess if is_below else float(back)
            tolerance -= 3.0 if root == guess else 0.0
        elif abs(upper[0] - wanted) < 0.03 * slope:
            root = search(jump.log_delta, guess, target, (0.8 * guess, 1.25 * guess))
        elif sign > 0 and is_above and guess > 1:
            # delta falls like a constant less e^eps times another: a tangent in e^eps
            rest = -np.expm1(-guess) - np.expm1(-short) * guess / slope
            root = guess + float(np.log(rest + np.exp(-guess))) if rest > 0 else 0.03 * guess
        elif abs(short) > max(0.5, 0.7 * slope):
            root = guess * float(np.exp(np.clip(short / slope, -3.0, 1.0)))
        else:
            root = guess * float(np.clip(1 + short / slope, 0.03, 10.0))
        root = max(root, _SMALLEST)
        sharp = float(np.clip(np.log(max(_NARROW, 1e-12 / root) * max(slope, 1e-9)) - 2.2, -32.0, _ROUGH))
        if known and abs(root / guess - 1) < 0.01 and tolerance <= sharp + 0.5:
            was = high - low
            low, high = _within((low, high), certified_root(jump.log_delta, root, target))
            sharp = min(sharp, tolerance - 3)
            if _is_narrow(low, high) or sharp < -38 or high - low > 0.7 * was:
                break
        if known and (abs(root / guess - 1) < 0.05 or upper[0] - lower[0] > 0.2 * slope):
            tolerance = min(sharp, tolerance)
        if not below < root < above and abs(root / guess - 1) > 0.01:
            root = np.sqrt(max(below, 1e-3 * above) * above)
        guess = float(np.clip(root, _SMALLEST, EPSILON_LIMIT))
    return low, high


def _log_total_variation(composition: Composition, direction: int) -> float:
    """log of an upper bound on delta(0): total variations add up at most, and without a hit there is none."""
    untouched = sum(step.count * np.log1p(-step.rate) for step in composition.steps)
    added = float(_sum_of_log_deltas(composition, direction, np.zeros(1))[0])
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


def _log_short_of_one(composition: Composition, direction: int) -> float:
    """log of an upper bound on 1 - delta(1e4): exp(Lambda(t) - t eps) for any -1 <= t <= 0, by Chernoff."""
    task = contour.problem(composition.steps, composition.gaussian, direction, -40.0)
    points = contour.place(np.linspace(-12.0, 12.0, 25), complement=True)
    bound = float(np.min(task.log_mgf(points) - points * EPSILON_LIMIT)) + 1e-6
    return float(np.logaddexp(bound, task.log_dropped)) + 1e-9


def _few_jumps_epsilon(composition: Composition, direction: int, target: float) -> float:
    """The epsilon at which a few equal jumps, as many as do it best, have the probability delta: a guess."""
    low, high = -80.0, float(np.log(EPSILON_LIMIT))
    counts = np.array([1.0, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64]) if direction == REMOVE else np.ones(1)
    counts = counts[counts <= sum(step.count for step in composition.steps)]
    for _ in range(40):
        middle = 0.5 * (low + high)
        chances = counts * _sum_of_log_deltas(composition, direction, np.exp(middle) / counts) - gammaln(counts + 1)
        low, high = (middle, high) if np.nanmax(chances) > target else (low, middle)
    return float(np.exp(low))


def _sum_of_log_deltas(composition: Composition, direction: int, epsilons: Array) -> Array:
    """log of the sum of the single steps' deltas: at epsilon = 0 a bound, since total variations add up at most."""
    terms = [np.log(step.count) + single_step_log_delta(step, direction, epsilons) for step in composition.steps]
    return np.asarray(np.logaddexp.reduce(terms))


@_QUIETLY
def _log_delta(composition: Composition, direction: int, epsilons: Array) -> tuple[Array, Array]:
    """Certified bounds on log delta in one direction, at ascending epsilons: one line serves all that are near it."""
    if not composition.steps:
        return gaussian_curve(composition.gaussian)(epsilons)
    if _single(composition):
        return single_curve(composition.steps[0], direction)(epsilons)
    lower, upper = np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
    if direction == ADD and composition.gaussian == 0:
        upper[epsilons >= composition.most_added] = -np.inf
    many = len(epsilons) > _FEW
    waiting = np.flatnonzero(np.isfinite(upper))
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
        low, high = curve(epsilons[waiting])
        done = high - low < (_ENOUGH_FOR_MANY if many else _ENOUGH)
        if not done[0] and ahead > 0:
            ahead = 0.0
            continue
        if not done[0] and not many:
            rough = lattice.log_delta(composition.pairs(direction), epsilons[waiting[:1]])
            low[0], high[0] = max(low[0], rough[0][0]), min(high[0], rough[1][0])
        if not done[0] and many:
            poor.append(int(waiting[0]))
        done[0] = True
        lonely += bool(many and done.sum() == 1)
        lower[waiting[done]], upper[waiting[done]] = low[done], high[done]
        waiting, ahead = waiting[~done], 4 * spread
    if poor:
        at = np.array(sorted(poor))
        low, high = lattice.log_delta(composition.pairs(direction), epsilons[at])
        lower[at], upper[at] = np.fmax(lower[at], low), np.fmin(upper[at], high)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), 0.0, upper)


def _curve_at(
    composition: Composition,
    direction: int,
    epsilon: float,
    many: bool,
    log_tolerance: float = jumps.LOG_TOLERANCE,
    complement: bool = False,
) -> tuple[Curve | None, float]:
    """A curve that is sharp at epsilon (and, for many points, far around it), and the spread of its tilted loss."""
    try:
        task, c, target = contour.solve_for_epsilon(
            composition.steps, composition.gaussian, direction, epsilon, complement
        )
        target = contour.log_complement(min(target, -1e-300)) if complement else min(target, -0.7)
        line = contour.line(task, c, -45.0) if many else contour.line(task, c)
    except contour.TooWideError:
        line, target = None, float(_sum_of_log_deltas(composition, direction, np.array([epsilon]))[0])
    at = np.array([epsilon])
    width = np.inf if line is None else float(np.diff(np.ravel(line.log_delta(at)))[0])
    enough = _ENOUGH if log_tolerance >= jumps.LOG_TOLERANCE else float(np.exp(log_tolerance))
    if line is not None and (many or not width > enough):
        return line.log_delta, float(np.sqrt(task.cumulants(c)[2]))
    if composition.gaussian == 0 and epsilon > 0 and not many:
        jump, jump_width = _jumps_at(composition, direction, epsilon, target, log_tolerance)
        if jump is not None and not jump_width > width:
            return jump.log_delta, 0.0
    return (None if line is None else line.log_delta), 0.0


def _jumps_at(
    composition: Composition, direction: int, epsilon: float, target: float, log_tolerance: float
) -> tuple[jumps.Jumps | None, float]:
    """The sharpest of a few set-ups at epsilon, each for the delta that the one before found, and its width there."""
    best, narrowest, least = None, np.inf, max(target, -0.7)
    for tolerance in (_ROUGH, _ROUGH, _ROUGH, log_tolerance, log_tolerance + 4):
        jump = jumps.jumps(composition.steps, direction, epsilon, target, max(tolerance, log_tolerance), best)
        if jump is None:
            target -= 25  # a delta taken for larger than it is leaves out all that makes it up
            continue
        lower, upper = (float(bound[0]) for bound in jump.log_delta(np.array([epsilon])))
        if best is None or upper - lower < narrowest:
            best, narrowest = jump, upper - lower
        if narrowest < max(_ENOUGH if log_tolerance >= jumps.LOG_TOLERANCE else 0.0, 4 * np.exp(log_tolerance)):
            break
        target = min(0.5 * (lower + upper) if np.isfinite(lower) else upper - 5, least)
    return best, narrowest
