"""A composition's curve for those who ask often: certified log delta at any epsilons, from lines that are kept.

A contour integral set up at one epsilon is sharp at those nearby too (makers.py).  So what was set up is kept, and
asked first; a new one is set up only where none of them is sharp.  A direction whose Chernoff bound lies below what the
other has already isn't computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hush.accounting.contours.crossing import Curve
from hush.accounting.grouping.makers import DEEP as _DEEP
from hush.accounting.grouping.makers import Binned, Maker, share, width_at
from hush.accounting.pairs.losses import Array
from hush.accounting.tails.cells import Steps

Places = NDArray[np.intp]

_LINES = 40  # that are set up for one question
_CLOSE = 0.04  # as parts of epsilon: what is asked within it gets one line
_ALIKE = 0.2  # log deltas that are no further apart share a line too
_TOGETHER = 24  # epsilons asked of a line at once
_NEAREST = 6  # lines that are kept, asked for one epsilon
_USELESS = 0.1  # of log delta, or of 100: known no better
_FARTHER = 3.0  # times as far: where a bound that costs little serves
_FURTHEST = 8.0  # times as far, where lines serve as much
_MOSTLY = 0.7  # of those a line was set up for: if they are left, lines are sharp just where they are set up
_FAILED = 2  # lines so close that told next to nothing
_SAME = 0.003  # where a new one would say the same
_ALMOST = 1.2  # times as wide as a line is at its own place
_TELLING = 0.02  # of log delta: lines that are no wider
_PLACES = 60  # of a whole curve, at which a rough look is had
_REACH = 0.9  # and where a line that is kept may be sharp


@dataclass(frozen=True)
class Kept:
    """A line that was set up: where, for which log delta, how sharp it was to be, and how wide it is."""

    at: float
    size: float
    tolerance: float
    curve: Curve
    width: float = 0.0

    def knows(self, at: float, size: float, tolerance: float, largest: float) -> bool:
        """Whether another one, set up there, would hardly say more."""
        close = abs(at - self.at) <= _SAME * min(self.at, 10 * abs(largest - self.at))
        close &= abs(size - self.size) <= 1 + _SAME * abs(self.size)
        return close and self.tolerance <= 1.01 * tolerance


@dataclass
class Asked:
    """The larger of all directions."""

    makers: Sequence[Maker]
    left: float = math.inf
    """So many lines are set up in all."""
    patience: int = 3
    """So many lines that tell next to nothing, and no more are set up: the next ones would be as bad."""
    kept: list[list[Kept]] = field(default_factory=list)
    blunt: list[list[float]] = field(default_factory=list)
    """Where lines told next to nothing: after two of them, others nearby won't tell more."""

    def __post_init__(self) -> None:
        self.kept, self.blunt = [[] for _ in self.makers], [[] for _ in self.makers]

    @np.errstate(all="ignore")
    def __call__(self, epsilons: Array, sizes: Array, tolerance: float | Array) -> tuple[Array, Array]:
        """Certified bounds on log delta at ascending epsilons >= 0, where it is about as large as `sizes` say.

        These are those of the first direction, or one row for each; and so are tolerances, where they vary.
        As wide as the tolerance says, as a share of log delta, or of 1, where that can be had.
        """
        lower, upper = np.full(epsilons.shape, -np.inf), np.full(epsilons.shape, -np.inf)
        for k, (maker, kept, blunt) in enumerate(zip(self.makers, self.kept, self.blunt, strict=True)):
            same = (epsilons == 0) & (k > 0)  # delta(0) is the same in both directions
            own, wanted = (np.broadcast_to(row, (len(self.makers), epsilons.size))[k] for row in (sizes, tolerance))
            enough = np.where(same & (upper - lower <= wanted), np.inf, lower)
            low, high = self._one(maker, kept, blunt, epsilons, own, enough, wanted)
            lower, upper = np.fmax(lower, low), np.where(same, np.minimum(upper, high), np.maximum(upper, high))
        return np.minimum(lower, upper), np.maximum(lower, upper)

    def _one(
        self,
        maker: Maker,
        kept: list[Kept],
        blunt: list[float],
        epsilons: Array,
        sizes: Array,
        enough: Array,
        tolerances: Array,
    ) -> tuple[Array, Array]:
        lower, upper = maker.least(epsilons), np.zeros(epsilons.shape)
        upper[epsilons >= maker.largest] = -np.inf
        tried = np.zeros(epsilons.shape, dtype=bool)

        def is_wide() -> NDArray[np.bool_]:
            wanted = np.maximum(tolerances * np.clip(-upper, 1.0, _DEEP), _to_be_had(kept, epsilons, tolerances))
            return ~(upper - lower <= wanted) & (upper > enough)

        def waiting() -> Places:
            return np.flatnonzero(is_wide() & ~tried)

        def ask(curve: Curve, at: float, where: Places) -> None:
            # outwards: where none of some is sharp any more, none further off is
            outwards = where[np.argsort(np.abs(epsilons[where] - at), kind="stable")]
            for some in np.array_split(outwards, -(-outwards.size // _TOGETHER)) if where.size else ():
                some = np.sort(some)  # curves are asked at ascending epsilons
                low, high = curve(epsilons[some])
                lower[some], upper[some] = np.fmax(lower[some], low), np.fmin(upper[some], high)
                # delta falls: a lower bound holds to the left as well, an upper bound to the right
                lower[:], upper[:] = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)
                if is_wide()[some].all():
                    break

        # those nearby first, and no more than a few: each costs a sum over its nodes
        nearest = np.argsort(np.abs(np.subtract.outer(epsilons, [line.at for line in kept])), axis=1, kind="stable")
        for rank in range(min(_NEAREST, len(kept))):
            where = waiting()
            for k in np.unique(nearest[where, rank]):
                line, own = kept[k], where[nearest[where, rank] == k]
                ask(line.curve, line.at, own[np.abs(epsilons[own] - line.at) <= _REACH * max(line.at, 1e-3)])
        lines, lost, further = 0, 0, 1.0
        # from the right: what is cut off beyond one epsilon is negligible at smaller ones
        while (left := waiting()).size and lines < _LINES and lost < self.patience and self.left > 0:
            last = float(epsilons[left[-1]])
            # curves bend near the end
            reach = min(last * _CLOSE * further + 1e-12, max(maker.largest - last, 0.0))
            near = left[epsilons[left] >= last - reach]
            close = np.union1d(near, left[sizes[left] < sizes[left[-1]] + _ALIKE])
            where = close[-1 if maker.one_sided else close.size // 2]
            at, size = float(epsilons[where]), float(sizes[where])
            tolerance = float(tolerances[close].min())
            tried[close] = True
            if np.isfinite(enough[close]).all():
                deep = max(size, float(enough[close].min()))
                upper[close] = np.fmin(upper[close], maker.bound(epsilons[close], at, deep))
                if np.all(upper[close] <= enough[close]):
                    continue
            if any(line.knows(at, size, tolerance, maker.largest) for line in kept):
                continue  # it would be no sharper
            if sum(abs(at - other) <= _CLOSE * at for other in blunt) >= _FAILED:
                continue
            lines, self.left = lines + 1, self.left - 1
            made = maker.curve(at, size, 0.7 * tolerance * share(size) / max(1.0, -size))
            width = math.inf if made is None else width_at(made, at)
            if useless := not width < _USELESS * max(100.0, -size):
                blunt.append(at)
            lost += useless
            if made is not None:
                kept.append(Kept(at, size, tolerance, made, width))
                ask(made, at, np.union1d(close, left[epsilons[left] >= at * (1 - _REACH) - 1e-3]))
            # where lines serve all they were set up for the next may be further apart, and where they serve but
            # their own place closer together
            tried[close] = False
            unserved = np.isin(close, waiting())
            alone = not unserved[close == where].any() and np.mean(unserved) > _MOSTLY
            tried[where if alone else near] |= further <= 1
            further = min(2 * further, _FURTHEST) if not unserved.any() else min(further / 4, 1.0) if alone else 1.0
        unknown = np.flatnonzero(is_wide() & ~(upper - lower <= _USELESS * np.clip(-upper, 1.0, 100.0)))
        _fill(maker, epsilons, sizes, unknown, lower, upper)
        return lower, upper


def _fill(maker: Maker, epsilons: Array, sizes: Array, unknown: Places, lower: Array, upper: Array) -> None:
    """Where lines told next to nothing, what costs little: a glance from below, a bound for each scale from above."""
    if not unknown.size:
        return
    lower[unknown] = np.fmax(lower[unknown], maker.glance(epsilons[unknown]))
    scales = np.floor(np.log(np.maximum(epsilons[unknown], 1e-300)) / math.log(_FARTHER))
    for some in (unknown[scales == scale] for scale in np.unique(scales)):
        at, size = float(epsilons[some[-1]]), float(sizes[some[-1]])
        upper[some] = np.fmin(upper[some], maker.bound(epsilons[some], at, size))


def _to_be_had(kept: Sequence[Kept], epsilons: Array, tolerances: Array) -> Array:
    """How wide log delta may stay: where a line was asked for no less and is as wide at its own place, others will be.

    (Of those that tell something; the nearest one says.)
    """
    some = [line for line in kept if line.width < _TELLING * share(line.size)]
    if not some:
        return np.zeros(epsilons.shape)
    places, asked, widths = (np.array([getattr(line, name) for line in some]) for name in ("at", "tolerance", "width"))
    order = np.argsort(places, kind="stable")
    middles = 0.5 * (places[order][1:] + places[order][:-1])
    nearest = order[np.searchsorted(middles, epsilons)]
    return np.where(asked[nearest] <= 1.01 * tolerances, _ALMOST * widths[nearest], 0.0)


@np.errstate(all="ignore")
def heavy_curve(ways: Sequence[Steps], epsilons: Array, least: float, most: float) -> tuple[Array, Array]:
    """A whole curve of losses with heavy tails, at many ascending epsilons >= 0.

    log delta is as wide as the `least` for delta itself to be as wide as that, but no wider than the `most`.
    """
    makers = [Binned(steps) for steps in ways]
    spread = np.append(0, np.geomspace(1, epsilons.size - 1, _PLACES))
    places = np.unique(epsilons[np.rint(spread).astype(int)])
    sizes = np.array([np.interp(epsilons, places, np.minimum(maker.rough(places), 0.0)) for maker in makers])
    widths = np.clip(least * np.exp(-sizes), least, most)
    return Asked(makers)(epsilons, sizes, widths / np.clip(-sizes, 1.0, _DEEP))
