"""Groups among other groups: pairs of distributions that are sharp where the composition's answer is decided.

A group's pair lies between those of two bands of the single record's curve (chains.py).  Where that curve has to be
known well depends on the whole composition: tilted by e^{cL}, c being the saddle point of what is asked, only some of
a group's losses count, and only some links of the chains that lead to them.  A model of the curve (links.py) says
which, and enters no bound: there points are close together and asked for sharply (asked.py), elsewhere further apart,
down to where what is left adds next to nothing to delta, however deep that is for a single record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting import chains, grouped, scattered, stacked
from hush.accounting.aims import MANY, Aim, Window, cuts_for, thinned
from hush.accounting.aims import aim as aim_at
from hush.accounting.asked import Asked
from hush.accounting.closed import gaussian_curve
from hush.accounting.crossing import EPSILON_LIMIT, is_narrow, within
from hush.accounting.groups import Group
from hush.accounting.hopeless import least_delta
from hush.accounting.kinds import directions
from hush.accounting.links import Model
from hush.accounting.losses import Array, Enclosed, GaussianPair, Pair
from hush.accounting.makers import Maker, Whole
from hush.accounting.mechanisms import Mechanism
from hush.accounting.outcomes import Outcomes
from hush.accounting.points import GaussianLaw, Points, Scattered, exact
from hush.accounting.powers import of_lines
from hush.accounting.tilted import Side

_LEFT = 1e-5  # of delta: what all ends of curves may add to it
_ROUGHLY = 80  # points of a model's curve
_FEWEST, _MOST = 60, 2000  # points where the answer is decided, at first
_CORNERS = 24_000  # of a group's power curve, at first
_OUTSIDE = 40  # and on either side
_NEAR_TOP = 0.7  # of the largest loss
_TOWARDS = 60  # points that come closer to it
_SHARE = 0.25  # of what log delta may be off: for chords, and for what is asked
_SHARPEST, _BLUNTEST = 4.5e-4, 2e-3  # of log delta
_SHARP = 5e-4  # of log delta, on either side
_DEEP = 200.0  # a log delta below minus that is known no less well
_ROUNDS = 3
_FIRST, _FINEST = 3.0, 9.0  # times as many points in the first and in the last of them: lines that are sharp serve all
_GLANCE = 0.2  # times as many points where a rough look will do
_NEARLY = 30.0  # times as wide as asked for
_STILL = 0.7  # times as wide as before: more points say no more
_SPARE = 0.2  # of what a delta exceeds another by: what may be unsure of it
_SEVERAL = 200  # steps that lines may tell apart better than a lattice
_AROUND = 1.05  # times as far as the model says
_ELSEWHERE = 1.0  # of log delta, in all links of a chain together
_ROUNDING = 32.0  # minus the log of a share that may be rounding
_DEPTHS = -50.0, -150.0, -300.0, -600.0  # logs of deltas that are expected
_FAR = 0.8 * EPSILON_LIMIT  # a rough epsilon that asks for a look whether one part is beyond the limit


def fits(mechanism: Mechanism) -> bool:
    """Whether all parts are groups, and some of them known by their single record's curve alone."""
    parts = mechanism.parts()
    alone = len(parts) == 1 and parts[0][1] == 1
    groups = [part for part, _ in parts if isinstance(part, Group)]
    return not alone and len(groups) == len(parts) and any(_by_curve(group) for group in groups)


def _by_curve(group: Group) -> bool:
    return group.mu is None and grouped.fits(group)


