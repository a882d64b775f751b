"""Laws added up point by point, on a lattice: a sum of products of positive numbers keeps its digits however small.

A line (scattered.py) knows delta to 1e-16 of what Chernoff's bound says.  Where one large loss decides, as it does in
groups of records, delta lies e^25 and more below that.  Here masses of two laws are multiplied and added, n^2 of them,
and copies come by doubling: some thousand points and a dozen sums are enough for groups among groups.

What reveals more: outcomes split between two lattice points with P- and Q-mass kept (outcomes.py); totals beyond the
last point are infinite, those below the first moved up.  What reveals less: bins merged to lattice points (laws.py);
totals beyond the last point moved down to it, those below the first left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from hush.accounting.crossing import EPSILON_LIMIT, is_narrow, root_of_each, within
from hush.accounting.laws import merge
from hush.accounting.losses import Array
from hush.accounting.outcomes import Outcomes, runs
from hush.accounting.points import GaussianLaw, Points, surely_infinite

Laws = Sequence[tuple[GaussianLaw | Outcomes, int]]

_UNIT = 2.0**-50
_LOW = 1e-7  # of the mass of a sum: below, no loss is told apart, which costs as much of delta
_RARE = 1e-7  # of delta: mass that may count as infinite
_SELDOM = 100  # times that: what all sums together may leave out
_MARGIN = 16.0  # a total that far beyond epsilon may count as infinite: it costs exp(-16) of its mass
_SMALLEST = 1e-150  # masses that are kept
_LOST = 1e-290  # more than products too small for floating point add up to
_COARSE, _POINTS = 600, (2500, 9000)  # of lattices
_NARROWED = 0.7  # times what it was: a finer lattice was worth it
_LONGEST = 20_000  # points of a sum
_LOOKS = 16  # at most
_SAME, _UNSETTLED = 0.5, 40.0  # of log delta: what changes little; how much smaller it may be than it seems
_FINER = 0.6  # times what a lattice held before: worth a finer one
_FINEST = 2.0**-32  # of the largest loss: multiples of a finer spacing would be rounded
_DEEPEST = -650.0  # log delta that is told
_FURTHEST = 1.2 * EPSILON_LIMIT
_DEVIATIONS = -5.5, 38.0  # of a Gaussian, that count


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

    @staticmethod
    def of(laws: Laws, length: float, top: float, points: int, rare: float, spread: float, *, above: bool) -> Frame:
        """With so many points in such a length, unless these laws reach so far out that they wouldn't be exact."""
        # multiples of the spacing are floating-point numbers: it has twenty digits, and they are below 2^33
        furthest = max(abs(top), *(_furthest(law) for law, _ in laws))
        size, exponent = math.frexp(max(length / points, _FINEST * furthest, 1e-200))
        spacing = math.ldexp(math.ceil(size * 2**20), exponent - 20)
        return Frame(spacing, math.ceil(top / spacing), rare, above, spread)

    @property
    def small(self) -> float:
        """Masses that aren't kept: products of two others have all their digits, where delta isn't as small as that."""
        return max(min(_SMALLEST, 1e-6 * self.rare), _LOST)

    def first(self, masses: Array) -> int:
        """The first of masses, this far apart, that is told apart."""
        sums = np.cumsum(masses)
        start, median = (int(np.searchsorted(sums, part * float(sums[-1]))) for part in (_LOW, 0.5))
        below = self.spread / self.spacing
        return max(start, median - math.ceil(below)) if below < masses.size else start


@dataclass(frozen=True)
class Stack:
    """P-masses at multiples of the spacing from the first on, all moved to an origin, and that of infinite losses."""

    first: int
    masses: Array
    infinite: float
    origin: float = 0.0

    def plus(self, other: Stack, frame: Frame) -> Stack:
        """The law of the sum.

        A mass is a sum of n products, off by n + 1 units; products too small for floating point are counted apart.
        """
        masses = np.convolve(self.masses, other.masses)
        infinite = self.infinite + other.infinite * (1 - self.infinite) + (_LOST if frame.above else 0.0)
        return _trimmed(self.first + other.first, masses, infinite, frame, self.origin + other.origin)

    def times(self, count: int, frame: Frame) -> Stack:
        """The law of the sum of so many, by doubling."""
        result, double = None, self
        while True:
            if count % 2:
                result = double if result is None else result.plus(double, frame)
            count //= 2
            if count == 0:
                assert result is not None
                return result
            double = double.plus(double, frame)


