"""Where heavy tails are looked at: losses in cells by their size, brackets of cells, lines and bins for them.

Nothing here enters a bound: a poor look costs width, not truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.contours.line import log_peak
from hush.accounting.pairs.losses import Array, Pair
from hush.accounting.pairs.standing import few_of
from hush.accounting.pairs.survey import Survey
from hush.accounting.tails.brackets import log_of_log1p, log_share

Steps = Sequence[tuple[Pair, int]]
Span = tuple[int, int]
"""A bracket's first and last cell."""
Seen = dict[Span, tuple[float, float]]
"""log delta of brackets, and its slope, as an earlier computation nearby found them."""

_BEYOND = 14.0  # losses that far above epsilon count as infinite: it costs exp(-14) of their mass
_RATIO = 1.25  # of neighbouring ends of brackets, before some are joined
_SHARP = 2.0  # log of how far a bracket's Chernoff bound may exceed what its pieces add up to
_SHARPEST = 0.1  # the same of the bracket without jumps: its line would be flat, and take many nodes
_WIDEST = 6.0  # ratio of the ends of a bracket with jumps
_FLAT = 0.3  # of its steepest order, or of 1/epsilon: less, and averages that are narrow take too many nodes
_DIGITS = 18.0  # of the contour integral, to base e
_SLACK = 1.0  # log of how far the line's bound may exceed the best
_RARE = -22.0  # log of the share of delta that losses below the first bin may have
_NEVER = -36.0  # and those above the last one, where floating-point numbers can tell
_SHALLOW = -600.0  # log of such a delta
_BINS = 48_000  # at most, of all kinds together
_MOST_BINS = 100_000  # of one kind of step, whatever its losses are
_LONG = 50_000_000  # steps
_FEW = 0.1  # large losses expected: with more of them they aren't one at a time
_BENT = 40.0  # a second difference beyond which three values aren't on a parabola
_STEEP = 400.0  # bins a bracket may have for that its line is steep
_GAP, _SMALLER = 0.25, 0.12  # between logs of orders, and where several kinds, but not very many, decide together
_FINEST, _FINE = 4, 36  # of the points, which deep deltas with their steep orders need; and of all kinds together
MANY = 10  # kinds of steps that share a budget


