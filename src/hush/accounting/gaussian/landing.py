"""Where the total loss lands if a few large losses decide: epsilon, and the sharpest curve, by set-ups of jumps.py.

A set-up costs far more than a look at its curve, which is certified everywhere and sharp around one epsilon.  So the
search asks a curve where it falls to the target, believes it as far as it is sharp there, and sets up anew only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from hush.accounting.contours.crossing import EPSILON_LIMIT, NARROW, Curve, certified_root, is_narrow, search, within
from hush.accounting.contours.thinning import thinned
from hush.accounting.gaussian import contour, jumps
from hush.accounting.gaussian.closed import single_step_log_delta
from hush.accounting.gaussian.contour import REMOVE
from hush.accounting.gaussian.transform import Array, Step

ROUGH = -9.0
"""log of the relative accuracy of a delta that is good enough to find the place."""
ENOUGH = 2e-7
_ENOUGH_THERE = 0.9
"""The share of what epsilon's width allows for that a curve may be off where it says epsilon is."""
_FAIRLY = 3e-3
"""The relative width of an epsilon that says where to look."""
_FINEST = -33.0
"""log of a relative accuracy beyond which rounding counts more than anything else."""
_SMALLEST = 3e-13
"""An epsilon this small is known well enough."""
_NUDGES = np.array([1e-5, 1e-3, 0.05, 1.0])
"""Slopes are taken over the smallest of these shares of epsilon at which anything is seen."""


def epsilon(
    steps: Sequence[Step], direction: int, target: float, guess: float
) -> tuple[tuple[float, float], Curve | None]:
    """A certified interval, and the curve it was last read from; sought for a few of many kinds of steps at first."""
    if guess <= 0:
        return ((0.0, np.inf), None)
    begin = Begin(min(guess, EPSILON_LIMIT))
    few = thinned(steps)
    if len(few) < len(steps):
        begin = _search(few, direction, target, begin, _FAIRLY)[1]
    return _search(steps, direction, target, begin, NARROW)[0]


@dataclass(frozen=True)
class Begin:
    """Where a search begins, how sharply it looks there, and what served nearby."""

    guess: float
    tolerance: float = ROUGH
    before: jumps.Jumps | None = None


