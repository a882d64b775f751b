"""E[g^r; label] at complex r by the trapezoidal rule on a line x + ib, with proved errors.

A label is a smooth window on the x of a step: W(x) = Phi((b-x)/w), or the difference of two of these.  The integrand
f = g^r W phi is analytic for |Im x| < pi sigma.  The trapezoidal sum with spacing d along x + ib, over all integers, is
wrong by at most

    (M(b + beta) + M(b - beta)) / (exp(2 pi beta/d) - 1),        M(y) = integral of |f(x + iy)| dx,

for every beta that keeps both lines within the strip.  M is bounded from above cell by cell (`Part.log_cells`).  On a
line above the axis g^r falls by exp(-Im r arg g): there the rule needs no more nodes for large Im r than for small, and
M(b) itself bounds |E[g^r; label]| for every Im r beyond.  docs/certificate.md has the details.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import erfc, log_ndtr, ndtr

from hush.accounting.transform import UNIT_ROUNDOFF, Array, Complex, Numbers, Step, log_ratio

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_FURTHEST = 38.5
"""Beyond this many standard deviations a Gaussian has less than 1e-320 of its mass."""
_MOST_CELLS = 40_000
_SERIES_RADIUS = 1.0
_SERIES_TERMS = 18
_WINDOW_ROUNDOFF = 1e-12
"""What the complex error function is trusted to, relatively."""


@dataclass(frozen=True)
class Edge:
    """A label ends at `place`, over some widths: Phi((place - x)/width)."""

    place: float
    width: float
    cut: float = 20.0
    """Widths beyond which it is cut off for good: a Gaussian window would not do against g^r with a large r."""


@dataclass(frozen=True)
class Profile:
    """What the bounds need of one line x + i shift, cell by cell."""

    modulus: Array
    """log |g| at the middle of the cell."""
    angle: Array
    """arg g there."""
    slope: Array
    """How much log |g| may change within half a cell."""
    turn: Array
    """How much arg g may."""
    base: Array
    """log of the cell's share of the integral of |W phi|, at most."""
    rise: Array
    """log of a bound on p |e^u - 1| in the cell."""