@dataclass(frozen=True)
class Rough:
    """The steps' losses on some points, in cells by their size: cell 0 holds all up to the first end.

    Of many kinds that are alike a few are looked at.
    """

    steps: tuple[tuple[Pair, int], ...]
    survey: Survey
    like: tuple[int, ...]
    """Which of those that are looked at each of the steps is most like."""
    ends: Array
    orders: Array
    cells: Array
    """log of the sum of p e^{cl} over each cell, at each order: (kinds, cells, orders)."""

    @cached_property
    def logs(self) -> tuple[Array, Array]:
        """Lambda of the losses up to each end, and log of by how much it exceeds the one before: (cells, orders) each.

        A logarithm, because losses may be so rare that no floating-point number tells.
        """
        counts = self.survey.counts
        total = np.tensordot(counts, np.logaddexp.accumulate(self.cells, axis=1), axes=1)
        return total, np.logaddexp.reduce(self._log_rises + np.log(counts)[:, None, None], axis=0)

    @cached_property
    def _log_rises(self) -> Array:
        """The same of one step of each kind: (kinds, cells, orders)."""
        below = np.logaddexp.accumulate(self.cells, axis=1)
        rises = log_of_log1p(self.cells[:, 1:] - below[:, :-1])
        return np.concatenate([np.full_like(rises[:, :1], -np.inf), rises], axis=1)

    def log_rise(self, first: int, last: int) -> Array:
        """log of by how much Lambda grows from below the first cell to the last: a sum, and little keeps its digits."""
        return np.asarray(np.logaddexp.reduce(self.logs[1][first : last + 1], axis=0))

    def own_log_rise(self, kind: int, first: int, last: int) -> Array:
        """The part of it that one step of a kind has."""
        return np.asarray(np.logaddexp.reduce(self._log_rises[kind, first : last + 1], axis=0))

    def log_mgf(self, first: int, last: int) -> Array:
        """log of the brackets' transform at the orders: the largest loss in the cells first..last."""
        total = self.logs[0][last]
        return np.asarray(total if first == 0 else total + log_share(self.log_rise(first, last)))

    def chernoff(self, first: int, last: int, epsilon: float) -> tuple[float, float]:
        """The best of the bounds on log delta of a bracket, and its order."""
        bounds = self.log_mgf(first, last) - self.orders * epsilon + self._peaks
        k = int(np.argmin(np.where(np.isnan(bounds), np.inf, bounds)))
        return float(bounds[k]), float(self.orders[k])

    def order(self, first: int, last: int, epsilon: float) -> float:
        """Where to draw a bracket's line: where its aliases are farthest apart, of those orders that do nearly best."""
        tilted = self.log_mgf(first, last) - self.orders * epsilon
        bounds = tilted + log_peak(self.orders)
        best = float(np.nanmin(bounds))
        gaps = self.orders[None, :] - self.orders[:, None]
        needed = (tilted[None, :] - tilted[:, None] + (bounds - best)[:, None] + _DIGITS) / np.abs(gaps)
        right = np.nanmin(np.where(gaps > 0, needed, np.inf), axis=1)
        left = np.nanmin(np.where(gaps < 0, needed, np.inf), axis=1)
        period = np.where(bounds <= best + _SLACK, np.maximum(right, left), np.inf)
        return float(self.orders[int(np.nanargmin(period))])

    @cached_property
    def _peaks(self) -> Array:
        return log_peak(self.orders)

    @cached_property
    def _single(self) -> Array:
        """log of the transform of each cell's bracket: (cells, orders)."""
        total, log_rises = self.logs
        return np.asarray(total + np.append(np.zeros((1, self.orders.size)), log_share(log_rises[1:]), axis=0))

    def sizes(self, epsilon: float) -> Array:
        """log delta of each cell's bracket: by the saddle point's approximation or, of one large loss, as a sum."""
        bounds = self._single - self.orders * epsilon + self._peaks
        rows, k = np.arange(self.ends.size), np.clip(np.nanargmin(bounds, axis=1), 1, self.orders.size - 2)
        c, before, here, after = self.orders[k], *(self._single[rows, k + j] for j in (-1, 0, 1))
        left, right = c - self.orders[k - 1], self.orders[k + 1] - c
        variance = 2 * ((after - here) / right - (here - before) / left) / (left + right)
        spread = np.maximum(variance, 0.0) + c**-2 + (c + 1) ** -2
        values = here - c * epsilon - np.log(c * (c + 1)) - 0.5 * np.log(2 * math.pi * spread)
        values = np.where(np.isfinite(values), np.minimum(values, bounds[rows, k]), -np.inf)
        # by how much the bound is less at the saddle point itself, between the orders (a parabola in their logarithms)
        one, two, three = (bounds[rows, k + j] for j in (-1, 0, 1))
        bend = one - 2 * two + three
        fall = np.where(bend < _BENT, (three - one) ** 2 / (8 * bend), 0.0)
        values -= np.where((two <= np.minimum(one, three)) & np.isfinite(fall), fall, 0.0)
        large = self.ends > 0.5 * epsilon
        large[0] = False
        rare = float(self.survey.counts @ self.survey.masses[:, self.survey.nodes > 0.5 * epsilon].sum(axis=1)) < _FEW
        if rare and large.any():
            sums = self._one_large(epsilon)
            values = np.where(large & np.isfinite(sums), np.minimum(sums, bounds[rows, k]), values)
        return np.asarray(values)

    def _one_large(self, epsilon: float) -> Array:
        """log of what paths add that have one loss from a cell, all others being a Gaussian's worth below eps/2."""
        mean, variance = (float(np.interp(0.5 * epsilon, self.survey.nodes, part)) for part in self._below)
        begin = int(np.searchsorted(self.survey.nodes, 0.5 / _RATIO * epsilon))
        nodes, deviation = self.survey.nodes[begin:], math.sqrt(variance) + 1e-15
        left = (epsilon - nodes - mean) / deviation
        with np.errstate(all="ignore"):
            log_p, log_q = log_ndtr(-left), log_ndtr(-left - deviation) + left * deviation + 0.5 * variance
            found = log_p + np.log(np.maximum(-np.expm1(log_q - log_p), 1e-16))
        logs = self._log_counted[begin:] + np.where(np.isfinite(found), found, -np.inf)
        starts = np.searchsorted(nodes, np.append(-np.inf, self.ends), side="right")
        filled = np.flatnonzero(np.diff(starts) > 0)
        sums = np.full(self.ends.size, -np.inf)
        if filled.size:
            sums[filled] = np.logaddexp.reduceat(logs[: starts[-1]], starts[filled])
        # a node stands for the losses around it, some of which may be above epsilon while it is not
        near = int(np.searchsorted(nodes, epsilon - mean))
        if 0 < near < nodes.size:
            cell = min(int(np.searchsorted(self.ends, epsilon - mean)), self.ends.size - 1)
            above = min(float(self.ends[cell]), float(nodes[near])) - (epsilon - mean)
            part = max(above, 1e-300) / float(nodes[near] - nodes[near - 1]) * -math.expm1(-0.5 * max(above, 1e-300))
            sums[cell] = np.logaddexp(sums[cell], self._log_counted[begin + near] + math.log(max(part, 1e-300)))
        return sums

    @cached_property
    def _log_counted(self) -> Array:
        """log of how many losses of each size are expected."""
        return np.asarray(np.logaddexp.reduce(np.log(self.survey.counts)[:, None] + self.survey.log_masses, axis=0))

    @cached_property
    def _below(self) -> tuple[Array, Array]:
        """Mean and variance of the sum of all losses up to each node."""
        nodes, masses, counts = self.survey.nodes, self.survey.masses, self.survey.counts
        means, squares = np.cumsum(masses * nodes, axis=1), np.cumsum(masses * nodes**2, axis=1)
        return counts @ means, np.maximum(counts @ (squares - means**2), 0.0)

    def log_delta(self, epsilon: float) -> float:
        """A rough log delta."""
        return float(np.logaddexp.reduce(np.append(self.sizes(epsilon), math.log(max(self.survey.infinite, 1e-300)))))

    def top(self, epsilon: float) -> int:
        """The last cell that isn't far beyond epsilon."""
        return min(int(np.searchsorted(self.ends, epsilon + _BEYOND)), len(self.ends) - 1)

    def groups(self, epsilon: float) -> list[tuple[int, int]]:
        """Cells joined to as few brackets as a line each can see."""
        top = self.top(epsilon)
        single = np.nanmin(self._single[: top + 1] - self.orders * epsilon + self._peaks, axis=1).tolist()
        most = max(single)
        found, first = [], 0
        while first <= top:
            last, sizes = first, single[first]
            steepest = self.chernoff(first, first, epsilon)[1]
            while last < top:
                sizes = float(np.logaddexp(sizes, single[last + 1]))
                bound, order = self.chernoff(first, last + 1, epsilon)
                steepest = max(steepest, order)
                if bound > max(sizes, most - 30) + (_SHARP if first > 0 else _SHARPEST):
                    break
                if first > 0 and self.ends[last + 1] > _WIDEST * self.ends[first - 1]:
                    break
                # of very many steps rounding leaves so little that lines must be steep
                strict = first == 0 and self.survey.total > _LONG
                if order < _FLAT * (steepest if strict else min(steepest, 1 / max(epsilon, 1e-300))):
                    break
                last += 1
            found.append((first, last))
            first = last + 1
        return found

    def guess(self, log_delta: float) -> float:
        """A rough epsilon."""
        low, high = 1e-12, 1.2 * EPSILON_LIMIT
        for _ in range(28):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.log_delta(middle) > log_delta else (low, middle)
        return high


