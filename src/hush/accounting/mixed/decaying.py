"""Compositions whose transform decays by itself: contour integrals without bins and without averages.

Where many steps add up, E[e^{sL}] of their total is next to nothing a few nodes away from the real axis.  Steps that
are samples of Gaussian or Laplace noise, however they are mixed with others, are seen to do so (unbinned.py), and
their sums are as good as rounding: a line takes a few milliseconds, and says ten digits.

One line serves both bounds.  As a measure on paths the law that reveals more is the one that reveals less and some
atoms besides, so its delta exceeds the other's by no more than Chernoff's bound on what these add: for any t > 0,

    E[h(L - eps)] <= k(t) e^{-t eps} (exp(Lambda_more(t)) - exp(Lambda_less(t))),    h(u) = (1 - e^{-u})_+.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from hush.accounting.contours import crossing
from hush.accounting.contours.crossing import EPSILON_LIMIT, certified_root
from hush.accounting.contours.line import Line, alias_free_spacing, chernoff_points, log_peak
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF
from hush.accounting.mixed import unbinned
from hush.accounting.mixed.binned import is_open
from hush.accounting.mixed.scattered import TERMS, Steps, Task, averaged_curve
from hush.accounting.mixed.tilted import Side, saddle
from hush.accounting.pairs.bounded import largest_total
from hush.accounting.pairs.losses import Array, Pair
from hush.accounting.pairs.points import GaussianLaw
from hush.accounting.pairs.standing import few_of

_ROUNDED = 6  # digits of a log delta that say where to look
_NEGLIGIBLE = -26.0  # log of what aliases and nodes left out may add, as a share
_DIGITS, _FEWER_DIGITS = 29.0, 20.0  # logs of delta over what is cut off: large losses make lines long
_SPARE = 4.0  # and below what is asked for
_SAME, _NEAR = 0.2, 6.0  # logs of tilts and of deltas: closer, a law serves as well
_ORDERS = np.geomspace(0.25, 4.0, 33)  # of Chernoff's bounds, as parts of the best
_ALL = 1e-3  # logs: of what is infinite, and of all
_LEAST, _FEWER, _MOST, _LONGEST = 8, 1024, 4096, 16384  # nodes: where bins serve as well, fewer
_PRODUCTS = 4_000_000  # or of a node and a point no more than that
_BLUNT = -5.0  # log of what may be left out where only the size of a delta is asked for
_CLEARLY = 0.3  # logs of deltas that a saddle point tells apart
_LINES = 12  # for a whole curve


def fits(steps: Steps) -> bool:
    """Whether some steps need bins elsewhere, and none does here."""
    open = [pair for pair, _ in steps if is_open(pair)]
    return bool(open) and all(unbinned.fits(pair) for pair in open)


@dataclass(frozen=True)
class Curve:
    """Certified bounds on log delta from one line: that of the law that reveals less."""

    less: Side
    more: Side
    line: Line

    def __call__(self, epsilons: Array) -> tuple[Array, Array]:
        (down, less_margin), (up, more_margin) = self.less.doubt, self.more.doubt
        c, leak = self.line.c, math.log(self.more.infinite) if self.more.infinite > 0 else -math.inf
        low, high = self.line.log_delta(epsilons + down)[0], self.line.log_delta(epsilons - up)[1]
        added = self.line.log_scale + self._log_added - c * (epsilons - up) + float(log_peak(c)) + 1e-9
        with np.errstate(divide="ignore"):
            low = np.logaddexp(low, np.log(self.less.seen(epsilons + down)))
        high = np.where(epsilons - up >= self.more.top, -np.inf, np.logaddexp(high, added))
        high = np.logaddexp(high, np.logaddexp(self.more.log_hidden, leak))
        return low - less_margin, np.minimum(high + more_margin, 0.0)

    def width(self, epsilon: float) -> float:
        """How well log delta is known there."""
        lower, upper = self(np.array([epsilon]))
        return float(upper[0] - lower[0])

    @cached_property
    def _log_added(self) -> float:
        """log of exp(Lambda_more - Lambda_less) - 1 at c."""
        rise = 0.0
        for (law, count), (more, _) in zip(self.less.laws, self.more.laws, strict=True):
            if isinstance(law, unbinned.Smooth) and isinstance(more, unbinned.Smooth):
                rise += count * law.rise(more, self.line.c)
        if rise > 700:
            return rise
        return math.log(math.expm1(rise)) if rise > 0 else -math.inf


@np.errstate(all="ignore")
def epsilon(steps: Steps, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta), where lines decay."""
    curve, place = _curve_for(tuple(steps), round(log_delta, _ROUNDED), tolerance)
    return (0.0, math.inf) if curve is None else certified_root(curve, place, log_delta)