def _search(
    steps: Sequence[Step], direction: int, target: float, begin: Begin, narrow: float
) -> tuple[tuple[tuple[float, float], Curve | None], Begin]:
    """Set up roughly where epsilon is thought to be until that stands, then as sharply as the slope there asks for.

    And where a search for something narrower should begin.
    """
    found: tuple[tuple[float, float], Curve | None] = (0.0, np.inf), None
    guess, tolerance, before = begin.guess, begin.tolerance, begin.before
    below, above, failed = 0.0, EPSILON_LIMIT, 0
    served, finest, next_time = ROUGH, _FINEST, ROUGH
    own: jumps.Jumps | None = None  # what served before may be a few steps', and says nothing of these
    # what falls with epsilon is log delta, or minus log(1 - delta)
    sign = -1 if contour.is_complement(target) else 1
    wanted = contour.log_complement(target) if sign < 0 else target
    for _ in range(14):
        jump = jumps.jumps(steps, direction, guess, target, tolerance, before)
        values = None if jump is None else jump.log_value(np.array([guess]))
        if jump is None or values is None or (values[0][0] == -np.inf and values[1][0] == 0):
            failed += 1
            if failed > (3 if before is not None else 1):
                break  # it is elsewhere
            if before is not None and tolerance < ROUGH:  # so sharp is too much for it
                if tolerance > served - 2:
                    break
                tolerance, finest = 0.5 * (served + tolerance), 0.5 * (served + tolerance)
                continue
            above, guess = guess, float(np.sqrt(max(below, 0.4 * guess) * guess))
            continue
        own = before = jump
        served = tolerance
        lower, upper = values
        is_below = lower[0] > wanted if sign > 0 else upper[0] < wanted
        is_above = upper[0] < wanted if sign > 0 else lower[0] > wanted
        below, above = (guess, above) if is_below else (below, guess) if is_above else (below, above)
        if guess == EPSILON_LIMIT and is_below:
            return ((EPSILON_LIMIT, np.inf), jump.log_delta), Begin(guess, before=before)
        if is_above and jump.log_delta(np.zeros(1))[1][0] <= target:
            return ((0.0, 0.0), jump.log_delta), Begin(guess, before=before)
        failed += bool(tolerance < ROUGH and upper[0] - lower[0] > 0.5)
        if failed > 3:
            break
        short = sign * (0.5 * (lower[0] + upper[0]) - wanted)
        known = bool(np.isfinite(lower[0]))
        root = max(search(jump.log_delta, guess, target, (below, above)) if known else guess, _SMALLEST)
        slope = _slope(jump, root, sign, guess)
        width, width_there = _widths(jump, guess, root)
        sharp_there = known and width_there <= max(2 * width, _ENOUGH_THERE * narrow * slope)
        located = sharp_there or (known and width_there < 0.1 * slope)
        slope = slope if located else _slope(jump, guess, sign, guess)
        if known and not (is_below or is_above) and width > slope:  # any epsilon around may be it
            root, known, located = guess, False, False
            tolerance -= 6.0
            if tolerance < _FINEST:
                break
        elif not known:
            back = np.sqrt(below * guess) if below > 0 else guess
            far = is_above and abs(upper[0] - wanted) > 3
            root = 0.4 * guess if far else 0.7 * guess if is_above else 1.4 * guess if is_below else float(back)
            tolerance -= 3.0 if root == guess else 0.0
        elif not slope > 0:  # too flat for what is known
            root, known = root if sharp_there else guess, False
            tolerance -= 6.0
            if tolerance < _FINEST:
                break
        elif located:
            pass
        elif sign > 0 and is_above and guess > 1 and (rest := _rest(guess, short, slope)) > 0:
            root = guess + float(np.log(rest + np.exp(-guess)))
        elif abs(short) > max(0.5, 0.7 * slope):
            root = guess * float(np.exp(np.clip(short / slope, -3.0, 1.0)))
        else:
            root = guess * float(np.clip(1 + short / slope, 0.03, 10.0))
        root = max(root, _SMALLEST)
        sharp = float(np.clip(np.log(max(narrow, 1e-12 / root) * max(slope, 1e-9)) - 2.2, -35.0, ROUGH))
        if known:
            next_time = float(np.clip(sharp + np.log(NARROW / narrow), _FINEST, ROUGH))
        if known and (sharp_there or abs(root / guess - 1) < 0.01) and tolerance <= max(sharp + 0.5, finest):
            (low, high), _ = found
            was = high - low
            low, high = within((low, high), certified_root(jump.log_delta, root, target))
            found = (low, high), jump.log_delta
            sharp = min(sharp, tolerance - 3)
            if is_narrow(low, high, narrow) or tolerance <= finest or high - low > 0.7 * was:
                break
        if known and (located or abs(root / guess - 1) < 0.05 or upper[0] - lower[0] > 0.2 * slope):
            tolerance = min(sharp, tolerance)
        if not below < root < above and abs(root / guess - 1) > 0.01:
            root = np.sqrt(max(below, 1e-3 * above) * above)
        guess = float(np.clip(root, _SMALLEST, EPSILON_LIMIT))
    if found[1] is None and own is not None:
        found = certified_root(own.log_delta, own.epsilon, target), own.log_delta
    low, high = found[0]
    place = 0.5 * (low + high) if low > 0 and is_narrow(low, high, 0.1) else guess
    return found, Begin(place, next_time, before)


def _widths(jump: jumps.Jumps, here: float, there: float) -> tuple[float, float]:
    """How far apart the bounds of a curve set up here are, here and there."""
    lower, upper = jump.log_value(np.array([here, there]))
    return float(upper[0] - lower[0]), float(upper[1] - lower[1])


def _rest(guess: float, short: float, slope: float) -> float:
    """e^(root - guess) where delta falls like a constant less e^eps times another: a tangent in e^eps."""
    return float(-np.expm1(-guess) - np.expm1(-short) * guess / slope)


def _slope(jump: jumps.Jumps, epsilon: float, sign: int, other: float) -> float:
    """How fast the curve falls at epsilon, by its logarithm, seen from nearby or, if that shows nothing, from `other`.

    From the middle, which varies less than the bounds.
    """
    shares = np.append(_NUDGES, other / epsilon - 1) if other > 2 * epsilon else _NUDGES
    lower, upper = jump.log_value(epsilon * np.append(1.0, 1 + shares))
    middle = 0.5 * (lower + upper)
    falls = sign * (middle[0] - middle[1:])
    seen = np.flatnonzero(falls > 1e-13 * (1 + abs(middle[0])))  # more than rounding
    return float(falls[seen[0]] / shares[seen[0]]) if seen.size else 0.0


