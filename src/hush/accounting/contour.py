"""Certified delta(epsilon) of compositions of (Poisson-subsampled) Gaussian steps, from one contour integral.

With Lambda(s) the log-MGF of the total loss L under P, and any c > 0 in its domain,

    delta(eps) = E_P[(1 - exp(eps - L))_+]
               = 1/(2 pi i) * integral over Re s = c of exp(Lambda(s) - s eps) / (s (s+1)) ds.

The trapezoidal rule with spacing h on that line does not approximate this, it *equals* a sum of positive terms,

    sum over all integers n of exp(2 pi c n / h) * delta(eps + 2 pi n / h)                       (Poisson summation)

so its error is the terms with n != 0, and Chernoff's inequality bounds each of them.  What else can go wrong is
bounded too: the nodes left out (`transform.log_decay` falls with |Im s|), the quadrature behind Lambda, rounding,
and the mass outside the x-interval.  docs/certificate.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting import transform
from hush.accounting.roots import bracketed_root
from hush.accounting.transform import UNIT_ROUNDOFF, Array, Complex, Grid, Numbers, Step

REMOVE, ADD = +1, -1
"""The two neighbouring directions: P has the record that Q lacks, or lacks the record that Q has."""

_MOST_NODES = 4000
_MOST_TERMS = 4_000_000
_WIDEST = 6000
_LOG_NEGLIGIBLE = -26.0


class TooWideError(Exception):
    """The tilted law reaches so far out that a few large losses must decide: a case for jumps.py."""


@dataclass(frozen=True)
class Problem:
    """A composition in one direction, cut to x-intervals outside which it has at most `dropped` mass."""

    grids: tuple[Grid, ...]
    gaussian: float
    """mu^2 of the steps without subsampling: together they are one Gaussian with this mu."""
    direction: int
    dropped: float

    def power(self, s: complex | Numbers) -> Numbers:
        return np.asarray(1 + s) if self.direction == REMOVE else np.asarray(-s)

    def log_mgf(self, s: Array) -> Array:
        """Lambda at real s (rounding and quadrature errors, both tiny, are not included)."""
        total = 0.5 * self.gaussian * s * (s + 1)
        for grid in self.grids:
            total = total + grid.step.count * np.log1p(_cut_excess(grid, self.power(s)).real)
        return np.where(np.isnan(total), np.inf, total)

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
    mass = float(np.exp(max(log_delta - 23.0, -680.0))) / max(total, 1)
    grids = tuple(_wide_enough(transform.covering_grid(step, mass), direction, tilt) for step in steps)
    dropped = 0.0
    for grid in grids:
        absent, present = transform.tail_masses(grid.step, grid.left, grid.right)
        share = grid.step.rate if direction == REMOVE else 0.0
        dropped += grid.step.count * ((1 - share) * absent + share * present)
    return Problem(grids, gaussian, direction, dropped)


def _wide_enough(grid: Grid, direction: int, tilt: float) -> Grid:
    power = 1 + tilt if direction == REMOVE else -tilt
    bulge = power / grid.step.noise
    terms = power * grid.loss + grid.log_weight
    negligible = terms.max() + _LOG_NEGLIGIBLE - np.log(grid.step.count)
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


def _cut_excess(grid: Grid, powers: Numbers) -> Numbers:
    """E[g^r; x in the interval] - 1: the excess, less what 1 + r (g-1) has outside the interval."""
    absent, present = transform.tail_masses(grid.step, grid.left, grid.right)
    result: Numbers = transform.excess(grid, powers) - absent - powers * grid.step.rate * (present - absent)
    return result


def log1p(z: Complex) -> Complex:
    """log(1 + z) without losing small z (NumPy's complex log1p does)."""
    near = np.where(np.abs(z) < 0.5, z, 0)
    small, large = 0.5 * np.log1p(2 * near.real + np.abs(near) ** 2), np.log(np.maximum(np.abs(1 + z), 1e-300))
    return np.asarray(np.where(np.abs(z) < 0.5, small, large) + 1j * np.arctan2(z.imag, 1 + z.real))


def log_peak(c: Array | float) -> Array:
    """log of the largest value of exp(-c u)(1 - exp(-u)): c^c / (c+1)^(c+1)."""
    c = np.asarray(c, dtype=float)
    return c * np.log(c) - (c + 1) * np.log1p(c)


def chernoff(log_mgf: Callable[[Array], Array], epsilon: float, points: Array) -> float:
    """The best of the bounds log delta(eps) <= Lambda(c) - c eps + log_peak(c) over the given c > 0."""
    return float(np.min(log_mgf(points) - points * epsilon + log_peak(points)))


@dataclass(frozen=True)
class Line:
    """The integrand at the nodes of one vertical line, good for every epsilon near that line's saddle point."""

    c: float
    spacing: float
    nodes: Complex
    values: Complex
    """exp(Lambda(s_j) - Lambda(c))."""
    errors: Array
    """Bounds on the errors of `values`."""
    log_scale: float
    """Lambda(c)."""
    log_tail: float
    """log of a bound on |exp(Lambda(s) - Lambda(c))| at every node left out."""
    chernoff_points: Array
    chernoff_values: Array
    dropped: float

    def log_delta(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on log delta at each epsilon."""
        epsilon = np.asarray(epsilons, dtype=float)[:, None]
        kernel = self.nodes * (self.nodes + 1)
        factor = self.spacing / np.pi
        terms = (self.values / kernel) * np.exp(-1j * self.nodes.imag * epsilon)
        total = factor * (terms.real.sum(axis=1) - 0.5 * terms[:, 0].real)
        turning = 4 * UNIT_ROUNDOFF * np.abs(self.nodes * epsilon) + 64 * UNIT_ROUNDOFF
        error = factor * ((self.errors + np.abs(self.values) * turning) / np.abs(kernel)).sum(axis=1)
        error += np.exp(self.log_tail) / (np.pi * self.nodes[-1].imag) + self._aliases(epsilon[:, 0])
        offset = self.log_scale - self.c * epsilon[:, 0]
        dropped = np.exp(np.minimum(np.log(self.dropped) - offset, 700.0)) if self.dropped > 0 else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            lower = np.where(total > error, np.log(np.maximum(total - error, 0.0)), -np.inf) + offset
            upper = np.log(np.maximum(total + error, 0.0) + dropped) + offset
        margin = 8 * UNIT_ROUNDOFF * (np.abs(offset) + abs(self.log_scale) + np.abs(self.c * epsilon[:, 0]) + 1)
        return lower - margin, np.minimum(upper + margin, 0.0)

    def _aliases(self, epsilon: Array) -> Array:
        """Sum over n != 0 of exp(2 pi c n/h) delta(eps + 2 pi n/h), relative to exp(Lambda(c) - c eps)."""
        period = 2 * np.pi / self.spacing
        gap = self.chernoff_points - self.c
        log_terms = (
            self.chernoff_values
            - self.log_scale
            - np.multiply.outer(epsilon, gap)
            + np.where(self.chernoff_points > 0, log_peak(np.maximum(self.chernoff_points, 1e-300)), 0.0)
            - np.abs(gap) * period
        )
        ratio = np.exp(-np.abs(gap) * period)
        with np.errstate(over="ignore"):
            sums = np.exp(np.minimum(log_terms, 700.0)) / (1 - ratio)
        right, left = gap > 0, gap < 0
        result: Array = sums[:, right].min(axis=1) + sums[:, left].min(axis=1)
        return result


def line(task: Problem, c: float, log_negligible: float = _LOG_NEGLIGIBLE) -> Line | None:
    """Choose spacing and number of nodes at c, and evaluate; None where too many nodes would be needed.

    A smaller `log_negligible` costs nodes and keeps the line sharp at epsilons further from its saddle point.
    """
    value, mean, variance = task.cumulants(c)
    points = chernoff_points(c, float(np.sqrt(max(variance, 1e-300))))
    values = np.concatenate([[0.0], task.log_mgf(points[1:])]) + 1e-6
    spacing = alias_free_spacing(c, mean - 1 / c - 1 / (c + 1), value, points, values, log_negligible)
    height = _height(task, c, value, spacing, log_negligible)
    if not np.isfinite(height):
        return None
    return _evaluate(task, c, spacing, int(np.ceil(height / spacing)) + 1, value, points, values)


def chernoff_points(c: float, spread: float) -> Array:
    """Real points at which Chernoff's inequality is tried: 0, and both sides of c at steps of 1/spread and of c."""
    fractions = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    out = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20]) / spread
    return np.concatenate([[0.0], c * (1 - fractions), c - out[out < c], c + out, c * (1 + fractions)])


