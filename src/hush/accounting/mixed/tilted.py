"""One of the two laws that enclose a composition: the transform of its total loss, and where its saddle point is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.turns import Crowd
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Complex
from hush.accounting.mixed.unbinned import Smooth
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, surely_infinite

Laws = Sequence[tuple[Scattered, int]]

_UNIT = 2.0**-50
_NEAREST = 1e-50  # losses that a tilt may suit


@dataclass(frozen=True)
class Side:
    """One of the two laws that enclose a composition."""

    laws: Laws
    above: bool

    @property
    def infinite(self) -> float:
        return surely_infinite(self.laws)

    @property
    def log_hidden(self) -> float:
        """log of what may have an infinite loss besides."""
        hidden = [math.log(count) + law.log_hidden for law, count in self.laws if isinstance(law, Points | Smooth)]
        return float(np.logaddexp.reduce(hidden)) if hidden else -math.inf

    def seen(self, epsilons: Array) -> Array:
        """What paths add to delta on which some loss is infinite, or among those counted apart, from below.

        With A all these paths that is at least P(A) - e^eps Q(A), and Q(A) at most the sum of Q(L >= end), since the
        Q-masses of all other steps add up to 1, or to 1 + 1e-12 as they are rounded.
        """
        apart = [(law, count) for law, count in self.laws if isinstance(law, Points) and law.beyond > 0]
        if not apart:
            return np.full(epsilons.shape, self.infinite)
        missed = math.fsum(
            count * math.log1p(-min(law.infinite + (law.beyond if isinstance(law, Points) else 0.0), 1 - 1e-16))
            for law, count in self.laws
        )
        log_q = np.logaddexp.reduce([math.log(count * law.beyond) - law.end for law, count in apart])
        with np.errstate(over="ignore"):
            added = -math.expm1(missed) * (1 - 1e-12) - np.exp(epsilons + log_q + 1e-9 + 2e-12 * self.steps)
        return np.asarray(np.maximum(added, self.infinite))

    @property
    def top(self) -> float:
        """No finite total loss exceeds it."""
        return math.fsum(count * law.top for law, count in self.laws)

    @property
    def doubt(self) -> tuple[float, float]:
        """What the rounding of losses and of masses may do to epsilon and to log delta."""
        owing = [(law, count) for law, count in self.laws if not (isinstance(law, Points) and law.directed)]
        shift = 4 * _UNIT * sum(count * law.unsure for law, count in owing)
        return shift, 4 * _UNIT * sum(count for _, count in self.laws) + 1e-12

    def log_mgf(self, orders: Array) -> Array:
        return np.asarray(sum(count * law.log_mgf(orders) for law, count in self.laws))

    def cumulants(self, orders: Array) -> tuple[Array, Array, Array]:
        """The log-MGF and rough derivatives."""
        found = np.zeros((3, orders.size))
        for law, count in self.laws:
            known = law.usual if isinstance(law, Smooth) else law
            found += count * np.array(known.cumulants(orders) if isinstance(known, Points) else _nudged(known, orders))
        value, mean, variance = found
        return value, mean, variance

    def transform(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        """exp(Lambda(s) - Lambda(c)) at the nodes, bounds on its errors, and Lambda(c)."""
        log_size, inflated, phase, loose = np.zeros((4, count))
        scale, unsure = 0.0, 0.0
        for law, repeats in self.laws:
            values, errors, log_scale = law.on_line(c, spacing, count)
            size, angle = np.abs(values), np.angle(values)
            log = np.log(np.maximum(size, 1e-300))
            log_size += repeats * log
            inflated += repeats * np.log(size + errors + 1e-300)
            phase += repeats * angle
            loose += repeats * (np.abs(angle) + np.abs(log) + 1)
            scale += repeats * log_scale
            unsure += repeats * abs(log_scale)
        size = np.exp(log_size)
        errors = np.exp(inflated) - size + size * (8 * UNIT_ROUNDOFF * (loose + unsure + len(self.laws)))
        return size * np.exp(1j * phase), errors, scale

    def crowd(self, c: float) -> Crowd:
        return Crowd(tuple((law,) for law, _ in self.laws), np.array([float(count) for _, count in self.laws]), c)

    @property
    def steps(self) -> int:
        return sum(repeats for _, repeats in self.laws)

    @property
    def squared(self) -> float:
        return sum(repeats * law.squared for law, repeats in self.laws if isinstance(law, GaussianLaw))


def _nudged(law: Scattered, orders: Array) -> tuple[Array, Array, Array]:
    """The log-MGF and its derivatives, from differences."""
    nudge = 1e-3
    below, here, above = (law.log_mgf(orders * (1 + change)) for change in (-nudge, 0.0, nudge))
    return here, (above - below) / (2 * nudge * orders), (above - 2 * here + below) / (nudge * orders) ** 2


def saddle(side: Side, log_delta: float | None, epsilon: float | None) -> tuple[float, float]:
    """The line through the saddle point of a delta or an epsilon, and about where that epsilon is."""
    # powers of orders are floating-point numbers
    reach = max(sum(count * law.largest for law, count in side.laws) or 1.0, _NEAREST)
    low, high = 1e-3 / reach, 1e12 / reach
    at, found = low, 0.0
    for _ in range(4):
        orders = np.geomspace(low, high, 40)
        values, means, variances = side.cumulants(orders)
        epsilons = means - 1 / orders - 1 / (orders + 1)
        spreads = np.maximum(variances, 0.0) + orders**-2 + (orders + 1) ** -2
        logs = values - orders * epsilons - np.log(orders * (orders + 1)) - 0.5 * np.log(2 * np.pi * spreads)
        passed = logs < log_delta if log_delta is not None else epsilons > (epsilon or 0.0)
        passed |= ~np.isfinite(logs)
        passed &= epsilons > 0
        k = max(int(np.argmax(passed)) if passed.any() else len(orders) - 1, 1)
        low, high = float(orders[k - 1]), float(orders[k])
        at, found = math.sqrt(low * high), float(epsilons[k - 1])
    return at, max(found, 1e-3 / at, 1e-12)
