"""delta(epsilon) of one release, straight from the tails of its loss: no lattice, no transform.

    delta(eps) = P(L > eps) - e^eps Q(L > eps),

as far off as the two tails are (`doubts.py`).  For the projected Gaussian the two are taken together: its
delta is the mean of the Gaussian's own over z, a sum of positive terms, which keeps its digits at any depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.contours.crossing import Curve
from hush.accounting.gaussian.closed import gaussian_curve, inner_doubt, inner_loss
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.mixed.scattered import sums
from hush.accounting.pairs.doubts import doubts
from hush.accounting.pairs.joined import finite
from hush.accounting.pairs.losses import (
    Array,
    Atoms,
    Enclosed,
    GaussianPair,
    LaplacePair,
    Pair,
    Poisson,
    Reversed,
    Uniform,
)
from hush.accounting.pairs.projection import ProjectedPair, decade

_UNIT = 2.0**-50
_FAINT = 1e-240  # a delta below which logarithms tell more
_CERTAIN = 40.0  # an argument of Phi
_MOST = 1000  # sums of atoms beside a release


def curve(pair: Pair) -> Curve:
    """Certified bounds on log delta of one release at epsilons >= 0."""
    if isinstance(pair, Enclosed):
        return partial(_between, curve(pair.lower), curve(pair.upper))
    if isinstance(pair, Atoms):
        return partial(_listed, pair)
    if isinstance(pair, GaussianPair):
        return gaussian_curve(pair.mu**2)
    if isinstance(pair, LaplacePair):
        return partial(_laplace, pair.mu)
    if isinstance(pair, ProjectedPair):
        return partial(_projected, pair)
    sampled = pair.pair if isinstance(pair, Reversed) else pair
    if isinstance(sampled, Poisson | Uniform) and sampled.rate < 1 and not isinstance(sampled.inner, Enclosed):
        inner = curve(sampled.inner.reverse() if isinstance(pair, Reversed) else sampled.inner)
        return partial(_sampled, inner, sampled.rate, ADD if isinstance(pair, Reversed) else REMOVE)
    return partial(_by_tails, pair)


def among(steps: Sequence[tuple[Pair, int]]) -> Curve | None:
    """The curve of one release beside a few sums of atoms, for each of which it is asked at what is left of epsilon.

    delta(eps) = P(L = inf) + the sum over the atoms' totals l of their mass times delta(eps - l) of the release, all
    positive.  Masses and losses are as far off as in `scattered.listed`.
    """
    rest = [(pair, count) for pair, count in steps if finite(pair) is not None]
    others = [(pair, count) for pair, count in steps if finite(pair) is None]
    squared = math.fsum(count * pair.mu**2 for pair, count in others if isinstance(pair, GaussianPair))
    if others and all(isinstance(pair, GaussianPair) for pair, _ in others):
        others = [(GaussianPair(math.sqrt(squared)), 1)]
    if not rest or len(others) != 1 or others[0][1] > 1 or not _is_quick(others[0][0]):
        return None
    known = sums(rest, _MOST)
    if known is None:
        return None
    law, shift, margin = known
    alone = others[0][0]
    shift += (len(steps) + 4) * 2.0**-53 * (squared + 40 * math.sqrt(squared))  # as in `joined`
    forward, backward = curve(alone), curve(alone.reverse())

    def found(epsilons: Array) -> tuple[Array, Array]:
        ends = []
        for side, sign in ((0, 1.0), (1, -1.0)):
            at = np.subtract.outer(epsilons + sign * shift, law.losses)
            at += sign * 4 * 2.0**-53 * (np.abs(epsilons)[:, None] + np.abs(law.losses))
            own = anywhere(forward, backward, at.ravel())[side].reshape(at.shape)
            total = np.logaddexp.reduce(own + law.logs, axis=1)
            total = np.logaddexp(total, np.log(law.infinite)) if law.infinite > 0 else total
            ends.append(total - sign * (margin + 16 * 2.0**-53 * law.losses.size))
        return ends[0], np.minimum(ends[1], 0.0)

    return np.errstate(all="ignore")(found)


def _is_quick(pair: Pair) -> bool:
    """Whether many epsilons cost its curve no more than one."""
    inner = pair.pair if isinstance(pair, Reversed) else pair
    inner = inner.inner if isinstance(inner, Poisson) else inner
    return isinstance(inner, GaussianPair | LaplacePair)


def anywhere(forward: Curve, backward: Curve, epsilons: Array) -> tuple[Array, Array]:
    """At epsilons of any sign: delta(-e) = 1 - e^-e + e^-e delta'(e) with the other direction's."""
    ahead, behind = forward(np.maximum(epsilons, 0.0)), backward(np.maximum(-epsilons, 0.0))
    left = np.minimum(epsilons, 0.0)
    ends = []
    for side, sign in ((0, -1.0), (1, 1.0)):
        below = np.logaddexp(np.log(-np.expm1(left)), left + behind[side])
        below += sign * 16 * 2.0**-53 * (2 + np.abs(left) + np.abs(below))
        ends.append(np.where(epsilons < 0, below, ahead[side]))
    return ends[0], np.minimum(ends[1], 0.0)


def _between(below: Curve, above: Curve, epsilons: Array) -> tuple[Array, Array]:
    return below(epsilons)[0], above(epsilons)[1]


def _listed(pair: Atoms, epsilons: Array) -> tuple[Array, Array]:
    """A sum of positive terms, its losses good to a few units in the last place."""
    shift = 4 * _UNIT * np.maximum(1e-3, epsilons)
    lower, upper = pair.log_delta(epsilons + shift, -1e-12), pair.log_delta(np.maximum(epsilons - shift, 0.0), 1e-12)
    return lower, np.minimum(upper, 0.0)


@np.errstate(all="ignore")
def _sampled(inner: Curve, rate: float, direction: int, epsilons: Array) -> tuple[Array, Array]:
    """On a sample, by the inner curve at e^t = 1 + (e^(+-eps) - 1)/p: p delta(t), or p e^(eps+t) delta(-t) in reverse.

    For eps >= 0 C_p is the first of the two.
    """
    ends = []
    for side, nudge in ((0, 1 + 4 * _UNIT), (1, 1 - 4 * _UNIT)):
        moved = epsilons * nudge  # by more than the rounding of what follows: at its end e^t is 0, or just not
        t = inner_loss(rate, direction * moved)
        off = 8 * 2.0**-53 * (inner_doubt(rate, direction * moved, t) + 1e-3)
        reached = np.isfinite(t) & np.isfinite(off)
        at, off = np.where(reached, direction * t, 0.0), np.where(reached, off, 0.0)
        factor = math.log(rate) + (0.0 if direction == REMOVE else moved - at)
        sign = 1 if side else -1
        slack = off + 8 * 2.0**-53 * (4 + np.abs(factor) + abs(math.log(rate)))
        value = inner(np.maximum(at - sign * off, 0.0))[side] + factor + sign * slack
        ends.append(np.where(reached, value, 0.0 if side and direction == REMOVE else -np.inf))
    return ends[0], np.minimum(ends[1], 0.0)


@np.errstate(all="ignore")
def _laplace(mu: float, epsilons: Array) -> tuple[Array, Array]:
    """1 - e^((eps - mu)/2) up to mu."""
    shift = 4 * _UNIT * mu

    def at(gap: Array) -> Array:
        return np.where(gap > 0, np.log(-np.expm1(-np.maximum(gap, 0.0) / 2)), -np.inf)

    return at(mu - epsilons - shift) - 1e-14, np.minimum(at(mu - epsilons + shift) + 1e-14, 0.0)


@np.errstate(all="ignore")
def _by_tails(pair: Pair, epsilons: Array) -> tuple[Array, Array]:
    """By the two tails; where Q's has left the floating-point range by P's alone, at eps and above."""
    lower, upper = np.full(epsilons.shape, -np.inf), np.zeros(epsilons.shape)
    for k, epsilon in enumerate(epsilons):
        # the edge is good to 4 ulp: delta is taken a little to either side
        shift = 4 * _UNIT * max(1e-3, abs(float(epsilon)))
        upper[k] = _difference(pair, float(epsilon) - shift, more=True)
        lower[k] = _difference(pair, float(epsilon) + shift, more=False)
    return lower, np.minimum(upper, 0.0)


def _difference(pair: Pair, epsilon: float, *, more: bool) -> float:
    edges = np.array([epsilon])
    p, q = pair.masses(edges)
    unsure = doubts(pair, p, q, edges)
    p, q = unsure.more(p, q) if more else unsure.less(p, q)
    if p[1] <= 0:
        return -math.inf
    log_p, log_q = math.log(p[1]), math.log(q[1]) if q[1] > 0 else -math.inf
    if q[1] < 1e-290 and not more:
        return -math.inf
    gap = min(epsilon + log_q - log_p, 0.0)
    share = -math.expm1(gap) + (8 if more else -8) * 2.0**-53 * (2 + abs(epsilon) + abs(log_q) + abs(log_p))
    return log_p + math.log(share) if share > 0 else -math.inf


@np.errstate(all="ignore")
def _projected(pair: ProjectedPair, epsilons: Array) -> tuple[Array, Array]:
    """The mean over z of Phi(z/2 - eps/z) - e^eps Phi(-z/2 - eps/z), each good to a few ulp and what it loses.

    What the arguments are off counts by the slope of log Phi at a, less than 1 + |a| below 0 and than e^{-a^2/2} above.
    """
    lower, upper = np.full(epsilons.shape, -np.inf), np.zeros(epsilons.shape)
    decades = decade(epsilons)
    nodes = {power: pair.nodes(10.0**power) for power in np.unique(decades)}
    for k, epsilon in enumerate(epsilons):
        z, weight = nodes[decades[k]]
        # Phi(z/2 - eps/z) is 0 to the last bit, e^-800, on the left of the first, and 1 on the right of the last; there
        # the other one is e^-800 of it
        ends = np.searchsorted(z, math.hypot(_CERTAIN, math.sqrt(2 * epsilon)) + np.array([-_CERTAIN, _CERTAIN]))
        beyond = float(weight[ends[1] :].sum())
        z, weight = z[ends[0] : ends[1]], weight[ends[0] : ends[1]]
        ratio = epsilon / z
        first, second = log_ndtr(z / 2 - ratio), epsilon + log_ndtr(-z / 2 - ratio)
        off = _UNIT * (ratio + z)
        least = z / 2 - ratio - off
        slope = np.where(least > 0, np.exp(-0.5 * np.maximum(least, 0.0) ** 2), 1 - least)
        first_doubt = np.exp(first) * (_UNIT * (8 + np.abs(first)) + off * slope)
        second_doubt = np.exp(second) * (_UNIT * (8 + np.abs(second) + epsilon) + off * (1 + z / 2 + ratio + off))
        share = -np.expm1(np.minimum(second - first, 0.0))
        terms = np.exp(first) * weight
        total = float((terms * share).sum()) + beyond
        unsure = float(weight @ (first_doubt + second_doubt)) + 8 * _UNIT * beyond
        accuracy = float(pair.accuracy(np.array([epsilon]))[0]) + abs(math.log(max(total, 1e-300)))
        unsure += total * _UNIT * accuracy + pair.depth.missed
        lower[k] = math.log(total - unsure) if total > unsure else -math.inf
        upper[k] = math.log(total + unsure)
        if total < _FAINT and pair.deep and epsilon > 0:
            lower[k], upper[k] = pair.log_delta(float(epsilon))
    return lower, np.minimum(upper, 0.0)
