"""The smallest noise, the most steps, the largest rate, or the fewest projections for a privacy target.

Each takes a function from the parameter to a mechanism and returns the best parameter for which the *certified upper*
epsilon at delta is at most the target: the inequality is checked at the very value that is returned.

    >>> from hush.accounting import Gaussian
    >>> round(noise(lambda sigma: Gaussian(sigma).poisson(256 / 60_000) * 3516, epsilon=1.0, delta=1e-5), 4)
    1.1851
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hush.accounting import answers
from hush.accounting.mechanisms import Mechanism

Family = Callable[[float], Mechanism]
CountedFamily = Callable[[int], Mechanism]

_RELATIVE = 5e-7
_ABSOLUTE = 5e-7
_FINEST = 1e-10
"""Certified bounds vary by more than a smaller share would."""
_NOTHING = -1e-300
"""Stands for an epsilon of 0."""
_LARGEST_NOISE, _SMALLEST_NOISE = 1e8, 1e-3
_SMALLEST_RATE = 1e-12
_MOST_STEPS = 10**10
_MOST_PROJECTIONS = 10**6


def noise(mechanism: Family, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier that keeps the target, to 1e-6."""
    _check_target(epsilon, delta)
    found = _threshold(
        lambda value: _excess(mechanism(value), epsilon, delta), 1.0, _SMALLEST_NOISE, _LARGEST_NOISE, -1, _ABSOLUTE
    )
    if found is None:
        raise ValueError(
            f"No noise multiplier up to {_LARGEST_NOISE:g} reaches epsilon {epsilon:g} at delta {delta:g}."
        )
    return found


def rate(mechanism: Family, epsilon: float, delta: float) -> float:
    """The largest sampling rate that keeps the target, to 1e-6 of itself."""
    _check_target(epsilon, delta)
    found = _threshold(lambda value: _excess(mechanism(value), epsilon, delta), 0.01, _SMALLEST_RATE, 1.0, +1)
    if found is None:
        raise ValueError(f"No sampling rate from {_SMALLEST_RATE:g} on keeps epsilon {epsilon:g} at delta {delta:g}.")
    return found


