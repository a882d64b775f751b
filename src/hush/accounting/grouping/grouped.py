"""Groups of records: what a single record's curve is asked, and by whom.

Where all that can happen may be listed, the group's own pair is exact.  Else epsilon and delta come from a chain of
looks at the single record's curve (chains.py, rounds.py), and a whole curve from two bands.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT, is_narrow, within
from hush.accounting.gaussian import subsampled
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.grouping import chains, rounds, saddles
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import Binned, Maker, Whole
from hush.accounting.grouping.powers import Power, of_steps
from hush.accounting.grouping.rough import rough
from hush.accounting.grouping.samples import Replaced, Sampled
from hush.accounting.groups import Group
from hush.accounting.kinds import directions, gaussian_composition, has_renyi, replaced_composition
from hush.accounting.mechanisms import Mechanism, compose
from hush.accounting.mixed import scattered
from hush.accounting.pairs import bounded, single
from hush.accounting.pairs.hopeless import least_delta, log_delta_above, surely_beyond
from hush.accounting.pairs.losses import GaussianPair, Pair, Poisson, Uniform
from hush.accounting.pairs.points import sampled_loss
from hush.accounting.pairs.projection import deepened
from hush.accounting.releases import Guarantees

_SMALLEST = 1e-120  # delta of a single record's whole curve
_LOWEST = -700.0  # log of a delta that is a floating-point number with all its digits
_UNKNOWN = 0.0, math.inf
_NEARLY = 0.9  # of the largest epsilon that is told
_ENOUGH = 3.0  # times the width asked for: a model's epsilons are off by some of that
_SHALLOW = 100.0  # losses of a group, by which others' logs of delta are lower
_SMOOTH = 100  # steps
_LOST = 1e-6  # of delta: what is left out where steps are almost bounded
_SLIGHT = 0.3  # of the width asked for: what others may lose there
_ROUGHLY = 0.1  # of epsilon: as well as that is known
_FAINTEST = 2.9e4  # minus the log of a chance that is looked at
_OUT = 2.0  # times the largest epsilon that is told: further than any first link
_BESIDE = 20.0  # beyond an epsilon: e^-20 of delta are left out


def epsilon(group: Group, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on epsilon, from the single record's curve where it matters."""
    if any(surely_beyond(steps, log_delta) for steps in directions(group.inner)):
        return EPSILON_LIMIT, math.inf  # a single record is beyond already
    almost = _almost_bounded(group, log_delta, tolerance)
    if almost is not None:
        alone, together, _ = almost
        low = at(alone, log_delta, tolerance)[0]
        high = at(together, log_delta - 2 * _LOST, tolerance)[1] if low < EPSILON_LIMIT else math.inf
        if is_narrow(low, high, tolerance):
            return low, high
    apart = _apart(group, log_delta, tolerance, idle=False)
    if is_narrow(*apart, tolerance):
        return apart
    asked = _asked(group, log_delta=log_delta)
    if log_by_equal_links(*asked[:3], EPSILON_LIMIT, log_delta) > log_delta:
        return EPSILON_LIMIT, math.inf
    found = rounds.epsilon(*asked, log_delta, tolerance, largest(group))
    if (
        not is_narrow(*found, tolerance)
        and found[0] < EPSILON_LIMIT
        and (other := _by_saddles(group, asked)) is not None
    ):
        found = within(found, rounds.epsilon(*other, log_delta, tolerance, largest(group)))
    if apart == _UNKNOWN and not is_narrow(*found, tolerance) and found[0] < EPSILON_LIMIT:
        apart = _apart(group, log_delta, tolerance)
    return within(apart, found)


