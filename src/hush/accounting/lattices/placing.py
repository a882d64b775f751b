"""Outcomes put on given points, to the safe side: split between two of them, or merged into them.

Split with P- and Q-mass kept they reveal more, merged into bins that have a point's likelihood ratio less (laws.py).
Losses come with logs of P-masses alone: a loss in the thousands has a Q-mass that no floating-point number holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.accounting.lattices.laws import merge
from hush.accounting.pairs.losses import Array

_UNIT = 2.0**-50


def unsure(losses: Array, logs: Array) -> Array:
    """How far losses and the logs of masses may be off: a difference of two logarithms."""
    return np.asarray(_UNIT * (8 + 2 * np.abs(logs) + np.abs(losses)))


def split(losses: Array, logs: Array, edges: Array) -> tuple[Array, Array]:
    """Ascending losses, none beyond the last edge, between the ends of their bins; below the first edge moved up.

    From P- and Q-mass kept, (1 - e^{lo-l})/(1 - e^{lo-hi}) of the P-mass goes to the upper end.
    """
    if losses.size == 0:
        return edges[:1], np.full(1, -745.0)
    off = unsure(losses, logs)
    losses = np.maximum(np.maximum.accumulate(losses + off), edges[0])  # what is unsure may exchange them
    first, bins = _runs(np.clip(np.searchsorted(edges, losses, side="left") - 1, 0, edges.size - 2))
    place = np.clip(np.searchsorted(edges, losses[first], side="left") - 1, 0, edges.size - 2)
    low, high = edges[place][bins], edges[place + 1][bins]
    peaks = np.maximum.reduceat(logs, first)
    masses = np.exp(logs - peaks[bins]) / -np.expm1(low - high)
    up = np.add.reduceat(masses * -np.expm1(low - losses), first)
    down = np.add.reduceat(masses * np.exp(low - losses) * -np.expm1(np.minimum(losses - high, 0.0)), first)
    number = np.diff(np.append(first, losses.size))
    rounded = _UNIT * (32 + number) + np.maximum.reduceat(off, first)
    nodes = np.full(edges.size, -np.inf)
    with np.errstate(divide="ignore"):
        nodes[place] = peaks + np.log(down) + rounded
        nodes[place + 1] = np.logaddexp(nodes[place + 1], peaks + np.log(up) + rounded)
    kept = nodes > -np.inf
    return edges[kept], nodes[kept]


def merged(losses: Array, masses: Array, first: int, last: int, spacing: float) -> Array:
    """Bins around lattice points, merged so that their likelihood ratios are those of the points (laws.py)."""
    kept = losses > spacing * (first + 0.5)
    losses, weights = np.minimum(losses[kept], spacing * last), masses[kept]
    near = np.rint(losses / spacing).astype(np.int64)
    shift = spacing * near - losses
    near -= first

    def total(places: NDArray[np.int64], values: Array) -> Array:
        return np.bincount(places, values, last - first + 2).astype(np.float64)

    own, gap = total(near, weights), total(near, weights * -np.expm1(shift))
    above, surplus = total(near - 1, weights), total(near - 1, weights * -np.expm1(shift - spacing))
    below, deficit = total(near + 1, weights), total(near + 1, weights * np.expm1(shift + spacing))
    return merge(own, gap, above, surplus, below, deficit)[: last - first + 1]


def _runs(places: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where runs of equal places begin, and to which run each belongs."""
    begins = np.append(True, np.diff(places) > 0)
    return np.flatnonzero(begins), np.cumsum(begins) - 1
