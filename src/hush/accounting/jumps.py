"""Certified delta(epsilon) where a few large losses decide: little noise, few steps, tiny rates.

There the loss of one step spans many scales: mostly a near-atom at log(1-p), and rarely a jump of any size between
p and infinity.  The plain contour integral (contour.py) would need millions of nodes.  So every step is labelled,
at random, by where its x fell,

    bulk (b0):  x below x0          middle (b1):  between          huge (b2):  x above x2

with smooth probabilities, b0 = Phi((x0-x)/w), b2 = Phi((x-x2)/w), and delta is the sum over the labels of all steps:

                             remove (losses l(x) = log g(x))              add (losses -l(x))
    some step huge           the total exceeds eps for sure: closed form  the total is below eps for sure: 0
    all bulk                 the total is below eps, by Chernoff: 0       the total exceeds eps for sure: closed form
    else (no huge, some      contour integral of (B0 + B1)^T - B0^T, whose middle part is smooth on the scale of eps,
    middle)                  so that a few hundred nodes do

"For sure" fails only in the Gaussian tails of the labels, and that mass is counted as error (docs/certificate.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr, ndtr

from hush.accounting import transform
from hush.accounting.contour import (
    ADD,
    REMOVE,
    Line,
    alias_free_spacing,
    chernoff_points,
    log1p,
    log_peak,
)
from hush.accounting.labels import (
    LOG_CERTAIN,
    Labels,
    bulk_log_mgf,
    bulk_points,
    choose_labels,
    log_misplaced,
    loss_position,
    reach_below,
)
from hush.accounting.transform import UNIT_ROUNDOFF, Array, Step, Window

_MOST_NODES = 40_000
_MOST_TERMS = 25_000_000
_FINEST = 8000
_CHUNK = 256
_LOG_NEGLIGIBLE = -22.0
_LOG_SMALLEST = -650.0
"""No delta below this is asked for; labels for one would need grids of any size."""


@dataclass(frozen=True)
class Jumps:
    """The integral set up around one epsilon; valid at any other, sharp near it."""

    labels: tuple[Labels, ...]
    direction: int
    line: Line
    epsilon: float
    bulk_points: Array
    bulk_values: Array
    """The bulk's log-MGF where Chernoff's inequality is tried on it."""

    def log_delta(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on log delta at each epsilon > 0."""
        lower, upper = np.zeros(len(epsilons)), np.ones(len(epsilons))
        for i, epsilon in enumerate(epsilons):
            if not self.epsilon / 30 < epsilon < self.epsilon * 30:
                continue
            low, high = self.line.log_delta(epsilons[i : i + 1])
            closed, error = _closed_form(self.labels, self.direction, float(epsilon))
            error += _misjudged(self.labels, self.direction, float(epsilon)) + abs(closed) * 64 * UNIT_ROUNDOFF
            if self.direction == REMOVE:
                tried = self.bulk_values - self.bulk_points * epsilon + log_peak(self.bulk_points)
                error += float(np.exp(min(tried.min() + 1e-6, 0.0)))
            lower[i] = max(np.exp(low[0]) + closed - error, 0.0)
            above = np.exp(high[0]) + closed + error
            upper[i] = min(above, 1.0) if above > 0 else 1.0
        with np.errstate(divide="ignore"):
            return np.log(lower), np.log(upper)


def jumps(steps: Sequence[Step], direction: int, epsilon: float, log_target: float) -> Jumps | None:
    """Set up for epsilon, where delta is about exp(log_target); None where this way has no answer."""
    labels = choose_labels(steps, direction, epsilon, max(log_target, _LOG_SMALLEST))
    line = None if labels is None else _line(labels, direction, epsilon)
    if labels is None or line is None:
        return None
    points = bulk_points(epsilon)
    return Jumps(tuple(labels), direction, line, epsilon, points, bulk_log_mgf(labels, direction, points))


