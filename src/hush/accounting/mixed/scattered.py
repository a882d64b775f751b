"""Compositions of steps whose losses lie at points, on no common lattice: pure mechanisms and promises, mostly.

delta(epsilon) is the contour integral of line.py over the product of the steps' transforms (points.py), averaged over a
little of epsilon once from above and once from below (smoothing.py).  So there are two lines, one for each bound, each
with its own certificate: aliases by Chernoff's inequality, nodes left out by the kernel's decay, rounding node by node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from hush.accounting.contours import crossing
from hush.accounting.contours.averaged import Wanted, averaged_line
from hush.accounting.contours.crossing import EPSILON_LIMIT, certified_root
from hush.accounting.contours.line import Line, log_peak
from hush.accounting.contours.smoothing import Kernel, width_for
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF
from hush.accounting.mixed.binned import enclosing_laws, is_open
from hush.accounting.mixed.tilted import Side, saddle
from hush.accounting.pairs.losses import Array, Pair
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, exact, product
from hush.accounting.pairs.survey import Survey

Steps = Sequence[tuple[Pair, int]]

TERMS = 120_000_000  # products of a point and a node in one answer, about half a second
_SEARCH = 2000  # what finding a root on a line costs for each node, in such products
_NEGLIGIBLE = 1e-3  # of the width asked for
_LINES = 12  # for a whole curve
_ROUGH, _SHORTEST = 5.0, 26.0  # logs by which a saddle point is off anyway, and by which digits are left
_STEEP = 3.0  # how far log delta may fall within the width asked for
_SHARPER = 0.02  # of the tolerance: narrower than that isn't asked for
_NARROWED = 0.7  # times what it was before: bins that were worth it
_DEEPEST, _GLANCE = -300.0, 1e-3  # log delta: far below, all that is shown is that it is small
_FEW = 20_000  # points of a sum that are worth enumerating


@dataclass(frozen=True)
class Curve:
    """Certified bounds on log delta from one line each."""

    less: Side
    more: Side
    lower: Line
    upper: Line

    def __call__(self, epsilons: Array) -> tuple[Array, Array]:
        (down, less_margin), (up, more_margin) = self.less.doubt, self.more.doubt
        with np.errstate(divide="ignore"):
            seen = np.log(self.less.seen(epsilons + down))
        low = self.lower.log_delta(epsilons + down)[0]
        high = np.where(epsilons - up >= self.more.top, -np.inf, self.upper.log_delta(epsilons - up)[1])
        high = np.logaddexp(_with_leak(high, self.more.infinite), self.more.log_hidden)
        return np.logaddexp(low, seen) - less_margin, np.minimum(high + more_margin, 0.0)


def _with_leak(log_delta: Array, leak: float) -> Array:
    return np.asarray(np.logaddexp(log_delta, math.log(leak))) if leak > 0 else log_delta


def fits(steps: Steps) -> bool:
    """Whether every step has few points or a closed form."""
    return not any(is_open(pair) for pair, _ in steps)


@np.errstate(all="ignore")
def epsilon(steps: Steps, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta), in the direction given."""
    known = listed(steps)
    return epsilon_of(Task.of(steps), log_delta, tolerance) if known is None else certified_root(known, 1.0, log_delta)