def _trimmed(first: int, masses: Array, infinite: float, frame: Frame, origin: float = 0.0) -> Stack:
    """Without what lies beyond the frame, or is too rare to matter: to the safe side."""
    beyond = np.cumsum(masses[::-1])[::-1]  # from each point on
    furthest = frame.last + math.ceil(max(-origin, 0.0) / frame.spacing)
    last = min(furthest - first, masses.size - 1, max(int(np.searchsorted(-beyond, -frame.rare)) - 1, 0))
    if last < 0:  # all of it is beyond
        total = float(beyond[0])
        if frame.above:
            return Stack(furthest, np.zeros(1), min(infinite + total, 1.0), origin)
        return Stack(furthest, np.array([total]), infinite, origin)
    start = max(min(frame.first(masses[: last + 1]), last), last - _LONGEST)
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


def stack(laws: Laws, frame: Frame) -> tuple[Stack, int]:
    """The law of the total, from laws that reveal more or less as the frame does, and the most points of any sum."""
    found = [on_lattice(law, frame).times(count, frame) for law, count in laws]
    total = summed(found, frame)
    return total, max(one.masses.size for one in (*found, total))


def summed(stacks: Sequence[Stack], frame: Frame) -> Stack:
    """The law of the sum of some."""
    total = stacks[0]
    for one in stacks[1:]:
        total = total.plus(one, frame)
    return total


@dataclass(frozen=True)
class Look:
    """About epsilon and log delta, on a lattice that holds no more than what counts: that of each law, and in all."""

    at: float
    size: float
    frame: Frame
    single: list[Stack]
    powers: list[Stack]
    points: int
    """Of the total."""
    total: Points
    spread: float
    """How far below their medians sums have to be told apart."""

    @property
    def top(self) -> float:
        return self.frame.spacing * self.frame.last

    @property
    def length(self) -> float:
        """Of the longest law."""
        points = max(one.masses.size for one in (*self.single, *self.powers))
        return self.frame.spacing * max(points, self.points)


def look(laws: Laws, top: float, points: int, *, log_delta: float | None = None, epsilon: float = 0.0) -> Look | None:
    """From above, on lattices each finer than the one before; None where a delta is not reached."""
    at, size, length, spread = epsilon, _DEEPEST if log_delta is None else log_delta, top, math.inf
    settled = log_delta is not None
    for _ in range(_LOOKS):
        rare = math.exp(max(size - (0.0 if settled else _UNSETTLED), _DEEPEST)) * _RARE
        frame = Frame.of(laws, length, top, points, rare, spread, above=True)
        single = [on_lattice(law, frame) for law, _ in laws]
        powers = [one.times(count, frame) for one, (_, count) in zip(single, laws, strict=True)]
        whole = summed(powers, frame)
        total = points_of(whole, frame.spacing)
        if log_delta is not None:
            at = _root(total, log_delta)
            if math.isinf(at):
                return None
        else:
            before, size = size, float(total.log_delta(np.array([epsilon]))[0])
            settled = abs(size - before) < _SAME
        # the others may go down again, once one of them has taken the total beyond epsilon
        down = frame.spacing * sum(max(-one.first, 0) for one in powers)
        needed, narrower = at + _MARGIN + down, math.inf
        if whole.infinite - surely_infinite(laws) <= _SELDOM * max(rare, _LOST):
            needed = min(needed, max(total.top, at) + 3 * frame.spacing)
            narrower = 2 * (needed - at)
        found = Look(at, size, frame, single, powers, whole.masses.size, total, narrower)
        shorter = min(found.length, needed + down)
        if spread < math.inf and needed > top:
            break  # more was cut off than was to be: no lattice that is finer says more
        if shorter > _FINER * length and narrower >= _FINER * spread and settled:
            break
        top, length, spread = needed, shorter, narrower
    return found


