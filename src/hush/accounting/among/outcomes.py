"""A pair with very many outcomes as a law at fewer points, by P-masses alone: a loss in the thousands has a Q-mass that
no floating-point number holds.

A group's pair has an outcome for each straight piece of its power curve (powers.py).  Two laws enclose them: outcomes
seen as one reveal less, and outcomes split between two ends, P- and Q-mass kept, reveal more.  With a tilt c
that adds or takes away variance, and bins are cut as in binned.py.  Whatever is rounded goes to the safe side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.accounting.lattices.laws import UNDERFLOW
from hush.accounting.pairs.losses import Array, Atoms, Enclosed, Pair
from hush.accounting.pairs.points import Points

_UNIT = 2.0**-50
_FEWEST, _MOST = 40, 2500  # bins
_EVENLY = 0.02  # the least density of edges, as a share of the mean
_PASSES = 4  # of cutting bins that are too wide
_PARTS = 4  # into so many


@dataclass(frozen=True)
class Outcomes:
    """Ascending losses, logs of their P-masses, and the P-mass of infinite losses."""

    losses: Array
    logs: Array
    infinite: float

    @staticmethod
    def of(pair: Pair) -> tuple[Outcomes, Outcomes] | None:
        """Of what reveals no more and no less than the pair; None where there are no such lists."""
        below, above = (pair.lower, pair.upper) if isinstance(pair, Enclosed) else (pair, pair)
        if not isinstance(below, Atoms) or not isinstance(above, Atoms):
            return None
        return Outcomes._listed(below), Outcomes._listed(above)

    @staticmethod
    def _listed(atoms: Atoms) -> Outcomes:
        losses, masses = np.asarray(atoms.losses), np.asarray(atoms.p)
        order = np.argsort(losses, kind="stable")
        order = order[masses[order] > 0]
        return Outcomes(losses[order], np.log(masses[order]), atoms.infinite)

    @cached_property
    def unsure(self) -> Array:
        return _unsure(self.losses, self.logs)

    def edges(self, tilt: float, high: float, variance: float, count: int) -> Array:
        """Ends of bins up to `high` that change the variance of so many of these losses, tilted, by about so much."""
        top = float(self.losses[-1] + 2 * self.unsure[-1])
        last, first = min(high, top), float(self.losses[0])
        if not last > first:
            return np.array([first - abs(first) - 1e-9, max(last, first)])
        inside = self.losses < last
        losses, logs = np.append(self.losses[inside], last), np.append(self.logs[inside], -np.inf)
        if (~inside).any():
            logs[-1] = np.logaddexp.reduce(self.logs[~inside])
        weights = logs + tilt * losses
        weights = np.exp(weights - weights.max())
        weights /= weights.sum()
        gaps = np.diff(losses)
        roots = (0.5 * (weights[1:] + weights[:-1])) ** (1 / 3) * gaps ** (2 / 3)
        total = float(roots.sum())
        bins = int(np.clip(math.sqrt(count * total**3 / (6 * max(variance, 1e-300))), _FEWEST, _MOST))
        if bins >= losses.size:
            return np.unique(losses)
        passed = np.append(0.0, np.cumsum(np.maximum(roots, _EVENLY * total * gaps / (last - first))))
        edges = np.interp(np.linspace(0.0, passed[-1], bins + 1), passed, losses)
        allowed = 0.5 * tilt * (1 + tilt) * variance / count
        for _ in range(_PASSES):
            edges = np.unique(edges)
            width = np.diff(edges)
            mass = np.bincount(np.clip(np.searchsorted(edges, losses) - 1, 0, width.size - 1), weights, width.size)
            # what is moved to the upper end of a wide bin grows with the tilt
            moved = np.where(tilt * width > 1, mass * np.exp(np.minimum(tilt * width, 300.0)), 0.0)
            wide = np.flatnonzero(moved > allowed / width.size)
            if wide.size == 0 or edges.size > _MOST:
                break
            steps = np.arange(1, _PARTS) / _PARTS
            edges = np.append(edges, np.add.outer(edges[wide], np.zeros(_PARTS - 1)) + np.outer(width[wide], steps))
        return np.unique(edges)

    def less(self, edges: Array) -> Points:
        """What lies between two edges seen as one outcome, at the loss log(P/Q); what lies beyond the last apart.

        With b the least of a bin's losses that is b - log1p(E_P[e^{b-l} - 1]), rounded down.
        """
        inside = self.losses <= edges[-1]
        beyond = float(np.exp(self.logs[~inside]).sum()) * (1 - 1e-12)
        own, logs, infinite = self.losses[inside], self.logs[inside], self.infinite * (1 - 1e-12)
        if own.size == 0:
            own, logs = edges[-1:], np.full(1, -745.0)
        unsure = _unsure(own, logs)
        first, bins = runs(np.searchsorted(edges, own, side="left"))
        peaks = np.maximum.reduceat(logs, first)
        masses = np.exp(logs - peaks[bins])
        sums = np.add.reduceat(masses, first)
        number = np.diff(np.append(first, own.size))
        base = own[first]
        spent = np.add.reduceat(masses * np.expm1(base[bins] - own), first) / sums
        off = _UNIT * (16 + number) + np.maximum.reduceat(unsure, first)
        losses = base - np.log1p(np.maximum(spent * (1 - off), -1 + 1e-15)) - off * (1 + np.abs(base))
        end = float(edges[-1]) - _UNIT * (8 + 1500 + abs(float(edges[-1])))
        return Points(losses, peaks + np.log(sums) - off, infinite, True, True, beyond=beyond, end=end)

    def more(self, edges: Array) -> Points:
        """Each outcome split between the ends of its bin; below the first edge moved up, beyond the last infinite.

        From P- and Q-mass kept, (1 - e^{lo-l})/(1 - e^{lo-hi}) of the P-mass goes to the upper end.
        """
        losses = np.maximum.accumulate(self.losses + self.unsure)  # what is unsure may exchange them
        beyond = losses > edges[-1]
        infinite = (self.infinite + float(np.exp(self.logs[beyond]).sum())) * (1 + 1e-12) + UNDERFLOW
        losses, logs, unsure = np.maximum(losses[~beyond], edges[0]), self.logs[~beyond], self.unsure[~beyond]
        if losses.size == 0:
            return Points(edges[:1], np.full(1, -745.0), min(infinite, 1.0), binned=True, directed=True)
        first, bins = runs(np.clip(np.searchsorted(edges, losses, side="left") - 1, 0, edges.size - 2))
        place = np.clip(np.searchsorted(edges, losses[first], side="left") - 1, 0, edges.size - 2)
        low, high = edges[place][bins], edges[place + 1][bins]
        peaks = np.maximum.reduceat(logs, first)
        masses = np.exp(logs - peaks[bins]) / -np.expm1(low - high)
        up = np.add.reduceat(masses * -np.expm1(low - losses), first)
        down = np.add.reduceat(masses * np.exp(low - losses) * -np.expm1(np.minimum(losses - high, 0.0)), first)
        number = np.diff(np.append(first, losses.size))
        off = _UNIT * (32 + number) + np.maximum.reduceat(unsure, first)
        nodes = np.full(edges.size, -np.inf)
        with np.errstate(divide="ignore"):
            nodes[place] = peaks + np.log(down) + off
            nodes[place + 1] = np.logaddexp(nodes[place + 1], peaks + np.log(up) + off)
        kept = nodes > -np.inf
        return Points(edges[kept], nodes[kept], min(infinite, 1.0), binned=True, directed=True)


def _unsure(losses: Array, logs: Array) -> Array:
    """How far losses and the logs of masses may be off: a difference of two logarithms."""
    return np.asarray(_UNIT * (8 + 2 * np.abs(logs) + np.abs(losses)))


def runs(places: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where runs of equal places begin, and to which run each belongs."""
    begins = np.append(True, np.diff(places) > 0)
    return np.flatnonzero(begins), np.cumsum(begins) - 1
