"""Sums of few outcomes, and of bounded losses, one by one; and curves that are means over them (rare.py).

Randomised response and promises have few different sums.  Laplace noise has a largest loss: its law is put on points
from that down, and added up there, so that close to the largest total all is told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hush.accounting.errors import corners
from hush.accounting.lattices import logs
from hush.accounting.lattices.bins import balanced, one_law
from hush.accounting.mixed import scattered
from hush.accounting.pairs.losses import Array, LaplacePair, Pair, Poisson, Reversed
from hush.accounting.pairs.points import Points, exact, loss_range

Steps = Sequence[tuple[Pair, int]]

_UNIT = 2.0**-50
_MOST = 200_000  # sums of few outcomes
_EVEN = 24_000  # points of a sum of bounded losses
_ALL = 200_000  # of a list
_WHOLE = 1_000_000  # chords at once
_FINE = 12.0  # times what epsilon may be off: the square of their spacing, over the number of steps
_COARSEST = 4  # points of one step
_NOTHING = 60.0  # minus a logarithm: such a part of the largest of some numbers counts for nothing
_LEAST = 1e-300
_ATOM = 1e-10  # of a largest loss: how close to it mass belongs to it


@dataclass(frozen=True)
class Listed:
    """Ascending sums, logs of their P-masses, what is infinite, and what to add to an epsilon and to log delta."""

    losses: Array
    logs: Array
    infinite: float
    shift: float
    margin: float


def apart(steps: Steps, slack: float) -> tuple[Steps, Steps, Steps]:
    """What has few sums, what has bounded losses, and all else: the largest first, as long as a list isn't too long."""
    few: list[tuple[Pair, int]] = []
    even: list[tuple[Pair, int]] = []
    rest: list[tuple[Pair, int]] = []
    sums, points = 1.0, 1.0
    for pair, count in sorted(steps, key=lambda step: -step[1] * loss_range(step[0])[1]):
        law = scattered.enumerated([*few, (pair, count)], _MOST) if isinstance(exact(pair), Points) else None
        if law is not None and law.losses.size * points <= _ALL:
            few.append((pair, count))
            sums = law.losses.size
        elif (number := _number(pair, count, slack)) <= min(_EVEN, _ALL / (sums * points)):
            even.append((pair, count))
            points *= number
        else:
            rest.append((pair, count))
    return few, even, rest


