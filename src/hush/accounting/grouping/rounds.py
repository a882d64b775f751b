"""Epsilon and delta of a group: rounds of looks at a single record's curve (chains.py), until both bounds meet.

A glance puts the links where they belong.  Then each round looks around them, draws a lower bound from a level and an
upper one from a split, and looks again, more closely, if these are too far apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.grouping.chains import MOST, SHARP, TOLD, Chain, Oracle
from hush.accounting.grouping.links import Links, Model
from hush.accounting.pairs.losses import Array

_ROUNDS = 5
_SLACK = 0.1  # of the width asked for: what links may be off, all of them together
_GLANCES = 2
_SCALES = 0.8, 1.25
_SHARPER = 20.0  # times, at most, from one look to the next
_NEAR = 0.1  # of log delta: so close, others would be no better
_NARROWED = 0.7  # times what was known before: a look that was worth it
_ENOUGH = 4.0  # times as wide as was asked for, of log delta, which changes faster than epsilon
_MOVED = 0.005  # of epsilon: links that moved no more are where they belong
_FURTHER = 2.0, 1.1  # times an epsilon where delta is next to 1: if it still is there, a rough look will do
_NEXT_TO_ONE = 20.0  # minus the log of a share of delta that is left out
_TOPMOST = 1e-6, 1e-4, 1e-2  # parts of a largest loss: links as close to it may as well be there
_BEYOND = 1.001  # as a part of the largest epsilon that is told


@np.errstate(all="ignore")
def epsilon(
    oracle: Oracle,
    rough: Model,
    size: int,
    log_least: float,
    log_delta: float,
    tolerance: float,
    largest: float = math.inf,
) -> tuple[float, float]:
    """Certified bounds on the group's epsilon, where a single record's delta is 0 from `largest` on."""
    chain = Chain(oracle, rough, size, log_least, largest)
    chain.sharpness = max(SHARP, 0.1 * tolerance)
    low, high, width, slack = 0.0, math.inf, math.inf, _SLACK * tolerance
    links = _links(chain, log_delta)
    for _ in range(_GLANCES):
        chain.glance(links)
        before, links = links, _links(chain, log_delta)
        if links.spare > 0 and chain.epsilon_below(links, log_delta, glanced=True) >= EPSILON_LIMIT:
            return EPSILON_LIMIT, math.inf
        if abs(links.epsilon - before.epsilon) < _MOVED * links.epsilon:
            break
    for k in range(_ROUNDS):
        sharpness = chain.sharpness
        chain.sharpness = max(sharpness, links.spare / links.slopes.size / 1000)
        chain.slack = slack * links.epsilon * min(links.steep, 1.0)
        chain.look(links, tolerance)
        chain.sharpness = sharpness
        links = _links(chain, log_delta)
        if links.epsilon < 1e-3 * np.abs(links.slopes).sum() and _zero(chain, log_delta):
            return 0.0, 0.0
        low = max(low, chain.epsilon_below(links, log_delta))
        if low >= EPSILON_LIMIT:
            return EPSILON_LIMIT, math.inf
        high = min(high, seen_above(chain, links, log_delta, tolerance))
        if high - low <= max(tolerance * high, 1e-12) < math.inf or chain.epsilons.size > MOST:
            break
        if k > (2 if high < math.inf else 1) and not high - low < _NARROWED * width:
            break  # nor would another look help
        width = high - low
        if (
            high < 1.03 * low and k > 0
        ) or k > 1:  # the links are where they should be: what keeps bounds apart is unsure points
            sharper = min(max(2 * (high - low) / (tolerance * high), 3.0), _SHARPER) if high < math.inf else _SHARPER
            chain.sharpness, slack = chain.sharpness / sharper, slack / sharper
    return min(low, high), max(low, high)


def _links(chain: Chain, log_delta: float) -> Links:
    """The chain at that delta or, if it is further out, one that tells as much: of fewer records, if need be."""
    beyond = chain.model.climb(log_delta - 1 - EPSILON_LIMIT, log_delta + 1, chain.size)
    return chain.model.links(chain.size, log_delta=log_delta) if beyond is None else beyond


def _links_at(chain: Chain, at: float, tolerance: float, furthest: float) -> Links:
    """The chain at that epsilon or, where delta is next to 1, one further out that says so with something to spare."""
    for times in _FURTHER:
        if times > furthest:
            continue
        whole = chain.model.links(chain.size, epsilon=times * at + 1)
        if whole.epsilon > 0.99 * times * at and whole.log_delta <= math.log1p(-0.5 * tolerance):
            continue  # fewer records tell less
        for size in sorted({chain.size >> k for k in range(chain.size.bit_length())}):  # as few records as will do
            further = chain.model.links(size, epsilon=times * at + 1)
            if further.epsilon > max(at, 0.99 * times * at) and further.log_delta > math.log1p(-0.5 * tolerance):
                return replace(further, level=-at - _NEXT_TO_ONE, spare=further.epsilon - at)
    return chain.model.links(chain.size, epsilon=at)


def seen_above(chain: Chain, links: Links, log_delta: float, tolerance: float) -> float:
    """An epsilon that is seen to be large enough."""
    wanted = log_delta
    slack = 0.02 * tolerance * links.epsilon * links.steep + 1e-9
    for k in range(6):
        if links.epsilon > _BEYOND * EPSILON_LIMIT or links.slopes.size < chain.size:
            break
        over = chain.split(links.slopes) - log_delta
        if over <= 0:
            return max(links.epsilon + _sum_doubt(links.slopes), 0.0)
        if not math.isfinite(over):
            break
        if k > 0 or over < TOLD:
            wanted -= 1.02 * over + slack
        links = (chain.model if over < TOLD else chain.above()).links(chain.size, log_delta=wanted)
    return math.inf


def _zero(chain: Chain, log_delta: float) -> bool:
    """Whether delta is small enough at epsilon = 0."""
    slopes = chain.model.links(chain.size, epsilon=0.0).slopes
    return chain.split(_summing_to(slopes, 0.0)) <= log_delta


def fitted(chain: Chain, slopes: Array, epsilon: float) -> Array:
    """Moved to sum up to epsilon: of a largest loss those at it stay there, as many as the model says is best.

    (There delta is 0, and a little before it may be far more than others make up for.)
    """
    best = _summing_to(slopes, epsilon)
    if not math.isfinite(chain.largest) or slopes.size < 2:
        return best
    order = np.argsort(-slopes, kind="stable")
    found = [best]
    for close in _TOPMOST:
        count = int(np.sum(slopes >= (1 - close) * chain.largest))
        if 0 < count < slopes.size:
            pinned = np.full(count, chain.largest * (1 + 1e-12))
            moved = slopes.copy()
            moved[order[:count]] = pinned
            moved[order[count:]] = _summing_to(slopes[order[count:]], epsilon - float(pinned.sum()) * (1 + 1e-13))
            found.append(moved)
    sizes = []
    for one in found:
        after = np.append(np.cumsum(one[::-1])[::-1][1:], 0.0)
        logs = np.where(one >= chain.largest, -np.inf, chain.model.log_delta(one))
        sizes.append(float(np.logaddexp.reduce(logs + after)))
    return found[int(np.argmin(sizes))]


def _summing_to(slopes: Array, epsilon: float) -> Array:
    """Moved so that their sum is that, or a little less."""
    moved = slopes + (epsilon - float(slopes.sum())) / slopes.size
    return np.asarray(moved - _sum_doubt(moved) / slopes.size)


def _sum_doubt(slopes: Array) -> float:
    return 2.0**-50 * slopes.size * float(np.abs(slopes).sum())


@np.errstate(all="ignore")
def log_delta(
    oracle: Oracle,
    rough: Model,
    size: int,
    log_least: float,
    at: float,
    tolerance: float,
    largest: float = math.inf,
) -> tuple[float, float]:
    """Certified bounds on log delta of the group at one epsilon."""
    chain = Chain(oracle, rough, size, log_least, largest)
    chain.sharpness = max(SHARP, tolerance / 4)
    low, high = -math.inf, 0.0
    links = _links_at(chain, at, tolerance, _FURTHER[0])
    for _ in range(_GLANCES):
        chain.glance(links)
        if links.spare > 0 and (low := chain.log_delta_below(links, at, glanced=True)) >= -tolerance:
            return low, high
        before, links = links, _links_at(chain, at, tolerance, _FURTHER[1])
        if abs(links.log_delta - before.log_delta) < 0.3 and before.spare <= 1.01 * links.spare:
            break
    width = math.inf
    for k in range(_ROUNDS):
        sharpness = chain.sharpness
        chain.sharpness = max(sharpness, links.spare / size / 1000)
        chain.look(links, tolerance, for_delta=True)
        chain.sharpness = sharpness
        before, links = links, chain.model.links(size, epsilon=at)
        low = max(low, chain.log_delta_below(before if before.spare > 0 else links, at))
        if low >= -tolerance:
            break
        if before.spare > 0:
            continue
        for scale in (1.0, *_SCALES):  # where the curve is flat, the model's links may be off by that much
            high = min(high, chain.split(fitted(chain, scale * links.slopes, at)))
            if high - low <= tolerance * links.scale:
                return min(low, high), max(low, high)
            if unknown := low == -math.inf and high == 0:
                break  # nothing is known of some link
            if high - low < _NEAR and at > 0.5 * float(np.abs(links.slopes).sum()):
                break  # links are where they belong, but where they cross the diagonal
        if k > 0 and unknown:
            break
        if chain.epsilons.size > MOST or (k > 1 and not high - low < _NARROWED * width):
            break  # nor would another look help
        if high - low <= _ENOUGH * tolerance * links.scale:
            break  # nor is it worth one
        width = high - low
        chain.sharpness /= 3 if high - low < 0.3 else 1
    return min(low, high), max(low, high)
