"""Compositions on two lattices at once, by products of positive numbers: a delta keeps its digits however small it is.

Contour integrals know delta to 1e-16 of what Chernoff's bound says.  Where a few large losses decide among many small
ones, as they do for groups of records, that is too little, and each of them serves few epsilons.  Here laws of losses
under P are added up by multiplying masses, as among groups (stacks.py).  Sums that are small lie on a fine lattice and
all others on a coarse one,

    (fine + coarse)^2 = fine^2 + (2 fine coarse + coarse^2),

where the fine sums are put on the coarse lattice before they are added to a large loss: once for each doubling, instead
of once a step.  Masses are tilted by e^{cL}, so that a whole curve, down to deltas of 1e-400 and less, fits into
floating-point numbers.  One such law serves all epsilons up to where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.among.outcomes import Outcomes
from hush.accounting.among.stacks import log_bins, merged
from hush.accounting.contours.crossing import Curve
from hush.accounting.gaussian.closed import inner_loss
from hush.accounting.mixed import scattered
from hush.accounting.pairs.losses import Array, Enclosed, GaussianPair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.points import Points, exact
from hush.accounting.tails.binning import below, enclosing
from hush.accounting.tails.sides import Side

Steps = Sequence[tuple[Pair, int]]

_UNIT = 2.0**-50
_PARTS = 16  # points of the fine lattice to one of the coarse one
_SMALL = 4  # coarse points: the losses of one step that are small
_WINDOW = 128  # coarse points: sums that are
_FEWEST = 800  # coarse points
_COST = 1.2e9  # products in all, about half a second
_FINER = 1.15  # times as fine as errors of second order ask for
_BEYOND = 12.0  # a loss that far beyond epsilon may count as infinite
_RIGHT = 1.02  # times an epsilon: as far to the right a law serves as well
_BELOW = 24.0  # logs: what sums so far below 0 may add to delta
_LISTED = 1000  # sums of losses at points that are kept as they are
_BALANCED = 3  # rounds
_SURE = 30.0  # minus the log of a share of delta that rounding may add
_LOST = 1e-296  # of all mass, tilted: more than what is lost at one point to products too small for floating point
_UNDERFLOW = 2e-319  # what one point loses to products too small for floating point
_LEAST = 1e-200  # of it, that is left
_LOWEST = 45.0  # log of how much more it counts moved up
_MISSED = 1e-289  # what laws of floating-point masses may miss
_DEEP = -600.0  # log of a tail below which masses have only logarithms
_DIFFERENCE = 1e-10  # what a difference of two sums that are near 1 may be off
_LOOKS = 8
_FEW = 3.0  # of log delta
_NEARLY = 2.0  # times the most points: it is worth to take as many
_WIDER = 2.5  # times as far
_DEEPER = 1.02  # times a log delta: it was another
_TOO_DEEP = "Masses of sums don't fit into floating-point numbers."
_WIDEST = 0.3  # of log delta: a law that tells something


@dataclass(frozen=True)
class Frame:
    """Both lattices: the fine spacing, a number of few digits; the first and last coarse point; tilt; which bound."""

    fine: float
    first: int
    last: int
    tilt: float
    above: bool

    @staticmethod
    def of(low: float, high: float, points: int, tilt: float, *, above: bool) -> Frame:
        size, exponent = math.frexp((high - low) / (points * _PARTS))
        fine = math.ldexp(math.ceil(size * 2**20), exponent - 20)
        coarse = fine * _PARTS
        return Frame(fine, math.floor(low / coarse), math.ceil(high / coarse), tilt, above)

    @property
    def coarse(self) -> float:
        return self.fine * _PARTS

    @property
    def edges(self) -> Array:
        """All lattice points: fine ones around 0."""
        small = _SMALL * _PARTS
        outer = np.arange(self.first, self.last + 1)
        outer = outer[np.abs(outer) > _SMALL]
        return np.sort(np.append(self.coarse * outer, self.fine * np.arange(-small, small + 1)))

    def coarsened(self, masses: Array, first: int) -> tuple[Array, int]:
        """Tilted masses on the fine lattice, from a point on, put on the coarse one: split, or merged."""
        index = first + np.arange(masses.size)
        low = index // _PARTS
        if self.above:
            up = self.fine * (index - _PARTS * low)
            down = self.coarse - up
            # P- and Q-mass are kept: (1 - e^-u)/(1 - e^-h) of the mass goes up
            whole = -math.expm1(-self.coarse)
            higher = masses * (-np.expm1(-up) / whole) * np.exp(self.tilt * down)
            lower = masses * (np.exp(-up) * -np.expm1(-down) / whole) * np.exp(-self.tilt * up)
            begin, size = int(low[0]), int(low[-1] - low[0]) + 2
            split = np.bincount(low - begin, lower, size) + np.bincount(low - begin + 1, higher, size)
            return np.asarray(split, dtype=np.float64), begin
        begin, end = int(low[0]) - 1, int(low[-1]) + 2
        told = masses > 0
        losses = np.asarray(self.fine * index, dtype=np.float64)
        middle = float(losses[int(np.argmax(masses))])
        plain = masses * np.exp(-self.tilt * (losses - middle))
        found = merged(losses[told], plain[told], begin, end, self.coarse)
        return found * np.exp(self.tilt * (self.coarse * np.arange(begin, end + 1) - middle)), begin


@dataclass(frozen=True)
class Sums:
    """Tilted P-masses of sums, on the fine and on the coarse lattice, each from a point on, times exp(scale).

    And the logs of the (plain) P-mass of infinite ones, and how many times fine sums were put on the coarse lattice.
    """

    fine: Array
    fine_first: int
    coarse: Array
    coarse_first: int
    scale: float
    log_infinite: float
    moves: int = 0

    @staticmethod
    def of(
        frame: Frame,
        fine: tuple[Array, int],
        coarse: Sequence[tuple[Array, int]],
        scale: float,
        log_infinite: float,
        moves: int,
    ) -> Sums:
        """With what isn't small moved to the coarse lattice, and what lies beyond it to the safe side."""
        masses, first = fine
        reach = _WINDOW * _PARTS
        inside = np.abs(first + np.arange(masses.size)) <= reach
        begin, end = int(np.argmax(inside)), masses.size - int(np.argmax(inside[::-1]))
        parts = [*coarse]
        if not inside.any():
            parts, masses, first = [*parts, frame.coarsened(masses, first)], np.zeros(1), 0
        elif not inside.all():
            outside = [(masses[:begin], first), (masses[end:], first + end)]
            parts += [frame.coarsened(some, at) for some, at in outside if some.size]
            masses, first, moves = masses[begin:end], first + begin, moves + 1
        found = np.zeros(frame.last - frame.first + 1)
        for some, at in parts:
            index = at + np.arange(some.size)
            here = (index >= frame.first) & (index <= frame.last)
            found[index[here] - frame.first] += some[here]
            low, high = index < frame.first, index > frame.last
            if frame.above and low.any():  # moved up, P-mass kept, and what each may have lost to underflow
                found[0] += float(
                    (some[low] + _UNDERFLOW) @ np.exp(frame.tilt * frame.coarse * (frame.first - index[low]))
                )
            if high.any() and frame.above:
                logs = np.log(some[high] + _LOST) - frame.tilt * frame.coarse * index[high] + scale
                log_infinite = float(np.logaddexp(log_infinite, np.logaddexp.reduce(logs)))
            elif high.any():  # moved down
                found[-1] += float(some[high] @ np.exp(frame.tilt * frame.coarse * (frame.last - index[high])))
        total = float(masses.sum() + found.sum())
        if not _LEAST < total < math.inf or frame.tilt * frame.coarse * -frame.first > _LOWEST:
            raise OverflowError(_TOO_DEEP)
        # products that underflow, also where they are moved up, are worth less than what is added everywhere
        lost = _LOST / total if frame.above else 0.0
        masses, found = masses / total + lost, found / total + lost
        return Sums(masses, first, found, frame.first, scale + math.log(total), log_infinite, moves)

    def plus(self, other: Sums, frame: Frame) -> Sums:
        one, two = (frame.coarsened(law.fine, law.fine_first) for law in (self, other))
        coarse = [
            (np.convolve(self.coarse, other.coarse), self.coarse_first + other.coarse_first),
            (np.convolve(self.coarse, two[0]), self.coarse_first + two[1]),
            (np.convolve(one[0], other.coarse), one[1] + other.coarse_first),
        ]
        return Sums.of(
            frame,
            (np.convolve(self.fine, other.fine), self.fine_first + other.fine_first),
            coarse,
            self.scale + other.scale,
            _either(self.log_infinite, other.log_infinite),
            self.moves + other.moves + 2,
        )

    def times(self, count: int, frame: Frame) -> Sums:
        """So many of them, by doubling; moves count for a path, which takes either half once."""
        result, double = None, self
        while True:
            if count % 2:
                result = double if result is None else result.plus(double, frame)
            count //= 2
            if count == 0:
                assert result is not None
                return result
            double = double.plus(double, frame)

    def law(self, frame: Frame) -> Points:
        """All of it."""
        losses = np.append(
            frame.fine * (self.fine_first + np.arange(self.fine.size)),
            frame.coarse * (self.coarse_first + np.arange(self.coarse.size)),
        )
        masses = np.append(self.fine, self.coarse)
        kept = masses > (0.0 if frame.above else _LOST)
        losses, masses = losses[kept], masses[kept]
        order = np.argsort(losses, kind="stable")
        logs = np.log(masses[order]) - frame.tilt * losses[order] + self.scale
        return Points(losses[order], logs)


