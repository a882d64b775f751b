"""Many equal Gaussian releases on samples, one record replaced: one contour integral with C_p's own transform.

With a loss's density e^{l/2} m(|l|) (densities.py) and s the order, E_P[e^{sL}] - 1 has no cancellation:

    M(s) - 1 = integral over l > 0 of 4 m(l) sinh(s l/2) sinh((s+1) l/2) dl,

good to 1e-13 of itself.  So a billion steps whose losses are a millionth each keep their digits, which bins lose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.contours.crossing import Curve, certified_root
from hush.accounting.contours.line import Line, alias_free_spacing, chernoff_points, chernoff_values, power_errors
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Complex
from hush.accounting.pairs.losses import Array, GaussianPair, Pair, Uniform
from hush.accounting.replaced.densities import NODES, QUADRATURE, SUMS, Density, Panels
from hush.accounting.replaced.few import loss_of

_FEWEST_STEPS = 10
_MOST_PANELS, _MOST_NODES = 60, 2000
_NEGLIGIBLE = -34.0
_LONGEST = 6.0  # a panel, times the order
_CUT = 1e-10  # of delta: what may lie beyond the last panel
_GRID = np.geomspace(1e-3, 60.0, 240)  # orders tried, times the total's deviation
_CLOSE = np.array([1.5, 2.0, 2.5, 3.0, 4.0])  # deviations of one loss
_ANGLE = 60.0  # a panel's length times an order
_MIDDLE = 400  # places between where small angles bound the transform and where its decay does


def fits(steps: Sequence[tuple[Pair, int]]) -> bool:
    """Whether these are many equal steps."""
    pair, count = steps[0]
    sampled = isinstance(pair, Uniform) and isinstance(pair.inner, GaussianPair) and pair.rate < 1
    return len(steps) == 1 and count >= _FEWEST_STEPS and sampled


@np.errstate(all="ignore")
def epsilon(steps: Sequence[tuple[Pair, int]], log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta)."""
    ((pair, count),) = steps
    log_cut = log_delta + math.log(_CUT / count)
    rough = Law.of(pair, log_cut)
    place = None if rough is None else _saddle(rough, count, log_delta)
    law = None if place is None else Law.of(pair, log_cut, _LONGEST / (place[0] + 1))
    if place is None or law is None or (line := _line(law, count, *place)) is None:
        return 0.0, math.inf
    return certified_root(_curve(line, law.log_beyond + math.log(2 * count)), place[1], log_delta)


def _curve(line: Line, log_moved: float) -> Curve:
    """Losses beyond the last panel were taken for 0: paths that have one are wrong by their probability at most."""

    def curve(epsilons: Array) -> tuple[Array, Array]:
        lower, upper = line.log_delta(epsilons)
        lower = lower + np.log(np.maximum(-np.expm1(np.minimum(log_moved - lower, 0.0)), 0.0))
        return np.where(np.isnan(lower), -np.inf, lower), np.minimum(np.logaddexp(upper, log_moved), 0.0)

    return np.errstate(all="ignore")(curve)


