"""Bounds on the integrand of E[g^r; label] along lines x + ib: the errors of its trapezoidal rules follow from them.

A label is a smooth window on the x of a step: W(x) = Phi((b-x)/w), or the difference of two of these.  The integrand
f = g^r W phi is analytic for |Im x| < pi sigma.  The trapezoidal sum with spacing d along x + ib, over all integers, is
wrong by at most

    (M(b + beta) + M(b - beta)) / (exp(2 pi beta/d) - 1),        M(y) = integral of |f(x + iy)| dx,

for every beta that keeps both lines within the strip.  M is bounded from above cell by cell (`Part.log_cells`).  On a
line above the axis g^r falls by exp(-Im r arg g): there the rule needs no more nodes for large Im r than for small, and
M(b) itself bounds |E[g^r; label]| for every Im r beyond.  docs/certificate.md has the details.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr

from hush.accounting.gaussian.transform import Array, Step, log_ratio

LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_FURTHEST, _FAR = 38.5, 16.0
"""Beyond so many standard deviations a Gaussian has less than 1e-320 and 1e-57 of its mass.  The latter is enough where
g, falling to 1 - p there, can't make more of it: p <= 1/2.  (`Part.log_left` counts what is beyond in any case.)"""
_MOST_CELLS = 40_000


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
class Fine:
    """The real axis at half the cells' width: what sums along x + i shift need."""

    part: Part
    x: Array
    loss: Array
    hit: Array
    """The posterior chance that x is a hit."""
    _moved: dict[float, tuple[Array, Array, Array]] = field(default_factory=dict, compare=False, repr=False)
    unsure: dict[tuple[float, float], list[float]] = field(default_factory=dict, compare=False, repr=False)
    """log of bounds on how far sums for Re r along x + i shift may be off, as many as were asked for."""

    def moved(self, shift: float) -> tuple[Array, Array, Array]:
        """How log |g| changes from x to x + i shift, arg g there, and log of a bound on |W|: the same for every r."""
        if shift not in self._moved:
            turn = shift / self.part.step.noise
            real, imaginary = 1 - self.hit * (1 - np.cos(turn)), self.hit * np.sin(turn)
            change = 0.5 * np.log(np.maximum(real * real + imaginary * imaginary, 1e-300))
            window = self.part.log_window(self.x, shift, 0.0)
            self._moved[shift] = change, np.arctan2(imaginary, real), window
        return self._moved[shift]


