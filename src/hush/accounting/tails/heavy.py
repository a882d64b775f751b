"""Compositions with heavy-tailed losses: norms from random projections, above all.

The paths are split by their largest loss, each kind of them a contour integral of its own (sides.py, brackets.py).
A rough look at the losses (cells.py) says where brackets, lines and bins go.  It enters no bound, and what was seen of
the brackets says better for the next round.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from hush.accounting.contours import crossing
from hush.accounting.contours.crossing import EPSILON_LIMIT, certified_root
from hush.accounting.pairs.losses import Array, Enclosed, GaussianPair, LaplacePair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.projection import ProjectedPair
from hush.accounting.pairs.standing import leading
from hush.accounting.tails.cells import MANY, Rough, Seen, Steps, aim_at, bin_edges, rough_look
from hush.accounting.tails.sides import Chernoff, Curve, one_sided, sides, two_sided, what_was_seen

_TERMS = 1_000_000_000  # products of a point and a node in one answer
_FINEST = 8e-13  # nothing narrower is asked for
_GLANCE = 1e-3  # of log delta: as good as needed where only its size is asked for
_DEEPEST = -300.0  # log delta: far below, tails are cut off (`projection`), and all that is shown is that it is small
_VERY_MANY = 100_000  # steps
_ORDERS = np.geomspace(0.3, 300.0, 30)  # over epsilon: where Chernoff's bound is tried
_MANY_PART = 1.6  # bins of many kinds: as coarse as one round may be, since another takes longer than finer ones
_NARROWED = 0.8  # times what it was before: rounds that were worth it
_COARSER, _BLUNT = (1, 4, 16), 0.3  # times as coarse, where bounds on log delta would be wider than that


def _finer(part: float, wanted: float, cost: int, left: int) -> float:
    """How much less bins and averages may change: errors are in proportion to that, and costs inversely."""
    return part * max(min(wanted, 0.5), 1 / 30, 1.3 * cost / max(left, 1))


def _both(lower: Curve, upper: Curve, epsilons: Array) -> tuple[Array, Array]:
    return lower(epsilons), upper(epsilons)


def fits(steps: Steps) -> bool:
    """Whether this engine is the one to ask: tails are heavy, or there are many different steps with continuous losses.

    Norms from projections make tails heavy.  Of many kinds each gets no more bins than it needs.
    """
    inner = [_inner(pair) for pair, _ in steps]
    if any(isinstance(pair, Enclosed) for pair in inner):
        return False
    many = len(steps) >= MANY and any(isinstance(pair, GaussianPair) for pair in inner)
    return many or is_heavy(steps)


def is_heavy(steps: Steps) -> bool:
    """Whether some norm comes from projections: other engines know less of such tails."""
    return any(isinstance(_inner(pair), ProjectedPair) for pair, _ in steps)


def is_simple(steps: Steps) -> bool:
    """Whether tails are heavy and kinds are few, so that lines cost little; and there is more than one release."""
    return len(steps) < MANY and fits(steps) and sum(count for _, count in steps) > 1


def is_fine(steps: Steps) -> bool:
    """Whether steps are few kinds of samples, of Laplace noise too, and very many: losses too fine for a lattice."""
    samples = [pair.pair if isinstance(pair, Reversed) else pair for pair, _ in steps]
    known = all(isinstance(s, Poisson | Uniform) and isinstance(s.inner, GaussianPair | LaplacePair) for s in samples)
    many = sum(count for _, count in steps) > _VERY_MANY
    return known and many and len(steps) < MANY and any(isinstance(_inner(pair), LaplacePair) for pair in samples)


def serves(steps: Steps) -> bool:
    """Whether every step is continuous or a finite sum, and some loss has no bound: then this engine has an answer."""
    inner = [_inner(pair) for pair, _ in steps]
    return not any(isinstance(pair, Enclosed) for pair in inner) and any(
        isinstance(pair, GaussianPair | ProjectedPair) for pair in inner
    )


def knows(steps: Steps) -> bool:
    """Whether every step is continuous or a finite sum, and some is continuous: then this engine may know more."""
    inner = [_inner(pair) for pair, _ in steps]
    samples = [isinstance(pair, Poisson | Uniform | Reversed) for pair, _ in steps]
    some = any(isinstance(pair, LaplacePair) and cut for pair, cut in zip(inner, samples, strict=True))
    return serves(steps) or (some and not any(isinstance(pair, Enclosed) for pair in inner))


def _inner(pair: Pair) -> Pair:
    """The release without its sample."""
    base = pair.pair if isinstance(pair, Reversed) else pair
    return base.inner if isinstance(base, Poisson | Uniform) else base


@np.errstate(all="ignore")
def epsilon(steps: Steps, log_delta: float, tolerance: float, known: float = 0.0) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta), in the direction given.

    Another direction is known to have that much: of a smaller one it is enough to know that it is.
    """
    rough = rough_look(steps)
    guess = min(rough.guess(log_delta), EPSILON_LIMIT)
    idle = guess == EPSILON_LIMIT and rough.log_delta(guess) > log_delta + 0.3  # far beyond: a rough look will do
    nothing = rough.log_delta(0.0)
    if math.isfinite(nothing) and nothing < log_delta - 0.1:
        guess, idle = 0.0, True
    low, high, left, part = 0.0, math.inf, _TERMS, 8.0 if len(steps) < MANY else _MANY_PART
    asked, seen, width = tolerance, Seen(), math.inf
    for _ in range(8):
        tolerance = max(asked, min(_FINEST / max(guess, 1e-300), 0.1))
        # far beyond, what is there to be seen is far larger than delta
        size = max(log_delta, min(rough.log_delta(guess), 0.0) - 2) if idle else log_delta
        aim = aim_at(rough, guess, size, seen)
        change = min(0.3 * part * tolerance * max(guess * aim.slope, 0.02), 0.1)
        change = 0.1 if idle else change
        look = two_sided(steps, rough, aim, change, left)
        left, seen = left - look.cost, what_was_seen(look.upper, guess)
        curve = partial(_both, look.lower, look.upper)
        if guess == 0 and look.upper(np.zeros(1))[0] <= log_delta:
            return 0.0, 0.0
        found = certified_root(curve, guess, log_delta)
        low, high = max(low, found[0]), min(high, found[1])
        if low >= EPSILON_LIMIT or high - low <= 1.1 * max(asked * high, _FINEST) < math.inf or left <= 0:
            break
        if high <= known:
            break
        if high < 1.02 * low:
            if len(steps) >= MANY and found[1] - found[0] > _NARROWED * width:
                break  # bins are as many as there may be
            width = found[1] - found[0]
            # errors are in proportion to what was allowed, if epsilon was where they were looked at
            middle, near = 0.5 * (low + high), abs(0.5 * (low + high) / guess - 1) < 0.01
            less = _finer(part, 0.6 * tolerance * high / (high - low), look.cost, left)
            if near and (less > 0.9 * part or (look.most and len(steps) >= MANY)):
                break  # no more can be afforded
            part, guess = less if near else max(less, 1.0), middle
            continue
        if low > 0 and high < math.inf:  # epsilon is about there, but bins and averages were too coarse
            part *= 0.3
        # what the rough look is off here, it is off nearby
        below, above = (float(side[0]) for side in curve(np.array([guess])))
        off = 0.5 * (below + above) - rough.log_delta(guess) if math.isfinite(below) else 0.0
        again = min(max(rough.guess(log_delta - off), low, 1e-9), high, EPSILON_LIMIT)
        idle = False
        guess = again if abs(again - guess) > 1e-3 * guess else math.sqrt(max(low, guess / 4) * min(high, 4 * guess))
    return min(low, high), max(low, high)


