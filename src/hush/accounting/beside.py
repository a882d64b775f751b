"""Groups among other groups: pairs of distributions that are sharp where the composition's answer is decided.

A group's pair lies between those of two bands of the single record's curve (chains.py).  Where that curve has to be
known well depends on the whole composition: tilted by e^{cL}, c being the saddle point of what is asked, only some of
a group's losses count, and only some links of the chains that lead to them.  A model of the curve (links.py) says
which, and enters no bound: there points are close together and asked for sharply (asked.py), elsewhere further apart,
down to where what is left adds next to nothing to delta, however deep that is for a single record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting import chains, grouped, scattered
from hush.accounting.asked import Asked
from hush.accounting.crossing import EPSILON_LIMIT, is_narrow
from hush.accounting.groups import Group
from hush.accounting.hopeless import least_delta, surely_beyond
from hush.accounting.kinds import Steps, directions
from hush.accounting.links import Model
from hush.accounting.losses import Array, Enclosed, Pair
from hush.accounting.makers import Maker, Whole
from hush.accounting.mechanisms import Mechanism
from hush.accounting.points import Points, Scattered, exact
from hush.accounting.powers import of_lines
from hush.accounting.scattered import Side, saddle

_LEFT = 1e-5  # of delta: what all ends of curves may add to it
_ROUGHLY = 80  # points of a model's curve
_WITHIN = 400  # points where the answer is decided, at first
_OUTSIDE = 40  # and on either side
_NEAR_TOP = 0.7  # of the largest loss
_TOWARDS = 60  # points that come closer to it
_SHARP = 5e-4  # of log delta, where the answer is decided, at first
_ROUNDS = (1, 3)  # times as many points
_CLOSE = 5.0  # times the width asked for: more points will do
_LEAST = 1e-6  # of a tilted law: what lies beyond decides nothing
_AROUND = 1.05  # times as far as the model says
_ELSEWHERE = 1.0  # of log delta, in all links of a chain together
_SHALLOW, _DEEPEST = -60.0, -600.0  # logs of deltas that are expected at first, and that are told
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
def epsilon(
    mechanism: Mechanism,
    log_delta: float,
    tolerance: float,
    engine: Callable[[Steps, float, float], tuple[float, float]],
) -> tuple[float, float]:
    """Certified bounds on epsilon: those of an engine for compositions of pairs."""
    parts = _parts(mechanism, log_delta, glances=0)
    found = _tilt(parts, log_delta, None)
    if found is None or found[1] > _FAR:
        for part in sorted(parts, key=lambda part: part.known is None):
            alone = _tilt([Part(part.group, 1, part.log_floor, 0)], log_delta, None)
            if (alone is None or alone[1] > _FAR) and grouped.at(part.group, log_delta, tolerance)[0] >= EPSILON_LIMIT:
                return EPSILON_LIMIT, math.inf
    if found is None:
        return 0.0, math.inf
    parts = _parts(mechanism, log_delta)
    tilt = (_tilt(parts, log_delta, None) or found)[0]
    low, high = 0.0, math.inf
    for finer in _ROUNDS:
        steps = [(part.pair(tilt, finer), part.count) for part in parts]
        if finer == 1 and not surely_beyond(steps, log_delta):
            low, high = scattered.epsilon(steps, log_delta, tolerance)
        if not is_narrow(low, high, tolerance if finer > 1 else _CLOSE * tolerance):
            below, above = engine(steps, log_delta, tolerance)
            low, high = max(low, below), min(high, above)
        if low >= EPSILON_LIMIT or is_narrow(low, high, 1.1 * tolerance):
            break
    return low, high


@np.errstate(all="ignore")
def log_delta(
    mechanism: Mechanism, epsilon: float, tolerance: float, engine: Callable[[Steps, Array, float], tuple[Array, Array]]
) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    tilt, parts = 1.0, _parts(mechanism, _SHALLOW, glances=0)
    for glances in (0, 0, 2):  # a law that ends too soon, or too late, says little of how deep delta is
        found = _tilt(parts, None, epsilon)
        if found is None:
            alone = [grouped.log_delta_at(part.group, epsilon, tolerance)[0] for part in parts]
            return max(alone), 0.0  # what leaves groups out tells no more
        tilt, size = found[0], float(np.clip(found[2], _DEEPEST, -1.0))
        parts = _parts(mechanism, size, glances)
    steps = [(part.pair(tilt, 1), part.count) for part in parts]
    lower, upper = engine(steps, np.array([epsilon]), tolerance)
    return float(lower[0]), float(upper[0])


@dataclass
class Part:
    """A group, how often it is there, and how small a delta of its own counts (as a logarithm)."""

    group: Group
    count: int
    log_floor: float
    glances: int = 2
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

        def whole(epsilons: Array, sizes: Array, tolerance: float) -> tuple[Array, Array]:
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
        return float(self.model.epsilons[int(np.argmax(small)) if small.any() else -1])

    @cached_property
    def law(self) -> Scattered | None:
        """About the law of its loss; None where all of it is beyond any limit."""
        if self.known is not None:
            law = exact(self.known.upper if isinstance(self.known, Enclosed) else self.known)
            return law if law is not None and law.infinite <= math.exp(self.log_floor) / _LEFT else None
        places = _places(self.model, 0.0, self.last, _ROUGHLY)
        log_p, log_q = of_lines(places, self.model.at(places)).times(self.group.size, upper=True).pieces()
        with np.errstate(invalid="ignore"):
            losses = log_p - log_q
        told = np.isfinite(losses) & np.isfinite(log_p)
        return Points(losses[told], log_p[told]) if told.any() else None

    def window(self, tilt: float) -> tuple[float, float]:
        """The losses of a single record that decide: those of the chains to the losses that count under the tilt."""
        law = self.law
        if not isinstance(law, Points):
            return 0.0, self.last
        order = np.argsort(law.losses)
        weights = law.logs[order] + tilt * law.losses[order]
        shares = np.cumsum(np.exp(weights - weights.max()))
        low, high = (
            float(law.losses[order][min(int(np.searchsorted(shares, share * shares[-1])), shares.size - 1)])
            for share in (_LEAST, 1 - _LEAST)
        )
        least = 0.0
        if low > 0:
            least = float(self.model.links(self.group.size, epsilon=low).slopes.min())
        most = float(np.abs(self.model.links(self.group.size, epsilon=max(high, 1e-12)).slopes).max())
        most = min(most * _AROUND, self.last)
        return min(max(least, 0.0) / _AROUND, 0.9 * most), most

    def pair(self, tilt: float, finer: int) -> Pair:
        """Between two finite ones, sharp where losses count under the tilt."""
        if self.known is not None:
            return self.known
        size = self.group.size
        low, high = self.window(tilt)
        within = _places(self.model, low, high, _WITHIN * finer)
        top = grouped.largest(self.group)
        if self.last > _NEAR_TOP * top:  # where delta falls to 0
            within = np.unique(np.append(within, top - top * np.geomspace(1e-6, 1 - _NEAR_TOP, _TOWARDS * finer)))
        outside = [np.zeros(1)]
        outside += [_places(self.model, 0.0, low, _OUTSIDE * finer)] if low > 0 else []
        outside += [_places(self.model, high, self.last, _OUTSIDE * finer)] if high < self.last else []
        others = np.setdiff1d(np.concatenate(outside), within)
        sharp = _SHARP / math.sqrt(finer)
        known = self.oracle(within, self.model.at(within), sharp)
        depth = float(np.clip(-self.model.at(np.array([self.last]))[0] / 2, 1.0, 200.0))
        beside = self.oracle(others, self.model.at(others), max(sharp, _ELSEWHERE / size / depth))
        places = np.append(within, others)
        order = np.argsort(places)
        lower, upper = (np.append(own, other)[order] for own, other in zip(known, beside, strict=True))
        # delta falls: a lower bound holds to the left as well, an upper bound to the right
        lower, upper = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)
        bands = chains.bands(places[order], np.maximum(lower, self.log_least), upper, self.log_least)
        return chains.enclosed(*bands, size, float(places.max()))


def _parts(mechanism: Mechanism, log_delta: float, glances: int = 2) -> list[Part]:
    counted = [(part, count) for part, count in mechanism.parts() if isinstance(part, Group)]
    floor = log_delta + math.log(_LEFT / sum(count for _, count in counted))
    return [Part(part, count, floor, glances) for part, count in counted]


@np.errstate(all="ignore")
def _tilt(parts: Sequence[Part], log_delta: float | None, epsilon: float | None) -> tuple[float, float, float] | None:
    """About the saddle point of a delta or an epsilon, that epsilon, and log delta; None where none can be told."""
    laws = [(part.law, part.count) for part in parts]
    side = Side(tuple((law, count) for law, count in laws if law is not None), above=True)
    if len(side.laws) < len(laws):
        return None
    tilt, at = saddle(side, log_delta, epsilon)
    size = float(side.log_mgf(np.array([tilt]))[0]) - tilt * at - math.log(tilt * (tilt + 1))
    return (tilt, at, size) if math.isfinite(tilt) and math.isfinite(size) else None


def _places(model: Model, low: float, high: float, count: int) -> Array:
    """Places as far apart as chords are equally good: bounds h apart are off by 3/8 c h^2, where delta falls by c."""
    dense = np.linspace(low, high, 2001)
    roots = np.sqrt(np.maximum(-np.gradient(model.at(dense), dense), 1e-9))
    passed = np.append(0.0, np.cumsum(0.5 * (roots[1:] + roots[:-1])))
    return np.interp(np.linspace(0.0, passed[-1], count), passed, dense)