@dataclass(frozen=True)
class Part:
    """The x of a step that carry one label: below `falls`, and above `rises` if there is one."""

    step: Step
    falls: Edge
    rises: Edge | None = None
    _profiles: dict[float, Profile] = field(default_factory=dict, compare=False, repr=False)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return (self.falls,) if self.rises is None else (self.rises, self.falls)

    @property
    def narrowest(self) -> float:
        return min(edge.width for edge in self.edges)

    @cached_property
    def cells(self) -> tuple[float, float, int]:
        """Left end, width and number of the cells.  To the right of them the label is cut off, `log_cut` of mass."""
        left = -(_FAR if self.step.rate <= 0.5 else _FURTHEST)
        if self.rises is not None:
            left = max(-_FURTHEST, self.rises.place - 38 * self.rises.width)
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

    @cached_property
    def fine(self) -> Fine:
        left, width, count = self.cells
        x = np.asarray(left + 0.5 * width * (0.5 + np.arange(2 * count)), dtype=np.float64)
        exponent = x / self.step.noise - 0.5 / self.step.noise**2
        loss = log_ratio(exponent, self.step.rate)
        return Fine(self, x, loss, np.exp(np.log(self.step.rate) + exponent - loss))

    def log_window(self, x: Array, shift: float, near: float) -> Array:
        """log of a bound on |W| within `near` of x + i shift: |Phi(y + iv)| <= Phi(y) + v exp(v^2/2) phi(y)."""
        rising, falling, bells = np.zeros(x.shape), np.zeros(x.shape), np.full(x.shape, -np.inf)
        for edge in self.edges:
            turned, reach, y = abs(shift) / edge.width, near / edge.width, (x - edge.place) / edge.width
            falling += ndtr(reach - y)
            if self.rises is not None:
                rising += ndtr(y + reach)
            if turned > 0:  # far larger than any floating-point number where a window is narrow
                bell = 0.5 * (turned**2 - np.maximum(np.abs(y) - reach, 0.0) ** 2) + (np.log(turned) - LOG_SQRT_2PI)
                bells = np.logaddexp(bells, bell)
        least = falling if self.rises is None else np.minimum(rising, falling)
        far = least < 1e-290  # where a sum is no floating-point number, that of the logarithms
        level = np.log(np.where(far, 1.0, least))
        if far.any():
            level[far] = self._log_level(x[far], near)
        return np.asarray(np.logaddexp(level, bells))

    def _log_level(self, x: Array, near: float) -> Array:
        places, widths = np.array([(edge.place, edge.width) for edge in self.edges]).T
        y, reach = np.subtract.outer(x, places) / widths, near / widths
        falling = np.logaddexp.reduce(log_ndtr(reach - y), axis=1)
        rising = np.logaddexp.reduce(log_ndtr(y + reach), axis=1)
        return np.asarray(falling if self.rises is None else np.minimum(rising, falling))

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
        density = np.log(width) - 0.5 * self.middles**2 - LOG_SQRT_2PI + half * (np.abs(self.middles) + half)
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

    @cached_property
    def _left_end(self) -> tuple[float, float, float]:
        """The exponent u, log g and the posterior chance of a hit at the left end of the cells."""
        return self._seen_at(self.cells[0])

    @cached_property
    def _cut(self) -> tuple[float, float, float]:
        """The same at the right end, where the label is cut off."""
        left, width, count = self.cells
        return self._seen_at(left + width * count)

    def _seen_at(self, x: float) -> tuple[float, float, float]:
        exponent = x / self.step.noise - 0.5 / self.step.noise**2
        loss = float(log_ratio(np.array([exponent]), self.step.rate)[0])
        return exponent, loss, math.exp(math.log(self.step.rate) + exponent - loss)

    def log_left(self, real: float, height: float, shift: float) -> float:
        """log of a bound on the integral of |f| to the left of the cells."""
        left, noise, rate = self.cells[0], self.step.noise, self.step.rate
        exponent, loss, hit = self._left_end
        # |g(x+ib)| <= g(x), and >= 1-p where the angle is at most pi/2, else >= (1-p) sin(2.3)
        lowest = math.log1p(-rate) - (0.36 if abs(shift) > 0.5 * math.pi * noise else 0.0)
        size = max(real * loss, real * lowest) + float(log_ndtr(left))
        if real < 0 and hit < 0.5:
            # log g(x) falls by at most hit/sigma a unit of x, and by `shrunk` from x to x + ib: both less further left
            rise, shrunk = -real * hit / noise, 0.5 * math.log1p(-2 * hit * (1 - hit) * (1 - math.cos(shift / noise)))
            linear = real * (loss + shrunk) + rise * left + 0.5 * rise**2 + float(log_ndtr(left + rise))
            size = min(size, linear + 1e-9 * abs(linear))
        outer = size + 0.5 * shift**2
        if shift < 0:
            odds = min(math.log(rate) + exponent - math.log1p(-rate), 1.0)  # further out they are no number any more
            outer += height * min(2 * math.exp(odds), math.pi)
        window = 0.0 if self.rises is None else -math.inf  # without `rises` W is 1 far to the left, and a little more
        for edge in self.edges:
            y, turned = (edge.place - left) / edge.width, abs(shift) / edge.width
            one = _log_fading(y, turned) if y > 0 else math.log1p(turned) + 0.5 * turned**2
            window = float(np.logaddexp(window, one))
        return outer + window

    def log_side(self, real: float, height: float, low: float, high: float) -> float:
        """log of a bound on the integral of |f(x + iy)|, low <= y <= high, at the cut: each factor at its largest."""
        left, width, count = self.cells
        x, noise, most = left + width * count, self.step.noise, max(abs(low), abs(high))
        _, loss, hit = self._cut
        shrunk = 0.5 * math.log(max(1 - 2 * hit * (1 - hit) * (1 - math.cos(most / noise)), 1e-300))
        # arg g rises and then falls with y > 0, so it is least at an end; it is at most the angle y/sigma, and, being
        # concave where hit < 1/2, at most hit times that
        least = low / noise * (hit if hit < 0.5 else 1.0)
        if low >= 0:
            turns = (low / noise, high / noise)
            least = min(math.atan2(hit * math.sin(turn), 1 - hit * (1 - math.cos(turn))) for turn in turns)
        size = real * loss + max(real * shrunk, 0.0) - height * least + 0.5 * (most**2 - x * x) - LOG_SQRT_2PI
        window = -math.inf
        for edge in self.edges:
            window = float(np.logaddexp(window, _log_fading((x - edge.place) / edge.width, most / edge.width)))
        return float(size + window + math.log(max(high - low, 1e-300)))

    def log_polynomial_side(self, size: float, most: float) -> float:
        """The same for |W (1 + r (g-1)) phi| with |r| <= size, up to |y| <= most."""
        left, width, count = self.cells
        x = left + width * count
        rise = np.log(self.step.rate) + np.logaddexp(x / self.step.noise - 0.5 / self.step.noise**2, 0.0)
        value = np.logaddexp(0.0, np.log(size) + rise) + 0.5 * (most**2 - x * x) - LOG_SQRT_2PI
        return float(value + _log_fading(self.falls.cut, most / self.falls.width) + np.log(max(most, 1e-300)))

    def log_total(self, real: float, height: float, shift: float) -> float:
        """log of a bound on M(shift)."""
        return float(np.logaddexp(log_sum(self.log_cells(real, height, shift)), self.log_ends(real, height, shift)))


def _log_fading(y: float, turned: float) -> float:
    """log of Phi(-y) + v exp(v^2/2) phi(y), raised a little."""
    return float(np.logaddexp(log_ndtr(-y), math.log(turned + 1e-300) + 0.5 * (turned**2 - y * y)))


def log_sum(terms: Array) -> float:
    top = float(terms.max())
    return top + float(np.log(np.exp(terms - top).sum())) if np.isfinite(top) else top


def ladder(part: Part) -> Array:
    """Shifts worth trying, below 2.25 sigma (g has its zeros at pi sigma) and below 6."""
    wide = min(part.step.noise, 2.7) * np.array([0.15, 0.35, 0.7, 1.1, 1.6, 2.2])
    narrow = part.narrowest * np.array([1.5, 3.0, 5.0, 8.0, 12.0])
    return np.unique(np.concatenate([wide, narrow[narrow < wide[-1]]]))
