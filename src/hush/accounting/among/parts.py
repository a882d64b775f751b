"""A group among others: about the law of its loss, and a pair that is sharp where the composition's answer is decided.

A group's pair lies between those of two bands of the single record's curve (chains.py).  What the composition's delta
owes to the group's delta at each epsilon (aims.py) it owes, link by link, to the single record's: with e_1, ..., e_k
the chain to an epsilon, a change of log delta(e_i) changes the group's log delta there by delta(e_i) e^{e_{i+1} + ... +
e_k} as a share of it, shares that add up to 1 (the split is the best one, so moving it changes nothing).  So each place
of the single record's curve has a worth, and what it may be off there is what the answer may be, over that: points are
as far apart, and asked for as sharply (asked.py), as this allows.  The worth comes from a model and enters no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hush.accounting.among.aims import Shares, few_points
from hush.accounting.among.outcomes import Outcomes
from hush.accounting.grouping import chains, grouped
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import Maker, Whole
from hush.accounting.grouping.powers import of_lines
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.pairs.hopeless import least_delta
from hush.accounting.pairs.losses import Array, Enclosed, GaussianPair, Pair
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, exact

Law = GaussianLaw | Outcomes

_ROUGHLY = 80  # points of a model's curve
_CORNERS = 24_000  # of a model's power curve
_ROUNDING = 32.0  # minus the log of a share that may be rounding
LITTLE = 1e-3
"""Of log delta: worth no glance."""
_BINS = 200  # of the single record's curve, each of one worth
_GLANCES = 6  # links of a chain
_QUANTILES = np.linspace(0.0, 1.0, 80)  # of what decides, to which chains are followed
_DEEPER = 3.0  # logs below the first level: one more chain
_AROUND = 1.05  # times as far as a model says
_TANGENT = 0.5  # of how far the curve lies above the tangent at another place
_LOOSEST = 10.0  # of log delta: what it may be off where that is worth nothing
_NO_SLOPE = 1.0  # of log delta: where it may be off by more, slopes don't matter
_SAME = 0.3  # of what it may be off: next to nothing
_FEWEST, _MOST = 60, 5000  # points
_MOST_CORNERS = 120_000  # of a group's power curve
_SHARPEST = 2e-5  # of log delta, or of 1: no bound is asked to be closer
_DEEP = 200.0  # a log delta below minus that is known no less well
_NEAR_TOP = 0.7  # of the largest loss
_TOWARDS = 60  # points that come closer to it
_FURTHEST, _NOTHING = 2e4, -1e5  # a loss that no single record counts for, and the log of a delta that is none
_DEEPEST = -600.0  # a log delta there of which no more is known than that it is small


@dataclass
class Single:
    """A group's single record: who tells its curve."""

    group: Group

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
    def largest(self) -> float:
        return grouped.largest(self.group)


@dataclass(frozen=True)
class Worth:
    """Stretches of the single record's epsilons, and what log delta there is worth of the composition's."""

    low: Array
    high: Array
    worth: Array

    def between(self, ends: Array) -> Array:
        """In each of some bins."""
        first, last = (
            np.clip(np.searchsorted(ends, at, side="right") - 1, 0, ends.size - 2) for at in (self.low, self.high)
        )
        each = self.worth / (last - first + 1)
        begun, over = (np.bincount(bins, each, ends.size) for bins in (first, last + 1))
        return np.maximum(np.cumsum(begun - over)[:-1], 0.0)


