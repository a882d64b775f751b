"""Compositions with heavy-tailed losses: norms from random projections, above all.

The paths are split by their largest loss (brackets.py).  Losses are binned, finely where bins decide (cells.py), into a
law that reveals less and one that reveals more (binning.py); each bracket of each is a contour integral of its own,
averaged over a little of epsilon on the safe side (smoothing.py).  What is far beyond epsilon counts as infinite for
the upper bound, and as P - e^eps Q of the paths that have it for the lower one.

A rough look at the losses (cells.py) says where brackets, lines and bins go.  It enters no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hush.accounting import crossing
from hush.accounting.averaged import Wanted, averaged_line
from hush.accounting.binning import enclosing
from hush.accounting.brackets import Bracket, bracket, log_bound
from hush.accounting.cells import MANY, Aim, Rough, Seen, Span, Steps, aim_at, bin_edges, rough_look
from hush.accounting.crossing import EPSILON_LIMIT, certified_root
from hush.accounting.line import Line, log_peak
from hush.accounting.losses import Array, Enclosed, GaussianPair, Pair, Poisson, Reversed, Uniform
from hush.accounting.points import GaussianLaw, Points, Scattered, exact, surely_infinite
from hush.accounting.projection import ProjectedPair
from hush.accounting.smoothing import Kernel, width_for

_UNIT = 2.0**-50
_NOTHING = -16.0  # log of the share of delta that isn't worth a line
_TERMS = 600_000_000  # products of a point and a node in one answer
_SEARCH = 1000  # what finding a root on a line costs for each node, in such products
_DEEP = -100.0  # log of a delta whose lines must be drawn where they belong
_FINEST = 8e-13  # nothing narrower is asked for
_NUDGE = 1e-3  # of epsilon, over which slopes are seen
_SURE = 34.0  # paths with a chance of exp(-34) of delta may lose any digits


@dataclass(frozen=True)
class Side:
    """One of the two finite laws of the steps, and the brackets of their paths."""

    laws: tuple[tuple[Scattered, int], ...]
    above: bool

    @property
    def infinite(self) -> float:
        return surely_infinite(self.laws)

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
        margin = 4 * _UNIT * sum(count for _, count in self.side.laws) + 1e-12
        if self.side.above:
            return np.fmin(total + margin, 0.0)
        with np.errstate(divide="ignore", over="ignore"):
            kept = -np.expm1(np.minimum(self.log_sure - total, 0.0))
            return np.fmax(total + np.log(kept) - margin, -np.inf)


def _curve(side: Side, rough: Rough, aim: Aim, change: float, terms: int) -> tuple[Curve, int]:
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
            if bound < negligible + 2 or share < 1e-200:
                small.append((paths, order))
                continue
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
    sure, steps = aim.log_delta - 30, sum(count for _, count in side.laws)
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


def _sides(steps: Steps, edges: Sequence[Array]) -> tuple[Side, Side]:
    squared = math.fsum(count * pair.mu**2 for pair, count in steps if isinstance(pair, GaussianPair))
    less: list[tuple[Scattered, int]] = [(GaussianLaw(squared), 1)] if squared > 0 else []
    more = list(less)
    for (pair, count), places in zip(steps, edges, strict=True):
        if isinstance(pair, GaussianPair):
            continue
        known = exact(pair)
        below, above = (known, known) if known is not None else enclosing(pair, places)
        less.append((below, count))
        more.append((above, count))
    return Side(tuple(less), above=False), Side(tuple(more), above=True)


def _curves(steps: Steps, rough: Rough, aim: Aim, change: float, terms: int) -> tuple[Curve, Curve, int]:
    """A lower and an upper bound whose bins and averages change log delta by about `change`, and what they cost."""
    less, more = _sides(steps, bin_edges(rough, aim, change))
    lower, cost = _curve(less, rough, aim, change, terms)
    upper, second = _curve(more, rough, aim, change, terms - cost)
    return lower, upper, cost + second


def _seen(upper: Curve, epsilon: float) -> Seen:
    """What the lines of a curve say of their brackets: log delta and its slope near this epsilon."""
    found = {}
    for span, line in upper.lines:
        before, here = line.log_delta(np.array([(1 - _NUDGE) * epsilon, epsilon]))[1]
        if math.isfinite(here) and before > here:
            found[span] = float(here), float(before - here) / (_NUDGE * epsilon)
    return found


def _finer(part: float, wanted: float, cost: int, left: int) -> float:
    """How much less bins and averages may change: errors are in proportion to that, and costs inversely."""
    return part * max(min(wanted, 0.5), 1 / 30, 1.3 * cost / max(left, 1))


def _both(lower: Curve, upper: Curve, epsilons: Array) -> tuple[Array, Array]:
    return lower(epsilons), upper(epsilons)


def fits(steps: Steps) -> bool:
    """Whether this engine is the one to ask: tails are heavy, or there are many different steps with continuous losses.

    Norms from projections make tails heavy.  Of many kinds each gets no more bins than it needs.
    """
    inner = [_inner(pair) for pair, _ in steps]
    if any(isinstance(pair, Enclosed) for pair in inner):
        return False
    many = len(steps) >= MANY and any(isinstance(pair, GaussianPair) for pair in inner)
    return many or any(isinstance(pair, ProjectedPair) for pair in inner)


def serves(steps: Steps) -> bool:
    """Whether every step is continuous or a finite sum, and some loss has no bound: then this engine has an answer."""
    inner = [_inner(pair) for pair, _ in steps]
    return not any(isinstance(pair, Enclosed) for pair in inner) and any(
        isinstance(pair, GaussianPair | ProjectedPair) for pair in inner
    )


def _inner(pair: Pair) -> Pair:
    """The release without its sample."""
    base = pair.pair if isinstance(pair, Reversed) else pair
    return base.inner if isinstance(base, Poisson | Uniform) else base


@np.errstate(all="ignore")
def epsilon(steps: Steps, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta), in the direction given."""
    rough = rough_look(steps)
    guess = min(rough.guess(log_delta), EPSILON_LIMIT)
    idle = guess == EPSILON_LIMIT and rough.log_delta(guess) > log_delta + 0.3  # far beyond: a rough look will do
    nothing = rough.log_delta(0.0)
    if math.isfinite(nothing) and nothing < log_delta - 0.1:
        guess, idle = 0.0, True
    low, high, left, part = 0.0, math.inf, _TERMS, 8.0 if len(steps) < MANY else 0.9
    asked, seen = tolerance, Seen()
    for _ in range(8):
        tolerance = max(asked, min(_FINEST / max(guess, 1e-300), 0.1))
        # far beyond, what is there to be seen is far larger than delta
        size = max(log_delta, min(rough.log_delta(guess), 0.0) - 2) if idle else log_delta
        aim = aim_at(rough, guess, size, seen)
        change = min(0.3 * part * tolerance * max(guess * aim.slope, 0.02), 0.1)
        change = 0.1 if idle else change
        lower, upper, cost = _curves(steps, rough, aim, change, left)
        left, seen = left - cost, _seen(upper, guess)
        curve = partial(_both, lower, upper)
        if guess == 0 and upper(np.zeros(1))[0] <= log_delta:
            return 0.0, 0.0
        found = certified_root(curve, guess, log_delta)
        low, high = max(low, found[0]), min(high, found[1])
        if low >= EPSILON_LIMIT or high - low <= 1.1 * tolerance * high < math.inf or left <= 0:
            break
        if high < 1.02 * low:
            # errors are in proportion to what was allowed, if epsilon was where they were looked at
            middle, near = 0.5 * (low + high), abs(0.5 * (low + high) / guess - 1) < 0.01
            less = _finer(part, 0.6 * tolerance * high / (high - low), cost, left)
            if near and less > 0.9 * part:
                break  # no more can be afforded
            part, guess = less if near else max(less, 1.0), middle
            continue
        if low > 0 and high < math.inf:  # epsilon is about there, but bins and averages were too coarse
            part *= 0.3
        # what the rough look is off here, it is off nearby
        below, above = (float(side[0]) for side in curve(np.array([guess])))
        off = 0.5 * (below + above) - rough.log_delta(guess) if math.isfinite(below) else 0.0
        again = min(max(rough.guess(log_delta - off), low, 1e-9), high, EPSILON_LIMIT)
        idle = False
        guess = again if abs(again - guess) > 1e-3 * guess else math.sqrt(max(low, guess / 4) * min(high, 4 * guess))
    return min(low, high), max(low, high)


