"""The two finite laws around heavy-tailed steps, and certified curves from them: a line for each bracket of paths.

Losses are binned into a law that reveals less and one that reveals more (binning.py).  Each bracket of paths of either
(brackets.py) is a contour integral of its own, averaged over a little of epsilon on the safe side (smoothing.py).  What
is far beyond epsilon counts as infinite for the upper bound, and as P - e^eps Q of the paths that have it for the lower
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.averaged import Wanted, averaged_line
from hush.accounting.contours.line import Line, log_peak
from hush.accounting.contours.smoothing import Kernel, width_for
from hush.accounting.pairs.losses import Array, GaussianPair
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, exact, surely_infinite
from hush.accounting.tails.binning import enclosing
from hush.accounting.tails.brackets import Bracket, bracket, log_bound
from hush.accounting.tails.cells import MANY, Aim, Bins, Rough, Seen, Span, Steps, bin_edges

_UNIT = 2.0**-50
_NOTHING = -16.0  # log of the share of delta that isn't worth a line
_SEARCH = 1000  # what finding a root on a line costs for each node, in products of a point and a node
_DEEP = -100.0  # log of a delta whose lines must be drawn where they belong
_AVERAGED = 0.2  # of what bins may change: averages of many kinds, whose bins are few, and whose transforms decay
_NUDGE = 1e-3  # of epsilon, over which slopes are seen
_SURE = 34.0  # paths with a chance of exp(-34) of delta may lose any digits
_LEFT = 30.0  # and that is counted: exp(-30) of delta


@dataclass(frozen=True)
class Side:
    """One of the two finite laws of the steps, and the brackets of their paths."""

    laws: tuple[tuple[Scattered, int], ...]
    above: bool

    @property
    def infinite(self) -> float:
        return surely_infinite(self.laws)

    @property
    def margin(self) -> float:
        """What the rounding of masses may do to log delta."""
        return 4 * _UNIT * sum(count for _, count in self.laws) + 1e-12

    @property
    def log_hidden(self) -> float:
        """log of what may have an infinite loss besides, smaller than any floating-point number."""
        hidden = [math.log(count) + law.log_hidden for law, count in self.laws if isinstance(law, Points)]
        return float(np.logaddexp.reduce(hidden)) if hidden else -math.inf

    def doubt(self, log_delta: float) -> float:
        """How far rounding may move epsilon: by 16 * 2^-50 of each loss, and 4 a step where masses weren't directed.

        The sum A of all |losses| of a path stays below a bound but for a chance far below delta, by Chernoff.
        """
        steps = sum(count for law, count in self.laws if not (isinstance(law, Points) and law.directed))
        total = sum(count for _, count in self.laws)
        largest = max([law.largest for law, _ in self.laws])
        orders = np.geomspace(1e-3, 1e3, 40) / max(largest, 1e-300)
        logs = np.zeros(orders.size)
        for law, count in self.laws:
            if isinstance(law, Points):
                logs += count * Points(np.abs(law.losses), law.logs).log_mgf(orders)
            else:
                logs += count * orders * law.largest
        reach = float(np.min((np.maximum(logs, 0.0) + _SURE - log_delta) / orders))
        return 4 * _UNIT * (steps + 4 * min(reach, total * largest))


@dataclass(frozen=True)
class Curve:
    """Certified bounds on log delta of one side: lines, brackets too small for one, and what is beyond."""

    side: Side
    lines: tuple[tuple[Span, Line], ...]
    small: tuple[tuple[Bracket, float], ...]
    top: Bracket | None
    log_top_q: float
    shift: float
    log_sure: float

    def __call__(self, epsilons: Array) -> Array:
        at = epsilons - self.shift if self.side.above else epsilons + self.shift
        side = 1 if self.side.above else 0
        logs = [line.log_delta(at)[side] for _, line in self.lines]
        infinite = self.side.infinite
        if infinite > 0:
            logs.append(np.full(at.shape, math.log(infinite)))
        if self.side.above:
            logs += [np.minimum(log_bound(paths, order, at), 0.0) for paths, order in self.small]
            logs += [np.full(at.shape, self.log_sure), np.full(at.shape, self.side.log_hidden)]
        elif self.top is not None:
            # P - e^eps Q of the paths with a loss at the top
            mass = float(self.top.log_mgf(np.zeros(1))[0]) - 1e-9
            with np.errstate(divide="ignore"):
                logs.append(mass + np.log(np.maximum(-np.expm1(self.log_top_q + at - mass), 0.0)))
        total = np.logaddexp.reduce(np.array(logs), axis=0) if logs else np.full(at.shape, -np.inf)
        margin = self.side.margin
        if self.side.above:
            return np.fmin(total + margin, 0.0)
        with np.errstate(divide="ignore", over="ignore"):
            kept = -np.expm1(np.minimum(self.log_sure - total, 0.0))
            return np.fmax(total + np.log(kept) - margin, -np.inf)


def one_sided(side: Side, rough: Rough, aim: Aim, change: float, terms: int) -> tuple[Curve, int]:
    """Lines for all brackets that count, and what they cost."""
    lines, small, cost, starved = [], [], 0, False
    points = sum(law.losses.size if isinstance(law, Points) else 4 for law, _ in side.laws) + 10 * len(side.laws)
    points += _SEARCH
    for (first, last), c, slope, share in zip(aim.groups, aim.orders, aim.slopes, aim.shares, strict=True):
        low = -math.inf if first == 0 else float(rough.ends[first - 1])
        high = math.inf if side.above and last == rough.top(aim.epsilon) else float(rough.ends[last])
        paths = bracket(side.laws, low, high)
        if paths is None:
            continue
        if aim.log_delta < _DEEP:
            c = _refined(paths, c, aim.epsilon)
        bound = float(log_bound(paths, c, np.array([aim.epsilon]))[0])
        negligible = aim.log_delta + math.log(change) + _NOTHING / 4
        if bound < negligible or share < 1e-12:
            order, bound = _best_order(paths, c, aim.epsilon)
            if bound < negligible + 2:
                small.append((paths, order))
                continue
            if share < 1e-12:  # the rough look didn't see it
                c, slope, share = order, order, math.exp(min(bound - aim.log_delta, 0.0))
        own = min(change / max(share * len(aim.groups), 1e-6), 0.1)
        kernel = Kernel(width_for(slope, own, side.above), side.above)
        # good to a small part of what is wanted, which the bracket's bound may exceed by far
        log_size = max(min(math.log(1e-2 * change) + aim.log_delta - bound, math.log(1e-3)), -200.0)
        scale = c * (c + 1) * math.exp(float(log_peak(c)))
        size, most = math.exp(log_size) * scale / (c * (c + 1)), max(terms - cost, 0) // points
        line = averaged_line(paths, c, paths.spread(c), kernel, Wanted(aim.epsilon, size, most))
        if line is None:  # too many nodes
            small.append((paths, c))
            starved = True
            continue
        lines.append(((first, last), line))
        cost += points * line.nodes.size
    ends = rough.ends[rough.top(aim.epsilon)]
    top = None if side.above else bracket(side.laws, float(ends), math.inf)
    log_q = -math.inf
    for law, count in side.laws:
        if isinstance(law, Points) and (law.losses > ends).any():
            beyond = law.losses > ends
            log_q = np.logaddexp(log_q, math.log(count) + np.logaddexp.reduce(law.logs[beyond] - law.losses[beyond]))
    sure, steps = aim.log_delta - _LEFT, sum(count for _, count in side.laws)
    return Curve(
        side, tuple(lines), tuple(small), top, float(log_q) + 1e-9 + 1e-12 * steps, side.doubt(aim.log_delta), sure
    ), terms if starved else cost


def _refined(paths: Bracket, order: float, epsilon: float) -> float:
    """Where Chernoff's bound is least: of deep deltas it is sharp only there, and the rough look's orders are few."""
    for reach in (1.3, 1.03):
        orders = order * np.geomspace(1 / reach, reach, 25)
        bounds = paths.log_mgf(orders) + log_peak(orders) - orders * epsilon
        order = float(orders[int(np.nanargmin(bounds))]) if np.isfinite(bounds).any() else order
    return order


def _best_order(paths: Bracket, order: float, epsilon: float) -> tuple[float, float]:
    """Where Chernoff's bound of a bracket is about least, and what it is there."""
    orders = np.append(order * np.geomspace(1 / 8, 8, 17), np.geomspace(0.3, 3e3, 17) / max(epsilon, 1e-12))
    bounds = paths.log_mgf(orders) + log_peak(orders) - orders * epsilon
    best = float(orders[int(np.nanargmin(bounds)) if np.isfinite(bounds).any() else 8])
    return best, float(log_bound(paths, best, np.array([epsilon]))[0])


