"""A law on a lattice, to the safe side: its masses at multiples of a spacing, sums of such laws, and what to cut off.

What reveals more: outcomes split between two lattice points with P- and Q-mass kept (outcomes.py); totals beyond the
last point are infinite, those below the first moved up.  What reveals less: bins merged to lattice points (laws.py);
totals beyond the last point moved down to it, those below the first left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from hush.accounting.among.outcomes import Outcomes, runs
from hush.accounting.lattices.laws import merge
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points

Laws = Sequence[tuple[GaussianLaw | Outcomes, int]]

_UNIT = 2.0**-50
_LOW = 1e-7  # of the mass of a sum: below, no loss is told apart, which costs as much of delta
_SELDOM = 100  # times what is rare: what all sums together may leave out
_SMALLEST = 1e-150  # masses that are kept
_LOST = 1e-290  # more than products too small for floating point add up to
_LONGEST = 20_000  # points of a sum
_FINER = 0.6  # times what a lattice held before: worth a finer one
_FINEST = 2.0**-32  # of the largest loss: multiples of a finer spacing would be rounded
_DEVIATIONS = -5.5, 38.0  # of a Gaussian, that count


@dataclass(frozen=True)
class Window:
    """What of a composition counts: the length of its longest law; totals between two; how far down sums count."""

    length: float
    floor: float
    top: float
    spread: float
    single: tuple[float, ...]
    """The largest loss of each law."""
    powers: tuple[float, ...]
    """And of copies of it."""

    @staticmethod
    def whole(top: float, laws: Laws) -> Window:
        nothing = (0.0,) * len(laws)  # none is too low
        return Window(top, -math.inf, top, math.inf, nothing, nothing)

    def around(self, other: Window) -> Window:
        """One that serves both."""
        return Window(
            max(self.length, other.length),
            min(self.floor, other.floor),
            max(self.top, other.top),
            max(self.spread, other.spread),
            tuple(map(max, self.single, other.single)),
            tuple(map(max, self.powers, other.powers)),
        )

    def is_worth_it(self, before: Window) -> bool:
        """Whether a lattice for this one would be finer than for the one before."""
        return self.length < _FINER * before.length or self.spread < _FINER * before.spread


@dataclass(frozen=True)
class Frame:
    """A lattice: its spacing, a number of few digits; the last point told apart; what is too rare or low to matter."""

    spacing: float
    last: int
    rare: float
    """P-mass that may count as infinite."""
    above: bool
    spread: float = math.inf
    """How far below its median a sum is told apart.

    With epsilon e and all totals but the rare ones below t, what is left to add to a sum is below t less the sum's
    median, or as rare.  So sums further below the median than t - e hardly take a total beyond e.
    """
    floor: float = -math.inf
    """Totals below that don't count: nor do sums to which too little can be added."""

    @staticmethod
    def of(laws: Laws, window: Window, points: int, rare: float, *, above: bool) -> Frame:
        """With so many points in a window, unless these laws reach so far out that they wouldn't be exact."""
        # multiples of the spacing are floating-point numbers: it has twenty digits, and they are below 2^33
        furthest = max(abs(window.top), *(_furthest(law) for law, _ in laws))
        size, exponent = math.frexp(max(window.length / points, _FINEST * furthest, 1e-200))
        spacing = math.ldexp(math.ceil(size * 2**20), exponent - 20)
        return Frame(spacing, math.ceil(window.top / spacing), rare, above, window.spread, window.floor)

    @property
    def small(self) -> float:
        """Masses that aren't kept: products of two others have all their digits, where delta isn't as small as that."""
        return max(min(_SMALLEST, 1e-6 * self.rare), _LOST)

    def first(self, masses: Array, lowest: float) -> int:
        """The first of masses, this far apart, that is told apart; those count that are so far from the first."""
        sums = np.cumsum(masses)
        start, median = (int(np.searchsorted(sums, part * float(sums[-1]))) for part in (_LOW, 0.5))
        return math.ceil(max(start, median - self.spread / self.spacing - 1, lowest / self.spacing - 2))