def _either(one: float, other: float) -> float:
    """log of the chance of either of two independent events."""
    return float(np.logaddexp(one, other + math.log1p(-math.exp(one)))) if one < -1e-15 else one


def _single(pair: Pair, frame: Frame) -> tuple[Points, Points, float]:
    """One step's law, near lattice points but for an origin; as it was enclosed; and that origin."""
    side = (pair.upper if frame.above else pair.lower) if isinstance(pair, Enclosed) else pair
    known, edges = exact(side), frame.edges
    if isinstance(known, Points):
        return known, known, 0.0
    origin = _origin(side)
    if frame.above:
        law = _more(side, edges + origin)
        return Points(law.losses - origin, law.logs, law.infinite, log_hidden=law.log_hidden), law, origin
    # bins of large losses whose own losses are those of lattice points, or a little more
    large = np.flatnonzero(edges > (_SMALL + 0.5) * frame.coarse)
    ends = edges.copy()
    ends[large] -= 0.5 * frame.coarse
    for k in range(_BALANCED):
        law = _less(side, ends + origin)
        losses = law.losses - origin
        bins = np.searchsorted(ends, losses, side="right") - 1
        told = bins >= large[0] if large.size else np.zeros(bins.shape, dtype=bool)
        if k == _BALANCED - 1 or not told.any():
            break
        missing = np.interp(edges[large], losses[told], edges[bins[told]] - losses[told])
        missing += 1e-3 * np.abs(missing) + 1e-9 * frame.coarse
        ends[large] += np.clip(missing, -0.2 * frame.coarse, 0.2 * frame.coarse)
    return Points(losses, law.logs, law.infinite), law, origin


