"""Sums of losses on two lattices at once: small ones on a fine lattice, all others on a coarse one (scales.py).

P-masses are positive numbers, tilted by e^{cL} and divided by their sum; whatever is rounded goes to one side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.lattices.placing import merged, split, unsure
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import Points

UNIT = 2.0**-50
PARTS = 16  # points of the fine lattice to one of the coarse one
SMALL = 4  # coarse points: the losses of one step that are small
_WINDOW = 128  # coarse points: sums that are
_LOST = 1e-296  # of all mass, tilted: more than what is lost at one point to products too small for floating point
_UNDERFLOW = 2e-319  # what one point loses to products too small for floating point
_LEAST = 1e-200  # of it, that is left
_LOWEST = 45.0  # how far below 0 a lattice may begin, times the tilt
TOO_DEEP = "Masses of sums don't fit into floating-point numbers."


@dataclass(frozen=True)
class Frame:
    """Both lattices: the fine spacing, a number of few digits; the first and last coarse point; tilt; which bound."""

    fine: float
    first: int
    last: int
    tilt: float
    above: bool

    @staticmethod
    def of(low: float, high: float, points: int, tilt: float, *, above: bool) -> Frame:
        size, exponent = math.frexp((high - low) / (points * PARTS))
        fine = math.ldexp(math.ceil(size * 2**20), exponent - 20)
        coarse = fine * PARTS
        return Frame(fine, math.floor(low / coarse), math.ceil(high / coarse), tilt, above)

    @property
    def coarse(self) -> float:
        return self.fine * PARTS

    @property
    def edges(self) -> Array:
        """All lattice points: fine ones around 0."""
        small = SMALL * PARTS
        outer = np.arange(self.first, self.last + 1)
        outer = outer[np.abs(outer) > SMALL]
        return np.sort(np.append(self.coarse * outer, self.fine * np.arange(-small, small + 1)))

    def coarsened(self, masses: Array, first: int) -> tuple[Array, int]:
        """Tilted masses on the fine lattice, from a point on, put on the coarse one: split, or merged."""
        index = first + np.arange(masses.size)
        low = index // PARTS
        if self.above:
            up = self.fine * (index - PARTS * low)
            down = self.coarse - up
            # P- and Q-mass are kept: (1 - e^-u)/(1 - e^-h) of the mass goes up
            whole = -math.expm1(-self.coarse)
            higher = masses * (-np.expm1(-up) / whole) * np.exp(self.tilt * down)
            lower = masses * (np.exp(-up) * -np.expm1(-down) / whole) * np.exp(-self.tilt * up)
            begin, size = int(low[0]), int(low[-1] - low[0]) + 2
            split = np.bincount(low - begin, lower, size) + np.bincount(low - begin + 1, higher, size)
            return np.asarray(split, dtype=np.float64), begin
        begin, end = int(low[0]) - 1, int(low[-1]) + 2
        told = masses > 0
        losses = np.asarray(self.fine * index, dtype=np.float64)
        middle = float(losses[int(np.argmax(masses))])
        plain = masses * np.exp(-self.tilt * (losses - middle))
        found = merged(losses[told], plain[told], begin, end, self.coarse)
        return found * np.exp(self.tilt * (self.coarse * np.arange(begin, end + 1) - middle)), begin


@dataclass(frozen=True)
class Sums:
    """Tilted P-masses of sums, on the fine and on the coarse lattice, each from a point on, times exp(scale).

    And the logs of the (plain) P-mass of infinite ones, and how many times fine sums were put on the coarse lattice.
    """

    fine: Array
    fine_first: int
    coarse: Array
    coarse_first: int
    scale: float
    log_infinite: float
    moves: int = 0

    @staticmethod
    def of(
        frame: Frame,
        fine: tuple[Array, int],
        coarse: Sequence[tuple[Array, int]],
        scale: float,
        log_infinite: float,
        moves: int,
    ) -> Sums:
        """With what isn't small moved to the coarse lattice, and what lies beyond it to the safe side."""
        masses, first = fine
        reach = _WINDOW * PARTS
        inside = np.abs(first + np.arange(masses.size)) <= reach
        begin, end = int(np.argmax(inside)), masses.size - int(np.argmax(inside[::-1]))
        parts = [*coarse]
        if not inside.any():
            parts, masses, first = [*parts, frame.coarsened(masses, first)], np.zeros(1), 0
        elif not inside.all():
            outside = [(masses[:begin], first), (masses[end:], first + end)]
            parts += [frame.coarsened(some, at) for some, at in outside if some.size]
            masses, first, moves = masses[begin:end], first + begin, moves + 1
        found = np.zeros(frame.last - frame.first + 1)
        for some, at in parts:
            index = at + np.arange(some.size)
            here = (index >= frame.first) & (index <= frame.last)
            found[index[here] - frame.first] += some[here]
            low, high = index < frame.first, index > frame.last
            if frame.above and low.any():  # moved up, P-mass kept, and what each may have lost to underflow
                found[0] += float(
                    (some[low] + _UNDERFLOW) @ np.exp(frame.tilt * frame.coarse * (frame.first - index[low]))
                )
            if high.any() and frame.above:
                logs = np.log(some[high] + _LOST) - frame.tilt * frame.coarse * index[high] + scale
                log_infinite = float(np.logaddexp(log_infinite, np.logaddexp.reduce(logs)))
            elif high.any():  # moved down
                found[-1] += float(some[high] @ np.exp(frame.tilt * frame.coarse * (frame.last - index[high])))
        total = float(masses.sum() + found.sum())
        if not _LEAST < total < math.inf or frame.tilt * frame.coarse * -frame.first > _LOWEST:
            raise OverflowError(TOO_DEEP)
        # products that underflow, also where they are moved up, are worth less than what is added everywhere
        lost = _LOST / total if frame.above else 0.0
        masses, found = masses / total + lost, found / total + lost
        return Sums(masses, first, found, frame.first, scale + math.log(total), log_infinite, moves)

    def plus(self, other: Sums, frame: Frame) -> Sums:
        one, two = (frame.coarsened(law.fine, law.fine_first) for law in (self, other))
        coarse = [
            (np.convolve(self.coarse, other.coarse), self.coarse_first + other.coarse_first),
            (np.convolve(self.coarse, two[0]), self.coarse_first + two[1]),
            (np.convolve(one[0], other.coarse), one[1] + other.coarse_first),
        ]
        return Sums.of(
            frame,
            (np.convolve(self.fine, other.fine), self.fine_first + other.fine_first),
            coarse,
            self.scale + other.scale,
            either(self.log_infinite, other.log_infinite),
            self.moves + other.moves + 2,
        )

    def times(self, count: int, frame: Frame) -> Sums:
        """So many of them, by doubling; moves count for a path, which takes either half once."""
        result, double = None, self
        while True:
            if count % 2:
                result = double if result is None else result.plus(double, frame)
            count //= 2
            if count == 0:
                assert result is not None
                return result
            double = double.plus(double, frame)

    def law(self, frame: Frame) -> Points:
        """All of it."""
        losses = np.append(
            frame.fine * (self.fine_first + np.arange(self.fine.size)),
            frame.coarse * (self.coarse_first + np.arange(self.coarse.size)),
        )
        masses = np.append(self.fine, self.coarse)
        kept = masses > (0.0 if frame.above else _LOST)
        losses, masses = losses[kept], masses[kept]
        order = np.argsort(losses, kind="stable")
        logs = np.log(masses[order]) - frame.tilt * losses[order] + self.scale
        return Points(losses[order], logs)


