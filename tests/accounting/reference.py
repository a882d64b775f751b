"""Independent values of delta(epsilon) for T Poisson-subsampled Gaussian steps: none of them uses hush.

    one_step, two_steps   mpmath: the closed form, and its average over one more step            (any setting)
    RealSpace             the density of the total loss, convolved in real space: no transform,  (up to thousands
                          only positive terms, so relative accuracy at any depth of the tail      of steps)
    GilPelaez             inversion on the imaginary axis in fixed-point integers of 50 to 200   (any number of steps,
                          digits, no tilt                                                         not too few hits)

The directions: in "remove" the loss is log g(x) with x from the mixture, in "add" it is -log g(x) with x ~ N(0, 1),
where g = 1 - p + p exp(x/sigma - 1/(2 sigma^2)).  Every reference states its own relative error, found by computing
twice at different resolutions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline
from scipy.special import logsumexp

Array = NDArray[np.float64]
REMOVE, ADD = +1, -1


@dataclass(frozen=True)
class Setting:
    rate: float
    noise: float
    steps: int


# One and two steps, closed form


def one_step(rate: float, noise: float, direction: int, epsilon: mp.mpf) -> mp.mpf:
    """E_P[(1 - exp(eps - L))_+] of one step, any sign of epsilon."""
    p, mu, eps = mp.mpf(rate), 1 / mp.mpf(noise), mp.mpf(epsilon)
    ratio = (mp.exp(direction * eps) - 1 + p) / p  # the e^u at which the loss is epsilon
    if ratio <= 0:
        return 1 - mp.exp(eps) if direction == REMOVE else mp.mpf(0)
    x = mp.log(ratio) / mu + mu / 2
    if direction == REMOVE:
        mixture = (1 - p) * mp.ncdf(-x) + p * mp.ncdf(mu - x)
        return mixture - mp.exp(eps) * mp.ncdf(-x)
    mixture = (1 - p) * mp.ncdf(x) + p * mp.ncdf(x - mu)
    return mp.ncdf(x) - mp.exp(eps) * mixture


def two_steps(rate: float, noise: float, direction: int, epsilon: float, digits: int = 60) -> tuple[mp.mpf, mp.mpf]:
    """The closed form averaged over the other step's loss, and its absolute error as mpmath estimates it."""
    with mp.workdps(digits):
        p, mu, eps = mp.mpf(rate), 1 / mp.mpf(noise), mp.mpf(epsilon)
        reach = mp.sqrt(2 * digits * mp.log(10))

        def integrand(x: mp.mpf) -> mp.mpf:
            density = mp.npdf(x)
            g = 1 - p + p * mp.exp(mu * x - mu * mu / 2)
            if direction == REMOVE:
                density *= g
            return density * one_step(rate, noise, direction, eps - direction * mp.log(g))

        hits = [x for x in _kinks(p, mu, eps, direction) if -reach < x < reach + mu]
        inner = [-8, -4, -2, -1, 0, 1, 2, 4, 8]
        edges = sorted({-reach, reach + mu, *hits, *map(mp.mpf, inner), *(mu + mp.mpf(k) for k in inner)})
        edges = [e for e in edges if -reach <= e <= reach + mu]
        value, error = mp.quad(integrand, edges, error=True, maxdegree=8)
        return value, error


def _kinks(p: mp.mpf, mu: mp.mpf, eps: mp.mpf, direction: int) -> list[mp.mpf]:
    """Where the other step's remaining epsilon reaches the end of its support, and the points around it."""
    points = []
    for target in (direction * eps - mp.log(1 - p), direction * eps / 2, direction * eps):
        ratio = (mp.exp(target) - 1 + p) / p
        if ratio > 0:
            x = mp.log(ratio) / mu + mu / 2
            points += [x + shift * min(1, 1 / mu) for shift in (mp.mpf(-2), mp.mpf(-0.3), 0, mp.mpf(0.3), mp.mpf(2))]
    return points


