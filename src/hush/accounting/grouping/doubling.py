"""Groups of any size: a single record's curve over a whole stretch, composed with itself by doubling (gains.py).

The attack of the first record is the line of the steepest slope e^e that touches the power curve g, and each next one
touches it less steeply.  A model of the curve says from where to where that goes, and how close together points are
needed; lines below and above g through certified bounds there are composed, and what comes out is certified wherever
one has looked.  If both bounds are too far apart, a closer look is had.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.grouping import gains, touching
from hush.accounting.grouping.chains import Oracle, below_chords, lines_below
from hush.accounting.grouping.gains import Gains
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import DEEP
from hush.accounting.grouping.touching import Touched
from hush.accounting.pairs.losses import Array

_LOOKS, _CURVES = 3, 2
_SHARE = 0.1  # of the width asked for: what each kind of error may take
_MOST, _FEW = 3000, 400  # points, and how many are worth a try
_LEFT = 1e-3  # of log delta
_FINEST = 1e-12  # where next to nothing is left
_LOOSELY = 0.3  # of log delta: what points beside the stretch are asked for
_SPARE = 4  # times as many records as are enough
_BESIDE = np.array([0.7, 0.9, 1.1, 1.3])
_MARGIN = 0.03  # of the stretch's ends
_STEEPEST = 8.0  # times as wide as a share of itself a log delta may be where it falls quickly
_WORTH = 0.7  # times what was known before: a look that was worth it
_CORRECTED = 60  # places where a model is moved to what was found


@dataclass(frozen=True)
class Task:
    """A single record's curve and a model of it, the group's size, the log of the least delta, the largest loss."""

    oracle: Oracle
    model: Model
    size: int
    log_least: float
    largest: float = math.inf

    @np.errstate(all="ignore")
    def epsilon(self, log_delta: float, tolerance: float, *, quickly: bool = False) -> tuple[float, float]:
        """Certified bounds on epsilon, or (1e4, inf) as soon as so many records are seen to be beyond.

        Quickly: from one look or, where that takes many points, none.
        """
        low, high, aim, model = 0.0, math.inf, _SHARE * tolerance, self.model
        for k in range(1 if quickly else _LOOKS):
            met = touching.at_delta(model, self.size, log_delta)
            share = self._share(met, aim * max(met.epsilon, low))
            places, wanted = self._places(model, met, share)
            if quickly and places.size > _FEW:
                break
            below, above, model = self._near(model, places, wanted)
            before = high - low
            low = max(low, gains.epsilon(below.times(met.size, upper=False, share=share), log_delta, upper=False))
            if low >= EPSILON_LIMIT:
                return EPSILON_LIMIT, math.inf
            total = above.times(self.size, upper=True, share=share)
            high = min(high, gains.epsilon(total, log_delta, upper=True))
            if high - low <= max(tolerance * high, 1e-12) < math.inf or (k > 0 and not high - low < _WORTH * before):
                break
            aim *= min(max(_WORTH * tolerance * high / (high - low), 0.05), 0.5) if high < math.inf else 0.3
        return low, high

    def _share(self, met: Touched, epsilon: float) -> float:
        """What gains may be off for so much of epsilon, log(1 + (gain - delta)/level).

        Where each record's attack gains many times as much as those before, what they are off adds up.
        """
        counted = math.exp(min(met.level - met.gain, 700.0)) - math.expm1(min(met.delta - met.gain, 0.0))
        return min(max(epsilon * counted / (1 + min(met.size, met.epsilon)), _FINEST), _LOOSELY)

    @np.errstate(all="ignore")
    def log_delta(self, at: float, tolerance: float, *, quickly: bool = False) -> tuple[float, float]:
        """Certified bounds on log delta at one epsilon."""
        if (low := self._next_to_one(at, tolerance)) >= -tolerance:
            return low, 0.0
        high, aim, model = 0.0, _SHARE * tolerance, self.model
        for k in range(1 if quickly else _LOOKS):
            met = touching.at_epsilon(model, self.size, at)
            steep = math.exp(min(at + met.level - met.delta, 50.0))
            scale = max(1.0, -met.delta, min(at * steep, _STEEPEST))
            share = max(aim * scale * math.exp(min(met.delta - met.gain, 0.0)) / (1 + min(met.size, at)), _FINEST)
            places, wanted = self._places(model, met, share)
            if quickly and places.size > _FEW:
                break
            below, above, model = self._near(model, places, wanted)
            before = high - low
            low = max(low, gains.log_delta(below.times(self.size, upper=False, share=share), at, upper=False))
            if low >= -tolerance:
                break
            high = min(high, gains.log_delta(above.times(self.size, upper=True, share=share), at, upper=True))
            if high - low <= tolerance * scale or (k > 0 and not high - low < _WORTH * before):
                break
            aim *= min(max(_WORTH * tolerance * scale / (high - low), 0.05), 0.5)
        return low, high

    @np.errstate(all="ignore")
    def curve(self, epsilons: Array, tolerance: float) -> tuple[Array, Array]:
        """Certified bounds on log delta at many epsilons, delta itself within so much of another or nearly."""
        share, model = _SHARE * tolerance, self.model
        for _ in range(_CURVES):
            ends = [touching.at_epsilon(model, self.size, at) for at in (float(epsilons[0]), float(epsilons[-1]))]
            met = replace(ends[0], low=0.0, high=max(end.high for end in ends))
            below, above, model = self._near(model, *self._places(model, met, share))
        pair = [
            (side.times(self.size, upper=upper, share=share), upper) for side, upper in ((below, False), (above, True))
        ]
        lower, upper = (
            np.array([gains.log_delta(side, at, upper=upper) for at in epsilons.tolist()]) for side, upper in pair
        )
        return np.minimum(lower, upper), upper

    @np.errstate(all="ignore")
    def log_leak(self, tolerance: float) -> float:
        """A lower bound on log delta at any epsilon."""
        share = _SHARE * tolerance
        met = touching.at_epsilon(self.model, self.size, EPSILON_LIMIT)
        below, _, _ = self._near(self.model, *self._places(self.model, met, share))
        return float(below.times(self.size, upper=False, share=share).logs[0])

    def _next_to_one(self, at: float, tolerance: float) -> float:
        """A lower bound on log delta from a rough look, where far fewer records are enough for one close to 0."""
        enough = -_SHARE * tolerance
        met = touching.at_epsilon(self.model, self.size, at, enough)
        if met.delta < enough or _SPARE * met.size > self.size:
            return -math.inf
        below, _, _ = self._near(self.model, *self._places(self.model, met, _LOOSELY))
        return gains.log_delta(below.times(_SPARE * met.size, upper=False, share=-enough), at, upper=False)

    def _near(self, model: Model, places: Array, wanted: Array) -> tuple[Gains, Gains, Model]:
        """A single record's gains there, and the model moved to what was found."""
        sizes = model.at(places)
        tolerance = np.minimum(wanted, _LOOSELY) / np.clip(-sizes, 1.0, DEEP)
        lower, upper = self.oracle(places, sizes, tolerance)
        lower = np.maximum.accumulate(lower[::-1])[::-1]
        upper = below_chords(places, np.minimum.accumulate(upper), self.largest)
        below = gains.of_lines(*lines_below(places, lower, upper, self.log_least))
        known = np.flatnonzero(np.isfinite(lower) & (places < self.largest))
        if known.size:
            known = known[:: max(known.size // _CORRECTED, 1)]
            model = model.moved_to(places[known], 0.5 * (lower + upper)[known])
        return below, gains.of_lines(places, upper), model

    def _places(self, model: Model, met: Touched, share: float) -> tuple[Array, Array]:
        """Epsilons, and how well log delta is wanted there, for what is gained to be off by that share.

        Where delta falls like e^{-c e}, chords of length h in e cut c (c + 1) h^2/8 delta off, of 1 + c (1 - e^-e)
        times it.
        """
        # from where on next to nothing but the least delta is left there is nothing to be told apart
        told = self.model.epsilons[self.model.logs > self.log_least + _LEFT]
        high = min((1 + _MARGIN) * min(met.high, told[-1] if told.size else math.inf) + 1e-12, self.largest)
        low = (1 - _MARGIN) * min(met.low, high)
        fine = low + (high - low) * np.union1d(np.linspace(0.0, 1.0, 4 * _MOST), np.geomspace(1e-6, 1.0, 500))
        known = self.model.epsilons
        fine = np.union1d(fine, known[(known > low) & (known < high)])
        falls = np.maximum(model.falls(fine), 1e-9)
        gained = 1 + falls * -np.expm1(-fine)
        apart = np.maximum(np.sqrt(8 / 3 * share * gained / (falls * (falls + 1))), 1e-9 * high)
        number = np.append(0.0, np.cumsum(np.diff(fine) / np.minimum(apart[1:], apart[:-1])))
        count = int(min(number[-1], _MOST)) + 8
        even = np.interp(np.linspace(0.0, number[-1], count), number, fine)
        beside = np.concatenate([[0.0], low * _BESIDE[:2], high * _BESIDE[2:]])
        if math.isfinite(self.largest):
            beside = np.append(beside[beside < self.largest], self.largest)
        places = np.union1d(even, beside)
        wanted = share * np.interp(places, fine, gained)
        return places, np.where((places < low) | (places > high), _LOOSELY, wanted)