def sides(steps: Steps, bins: Bins) -> tuple[Side, Side]:
    squared = math.fsum(count * pair.mu**2 for pair, count in steps if isinstance(pair, GaussianPair))
    less: list[tuple[Scattered, int]] = [(GaussianLaw(squared), 1)] if squared > 0 else []
    more = list(less)
    for (pair, count), places in zip(steps, bins.edges, strict=True):
        if isinstance(pair, GaussianPair):
            continue
        known = exact(pair)
        below, above = (known, known) if known is not None else enclosing(pair, places)
        less.append((below, count))
        more.append((above, count))
    return Side(tuple(less), above=False), Side(tuple(more), above=True)


@dataclass(frozen=True)
class Look:
    """A lower and an upper bound, what they cost, and whether bins were as many as there may be."""

    lower: Curve
    upper: Curve
    cost: int
    most: bool


def two_sided(steps: Steps, rough: Rough, aim: Aim, change: float, terms: int) -> Look:
    """Bounds whose bins and averages change log delta by about `change`."""
    bins = bin_edges(rough, aim, change)
    less, more = sides(steps, bins)
    averaged = change if len(steps) < MANY else _AVERAGED * change
    lower, cost = one_sided(less, rough, aim, averaged, terms)
    upper, second = one_sided(more, rough, aim, averaged, terms - cost)
    return Look(lower, upper, cost + second, bins.most)