def alias_free_spacing(
    c: float, epsilon: float, value: float, points: Array, values: Array, log_negligible: float = _LOG_NEGLIGIBLE
) -> float:
    """The widest spacing whose aliases at epsilon are negligible beside exp(Lambda(c) - c eps)."""
    gap = points - c
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = (values - value - gap * epsilon - log_negligible) / np.abs(gap)
    needed = np.where(np.isfinite(needed), needed, np.inf)
    period = max(float(np.min(needed[gap > 0])), float(np.min(needed[gap < 0])))
    return float(2 * np.pi / period)


def _height(task: Problem, c: float, value: float, spacing: float, log_negligible: float) -> float:
    """The smallest |Im s| (up to a factor 1.4) beyond which the integrand is provably negligible."""
    powers = float(task.power(c))
    sizes = [1 + float(_cut_excess(grid, np.array([powers]))[0].real) for grid in task.grids]
    height = 8 * spacing
    while height < _MOST_NODES * spacing * 1.4:
        if _log_tail(task, c, value, height, sizes) < log_negligible:
            return height
        height *= 1.4
    return np.inf


def _log_tail(task: Problem, c: float, value: float, height: float, sizes: Sequence[float]) -> float:
    total = 0.5 * task.gaussian * (c * (c + 1) - height**2) - value
    powers = float(task.power(c))
    for grid, size in zip(task.grids, sizes, strict=True):
        total += grid.step.count * transform.log_decay(grid, powers, height, size)
    return total


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
        widest, shift = transform.sufficient_spacing(grid, real_power, height, wanted)
        fine = grid.refined(min(widest, grid.spacing))
        if fine.size * count > _MOST_TERMS:
            return None
        mgf = np.asarray(_cut_excess(fine, powers), dtype=complex)
        step_error = np.exp(wanted) + transform.end_sizes(fine, real_power, height, shift)
        step_error = step_error + transform.rounding(fine, real_power, np.abs(powers))
        modulus = np.abs(1 + mgf)
        total = total + repeats * log1p(mgf)
        error = error + repeats * step_error / np.maximum(modulus, 1e-300)
        log_tail += repeats * transform.log_decay(fine, real_power, height, float(modulus[0]))
    error = error + 4 * UNIT_ROUNDOFF * np.abs(total)
    scale = float(total[0].real)
    shape = np.exp(total - scale)
    return Line(
        c=c,
        spacing=spacing,
        nodes=nodes,
        values=shape,
        errors=np.abs(shape) * np.expm1(np.minimum(error, 700.0)),
        log_scale=scale,
        log_tail=log_tail,
        chernoff_points=points,
        chernoff_values=values,
        dropped=task.dropped,
    )