# Few and some steps, real space


class RealSpace:
    """The law of the total loss under N(0, 1), by repeated convolution of its density, in log space.

    The total is T log(1-p) + Y with Y a sum of T independent log(1 + r e^u), r = p/(1-p), all positive.  In the
    coordinate v with Y = log(1 + r e^v) one step is Gaussian with standard deviation 1/sigma, and sums stay smooth;
    their log-densities are kept at nodes dense to the left and interpolated by splines of degree 7.  Under the mixture
    the density is e^(total loss) times as large, so one density serves both laws and both directions; its two integrals
    are known to be 1, which removes the two largest modes of the accumulated error.
    """

    def __init__(self, setting: Setting, depth: float = 150.0, resolution: float = 1.0) -> None:
        """`depth`: masses below exp(-depth) are cut; `resolution` multiplies the numbers of nodes."""
        self.setting, self.depth = setting, depth
        self.size, self.panels = round(700 * resolution), round(36 * resolution)
        self.shift = math.log1p(-setting.rate)
        self.log_odds = math.log(setting.rate) - self.shift
        mean, deviation = -0.5 / setting.noise**2, 1 / setting.noise
        reach = math.sqrt(2 * depth)
        mesh = Mesh(mean - deviation * reach, mean + deviation * (reach + 1 / setting.noise))
        v = mesh.points(self.size)
        density = -0.5 * ((v - mean) / deviation) ** 2 - 0.5 * math.log(2 * math.pi) - math.log(deviation)
        one = self._normalised(1, mesh, density)
        result = None
        for bit in bin(setting.steps)[:1:-1]:
            if bit == "1":
                result = one if result is None else self._sum(result, one)
            if bit == "1" and setting.steps == result.count:
                break
            one = self._sum(one, one)
        assert result is not None
        self.total = result

    def excess(self, v: Array) -> Array:
        return np.logaddexp(0.0, self.log_odds + v)

    def position(self, excess: Array) -> Array:
        with np.errstate(divide="ignore"):
            large = excess + np.log(-np.expm1(-excess))
        return large - self.log_odds

    def _log_slope(self, v: Array) -> Array:
        """log dY/dv = log of r e^v / (1 + r e^v)."""
        return self.log_odds + v - self.excess(v)

    def _normalised(self, count: int, mesh: Mesh, log_density: Array) -> _Density:
        """Make both laws integrate to 1."""
        raw = _Density(count, mesh, log_density)
        v = raw.v
        for _ in range(3):
            x, weight = raw.panels(v[0], v[-1], 4 * self.panels)
            values = raw(x) + np.log(weight)
            loss = count * self.shift + self.excess(x)
            absent, present = logsumexp(values), logsumexp(values + loss)
            # q exp(a + b loss) has integral 1 under both laws, to first order in a and b
            mean = float(np.exp(values - absent) @ loss)
            tilted = float(np.exp(values + loss - present) @ loss)
            slope = 0.0 if abs(tilted - mean) < 0.01 else -(present - absent) / (tilted - mean)
            here = count * self.shift + self.excess(v)
            log_density = log_density - absent + slope * (here - mean)
            raw = _Density(count, mesh, log_density)
        return raw

    def _sum(self, first: _Density, second: _Density) -> _Density:
        count = first.count + second.count
        low = self.excess(first.v[:1])[0] + self.excess(second.v[:1])[0]
        high = self.excess(first.v[-1:])[0] + self.excess(second.v[-1:])[0]
        first_v, last_v = self.position(np.array([low, high]))
        mesh = Mesh(first_v, last_v, 14.0)
        for _ in range(3):
            v = mesh.points(160)[1:-1]
            rough = self._convolved(first, second, v, 12)
            loss = count * self.shift + self.excess(v)
            kept = np.flatnonzero(np.maximum(rough, rough + loss) > -self.depth)
            first_v = v[kept[0] - 1] if kept[0] > 0 else first_v
            last_v = v[kept[-1] + 1] if kept[-1] + 1 < len(v) else last_v
            mesh = Mesh.around(first_v, last_v, v[np.argmax(rough)])
        v = mesh.points(self.size + 2)[1:-1]
        return self._normalised(
            count,
            Mesh(v[0], v[-1], mesh.bend * (self.size - 1) / (self.size + 1)),
            self._convolved(first, second, v, self.panels),
        )

    def _convolved(self, first: _Density, second: _Density, v: Array, panels: int) -> Array:
        """log density at v of the sum: first below half of it, or the second."""
        parts = [self._half(first, second, v, panels)]
        parts.append(parts[0] if first is second else self._half(second, first, v, panels))
        return np.logaddexp(*parts) + self._log_slope(v)

    def _half(self, lesser: _Density, greater: _Density, v: Array, panels: int) -> Array:
        total = self.excess(v)
        top = np.minimum(self.position(total / 2), lesser.v[-1])
        at, weight = lesser.panels(lesser.v[0], np.maximum(top, lesser.v[0]), panels)
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = self.position(np.maximum(total[:, None] - self.excess(at), 1e-300))
            terms = lesser(at) + greater(rest) - self._log_slope(rest) + np.log(weight)
        return logsumexp(np.where(np.isnan(terms), -np.inf, terms), axis=1)

    def log_delta(self, direction: int, epsilon: float) -> float:
        law, steps = self.total, self.setting.steps
        edge = direction * epsilon - steps * self.shift  # the excess at which the loss is epsilon
        if edge <= 0:
            return -math.inf if direction == ADD else math.log(-math.expm1(epsilon)) if epsilon < 0 else 0.0
        corner = float(np.clip(self.position(np.array([edge]))[0], law.v[0], law.v[-1]))
        ends = (corner, law.v[-1]) if direction == REMOVE else (law.v[0], corner)
        x, weight = law.panels(*ends, 8 * self.panels)
        beyond = direction * (self.excess(x) - edge)  # loss minus epsilon
        with np.errstate(divide="ignore"):
            if direction == REMOVE:
                terms = law(x) + epsilon + beyond + np.log(-np.expm1(-np.maximum(beyond, 0.0)))
            else:
                terms = law(x) + np.log(-np.expm1(-np.maximum(beyond, 0.0)))
            return float(logsumexp(terms + np.log(weight)))

    def log_complement(self, direction: int, epsilon: float) -> float:
        """log(1 - delta) = log of P(L <= eps) + e^eps Q(L > eps), both integrated."""
        law, steps = self.total, self.setting.steps
        edge = direction * epsilon - steps * self.shift
        corner = law.v[0] if edge <= 0 else float(np.clip(self.position(np.array([edge]))[0], law.v[0], law.v[-1]))
        parts = []
        for ends, below in (((law.v[0], corner), direction == REMOVE), ((corner, law.v[-1]), direction == ADD)):
            if ends[1] > ends[0]:
                x, weight = law.panels(*ends, 8 * self.panels)
                loss = steps * self.shift + self.excess(
                    x
                )  # log g: its density under N(0, 1) is law, and e^loss times it
                with_record = below == (direction == REMOVE)
                parts.append(logsumexp(law(x) + np.log(weight) + with_record * loss) + (0.0 if below else epsilon))
        return float(logsumexp(parts))