@np.errstate(all="ignore")
def epsilon_of(task: Planned, log_delta: float, tolerance: float) -> tuple[float, float]:
    """The same for what is cut into bins."""
    start = task.guess(log_delta)
    c = task.saddle(start, log_delta)
    less, more = task.sides(start, log_delta, c, _allowed(4 * tolerance, c, start))
    low, high = 0.0, math.inf
    if less.infinite * (1 - less.doubt[1]) > math.exp(log_delta):
        return EPSILON_LIMIT, high
    rest = -math.expm1(min(math.log(max(more.infinite, 1e-300)) - log_delta, 1.0))
    if rest <= 0:
        beyond = start > EPSILON_LIMIT and log_delta_of(task, np.array([EPSILON_LIMIT]), tolerance)[0][0] > log_delta
        return EPSILON_LIMIT if beyond else low, high
    finite = log_delta + math.log(rest)
    c, guess = saddle(more, finite, None)
    if guess > 0.9 * EPSILON_LIMIT and log_delta_of(task, np.array([EPSILON_LIMIT]), tolerance)[0][0] > log_delta:
        return EPSILON_LIMIT, high
    if c * guess < 1 and log_delta_of(task, np.zeros(1), tolerance)[1][0] <= log_delta:
        return 0.0, 0.0
    # close to a largest loss delta falls steeply: what is wide there is blunt, and takes no less time
    tolerance = min(tolerance, max(_STEEP / (c * guess), _SHARPER * tolerance))
    share, left = 0.25, TERMS
    aimed, rounds, gap = 0, 0, math.inf
    while rounds < 6:
        c, guess = min(c, _STEEP / (tolerance * guess)), min(guess, EPSILON_LIMIT)
        less, more = task.sides(guess, log_delta, c, _allowed(share * tolerance, c, guess))
        curve, cost = averaged_curve(
            less, more, c, guess, share * tolerance * guess * c, left, log_delta if task.large else 0.0
        )
        left -= cost
        if curve is None and math.isinf(high) and share < 16:
            share *= 8
            continue
        if curve is None:
            break
        below, above = (float(side[0]) for side in curve(np.array([guess])))
        low = max(low, guess) if below >= log_delta else low
        high = min(high, guess) if above <= log_delta else high
        short = 0.5 * (below + above) - log_delta if math.isfinite(below) else above - log_delta
        if abs(short) > 2 and aimed < 6 and math.isfinite(short):  # the saddle point was far off: aim again
            aimed += 1
            c, found_there = saddle(more, finite, None)
            if aimed > 2 or abs(found_there / guess - 1) < 1e-3:
                guess = min(max(guess + short / c, guess / 3, 1.0001 * low), 3 * guess, 0.9999 * high)
                c, _ = saddle(more, None, guess)
            else:
                guess = min(max(found_there, 1.0001 * low), 0.9999 * high)
            continue
        rounds += 1
        found = certified_root(curve, guess, log_delta)
        low, high = max(low, found[0]), min(high, found[1])
        if low >= EPSILON_LIMIT or high - low <= tolerance * high < math.inf:
            break
        if rounds > 2 and above - below > _NARROWED * gap:
            break  # what the laws were cut from tells no more
        gap = above - below
        wanted = tolerance * guess * c
        share *= min(max(0.5 * wanted / max(above - below, wanted), 0.02), 1 / 3)
        if low > 0 and high < math.inf:
            guess = 0.5 * (low + high)
    return min(low, high), max(low, high)


def _allowed(tolerance: float, c: float, epsilon: float) -> float:
    """How much variance bins may add: it changes the log-MGF by c (c + 1)/2 times that, and epsilon by that over c."""
    return 2 * tolerance * epsilon / (1 + c)


@np.errstate(all="ignore")
def log_delta(steps: Steps, epsilons: Array, tolerance: float) -> tuple[Array, Array]:
    """Certified bounds on log delta at a few ascending epsilons, in the direction given."""
    known = listed(steps)
    return log_delta_of(Task.of(steps), epsilons, tolerance) if known is None else known(epsilons)


