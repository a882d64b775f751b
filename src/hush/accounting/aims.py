"""Where to look at a composition of laws: the saddle point of what is asked, and which losses count.

Losses far beyond epsilon count as infinite, and so do those too rare to matter: else they would rule the moments.  All
of it is rough, from models of laws, and enters no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hush.accounting.losses import Array
from hush.accounting.outcomes import Outcomes
from hush.accounting.points import GaussianLaw, Points, Scattered
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


@dataclass(frozen=True)
class Aim:
    """About the saddle point of what is asked, epsilon, log delta, and losses of each law that count as infinite."""

    tilt: float
    at: float
    size: float
    cuts: tuple[float, ...]
    mean: float
    """Of the total."""
    enough: float
    """What log delta may be off."""

    def alone(self, law: Points, count: int, high: float) -> bool:
        """Whether one of so many losses, further out than `high`, may well take the total beyond epsilon."""
        place = self.at - self.mean + _moments(law, self.at)[0]
        beyond = law.losses > place
        if not place > high or not beyond.any():
            return False
        return bool(math.log(count) + np.logaddexp.reduce(law.logs[beyond]) > self.size - _RARE)


@np.errstate(all="ignore")
def aim(
    laws: Sequence[tuple[Scattered | None, int]], *, log_delta: float | None = None, epsilon: float | None = None
) -> Aim | None:
    """About the saddle point of a delta or an epsilon, or of both; None where none can be told.

    Which losses count is found on the way.
    """
    side = Side(tuple((law, count) for law, count in laws if law is not None), above=True)
    if len(side.laws) < len(laws):
        return None
    if epsilon is not None:
        if log_delta is not None:
            return _aimed(side, epsilon, log_delta, None)
        tried = [_aimed(side, epsilon, size, None) for size in _SIZES]
        best = min((one for one in tried if one is not None), key=lambda one: one.size, default=None)
        return None if best is None else replace(best, cuts=cuts_for(side.laws, epsilon, best.size - _LOOSE))
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
    mean = sum(count * _moments(law, cut)[0] for (law, count), cut in zip(side.laws, cuts, strict=True))
    enough = _TOLERANCE * max(tilt * found, 1.0 if log_delta is None else 0.0)
    return Aim(tilt, found, float(np.logaddexp(value, leak)), cuts, mean, enough)


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
