"""Epsilon and delta of any mechanism, answered by the engine that fits it.

Gaussian, Poisson-subsampled Gaussian and their compositions  -> subsampled (contour integrals, widths of 1e-6 and less)
anything with a Renyi curve                                    -> published (moments, upper bounds only)
all else                                                       -> general

The last two are imported when they are asked: most questions don't need their engines, and begin sooner.
"""

from __future__ import annotations

import math

import numpy as np

from hush.accounting.bounds import Bounds
from hush.accounting.checks import as_number
from hush.accounting.contours import crossing
from hush.accounting.errors import Array
from hush.accounting.gaussian import subsampled
from hush.accounting.groups import Group
from hush.accounting.kinds import gaussian_composition, has_renyi, refuse_extremes
from hush.accounting.leaks import left_of, log_holds, without_leaks
from hush.accounting.mechanisms import Mechanism
from hush.accounting.sampled import Poisson, Uniform

EPSILON_LIMIT = crossing.EPSILON_LIMIT
_TINY = 4e-16
LOOSE = 1.2e-15  # what largest losses lose: a product, an amplification, and a sum of them
_FURTHEST = 1e6  # epsilons beyond are asked no more: delta is no larger there
_SHARPLY = 2e-5  # of delta: and of sampled Gaussians where no line is sharp
_SMALLEST = 1e-300


def epsilon(mechanism: Mechanism, delta: float, tolerance: float | None = None) -> Bounds:
    """The smallest epsilon >= 0 at delta, enclosed; a `tolerance` may ask the lattice for less than its best."""
    delta = as_number("delta", delta)  # fractions are made of it, which other libraries' numbers don't give
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1, got {delta}.")
    refuse_extremes(mechanism)
    if delta == 0:
        return _pure_epsilon(mechanism)
    rest, leaks = without_leaks(mechanism)
    if leaks:
        return _epsilon_beside_leaks(rest, left_of(delta, leaks), tolerance)
    log_delta = math.log(delta)
    if has_renyi(mechanism):
        from hush.accounting import published

        bound = published.epsilon(mechanism, delta)
        return Bounds(0.0, bound if bound <= EPSILON_LIMIT else math.inf)
    gaussian = gaussian_composition(mechanism)
    if gaussian is not None:
        one = gaussian.is_single
        return _ordered(subsampled.of_one_step(gaussian, delta) if one else subsampled.epsilon(gaussian, log_delta))
    from hush.accounting import general  # many engines, which most questions don't need

    low, high = general.epsilon(mechanism, delta, tolerance)
    return _ordered((low, high if high <= EPSILON_LIMIT else math.inf))


def _epsilon_beside_leaks(rest: Mechanism, left: tuple[float, float], tolerance: float | None) -> Bounds:
    """Where so much of delta is left for the rest, leaks counted apart: nothing left needs the rest's largest loss."""
    least, most = left
    if most < 0:
        return Bounds(EPSILON_LIMIT, math.inf)  # the leak alone exceeds delta
    low = epsilon(rest, max(most, _SMALLEST), tolerance).lower if most < 1 else 0.0
    high = math.inf
    if least > 0:
        high = epsilon(rest, least, tolerance).upper
    elif least == 0 and rest.largest_loss <= EPSILON_LIMIT:
        high = largest(rest)[1]
    return Bounds(min(low, high), max(low, high))


def delta(mechanism: Mechanism, epsilon: float) -> Bounds:
    """The smallest delta at epsilon >= 0, enclosed."""
    epsilon = as_number("epsilon", epsilon)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon}.")
    refuse_extremes(mechanism)
    at = min(epsilon, _FURTHEST)
    gaussian = gaussian_composition(mechanism)
    if gaussian is not None and subsampled.is_nothing(gaussian, at):
        return Bounds(0.0, math.ulp(0.0))
    lower, upper = log_delta_curve(mechanism, np.array([at]))
    if epsilon > at:
        from hush.accounting.general import log_least

        lower = np.array([log_least(mechanism)])
    # What is too small for floating point is small, but an upper bound must not round it down to nothing.
    smallest = math.ulp(0.0) if upper[0] > -math.inf else 0.0
    low, high = (math.exp(end[0]) * (1 + sign * _rounded(end[0])) for end, sign in ((lower, -1), (upper, 1)))
    if 0 < high < 1e-307:  # such numbers are rounded by more than a share of themselves
        low, high = math.nextafter(low, 0.0), math.nextafter(high, 1.0)
    return _ordered((low, max(min(high, 1.0), smallest)))


