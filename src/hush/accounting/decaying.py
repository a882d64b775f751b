"""Compositions whose transform decays by itself: contour integrals without bins and without averages.

Where many steps add up, E[e^{sL}] of their total is next to nothing a few nodes away from the real axis.  Steps that
are samples of Gaussian or Laplace noise, however they are mixed with others, are seen to do so (unbinned.py), and
their sums are as good as rounding: a line takes a few milliseconds, and says ten digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting import crossing, unbinned
from hush.accounting.line import Line, alias_free_spacing, chernoff_points, log_peak
from hush.accounting.losses import Array
from hush.accounting.points import GaussianLaw
from hush.accounting.scattered import TERMS, Curve, Task, averaged_curve
from hush.accounting.tilted import Side, saddle
from hush.accounting.transform import UNIT_ROUNDOFF

_NEGLIGIBLE = -26.0  # log of what aliases and nodes left out may add, as a share
_SPARE = 4.0  # and below what is asked for
_SAME, _NEAR = 0.2, 6.0  # logs of tilts and of deltas: closer, a law serves as well
_ORDERS = np.geomspace(0.25, 4.0, 33)  # of Chernoff's bounds, as parts of the best
_LEAST, _MOST = 8, 4096  # nodes


def fits(task: Task) -> bool:
    """Whether some steps need bins elsewhere, and none does here."""
    return bool(task.open) and all(unbinned.fits(pair) for pair, _ in task.open)


@np.errstate(all="ignore")
def curve_at(task: Task, epsilon: float, size: float, enough: float) -> crossing.Curve | None:
    """Certified bounds near an epsilon > 0 where log delta is about `size`, good to so much; None if that is too much.

    Where it doesn't decay by itself, averaged over a little of epsilon (scattered.py).
    """
    c = task.saddle(epsilon, size)
    for _ in range(3):
        less, more = _sides(task, c, size)
        before, assumed = c, size
        c, _ = saddle(more, None, epsilon)
        size = _size(more, c, epsilon)
        if abs(math.log(c / before)) < _SAME and abs(size - assumed) < _NEAR:
            break  # what they were cut for
    for negligible in (_NEGLIGIBLE, max(_NEGLIGIBLE, min(math.log(enough), 0.0) - _SPARE)):
        upper = _line(more, c, epsilon, negligible)
        lower = _line(less, c, epsilon, negligible) if upper is not None else None
        if lower is not None and upper is not None:
            return Curve(less, more, lower, upper)
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


def _sides(task: Task, tilt: float, log_delta: float) -> tuple[Side, Side]:
    """Laws that reveal less and more: what they cut off is negligible."""
    below, above = unbinned.enclosing_laws(task.open, tilt, log_delta)
    return Side((*task.whole, *below), above=False), Side((*task.whole, *above), above=True)


def _line(side: Side, c: float, epsilon: float, log_share: float) -> Line | None:
    """The integrand on the line Re s = c, up to where it has decayed (line.py)."""
    value, _, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    variance = max(variance, 0.0) + c**-2 + (c + 1) ** -2
    negligible = log_share - math.log(c * (c + 1)) - 0.5 * math.log(2 * math.pi * variance)
    points = chernoff_points(c, math.sqrt(variance))
    values = side.log_mgf(points) + 1e-6 + 64 * UNIT_ROUNDOFF * side.steps
    spacing = alias_free_spacing(c, epsilon, value, points, values, negligible)
    if not 0 < spacing < math.inf:
        return None
    count = math.ceil(max(math.sqrt(-2 * negligible / variance) / spacing, 1.0)) + _LEAST  # as a Gaussian decays
    while not _log_left(side, c, spacing * (count - 1)) - value < negligible:
        count *= 2
        if count > _MOST or not _log_left(side, c, spacing * (_MOST - 1)) - value < negligible:
            return None  # it hardly decays
    log_tail = _log_decay(side, c, spacing * (count - 1))
    shape, errors, scale = side.transform(c, spacing, count)
    nodes = np.asarray(c + 1j * spacing * np.arange(count))
    return Line(
        c=c,
        spacing=spacing,
        nodes=nodes,
        values=shape,
        errors=errors,
        log_scale=scale,
        log_tail=log_tail - scale,
        chernoff_points=points,
        chernoff_values=values,
    )


def _log_left(side: Side, c: float, height: float) -> float:
    """log of a bound on what nodes beyond a height add up to."""
    return _log_decay(side, c, height) - math.log(math.pi * height)


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
