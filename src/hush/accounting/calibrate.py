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
_LONGEST = 3.0
"""Of log parameter: a step in search of a parameter on the other side."""


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
    memory: dict[int, float] = {}

    def excess(count: float) -> float:
        whole = max(math.floor(count * (1 + 1e-12)), 1)
        if whole not in memory:
            memory[whole] = _excess(mechanism(whole), epsilon, delta)
        return memory[whole]

    found = _threshold(excess, 1000.0, 1.0, float(_MOST_STEPS), +1, unit=1.0)
    if found is None:
        raise ValueError(f"Not even one step keeps epsilon {epsilon:g} at delta {delta:g}.")
    if found > 0.999 * _MOST_STEPS and excess(_MOST_STEPS) <= 0:
        raise ValueError(f"More than {_MOST_STEPS:g} steps keep the target; the mechanism costs next to nothing.")
    low = max(math.floor(found * (1 + 1e-12)), 1)
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
    excess: Callable[[float], float],
    start: float,
    least: float,
    most: float,
    safe: int,
    absolute: float = math.inf,
    unit: float = 0.0,
) -> float | None:
    """The parameter closest to missing the target without missing it; `safe` is the side (-1: above is private).

    To 1e-6 of itself and `absolute`, or to half a `unit` of what is counted in units.

    Bracket on the logarithm; then secants of log epsilon against log parameter, which is nearly straight.  Each aims a
    hair beyond where the line says, away from the nearer end, so that the bracket closes from both sides.
    """
    ends = [math.log(least), math.log(most)]
    private_edge, wild_edge = reversed(ends) if safe < 0 else ends
    seen: list[tuple[float, float]] = []  # log parameters, and how far epsilon is above the target there
    good: float | None = None
    bad: float | None = None
    before: tuple[float, float] | None = None
    at, stride = math.log(start), 0.7
    while True:
        value = excess(math.exp(at))
        seen.append((at, _distance(value)))
        good, bad = (at, bad) if value <= 0 else (good, at)
        if good is not None and bad is not None:
            break
        towards = wild_edge if value <= 0 else private_edge
        if at == towards:
            return math.exp(at) if good is not None else None
        unknown = not math.isfinite(value) or value == _NOTHING
        step = stride if unknown else 0.5 * abs(value)
        if not unknown and before is not None and before[1] != value:
            step = 1.2 * abs(value * (at - before[0]) / (value - before[1]))
        before = before if unknown else (at, value)
        stride *= 1.5
        at += math.copysign(min(max(step, 0.05), _LONGEST, abs(towards - at)), towards - at)
    same = 0  # how often in a row the same end moved
    for _ in range(80):
        gap = abs(good - bad)
        close = max(min(_RELATIVE, max(absolute / math.exp(good), _FINEST)), 0.5 * unit / math.exp(good))
        if gap <= close:
            break
        onwards = math.copysign(1.0, bad - good)
        near, over = min(seen, key=lambda one: abs(one[1]))
        root = _root(seen, 8 * close)
        middle = 0.5 * (good + bad)
        if root is not None and same < 3:
            beyond = 0.4 * close * (onwards if over <= 0 else -onwards)
            # where it went astray to the same side twice, as far beyond the line's root as that is away
            at = root + beyond + (root - near if same == 2 else 0.0)
            margin = min(0.2 * close, 0.2 * gap)
            middle = at if min(good, bad) + margin < at < max(good, bad) - margin else middle
        value = excess(math.exp(middle))
        seen.append((middle, _distance(value)))
        moved_good = value <= 0
        same = same + 1 if moved_good == (over <= 0) and same < 3 else 0
        good, bad = (middle, bad) if moved_good else (good, middle)
    return math.exp(good)


def _root(seen: list[tuple[float, float]], apart: float) -> float | None:
    """Where the line through the two best points that are so far apart crosses the target."""
    known = sorted((one for one in seen if math.isfinite(one[1]) and one[1] > -1), key=lambda one: abs(one[1]))
    for other, beside in known[1:]:
        at, value = known[0]
        if abs(other - at) > apart and beside != value:
            return at - value * (other - at) / (beside - value)
    return None


def _distance(value: float) -> float:
    """How far epsilon is above the target, or below: by its logarithm, or, where it is far below or 0, as a share.

    Where delta hardly falls with epsilon, epsilon rises from 0 in a straight line.
    """
    return -1.0 if value == _NOTHING else value if value > -1 else math.expm1(value)


def _check_target(epsilon: float, delta: float) -> None:
    if not 0 < epsilon <= answers.EPSILON_LIMIT:
        raise ValueError(f"The target epsilon must be positive and at most {answers.EPSILON_LIMIT:g}, got {epsilon}.")
    if not 0 <= delta < 1:
        raise ValueError(f"The target delta must be at least 0 and below 1, got {delta}.")
