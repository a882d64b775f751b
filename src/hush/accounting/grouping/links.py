"""Where a group's best attack meets the single record's curve: a model, which says where to look and enters no bound.

With g(a) = min over e of delta(e) + e^e a the power of the best attack, that on a group of k follows a chain of
levels a, g(a), g(g(a)), ...  At each link a line of slope e^{e_i} touches g.  The slopes multiply: the chain is the
best attack at epsilon = e_1 + ... + e_k, and there

    delta_k = sum over i of delta(e_i) exp(e_{i+1} + ... + e_k).

Levels are kept as logarithms of a and of 1 - a.  Above the diagonal g is known from alpha(e) = -d delta/d e^e, the
chance of a loss above e without the record, and delta(e) + e^e alpha(e); below it is the mirror image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.grouping.powers import least_of
from hush.accounting.pairs.losses import Array

_CLIFF = 20.0  # as steep as that, beside what is before
_SPARE = 20.0  # log of a power that is more than enough
_STEEPEST = 8.0  # times as wide as a share of itself a log delta may be where it falls quickly
_BEFORE, _INSIDE = 1.0, 0.02  # logs of levels before the first line's end; a part of a line's stretch
_TOWARDS_ZERO = np.geomspace(1e-7, 1.0, 600)
_LEVELS = 160  # chains that are followed at once


@dataclass(frozen=True)
class Links:
    """A chain: its first level (a logarithm), the e_i from the first link to the last, and log delta of the group.

    Its power may be more than is asked for: then it needs to be known less well, by a logarithm that is to spare.
    """

    level: float
    slopes: Array
    log_delta: float
    spare: float = 0.0

    @property
    def epsilon(self) -> float:
        return float(self.slopes.sum())

    @property
    def steep(self) -> float:
        """How fast log delta falls with epsilon: d delta = -e^epsilon a d epsilon at the level a."""
        return math.exp(min(self.epsilon + self.level - self.log_delta, 50.0))

    @property
    def scale(self) -> float:
        """What the width of log delta is a share of: itself, or what epsilon's width amounts to, up to some."""
        return max(1.0, -self.log_delta, min(self.epsilon * self.steep, _STEEPEST))


