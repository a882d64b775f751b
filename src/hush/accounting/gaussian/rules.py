"""Trapezoidal rules for E[g^r; label] at complex r, chosen by the bounds of strips.py, with error and rounding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc, log_ndtr, ndtr

from hush.accounting.gaussian.strips import LOG_SQRT_2PI, Part, ladder, log_sum
from hush.accounting.gaussian.transform import (
    UNIT_ROUNDOFF,
    Array,
    Complex,
    Numbers,
    expected_expm1_minus,
    exponent_doubt,
    log_ratio,
    turned_sums,
)

_SERIES_RADIUS = 1.0
_WINDOW_ROUNDOFF = 64.0, 16.0
"""What Phi(y) is trusted to: u times the first, and y^2 times the second, of the smaller of both tails."""
_FEW = 24  # powers that exponentials cost no more for than products
_GROWN = 30.0  # log of how much a term may grow along a line: what underflows where it begins is nothing at its end
_REAL_LOSS, _LOSS = 4.0, 12.0
"""What a loss at a real node, or at a complex one, is off by itself, in units of 4 u of it."""


class Ends(NamedTuple):
    """The ends of a rule, half a spacing beyond its nodes; of many rules an array each."""

    left: float
    loss: float
    """log g to the left."""
    cut_loss: float
    """And at the cut."""
    slope: float
    """d log g/dx to the left."""
    spacing: float
    log_window: float
    """log of a bound on the window to the left."""
    log_side: float
    """log of what the side of a strip at the cut may add, but for g^r."""


def log_missed(ends: Ends | Array, powers: Array) -> Array:
    """log of what sums with such ends may miss at real powers."""
    left, loss, cut_loss, slope, spacing, log_window, log_side = ends
    rise = np.maximum(-powers, 0.0) * slope
    # the values of a function with one peak add up to no more than its integral and the peak's
    peak = np.log(spacing) - 0.5 * np.minimum(left + rise, 0.0) ** 2 - LOG_SQRT_2PI
    outer = rise * (left + 0.5 * rise) + np.logaddexp(log_ndtr(left + rise), peak) + log_window
    return np.asarray(np.logaddexp(powers * loss + outer, powers * cut_loss + log_side))


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
    strip: tuple[int, int] | None = None
    """Which of the shifts worth trying bound the strip that it was chosen by."""

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
        return np.asarray(np.log(self.spacing) - LOG_SQRT_2PI - 0.5 * x * x)

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

    def mgf(self, powers: Numbers, spacing: float = 0.0) -> Numbers:
        """E[g^r; label]; powers that follow each other upwards at such a `spacing` take far less time."""
        return self._sums(powers, spacing, np.ones(self.size, dtype=np.bool_))

    def _sums(self, powers: Numbers, spacing: float, some: NDArray[np.bool_]) -> Numbers:
        """The sums over some of the nodes."""
        loss, log_weight, window = self.loss[some], self.log_weight[some], self.window[some]
        if not self.is_turned(spacing, len(powers)):
            return _weighted(np.exp(np.multiply.outer(powers, loss) + log_weight), window)
        return turned_sums(np.exp(powers[0] * loss + log_weight) * window, loss, spacing, len(powers))

    def is_turned(self, spacing: float, count: int) -> bool:
        """Whether so many powers take products of few exponentials: none of them must grow much along the line."""
        return spacing > 0 and count > _FEW and spacing * count * float(-np.imag(self.loss).min()) < _GROWN

    def excess(self, powers: Numbers, spacing: float = 0.0) -> Numbers:
        """E[g^r; label] - 1, for a label without `rises`, with no cancellation left where g^r is near 1."""
        absent, present = self._above()
        near = self._near(float(np.max(np.abs(powers))))
        result = np.zeros(powers.shape, dtype=np.result_type(powers, self.loss))
        if near.any():
            series = expected_expm1_minus(np.append(powers, 1.0), self.loss[near], self.weight[near], _SERIES_RADIUS)
            result += series[:-1] - powers * series[-1]
        if not near.all():
            far = ~near
            result += self._sums(powers, spacing, far) - self.weight[far].sum() - powers * self.ratio[far].sum()
        result = result - absent - powers * self.part.step.rate * (present - absent)
        return result

    @cached_property
    def polynomial(self) -> tuple[float, float]:
        """E[1 + r (g-1)] is 1 for all x: what of its two parts, less 1, is at the nodes and above the window."""
        absent, present = self._above()
        return float(self.weight.sum()) + absent, float(self.ratio.sum()) + self.part.step.rate * (present - absent)

    def missed(self, powers: Array) -> Array:
        """What a sum over real nodes at real r may miss of E[g^r; label]: at the cut, and to the left of the nodes.

        At the cut |W(X+iy)| <= Phi(-c) exp((y/w)^2/2) for each edge, c widths away, so the side of a strip is at most
        2 d/pi times the integrand there, as in `transform.missed`.  To the left g^r is at most what it is at the first
        node (r >= 0), or grows by `rise` a unit of x at most (r < 0).
        """
        with np.errstate(over="ignore"):
            return np.exp(log_missed(self.ends, powers))

    @cached_property
    def ends(self) -> Ends:
        """What `missed` needs to know of the rule."""
        step, edges, spacing = self.part.step, self.part.edges, self.spacing
        left, cut = self.left - 0.5 * spacing, self.left + (self.size - 0.5) * spacing
        exponents = np.array([left, cut]) / step.noise - 0.5 / step.noise**2
        losses = log_ratio(exponents, step.rate)
        side = np.logaddexp.reduce([log_ndtr((edge.place - cut) / edge.width) for edge in edges])
        side += np.log(2 * spacing / np.pi) - 0.5 * cut**2 - LOG_SQRT_2PI
        slope = np.exp(np.log(step.rate) + exponents[0] - losses[0]) / step.noise
        window = 0.0
        if self.part.rises is not None:
            window = float(np.logaddexp.reduce([log_ndtr((left - edge.place) / edge.width) for edge in edges]))
        return Ends(left, float(losses[0]), float(losses[1]), float(slope), spacing, window, float(side))

    def _above(self) -> tuple[float, float]:
        """The chance to be above the window, without the record and with it."""
        absent, present = self._distances
        return float(ndtr(-absent)), float(ndtr(-present))

    @property
    def _distances(self) -> tuple[float, float]:
        """From the means of x, without the record and with it, to the window's end, in standard deviations."""
        edge = self.part.falls
        spread = float(np.sqrt(1 + edge.width**2))
        return edge.place / spread, (edge.place - 1 / self.part.step.noise) / spread

    def _above_unsure(self) -> tuple[float, float]:
        """How far each may be off, in units of 4 u, together with the operations that follow.

        The smaller tail is good to 6 u (4 + y^2/2) of itself, y to u (|y| + 1/sigma); near 1 there is an ulp.
        """
        mean, y = 1 / self.part.step.noise, np.array(self._distances)
        absent, present = (6 + 2 * (np.abs(y) + 1) * (np.abs(y) + mean)) * ndtr(-np.abs(y)) + 2.5 * (y < 0)
        return float(absent), float(present)

    @cached_property
    def _loss_unsure(self) -> Array:
        """|dl/du| = |p e^u/g| times what u is off, in units of 4 u."""
        step = self.part.step
        exponent = self.nodes.real / step.noise - 0.5 / step.noise**2
        share = np.exp(np.minimum(np.log(step.rate) + exponent - np.real(self.loss), 5.0))
        return np.asarray(share * exponent_doubt(self.nodes, step.noise))

    @cached_property
    def _window_unsure(self) -> Array:
        """How far the window may be off, in units of 4 u: by 1 of itself, and by what each of its edges is.

        A tail Phi(-y), y > 0, is at most e^{b^2/2} Phi(-y) at y + ib.  It is trusted to 64 + 16 |y|^2 units u of that:
        24 + 3 y^2 at real y, and twice what was seen at complex ones; y itself, a difference and a quotient, is off by
        2 u |y|.  A node is off by 3 u of the largest, which counts where the window is narrow.
        """
        unsure = np.abs(self.window) + 1e-307 / UNIT_ROUNDOFF  # far out a tail is told as 0
        for edge in self.part.edges:
            y, turned = (self.nodes.real - edge.place) / edge.width, self.shift / edge.width
            grown = min(0.5 * turned**2, 700.0)
            bell = np.exp(np.minimum(grown - 0.5 * y * y, 700.0) - LOG_SQRT_2PI) / edge.width
            constant, square = _WINDOW_ROUNDOFF
            share = 0.25 * (constant + square * (y * y + turned**2))
            unsure = unsure + share * np.exp(grown) * ndtr(-np.abs(y)) + 0.75 * float(np.abs(self.nodes).max()) * bell
        return np.asarray(unsure)

    def _near(self, largest_power: float) -> np.ndarray:
        if not self.careful:
            return np.zeros(self.size, dtype=np.bool_)
        return np.asarray(np.abs(self.loss) * max(largest_power, 1.0) < _SERIES_RADIUS)

    def rounding(self, real: float, heights: Array, excess: bool, spacing: float = 0.0) -> Array:
        """A bound on the floating-point error of `mgf` or `excess` at Re r = real, Im r = heights.

        In units of 4 u.  A node's loss l is off by 12 |l| (e^u - 1 at a complex u by 18 u of itself, the logarithm's
        modulus and angle by up to twice that where g is near 1/2; at a real u by 4 |l|) and by |dl/du| times what u is
        off (`exponent_doubt`).  An argument r l + log weight is off by r times that, by 1 |r l| and by 1 |log weight|;
        the exponential by 1, the product with the window by 1, a pairwise sum of n terms by (22 + log2(n/128)) u, less
        than 6 for any n here: 8 together.  The window itself: `_window_unsure`.

        Where powers follow each other, r = r0 + ikh, there are three exponentials and two more products of complex
        numbers, 3.6 instead of 1, and sums of 16 products, 32 u of their real and imaginary parts each in whatever
        order, 12 more: 23 together.  The arguments of the turns e^{ikhl} are off by 3 u of themselves, |khl| <= |r l|:
        2 |r l| together.

        By the series |e^z - 1 - z| <= 0.72 |z|^2, with a slope of at most 1.72 |z|.  l makes 1.72 * 12 = 20.7 of |z|^2
        (or 1.72 * 4), and so do, at u/2 each, its scaling and that of r: 1; the weight 2 + 0.75 |log weight|; its k
        products with the loss, and those with r, sum_k 4 k u |z|^k/k! <= 6.9 u |z|^2 each: 4; the sum 5: 12.3 and l
        together, apart from what u is off.  The expectation of 1 + r (g-1) above the window is made of two Gaussian
        tails, and of five operations: `_above_unsure`.
        """
        sizes = np.hypot(real, heights)
        loss, log_weight, window = np.abs(self.loss), np.abs(self.log_weight), np.abs(self.window)
        unsure, own = self._window_unsure, _LOSS if self.shift else _REAL_LOSS
        # where the line lies below the axis, g^r grows with Im r
        angle = np.imag(self.loss)
        damped = np.where(angle < 0, float(heights.max()), float(heights.min())) * angle
        tilted = np.exp((real * self.loss.real - damped) + np.real(self.log_weight))
        off = self._loss_unsure
        of_sum, of_turn = (23, 2) if self.is_turned(spacing, heights.size) else (8, 1)
        if not excess:
            constant = float((tilted * (window * (of_sum + log_weight) + unsure)).sum())
            linear = float((tilted * window * ((own + of_turn) * loss + off)).sum())
            return np.asarray(4 * UNIT_ROUNDOFF * (constant + sizes * linear))
        near = self._near(float(sizes.max()))
        far = ~near
        bare = np.exp(np.real(self.log_weight))
        quadratic = float((bare * ((12.3 + 1.72 * own + 0.75 * log_weight) * window + unsure) * loss**2)[near].sum())
        quadratic += float((bare * window * 1.72 * loss * off)[near].sum())
        constant = float((tilted * (window * (of_sum + log_weight) + unsure) + bare * (8 * window + unsure))[far].sum())
        change = np.where(window > 0, np.abs(self.ratio) / np.maximum(window, 1e-300), 0.0)
        linear = float(
            ((tilted * ((own + of_turn) * loss + off)) * window + change * (16 * window + unsure))[far].sum()
        )
        linear += float((np.exp(np.real(self.loss) + np.real(self.log_weight)) * window * off)[far].sum())
        absent, present = self._above_unsure()
        constant += absent
        linear += self.part.step.rate * (absent + present)
        cut = float(np.exp(self.part.log_cut(-1)) + np.exp(self.part.log_cut(1)))
        return np.asarray(
            4 * UNIT_ROUNDOFF * (constant + sizes * linear + (sizes + sizes**2) * quadratic) + cut * (1 + sizes)
        )


