"""The density of a few losses' sum, for Gaussian releases on samples with one record replaced (the operator C_p).

One such loss is 0 with probability a, and else has the density e^{l/2} m(|l|) under P, with m falling:

    m(l) = c (e^l/v)^{3/2} exp(-sigma^2 log(v)^2/2),    v = 1 + (e^l - 1)/p,    c = sigma e^{-mu^2/8}/(p sqrt(2 pi)).

So k of them sum to 0 with probability a^k, and else have a density e^{l/2} f(|l|) with f falling.  It is kept as values
at Chebyshev nodes of panels that grow with l.  Between Re z >= 0 and |Im z| <= pi all f are analytic, and bounded
by their values on the real axis: that bounds every error of interpolation and quadrature (docs/certificate.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import erf

from hush.accounting.pairs.losses import Array

_UNIT = 2.0**-53
SUMS = 1024
"""Units that a sum of positive terms may be off by rounding: its weights, as NumPy has them, 525 units."""

NODES = 32
_ELLIPSE = 3.5  # sum of its semi-axes, over half the panel
_WIDE, _HIGH = 0.5 * (_ELLIPSE + 1 / _ELLIPSE), 0.5 * (_ELLIPSE - 1 / _ELLIPSE)
_NEAR = 0.4  # of the rate (and mu, if that is less): around 0 all is analytic so far
_FIRST = _NEAR / (0.5 + 0.5 * _WIDE)  # the first panel, whose ellipse is inside
_AROUND = 2.5  # m is at most that often m(0) there
_TURN = 2.4  # sigma times how far v may turn on an ellipse, times the root of the number of steps
_ANGLES = np.pi * (np.arange(NODES) + 0.5) / NODES
_AT = -np.cos(_ANGLES)
_TO_SERIES = np.cos(np.outer(np.arange(NODES), np.pi - _ANGLES)) * (2 / NODES)
_TO_SERIES[0] *= 0.5
_GAUSS_AT, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(NODES)
QUADRATURE = 0.5 * 64 / 15 / (1 - _ELLIPSE**-2) * _ELLIPSE ** (2.0 - 2 * NODES)  # of length times size on the ellipse
_BETWEEN = 4 * _ELLIPSE ** (1.0 - NODES) / (_ELLIPSE - 1)  # of that size, what interpolation may be off
_LEBESGUE = 3.2  # the largest sum of moduli of the 32 Lagrange polynomials is 3.17
_ROUNDED = 4e-13  # of the largest value at a node: what a series may lose to rounding, 64 n units


@dataclass(frozen=True)
class Loss:
    """One step: rate and noise multiplier."""

    rate: float
    noise: float

    @property
    def atom(self) -> float:
        return (1 - self.rate) * float(erf(1 / (self.noise * math.sqrt(8))))

    @property
    def scale(self) -> float:
        return self.rate * min(1.0, 1 / self.noise)

    def log_density(self, losses: Array) -> Array:
        """log m."""
        turned = self.log_inner(losses)
        top = math.log(self.noise / (self.rate * math.sqrt(2 * math.pi))) - 0.125 / self.noise**2
        return np.asarray(top + 1.5 * (losses - turned) - 0.5 * (self.noise * turned) ** 2)

    def log_inner(self, losses: Array) -> Array:
        """log v."""
        moderate = np.log1p(np.expm1(np.minimum(losses, 30.0)) / self.rate)
        far = np.maximum(losses, 30.0)
        return np.where(losses < 30.0, moderate, far - math.log(self.rate) + np.log1p(-(1 - self.rate) * np.exp(-far)))

    def turn(self, real: float, imaginary: float) -> float:
        """The largest |arg v| at real parts > 0 no smaller than this and imaginary parts no larger.

        v = e^z (1 - (1-p) e^-z)/p.  Its argument rises with the imaginary part, and up to pi falls with the real one.
        """
        if imaginary > math.pi:
            return imaginary + math.asin(math.exp(-real))
        kept = (1 - self.rate) * math.exp(-real)
        turned = math.sin(0.5 * imaginary)
        rest = -math.expm1(-real) + self.rate * math.exp(-real)  # 1 - kept
        return imaginary + math.atan2(kept * math.sin(imaginary), rest + 2 * kept * turned * turned)


@dataclass(frozen=True)
class Panels:
    """Where densities are kept, and how far beyond their real values they may reach on each panel's ellipse."""

    loss: Loss
    edges: Array
    missed: float
    """What may lie beyond the last edge, of any sum of losses."""

    @classmethod
    def of(
        cls, loss: Loss, steps: int, top: float, missed: float, most: int, longest: float = math.inf
    ) -> Panels | None:
        """Panels that grow with the loss up to `top`, for sums of so many; None if there would be too many."""
        turn = _TURN / math.sqrt(max(steps, 4))
        edges = [0.0, _FIRST * loss.scale]
        while edges[-1] < top:
            start = edges[-1]
            length = min(start, longest)
            while loss.noise * loss.turn(start - 0.5 * (_WIDE - 1) * length, 0.5 * _HIGH * length) > turn:
                length *= 0.8
            edges.append(start + length)
            if len(edges) > most:
                return None
        return cls(loss, np.array(edges), missed)

    @property
    def top(self) -> float:
        return float(self.edges[-1])

    @cached_property
    def lengths(self) -> Array:
        return np.diff(self.edges)

    @cached_property
    def nodes(self) -> Array:
        return np.asarray(self.edges[:-1, None] + 0.5 * self.lengths[:, None] * (1 + _AT)).ravel()

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """Where integrals are summed, and with which weights."""
        return _gauss(self.edges)

    @cached_property
    def lowest(self) -> Array:
        """The least real part on each ellipse; of the first it is negative."""
        return np.asarray(self.edges[:-1] - 0.5 * (_WIDE - 1) * self.lengths)

    def log_excess(self, steps: int) -> Array:
        """log of K, with |f(z)| <= K f(lowest) on each ellipse but the first."""
        heights = 0.5 * _HIGH * self.lengths[1:]
        turns = np.array([self.loss.turn(x, y) for x, y in zip(self.lowest[1:], heights, strict=True)])
        slant = 0.5 * np.log1p((heights / self.lowest[1:]) ** 2)
        return np.asarray((steps - 1) * slant + 0.5 * steps * (self.loss.noise * turns) ** 2)

    def quadrature_error(self, sizes: Array) -> float:
        """What sums over nodes may be off where the integrand has such sizes on the ellipses."""
        return float(QUADRATURE * (sizes * self.lengths).sum())

    def find(self, losses: Array) -> Array:
        return np.minimum(np.searchsorted(self.edges, losses, side="right") - 1, self.lengths.size - 1)


