"""Groups of records: what a single record's curve is asked, and by whom.

Where all that can happen may be listed, the group's own pair is exact.  Else epsilon and delta come from a chain of
looks at the single record's curve (chains.py, rounds.py), and a whole curve from two bands.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT, is_narrow, within
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.grouping import chains, doubling, drawn, rounds, saddles, touching
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import Binned, Maker, Whole
from hush.accounting.grouping.powers import Power, of_steps
from hush.accounting.grouping.rough import rough
from hush.accounting.grouping.samples import Replaced, Sampled
from hush.accounting.grouping.seen import BESIDE, log_chained, log_reached, log_seen
from hush.accounting.grouping.told import log_deltas
from hush.accounting.groups import Group
from hush.accounting.kinds import directions, gaussian_composition, has_renyi, replaced_composition
from hush.accounting.lattices.listed import apart
from hush.accounting.mixed import scattered
from hush.accounting.pairs import bounded, single
from hush.accounting.pairs.hopeless import least_delta, surely_beyond
from hush.accounting.pairs.losses import Array, GaussianPair, Pair
from hush.accounting.pairs.points import loss_range
from hush.accounting.pairs.projection import deepened

_SMALLEST = 1e-120  # delta of a single record's whole curve
_LOWEST = -700.0  # log of a delta that is a floating-point number with all its digits
_NONE = -240.0  # of one that is next to none: a little smaller than the smallest that are asked for
_SMOOTH = 100  # steps
_ROUGHLY = 0.1  # of epsilon: as well as that is known
_OUT = 2.0  # times the largest epsilon that is told: further than any first link
_GLANCED, _BLUNT = 1e-4, 5e-4  # of log delta: what a few lines are asked for, and known no better are blunt
_ENOUGH, _PATIENCE = 100, 8  # lines in all: who needs more hardly gets what is wanted; and many records' useless ones
_MANY = 100  # records: by doubling they take less time than link by link
_CLIFF = 1e-6  # of epsilon: where delta takes any value within so little of it
_NEARLY = 0.01  # of epsilon: where lines are blunt, they are not asked for more
_QUICKER = 12.0  # times the tolerance: narrow for log delta, which changes faster than epsilon


def epsilon(group: Group, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on epsilon, from the single record's curve where it matters."""
    if any(surely_beyond(steps, log_delta) for steps in directions(group.inner)):
        return EPSILON_LIMIT, math.inf  # a single record is beyond already
    if log_chained(group, EPSILON_LIMIT) > log_delta:
        return EPSILON_LIMIT, math.inf
    asked = _asked(group, log_delta=log_delta)
    task = _doubling(group, asked)
    if log_by_equal_links(*asked[:3], EPSILON_LIMIT, log_delta) > log_delta:
        return EPSILON_LIMIT, math.inf
    if group.size > chains.LONGEST:
        return task.epsilon(log_delta, tolerance)
    found, attempts = (0.0, math.inf), [_by_links, _by_doubling]
    if group.size > _MANY:
        attempts.reverse()
    blunt = _is_drawn(group) and _are_blunt(asked, log_delta=log_delta)
    if _is_drawn(group):
        attempts.insert(0 if blunt else 1, _by_curves)
    for attempt in attempts:
        if blunt and attempt is not _by_doubling and is_narrow(*found, _NEARLY):
            continue  # lines tell little
        found = within(found, attempt(group, asked, found, log_delta, tolerance))
        if is_narrow(*found, tolerance):
            break
    return found


Interval = tuple[float, float]


def _by_curves(group: Group, asked: Question, found: Interval, log_delta: float, tolerance: float) -> Interval:
    return _drawing(group, asked[1]).epsilon(log_delta, tolerance)


def _by_links(group: Group, asked: Question, found: Interval, log_delta: float, tolerance: float) -> Interval:
    return rounds.epsilon(*asked, log_delta, tolerance, largest(group))


def _by_doubling(group: Group, asked: Question, found: Interval, log_delta: float, tolerance: float) -> Interval:
    """From many points of the single record's curve: where chains don't converge they tell."""
    return _doubling(group, asked).epsilon(log_delta, tolerance)


def _is_drawn(group: Group) -> bool:
    """Whether losses with a largest value, few or of Laplace noise, are beside others: few lines are sharp there."""
    steps = directions(group.inner)[0]
    few, even, rest = apart(steps, 1.0)
    unbounded = all(not math.isfinite(loss_range(pair)[1]) for pair, _ in rest)
    return bool(few or even) and unbounded and not all(isinstance(pair, GaussianPair) for pair, _ in rest)