@dataclass(frozen=True)
class Part:
    """The x of a step that carry one label: below `falls`, and above `rises` if there is one."""

    step: Step
    falls: Edge
    rises: Edge | None = None
    _profiles: dict[float, Profile] = field(default_factory=dict, compare=False, repr=False)

    @property
    def narrowest(self) -> float:
        return min(self.falls.width, np.inf if self.rises is None else self.rises.width)

    @cached_property
    def cells(self) -> tuple[float, float, int]:
        """Left end, width and number of the cells.  To the right of them the label is cut off, `log_cut` of mass."""
        left = -_FURTHEST if self.rises is None else max(-_FURTHEST, self.rises.place - 38 * self.rises.width)
        right = self.falls.place + self.falls.cut * self.falls.width
        left = min(left, right - 1.0)
        width = min(0.1 * min(self.step.noise, 1.0), self.narrowest)
        count = int(np.ceil((right - left) / width))
        return left, (right - left) / count, count

    @property
    def is_reasonable(self) -> bool:
        return self.cells[2] <= _MOST_CELLS

    @cached_property
    def middles(self) -> Array:
        left, width, count = self.cells
        return np.asarray(left + width * (0.5 + np.arange(count)))

    @cached_property
    def exponents(self) -> Array:
        return np.asarray(self.middles / self.step.noise - 0.5 / self.step.noise**2)

    @cached_property
    def losses(self) -> Array:
        return log_ratio(self.exponents, self.step.rate)

    def log_window(self, x: Array, shift: float, near: float) -> Array:
        """log of a bound on |W| within `near` of x + i shift: |Phi(y + iv)| <= Phi(y) + v exp(v^2/2) phi(y)."""
        edges = [self.falls] if self.rises is None else [self.rises, self.falls]
        rising, falling, bells = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape)
        for edge in edges:
            turned, reach, y = abs(shift) / edge.width, near / edge.width, (x - edge.place) / edge.width
            rising += ndtr(y + reach)
            falling += ndtr(reach - y)
            bells += turned * np.exp(
                np.minimum(0.5 * (turned**2 - np.maximum(np.abs(y) - reach, 0.0) ** 2) - _LOG_SQRT_2PI, 600.0)
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log((falling if self.rises is None else np.minimum(rising, falling)) + bells))

    def profile(self, shift: float) -> Profile:
        if shift not in self._profiles:
            self._profiles[shift] = self._profile(shift)
        return self._profiles[shift]

    def _profile(self, shift: float) -> Profile:
        _, width, _ = self.cells
        half, noise, rate = 0.5 * width, self.step.noise, self.step.rate
        # g(x + ib) = g(x) (1 - w + w e^{i angle}) with w = p e^u / g(x), the posterior chance that x is a hit.
        hit = np.exp(np.log(rate) + self.exponents - self.losses)
        real = 1 - hit * (1 - np.cos(shift / noise))
        imaginary = hit * np.sin(shift / noise)
        modulus = self.losses + 0.5 * np.log(np.maximum(real * real + imaginary * imaginary, 1e-300))
        # |d log g/dx| = |p e^u/g|/sigma, at most e^(width/sigma) times as large within the cell
        slope = half / noise * np.exp(np.log(rate) + self.exponents - modulus + width / noise)
        # |d arg g/dx| <= w sin(angle)/|1 - w + w e^{i angle}|^2/sigma, and w/sigma is d log g(x)/dx
        growth = np.exp(width / noise)
        turn = half / noise * hit * abs(np.sin(shift / noise)) * growth
        turn = turn * np.exp(2 * (self.losses - modulus + slope + half / noise * hit * growth))
        density = np.log(width) - 0.5 * self.middles**2 - _LOG_SQRT_2PI + half * (np.abs(self.middles) + half)
        base = density + 0.5 * shift**2 + self.log_window(self.middles, shift, half)
        rise = np.log(rate) + np.logaddexp(self.exponents + half / noise, 0.0)
        return Profile(modulus, np.arctan2(imaginary, real), slope, np.minimum(turn, slope), base, rise)

    def log_cells(self, real: float, height: float, shift: float) -> Array:
        """log of a bound on the integral of |f| over each cell of x + i shift, for Re r = real, Im r = height >= 0.

        With shift > 0 the same bound holds for every Im r >= height; with shift < 0 for every 0 <= Im r <= height.
        """
        line = self.profile(shift)
        return np.asarray(
            real * line.modulus - height * line.angle + abs(real) * line.slope + height * line.turn + line.base
        )

    def log_polynomial(self, size: float, shift: float) -> Array:
        """The same for |W (1 + r (g-1)) phi| with |r| <= size."""
        line = self.profile(shift)
        return np.asarray(line.base + np.logaddexp(0.0, np.log(size) + line.rise))

    def log_cut(self, direction: int) -> float:
        """log of the mass cut off, under P (direction +1: the mixture, -1: without the record)."""
        left, width, count = self.cells
        right, rate = left + width * count, self.step.rate if direction > 0 else 0.0
        with np.errstate(divide="ignore"):
            tail = np.logaddexp(
                np.log1p(-rate) + log_ndtr(-right), np.log(rate) + log_ndtr(1 / self.step.noise - right)
            )
        return float(tail + log_ndtr(-self.falls.cut))

    def log_ends(self, real: float, height: float, shift: float) -> float:
        """log of a bound on the integral of |f| left of the cells, and on the side at the cut from 0 to shift."""
        side = self.log_side(real, height, min(shift, 0.0), max(shift, 0.0))
        return float(np.logaddexp(self.log_left(real, height, shift), side))

    def log_left(self, real: float, height: float, shift: float) -> float:
        """log of a bound on the integral of |f| to the left of the cells."""
        left, noise, rate = self.cells[0], self.step.noise, self.step.rate
        exponent = left / noise - 0.5 / noise**2
        loss = float(log_ratio(np.array([exponent]), rate)[0])
        # |g(x+ib)| <= g(x), and >= 1-p where the angle is at most pi/2, else >= (1-p) sin(2.3)
        lowest = np.log1p(-rate) - (0.36 if abs(shift) > 0.5 * np.pi * noise else 0.0)
        size = max(real * loss, real * lowest) + float(log_ndtr(left))
        hit = float(np.exp(np.log(rate) + exponent - loss))
        if real < 0 and hit < 0.5:
            # log g(x) falls by at most hit/sigma a unit of x, and by `shrunk` from x to x + ib: both less further left
            rise, shrunk = -real * hit / noise, 0.5 * np.log1p(-2 * hit * (1 - hit) * (1 - np.cos(shift / noise)))
            linear = real * (loss + shrunk) + rise * left + 0.5 * rise**2 + float(log_ndtr(left + rise))
            size = min(size, linear + 1e-9 * abs(linear))
        outer = size + 0.5 * shift**2
        if shift < 0:
            outer += height * min(2 * np.exp(np.log(rate) + exponent - np.log1p(-rate)), np.pi)
        if self.rises is not None:
            y, turned = (self.rises.place - left) / self.rises.width, abs(shift) / self.rises.width
            outer += min(_log_fading(y, turned), np.log(2 + turned) + 0.5 * turned**2)
        return float(outer)

    def log_side(self, real: float, height: float, low: float, high: float) -> float:
        """log of a bound on the integral of |f(x + iy)|, low <= y <= high, at the cut: each factor at its largest."""
        left, width, count = self.cells
        x, noise, most = left + width * count, self.step.noise, max(abs(low), abs(high))
        exponent = x / noise - 0.5 / noise**2
        loss = float(log_ratio(np.array([exponent]), self.step.rate)[0])
        hit = float(np.exp(np.log(self.step.rate) + exponent - loss))
        shrunk = 0.5 * np.log(max(1 - 2 * hit * (1 - hit) * (1 - np.cos(most / noise)), 1e-300))
        angles = np.arctan2(
            hit * np.sin([low / noise, high / noise]), 1 - hit * (1 - np.cos([low / noise, high / noise]))
        )
        # arg g rises and then falls with y > 0, so it is least at an end; it is at most the angle y/sigma, and, being
        # concave where hit < 1/2, at most hit times that
        least = float(angles.min()) if low >= 0 else low / noise * (hit if hit < 0.5 else 1.0)
        size = real * loss + max(real * shrunk, 0.0) - height * least + 0.5 * (most**2 - x * x) - _LOG_SQRT_2PI
        return float(size + _log_fading(self.falls.cut, most / self.falls.width) + np.log(max(high - low, 1e-300)))

    def log_polynomial_side(self, size: float, most: float) -> float:
        """The same for |W (1 + r (g-1)) phi| with |r| <= size, up to |y| <= most."""
        left, width, count = self.cells
        x = left + width * count
        rise = np.log(self.step.rate) + np.logaddexp(x / self.step.noise - 0.5 / self.step.noise**2, 0.0)
        value = np.logaddexp(0.0, np.log(size) + rise) + 0.5 * (most**2 - x * x) - _LOG_SQRT_2PI
        return float(value + _log_fading(self.falls.cut, most / self.falls.width) + np.log(max(most, 1e-300)))

    def log_total(self, real: float, height: float, shift: float) -> float:
        """log of a bound on M(shift)."""
        return float(np.logaddexp(_log_sum(self.log_cells(real, height, shift)), self.log_ends(real, height, shift)))