@dataclass(frozen=True)
class Stack:
    """P-masses at multiples of the spacing from the first on, all moved to an origin, and that of infinite losses."""

    first: int
    masses: Array
    infinite: float
    origin: float = 0.0

    def top(self, frame: Frame, leak: float) -> float:
        """No loss that counts is larger, if infinite ones have such a chance; the last point, if some were cut off."""
        return frame.spacing * (frame.last if self.is_cut_off(frame, leak) else self.first + self.masses.size - 1)

    def is_cut_off(self, frame: Frame, leak: float) -> bool:
        """Whether losses that count are taken for infinite."""
        return self.infinite - leak * (1 + 1e-9) > _SELDOM * max(frame.rare, _LOST)

    def plus(self, other: Stack, frame: Frame, rest: float) -> Stack:
        """The law of the sum, to which so much may be added.

        A mass is a sum of n products, off by n + 1 units; products too small for floating point are counted apart.
        """
        masses = np.convolve(self.masses, other.masses)
        infinite = self.infinite + other.infinite * (1 - self.infinite) + (_LOST if frame.above else 0.0)
        return _trimmed(self.first + other.first, masses, infinite, frame, rest, self.origin + other.origin)

    def times(self, count: int, frame: Frame, rest: float = math.inf, top: float = 0.0) -> Stack:
        """The law of the sum of so many, by doubling, if none is larger than that."""
        result, double, added, many = None, self, 0, 1
        while True:
            if count & many:
                added += many
                result = double if result is None else result.plus(double, frame, rest + (count - added) * top)
            many *= 2
            if many > count:
                assert result is not None
                return result
            double = double.plus(double, frame, rest + (count - many) * top)


def _trimmed(first: int, masses: Array, infinite: float, frame: Frame, rest: float, origin: float = 0.0) -> Stack:
    """Without what lies beyond the frame, or is too rare to matter, or too low: to the safe side."""
    beyond = np.cumsum(masses[::-1])[::-1]  # from each point on
    furthest = frame.last + math.ceil(max(-origin, 0.0) / frame.spacing)
    last = min(furthest - first, masses.size - 1, max(int(np.searchsorted(-beyond, -frame.rare)) - 1, 0))
    if last < 0:  # all of it is beyond
        total = float(beyond[0])
        if frame.above:
            return Stack(furthest, np.zeros(1), min(infinite + total, 1.0), origin)
        return Stack(furthest, np.array([total]), infinite, origin)
    lowest = frame.floor - rest - origin - frame.spacing * first
    start = max(min(frame.first(masses[: last + 1], lowest), last), last - _LONGEST)
    kept, left = masses[start : last + 1].copy(), float(masses[last + 1 :].sum())
    if frame.above:
        infinite += left
        kept[0] += float(masses[:start].sum())
        small = kept < frame.small
        infinite += float(kept[small].sum())
        kept[small] = 0.0
    else:
        kept[-1] += left
        kept[kept < frame.small] = 0.0
    return Stack(first + start, kept, min(infinite, 1.0), origin)


def summed(stacks: Sequence[Stack], frame: Frame) -> Stack:
    """The law of the sum of some, however low."""
    return reduce(lambda total, one: total.plus(one, frame, math.inf), stacks)


def on_lattice(law: GaussianLaw | Outcomes, frame: Frame, rest: float) -> Stack:
    """One law, to which so much may be added."""
    outcomes = _gaussian(law, frame, rest) if isinstance(law, GaussianLaw) else law
    masses = np.exp(outcomes.logs)
    sums, beyond = np.cumsum(masses), np.cumsum(masses[::-1])
    least, median = (float(outcomes.losses[int(np.searchsorted(sums, p * sums[-1]))]) for p in (0.1 * _LOW, 0.5))
    largest = float(outcomes.losses[-1 - min(int(np.searchsorted(beyond, frame.rare)), masses.size - 1)])
    lowest = min(max(least, median - frame.spread, frame.floor - rest), largest)
    first = min(math.floor(lowest / frame.spacing) - 1, frame.last - 2)
    last = min(math.ceil((largest + 2 * float(outcomes.unsure[-1])) / frame.spacing) + 1, frame.last)
    last = max(last, first + 2)
    first = max(first, last - _LONGEST)
    if frame.above:
        points = outcomes.more(np.asarray(frame.spacing * np.arange(first, last + 1), dtype=np.float64))
        places = np.rint(points.losses / frame.spacing).astype(np.int64) - first
        spread: Array = np.bincount(places, np.exp(points.logs) * (1 + 1e-12), last - first + 1).astype(np.float64)
        return _trimmed(first, spread, points.infinite, frame, rest)
    losses, masses = outcomes.losses - 2 * outcomes.unsure, masses * (1 - 1e-12)
    told = losses >= min(frame.spacing * first, losses[-1])
    losses, masses = losses[told], masses[told]
    origin = _origin(losses, masses, frame.spacing)
    found = merged(losses - origin, masses, first, last, frame.spacing)
    return _trimmed(first, found, outcomes.infinite * (1 - 1e-12), frame, rest, origin)


def _origin(losses: Array, masses: Array, spacing: float) -> float:
    """Where to move the lattice, so that one of its points has the likelihood ratio of the bin with most of the mass.

    Else an atom alone, or losses closer together than the lattice, would move down by a part of the spacing each time.
    """
    near = np.rint(losses / spacing)
    first, bins = runs(near)
    own = bins == int(np.argmax(np.add.reduceat(masses, first)))
    base = float(losses[own][0])
    spent = float(masses[own] @ np.expm1(base - losses[own])) / float(masses[own].sum())
    # a little lower: what rounding makes of the bin must not be short of P there
    return base - math.log1p(max(spent, -1 + 1e-15)) - spacing * float(near[own][0]) - _UNIT * (32 + losses.size)


