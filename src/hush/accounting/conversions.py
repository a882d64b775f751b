"""From log moments to epsilon and delta: the tail bound of the paper, and the conversion of today.

Every lambda gives a valid bound, so a search over lambdas may be sloppy: it costs tightness only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.log_moments import Array, LogMoment

_SEARCH_ORDERS: Array = np.asarray(np.geomspace(1e-3, 1e5, 65), dtype=np.float64)


@dataclass(frozen=True)
class Conversion:
    """How a log moment becomes a guarantee: epsilon at log delta, and log delta at epsilon, for each lambda."""

    name: str
    epsilon: Callable[[Array, Array, float], Array]
    log_delta: Callable[[Array, Array, Array], Array]


TAIL_BOUND = Conversion(
    "tail bound (Abadi et al. 2016, Theorem 2.2): delta = min exp(alpha - lambda epsilon)",
    lambda orders, moments, log_delta: (moments - log_delta) / orders,
    lambda orders, moments, epsilon: moments - orders * epsilon,
)
IMPROVED = Conversion(
    "Balle et al. 2020 / Canonne, Kamath, Steinke 2020, Proposition 12",
    # With a = lambda + 1 and D the divergence: epsilon = D + log((a - 1)/a) - (log delta + log a)/(a - 1).
    lambda orders, moments, log_delta: (moments - log_delta - np.log1p(orders)) / orders - np.log1p(1 / orders),
    lambda orders, moments, epsilon: moments - orders * (epsilon + np.log1p(1 / orders)) - np.log1p(orders),
)


def epsilon_from_moments(
    orders: ArrayLike, moments: ArrayLike, delta: float, conversion: Conversion = IMPROVED
) -> float:
    """The smallest epsilon >= 0 that the given total log moments prove at delta."""
    _check_delta(delta)
    if delta == 1:
        return 0.0
    if delta == 0:
        return math.inf
    a, m = np.asarray(orders, dtype=np.float64), np.asarray(moments, dtype=np.float64)
    return max(float(np.min(conversion.epsilon(a, m, math.log(delta)))), 0.0)


def delta_from_moments(
    orders: ArrayLike, moments: ArrayLike, epsilon: float, conversion: Conversion = IMPROVED
) -> float:
    """The smallest delta <= 1 that the given total log moments prove at epsilon."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be non-negative, got {epsilon}.")
    a, m = np.asarray(orders, dtype=np.float64), np.asarray(moments, dtype=np.float64)
    return min(math.exp(min(float(np.min(conversion.log_delta(a, m, np.array(epsilon)))), 0.0)), 1.0)


def curve_epsilon(curve: LogMoment, delta: float, conversion: Conversion = IMPROVED) -> float:
    """`epsilon_from_moments` with the best real lambda: a wide logarithmic grid, then finer ones about its best point.

    Every lambda gives a valid bound, so an imperfect search costs tightness only.
    """
    return _refine(lambda orders, moments: epsilon_from_moments(orders, moments, delta, conversion), curve)


def curve_delta(curve: LogMoment, epsilon: float, conversion: Conversion = IMPROVED) -> float:
    """`delta_from_moments` with the best real lambda."""
    return _refine(lambda orders, moments: delta_from_moments(orders, moments, epsilon, conversion), curve)


def curve_log_delta(curve: LogMoment, epsilon: float, conversion: Conversion = IMPROVED) -> float:
    """The logarithm of `curve_delta`, which never underflows."""

    def bound(orders: Array, moments: Array) -> float:
        return min(float(np.min(conversion.log_delta(orders, moments, np.array(epsilon)))), 0.0)

    return _refine(bound, curve)


def curve_log_deltas(curve: LogMoment, epsilons: ArrayLike, conversion: Conversion = IMPROVED) -> Array:
    """log delta at many epsilons at once, each with the best of 400 lambdas from 1e-3 to 1e5; never underflows."""
    orders = np.geomspace(1e-3, 1e5, 400)[:, None]
    values = conversion.log_delta(orders, curve(orders.ravel())[:, None], np.asarray(epsilons, dtype=np.float64))
    return np.asarray(np.minimum(values.min(axis=0), 0.0))


def _refine(bound: Callable[[Array, Array], float], curve: LogMoment) -> float:
    grid = _SEARCH_ORDERS
    best = math.inf
    for _ in range(3):
        moments = curve(grid)
        values = [bound(grid[i : i + 1], moments[i : i + 1]) for i in range(len(grid))]
        i = int(np.argmin(values))
        best = min(best, values[i])
        grid = np.geomspace(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)], 17)
    return best


def _check_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}.")
