"""Groups among other groups: certified epsilon and delta of their composition.

A rough law of each says where the answer is decided (aims.py), and a pair of each is made that is sharp there
(parts.py).  The composition of these pairs is enclosed on a lattice (stacked.py), or by lines where there are very many
(scattered.py).  Where bounds are too wide, once more: sharper, and aimed by the laws that were found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hush.accounting.among import events, stacked
from hush.accounting.among.aims import MANY, NEAR_ONE, Aim, around, cuts_for, few_points
from hush.accounting.among.aims import aim as aim_at
from hush.accounting.among.outcomes import Outcomes
from hush.accounting.among.parts import LITTLE, Law, Part, Single, by_curve, laws_of
from hush.accounting.among.stacks import Laws
from hush.accounting.contours.crossing import EPSILON_LIMIT, is_narrow, within
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping import grouped
from hush.accounting.groups import Group
from hush.accounting.mechanisms import Mechanism
from hush.accounting.mixed import scattered
from hush.accounting.mixed.tilted import Side
from hush.accounting.pairs.points import Scattered

_LEFT = 1e-5  # of delta: what all ends of curves may add to it
_ROUNDS = 3
_SHARE = 0.5  # of what bounds may be apart: for what the pairs are unsure of
_LOOSER = 4.0  # times the tolerance: of log delta, which changes faster than epsilon
_NEARLY = 30.0  # times as wide as asked for
_STILL = 0.7  # times as wide as before: more points say no more
_SPARE = 0.2  # of what a delta exceeds another by: what may be unsure of it
_SEVERAL = 200  # steps that lines may tell apart better than a lattice
_NOTHING = 1e-9  # an epsilon that may be 0
_DEPTHS = -50.0, -150.0, -300.0, -600.0  # logs of deltas that are expected
_HALF = 0.5  # of a log delta that is exceeded
_FAR = 0.8 * EPSILON_LIMIT  # a rough epsilon that asks for a look whether one part is beyond the limit


def fits(mechanism: Mechanism) -> bool:
    """Whether all parts are groups, and some of them known by their single record's curve alone."""
    parts = mechanism.parts()
    alone = len(parts) == 1 and parts[0][1] == 1
    groups = [part for part, _ in parts if isinstance(part, Group)]
    return not alone and len(groups) == len(parts) and any(by_curve(group) for group in groups)


