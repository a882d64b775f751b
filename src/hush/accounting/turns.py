"""How large the transforms of laws are at the nodes of a line, from above, without all of their points.

Where many steps add up, the integrand has decayed after a few nodes, long before the kernel that averages it ends the
sum.  To leave out the nodes between, it is enough to know that the transform is small there.  So points of a law,
tilted by e^{cL}, are gathered at the mean of those close to each other: with V the variance that is lost,

    |E[e^{itL}]| <= |sum over the gathered points of w e^{itl}| + t^2 V/2,

because the first order cancels within each cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hush.accounting.losses import Array
from hush.accounting.points import Points, Scattered

_TURN = 1.5  # the length of a cell, in parts of 1/t where t is largest
_PART = 0.2  # and of most of the law, so that the variance lost is a small part of all
_LEAST = 64  # points that aren't worth gathering


@dataclass(frozen=True)
class Gathered:
    """A law on the line Re s = c, with fewer points: the variance lost, and what rounding adds at 0 and with t."""

    law: Scattered
    c: float
    lost: float = 0.0
    doubt: float = 0.0
    turning: float = 0.0

    @property
    def points(self) -> int:
        return self.law.size

    def log_sizes(self, spacing: float, count: int) -> Array:
        """Bounds on log |E[e^{sL}]/E[e^{cL}]| at s = c + i spacing j."""
        values, errors, _ = self.law.on_line(self.c, spacing, count)
        heights = spacing * np.arange(count)
        errors = errors + self.doubt + self.turning * heights + 0.5 * self.lost * heights**2
        return np.asarray(np.log(np.clip(np.abs(values) + errors, 1e-300, 1.0)))


def gathered(law: Scattered, c: float, height: float) -> Gathered:
    """For heights up to that, so that the transform is about as large as it was."""
    if not isinstance(law, Points) or law.losses.size <= _LEAST:
        return Gathered(law, c)
    exponents = c * law.losses + law.logs
    weights = np.exp(exponents - exponents.max())
    weights /= weights.sum()
    order = np.argsort(law.losses, kind="stable")
    below, above = law.losses[order[np.searchsorted(np.cumsum(weights[order]), [0.1, 0.9])]]
    length = min(_TURN / height, _PART * (above - below)) if above > below else _TURN / height
    _, cell = np.unique(np.floor(law.losses / length), return_inverse=True)
    mass = np.bincount(cell, weights)
    kept = mass > 0
    if 2 * np.count_nonzero(kept) > law.losses.size:
        return Gathered(law, c)
    means = np.bincount(cell, weights * law.losses) / np.where(kept, mass, 1.0)
    lost = float(weights @ (law.losses - means[cell]) ** 2)
    # weights are off by a few units in the last place of their exponents, means by some of their own
    doubt = 2.0**-48 * (4 + float(weights @ (np.abs(c * law.losses) + np.abs(law.logs))))
    turning = 2.0**-46 * float(weights @ np.abs(law.losses))
    return Gathered(Points(means[kept], np.log(mass[kept])), 0.0, lost * (1 + 1e-9), doubt, turning)
