"""Where to look at a composition of laws: about epsilon and delta, and which losses of each law decide.

Rough laws are added up (stacked.py).  With R what the others lose, delta(eps) = E[delta_one(eps - R)] for each law: so
its own delta at x counts as far as P(R = eps - x) delta_one(x) is a share of delta, whether a total is made of many
losses or of a large one.  Where there are very many, so that no lattice tells them apart, the saddle point of what is
asked says the same.  All of it is rough, from models of laws, and enters no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.among.outcomes import Outcomes
from hush.accounting.among.stacked import Look, look
from hush.accounting.among.stacks import points_of, summed
from hush.accounting.mixed.tilted import Side, saddle
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered

_MARGIN = 12.0  # losses that far beyond epsilon may count as infinite: it costs exp(-12) of their mass
_DEVIATIONS = 8.0  # of all others together: these may take it back
_CUTS = 8  # times that losses are cut off
_RARE = 14.0  # minus the log of what is next to nothing
_LOOSE = 8.0  # log of how far Chernoff's bound may be above delta
_FEW = 400  # points of a rough law
_STILL = 0.99  # of an epsilon: no longer falling
_SIZES = -4.0, -12.0, -28.0, -60.0, -120.0, -240.0, -480.0  # log deltas that are tried
MANY = 2000
"""Steps that no lattice tells apart."""
_POINTS = 500, 1000, 4000, 9000  # of rough lattices
_SAME, _CLOSE = 0.5, 0.01  # of log delta and of epsilon: enough
_FURTHEST = 1.2e4  # epsilon that is looked for
NEAR_ONE = -1e-3
"""Log of a delta that is next to 1."""
_FLATTEST = 1e-6  # how fast log delta falls at least
_SMALLEST = -650.0  # log delta that is
_USUAL = np.linspace(0.02, 0.9, 12)  # parts of the losses' law
_HARDLY = 0.05  # of log delta: what they are worth next to 1


@dataclass(frozen=True)
class Shares:
    """What a law's own delta at epsilons >= 0 is worth: a change of its logarithm there changes log delta by so much.

    With count copies of a law that is so for each of them.
    """

    epsilons: Array
    worth: Array
    """At most 1 in all."""

    def middle(self, parts: Array) -> Array:
        """Epsilons below which there are such parts of all that it is worth."""
        order = np.argsort(self.epsilons)
        passed = np.cumsum(self.worth[order])
        return np.asarray(
            self.epsilons[order][np.minimum(np.searchsorted(passed, parts * passed[-1]), passed.size - 1)]
        )


@dataclass(frozen=True)
class Aim:
    """About epsilon, log delta, how fast that falls there (the saddle point), and what counts of each law."""

    at: float
    size: float
    tilt: float
    shares: tuple[Shares, ...]


Known = Sequence[tuple[GaussianLaw | Outcomes, int]]


@np.errstate(all="ignore")
def aim(
    laws: Sequence[tuple[Scattered | Outcomes | None, int]],
    *,
    log_delta: float | None = None,
    epsilon: float | None = None,
) -> Aim | None:
    """About where a delta or an epsilon is decided, or both; None where that can't be told."""
    known = [(_listed(law), count) for law, count in laws if law is not None]
    if len(known) < len(laws):
        return None
    found = _by_sums(known, log_delta, epsilon) if sum(count for _, count in known) <= MANY else None
    points = [(law, count) for law, count in laws if not isinstance(law, Outcomes | None)]
    return found or (_by_saddle(Side(tuple(points), above=True), log_delta, epsilon) if points else None)


def _listed(law: Scattered | Outcomes) -> GaussianLaw | Outcomes:
    if isinstance(law, GaussianLaw | Outcomes):
        return law
    assert isinstance(law, Points)
    order = np.argsort(law.losses, kind="stable")
    return Outcomes(law.losses[order], law.logs[order], law.infinite + law.beyond)


