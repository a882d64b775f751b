"""Whole curves of a few large losses among many small ones, however small delta is: what groups of records ask for.

Contour integrals know delta to 1e-16 of what Chernoff's bound says, which is too little where one large loss is as
likely as many small ones.  So losses above a threshold are told apart.  Let s be the measure of one step's losses up to
it and J that of the others; T steps have the measure

    (s + J)^T = sum over j of (T choose j) s^(T-j) J^j,

all products being convolutions.  Sums of large losses are added up on a lattice, in logarithms of positive masses
(logs.py).  What small ones reveal beside a sum x of large ones is D(eps - x), D(y) the integral of (1 - e^{y-l})_+ over
their measure: a few contour integrals, for without large losses there is no second hump.  And

    delta(eps) = sum over x of C(x) D(eps - x)

keeps its digits at any depth.  D hangs on j, but hardly.  Let m_P and m_Q be the P- and Q-mass of s, k = log(m_Q/m_P),
and d_n the curve of n steps of the pair (s/m_P, e^-l s/m_Q), whose losses are l + k.  Then D_n(y) = m_P^n d_n(y + n k),
and d_n rises with n, so that with at most M large losses

    m_P^j D_{T-j}(y) <= D_T(y - M k),    D_{T-j}(y) >= m_P^M D_{T-M}(y + M k).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hush.accounting.lattices import logs
from hush.accounting.lattices.bins import balanced, one_law
from hush.accounting.lattices.framed import AROUND, HUMP, SURVEY, Frame, log_infinite
from hush.accounting.lattices.listed import Beside
from hush.accounting.lattices.small import Saddles, small_curve, with_left
from hush.accounting.mixed import tilted
from hush.accounting.pairs.losses import Array, Enclosed, GaussianPair, Pair
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, loss_range
from hush.accounting.tails.binning import directed
from hush.accounting.tails.sides import Side

Steps = Sequence[tuple[Pair, int]]

_UNIT = 2.0**-50
_POINTS, _MANY = 1600, 6400  # of the lattice at most
_FIRST = 3  # points: losses on the lattice are no smaller, if possible
_RARE = 0.1  # of what epsilon may be off
_RATIOS = 0.008, 0.06  # of small bins' widths to losses: variance is off by a sixth of the square
_LOWEST = 60.0  # losses below minus that are moved up to it
_LINES, _FEWEST = 60, 8  # for all terms, for one of them
_MOST, _FEW = 40, 10  # large losses that are counted one by one, of few points and of many
_EXACT = 6  # steps whose large losses always are
_LIKELY = -20.0  # log of a chance that is smaller than the sum of what makes it up
_CROSSED = 24  # terms of several such kinds
_TOGETHER = 20  # of that many steps, one large loss more or less is as good
_SLIGHT = -7.0  # log of a share of delta that isn't worth a large loss more


def finely(steps: Steps, deepest: float, slack: float, furthest: float) -> Beside | None:
    """On a lattice of many more points, where it takes these."""
    return curve(steps, deepest, slack, furthest, _MANY)


def curve(steps: Steps, deepest: float, slack: float, furthest: float, points: int = _POINTS) -> Beside | None:
    """Certified bounds on log delta, down to about a `deepest` one, to about so much of epsilon.

    None where the small losses have no saddle points.
    """
    frame = Frame.of(steps, deepest, slack, furthest, points)
    more = _Parts.of(steps, frame, above=True)
    saddles = Saddles.of(more.side, frame)
    if saddles is None:
        return None
    upper = more.ends(saddles, frame, more.compound)
    less = _Parts.of(steps, frame, above=False, about=upper)
    lower = less.ends(saddles, frame, more.compound)
    return Beside(
        (lower.places - lower.shift, lower.values - lower.margin),
        (upper.places + upper.shift, np.minimum(upper.values + upper.margin, 0.0)),
        lower.log_rest,
        upper.log_rest,
        frame.log_beyond,
    )


_NOTHING = Points(np.zeros(1), np.zeros(1))


@dataclass(frozen=True)
class _Split:
    """One step's law: the small losses, logs of the large ones' masses on the lattice, and of what lies beyond it."""

    small: Points
    large: Array
    log_beyond: float
    moved: float
    """How far a large loss may be off the lattice."""
    rest: Points
    """The large losses as they were, of a step that has one."""
    infinite: float
    most: int
    """How many large losses fit on the lattice."""

    @property
    def log_p(self) -> float:
        return float(np.logaddexp.reduce(self.small.logs))

    @property
    def shift(self) -> float:
        """k, and what rounding may add."""
        log_q = float(np.logaddexp.reduce(self.small.logs - self.small.losses))
        return max(log_q - self.log_p, 0.0) + 1e-15

    def log_mgf(self, orders: Array, frame: Frame) -> Array:
        """log of the integral of e^{cx} over large losses x on the lattice, and of 1 over small ones."""
        known = np.flatnonzero(self.large > -np.inf)
        grown = np.logaddexp.reduce(self.large[known] + np.multiply.outer(orders, frame.spacing * known), axis=1)
        return np.asarray(np.logaddexp(self.log_p, grown))

    @staticmethod
    def of(pair: Pair, frame: Frame, *, above: bool) -> _Split:
        if isinstance(pair, Enclosed):
            pair = pair.upper if above else pair.lower
        h, first = frame.spacing, _first(pair, frame)
        least = first * h
        low, high = (scale := _scale(pair)), max(-max(-_LOWEST, 1.01 * loss_range(pair)[0]), 2 * scale)
        ratio = min(
            max(math.sqrt(2 * frame.slack / frame.end), _RATIOS[0]), _RATIOS[1]
        )  # variance is off by its square
        ends = (math.log(max(end / low, 2.0)) / ratio for end in (least, high))
        small, negative = (
            np.geomspace(min(low, 0.5 * end), end, max(int(count), 8))
            for end, count in zip((least, high), ends, strict=True)
        )
        inner = np.concatenate([-negative[::-1], [0.0], small[:-1]])
        lattice: Array = np.asarray(h * np.arange(first, frame.points), dtype=np.float64)
        if above:
            law = one_law(pair, np.append(inner, lattice), above=True)
            tiny = law.losses < least * (1 - 1e-9)
            index = np.ceil(law.losses[~tiny] / h - 1e-6)
            moved = law.losses[~tiny] - h * index
        else:
            law = balanced(pair, inner, lattice)
            tiny = law.losses < least
            index = np.floor(law.losses[~tiny] / h + 1e-6)
            moved = h * index - law.losses[~tiny]
        masses, inside = law.logs[~tiny], index < frame.points
        large = np.full(frame.points, -np.inf)
        np.logaddexp.at(large, index[inside].astype(np.int64), masses[inside])
        beyond = float(np.logaddexp.reduce(np.append(masses[~inside], log_infinite(law))))
        # small losses have their digits where they are rounded to one side, one by one
        made = directed(pair, np.append(inner, least), open=True)
        few = law if made is None else made[int(above)]
        order = np.argsort(few.losses, kind="stable")
        order = order[few.losses[order] < (least * (1 - 1e-9) if above else least)]
        kept = replace(few, losses=few.losses[order], logs=few.logs[order], infinite=0.0, log_hidden=-math.inf)
        off = max(float(moved.max(initial=0.0)), 0.0)
        rest = Points(law.losses[~tiny], masses - np.logaddexp.reduce(masses)) if masses.size else _NOTHING
        return _Split(kept, large, beyond, off, rest, law.infinite, (frame.points - 1) // first)


def _first(pair: Pair, frame: Frame) -> int:
    """From which lattice point on losses are large: as soon as they are so rare that k is nothing."""
    last = max(round(HUMP / (frame.steepest * frame.spacing)), 1)
    places = np.arange(min(_FIRST, last), min(last, frame.points - 2) + 1)
    masses = pair.masses(np.asarray(frame.spacing * places, dtype=np.float64))[0]
    rare = np.cumsum(masses[::-1])[::-1][1:] * (frame.points / places) < _RARE * frame.slack
    return int(places[int(np.argmax(rare))]) if rare.any() else int(places[-1])


def _scale(pair: Pair) -> float:
    """Half the size of losses that make up all but a millionth of their mean square."""
    p = pair.masses(AROUND)[0][1:-1]
    middle = 0.5 * (AROUND[1:] + AROUND[:-1])
    sizes, weights = np.abs(middle), np.where(np.abs(middle) < _LOWEST, p * middle**2, 0.0)
    order = np.argsort(sizes)
    grown = np.cumsum(weights[order])
    return max(0.5 * float(sizes[order][int(np.argmax(grown > 1e-6 * grown[-1]))]), float(SURVEY[0]))


@dataclass(frozen=True)
class _Ends:
    """Log delta of one law at lattice points from one below 0 on; what to add to an epsilon and to log delta.

    And what to add to delta (a logarithm): of infinite losses, or of all that lies beyond the lattice.
    """

    places: Array
    values: Array
    small: Array
    """Of small losses alone."""
    shift: float
    margin: float
    log_rest: float


@dataclass(frozen=True)
class _Term:
    """Some numbers of large losses: logs of the masses of their sums, and the small losses beside them."""

    compound: Array
    laws: tuple[tuple[Scattered, int], ...]

    def beside(self, other: _Term) -> _Term:
        size = self.compound.size
        return _Term(logs.convolved(self.compound, other.compound, size), self.laws + other.laws)


@dataclass(frozen=True)
class _Parts:
    """One of the two laws of all steps: terms, what is added to delta, and how far all may be off."""

    terms: tuple[_Term, ...]
    above: bool
    log_rest: float
    shift: float
    margin: float

    @staticmethod
    def of(steps: Steps, frame: Frame, *, above: bool, about: _Ends | None = None) -> _Parts:
        """`about`: from above, so that as few large losses are counted as tell something."""
        whole: list[tuple[Scattered, int]] = []
        none = np.full(frame.points, -np.inf)
        none[0] = 0.0
        terms, shift, rounded = [_Term(none, ())], 1e-12 * frame.end, 64.0
        orders = frame.tilt * np.geomspace(0.02, 50, 60)
        several, one, log_inside, log_finite = -orders * frame.spacing * frame.points, -math.inf, 0.0, 0.0
        for pair, count in steps:
            if isinstance(pair, GaussianPair):
                whole.append((GaussianLaw(count * pair.mu**2), 1))
                own, moved = [_Term(none, (whole[-1],))], 0.0
            else:
                part = _Split.of(pair, frame, above=above)
                whole += [(part.small, count), (part.rest, min(part.most, count))]
                if count <= _EXACT and len(terms) * (count + 1) <= _CROSSED:
                    own, moved = _one_by_one(part, count, none)
                elif above:
                    own, moved = _all(part, count)
                else:
                    assert about is not None
                    beside = (
                        about.small if len(steps) == 1 else np.append(about.small[: frame.points - 1], about.values)
                    )
                    own, moved = _some(part, count, none, beside, np.maximum(about.values, frame.deepest))
                several = several + count * part.log_mgf(orders, frame)
                one = float(np.logaddexp(one, part.log_beyond + math.log(count)))
                log_inside += count * math.log1p(-min(math.exp(part.log_beyond), 1 - 2.0**-53))
                log_finite += count * math.log1p(-min(part.infinite, 1 - 2.0**-53))
                rounded += 16 * math.lgamma(count + 1.0)
            shift += moved
            terms = [term.beside(other) for term in terms for other in own]
            depth = max(float(np.abs(term.compound[term.compound > -np.inf]).max(initial=0.0)) for term in own)
            rounded += frame.points * (64 + 4 * depth) * len(own)
        doubts = Side(tuple(whole), above)
        shift, margin = shift + doubts.doubt(frame.deepest), doubts.margin + _UNIT * rounded
        # from above one large loss beyond the lattice, or sums of all kinds' together, by Chernoff's bound; from below
        # infinite ones
        if one > _LIKELY:
            one = math.log(-math.expm1(log_inside)) + 1e-9
        beyond = float(np.logaddexp(one, several.min() + 1e-6))
        infinite = math.log(-math.expm1(log_finite)) - 1e-9 if log_finite < 0 else -math.inf
        return _Parts(tuple(terms), above, beyond if above else infinite, shift, margin)

    @property
    def compound(self) -> Array:
        """All sums of large losses."""
        return np.asarray(np.logaddexp.reduce([term.compound for term in self.terms]))

    @property
    def side(self) -> tilted.Side:
        """The small losses beside the fewest large ones."""
        return tilted.Side(self.terms[0].laws, self.above)

    def ends(self, saddles: Saddles, frame: Frame, compound: Array) -> _Ends:
        """What small and large losses reveal together, at lattice points; `compound`: that of what reveals more."""
        found, small, lines = [], [], max(_LINES // len(self.terms), _FEWEST)
        for term in self.terms:
            side = tilted.Side(term.laws, self.above)
            values = with_left(side, small_curve(side, saddles, compound, frame, lines), saddles, frame)
            found.append(_gathered(values, term.compound))
            small.append(values)
        margin = self.margin + _UNIT * saddles.grid.size * (64 + 4 * abs(frame.deepest)) + _UNIT * 8 * len(found)
        total = np.logaddexp.reduce(found)
        return _Ends(saddles.grid, total, np.max(small, axis=0), self.shift, margin, self.log_rest)


def _ways(count: int, some: int) -> float:
    return math.lgamma(count + 1.0) - math.lgamma(some + 1.0) - math.lgamma(count - some + 1.0)


def _one_by_one(part: _Split, count: int, none: Array) -> tuple[list[_Term], float]:
    """A term for each number of large losses, and how far sums may be off."""
    found, power = [], none
    for k in range(count + 1):
        laws = ((part.small, count - k),) if k < count else ()
        found.append(_Term(power + _ways(count, k), laws))
        power = logs.convolved(power, part.large, none.size)
    return found, count * part.moved


def _all(part: _Split, count: int) -> tuple[list[_Term], float]:
    """All numbers of large losses at once, from above."""
    most = min(part.most, count)
    own = logs.compounded(part.large - part.log_p, count, part.large.size)
    return [_Term(own, ((part.small, count),))], most * (part.shift + part.moved)


def _some(part: _Split, count: int, none: Array, beside: Array, about: Array) -> tuple[list[_Term], float]:
    """As many as tell something, from below: a few numbers at once, that are seen as the largest of them."""
    found: list[_Term] = []
    power, last, together = none, 0, max(1, count // _TOGETHER)
    sums, first = none, 0
    most = min(count, _MOST if none.size <= 2 * _POINTS else _FEW)
    for k in range(1, most + 2):
        power = logs.convolved(power, part.large, none.size)
        more = power + _ways(count, k) if k <= most else np.full(none.size, -np.inf)
        tells = bool((_gathered(beside, more) > about + _SLIGHT).any())
        if not tells or k - first > together:
            laws = ((part.small, count - last),) if last < count else ()
            found.append(_Term(sums + (last - first) * min(part.log_p, 0.0), laws))
            sums, first = np.full(none.size, -np.inf), k
        if not tells:
            break
        sums, last = np.logaddexp(sums, more), k
    return found, min(together, last) * part.shift + last * part.moved


def _gathered(values: Array, compound: Array) -> Array:
    """log of the sum over m of C(m) D(n - m), from log D at lattice points, of which the first are as many as C's."""
    return logs.convolved(values, compound, values.size)[compound.size - 1 :]