def steps(mechanism: CountedFamily, epsilon: float, delta: float) -> int:
    """The most steps that keep the target."""
    _check_target(epsilon, delta)
    if _excess(mechanism(1), epsilon, delta) > 0:
        raise ValueError(f"Not even one step keeps epsilon {epsilon:g} at delta {delta:g}.")
    if _excess(mechanism(_MOST_STEPS), epsilon, delta) <= 0:
        raise ValueError(f"More than {_MOST_STEPS:g} steps keep the target; the mechanism costs next to nothing.")
    memory: dict[int, float] = {}

    def excess(count: float) -> float:
        whole = max(math.floor(count * (1 + 1e-12)), 1)
        if whole not in memory:
            memory[whole] = _excess(mechanism(whole), epsilon, delta)
        return memory[whole]

    found = _threshold(excess, 1000.0, 1.0, float(_MOST_STEPS), +1)
    low = max(math.floor((found or 1.0) * (1 + 1e-12)), 1)
    while excess(low) > 0:
        low -= 1
    high = low + 1
    while excess(high) <= 0:
        low, high = high, high + 2 * (high - low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return low


def projections(mechanism: CountedFamily, epsilon: float, delta: float, most: int = _MOST_PROJECTIONS) -> int:
    """The fewest projections that keep the target: epsilon isn't monotone in their number, so they are scanned."""
    _check_target(epsilon, delta)
    count, wider = 1, 0.0
    while not _keeps(mechanism(count), epsilon, delta):
        # every number up to 64, then wider steps, by far where the most don't keep the target either: a few numbers in
        # between hardly will; what is returned keeps the target in any case
        if count == 64:
            wider = 1.02 if _keeps(mechanism(most), epsilon, delta) else 1.3
        count = count + 1 if count < 64 else math.ceil(count * wider)
        if count > most:
            raise ValueError(f"No number of projections up to {most} keeps epsilon {epsilon:g} at delta {delta:g}.")
    if count <= 64:
        return count
    previous = math.floor((count - 1) / wider)
    for candidate in range(max(previous, 64), count):
        if _keeps(mechanism(candidate), epsilon, delta):
            return candidate
    return count


def _keeps(mechanism: Mechanism, epsilon: float, delta: float) -> bool:
    """Whether the certified upper epsilon is at most the target; most cases are clear from a coarse account."""
    coarse = answers.epsilon(mechanism, delta, tolerance=0.05)
    if coarse.upper <= epsilon or coarse.lower > epsilon:
        return coarse.upper <= epsilon
    return mechanism.epsilon(delta).upper <= epsilon


def equal_noise(reference_epsilon: float, mechanism: Family, delta: float) -> float:
    """The noise that certifies an epsilon which another account claimed (Bu et al. 2019, Section 3.2)."""
    return noise(mechanism, reference_epsilon, delta)


def _excess(mechanism: Mechanism, epsilon: float, delta: float) -> float:
    """log of the certified upper epsilon over the target: positive where the target is missed."""
    upper = mechanism.epsilon(delta).upper
    if upper <= epsilon:
        return _NOTHING if upper <= 0 else math.log(upper / epsilon) if epsilon > 0 else 0.0
    return math.inf if math.isinf(upper) or epsilon == 0 else math.log(upper / epsilon)


def _threshold(
    excess: Callable[[float], float], start: float, least: float, most: float, safe: int, absolute: float = math.inf
) -> float | None:
    """The parameter closest to missing the target without missing it; `safe` is the side (-1: above is private).

    Bracket on the logarithm, then false position on log epsilon against log parameter, which is nearly straight.
    """
    low, high = math.log(least), math.log(most)
    private_edge, wild_edge = (high, low) if safe < 0 else (low, high)
    at = math.log(start)
    value = excess(math.exp(at))
    good: tuple[float, float] | None = None
    bad: tuple[float, float] | None = None
    stride = 0.7
    while good is None or bad is None:
        if value <= 0:
            good = (at, value)
        else:
            bad = (at, value)
        if good is not None and bad is not None:
            break
        towards = wild_edge if value <= 0 else private_edge
        if at == towards:
            return math.exp(at) if good is not None else None
        unknown = not math.isfinite(value) or value == _NOTHING
        step = stride if unknown else min(max(abs(value) * 0.7, 0.05), 3.0)
        stride *= 1.5
        at = min(at + step, towards) if towards > at else max(at - step, towards)
        value = excess(math.exp(at))
    good_at, good_value = good
    bad_at, bad_value = bad
    stale = [1.0, 1.0]  # an end that stays while the other moves twice counts half: the line turns towards it
    moved = -1
    for attempt in range(80):
        gap = abs(good_at - bad_at)
        close = min(_RELATIVE, max(absolute / math.exp(good_at), _FINEST))
        if gap <= close:
            break
        share = 0.5
        if math.isfinite(bad_value) and attempt % 4 != 3 and bad_value > good_value:
            short, over = _short(good_value) * stale[0], bad_value * stale[1]
            share = min(max(short / (over + short), 0.01), 0.99)
            share = min(max(share, 0.3 * close / gap), 1 - 0.3 * close / gap)
        middle = good_at + share * (bad_at - good_at)
        # aim a hair to the private side of where the line says, so that the bracket closes from both sides
        middle += (good_at - bad_at) / gap * min(0.3 * close, 0.2 * gap) * (1 if attempt % 2 == 0 else -1)
        value = excess(math.exp(middle))
        side = 0 if value <= 0 else 1
        if side == 0:
            good_at, good_value = middle, value
        else:
            bad_at, bad_value = middle, value
        stale[1 - side] *= 0.5 if side == moved else 1.0
        stale[side], moved = 1.0, side
    return math.exp(good_at)


def _short(value: float) -> float:
    """How far an epsilon stays below the target: by its logarithm, or, where it is far below or 0, as a share.

    Where delta hardly falls with epsilon, epsilon rises from 0 in a straight line.
    """
    return 1.0 if value == _NOTHING else -value if value > -1 else -math.expm1(value)


def _check_target(epsilon: float, delta: float) -> None:
    if not 0 < epsilon <= answers.EPSILON_LIMIT:
        raise ValueError(f"The target epsilon must be positive and at most {answers.EPSILON_LIMIT:g}, got {epsilon}.")
    if not 0 <= delta < 1:
        raise ValueError(f"The target delta must be at least 0 and below 1, got {delta}.")