def _by_sums(laws: Known, log_delta: float | None, epsilon: float | None) -> Aim | None:
    top = _FURTHEST if epsilon is None else epsilon + _MARGIN
    seen: Look | None = None
    for points in _POINTS:
        before = seen
        seen = look(laws, top, points, log_delta=log_delta if epsilon is None else None, epsilon=epsilon or 0.0)
        if seen is None or not seen.size > _SMALLEST:
            return None
        # the last look was fine enough if this one, on a finer lattice, says the same
        if before is not None and abs(seen.size - before.size) < _SAME and seen.at > (1 - _CLOSE) * before.at:
            break
    assert seen is not None
    at, total, frame = seen.at, seen.total, seen.frame
    nudge = max(1e-3 * at, 0.1 * frame.spacing)
    here, there = (float(value) for value in total.log_delta(np.array([at, at + nudge])))
    tilt = max((here - there) / nudge, _FLATTEST) if math.isfinite(there) else 10 / nudge
    shares = []
    for k, (law, count) in enumerate(laws):
        others = [one for j, one in enumerate(seen.powers) if j != k]
        others += [seen.single[k].times(count - 1, frame)] if count > 1 else []
        rest = points_of(summed(others, frame), frame.spacing) if others else Points(np.zeros(1), np.zeros(1))
        shares.append(_shares(law, at - rest.losses, rest.logs - seen.size))
    return Aim(at, log_delta if log_delta is not None else seen.size, tilt, tuple(shares))


def _shares(law: GaussianLaw | Outcomes, at: Array, logs: Array) -> Shares:
    """Where the others leave so much to a law, each with so much of a chance (as a logarithm, less log delta)."""
    if isinstance(law, GaussianLaw):
        return Shares(np.zeros(0), np.zeros(0))
    # delta(-x) = 1 - e^-x + e^-x delta(x)
    worth = logs + _log_delta(law, np.abs(at)) + np.minimum(at, 0.0)
    return Shares(np.abs(at), np.exp(worth - max(0.0, float(np.logaddexp.reduce(worth)))))


def _log_delta(law: Outcomes, epsilons: Array) -> Array:
    """About log delta of a law at many epsilons, by sums from each of its losses on."""
    p, q = (np.logaddexp.accumulate(logs[::-1])[::-1] for logs in (law.logs, law.logs - law.losses))
    k = np.searchsorted(law.losses, epsilons, side="right")
    told, k = k < law.losses.size, np.minimum(k, law.losses.size - 1)
    logs = np.where(told, p[k] + np.log(-np.expm1(np.minimum(epsilons + q[k] - p[k], 0.0))), -np.inf)
    return np.logaddexp(logs, math.log(law.infinite)) if law.infinite > 0 else logs


def around(laws: Sequence[tuple[Scattered | Outcomes | None, int]], epsilon: float) -> Aim:
    """Where delta is next to 1, so that no loss decides more than others: all that are usual, known roughly."""
    shares = []
    for law, _ in laws:
        listed = law if law is None else _listed(law)
        usual = np.zeros(0)
        if isinstance(listed, Outcomes):
            sums = np.cumsum(np.exp(listed.logs))
            usual = np.maximum(listed.losses[np.searchsorted(sums, _USUAL * sums[-1])], 0.0)
        shares.append(Shares(usual, np.full(usual.size, _HARDLY / _USUAL.size)))
    return Aim(epsilon, 0.0, _FLATTEST, tuple(shares))


def _by_saddle(side: Side, log_delta: float | None, epsilon: float | None) -> Aim | None:
    """Which losses count is found on the way."""
    if epsilon is not None:
        if log_delta is not None:
            return _aimed(side, epsilon, log_delta, None)
        tried = [_aimed(side, epsilon, size, None) for size in _SIZES]
        best = min((one for one in tried if one is not None), key=lambda one: one.size, default=None)
        return None if best is None else _aimed(side, epsilon, best.size - _LOOSE, None) or best
    assert log_delta is not None
    at, best = saddle(side, log_delta, None)[1], None
    for _ in range(_CUTS):
        found = _aimed(side, at, log_delta, log_delta)
        if found is None:
            break
        best = found
        if found.at > _STILL * at:
            break
        at = found.at
    return best