def what_was_seen(upper: Curve, epsilon: float) -> Seen:
    """What the lines of a curve say of their brackets: log delta and its slope near this epsilon."""
    found = {}
    for span, line in upper.lines:
        before, here = line.log_delta(np.array([(1 - _NUDGE) * epsilon, epsilon]))[1]
        if math.isfinite(here) and before > here:
            found[span] = float(here), float(before - here) / (_NUDGE * epsilon)
    return found


@dataclass(frozen=True)
class Chernoff:
    """Upper bounds on log delta, at any epsilons, from one law that reveals more: cheap, and good to some units."""

    orders: Array
    values: Array
    log_beyond: float
    shift: float

    @staticmethod
    def of(more: Side, orders: Array, log_delta: float) -> Chernoff:
        """By these orders; deltas below exp(log_delta - 30) aren't told apart."""
        paths = bracket(more.laws, -math.inf, math.inf)
        values = np.full(orders.size, -math.inf)
        if paths is not None:
            values = np.array([float(log_bound(paths, float(order), np.zeros(1))[0]) for order in orders])
        beyond = [math.log(max(more.infinite, 1e-300)), more.log_hidden, log_delta - _LEFT]
        return Chernoff(
            orders, values + more.margin, float(np.logaddexp.reduce(beyond)) + more.margin, more.doubt(log_delta)
        )

    def __call__(self, epsilons: Array) -> Array:
        bounds = self.values - np.multiply.outer(epsilons - self.shift, self.orders)
        rounded = 1e-12 * (1 + np.abs(self.values[np.isfinite(self.values)]).max(initial=0.0))
        return np.asarray(np.minimum(np.logaddexp(bounds.min(axis=1), self.log_beyond) + rounded, 0.0))