def _almost_bounded(group: Group, log_delta: float, tolerance: float) -> tuple[Group, Group, float] | None:
    """A group of steps with bounded losses alone, one that has also what stands for the others, and what that misses.

    None unless the others lose next to nothing.  Let one record lose no more than e_0 to them but for a chance d, so
    that delta(e) <= delta'(e) + d, delta' being that of bounded steps, with a promise of e_0 among them and b in all.
    Then g(x) <= g'(x) + d, and the slope of g' is at most e^b: k records have g^k(x) <= g'^k(x) + k d e^{(k-1) b}.
    """
    parts = group.inner.parts()
    bounded_steps = [(part, count) for part, count in parts if math.isfinite(part.largest_loss)]
    rest = [(part, count) for part, count in parts if not math.isfinite(part.largest_loss)]
    if not bounded_steps or not rest:
        return None
    alone = Group(compose(bounded_steps), group.size)
    most = largest(alone) * (1 + 2 * tolerance)
    log_missed = log_delta + math.log(_LOST)
    log_chance = log_missed - math.log(group.size) - (group.size - 1) * most - 1e-9 * (1 + group.size * most)
    slight = _SLIGHT * tolerance * most
    if not log_chance > -_FAINTEST or not _is_slight(compose(rest), log_chance, slight):
        return None
    promised = Guarantees.of(slight, 0.0, group.neighbours)
    return alone, Group(compose([*bounded_steps, (promised, 1)]), group.size), log_missed


def _is_slight(rest: Mechanism, log_chance: float, loss: float) -> bool:
    """Whether Chernoff's bounds show that some Gaussian steps lose no more than that, but for such a chance."""
    for pair, _ in directions(rest)[0]:
        rate, inner = (pair.rate, pair.inner) if isinstance(pair, Poisson | Uniform) else (1.0, pair)
        if not isinstance(inner, GaussianPair):
            return False
        deep = math.sqrt(max(2 * (math.log(rate) - log_chance), 0.0))
        if sampled_loss(np.array([inner.mu * (0.5 * inner.mu + deep)]), rate)[0] > loss:
            return False  # nor does one of them alone
    place = np.array([loss])
    return all(bool(Binned(steps).bound(place, loss, log_chance)[0] <= log_chance) for steps in directions(rest))


def _apart(group: Group, log_delta: float, tolerance: float, *, idle: bool = True) -> tuple[float, float]:
    """Certified bounds from steps whose losses are bounded, by b in all, and the rest, each seen by the group alone.

    Unless idle looks are wanted too, none where these bounds are known not to meet.

    What leaves steps out tells no more: epsilon is at least that of either.  And with b they hide little: a single
    record's power is g(x) <= h(e^b x), h being the rest's, so that h(c x) <= c h(x) for c >= 1, h being concave, gives
    g^k(x) <= e^{(k-1) b} h^k(e^b x) for k records, and delta(eps) <= e^{(k-1) b} delta_rest(eps - k b).
    """
    parts = group.inner.parts()
    little = [(part, count) for part, count in parts if math.isfinite(part.largest_loss)]
    rest = [(part, count) for part, count in parts if not math.isfinite(part.largest_loss)]
    if not little or not rest:
        return _UNKNOWN
    without, alone = Group(compose(rest), group.size), Group(compose(little), group.size)
    most = largest(alone) * (1 + 1e-12)
    if not idle and not _may_meet(without, group.size * most, log_delta, tolerance):
        return _UNKNOWN
    low = 0.0
    for one in (alone, without):
        low = max(low, at(one, log_delta, tolerance)[0])
        if low >= EPSILON_LIMIT:
            return EPSILON_LIMIT, math.inf
    if not group.size * most < EPSILON_LIMIT:
        return low, math.inf
    deeper = log_delta - (group.size - 1) * most * (1 + 1e-12) - 1e-12 * (1 + abs(log_delta))
    high = at(without, deeper, tolerance)[1] + group.size * most
    return low, high * (1 + 1e-12) if high <= EPSILON_LIMIT else math.inf


def _may_meet(without: Group, most: float, log_delta: float, tolerance: float) -> bool:
    """Whether the bounds of either alone may meet: they are apart by the smaller of the two, or by more.

    And whether that costs little: the others are asked for deltas that are smaller by what bounded losses multiply.
    """
    if not most < EPSILON_LIMIT or without.mu is not None or not fits(without) or log_delta < _LOWEST:
        return True
    _, model, size, _ = _asked(without, log_delta=log_delta)
    about = model.links(size, log_delta=log_delta).epsilon
    return about > _NEARLY * EPSILON_LIMIT or (
        min(about, most) < _ENOUGH * tolerance * max(about, most) and (about > most or most < _SHALLOW)
    )


