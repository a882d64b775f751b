"""Epsilon and delta of any mechanism, answered by the engine that fits it.

Gaussian, Poisson-subsampled Gaussian and their compositions  -> subsampled (contour integrals, widths of 1e-6 and less)
anything with a Renyi curve                                    -> published (moments, upper bounds only)
groups of records, and groups among other steps                -> grouped, beside (links; laws sharp where it counts)
all else                                                       -> engines, one direction at a time
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hush.accounting import beside, crossing, engines, grouped, heavy, published, single, subsampled
from hush.accounting.asked import heavy_curve
from hush.accounting.bounds import Bounds
from hush.accounting.checks import as_number
from hush.accounting.errors import Array
from hush.accounting.groups import Group
from hush.accounting.hopeless import least_delta
from hush.accounting.kinds import FAR_BELOW, directions, gaussian_composition, has_renyi, refuse_extremes
from hush.accounting.kinds import tolerance as usual_tolerance
from hush.accounting.leaks import left_of, log_holds, sampled_leaks, without_leaks
from hush.accounting.losses import Atoms, Enclosed
from hush.accounting.mechanisms import Mechanism, compose
from hush.accounting.points import exact, loss_range
from hush.accounting.releases import Guarantees, RandomisedResponse, Tradeoff
from hush.accounting.sampled import Poisson, Uniform

EPSILON_LIMIT = crossing.EPSILON_LIMIT
_TINY = 4e-16
_LOOSE = 1.2e-15  # what largest losses lose: a product, an amplification, and a sum of them
_FURTHEST = 1e6  # epsilons beyond are asked no more: delta is no larger there
_FAR_OUT = 100.0  # an epsilon beyond which a curve shows nothing
_CURVED = 1.5e-4  # of delta: what a whole curve of heavy tails may be off
_UNSEEN = 0.02  # of a delta too small to be seen on it
_SHARPLY = 2e-5  # of delta: and of sampled Gaussians where no line is sharp
_SHOWN = 0.3  # of the tolerance: what a whole curve need not tell apart of delta
_SMALLEST = 1e-300
_CROWD = 1000  # records in a group whose chain takes a while


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
        bound = published.epsilon(mechanism, delta)
        return Bounds(0.0, bound if bound <= EPSILON_LIMIT else math.inf)
    gaussian = gaussian_composition(mechanism)
    if gaussian is not None:
        return _ordered(subsampled.epsilon(gaussian, log_delta))
    if (known := sampled_leaks(mechanism)) and left_of(delta, known)[1] < 0:
        return Bounds(EPSILON_LIMIT, math.inf)  # the leak alone exceeds delta
    if isinstance(mechanism, Group) and mechanism.size > _CROWD:
        fewer = epsilon(replace(mechanism, size=_CROWD), delta, tolerance)
        if fewer.lower >= EPSILON_LIMIT:  # fewer records tell no more
            return fewer
    least, most, aim = 0.0, math.inf, tolerance or usual_tolerance(mechanism)
    if isinstance(mechanism, Group) and log_delta < engines.NEAR_ONE and grouped.fits(mechanism):
        least, most = grouped.epsilon(mechanism, log_delta, aim)
        most = min(most, _largest(mechanism)[1])
        projected = any(heavy.fits(steps) for steps in directions(mechanism.inner))  # their curves take seconds
        if projected and least == 0 and math.isinf(most):  # its tails' digits end before the chain does
            beyond = grouped.log_delta(mechanism, EPSILON_LIMIT, aim)[0] > log_delta
            least = EPSILON_LIMIT if beyond else epsilon(mechanism.inner, delta).lower
        if projected or least >= EPSILON_LIMIT or most - least <= 1.1 * aim * most < math.inf:
            return _ordered((least, most if most <= EPSILON_LIMIT else math.inf))
    finite = _finite_curve(mechanism, delta)
    if finite is not None:
        lower, upper = crossing.root_of_each(finite, 1.0, log_delta, aim)
        lower, upper = max(least, lower), min(most, upper)
        upper = min(upper, _largest(mechanism)[1])
        return _ordered((lower, upper if upper <= EPSILON_LIMIT else math.inf))
    if beside.fits(mechanism) and log_delta < engines.NEAR_ONE:
        least, most = beside.epsilon(mechanism, log_delta, aim)
        most = min(most, _largest(mechanism)[1])
        return _ordered((least, most if most <= EPSILON_LIMIT else math.inf))
    found: list[tuple[float, float]] = []
    for steps in directions(mechanism, delta):
        if found and engines.falls_before(steps, found[0][0], log_delta):
            continue  # the other direction has the larger epsilon
        found.append(engines.epsilon(steps, log_delta, aim, found[0][0] if found else 0.0))
        if found[-1][0] >= EPSILON_LIMIT:
            break  # the other direction changes nothing
    lowest = max(least, *(end for end, _ in found))
    highest = min(most, max(end for _, end in found), _largest(mechanism)[1])
    if known and left_of(delta, known)[0] >= 0:
        highest = min(highest, _largest_finite(mechanism))
    return _ordered((lowest, highest if highest <= EPSILON_LIMIT else math.inf))


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
        high = _largest(rest)[1]
    return Bounds(min(low, high), max(low, high))


def _largest_finite(mechanism: Mechanism) -> float:
    """The largest total loss beside infinite ones, rounded up: there delta is the leak."""
    tops = [
        [(law.top if (law := exact(pair)) is not None else loss_range(pair)[1], count) for pair, count in steps]
        for steps in directions(mechanism)
    ]
    return max(math.fsum(count * top for top, count in row) for row in tops) * (1 + 4 * _LOOSE)


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
        lower = np.array([log_least(mechanism)])
    # What is too small for floating point is small, but an upper bound must not round it down to nothing.
    smallest = math.ulp(0.0) if upper[0] > -math.inf else 0.0
    low, high = (math.exp(end[0]) * (1 + sign * _rounded(end[0])) for end, sign in ((lower, -1), (upper, 1)))
    if 0 < high < 1e-307:  # such numbers are rounded by more than a share of themselves
        low, high = math.nextafter(low, 0.0), math.nextafter(high, 1.0)
    return _ordered((low, max(min(high, 1.0), smallest)))


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
        return np.full(len(epsilons), -np.inf), published.log_delta(mechanism, epsilons)
    beyond = epsilons >= _largest(mechanism)[1]
    if beyond.all():
        return np.full(len(epsilons), -np.inf), np.full(len(epsilons), -np.inf)
    gaussian = gaussian_composition(mechanism)
    few = epsilons.size <= engines.FEW
    by_links = isinstance(mechanism, Group) and gaussian is None and few and grouped.fits(mechanism)
    finite = None if gaussian is not None or by_links else _finite_curve(mechanism, floor)
    if gaussian is not None:
        lower, upper = subsampled.log_delta(gaussian, epsilons, _SHARPLY if floor > 0 else 0.0)
    elif by_links:
        assert isinstance(mechanism, Group)
        found = [grouped.log_delta(mechanism, float(epsilon), usual_tolerance(mechanism)) for epsilon in epsilons]
        lower, upper = np.array([low for low, _ in found]), np.array([high for _, high in found])
    elif finite is not None:
        lower, upper = finite(epsilons)
    elif not few and (is_heavy(mechanism, floor) or (epsilons[-1] < _FAR_OUT and _is_fine(mechanism, floor))):
        most = _CURVED if floor == 0 else _UNSEEN
        lower, upper = heavy_curve(directions(mechanism, floor), epsilons, _CURVED, most)
    else:
        lower, upper = _composed(mechanism, epsilons, floor)
    lower, upper = np.where(beyond, -np.inf, lower), np.where(beyond, -np.inf, np.minimum(upper, 0.0))
    # delta falls: a lower bound holds to the left as well, an upper bound to the right
    return np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)


def _composed(mechanism: Mechanism, epsilons: Array, floor: float) -> tuple[Array, Array]:
    """Certified bounds on log delta of pairs composed."""
    aim = usual_tolerance(mechanism)
    if epsilons.size <= engines.FEW and beside.fits(mechanism):
        found = [beside.log_delta(mechanism, float(epsilon), aim) for epsilon in epsilons]
        return np.array([low for low, _ in found]), np.array([high for _, high in found])
    curves: list[tuple[Array, Array]] = []
    for steps in directions(mechanism, floor):
        if curves and not epsilons.any():
            continue  # delta(0) is the same in both directions
        if curves and epsilons.size <= engines.FEW and engines.is_below(steps, epsilons, curves[0][0]):
            continue  # the other direction has the larger delta
        rival = curves[0][1] if curves else None
        curves.append(engines.log_delta(steps, epsilons, aim, _SHOWN * aim if floor > 0 else 0.0, rival))
    return np.max([low for low, _ in curves], axis=0), np.max([high for _, high in curves], axis=0)


def log_least(mechanism: Mechanism, floor: float = 0.0) -> float:
    """log of what delta is at least, at any epsilon, as far as it isn't far below the floor.

    Groups of what never tells everything don't either, and their pair, which takes a whole curve, needn't be known.
    """
    parts = [(part, count) for part, count in mechanism.parts() if not isinstance(part, Group) or _leaks(part.inner)]
    if has_renyi(mechanism) or not parts:
        return -math.inf
    least = max(least_delta(steps) for steps in directions(compose(parts), floor))
    return math.log(least) if least > 0 else -math.inf


def _leaks(mechanism: Mechanism) -> bool:
    return log_least(mechanism) > -math.inf


def is_heavy(mechanism: Mechanism, floor: float) -> bool:
    """Whether a whole curve is one of a few kinds of heavy-tailed steps."""
    if has_renyi(mechanism) or any(isinstance(part, Group) for part, _ in mechanism.parts()):
        return False
    return all(heavy.is_simple(steps) for steps in directions(mechanism, floor))


def _is_fine(mechanism: Mechanism, floor: float) -> bool:
    """Whether a whole curve is one of samples whose losses may be too fine for a lattice."""
    samples = all(isinstance(part, Poisson | Uniform) for part, _ in mechanism.parts())
    return samples and all(heavy.is_fine(steps) for steps in directions(mechanism, floor))


def _finite_curve(mechanism: Mechanism, floor: float = 0.0) -> crossing.Curve | None:
    """The curve of a single release whose pair is finite and symmetric: a sum, no engine needed."""
    parts = mechanism.parts()
    if (
        len(parts) > 1
        or parts[0][1] > 1
        or not isinstance(parts[0][0], Group | Tradeoff | Guarantees | RandomisedResponse)
    ):
        return None
    only = parts[0][0]
    pair = only.pair_above(floor * FAR_BELOW) if isinstance(only, Group) else only.pair()
    lower, upper = (pair.lower, pair.upper) if isinstance(pair, Enclosed) else (pair, pair)
    if not (isinstance(lower, Atoms) and isinstance(upper, Atoms)):
        return None
    return single.curve(pair)


def _pure_epsilon(mechanism: Mechanism) -> Bounds:
    largest = mechanism.largest_loss
    if math.isinf(largest):
        raise ValueError(f"delta must be positive: {mechanism.describe()} is not purely private at any epsilon.")
    return Bounds(*_largest(mechanism))


def _largest(mechanism: Mechanism) -> tuple[float, float]:
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
    inner = [_loose(part.inner) for part, _ in mechanism.parts() if isinstance(part, Group)]
    return max(_LOOSE - 2.0**-52 * 1.5 * math.log(min(rates, default=1.0)), *inner, 0.0)


def _ordered(interval: tuple[float, float]) -> Bounds:
    """If bounds contradict each other, by rounding or by a mistake of ours, the larger is the upper one.

    Beyond 1e4 nothing is told.
    """
    low, high = interval
    return Bounds(max(min(low, high, EPSILON_LIMIT), 0.0) + 0.0, max(low, high, 0.0))  # a zero without a sign
