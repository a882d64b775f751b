"""Curves averaged over a little of epsilon, from above and from below, so that contour integrals end soon.

Where losses lie at points, moment generating functions don't decay along vertical lines, and delta(epsilon) has kinks.
An average over epsilon decays for them.  With K the density of a sum of m uniform variables, spread over a width w,
K^(s) = E[e^{-sU}] falls like |s|^-m.  As a function of y = e^eps delta is convex and falls, so

    delta(eps) <= E[delta(eps + U)]      if E[e^U] = 1 (Jensen): K around 0, moved by -log E[e^U];

    delta(eps) >= integral of delta(eps + u) (K + b K')(u) du   if K lives on [0, w] and b = 1 - 1/E[e^U].

For the second it is enough to look at delta = (Y - y)_+, of which all others are mixtures: with y = 1 the right-hand
side, as a function of Y, has the second derivative (K + b K') (up to a positive factor), which is first positive, then
negative, since K is log-concave.  It begins at 0 with slope 0 and ends as Y - 1, because b makes it so.  On the concave
part the slope is at least 1, and what ends on the line Y - 1 lies below it; on the convex part it lies below the chord
between two points that do.

Both are off by the second order of w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting.transform import UNIT_ROUNDOFF, Array, Complex

FOLDS = 8


@dataclass(frozen=True)
class Kernel:
    """One of the two averages, of width w."""

    width: float
    above: bool

    @property
    def _log_lift(self) -> float:
        """log E[e^U] of K around 0."""
        return FOLDS * _log_sinhc(self.width / (2 * FOLDS))

    @property
    def _slope(self) -> float:
        """b, or 0."""
        return 0.0 if self.above else -math.expm1(-self._log_lift - self.width / 2)

    @property
    def _shift(self) -> float:
        """Where the middle of K lies."""
        return -self._log_lift if self.above else self.width / 2

    def log_at(self, c: float) -> float:
        """log of the transform at real c, above -1/b: what the average does to a curve that falls like e^{-c eps}."""
        return FOLDS * _log_sinhc(c * self.width / (2 * FOLDS)) - c * self._shift + math.log1p(self._slope * c)

    def on_line(self, nodes: Complex) -> tuple[Complex, Array]:
        """The transform at s, and bounds on its rounding errors.

        sinh(z)/z of modulus at most cosh(Re z)/max(|z|, ...) is good to 16 u (1 + |z|) of that, its 8th power to 8
        times as much and the multiplications; the factor e^{-s shift} to 4 u (1 + |s shift|).
        """
        z = nodes * (self.width / (2 * FOLDS))
        part = np.where(np.abs(z) > 1e-8, np.sinh(z) / np.where(np.abs(z) > 1e-8, z, 1.0), 1.0)
        rest = np.exp(-nodes * self._shift) * (1 + self._slope * nodes)
        size = np.minimum(1.0, 1 / np.maximum(np.abs(z), 1e-300)) * np.cosh(z.real)
        doubt = UNIT_ROUNDOFF * (FOLDS * (24 + 16 * np.abs(z)) + 16 + 4 * np.abs(nodes * self._shift))
        return np.asarray(part**FOLDS * rest), np.asarray(doubt * size**FOLDS * np.abs(rest))

    def log_tail(self, c: float, height: float) -> float:
        """log of a bound on the integral of |transform|/t^2 over t > height, on the line Re s = c."""
        size = FOLDS * math.log(math.cosh(c * self.width / (2 * FOLDS)) * 2 * FOLDS / (self.width * height))
        # |1 + b s| <= 1 + b (|c| + t), which over t is largest at the beginning
        return size - c * self._shift + math.log1p(self._slope * (abs(c) + height)) - math.log(height * FOLDS)

    @property
    def reach(self) -> tuple[float, float]:
        """How far away the curve counts, and the total weight with which it does."""
        # K is at most FOLDS/w, it rises and falls once
        return 2 * self.width, 1 + 2 * self._slope * FOLDS / self.width


def _log_sinhc(x: float) -> float:
    """log(sinh(x)/x), to about 1e-15."""
    x = abs(x)
    if x < 0.03:
        return x * x / 6 * (1 - x * x / 30 + x**4 * 8 / 5040)
    return x + math.log(-math.expm1(-2 * x) / (2 * x))


def width_for(c: float, log_change: float, above: bool) -> float:
    """The widest kernel that changes a curve falling like e^{-c eps} by no more than a factor exp(log_change)."""
    low, high = 1e-12 / c, 8.0 / c
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if abs(Kernel(middle, above).log_at(c)) <= log_change else (low, middle)
    return low
