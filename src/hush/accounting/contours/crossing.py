"""Where a certified curve falls to a value: an interval that was checked, whatever the search did."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from hush.accounting.gaussian.contour import is_complement, log_complement
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array

Curve = Callable[[Array], tuple[Array, Array]]
"""Certified lower and upper bounds on log delta at an array of epsilons."""

EPSILON_LIMIT = 1e4
NARROW = 1e-6
_ROUNDED = 1e-9  # of an end: what two ways of computing it may differ by


def is_narrow(low: float, high: float, share: float = NARROW) -> bool:
    """Whether an interval is as narrow as promised, or beyond the limit."""
    return high - low <= max(share * high, 1e-12) < np.inf or low >= EPSILON_LIMIT


def within(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """What two certified intervals say together; where they don't meet one of them is wrong, and nobody knows which."""
    low, high = max(first[0], second[0]), min(first[1], second[1])
    if low > high + _ROUNDED * (1e-3 + abs(high)):
        warnings.warn(f"Two certified intervals don't meet, {first} and {second}: please report it.", stacklevel=2)
        return min(first[0], second[0]), max(first[1], second[1])
    return min(low, high), max(low, high)


def certified_root(curve: Curve, guess: float, target: float) -> tuple[float, float]:
    """Where the curve falls to `target`: an interval that is *checked*, whatever the search did.

    high is returned only after upper(high) <= target was seen, low only after lower(low) > target (or low = 0), the
    target being a rounded logarithm: one unit in its last place less, and more.
    """
    less, more = np.nextafter(target, -np.inf), np.nextafter(target, np.inf)
    ends_lower, ends_upper = curve(np.array([0.0, EPSILON_LIMIT]))
    if ends_upper[0] <= less:
        return 0.0, 0.0
    limit_lower, limit_upper = float(ends_lower[1]), float(ends_upper[1])
    if limit_lower > more:
        return EPSILON_LIMIT, np.inf
    root = search(curve, guess, target)
    low, high = 0.0, np.inf
    lower, upper = curve(np.array([root, root * (1 + 1e-5)]))
    with np.errstate(invalid="ignore", divide="ignore"):
        needed = float(0.52e-5 * root * (upper[0] - lower[0]) / (upper[0] - upper[1]))
    pad = max(1e-11 * root, 1e-18, needed if np.isfinite(needed) else 1e-6 * root)
    pad = min(pad, root) if root > 0 else 1e-18
    while pad < 4 * max(root, 1e-12):
        lower, upper = curve(np.array([max(root - pad, 0.0), root + pad]))
        if not np.isfinite(high) and upper[1] <= less:
            high = root + pad
        if low == 0.0 and root > pad and lower[0] > more:
            low = root - pad
        if np.isfinite(high) and (low > 0 or root <= pad):
            break
        pad *= 1.5
    if not np.isfinite(high) and limit_upper <= less:
        high = _first_below(curve, max(root, 1e-12), less)
    return low, high


def root_of_each(curve: Curve, guess: float, target: float, tolerance: float) -> tuple[float, float]:
    """The same where the bounds may be far apart: then each is followed to where it falls to `target` itself."""
    low, high = certified_root(curve, guess, target)
    if is_narrow(low, high, tolerance):
        return low, high
    below, above = (certified_root(partial(_one_side, curve, side), guess, target) for side in (0, 1))
    return within((low, high), (below[0], above[1]))


def _one_side(curve: Curve, side: int, epsilons: Array) -> tuple[Array, Array]:
    bound = curve(epsilons)[side]
    return bound, bound


def mirrored(curve: Curve) -> Curve:
    """The other direction's curve, from this one's at negative epsilons: delta'(eps) = 1 - e^eps + e^eps delta(-eps).

    (The best test of P against Q is the complement of the best of Q against P.)  Near 1 the same is said as
    1 - delta'(eps) = e^eps (1 - delta(-eps)).  Sharp for epsilons so small that one integral serves both.
    """

    def other(epsilons: Array) -> tuple[Array, Array]:
        bounds = []
        for log, sign in zip(curve(-epsilons), (-1.0, 1.0), strict=True):
            with np.errstate(all="ignore"):
                rest = -np.expm1(-epsilons)
                rounded = sign * 8 * UNIT_ROUNDOFF * (np.exp(log) + rest)
                value = epsilons + np.log(np.maximum(np.exp(log) - rest + rounded, 0.0))
                value += sign * 8 * UNIT_ROUNDOFF * (1 + epsilons + np.abs(value))
                short = np.exp(epsilons) * -np.expm1(log) * (1 - sign * 16 * UNIT_ROUNDOFF * (1 + epsilons))
                near = np.log1p(-np.minimum(short, 1.0)) * (1 - sign * 16 * UNIT_ROUNDOFF)
            bounds.append(np.minimum(np.where(log > -0.7, near, value), 0.0))
        lower, upper = bounds
        return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), 0.0, upper)

    return other


def _first_below(curve: Curve, start: float, target: float) -> float:
    """About the smallest epsilon that is seen to be large enough, where a curve stays close to the target for long."""
    low, high = start, EPSILON_LIMIT
    while high > 1.0001 * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if curve(np.array([middle]))[1][0] <= target else (middle, high)
    return high


def search(curve: Curve, guess: float, target: float, within: tuple[float, float] = (0.0, EPSILON_LIMIT)) -> float:
    """The epsilon > 0 at which the middle of the bounds is the target, by safeguarded Newton steps."""
    below, above = within
    wanted = -log_complement(target) if is_complement(target) else target
    at = float(np.clip(guess, 1e-15, EPSILON_LIMIT))
    for _ in range(80):
        nudge = max(1e-5 * at, 1e-11)  # less shows nothing but rounding
        lower, upper = curve(np.array([at, at + nudge]))
        middle = np.where(np.isfinite(lower), 0.5 * (lower + upper), upper)
        with np.errstate(invalid="ignore", divide="ignore"):
            if is_complement(target):
                middle = -np.log(-np.expm1(middle))
            gap, slope = middle[0] - wanted, (middle[1] - middle[0]) / nudge
        if gap > 0:
            below = at
        else:
            above = at
        step = -gap / slope if np.isfinite(slope) and slope < 0 and np.isfinite(gap) else np.nan
        candidate = at + step
        if abs(step) <= 1e-10 * at:  # there: it may be an end of what is left
            return float(candidate)
        if not below < candidate < above:
            candidate = np.sqrt(max(below, 1e-3 * above if below > 0 else 1e-4 * above) * above)
        if abs(candidate - at) <= 1e-10 * at:
            return float(candidate)
        at = float(candidate)
    return at
