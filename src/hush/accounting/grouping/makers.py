"""The curve of one direction of a composition near an epsilon: without bins, on lattices, or by lines of bins.

Those of Gaussian steps on samples have a file of their own (samples.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.grouping.told import log_deltas
from hush.accounting.lattices import rare, scales
from hush.accounting.mixed import decaying, scattered
from hush.accounting.pairs.bounded import largest_finite, largest_total, near_top
from hush.accounting.pairs.hopeless import least_delta
from hush.accounting.pairs.losses import Array
from hush.accounting.tails import heavy
from hush.accounting.tails.cells import Rough, Steps, rough_look
from hush.accounting.tails.sides import Chernoff

DEEP = 200.0
"""A log delta below minus that is known no less well."""
_DEEPLY, _FEW_DIGITS = (
    -300.0,
    5e-4,
)  # a log delta, and a share of it: known no better from there on, lattices may tell more
_DEEPER, _OF_SLACK = 1.02, 0.2  # times as deep as it is taken to be; of what epsilon may be off
_NEARBY, _BESIDE, _FAILED = 0.7, 0.2, 3  # logs of epsilons; where lattices failed so often they will again
_BLUNTEST = 3.0, 2e-3  # times what is wanted, and of log delta: lines that are no wider are not worth other sums
_FEW = 1000  # steps with projected norms: sums of more take seconds and tell nothing
_SUMMED = 1e-4  # of log delta: what sums are asked for at most
_NOTHING = 1.0  # of log delta: known no better, leaks were taken for losses that decide
_FURTHEST = 1e6  # an epsilon that no link needs
_GLANCED = 16.0  # minus the log of a delta for which bins are good enough for a glance at all larger ones


class Maker(Protocol):
    """One direction of a composition."""

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        """Sharp near epsilon, where log delta is about `size`: to that share of it, or of 1."""

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        """Upper bounds on log delta that cost little, good near epsilon."""

    def least(self, epsilons: Array) -> Array:
        """Lower bounds on log delta that cost next to nothing."""

    def glance(self, epsilons: Array) -> Array:
        """And such as cost some ten milliseconds, at ascending epsilons."""

    @property
    def largest(self) -> float:
        """From here on delta is 0."""

    @property
    def one_sided(self) -> bool:
        """Whether curves are sharp to the left of where they were set up, and hardly to the right."""


@dataclass
class Whole:
    """A curve that is sharp everywhere."""

    known: Curve
    largest: float = math.inf
    one_sided: bool = False

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        return self.known

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return np.zeros(epsilons.shape)

    def least(self, epsilons: Array) -> Array:
        return np.full(epsilons.shape, -np.inf)

    def glance(self, epsilons: Array) -> Array:
        return self.least(epsilons)


@dataclass
class Binned:
    """Steps of any kind: without bins where losses decay, or by two laws that enclose them.

    These are told by lines, by sums on two lattices where lines tell little, or by sums of large losses in logarithms.

    Where losses are continuous, paths are sorted by their largest loss: many small losses or a large one may decide.
    """

    steps: Steps
    one_sided: bool = False
    blunt: list[float] = field(default_factory=list)
    """Where lines told less than sums on two lattices."""
    unsummed: list[float] = field(default_factory=list)
    """And where these told less."""
    torn: list[float] = field(default_factory=list)
    """Where large losses were too far apart on a lattice."""

    @cached_property
    def task(self) -> scattered.Task:
        return scattered.Task.of(self.steps)

    @cached_property
    def sums(self) -> scales.Task:
        return scales.Task(self.steps)

    @cached_property
    def largest(self) -> float:
        return largest_total(self.steps)

    @cached_property
    def _largest_finite(self) -> tuple[float, float]:
        return largest_finite(self.steps)

    def _leaked(self, epsilons: Array) -> tuple[Array, Array]:
        """Beyond all finite losses."""
        total, log_leak = self._largest_finite
        return np.full(epsilons.shape, self._log_leak), np.where(epsilons >= total, log_leak, 0.0)

    @cached_property
    def _log_leak(self) -> float:
        leak = least_delta(self.steps)
        return math.log(leak) if leak > 0 else -math.inf

    @cached_property
    def _near_top(self) -> tuple[float, float]:
        return near_top(self.steps)

    def least(self, epsilons: Array) -> Array:
        log_mass, total = self._near_top
        near = log_mass + np.log(np.maximum(-np.expm1(np.minimum(epsilons - total, 0.0)), 0.0)) - 1e-12
        return np.maximum(near, self._log_leak)

    def glance(self, epsilons: Array) -> Array:
        return log_deltas(self.steps, epsilons)

    @cached_property
    def look(self) -> Rough | None:
        """None where no step needs bins, and lines are as sharp as they are wanted."""
        return rough_look(self.steps) if heavy.serves(self.steps) and self.task.open else None

    def rough(self, epsilons: Array) -> Array:
        """About log delta."""
        if self.look is None:
            return self.task.rough_curve(epsilons)
        infinite = self.look.survey.infinite
        leak = math.log(infinite) if infinite > 0 else -math.inf
        sizes = [np.logaddexp.reduce(self.look.sizes(float(epsilon))) for epsilon in epsilons]
        return np.logaddexp(sizes, leak)

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        if epsilon >= self._largest_finite[0]:
            return self._leaked
        enough = tolerance * max(1.0, -size)
        found = self.smooth(epsilon, size, enough) or self.bins(epsilon, size, tolerance)
        if size > _DEEPLY or (found is not None and width_at(found, epsilon) <= max(enough, _FEW_DIGITS * -size)):
            return found
        return narrower(epsilon, found, self.sheet(epsilon, size, max(enough, _FEW_DIGITS * -size)))

    def sheet(self, epsilon: float, size: float, enough: float) -> Curve | None:
        """All smaller epsilons at once, by sums of large losses on a lattice: a few digits, where lines have none."""
        from hush.accounting.grouping import record

        if not epsilon > 0 or near(epsilon, self.torn, _BESIDE) or len(self.torn) >= _FAILED:
            return None
        slack = _OF_SLACK * enough * epsilon / -size
        found = record.curve(self.steps, _DEEPER * size - 10, slack, 2 * epsilon, (rare.curve,))
        if found is None or not width_at(found, epsilon) <= enough:
            self.torn.append(epsilon)
        return found

    def bins(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        """By lines or, where these tell little, by sums on two lattices, which serve smaller epsilons too."""
        enough = tolerance * max(1.0, -size)
        few = sum(count for _, count in self.steps) <= _FEW or not heavy.fits(self.steps)
        summed = self.look is not None and few and epsilon > 0 and not near(epsilon, self.unsummed)
        lines = None if summed and near(epsilon, self.blunt) else self.lines(epsilon, size, tolerance)
        width = math.inf if lines is None else width_at(lines, epsilon)
        if not summed or width <= max(_BLUNTEST[0] * enough, _BLUNTEST[1] * share(size)):
            return lines
        sums = self.sums.curve_at(epsilon, size, max(enough, _SUMMED * share(size)))
        if sums is not None and width_at(sums, epsilon) < width:
            self.blunt.append(epsilon)
            return sums
        self.unsummed.append(epsilon)
        return lines if lines is not None else self.lines(epsilon, size, tolerance)

    def lines(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        by_tails = heavy.fits(self.steps)
        if self.look is not None and (epsilon > 0 or by_tails):
            found = heavy.curve_at(self.look, epsilon, size, tolerance)
            if by_tails or width_at(found, epsilon) < _NOTHING or self.look.survey.infinite == 0:
                return found
        return scattered.curve_at(self.task, epsilon, size, tolerance)

    def smooth(self, epsilon: float, size: float, enough: float) -> Curve | None:
        """Without bins, where that is good enough."""
        serves = 0 < epsilon < _FURTHEST and decaying.fits(self.task.open)
        found = decaying.curve_at(self.task, epsilon, size, enough) if serves else None
        return found if found is not None and width_at(found, epsilon) <= enough else None

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        if self.look is not None and heavy.fits(self.steps):
            depth = math.ceil(math.log2(max(_GLANCED, -size)))
            if depth not in self._bounds:
                place = self.look.guess(-(2.0**depth))
                self._bounds[depth] = heavy.chernoff_near(self.look, place, -(2.0**depth))
            return self._bounds[depth](epsilons)
        if decaying.fits(self.task.open) and epsilon > 0:
            depth = math.ceil(4 * math.log2(max(_GLANCED, -size)))
            if depth not in self._bounds:
                self._bounds[depth] = decaying.Chernoff.of(self.task, epsilon, min(size, -1.0))
            return self._bounds[depth](epsilons)
        return scattered.chernoff_at(self.task, epsilons, epsilon, size)

    @cached_property
    def _bounds(self) -> dict[int, Chernoff | decaying.Chernoff]:
        """From one law each, for a depth and all that is less deep."""
        return {}


class Smooth(Binned):
    """Without bins, or not at all."""

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        if epsilon >= self._largest_finite[0]:
            return self._leaked
        return self.smooth(epsilon, size, tolerance * max(1.0, -size))


def near(epsilon: float, others: list[float], within: float = _NEARBY) -> int:
    """How many of them are nearby, by logs of epsilons."""
    return sum(abs(math.log(max(epsilon, 1e-300) / other)) < within for other in others)


def narrower(epsilon: float, *curves: Curve | None) -> Curve | None:
    """Of curves there, if there is one."""
    some = [one for one in curves if one is not None]
    return min(some, key=lambda one: width_at(one, epsilon), default=None)


def width_at(curve: Curve, epsilon: float) -> float:
    """How well log delta is known there."""
    lower, upper = ends_at(curve, epsilon)
    return upper - lower


def ends_at(curve: Curve, epsilon: float) -> tuple[float, float]:
    lower, upper = curve(np.array([epsilon]))
    return float(lower[0]), float(upper[0])


def share(size: float) -> float:
    """What a tolerance is a share of, where log delta is about `size`."""
    return min(max(1.0, -size), DEEP)
