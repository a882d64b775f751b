"""delta(epsilon) of projected norms on samples to tens of digits, by a method of its own: nothing of hush is used.

With g = 1 - p + p e^u the likelihood ratio of one step, P = g Q, and phi(t) = E_Q[g^(1/2 + it)] (Hellinger's integral
at t = 0), the transform of the total loss on the line Re s = -1/2 is the product of phi^T, and there

    1 - delta(eps) = e^(eps/2) / (2 pi) * integral of (product of phi(t)^T) e^(-i t eps) / (1/4 + t^2) dt,

with conj(phi) in the add direction.  No moment beyond the total mass is asked for, so heavy tails need no cut, no tilt
and no bins; what is lost to the subtraction from 1 is made up for by digits.

The trapezoidal sum with spacing h = 2 pi/W equals the sum over all n of e^(-n W/2) f(eps + n W), f = 1 - delta.  A law
without any loss has f(eps) = min(1, e^eps), and that sum in closed form; taken from it, what is left is delta(eps) and,
at n != 0, delta of either direction at epsilons beyond: together below 3 e^(eps - W/2) of the larger delta, W > 2 eps.

phi is a trapezoidal sum over the inner loss u, whose density under Q is in closed form
(generalised hyperbolic), C e^(-u/2) (4x)^-nu K_nu(x), nu = (r+1)/2, x = sqrt(u^2 + r/sigma^2)/2.
Turns e^(i t log g) are made
in integers scaled by 2^bits, one multiplication a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath as mp
import numpy as np
from numpy.typing import NDArray
from projected import Kind
from scipy.special import kve

REMOVE, ADD = +1, -1


class TooManyNodesError(Exception):
    """The transform decays too slowly: too few hits."""


class Hellinger:
    """The curve of a composition, for deltas down to `smallest` and epsilons up to `largest`."""

    def __init__(
        self, kinds: Sequence[Kind], smallest: float, largest: float, *, resolution: float = 1.0, most: int = 1500
    ) -> None:
        self.steps = [steps for *_, steps in kinds]
        # log of the absolute error allowed in the product of all phi^T
        self.log_small = math.log(smallest) - largest / 2 - 24
        self.digits = math.ceil(-self.log_small / math.log(10) + math.log10(sum(self.steps)) + 4)
        self.bits = int(3.33 * self.digits) + 40
        with mp.workdps(self.digits + 10):
            self.period = mp.mpf(resolution * (2 * largest + 54))
            self.spacing = 2 * mp.pi / self.period
            height = _height(kinds, self.log_small)
            if height > most * self.spacing:
                raise TooManyNodesError
            while not self._walk(kinds, height, resolution):
                height *= 1.5

    def _walk(self, kinds: Sequence[Kind], height: float, resolution: float) -> bool:
        """The product at one node after the other until it is negligible; False if that takes more than the height."""
        laws = [_Law(kind, height, self.digits, self.bits, self.spacing, resolution) for kind in kinds]
        self.values: list[mp.mpc] = []
        quiet = 0
        while quiet < 8:
            t = self.spacing * len(self.values)
            if t > height:
                return False
            product = mp.mpc(1)
            for law, steps in zip(laws, self.steps, strict=True):
                product *= mp.exp(steps * mp.log(law.next(t)))
            self.values.append(product / (mp.mpf(1) / 4 + t * t))
            quiet = quiet + 1 if abs(self.values[-1]) * (1 + t) < mp.exp(self.log_small) else 0
        return True

    def delta(self, direction: int, epsilon: float) -> mp.mpf:
        with mp.workdps(self.digits + 10):
            eps = mp.mpf(epsilon)
            turn, step = mp.mpc(1), mp.expj(-direction * self.spacing * eps)
            total = -self.values[0].real / 2
            for value in self.values:
                total += (value * turn).real
                turn *= step
            small = mp.exp(-self.period / 2)
            return (1 + mp.exp(eps) * small) / (1 - small) - mp.exp(eps / 2) * self.spacing / mp.pi * total

    def largest(self, epsilon: float) -> mp.mpf:
        """delta, the larger of both directions."""
        return max(self.delta(REMOVE, epsilon), self.delta(ADD, epsilon))


class _Law:
    """One step's phi at one node after the other."""

    def __init__(self, kind: Kind, height: float, digits: int, bits: int, spacing: mp.mpf, resolution: float) -> None:
        sigma, r, rate, _ = kind
        self.bits, self.missed = bits, 1 - mp.mpf(rate)
        nu, reach = (r + 1) / 2, math.sqrt(r) / sigma
        # analytic up to the branch points of K_nu and the zeros of g; |g^(it)| grows like e^(t Im u) on the way
        strip = 0.6 * min(reach, math.pi)
        needed = 2.303 * digits + 5 + height * strip - nu * math.log1p(-((strip / reach) ** 2))
        step = mp.mpf(2 * math.pi * strip / (needed * resolution))
        low, high = 2.303 * digits + 10, 2 * 2.303 * digits + 10
        low = high if rate == 1 else low
        places = [step * k for k in range(-math.ceil(low / step), math.ceil(high / step) + 1)]
        even = {k: _even(sigma, r, step * k) for k in range(math.ceil(high / step) + 1)}
        density = [step * mp.exp(-u / 2) * even[abs(round(u / step))] for u in places]
        ratios = [self.missed + mp.mpf(rate) * mp.exp(u) for u in places]
        self.outside = 1 - mp.fsum(density)
        self.weights = self._fixed([d * mp.sqrt(g) for d, g in zip(density, ratios, strict=True)])
        turns = [spacing * mp.log(g) for g in ratios]
        self.cos1, self.sin1 = self._fixed([mp.cos(a) for a in turns]), self._fixed([mp.sin(a) for a in turns])
        self.cos, self.sin = self._fixed([mp.mpf(1)] * len(turns)), self._fixed([mp.mpf(0)] * len(turns))

    def _fixed(self, values: list[mp.mpf]) -> NDArray[np.object_]:
        return np.array([int(mp.floor(mp.ldexp(v, self.bits))) for v in values], dtype=object)

    def next(self, t: mp.mpf) -> mp.mpc:
        bits = self.bits
        real, imag = (mp.ldexp(int(self.weights @ row), -2 * bits) for row in (self.cos, self.sin))
        cos, sin = self.cos, self.sin
        self.cos = (cos * self.cos1 - sin * self.sin1) >> bits
        self.sin = (sin * self.cos1 + cos * self.sin1) >> bits
        value = mp.mpc(real, imag)
        # far below 0 g is 1 - p: what lies beyond the first place has that
        return value + mp.sqrt(self.missed) * mp.expj(t * mp.log(self.missed)) * self.outside if self.missed else value


