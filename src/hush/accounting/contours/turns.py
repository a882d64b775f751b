"""How large the transforms of laws are at the nodes of a line, from above, without all of their points.

Where many steps add up, the integrand has decayed after a few nodes, long before the kernel that averages it ends the
sum.  To leave out the nodes between, it is enough to know that the transform is small there.  So points of a law,
tilted by e^{cL}, are gathered at the mean of those close to each other: with V the variance that is lost,

    |E[e^{itL}]| <= |sum over the gathered points of w e^{itl}| + t^2 V/2,

because the first order cancels within each cell.  And E[e^{it(L-m)}], m the mean, changes by no more than the deviation
of L times a change of t: a bound at one node holds, with that more, for all t nearby.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import Points, Scattered

_TURN = 1.5  # the length of a cell, in parts of 1/t where t is largest
_PART = 0.2  # and of most of the law, so that the variance lost is a small part of all
_LEAST = 64  # points that aren't worth gathering


@dataclass(frozen=True)
class Gathered:
    """A law on the line Re s = c, with fewer points: the variance lost, and what rounding adds at 0 and with t."""

    law: Scattered
    c: float
    deviation: float = math.inf
    """Of the law, tilted, where it is known."""
    lost: float = 0.0
    doubt: float = 0.0
    turning: float = 0.0

    @property
    def points(self) -> int:
        return self.law.size

    def log_sizes(self, spacing: float, count: int, reach: float = 0.0) -> Array:
        """Bounds on log |E[e^{sL}]/E[e^{cL}]| at s = c + i spacing j, and within a reach of these."""
        if reach > 0 and math.isinf(self.deviation):
            return np.zeros(count)
        values, errors, _ = self.law.on_line(self.c, spacing, count)
        errors = errors + (reach * self.deviation if reach > 0 else 0.0)
        heights = spacing * np.arange(count)
        errors = errors + self.doubt + self.turning * heights + 0.5 * self.lost * heights**2
        return np.asarray(np.log(np.clip(np.abs(values) + errors, 1e-300, 1.0)))


def gathered(law: Scattered, c: float, height: float) -> Gathered:
    """For heights up to that, so that the transform is about as large as it was."""
    if not isinstance(law, Points):
        return Gathered(law, c)
    exponents = c * law.losses + law.logs
    weights = np.exp(exponents - exponents.max())
    weights /= weights.sum()
    # what weights are off counts for as little as the squares of losses, of which it may be a part
    square = float(weights @ (law.losses - weights @ law.losses) ** 2) + 1e-12 * float(weights @ law.losses**2)
    deviation = math.sqrt(square) * (1 + 1e-6)
    if law.losses.size <= _LEAST:
        return Gathered(law, c, deviation)
    order = np.argsort(law.losses, kind="stable")
    below, above = law.losses[order[np.searchsorted(np.cumsum(weights[order]), [0.1, 0.9])]]
    length = min(_TURN / height, _PART * (above - below)) if above > below else _TURN / height
    _, cell = np.unique(np.floor(law.losses / length), return_inverse=True)
    mass = np.bincount(cell, weights)
    kept = mass > 0
    if 2 * np.count_nonzero(kept) > law.losses.size:
        return Gathered(law, c, deviation)
    means = np.bincount(cell, weights * law.losses) / np.where(kept, mass, 1.0)
    lost = float(weights @ (law.losses - means[cell]) ** 2)
    # weights are off by a few units in the last place of their exponents, means by some of their own
    doubt = 2.0**-48 * (4 + float(weights @ (np.abs(c * law.losses) + np.abs(law.logs))))
    turning = 2.0**-46 * float(weights @ np.abs(law.losses))
    return Gathered(Points(means[kept], np.log(mass[kept])), 0.0, deviation, lost * (1 + 1e-9), doubt, turning)