@dataclass(frozen=True)
class Model:
    """A single record's log delta at ascending epsilons from 0 on, falling."""

    epsilons: Array
    logs: Array

    def at(self, epsilons: Array) -> Array:
        return np.interp(epsilons, self.epsilons, self.logs)

    def moved_to(self, at: Array, logs: Array) -> Model:
        """So that it has these logs at ascending epsilons."""
        ratio = (logs - 1) / (self.at(at) - 1)
        places = np.union1d(self.epsilons, at)
        along, known = (np.log(np.maximum(some, 1e-12)) for some in (places, at))
        moved = 1 + (self.at(places) - 1) * np.interp(along, known, ratio)
        return Model(places, np.minimum.accumulate(np.minimum(moved, -1e-12)))

    def raised(self, logs: Array) -> Model:
        """To what is known of it from below, falling."""
        return type(self)(self.epsilons, np.maximum(self.logs, np.minimum.accumulate(np.minimum(logs, self.logs[0]))))

    def leaking(self, log_leak: float, furthest: float) -> Model:
        """With so much at infinite loss: a chain's first link may be as far out as that."""
        if log_leak == -math.inf:
            return self
        inner = self.epsilons < furthest
        places, logs = np.append(self.epsilons[inner], furthest), np.append(self.logs[inner], log_leak)
        return type(self)(places, np.maximum(logs, log_leak))

    def spread(self, end: float, slack: float, most: int) -> Array:
        """Places down to 0, no more than so many: chords between them make a link's epsilon longer by that slack.

        Where delta falls like e^{-c e} a chord of length h lies (c h)^2/8 above it, and 1/(1 + c) of that counts.
        """
        fine = np.unique(np.concatenate([np.linspace(0.0, end, 4 * most), end * _TOWARDS_ZERO]))
        falls = np.maximum(self.falls(fine), 1e-9)
        apart = np.maximum(np.sqrt(8 * slack * (1 + falls)) / falls, 1e-12 * end)
        number = np.append(0.0, np.cumsum(np.diff(fine) / np.minimum(apart[1:], apart[:-1])))
        count = int(min(number[-1], most)) + 2
        even = np.interp(np.linspace(0.0, number[-1], count), number, fine)
        return np.unique(np.concatenate([[0.0], end * _TOWARDS_ZERO[::8], even]))

    @cached_property
    def levels(self) -> tuple[Array, Array, Array]:
        """Slopes in descending order, and logs of levels and powers that rise with them."""
        falls = np.maximum(-np.gradient(self.logs, self.epsilons), 1e-9)
        steps = np.maximum(-np.diff(self.logs) / np.diff(self.epsilons), 1e-9)
        # what falls off at the largest loss says nothing of the slope before it
        falls[1:-1] = np.where(steps[1:] > _CLIFF * steps[:-1], steps[:-1], falls[1:-1])
        alpha = np.minimum(np.log(falls) + self.logs - self.epsilons, -math.log(2))
        alpha = np.maximum.accumulate(alpha[::-1])[
            ::-1
        ]  # falls with epsilon: where the model is flat it's what follows
        power = np.minimum.accumulate(np.minimum(np.logaddexp(self.logs, self.epsilons + alpha), -1e-12))
        return self.epsilons[::-1], alpha[::-1], power[::-1]

    def falls(self, epsilons: Array) -> Array:
        """How fast log delta falls at epsilons >= 0: where the model is flat, as fast as convexity says."""
        slopes, alpha, _ = self.levels
        return np.exp(np.minimum(np.interp(epsilons, slopes[::-1], alpha[::-1]) + epsilons - self.at(epsilons), 50.0))

    def chain(self, levels: Array, size: int) -> tuple[Array, Array]:
        """The e_i of chains that begin at these (logs of) levels, one row a link, and the groups' log deltas."""
        slopes, alpha, power = self.levels
        shift = float(np.exp(self.logs[0]))
        low, high = levels, _complement(levels)
        found = np.empty((size, levels.size))
        log_delta = np.full(levels.size, -np.inf)
        for i in range(size):
            steep, flat = low <= alpha[-1], high <= power[-1]
            found[i] = np.where(steep, np.interp(low, alpha, slopes), 0.0)
            found[i] = np.where(flat, -np.interp(high, power, slopes), found[i])
            log_delta = np.logaddexp(self.log_delta(found[i]), log_delta + found[i])
            up, down = np.interp(low, alpha, power), np.interp(high, power, alpha)
            middle = np.log(np.minimum(np.exp(low) + shift, 1 - 1e-15))
            low, high = (
                np.where(flat, _complement(down), np.where(steep, up, middle)),
                np.where(flat, down, np.where(steep, _complement(up), _complement(middle))),
            )
        return found, log_delta

    def log_delta(self, epsilons: Array) -> Array:
        """At epsilons of any sign."""
        return extended(epsilons, self.at(np.abs(epsilons)))

    def climb(self, level: float, power: float, size: int) -> Links | None:
        """The chain that begins at a level, until its power (both logarithms) is more than that; None if it is less."""
        slopes, alpha, _ = self.levels
        found: list[float] = []
        at = level
        while len(found) < size and at < min(power + _SPARE, max(power, -3.0), alpha[-1]):
            found.append(float(np.interp(at, alpha, slopes)))
            at = float(np.logaddexp(self.at(np.array(found[-1:]))[0], at + found[-1]))
        return Links(level, np.array(found), power, at - power) if at > power else None

    def links(self, size: int, *, log_delta: float | None = None, epsilon: float = 0.0) -> Links:
        """The chain of a group with such a delta, or epsilon."""
        _, alpha, _ = self.levels
        low, high = float(alpha[0]), -1e-6
        next_levels = np.linspace(low, high, _LEVELS)
        for _ in range(4):
            levels = next_levels
            found, logs = self.chain(levels, size)
            past = logs > log_delta if log_delta is not None else found.sum(axis=0) < epsilon
            k = int(np.argmax(past)) if past.any() else _LEVELS - 1
            best = max(k - 1, 0) if past[k] and k > 0 else k
            next_levels = np.linspace(levels[max(k - 2, 0)], levels[min(k + 1, _LEVELS - 1)], _LEVELS)
        # where the model has a kink, chains jump: what lies between two of them is about as good as a chain
        other = min(best + 1, _LEVELS - 1)
        between = np.linspace(0.0, 1.0, _LEVELS)
        slopes = np.multiply.outer(found[:, best], 1 - between) + np.multiply.outer(found[:, other], between)
        logs = np.full(_LEVELS, -np.inf)
        for row in slopes:
            logs = np.logaddexp(self.log_delta(row), logs + row)
        past = logs > log_delta if log_delta is not None else slopes.sum(axis=0) < epsilon
        k = max(int(np.argmax(past)) - 1, 0) if past.any() else _LEVELS - 1
        level = float(levels[best] + between[k] * (levels[other] - levels[best]))
        return Links(level, slopes[:, k], float(logs[k]))


class Envelope(Model):
    """A curve that is known wherever a chain may go, instead of a model: its links are those of the lines it gives."""

    @cached_property
    def levels(self) -> tuple[Array, Array, Array]:
        """Both ends of each line's stretch, nearly: where the curve has a corner, one slope is the best for long."""
        least = least_of(self.epsilons, self.logs)
        ends = np.append(least.starts[1 : least.last + 1], least.end)
        begins = np.append(ends[0] - _BEFORE, ends[:-1])
        alpha = np.sort(np.concatenate([(1 - x) * begins + x * ends for x in (_INSIDE, 1 - _INSIDE)]))
        slopes = np.repeat(least.slopes[: least.last + 1], 2)
        return slopes, alpha, np.minimum(np.logaddexp(alpha, least.at(alpha)), -1e-300)


def extended(epsilons: Array, logs: Array) -> Array:
    """log delta at epsilons of any sign from that at their moduli: delta(-e) = 1 - e^-e + e^-e delta(e)."""
    size = np.abs(epsilons)
    with np.errstate(divide="ignore"):
        mirrored = np.logaddexp(np.log(-np.expm1(-size)), logs - size)
    return np.where(epsilons < 0, np.minimum(mirrored, 0.0), logs)


def _complement(logs: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(np.minimum(logs, -1e-300)))