@lru_cache(maxsize=4)
def _curve_for(steps: tuple[tuple[Pair, int], ...], log_delta: float, tolerance: float) -> tuple[Curve | None, float]:
    """A curve around where it has about such a delta, and that epsilon.

    Kept for a while: beside promises that may fail two deltas are asked for, a rounding apart.
    """
    task, few = Task.of(steps), Task.of(few_of(steps).counted)
    c, place = _aimed(few, None, log_delta)
    if not place < EPSILON_LIMIT:
        return None, place
    return _looked_at((few, task), c, place, log_delta, tolerance * c * place), place


@np.errstate(all="ignore")
def log_delta(steps: Steps, epsilons: Array, tolerance: float) -> tuple[Array, Array]:
    """Certified bounds on log delta at a few epsilons, where lines decay; else that it is at most 1."""
    task, few = Task.of(steps), Task.of(few_of(steps).counted)
    lower, upper = np.full(epsilons.shape, -np.inf), np.zeros(epsilons.shape)
    for k, epsilon in enumerate(epsilons):
        size = min(few.rough(float(epsilon)), -1e-3)
        if size < math.log(max(few.survey.infinite, 1e-300)) + _ALL:
            continue  # all that is left is infinite
        c, size = _aimed(few, float(epsilon), size)
        curve = _looked_at((few, task), c, float(epsilon), size, 12 * tolerance * max(1.0, -size))
        if curve is not None:
            low, high = curve(epsilons[k : k + 1])
            lower[k], upper[k] = float(low[0]), float(high[0])
    return np.minimum(lower, upper), np.maximum(lower, upper)


@np.errstate(all="ignore")
def whole(ways: Sequence[Steps], epsilons: Array, least: float, most: float) -> tuple[bool, Array, Array]:
    """Certified bounds on log delta at many ascending epsilons, the larger of both directions, from a few lines each.

    And whether they are close: as far apart as the `least` for delta itself to be known that well, but no further than
    the `most`.  They may not be where lines don't decay.
    """
    lower, upper = np.full((2, epsilons.size), -np.inf)
    lines: list[Curve] = []
    for steps in ways:
        low, high = np.full(epsilons.size, -np.inf), np.zeros(epsilons.size)
        for line in lines:  # near 0 they serve both directions
            known = crossing.mirrored(line)(epsilons)
            low, high = np.fmax(low, known[0]), np.fmin(high, known[1])
        lines = _lines(steps, epsilons, (low, high), (least, most), upper)
        lower, upper = np.maximum(lower, low), np.maximum(upper, high)
    lower = np.minimum(lower, upper)
    return not bool(_far_apart(lower, upper, least, most).any()), lower, upper


def _far_apart(lower: Array, upper: Array, least: float, most: float) -> NDArray[np.bool_]:
    return (upper > -np.inf) & ~(upper - lower <= np.clip(least * np.exp(-upper), least, most))