def _log_fading(y: float, turned: float) -> float:
    """log of Phi(-y) + v exp(v^2/2) phi(y), raised a little."""
    return float(np.logaddexp(log_ndtr(-y), np.log(turned + 1e-300) + 0.5 * (turned**2 - y * y)))


def _log_sum(terms: Array) -> float:
    top = float(terms.max())
    return top + float(np.log(np.exp(terms - top).sum())) if np.isfinite(top) else top


def ladder(part: Part) -> Array:
    """Shifts worth trying, below 2.25 sigma (g has its zeros at pi sigma) and below 6."""
    wide = min(part.step.noise, 2.7) * np.array([0.15, 0.35, 0.7, 1.1, 1.6, 2.2])
    narrow = part.narrowest * np.array([1.5, 3.0, 5.0, 8.0, 12.0])
    return np.unique(np.concatenate([wide, narrow[narrow < wide[-1]]]))


@dataclass(frozen=True)
class Rule:
    """A trapezoidal rule for one part, good for a range of Im r."""

    part: Part
    shift: float
    left: float
    spacing: float
    size: int
    log_error: float
    """log of a bound on its error, rounding apart."""
    careful: bool = True
    """Whether many steps make it worth while to sum g^r - 1 - r (g-1) by its series where it is small."""

    @cached_property
    def nodes(self) -> Complex:
        return np.asarray(self.left + self.spacing * np.arange(self.size) + 1j * self.shift, dtype=np.complex128)

    @cached_property
    def loss(self) -> Numbers:
        """log g at the nodes, to a few units in the last place of its modulus; real where the nodes are."""
        step = self.part.step
        exponent = self.nodes / step.noise - 0.5 / step.noise**2
        if self.shift == 0:
            return log_ratio(exponent.real, step.rate)
        low = np.where(exponent.real < 300, exponent, 300.0)
        change = step.rate * np.expm1(low)
        whole = (1 - step.rate) + step.rate * np.exp(low)
        near = np.where(np.abs(change) < 0.5, change, 0)
        small = 0.5 * np.log1p(2 * near.real + np.abs(near) ** 2)
        modulus = np.where(np.abs(change) < 0.5, small, np.log(np.maximum(np.abs(whole), 1e-300)))
        loss = modulus + 1j * np.arctan2(change.imag, whole.real)
        return np.asarray(np.where(exponent.real < 300, loss, exponent + np.log(step.rate)))

    @cached_property
    def log_weight(self) -> Numbers:
        x = self.nodes if self.shift else self.nodes.real
        return np.asarray(np.log(self.spacing) - _LOG_SQRT_2PI - 0.5 * x * x)

    @cached_property
    def window(self) -> Numbers:
        x = self.nodes if self.shift else self.nodes.real
        falls = _phi((self.part.falls.place - x) / self.part.falls.width)
        if self.part.rises is None:
            return falls
        rises = self.part.rises
        middle = 0.5 * (self.part.falls.place + rises.place)
        above = falls - _phi((rises.place - x) / rises.width)
        below = _phi((x - rises.place) / rises.width) - _phi((x - self.part.falls.place) / self.part.falls.width)
        return np.asarray(np.where(self.nodes.real < middle, below, above))

    @cached_property
    def weight(self) -> Numbers:
        return np.asarray(np.exp(self.log_weight) * self.window)

    @cached_property
    def ratio(self) -> Numbers:
        """weight * (g - 1), neither cancelling for g near 1 nor overflowing where g is huge and the weight tiny."""
        loss = self.loss
        small = np.exp(self.log_weight) * np.expm1(np.where(loss.real < 1, loss, 0))
        large = np.exp(np.where(loss.real < 1, 0, loss) + self.log_weight) - np.exp(self.log_weight)
        return np.asarray(np.where(loss.real < 1.0, small, large) * self.window)

    def mgf(self, powers: Numbers) -> Numbers:
        """E[g^r; label]."""
        result: Numbers = np.exp(np.multiply.outer(powers, self.loss) + self.log_weight) @ self.window
        return result

    def excess(self, powers: Numbers) -> Numbers:
        """E[g^r; label] - 1, for a label without `rises`, with no cancellation left where g^r is near 1."""
        part = self.part
        spread = np.sqrt(1 + part.falls.width**2)
        absent = float(ndtr(-part.falls.place / spread))
        present = float(ndtr((1 / part.step.noise - part.falls.place) / spread))
        near = self._near(float(np.max(np.abs(powers))))
        result = np.zeros(powers.shape, dtype=np.result_type(powers, self.loss))
        if near.any():
            values = np.multiply.outer(powers, self.loss[near])
            result += _expm1_minus(values) @ self.weight[near]
            result -= powers * (_expm1_minus(self.loss[near]) @ self.weight[near])
        if not near.all():
            far = ~near
            tilted = np.exp(np.multiply.outer(powers, self.loss[far]) + self.log_weight[far]) @ self.window[far]
            result += tilted - self.weight[far].sum() - powers * self.ratio[far].sum()
        result = result - absent - powers * part.step.rate * (present - absent)
        return result

    def _near(self, largest_power: float) -> np.ndarray:
        if not self.careful:
            return np.zeros(self.size, dtype=np.bool_)
        return np.asarray(np.abs(self.loss) * max(largest_power, 1.0) < _SERIES_RADIUS)

    def rounding(self, real: float, heights: Array, excess: bool) -> Array:
        """A bound on the floating-point error of `mgf` or `excess` at Re r = real, Im r = heights.

        Each node's term is a handful of operations and one exponential (at most 4 ulp), with an argument whose own
        rounding is 3 ulp of |r l| + |log weight|; sums of n numbers add far less than n ulp of the sum of moduli.
        Where the series is used, l is good to 20 u of itself, so its square to 40 u, the weight to
        10 u + 3 u |log weight| and the series to 6 u: together no more than 4 u (10 + |log weight|/2) of
        (|r| + |r|^2) l^2.
        """
        sizes = np.hypot(real, heights)
        loss, log_weight, window = np.abs(self.loss), np.abs(self.log_weight), np.abs(self.window)
        unsure = 4 * UNIT_ROUNDOFF * window + _WINDOW_ROUNDOFF * np.minimum(window, np.abs(1 - self.window))
        unsure = unsure / (4 * UNIT_ROUNDOFF)  # in units of 4 ulp, like all below
        lowest = float(heights.min())
        tilted = np.exp((real * self.loss.real - lowest * np.imag(self.loss)) + np.real(self.log_weight))
        if not excess:
            constant = float((tilted * (window * (8 + log_weight) + unsure)).sum())
            return np.asarray(4 * UNIT_ROUNDOFF * (constant + sizes * float((tilted * window * 3 * loss).sum())))
        near = self._near(float(sizes.max()))
        far = ~near
        bare = np.exp(np.real(self.log_weight))
        quadratic = float((bare * ((10 + 0.5 * log_weight) * window + unsure) * loss**2)[near].sum())
        constant = float((tilted * (window * (8 + log_weight) + unsure) + bare * (8 * window + unsure))[far].sum())
        change = np.where(window > 0, np.abs(self.ratio) / np.maximum(window, 1e-300), 0.0)
        linear = float(((tilted * 3 * loss) * window + change * (16 * window + unsure))[far].sum())
        cut = float(np.exp(self.part.log_cut(-1)) + np.exp(self.part.log_cut(1)))
        return np.asarray(
            4 * UNIT_ROUNDOFF * (constant + sizes * linear + (sizes + sizes**2) * quadratic) + cut * (1 + sizes)
        )


