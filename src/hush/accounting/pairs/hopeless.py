"""Compositions whose epsilon is beyond 1e4, or whose delta is next to 1, seen at a glance.

With the mean m and the variance v of the total loss under P, Chebyshev's inequality gives, for m > eps + y, y > 0,

    delta(eps) >= (1 - e^-y) P(L > eps + y) >= (1 - e^-y) (1 - v / (m - eps - y)^2).

Mean and variance are those of laws that reveal less: the losses binned roughly, each bin seen as one outcome.  Very
near 1 another bound is sharper, for any 0 < t < 1:

    1 - delta(eps) = sum of min(P, e^eps Q) <= e^{t eps} sum P^{1-t} Q^t,

a product over the steps, and by Hoelder's inequality no smaller where outcomes are binned.  Where one loss above
eps + y is enough, with T steps and A that some step has one, Q(A) <= T e^{-eps-y} max P_i, so that

    delta(eps) >= P(A) - e^eps Q(A) >= (1 - T e^-y) P(A).

And delta is never below the chance of an infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.lattices.laws import UNDERFLOW
from hush.accounting.pairs.doubts import Doubts, doubts
from hush.accounting.pairs.glances import glance
from hush.accounting.pairs.losses import Array, Enclosed, GaussianPair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.projection import ProjectedPair
from hush.accounting.pairs.standing import few_of

_PLACES = np.geomspace(1e-6, 3e4, 60)
_SHARES = 1 / (1 + np.exp(-np.linspace(-4.0, 4.0, 33)))
_SMALL = -3.0  # log of 1 - delta
_SPARES = np.array([1.0, 5.0, 20.0])
_EDGES = np.concatenate([-_PLACES[::-1], [0.0], _PLACES])


def least_delta(steps: Sequence[tuple[Pair, int]]) -> float:
    """The chance of an infinite loss, from below: delta at every epsilon is at least that."""
    laws = [(pair.lower if isinstance(pair, Enclosed) else pair, count) for pair, count in steps]
    log_finite = math.fsum(count * math.log1p(-min(law.infinite, 1 - 2.0**-53)) for law, count in laws)
    return -math.expm1(log_finite) * (1 - 1e-12)


def most_certain(steps: Sequence[tuple[Pair, int]]) -> float:
    """The same from above: what delta falls to as epsilon grows."""
    log_finite = math.fsum(count * math.log1p(-min(pair.infinite, 1 - 2.0**-53)) for pair, count in steps)
    return min(-math.expm1(log_finite) * (1 + 1e-12), 1.0)


@np.errstate(all="ignore")
def surely_beyond(steps: Sequence[tuple[Pair, int]], log_delta: float) -> bool:
    """Whether delta(1e4) > exp(log_delta) can be seen without composing anything."""
    if least_delta(steps) > math.exp(log_delta):
        return True
    # a glance at a few of them costs less, and decides nothing else
    few = [(glance(pair), count) for pair, count in few_of(steps).counted]
    if any(isinstance(_released(pair), ProjectedPair) for pair, _ in steps):
        if _seen(few, EPSILON_LIMIT, doubted=False) <= log_delta - 1:
            return False
    elif len(few) < len(steps) and log_delta_above(few, EPSILON_LIMIT) <= log_delta - 1:
        return False
    return log_delta_above(steps, EPSILON_LIMIT) > log_delta


@np.errstate(all="ignore")
def log_delta_above(steps: Sequence[tuple[Pair, int]], epsilon: float) -> float:
    """A lower bound on log delta, seen without composing anything: it tells where delta is next to 1."""
    short = log_short_of_one(steps, epsilon)
    near_one = math.log1p(-math.exp(short)) if short < 0 else -math.inf
    return max(_seen(steps, epsilon, doubted=True), near_one, _log_one_is_enough(steps, epsilon))


def _log_one_is_enough(steps: Sequence[tuple[Pair, int]], epsilon: float) -> float:
    """log of (1 - e^-50) times the chance that some step alone loses 50 and log T more than epsilon, from below."""
    edge = np.array([epsilon + 50 + math.log(sum(count for _, count in steps))])
    log_none = 0.0
    for pair, count in steps:
        lower = pair.lower if isinstance(pair, Enclosed) else pair
        p, q = lower.masses(edge)
        p, _ = doubts(lower, p, q, edge).less(p, q)
        log_none += count * math.log1p(-min(max(float(p[-1]), 0.0), 1 - 2.0**-53))
    return math.log(-math.expm1(log_none)) - 1e-9 if log_none < 0 else -math.inf


@np.errstate(all="ignore")
def log_short_of_one(steps: Sequence[tuple[Pair, int]], epsilon: float) -> float:
    """log of an upper bound on 1 - delta, seen without composing anything; 0 where a glance says that it is large."""
    few = [(glance(pair), count) for pair, count in few_of(steps).counted]
    if len(few) < len(steps) or any(isinstance(_released(pair), ProjectedPair) for pair, _ in steps):
        return 0.0 if _log_affinity(few, epsilon) > _SMALL else _log_affinity(steps, epsilon)
    return _log_affinity(steps, epsilon)


def _released(pair: Pair) -> Pair:
    """What a sample is taken for."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    return sample.inner if isinstance(sample, Poisson | Uniform) else sample


