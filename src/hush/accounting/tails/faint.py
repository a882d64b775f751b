"""Bins of projected releases where even P's tail is no floating-point number: two laws of logarithms.

Groups of records ask for deltas down to e^-10000, and where tails are heavy one large loss has a chance as small as
that.  Of bins so far out P- and Q-mass are known by the logarithms of tails at their ends, each good to some 2^-50 of
itself and so each mass to that over its share of the tail.  From there on they are spread to their ends, or seen as one
outcome, like all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting.pairs.losses import Array, Pair, Poisson, Reversed
from hush.accounting.pairs.points import LOOSE, Points
from hush.accounting.pairs.projection import DEEP, DEEPEST, ProjectedPair

_UNIT = 2.0**-50
_FAINT = -550.0  # log of a P-tail from which on bins have logarithms
_CLOSEST = 30.0  # minus an inner loss from which on the loss can't be told from the largest, a record being added


@dataclass(frozen=True)
class Faint:
    """The laws beyond an edge: what reveals less, what more, and log of a bound on what has an infinite loss."""

    first: int
    """Which edge."""
    less: Points
    more: Points

    def beyond(self, near: tuple[Points, Points]) -> tuple[Points, Points]:
        """The laws of all bins, those up to the edge being known."""
        less, more = (
            Points(
                np.append(one.losses, other.losses),
                np.append(one.logs, other.logs),
                directed=one.directed,
                log_hidden=other.log_hidden,
            )
            for one, other in zip(near, (self.less, self.more), strict=True)
        )
        return less, more


@dataclass(frozen=True)
class _Bounds:
    """Logs of bounds on masses of bins between edges, and beyond the last."""

    least: Array
    most: Array

    @staticmethod
    def of(t: Array, tails: Array, missed: float) -> _Bounds:
        """From logs of tails at the edges, good to their doubt, and to what was left out.

        The first edge may be as far off as a tail there in floating-point numbers is, and P for each of the two.
        """
        own = ProjectedPair.log_doubt(t, tails) + np.exp(np.minimum(missed - tails, 0.0))
        own[0] *= 3
        fall = np.append(np.exp(tails[1:] - tails[:-1]), 0.0)
        share = 1 - fall
        off = (own + np.append(own[1:], 0.0) * fall) / share + _UNIT
        known = (off < 0.5) & (share > 0)
        logs = tails + np.log(np.where(known, share, 1.0))
        least = np.where(known, logs + np.log1p(-np.where(known, off, 0.0)), -np.inf)
        return _Bounds(least - _margin(tails), np.where(known, logs + off, tails + np.log1p(own)) + _margin(tails))

    def mixed(self, rate: float, other: _Bounds) -> _Bounds:
        """1 - rate of these masses and the rate of others."""
        logs = math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate)
        least, most = (
            np.logaddexp(logs[0] + self.least, logs[1] + other.least),
            np.logaddexp(logs[0] + self.most, logs[1] + other.most),
        )
        return _Bounds(least - _margin(least), most + _margin(most))


def _margin(logs: Array) -> Array:
    """What rounding does to sums of logarithms of that size."""
    return np.asarray(_UNIT * (8 + np.where(np.isfinite(logs), 2 * np.abs(logs), 0.0)))


@np.errstate(all="ignore")
def faint(pair: Pair, edges: Array) -> Faint | None:
    """The two laws from where P's tail falls below e^-550 on; None where no edge lies there, or nothing is known."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    rate, inner = (sample.rate, sample.inner) if isinstance(sample, Poisson) else (1.0, sample)
    mirrored = sample is not pair
    if not isinstance(inner, ProjectedPair) or not inner.deep or inner.projections == 1 or (mirrored and rate == 1):
        return None
    places = -edges if mirrored else edges
    at = places if rate == 1 or not isinstance(sample, Poisson) else _reached(sample, places)
    at = -at if mirrored else at
    known = np.flatnonzero((at > 0) & (at < (_CLOSEST if mirrored else math.inf)))
    if known.size < 2:
        return None
    first, last = int(known[0]), int(known[-1])
    if inner.rough_depth(float(at[last])) < -_FAINT - 100:
        return None
    depth = DEEP
    while depth < DEEPEST and (least := _log_tail(inner, float(at[last]), depth)) < 1 - depth:
        depth = min(1.1 * max(-least, depth) + 100, DEEPEST)
    if _log_tail(inner, float(at[last]), depth) > _FAINT:
        return None
    first = _first_below(inner, at, first, last, _FAINT)
    last = _first_below(inner, at, first, last, 1 - depth) if depth == DEEPEST else last
    if first < 1 or last <= first:
        return None
    t = at[first : last + 1]
    log_p, log_q = inner.log_tails(t, depth)
    above, below = _Bounds.of(t, log_p, -40 - depth), _Bounds.of(t, log_q, -math.inf)
    p, q = (above, above.mixed(rate, below)) if mirrored else (below.mixed(rate, above), below)
    ends = edges[first : last + 1]
    seen = np.isfinite(p.least)
    losses = p.least[seen] - q.most[seen]
    less = Points(losses - 4 * _UNIT * (np.abs(losses) + np.abs(p.least[seen]) + 1), p.least[seen])
    moved = 16 * _UNIT * np.abs(ends) + (2.0**-60 / (1 - rate) if mirrored else 0.0)
    low = _kept_low(p.most[:-1], q.least[:-1], ends[:-1] - moved[:-1], ends[1:] + moved[1:])
    logs = np.logaddexp(
        np.append(p.most[:-1] + np.log(low), -np.inf), np.append(-np.inf, p.most[:-1] + np.log1p(-low))
    ) + _margin(p.most)
    losses, hidden = ends + moved, float(p.most[-1])
    if mirrored:  # no loss exceeds -log(1 - rate)
        losses, logs = np.append(losses, -math.log1p(-rate) * (1 + LOOSE)), np.append(logs, hidden)
        hidden = -math.inf
    some = np.isfinite(logs)
    return Faint(first, less, Points(losses[some], logs[some], log_hidden=hidden))


def _reached(sample: Poisson, losses: Array) -> Array:
    """Inner losses, as far as the sample has any."""
    return np.where(losses > math.log1p(-sample.rate), sample.inner_loss(losses), -np.inf)


def _log_tail(pair: ProjectedPair, t: float, depth: float) -> float:
    return float(pair.log_tails(np.array([t]), depth)[0][0])


def _first_below(pair: ProjectedPair, t: Array, first: int, last: int, log: float) -> int:
    """The first edge with a smaller tail, of those from the first to the last, which has one."""
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if _log_tail(pair, float(t[middle]), -log + 50) < log else (middle + 1, last)
    return last


def _kept_low(p: Array, q: Array, low: Array, high: Array) -> Array:
    """The share of a bin's P-mass that goes to its lower end if P- and Q-mass are kept, rounded down."""
    lift = q + high - p
    slack = _UNIT * (8 + np.abs(q) + np.abs(high) + np.abs(p)) * np.exp(lift)
    share = (np.expm1(lift) - slack) / np.expm1(high - low) * (1 - _UNIT)
    return np.asarray(np.where(share > 0, np.minimum(share, 1 - 2.0**-53), 0.0))
