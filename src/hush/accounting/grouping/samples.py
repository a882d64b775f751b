"""The curve of one direction of Gaussian steps on samples near an epsilon: a contour integral, or labelled ones.

One record removed or added or, where losses are large, replaced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.contours.line import Line, log_peak
from hush.accounting.gaussian import contour, jumps
from hush.accounting.gaussian.composition import Composition, chernoff_curve
from hush.accounting.gaussian.jumps import Jumps
from hush.accounting.gaussian.landing import few_jumps_log_delta, sum_of_log_deltas
from hush.accounting.grouping.makers import Binned, ends_at, narrower, near, width_at
from hush.accounting.pairs.losses import Array

_BINS_KNOW = -100.0  # a log delta above which they tell about what it is
_MANY = -100.0  # a log delta for which many losses decide
_NEGLIGIBLE = -36.0, -24.0, -16.0  # logs of what a line may miss: where the first takes too many nodes, more
_LARGE = -30.0  # a log delta for which losses are mostly large
_ORDERS = np.geomspace(0.8, 1.25, 21)  # as parts of a line's own
_BLUNT = 0.3  # of log delta: known no better, bins cost less than labelled integrals
_FURTHER = 1.5  # as deep as that a line may be asked, as a multiple of its own log delta
_DEEPER_STILL = 1.5  # times a log delta for which that was so
_DEEPER = 8.0  # logs: labelled integrals so much sharper than they need be serve far to the left
_LEFT = 0.2  # of an epsilon: how far down labelled integrals are to serve as well
_RIGHT = 1.1  # times it: where they are set up
_FAILED = 2  # times, and others would as well
_MUCH_DEEPER = 1.3  # times a log delta: where a few jumps say that, many small losses may decide


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
    before: Jumps | None = None
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
        lost = near(epsilon, self.lost)
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

    def glance(self, epsilons: Array) -> Array:
        return self.binned.glance(epsilons)

    def jumps(self, epsilon: float, size: float, enough: float) -> Curve | None:
        steps, remove = self.composition.steps, self.direction == contour.REMOVE
        left, here = (few_jumps_log_delta(steps, self.direction, end) for end in (_LEFT * epsilon, epsilon))
        size = max(size, here)
        best, narrowest = None, math.inf
        # curves are sharp to the left of where they are set up: that is a little further out, if not too far
        for at in (_RIGHT * epsilon, epsilon) if remove else (epsilon,):
            few = here if at == epsilon else few_jumps_log_delta(steps, self.direction, at)
            also = (_LEFT * epsilon, left) if at > epsilon else None
            found, width = self._jumps_at(at, epsilon, size + few - here, few, enough, also)
            if found is not None and (best is None or width < narrowest):
                best, narrowest = found, width
            if narrowest <= enough:
                break
        return None if best is None or not narrowest < 0.3 else best.log_delta

    def _jumps_at(
        self, at: float, epsilon: float, size: float, few: float, enough: float, also: tuple[float, float] | None
    ) -> tuple[Jumps | None, float]:
        """Set up there, as sharp at epsilon as can be, and how wide."""
        best, narrowest, failed = None, math.inf, 0
        if few > _MUCH_DEEPER * size:
            size = min(size, few)  # taken for larger than it is, delta is left without what makes it up
        for k in range(4):
            aim = float(np.clip(math.log(enough) - _DEEPER - 3 * k, -20.0, -12.0 - 3 * k))
            found = jumps.jumps(self.composition.steps, self.direction, at, size, aim, self.before, also)
            lower, upper = (-math.inf, 0.0) if found is None else ends_at(found.log_delta, at)
            if found is None or (math.isinf(lower) and upper == 0):
                failed += 1
                if failed == _FAILED:
                    break
                size = min(size - 12, few)
                continue
            self.before = found
            width = width_at(found.log_delta, epsilon)
            if best is None or width < narrowest:
                best, narrowest = found, width
            if narrowest <= enough or (upper - lower <= enough < _BLUNT < width):
                break
            size = min(0.5 * (lower + upper) if math.isfinite(lower) else upper - 6, -0.7)
        return best, narrowest


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
        return narrower(epsilon, deep, found)

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return self.binned.bound(epsilons, epsilon, size)

    def least(self, epsilons: Array) -> Array:
        return self.binned.least(epsilons)

    def glance(self, epsilons: Array) -> Array:
        return self.binned.glance(epsilons)

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
        if self.composition.gaussian > 0 or epsilon <= self.composition.most_added or near(epsilon, self.lost):
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