@np.errstate(all="ignore")
def log_delta_of(task: Planned, epsilons: Array, tolerance: float) -> tuple[Array, Array]:
    """The same for what is cut into bins."""
    lower, upper = np.full(epsilons.shape, -np.inf), np.zeros(epsilons.shape)
    for part in np.array_split(np.arange(epsilons.size), min(epsilons.size, _LINES)):
        middle = float(epsilons[part[len(part) // 2]])
        size = task.rough(middle)
        c = task.saddle(middle, size)
        less, more = task.sides(middle, size, c, _allowed(4 * tolerance, c, max(middle, 1e-3)))
        c, _ = saddle(more if more.infinite < 0.5 else less, None, middle)  # what tells nothing is no guide
        for factor in (1.0, 8.0, 64.0):
            curve = _curve_near(task, c, middle, size, factor * tolerance)
            if curve is not None:
                low, high = curve(epsilons[part])
                lower[part], upper[part] = np.fmax(lower[part], low), np.fmin(upper[part], high)
                break
        else:  # too many nodes
            less, more = task.sides(middle, size, c, _allowed(4 * tolerance, c, max(middle, 1e-3)))
            lower[part] = np.log(less.seen(epsilons[part])) - less.doubt[1]
            upper[part] = np.minimum(upper[part], _chernoff(more, epsilons[part], c))
        nearest = float(epsilons[part[0]])
        if lower[part[0]] == -np.inf and not upper[part[0]] < _DEEPEST and 0 < (last := task.guess(_DEEPEST)) < nearest:
            # delta falls: where it is too small to be seen it is no larger than nearer by
            near = curve_at(task, last, task.rough(last), _GLANCE)
            upper[part] = np.fmin(upper[part], near(np.array([last]))[1][0] if near is not None else 0.0)
    return np.minimum(lower, upper), np.maximum(lower, upper)


def _curve_near(task: Planned, c: float, epsilon: float, size: float, tolerance: float) -> Curve | None:
    change = 0.25 * tolerance * max(1.0, min(c * epsilon, -size))
    less, more = task.sides(epsilon, size, c, 2 * change / (c * (c + 1)))
    return averaged_curve(less, more, c, epsilon, change, TERMS, size if task.large else 0.0)[0]


def curve_at(task: Planned, epsilon: float, size: float, tolerance: float) -> crossing.Curve | None:
    """Certified bounds that are sharp near an epsilon where log delta is about `size`."""
    c = task.saddle(epsilon, size)
    _, coarse = task.sides(epsilon, size, c, _allowed(30 * tolerance, c, max(epsilon, 1e-3)))
    c, _ = saddle(coarse, None, epsilon)
    return _curve_near(task, c, epsilon, size, tolerance) or _curve_near(task, c, epsilon, size, 30 * tolerance)


def chernoff_at(task: Task, epsilons: Array, epsilon: float, size: float) -> Array:
    """Certified upper bounds on log delta that cost little, good near an epsilon where it is about `size`."""
    c = task.saddle(epsilon, size)
    return _chernoff(task.sides(epsilon, size, c, _allowed(1e-3, c, max(epsilon, 1e-3)))[1], epsilons, c)


def _chernoff(more: Side, epsilons: Array, c: float) -> Array:
    orders = c * np.geomspace(0.5, 2.0, 7)
    raised = 1e-6 + more.doubt[1]  # as for the aliases on a line
    bounds = more.log_mgf(orders) + log_peak(orders) - np.multiply.outer(epsilons - more.doubt[0], orders)
    bounds = np.where(epsilons - more.doubt[0] >= more.top, -np.inf, bounds.min(axis=1))
    return np.minimum(_with_leak(bounds, more.infinite) + raised, 0.0)


def enumerated(steps: Steps, most: int) -> Points | None:
    """The law of the total loss by a sum over all that can happen, where that is no more than so much."""
    laws = [(law, count) for pair, count in steps if (law := exact(pair)) is not None]
    return product(laws, most) if len(laws) == len(steps) else None


def sums(steps: Steps, most: int) -> tuple[Points, float, float] | None:
    """The law of the total by such a sum, how far its losses may be off, and by what factor (as a logarithm) a delta.

    A sum of n positive terms is off by n units of rounding, of functions and products by 64 more; a term's logarithm by
    some of itself for every step, and by what a binomial coefficient loses, a few units of log T!; a mass by 2^-50.
    """
    law = enumerated(steps, most)
    if law is None:
        return None
    shift, _ = Side(tuple((exact(pair) or law, count) for pair, count in steps), above=True).doubt
    units = 2 * law.losses.size + 64 + 8 * len(steps) * float(np.abs(law.logs).max())
    units += 16 * sum(math.lgamma(count + 1) for _, count in steps)
    return law, shift, UNIT_ROUNDOFF * (units + 32 * sum(count for _, count in steps))


def listed(steps: Steps) -> crossing.Curve | None:
    """The curve by such a sum."""
    known = sums(steps, _FEW)
    if known is None:
        return None
    law, shift, margin = known

    def curve(epsilons: Array) -> tuple[Array, Array]:
        lower, upper = law.log_delta(epsilons + shift), law.log_delta(epsilons - shift)
        return lower - margin, np.minimum(upper + margin, 0.0)

    return curve


class Planned(Protocol):
    """A composition that has two laws at points, cut for what is asked."""

    @property
    def large(self) -> bool:
        """Whether one large loss may decide: then delta is far below what a saddle point says."""

    def guess(self, log_delta: float) -> float:
        """Roughly an epsilon, or a larger one."""

    def saddle(self, epsilon: float, log_delta: float) -> float:
        """Roughly the tilt that suits an epsilon where delta is about so large."""

    def rough(self, epsilon: float) -> float:
        """Roughly log delta at an epsilon."""

    def sides(self, epsilon: float, log_delta: float, tilt: float, variance: float) -> tuple[Side, Side]:
        """Laws that reveal less and more, sharp near an epsilon where delta is about so large."""


@dataclass(frozen=True)
class Task:
    """A composition: its Gaussians as one, what has a law of its own, and what must be cut into bins."""

    gaussian: float
    closed: tuple[tuple[Scattered, int], ...]
    open: tuple[tuple[Pair, int], ...]
    steps: tuple[tuple[Pair, int], ...]
    large: bool = False

    @staticmethod
    def of(steps: Steps) -> Task:
        laws = [(exact(pair), count) for pair, count in steps]
        squared = math.fsum(count * law.squared for law, count in laws if isinstance(law, GaussianLaw))
        is_cut = [is_open(pair) for pair, _ in steps]
        closed = [
            (law, count)
            for (law, count), cut in zip(laws, is_cut, strict=True)
            if law is not None and not cut and not isinstance(law, GaussianLaw)
        ]
        cut = [step for step, needed in zip(steps, is_cut, strict=True) if needed]
        return Task(squared, tuple(closed), tuple(cut), tuple(steps))

    @cached_property
    def survey(self) -> Survey:
        return Survey(self.steps)

    def guess(self, log_delta: float) -> float:
        return self.survey.guess(log_delta) if self.open else 0.0

    def saddle(self, epsilon: float, log_delta: float) -> float:
        return self.survey.saddle(epsilon, log_delta) if self.open else 1.0

    def rough(self, epsilon: float) -> float:
        return self.survey.plan_at(epsilon)[1] if self.open else 0.0

    def rough_curve(self, epsilons: Array) -> Array:
        """Roughly log delta at ascending epsilons."""
        if not self.open:
            return np.asarray(-10.0 * np.arange(epsilons.size), dtype=np.float64)
        found, size = [], -1.0
        for epsilon in epsilons:
            for _ in range(2):
                size = min(self.survey.plan(float(epsilon), size)[1], 0.0)
            found.append(size)
        return np.array(found, dtype=np.float64)

    @property
    def whole(self) -> list[tuple[Scattered, int]]:
        """What needs no bins."""
        return [*([(GaussianLaw(self.gaussian), 1)] if self.gaussian > 0 else []), *self.closed]

    def sides(self, epsilon: float, log_delta: float, tilt: float, variance: float) -> tuple[Side, Side]:
        less = more = self.whole
        if self.open:
            low, high, _ = self.survey.window(epsilon, log_delta)
            below, above = enclosing_laws(self.open, low, high, tilt, variance)
            less, more = less + below, more + above
        return Side(tuple(less), above=False), Side(tuple(more), above=True)


def averaged_curve(
    less: Side, more: Side, c: float, epsilon: float, log_change: float, terms: int, log_delta: float
) -> tuple[Curve | None, int]:
    """Two lines at c, each changing log delta by no more than about `log_change`, and what they cost.

    Digits enough for a delta as small as that, where it is smaller than the saddle point says.
    """
    lines, cost = [], 0
    for side in (less, more):
        kernel = Kernel(width_for(c, min(log_change, 1.0), side.above), side.above)
        value, _, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
        scale = 1 / (c * (c + 1) * math.sqrt(2 * math.pi * (max(variance, 0.0) + c**-2 + (c + 1) ** -2)))
        short = min(max(value - c * epsilon + math.log(scale) - log_delta - _ROUGH, 0.0), _SHORTEST)
        size = _NEGLIGIBLE * min(log_change, 1.0) * scale * math.exp(-short)
        points = sum(law.size + 10 for law, _ in side.laws) + _SEARCH
        spread = math.sqrt(max(variance, 1e-300))
        line = averaged_line(side, c, spread, kernel, Wanted(epsilon, size, max(terms - cost, 0) // points))
        if line is None:
            return None, cost
        lines.append(line)
        cost += points * line.nodes.size
    return Curve(less, more, *lines), cost