@dataclass(frozen=True)
class Law:
    """One loss: m at the points of panels, and the log of the chance of a loss beyond them, on either side."""

    density: Density
    log_beyond: float

    @classmethod
    def of(cls, pair: Pair, log_cut: float, longest: float = math.inf) -> Law | None:
        """Cut where no more than that lies beyond, and into panels no longer than that."""
        loss = loss_of(pair)
        mu, rate = 1 / loss.noise, loss.rate
        x = 0.5 * mu + np.linspace(0.0, 45 + 0.5 * mu, 2000)[1:]
        log_above = np.logaddexp(math.log1p(-rate) + log_ndtr(-x), math.log(rate) + log_ndtr(mu - x))
        last = int(np.searchsorted(-log_above, -log_cut))
        if last >= x.size:
            return None
        inner = mu * (x[last] - 0.5 * mu)
        top = math.log1p(rate * math.expm1(inner)) if inner < 30 else inner + math.log(rate)
        panels = Panels.of(loss, 1, top, 0.0, _MOST_PANELS, longest)
        return None if panels is None else cls(Density.single(panels), float(log_above[last]) + 1e-9)

    @cached_property
    def points(self) -> tuple[Array, Array]:
        at, weights = self.density.panels.points
        return at, self.density(at)[0] * weights

    @cached_property
    def _share(self) -> Array:
        """How far each of them may be off, as a share of itself."""
        at, _ = self.density.panels.points
        value, error = self.density(at)
        return np.asarray(error / value + SUMS * UNIT_ROUNDOFF)

    def rises(self, orders: Complex | Array, panels: int | None = None) -> tuple[Complex | Array, Array]:
        """M - 1, and how far it may be off; or what the first panels add to it."""
        used = self.density.panels
        at, masses = (part[: panels * NODES] if panels is not None else part for part in self.points)
        s = orders[:, None]
        one, two = 0.5 * s * at, 0.5 * (s + 1) * at
        terms = 4 * masses * np.sinh(one) * np.sinh(two)
        turned = 16 * UNIT_ROUNDOFF * (1 + np.abs(s) * at)
        sizes = 4 * masses * _largest_sinh(one) * _largest_sinh(two)
        errors = (sizes * (self._share[: at.size] + turned)).sum(axis=1)
        # on an ellipse |z| is at most 1.5 times the right end, |Im z| 0.81 times the length, |sinh x| |x| e^{|Re x|}
        right, heights, nearby = 1.5 * used.edges[1:], 0.81 * used.lengths, self.density.sizes()
        grown = (np.abs(orders.real[:, None]) + 0.5) * right + np.abs(np.imag(orders))[:, None] * heights
        ellipses = QUADRATURE * (nearby * right**2 * used.lengths * np.exp(grown))[:, :panels].sum(axis=1)
        return terms.sum(axis=1), errors + np.abs(orders * (orders + 1)) * ellipses

    def log_mgf(self, orders: Array) -> Array:
        value, error = self.rises(orders)
        return np.asarray(np.log1p(np.real(value) + error))

    def small_angles(self, c: float, panels: int) -> tuple[float, float]:
        """t and x with |M(c+it')| <= M(c) exp(-x t'^2) for t' <= t: by cos y <= 1 - 2 y^2/pi^2 up to pi.

        |M|^2 is the mean of cos(t' (L - L')) for two losses tilted by e^{cL}; only those in the first panels count.
        """
        at, masses = (part[: panels * NODES] for part in self.points)
        up, down = (masses * np.exp(sign * (c + 0.5) * at) for sign in (1, -1))
        kept, square = self.density.panels.loss.atom + (up + down).sum(), ((up + down) * at**2).sum()
        mean = ((up - down) * at).sum()
        variance = max(kept * square * (1 - 1e-9) - mean**2, 0.0) / self._whole(c) ** 2
        return math.pi / (2 * float(self.density.panels.edges[panels])), 2 * variance / math.pi**2

    def _whole(self, c: float) -> float:
        """M(c)."""
        return 1 + float(np.real(self.rises(np.array([c]))[0])[0])

    def variation(self, c: float) -> tuple[float, float]:
        """a and v with |M(c+it)| <= a + v/t: what is at 0, and the variation of the rest's density, tilted by e^{cL}.

        Ahead of 0 that of m e^{xl} is at most m(0) and 2x times its integral, behind it m(0); it ends with a jump.
        """
        at, masses = self.points
        panels, tilt = self.density.panels, c + 0.5
        height, end = np.exp(panels.loss.log_density(panels.edges[[0, -1]]))
        varied = (
            2 * height + 2 * tilt * float((masses * np.exp(tilt * at)).sum()) + 2 * end * math.exp(tilt * panels.top)
        )
        return panels.loss.atom + 2 * math.exp(self.log_beyond), 1.001 * float(varied)

    def log_decay(self, c: float, start: float) -> float:
        """log of a bound on |M(c+it)/M(c)| for all t >= start: on a grid, and by the density's variation beyond it."""
        at, masses = self.points
        panels, tilt = self.density.panels, c + 0.5
        ahead, behind = masses * np.exp(tilt * at), masses * np.exp(-tilt * at)
        whole = self._whole(c)
        atom, variation = self.variation(c)
        last = 2 * variation / max(whole - atom, 1e-300)
        places = np.geomspace(start, last, _MIDDLE)
        # where panels are too long for such an order, nothing is known but their mass
        near = max(int(np.searchsorted(panels.lengths, _ANGLE / last)), 1)
        value, error = self.rises(np.asarray(c + 1j * places, dtype=np.complex128), near)
        near *= NODES
        kept = atom + 2 * float((masses[:near] * np.cosh(0.5 * at[:near])).sum())
        rest = 1.001 * float((ahead[near:] + behind[near:]).sum())
        change = 1.001 * float(((ahead[:near] + behind[:near]) * at[:near]).sum())
        between = change * np.diff(places, append=last) + error
        highest = max(float((np.abs(kept + value) + between).max()) + rest, atom + variation / last)
        return math.log(highest / whole)