def _furthest(law: GaussianLaw | Outcomes) -> float:
    """How far out a loss may be, of a Gaussian that counts."""
    if isinstance(law, GaussianLaw):
        return 0.5 * law.squared + _DEVIATIONS[1] * math.sqrt(law.squared)
    return float(np.abs(law.losses[[0, -1]]).max())


def _root(law: Points, log_delta: float) -> float:
    """About the epsilon of a law."""
    low, high = 0.0, max(law.top, 0.0)
    if law.log_delta(np.array([high]))[0] > log_delta:
        return math.inf
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if law.log_delta(np.array([middle]))[0] > log_delta else (low, middle)
    return high


def on_lattice(law: GaussianLaw | Outcomes, frame: Frame) -> Stack:
    outcomes = _gaussian(law, frame) if isinstance(law, GaussianLaw) else law
    sums = np.cumsum(np.exp(outcomes.logs))
    least, median = (float(outcomes.losses[int(np.searchsorted(sums, p * sums[-1]))]) for p in (0.1 * _LOW, 0.5))
    first = min(math.floor(max(least, median - frame.spread) / frame.spacing) - 1, frame.last - 2)
    last = min(math.ceil(float(outcomes.losses[-1] + 2 * outcomes.unsure[-1]) / frame.spacing) + 1, frame.last)
    last = max(last, first + 2)
    first = max(first, last - _LONGEST)
    if frame.above:
        points = outcomes.more(np.asarray(frame.spacing * np.arange(first, last + 1), dtype=np.float64))
        places = np.rint(points.losses / frame.spacing).astype(np.int64) - first
        spread: Array = np.bincount(places, np.exp(points.logs) * (1 + 1e-12), last - first + 1).astype(np.float64)
        return _trimmed(first, spread, points.infinite, frame)
    losses, masses = outcomes.losses - 2 * outcomes.unsure, np.exp(outcomes.logs) * (1 - 1e-12)
    origin = _origin(losses, masses, frame.spacing)
    found = _merged(losses - origin, masses, first, last, frame.spacing)
    return _trimmed(first, found, outcomes.infinite * (1 - 1e-12), frame, origin)


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


def _merged(losses: Array, masses: Array, first: int, last: int, spacing: float) -> Array:
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


def _gaussian(law: GaussianLaw, frame: Frame) -> Outcomes:
    """A Gaussian's bins between lattice points, each at its own log(P/Q), to the safe side.

    Split between the two ends of its bin, or merged with others, such an outcome reveals more, or less, than the
    Gaussian.  With T(x) the tail beyond x, a bin's Q-mass is T(y) (1 - e^-d), d the difference of two logarithms, each
    off by 1e-14 of itself and 1, and by what rounds x: so is the loss, by that over d.  A mu that is off by 2^-53 is a
    shift (`Side.doubt`).
    """
    mu, sign = math.sqrt(law.squared), 1 if frame.above else -1
    ends = [law.squared / 2 + deviations * mu for deviations in _DEVIATIONS]
    ends[0] = max(ends[0], law.squared / 2 - frame.spread - 2 * frame.spacing)
    first, last = math.floor(ends[0] / frame.spacing) - 1, min(math.ceil(ends[1] / frame.spacing) + 1, frame.last)
    first = max(min(first, last - 2), last - _LONGEST)
    edges = np.asarray(frame.spacing * np.arange(first, last + 1), dtype=np.float64)
    logs, unsure = zip(*(_log_bins(edges / mu + way * mu / 2, mu) for way in (-1, 1)), strict=True)
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


def _log_bins(x: Array, mu: float) -> tuple[Array, Array]:
    """Logs of a normal variable's masses between points, sums with a mu, and how far they may be off."""
    left, right = log_ndtr(x), log_ndtr(-x)
    near, far = np.where(x[:-1] < 0, left[1:], right[:-1]), np.where(x[:-1] < 0, left[:-1], right[1:])
    apart = near - far
    size = np.maximum(np.abs(x[1:]), np.abs(x[:-1]))
    off = 1e-14 * (2 + np.abs(near) + np.abs(far)) + _UNIT * (1 + size) * (size + mu)
    return near + np.log(-np.expm1(-apart)), off * (1 + 1 / np.expm1(np.maximum(apart, 1e-300)))