def _less(pair: Pair, ends: Array) -> Points:
    """What reveals less: bins seen as one outcome, of Gaussian noise also where masses have only logarithms."""
    far = _Far.of(pair, ends)
    if far is None:
        return enclosing(pair, ends)[0]
    law = below(pair, ends[: far.first + 1])[0]
    found = far.log_p - far.log_q - far.off_p - far.off_q
    told = np.isfinite(found) & (far.off_p + far.off_q < 1e-3)
    return Points(
        np.append(law.losses, found[told] - far.rounding[told]),
        np.append(law.logs, (far.log_p - far.off_p)[told]),
        law.infinite,
    )


def _more(pair: Pair, ends: Array) -> Points:
    """What reveals more: bins split between their ends, of Gaussian noise also where masses have only logarithms.

    With a bin's P as large and Q as small as they may be.  (What enclosing laws count beyond their last edge is counted
    here, bin by bin; masses too small for floating point, at losses below 0, are put at 0.)
    """
    far = _Far.of(pair, ends)
    if far is None:
        return enclosing(pair, ends)[1]
    law = enclosing(pair, ends[: far.first + 1])[1]
    low, high = ends[far.first : -1], ends[far.first + 1 :]
    log_p, log_q = far.log_p + far.off_p, far.log_q - far.off_q
    whole = np.log(-np.expm1(low - high))
    # (P - e^lo Q)/(1 - e^{lo-hi}) at the upper end, no more than P, and the rest, rounded up, at the lower one
    up = log_p + np.log(np.clip(-np.expm1(low + log_q - log_p - far.rounding), 0.0, 1.0)) - whole
    up = np.minimum(np.where(np.isnan(up), log_p, up), log_p)
    down = low + log_q + np.log(np.clip(-np.expm1(log_p - log_q - high - far.rounding), 0.0, 1.0)) - whole
    down = np.minimum(np.where(np.isnan(down), log_p, down), log_p)
    return Points(
        np.concatenate([law.losses, [0.0], low, high]),
        np.concatenate([law.logs, [math.log(_MISSED)], down + far.rounding, up + far.rounding]),
        0.0,
        log_hidden=far.log_beyond,
    )