def error_sum(mechanism: Mechanism) -> Bounds:
    """The smallest sum of type I and type II error: 1 - delta(0)."""
    advantage = delta(mechanism, 0.0)
    low, high = math.nextafter(1 - advantage.upper, 0.0), math.nextafter(1 - advantage.lower, 2.0)
    return Bounds(low, min(high, 1.0))


def _rounded(log: float) -> float:
    """What rounding a logarithm may change, as a share of what it is the logarithm of."""
    return _TINY * (1 + abs(float(log))) if math.isfinite(log) else 0.0


def log_delta_curve(mechanism: Mechanism, epsilons: Array, floor: float = 0.0) -> tuple[Array, Array]:
    """Certified bounds on log delta at ascending epsilons >= 0, the larger of both directions.

    Of deltas far below the `floor` no more need be said.
    """
    refuse_extremes(mechanism)
    if np.any(np.diff(epsilons) < 0):
        raise ValueError("The epsilons of a curve must ascend.")  # or bounds would be taken to the wrong side
    rest, leaks = without_leaks(mechanism)
    if leaks:
        leak, holds = -math.expm1(log_holds(leaks)), math.exp(log_holds(leaks))
        lower, upper = (leak + holds * np.exp(log) for log in log_delta_curve(rest, epsilons, floor))
        return np.log(lower) - 8 * _TINY, np.minimum(np.log(upper) + 8 * _TINY, 0.0)
    if has_renyi(mechanism):
        from hush.accounting import published

        return np.full(len(epsilons), -np.inf), published.log_delta(mechanism, epsilons)
    beyond = epsilons >= largest(mechanism)[1]
    if beyond.all():
        return np.full(len(epsilons), -np.inf), np.full(len(epsilons), -np.inf)
    gaussian = gaussian_composition(mechanism)
    if gaussian is not None:
        lower, upper = subsampled.log_delta(gaussian, epsilons, _SHARPLY if floor > 0 else 0.0)
    else:
        from hush.accounting import general

        lower, upper = general.log_delta(mechanism, epsilons, floor)
    lower, upper = np.where(beyond, -np.inf, lower), np.where(beyond, -np.inf, np.minimum(upper, 0.0))
    # delta falls: a lower bound holds to the left as well, an upper bound to the right
    return np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)


def _pure_epsilon(mechanism: Mechanism) -> Bounds:
    if math.isinf(mechanism.largest_loss):
        raise ValueError(f"delta must be positive: {mechanism.describe()} is not purely private at any epsilon.")
    return Bounds(*largest(mechanism))


def largest(mechanism: Mechanism) -> tuple[float, float]:
    """Bounds on the largest loss."""
    loss, off = mechanism.largest_loss, _loose(mechanism)
    return loss * (1 - off), loss * (1 + off)


def _loose(mechanism: Mechanism) -> float:
    """What the largest loss may be off, as a share of itself.

    An inner loss l is rounded itself, which counts l (x + p)/((1 + x) log(1 + x)) times at x = p (e^l - 1):
    no more than about l <= log(1 + 1/p) where x <= 1, and than l/log(1 + x) <= 1 + log(1/p)/log 2 beyond.
    """
    if isinstance(mechanism, Group):
        return _loose(mechanism.inner)
    rates = [part.rate for part, _ in mechanism.parts() if isinstance(part, Poisson | Uniform)]
    return LOOSE - 2.0**-52 * 1.5 * math.log(min(rates, default=1.0))


def _ordered(interval: tuple[float, float]) -> Bounds:
    """If bounds contradict each other, by rounding or by a mistake of ours, the larger is the upper one.

    Beyond 1e4 nothing is told.
    """
    low, high = interval
    return Bounds(max(min(low, high, EPSILON_LIMIT), 0.0) + 0.0, max(low, high, 0.0))  # a zero without a sign