def _lines(
    steps: Steps, epsilons: Array, bounds: tuple[Array, Array], wanted: tuple[float, float], rival: Array
) -> list[Curve]:
    """Lines in the middle of what isn't known, each of which serves many epsilons; bounds are drawn closer, in place.

    What lies below a rival need be known no better.
    """
    task, few, (low, high), (least, most) = Task.of(steps), Task.of(few_of(steps).counted), bounds, wanted
    found: list[Curve] = []
    high[epsilons >= largest_total(steps)] = -np.inf
    place = -1
    while len(found) < _LINES:
        waiting = np.flatnonzero((high > rival) & _far_apart(low, high, least, most))
        if waiting.size == 0 or place in waiting:
            break  # all is known, or lines are blunt
        place = int(waiting[waiting.size // 2])
        epsilon = float(epsilons[place])
        c, size = _aimed(few, epsilon, min(few.rough(epsilon), -1e-3))
        curve = _looked_at(
            (few, task), c, epsilon, size, float(np.clip(least * math.exp(min(-size, 700.0)), least, most))
        )
        if curve is None:
            break  # nor would others be sharp
        found.append(curve)
        ends = curve(epsilons[waiting])
        low[waiting], high[waiting] = np.fmax(low[waiting], ends[0]), np.fmin(high[waiting], ends[1])
    return found


@np.errstate(all="ignore")
def is_below(steps: Steps, epsilon: float, log_delta: float) -> bool:
    """Whether a blunt line shows that delta(epsilon) <= exp(log_delta)."""
    c, size = _aimed(Task.of(few_of(steps).counted), epsilon, min(log_delta, -1e-3))
    if not size < log_delta - _CLEARLY:
        return False
    less, more = _sides(Task.of(steps), c, size)
    line = _line(less, c, epsilon, _BLUNT, most=_FEWER)
    return line is not None and bool(Curve(less, more, line)(np.array([epsilon]))[1][0] <= log_delta)


def _aimed(task: Task, epsilon: float | None, size: float) -> tuple[float, float]:
    """A line's order, and about the epsilon where log delta is `size`, or log delta at an epsilon."""
    start = task.guess(size) if epsilon is None else epsilon
    c = task.saddle(start, size)
    for _ in range(3):
        more = _sides(task, c, size)[1]
        before, assumed = c, size
        c, start = saddle(more, size if epsilon is None else None, epsilon)
        size = size if epsilon is None else _size(more, c, epsilon)
        if abs(math.log(c / before)) < _SAME and abs(size - assumed) < _NEAR:
            break  # what they were cut for
    return c, start if epsilon is None else size


def _looked_at(tasks: tuple[Task, Task], c: float, epsilon: float, size: float, enough: float) -> Curve | None:
    """The curve of many kinds of steps, after a look at a few of them: None where these aren't known well enough."""
    few, task = tasks
    rougher = max(_NEGLIGIBLE, min(math.log(max(enough, 1e-300)), 0.0) - _SPARE)
    for digits, negligible in ((_DIGITS, _NEGLIGIBLE), (_FEWER_DIGITS, rougher)):
        height, more_nodes, curve = 0.0, 1, None
        for one in (few, task) if len(few.steps) < len(task.steps) else (task,):
            less, more = _sides(one, c, size, digits)
            # where bins serve as well, no more nodes than take a moment
            most = more_nodes * max(_FEWER, min(_PRODUCTS // sum(law.size for law, _ in less.laws), _LONGEST))
            line = _line(less, c, epsilon, negligible, height, most)
            curve = Curve(less, more, line) if line is not None else None
            if line is None or curve is None or not curve.width(epsilon) < enough:
                curve = None
                break
            height, more_nodes = float(line.nodes[-1].imag), 2  # all of them may take a little more than the few
        if curve is not None:
            return curve
    return None


@np.errstate(all="ignore")
def curve_at(task: Task, epsilon: float, size: float, enough: float) -> crossing.Curve | None:
    """Certified bounds near an epsilon > 0 where log delta is about `size`, good to so much; None if that is too much.

    Where it doesn't decay by itself, averaged over a little of epsilon (scattered.py).
    """
    c, size = _aimed(task, epsilon, size)
    less, more = _sides(task, c, size)
    for negligible in (_NEGLIGIBLE, max(_NEGLIGIBLE, min(math.log(enough), 0.0) - _SPARE)):
        line = _line(less, c, epsilon, negligible)
        if line is not None:
            return Curve(less, more, line)
    return averaged_curve(less, more, c, epsilon, 0.25 * enough, TERMS // 8, 0.0)[0]


@dataclass(frozen=True)
class Chernoff:
    """Upper bounds on log delta that cost little, from one law: Chernoff's at some orders."""

    side: Side
    orders: Array
    values: Array

    @staticmethod
    @np.errstate(all="ignore")
    def of(task: Task, epsilon: float, size: float) -> Chernoff:
        """Good around an epsilon where log delta is about `size`."""
        c = task.saddle(epsilon, size)
        for _ in range(2):
            more = _sides(task, c, size)[1]
            c, _ = saddle(more, None, epsilon)
        orders = c * _ORDERS
        raised = 1e-6 + 64 * UNIT_ROUNDOFF * more.steps
        return Chernoff(more, orders, more.log_mgf(orders) + log_peak(orders) + raised)

    def __call__(self, epsilons: Array) -> Array:
        shift, margin = self.side.doubt
        bounds = (self.values - np.multiply.outer(epsilons - shift, self.orders)).min(axis=1)
        leak = math.log(self.side.infinite) if self.side.infinite > 0 else -math.inf
        bounds = np.logaddexp(bounds, np.logaddexp(self.side.log_hidden, leak))
        return np.asarray(np.minimum(bounds + margin, 0.0))


def _size(side: Side, c: float, epsilon: float) -> float:
    """About log delta, by the saddle point."""
    value, _, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    spread = max(variance, 0.0) + c**-2 + (c + 1) ** -2
    return min(value - c * epsilon - math.log(c * (c + 1)) - 0.5 * math.log(2 * math.pi * spread), -1e-3)


def _sides(task: Task, tilt: float, log_delta: float, digits: float = _FEWER_DIGITS) -> tuple[Side, Side]:
    """Laws that reveal less and more: what they cut off is e^-digits of delta."""
    below, above = unbinned.enclosing_laws(task.open, tilt, log_delta, digits)
    return Side((*task.whole, *below), above=False), Side((*task.whole, *above), above=True)


def _line(
    side: Side, c: float, epsilon: float, log_share: float, height: float = 0.0, most: int = _MOST
) -> Line | None:
    """The integrand on the line Re s = c, up to where it has decayed (line.py): about that height, if given."""
    value, _, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    variance = max(variance, 0.0) + c**-2 + (c + 1) ** -2
    negligible = log_share - math.log(c * (c + 1)) - 0.5 * math.log(2 * math.pi * variance)
    points = chernoff_points(c, math.sqrt(variance))
    values = side.log_mgf(points) + 1e-6 + 64 * UNIT_ROUNDOFF * side.steps
    spacing = alias_free_spacing(c, epsilon, value, points, values, negligible)
    if not 0 < spacing < math.inf:
        return None

    def log_left(nodes: int) -> float:
        """log of a bound on the transform from there on, as far as it isn't negligible."""
        end = spacing * (nodes - 1)
        return _log_decay(side, c, end) - (value + negligible + math.log(math.pi * end))

    height = height or math.sqrt(-2 * negligible / variance)  # as a Gaussian decays
    count = math.ceil(max(height / spacing, 1.0)) + _LEAST
    if count > most:
        return None
    left = log_left(count)
    if not left < 0 and not log_left(most) < 0:
        return None  # it hardly decays
    while not left < 0:
        count = min(2 * count, most)
        left = log_left(count)
    log_tail = left + value + negligible + math.log(math.pi * spacing * (count - 1))
    shape, errors, scale = side.transform(c, spacing, count)
    nodes = np.asarray(c + 1j * spacing * np.arange(count))
    return Line(
        c=c,
        spacing=spacing,
        nodes=nodes,
        values=shape,
        errors=errors,
        log_scale=scale,
        log_tail=log_tail + 1e-9 - scale,
        chernoff_points=points,
        chernoff_values=values,
    )


def _log_decay(side: Side, c: float, height: float) -> float:
    """log of a bound on the transform at Re s = c, from a height on: what has none of its own is at most that at c."""
    total = 0.0
    for law, count in side.laws:
        if isinstance(law, unbinned.Smooth):
            total += count * law.log_decay(c, height)
        else:
            falls = 0.5 * law.squared * height**2 if isinstance(law, GaussianLaw) else 0.0
            value = float(law.log_mgf(np.array([c]))[0])
            total += count * (value + UNIT_ROUNDOFF * (64 + 8 * abs(value)) - falls)
    return total