def _log_mgf(labels: Sequence[Labels], direction: int, points: Array) -> Array:
    """log of (B0 + B1)^T - B0^T at real points, for each kind of step multiplied together."""
    powers = 1 + points if direction == REMOVE else -points
    bulk, ratio = np.zeros(points.shape), np.zeros(points.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for label in labels:
            part = np.maximum(1 + label.bulk_excess(powers).real, 1e-290)
            bulk += label.step.count * np.log(part)
            ratio += label.step.count * np.log1p(label.middle_mgf(powers).real / part)
        total: Array = bulk + np.where(ratio > 30, ratio, np.log(np.expm1(np.minimum(ratio, 30.0))))
    return np.where(np.isnan(total), np.inf, total)


def _closed_form(labels: Sequence[Labels], direction: int, epsilon: float) -> tuple[float, float]:
    """The labels whose total is on one side of epsilon for sure, and the mass beyond the grids."""
    dropped = 0.0
    log_absent, log_ratio = 0.0, 0.0
    for label in labels:
        step = label.step
        threshold, width = (label.high, label.narrow) if direction == REMOVE else (label.low, label.width)
        spread = np.sqrt(1 + width**2)
        log_below = float(log_ndtr(threshold / spread))
        log_hit_below = float(log_ndtr((threshold - 1 / step.noise) / spread))
        log_absent += step.count * log_below
        log_ratio += step.count * float(np.log1p(step.rate * np.expm1(log_hit_below - log_below)))
        dropped += step.count * float(np.exp(label.log_dropped))
    if direction == REMOVE:
        # P(some huge) - e^eps Q(some huge), with Q(none) = exp(log_absent) and P(none) = Q(none) exp(log_ratio)
        huge = -np.expm1(log_absent)
        inflated = (
            np.expm1(epsilon) * huge if epsilon < 1 else np.exp(min(epsilon + np.log(max(huge, 1e-300)), 700.0)) - huge
        )
        value = -np.exp(log_absent) * np.expm1(log_ratio) - inflated
    else:
        # P(all bulk) - e^eps Q(all bulk), with P = N(0, 1) and Q the mixture
        value = -np.exp(log_absent) * np.expm1(min(epsilon + log_ratio, 700.0))
    return float(value), dropped


def _misjudged(labels: Sequence[Labels], direction: int, epsilon: float) -> float:
    """What the labels get wrong: huge or bulk without the certainty assumed."""
    steps = [label.step for label in labels]
    reach, total = reach_below(steps), sum(step.count for step in steps)
    error = 0.0
    for label in labels:
        step = label.step
        point = loss_position(step, epsilon + reach if direction == REMOVE else reach - epsilon)
        misplaced = epsilon + log_misplaced(point, label.high, label.narrow, step, False)
        error += step.count * np.exp(min(misplaced, 700.0))
        if direction == ADD:
            point = loss_position(step, -epsilon / total)
            misplaced = epsilon + log_misplaced(point, label.low, label.width, step, True)
            error += step.count * np.exp(min(misplaced, 700.0))
        # a huge step, while the others are below -reach
        some_huge = np.log(step.count) + log_ndtr(-label.high / np.sqrt(1 + label.narrow**2))
        error += np.exp(min(epsilon + some_huge - LOG_CERTAIN, 700.0))
    return float(error)


def _line(labels: Sequence[Labels], direction: int, epsilon: float) -> Line | None:
    candidates = np.geomspace(0.02, 300.0, 48) / epsilon
    objective = _log_mgf(labels, direction, candidates) - candidates * epsilon - np.log(candidates * (candidates + 1))
    # Off the saddle point digits cancel, but the nodes may be further apart: a few digits buy many nodes.
    least = float(np.min(objective))
    if not np.isfinite(least):
        return None
    near = candidates[objective < least + 4]
    sound = [c for c in near if _log_cut(labels, direction, float(c)) < _LOG_NEGLIGIBLE - 4]
    tried = [_alias_free(labels, direction, epsilon, float(c)) for c in (sound or near)[::2]]
    spacing, c, value, points, values = max(tried, key=lambda one: one[0])
    height = 8 * spacing
    while (log_tail := _log_tail(labels, direction, c, height) - value) > _LOG_NEGLIGIBLE:
        height *= 1.25
        if height > _MOST_NODES * spacing:
            return None
    return _evaluate(labels, direction, c, spacing, height, value, log_tail, points, values)


def _log_cut(labels: Sequence[Labels], direction: int, c: float) -> float:
    """How large the tilted middle still is where its grid ends, beside the whole integrand at c."""
    power = 1 + c if direction == REMOVE else -c
    value = float(_log_mgf(labels, direction, np.array([c]))[0])
    cuts = [
        label.step.count * np.exp(power * label.middle_grid.loss[-1] + label.log_middle[-1] - value) for label in labels
    ]
    return float(np.log(max(sum(cuts), 1e-300)))


def _alias_free(
    labels: Sequence[Labels], direction: int, epsilon: float, c: float
) -> tuple[float, float, float, Array, Array]:
    """The widest spacing of nodes at c, and what it was found from."""
    value = float(_log_mgf(labels, direction, np.array([c]))[0])
    nearby = _log_mgf(labels, direction, c * np.array([0.99, 1.01]))
    curvature = max(float(nearby.sum() - 2 * value), 0.0) / (0.01 * c) ** 2
    points = chernoff_points(c, float(np.sqrt(curvature + c**-2)))
    values = _log_mgf(labels, direction, points) + 1e-6
    return alias_free_spacing(c, epsilon, value, points, values), c, value, points, values


def _log_tail(labels: Sequence[Labels], direction: int, c: float, height: float) -> float:
    """log of a bound on |(B0+B1)^T - B0^T| for every |Im s| >= height: B0 at most its value at c, B1 by moving x."""
    power = 1 + c if direction == REMOVE else -c
    bulk, ratio = 0.0, 0.0
    for label in labels:
        part = float(np.log(max(1 + label.bulk_excess(np.array([power]))[0].real, 1e-290)))
        bulk += label.step.count * part
        middle = min(_log_middle_decay(label, power, height, shift) for shift in _shifts(label))
        ratio += label.step.count * float(np.logaddexp(0.0, middle - part))
    return bulk + (ratio if ratio > 30 else float(np.log(max(np.expm1(ratio), 1e-300))))


def _shifts(label: Labels) -> Array:
    return np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0]) * label.width


