"""Laws added up point by point, on a lattice: a sum of products of positive numbers keeps its digits however small.

A line (scattered.py) knows delta to 1e-16 of what Chernoff's bound says.  Where one large loss decides, as it does in
groups of records, delta lies e^25 and more below that.  Here masses of two laws are multiplied and added, n^2 of them,
and copies come by doubling (stacks.py): some thousand points and a dozen sums are enough for groups among groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hush.accounting.among.outcomes import Outcomes
from hush.accounting.among.stacks import Frame, Laws, Stack, Window, on_lattice, points_of
from hush.accounting.contours.crossing import EPSILON_LIMIT, is_narrow, root_of_each, within
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import Points, surely_infinite

_UNIT = 2.0**-50
_RARE = 1e-7  # of delta: mass that may count as infinite
_MARGIN = 16.0  # a total that far beyond epsilon may count as infinite: it costs exp(-16) of its mass
_COARSE, _POINTS = 600, (2500, 9000)  # of lattices
_NARROWED = 0.7  # times what it was: a finer lattice was worth it
_LOOKS = 16  # at most
_SAME, _UNSETTLED = 0.5, 40.0  # of log delta: what changes little; how much smaller it may be than it seems
_DEEPEST = -650.0  # log delta that is told
_FURTHEST = 1.2 * EPSILON_LIMIT


def stack(laws: Laws, frame: Frame, window: Window) -> tuple[list[Stack], list[Stack], Stack]:
    """Each law, copies of it added up, and the law of the total; laws reveal more or less as the frame does."""
    single, powers = [], []
    for k, (law, count) in enumerate(laws):
        others = sum(window.powers[:k]) + sum(window.powers[k + 1 :])
        single.append(on_lattice(law, frame, others + (count - 1) * window.single[k]))
        powers.append(single[k].times(count, frame, others, window.single[k]))
    total = powers[0]
    for k, one in enumerate(powers[1:]):
        total = total.plus(one, frame, sum(window.powers[k + 2 :]))
    return single, powers, total


@dataclass(frozen=True)
class Look:
    """About epsilon and log delta, on a lattice that holds no more than what counts: that of each law, and in all."""

    at: float
    size: float
    frame: Frame
    single: list[Stack]
    powers: list[Stack]
    total: Points
    window: Window
    """For a lattice that is finer."""


def look(laws: Laws, top: float, points: int, *, log_delta: float | None = None, epsilon: float = 0.0) -> Look | None:
    """From above, on lattices each finer than the one before; None where a delta is not reached."""
    at, size = epsilon, _DEEPEST if log_delta is None else log_delta
    window, leak, steps = Window.whole(top, laws), surely_infinite(laws), sum(count for _, count in laws)
    settled = log_delta is not None
    for _ in range(_LOOKS):
        rare = math.exp(max(size - (0.0 if settled else _UNSETTLED), _DEEPEST)) * _RARE
        frame = Frame.of(laws, window, points, rare, above=True)
        single, powers, whole = stack(laws, frame, window)
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
        needed, spread = at + _MARGIN + down, math.inf
        if not whole.is_cut_off(frame, leak):
            needed = min(needed, max(total.top, at) + 3 * frame.spacing)
            spread = 2 * (needed - at)
        # losses moved up by no more than the spacing, each; and an epsilon a little smaller may be asked for as well
        floor = at - (needed - at) - (frame.spacing * steps if log_delta is not None else 0.0)
        tops = [one.top(frame, law.infinite) for one, (law, _) in zip(single, laws, strict=True)]
        sums = [one.top(frame, surely_infinite([own])) for one, own in zip(powers, laws, strict=True)]
        ends = zip((*single, *powers, whole), (*tops, *sums, whole.top(frame, leak)), strict=True)
        length = frame.spacing + max(end - frame.spacing * one.first for one, end in ends)
        narrower = Window(min(length, needed + down), floor, needed, spread, tuple(tops), tuple(sums))
        found = Look(at, size, frame, single, powers, total, narrower)
        if window.spread < math.inf and spread == math.inf and needed > window.top:
            break  # more was cut off than was to be: no lattice that is finer says more
        if settled and not narrower.is_worth_it(window):
            break
        window = narrower
    return found


def _root(law: Points, log_delta: float) -> float:
    """About the epsilon of a law."""
    low, high = 0.0, max(law.top, 0.0)
    if law.log_delta(np.array([high]))[0] > log_delta:
        return math.inf
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if law.log_delta(np.array([middle]))[0] > log_delta else (low, middle)
    return high


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
    def of(less: Laws, more: Laws, window: Window, points: int, rare: float) -> Curve:
        both = (*less, *more)
        frames = [Frame.of(both, window, points, rare, above=above) for above in (False, True)]
        below, above = (stack(laws, frame, window) for laws, frame in zip((less, more), frames, strict=True))
        steps = sum(count for _, count in less)
        sizes = [law.losses.size if isinstance(law, Outcomes) else 4 for law, _ in less]
        longest = max(one.masses.size for _, powers, total in (below, above) for one in (*powers, total))
        return Curve(
            points_of(below[2], frames[0].spacing),
            points_of(above[2], frames[1].spacing),
            _UNIT * steps * (64 + max(sizes)),
            _UNIT * steps * (longest + 64) + 1e-11,
        )

    def __call__(self, epsilons: Array) -> tuple[Array, Array]:
        lower = self.less.log_delta(epsilons + self.shift) - self.margin
        return lower, np.minimum(self.more.log_delta(epsilons) + self.margin, 0.0)


def _window(seen: Sequence[Look], laws: Laws) -> Window:
    """That serves all."""
    return reduce(Window.around, (one.window for one in seen)) if seen else Window.whole(_FURTHEST, laws)


@np.errstate(all="ignore")
def epsilon(less: Laws, more: Laws, guess: float, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta)."""
    seen = look(more, 1.1 * guess + _MARGIN, _COARSE, log_delta=log_delta)
    seen = seen or look(more, _FURTHEST, _COARSE, log_delta=log_delta)
    # what reveals less may end further out: its last outcome is where a chord of the curve ends
    other = look(less, _FURTHEST if seen is None else 1.1 * seen.at + _MARGIN, _COARSE, log_delta=log_delta)
    window = _window([one for one in (seen, other) if one is not None], more)
    guess = seen.at if seen is not None else other.at if other is not None else guess
    low, high, gap = 0.0, math.inf, math.inf
    for points in _POINTS:
        curve = Curve.of(less, more, window, points, math.exp(log_delta) * _RARE)
        low, high = within((low, high), root_of_each(curve, guess, log_delta, tolerance))
        if is_narrow(low, high, tolerance) or not high - low < _NARROWED * gap:
            break
        gap, guess = high - low, 0.5 * (low + high)
    return low, high


@np.errstate(all="ignore")
def log_delta(less: Laws, more: Laws, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    seen = [one for laws in (less, more) if (one := look(laws, epsilon + _MARGIN, _COARSE, epsilon=epsilon))]
    window = _window(seen, more)
    rare = math.exp(max(min(s.size for s in seen), _DEEPEST)) * _RARE
    low, high, gap = -math.inf, 0.0, math.inf
    for points in _POINTS:
        curve = Curve.of(less, more, window, points, rare)
        lower, upper = (float(side[0]) for side in curve(np.array([epsilon])))
        low, high = max(low, lower), min(high, upper)
        if high - low <= tolerance * max(1.0, -high) or not high - low < _NARROWED * gap:
            break
        gap = high - low
    return low, high
