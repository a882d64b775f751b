"""Power curves of attacks in logarithms: type I error against power, from 1e-4000 to within 1e-4000 of 1.

A symmetric trade-off function f is known by its half above the diagonal.  There the power 1 - f is concave, rises from
the chance of an infinite loss, and each straight piece of it, of slope e^l, is an outcome of loss l: Q-mass the step
in alpha, P-mass e^l times that.  What lies below the diagonal is the mirror image, an outcome of loss -l with P- and
Q-mass exchanged.  So nothing is 1 minus something, and no digit is lost near either end.

A group of k records has the power curve composed with itself k times (Dong, Roth, Su 2022, Theorem 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.pairs.losses import Array, Atoms

_DEEPEST = -12_000.0  # log of the smallest type I error told apart: epsilons up to 1e4 at deltas down to e^-700


@dataclass(frozen=True)
class Power:
    """Corners of the curve, logs of type I errors (from -inf to 0) and of powers."""

    alpha: Array
    power: Array

    def at(self, alpha: Array) -> Array:
        """Log of the power at logs of type I errors."""
        return _between(alpha, self.alpha, self.power)

    def reached(self, power: Array) -> Array:
        """Log of the least type I error with such a power."""
        rising = np.append(True, np.diff(self.power) > 0)
        if rising.sum() == 1:  # everything is told at once
            return np.full(power.shape, -np.inf)
        return _between(power, self.power[rising], self.alpha[rising])

    def after(self, other: Power) -> Power:
        """This curve of the power of another."""
        bends = other.reached(self.alpha[self.alpha > other.power[0]])
        alpha = np.unique(np.concatenate([other.alpha, bends]))
        return Power(alpha, self.at(other.at(alpha)))

    def times(self, size: int, *, upper: bool) -> Power:
        """Composed with itself, by doubling; what is too small to tell apart goes to the attacker or not."""
        result: Power | None = None
        double = self
        while True:
            if size % 2:
                result = double if result is None else double.after(result)._within_range(upper=upper)
            size //= 2
            if size == 0:
                assert result is not None
                return result
            double = double.after(double)._within_range(upper=upper)

    def _within_range(self, *, upper: bool) -> Power:
        kept = self.alpha > _DEEPEST
        there = self.at(np.array([_DEEPEST]))
        first = there if upper else self.power[:1]
        return Power(
            np.concatenate([[-np.inf, _DEEPEST], self.alpha[kept]]), np.concatenate([first, there, self.power[kept]])
        )

    def pieces(self) -> tuple[Array, Array]:
        """Logs of the P- and Q-masses of the straight pieces, the steepest first."""
        return _steps(self.power), _steps(self.alpha)

    def atoms(self, margin: float) -> Atoms:
        """The symmetric pair with this curve, powers above the diagonal taken exp(margin) times.

        Rounding that bent the curve is straightened first, by chords that lie above it: the sum over outcomes of what
        each adds to delta exceeds what the curve has if their losses don't fall.  Losses that can't be
        told from 0 are taken for 0, or, with a positive margin, for as large as they may be.
        """
        log_p, log_q = self._concave().pieces()
        least = max(2 * margin, 0.0)
        with np.errstate(invalid="ignore"):
            losses = log_p - log_q + margin
        steep = (losses > least) & (log_p > -np.inf)
        losses, p = losses[steep], np.exp(np.minimum(log_p[steep] + margin, 0.0))
        q = np.exp(log_q[steep])
        infinite = float(np.exp(min(self.power[0] + margin, 0.0)))
        finite = losses < np.inf
        infinite += float(p[~finite].sum())
        losses, p, q = losses[finite], p[finite], q[finite]
        if margin < 0:  # a piece across the diagonal is its own mirror image, whatever loss rounding gives it
            once = infinite + np.cumsum(p + q) <= 1
            losses, p, q = losses[once], p[once], q[once]
        rest = max(0.0, 1 - infinite - float(p.sum() + q.sum()))
        middle = [(0.0, rest, rest)] if rest > 0 else []
        if margin > 0:
            high, low = (rest + least) / (1 + math.exp(-least)), (rest + least) / (1 + math.exp(least))
            middle = [(least, high, low), (-least, low, high)]
        above = list(zip(losses.tolist(), p.tolist(), q.tolist(), strict=True))
        found = [*above, *middle, *((-loss, b, a) for loss, a, b in reversed(above) if b > 0)]
        ordered, mass_p, mass_q = (tuple(atom[k] for atom in found) for k in range(3))
        return Atoms(ordered, mass_p, mass_q, infinite, infinite)

    def _concave(self) -> Power:
        """Without the corners that lie below the chord of their neighbours, as only rounding can put them."""
        alpha, power = self.alpha, self.power
        while True:
            with np.errstate(invalid="ignore"):
                slopes = _steps(power) - _steps(alpha)
            bent = np.flatnonzero(slopes[1:] > slopes[:-1]) + 1
            if bent.size == 0:
                return Power(alpha, power)
            alpha, power = np.delete(alpha, bent), np.delete(power, bent)


def _steps(logs: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = logs[1:] + np.log(-np.expm1(np.minimum(logs[:-1] - logs[1:], 0.0)))
        return np.where(np.isneginf(logs[1:]), -np.inf, steps)


def _between(x: Array, places: Array, values: Array) -> Array:
    """Linear interpolation of exp(values) over exp(places) at exp(x), all in logarithms.

    Of two forms, 1 less something and a sum of positive terms, the one that keeps its digits.
    """
    k = np.clip(np.searchsorted(places, x, side="right") - 1, 0, places.size - 2)
    low, high, first, last = places[k], places[k + 1], values[k], values[k + 1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        width, rise = -np.expm1(low - high), -np.expm1(first - last)
        below = np.expm1(np.minimum(x - high, 0.0)) / width
        near = np.log1p(np.maximum(rise * below, -1.0))
        part = (x - high) + np.log(-np.expm1(np.minimum(low - x, 0.0))) - np.log(width)
        far = np.logaddexp(first - last, np.log(rise) + part)
        found = last + np.where(rise * below > -0.5, near, far)
    found = np.where(x <= low, first, np.where(x >= high, last, found))
    return np.asarray(np.clip(found, first, last))


def of_steps(log_p: Array, log_q: Array, log_infinite: float, log_middle: float) -> Power:
    """The curve of outcomes with losses above 0, the largest first, their mirror images, and one of loss 0 between."""
    alpha = np.append(-np.inf, np.logaddexp.accumulate(log_q))
    power = np.logaddexp.accumulate(np.append(log_infinite, log_p))
    missed = np.append(np.logaddexp(alpha[-1], log_middle), log_p[::-1])
    missed = np.logaddexp.accumulate(missed)[::-1]  # 1 - power
    with np.errstate(divide="ignore"):
        power = np.where(power > -0.5, np.log1p(-np.exp(np.minimum(missed, 0.0))), power)
        beyond = np.where(power > -0.5, missed, np.log1p(-np.exp(power)))[::-1]
        mirrored = np.log1p(-np.exp(alpha))[::-1]
    whole = np.concatenate([alpha, beyond, [0.0]])
    heights = np.concatenate([power, mirrored, [0.0]])
    whole, kept = np.unique(np.minimum(whole, 0.0), return_index=True)
    return Power(whole, np.maximum.accumulate(np.minimum(heights[kept], 0.0)))


@dataclass(frozen=True)
class LeastLines:
    """What attacks gain, power less type I error, up to the diagonal: the least of straight lines, in logarithms.

    The steepest first: logs of slopes, of intercepts, and of the type I errors from which on each is the least.
    """

    slopes: Array
    intercepts: Array
    starts: Array

    @cached_property
    def diagonal(self) -> Array:
        """Where each line has as much power as it leaves unseen type I errors: 1 - alpha."""
        with np.errstate(divide="ignore"):
            return np.asarray(
                np.log(-np.expm1(np.minimum(self.intercepts, 0.0))) - np.logaddexp(0.0, self.slopes), dtype=np.float64
            )

    @cached_property
    def last(self) -> int:
        """The line that crosses the diagonal."""
        return int(np.argmax(self.diagonal <= np.append(self.starts[1:], np.inf)))

    @property
    def end(self) -> float:
        return float(self.diagonal[self.last])

    def at(self, alpha: Array) -> Array:
        """Log of the gain at logs of type I errors: v + (e^t - 1) alpha of the lines nearby, a sum of positive terms.

        (Of three of them: rounding may be unsure which is the least.)
        """
        here = np.searchsorted(self.starts, alpha, side="right") - 1
        found = np.full(alpha.shape, np.inf)
        with np.errstate(divide="ignore"):
            rises = self.slopes + np.log(-np.expm1(-self.slopes))
        for k in (here - 1, here, here + 1):
            k = np.clip(k, 0, self.slopes.size - 1)
            found = np.minimum(found, np.logaddexp(self.intercepts[k], rises[k] + alpha))
        return found


def of_lines(log_slopes: Array, log_intercepts: Array) -> Power:
    """The least of straight lines with slopes of at least 1, up to the diagonal, and its mirror image."""
    least = least_of(log_slopes, log_intercepts)
    alpha = np.append(least.starts[: least.last + 1], least.end)
    log_q = _steps(alpha)
    return of_steps(least.slopes[: least.last + 1] + log_q, log_q, float(least.intercepts[0]), -np.inf)


def least_of(log_slopes: Array, log_intercepts: Array) -> LeastLines:
    """The lines that are the least of all somewhere.

    A line that meets the next one before it meets the one before is never the least, and of several in a row this says
    so of each: where those beside it meet lies between both places.
    """
    order = np.lexsort((log_intercepts, -log_slopes))
    slopes, intercepts = log_slopes[order], log_intercepts[order]
    lower = intercepts < np.append(np.fmin.accumulate(intercepts[::-1])[::-1][1:], np.inf)
    while True:  # a flatter line that begins no higher is below everywhere
        slopes, intercepts = slopes[lower], intercepts[lower]
        starts = np.append(-np.inf, _meeting(slopes[:-1], intercepts[:-1], slopes[1:], intercepts[1:]))
        lower = np.append(starts[1:] > starts[:-1], True)
        if lower.all():
            return LeastLines(slopes, intercepts, starts)


@np.errstate(all="ignore")
def _meeting(steep: Array, low: Array, flat: Array, high: Array) -> Array:
    """Log of where two lines meet: a steep one that begins low, a flat one that begins high."""
    apart, closer = -np.expm1(low - high), -np.expm1(flat - steep)
    found = np.where(closer > 0, high + np.log(apart) - steep - np.log(closer), np.inf)
    return np.asarray(np.where(apart > 0, found, -np.inf))