def _log_middle_decay(label: Labels, power: float, height: float, shift: float) -> float:
    """log of a bound on |E[g^r; middle]| for |Im r| >= height, on the line x + i shift.

    There |Phi(y + iv)| <= Phi(y) + v exp(v^2/2) phi(y), and likewise for 1 - Phi; each factor is taken at its largest
    within half a spacing of the node.
    """
    grid = label.middle_grid
    if shift >= 0.9 * np.pi * grid.step.noise:
        return np.inf
    modulus, angle = transform.modulus_and_angle(grid, shift)
    allowance = transform.cell_allowance(grid, modulus, abs(power) + height)
    rising, falling, bells = np.zeros(grid.size), np.zeros(grid.size), np.zeros(grid.size)
    for edge, width in ((label.low, label.width), (label.high, label.narrow)):
        turned, near, y = shift / width, 0.5 * grid.spacing / width, (grid.nodes - edge) / width
        rising += ndtr(y + near)
        falling += ndtr(near - y)
        bells += turned * np.exp(0.5 * (turned**2 - np.maximum(np.abs(y) - near, 0.0) ** 2)) / np.sqrt(2 * np.pi)
    with np.errstate(divide="ignore"):
        window = np.log(np.minimum(rising, falling) + bells)
    terms = power * modulus - height * np.abs(angle) + grid.log_weight + allowance + window
    log_sides = transform.log_moved_sides(grid, power, height, shift, _middle_windows(label))
    return float(np.logaddexp(0.5 * shift**2 + np.logaddexp.reduce(terms), log_sides))


