"""Certified delta(epsilon) of compositions of (Poisson-subsampled) Gaussian steps, from one contour integral.

line.py has the integral and its aliases.  Here the line is chosen, through the saddle point, and the integrand is
evaluated on it.  What else can go wrong is bounded: the nodes left out (`shifted.log_decay` falls with |Im s|), the
quadrature behind Lambda, rounding, and the mass outside the x-interval.  docs/certificate.md has the proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.line import (
    LOG_NEGLIGIBLE,
    Line,
    alias_free_spacing,
    chernoff_points,
    chernoff_values,
    power_errors,
)
from hush.accounting.contours.thinning import standing
from hush.accounting.gaussian import shifted, transform
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Complex, Grid, Numbers, Step
from hush.accounting.roots import bracketed_root

REMOVE, ADD = +1, -1
"""The two neighbouring directions: P has the record that Q lacks, or lacks the record that Q has."""

_MOST_NODES = 4000
_MOST_TERMS = 4_000_000
_WIDEST = 6000
_DEEPEST = -30_000.0
"""log of the smallest mass that is cut: a group of records asks for deltas that are no floating-point numbers."""

_MODERATE = -100.0
"""A log delta for which many losses decide, and the saddle point knows best."""
_TILTS = np.geomspace(1e-2, 1e5, 60)
_SHALLOW = 0.1  # an epsilon for which log delta is hardly deep
_APART, _REFINED = 1.2, 24  # epsilons of saddle points that are further apart have others between them, so many times


class TooWideError(Exception):
    """The tilted law reaches so far out that a few large losses must decide: a case for jumps.py."""


@dataclass(frozen=True)
class Problem:
    """A composition in one direction, cut to x-intervals outside which it has at most exp(log_dropped) mass."""

    grids: tuple[Grid, ...]
    gaussian: float
    """mu^2 of the steps without subsampling: together they are one Gaussian with this mu."""
    direction: int
    log_dropped: float

    def power(self, s: complex | Numbers) -> Numbers:
        return np.asarray(1 + s) if self.direction == REMOVE else np.asarray(-s)

    @property
    def largest_loss(self) -> float:
        """Of all steps together, in the remove direction, within the cut."""
        return math.inf if self.gaussian > 0 else sum(grid.step.count * float(grid.loss[-1]) for grid in self.grids)

    def log_mgf(self, s: Array) -> Array:
        """Lambda at real s, from above: with what the quadrature may miss, but without rounding."""
        total = 0.5 * self.gaussian * s * (s + 1)
        for grid in self.grids:
            total = total + grid.step.count * _log_mean(grid, self.power(s))
        return np.where(np.isnan(total), np.inf, total)

    def log_added(self, s: Array) -> Array:
        """log of prod (1 + M)^T - prod M^T at real s, M being each step's moment generating function, from above."""
        log_growth = np.full(s.shape, -np.inf)  # log of the sum of T log(1 + 1/M), 1/M being a number or less than any
        for grid in self.grids:
            inverse = -_log_mean(grid, self.power(s))
            growth = np.where(inverse < -30, inverse, np.log(np.logaddexp(0.0, np.maximum(inverse, -30.0))))
            log_growth = np.logaddexp(log_growth, math.log(grid.step.count) + growth)
        growth = np.exp(np.clip(log_growth, -30.0, math.log(700.0)))
        added = np.where(growth < 700, np.log(np.expm1(growth)), np.exp(log_growth))
        added = np.where(log_growth < -30, log_growth, added)
        result = self.log_mgf(s) + added + 2e-6 * (1 + np.abs(added))
        return np.where(np.isnan(result), np.inf, result)

    def cumulants(self, s: float) -> tuple[float, float, float]:
        """Lambda (to about 1e-6) and its first two derivatives at real s, from each step's tilted law: for searches."""
        value, mean, variance = 0.5 * self.gaussian * s * (s + 1), self.gaussian * (s + 0.5), self.gaussian
        power = float(self.power(s))
        for grid in self.grids:
            exponents = power * grid.loss + grid.log_weight
            top = float(exponents.max())
            tilted = np.exp(exponents - top)
            mass = float(tilted.sum())
            first = float(tilted @ grid.loss) / mass
            count = grid.step.count
            value += count * (top + math.log(mass))
            mean += count * self.direction * first
            variance += count * float(tilted @ (grid.loss - first) ** 2) / mass
        return value, mean, variance