def _height(kinds: Sequence[Kind], log_small: float) -> float:
    """About where the product has fallen so far, in double precision: how far to go, nothing else."""
    heights = np.geomspace(0.1, 1e4, 80)
    logs = -2 * np.log(heights)
    u = np.linspace(-40.0, 80.0, 4001)
    for sigma, r, rate, steps in kinds:
        nu, x = (r + 1) / 2, 0.5 * np.sqrt(u * u + r / sigma**2)
        with np.errstate(all="ignore"):  # K_nu overflows at many projections: then nothing is said
            density = np.exp(-nu * np.log(x) + np.log(kve(nu, x)) - x - u / 2)
            density /= density.sum()
        losses = np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + u)
        logs += steps * np.log(np.abs(np.exp(np.multiply.outer(0.5 + 1j * heights, losses)) @ density) + 1e-300)
    passed = logs < log_small
    return 1.05 * float(heights[np.argmax(passed)]) + 2 if passed.any() else math.inf


def _even(sigma: float, r: int, u: mp.mpf) -> mp.mpf:
    """e^(u/2) times the density of the inner loss under Q: an even function."""
    square = r / mp.mpf(sigma) ** 2
    x = mp.sqrt(u * u + square) / 2
    if r % 2 == 0:
        below = mp.sqrt(mp.pi / (2 * x)) * mp.exp(-x)
        here, order = below, mp.mpf(1) / 2  # K_{-1/2} = K_{1/2}
    else:
        below, here, order = *_first_two(x), mp.mpf(1)
    while order < mp.mpf(r + 1) / 2:
        below, here = here, below + 2 * order / x * here
        order += 1
    constant = mp.sqrt(2 / mp.pi) * (square / 2) ** (mp.mpf(r) / 2) / mp.gamma(mp.mpf(r) / 2)
    return constant * (4 * x) ** (-order) * here


def _first_two(x: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """K_0 and K_1, integrals of e^(-x cosh s) and of cosh s times that over s > 0, by the trapezoidal rule."""
    digits = 2.303 * mp.mp.dps + 10
    step = min(math.pi**2 / digits, 2 * math.pi / math.sqrt(2 * digits * float(x))) * 0.8
    rise = mp.cosh(step)
    before, here, total, tilted = rise, mp.mpf(1), mp.exp(-x) / 2, mp.exp(-x) / 2
    while x * (here - 1) < digits:
        before, here = here, 2 * rise * here - before  # cosh of the next node
        term = mp.exp(-x * here)
        total, tilted = total + term, tilted + here * term
    return step * total, step * tilted