def _phi(y: Numbers) -> Numbers:
    """Phi at real or complex y; its limits far out, where the error function would overflow on its way to them."""
    if not np.iscomplexobj(y):
        return np.asarray(ndtr(y))
    far = np.clip(y.real, -60, 60) + 1j * y.imag
    value = 0.5 * erfc(-far / np.sqrt(2))
    return np.asarray(np.where(np.isfinite(value), value, np.where(y.real > 0, 1.0, 0.0)))


def _expm1_minus(z: Numbers) -> Numbers:
    """exp(z) - 1 - z by its series, for |z| <= 1, where the first term left out is 1e-18 of the sum."""
    total: Numbers = np.full(z.shape, 1 / _FACTORIALS[-1], dtype=z.dtype)
    for factorial in _FACTORIALS[-2::-1]:
        total *= z
        total += 1 / factorial
    return np.asarray(total * z * z)


_FACTORIALS = [float(np.prod(np.arange(1.0, k + 1))) for k in range(2, 3 + _SERIES_TERMS)]


def rule(part: Part, real: float, low: float, high: float, log_wanted: float, excess: bool) -> Rule:
    """The rule with the fewest nodes found that is good to exp(log_wanted) for low <= Im r <= high."""
    steps = ladder(part)
    shifts = np.concatenate([-steps[::-1], [0.0], steps])
    size = float(np.hypot(real, high))
    totals, sides = np.full(len(shifts), np.inf), np.full(len(shifts), np.inf)
    for i, shift in enumerate(shifts):
        at = high if shift < 0 else low
        totals[i] = part.log_total(real, at, float(shift))
        sides[i] = part.log_side(real, at, min(float(shift), 0.0), max(float(shift), 0.0)) + 2
        if excess:  # 1 + r (g-1) too
            sides[i] = float(np.logaddexp(sides[i], part.log_polynomial_side(size, abs(float(shift))) + 2))
            totals[i] = float(np.logaddexp(totals[i], _log_sum(part.log_polynomial(size, float(shift)))))
    one, two = np.triu_indices(len(shifts), 1)
    beta = 0.5 * (shifts[two] - shifts[one])
    spacings = 2 * np.pi * beta / np.maximum(np.logaddexp(totals[one], totals[two]) - log_wanted + 1, 1.0)
    # digits lost to rounding on the line between, or to the sides, count before the number of nodes
    rounded = 0.5 * (totals[one] + totals[two]) - 30
    lost = np.maximum(rounded - max(log_wanted, float(rounded.min()) + 1), 0.0)
    lost += np.maximum(np.maximum(sides[one], sides[two]) - log_wanted + 1, 0.0)
    order = np.lexsort((-spacings, np.where(np.isnan(lost), np.inf, lost)))
    chosen = int(one[order[0]]), int(two[order[0]])
    best = -float(lost[order[0]]), float(spacings[order[0]])
    if not np.isfinite(best[0]):
        return Rule(part, 0.0, 0.0, 1.0, 1, np.inf)
    lower, upper = float(shifts[chosen[0]]), float(shifts[chosen[1]])
    shift, beta, spacing = 0.5 * (lower + upper), 0.5 * (upper - lower), best[1]
    if abs(shift) < 1e-12:
        shift = 0.0
    at = high if shift < 0 else low
    inside = part.log_cells(real, at, shift)
    if excess:
        inside = np.logaddexp(inside, part.log_polynomial(size, shift))
    mass = np.exp(np.minimum(inside - log_wanted, 40.0))
    first = int(np.searchsorted(np.cumsum(mass), 0.1))
    last = len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), 0.1))
    left, width, _ = part.cells
    last = max(last, first + 1)
    outside = mass[:first].sum() + mass[last:].sum()
    # the cut is half way between two nodes; a cell's bound covers all nodes in it, spacing/width times if that is > 1
    cut = left + len(mass) * width
    skipped = int(np.floor((cut - (left + last * width)) / spacing))
    end = cut - (skipped + 0.5) * spacing
    count = max(int(np.ceil((end - (left + first * width)) / spacing)) + 1, 1)
    start = end - (count - 1) * spacing
    outside *= max(1.0, spacing / width) * 2
    strip = np.logaddexp(totals[chosen[0]], totals[chosen[1]]) - 2 * np.pi * beta / spacing + 0.1
    ends = np.logaddexp.reduce([part.log_ends(real, at, shift) + 2, sides[chosen[0]], sides[chosen[1]]])
    error = np.logaddexp.reduce([strip, log_wanted + float(np.log(outside + 1e-300)), ends])
    return Rule(part, shift, start, spacing, count, float(error), log_wanted < -28.0)


