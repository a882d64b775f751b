"""Labels that decide on their own: what they add to delta, or to 1 - delta, in closed form, and what that gets wrong.

A huge step, or all steps bulk, put the total loss on one side of epsilon for sure (jumps.py has the table), but for the
Gaussian tails of the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr

from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.gaussian.labels import Labels, is_split, log_dropped, log_misplaced, log_overlap, loss_position
from hush.accounting.gaussian.strips import Edge
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Step

_FEWEST_HITS = 1e-30  # a chance below which fifty digits of 1 less it are few


@dataclass(frozen=True)
class Reach:
    """All other steps together lose no more than `below`, but for a chance of exp(-log_certain)."""

    below: float
    log_certain: float


@dataclass(frozen=True)
class Known:
    """A part of the answer in closed form: its sign, the log of its size, and the log of what may be wrong with it."""

    sign: float
    log_size: float
    log_error: float


@dataclass(frozen=True)
class Below:
    """All steps below an edge each: log of the chance of it without the record, and with it.

    The errors of both follow from those of Gaussian tails (`_share`).
    """

    log_absent: float
    log_ratio: float
    """log of the chance with the record, less that without it."""
    doubt_absent: float
    doubt_ratio: float
    log_exceeded: float
    """log of the chance without the record that some step isn't below its edge, where that is next to nothing."""
    log_exceeded_doubt: float
    log_gained: float
    """log of how much larger that chance is with the record, where both are next to nothing."""
    log_gained_doubt: float

    @property
    def log_above(self) -> tuple[float, float]:
        """log of that chance, and of how far it may be off: of tails no floating-point number holds, too."""
        if self.log_absent > -1e-280:
            return self.log_exceeded, self.log_exceeded_doubt
        return float(np.log(-np.expm1(self.log_absent))), self.log_absent + float(np.log(self.doubt_absent))

    @property
    def log_gain(self) -> tuple[float, float]:
        """log of 1 less the ratio of the chances with and without the record, and of how far it may be off."""
        if self.log_ratio > -1e-280:
            return self.log_gained, self.log_gained_doubt
        gain = -float(np.expm1(self.log_ratio))
        return float(np.log(gain)), float(np.log(self.doubt_ratio + self.doubt_absent * gain))

    @property
    def log_present(self) -> float:
        return self.log_absent + self.log_ratio

    @property
    def doubt_present(self) -> float:
        return self.doubt_absent + self.doubt_ratio


@lru_cache(maxsize=16)
def _all_below(edges: tuple[tuple[Step, Edge], ...]) -> Below:
    """The same whatever epsilon is."""
    log_absent, log_ratio, doubt_absent, doubt_ratio = 0.0, 0.0, 0.0, 0.0
    exceeded = exceeded_doubt = gained = gained_doubt = -np.inf
    for step, edge in edges:
        spread = np.sqrt(1 + edge.width**2)
        at, hit_at = edge.place / spread, (edge.place - 1 / step.noise) / spread
        log_below, log_hit_below = float(log_ndtr(at)), float(log_ndtr(hit_at))
        share, hit_share = _share(at, 0.0), _share(hit_at, 1 / step.noise)
        # log of P(below)/Q(below), from what is above if that is little
        above, hit_above = float(ndtr(-at)), float(ndtr(-hit_at))
        if log_below < -0.5:
            kept, change = float(np.exp(log_hit_below - log_below)), float(np.expm1(log_hit_below - log_below))
            unsure_kept = hit_share * (1 + abs(log_hit_below)) + share * (1 + abs(log_below))
            unsure = unsure_kept * kept
        else:
            change = (above - hit_above) / float(np.exp(log_below))
            unsure = 5 * (_unsure(above, share) + _unsure(hit_above, hit_share))
        unsure += 12 * UNIT_ROUNDOFF * abs(change)  # an exponential, a difference, a quotient, a product
        one = float(np.log1p(step.rate * change))
        if log_below < -0.5 and change < -0.5 and step.rate > 0.5:
            # 1 + p change would lose digits where p is near 1; 1 - p is exact
            one = float(np.log((1 - step.rate) + step.rate * kept))
            unsure = (unsure_kept + 8 * UNIT_ROUNDOFF) * kept + 8 * UNIT_ROUNDOFF * float(np.exp(one))
        tail = float(np.log(step.count) + log_ndtr(-at))
        exceeded = float(np.logaddexp(exceeded, tail))
        exceeded_doubt = float(np.logaddexp(exceeded_doubt, tail + np.log(share * (1 + abs(tail)))))
        hit_tail = float(np.log(step.count) + log_ndtr(-hit_at))
        more = hit_tail + np.log(-np.expm1(min(tail - hit_tail, 0.0)))
        doubts = [tail + np.log(share * (1 + abs(tail))), hit_tail + np.log(hit_share * (1 + abs(hit_tail)))]
        gained = float(np.logaddexp(gained, np.log(step.rate) + more))
        gained_doubt = float(np.logaddexp.reduce([gained_doubt, *(np.log(step.rate) + np.array(doubts))]))
        log_absent += step.count * log_below
        log_ratio += step.count * one
        doubt_absent += step.count * share * abs(log_below)
        doubt_ratio += step.count * (1e-15 * abs(one) + step.rate * unsure * float(np.exp(-one)))
    return Below(log_absent, log_ratio, doubt_absent, doubt_ratio, exceeded, exceeded_doubt, gained, gained_doubt)