@dataclass
class Part:
    """A group, how often it is there, and how small a delta of its own counts (as a logarithm)."""

    single: Single
    count: int
    log_floor: float
    moved: Model | None = None
    """A model of the single record's curve that was corrected."""

    @property
    def group(self) -> Group:
        return self.single.group

    @cached_property
    def known(self) -> Pair | None:
        """Its pair, where that needs no curve."""
        return None if by_curve(self.group) else self.group.pair_above(math.exp(self.log_floor))

    @cached_property
    def less(self) -> Law | None:
        """What reveals no more, where that needs no curve."""
        return None if self.known is None else laws_of(self.known)[0]

    @cached_property
    def model(self) -> Model:
        return self.moved or grouped.rough(self.group, self.single.makers, self.log_floor, 0.0)

    def glanced(self, shares: Shares) -> Part:
        """With a model moved to what a glance tells, at the chain to where most of it is decided."""
        if self.known is not None or not self.count * shares.worth.sum() > LITTLE:
            return self
        at = float(shares.middle(np.array([0.5]))[0])
        chain = chains.Chain(
            self.single.oracle, self.model, self.group.size, self.single.log_least, self.single.largest
        )
        links = self.model.links(self.group.size, epsilon=at)
        some = np.linspace(0, links.slopes.size - 1, _GLANCES).round().astype(int)
        chain.glance(replace(links, slopes=np.sort(np.abs(links.slopes))[some]))
        return replace(self, moved=chain.model)

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
    def _levels(self) -> Array:
        """Where chains begin, down to the floor."""
        first = self.model.links(self.group.size, log_delta=self.log_floor).level
        return np.sort(np.append(np.linspace(first, -1.0, 2 * _ROUGHLY), -np.geomspace(20.0, 1e-3, 2 * _ROUGHLY)))

    def _chains(self, levels: Array) -> tuple[Array, Array, Array]:
        """Epsilons of the group, in ascending order; the links of the chain to each, in rows; its log deltas."""
        links, logs = self.model.chain(levels, self.group.size)
        epsilons = links.sum(axis=0)
        order = np.argsort(epsilons, kind="stable")
        order = order[epsilons[order] >= 0]
        return epsilons[order], links[:, order], logs[order]

    def _chains_to(self, at: Array) -> tuple[Array, Array]:
        """Epsilons and links, with some that lead to about these."""
        levels = np.append(self._levels[0] - _DEEPER, self._levels)
        found = self.model.chain(levels, self.group.size)[0].sum(axis=0)
        near = np.interp(at, np.maximum.accumulate(found[::-1]), levels[::-1])
        return self._chains(np.union1d(levels, near))[:2]

    @cached_property
    def law(self) -> Scattered | None:
        """About the law of its loss; None where all of it is beyond any limit."""
        if self.known is not None:
            law = exact(self.known.upper if isinstance(self.known, Enclosed) else self.known)
            return Points(law.losses, law.logs, law.infinite) if isinstance(law, Points) else law
        passed, infinite = float(_passed(self.model, self.last)[1][-1]), -math.inf
        count = int(np.clip(4 * passed, _ROUGHLY, max(_ROUGHLY, _CORNERS // self.group.size)))
        if passed < count:
            places = _spread(self.model, self.last, count)
            # beyond the last place delta goes on to fall: what is infinite lies beyond all losses that are told apart
            ends = np.append(places, min(self.single.largest, _FURTHEST)), np.append(self.model.at(places), _NOTHING)
            power = of_lines(*ends).times(self.group.size, upper=True)
            infinite = float(power.power[0])
        else:  # chords would be too rough, many links of them together: chains are followed one by one
            epsilons, _, logs = self._chains(self._levels)
            told = np.isfinite(logs) & (logs > self.log_floor)
            if not told.any():
                return None
            power = of_lines(epsilons[told], logs[told])
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
        return few_points(losses, logs, math.exp(max(self.log_floor, self._leak, infinite)))

    @cached_property
    def _leak(self) -> float:
        """About the log of the chance of an infinite loss."""
        _, alpha, power = self.model.levels()
        reached = self.single.log_least
        for _ in range(self.group.size - 1 if math.isfinite(reached) else 0):
            reached = float(np.interp(reached, alpha, power)) if reached <= alpha[-1] else 0.0
        return min(reached, -1e-9)

    def worth(self, shares: Shares) -> Worth:
        epsilons, links = self._chains_to(shares.middle(_QUANTILES))
        if epsilons.size == 0 or not shares.worth.any():
            return Worth(np.zeros(1), np.zeros(1), np.zeros(1))
        nearest = np.clip(np.searchsorted(epsilons, shares.epsilons), 0, epsilons.size - 1)
        own = np.bincount(nearest, shares.worth, epsilons.size)
        after = np.cumsum(links[::-1], axis=0)[::-1] - links
        single = self.model.at(np.abs(links)) + np.minimum(links, 0.0) + after  # delta(-e) = 1 - e^-e + e^-e delta(e)
        share = np.exp(single - single.max(axis=0))  # where the rest of 1 decides, of what is left
        worth = own * share / share.sum(axis=0)
        before = np.column_stack([links[:, :1], links[:, :-1]])  # what lies between two chains counts with the second
        one, other = np.abs(before), np.abs(links)
        low = np.where(before * links < 0, 0.0, np.minimum(one, other) / _AROUND)
        high = np.maximum(one, other) * _AROUND
        told = worth.ravel() > 0
        if not told.any():
            return Worth(np.zeros(1), np.zeros(1), np.zeros(1))
        return Worth(low.ravel()[told], high.ravel()[told], worth.ravel()[told])

    def pair(self, shares: Shares, enough: float) -> tuple[Pair, Part]:
        """Between two finite ones: what it is unsure of changes the composition's log delta by no more than that.

        And the part with a model moved to what was seen.
        """
        if self.known is not None:
            return self.known, self
        places, allowed = self._planned(self.worth(shares), 0.5 * enough / self.count)
        lower, upper = self._asked(places, allowed)
        # delta falls: a lower bound holds to the left as well, an upper bound to the right
        lower, upper = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)
        upper = chains.below_chords(places, upper, self.single.largest)
        log_least = self.single.log_least
        bands = chains.bands(places, np.maximum(lower, log_least), upper, log_least)
        told = (places > 0) & np.isfinite(lower) & (upper - lower <= chains.TOLD)
        model = self.model.moved_to(places[told], 0.5 * (lower + upper)[told]) if told.any() else self.model
        return chains.enclosed(*bands, self.group.size, float(places.max())), replace(self, moved=model)

    def _asked(self, places: Array, allowed: Array) -> tuple[Array, Array]:
        """Bounds on log delta of the single record, as good as that."""
        sizes = self.model.at(places)
        # points that say less than how far apart they are say nothing of a slope
        apart = np.diff(np.interp(places, *_passed(self.model, float(places[-1])))) ** 2
        told = np.minimum(np.append(apart, np.inf), np.append(np.inf, apart))
        sharp = np.where(allowed > _NO_SLOPE, allowed, np.minimum(allowed, told))
        sharp = np.maximum(sharp / np.clip(-sizes, 1.0, _DEEP), _SHARPEST)
        return self.single.oracle(places, sizes, np.where(self._straight(places, allowed), np.inf, sharp))

    def _straight(self, places: Array, allowed: Array) -> NDArray[np.bool_]:
        """Where delta falls to 0 at the largest loss about straight: chords from before tell enough, lines no more."""
        top = self.single.largest
        if not places[-1] > _NEAR_TOP * top:
            return np.zeros(places.shape, dtype=bool)
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = self.model.at(places) - np.log(-np.expm1(np.minimum(places - top, 0.0)))
        end = places >= top * (1 - 1e-5)
        if end.all():
            return np.zeros(places.shape, dtype=bool)
        bent = ~end & ~(np.abs(steep - steep[~end][-1]) <= _SAME * allowed)
        straight = np.cumsum(bent[::-1])[::-1] == 0  # from here on
        straight[int(np.argmax(straight))] = False  # the first one is asked
        return np.asarray(straight & (places > _NEAR_TOP * top))

    def _planned(self, worth: Worth, unsure: float) -> tuple[Array, Array]:
        """Ascending places to ask, and what log delta may be off there, as much again going to chords between them.

        Half of what all may be off is the same everywhere, the other half is shared out evenly, whatever it is worth.
        """
        last = self._end(worth, unsure)
        dense, passed = _passed(self.model, last)
        ends = np.interp(np.linspace(0.0, passed[-1], _BINS + 1), passed, dense)
        allowed = 0.5 * unsure + self._spared(
            ends, np.log1p(0.5 * unsure / np.maximum(_BINS * worth.between(ends), 1e-300))
        )
        steps = passed[-1] / _BINS / np.sqrt(allowed)
        counted = np.append(0.0, np.cumsum(steps))
        most = max(min(_MOST_CORNERS // self.group.size, _MOST), _FEWEST)
        count = int(np.clip(counted[-1], _FEWEST, most))
        places = np.interp(np.linspace(0.0, counted[-1], count + 1), counted, ends)
        top = self.single.largest
        if last > _NEAR_TOP * top:  # where delta falls to 0
            near = top - top * np.geomspace(1e-6, 1 - _NEAR_TOP, _TOWARDS)
            places = np.append(places, near[(self.model.at(near) > _DEEPEST) & (near < last)])
        places = np.unique(places)
        return places, allowed[np.clip(np.searchsorted(ends, places) - 1, 0, _BINS - 1)]

    def _spared(self, ends: Array, each: Array) -> Array:
        """What log delta may be off in each bin, if it may be off by `each` as far as that bin alone is concerned.

        A lower bound that falls below the tangent at another place takes that place over: with D the difference of
        their log deltas the tangent lies D - log(1 + D) below, as delta falls there.  As much is spared, and what may
        be off there.
        """
        logs = self.model.at(0.5 * (ends[1:] + ends[:-1]))
        above = np.maximum(np.subtract.outer(logs, logs), -1.0)
        with np.errstate(divide="ignore"):
            below = above - np.log1p(above)
        return np.asarray(np.minimum((each + _TANGENT * below).min(axis=1), _LOOSEST))

    def _end(self, worth: Worth, unsure: float) -> float:
        """Where the curve may end: delta stays what it is there, which changes all beyond by a multiple of itself."""
        order = np.argsort(worth.high)
        at = worth.high[order]
        logs = self.model.at(at)
        with np.errstate(divide="ignore"):
            beyond = np.logaddexp.accumulate((np.log(worth.worth[order]) - logs)[::-1])[::-1] + logs
        enough = beyond <= math.log(0.5 * unsure)
        last = min(float(at[int(np.argmax(enough)) if enough.any() else -1]), self.last, self.single.largest)
        return max(last, float(self.model.epsilons[1]))


def laws_of(pair: Pair) -> tuple[Law, Law]:
    """What reveals no more and no less than a group's pair."""
    found = Outcomes.of(pair)
    if found is not None:
        return found
    assert isinstance(pair, GaussianPair)
    return GaussianLaw(pair.mu**2), GaussianLaw(pair.mu**2)


def by_curve(group: Group) -> bool:
    """Whether it is known by its single record's curve alone."""
    return group.mu is None and grouped.fits(group)


def _spread(model: Model, last: float, count: int) -> Array:
    """So many places, between which chords are equally good."""
    dense, passed = _passed(model, last)
    return np.interp(np.linspace(0.0, passed[-1], count), passed, dense)


def _passed(model: Model, last: float) -> tuple[Array, Array]:
    """Places, and how far they are from 0, so that chords between two are off by the square of that, of log delta.

    Points h apart leave 3/8 c h^2 of power open, where delta falls like e^{-c e}, and 1 + c times as much of delta.
    """
    dense = np.union1d(np.linspace(0.0, last, 1001), np.geomspace(1e-6 * last, last, 1001))
    falls = np.fmax(-np.diff(model.at(dense)) / np.diff(dense), 1e-9)
    return dense, np.append(0.0, np.cumsum(np.sqrt(3 / 8 * falls * (1 + falls)) * np.diff(dense)))