def few_jumps_epsilon(steps: Sequence[Step], direction: int, target: float) -> float:
    """The epsilon at which a few equal jumps, as many as do it best, have the probability delta: a guess."""
    return _falls_to(lambda epsilon: few_jumps_log_delta(steps, direction, epsilon), target)


def few_jumps_log_delta(steps: Sequence[Step], direction: int, epsilon: float) -> float:
    """log of the probability that a few equal jumps, as many as do it best, add up to epsilon: a guess."""
    counts = np.array([1.0, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64]) if direction == REMOVE else np.ones(1)
    counts = counts[counts <= max(sum(step.count for step in steps), 1)]
    return float(np.nanmax(counts * sum_of_log_deltas(steps, direction, epsilon / counts) - gammaln(counts + 1)))


def one_jump_epsilon(steps: Sequence[Step], target: float) -> float:
    """The same where any step may be the one that decides, and must make up for what all the others lose (remove).

    Next to exact on plateaus, where little noise makes a sampled record's loss either large or -log(1-p).
    """
    lost = [-float(np.log1p(-step.rate)) for step in steps]
    total = sum(step.count * one for step, one in zip(steps, lost, strict=True))

    def log_chance(epsilon: float) -> float:
        none = 0.0
        for step, one in zip(steps, lost, strict=True):
            alone = single_step_log_delta(step, REMOVE, np.array([epsilon + total - one]))[0]
            none += step.count * float(np.log1p(-np.exp(alone)))
        return float(np.log(-np.expm1(none))) if none < 0 else -np.inf

    return _falls_to(log_chance, target)


def _falls_to(log_chance: Callable[[float], float], target: float) -> float:
    """Where it does, to a few digits of log epsilon; next to 0 where it is below from there on."""
    low, high = -80.0, float(np.log(EPSILON_LIMIT))
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_chance(float(np.exp(middle))) > target else (low, middle)
    return float(np.exp(low))


def sum_of_log_deltas(steps: Sequence[Step], direction: int, epsilons: Array) -> Array:
    """log of the sum of the single steps' deltas: at epsilon = 0 a bound, since total variations add up at most."""
    terms = [np.log(step.count) + single_step_log_delta(step, direction, epsilons) for step in steps]
    return np.asarray(np.logaddexp.reduce(terms))


def sharpest(
    steps: Sequence[Step], direction: int, epsilon: float, target: float, log_tolerance: float
) -> tuple[jumps.Jumps | None, float]:
    """The sharpest of a few set-ups at epsilon, each for the delta that the one before found, and its width there.

    Of many kinds of steps a few say what delta that is.
    """
    few = thinned(steps)
    if len(few) == len(steps):
        return _sharpened(steps, direction, epsilon, target, log_tolerance, [ROUGH] * 3)[:2]
    before, _, target = _sharpened(few, direction, epsilon, target, ROUGH, [ROUGH] * 6)
    return _sharpened(steps, direction, epsilon, target, log_tolerance, [], before)[:2]


def _sharpened(
    steps: Sequence[Step],
    direction: int,
    epsilon: float,
    target: float,
    log_tolerance: float,
    roughly: Sequence[float],
    before: jumps.Jumps | None = None,
) -> tuple[jumps.Jumps | None, float, float]:
    """The sharpest set-up, after some that look roughly; its width at epsilon, and about log delta there."""
    best, narrowest, least, place = None, np.inf, max(target, -0.7), max(epsilon, _SMALLEST)
    tolerances = [*roughly, log_tolerance, log_tolerance + 4]
    while tolerances:
        jump = jumps.jumps(steps, direction, place, target, max(tolerances.pop(0), log_tolerance), best or before)
        lower, upper = (-np.inf, 0.0) if jump is None else (float(b[0]) for b in jump.log_delta(np.array([epsilon])))
        if jump is None or (lower == -np.inf and upper == 0):
            # a delta taken for larger than it is leaves out all that makes it up
            target = min(target - 25, few_jumps_log_delta(steps, direction, place))
            continue
        if best is None or upper - lower < narrowest:
            best, narrowest = jump, upper - lower
        unseen = min(upper - 5, few_jumps_log_delta(steps, direction, place))
        target = min(0.5 * (lower + upper) if np.isfinite(lower) else unseen, least)
        if narrowest < max(ENOUGH if log_tolerance >= jumps.LOG_TOLERANCE else 0.0, 4 * np.exp(log_tolerance)):
            break
        if narrowest < 0.1:  # so much is known of delta: no need for another look as rough as that
            tolerances = [one for one in tolerances if one < ROUGH and narrowest > 4 * np.exp(one)]
    return best, narrowest, target