@dataclass(frozen=True)
class Density:
    """f of so many steps: values at the nodes, and how far values between them may be off, panel by panel."""

    panels: Panels
    steps: int
    values: Array
    errors: Array
    around: float
    """What |f| is at most around 0, and to the right of that."""

    @classmethod
    def single(cls, panels: Panels) -> Density:
        """m itself: its errors are rounding, 8 u of each number in its exponent and what its argument loses."""
        loss, edges = panels.loss, panels.edges
        logs = loss.log_density(edges)
        turned = loss.log_inner(edges)
        parts = 16 + np.abs(logs) + 3 * (edges + turned) + (loss.noise * turned) ** 2 + 0.25 / loss.noise**2
        height = math.exp(float(logs[0]))
        around = _AROUND * height
        sizes = np.append(around, np.exp(panels.log_excess(1) + loss.log_density(panels.lowest[1:])))
        slopes = panels.edges[1:] / (0.5 * _HIGH * panels.lengths)  # Cauchy: |f'| <= sup |f|/height
        errors = _UNIT * (8 * np.maximum(parts[:-1], parts[1:]) * np.exp(logs[:-1]) + 4 * slopes * sizes)
        return cls(panels, 1, np.exp(loss.log_density(panels.nodes)), errors, around)

    @cached_property
    def series(self) -> Array:
        """Coefficients of Chebyshev polynomials, panel by panel; contiguous for each degree."""
        return np.ascontiguousarray(_TO_SERIES @ self.values.reshape(-1, NODES).T)

    def __call__(self, losses: Array) -> tuple[Array, Array]:
        """Values and errors at losses >= 0; both 0 beyond the last panel."""
        inside = losses <= self.panels.top
        where = self.panels.find(losses)
        if self.steps == 1:
            values = np.exp(self.panels.loss.log_density(losses))
        else:
            at = 2 * (losses - self.panels.edges[where]) / self.panels.lengths[where] - 1
            values = _chebyshev_sum(self.series, where, at)
        return np.where(inside, values, 0.0), np.where(inside, self.errors[where], 0.0)

    def mass(self) -> float:
        """What f adds up to on one side."""
        points, weights = self.panels.points
        return float((self(points)[0] * weights).sum())

    @property
    def most_excess(self) -> float:
        """What K is at most, also of e - z and e + z with z on the first ellipse and beside which e is large."""
        return max(float(np.exp(self.panels.log_excess(self.steps).max())), 1.77 ** (self.steps - 1) * 1.15**self.steps)

    def sizes(self) -> Array:
        """What |f| is at most on each ellipse, its own errors included."""
        lowest = self.panels.lowest[1:]
        value, error = self(lowest)
        return np.append(self.around, np.exp(self.panels.log_excess(self.steps)) * (value + error))


