"""How far sums of large losses reach before they count for nothing, and how finely they are told apart (rare.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.line import log_peak
from hush.accounting.lattices.bins import one_law
from hush.accounting.pairs.losses import Enclosed, GaussianPair, Pair
from hush.accounting.pairs.points import Points

Steps = Sequence[tuple[Pair, int]]

SURVEY = np.geomspace(1e-18, 3e4, 360)
AROUND = np.concatenate([-SURVEY[::-1], [0.0], SURVEY])
_PLACES = np.geomspace(1e-10, 3e4, 160)  # ends that are tried
_ORDERS = np.geomspace(1e-6, 1e12, 160)
_TOLD = 3.0  # logs below the deepest delta where sums may end
_SEEN = -8.0  # log of a delta from which on tilts count
HUMP = 12.0  # times 1/c: losses that are small at a tilt c
_STEEPEST = 10.0  # times the slope of a straight line to the deepest delta: tilts, but where a largest loss is near
_FINE = 4.0  # times what epsilon may be off, over c: the square of the lattice's spacing
_FEWEST = 200  # points of the lattice


@dataclass(frozen=True)
class Frame:
    """The lattice, the tilts that decide at its end and anywhere, and what is asked for."""

    spacing: float
    points: int
    tilt: float
    steepest: float
    deepest: float
    slack: float
    """By how much epsilon may be off."""
    log_beyond: float
    """Of delta at the end and beyond it, from above."""

    @property
    def end(self) -> float:
        return self.spacing * (self.points - 1)

    @staticmethod
    def of(steps: Steps, deepest: float, slack: float, furthest: float, points: int) -> Frame:
        """Where sums may end: what lies beyond is worth less than the deepest delta, by Chernoff's bound."""
        total = np.zeros((_ORDERS.size, _PLACES.size))
        beyond = np.full(_PLACES.size, -np.inf)
        for pair, count in steps:
            if isinstance(pair, GaussianPair):
                total += (0.5 * count * pair.mu**2 * _ORDERS * (_ORDERS + 1))[:, None]
                continue
            law = one_law(pair.upper if isinstance(pair, Enclosed) else pair, AROUND, above=True)
            order = np.argsort(law.losses, kind="stable")
            losses, masses = law.losses[order], law.logs[order]
            at = np.searchsorted(losses, _PLACES, side="right") - 1
            grown = np.logaddexp.accumulate(masses + np.multiply.outer(_ORDERS, losses), axis=1)
            total += count * grown[:, at]
            tails = np.append(np.logaddexp.accumulate(masses[::-1])[::-1], -np.inf)[at + 1]
            beyond = np.logaddexp(beyond, np.logaddexp(tails, log_infinite(law)) + math.log(count))
        exponents = total - np.multiply.outer(_ORDERS, _PLACES) + log_peak(_ORDERS)[:, None]
        best = np.argmin(np.where(np.isnan(exponents), np.inf, exponents), axis=0)
        bounds = np.logaddexp(exponents[best, np.arange(_PLACES.size)], beyond)
        enough = bounds < deepest - _TOLD
        first = int(np.argmax(enough)) if enough.any() else -1
        end = min(float(_PLACES[first]), furthest)
        rounded = 1e-6 + 1e-12 * sum(count for _, count in steps)
        log_beyond = float(bounds[first]) + rounded if end == _PLACES[first] else 0.0
        tilt = float(np.interp(end, _PLACES, _ORDERS[best]))
        among = (bounds < _SEEN) & (end >= _PLACES)
        most = _STEEPEST * -deepest / end
        tilt, steepest = min(tilt, most), min(max(tilt, float(_ORDERS[best][among].max(initial=0.0))), most)
        spacing = min(math.sqrt(_FINE * slack / steepest), 0.5 * HUMP / steepest, end / _FEWEST)
        size, exponent = math.frexp(max(spacing, end / points))
        spacing = math.ldexp(math.ceil(size * 2**20), exponent - 20)  # of few digits: points are exact
        return Frame(spacing, math.ceil(end / spacing) + 2, tilt, steepest, deepest, slack, log_beyond)


def log_infinite(law: Points) -> float:
    log_known = math.log(law.infinite) if law.infinite > 0 else -math.inf
    return float(np.logaddexp(log_known, law.log_hidden))