def _largest_sinh(z: Complex | Array) -> Array:
    """min(1, |z|) cosh(Re z): no less than |sinh z|, also beside its zeros, where rounding z counts for more."""
    return np.asarray(np.minimum(np.abs(z), 1.0) * np.cosh(np.real(z)))


def _saddle(law: Law, count: int, log_delta: float) -> tuple[float, float] | None:
    """About the order of the saddle point where delta is that, and its epsilon."""
    at, masses = law.points
    orders = _GRID / math.sqrt(2 * count * float((masses * at * at).sum()))
    values = count * np.log1p(np.real(law.rises(orders)[0]))
    means = np.gradient(values, orders)
    spreads = np.maximum(np.gradient(means, orders), 0.0) + orders**-2 + (orders + 1) ** -2
    epsilons = means - 1 / orders - 1 / (orders + 1)
    logs = values - orders * epsilons - np.log(orders * (orders + 1)) - 0.5 * np.log(2 * math.pi * spreads)
    passed = (logs < log_delta) & (epsilons > 0)
    if not passed.any():
        return None
    k = max(int(np.argmax(passed)), 1)
    part = float(np.clip((logs[k - 1] - log_delta) / (logs[k - 1] - logs[k]), 0.0, 1.0))
    c = float(orders[k - 1] * (orders[k] / orders[k - 1]) ** part)
    return c, max(float(epsilons[k - 1] + part * (epsilons[k] - epsilons[k - 1])), 1e-12)


def _line(law: Law, count: int, c: float, guess: float) -> Line | None:
    """The contour integral at that order, for epsilons near the guess; None where it takes too many nodes."""

    def log_mgf(orders: Array) -> Array:
        return count * law.log_mgf(orders)

    at, masses = law.points
    deviation = math.sqrt(2 * count * float((masses * at * at).sum()))
    value = float(log_mgf(np.array([c]))[0])
    points = chernoff_points(c, deviation)
    bounds = chernoff_values(log_mgf, points)
    spacing = alias_free_spacing(c, guess, value, points, bounds, _NEGLIGIBLE)
    loss = math.sqrt(deviation**2 / count)
    ends = np.unique(
        np.clip(np.searchsorted(law.density.panels.edges, _CLOSE * loss), 1, law.density.panels.lengths.size)
    )
    ways = [law.small_angles(c, int(end)) for end in ends]
    heights = [math.sqrt(-_NEGLIGIBLE / max(count * fall, 1e-300)) for _, fall in ways]
    short = [(height, *way) for height, way in zip(heights, ways, strict=True) if height + spacing < way[0]]
    atom, variation = law.variation(c)
    whole = math.exp(value / count)
    height = min(short)[0] if short else variation / max(whole * math.exp(_NEGLIGIBLE / count) - atom, 1e-300)
    if not 0 < spacing < math.inf or height > _MOST_NODES * spacing:
        return None
    nodes = np.asarray(c + 1j * spacing * np.arange(math.ceil(height / spacing) + 1), dtype=np.complex128)
    left_out = count * math.log((atom + variation / float(nodes[-1].imag)) / whole)
    if short:
        _, near, fall = min(short)
        left_out = max(-count * fall * float(nodes[-1].imag) ** 2, count * law.log_decay(c, near))
    if left_out > _NEGLIGIBLE + 4:
        return None
    left_out += 0.01  # more than rounding may do to it
    rise, off = law.rises(nodes)
    x, y, size = rise.real, rise.imag, np.abs(1 + rise)
    log_size, angle = 0.5 * np.log1p(2 * x + x * x + y * y), np.arctan2(y, 1 + x)
    size = np.maximum(size, 1e-300)
    # |w^T - v^T| <= (|v| + off)^T - |v|^T, however far off: on long panels sums say nothing of large orders
    doubt = count * (np.log1p(off / size) + 16 * UNIT_ROUNDOFF * np.abs(rise) / size)
    doubt += 8 * UNIT_ROUNDOFF * count * (np.abs(angle) + np.abs(log_size) + abs(float(log_size[0])))
    shape = np.exp(count * (log_size - log_size[0]) + 1j * count * angle)
    errors = power_errors(count * (log_size - log_size[0]), doubt)
    scale = count * float(log_size[0])
    return Line(c, spacing, nodes, shape, errors, scale, left_out, points, bounds)