def _chebyshev_sum(series: Array, where: Array, at: Array) -> Array:
    """Clenshaw's recurrence with each point's own coefficients."""
    last, before, twice = series[NODES - 1][where], np.zeros(at.shape), 2 * at
    for degree in range(NODES - 2, 0, -1):
        following = series[degree][where]
        following += twice * last
        following -= before
        last, before = following, last
    return np.asarray(series[0][where] + at * last - before)


def convolved(first: Density, second: Density) -> Density:
    """f of all their steps: what both may lose, or one of them alone where the other's total is 0.

    At e > 0 the two-sided convolution is the integral over 0 < l < e/2 of f(l) g(e-l) + g(l) f(e-l), and over all l > 0
    of f(l) g(e+l) + g(l) f(e+l).
    """
    panels = first.panels
    nodes, (points, weights), count = panels.nodes, panels.points, panels.lengths.size
    whole = np.repeat(panels.edges[1:], NODES)
    atoms = (panels.loss.atom**first.steps, panels.loss.atom**second.steps)
    value = atoms[0] * second.values + atoms[1] * first.values
    wrong = np.repeat(atoms[0] * second.errors + atoms[1] * first.errors, NODES)
    pairs = [(first, second)] if first is second else [(first, second), (second, first)]
    for one, other in pairs:
        times = 2.0 if first is second else 1.0
        mine, doubt = (part * weights * times for part in one(points))
        for k in range(count):
            rows = slice(k * NODES, (k + 1) * NODES)
            at = nodes[rows, None]
            # further out, and on whole panels below e/2
            reach = int(np.searchsorted(points, panels.top - at[0, 0]))
            full = int(np.searchsorted(whole, 0.5 * at[-1, 0], side="right"))
            sums, errors = other(at + points[:reach])
            value[rows] += (sums * mine[:reach]).sum(axis=1)
            wrong[rows] += (sums * doubt[:reach] + errors * (mine + doubt)[:reach]).sum(axis=1)
            below = whole[:full] <= 0.5 * at
            sums, errors = other(np.abs(at - points[:full]))
            sums, errors = sums * below, errors * below
            value[rows] += (sums * mine[:full]).sum(axis=1)
            wrong[rows] += (sums * doubt[:full] + errors * (mine + doubt)[:full]).sum(axis=1)
            # and on the panel that e/2 cuts
            start = panels.edges[panels.find(0.5 * at)]
            length = 0.5 * at - start
            inner = start + 0.5 * length * (1 + _GAUSS_AT)
            near, near_off = one(inner)
            far, far_off = other(at - inner)
            steps = times * 0.5 * length * _GAUSS_WEIGHTS
            value[rows] += (near * far * steps).sum(axis=1)
            wrong[rows] += ((near_off * (far + far_off) + near * far_off) * steps).sum(axis=1)
    return _closed(first, second, value, wrong)