def either(one: float, other: float) -> float:
    """log of the chance of either of two independent events."""
    return float(np.logaddexp(one, other + math.log1p(-math.exp(one)))) if one < -1e-15 else one


def on_lattices(law: Points, frame: Frame) -> Sums:
    """A law's masses at lattice points, to the safe side."""
    order = np.argsort(law.losses, kind="stable")
    losses, logs = law.losses[order], law.logs[order]
    doubtful = 2 * unsure(losses, logs)
    log_infinite = max(math.log(law.infinite) if law.infinite > 0 else -math.inf, -math.inf)
    log_infinite = float(np.logaddexp(log_infinite, law.log_hidden)) if frame.above else log_infinite
    edges = frame.edges
    if frame.above:
        beyond = losses + doubtful > edges[-1]
        if beyond.any():
            log_infinite = float(np.logaddexp(log_infinite, np.logaddexp.reduce(logs[beyond])))
        losses, logs = split(losses[~beyond], logs[~beyond], edges)
    else:
        losses, logs = losses - doubtful, logs - 1e-12
        small = np.abs(losses) < (SMALL + 0.5) * frame.coarse
        places = np.searchsorted(edges, losses, side="right") - 1  # down to the next point
        told = ~small & (places >= 0)
        end = (SMALL + 1) * PARTS
        near = merged(losses[small], np.exp(logs[small]), -end, end, frame.fine)
        kept = np.flatnonzero(near > 0)
        losses = np.append(edges[places[told]], frame.fine * (kept - end))
        logs = np.append(logs[told], np.log(near[kept]))
    small = np.abs(losses) <= (SMALL + 0.5) * frame.coarse
    logs = logs + frame.tilt * losses
    scale = float(logs.max(initial=-np.inf))
    if not math.isfinite(scale):  # all of it lies beyond the lattices
        raise OverflowError(TOO_DEEP)
    masses = np.exp(logs - scale)
    parts = []
    for own, spacing in ((small, frame.fine), (~small, frame.coarse)):
        index = np.rint(losses[own] / spacing).astype(np.int64)
        first = int(index.min()) if index.size else 0
        parts.append((np.bincount(index - first, masses[own], 1).astype(np.float64), first))
    return Sums.of(frame, parts[0], [parts[1]], scale, log_infinite, 0)
