"""Losses at points, wherever they lie: the transform of one step's loss on a vertical line.

Steps like randomised response have two or three possible losses, and 100 different ones share no lattice.  Their
moment generating functions are finite sums (`Points`), or have a closed form (Laplace, Gaussian).  Where a step has a
continuous loss and none of these, two finite laws enclose it: bins whose mass is spread to their ends with P- and
Q-mass kept reveal more (laws.py), and bins seen as one outcome reveal less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import gammaln

from hush.accounting.contours.blocks import blocks
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Complex
from hush.accounting.lattices.laws import UNDERFLOW, spread
from hush.accounting.pairs.doubts import doubts
from hush.accounting.pairs.losses import (
    Array,
    Atoms,
    Enclosed,
    GaussianPair,
    LaplacePair,
    Pair,
    Poisson,
    Reversed,
    Uniform,
)

_BLOCK = 64  # nodes in a row, at most
_TOGETHER = 1 << 16  # products of a node of a row, or an order, and a point, for several laws at once
_NOTHING = -1e6  # log of the mass of a point that isn't there, as a share
LOOSE = 2e-13  # of a largest loss: what sampling it loses, at rates from 1e-300 on


class Scattered(Protocol):
    """One step's law, seen through E_P[e^{sL}; L finite]."""

    @property
    def infinite(self) -> float:
        """P(L = inf)."""

    @property
    def largest(self) -> float:
        """The largest |L|."""

    @property
    def unsure(self) -> float:
        """How far a loss may be off, in units of 2^-50."""

    @property
    def top(self) -> float:
        """No finite loss exceeds it."""

    @property
    def size(self) -> int:
        """How many terms its transform has."""

    def log_mgf(self, orders: Array) -> Array:
        """log E_P[e^{sL}; L finite] at real s > 0."""

    def on_line(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        """E_P[e^{sL}] at s = c + i spacing j, over exp(scale); bounds on the errors of these; and the scale."""


@dataclass(frozen=True)
class Points:
    """P-masses ``exp(logs)`` at losses."""

    losses: Array
    logs: Array
    infinite: float = 0.0
    binned: bool = False
    """Whether the losses are numbers that were chosen, not known to 2^-50 of themselves."""
    directed: bool = False
    """Whether all that was rounded on the way to the masses was rounded to the safe side."""
    log_hidden: float = -math.inf
    """log of a bound on further mass at infinite loss, too small to be told by a floating-point number."""
    beyond: float = 0.0
    """Further P-mass, at losses of at least `end`: it would rule the moments, and is counted apart."""
    end: float = math.inf

    @property
    def size(self) -> int:
        return self.losses.size

    @cached_property
    def largest(self) -> float:
        return float(np.abs(self.losses).max())

    @property
    def unsure(self) -> float:
        return self.largest if not self.binned or self.largest > 600 else 1.0

    @cached_property
    def top(self) -> float:
        return float(self.losses.max())

    def log_delta(self, epsilons: Array) -> Array:
        """log of P(L = inf) + E_P[(1 - e^{eps - L})_+], a sum of positive terms."""
        logs = np.full(len(epsilons), -np.inf)
        for k, epsilon in enumerate(epsilons):
            above = self.losses > epsilon
            if above.any():
                peak = float(self.logs[above].max())
                terms = np.exp(self.logs[above] - peak) @ -np.expm1(epsilon - self.losses[above])
                logs[k] = peak + math.log(terms) if terms > 0 else -np.inf
        return np.logaddexp(logs, math.log(self.infinite)) if self.infinite > 0 else logs

    def log_mgf(self, orders: Array) -> Array:
        exponents = np.multiply.outer(orders, self.losses) + self.logs
        peaks = exponents.max(axis=1)
        return np.asarray(peaks + np.log(np.exp(exponents - peaks[:, None]).sum(axis=1)))

    def cumulants(self, orders: Array) -> tuple[Array, Array, Array]:
        """The log-MGF, and about the mean and the variance of the tilted losses."""
        exponents = np.multiply.outer(orders, self.losses) + self.logs
        peaks = exponents.max(axis=1)
        weights = np.exp(exponents - peaks[:, None])
        totals = weights.sum(axis=1)
        mean, square = weights @ self.losses / totals, weights @ self.losses**2 / totals
        return peaks + np.log(totals), mean, np.maximum(square - mean * mean, 0.0)

    def on_line(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        values, errors, scales = on_lines([self], c, spacing, count)
        return values[0], errors[0], float(scales[0])


def log_mgfs(laws: Sequence[Points], orders: Array) -> Array:
    """log E_P[e^{sL}; L finite] of several laws at real s, a row each: as many at once as stay close at hand."""
    found = np.empty((len(laws), orders.size))
    sizes = np.array([law.size for law in laws])
    for rows, _, starts in blocks(sizes, _TOGETHER // orders.size):
        losses, logs = (
            np.concatenate(part) for part in zip(*((one.losses, one.logs) for one in laws[rows]), strict=True)
        )
        exponents = np.multiply.outer(orders, losses) + logs
        peaks = np.maximum.reduceat(exponents, starts, axis=1)
        exponents -= np.repeat(peaks, sizes[rows], axis=1)
        sums = np.add.reduceat(np.exp(exponents, out=exponents), starts, axis=1)
        found[rows] = (peaks + np.log(sums)).T
    return found


def on_lines(laws: Sequence[Points], c: float, spacing: float, count: int) -> tuple[Complex, Array, Array]:
    """The transforms of several laws on a line, a row each: those of about as many points are computed together."""
    values, errors = np.empty((len(laws), count), dtype=np.complex128), np.empty((len(laws), count))
    scales = np.empty(len(laws))
    order = sorted(range(len(laws)), key=lambda k: laws[k].size)
    while order:
        points = laws[order[-1]].size
        together = max(_TOGETHER // (points * min(count, _BLOCK)), 1)
        together = min(together, sum(2 * laws[k].size > points for k in order))
        few, order = order[-together:], order[:-together]
        losses, logs = np.empty((together, points)), np.empty((together, points))
        for row, k in enumerate(few):
            losses[row, : laws[k].size], logs[row, : laws[k].size] = laws[k].losses, laws[k].logs
            largest = int(np.argmax(laws[k].logs))  # beside it the others are nothing at any tilt
            losses[row, laws[k].size :] = laws[k].losses[largest]
            logs[row, laws[k].size :] = laws[k].logs[largest] + _NOTHING
        values[few], errors[few], scales[few] = _on_line(losses, logs, c, spacing, count)
    return values, errors, scales


def _on_line(losses: Array, logs: Array, c: float, spacing: float, count: int) -> tuple[Complex, Array, Array]:
    """1 and the sum of w (e^{i t l} - 1), weights w = p e^{cl - scale}: near-atoms at 0 keep their digits.

    With a and b such differences at whole rows of nodes and at the rest, e^{i t l} - 1 = a + b + ab.  Rounding,
    with S the sum of w min(2, t |l|): of the scale 2 u of each number in an exponent and 64 u; of a weight 2 u of
    those, 3 u |t l| of each turn and 8 u of S each time the turns were doubled, and of the sums, of K products in
    n/K blocks, 2 (3 K + n/K) u and 96 u, of S.
    """
    exponents = c * losses + logs
    peaks = exponents.max(axis=1, keepdims=True)
    scales = peaks + np.log(np.exp(exponents - peaks).sum(axis=1, keepdims=True))
    weights = np.exp(exponents - scales)
    step = spacing * losses
    block = min(math.isqrt(count) + 1, _BLOCK)
    turns = _turns(block, step)
    rows = -(-count // block)
    leaps = _turns(rows, block * step) * weights[:, None, :]
    kinds, points = losses.shape
    width = max(min(16, points), math.isqrt(points))
    # a and b alone are two more columns of the first product
    total = np.concatenate(
        [leaps[:, :, :width], leaps.sum(axis=2, keepdims=True), np.ones((kinds, rows, 1))], axis=2
    ) @ np.concatenate(
        [
            turns[:, :, :width].transpose(0, 2, 1),
            np.ones((kinds, 1, block)),
            (turns * weights[:, None, :]).sum(axis=2)[:, None, :],
        ],
        axis=1,
    )
    for first in range(width, points, width):
        total += leaps[:, :, first : first + width] @ turns[:, :, first : first + width].transpose(0, 2, 1)
    size = np.abs(c * losses) + np.abs(logs) + np.abs(scales)
    constant = (weights * (64 + 2 * size)).sum(axis=1)
    turning = (weights * np.abs(losses)).sum(axis=1)
    reach = block * spacing * np.arange(1, rows + 1)
    swing = np.minimum(reach[:, None] * np.abs(losses)[:, None, :], 2.0)
    doubled = 8 * (block.bit_length() + rows.bit_length())
    summed = (swing @ (weights * (2 * (3 * width + points / width) + 104 + doubled + 2 * size))[:, :, None])[:, :, 0]
    heights = spacing * np.arange(block * rows).reshape(rows, block)
    errors = (constant[:, None] + summed)[:, :, None] + 6 * turning[:, None, None] * heights
    total += 1
    return (
        total.reshape(kinds, -1)[:, :count],
        UNIT_ROUNDOFF * errors.reshape(kinds, -1)[:, :count],
        scales[:, 0],
    )


def _turns(count: int, step: Array) -> Complex:
    """e^{ikx} - 1 for k = 0, 1, .. in rows: a and b make b (1 + a) + a, so twice as many take one more row of sines.

    Of |a|, |b| <= min(2, k |x|) that loses less than 8 u, and |1 + a| = 1 keeps what was lost before as it is.
    """
    table = np.zeros((step.shape[0], count, step.shape[1]), dtype=np.complex128)
    done = 1
    while done < count:
        more = min(done, count - done)
        leap = _turned(done * step)[:, None, :]
        np.multiply(table[:, :more], 1 + leap, out=table[:, done : done + more])
        table[:, done : done + more] += leap
        done += more
    return table


def _turned(angles: Array) -> Complex:
    """e^{ix} - 1."""
    return np.asarray(-2 * np.sin(angles / 2) ** 2 + 1j * np.sin(angles))


@dataclass(frozen=True)
class LaplaceLaw:
    """E_P[e^{sL}] = ((1+s) e^{s mu} + s e^{-(1+s) mu}) / (1 + 2s)."""

    mu: float
    infinite: float = 0.0
    size: int = 4

    @property
    def largest(self) -> float:
        return self.mu

    @property
    def unsure(self) -> float:
        return self.mu

    @property
    def top(self) -> float:
        return self.mu

    def log_mgf(self, orders: Array) -> Array:
        share = orders / (1 + orders) * np.exp(-(1 + 2 * orders) * self.mu)
        return np.asarray(orders * self.mu + np.log1p(share) - np.log1p(orders / (1 + orders)))

    def on_line(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        s = c + 1j * spacing * np.arange(count)
        turn = np.exp(1j * self.mu * s.imag)
        values = ((1 + s) * turn + s * math.exp(-(1 + 2 * c) * self.mu) / turn) / (1 + 2 * s)
        scale = float(self.log_mgf(np.array([c]))[0])
        lift = math.exp(c * self.mu - scale)  # between 1/2 and 2
        errors = UNIT_ROUNDOFF * lift * (64 + 8 * self.mu * (1 + 2 * c) + 8 * self.mu * s.imag)
        return np.asarray(values * lift), np.asarray(errors), scale


@dataclass(frozen=True)
class GaussianLaw:
    """E_P[e^{sL}] = exp(mu^2 s (s+1)/2): all Gaussian steps of a composition together."""

    squared: float
    infinite: float = 0.0
    top: float = math.inf
    size: int = 4

    @property
    def largest(self) -> float:
        """The loss is unbounded; a change of mu by a factor 1 + e moves epsilon by less than e times this."""
        return self.squared + 40 * math.sqrt(self.squared)

    @property
    def unsure(self) -> float:
        return self.largest

    def log_mgf(self, orders: Array) -> Array:
        return np.asarray(0.5 * self.squared * orders * (orders + 1))

    def on_line(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        t = spacing * np.arange(count)
        values = np.exp(-0.5 * self.squared * t * t + 0.5j * self.squared * (2 * c + 1) * t)
        errors = np.abs(values) * UNIT_ROUNDOFF * (16 + 4 * self.squared * (t * t + (2 * c + 1) * t))
        return np.asarray(values), np.asarray(errors), float(self.log_mgf(np.array([c]))[0])


def exact(pair: Pair) -> Scattered | None:
    """The pair's own law, where it is a finite sum or has a closed form."""
    if isinstance(pair, LaplacePair):
        return LaplaceLaw(pair.mu)
    if isinstance(pair, GaussianPair):
        return GaussianLaw(pair.mu**2)
    if isinstance(pair, Atoms):
        return _points(np.asarray(pair.losses), np.asarray(pair.p), pair.infinite)
    if isinstance(pair, Reversed) and isinstance(pair.pair, Poisson) and isinstance(pair.pair.inner, Atoms):
        losses, _, q = sampled_atoms(pair.pair.inner, pair.pair.rate)
        return _points(-losses, q, pair.infinite)
    if isinstance(pair, Poisson) and isinstance(pair.inner, Atoms):
        losses, p, _ = sampled_atoms(pair.inner, pair.rate)
        return _points(losses, p, pair.infinite)
    if isinstance(pair, Uniform) and isinstance(pair.inner, Atoms):
        losses, p, q = sampled_atoms(pair.inner, pair.rate)
        high = losses > 0
        rest = max(0.0, 1 - pair.infinite - float(p[high].sum() + q[high].sum()))
        return _points(
            np.concatenate([losses[high], [0.0], -losses[high]]),
            np.concatenate([p[high], [rest], q[high]]),
            pair.infinite,
        )
    return None


def sampled_atoms(atoms: Atoms, rate: float) -> tuple[Array, Array, Array]:
    """Losses, P- and Q-masses of (1 - rate) Q + rate P against Q, what only Q has included."""
    inner, p, q = (
        np.append(row, last)
        for row, last in zip(
            (np.asarray(atoms.losses), np.asarray(atoms.p), np.asarray(atoms.q)),
            (-np.inf, 0.0, atoms.vanishing),
            strict=True,
        )
    )
    return sampled_loss(inner, rate), (1 - rate) * q + rate * p, q


def sampled_loss(inner: Array, rate: float) -> Array:
    """log(1 - rate + rate e^u), to a few units in its own last place."""
    if rate == 1:
        return inner
    change = rate * np.expm1(np.minimum(inner, 700.0))
    near = np.log1p(np.where(np.abs(change) < 0.5, change, 0.0))
    return np.where(np.abs(change) < 0.5, near, np.logaddexp(math.log1p(-rate), math.log(rate) + inner))


def loss_range(pair: Pair) -> tuple[float, float]:
    """The least and the largest loss, to some units in their last places; infinite where no bound is known."""
    if pair.infinite > 0 or pair.vanishing > 0:
        return -math.inf, math.inf
    if isinstance(pair, LaplacePair):
        return -pair.mu, pair.mu
    if isinstance(pair, Atoms):
        return min(pair.losses), max(pair.losses)
    if isinstance(pair, Enclosed):
        return loss_range(pair.upper)
    if isinstance(pair, Reversed):
        low, high = loss_range(pair.pair)
        return -high, -low
    if isinstance(pair, Poisson | Uniform):
        low, high = (float(end) for end in sampled_loss(np.array(loss_range(pair.inner)), pair.rate))
        return (low, high) if isinstance(pair, Poisson) else (-high, high)
    return -math.inf, math.inf


class Leaking(Protocol):
    """What may lose everything at once."""

    @property
    def infinite(self) -> float: ...


def surely_infinite(laws: Sequence[tuple[Leaking, int]]) -> float:
    """The chance that some loss of a composition is infinite, which may be certain."""
    if any(law.infinite >= 1 for law, _ in laws):
        return 1.0
    return -math.expm1(math.fsum(count * math.log1p(-law.infinite) for law, count in laws))


def product(laws: Sequence[tuple[Scattered, int]], most: int) -> Points | None:
    """The law of the sum, by enumeration, if it has no more points than that."""
    losses, logs = np.zeros(1), np.zeros(1)
    for law, count in laws:
        power = _power(law, count, most) if isinstance(law, Points) else None
        if power is None or losses.size * power[0].size > most:
            return None
        losses, logs = (np.add.outer(row, other).ravel() for row, other in zip((losses, logs), power, strict=True))
    return Points(losses, logs, surely_infinite(laws))


def _power(law: Points, count: int, most: int) -> tuple[Array, Array] | None:
    """Losses and log masses of a law repeated: binomial for two points, else all sequences, if there are few."""
    points = law.losses.size
    if points == 1:
        return count * law.losses, count * law.logs
    if points == 2 and count < min(most, 1000):
        k = np.arange(count + 1.0)
        ways = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
        return np.stack([k, count - k], axis=1) @ law.losses, ways + np.stack([k, count - k], axis=1) @ law.logs
    if count * math.log(points) > math.log(most):
        return None
    losses, logs = law.losses, law.logs
    for _ in range(count - 1):
        losses, logs = np.add.outer(losses, law.losses).ravel(), np.add.outer(logs, law.logs).ravel()
    return losses, logs


def _points(losses: Array, masses: Array, infinite: float, *, binned: bool = False) -> Points:
    kept = masses > 0
    if not kept.any():
        return Points(np.zeros(1), np.full(1, -745.0), infinite, binned)
    return Points(losses[kept], np.log(masses[kept]), infinite, binned)


def enclosing(pair: Pair, edges: Array) -> tuple[Points, Points]:
    """Two finite laws that reveal less and more than the pair, from its bins.

    The losses of the second are edges, hence exact; those of the first are lowered by more than they may be off.  What
    is left is the rounding of masses, a few units in the last place: Q-masses that are off by a factor 1 + e move
    epsilon by e.
    """
    p, q = pair.masses(edges)
    unsure = doubts(pair, p, q, edges)
    masses, infinite = spread(*unsure.more(p, q), edges)
    # masses too small for floating point: at the largest loss, or, where there is none, at an infinite one
    last = int(np.searchsorted(edges, loss_range(pair)[1] * (1 + LOOSE)))
    if last < edges.size:
        masses[last] += UNDERFLOW
        more = _points(edges, masses, infinite, binned=True)
    else:
        more = _points(edges, masses, max(infinite, pair.infinite) + UNDERFLOW, binned=True)
    p, q = unsure.less(p, q)
    p[-1] = max(0.0, p[-1] - pair.infinite)
    known = (p > 0) & (q > UNDERFLOW)
    p, q = p[known], q[known]
    near = np.abs(p - q) < 0.5 * q
    losses = np.where(near, np.log1p(np.where(near, p - q, 0.0) / q), np.log(p) - np.log(q))
    losses -= 2.0**-50 * (np.abs(losses) + np.where(near, 0.0, np.abs(np.log(q)) + np.abs(np.log(p))))
    losses = np.minimum(losses, edges[-1])  # what lies beyond would rule the moments
    return _points(losses, p, pair.infinite, binned=True), more