@dataclass(frozen=True)
class Mesh:
    """An interval with a smooth coordinate on it, stretched exponentially: denser on the left by exp(bend)."""

    low: float
    high: float
    bend: float = 0.0

    @staticmethod
    def around(low: float, high: float, peak: float) -> Mesh:
        """Half of the points from the left end to as far again beyond the peak, if the peak is that near."""
        share = max(2 * (peak - low) / (high - low), 1e-4)
        return Mesh(low, high, 0.0 if share >= 0.5 else 2 * math.log(1 / share - 1))

    def points(self, size: int) -> Array:
        return self.place(np.linspace(0.0, 1.0, size))

    def place(self, unit: Array) -> Array:
        if self.bend < 1e-3:
            return self.low + (self.high - self.low) * unit
        return self.low + (self.high - self.low) * np.expm1(self.bend * unit) / math.expm1(self.bend)

    def stretch(self, unit: Array) -> Array:
        if self.bend < 1e-3:
            return np.full(np.shape(unit), self.high - self.low)
        return (self.high - self.low) * self.bend * np.exp(self.bend * unit) / math.expm1(self.bend)

    def unit(self, v: Array) -> Array:
        share = np.clip((v - self.low) / (self.high - self.low), 0.0, 1.0)
        return share if self.bend < 1e-3 else np.log1p(share * math.expm1(self.bend)) / self.bend


