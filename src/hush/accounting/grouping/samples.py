"""The curve of one direction of Gaussian steps on samples near an epsilon: by one contour integral, or by bins.

One record removed or added or, where losses are large, replaced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.contours.line import Line, log_peak
from hush.accounting.gaussian import contour
from hush.accounting.gaussian.composition import Composition, chernoff_curve
from hush.accounting.gaussian.landing import sum_of_log_deltas
from hush.accounting.grouping.makers import Binned, narrower, width_at
from hush.accounting.pairs.losses import Array

_BINS_KNOW = -100.0  # a log delta above which they tell about what it is
_MANY = -100.0  # a log delta for which many losses decide
_NEGLIGIBLE = -36.0, -24.0, -16.0  # logs of what a line may miss: where the first takes too many nodes, more
_LARGE = -30.0  # a log delta for which losses are mostly large
_ORDERS = np.geomspace(0.8, 1.25, 21)  # as parts of a line's own
_FURTHER = 1.5  # as deep as that a line may be asked, as a multiple of its own log delta
_DEEPER_STILL = 1.5  # times a log delta for which that was so


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
    """Gaussian steps on Poisson samples: one contour integral or, where a few large losses decide, bins."""

    composition: Composition
    direction: int
    binned: Binned
    failed: float = 0.0
    """Where one contour integral took too many nodes: nearby, to the left, it would as well."""
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
        line, saddle = None, 0.0
        if not 0.1 * self.failed < epsilon < 1.02 * self.failed:
            _, line, saddle = _line(self.composition, self.direction, epsilon)
        if line is not None and width_at(line.log_delta, epsilon) <= tolerance * max(1.0, -size):
            return line.log_delta
        self.failed = epsilon if line is None and saddle < 0 else self.failed
        if self.direction == contour.REMOVE and min(saddle, size) < _BINS_KNOW:
            size = float(self.tails(np.array([epsilon]), np.array([min(saddle, size)]))[0])
        elif saddle < _MANY:
            size = saddle
        return self.binned.curve(epsilon, size, tolerance)

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return chernoff_curve(self.composition, self.direction, epsilons, min(size, -690.0))

    def least(self, epsilons: Array) -> Array:
        return np.full(epsilons.shape, -np.inf)

    def glance(self, epsilons: Array) -> Array:
        return self.binned.glance(epsilons)


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
            deep = None if tried else self._deep(epsilon)
        return narrower(epsilon, deep, found)

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return self.binned.bound(epsilons, epsilon, size)

    def least(self, epsilons: Array) -> Array:
        return self.binned.least(epsilons)

    def glance(self, epsilons: Array) -> Array:
        return self.binned.glance(epsilons)

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
