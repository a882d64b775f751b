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
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from hush.accounting import transform
from hush.accounting.contour import (
    ADD,
    REMOVE,
    Line,
    alias_free_spacing,
    chernoff,
    chernoff_points,
    log1p,
    log_peak,
    problem,
)
from hush.accounting.transform import UNIT_ROUNDOFF, Array, Grid, Numbers, Step, Window

_MOST_NODES = 40_000
_MOST_TERMS = 25_000_000
_FINEST = 8000
_LOG_CERTAIN = 30.0
_NARROW = 1 / 8
_LEAST_TAIL = 9.0
"""Widths by which a label runs out: its cut is then small beside the tilted law, not only beside the law itself."""
_CHUNK = 256
_LOG_NEGLIGIBLE = -22.0
_LOG_SMALLEST = -650.0
"""No delta below this is asked for; labels for one would need grids of any size."""


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
    labels = _labels(steps, direction, epsilon, max(log_target, _LOG_SMALLEST))
    line = None if labels is None else _line(labels, direction, epsilon)
    if labels is None or line is None:
        return None
    points = _bulk_points(epsilon)
    return Jumps(tuple(labels), direction, line, epsilon, points, _bulk_log_mgf(labels, direction, points))


def _bulk_points(epsilon: float) -> Array:
    return np.geomspace(1.0, 3000.0, 32) / epsilon


def _reach(steps: Sequence[Step]) -> float:
    """A number that the sum of -log g over all steps exceeds with probability exp(-30) at most, under N(0, 1).

    The sum of -log(1-p) bounds it for sure; Chernoff's inequality, with E[g^-t], often does better.
    """
    surely = float(sum(-step.count * np.log1p(-step.rate) for step in steps))
    task = problem(steps, 0.0, ADD, -20.0)
    points = np.geomspace(0.1, 1e4, 40) / surely
    likely = float(np.min((task.log_mgf(points) + 1e-6 + _LOG_CERTAIN) / points))
    return min(surely, likely)


def _labels(steps: Sequence[Step], direction: int, epsilon: float, log_target: float) -> list[Labels] | None:
    """Thresholds for which what is 'for sure' fails with a billionth of the delta in question."""
    reach = _reach(steps)
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
    points = _bulk_points(epsilon)

    if _too_long(steps, epsilon, [loss_position(step, epsilon) for step in steps], highs):
        return None

    def with_bulk_below(lowering: int) -> tuple[list[Labels], bool]:
        lows = [loss_position(step, epsilon) - 0.5 * lowering * _width(step, epsilon) for step in steps]
        labels = _build(steps, lows, highs, epsilon, budget - np.log(total) - 8)
        return labels, chernoff(lambda c: _bulk_log_mgf(labels, direction, c), epsilon, points) < budget

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
        if _log_misplaced(point, high, width, step, False) + max(epsilon, 0.0) + np.log(2 * total) < budget:
            return float(high)
    return point + 60 * width


def _misplaced_low(step: Step, sure: float, epsilon: float, budget: float, total: int) -> float:
    point, width = loss_position(step, sure), _width(step, epsilon)
    if not np.isfinite(point):
        return -np.inf
    for out in np.arange(2.0, 60.0, 0.25):
        low = point - out * width
        if _log_misplaced(point, low, width, step, True) + epsilon + np.log(2 * total) < budget:
            return float(low)
    return -np.inf


def _log_misplaced(point: float, threshold: float, width: float, step: Step, above: bool) -> float:
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


def _bulk_log_mgf(labels: Sequence[Labels], direction: int, points: Array) -> Array:
    powers = 1 + points if direction == REMOVE else -points
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        total = sum(label.step.count * np.log1p(label.bulk_excess(powers).real) for label in labels)
    return np.where(np.isnan(total), np.inf, total)


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
    reach, total = _reach(steps), sum(step.count for step in steps)
    error = 0.0
    for label in labels:
        step = label.step
        point = loss_position(step, epsilon + reach if direction == REMOVE else reach - epsilon)
        misplaced = epsilon + _log_misplaced(point, label.high, label.narrow, step, False)
        error += step.count * np.exp(min(misplaced, 700.0))
        if direction == ADD:
            point = loss_position(step, -epsilon / total)
            misplaced = epsilon + _log_misplaced(point, label.low, label.width, step, True)
            error += step.count * np.exp(min(misplaced, 700.0))
        # a huge step, while the others are below -reach
        some_huge = np.log(step.count) + log_ndtr(-label.high / np.sqrt(1 + label.narrow**2))
        error += np.exp(min(epsilon + some_huge - _LOG_CERTAIN, 700.0))
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
    top = whole + np.exp(_bulk_log_mgf(labels, direction, np.array([c]))[0] - value) * 1.01
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