def rough_look(steps: Steps) -> Rough:
    """Kept for a while: a direction is glanced at before it is asked, and asked at two deltas beside promises."""
    return _rough_look(tuple(steps))


@lru_cache(maxsize=4)
def _rough_look(steps: tuple[tuple[Pair, int], ...]) -> Rough:
    few = few_of(steps)
    fineness = min(max(_FINE // len(few.steps), 1), _FINEST)
    survey = Survey(few.steps, fineness=fineness, shares=few.shares)
    nodes, masses, counts = survey.nodes, survey.masses, survey.counts
    whole = np.maximum(masses.sum(axis=1), 1e-300)
    centres = masses @ nodes / whole
    # a loss is a jump if it is larger than all kinds' commonest ones
    core = max(float(np.interp(0.5, np.cumsum(row) / total, nodes)) for row, total in zip(masses, whole, strict=True))
    near = np.abs(nodes) < 1
    deviation = math.sqrt(float(counts @ (masses[:, near] @ nodes[near] ** 2))) + 1e-15
    first = max(2 * core, min(1e-9, 0.01 * deviation), *(2 * abs(c) for c in centres))
    last = float(survey.reach)
    ends = first * _RATIO ** np.arange(max(2, math.ceil(math.log(last / first) / math.log(_RATIO)) + 1))
    lowest, highest = 1e-3 / EPSILON_LIMIT, 1e3 / deviation + 10
    gap = _SMALLER if 1 < fineness < _FINEST else _GAP
    orders = np.geomspace(lowest, highest, math.ceil(math.log(highest / lowest) / gap))
    starts = np.searchsorted(nodes, np.append(-np.inf, ends[:-1]), side="right")
    stops = np.append(starts[1:], nodes.size)
    cells = np.full((len(few.steps), ends.size, orders.size), -1e5)
    for k, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        if stop > start:
            logs, gaps = survey.log_masses[:, start:stop], nodes[start:stop] - nodes[stop - 1]
            peaks = np.maximum(logs.max(axis=1), -1e5)
            turned = np.multiply.outer(gaps, orders)
            sums = np.exp(logs - peaks[:, None]) @ np.exp(turned)
            with np.errstate(divide="ignore"):
                found = np.log(sums) + peaks[:, None]
                for kind in np.flatnonzero((far := sums < 1e-250).any(axis=1)):  # all of it far below the cell's end
                    exponents = logs[kind][:, None] + turned[:, far[kind]]
                    most = np.maximum(exponents.max(axis=0), -1e300)
                    found[kind, far[kind]] = np.log(np.exp(exponents - most).sum(axis=0)) + most
            cells[:, k] = np.maximum(found + orders * nodes[stop - 1], -1e5)
    return Rough(steps, survey, few.like, ends, orders, cells)


@dataclass(frozen=True)
class Aim:
    """Where a computation looks: epsilon, the brackets' ends, and the order of each one's line."""

    epsilon: float
    groups: tuple[tuple[int, int], ...]
    orders: tuple[float, ...]
    shares: tuple[float, ...]
    """What each bracket has of delta, roughly."""
    slopes: tuple[float, ...]
    """-d log delta/d epsilon of each bracket, roughly."""
    log_delta: float

    @property
    def slope(self) -> float:
        """The same of all together."""
        return max(sum(share * c for share, c in zip(self.shares, self.slopes, strict=True)), 1e-12)


def aim_at(rough: Rough, epsilon: float, log_delta: float, seen: Seen | None = None) -> Aim:
    groups = rough.groups(epsilon)
    cells = rough.sizes(epsilon)
    sizes, before = (
        np.array([np.logaddexp.reduce(found[first : last + 1]) for first, last in groups])
        for found in (cells, rough.sizes(0.95 * epsilon))
    )
    orders = [rough.order(first, last, epsilon) for first, last in groups]
    # a line's order is a rough slope too, and it knows of what lies further off
    falls = (before - sizes) / (0.05 * epsilon + 1e-15)
    for k, span in enumerate(groups):
        sizes[k], falls[k] = (seen or {}).get(span, (sizes[k], falls[k]))
    slopes = np.fmax(np.where(np.isfinite(falls), falls, 0.0), 0.3 * np.array(orders))
    infinite = rough.survey.infinite
    beyond = np.append(cells[groups[-1][1] + 1 :], math.log(infinite) if infinite > 0 else -math.inf)
    total = float(np.logaddexp.reduce(np.append(sizes, beyond)))
    shares = tuple(np.exp(sizes - total).tolist())
    return Aim(epsilon, tuple(groups), tuple(orders), shares, tuple(slopes.tolist()), log_delta)


@dataclass(frozen=True)
class Bins:
    """Edges for each kind of step."""

    edges: tuple[Array, ...]
    most: bool
    """Whether they are as many as there may be, and change more than was asked for."""


def bin_edges(rough: Rough, aim: Aim, change: float) -> Bins:
    """Bins for each kind that change log delta by about `change`, as few as possible.

    A bin of width h and mass p changes delta by p h^2/8 times the density of the other steps' total at what is left of
    epsilon.  Over delta that is the weight of a loss, w(l) = T c (c+1) times its tilted law, in each bracket by its
    share; and where one loss decides, its mass near epsilon.  The least number of bins has h = w^(-1/3) times a factor.
    """
    survey = rough.survey
    shares = survey.shares or (1.0,) * len(survey.steps)
    nodes = survey.nodes
    top = rough.top(aim.epsilon)
    low, high = survey.quantiles(aim.log_delta + _RARE)[0], float(rough.ends[top])
    if aim.log_delta > _SHALLOW:  # what is so rare may as well be infinite: tilted, it would count
        high = min(high, survey.quantiles(aim.log_delta + _NEVER)[1])
    gaps = np.gradient(nodes)
    weights = [np.zeros(nodes.size) for _ in survey.steps]
    bulk_mean = bulk_variance = 0.0
    small = nodes <= rough.ends[aim.groups[0][1]]
    for row, count in zip(survey.masses, survey.counts, strict=True):
        mass = max(float(row[small].sum()), 1e-300)
        mean = float(row[small] @ nodes[small]) / mass
        bulk_mean += count * mean
        bulk_variance += count * float(row[small] @ (nodes[small] - mean) ** 2) / mass
    deviation = math.sqrt(bulk_variance) + 1e-3 * aim.epsilon + 1e-15
    left = (aim.epsilon - nodes - bulk_mean) / deviation
    log_bump = -0.5 * left**2 - math.log(deviation * math.sqrt(2 * math.pi))
    for (first, last), c, slope, share in zip(aim.groups, aim.orders, aim.slopes, aim.shares, strict=True):
        k = int(np.argmin(np.abs(np.log(rough.orders / c))))
        log_rise = float(rough.log_rise(first, last)[k]) if first > 0 else math.inf
        for kind, (row, count) in enumerate(zip(survey.log_masses, survey.counts, strict=True)):
            below = np.logaddexp.accumulate(rough.cells[kind][:, k])
            logs = row + c * nodes - below[last]
            if first > 0:
                # a small loss is there with the jumps of the other steps, one that jumps by itself or with them
                own = float(rough.own_log_rise(kind, first, last)[k])
                others = log_rise + math.log1p(-min(math.exp(own - log_rise), 1 - 1e-15))
                some, rest = log_share(np.array([log_rise, others]))
                logs += np.where(nodes > rough.ends[first - 1], 0.0, rest) - some
            inside = np.exp(np.minimum(logs, 50.0))
            inside[nodes > rough.ends[last]] = 0.0
            weights[kind] += share * count * slope * (slope + 1) * inside
    large = nodes > max(rough.ends[0], 0.3 * (aim.epsilon - bulk_mean))
    for kind, (row, count) in enumerate(zip(survey.log_masses, survey.counts, strict=True)):
        single = math.log(count) + row[large] + log_bump[large] - aim.log_delta
        weights[kind][large] += np.exp(np.minimum(single, math.log(1e12)))
    inside = (nodes > low) & (nodes < high)
    roots = [
        np.where(inside, np.cbrt(weight / share / gaps), 0.0) for weight, share in zip(weights, shares, strict=True)
    ]
    total = sum(float(roots[kind] @ gaps) for kind in rough.like)
    wanted, most = math.sqrt(total / (8 * change)), _BINS / max(total, 1e-300)
    factor = min(wanted, most)
    # where lines are steep, mass at the upper end of a wide bin would rule them
    many = len(rough.steps) >= MANY
    lasts = np.array([last for _, last in aim.groups])
    steepest = np.minimum(np.array(aim.orders), _STEEP / rough.ends[lasts])
    steep = (0.4 if many else 1) * steepest[np.searchsorted(rough.ends[lasts[:-1]], nodes)] * (nodes > 0)
    places = []
    growth = 0.4 if many else 0.15
    for root, row in zip(roots, survey.masses, strict=True):
        # at least a few bins everywhere, so that a poor look can't do much harm, down to the size of common losses
        common = np.interp([0.05, 0.95], np.cumsum(row) / max(float(row.sum()), 1e-300), nodes)
        usual = min(float(np.abs(common).max()) + 1e-14, rough.ends[0])
        finest = usual if usual < 0.05 * rough.ends[0] or not many else rough.ends[0]
        density = factor * root + np.where(inside, np.maximum(1 / (growth * np.abs(nodes) + 0.02 * finest), steep), 0.0)
        number = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(nodes)))
        number *= min(1.0, _MOST_BINS / float(number[-1]))  # wider ones are no less true
        levels = np.arange(1, math.floor(number[-1])) + 0.5
        places.append(np.interp(levels, number, nodes))
    ends, edges = [max(low, nodes[0]), high], []
    for kind, (pair, _) in zip(rough.like, rough.steps, strict=True):
        atoms = np.asarray(pair.atoms)
        margin = 1e-10 * np.maximum(np.abs(atoms), rough.ends[0])
        inner = np.concatenate([places[kind], atoms - margin, atoms + margin])
        edges.append(np.unique(np.concatenate([inner[(inner > ends[0]) & (inner < ends[1])], ends])))
    return Bins(tuple(edges), wanted > most)