def _closed(first: Density, second: Density, value: Array, wrong: Array) -> Density:
    """With what quadrature, rounding and interpolation add to the errors."""
    panels, steps = first.panels, first.steps + second.steps
    nodes = panels.nodes
    # quadrature: on each ellipse one factor is at most its size there, the other at most what it is on the real axis
    at, highest = nodes[:, None], panels.edges[1:] + 0.5 * (_WIDE - 1) * panels.lengths
    for one, other in ((first, second), (second, first)):
        reached = sum(other(np.maximum(at - highest, 0.27 * at)) + other(at + np.maximum(panels.lowest, -0.5 * at)))
        reached = np.where(at > panels.edges[1], reached, 2 * other.around)
        wrong = wrong + QUADRATURE * other.most_excess * (one.sizes() * panels.lengths * reached).sum(axis=1)
        wrong = wrong + 2 * one.around * panels.missed * math.exp(-0.5 * panels.top)
    wrong = 1.01 * wrong + SUMS * _UNIT * value
    worst, largest = (part.reshape(-1, NODES).max(axis=1) for part in (wrong, value))
    around = _around(first, second)
    known = Density(panels, steps, value, np.zeros(panels.lengths.size), around)
    slopes = panels.edges[1:] / (0.5 * _HIGH * panels.lengths)
    # values at the least real part lie in panels to the left, whose own errors count first
    errors = np.zeros(panels.lengths.size)
    lows, excesses = known(panels.lowest[1:])[0], np.exp(panels.log_excess(steps))
    left = panels.find(panels.lowest[1:])
    for k in range(errors.size):
        size = around if k == 0 else excesses[k - 1] * (lows[k - 1] + errors[left[k - 1]])
        between = _BETWEEN + 4 * _UNIT * slopes[k]
        errors[k] = _LEBESGUE * worst[k] + _ROUNDED * largest[k] + between * size
    return Density(panels, steps, value, errors, around)


def _around(first: Density, second: Density) -> float:
    """The same for all steps together: the integral from 0 to z, along a ray, and those over z + l."""
    loss = first.panels.loss
    bounds = []
    for one, other in ((first, second), (second, first)):
        along = 2 ** (0.5 * one.steps) * 1.15**one.steps * 1.01 * one.mass() + 2 * _NEAR * loss.scale * one.around
        bounds.append(other.around * along)
    total = loss.atom**first.steps * second.around + loss.atom**second.steps * first.around + min(bounds)
    return total + 1.01 * (first.around * second.mass() + second.around * first.mass())


def sub_panels(panels: Panels, epsilon: float) -> tuple[Array, Array]:
    """Nodes and weights on panels cut where |l - epsilon| leaves one, too."""
    cuts = np.concatenate([panels.edges, epsilon - panels.edges, epsilon + panels.edges])
    return _gauss(np.unique(cuts[(cuts >= 0) & (cuts <= panels.top)]))


def _gauss(edges: Array) -> tuple[Array, Array]:
    """Gauss and Legendre's nodes and weights between the edges."""
    lengths = np.diff(edges)
    at = edges[:-1, None] + 0.5 * lengths[:, None] * (1 + _GAUSS_AT)
    return at.ravel(), np.outer(0.5 * lengths, _GAUSS_WEIGHTS).ravel()