def _weighted(values: Numbers, weights: Numbers) -> Numbers:
    """The sums of values times weights along the last axis, pairwise: their rounding grows with log n only."""
    return np.asarray((values * weights).sum(axis=-1))


def _phi(y: Numbers) -> Numbers:
    """Phi at real or complex y; its limits far out, where the error function would overflow on its way to them."""
    if not np.iscomplexobj(y):
        return np.asarray(ndtr(y))
    far = np.clip(y.real, -60, 60) + 1j * y.imag
    value = 0.5 * erfc(-far / np.sqrt(2))
    return np.asarray(np.where(np.isfinite(value), value, np.where(y.real > 0, 1.0, 0.0)))


def rule(
    part: Part,
    real: float,
    low: float,
    high: float,
    log_wanted: float,
    excess: bool,
    known: Collection[tuple[int, int]] = (),
) -> Rule:
    """The rule with the fewest nodes found that is good to exp(log_wanted) for low <= Im r <= high.

    Of all strips, or of those `known` to be good for a step that is much alike.
    """
    steps = ladder(part)
    shifts = np.concatenate([-steps[::-1], [0.0], steps])
    size = float(np.hypot(real, high))
    totals, sides = np.full(len(shifts), np.inf), np.full(len(shifts), np.inf)
    strips = [strip for strip in known if strip[1] < len(shifts)]
    one, two = np.array(strips).T if strips else np.triu_indices(len(shifts), 1)
    for i in np.unique(np.concatenate([one, two])):
        shift = shifts[i]
        at = high if shift < 0 else low
        totals[i] = part.log_total(real, at, float(shift))
        sides[i] = part.log_side(real, at, min(float(shift), 0.0), max(float(shift), 0.0)) + 2
        if excess:  # 1 + r (g-1) too
            sides[i] = float(np.logaddexp(sides[i], part.log_polynomial_side(size, abs(float(shift))) + 2))
            totals[i] = float(np.logaddexp(totals[i], log_sum(part.log_polynomial(size, float(shift)))))
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
    # where nothing counts a node is on the left: at the cut g^r may be larger than any floating-point number
    first, last = (first, max(last, first + 1)) if first < len(mass) else (0, 1)
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
    return Rule(part, shift, start, spacing, count, float(error), log_wanted < -28.0, chosen)
