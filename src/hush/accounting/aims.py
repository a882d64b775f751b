"""Where to look at a composition of laws: about epsilon and delta, and which losses of each law decide.

Rough laws are added up (stacked.py).  A loss l counts as far as the rest goes on from there: its share of delta(eps) is
P(l) delta_rest(eps - l), whether a total is made of many losses or of a large one.  Where there are very many, so that
no lattice tells them apart, the saddle point of what is asked says the same.  Losses far beyond epsilon count as
infinite, and so do those too rare to matter: else they would rule the moments.  All of it is rough, from models of
laws, and enters no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hush.accounting.losses import Array
from hush.accounting.outcomes import Outcomes
from hush.accounting.points import GaussianLaw, Points, Scattered
from hush.accounting.stacked import Look, look, points_of, summed
from hush.accounting.tilted import Side, saddle

_MARGIN = 12.0  # losses that far beyond epsilon may count as infinite: it costs exp(-12) of their mass
_DEVIATIONS = 8.0  # of all others together: these may take it back
_CUTS = 8  # times that losses are cut off
_RARE = 14.0  # minus the log of what is next to nothing
_LOOSE = 8.0  # log of how far Chernoff's bound may be above delta
_FEW = 400  # points of a rough law
_STILL = 0.99  # of an epsilon: no longer falling
_SIZES = -4.0, -12.0, -28.0, -60.0, -120.0, -240.0, -480.0  # log deltas that are tried
_TOLERANCE = 9e-4  # of epsilon: what is asked for
MANY = 2000
"""Steps that no lattice tells apart."""
_POINTS = 500, 1000, 4000, 9000  # of rough lattices
_SAME, _CLOSE = 0.5, 0.01  # of log delta and of epsilon: enough
_FURTHEST = 1.2e4  # epsilon that is looked for
_SMALLEST = -650.0  # log delta that is
_LEAST = 3e-3  # of what log delta may be off: losses with no more of delta decide nothing


@dataclass(frozen=True)
class Window:
    """The losses of a law that decide, from the least to the largest, and those that count as infinite."""

    low: float
    high: float
    cut: float


@dataclass(frozen=True)
class Aim:
    """About epsilon, log delta, how fast that falls there (the saddle point), and what counts of each law."""

    at: float
    size: float
    tilt: float
    windows: tuple[Window, ...]
    enough: float
    """What log delta may be off."""


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
    tilt = max((here - there) / nudge, 1e-6) if math.isfinite(there) else 10 / nudge
    enough = _TOLERANCE * max(tilt * at, 1.0 if log_delta is None else 0.0)
    found = []
    for k, (law, count) in enumerate(laws):
        others = [one for j, one in enumerate(seen.powers) if j != k]
        others += [seen.single[k].times(count - 1, frame)] if count > 1 else []
        rest = points_of(summed(others, frame), frame.spacing) if others else Points(np.zeros(1), np.zeros(1))
        cut = min(seen.top, _rare(law, seen.size - _RARE - math.log(count)))
        found.append(_window(law, cut, partial(_left_to, rest, at), enough))
    return Aim(at, log_delta if log_delta is not None else seen.size, tilt, tuple(found), enough)


def _left_to(rest: Points, epsilon: float, losses: Array) -> Array:
    """Log of the rest's delta after a loss."""
    return rest.log_delta(epsilon - losses)


def _window(law: GaussianLaw | Outcomes, cut: float, share: Callable[[Array], Array], enough: float) -> Window:
    """With the log of what the rest makes of each loss."""
    if isinstance(law, GaussianLaw):
        return Window(-math.inf, math.inf, cut)
    losses = np.minimum(law.losses, cut)
    weights = law.logs + share(losses)
    sums = np.cumsum(np.exp(weights - weights.max()))
    least = _LEAST * min(enough, 1.0)
    low, high = (min(int(np.searchsorted(sums, part * sums[-1])), sums.size - 1) for part in (least, 1 - least))
    # the points of a rough law stand for all between their neighbours
    return Window(float(losses[max(low - 1, 0)]), float(losses[min(high + 1, sums.size - 1)]), cut)


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
    enough = _TOLERANCE * max(tilt * found, 1.0 if log_delta is None else 0.0)
    windows = [
        _window(_listed(law), cut, lambda losses: tilt * losses, enough)
        for (law, _), cut in zip(side.laws, cuts, strict=True)
    ]
    return Aim(found, float(np.logaddexp(value, leak)), tilt, tuple(windows), enough)


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


def thinned(losses: Array, logs: Array, infinite: float = 0.0) -> Points:
    """With few points."""
    order = np.argsort(losses, kind="stable")
    stride = -(-losses.size // _FEW)
    law = Outcomes(losses[order], logs[order], infinite)
    if stride == 1:
        return Points(law.losses, law.logs, infinite)
    return law.less(np.append(law.losses[stride - 1 :: stride], law.losses[-1]))
