"""Heights on a vertical line at which transforms are looked at, and sums over points there, each turn a product.

Heights are the middles of stretches that leave no gap: sixteen to an octave, until they are as long as they may be, and
equally long from there on.  So each of them is a multiple of one small height, and e^{itl} at each of them is a product
of two that are known: a point takes one exponential, however many heights there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hush.accounting.contours.blocks import blocks
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array

_OCTAVE = 4  # halvings: stretches are a sixteenth of where they begin
_TOGETHER = 1 << 14  # points that stay close at hand


@dataclass(frozen=True)
class Heights:
    """Stretches that begin with `first`, which is a power of two of them high."""

    first: float
    halvings: int
    """How often the first height is halved to make the first stretch."""
    octaves: int
    """After each of so many octaves stretches are twice as long."""
    count: int

    @staticmethod
    def between(first: float, last: float, longest: float) -> Heights:
        """Stretches from the first to the last height or a little beyond, none longer than that."""
        halvings = max(_OCTAVE, math.ceil(math.log2(first / longest)))
        longer = math.log2(longest / first) + halvings if halvings == _OCTAVE else 0.0
        octaves = math.floor(min(longer, max(math.log2(last / first), 0.0)))
        grown = first * 2.0**octaves
        rest = math.ceil((last - grown) / grown * 2.0**halvings * (1 + 1e-12))
        return Heights(first, halvings, octaves, max((octaves << _OCTAVE) + rest, 1))

    @cached_property
    def _lengths(self) -> Array:
        """In units of the first: whole numbers."""
        return np.asarray(2.0 ** np.minimum(np.arange(self.count) >> _OCTAVE, self.octaves), dtype=np.float64)

    @cached_property
    def ends(self) -> Array:
        """Of the stretches: one more than there are."""
        return self.first * (1 + np.append(0.0, np.cumsum(self._lengths)) * 2.0**-self.halvings)

    @property
    def middles(self) -> Array:
        return 0.5 * (self.ends[1:] + self.ends[:-1])

    @property
    def reach(self) -> Array:
        """From the middles to the ends, and a little beyond."""
        return 0.5 * np.diff(self.ends) * (1 + 1e-9)

    @property
    def rounding(self) -> Array:
        """What e^{itl} may be off at the middles, but for what l is.

        In half the first stretches t is N of them, and e^{itl} the N-th power of one exponential, which is off by 4 u
        (and what its angle is off).  A product is off by what its factors are, and by 5^(1/2) u: whatever the order of
        the products, the N-th power is off by less than 8 N u.
        """
        return np.asarray(8 * UNIT_ROUNDOFF * self.middles / self.first * 2.0 ** (self.halvings + 1))

    def sizes(self, points: Array, masses: Array, starts: NDArray[np.intp]) -> Array:
        """|sum of m e^{itl}| over the points of several laws, one law after the other: a row for each height."""
        found = np.empty((self.count, starts.size))
        for rows, some, begins in blocks(np.diff(np.append(starts, points.size)), _TOGETHER):
            self._fill(found[:, rows], points[some], masses[some], begins)
        return found

    def _fill(self, found: Array, points: Array, masses: Array, starts: NDArray[np.intp]) -> None:
        half = np.exp(0.5j * (self.first * 2.0**-self.halvings) * points)
        turned = half.copy()
        for _ in range(self.halvings + 1):
            turned *= turned
        turned *= masses
        for k in range(self.count):
            if k > 0 and self._lengths[k] > self._lengths[k - 1]:
                half *= half
            turned *= half
            np.abs(np.add.reduceat(turned, starts), out=found[k])
            turned *= half