def log_bound(part: Part, real: float, height: float) -> float:
    """A bound on log |E[g^r; label]| for every |Im r| >= height, by cells: good to a few parts in a hundred.

    The line of integration runs at one height b0 up to some x and then, nearer to the axis, at b1 < b0, where a narrow
    window ends.  On the piece that joins them |g|^a, exp(-H arg g) and the window are each at their largest at one end.
    """
    shifts = [shift for shift in [0.0, *ladder(part)] if shift <= 0.5 * np.pi * part.step.noise]
    lines = [part.log_cells(real, height, float(shift)) for shift in shifts]
    lefts = [part.log_left(real, height, float(shift)) for shift in shifts]
    sides = [part.log_side(real, height, 0.0, float(shift)) for shift in shifts]
    with np.errstate(all="ignore"):
        tops = [float(line.max()) for line in lines]
        best = min(part.log_total(real, height, float(shift)) for shift in shifts)
        for i, high in enumerate(shifts):
            far = part.profile(float(high))
            before = np.log(np.cumsum(np.exp(lines[i] - tops[i]))) + tops[i]
            for j, low in enumerate(shifts[:i]):
                near = part.profile(float(low))
                after = np.log(np.cumsum(np.exp(lines[j] - tops[j])[::-1])[::-1]) + tops[j]
                modulus = near.modulus if real >= 0 else far.modulus
                side = (
                    real * modulus
                    - height * near.angle
                    + abs(real) * np.maximum(near.slope, far.slope)
                    + height * near.turn
                )
                side = side + far.base + np.log((high - low) / part.cells[1])
                total = np.logaddexp(np.logaddexp(before[:-1], after[1:]), side[:-1])
                best = min(best, float(np.logaddexp.reduce([np.nanmin(total), lefts[i], sides[j]])))
    return best