@lru_cache(maxsize=512)
def _bins(only: tuple[Pair]) -> tuple[Array, Array, Doubts]:
    """Masses of rough bins and how far they may be off: kept, since every glance looks at them."""
    (pair,) = only
    p, q = pair.masses(_EDGES)
    return p, q, doubts(pair, p, q, _EDGES)


def _log_affinity(steps: Sequence[tuple[Pair, int]], epsilon: float) -> float:
    """log of the least e^{t eps} sum P^{1-t} Q^t, from above."""
    total = _SHARES * epsilon
    for pair, count in steps:
        lower = pair.lower if isinstance(pair, Enclosed) else pair
        if isinstance(lower, GaussianPair):
            total -= count * _SHARES * (1 - _SHARES) * lower.mu**2 / 2 * (1 - 1e-12)
            continue
        p, q, unsure = _bins((lower,))
        p, q = ((m + own) * (1 + unsure.common) for m, own in ((p, unsure.own_p), (q, unsure.own_q)))
        logs = [np.log(np.maximum(masses, UNDERFLOW))[:, None] for masses in (p, q)]
        total += count * (np.log(np.exp((1 - _SHARES) * logs[0] + _SHARES * logs[1]).sum(axis=0)) + 1e-12)
    return float(np.min(total + 1e-12 * np.abs(total))) + 1e-9


def _seen(steps: Sequence[tuple[Pair, int]], epsilon: float, doubted: bool) -> float:
    """log of the bound on delta; with masses as far off as they may be, or as they are."""
    mean = variance = log_kept = 0.0
    for pair, count in steps:
        lower = pair.lower if isinstance(pair, Enclosed) else pair
        if isinstance(lower, GaussianPair):
            mean, variance = mean + count * lower.mu**2 / 2, variance + count * lower.mu**2
            continue
        p, q, unsure = _bins((lower,))
        p, q = unsure.less(p, q) if doubted else (p, q)
        p = np.append(p[:-1], max(0.0, p[-1] - lower.infinite))  # what has no loss is left out
        known = (p > 0) & (q > UNDERFLOW)
        p, losses = p[known], np.log(p[known]) - np.log(q[known])
        kept = float(p.sum())
        if kept <= 0:
            return -math.inf
        centre = float(p @ losses) / kept
        mean += count * centre
        variance += count * float(p @ (losses - centre) ** 2) / kept
        log_kept += count * min(math.log(kept), 0.0)
    gap = mean * (1 - 1e-9) - epsilon
    spares = np.minimum(_SPARES, 0.5 * gap)
    seen = np.log(-np.expm1(-spares)) + np.log(np.maximum(1 - 1.01 * variance / (gap - spares) ** 2, 0.0))
    return log_kept + float(seen.max()) - 1e-12 if gap > 0 else -math.inf