def _share(at: float, mean: float) -> float:
    """How far the tail Phi(-|y|) or its logarithm may be off, relatively: 6 u (4 + y^2/2), and by what y has lost.

    y = (place - mean)/spread is off by 4 u |y| + u mean at most, and the tail falls by |y| + 1 for a unit of y, its
    logarithm by less than twice that.
    """
    size = abs(at)
    return UNIT_ROUNDOFF * (6 * (4 + 0.5 * size * size) + 2 * (size + 1) * (4 * size + mean))


def _unsure(chance: float, share: float) -> float:
    """How far Phi may be off: by this share of the smaller tail, below the floating-point range by all of it, and, near
    1, by an ulp."""
    return share * chance + 1e-307 if chance < 0.5 else share * (1 - chance) + 2.0**-52


def _known(log_size: float, log_error: float, epsilon: float, kinds: int, sign: float = 1.0) -> Known:
    """With the rounding of the logarithms themselves, in units of u.

    A sum over all kinds of steps loses as many of itself.  Up to three functions, 8 each, are worth 24 of the part; up
    to two logarithms of them, 8 each, and a sum are worth 20 (|log size| + |eps|), since no term is larger than that.
    """
    rounded = np.log((kinds + 20) * UNIT_ROUNDOFF * (2 + abs(log_size) + abs(epsilon)))
    error = float(np.logaddexp(log_error, log_size + rounded)) if np.isfinite(log_size) else log_error
    return Known(sign, log_size, error)


def closed_form(labels: Sequence[Labels], direction: int, epsilon: float, complement: bool, bulk: bool) -> list[Known]:
    """The labels whose total is on one side of epsilon for sure, and what they add to delta, or to 1 - delta.

    Above epsilon that is P - e^eps Q, or e^eps Q; below it nothing, or P.
    """
    high = _all_below(tuple((label.step, label.high) for label in labels if not label.dropped))
    low = _all_below(tuple((label.step, label.bulk_edge) for label in labels) if bulk else ())
    kinds, counted = len(labels), not all(label.dropped for label in labels)
    parts = []
    with np.errstate(divide="ignore"):
        # of some step huge: in the remove direction e^eps Q, or P - e^eps Q = (P - Q) - (e^eps - 1) Q; in the other P
        absent, wrong = high.log_above
        if counted and direction == REMOVE and complement:
            parts.append(_known(epsilon + absent, epsilon + wrong, epsilon, kinds))
        elif counted and direction == REMOVE:
            growth = max(epsilon, 0.0) + np.log(-np.expm1(-abs(epsilon)))  # log |e^eps - 1|
            gain, doubt = high.log_gain
            parts.append(_known(high.log_absent + gain, high.log_absent + doubt, epsilon, kinds))
            parts.append(_known(growth + absent, growth + wrong, epsilon, kinds, -float(np.sign(epsilon))))
        elif counted and complement:
            parts.append(_known(absent, wrong, epsilon, kinds))
        # all steps bulk
        if bulk and complement:
            size = low.log_present + (0.0 if direction == REMOVE else epsilon)
            parts.append(_known(size, size + np.log(low.doubt_present), epsilon, kinds))
        elif bulk and direction == ADD:
            # P - e^eps Q, with P = N(0, 1) and Q the mixture
            gap = epsilon + low.log_ratio
            size = low.log_absent + (np.log(abs(np.expm1(gap))) if gap < 700 else gap)
            doubt = low.doubt_absent + low.doubt_ratio + (kinds + 4) * UNIT_ROUNDOFF * (abs(epsilon) - low.log_ratio)
            wrong = low.log_absent + max(gap, 0.0) + np.log(doubt)
            parts.append(_known(size, wrong, epsilon, kinds, float(-np.sign(gap))))
    return parts