class _Density:
    """A log-density in v: a spline in the mesh's coordinate inside its range, nothing outside."""

    def __init__(self, count: int, mesh: Mesh, log_density: Array) -> None:
        self.count, self.mesh = count, mesh
        self.v = mesh.points(len(log_density))
        kept = np.flatnonzero(np.isfinite(log_density))
        unit = np.linspace(0.0, 1.0, len(log_density))[kept]
        self._ends = unit[0], unit[-1]
        self._spline = make_interp_spline(unit, log_density[kept], k=7)

    def __call__(self, v: Array) -> Array:
        unit = self.mesh.unit(v)
        inside = (v >= self.v[0]) & (v <= self.v[-1]) & (unit >= self._ends[0]) & (unit <= self._ends[1])
        return np.where(inside, self._spline(np.clip(unit, *self._ends)), -np.inf)

    def panels(self, low: float, high: float | Array, panels: int) -> tuple[Array, Array]:
        """Gauss-Legendre nodes and weights from low up to (each) high, twelve to a panel, even in the coordinate."""
        begin, end = self.mesh.unit(np.asarray(low)), self.mesh.unit(np.asarray(high))
        node, weight = np.polynomial.legendre.leggauss(12)
        unit = ((np.arange(panels)[:, None] + 0.5 + 0.5 * node) / panels).ravel()
        share = np.tile(0.5 * weight / panels, panels)
        at = begin + np.multiply.outer(end - begin, unit)
        return self.mesh.place(at), np.multiply.outer(end - begin, share) * self.mesh.stretch(at)


# Many steps, the imaginary axis


class TooManyNodesError(Exception):
    """The characteristic function falls too slowly."""


