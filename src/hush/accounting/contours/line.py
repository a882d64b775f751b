"""delta(epsilon) from the values of a moment generating function on one vertical line, with its certificate.

With Lambda(s) the log-MGF of the total loss L under P,

    delta(eps) = E_P[(1 - e^(eps-L))_+]  =   1/(2 pi i) * integral over Re s = c of exp(Lambda(s) - s eps)/(s (s+1)) ds

for c > 0.  Moving the line past the pole at s = 0 takes 1 away: for -1 < c < 0 minus the same integral is

    1 - delta(eps) = E_P[min(1, e^(eps-L))],

to *relative* accuracy, which is what epsilon needs at a delta near 1.

The trapezoidal rule with spacing h on the line does not approximate this, it *equals* a sum of positive terms,

    sum over all integers n of exp(2 pi c n / h) * f(eps + 2 pi n / h),   f = delta or 1 - delta    (Poisson summation)

so its error is the terms with n != 0, and Chernoff's inequality bounds each of them, f(e) <= k(t) exp(Lambda(t) - t e):
for delta at every t >= 0, for 1 - delta at every -1 <= t <= 0.  docs/certificate.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Complex

LOG_NEGLIGIBLE = -26.0
_FRACTIONS = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
_BLOCK = 64
_FEW = 8  # epsilons, for which exponentials cost no more than products
_STEPS_OUT = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20])


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
    log_dropped: float = -np.inf
    """log of the P-mass left out of Lambda: it adds between 0 and itself."""

    def log_delta(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on log delta at each epsilon."""
        lower, upper = self.log_value(epsilons)
        return (lower, upper) if self.c > 0 else complements(lower, upper)

    def log_value(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on the log of delta (c > 0) or of 1 - delta (c < 0) at each epsilon."""
        epsilon = np.asarray(epsilons, dtype=float)[:, None]
        kernel = np.sign(self.c) * self.nodes * (self.nodes + 1)
        factor = self.spacing / np.pi
        weights = self.values / kernel
        total = factor * (_turned(weights, self.spacing, epsilon[:, 0]) - 0.5 * weights[0].real)
        sizes = np.abs(self.values) / np.abs(kernel)
        summed = 64 if epsilon.size < _FEW else 200
        rounded = summed * UNIT_ROUNDOFF * sizes.sum() + (self.errors / np.abs(kernel)).sum()
        turning = 4 * UNIT_ROUNDOFF * (np.abs(self.nodes) * sizes).sum()
        error = factor * (rounded + turning * np.abs(epsilon[:, 0]))
        error += np.exp(self.log_tail) / (np.pi * self.nodes[-1].imag) + self._aliases(epsilon[:, 0])
        offset = self.log_scale - self.c * epsilon[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            lower = np.where(total > error, np.log(np.maximum(total - error, 0.0)), -np.inf) + offset
            upper = np.logaddexp(np.log(np.maximum(total + error, 0.0)) + offset, self.log_dropped)
        margin = 8 * UNIT_ROUNDOFF * (np.abs(offset) + abs(self.log_scale) + np.abs(self.c * epsilon[:, 0]) + 1)
        return lower - margin, np.minimum(upper + margin, 0.0)

    def _aliases(self, epsilon: Array) -> Array:
        """Sum over n != 0 of exp(2 pi c n/h) f(eps + 2 pi n/h), relative to exp(Lambda(c) - c eps)."""
        period = 2 * np.pi / self.spacing
        gap = self.chernoff_points - self.c
        log_terms = (
            self.chernoff_values
            - self.log_scale
            - np.multiply.outer(epsilon, gap)
            + log_peak(self.chernoff_points)
            - np.abs(gap) * period
        )
        ratio = np.exp(-np.abs(gap) * period)
        with np.errstate(over="ignore"):
            sums = np.exp(np.minimum(log_terms, 700.0)) / (1 - ratio)
        right, left = gap > 0, gap < 0
        result: Array = sums[:, right].min(axis=1) + sums[:, left].min(axis=1)
        return result


def _turned(weights: Complex, spacing: float, epsilons: Array) -> Array:
    """The real part of the sum of w_j e^{-i j spacing eps}.

    Of many epsilons, with j = 64 k + l, an exponential is a product of two, and sums over l are products of matrices.
    Angles are off by 2 u of themselves, which the two of a term add up to 2 u j spacing eps; a real part of a product
    of matrices is a sum of 128 products, off by 128 u; the rest, 16 u for functions and products and a pairwise sum, is
    below 64 u, of the sum of |w_j|.
    """
    if epsilons.size < _FEW:
        terms = weights * np.exp(np.multiply.outer(epsilons, -1j * spacing * np.arange(weights.size)))
        return np.asarray(terms.real.sum(axis=1))
    rows = -(-weights.size // _BLOCK)
    blocks = np.append(weights, np.zeros(rows * _BLOCK - weights.size)).reshape(rows, _BLOCK)
    angles = spacing * epsilons
    inner = np.exp(np.multiply.outer(angles, -1j * np.arange(_BLOCK))) @ blocks.T
    return np.asarray((np.exp(np.multiply.outer(angles, -1j * _BLOCK * np.arange(rows))) * inner).real.sum(axis=1))


def power_errors(logs: Array, errors: Array) -> Array:
    """|z| (e^error - 1) by log |z|: an error may be far beyond e^700 where z is as far below 1."""
    small = np.exp(logs) * np.expm1(np.minimum(errors, 1.0))
    return np.where(errors < 1, small, np.exp(np.minimum(logs + errors, 700.0)))


def log_peak(t: Array | float) -> Array:
    """log k(t): of the largest value of exp(-t u)(1 - exp(-u)), t^t / (t+1)^(t+1); 0 for t <= 0."""
    t = np.maximum(np.asarray(t, dtype=float), 0.0)
    return np.asarray(t * np.log(np.maximum(t, 1e-300)) - (t + 1) * np.log1p(t))


def chernoff(log_mgf: Callable[[Array], Array], epsilon: float, points: Array) -> float:
    """The best of the bounds log delta(eps) <= Lambda(t) - t eps + log k(t) over the given t > 0."""
    return float(np.min(log_mgf(points) - points * epsilon + log_peak(points)))


def chernoff_points(c: float, spread: float) -> Array:
    """Real points at which Chernoff's inequality is tried, on both sides of c, at steps of 1/spread and of c.

    They begin with those where the MGF is at most 1 whatever the steps: 0 and, for 1 - delta, also -1.
    """
    out = _STEPS_OUT / spread
    if c > 0:
        return np.concatenate([[0.0], c * (1 - _FRACTIONS), c - out[out < c], c + out, c * (1 + _FRACTIONS)])
    below, above = c - out, c + out
    fractions = np.concatenate([c * (1 - _FRACTIONS), c - (1 + c) * _FRACTIONS])
    return np.concatenate([[0.0, -1.0], fractions, below[below > -1], above[above < 0]])


def chernoff_values(log_mgf: Callable[[Array], Array], points: Array) -> Array:
    """Lambda at such points, raised by 1e-6: more than rounding can take from it."""
    sure = np.isin(points, (0.0, -1.0))
    values = np.zeros(points.shape)
    values[~sure] = log_mgf(points[~sure])
    return values + 1e-6


def alias_free_spacing(
    c: float, epsilon: float, value: float, points: Array, values: Array, log_negligible: float = LOG_NEGLIGIBLE
) -> float:
    """The widest spacing whose aliases at epsilon are negligible beside exp(Lambda(c) - c eps).

    (Where all of the integral is negligible, so are they: then each of their sums is a geometric series of ratio 1/e.)
    0 where c is too large for points beside it.
    """
    gap = points - c
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.maximum(values - value - gap * epsilon - log_negligible, 1.0) / np.abs(gap)
    needed = np.where(np.isfinite(needed), needed, np.inf)
    period = max(float(np.min(needed[side], initial=np.inf)) for side in (gap > 0, gap < 0))
    return float(2 * np.pi / period)


def complements(lower: Array, upper: Array) -> tuple[Array, Array]:
    """Bounds on log(1 - v) from bounds on log v: a v far below 1 keeps its digits, since doubles are dense near 0."""
    with np.errstate(divide="ignore"):
        least = np.log1p(-np.exp(np.minimum(upper + 32 * UNIT_ROUNDOFF, 0.0))) * (1 + 32 * UNIT_ROUNDOFF)
        most = np.log1p(-np.exp(lower - 32 * UNIT_ROUNDOFF)) * (1 - 32 * UNIT_ROUNDOFF)
    return np.asarray(least), np.asarray(np.minimum(most, 0.0))
