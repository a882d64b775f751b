"""How large the transforms of laws are on a vertical line, from above, without all of their points.

Where many steps add up, the integrand has decayed after a few nodes, long before the kernel that averages it ends the
sum.  To leave out the nodes between, it is enough to know that the transform is small there.  So points of a law,
tilted by e^{cL}, are gathered at the mean of those close to each other: with V the variance that is lost,

    |E[e^{itL}]| <= |sum over the gathered points of w e^{itl}| + t^2 V/2,

because the first order cancels within each cell.  And with m the mean and d the deviation of L,

    |d/dt E[e^{it(L-m)}]| = |E[(L-m) (e^{it(L-m)} - 1)]| <= min(d, t d^2),

so that a bound at one height holds, with that more, for all heights nearby: while t d < 1, for all within a part of t.
All kinds of steps are looked at together, their points in one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush.accounting.gaussian.transform import UNIT_ROUNDOFF
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered

_TURN = 1.5  # the length of a cell, in parts of 1/t where t is largest
_PART = 0.2  # and of most of the law, so that the variance lost is a small part of all
_TOGETHER = 1 << 19  # products of a height and a point at once


@dataclass(frozen=True)
class Crowd:
    """Laws on the line Re s = c, those at points with fewer of them."""

    laws: tuple[Scattered, ...]
    c: float
    rows: NDArray[np.intp]
    """Which of them lie at points; the following is theirs."""
    points: Array
    """Gathered losses, less the mean of their law, one law after the other."""
    masses: Array
    starts: NDArray[np.intp]
    deviations: Array
    lost: Array
    """The variance lost; and what rounding adds at height 0, and with the height."""
    doubts: Array
    turning: Array

    @property
    def size(self) -> int:
        """How many points a height takes."""
        return self.points.size + sum(law.size for law in self.laws if not isinstance(law, Points))

    def deviation(self, counts: Array) -> float:
        """The root mean square deviation of so many steps of each law, of those at points."""
        steps = counts[self.rows]
        return float(np.sqrt(steps @ self.deviations**2 / max(float(steps.sum()), 1.0)))

    def near(self, heights: Array, reaches: Sequence[Array]) -> list[Array]:
        """Bounds on log |E[e^{sL}]/E[e^{cL}]| within a reach of some heights, for some reaches: a row for each law."""
        sums = np.empty((heights.size, self.rows.size))
        together = max(_TOGETHER // max(self.points.size, 1), 1)
        for first in range(0, heights.size if self.rows.size else 0, together):
            turned = np.exp(np.multiply.outer(1j * heights[first : first + together], self.points))
            sums[first : first + together] = np.abs(np.add.reduceat(turned * self.masses, self.starts, axis=1))
        known, bounds = sums.T + self._errors(heights), []
        for reach in reaches:
            found = np.zeros((len(self.laws), heights.size))
            for k, law in enumerate(self.laws):
                if isinstance(law, GaussianLaw):
                    found[k] = -0.5 * law.squared * np.maximum(heights - reach, 0.0) ** 2 * (1 - 1e-12)
            most = np.minimum(self.deviations[:, None], np.multiply.outer(self.deviations**2, heights + reach))
            found[self.rows] = np.log(np.clip(known + reach * most, 1e-300, 1.0))
            bounds.append(found)
        return bounds

    def at(self, spacing: float, count: int) -> Array:
        """The same at each of many nodes c + i spacing j, for less."""
        found = np.empty((len(self.laws), count))
        heights = np.asarray(spacing * np.arange(count), dtype=np.float64)
        errors = dict(zip(self.rows.tolist(), self._errors(heights), strict=True))
        ends = np.append(self.starts[1:], self.points.size).tolist()
        parts = dict(zip(self.rows.tolist(), zip(self.starts.tolist(), ends, strict=True), strict=True))
        for k, law in enumerate(self.laws):
            one, tilt, own = law, self.c, np.zeros(count)
            if k in parts:
                few = slice(*parts[k])
                one, tilt, own = Points(self.points[few], np.log(self.masses[few])), 0.0, errors[k]
            values, rounded, _ = one.on_line(tilt, spacing, count)
            found[k] = np.log(np.clip(np.abs(values) + rounded + own, 1e-300, 1.0))
        return found

    def _errors(self, heights: Array) -> Array:
        """What gathering and rounding may have taken from the transforms."""
        rounded = self.doubts[:, None] + np.multiply.outer(self.turning, heights)
        return np.asarray(rounded + 0.5 * np.multiply.outer(self.lost, heights**2))


def crowd(laws: Sequence[Scattered], c: float, height: float) -> Crowd:
    """For heights up to that, so that the transforms are about as large as they were."""
    rows = np.array([k for k, law in enumerate(laws) if isinstance(law, Points)], dtype=np.intp)
    at_points = [law for law in laws if isinstance(law, Points)]
    if not at_points:
        none = np.zeros(0)
        return Crowd(tuple(laws), c, rows, none, none, rows, none, none, none, none)
    sizes = np.array([law.losses.size for law in at_points])
    begin = np.cumsum(sizes) - sizes
    kind = np.repeat(np.arange(sizes.size), sizes)
    losses = np.concatenate([law.losses for law in at_points])
    logs = np.concatenate([law.logs for law in at_points])
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
    starts = np.searchsorted(kind[cells][kept], np.arange(sizes.size))
    return Crowd(
        tuple(laws),
        c,
        rows,
        means[kept],
        masses[kept],
        starts.astype(np.intp),
        np.sqrt(squares) * (1 + 1e-6),
        lost * (1 + 1e-9),
        doubts,
        turning,
    )