def _are_blunt(asked: Question, log_delta: float | None = None, epsilon: float = 0.0) -> bool:
    """Whether lines tell little where they are asked for first: at the furthest link, in the middle, at the nearest."""
    oracle, model, size, _ = asked
    slopes = np.sort(np.abs(model.links(size, log_delta=log_delta, epsilon=epsilon).slopes))
    for at in slopes[[-1, slopes.size // 2, 0]]:
        lower, upper = oracle(np.array([at]), model.at(np.array([at])), _GLANCED)
        if not upper[0] - lower[0] <= _BLUNT * max(1.0, -float(upper[0])):
            return True
    return False


def _drawing(group: Group, before: Model) -> drawn.Task:
    ways = [[(deepened(pair), count) for pair, count in steps] for steps in directions(group.inner)]
    least = max(least_delta(steps) for steps in ways)
    model = saddles.model(ways) or before
    log_least = math.log(least) if least > 0 else -math.inf
    return drawn.Task(ways, model.leaking(log_least, _OUT * EPSILON_LIMIT), group.size, log_least, largest(group))


def log_delta(group: Group, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta at one epsilon."""
    seen = log_seen(group, epsilon)
    if seen > -tolerance:
        return seen, 0.0
    asked = _asked(group, epsilon=epsilon)
    task = _doubling(group, asked)
    if (seen := log_by_equal_links(*asked[:3], epsilon, -tolerance)) > -tolerance:
        return seen, 0.0
    unseen = touching.at_epsilon(task.model, group.size, epsilon).delta < _LOWEST
    if unseen and _is_none(group, epsilon):
        return -math.inf, _NONE
    low, high = _log_delta(group, asked, task, epsilon, tolerance)
    if low < _NONE < high and not unseen and _is_none(group, epsilon):
        return low, _NONE
    return low, high


def _log_delta(
    group: Group, asked: Question, task: doubling.Task, epsilon: float, tolerance: float
) -> tuple[float, float]:
    """By one way after another, until one tells enough."""
    if group.size > chains.LONGEST:
        return task.log_delta(epsilon, tolerance)
    low, high, attempts = -math.inf, 0.0, [_delta_by_links, _delta_by_doubling]
    if group.size > _MANY:
        attempts.reverse()
    blunt = _is_drawn(group) and _are_blunt(asked, epsilon=epsilon)
    if _is_drawn(group):
        attempts.insert(0 if blunt else 1, _delta_by_curves)
    for attempt in attempts:
        if blunt and attempt is not _delta_by_doubling and high - low <= _QUICKER * _NEARLY * max(1.0, -high):
            continue
        least, most, told = attempt(group, asked, epsilon, tolerance)
        low, high = within((low, high), (least, most))
        if told or high - low <= _QUICKER * tolerance * max(1.0, -high):
            break
        if math.isfinite(largest(group)) and _are_alike(group, epsilon, tolerance, low, high):
            break
    return low, high


def _are_alike(group: Group, at: float, tolerance: float, low: float, high: float) -> bool:
    """Whether both bounds, down to the smallest that are asked for, are log deltas of next to the same epsilon.

    Close to a largest loss delta falls off a cliff, and can be known no better.
    """
    first, last = epsilon(group, high, tolerance)[0], epsilon(group, max(low, _NONE), tolerance)[1]
    return max(at - first, last - at) <= _CLIFF * at


def _is_none(group: Group, at: float) -> bool:
    """Whether delta is next to none: epsilons are known there where deltas further out aren't."""
    return epsilon(group, _NONE, _ROUGHLY)[1] <= at


def _delta_by_curves(group: Group, asked: Question, epsilon: float, tolerance: float) -> tuple[float, float, bool]:
    return _drawing(group, asked[1]).log_delta(epsilon, tolerance)


def _delta_by_links(group: Group, asked: Question, epsilon: float, tolerance: float) -> tuple[float, float, bool]:
    return *rounds.log_delta(*asked, epsilon, tolerance, largest(group)), False


def _delta_by_doubling(group: Group, asked: Question, epsilon: float, tolerance: float) -> tuple[float, float, bool]:
    return *_doubling(group, asked).log_delta(epsilon, tolerance), False


def curve(group: Group, epsilons: Array, tolerance: float) -> tuple[Array, Array]:
    """Certified bounds on log delta at many epsilons, for delta itself to be known that well or nearly."""
    task = _doubling(group, _asked(group, epsilon=float(epsilons[-1])))
    return task.curve(epsilons, tolerance)


def log_leak(group: Group, tolerance: float) -> float:
    """A lower bound on log delta at any epsilon."""
    return _doubling(group, _asked(group, epsilon=EPSILON_LIMIT)).log_leak(tolerance)


def log_by_equal_links(oracle: chains.Oracle, model: Model, size: int, epsilon: float, needed: float) -> float:
    """A lower bound on a group's log delta by equal links (seen.py), one look at where they are.

    Nothing unless the model has it that this is more than is needed.
    """
    equal = np.array([(epsilon + BESIDE) / size])
    about = model.at(equal)
    if not about[0] > needed:
        return -math.inf
    return float(oracle(equal, about, _ROUGHLY)[0][0]) + log_reached(size, float(equal[0]), epsilon)


def largest(group: Group) -> float:
    return max(bounded.largest_total(steps) for steps in directions(group.inner))


def fits(group: Group) -> bool:
    """Whether a single record's curve is to be followed: few records whose losses can be listed need none."""
    return not has_renyi(group.inner) and (group.size > chains.LONGEST or listed(group) is None)


Question = tuple[chains.Oracle, Model, int, float]


def _asked(group: Group, log_delta: float | None = None, epsilon: float = 0.0) -> Question:
    """The single record's curve, a model of it, the group's size, and the log of the least delta."""
    steps = directions(group.inner)
    least = max(least_delta(some) for some in steps)
    asked = makers(group)
    log_least = math.log(least) if least > 0 else -math.inf
    model = rough(group, asked, log_delta, epsilon)
    if group.size > chains.LONGEST:
        model = model.raised(_glance(group, model.epsilons))
    # the attack on many records touches the curve over many scales
    oracle = Asked(asked, _ENOUGH, _PATIENCE) if group.size > chains.LONGEST else Asked(asked, _ENOUGH)
    return oracle, model.leaking(log_least, _OUT * EPSILON_LIMIT), group.size, log_least


def _glance(group: Group, epsilons: Array) -> Array:
    """A single record's log delta from below, at ascending epsilons: what costs little."""
    return np.asarray(np.max([log_deltas(steps, epsilons) for steps in directions(group.inner)], axis=0))


def _doubling(group: Group, asked: Question) -> doubling.Task:
    corner = max(bounded.largest_finite(steps)[0] for steps in directions(group.inner))
    return doubling.Task(*asked, largest(group), lambda epsilons: _glance(group, epsilons), corner)


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
