"""Compositions on two lattices at once, by products of positive numbers: a delta keeps its digits however small it is.

Contour integrals know delta to 1e-16 of what Chernoff's bound says.  Where a few large losses decide among many small
ones, as they do for groups of records, that is too little, and each of them serves few epsilons.  Here laws of losses
under P are added up by multiplying masses.  Sums that are small lie on a fine lattice and all others on a coarse one,

    (fine + coarse)^2 = fine^2 + (2 fine coarse + coarse^2),

where the fine sums are put on the coarse lattice before they are added to a large loss: once for each doubling, instead
of once a step.  Masses are tilted by e^{cL}, so that a whole curve, down to deltas of 1e-400 and less, fits into
floating-point numbers.  One such law serves all epsilons up to where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.lattices.bins import one_sided
from hush.accounting.lattices.sums import PARTS, SMALL, TOO_DEEP, UNIT, Frame, Sums, either, on_lattices
from hush.accounting.mixed import scattered
from hush.accounting.pairs.losses import Array, Enclosed, Pair, Poisson, Reversed
from hush.accounting.pairs.points import Points, exact
from hush.accounting.tails.sides import Side

Steps = Sequence[tuple[Pair, int]]

_FEWEST = 800  # coarse points
_COST = 1.2e9  # products in all, about half a second
_FINER = 1.15  # times as fine as errors of second order ask for
_BEYOND = 12.0  # a loss that far beyond epsilon may count as infinite
_RIGHT = 1.02  # times an epsilon: as far to the right a law serves as well
_BELOW = 24.0  # logs: what sums so far below 0 may add to delta
_LISTED = 1000  # sums of losses at points that are kept as they are
_SURE = 30.0  # minus the log of a share of delta that rounding may add
_DIFFERENCE = 1e-10  # what a difference of two sums that are near 1 may be off
_LOOKS = 8
_FEW = 3.0  # of log delta
_NEARLY = 2.0  # times the most points: it is worth to take as many
_WIDER = 2.5  # times as far
_DEEPER = 1.02  # times a log delta: it was another
_WIDEST = 0.3  # of log delta: a law that tells something
_BALANCED = 3  # rounds


@dataclass(frozen=True)
class Bound:
    """Log delta of the law that reveals more, or less, from sums of positive terms, rounded to the safe side."""

    law: Points
    above: bool
    shift: float
    """What to take from an epsilon, or to add to it."""
    margin: float
    log_infinite: float
    log_sure: float
    listed: Points | None

    @cached_property
    def _tails(self) -> tuple[Array, Array]:
        """Losses, and logs of delta: e^-l_k delta(l_k) is the sum over j > k of P(L >= l_j) (e^-l_{j-1} - e^-l_j)."""
        losses, logs = self.law.losses, self.law.logs
        beyond = np.logaddexp.accumulate(logs[::-1])[::-1]
        gaps = np.diff(losses)
        with np.errstate(divide="ignore"):
            terms = beyond[1:] - losses[:-1] + np.log(-np.expm1(-gaps))
        sums = np.append(np.logaddexp.accumulate(terms[::-1])[::-1], -np.inf)
        return losses, sums + losses

    def finite(self, epsilons: Array) -> Array:
        """Of finite losses, at epsilons of any sign: between two losses it is linear in e^epsilon."""
        losses, deltas = self._tails
        k = np.clip(np.searchsorted(losses, epsilons, side="right") - 1, 0, losses.size - 2)
        low, high = losses[k], losses[k + 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.log(-np.expm1(low - high))
            left = np.log(-np.expm1(np.minimum(epsilons - high, 0.0))) - width
            right = epsilons - high + np.log(-np.expm1(np.minimum(low - epsilons, 0.0))) - width
            found = np.logaddexp(deltas[k] + left, deltas[k + 1] + right)
            # below all losses delta is P less e^epsilon Q, which is linear too
            total, spent = (float(np.logaddexp.reduce(logs)) for logs in (self.law.logs, self.law.logs - losses))
            rest = -np.expm1(np.minimum(epsilons + spent - total, 0.0)) + (_DIFFERENCE if self.above else -_DIFFERENCE)
            low_end = total + np.log(np.clip(rest, 0.0, 1.0))
        found = np.where(epsilons <= losses[0], low_end, found)
        return np.where(epsilons >= losses[-1], -np.inf, found)

    def __call__(self, epsilons: Array) -> Array:
        at = epsilons + self.shift
        if self.listed is None:
            found = self.finite(at)
        else:
            terms = self.finite(np.subtract.outer(at, self.listed.losses).ravel()).reshape(at.size, -1)
            found = np.logaddexp.reduce(terms + self.listed.logs, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.logaddexp(found, self.log_infinite)
            if self.above:
                return np.asarray(np.minimum(np.logaddexp(found, self.log_sure) + self.margin, 0.0))
            kept = np.log(-np.expm1(np.minimum(self.log_sure - found, 0.0)))
            return np.where(found > self.log_sure, found + kept - self.margin, -np.inf)


def _both(less: Bound, more: Bound, epsilons: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        lower, upper = less(epsilons), more(epsilons)
        lower, upper = np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), 0.0, upper)
    return np.minimum(lower, upper), np.maximum(lower, upper)


@dataclass(frozen=True)
class Task:
    """A composition: what has few sums is kept as it is, and all else goes to the lattices."""

    steps: Steps

    @cached_property
    def _parts(self) -> tuple[list[tuple[Pair, int]], tuple[Points, float, float] | None]:
        rest = [(pair, count) for pair, count in self.steps if not isinstance(exact(pair), Points)]
        points = [(pair, count) for pair, count in self.steps if isinstance(exact(pair), Points)]
        listed = scattered.sums(points, _LISTED) if points else None
        return (rest, listed) if listed is not None and rest else (list(self.steps), None)

    @property
    def sums(self) -> int:
        """How many laws are added up."""
        return sum(2 * count.bit_length() for _, count in self._parts[0])

    def bound(self, frame: Frame, log_delta: float) -> Bound:
        """With deltas below exp(log_delta - 30) not told apart."""
        rest, listed = self._parts
        total: Sums | None = None
        laws: list[tuple[Points, int]] = []
        origin, steps = 0.0, sum(count for _, count in rest)
        for pair, count in rest:
            law, known, moved = _law_of(pair, frame)
            laws.append((known, count))
            power = on_lattices(law, frame).times(count, frame)
            total = power if total is None else total.plus(power, frame)
            origin += count * moved
        assert total is not None
        side = Side(tuple(laws), frame.above)
        law = total.law(frame)
        if not law.losses.size > 1:
            raise OverflowError(TOO_DEEP)
        longest = max(total.fine.size, total.coarse.size) + law.losses.size
        depth = float(np.abs(law.logs).max())
        shift = side.doubt(log_delta) + UNIT * (64 + 4 * PARTS) * (total.moves + 4 * steps) + 8 * UNIT * abs(origin)
        margin = side.margin + UNIT * ((steps + 8) * (longest + 64) + law.losses.size * (64 + depth)) + 1e-12
        log_infinite = total.log_infinite
        sums, log_sure = None, log_delta - _SURE
        if listed is not None:
            sums, off, more = listed
            shift, margin = shift + off, margin + more
            if sums.infinite > 0:
                log_infinite = either(log_infinite, math.log(sums.infinite))
        sign = -1.0 if frame.above else 1.0
        return Bound(law, frame.above, sign * shift - origin, margin, log_infinite, log_sure, sums)

    def _aimed(self, epsilon: float, log_delta: float, wider: float) -> tuple[float, float]:
        """A tilt, and where the lattices may end: beyond where they decide, as if their log delta were -k x^2."""
        listed = self._parts[1]
        losses, logs = (listed[0].losses, listed[0].logs) if listed is not None else (np.zeros(1), np.zeros(1))
        left = np.maximum(epsilon - losses, 1e-3 * epsilon)
        bends = -log_delta * np.geomspace(1e-3, 1e6, 400) / epsilon**2
        sizes = np.logaddexp.reduce(logs - np.multiply.outer(bends, left**2), axis=1)
        bend = float(bends[min(int(np.argmax(sizes < log_delta)), bends.size - 1)])
        best = int(np.argmax(logs - bend * left**2))
        at, slope = float(left[best]), bend * float(left[best])
        reach = _RIGHT * at + wider * (_BEYOND - float(logs[best])) / max(slope, 1.0)
        return slope, min(reach, _RIGHT * float(left.max()) + _BEYOND)

    @np.errstate(all="ignore")
    def curve_at(self, epsilon: float, log_delta: float, width: float) -> Curve | None:
        """Certified bounds on log delta up to an epsilon, where it is about that, to so much if that can be had."""
        size, wider, points, looks = min(log_delta, -1.0), 1.0, _FEWEST, 0
        best, narrowest, most = None, math.inf, int(math.sqrt(_COST / (2 * self.sums)))
        while looks < _LOOKS:
            looks += 1
            tilt, high = self._aimed(epsilon, size, wider)
            low = -_BELOW / (1 + tilt) - SMALL * high / _FEWEST
            frames = [Frame.of(low, high, points, tilt, above=above) for above in (False, True)]
            try:
                less, more = (self.bound(frame, 1.1 * size - 1) for frame in frames)
            except OverflowError:
                break
            curve = partial(_both, less, more)
            below, above = (float(end[0]) for end in curve(np.array([epsilon])))
            gap = above - below
            if gap < narrowest:
                best, narrowest = curve, gap
            if gap <= width:
                break
            if more.log_infinite > above - _FEW:  # what lies beyond decides
                wider *= _WIDER
            elif above < _DEEPER * size - 1:  # delta is smaller than it was said to be
                size = below if gap < _FEW else _DEEPER * above
            elif points >= most or not (finer := _FINER * points * math.sqrt(gap / width)) < _NEARLY * most:
                break
            else:
                points = min(math.ceil(finer), most)
        return best if narrowest < _WIDEST else None


def _law_of(pair: Pair, frame: Frame) -> tuple[Points, Points, float]:
    """One step's law, near lattice points but for an origin; as it was enclosed; and that origin."""
    side = (pair.upper if frame.above else pair.lower) if isinstance(pair, Enclosed) else pair
    known, edges = exact(side), frame.edges
    if isinstance(known, Points):
        return known, known, 0.0
    origin = _origin_of(side)
    if frame.above:
        law = one_sided(side, edges + origin, above=True)
        return replace(law, losses=law.losses - origin), law, origin
    # bins of large losses whose own losses are those of lattice points, or a little more
    large = np.flatnonzero(edges > (SMALL + 0.5) * frame.coarse)
    ends = edges.copy()
    ends[large] -= 0.5 * frame.coarse
    for k in range(_BALANCED):
        law = one_sided(side, ends + origin, above=False)
        losses = law.losses - origin
        bins = np.searchsorted(ends, losses, side="right") - 1
        told = bins >= large[0] if large.size else np.zeros(bins.shape, dtype=bool)
        if k == _BALANCED - 1 or not told.any():
            break
        missing = np.interp(edges[large], losses[told], edges[bins[told]] - losses[told])
        missing += 1e-3 * np.abs(missing) + 1e-9 * frame.coarse
        ends[large] += np.clip(missing, -0.2 * frame.coarse, 0.2 * frame.coarse)
    return replace(law, losses=losses), law, origin


def _origin_of(pair: Pair) -> float:
    """The loss of most of the mass: on a Poisson sample that of no hit."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    if not isinstance(sample, Poisson) or not sample.rate < 1:
        return 0.0
    return math.log1p(-sample.rate) if sample is pair else -math.log1p(-sample.rate)