def _number(pair: Pair, count: int, slack: float) -> float:
    """Of the points of Laplace noise, or samples of it: its sums lie on a lattice that has both of its atoms."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    if not isinstance(sample.inner if isinstance(sample, Poisson) else sample, LaplacePair):
        return math.inf
    low, top = loss_range(pair)
    return count * (top - low) / _spacing(pair, count, slack)


def _spacing(pair: Pair, count: int, slack: float) -> float:
    low, top = loss_range(pair)
    number = max(math.ceil((top - low) / math.sqrt(_FINE * slack / count)), _COARSEST)
    return (top - low) / min(number, _EVEN)


def listed(few: Steps, even: Steps, slack: float, reach: float, *, above: bool) -> Listed | None:
    """All sums above -reach; None if they are too many."""
    known = scattered.sums(few, _MOST) if few else (Points(np.zeros(1), np.zeros(1)), 0.0, 0.0)
    if known is None:
        return None
    law, shift, margin = known
    losses, masses = law.losses, law.logs
    for pair, count in even:
        places, own, moved = _added(pair, count, _spacing(pair, count, slack), above=above)
        if losses.size * places.size > _ALL:
            return None
        losses, masses = (np.add.outer(row, one).ravel() for row, one in ((losses, places), (masses, own)))
        shift += count * (moved + 8 * _UNIT * (1 + float(places[-1])))
        margin += _UNIT * count * (64 + places.size) + _UNIT * 256 * (64 + 4 * float(np.abs(own).max()))
    order = np.argsort(losses, kind="stable")
    losses, masses = losses[order], masses[order]
    first = int(np.searchsorted(losses, -reach - 2 * shift))
    if first > 0:  # these add nothing to what is asked, or, moved up, no less than they did
        rest = float(np.logaddexp.reduce(masses[:first]))
        losses = np.append(losses[first - 1], losses[first:]) if above else losses[first:]
        masses = np.append(rest, masses[first:]) if above else masses[first:]
    return Listed(losses, masses, law.infinite, shift, margin + 4 * _UNIT * losses.size)


def _added(pair: Pair, count: int, spacing: float, *, above: bool) -> tuple[Array, Array, float]:
    """Ascending sums on points from the largest total down, logs of their masses, and how far one loss may be off."""
    low, largest = loss_range(pair)
    top, atom = largest * (1 + 2 * _ATOM), largest * (1 - 3 * _ATOM)
    number = math.ceil((top - low) / spacing) + 1
    lattice: Array = np.asarray((top - spacing * np.arange(number))[::-1], dtype=np.float64)
    if above:
        law = one_law(pair, np.append(lattice[:-1], [atom, top]), above=True)
        index = np.floor((top - law.losses) / spacing + 1e-6)
    else:
        law = balanced(pair, lattice[:1] - spacing, lattice, atom)
        index = np.ceil((top - law.losses) / spacing - 1e-6)
    index = np.clip(index, 0, number)
    off = (law.losses - (top - spacing * index)) * (1 if above else -1)
    one = np.full(number + 1, -np.inf)
    np.logaddexp.at(one, index.astype(np.int64), law.logs)
    total = logs.powered(one, count, count * number + 1)
    told = np.flatnonzero(total > -np.inf)[::-1]
    return np.asarray(count * top - spacing * told, dtype=np.float64), total[told], max(float(off.max()), 0.0)


@dataclass(frozen=True)
class Beside:
    """What isn't listed: its log delta at places, from below and from above, ascending and from some way below 0 on.

    And logs of what infinite losses add at least, of what is added to all of it, and of what is left beyond the end.
    """

    below: tuple[Array, Array]
    above: tuple[Array, Array]
    log_sure: float
    log_added: float
    log_beyond: float

    @property
    def end(self) -> float:
        return float(self.above[0][-1])


@dataclass(frozen=True)
class Known:
    """A curve: a mean for each bound, and the largest loss there is."""

    less: Mean
    more: Mean
    largest: float

    @np.errstate(all="ignore")
    def __call__(self, epsilons: Array) -> tuple[Array, Array]:
        lower, upper = self.less(epsilons), self.more(epsilons)
        upper = np.where(epsilons < self.largest, np.minimum(upper, 0.0), -np.inf)
        return np.minimum(lower, upper), upper

    @staticmethod
    def of(below: Listed, above: Listed, beside: Beside, largest: float) -> Known:
        """Chords lie above delta, and the corners where they meet, extended, below."""
        known = *beside.above, beside.log_added, min(float(beside.above[1][-1]), beside.log_beyond)
        places, lower = beside.below
        upper = Mean(_NOBODY, *known, above=True)(places)
        bent, heights = corners(places, np.minimum(lower, upper), np.minimum(upper, 0.0))
        order = np.argsort(np.concatenate([places, bent]), kind="stable")
        places, lower = np.concatenate([places, bent])[order], np.concatenate([lower, heights])[order]
        less = Mean(below, places, lower, beside.log_sure, -math.inf, above=False)
        return Known(less, Mean(above, *known, above=True), largest)


_NOBODY = Listed(np.zeros(1), np.zeros(1), 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Mean:
    """Log delta, from one side: the mean over listed sums of what is linear in e^epsilon between places.

    On the left of them that is 1 - a e^epsilon, for which sums of the listed are kept; on the right it's given.
    """

    listed: Listed
    places: Array
    values: Array
    log_rest: float
    log_beyond: float
    above: bool

    @cached_property
    def _sums(self) -> tuple[Array, Array, Array]:
        """Logs of the masses below each of the sums, of those from it on, and of these times e^{l_j - l}."""
        losses, masses = self.listed.losses, self.listed.logs
        none = np.array([-np.inf])
        below = np.append(none, np.logaddexp.accumulate(masses))
        beyond = np.append(np.logaddexp.accumulate(masses[::-1])[::-1], none)
        others = np.append(np.logaddexp.accumulate((masses - losses)[::-1])[::-1], none)
        return below, beyond, others

    def __call__(self, epsilons: Array) -> Array:
        parts = np.array_split(epsilons, max(epsilons.size * self.together // _WHOLE, 1))
        return np.concatenate([self._at(part) for part in parts])

    @cached_property
    def together(self) -> int:
        """How many sums at most lie within reach of one epsilon."""
        losses = self.listed.losses
        begins = np.searchsorted(losses, losses - float(self.places[-1] - self.places[0]))
        return int((np.arange(losses.size) - begins).max()) + 1

    def _at(self, epsilons: Array) -> Array:
        sign, losses = (-1.0 if self.above else 1.0), self.listed.losses
        doubt = _UNIT * (np.abs(epsilons) + np.abs(self.places).max() + np.abs(losses).max())
        at = epsilons + sign * (self.listed.shift + doubt)
        first = np.searchsorted(losses, at - self.places[-1], side="right")
        last = np.maximum(np.searchsorted(losses, at - self.places[0], side="left"), first)
        terms = self._near(at, first, last)
        below, beyond, others = self._sums
        log_a = self._log_left
        # 1 - a e^eps: what logarithms and their sums lose, where it is a difference of what is nearly the same, and
        # what sums do that rounding has put on this side of the first place
        spent = log_a + at + sign * doubt + others[last] - beyond[last]
        sizes = abs(log_a) + np.abs(at) + np.abs(others[last]) + np.abs(beyond[last])
        lost = 0.25 * _UNIT * (losses.size + 4 * (1 + sizes))
        left = beyond[last] + np.log(np.maximum(-np.expm1(np.minimum(spent, 0.0)) - sign * lost, 0.0))
        left = np.where(last < losses.size, left, -np.inf)
        right = below[first] + self.log_beyond
        # infinite losses of the others: on the left they are counted already, which a bound from above may do twice
        rest = self.log_rest + (0.0 if self.above else below[last])
        found = np.logaddexp(np.logaddexp(np.logaddexp(terms, left), right), rest)
        if self.listed.infinite > 0:
            found = np.logaddexp(found, math.log(self.listed.infinite))
        return np.asarray(found - sign * (self.listed.margin + 1e-12))

    def _near(self, at: Array, first: NDArray[np.intp], last: NDArray[np.intp]) -> Array:
        """log of the mean over listed sums from a first to before a last one: chords between places.

        The left end of a chord is at least what it is worth: by that most sums are seen to count for nothing.  Sums of
        n terms are off by n units, and by some of the logarithms they are made of.
        """
        counts = last - first
        ends = np.cumsum(counts)
        rows = np.repeat(np.arange(at.size), counts)
        if rows.size == 0:
            return np.full(at.size, -np.inf)
        index = np.arange(rows.size) + (first - ends + counts)[rows]
        place = at[rows] - self.listed.losses[index]
        cell = np.clip(np.searchsorted(self.places, place, side="right") - 1, 0, self.places.size - 2)
        heights = self.values[cell] + self.listed.logs[index]
        some = np.flatnonzero(counts)
        peaks = np.full(at.size, -np.inf)
        peaks[some] = np.maximum.reduceat(heights, (ends - counts)[some])
        heights -= np.maximum(peaks, -1e300)[rows]
        counted = np.flatnonzero(heights > -_NOTHING)
        cell, low, falls = cell[counted], *self._cells
        widths = -np.expm1(low[cell] - low[cell + 1])  # of two places that are one the safer end counts
        part = -np.expm1(np.minimum(place[counted] - low[cell + 1], 0.0)) / np.where(widths > 0, widths, 1.0)
        part = np.where(widths > 0, np.clip(part, 0.0, 1.0), 1.0 if self.above else 0.0)
        worth = np.exp(heights[counted]) * (part + (1 - part) * falls[cell])
        total = np.bincount(rows[counted], worth, at.size)
        sizes = sum(np.abs(row[np.isfinite(row)]).max(initial=0.0) for row in (self.values, self.listed.logs))
        rounded = _UNIT * (16 + 4 * sizes + counts)
        if self.above:
            total = total + counts * math.exp(-_NOTHING)
        return np.asarray(peaks + np.log(total) + (rounded if self.above else -rounded))

    @cached_property
    def _cells(self) -> tuple[Array, Array]:
        """Where cells begin, and what is left at their ends of what they begin with."""
        falls = np.exp(np.diff(np.maximum(self.values, -1e300)))
        return self.places, np.maximum(falls, _LEAST) if self.above else falls

    @property
    def _log_left(self) -> float:
        """log a: of a chord from where e^epsilon is 0 and delta 1, or of P less e^epsilon Q."""
        if not self.above:
            return 0.0
        rest = -math.expm1(float(self.values[0]))
        return math.log(rest) - float(self.places[0]) if rest > 0 else -math.inf
