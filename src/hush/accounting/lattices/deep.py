"""Compositions near an epsilon, however small delta is there: lattice laws in logarithms, tilted to where they decide.

Laws of one step (bins.py) hold logarithms of masses, so that e^-9000 has its digits.  Tilted by e^{cL}, with c the
saddle point of epsilon, what decides there is of ordinary size, and laws are composed by FFT (laws.py).  What the
tilted law hides below 1e-16 of itself isn't told: where it lies between two humps, others must tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.lattices.bins import one_sided, origin_of
from hush.accounting.lattices.laws import Law, WindowTooLongError, compose, on_lattice
from hush.accounting.lattices.readings import curve as reading
from hush.accounting.pairs.losses import Array, Pair
from hush.accounting.pairs.points import Points
from hush.accounting.tails.sides import Side

Steps = Sequence[tuple[Pair, int]]

_UNIT = 2.0**-50
_FEWEST, _MOST = 2**11, 2**15  # points of a lattice
_FINER = 1.15  # times as fine as errors of second order ask for
_HIGHEST, _LOWEST = 45.0, 40.0  # logs: losses so far out are infinite, or moved up
_ROUNDS = 6
_SLIGHT = 1e-9  # of epsilon: what rounding may move it by
_SETTLED = 0.1  # of a tilt: found again as well as that


@dataclass(frozen=True)
class Frame:
    """One lattice, and for which epsilon."""

    spacing: float
    tilt: float
    epsilon: float

    @staticmethod
    def of(epsilon: float, tilt: float, points: int) -> Frame:
        high, low = _HIGHEST / tilt, _LOWEST / (1 + tilt)
        return Frame((epsilon + high + low) / points, tilt, epsilon)

    def edges(self, origin: float, *, above: bool) -> Array:
        """Of bins: lattice points for the law that reveals more, and half-way between them for the other."""
        first = math.floor(-_LOWEST / (1 + self.tilt) / self.spacing)
        last = math.ceil((self.epsilon + _HIGHEST / self.tilt) / self.spacing)
        return np.asarray(origin + self.spacing * (np.arange(first, last + 1) + (0.0 if above else 0.5)))


@dataclass(frozen=True)
class _Composed:
    """The law of the sum, and what its rounding may do to epsilon and to log delta."""

    law: Law
    above: bool
    shift: float
    margin: float

    def __call__(self, epsilons: Array) -> Array:
        at = epsilons - self.shift if self.above else epsilons + self.shift
        found = reading(self.law, at, 0.0, upper=self.above)
        if self.above:
            return np.minimum(found + self.margin, 0.0)
        return found - self.margin


def _laws(steps: Steps, frame: Frame, *, above: bool) -> list[tuple[Points, int]]:
    return [(one_sided(pair, frame.edges(origin_of(pair), above=above), above=above), count) for pair, count in steps]


def composed(steps: Steps, frame: Frame, log_delta: float, *, above: bool) -> _Composed:
    """The law that reveals more, or less, as far as deltas below e^-45 of that needn't be told apart.

    Of T steps each mass has an exponent off by 2^-50 of its size, and 64 units for functions and products: as much for
    log delta.  Losses are off by 2^-50 of themselves (`Side.doubt`), and by 64 units a step where they are placed.
    """
    laws = _laws(steps, frame, above=above)
    placed = [_on_lattice(law, frame, above=above) for law, _ in laws]
    counts = [count for _, count in laws]
    total = sum(counts)
    law = compose(placed, counts, frame.tilt, upper=above, floor=log_delta - _HIGHEST)
    side, furthest = Side(tuple(laws), above), max(one.largest for one, _ in laws)
    size = max(float(np.abs(one.logs).max()) for one, _ in laws) + frame.tilt * furthest
    crude = 16 * _UNIT * total * (1 + furthest)
    shift = (crude if crude < _SLIGHT * frame.epsilon else side.doubt(log_delta)) + 64 * _UNIT * (
        total + abs(law.origin)
    )
    margin = side.margin + _UNIT * (total * (64 + size) + abs(log_delta) + frame.tilt * frame.epsilon)
    return _Composed(law, above, shift, margin)


def _on_lattice(law: Points, frame: Frame, *, above: bool) -> Law:
    order = np.argsort(law.losses, kind="stable")
    found = on_lattice(law.losses[order], law.logs[order], frame.spacing, frame.tilt, upper=above)
    return replace(found, infinite=law.infinite, log_hidden=law.log_hidden if above else -math.inf)


def _saddle(laws: Sequence[tuple[Points, int]], epsilon: float, guess: float) -> float:
    """The tilt at which the mean of the tilted sum, less 1/c + 1/(c + 1), is epsilon, about."""
    low, high = 1e-3 * guess, 1e3 * guess
    for _ in range(4):
        tilts = np.geomspace(low, high, 16)
        means = np.sum([count * law.cumulants(tilts)[1] for law, count in laws], axis=0)
        past = means - 1 / tilts - 1 / (tilts + 1) > epsilon
        k = int(np.argmax(past)) if past.any() else tilts.size - 1
        low, high = float(tilts[max(k - 1, 0)]), float(tilts[k])
    return math.sqrt(low * high)


@np.errstate(all="ignore")
def curve_at(steps: Steps, epsilon: float, log_delta: float, width: float) -> Curve | None:
    """Certified bounds on log delta near an epsilon > 0, where it is about that, to so much if that can be had."""
    tilt = max(-log_delta, 1.0) / epsilon
    for _ in range(_ROUNDS):
        frame = Frame.of(epsilon, tilt, _FEWEST)
        found = _saddle(_laws(steps, frame, above=False), epsilon, tilt)
        settled = abs(found - tilt) <= _SETTLED * tilt
        tilt = found
        if settled:
            break
    points, best, narrowest = _FEWEST, None, math.inf
    while True:
        frame = Frame.of(epsilon, tilt, points)
        try:
            less, more = (composed(steps, frame, log_delta, above=above) for above in (False, True))
        except (WindowTooLongError, OverflowError, ValueError):  # masses beyond the floating-point range
            return best
        gap = float(more(np.array([epsilon]))[0] - less(np.array([epsilon]))[0])
        if 0 <= gap < narrowest:
            best, narrowest = partial(_both, less, more), gap
        if not width < gap < math.inf or not (finer := _FINER * points * math.sqrt(gap / width)) < _MOST:
            return best
        points = math.ceil(finer)


def _both(less: _Composed, more: _Composed, epsilons: Array) -> tuple[Array, Array]:
    lower, upper = less(epsilons), more(epsilons)
    return np.minimum(lower, upper), np.maximum(lower, upper)
