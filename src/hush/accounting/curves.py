"""Whole curves of a mechanism: the certified trade-off curve, and at which epsilons to ask for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hush.accounting.answers import EPSILON_LIMIT, epsilon, error_sum, log_delta_curve
from hush.accounting.bounds import Bounds
from hush.accounting.checks import check_whole
from hush.accounting.errors import Array, ErrorCurve, default_levels, lines_from_curve
from hush.accounting.general import is_heavy, log_least, most_certain
from hush.accounting.groups import Group
from hush.accounting.kinds import directions, gaussian_composition, has_renyi, tolerance
from hush.accounting.lattices import lattice
from hush.accounting.leaks import without_leaks
from hush.accounting.mechanisms import Mechanism

_HEAVY_POWER = 4.0  # by which epsilons are denser near 0
_MANY = 25  # different steps, of which a survey tells enough to choose points by
_LARGEST_EXPONENT = 600.0  # slopes e^eps of lines stay within the floating-point range
_VISIBLE = 1e-6  # errors that a curve shows: what is far below may be known less well
_ROUNDED = 4e-16
_LITTLE = 1.1  # times what remains: little more
_NARROW = 0.3  # of a mechanism's tolerance: delta(0) needn't be asked for alone


def tradeoff(mechanism: Mechanism, points: int = 1000) -> ErrorCurve:
    """The certified trade-off curve, from `points` certified deltas."""
    check_whole("The number of points", points)
    if points < 10:
        raise ValueError(f"A trade-off curve needs at least 10 points, got {points}.")
    points = int(points)
    epsilons = spread_epsilons(mechanism, points, 1e-15)
    lower, upper = log_delta_curve(mechanism, epsilons, _VISIBLE)
    total = _error_sum(mechanism, float(lower[0]), float(upper[0]))
    upper = np.minimum(upper, math.log(1 - total.lower + _ROUNDED))  # delta(0) may be known better
    below, above = lines_from_curve(epsilons, lower, upper, math.exp(log_least(mechanism)))
    alpha = default_levels(points)
    curve = ErrorCurve(alpha, alpha, alpha, below, above, total, str(mechanism), most_certain(mechanism))
    lower, upper = curve(alpha)
    return replace(curve, lower=lower, upper=upper)


def _error_sum(mechanism: Mechanism, lower: float, upper: float) -> Bounds:
    """1 - delta(0), from the curve's own bounds on log delta(0) where these are as narrow as any."""
    if math.exp(upper) - math.exp(lower) > _NARROW * tolerance(mechanism):
        return error_sum(mechanism)
    low, high = -math.expm1(upper) - _ROUNDED, -math.expm1(lower) + _ROUNDED
    return Bounds(max(low, 0.0), min(high, 1.0))


def spread_epsilons(mechanism: Mechanism, points: int, smallest: float) -> Array:
    """Epsilons from 0 to where delta is that small, or as far as makes sense."""
    rest = without_leaks(mechanism)[0]
    # a delta below what remains at any epsilon says nothing
    leak = math.exp(log_least(rest))
    smallest = min(max(smallest, _LITTLE * leak), 0.5)
    far = _roughly(rest, smallest)
    while math.isinf(far.upper) and smallest < 1e-2 and (leak > 0 or far.lower < _LARGEST_EXPONENT):
        smallest *= 2 if smallest < 100 * leak else 1e10 if smallest < 1e-20 else 30
        far = _roughly(rest, min(smallest, 0.5))
    last = min(far.upper if math.isfinite(far.upper) else max(far.lower, 1.0), _LARGEST_EXPONENT)
    power = _HEAVY_POWER if is_heavy(rest) else 1.5
    return np.asarray((last or 1.0) * np.linspace(0.0, 1.0, points) ** power)


def _roughly(mechanism: Mechanism, delta: float) -> Bounds:
    """About epsilon, to choose points by: of many different steps a survey says enough."""
    parts = mechanism.parts()
    if len(parts) < _MANY or gaussian_composition(mechanism) or isinstance(mechanism, Group):
        return epsilon(mechanism, delta, tolerance=0.05)
    if has_renyi(mechanism) or math.log(delta) <= log_least(mechanism):
        return epsilon(mechanism, delta)
    found = lattice.guess(directions(mechanism)[0], math.log(delta))
    return Bounds(found, found) if found < EPSILON_LIMIT else Bounds(EPSILON_LIMIT, math.inf)
