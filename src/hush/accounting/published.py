"""A published Renyi curve beside other releases: upper bounds by moments.

A Renyi curve has no pair of distributions, so the whole composition goes by moments.  Releases whose moments are
infinite or have no closed form are cut: losses above a top count as infinite, and so does what a promise leaks.  What
is left, a law that reveals no less (points.py), has moments, and for every lambda > 0

    delta(eps) <= P(some loss infinite) + exp(sum of log moments - lambda eps) lambda^lambda/(1 + lambda)^(1 + lambda),

since (1 - e^(eps - l))_+ e^(-lambda l) is largest where e^(l - eps) = 1 + 1/lambda: no more is asked of the law of the
losses than that it is a measure.  Several tops are tried: a low one leaks, a high one has large moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from hush.accounting import moments
from hush.accounting.accountants import closed_moment
from hush.accounting.kinds import directions
from hush.accounting.mechanisms import Mechanism
from hush.accounting.pairs.losses import Array, Enclosed, Pair
from hush.accounting.pairs.points import Points, enclosing, exact
from hush.accounting.releases import Laplace, RandomisedResponse

_TOPS = (3.0, 10.0, 30.0, 100.0, 300.0, 3e3, 3e4)
_BINS = 3000
_FEW = 8  # epsilons that have the best lambda each
_ROUNDED = 1e-12  # more than what sums of so many terms lose


def epsilon(mechanism: Mechanism, delta: float) -> float:
    """An upper bound on the smallest epsilon at delta."""
    best = math.inf
    for curve, leak in _cut(mechanism):
        left = (delta - leak * (1 + _ROUNDED)) * (1 - _ROUNDED) if leak > 0 else delta
        if left > 0:
            best = min(best, moments.curve_epsilon(curve, left))
    return best


def log_delta(mechanism: Mechanism, epsilons: Array) -> Array:
    """Upper bounds on log delta."""
    best = np.zeros(epsilons.shape)
    for curve, leak in _cut(mechanism):
        log_leak = math.log(leak) + _ROUNDED if leak > 0 else -math.inf
        if epsilons.size > _FEW:
            logs = moments.curve_log_deltas(curve, epsilons)
        else:
            logs = np.array([moments.curve_log_delta(curve, float(epsilon)) for epsilon in epsilons])
        best = np.minimum(best, np.logaddexp(logs, log_leak))
    return best


def _cut(mechanism: Mechanism) -> list[tuple[moments.LogMoment, float]]:
    """Log moments of the composition, cut at one top or another, and the chance of a loss that is infinite then."""
    known, others = [], []
    for part, count in mechanism.parts():
        bounded = math.isfinite(part.largest_loss) and not isinstance(part, Laplace | RandomisedResponse)
        moment = None if bounded else closed_moment(part)  # of bounded losses there is more to know than their bound
        if moment is not None:
            known.append((moment, float(count)))
        else:
            ways = [_laws(steps[0][0]) for steps in directions(part)]
            others.append((ways, count))
    if not others:
        return [(moments.compose(known), 0.0)]
    found = []
    for k in range(len(_TOPS)):
        laws = [([way[k] for way in ways], count) for ways, count in others]
        curves = [(partial(_log_mgf, both), float(count)) for both, count in laws]
        log_finite = math.fsum(count * math.log1p(-max(law.infinite for law in both)) for both, count in laws)
        found.append((moments.compose([*known, *curves]), -math.expm1(log_finite)))
    return found


def _laws(pair: Pair) -> list[Points]:
    """Laws that reveal no less than a pair, one for each top."""
    if isinstance(pair, Enclosed):
        pair = pair.upper
    law = exact(pair)
    if isinstance(law, Points):
        return [_below(law, top) for top in _TOPS]
    places = np.geomspace(1e-8, _TOPS[-1], _BINS)
    more = enclosing(pair, np.concatenate([-places[::-1], [0.0], places]))[1]
    return [_below(more, top) for top in _TOPS]


def _below(law: Points, top: float) -> Points:
    """With losses above the top taken for infinite."""
    kept = law.losses <= top
    leak = min(law.infinite + float(np.exp(law.logs[~kept]).sum()) * (1 + _ROUNDED), 1 - 2.0**-53)
    if not kept.any():
        return Points(np.zeros(1), np.full(1, -745.0), leak)
    return Points(law.losses[kept], law.logs[kept], leak)


def _log_mgf(laws: Sequence[Points], orders: Array) -> Array:
    """The larger of both directions, rounded up."""
    logs = np.max([law.log_mgf(orders) for law in laws], axis=0)
    return np.asarray(logs + _ROUNDED * (1 + orders * max(law.largest for law in laws)))