def problem(steps: Sequence[Step], gaussian: float, direction: int, log_delta: float, tilt: float = 0.0) -> Problem:
    """Cut each step's x-axis so that what is cut has a ten-billionth of the delta in question.

    Where the law tilted by `tilt` would still be sizeable at the cut, the interval is widened to hold it.
    """
    total = sum(step.count for step in steps)
    log_mass = max(log_delta - 23.0, _DEEPEST) - math.log(max(total, 1))
    grids = tuple(_wide_enough(transform.grid_for(step, log_mass), direction, tilt) for step in steps)
    log_dropped = -math.inf
    for grid in grids:
        absent, present = transform.log_tail_masses(grid.step, grid.left, grid.right)
        if direction == REMOVE:
            absent = float(np.logaddexp(absent, present + math.log(grid.step.rate)))
        log_dropped = float(np.logaddexp(log_dropped, absent + math.log(grid.step.count)))
    return Problem(grids, gaussian, direction, log_dropped)


def _wide_enough(grid: Grid, direction: int, tilt: float) -> Grid:
    power = 1 + tilt if direction == REMOVE else -tilt
    bulge = power / grid.step.noise
    terms = power * grid.loss + grid.log_weight
    negligible = terms.max() + LOG_NEGLIGIBLE - np.log(grid.step.count)
    reach = 9.0 + np.sqrt(2 * np.log(grid.step.count))
    right = bulge + reach if terms[-1] > negligible else grid.right
    left = bulge - reach if terms[0] > negligible else grid.left
    if right <= grid.right and left >= grid.left:
        return grid
    left, right = min(left, grid.left), max(right, grid.right)
    size = int(np.ceil((right - left) / grid.spacing))
    if size > _WIDEST:
        raise TooWideError
    return Grid(grid.step, left, (right - left) / size, size)


def _cut_excess(grid: Grid, powers: Numbers, scale: float = 0.0, spacing: float = 0.0) -> Numbers:
    """E[g^r; x in the interval] - 1: the excess, less what 1 + r (g-1) has outside the interval; over e^scale."""
    absent, present = transform.tail_masses(grid.step, grid.left, grid.right)
    cut = absent + powers * grid.step.rate * (present - absent)
    result: Numbers = transform.excess(grid, powers, scale, spacing) - (cut if scale == 0 else cut * np.exp(-scale))
    return result


def _log_mean(grid: Grid, powers: Array) -> Array:
    """log E[g^r; x in the interval] at real r, with what the quadrature may miss."""
    large, missed = transform.overflows(grid, powers), shifted.log_missed(grid, powers)
    result = np.empty(powers.shape)
    if large.any():
        result[large] = np.logaddexp(transform.log_moments(grid, powers[large]), missed[large])
    if not large.all():
        result[~large] = np.log1p(_cut_excess(grid, powers[~large]).real + np.exp(missed[~large]))
    return result


def log1p(z: Complex) -> Complex:
    """log(1 + z) without losing small z (NumPy's complex log1p does)."""
    near = np.where(np.abs(z) < 0.5, z, 0)
    small, large = 0.5 * np.log1p(2 * near.real + np.abs(near) ** 2), np.log(np.maximum(np.abs(1 + z), 1e-300))
    return np.asarray(np.where(np.abs(z) < 0.5, small, large) + 1j * np.arctan2(z.imag, 1 + z.real))


def _log(z: Complex) -> Complex:
    return np.asarray(np.log(np.maximum(np.abs(z), 1e-300)) + 1j * np.angle(z))


def line(task: Problem, c: float, log_negligible: float = LOG_NEGLIGIBLE) -> Line | None:
    """Choose spacing and number of nodes at c, and evaluate; None where too many nodes would be needed.

    A smaller `log_negligible` costs nodes and keeps the line sharp at epsilons further from its saddle point.
    """
    value, mean, variance = task.cumulants(c)
    points = chernoff_points(c, float(np.sqrt(max(variance, 1e-300))))
    values = chernoff_values(task.log_mgf, points)
    spacing = alias_free_spacing(c, mean - 1 / c - 1 / (c + 1), value, points, values, log_negligible)
    height = _height(task, c, value, spacing, log_negligible)
    if not np.isfinite(height):
        return None
    return _evaluate(task, c, spacing, int(np.ceil(height / spacing)) + 1, value, points, values)


def _height(task: Problem, c: float, value: float, spacing: float, log_negligible: float) -> float:
    """The smallest |Im s| (up to a factor 1.4) beyond which the integrand is negligible, as far as some steps show."""
    power = float(task.power(c))
    grids = standing(task.grids)
    sizes = [float(_log_mean(grid, np.array([power]))[0]) for grid, _ in grids]

    def is_high_enough(height: float) -> bool:
        log_tail = 0.5 * task.gaussian * (c * (c + 1) - height**2) - value
        for (grid, share), size in zip(grids, sizes, strict=True):
            log_tail += share * grid.step.count * shifted.log_decay(grid, power, height, size)
        return bool(log_tail < log_negligible)

    heights = 8 * spacing * 1.4 ** np.arange(math.ceil(math.log(_MOST_NODES / 8, 1.4)) + 1)
    few, many = 0, 4
    while many < heights.size and not is_high_enough(float(heights[many])):
        few, many = many + 1, min(2 * many, heights.size)
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if is_high_enough(float(heights[middle])) else (middle + 1, many)
    return float(heights[few]) if few < heights.size else np.inf


