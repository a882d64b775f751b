"""Curves averaged over a little of epsilon, from above and from below, so that contour integrals end soon.

Where losses lie at points, moment generating functions don't decay along vertical lines, and delta(epsilon) has kinks.
An average over epsilon decays for them.  With h(u) = (1 - e^{-u})_+, delta(eps) = E_P[h(L - eps)].  Let U be Gaussian
with deviation d and mean -d^2/2, so that E[e^U] = 1, K its density, and S(u) = E[h(u - U)].  Then

    S - tau K  <=  h  <=  S        with  tau = S(0)/K(0) = d (2 Phi(d/2) - 1)/phi(d/2).

The upper bound is Jensen's inequality: delta as it would be with one more Gaussian release, of mu = d.  For the lower
one let u >= 0.  Then S(u) - h(u) = E[(e^{U-u} - 1)_+] is the integral of (e^t - 1) K(u + t) over t > 0; over K(u) it
falls as u rises, because K is log-concave.  For u <= 0 it is the integral of (1 - e^{-t}) K(u - t), and over K(u) it
rises with u.  So (S - h)/K is largest at u = 0.

On a vertical line the averages multiply the integrand by E[e^{-sU}] = exp(d^2 s(s+1)/2), and the second one by 1 - tau
s(s+1) as well, since h'' + h' is a unit mass at 0, hence S'' + S' = K.  Both change delta by the second order of d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Complex


@dataclass(frozen=True)
class Kernel:
    """One of the two averages, of deviation d."""

    deviation: float
    above: bool

    @cached_property
    def _taken(self) -> float:
        """tau, rounded up, or 0."""
        d = self.deviation
        if self.above:
            return 0.0
        if d > 30:
            return math.inf
        density = math.exp(-d * d / 8) / math.sqrt(2 * math.pi)
        return d * math.erf(d / math.sqrt(8)) / density * (1 + 1e-12)

    def log_at(self, c: float) -> float:
        """log of the transform at real c: what the average does to a curve that falls like e^{-c eps}."""
        rest = 1 - self._taken * c * (c + 1)
        return 0.5 * self.deviation**2 * c * (c + 1) + math.log(rest) if rest > 0 else -math.inf

    def on_line(self, nodes: Complex) -> tuple[Complex, Array]:
        """The transform at s, and bounds on its rounding errors: 4 u of each number in an exponent, 16 of a factor."""
        quadratic = nodes * (nodes + 1)
        exponents = 0.5 * self.deviation**2 * quadratic
        whole = np.exp(exponents)
        doubt = UNIT_ROUNDOFF * (32 + 8 * self.deviation**2 * np.abs(nodes) * (np.abs(nodes) + 1))
        errors = np.abs(whole) * (1 + self._taken * np.abs(quadratic)) * doubt
        return np.asarray(whole * (1 - self._taken * quadratic)), np.asarray(errors)

    def log_tail(self, c: float, height: float) -> float:
        """log of a bound on the integral of |transform|/t^2 over t > height, on the line Re s = c.

        |1 - tau s(s+1)|/t^2 is at most (1 + tau (|c| + t)(|c| + 1 + t))/t^2, which falls with t, and the integral of
        exp(-d^2 t^2/2) beyond T is at most exp(-d^2 T^2/2)/(d^2 T).
        """
        square = self.deviation**2
        factor = (1 + self._taken * (abs(c) + height) * (abs(c) + 1 + height)) / (square * height**3)
        return 0.5 * square * (c * (c + 1) - height**2) + math.log(factor)

    def most(self, c: float, heights: Array) -> Array:
        """Bounds on |transform/(s (s+1))| at Re s = c from such heights on: both of its factors fall."""
        whole = np.exp(0.5 * self.deviation**2 * (c * (c + 1) - heights**2))
        nodes = c + 1j * heights
        return np.asarray(whole * (1 / np.abs(nodes * (nodes + 1)) + self._taken) * (1 + 1e-9))

    @property
    def reach(self) -> tuple[float, float]:
        """How far away the curve counts, and the weight with which it does: aliases are those of delta itself.

        For the average from below is nowhere above delta, and that from above has positive aliases.
        """
        return 0.0, 1.0


def width_for(c: float, log_change: float, above: bool) -> float:
    """The largest deviation that changes a curve falling like e^{-c eps} by no more than a factor exp(log_change)."""
    low, high = 1e-12 / c, 8.0 / c
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if abs(Kernel(middle, above).log_at(c)) <= log_change else (low, middle)
    return low
