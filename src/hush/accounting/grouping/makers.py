"""The curve of one direction of a composition near an epsilon: a contour integral, labelled ones, or bins.

Gaussian steps on Poisson samples, one record removed or, where losses are large, replaced; steps of any kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.contours.line import Line, log_peak
from hush.accounting.gaussian import contour, jumps
from hush.accounting.gaussian.landing import few_jumps_log_delta, sum_of_log_deltas
from hush.accounting.gaussian.subsampled import Composition, chernoff_curve
from hush.accounting.lattices import deep, scales
from hush.accounting.mixed import decaying, scattered
from hush.accounting.pairs.bounded import largest_finite, largest_total, near_top
from hush.accounting.pairs.hopeless import least_delta
from hush.accounting.pairs.losses import Array
from hush.accounting.tails import heavy
from hush.accounting.tails.cells import Rough, Steps, rough_look
from hush.accounting.tails.sides import Chernoff

DEEP = 200.0
"""A log delta below minus that is known no less well."""
_BINS_KNOW = -100.0  # a log delta above which they tell about what it is
_DEEPLY = -100.0  # a log delta below which lattices are tried before lines
_MANY = -100.0  # a log delta for which many losses decide
_NEGLIGIBLE = -36.0, -24.0, -16.0  # logs of what a line may miss: where the first takes too many nodes, more
_LARGE = -30.0  # a log delta for which losses are mostly large
_ORDERS = np.geomspace(0.8, 1.25, 21)  # as parts of a line's own
_BLUNTEST = 3.0, 2e-3  # times what is wanted, and of log delta: lines that are no wider are not worth other sums
_SUMMED = 1e-4  # of log delta: what sums are asked for at most
_NOTHING = 1.0  # of log delta: known no better, leaks were taken for losses that decide
_BLUNT = 0.3  # of log delta: known no better, bins cost less than labelled integrals
_FURTHEST = 1e6  # an epsilon that no link needs
_NEARBY = 0.7  # logs of epsilons
_FURTHER = 1.5  # as deep as that a line may be asked, as a multiple of its own log delta
_DEEPER_STILL = 1.5  # times a log delta for which that was so
_DEEPER = 8.0  # logs: labelled integrals so much sharper than they need be serve far to the left
_LEFT = 0.2  # of an epsilon: how far down labelled integrals are to serve as well
_RIGHT = 1.1  # times it: where they are set up
_MUCH_DEEPER = 1.3  # times a log delta: where a few jumps say that, many small losses may decide
_GLANCED = 16.0  # minus the log of a delta for which bins are good enough for a glance at all larger ones


class Maker(Protocol):
    """One direction of a composition."""

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        """Sharp near epsilon, where log delta is about `size`: to that share of it, or of 1."""

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        """Upper bounds on log delta that cost little, good near epsilon."""

    def least(self, epsilons: Array) -> Array:
        """Lower bounds on log delta that cost next to nothing."""

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


@dataclass
class Binned:
    """Steps of any kind: bins, and lines for each of the two laws that enclose the composition.

    Where losses are continuous, paths are sorted by their largest loss: many small losses or a large one may decide.
    """

    steps: Steps
    one_sided: bool = False
    blurred: list[float] = field(default_factory=list)
    """Where a tilted lattice was too coarse."""
    blunt: list[float] = field(default_factory=list)
    """Where lines told less than sums on two lattices."""
    unsummed: list[float] = field(default_factory=list)
    """And where these told less."""

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
        enough = tolerance * max(1.0, -size)
        if epsilon >= self._largest_finite[0]:
            return self._leaked
        found = self.smooth(epsilon, size, enough) or self.deep(epsilon, size, enough)
        return found or self.bins(epsilon, size, tolerance)

    def deep(self, epsilon: float, size: float, enough: float) -> Curve | None:
        """On a tilted lattice, where that is good enough; bins of projected norms cost too much for that."""
        if (
            self.look is None
            or heavy.fits(self.steps)
            or not epsilon > 0
            or size > _DEEPLY
            or _near(epsilon, self.blurred)
        ):
            return None
        found = deep.curve_at(self.steps, epsilon, size, enough)
        if found is not None and width_at(found, epsilon) <= enough:
            return found
        self.blurred.append(epsilon)
        return None

    def bins(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        """By lines or, where these tell little, by sums on two lattices, which serve smaller epsilons too."""
        enough = tolerance * max(1.0, -size)
        summed = self.look is not None and not heavy.fits(self.steps) and epsilon > 0
        summed = summed and not _near(epsilon, self.unsummed)
        lines = None if summed and _near(epsilon, self.blunt) else self.lines(epsilon, size, tolerance)
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


@dataclass
class Tails:
    """About log delta deep in the tail, one record removed, which bins know little of."""

    composition: Composition

    @cached_property
    def _saddles(self) -> tuple[Array, Array, Array]:
        return contour.deep_saddles(self.composition.steps, self.composition.gaussian)

    def __call__(self, epsilons: Array, logs: Array) -> Array:
        """By the saddle point, or by one large loss where that decides, if it is said to be deep."""
        if not (logs < _BINS_KNOW).any():
            return logs
        at, saddles, alone = self._saddles
        if at.size < 2:
            return logs
        places = np.log(epsilons)
        deep = -np.exp(np.interp(places, np.log(at), np.log(-saddles)))
        if self.composition.gaussian == 0:
            one = sum_of_log_deltas(self.composition.steps, contour.REMOVE, epsilons)
            deep = np.where(np.interp(places, np.log(at), alone) > 0.5, np.minimum(one, deep), deep)
        return np.where((logs < _BINS_KNOW) & (epsilons >= at[0]) & (epsilons <= at[-1]), deep, logs)


@dataclass
class Sampled:
    """Gaussian steps on Poisson samples: one contour integral, or, where a few large losses decide, labelled ones."""

    composition: Composition
    direction: int
    binned: Binned
    before: jumps.Jumps | None = None
    failed: float = 0.0
    """Where one contour integral took too many nodes: nearby, to the left, it would as well."""
    lost: list[float] = field(default_factory=list)
    """Where labelled ones said little: nearby bins are asked first, and after two such losses alone."""
    one_sided: bool = True

    @cached_property
    def tails(self) -> Tails:
        return Tails(self.composition)

    def rough(self, epsilons: Array) -> Array:
        return self.tails(epsilons, self.binned.rough(epsilons))

    @property
    def largest(self) -> float:
        bounded = self.direction == contour.ADD and self.composition.gaussian == 0
        return self.composition.most_added if bounded else math.inf

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        enough = tolerance * max(1.0, -size)
        line, saddle = None, 0.0
        if not 0.1 * self.failed < epsilon < 1.02 * self.failed:
            _, line, saddle = _line(self.composition, self.direction, epsilon)
        if line is not None and width_at(line.log_delta, epsilon) <= enough:
            return line.log_delta
        self.failed = epsilon if line is None and saddle < 0 else self.failed
        if self.direction == contour.REMOVE and min(saddle, size) < _BINS_KNOW:
            size = float(self.tails(np.array([epsilon]), np.array([min(saddle, size)]))[0])
        elif saddle < _MANY:
            size = saddle
        lost = _near(epsilon, self.lost)
        binned = self.binned.curve(epsilon, size, tolerance) if lost > 0 or enough > _BLUNT else None
        if binned is not None and (lost > 1 or width_at(binned, epsilon) <= enough):
            return binned
        found = self.jumps(epsilon, size, enough) if self.composition.gaussian == 0 and epsilon > 0 else None
        if found is None and epsilon > 0:
            self.lost.append(epsilon)
        return found or binned or self.binned.curve(epsilon, size, tolerance)

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return chernoff_curve(self.composition, self.direction, epsilons, min(size, -690.0))

    def least(self, epsilons: Array) -> Array:
        return np.full(epsilons.shape, -np.inf)

    def jumps(self, epsilon: float, size: float, enough: float) -> Curve | None:
        best, narrowest = None, math.inf
        remove = self.direction == contour.REMOVE
        # curves are sharp to the left of where they are set up: that is a little further out
        ends = (_LEFT * epsilon, epsilon, _RIGHT * epsilon if remove else epsilon)
        left, here, few = (few_jumps_log_delta(self.composition.steps, self.direction, end) for end in ends)
        size += few - here
        if few > _MUCH_DEEPER * size:
            size = min(size, few)  # taken for larger than it is, delta is left without what makes it up
        also = (ends[0], left) if remove else None
        for k in range(4):
            aim = float(np.clip(math.log(enough) - _DEEPER - 3 * k, -20.0, -12.0 - 3 * k))
            found = jumps.jumps(self.composition.steps, self.direction, ends[2], size, aim, self.before, also)
            lower, upper = (-math.inf, 0.0) if found is None else _at(found.log_delta, ends[2])
            if found is None or (math.isinf(lower) and upper == 0):
                size = min(size - 12, few)
                continue
            self.before = found
            width = width_at(found.log_delta, epsilon)
            if best is None or width < narrowest:
                best, narrowest = found, width
            if narrowest <= enough:
                break
            size = min(0.5 * (lower + upper) if math.isfinite(lower) else upper - 6, -0.7)
        return None if best is None or not narrowest < 0.3 else best.log_delta


@dataclass
class Replaced:
    """Gaussian steps on samples, one record replaced, where many losses are large: as if one were removed.

    C_p has the Poisson pair's losses where these are positive, and at most a mass of 1 at losses that are not.  So its
    delta is at least that of removing a record, and, with M the moment generating function of a step of that, at most
    this and k(t) e^{-t eps} ((1 + M(t))^T - M(t)^T) for any t > 0: what paths add on which some loss is not positive.
    And losses that are not positive are at most 0, where removing a record has no less than log(1-p): delta(eps) is at
    most that of removing a record at eps + T log(1-p).
    """

    composition: Composition
    binned: Binned
    deep_from: float = _LARGE
    """Below that log delta one contour integral may do; above it was seen not to."""
    lost: list[float] = field(default_factory=list)
    """Where labelled ones said little."""
    largest: float = math.inf
    one_sided: bool = False

    @cached_property
    def tails(self) -> Tails:
        return Tails(self.composition)

    def rough(self, epsilons: Array) -> Array:
        return self.tails(epsilons, self.binned.rough(epsilons))

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        enough = tolerance * max(1.0, -size)
        tried = size < self.deep_from
        deep = self._deep(epsilon) if tried else None
        if deep is not None and width_at(deep, epsilon) <= enough:
            return deep
        self.deep_from = min(self.deep_from, _DEEPER_STILL * size) if tried else self.deep_from
        found = self.binned.curve(epsilon, size, tolerance)
        if found is not None and width_at(found, epsilon) <= enough:
            return found
        if size < _LARGE and deep is None:
            deep = (None if tried else self._deep(epsilon)) or self._few(epsilon, size, enough)
        return min(
            (one for one in (deep, found) if one is not None), key=lambda one: width_at(one, epsilon), default=None
        )

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return self.binned.bound(epsilons, epsilon, size)

    def least(self, epsilons: Array) -> Array:
        return self.binned.least(epsilons)

    @cached_property
    def _removed(self) -> Sampled:
        return Sampled(self.composition, contour.REMOVE, self.binned)

    def _deep(self, epsilon: float) -> Curve | None:
        task, line, _ = _line(self.composition, contour.REMOVE, epsilon)
        if task is None or line is None:
            return None
        points = line.c * _ORDERS
        added = task.log_added(points) + log_peak(points)
        points, added = points[np.isfinite(added)], added[np.isfinite(added)]
        if points.size == 0:
            return None

        def curve(epsilons: Array) -> tuple[Array, Array]:
            lower, upper = line.log_delta(epsilons)
            more = (added - np.multiply.outer(epsilons, points)).min(axis=1)
            more += 1e-12 * (1 + np.abs(added).max() + float(np.abs(epsilons).max()) * float(points.max()))
            before = line.log_delta(epsilons - self.composition.most_added)[1]
            return lower, np.minimum(np.minimum(np.logaddexp(upper, more), before), 0.0)

        return curve

    def _few(self, epsilon: float, size: float, enough: float) -> Curve | None:
        """Where a few large losses decide, by the second of the two bounds alone."""
        if self.composition.gaussian > 0 or epsilon <= self.composition.most_added or _near(epsilon, self.lost):
            return None
        removed = self._removed.jumps(epsilon, float(self.tails(np.array([epsilon]), np.array([size]))[0]), enough)
        if removed is None:
            self.lost.append(epsilon)
            return None

        def curve(epsilons: Array) -> tuple[Array, Array]:
            return removed(epsilons)[0], removed(epsilons - self.composition.most_added)[1]

        return curve


def _line(
    composition: Composition, direction: int, epsilon: float
) -> tuple[contour.Problem | None, Line | None, float]:
    """One contour integral, cut so deep that it may be asked far around epsilon, and about log delta there."""
    try:
        task, c, size = contour.solve_for_epsilon(
            composition.steps, composition.gaussian, direction, epsilon, depth=_FURTHER
        )
    except contour.TooWideError:
        return None, None, 0.0
    lines = (contour.line(task, c, negligible) for negligible in _NEGLIGIBLE)
    return task, next((line for line in lines if line is not None), None), size


def _near(epsilon: float, others: list[float]) -> int:
    """How many of them are nearby."""
    return sum(abs(math.log(max(epsilon, 1e-300) / other)) < _NEARBY for other in others)


def width_at(curve: Curve, epsilon: float) -> float:
    """How well log delta is known there."""
    lower, upper = _at(curve, epsilon)
    return upper - lower


def _at(curve: Curve, epsilon: float) -> tuple[float, float]:
    lower, upper = curve(np.array([epsilon]))
    return float(lower[0]), float(upper[0])


def share(size: float) -> float:
    """What a tolerance is a share of, where log delta is about `size`."""
    return min(max(1.0, -size), DEEP)
