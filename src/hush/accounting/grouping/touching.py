"""From where to where a group's best attack touches a single record's curve, as a model of it has it.

The attack of the first record is the line of the steepest slope e^e that touches the power curve, and each next one
touches it less steeply.  A group of any size takes some twenty compositions (gains.py).  All of it says where to look,
and enters no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.grouping import gains
from hush.accounting.grouping.gains import Gains
from hush.accounting.grouping.links import Model
from hush.accounting.pairs.losses import Array

_ROUGHLY = 3e-3  # of what attacks gain
TRIED = 0.1
"""So much less than a record's attack gains, as a share of it, tells what the answer owes to that."""
_FURTHER = 1.02  # times the epsilon limit: enough to be told beyond it


@dataclass(frozen=True)
class Touched:
    """At epsilons from low (0 where the attack crosses the diagonal) to high, by so many records.

    The group's best attack at its epsilon has a type I error, gains that much, and keeps a delta, all as logarithms.
    The answer, epsilon or log delta, is off by so many times as much as the logarithms of a record's gains.
    """

    size: int
    low: float
    high: float
    level: float
    gain: float
    delta: float
    owed: float

    @property
    def epsilon(self) -> float:
        left = -math.expm1(min(self.delta - self.gain, 0.0))
        return float(np.logaddexp(0.0, self.gain - self.level + math.log(left))) if left > 0 else 0.0


def at_delta(model: Model, size: int, log_delta: float) -> Touched:
    """By a group that large or, if smaller ones are beyond the limit, by the smallest power of 2 that is."""

    def told(total: Gains) -> float:
        return gains.epsilon(total, log_delta, upper=False)

    curve, total, number = _grown(model, size, lambda total: told(total) > _FURTHER * EPSILON_LIMIT)
    return _touched(curve, total, _best(gains.log_epsilons(total, log_delta), total), number, log_delta, told)


def at_epsilon(model: Model, size: int, epsilon: float, enough: float = 0.0) -> Touched:
    """By a group that large or, if smaller ones have a log delta of more than is enough, the smallest power of 2."""

    def told(total: Gains) -> float:
        return max(gains.log_delta(total, epsilon, upper=False), -gains.DEEPEST)

    curve, total, number = _grown(model, size, lambda total: told(total) > enough)
    left = gains.log_left(total, epsilon)
    best = _best(np.where(np.isfinite(total.places), left, -np.inf), total)
    return _touched(curve, total, best, number, max(float(left[best]), -gains.DEEPEST), told)


def _grown(model: Model, size: int, is_enough: Callable[[Gains], bool]) -> tuple[Gains, Gains, int]:
    """A single record's gains and a group's, of that size or of the smallest power of 2 that is enough."""
    curve = gains.of_lines(model.epsilons, model.logs)
    total, number = curve, 1
    while 2 * number <= size and not is_enough(total):
        total, number = _doubled(total), 2 * number
    if 2 * number > size > number:
        total, number = curve.times(size, upper=False, share=_ROUGHLY), size
    return curve, total, number


def _doubled(total: Gains) -> Gains:
    return total.after(total, upper=False).thinned(_ROUGHLY, upper=False)


def _less(curve: Gains, number: int) -> Gains:
    """Those of as many records, each of which gains less."""
    total = Gains(curve.places, curve.logs - TRIED * gains.allowed(curve.places))
    if number & (number - 1):
        return total.times(number, upper=False, share=_ROUGHLY)
    for _ in range(number.bit_length() - 1):
        total = _doubled(total)
    return total


def _best(told: Array, total: Gains) -> int:
    """The corner that tells most or, if none tells anything, that where most is gained."""
    return int(np.argmax(told if told.max() > -np.inf else total.logs))


def _touched(
    curve: Gains, total: Gains, best: int, size: int, log_delta: float, told: Callable[[Gains], float]
) -> Touched:
    """By the group's attack at one of the corners, from its first record's to its last's."""
    place, gain = total.places[best : best + 1], total.logs[best : best + 1]
    first, before = _slopes(curve, float(place[0])), curve.reaching(gains.added(place, gain))
    last = _slopes(curve, float(before[0])) if before.size else -first
    both = np.append(first, last)
    high, low = float(np.abs(both).max(initial=0.0)), float(np.abs(both).min(initial=math.inf))
    level = -float(np.logaddexp(0.0, -place[0]))
    # where nothing is left there is nothing to be told from less of it
    owed = abs(told(total) - told(_less(curve, size))) / TRIED if log_delta > -gains.DEEPEST else math.inf
    low = 0.0 if both.min(initial=0.0) < 0 < both.max(initial=0.0) else min(low, high)
    return Touched(size, low, high, level, float(gain[0]), log_delta, owed)


def _slopes(curve: Gains, place: float) -> Array:
    """Logs of slopes at a corner and next to it."""
    slopes = gains.slopes(curve)
    k = int(np.searchsorted(curve.places, place))
    near = slopes[max(k - 2, 0) : k + 1]
    return near[np.isfinite(near)]
