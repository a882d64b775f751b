"""How large the transforms of laws are on a vertical line, from above, without all of their points.

Where many steps add up, the integrand has decayed after a few nodes, long before the kernel that averages it ends the
sum.  To leave out the nodes between, it is enough to know that the transform is small there.  So points of a law,
tilted by e^{cL}, are gathered at the mean of those close to each other: with V the variance that is lost,

    |E[e^{itL}]| <= |sum over the gathered points of w e^{itl}| + t^2 V/2,

because the first order cancels within each cell.  And with m the mean and d the deviation of L,

    |d/dt E[e^{it(L-m)}]| = |E[(L-m) (e^{it(L-m)} - 1)]| <= min(d, t d^2),

so that a bound at one height holds, with that more, for all heights nearby: while t d < 1, for all within a part of t.
All kinds of steps are looked at together, their points in one row; far out some of them are enough, since no factor of
the transform exceeds 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush.accounting.contours.heights import Heights
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, on_lines

Places = NDArray[np.intp]

_TURN = 1.5  # the length of a cell, in parts of 1/t where t is largest
_PART = 0.2  # and of most of the law, so that the variance lost is a small part of all
FEW = 4  # kinds of steps that stand for all of them


@dataclass(frozen=True)
class Gathered:
    """Laws at points on the line Re s = c, with fewer of them."""

    points: Array
    """Losses, less the mean of their law, one law after the other."""
    masses: Array
    starts: Places
    deviations: Array
    """Of the laws, tilted."""
    lost: Array
    """The variance lost; and what rounding adds at height 0, and with the height."""
    doubts: Array
    turning: Array

    def near(self, heights: Heights) -> tuple[Array, Array]:
        """Bounds on log |E[e^{sL}]/E[e^{cL}]| at some heights, and within their stretches: a row for each law."""
        middles, reach = heights.middles, heights.reach
        sums = heights.sizes(self.points, self.masses, self.starts).T
        known = sums + self._errors(middles) + heights.rounding
        most = np.minimum(self.deviations[:, None], np.multiply.outer(self.deviations**2, middles + reach))
        here, around = (np.log(np.clip(found, 1e-300, 1.0)) for found in (known, known + reach * most))
        return here, around

    def at(self, spacing: float, count: int) -> Array:
        """The same at each of many nodes c + i spacing j, for less."""
        each = (np.split(part, self.starts[1:]) for part in (self.points, np.log(self.masses)))
        laws = [Points(points, logs) for points, logs in zip(*each, strict=True)]
        values, errors, _ = on_lines(laws, 0.0, spacing, count)
        known = self._errors(np.asarray(spacing * np.arange(count), dtype=np.float64)) + np.abs(values) + errors
        return np.log(np.clip(known, 1e-300, 1.0))

    def _errors(self, heights: Array) -> Array:
        """What gathering and rounding may have taken from the transforms."""
        rounded = self.doubts[:, None] + np.multiply.outer(self.turning, heights)
        return np.asarray(rounded + 0.5 * np.multiply.outer(self.lost, heights**2))


def gathered(laws: Sequence[Points], c: float, height: float) -> Gathered:
    """For heights up to that, so that the transforms are about as large as they were."""
    sizes = np.array([law.losses.size for law in laws])
    begin = np.cumsum(sizes) - sizes
    kind = np.repeat(np.arange(sizes.size), sizes)
    losses, logs = (np.concatenate(rows) for rows in zip(*((law.losses, law.logs) for law in laws), strict=True))
    order = np.lexsort((losses, kind))
    losses, logs = losses[order], logs[order]

    def totals(parts: Array) -> Array:
        return np.asarray(np.add.reduceat(parts, begin))

    exponents = c * losses + logs
    weights = np.exp(exponents - np.maximum.reduceat(exponents, begin)[kind])
    weights /= totals(weights)[kind]
    centred = losses - totals(weights * losses)[kind]
    # what weights are off counts for as little as the squares of losses, of which it may be a part
    squares = totals(weights * centred**2) + 1e-12 * totals(weights * losses**2)
    most = np.cumsum(weights)
    below, above = (
        losses[np.clip(np.searchsorted(most, np.arange(sizes.size) + share), begin, begin + sizes - 1)]
        for share in (0.1, 0.9)
    )
    length = np.where(above > below, np.minimum(_TURN / height, _PART * (above - below)), _TURN / height)
    cell = np.floor(centred / length[kind])
    first = np.append(True, (cell[1:] != cell[:-1]) | (kind[1:] != kind[:-1]))
    cells = np.flatnonzero(first)
    masses = np.add.reduceat(weights, cells)
    means = np.add.reduceat(weights * centred, cells) / np.where(masses > 0, masses, 1.0)
    lost = totals(weights * (centred - means[np.cumsum(first) - 1]) ** 2)
    # weights are off by a few units in the last place of their exponents, means by some of their own, sums by n units
    doubts = 2.0**-48 * (4 + totals(weights * (np.abs(c * losses) + np.abs(logs)))) + 4 * UNIT_ROUNDOFF * sizes
    turning = 2.0**-46 * totals(weights * np.abs(losses)) * (1 + sizes / 64)
    kept = masses > 0
    starts = np.searchsorted(kind[cells][kept], np.arange(sizes.size)).astype(np.intp)
    deviations = np.sqrt(squares) * (1 + 1e-6)
    return Gathered(means[kept], masses[kept], starts, deviations, lost * (1 + 1e-9), doubts, turning)


@dataclass(frozen=True)
class Crowd:
    """Steps of several kinds on the line Re s = c, each kind with one law or with several of which the largest counts.

    With one to spare: the transform has decayed by all steps' factors but one.
    """

    kinds: tuple[tuple[Scattered, ...], ...]
    counts: Array
    c: float
    spare: bool = False

    def some(self, height: float) -> Crowd:
        """The few kinds that have most of the variance; the others' factors are at most 1."""
        chosen = [k for k, laws in enumerate(self.kinds) if isinstance(laws[0], Points)]
        if len(self.kinds) <= FEW or not chosen:
            return self
        firsts = [law for k in chosen if isinstance(law := self.kinds[k][0], Points)]
        variances = self.counts[chosen] * gathered(firsts, self.c, height).deviations ** 2
        kept = sorted(chosen[k] for k in np.argsort(-variances)[:FEW])
        return Crowd(tuple(self.kinds[k] for k in kept), self.counts[kept], self.c, self.spare)

    def seen(self, height: float) -> Look:
        """At heights up to that."""
        laws = [law for one in self.kinds for law in one]
        at_points = [law for law in laws if isinstance(law, Points)]
        return Look(self, tuple(laws), gathered(at_points, self.c, height) if at_points else None)