@dataclass(frozen=True)
class Hits:
    """What P - Q of some step huge is on a plateau: the chance of a hit, 1 - (1-p)^T, less what is `short` of it."""

    chance: float
    """Good to a unit of rounding."""
    short: float
    doubt: float
    """How far that may be off."""


def hits(labels: Sequence[Labels]) -> Hits | None:
    """By powers of 1 - p in fifty digits; None where they are too few, or no step counts as huge.

    With q and h the chances to be below huge without the record and with it, Q = q^T and a = (1-p)^T,

        (P - Q)(some huge) = Q - (q (1-p) + h p)^T = (1 - a) - ((1 - Q) (1 - a) + Q a ((1 + p h/(q (1-p)))^T - 1)).

    Both terms of what is short are positive, and as good as their Gaussian tails.
    """
    counted = tuple((label.step, label.high) for label in labels if not label.dropped)
    with localcontext() as context:
        context.prec = 50
        none = Decimal(1)
        for step, _ in counted:
            none *= (1 - Decimal(step.rate)) ** Decimal(step.count)
        chance, rest = float(1 - none), float(none)
    if chance < _FEWEST_HITS:
        return None
    below = _all_below(counted)
    missed, share = 0.0, 0.0
    for step, edge in counted:
        spread = np.sqrt(1 + edge.width**2)
        at, hit_at = edge.place / spread, (edge.place - 1 / step.noise) / spread
        odds = step.rate / (1 - step.rate) * float(ndtr(hit_at)) / float(ndtr(at))
        missed += step.count * float(np.log1p(odds))
        share = max(share, _share(at, 0.0) + _share(hit_at, 1 / step.noise))
    log_above, log_doubt = below.log_above
    first, second = float(np.exp(log_above)) * chance, rest * float(np.exp(below.log_absent)) * float(np.expm1(missed))
    rounded = UNIT_ROUNDOFF * (64 + len(counted) + 16 * abs(log_above) + 16 * abs(below.log_absent))
    doubt = float(np.exp(log_doubt)) * chance + second * (1 + missed) * (share + below.doubt_absent + rounded)
    return Hits(chance, first + second, doubt + rounded * first)


def log_misjudged(labels: Sequence[Labels], direction: int, epsilon: float, reach: Reach) -> float:
    """log of what the labels get wrong: huge or bulk without the certainty assumed, or left out."""
    always, with_epsilon = _log_left_out(tuple(labels), direction)
    errors = [always, epsilon + with_epsilon]
    for label in labels:
        if not label.dropped:
            high, log_count = label.high, float(np.log(label.step.count))
            point = loss_position(label.step, reach.below + direction * epsilon)
            errors.append(epsilon + log_count + log_misplaced(point, high.place, high.width))
            # a huge step, while the others are below -reach
            errors.append(epsilon + log_count + label.log_huge(False) - reach.log_certain)
    return float(np.logaddexp.reduce(errors))


@lru_cache(maxsize=16)
def _log_left_out(labels: tuple[Labels, ...], direction: int) -> tuple[float, float]:
    """log of what is left out, whatever epsilon is, and of what counts e^eps times."""
    errors, times = [-np.inf], [-np.inf]
    for label in labels:
        log_count = float(np.log(label.step.count))
        if label.dropped:
            errors.append(log_count + log_dropped(label, direction))
        # what the cuts leave out adds between nothing and its probability under P ...
        errors += [log_count + part.log_cut(direction) for part in (label.middle, label.bulk) if part is not None]
        errors.append(log_count + log_overlap(label, direction))
        if direction == ADD and is_split(labels):
            # ... and as much as e^eps Q to what falls short of P - e^eps Q
            times.append(log_count + (label.bulk or label.middle).log_cut(REMOVE))
    return float(np.logaddexp.reduce(errors)), float(np.logaddexp.reduce(times))