def _saddle_approximation(task: Problem, log_c: float) -> tuple[float, float]:
    """log delta and epsilon at the saddle point c, by Laplace's method.

    At the saddle, eps = Lambda'(c) - 1/c - 1/(c+1) and delta is about exp(Lambda - c eps) / (c (c+1) sqrt(2 pi V))
    with V = Lambda'' + 1/c^2 + 1/(c+1)^2.  Only a starting point: what is answered is certified afterwards.
    """
    c = float(np.exp(log_c))
    value, mean, variance = task.cumulants(c)
    if not np.isfinite(value):
        return -np.inf, np.inf
    epsilon = mean - 1 / c - 1 / (c + 1)
    spread = variance + c**-2 + (c + 1) ** -2
    return value - c * epsilon - np.log(c * (c + 1)) - 0.5 * np.log(2 * np.pi * spread), epsilon


def _falling_root(function: Callable[[float], float], guess: float) -> float:
    """The root of a falling function of log c, to a hundredth, bracketed from the guess outwards."""
    value, step = function(guess), 0.25
    if value == 0:
        return guess
    towards = 1.0 if value > 0 else -1.0
    near, far = guess, guess + towards * step
    while function(far) * towards > 0 and abs(far) < 60:
        step *= 2
        near, far = far, far + towards * step
    if abs(far) >= 60:
        return far
    return bracketed_root(function, min(near, far), max(near, far), absolute=1e-2)


def saddle_for_delta(task: Problem, log_delta: float, guess: float = 1.0) -> tuple[float, float]:
    """The c whose saddle point has (about) the given delta, and its epsilon."""
    root = _falling_root(lambda v: max(_saddle_approximation(task, v)[0], -1e6) - log_delta, float(np.log(guess)))
    return float(np.exp(root)), _saddle_approximation(task, root)[1]


def saddle_for_epsilon(task: Problem, epsilon: float, guess: float = 1.0) -> tuple[float, float]:
    """The c whose saddle point has the given epsilon, and its (approximate) log delta."""
    root = _falling_root(lambda v: epsilon - min(_saddle_approximation(task, v)[1], 1e12), float(np.log(guess)))
    return float(np.exp(root)), _saddle_approximation(task, root)[0]


def solve_for_delta(
    steps: Sequence[Step], gaussian: float, direction: int, log_delta: float
) -> tuple[Problem, float, float]:
    """The problem cut to fit its own saddle point, with that saddle's line c and epsilon."""
    task = problem(steps, gaussian, direction, log_delta)
    c, epsilon = saddle_for_delta(task, log_delta)
    for _ in range(6):
        wider = problem(steps, gaussian, direction, log_delta, tilt=c)
        if wider.grids == task.grids:
            break
        task = wider
        c, epsilon = saddle_for_delta(task, log_delta, c)
    return task, c, epsilon


def solve_for_epsilon(
    steps: Sequence[Step], gaussian: float, direction: int, epsilon: float
) -> tuple[Problem, float, float]:
    """The problem cut to fit the saddle point at epsilon, with its line c and log delta."""
    # Cut for the smallest delta: an epsilon beyond the largest loss of the cut steps has no saddle point at all.
    task = problem(steps, gaussian, direction, -650.0)
    c, log_delta = saddle_for_epsilon(task, epsilon)
    for _ in range(6):
        wider = problem(steps, gaussian, direction, min(max(log_delta, -650.0), 0.0), tilt=c)
        if wider.grids == task.grids:
            break
        task = wider
        c, log_delta = saddle_for_epsilon(task, epsilon, c)
    return task, c, log_delta
