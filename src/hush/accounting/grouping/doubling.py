"""Groups of any size: a single record's curve over a whole stretch, composed with itself by doubling (gains.py).

The attack of the first record is the line of the steepest slope e^e that touches the power curve g, and each next one
touches it less steeply.  A model of the curve says from where to where that goes, and how close together points are
needed; lines below and above g through certified bounds there are composed, and what comes out is certified wherever
one has looked.  If both bounds are too far apart, a closer look is had.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.grouping import gains, touching
from hush.accounting.grouping.chains import Oracle, below_chords, lines_below
from hush.accounting.grouping.gains import Gains
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import DEEP
from hush.accounting.grouping.touching import Touched
from hush.accounting.pairs.losses import Array

_LOOKS, _CURVES = 4, 2
_SHARE = 0.1  # of the width asked for: what each kind of error may take
_MOST, _FEW = 12_000, 400  # points, and how many are worth a try
_LEFT = 1e-3  # of log delta
_FINEST = 1e-12  # where next to nothing is left
_LOOSELY = 0.3  # of log delta: what points beside the stretch are asked for
_COARSE = 1e-3  # of log delta: what a first look tells
_SHALLOW = -150.0  # a log delta of which lines cost little
_ROUGHLY = 1e-3
_BESIDE = np.array([0.7, 0.9, 1.1, 1.3])
_MARGIN = 0.03  # of the stretch's ends
_STEEPEST = 8.0  # times as wide as a share of itself a log delta may be where it falls quickly
_EASIER = 12.0  # times as wide as a log delta may be that isn't known from a few points
_WORTH = 0.7  # times what was known before: a look that was worth it
_ENDS = np.union1d(np.linspace(0.0, 1.0, 200), np.append(0.0, np.geomspace(1e-6, 1.0, 200)))  # of stretches
_CORRECTED = 60  # places where a model is moved to what was found


class _Told(Protocol):
    def __call__(self, total: Gains, *, upper: bool) -> float: ...


class _Room(Protocol):
    def __call__(self, met: Touched, low: float, high: float, *, hard: bool) -> float: ...


@dataclass(frozen=True)
class _Aim:
    """A question: where a model has it that attacks touch, what gains tell, how wide that may be, and what is enough.

    Where it is hard to tell, answers may be wider.
    """

    touched: Callable[[Model], Touched]
    told: _Told
    room: _Room
    enough: float


@dataclass(frozen=True)
class Task:
    """A single record's curve and a model of it, the group's size, the log of the least delta, the largest loss."""

    oracle: Oracle
    model: Model
    size: int
    log_least: float
    largest: float = math.inf
    glance: Callable[[Array], Array] = lambda epsilons: np.full(epsilons.shape, -np.inf)
    """Lower bounds that cost little."""
    corner: float = math.inf
    """The largest finite loss: from there on nothing is left but what leaks."""

    def epsilon(self, log_delta: float, tolerance: float) -> tuple[float, float]:
        """Certified bounds on epsilon, or (1e4, inf) as soon as so many records are seen to be beyond."""

        def told(total: Gains, *, upper: bool) -> float:
            return gains.epsilon(total, log_delta, upper=upper)

        def room(met: Touched, low: float, high: float, *, hard: bool) -> float:
            return max(tolerance * (high if high < math.inf else max(met.epsilon, low)), 1e-12)

        aim = _Aim(lambda model: touching.at_delta(model, self.size, log_delta), told, room, EPSILON_LIMIT)
        low, high = self._narrowed(aim, 0.0, math.inf)
        return (EPSILON_LIMIT, math.inf) if low >= EPSILON_LIMIT else (low, high)

    def log_delta(self, at: float, tolerance: float) -> tuple[float, float]:
        """Certified bounds on log delta at one epsilon."""

        def told(total: Gains, *, upper: bool) -> float:
            return gains.log_delta(total, at, upper=upper)

        def room(met: Touched, low: float, high: float, *, hard: bool) -> float:
            steep = math.exp(min(at + met.level - met.delta, 50.0))
            return tolerance * max((_EASIER if hard else 1) * max(1.0, -met.delta), min(at * steep, _STEEPEST))

        aim = _Aim(lambda model: touching.at_epsilon(model, self.size, at), told, room, -tolerance)
        return self._narrowed(aim, -math.inf, 0.0)

    @np.errstate(all="ignore")
    def _narrowed(self, aim: _Aim, low: float, high: float) -> tuple[float, float]:
        """Bounds on an answer, narrower from look to look; where that takes many points, the first has but a few."""
        model, part, hard = self.model, _SHARE, False
        for k in range(_LOOKS):
            met = aim.touched(model)
            share = _share(part * aim.room(met, low, high, hard=hard), met)
            places, wanted = self._places(model, met, share)
            coarse = k == 0 and places.size > _FEW
            hard |= coarse
            if k == 0:
                low = aim.told(self._below(met).times(self.size, upper=False, share=_ROUGHLY), upper=False)
                if low >= aim.enough:
                    break
            if coarse:
                places, wanted = self._places(model, met, share, _FEW)
                share, wanted = max(share, _ROUGHLY), np.maximum(wanted, _COARSE * -model.at(places))
            below, above, model = self._near(model, places, wanted)
            before = high - low
            low = max(low, aim.told(below.times(met.size, upper=False, share=share), upper=False))
            if low >= aim.enough:
                break
            high = min(high, aim.told(above.times(self.size, upper=True, share=share), upper=True))
            room = aim.room(met, low, high, hard=hard)
            if high - low <= room or (k > hard and not high - low < _WORTH * before):
                break
            if not coarse:
                part *= min(max(_WORTH * room / (high - low), 0.05), 0.5)
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

    def _below(self, met: Touched) -> Gains:
        """What a record's attack gains at least, from a look that costs little: lines where delta isn't small."""
        places, wanted = self._places(self.model, met, touching.TRIED, _FEW)
        sizes = self.model.at(places)
        near = sizes > _SHALLOW
        lower, upper = self.glance(places), np.zeros(places.size)
        low, upper[near] = self.oracle(places[near], sizes[near], np.minimum(wanted, _LOOSELY)[near] / -sizes[near])
        lower[near] = np.maximum(low, lower[near])
        lower = np.maximum.accumulate(lower[::-1])[::-1]
        return gains.of_lines(*lines_below(places, lower, np.minimum.accumulate(upper), self.log_least))

    def _near(self, model: Model, places: Array, wanted: Array) -> tuple[Gains, Gains, Model]:
        """A single record's gains there, and the model moved to what was found."""
        sizes = model.at(places)
        tolerance = np.minimum(wanted, np.maximum(_LOOSELY, _COARSE * -sizes)) / np.clip(-sizes, 1.0, DEEP)
        lower, upper = self.oracle(places, sizes, tolerance)
        lower = np.maximum.accumulate(lower[::-1])[::-1]
        upper = below_chords(places, np.minimum.accumulate(upper), self.largest)
        below = gains.of_lines(*lines_below(places, lower, upper, self.log_least))
        known = np.flatnonzero(np.isfinite(lower) & (places < self.largest))
        if known.size:
            known = known[:: max(known.size // _CORRECTED, 1)]
            model = model.moved_to(places[known], 0.5 * (lower + upper)[known])
        return below, gains.of_lines(places, upper), model

    def _places(self, model: Model, met: Touched, share: float, most: int = _MOST) -> tuple[Array, Array]:
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
        even, wants = [], []
        # a model may have edges, or mere steps, where it was moved to what was found: half the points for either
        for falls in (np.maximum(model.falls(fine), 1e-9), _falls(model, fine)):
            shares = share * gains.allowed(np.log(falls) + model.at(fine) - fine)
            gained = 1 + falls * -np.expm1(-fine)
            apart = np.maximum(np.sqrt(8 / 3 * shares * gained / (falls * (falls + 1))), 1e-9 * high)
            number = np.append(0.0, np.cumsum(np.diff(fine) / np.minimum(apart[1:], apart[:-1])))
            count = int(min(number[-1], most // 2)) + 4
            even.append(np.interp(np.linspace(0.0, number[-1], count), number, fine))
            wants.append(shares * gained)
        beside = np.concatenate([[0.0], low * _BESIDE[:2], high * _BESIDE[2:]])
        if math.isfinite(self.largest):
            beside = np.append(beside[beside < self.largest], self.largest)
        corner = [self.corner] if low < self.corner < high else []
        places = np.unique(np.concatenate([*even, beside, corner]))
        wanted = np.interp(places, fine, np.minimum(*wants))
        return places, np.where((places < low) | (places > high), _LOOSELY, wanted)


def _falls(model: Model, fine: Array) -> Array:
    """How fast log delta falls there, over stretches."""
    ends = fine[0] + (fine[-1] - fine[0]) * _ENDS
    falls = np.maximum(-np.diff(model.at(ends)) / np.diff(ends), 1e-9)
    return np.asarray(falls[np.clip(np.searchsorted(ends, fine, side="right") - 1, 0, falls.size - 1)])


def _share(off: float, met: Touched) -> float:
    """What a record's gains may be off for so much of the answer, no more than was tried."""
    return min(max(off / max(met.owed, 1e-300), _FINEST), touching.TRIED)