@np.errstate(all="ignore")
def is_below(steps: Steps, epsilon: float, log_delta: float) -> bool:
    """Whether a glance shows that delta(epsilon) <= exp(log_delta)."""
    rough = rough_look(steps)
    if not rough.log_delta(epsilon) < log_delta - 0.2:
        return False
    aim = aim_at(rough, epsilon, log_delta)
    _, more = _sides(steps, bin_edges(rough, aim, 0.05))
    paths = bracket(more.laws, -math.inf, math.inf)
    at = np.array([epsilon - more.doubt(log_delta)])
    if paths is not None and epsilon > 0:
        bound = min(float(log_bound(paths, order, at)[0]) for order in np.geomspace(0.3, 300.0, 30) / epsilon)
        beyond = math.log(max(more.infinite, 1e-300))
        margin = 1e-9 + 4 * _UNIT * sum(count for _, count in more.laws)
        if np.logaddexp.reduce([bound, beyond, more.log_hidden, log_delta - 30]) + margin <= log_delta:
            return True
    upper, _ = _curve(more, rough, aim, 0.05, _TERMS // 10)
    return bool(upper(np.array([epsilon]))[0] <= log_delta)


@np.errstate(all="ignore")
def curve_at(rough: Rough, epsilon: float, log_delta: float, tolerance: float) -> crossing.Curve:
    """Certified bounds on log delta that are sharp near an epsilon where it is about that."""
    return _looked_at(rough, epsilon, log_delta, 0.4 * tolerance, math.inf, _TERMS // 4)


def _looked_at(
    rough: Rough, epsilon: float, log_delta: float, tolerance: float, enough: float, left: int
) -> crossing.Curve:
    """Such bounds, looked for again until they are so many times as wide as asked for, or within 1 of each other.

    The rough look takes deep deltas for larger than they are: good to a part of that, lines say nothing.
    """
    part, seen, best, narrowest = 2.5, Seen(), None, math.inf
    for _ in range(8):
        wanted = tolerance * max(1.0, -log_delta)
        aim = aim_at(rough, epsilon, min(log_delta, 0.0), seen)
        below, above, cost = _curves(rough.survey.steps, rough, aim, min(0.3 * part * wanted, 0.1), left)
        left, seen = left - cost, _seen(above, epsilon)
        low, high = (float(side(np.array([epsilon]))[0]) for side in (below, above))
        gap = high - low
        if best is None or gap < narrowest:
            best, narrowest = partial(_both, below, above), gap
        if gap <= min(enough * wanted, 1.0) or left <= 0 or not math.isfinite(high):
            break
        if gap < 1:
            log_delta, before, part = 0.5 * (low + high), part, _finer(part, 0.6 * wanted / gap, cost, left)
            if part > 0.9 * before:
                break
        elif high < log_delta - 2:
            log_delta = high - 2
        else:
            break
    assert best is not None
    return best


@np.errstate(all="ignore")
def log_delta(steps: Steps, epsilons: Array, tolerance: float) -> tuple[Array, Array]:
    """Certified bounds on log delta at a few epsilons, in the direction given."""
    rough = rough_look(steps)
    lower, upper = np.full(epsilons.shape, -np.inf), np.zeros(epsilons.shape)
    for k, epsilon in enumerate(epsilons):
        size = rough.log_delta(float(epsilon))
        if math.isfinite(size):
            found = _looked_at(rough, float(epsilon), size, tolerance, 1.0, _TERMS)(epsilons[k : k + 1])
            lower[k], upper[k] = (float(side[0]) for side in found)
    return np.minimum(lower, upper), np.maximum(lower, upper)