def _aimed(side: Side, at: float, size: float, log_delta: float | None) -> Aim | None:
    """With losses cut off near an epsilon where log delta is about `size`."""
    cuts = cuts_for(side.laws, at, size)
    less = Side(
        tuple((_cut_off(law, cut), count) for (law, count), cut in zip(side.laws, cuts, strict=True)), above=True
    )
    leak, target = math.log(max(less.infinite, 1e-300)), None
    if log_delta is not None:
        if leak >= log_delta:
            return None
        target = log_delta + math.log(-math.expm1(leak - log_delta))
    tilt, found = saddle(less, target, at if log_delta is None else None)
    found = at if log_delta is None else found
    value = float(less.log_mgf(np.array([tilt]))[0]) - tilt * found - math.log(tilt * (tilt + 1))
    if not (math.isfinite(tilt) and math.isfinite(value)):
        return None
    shares = []
    for (law, _), cut in zip(side.laws, cuts, strict=True):
        listed = _listed(law)
        furthest = 0.0 if isinstance(listed, GaussianLaw) else min(cut, float(listed.losses[-1]))
        places = np.linspace(-furthest, furthest, _FEW)
        shares.append(_shares(listed, places, tilt * places + _RARE - value))
    return Aim(found, float(np.logaddexp(value, leak)), tilt, tuple(shares))


def cuts_for(laws: Sequence[tuple[Scattered | Outcomes, int]], epsilon: float, log_delta: float) -> tuple[float, ...]:
    """A loss of each that may count as infinite: far beyond epsilon, or what is beyond is nothing beside delta."""
    ruled = epsilon + _MARGIN
    far = ruled + _DEVIATIONS * math.sqrt(sum(count * _moments(law, ruled)[1] for law, count in laws))
    return tuple(min(far, _rare(law, log_delta - _RARE - math.log(count))) for law, count in laws)


def _rare(law: Scattered | Outcomes, log_mass: float) -> float:
    """A loss beyond which there is no more."""
    if not isinstance(law, Points | Outcomes):
        return math.inf
    order = np.argsort(-law.losses)
    more = np.logaddexp.accumulate(law.logs[order]) > log_mass
    k = int(np.argmax(more)) if more[-1] else more.size - 1
    return float(law.losses[order][k - 1]) if k > 0 else math.inf


def _moments(law: Scattered | Outcomes, most: float) -> tuple[float, float]:
    """About mean and variance of losses, those beyond taken for that."""
    if isinstance(law, GaussianLaw):
        return 0.5 * law.squared, law.squared
    assert isinstance(law, Points | Outcomes)
    masses, losses = np.append(np.exp(law.logs), law.infinite), np.append(np.minimum(law.losses, most), most)
    masses = masses / masses.sum()
    mean = float(masses @ losses)
    return mean, float(masses @ (losses - mean) ** 2)


def _cut_off(law: Scattered, cut: float) -> Scattered:
    if not isinstance(law, Points) or not (law.losses > cut).any():
        return law
    kept = law.losses <= cut
    infinite = law.infinite + float(np.exp(law.logs[~kept]).sum())
    if not kept.any():
        return Points(np.zeros(1), np.full(1, -745.0), infinite)
    return Points(law.losses[kept], law.logs[kept], infinite)


def few_points(losses: Array, logs: Array, infinite: float = 0.0) -> Points:
    """About a law, at few points."""
    order = np.argsort(losses, kind="stable")
    stride = -(-losses.size // _FEW)
    law = Outcomes(losses[order], logs[order], infinite)
    if stride == 1:
        return Points(law.losses, law.logs, infinite)
    return law.less(np.append(law.losses[stride - 1 :: stride], law.losses[-1]))