@dataclass(frozen=True)
class _Far:
    """Bins of a Gaussian release, on a sample or not, from an edge on: logs of P- and Q-masses, how far these are off.

    P is (1-p) Q + p P', and Q and P' are a Gaussian's.
    """

    first: int
    log_p: Array
    log_q: Array
    off_p: Array
    off_q: Array
    rounding: Array
    log_beyond: float

    @staticmethod
    def of(pair: Pair, ends: Array) -> _Far | None:
        """None where no tail is that small, or the pair is another."""
        rate, inner = (pair.rate, pair.inner) if isinstance(pair, Poisson | Uniform) else (1.0, pair)
        above = np.flatnonzero(ends > 0)
        if not isinstance(inner, GaussianPair) or above.size < 2:
            return None
        mu, at = inner.mu, ends[above] if rate == 1 else inner_loss(rate, ends[above])
        tails = log_ndtr(mu / 2 - at / mu) + math.log(rate)
        if rate < 1:
            tails = np.logaddexp(tails, log_ndtr(-mu / 2 - at / mu) + math.log1p(-rate))
        deep = np.flatnonzero(tails < _DEEP)
        if deep.size < 2 or deep[0] == 0:
            return None
        (log_p, off_p), (log_q, off_q) = (log_bins(at[deep] / mu + way * mu / 2, mu) for way in (-1, 1))
        if rate < 1:
            log_p = np.logaddexp(log_p + math.log(rate), log_q + math.log1p(-rate))
            off_p = np.maximum(off_p, off_q)
        rounding = 32 * _UNIT * (1 + np.abs(log_p) + np.abs(log_q) + ends[above[deep[1:]]])
        last = float(tails[-1])
        return _Far(int(above[deep[0]]), log_p, log_q, off_p, off_q, rounding, last + 1e-9 * (1 + abs(last)))


def _origin(pair: Pair) -> float:
    """The loss of most of the mass: on a Poisson sample that of no hit."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    if not isinstance(sample, Poisson) or not sample.rate < 1:
        return 0.0
    return math.log1p(-sample.rate) if sample is pair else -math.log1p(-sample.rate)


def on_lattices(law: Points, frame: Frame) -> Sums:
    """A law's masses at lattice points, to the safe side."""
    order = np.argsort(law.losses, kind="stable")
    outcomes = Outcomes(law.losses[order], law.logs[order], 0.0)
    log_infinite = max(math.log(law.infinite) if law.infinite > 0 else -math.inf, -math.inf)
    log_infinite = float(np.logaddexp(log_infinite, law.log_hidden)) if frame.above else log_infinite
    edges = frame.edges
    if frame.above:
        beyond = outcomes.losses + 2 * outcomes.unsure > edges[-1]
        if beyond.any():
            log_infinite = float(np.logaddexp(log_infinite, np.logaddexp.reduce(outcomes.logs[beyond])))
        inside = Outcomes(outcomes.losses[~beyond], outcomes.logs[~beyond], 0.0)
        points = inside.more(edges)
        losses, logs = points.losses, points.logs
    else:
        losses, logs = outcomes.losses - 2 * outcomes.unsure, outcomes.logs - 1e-12
        small = np.abs(losses) < (_SMALL + 0.5) * frame.coarse
        places = np.searchsorted(edges, losses, side="right") - 1  # down to the next point
        told = ~small & (places >= 0)
        end = (_SMALL + 1) * _PARTS
        near = merged(losses[small], np.exp(logs[small]), -end, end, frame.fine)
        kept = np.flatnonzero(near > 0)
        losses = np.append(edges[places[told]], frame.fine * (kept - end))
        logs = np.append(logs[told], np.log(near[kept]))
    small = np.abs(losses) <= (_SMALL + 0.5) * frame.coarse
    logs = logs + frame.tilt * losses
    scale = float(logs.max(initial=-np.inf))
    if not math.isfinite(scale):  # all of it lies beyond the lattices
        raise OverflowError(_TOO_DEEP)
    masses = np.exp(logs - scale)
    parts = []
    for own, spacing in ((small, frame.fine), (~small, frame.coarse)):
        index = np.rint(losses[own] / spacing).astype(np.int64)
        first = int(index.min()) if index.size else 0
        parts.append((np.bincount(index - first, masses[own], 1).astype(np.float64), first))
    return Sums.of(frame, parts[0], [parts[1]], scale, log_infinite, 0)


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
            law, known, moved = _single(pair, frame)
            laws.append((known, count))
            power = on_lattices(law, frame).times(count, frame)
            total = power if total is None else total.plus(power, frame)
            origin += count * moved
        assert total is not None
        side = Side(tuple(laws), frame.above)
        law = total.law(frame)
        if not law.losses.size > 1:
            raise OverflowError(_TOO_DEEP)
        longest = max(total.fine.size, total.coarse.size) + law.losses.size
        depth = float(np.abs(law.logs).max())
        shift = side.doubt(log_delta) + _UNIT * (64 + 4 * _PARTS) * (total.moves + 4 * steps) + 8 * _UNIT * abs(origin)
        margin = side.margin + _UNIT * ((steps + 8) * (longest + 64) + law.losses.size * (64 + depth)) + 1e-12
        log_infinite = total.log_infinite
        sums, log_sure = None, log_delta - _SURE
        if listed is not None:
            sums, off, more = listed
            shift, margin = shift + off, margin + more
            if sums.infinite > 0:
                log_infinite = _either(log_infinite, math.log(sums.infinite))
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
            low = -_BELOW / (1 + tilt) - _SMALL * high / _FEWEST
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