@np.errstate(all="ignore")
def epsilon(mechanism: Mechanism, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on epsilon."""
    parts: Sequence[Part] = _parts(mechanism, log_delta)
    if _seen(parts, EPSILON_LIMIT) > log_delta:
        return EPSILON_LIMIT, math.inf
    aim = _aim(parts, log_delta=log_delta)
    low, high = 0.0, math.inf
    if aim is None or aim.at > _FAR:
        low = _far(parts, log_delta, tolerance)
        if low >= EPSILON_LIMIT:
            return EPSILON_LIMIT, math.inf
    if aim is None:
        return low, high
    parts = _glanced(parts, aim)
    aim, sharper = _aim(parts, log_delta=log_delta) or aim, 1.0
    none = _aim(parts, epsilon=0.0) if aim.at < _NOTHING else None
    spare = _SPARE * (log_delta - none.size) if none is not None else 0.0  # where delta(0) is smaller, epsilon is 0
    for _ in range(_ROUNDS):
        enough = _SHARE * min(max(tolerance * aim.tilt * aim.at, spare), 1.0) / sharper
        task, before = _task(parts, aim, enough), high - low
        low, high = within((low, high), task.epsilon(log_delta, tolerance))
        if low >= EPSILON_LIMIT or is_narrow(low, high, 1.1 * tolerance) or _STILL * before < high - low < math.inf:
            break
        sharper *= _closer((high - low) / (tolerance * high))
        parts, aim = task.parts, task.aimed(log_delta=log_delta) or _aim(task.parts, log_delta=log_delta) or aim
    return low, high


def _seen(parts: Sequence[Part], epsilon: float) -> float:
    """A lower bound on log delta at a glance: that of each group alone, and of all plain Gaussians alone."""
    squared = sum(part.count * grouped.plain(part.group) for part in parts)
    alone = gaussian_curve(squared)(np.array([epsilon]))[0][0] if squared > 0 else -math.inf
    return max(float(alone), *(grouped.log_seen(part.group, epsilon) for part in parts if part.known is None))


def _far(parts: Sequence[Part], log_delta: float, tolerance: float) -> float:
    """A lower bound on an epsilon that may be beyond the limit, if it is."""
    far = _aim(parts, epsilon=EPSILON_LIMIT)
    near_one = far is None or far.size > NEAR_ONE
    if near_one and events.log_delta_above(parts, EPSILON_LIMIT, -_HALF * log_delta) > log_delta:
        return EPSILON_LIMIT
    low = 0.0
    for part in sorted(parts, key=lambda part: part.known is None):
        alone = _aim([replace(part, count=1)], log_delta=log_delta)
        if alone is None or alone.at > _FAR:
            low = max(low, grouped.at(part.group, log_delta, tolerance)[0])  # what leaves groups out tells no more
        if low >= EPSILON_LIMIT:
            return low
    if far is not None and NEAR_ONE >= far.size > log_delta:
        spare = _SPARE * (far.size - log_delta)  # the further it is, the less has to be known of it
        if _task(parts, far, min(spare, 1.0)).log_delta(EPSILON_LIMIT, spare)[0] > log_delta:
            return EPSILON_LIMIT
    return low


def _closer(excess: float) -> float:
    """How much sharper to look after bounds that many times too wide."""
    return min(max(1.5 * excess, 2.0), 12.0) if math.isfinite(excess) else 4.0


@np.errstate(all="ignore")
def log_delta(mechanism: Mechanism, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    parts: Sequence[Part] = _parts(mechanism, _DEPTHS[0])
    seen, loosely = _seen(parts, epsilon), _LOOSER * tolerance
    if seen > -loosely:
        return seen, 0.0
    aim = None
    for depth in _DEPTHS:  # a law that ends too soon says nothing of how deep delta is
        parts = _deeper(parts, depth)
        aim = _aim(parts, epsilon=epsilon)
        if aim is None or aim.size > depth:
            break
    if aim is None or aim.size > NEAR_ONE:
        seen = max(seen, events.log_delta_above(parts, epsilon, loosely))
        if aim is not None and seen <= -loosely:
            anywhere = around([(part.law, part.count) for part in parts], epsilon)
            seen = max(seen, _task(parts, anywhere, _SPARE).log_delta(epsilon, loosely)[0])
        return seen, 0.0
    parts = _glanced(parts, aim)
    aim, sharper = _aim(parts, epsilon=epsilon) or aim, 1.0
    low, high = seen, 0.0
    for _ in range(_ROUNDS):
        enough, before = loosely * max(1.0, -aim.size), high - low
        task = _task(parts, aim, _SHARE * min(enough, 1.0) / sharper)
        lower, upper = task.log_delta(epsilon, loosely)
        low, high = max(low, lower), min(high, upper)
        if high - low <= 2 * enough or _STILL * before < high - low < math.inf:
            break
        sharper *= _closer((high - low) / enough)
        parts, aim = task.parts, task.aimed(epsilon=epsilon) or _aim(task.parts, epsilon=epsilon) or aim
    return low, high


@dataclass(frozen=True)
class Task:
    """Laws of groups, cut into bins for what is asked."""

    aim: Aim
    laws: tuple[tuple[tuple[Law, Law], int], ...]
    """What reveals less, and what reveals more."""
    parts: tuple[Part, ...]
    """With models that are closer."""
    large: bool = True

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.laws)

    @property
    def both(self) -> tuple[Laws, Laws]:
        less, more = ([(law[k], count) for law, count in self.laws] for k in (0, 1))
        return less, more

    def epsilon(self, log_delta: float, tolerance: float) -> tuple[float, float]:
        """Laws added up, where they are few; by lines, where they are many."""
        found = 0.0, math.inf
        if self.steps <= MANY:
            found = stacked.epsilon(*self.both, self.aim.at, log_delta, tolerance)
        # where delta falls steeply lines may tell a little more
        tried = self.steps > _SEVERAL or is_narrow(*found, _NEARLY * tolerance)
        if tried and not is_narrow(*found, 1.1 * tolerance):
            found = within(found, scattered.epsilon_of(self, log_delta, tolerance))
        return found

    def log_delta(self, epsilon: float, tolerance: float) -> tuple[float, float]:
        low, high = -math.inf, 0.0
        if self.steps <= MANY:
            low, high = stacked.log_delta(*self.both, epsilon, tolerance)
        if self.steps > _SEVERAL and not high - low <= tolerance * max(1.0, -high):
            lower, upper = scattered.log_delta_of(self, np.array([epsilon]), tolerance)
            low, high = max(low, float(lower[0])), min(high, float(upper[0]))
        return low, high

    def aimed(self, *, log_delta: float | None = None, epsilon: float | None = None) -> Aim | None:
        """By these laws, which are closer than models."""
        if self.steps > MANY:
            return None
        rough = [
            (few_points(law.losses, law.logs, law.infinite) if isinstance(law, Outcomes) else law, count)
            for law, count in self.both[1]
        ]
        return aim_at(rough, log_delta=log_delta, epsilon=epsilon)

    def guess(self, log_delta: float) -> float:
        return self.aim.at

    def saddle(self, epsilon: float, log_delta: float) -> float:
        return self.aim.tilt

    def rough(self, epsilon: float) -> float:
        return self.aim.size

    def sides(self, epsilon: float, log_delta: float, tilt: float, variance: float) -> tuple[Side, Side]:
        sides: list[list[tuple[Scattered, int]]] = []
        cuts: tuple[float, ...] = ()
        for k in (1, 0):
            own: list[tuple[Scattered | Outcomes, int]]
            own = [(law[k], count) for law, count in self.laws]
            if not cuts or any(law.infinite > math.exp(log_delta) for law, _ in sides[0]):
                cuts = cuts_for(own, epsilon, log_delta)  # the same for both, where both tell of these losses
            cut_laws: list[tuple[Scattered, int]] = []
            for (law, count), cut in zip(own, cuts, strict=True):
                if isinstance(law, Outcomes):
                    edges = law.edges(tilt, cut, variance / len(own), count)
                    cut_laws.append((law.more(edges) if k else law.less(edges), count))
                else:
                    cut_laws.append((law, count))
            sides.append(cut_laws)
        more, less = sides
        return Side(tuple(less), above=False), Side(tuple(more), above=True)


def _task(parts: Sequence[Part], aim: Aim, enough: float) -> Task:
    """With pairs that together change log delta by no more than that."""
    moved: list[Part] = []
    laws: list[tuple[tuple[Law, Law], int]] = []
    decide = sum(
        part.known is None and shares.worth.sum() > LITTLE for part, shares in zip(parts, aim.shares, strict=True)
    )
    for part, shares in zip(parts, aim.shares, strict=True):
        pair, learned = part.pair(shares, enough / max(decide, 1))
        moved.append(learned)
        laws.append((laws_of(pair), part.count))
    return Task(aim, tuple(laws), tuple(moved))


def _parts(mechanism: Mechanism, log_delta: float) -> list[Part]:
    groups = [(part, count) for part, count in mechanism.parts() if isinstance(part, Group)]
    return _deeper([Part(Single(group), count, 0.0) for group, count in groups], log_delta)


def _deeper(parts: Sequence[Part], log_delta: float) -> list[Part]:
    """With ends that add next to nothing to such a delta."""
    floor = log_delta + math.log(_LEFT / sum(part.count for part in parts))
    return [replace(part, log_floor=floor) for part in parts]


def _glanced(parts: Sequence[Part], aim: Aim) -> list[Part]:
    return [part.glanced(shares) for part, shares in zip(parts, aim.shares, strict=True)]


def _aim(parts: Sequence[Part], *, log_delta: float | None = None, epsilon: float | None = None) -> Aim | None:
    laws = [(part.law, part.count) for part in parts]
    return aim_at(laws, log_delta=log_delta, epsilon=epsilon)