@np.errstate(all="ignore")
def is_below(steps: Steps, epsilon: float, log_delta: float) -> bool:
    """Whether a glance shows that delta(epsilon) <= exp(log_delta)."""
    rough = rough_look(steps)
    if not rough.log_delta(epsilon) < log_delta - 0.2:
        return False
    aim = aim_at(rough, epsilon, log_delta)
    bins, at, leaders = bin_edges(rough, aim, 0.05), np.array([epsilon]), leading(steps)
    some = [(steps[place][0], count) for place, count in leaders.items()]
    few = replace(bins, edges=tuple(bins.edges[place] for place in leaders))
    for these, ends in ((some, few), (steps, bins)) if len(some) < len(steps) else ((steps, bins),):
        _, more = sides(these, ends)
        if epsilon > 0 and Chernoff.of(more, _ORDERS / epsilon, log_delta)(at)[0] <= log_delta:
            return True
    upper, _ = one_sided(more, rough, aim, 0.05, _TERMS // 10)
    return bool(upper(at)[0] <= log_delta)


@np.errstate(all="ignore")
def chernoff_near(rough: Rough, epsilon: float, log_delta: float) -> Chernoff:
    """Upper bounds on log delta that cost little, good from an epsilon on where it is about that."""
    aim = aim_at(rough, epsilon, min(log_delta, 0.0))
    _, more = sides(rough.steps, bin_edges(rough, aim, 0.05))
    return Chernoff.of(more, rough.orders, min(log_delta, 0.0))


@np.errstate(all="ignore")
def curve_at(rough: Rough, epsilon: float, log_delta: float, tolerance: float) -> crossing.Curve:
    """Certified bounds on log delta that are sharp near an epsilon where it is about that, if they can be."""
    for coarser in _COARSER:
        found = _looked_at(rough, epsilon, log_delta, 0.4 * coarser * tolerance, math.inf, _TERMS // 4)
        low, high = (float(side[0]) for side in found(np.array([epsilon])))
        if high - low < _BLUNT:
            break  # else some bracket has got no line: too many nodes
    return found


def _looked_at(
    rough: Rough, epsilon: float, log_delta: float, tolerance: float, enough: float, left: int, known: float = -math.inf
) -> crossing.Curve:
    """Such bounds, looked for again until they are so many times as wide as asked for, or within 1 of each other.

    Or below what is `known` of another direction.

    The rough look takes deep deltas for larger than they are: good to a part of that, lines say nothing.
    """
    part = 2.5 if len(rough.steps) < MANY else _MANY_PART  # a second round of many kinds takes longer than a finer one
    seen, best, narrowest = Seen(), None, math.inf
    for _ in range(8):
        wanted = tolerance * max(1.0, -log_delta)
        aim = aim_at(rough, epsilon, min(log_delta, 0.0), seen)
        look = two_sided(rough.steps, rough, aim, min(0.3 * part * wanted, 0.1), left)
        left, seen = left - look.cost, what_was_seen(look.upper, epsilon)
        low, high = (float(side(np.array([epsilon]))[0]) for side in (look.lower, look.upper))
        gap, before = high - low, narrowest
        if best is None or gap < narrowest:
            best, narrowest = partial(_both, look.lower, look.upper), gap
        if gap <= min(enough * wanted, 1.0) or left <= 0 or not math.isfinite(high) or high <= known:
            break
        if gap < 1:
            if gap > _NARROWED * before:
                break  # bins are as many as there may be
            log_delta, coarse, part = 0.5 * (low + high), part, _finer(part, 0.6 * wanted / gap, look.cost, left)
            if part > 0.9 * coarse:
                break
        elif high < log_delta - 2:
            log_delta = high - 2
        else:
            break
    assert best is not None
    return best


@np.errstate(all="ignore")
def log_delta(steps: Steps, epsilons: Array, tolerance: float, rival: Array | None = None) -> tuple[Array, Array]:
    """Certified bounds on log delta at a few epsilons, in the direction given; below a rival's, that it is will do."""
    rough = rough_look(steps)
    lower, upper = np.full(epsilons.shape, -np.inf), np.zeros(epsilons.shape)
    for k, epsilon in enumerate(epsilons):
        size = rough.log_delta(float(epsilon))
        if size < _DEEPEST - 20 and (last := rough.guess(_DEEPEST)) < epsilon:
            # delta falls: what is shown where something is seen holds further out
            upper[k] = _looked_at(rough, last, _DEEPEST, _GLANCE, 1.0, _TERMS // 10)(np.array([last]))[1][0]
        elif math.isfinite(size):
            known = -math.inf if rival is None else float(rival[k])
            found = _looked_at(rough, float(epsilon), size, tolerance, 1.0, _TERMS, known)(epsilons[k : k + 1])
            lower[k], upper[k] = (float(side[0]) for side in found)
    return np.minimum(lower, upper), np.maximum(lower, upper)
