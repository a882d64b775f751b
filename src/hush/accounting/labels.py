"""Random labels for steps whose losses span many scales: bulk, middle or huge, by where x fell.

A step is bulk with probability Phi((low-x)/w), huge with Phi((x-high)/w'), else middle.  This file chooses low and
high such that what jumps.py takes for sure fails with a negligible part of the delta in question, and has the moment
generating functions of bulk and middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from hush.accounting import transform
from hush.accounting.contour import ADD, REMOVE, chernoff, problem
from hush.accounting.transform import Array, Grid, Numbers, Step

LOG_CERTAIN = 30.0
"""What is certain but for a chance of exp(-30) counts as certain, and the chance as error."""
_NARROW = 1 / 8
_LEAST_TAIL = 9.0
"""Widths by which a label runs out: its cut is then small beside the tilted law, not only beside the law itself."""


@dataclass(frozen=True)
class Labels:
    """One kind of step, where its labels change, and a grid for the x of each label.

    Bulk labels beyond the end of their grid, and middle labels beyond theirs, are dropped: their mass is negligible,
    their tilted mass need not be.
    """

    bulk_grid: Grid
    middle_grid: Grid
    low: float
    high: float
    width: float
    """Width of the change from bulk to middle; from middle to huge it is an eighth of this."""

    @property
    def step(self) -> Step:
        return self.bulk_grid.step

    @property
    def narrow(self) -> float:
        return self.width * _NARROW

    @cached_property
    def bulk(self) -> Array:
        return ndtr((self.low - self.bulk_grid.nodes) / self.width)

    @cached_property
    def log_middle(self) -> Array:
        x = self.middle_grid.nodes
        below = ndtr((x - self.low) / self.width) - ndtr((x - self.high) / self.narrow)
        above = ndtr((self.high - x) / self.narrow) - ndtr((self.low - x) / self.width)
        with np.errstate(divide="ignore"):
            window = np.log(np.maximum(np.where(x < 0.5 * (self.low + self.high), below, above), 0.0))
        return self.middle_grid.log_weight + window

    def bulk_excess(self, powers: Numbers) -> Numbers:
        """E[g^r; bulk] - 1."""
        spread = np.sqrt(1 + self.width**2)
        left_absent, left_present = transform.tail_masses(self.step, self.bulk_grid.left, np.inf)
        absent = float(ndtr(-self.low / spread)) + left_absent
        present = float(ndtr((1 / self.step.noise - self.low) / spread)) + left_present
        excess = transform.excess(self.bulk_grid, powers, self.bulk)
        result: Numbers = excess - absent - powers * self.step.rate * (present - absent)
        return result

    def middle_mgf(self, powers: Numbers) -> Numbers:
        """E[g^r; middle]."""
        exponents = np.multiply.outer(powers, self.middle_grid.loss) + self.log_middle
        result: Numbers = np.exp(exponents).sum(axis=-1)
        return result

    @property
    def log_dropped(self) -> float:
        """log of a bound on the mass of dropped labels, under either law."""
        parts = [
            transform.log_tail(self.step, self.bulk_grid.right)
            + log_ndtr((self.low - self.bulk_grid.right) / self.width),
            transform.log_tail(self.step, self.middle_grid.right)
            + log_ndtr((self.high - self.middle_grid.right) / self.narrow),
            log_ndtr((self.middle_grid.left - self.low) / self.width),
            log_ndtr(self.bulk_grid.left),
        ]
        return float(np.logaddexp.reduce(parts))


def loss_position(step: Step, loss: float) -> float:
    """The x at which log g(x) is `loss`; -inf where no x gives so small a loss."""
    argument = np.expm1(min(loss, 600.0)) / step.rate
    if argument <= -1:
        return -np.inf
    exponent = np.log1p(argument) if loss < 600 else loss - np.log(step.rate)
    return float(step.noise * (exponent + 0.5 / step.noise**2))


def bulk_points(epsilon: float) -> Array:
    return np.geomspace(1.0, 3000.0, 32) / epsilon


def reach_below(steps: Sequence[Step]) -> float:
    """A number that the sum of -log g over all steps exceeds with probability exp(-30) at most, under N(0, 1).

    The sum of -log(1-p) bounds it for sure; Chernoff's inequality, with E[g^-t], often does better.
    """
    surely = float(sum(-step.count * np.log1p(-step.rate) for step in steps))
    task = problem(steps, 0.0, ADD, -20.0)
    points = np.geomspace(0.1, 1e4, 40) / surely
    likely = float(np.min((task.log_mgf(points) + 1e-6 + LOG_CERTAIN) / points))
    return min(surely, likely)


def choose_labels(steps: Sequence[Step], direction: int, epsilon: float, log_target: float) -> list[Labels] | None:
    """Thresholds for which what is 'for sure' fails with a billionth of the delta in question."""
    reach = reach_below(steps)
    total = sum(step.count for step in steps)
    budget = log_target - 19.0
    sure = epsilon + reach if direction == REMOVE else reach - epsilon
    if direction == ADD and sure <= 0:
        return None
    highs = [_misplaced_high(step, sure, direction, epsilon, budget, total) for step in steps]
    if direction == ADD:
        lows = [_misplaced_low(step, -epsilon / total, epsilon, budget, total) for step in steps]
        return (
            None if not np.all(np.isfinite(lows)) else _build(steps, lows, highs, epsilon, budget - np.log(total) - 8)
        )
    points = bulk_points(epsilon)

    if _too_long(steps, epsilon, [loss_position(step, epsilon) for step in steps], highs):
        return None

    def with_bulk_below(lowering: int) -> tuple[list[Labels], bool]:
        lows = [loss_position(step, epsilon) - 0.5 * lowering * _width(step, epsilon) for step in steps]
        labels = _build(steps, lows, highs, epsilon, budget - np.log(total) - 8)
        return labels, chernoff(lambda c: bulk_log_mgf(labels, direction, c), epsilon, points) < budget

    few, many = 0, 8
    while not with_bulk_below(many)[1]:
        few, many = many, 2 * many
        if many > 512:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if with_bulk_below(middle)[1] else (middle, many)
    return with_bulk_below(many)[0]


def _width(step: Step, epsilon: float) -> float:
    """A third of an e-fold of small losses, or a sixtieth of a large epsilon, in units of x."""
    return float(min(step.noise * max(1 / 3, epsilon / 60), 0.5))


def _misplaced_high(step: Step, sure: float, direction: int, epsilon: float, budget: float, total: int) -> float:
    """The smallest x2 (in quarters of a width) for which a huge label below the sure point is improbable."""
    point, width = loss_position(step, sure), _width(step, epsilon) * _NARROW
    for out in np.arange(2.0, 60.0, 0.25):
        high = point + out * width
        if log_misplaced(point, high, width, step, False) + max(epsilon, 0.0) + np.log(2 * total) < budget:
            return float(high)
    return point + 60 * width


def _misplaced_low(step: Step, sure: float, epsilon: float, budget: float, total: int) -> float:
    point, width = loss_position(step, sure), _width(step, epsilon)
    if not np.isfinite(point):
        return -np.inf
    for out in np.arange(2.0, 60.0, 0.25):
        low = point - out * width
        if log_misplaced(point, low, width, step, True) + epsilon + np.log(2 * total) < budget:
            return float(low)
    return -np.inf


def log_misplaced(point: float, threshold: float, width: float, step: Step, above: bool) -> float:
    """log of a bound on the chance that x is on the wrong side of `point` and yet labelled across `threshold`.

    A label above b means x + w z > b with z standard normal.  Three bounds on P(x < a, x + w z > b): Phi(-(b-a)/w);
    P(x + w z > b); and, since the logarithm of the integrand over x rises at least at the rate v = (b-a)/w^2 - (a-m)
    up to a, where x has mean m, also Phi(-(b-a)/w) phi(a-m) / v.  Below a threshold is the mirror image.
    """
    sign = -1.0 if above else 1.0
    log_gap = float(log_ndtr(-sign * (threshold - point) / width))
    worst = -np.inf
    for mean in (0.0, 1 / step.noise) if above else (0.0,):
        a, b = sign * (point - mean), sign * (threshold - mean)
        rate = (b - a) / width**2 - a
        density = -0.5 * a * a - 0.919 - np.log(rate) if rate > 0 else np.inf
        worst = max(worst, min(log_gap, float(log_ndtr(-b / np.sqrt(1 + width**2))), log_gap + density))
    return float(worst)


def _build(
    steps: Sequence[Step], lows: Sequence[float], highs: Sequence[float], epsilon: float, log_mass: float
) -> list[Labels]:
    labels = []
    out = float(-ndtri_exp(log_mass))
    for step, low, high in zip(steps, lows, highs, strict=True):
        width = _width(step, epsilon)
        right = _tail_end(step, high, width * _NARROW, log_mass)
        bulk_end = min(_tail_end(step, low, width, log_mass), right)
        bulk = _grid(step, min(-out, low - width), bulk_end, 0.6 * width)
        middle = _grid(step, low - out * width, right, 0.6 * width * _NARROW)
        labels.append(Labels(bulk, middle, low, high, width))
    return labels


def _too_long(steps: Sequence[Step], epsilon: float, lows: Sequence[float], highs: Sequence[float]) -> bool:
    """Whether the grids would be longer than makes sense: then jumps don't decide."""
    spans = [(high - low) / _width(step, epsilon) for step, low, high in zip(steps, lows, highs, strict=True)]
    return not all(span < 600 for span in spans)


def _grid(step: Step, left: float, right: float, spacing: float) -> Grid:
    size = int(np.ceil((right - left) / spacing))
    return Grid(step, left, (right - left) / size, size)


def _tail_end(step: Step, threshold: float, width: float, budget: float) -> float:
    """An x beyond which a label that should have ended at `threshold` has a mass below exp(budget)."""
    for out in np.arange(_LEAST_TAIL, 60.0, 0.25):
        if transform.log_tail(step, threshold + out * width) + log_ndtr(-out) < budget:
            return float(threshold + out * width)
    return threshold + 60 * width


def bulk_log_mgf(labels: Sequence[Labels], direction: int, points: Array) -> Array:
    powers = 1 + points if direction == REMOVE else -points
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        total = sum(label.step.count * np.log1p(label.bulk_excess(powers).real) for label in labels)
    return np.where(np.isnan(total), np.inf, total)
