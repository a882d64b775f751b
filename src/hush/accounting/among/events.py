"""Groups among other groups where delta is next to 1, or epsilon far beyond the limit: one event of each group tells.

If a group's delta(x) is at least d, some event has P - e^x Q >= d: a chance of at least d with the records, and of at
most q = (1 - d) e^-x without.  Its trade-off function being convex, the group reveals no less than two outcomes with
these chances, of losses log(d/q) and log((1-d)/(1-q)).  So a bound on each group's delta at one x, far below what it
mostly loses, is enough, which is had at a glance (rounds.py), and sums of two losses each are added up on a lattice
(stacked.py).  Groups and copies that aren't needed are left out, which tells no more.

Where to ask is chosen by rough laws, and enters no bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hush.accounting.among import stacked
from hush.accounting.among.outcomes import Outcomes
from hush.accounting.among.parts import Law, Part
from hush.accounting.grouping import grouped
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points

_MISSED = np.geomspace(1e-8, 0.9, 25)  # chances that a group loses less than its x
_SPARE = 20.0  # that total losses are beyond epsilon
_ENOUGH = 1.02, 1.1, 1.3, 2.0, 1e3  # times that: the further below what is mostly lost, the less it takes
_DEVIATIONS = 6.0  # of what is known: as far as it hardly ever is from its mean
_SHARE, _ROUGHLY = 0.5, 0.01  # of what log delta may be short of 0: for each; and, at first, as it is
_LEAST = -600.0  # log of a delta that counts
_MOST = 500  # copies
_SURELY = 1e-12  # of a delta: closer to 1 none has to be


@dataclass(frozen=True)
class Asked:
    """A group, copies of it, and where to ask for its delta."""

    part: Part
    copies: int
    epsilon: float


def log_delta_above(parts: Sequence[Part], epsilon: float, short: float) -> float:
    """A lower bound on log delta, -short or more where that is had at little cost."""
    known = [(law, min(part.count, _MOST)) for part in parts if (law := part.less) is not None]
    needed = max(epsilon + _SPARE - _surely(known), 0.0)
    best = -math.inf
    for asked in _choices(parts, needed, short):
        sharp = _SHARE * min(short / sum(one.copies for one in asked), 1.0)
        for tolerance in sorted({max(sharp, _ROUGHLY), sharp}, reverse=True):  # rough looks often tell more than enough
            laws: list[tuple[Law, int]] = [*known]
            for one in asked:
                found = grouped.log_delta(one.part.group, one.epsilon, tolerance)[0]
                laws.append((two_outcomes(one.epsilon, found), one.copies))
            best = max(best, stacked.log_delta(laws, laws, epsilon, short)[0])
            if best > -short:
                return best
    return best


def two_outcomes(epsilon: float, log_delta: float) -> Outcomes:
    """What reveals no more than anything whose delta at an epsilon is so large."""
    low = min(log_delta - _SURELY * (1 + abs(log_delta)), -_SURELY)
    rest = math.log(-math.expm1(low))  # 1 - d
    log_q = rest - epsilon
    if log_q > low - _SURELY or low < _LEAST:  # it tells nothing
        return Outcomes(np.zeros(1), np.zeros(1), 0.0)
    losses = rest - math.log(-math.expm1(min(log_q, -1e-300))), low - log_q
    return Outcomes(np.array(losses), np.array([rest, low]), 0.0)


def _choices(parts: Sequence[Part], needed: float, short: float) -> list[list[Asked]]:
    """Groups to ask, those first that lose most; none where they aren't seen to lose so much together."""
    beyond = [part for part in parts if part.known is None and part.law is None]
    if beyond:  # one of them is enough, its copies or alone
        part = beyond[0]
        return [[Asked(part, n, needed / n)] for n in sorted({1, min(part.count, _MOST)}, reverse=True)]
    unknown = [(part, _quantiles(part)) for part in parts if part.known is None]
    for enough, k in itertools.product(_ENOUGH, range(_MISSED.size)):
        asked = [Asked(part, min(part.count, _MOST), float(x[k])) for part, x in unknown if x[k] > 0]
        asked.sort(key=lambda one: -one.copies * one.epsilon)
        lost = np.cumsum([one.copies * one.epsilon for one in asked])
        asked = asked[: int(np.searchsorted(lost, enough * needed)) + 1]
        if asked:
            times = min(enough * needed / float(lost[len(asked) - 1]), 1.0)
            asked = [replace(one, epsilon=times * one.epsilon) for one in asked]
            if _failed([(one.epsilon, one.copies) for one in asked], float(_MISSED[k]), needed) < -math.expm1(-short):
                return [asked]
    return []


def _failed(losses: Sequence[tuple[float, int]], missed: float, needed: float) -> float:
    """About the chance that losses, each missed with such a chance, add up to less: as in Bernstein's inequality."""
    steps, total = sum(n for _, n in losses), sum(n * x for x, n in losses)
    gap = total * (1 - missed) + steps * missed * math.log(missed) - needed
    spread = missed * sum(n * x**2 for x, n in losses) + gap * max(x for x, _ in losses) / 3
    failed = math.exp(-0.5 * gap**2 / spread) if gap > 0 else 1.0
    return min(failed, steps * missed) if total > needed else failed


def _surely(laws: Sequence[tuple[Law, int]]) -> float:
    """About the least that they lose together, but for a small chance."""
    moments = [(_moments(law), count) for law, count in laws]
    mean, variance = (sum(count * both[k] for both, count in moments) for k in (0, 1))
    return max(mean - _DEVIATIONS * math.sqrt(variance), 0.0)


def _quantiles(part: Part) -> Array:
    """About the losses that a group exceeds but for such chances."""
    law = part.law
    assert isinstance(law, Points)
    order = np.argsort(law.losses)
    sums = np.cumsum(np.exp(law.logs[order]))
    return np.asarray(law.losses[order][np.minimum(np.searchsorted(sums, _MISSED), order.size - 1)])


def _moments(law: Law) -> tuple[float, float]:
    if isinstance(law, GaussianLaw):
        return 0.5 * law.squared, law.squared
    masses = np.exp(law.logs)
    mean = float(masses @ law.losses)
    return mean, float(masses @ (law.losses - mean) ** 2)