def _evaluate(
    labels: Sequence[Labels],
    direction: int,
    c: float,
    spacing: float,
    height: float,
    value: float,
    log_tail: float,
    points: Array,
    values: Array,
) -> Line | None:
    nodes = np.asarray(c + 1j * spacing * np.arange(int(np.ceil(height / spacing)) + 1), dtype=np.complex128)
    power = 1 + c if direction == REMOVE else -c
    shape, errors = np.empty(nodes.shape, complex), np.zeros(nodes.shape)
    # |d/dB1| and |d/dB0| of (B0+B1)^T - B0^T are at most T (B0+B1)^(T-1) and T ((B0+B1)^(T-1) - B0^(T-1)) at c
    whole = np.exp(_log_mgf(labels, direction, np.array([c]))[0] - value) * 1.01
    top = whole + np.exp(bulk_log_mgf(labels, direction, np.array([c]))[0] - value) * 1.01
    terms = 0
    for start in range(0, len(nodes), _CHUNK):
        part = slice(start, start + _CHUNK)
        powers = 1 + nodes[part] if direction == REMOVE else -nodes[part]
        highest = float(nodes[part].imag.max())
        refined = [_refined(label, power, highest, 1e-12 / whole, 1e-13 / top) for label in labels]
        labels = [one.labels for one in refined]
        terms += sum(label.bulk_grid.size + label.middle_grid.size for label in labels) * len(powers)
        if terms > (_MOST_TERMS if labels[0].step.count <= 30_000 else _MOST_TERMS // 4):
            return None
        bulk, ratio = np.zeros(powers.shape, complex), np.zeros(powers.shape, complex)
        for one in refined:
            label, count = one.labels, one.labels.step.count
            base = np.asarray(label.bulk_excess(powers), complex)
            jump = np.asarray(label.middle_mgf(powers) / np.where(base == -1, 1e-290, 1 + base), complex)
            bulk += count * log1p(base)
            ratio += count * log1p(jump)
            errors[part] += count * _node_errors(one, power, np.abs(powers), whole, top)
        with np.errstate(over="ignore", invalid="ignore"):
            shape[part] = np.exp(bulk - value) * np.expm1(ratio)
    if not np.all(np.isfinite(shape)):
        return None
    errors += 4 * UNIT_ROUNDOFF * np.abs(shape) * (1 + abs(value))
    return Line(c, spacing, nodes, shape, errors, value, log_tail, points, values, 0.0)


def _node_errors(one: Refined, power: float, sizes: Array, whole: float, top: float) -> Array:
    """The errors of one step's two sums, quadrature and rounding, carried into (B0+B1)^T - B0^T, per step."""
    label, at_c = one.labels, np.array([power])
    bulk, middle = 1 + float(label.bulk_excess(at_c)[0].real), float(label.middle_mgf(at_c)[0].real)
    furthest = float(np.max(np.abs(label.middle_grid.loss)))
    middle_error = one.middle_error + 4 * UNIT_ROUNDOFF * middle * (100 + sizes * furthest)
    bulk_error = one.bulk_error + transform.rounding(label.bulk_grid, power, sizes)
    return np.asarray((top * middle_error + whole * bulk_error) / max(bulk, 1e-290))


def _middle_windows(label: Labels) -> tuple[Window, Window]:
    """How small the middle label is at the two ends of its grid."""
    start = Window((label.middle_grid.left - label.low) / label.width, label.width)
    return start, Window((label.high - label.middle_grid.right) / label.narrow, label.narrow)


@dataclass(frozen=True)
class Refined:
    """Labels with grids fine enough, and bounds on what their two sums may be wrong by."""

    labels: Labels
    bulk_error: float
    middle_error: float


def _refined(label: Labels, power: float, height: float, bulk_wanted: float, middle_wanted: float) -> Refined:
    """Finer grids until the proved errors of all steps up to this height are as wanted, or the grids too long."""
    count = label.step.count
    edge = (label.low, -label.width)
    bulk, middle = label.bulk_grid, label.middle_grid
    while (bulk_error := _bulk_error(replace(label, bulk_grid=bulk), power, height, edge)) * count > bulk_wanted:
        if bulk.size > _FINEST:
            break
        bulk = bulk.refined(0.75 * bulk.spacing)
    while (middle_error := _middle_error(replace(label, middle_grid=middle), power, height)) * count > middle_wanted:
        if middle.size > _FINEST:
            break
        middle = middle.refined(0.75 * middle.spacing)
    leftover = (1 + 2 * (abs(power) + height) * label.step.rate) * float(np.exp(label.log_dropped))
    return Refined(replace(label, bulk_grid=bulk, middle_grid=middle), bulk_error + leftover, middle_error)


def _bulk_error(label: Labels, power: float, height: float, edge: tuple[float, float]) -> float:
    log_window = log_ndtr((label.low - label.bulk_grid.nodes) / label.width)
    return transform.windowed_error(label.bulk_grid, power, height, np.asarray(log_window), (edge,))


def _middle_error(label: Labels, power: float, height: float) -> float:
    grid = label.middle_grid
    edges = ((label.low, label.width), (label.high, -label.narrow))
    return transform.windowed_error(grid, power, height, label.log_middle - grid.log_weight, edges)