def _evaluate(
    task: Problem, c: float, spacing: float, count: int, value: float, points: Array, values: Array
) -> Line | None:
    nodes = np.asarray(c + 1j * spacing * np.arange(count), dtype=np.complex128)
    height = spacing * count
    real_power = float(task.power(c))
    powers = np.asarray(task.power(nodes), dtype=complex)
    total = 0.5 * task.gaussian * nodes * (nodes + 1)
    error = np.zeros(count)
    log_tail = 0.5 * task.gaussian * (c * (c + 1) - height**2) - value
    for grid in task.grids:
        repeats = grid.step.count
        wanted = np.log(1e-12 / repeats) - 8
        scale = transform.log_scale(grid, real_power)
        fine, sides = shifted.fine_enough(grid, real_power, height, wanted, scale, _MOST_TERMS // count)
        if fine.size * count > _MOST_TERMS:
            return None
        excess = np.asarray(_cut_excess(fine, powers, scale, powers[1].imag), dtype=complex)
        step_error = np.exp(wanted) + sides
        step_error = step_error + transform.rounding(fine, real_power, np.abs(powers), scale)
        modulus = np.abs(np.exp(-scale) + excess)
        total = total + repeats * (log1p(excess) if scale == 0 else _log(excess) + scale)
        error = error + repeats * (np.log1p(step_error / np.maximum(modulus, 1e-300)) + 8 * UNIT_ROUNDOFF * scale)
        log_tail += repeats * shifted.log_decay(fine, real_power, height, float(np.log(modulus[0])) + scale)
    error = error + 4 * UNIT_ROUNDOFF * np.abs(total)
    scale = float(total[0].real)
    log_tail += value - scale  # the value is one from above
    shape = np.exp(total - scale)
    return Line(
        c=c,
        spacing=spacing,
        nodes=nodes,
        values=shape,
        errors=power_errors(total.real - scale, error),
        log_scale=scale,
        log_tail=log_tail,
        chernoff_points=points,
        chernoff_values=values,
        log_dropped=task.log_dropped,
    )


def _saddle_approximation(task: Problem, c: float) -> tuple[float, float]:
    """log of delta (c > 0) or of 1 - delta (c < 0), and epsilon, at the saddle point c, by Laplace's method.

    At the saddle, eps = Lambda'(c) - 1/c - 1/(c+1) and the integral is about exp(Lambda - c eps) / |c (c+1)| /
    sqrt(2 pi V) with V = Lambda'' + 1/c^2 + 1/(c+1)^2.  Only a starting point: what is answered is certified later.
    """
    value, mean, variance = task.cumulants(c)
    if not np.isfinite(value):
        return -np.inf, np.inf
    epsilon = mean - 1 / c - 1 / (c + 1)
    spread = variance + c**-2 + (c + 1) ** -2
    return value - c * epsilon - np.log(abs(c * (c + 1))) - 0.5 * np.log(2 * np.pi * spread), epsilon


def deep_saddles(steps: Sequence[Step], gaussian: float) -> tuple[Array, Array, Array]:
    """Epsilons, ascending, and about log delta there, deep in the tail where one record is removed.

    And 1 where the tilted law has less than one large loss, as seen by its variance: no saddle point is of use there.
    """
    found: dict[float, tuple[float, float, float]] = {}
    new = _TILTS.tolist()
    for _ in range(_REFINED):
        for c in new:
            furthest = max(((1 + c) / step.noise for step in steps), default=0.0) + 12
            if furthest**2 > -2 * _DEEPEST:
                break
            task = problem(steps, gaussian, REMOVE, min(-0.5 * furthest**2, _MODERATE))
            log_value, epsilon = _saddle_approximation(task, c)
            if math.isfinite(log_value):
                found[c] = max(epsilon, _SHALLOW), log_value, float(task.cumulants(c)[2] > epsilon**2)
        tilts = sorted(found)
        pairs = [(c, d) for c, d in itertools.pairwise(tilts) if found[d][0] > _APART * found[c][0]]
        new = [math.sqrt(c * d) for c, d in pairs if found[d][1] < _MODERATE and d > c * (1 + 1e-8)]
    at, logs, alone = np.array([found[c] for c in tilts]).reshape(-1, 3).T
    kept = np.append(True, np.diff(np.maximum.accumulate(at)) > 0)[: at.size] & (logs < _MODERATE) & (at > _SHALLOW)
    return at[kept], logs[kept], alone[kept]


def place(v: Array | float, complement: bool) -> Array:
    """Lines by a coordinate with which epsilon rises: c = e^v > 0, or, for 1 - delta, c = -1/(1 + e^v)."""
    return np.asarray(-1 / (1 + np.exp(v)) if complement else np.exp(v))


def _coordinate(c: float, complement: bool) -> float:
    """The v of a line, or 0 where c is none of this kind."""
    if complement:
        return math.log(-(1 + c) / c) if -1 < c < 0 else 0.0
    return math.log(c) if c > 0 else 0.0


def _falling_root(function: Callable[[float], float], guess: float, furthest: float) -> float:
    """The root of a falling function of v, to a hundredth, bracketed from the guess outwards."""
    value, step = function(guess), 0.25
    if value == 0:
        return guess
    towards = 1.0 if value > 0 else -1.0
    near, far = guess, guess + towards * step
    while function(far) * towards > 0 and abs(far) < furthest:
        step *= 2
        near, far = far, float(np.clip(far + towards * step, -furthest, furthest))
    if abs(far) >= furthest:
        return far
    return bracketed_root(function, min(near, far), max(near, far), absolute=1e-2)


_FURTHEST, _FURTHEST_COMPLEMENT = 60.0, 34.0  # 1 + c = e^-34 is still exact


def saddle_for_delta(task: Problem, log_delta: float, guess: float = 1.0) -> tuple[float, float]:
    """The c whose saddle point has (about) the given delta, and its epsilon."""
    complement = is_complement(log_delta)
    target = log_complement(log_delta) if complement else log_delta
    sign = -1.0 if complement else 1.0

    def short(v: float) -> float:
        return sign * (max(_saddle_approximation(task, float(place(v, complement)))[0], -1e6) - target)

    furthest = _FURTHEST_COMPLEMENT if complement else _FURTHEST
    c = float(place(_falling_root(short, _coordinate(guess, complement), furthest), complement))
    return c, _saddle_approximation(task, c)[1]


def saddle_for_epsilon(
    task: Problem, epsilon: float, complement: bool = False, guess: float = 1.0
) -> tuple[float, float]:
    """The c whose saddle point has the given epsilon, and its (approximate) log delta, or log(1 - delta)."""

    def short(v: float) -> float:
        return epsilon - min(_saddle_approximation(task, float(place(v, complement)))[1], 1e12)

    furthest = _FURTHEST_COMPLEMENT if complement else _FURTHEST
    c = float(place(_falling_root(short, _coordinate(guess, complement), furthest), complement))
    log_value, at = _saddle_approximation(task, c)
    # at the epsilon asked for, since c is a root to a hundredth and no better
    return c, log_value + c * (at - epsilon) if math.isfinite(at) else log_value


def is_complement(log_delta: float) -> bool:
    """Whether 1 - delta is the smaller of the two, and what must be known to many digits."""
    return log_delta > -math.log(2)


def log_complement(log_delta: float) -> float:
    """log(1 - delta)."""
    return math.log(-math.expm1(log_delta)) if log_delta < 0 else -math.inf


def solve_for_delta(
    steps: Sequence[Step], gaussian: float, direction: int, log_delta: float
) -> tuple[Problem, float, float]:
    """The problem cut to fit its own saddle point, with that saddle's line c and epsilon."""
    log_smaller = log_complement(log_delta) if is_complement(log_delta) else log_delta
    task = problem(steps, gaussian, direction, log_smaller)
    c, epsilon = saddle_for_delta(task, log_delta)
    for _ in range(6):
        wider = problem(steps, gaussian, direction, log_smaller, tilt=c)
        if wider.grids == task.grids:
            break
        task = wider
        c, epsilon = saddle_for_delta(task, log_delta, c)
    return task, c, epsilon


def solve_for_epsilon(
    steps: Sequence[Step],
    gaussian: float,
    direction: int,
    epsilon: float,
    complement: bool = False,
    depth: float = 1.0,
) -> tuple[Problem, float, float]:
    """The problem cut to fit the saddle point at epsilon, with its line c and log delta, or log(1 - delta).

    With a depth of more than 1 it is cut for a log delta so many times as low, and may be asked further out.
    """
    # Cut for the smallest delta: an epsilon beyond the largest loss of the cut steps has no saddle point at all.
    cut = -650.0
    task = problem(steps, gaussian, direction, cut)
    while direction == REMOVE and task.largest_loss < 1.1 * epsilon and cut > _DEEPEST:
        cut *= 2
        task = problem(steps, gaussian, direction, cut)
    c, log_value = saddle_for_epsilon(task, epsilon, complement)
    for _ in range(6):
        wider = problem(steps, gaussian, direction, min(max(depth * log_value, _DEEPEST), 0.0), tilt=c)
        if wider.grids == task.grids:
            break
        task = wider
        c, log_value = saddle_for_epsilon(task, epsilon, complement, c)
    return task, c, log_value