def merged(losses: Array, masses: Array, first: int, last: int, spacing: float) -> Array:
    """Bins around lattice points, merged so that their likelihood ratios are those of the points (laws.py)."""
    kept = losses > spacing * (first + 0.5)
    losses, weights = np.minimum(losses[kept], spacing * last), masses[kept]
    near = np.rint(losses / spacing).astype(np.int64)
    shift = spacing * near - losses
    near -= first

    def total(places: NDArray[np.int64], values: Array) -> Array:
        return np.bincount(places, values, last - first + 2).astype(np.float64)

    own, gap = total(near, weights), total(near, weights * -np.expm1(shift))
    above, surplus = total(near - 1, weights), total(near - 1, weights * -np.expm1(shift - spacing))
    below, deficit = total(near + 1, weights), total(near + 1, weights * np.expm1(shift + spacing))
    return merge(own, gap, above, surplus, below, deficit)[: last - first + 1]


def _gaussian(law: GaussianLaw, frame: Frame, rest: float) -> Outcomes:
    """A Gaussian's bins between lattice points, each at its own log(P/Q), to the safe side.

    Split between the two ends of its bin, or merged with others, such an outcome reveals more, or less, than the
    Gaussian.  With T(x) the tail beyond x, a bin's Q-mass is T(y) (1 - e^-d), d the difference of two logarithms, each
    off by 1e-14 of itself and 1, and by what rounds x: so is the loss, by that over d.  A mu that is off by 2^-53 is a
    shift (`Side.doubt`).
    """
    mu, sign = math.sqrt(law.squared), 1 if frame.above else -1
    highest = law.squared / 2 + mu * min(_DEVIATIONS[1], math.sqrt(-2 * math.log(frame.rare)))  # the rest is rare
    lowest = law.squared / 2 + max(_DEVIATIONS[0] * mu, -frame.spread - 2 * frame.spacing)
    lowest = max(lowest, frame.floor - rest - 2 * frame.spacing)
    first, last = math.floor(lowest / frame.spacing) - 1, min(math.ceil(highest / frame.spacing) + 1, frame.last)
    first = max(min(first, last - 2), last - _LONGEST)
    edges = np.asarray(frame.spacing * np.arange(first, last + 1), dtype=np.float64)
    logs, unsure = zip(*(log_bins(edges / mu + way * mu / 2, mu) for way in (-1, 1)), strict=True)
    losses = logs[0] - logs[1] + sign * (unsure[0] + unsure[1])
    losses = np.clip(np.nan_to_num(losses, nan=sign * math.inf), edges[:-1], edges[1:])
    losses += sign * 4 * _UNIT * (law.unsure + np.abs(losses))
    masses = logs[0] + sign * unsure[0]
    low, high = (float(log_ndtr(x)) for x in (edges[0] / mu - mu / 2, mu / 2 - edges[-1] / mu))
    if frame.above:  # below the first edge losses move up to it
        losses, masses = np.append(edges[0], losses), np.append(low + 1e-12 * (1 - low), masses)
        return Outcomes(losses, masses, math.exp(high) * (1 + 1e-9))
    told = masses > -np.inf  # beyond the last edge they move down to it
    losses, masses = np.append(losses[told], edges[-1]), np.append(masses[told], high - 1e-12 * (1 - high))
    return Outcomes(losses, masses, 0.0)


def log_bins(x: Array, mu: float) -> tuple[Array, Array]:
    """Logs of a normal variable's masses between points, sums with a mu, and how far they may be off."""
    left, right = log_ndtr(x), log_ndtr(-x)
    near, far = np.where(x[:-1] < 0, left[1:], right[:-1]), np.where(x[:-1] < 0, left[:-1], right[1:])
    apart = near - far
    size = np.maximum(np.abs(x[1:]), np.abs(x[:-1]))
    off = 1e-14 * (2 + np.abs(near) + np.abs(far)) + _UNIT * (1 + size) * (size + mu)
    return near + np.log(-np.expm1(-apart)), off * (1 + 1 / np.expm1(np.maximum(apart, 1e-300)))


def points_of(found: Stack, spacing: float) -> Points:
    told = found.masses > 0
    losses = np.asarray(found.origin + spacing * (found.first + np.arange(found.masses.size)), dtype=np.float64)
    if not told.any():
        return Points(losses[:1], np.full(1, -745.0), found.infinite)
    return Points(losses[told], np.log(found.masses[told]), found.infinite)


def _furthest(law: GaussianLaw | Outcomes) -> float:
    """How far out a loss may be, of a Gaussian that counts."""
    if isinstance(law, GaussianLaw):
        return 0.5 * law.squared + _DEVIATIONS[1] * math.sqrt(law.squared)
    return float(np.abs(law.losses[[0, -1]]).max())