@np.errstate(all="ignore")
def epsilon(mechanism: Mechanism, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on epsilon."""
    parts = _parts(mechanism, log_delta, glances=0)
    aim = _aim(parts, log_delta=log_delta)
    low, high, finer = 0.0, math.inf, _FIRST
    if aim is None or aim.at > _FAR:
        if _beyond(parts, log_delta):
            return EPSILON_LIMIT, math.inf
        for part in sorted(parts, key=lambda part: part.known is None):
            alone = _aim([Part(part.group, 1, part.log_floor, 0)], log_delta=log_delta)
            if alone is None or alone.at > _FAR:
                low = max(low, grouped.at(part.group, log_delta, tolerance)[0])  # what leaves groups out tells no more
            if low >= EPSILON_LIMIT:
                return EPSILON_LIMIT, math.inf
    if aim is None:
        return low, high
    parts = _parts(mechanism, log_delta)
    aim = _aim(parts, log_delta=log_delta) or aim
    for _ in range(_ROUNDS):
        task, before = _task(parts, aim, finer), high - low
        low, high = within((low, high), task.epsilon(log_delta, tolerance))
        if low >= EPSILON_LIMIT or is_narrow(low, high, 1.1 * tolerance) or _STILL * before < high - low < math.inf:
            break
        finer = min(_closer(finer, (high - low) / (tolerance * high)), _FINEST)
        aim = task.aimed(log_delta=log_delta) or aim
    return low, high


def _beyond(parts: Sequence[Part], log_delta: float) -> bool:
    """Whether delta at the limit is seen to be larger: the further it is, the less has to be known of it."""
    far = _aim(parts, epsilon=EPSILON_LIMIT)
    if far is None or not far.size > log_delta:
        return False
    return _task(parts, far, _GLANCE).log_delta(EPSILON_LIMIT, _SPARE * (far.size - log_delta))[0] > log_delta


def _closer(finer: float, excess: float) -> float:
    """How much finer to look after bounds that many times too wide: what is off falls with the square, or nearly so."""
    return finer * min(max(1.3 * excess**0.6, 1.5), 3.0) if math.isfinite(excess) else 3.0 * finer


@np.errstate(all="ignore")
def log_delta(mechanism: Mechanism, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    squared = sum(part.count * grouped.plain(part.group) for part in _parts(mechanism, _DEPTHS[0]))
    seen = float(gaussian_curve(squared)(np.array([epsilon]))[0][0]) if squared > 0 else -math.inf
    if seen > -tolerance:
        return seen, 0.0
    parts, aim = _parts(mechanism, _DEPTHS[0], glances=0), None
    for depth in _DEPTHS:  # a law that ends too soon says nothing of how deep delta is
        parts = _parts(mechanism, depth, glances=0)
        aim = _aim(parts, epsilon=epsilon)
        if aim is None or aim.size > depth:
            break
    if aim is not None and aim.size > -tolerance:
        low, high = _task(parts, aim, _GLANCE).log_delta(epsilon, tolerance)
        if low > -tolerance:
            return low, high
    if aim is not None:
        parts = _parts(mechanism, float(np.clip(aim.size, _DEPTHS[-1], -1.0)))
        aim = _aim(parts, epsilon=epsilon)
    if aim is None:
        alone = [grouped.log_delta_at(part.group, epsilon, tolerance)[0] for part in parts]
        return max(alone), 0.0  # what leaves groups out tells no more
    return _task(parts, aim, 1).log_delta(epsilon, tolerance)


@dataclass(frozen=True)
class Task:
    """Laws of groups, cut into bins for what is asked."""

    aim: Aim
    laws: tuple[tuple[GaussianLaw | tuple[Outcomes, Outcomes], int], ...]
    large: bool = True

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.laws)

    @property
    def both(self) -> tuple[stacked.Laws, stacked.Laws]:
        """What reveals less, and what reveals more."""
        less, more = (
            [(law if isinstance(law, GaussianLaw) else law[k], count) for law, count in self.laws] for k in (0, 1)
        )
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

    def aimed(self, log_delta: float) -> Aim | None:
        """By these laws, which are closer than models."""
        return aim_at(self.both[1], log_delta=log_delta) if self.steps <= MANY else None

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
            own = [(law if isinstance(law, GaussianLaw) else law[k], count) for law, count in self.laws]
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


@dataclass
class Part:
    """A group, how often it is there, and how small a delta of its own counts (as a logarithm)."""

    group: Group
    count: int
    log_floor: float
    glances: int = 1
    """Looks that correct the model."""

    @cached_property
    def known(self) -> Pair | None:
        """Its pair, where that needs no curve."""
        return None if _by_curve(self.group) else self.group.pair_above(math.exp(self.log_floor))

    @cached_property
    def makers(self) -> list[Maker]:
        return grouped.makers(self.group)

    @cached_property
    def oracle(self) -> chains.Oracle:
        wholes = [maker.known for maker in self.makers if isinstance(maker, Whole)]
        if len(wholes) < len(self.makers):
            return Asked(self.makers)

        def whole(epsilons: Array, sizes: Array, tolerance: float | Array) -> tuple[Array, Array]:
            curves = [curve(epsilons) for curve in wholes]
            return np.max([low for low, _ in curves], axis=0), np.max([high for _, high in curves], axis=0)

        return whole

    @cached_property
    def log_least(self) -> float:
        least = max(least_delta(steps) for steps in directions(self.group.inner))
        return math.log(least) if least > 0 else -math.inf

    @cached_property
    def model(self) -> Model:
        """A rough one, moved to what a glance at the chain to the floor tells."""
        rough = grouped.rough(self.group, self.makers, self.log_floor, 0.0)
        chain = chains.Chain(self.oracle, rough, self.group.size, self.log_least, grouped.largest(self.group))
        for _ in range(self.glances):
            chain.glance(chain.model.links(self.group.size, log_delta=self.log_floor))
        return chain.model

    @cached_property
    def last(self) -> float:
        """Where the single record's curve may end: what is left there grows to no more than the floor."""
        _, alpha, power = self.model.levels()
        reached = self.model.logs
        for _ in range(self.group.size - 1):
            reached = np.where(reached <= alpha[-1], np.interp(reached, alpha, power), 0.0)
        small = reached < self.log_floor
        return float(self.model.epsilons[max(int(np.argmax(small)), 1) if small.any() else -1])

    @cached_property
    def law(self) -> Scattered | None:
        """About the law of its loss; None where all of it is beyond any limit."""
        if self.known is not None:
            law = exact(self.known.upper if isinstance(self.known, Enclosed) else self.known)
            return thinned(law.losses, law.logs, law.infinite) if isinstance(law, Points) else law
        passed = float(_passed(self.model, 0.0, self.last)[1][-1])
        count = int(np.clip(4 * passed, _ROUGHLY, max(_ROUGHLY, _CORNERS // self.group.size)))
        if passed < count:
            places = _spread(self.model, 0.0, self.last, count)
            power = of_lines(places, self.model.at(places)).times(self.group.size, upper=True)
        else:  # chords would be too rough, many links of them together: chains are followed one by one
            first = self.model.links(self.group.size, log_delta=self.log_floor).level
            levels = np.append(np.linspace(first, -1.0, 2 * _ROUGHLY), -np.geomspace(20.0, 1e-3, 2 * _ROUGHLY))
            found, logs = self.model.chain(np.sort(levels), self.group.size)
            losses = found.sum(axis=0)
            told = (losses >= 0) & np.isfinite(logs) & (logs > self.log_floor)
            if not told.any():
                return None
            power = of_lines(losses[told], logs[told])
        log_p, log_q = power.pieces()
        with np.errstate(invalid="ignore"):
            losses = log_p - log_q
        # up to the diagonal, and without what is rounding beside all before it; below masses are mirror images
        above = np.isfinite(losses) & np.isfinite(log_p) & (log_p > power.power[1:] - _ROUNDING)
        if not above.any():
            return None
        above &= (np.logaddexp(power.alpha[1:], power.power[1:]) <= 1e-9) & (losses > 0)
        losses, log_p, log_q = losses[above], log_p[above], log_q[above]
        rest = math.log(max(1 - float(np.exp(log_p).sum() + np.exp(log_q).sum()), 1e-300))
        told = log_q > -745
        losses, logs = np.concatenate([losses, [0.0], -losses[told]]), np.concatenate([log_p, [rest], log_q[told]])
        return thinned(losses, logs, math.exp(max(self.log_floor, self._leak)))

    @cached_property
    def _leak(self) -> float:
        """About the log of the chance of an infinite loss."""
        _, alpha, power = self.model.levels()
        reached = self.log_least
        for _ in range(self.group.size - 1 if math.isfinite(reached) else 0):
            reached = float(np.interp(reached, alpha, power)) if reached <= alpha[-1] else 0.0
        return min(reached, -1e-9)

    def window(self, decide: Window) -> tuple[float, float, float]:
        """The losses of a single record that decide: those of the chains to the losses that do; and where to end."""
        law = self.law
        if not isinstance(law, Points):
            return 0.0, self.last, self.last
        least = 0.0
        if decide.low > 0:
            least = float(self.model.links(self.group.size, epsilon=decide.low).slopes.min())
        last = self.last
        if decide.cut < float(law.losses.max()):
            last = min(self._steepest(decide.cut) * _AROUND, last)
        most = min(self._steepest(decide.high) * _AROUND, last)
        return min(max(least, 0.0) / _AROUND, 0.9 * most), most, last

    def _steepest(self, loss: float) -> float:
        return float(np.abs(self.model.links(self.group.size, epsilon=max(loss, 1e-12)).slopes).max())

    def pair(self, aim: Aim, decide: Window, finer: float) -> Pair:
        """Between two finite ones, sharp where losses count."""
        if self.known is not None:
            return self.known
        size = self.group.size
        low, high, last = self.window(decide)
        unsure = _SHARE * aim.enough / self.count
        inside = _places(self.model, low, high, unsure / (1 + aim.tilt), _CORNERS // size, finer)
        top = grouped.largest(self.group)
        if last > _NEAR_TOP * top:  # where delta falls to 0
            near = top - top * np.geomspace(1e-6, 1 - _NEAR_TOP, int(_TOWARDS * finer))
            near = near[self.model.at(near) > _DEPTHS[-1]]  # of what is deeper less is known than that it is small
            inside = np.unique(np.append(inside, near))
        outside = [np.zeros(1)]
        outside += [_spread(self.model, 0.0, low, int(_OUTSIDE * finer))] if low > 0 else []
        outside += [_spread(self.model, high, last, int(_OUTSIDE * finer))] if high < last else []
        others = np.setdiff1d(np.concatenate(outside), inside)
        sizes = self.model.at(inside)
        sharp = np.clip(unsure / np.clip(-sizes, 1.0, _DEEP), _SHARPEST, _BLUNTEST) / finer**1.5
        known = self.oracle(inside, sizes, sharp)
        depth = float(np.clip(-self.model.at(np.array([last]))[0] / 2, 1.0, _DEEP))
        beside = self.oracle(others, self.model.at(others), max(_SHARP / finer, _ELSEWHERE / size / depth))
        places = np.append(inside, others)
        order = np.argsort(places)
        lower, upper = (np.append(own, other)[order] for own, other in zip(known, beside, strict=True))
        # delta falls: a lower bound holds to the left as well, an upper bound to the right
        lower, upper = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)
        bands = chains.bands(places[order], np.maximum(lower, self.log_least), upper, self.log_least)
        return chains.enclosed(*bands, size, float(places.max()))


def _task(parts: Sequence[Part], aim: Aim, finer: float) -> Task:
    laws: list[tuple[GaussianLaw | tuple[Outcomes, Outcomes], int]] = []
    for part, decide in zip(parts, aim.windows, strict=True):
        pair = part.pair(aim, decide, finer)
        found = Outcomes.of(pair)
        if found is None:
            assert isinstance(pair, GaussianPair)
            laws.append((GaussianLaw(pair.mu**2), part.count))
        else:
            laws.append((found, part.count))
    return Task(aim, tuple(laws))


def _parts(mechanism: Mechanism, log_delta: float, glances: int = 1) -> list[Part]:
    counted = [(part, count) for part, count in mechanism.parts() if isinstance(part, Group)]
    floor = log_delta + math.log(_LEFT / sum(count for _, count in counted))
    return [Part(part, count, floor, glances) for part, count in counted]


def _aim(parts: Sequence[Part], *, log_delta: float | None = None, epsilon: float | None = None) -> Aim | None:
    return aim_at([(part.law, part.count) for part in parts], log_delta=log_delta, epsilon=epsilon)


def _places(model: Model, low: float, high: float, unsure: float, most: int, finer: float) -> Array:
    """Places between which chords are off by so much of power: h apart by 3/8 c h^2, where delta falls by c.

    And so many times as many.
    """
    dense, passed = _passed(model, low, high)
    most = min(max(most, _FEWEST), _MOST)
    count = int(finer * np.clip(passed[-1] / math.sqrt(8 / 3 * unsure), _FEWEST, most))
    return np.interp(np.linspace(0.0, passed[-1], count), passed, dense)


def _spread(model: Model, low: float, high: float, count: int) -> Array:
    """So many places, between which chords are equally good."""
    dense, passed = _passed(model, low, high)
    return np.interp(np.linspace(0.0, passed[-1], count), passed, dense)


def _passed(model: Model, low: float, high: float) -> tuple[Array, Array]:
    dense = np.linspace(low, high, 2001)
    roots = np.sqrt(np.fmax(-np.gradient(model.at(dense), dense), 1e-9))
    return dense, np.append(0.0, np.cumsum(0.5 * (roots[1:] + roots[:-1]) * np.diff(dense)))