def at(group: Group, log_delta: float, tolerance: float) -> tuple[float, float]:
    from hush.accounting.answers import epsilon as answered

    if group.mu is not None:
        return subsampled.epsilon(subsampled.Composition((), group.mu**2), log_delta)
    if fits(group):
        return epsilon(group, log_delta, tolerance)
    if log_delta < _LOWEST:
        return 0.0, math.inf
    found = answered(group, math.exp(log_delta) * (1 - 1e-12), tolerance)
    return answered(group, math.exp(log_delta) * (1 + 1e-12), tolerance).lower, found.upper


def log_delta_at(group: Group, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon, whatever the group is of."""
    from hush.accounting.answers import log_delta_curve

    if group.mu is None and fits(group):
        return log_delta(group, epsilon, tolerance)
    lower, upper = log_delta_curve(group, np.array([epsilon]))
    return float(lower[0]), float(upper[0])


def log_delta(group: Group, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    seen = log_seen(group, epsilon)
    if seen > -tolerance:
        return seen, 0.0
    almost = _almost_bounded(group, _LOWEST, tolerance)
    if almost is not None:
        alone, together, log_missed = almost
        low = log_delta_at(alone, epsilon, tolerance)[0]
        above = log_delta_at(together, epsilon, tolerance)[1] if low < -tolerance else 0.0
        high = min(float(np.logaddexp(above, log_missed)) + 1e-12, 0.0)
        if high - low <= 12 * tolerance * max(1.0, -high):
            return low, high
    asked = _asked(group, epsilon=epsilon)
    if (seen := log_by_equal_links(*asked[:3], epsilon, -tolerance)) > -tolerance:
        return seen, 0.0
    low, high = rounds.log_delta(*asked, epsilon, tolerance, largest(group))
    if high - low > 12 * tolerance * max(1.0, -high) and (other := _by_saddles(group, asked)) is not None:
        return within((low, high), rounds.log_delta(*other, epsilon, tolerance, largest(group)))
    return low, high


def log_seen(group: Group, epsilon: float) -> float:
    """A lower bound on log delta at a glance: that of a single record, of the plain Gaussians alone, of equal links.

    A single record's d = delta(e) gives g(a) >= min(d, e^e a) for every a, so k of them min(d, e^{ke} a), and with
    a = d e^{-ke} delta(eps) >= d (1 - e^{eps - ke}).
    """
    squared = plain(group)
    alone = gaussian_curve(squared)(np.array([epsilon]))[0][0] if squared > 0 else -math.inf
    equal, ways = (epsilon + _BESIDE) / group.size, directions(group.inner)
    links = max(log_delta_above(steps, equal) for steps in ways) + _log_reached(group.size, equal, epsilon)
    return max(float(alone), links, *(log_delta_above(steps, epsilon) for steps in ways))


def log_by_equal_links(oracle: chains.Oracle, model: Model, size: int, epsilon: float, needed: float) -> float:
    """A lower bound on a group's log delta by equal links (`log_seen`), one look at where they are.

    Nothing unless the model has it that this is more than is needed.
    """
    equal = np.array([(epsilon + _BESIDE) / size])
    about = model.at(equal)
    if not about[0] > needed:
        return -math.inf
    return float(oracle(equal, about, _ROUGHLY)[0][0]) + _log_reached(size, float(equal[0]), epsilon)


def _log_reached(size: int, equal: float, epsilon: float) -> float:
    """log of what equal links keep of a single record's delta, from below: 1 - e^{eps - ke}."""
    return math.log(-math.expm1(epsilon - size * equal)) - 1e-12


def plain(group: Group) -> float:
    """mu^2 of the plain Gaussians alone."""
    return group.size**2 * math.fsum(count * part.mu**2 for part, count in group.inner.parts() if part.mu is not None)


def largest(group: Group) -> float:
    return max(bounded.largest_total(steps) for steps in directions(group.inner))


def fits(group: Group) -> bool:
    """Whether a chain may be followed link by link, and has to: what can be listed needs none."""
    return group.size <= chains.LONGEST and not has_renyi(group.inner) and listed(group) is None


Question = tuple[chains.Oracle, Model, int, float]


def _asked(group: Group, log_delta: float | None = None, epsilon: float = 0.0) -> Question:
    """The single record's curve, a model of it, the group's size, and the log of the least delta."""
    steps = directions(group.inner)
    least = max(least_delta(some) for some in steps)
    asked = makers(group)
    log_least = math.log(least) if least > 0 else -math.inf
    model = rough(group, asked, log_delta, epsilon).leaking(log_least, _OUT * EPSILON_LIMIT)
    return Asked(asked), model, group.size, log_least


def _by_saddles(group: Group, asked: Question) -> Question | None:
    """The same with another model, where bins had a say in the first."""
    oracle, before, size, log_least = asked
    model = saddles.model(directions(group.inner))
    if model is None:
        return None
    model = model.leaking(log_least, _OUT * EPSILON_LIMIT)
    same = model.logs.size == before.logs.size and bool(np.all(model.logs == before.logs))
    return None if same else (oracle, model, size, log_least)


def makers(group: Group) -> list[Maker]:
    parts = group.inner.parts()
    steps = [[(deepened(pair), count) for pair, count in some] for some in directions(group.inner)]
    if len(parts) == 1 and parts[0][1] == 1:
        return [Whole(single.curve(some[0][0])) for some in steps]
    sums = [scattered.listed(some) for some in steps]
    known = [Whole(curve) for curve in sums if curve is not None]
    if len(known) == len(sums):
        return [*known]
    binned = [Binned(some) for some in steps]
    replaced = replaced_composition(group.inner)
    if replaced is not None:
        return [Replaced(replaced, binned[0])]
    gaussian = gaussian_composition(group.inner)
    if gaussian is None:
        return [*binned]
    return [Sampled(gaussian, way, bins) for way, bins in zip((REMOVE, ADD), binned, strict=True)]


def pair(group: Group, floor: float = 0.0) -> Pair:
    """The pair of a group of records, between those of the two bands of the single record's curve.

    They end where what is left adds no more than the floor to the group's delta.  Plain Gaussians stay one.
    """
    from hush.accounting import answers, curves

    if group.mu is not None:
        return GaussianPair(group.mu)
    known = listed(group)
    if known is not None:
        below = above = known
        most = group.inner.largest_loss
    else:
        smallest = math.exp(_log_smallest(group, math.log(floor))) if floor > 0 else _SMALLEST
        # curves of few steps have edges, and those that are only looked at needn't tell deep deltas
        smooth = floor > 0 and sum(count for _, count in group.inner.parts()) > _SMOOTH
        points = max(100, min(1000 if smooth else 2000, 200_000 // group.size))
        epsilons = curves.spread_epsilons(group.inner, points, smallest)
        least = max(least_delta(steps) for steps in directions(group.inner))
        log_least = math.log(least) if least > 0 else -math.inf
        below, above = chains.bands(epsilons, *answers.log_delta_curve(group.inner, epsilons), log_least)
        most = float(epsilons[-1])
    return chains.enclosed(below, above, group.size, most)


def _log_smallest(group: Group, log_floor: float) -> float:
    """log of the single record's delta that, at the end of its curve, adds the floor: delta(e) e^{(k-1) e}."""
    model = rough(group, makers(group), log_floor, 0.0)
    known = model.logs > math.log(_SMALLEST)
    reached = known & (model.logs + (group.size - 1) * model.epsilons < log_floor)
    return float(model.logs[int(np.argmax(reached))]) if reached.any() else math.log(_SMALLEST)


@lru_cache(maxsize=8)
def listed(group: Group) -> Power | None:
    """The single record's power curve, where all that can happen may be listed."""
    if has_renyi(group.inner):
        return None
    steps = directions(group.inner)
    points = max(100, min(2000, 200_000 // group.size))
    law = scattered.enumerated(steps[0], points) if len(steps) == 1 else None
    if law is None:
        return None
    order = np.argsort(-law.losses)
    losses, logs = law.losses[order], law.logs[order]
    # losses that cancel leave rounding behind: what has loss 0 is neither lost nor counted with its mirror image
    none = 2.0**-48 * float(np.abs(losses).max())
    above, same = losses > none, np.abs(losses) <= none
    middle = float(np.logaddexp.reduce(logs[same])) if same.any() else -math.inf
    log_infinite = math.log(law.infinite) if law.infinite > 0 else -math.inf
    return of_steps(logs[above], logs[above] - losses[above], log_infinite, middle)
