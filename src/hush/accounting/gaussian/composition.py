"""Steps on Poisson samples together, and what is known about them without an integral."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr, ndtr

from hush.accounting.contours.crossing import EPSILON_LIMIT, Curve
from hush.accounting.contours.line import log_peak
from hush.accounting.contours.thinning import thinned
from hush.accounting.gaussian import contour, landing
from hush.accounting.gaussian.closed import gaussian_curve, single_curve
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.gaussian.transform import Array, Step
from hush.accounting.pairs.losses import GaussianPair, Pair, Poisson

QUIETLY = np.errstate(all="ignore")
"""Overflows and NaNs are expected in corners and never pass for a bound: all that is returned has been compared."""


@dataclass(frozen=True)
class Composition:
    """Steps with a sampling rate below one, and the mu^2 of all the others together."""

    steps: tuple[Step, ...]
    gaussian: float = 0.0

    @property
    def most_added(self) -> float:
        """The largest total loss in the add direction, if no plain Gaussian is among the steps; from above."""
        return math.fsum(-step.count * np.log1p(-step.rate) for step in self.steps) * (1 + 1e-12)

    @property
    def is_single(self) -> bool:
        return self.gaussian == 0 and len(self.steps) == 1 and self.steps[0].count == 1

    @property
    def few(self) -> Composition:
        """Some of many kinds of steps, counted for all: for searches."""
        return replace(self, steps=tuple(thinned(self.steps)))

    @property
    def hits(self) -> float:
        """How often the record is drawn, on average."""
        return sum(step.count * step.rate for step in self.steps)

    def pairs(self, direction: int) -> list[tuple[Pair, int]]:
        pairs: list[tuple[Pair, int]] = []
        for step in self.steps:
            pair: Pair = Poisson(GaussianPair(1 / step.noise), step.rate)
            pairs.append((pair if direction == REMOVE else pair.reverse(), int(step.count)))
        if self.gaussian > 0:
            pairs.append((GaussianPair(float(np.sqrt(self.gaussian))), 1))
        return pairs


def closed_curve(composition: Composition, direction: int) -> Curve:
    """The curve of a single step, or of plain Gaussians."""
    if composition.steps:
        return single_curve(composition.steps[0], direction)
    return gaussian_curve(composition.gaussian)


@QUIETLY
def chernoff_curve(composition: Composition, direction: int, epsilons: Array, deepest: float = -690.0) -> Array:
    """Upper bounds on log delta that cost next to nothing, of use down to about the deepest."""
    if composition.is_single:
        return np.zeros(len(epsilons))
    task = contour.problem(composition.steps, composition.gaussian, direction, deepest)
    scale = max(float(np.max(epsilons)), 1e-12)
    points = np.geomspace(0.3, 1e5, 60) / scale
    exponents = task.log_mgf(points) + log_peak(points) - np.multiply.outer(epsilons, points)
    bound = np.logaddexp(exponents.min(axis=1) + 1e-6, task.log_dropped)
    if direction == ADD and composition.gaussian == 0:
        bound = np.where(epsilons >= composition.most_added, -np.inf, bound)
    return np.asarray(np.minimum(bound, 0.0))


def is_hopeless(composition: Composition, direction: int, target: float) -> bool:
    """Whether delta(1e4) is above the target, so near 1 that Chernoff's inequality sees it."""
    short = log_short_of_one(composition, direction, np.array([EPSILON_LIMIT]))[0]
    return bool(short < np.log(-np.expm1(target)))


def log_total_variation(composition: Composition, direction: int) -> float:
    """log of an upper bound on delta(0): total variations add up at most, and without a hit there is none."""
    untouched = sum(step.count * np.log1p(-step.rate) for step in composition.steps)
    added = float(landing.sum_of_log_deltas(composition.steps, direction, np.zeros(1))[0])
    return min(added, float(np.log(-np.expm1(untouched))))


def log_surely_exceeded(composition: Composition) -> float:
    """log of a lower bound on delta(1e4): P(A) - e^eps Q(A) for A = {some x above t}, whatever t (remove)."""
    best = -np.inf
    for short in (0.0, 2.0, 4.0, 8.0):
        log_none, log_absent = 0.0, -np.inf
        for step in composition.steps:
            tail = float(log_ndtr(short - 1 / step.noise))
            log_none += step.count * float(np.log1p(-step.rate * ndtr(short) - (1 - step.rate) * np.exp(tail)))
            log_absent = float(np.logaddexp(log_absent, np.log(step.count) + tail))
        kept = float(-np.expm1(log_none) - 1.001 * np.exp(min(EPSILON_LIMIT + log_absent, 700.0)))
        best = max(best, float(np.log(kept))) if kept > 0 else best
    return best


def log_short_of_one(composition: Composition, direction: int, epsilons: Array) -> Array:
    """log of upper bounds on 1 - delta: exp(Lambda(t) - t eps) for any -1 <= t <= 0, by Chernoff."""
    task = contour.problem(composition.steps, composition.gaussian, direction, -40.0)
    points = contour.place(np.linspace(-12.0, 12.0, 25), complement=True)
    bounds = np.min(task.log_mgf(points) - np.multiply.outer(epsilons, points), axis=1) + 1e-6
    return np.asarray(np.logaddexp(bounds, task.log_dropped) + 1e-9)