@dataclass(frozen=True)
class Curve:
    """Certified bounds on log delta."""

    less: Points
    more: Points
    shift: float
    """How far losses that reveal less may be off."""
    margin: float
    """And the logs of masses."""

    @staticmethod
    def of(less: Laws, more: Laws, length: float, top: float, points: int, rare: float, spread: float) -> Curve:
        both = (*less, *more)
        frames = [Frame.of(both, length, top, points, rare, spread, above=above) for above in (False, True)]
        below, above = (stack(laws, frame) for laws, frame in zip((less, more), frames, strict=True))
        steps = sum(count for _, count in less)
        sizes = [law.losses.size if isinstance(law, Outcomes) else 4 for law, _ in less]
        return Curve(
            points_of(below[0], frames[0].spacing),
            points_of(above[0], frames[1].spacing),
            _UNIT * steps * (64 + max(sizes)),
            _UNIT * steps * (max(below[1], above[1]) + 64) + 1e-11,
        )

    def __call__(self, epsilons: Array) -> tuple[Array, Array]:
        lower = self.less.log_delta(epsilons + self.shift) - self.margin
        return lower, np.minimum(self.more.log_delta(epsilons) + self.margin, 0.0)


def points_of(found: Stack, spacing: float) -> Points:
    told = found.masses > 0
    losses = np.asarray(found.origin + spacing * (found.first + np.arange(found.masses.size)), dtype=np.float64)
    if not told.any():
        return Points(losses[:1], np.full(1, -745.0), found.infinite)
    return Points(losses[told], np.log(found.masses[told]), found.infinite)


def _widest(seen: Sequence[Look]) -> tuple[float, float, float]:
    """Length, top and spread of a lattice that serves all."""
    if not seen:
        return _FURTHEST, _FURTHEST, math.inf
    return max(one.length for one in seen), max(one.top for one in seen), max(one.spread for one in seen)


@np.errstate(all="ignore")
def epsilon(less: Laws, more: Laws, guess: float, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta)."""
    seen = look(more, 1.1 * guess + _MARGIN, _COARSE, log_delta=log_delta)
    seen = seen or look(more, _FURTHEST, _COARSE, log_delta=log_delta)
    # what reveals less may end further out: its last outcome is where a chord of the curve ends
    other = look(less, _FURTHEST if seen is None else 1.1 * seen.at + _MARGIN, _COARSE, log_delta=log_delta)
    length, top, spread = _widest([one for one in (seen, other) if one is not None])
    guess = seen.at if seen is not None else other.at if other is not None else guess
    low, high, gap = 0.0, math.inf, math.inf
    for points in _POINTS:
        curve = Curve.of(less, more, length, top, points, math.exp(log_delta) * _RARE, spread)
        low, high = within((low, high), root_of_each(curve, guess, log_delta, tolerance))
        if is_narrow(low, high, tolerance) or not high - low < _NARROWED * gap:
            break
        gap, guess = high - low, 0.5 * (low + high)
    return low, high


@np.errstate(all="ignore")
def log_delta(less: Laws, more: Laws, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    seen = [one for laws in (less, more) if (one := look(laws, epsilon + _MARGIN, _COARSE, epsilon=epsilon))]
    length, top, spread = _widest(seen)
    rare = math.exp(max(min(s.size for s in seen), _DEEPEST)) * _RARE
    low, high, gap = -math.inf, 0.0, math.inf
    for points in _POINTS:
        curve = Curve.of(less, more, length, top, points, rare, spread)
        lower, upper = (float(side[0]) for side in curve(np.array([epsilon])))
        low, high = max(low, lower), min(high, upper)
        if high - low <= tolerance * max(1.0, -high) or not high - low < _NARROWED * gap:
            break
        gap = high - low
    return low, high