class GilPelaez:
    """P(L > eps) = 1/2 + 1/pi * sum over j of Im(phi(t_j) exp(-i t_j eps)) / (j + 1/2), t_j = (j + 1/2) h.

    The midpoint sum is off by no more than the probability of |L - eps| > 2 pi/h.  E[g^(it)] and E[g^(1+it)] are
    Gauss-Legendre sums over x, in integers scaled by 2^bits: |g^(it)| = 1, so fixed point loses nothing.
    """

    def __init__(self, setting: Setting, log_delta: float, resolution: float = 1.0, most: int = 1200) -> None:
        self.setting = setting
        largest, span = _chernoff_ends(setting, log_delta)
        # Q(L > eps) is multiplied by e^eps, so it must be known to e^-eps of delta.
        log_small = log_delta - largest - 37
        self.digits = 16 * math.ceil((-log_small / math.log(10) + 5 + math.log10(setting.steps)) / 16)
        self.bits = int(self.digits * 3.33) + 30
        # g has its zeros at pi sigma i, and |g^(it)| grows like exp(t Im x / sigma) on the way there.
        width = min(1.6, 1.2 * setting.noise) * min(1.0, 90 / self.digits)
        if self.digits > 250 or 40 / width > 100:
            raise TooManyNodesError
        with mp.workdps(self.digits + 10):
            p, mu = mp.mpf(setting.rate), 1 / mp.mpf(setting.noise)
            reach = mp.sqrt(2 * self.digits * mp.log(10))
            panels = int(mp.ceil((2 * reach + mu) / width * resolution))
            x, weight = _mp_panels(-reach, reach + mu, panels, 80, self.digits + 10)
            g = [1 - p + p * mp.exp(at * mu - mu * mu / 2) for at in x]
            density = [w * mp.npdf(at) for w, at in zip(weight, x, strict=True)]
            self.spacing = 2 * mp.pi / (resolution * span)
            self._walk(g, density, math.exp(log_small), most)

    def _fixed(self, values: list[mp.mpf]) -> NDArray[np.object_]:
        return np.array([int(mp.floor(mp.ldexp(v, self.bits))) for v in values], dtype=object)

    def _walk(self, g: list[mp.mpf], density: list[mp.mpf], smallest: float, most: int) -> None:
        """The characteristic functions at one node after the other, until both are negligible."""
        bits, steps = self.bits, self.setting.steps
        absent = self._fixed(density)
        present = self._fixed([a * b for a, b in zip(density, g, strict=True)])
        turns = [self.spacing * mp.log(value) for value in g]
        cos1, sin1 = self._fixed([mp.cos(a) for a in turns]), self._fixed([mp.sin(a) for a in turns])
        cos, sin = self._fixed([mp.cos(a / 2) for a in turns]), self._fixed([mp.sin(a / 2) for a in turns])
        self.absent: list[mp.mpc] = []
        self.present: list[mp.mpc] = []
        quiet = 0
        while quiet < 6:
            for weights, out in ((absent, self.absent), (present, self.present)):
                value = mp.mpc(mp.ldexp(int(weights @ cos), -2 * bits), mp.ldexp(int(weights @ sin), -2 * bits))
                out.append(mp.exp(steps * mp.log(value)))
            size = max(abs(self.absent[-1]), abs(self.present[-1]))
            quiet = quiet + 1 if size < smallest else 0
            if len(self.absent) > most:
                raise TooManyNodesError
            cos, sin = (cos * cos1 - sin * sin1) >> bits, (sin * cos1 + cos * sin1) >> bits

    def delta(self, direction: int, epsilon: float) -> mp.mpf:
        with mp.workdps(self.digits + 10):
            eps = mp.mpf(epsilon)
            phi_p, phi_q = (self.present, self.absent) if direction == REMOVE else (self.absent, self.present)
            turn, step = mp.expj(-self.spacing / 2 * eps), mp.expj(-self.spacing * eps)
            above_p = above_q = mp.mpf(0)
            for j, (a, b) in enumerate(zip(phi_p, phi_q, strict=True)):
                if direction == ADD:
                    a, b = mp.conj(a), mp.conj(b)
                above_p += (a * turn).imag / (j + mp.mpf(1) / 2)
                above_q += (b * turn).imag / (j + mp.mpf(1) / 2)
                turn *= step
            half = mp.mpf(1) / 2
            return (half + above_p / mp.pi) - mp.exp(eps) * (half + above_q / mp.pi)


def _chernoff_ends(setting: Setting, log_delta: float) -> tuple[float, float]:
    """The largest epsilon that delta can have, and a length of the loss axis outside which the laws are negligible."""
    x = np.linspace(-40, 40 + 2 / setting.noise, 20_001)
    size = np.logaddexp(math.log1p(-setting.rate), math.log(setting.rate) + x / setting.noise - 0.5 / setting.noise**2)
    weight = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(x[1] - x[0])
    orders = np.geomspace(1e-6, 1e6, 250)[:, None] / max(float(np.abs(size).max()), 1e-300)
    above = setting.steps * np.maximum(logsumexp((1 + orders) * size + weight, axis=1), 0.0)
    below = setting.steps * np.maximum(logsumexp(-orders * size + weight, axis=1), 0.0)
    largest = float(np.min((above - log_delta) / orders[:, 0]))
    ends = [float(np.min((tail + 50 - log_delta + largest) / orders[:, 0])) for tail in (above, below)]
    return largest, sum(ends)


