"""E[g^r; label] at real r, of many kinds of steps at once: for searches, and for Chernoff's inequality.

All rules' nodes are in one row: of a hundred kinds it takes longer to ask one after the other than to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.contours.blocks import blocks
from hush.accounting.gaussian.rules import Rule, log_missed
from hush.accounting.gaussian.transform import Array

ROUNDED = 1e-12
"""What E[g^r; label] - 1 may be off on the axis, apart from what is missed at the ends, as a share of E where that is
large: far more than `Rule.rounding` says of sums of which 1 + r (g-1) is taken away, term by term or at once."""
_TOGETHER = 1 << 16  # products of a power and a node


@dataclass(frozen=True)
class Axis:
    """Rules with real nodes; of all results a row for each of them."""

    rules: Sequence[Rule]

    def mgf(self, powers: Array) -> Array:
        """E[g^r; label]."""
        found = np.empty((len(self.rules), powers.size))
        for rows, some, starts in blocks([rule.size for rule in self.rules], _TOGETHER // powers.size):
            loss, log_weight, window = (row[some] for row in self._nodes)
            terms = np.multiply.outer(powers, loss)
            terms += log_weight
            np.exp(terms, out=terms)
            terms *= window
            found[rows] = np.add.reduceat(terms, starts, axis=1).T
        return found

    @cached_property
    def _nodes(self) -> tuple[Array, Array, Array]:
        loss, log_weight, window = (
            np.concatenate(rows)
            for rows in zip(*((rule.loss, rule.log_weight, rule.window) for rule in self.rules), strict=True)
        )
        return loss, log_weight, window

    def excess(self, powers: Array) -> Array:
        """E[g^r; label] - 1, for labels without `rises`."""
        known = np.array([rule.polynomial for rule in self.rules])
        return np.asarray(self.mgf(powers) - known[:, :1] - powers * known[:, 1:])

    def missed(self, powers: Array) -> Array:
        """What the sums may miss of E[g^r; label]: `Rule.missed`."""
        return np.exp(log_missed(np.array([rule.ends for rule in self.rules]).T[:, :, None], powers))

    def log_sizes(self, powers: Array) -> Array:
        """log E[g^r; label], from above: 1 + (E - 1) is good to 1e-12, absolutely where it is itself smaller than 1."""
        excess = np.maximum(self.excess(powers), -1.0)
        return np.asarray(np.log1p(excess + ROUNDED * (2 + np.maximum(excess, 0.0)) + self.missed(powers)))

    def least(self, power: float) -> list[float]:
        """E[g^r; label], from below."""
        at = np.array([power])
        least = np.maximum((1 + self.excess(at) - self.missed(at)) * (1 - ROUNDED) - 3 * ROUNDED, 1e-290)
        return [float(one) for one in least[:, 0]]