def log_sharp_bound(part: Part, real: float, height: float) -> float:
    """The same, good to many digits: fit to be raised to a large power.  For a label without `rises`.

    M(b) is summed by the trapezoidal rule.  Its integrand |g(x+ib)|^a exp(-H arg g(x+ib)) and the bound of the window
    extend to complex x + iy, where 2 Re arg g -> arg g(x + i(b+y)) + arg g(x + i(b-y)) >= 0 for |y| <= b or
    |y| + b <= pi sigma/2, and |g(x+i(b+y)) g(x-i(b-y))|^(a/2) is at most g^a on the axis (a >= 0) or its value at
    b + |y| (a < 0).
    """
    left, width, count = part.cells
    spacing = 0.5 * width
    x = np.asarray(left + spacing * (0.5 + np.arange(2 * count)), dtype=np.float64)
    noise, rate = part.step.noise, part.step.rate
    exponent = x / noise - 0.5 / noise**2
    loss = log_ratio(exponent, rate)
    hit = np.exp(np.log(rate) + exponent - loss)
    tilted = real * loss - 0.5 * x * x + np.log(spacing) - _LOG_SQRT_2PI
    shape = np.exp(tilted - tilted.max()) * ndtr((part.falls.place - x) / part.falls.width)
    slope = float((shape * hit).sum() / shape.sum()) / noise
    small = np.array([0.1, 0.3, 0.6, 1.0]) * height * slope
    best = np.inf
    for shift in np.unique(np.concatenate([small[small < 0.5 * noise], ladder(part)])):
        turn = shift / noise
        inner = 1 - hit * (1 - np.cos(turn))
        imaginary = hit * np.sin(turn)
        change = 0.5 * np.log(np.maximum(inner * inner + imaginary * imaginary, 1e-300))
        window = part.log_window(x, float(shift), 0.0)
        moved = _log_sum(tilted + real * change - height * np.arctan2(imaginary, inner) + window) + 0.5 * shift**2
        if moved >= best:
            continue
        furthest = min(max(shift, 0.5 * np.pi * noise - shift), 2.3 * noise - shift, 6.0)
        error = np.inf
        for beta in np.minimum(
            furthest, np.array([furthest, 0.4 * furthest, *(part.narrowest * np.array([4.0, 8.0, 12.0]))])
        ):
            line = part.profile(float(shift + beta))
            modulus = part.losses if real >= 0 else line.modulus
            strip = _log_sum(real * modulus + abs(real) * line.slope + line.base) + np.log(2)
            side = part.log_side(real, 0.0, -float(shift + beta), float(shift + beta)) + 2
            error = min(error, float(np.logaddexp(strip - 2 * np.pi * beta / spacing, side)))
        ends = part.log_ends(real, 0.0, float(shift)) + 2
        best = min(best, float(np.logaddexp.reduce([moved, error, ends])))
    return best