@dataclass(frozen=True)
class Look:
    """Bounds on log |exp(Lambda(s) - Lambda(c))|, and what they take."""

    crowd: Crowd
    laws: tuple[Scattered, ...]
    known: Gathered | None

    @property
    def points(self) -> int:
        """That a height takes."""
        others = sum(law.size for law in self.laws if not isinstance(law, Points))
        return others + (self.known.points.size if self.known else 0)

    @property
    def deviation(self) -> float:
        """About that of one step's loss, tilted: of the kinds at points, root mean square."""
        if self.known is None:
            return 0.0
        steps = np.repeat(self.crowd.counts, [len(one) for one in self.crowd.kinds])[self._rows]
        return float(np.sqrt(steps @ self.known.deviations**2 / steps.sum()))

    @property
    def _rows(self) -> Places:
        return np.array([k for k, law in enumerate(self.laws) if isinstance(law, Points)], dtype=np.intp)

    def near(self, heights: Heights) -> tuple[Array, Array]:
        """At some heights, and within their stretches."""
        nothing = np.zeros((0, heights.count))
        known = self.known.near(heights) if self.known else (nothing, nothing)
        lowest = heights.middles, np.maximum(heights.middles - heights.reach, 0.0)
        here, around = (self._with_others(at, rows) for at, rows in zip(lowest, known, strict=True))
        return here, around

    def _with_others(self, heights: Array, rows: Array) -> Array:
        logs = np.zeros((len(self.laws), heights.size))
        for k, law in enumerate(self.laws):
            if isinstance(law, GaussianLaw):
                logs[k] = -0.5 * law.squared * heights**2 * (1 - 1e-12)
        logs[self._rows] = rows
        return self._together(logs)

    def at(self, spacing: float, count: int) -> Array:
        """At so many nodes of a spacing."""
        logs = np.zeros((len(self.laws), count))
        for k, law in enumerate(self.laws):
            if not isinstance(law, Points):
                values, errors, _ = law.on_line(self.crowd.c, spacing, count)
                logs[k] = np.log(np.clip(np.abs(values) + errors, 1e-300, 1.0))
        if self.known:
            logs[self._rows] = self.known.at(spacing, count)
        return self._together(logs)

    def _together(self, rows: Array) -> Array:
        starts = np.cumsum([0, *(len(one) for one in self.crowd.kinds)])[:-1]
        logs = np.maximum.reduceat(rows, starts, axis=0)
        return np.asarray(self.crowd.counts @ logs - (logs.min(axis=0) if self.crowd.spare else 0.0))