@functools.cache
def _mp_legendre(count: int, digits: int) -> tuple[tuple[mp.mpf, ...], tuple[mp.mpf, ...]]:
    """Gauss-Legendre nodes and weights: double-precision ones, polished by Newton's method."""
    nodes, weights = [], []
    with mp.workdps(digits + 5):
        for start in np.polynomial.legendre.leggauss(count)[0]:
            x = mp.mpf(float(start))
            for _ in range(int(math.log2(digits / 14)) + 3):
                before, here = mp.mpf(1), x
                for k in range(2, count + 1):
                    before, here = here, ((2 * k - 1) * x * here - (k - 1) * before) / k
                slope = count * (x * here - before) / (x * x - 1)
                x -= here / slope
            nodes.append(x)
            weights.append(2 / ((1 - x * x) * slope**2))
    return tuple(nodes), tuple(weights)


def _mp_panels(low: mp.mpf, high: mp.mpf, panels: int, count: int, digits: int) -> tuple[list[mp.mpf], list[mp.mpf]]:
    nodes, weights = _mp_legendre(count, digits)
    half = (high - low) / (2 * panels)
    x = [low + half * (2 * k + 1 + node) for k in range(panels) for node in nodes]
    return x, [half * w for _ in range(panels) for w in weights]


# The larger of both directions, by whichever method is affordable


class DeltaCurve:
    """log delta(epsilon), the larger of both directions, with a bound on the reference's own error in it."""

    def __init__(self, name: str, curves: list[Callable[[int, float], float]], floor: float) -> None:
        self.name, self._curves, self._floor = name, curves, floor

    def direction(self, direction: int, epsilon: float) -> tuple[float, float]:
        values = [curve(direction, epsilon) for curve in self._curves]
        if min(values) == -math.inf:
            return max(values), self._floor
        return values[-1], self._floor + 4 * abs(values[0] - values[-1])

    def __call__(self, epsilon: float) -> tuple[float, float]:
        return max(self.direction(REMOVE, epsilon), self.direction(ADD, epsilon))


@functools.lru_cache(4)
def delta_curve(setting: Setting, log_delta: float) -> DeltaCurve | None:
    """A reference good near delta; None where none is affordable."""
    if setting.steps <= 2:
        return DeltaCurve("closed form" if setting.steps == 1 else "two steps", [_exact(setting, log_delta)], 1e-11)
    if setting.steps > 2000:
        try:
            pair = [GilPelaez(setting, log_delta, resolution, 700) for resolution in (1.0, 1.15)]
            return DeltaCurve("Gil-Pelaez", [_logarithm(one) for one in pair], 1e-11)
        except TooManyNodesError:
            pass
    if setting.steps > 300_000:
        return None
    laws = [RealSpace(setting, 45 - log_delta, resolution) for resolution in (1.0, 1.4)]
    return DeltaCurve("real space", [law.log_delta for law in laws], 1e-11)


def _exact(setting: Setting, log_delta: float) -> Callable[[int, float], float]:
    digits = int(-log_delta / math.log(10)) + 30

    def curve(direction: int, epsilon: float) -> float:
        with mp.workdps(digits + 400):
            if setting.steps == 1:
                value = one_step(setting.rate, setting.noise, direction, mp.mpf(epsilon))
        if setting.steps == 2:
            value = two_steps(setting.rate, setting.noise, direction, epsilon, digits)[0]
        return float(mp.log(value)) if value > 0 else -math.inf

    return curve


def _logarithm(inversion: GilPelaez) -> Callable[[int, float], float]:
    def curve(direction: int, epsilon: float) -> float:
        value = inversion.delta(direction, epsilon)
        return float(mp.log(value)) if value > 0 else -math.inf

    return curve
