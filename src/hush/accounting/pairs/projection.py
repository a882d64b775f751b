"""The privacy loss of DP-SGD with norms estimated by random projections (Bu et al. 2021, Theorem 4.1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr

from hush.accounting.pairs.losses import Array, Continuous, Pair, Poisson, Reversed, bin_masses

_CERTAINTY = 41.0  # the quadrature error is below exp(-41) = 1.6e-18
_BELOW = 1e-300  # what z have that are left out below
_NEAR = 1.5  # where e^-x - 1 + x is a series
_COUNTS = math.exp(-45)  # of a tail: all that smaller terms add up to
_CLOSE = 4.0  # losses up to which P - Q is an integral
_GAUSS = tuple(row[6:] for row in np.polynomial.legendre.leggauss(12))  # the positive half


@dataclass(frozen=True)
class Depth:
    """How far down P-tails keep their digits: to e^{-A/2}."""

    square: float
    """A: Phi is followed to arguments of -sqrt(A)."""
    near: float
    """(sqrt(A + 300) - sqrt(A))^-2, at least: how far z are from 0 there."""
    least: float
    """A P-tail whose digits are known."""
    missed: float
    """What smaller ones may be off, e^-41 of that, and what was left out: it may have any loss."""
    cut: float
    """What z have that are left out above; below it is 1e-300."""


DEEP = 1300.0
"""Minus the log of a tail down to which logarithms have their digits at first."""
DEEPEST = 20_000.0
"""And at last: no delta that is asked for is smaller."""
_USUAL = Depth(600.0, 0.035, 1e-130, 1e-147, 1e-148)
_DEEP = Depth(1280.0, 0.065, 1e-277, 1e-295, 1e-297)


@dataclass(frozen=True)
class ProjectedPair(Continuous):
    """(z, N(z, 1)) against (z, N(0, 1)) with ``z = Z_r / sigma``, ``Z_r = (chi^2_r / r)^(-1/2)``.

    The clipping norm is estimated from r projections, so the sensitivity is random. Given z the loss is Gaussian,
    ``u = x z - z^2 / 2``, hence for t >= 0

        Q(u > t) = P(u < -t) = E_z Phi(-t/z - z/2),      P(u > t) = Q(u < -t) = E_z Phi(-t/z + z/2).

    The mean over z is the trapezoid rule in y = log z, with step ``h = pi / sqrt(41 N)``,

        N = (2 + 0.035/sigma^2) r + sqrt(r)/sigma + t + 800.

    It errs by less than 2^-53 of any of these tails that exceeds 1e-130, and of others by less than 1e-147, or, with a
    larger N, 1e-277 and 1e-295 (`deep`): docs/certificate.md has the proof.  (In short:
    a tail is the integral of the loss's density over v > t; the density is a Bessel function of v, and so is the
    integral of its integrand's modulus along Im y = b, which is all that the rule's error depends on.)
    """

    noise_multiplier: float
    projections: int
    deep: bool = False
    """Whether deltas are asked for as small as groups of records need them."""

    @property
    def depth(self) -> Depth:
        """Of one projection's z those left out would be no floating-point numbers."""
        return _DEEP if self.deep and self.projections > 1 else _USUAL

    def accuracy(self, t: Array) -> Array:
        """Relative accuracy of the tails at t in units of 2^-50, apart from |log tail|."""
        return np.asarray(self.weight_accuracy + 12 + 8 * np.sqrt(np.abs(t)))

    @property
    def weight_accuracy(self) -> float:
        """What of it is owed to the weights, exp of -(r/2)(e^{-2v} - 1 + 2v): that exponent, down to -691, is good to
        2 * 2^-50 of itself.  (And of few projections, whose nodes are closer together, to 7 sqrt(r) 2^-50.)

        Weights that are off make another law of z, and by it every bin is off by no more than a weight, its tails
        however large.
        """
        return 12 + min(7 * math.sqrt(self.projections), 1400.0)

    def bin_accuracy(self, masses: Array) -> Array:
        """The same of bins, in which only weights count that are at least e^-60 of their mass."""
        return np.asarray(np.minimum(self.weight_accuracy, 132 - 2 * np.log(np.clip(masses, 1e-300, 1.0))))

    def own_accuracy(self, t: Array) -> Array:
        """What is left for each tail: a pairwise sum of terms costs 4 and a Phi 2.

        The argument z/2 - t/z of Phi is the difference of two numbers near sqrt(t/2), with z good to 8 units in its
        last place: 8 sqrt(t).  Where weights change, between decades of t, a bin has two of them.
        """
        change = self.changes(t)
        beside = np.append(change, False) | np.append(False, change)
        return np.asarray(12 + 8 * np.sqrt(np.abs(t)) + np.where(beside, self.weight_accuracy, 0.0))

    def changes(self, t: Array) -> NDArray[np.bool_]:
        """Between which neighbours in t nodes and weights change."""
        decades = decade(np.abs(t))
        return np.asarray(decades[1:] != decades[:-1])

    def masses(self, edges: Array) -> tuple[Array, Array]:
        q_far, p_far, p_near = self._tails(np.abs(edges))
        negative = edges < 0
        p_below, p_above = np.where(negative, q_far, p_near), np.where(negative, 1 - q_far, p_far)
        q_below, q_above = np.where(negative, p_far, 1 - q_far), np.where(negative, p_near, q_far)
        return bin_masses(p_below, p_above), bin_masses(q_below, q_above)

    def reverse(self) -> ProjectedPair:
        return self

    def gains(self, t: Array) -> tuple[Array, Array]:
        """P(u > t) - Q(u > t) with its own digits, by the nodes of `masses`, and how far off, weights apart.

        It is the same at t and -t: the mean over z of the integral of phi(x - t/z) over |x| < h = z/2, which is
        h phi(t/z) times that of cosh(t s/2) e^{-h^2 s^2/2} over 0 < s < 1 and once more.  For t < 4, h < 1/4 six
        Gauss-Legendre nodes s (of twelve) leave less than 1e-20 of it.  An exponent (t/z)^2/2 is good to 4 * 2^-50 of
        itself, and a sum of n terms to n/8 of them; other z and t have the difference of two tails.
        """
        size = np.abs(t)
        found, off = np.zeros_like(size), np.zeros_like(size)
        places, shares = _GAUSS
        decades = decade(size)
        for power in np.unique(decades[np.isfinite(size)]):
            here = np.flatnonzero((decades == power) & np.isfinite(size))
            z, weight = self.nodes(float(np.max(size[here])))
            few = int(np.searchsorted(z, 0.5))
            heights = 0.5 * z[:few, None]
            even = weight[:few, None] * heights * np.exp(-0.5 * (heights * places) ** 2) * shares
            order = here[np.argsort(size[here])]
            sides = np.split(order, [np.searchsorted(size[order], _CLOSE)])
            for part in (part for side in sides if side.size for part in np.array_split(side, -(-side.size // 64))):
                at, close = size[part], bool(size[part[-1]] < _CLOSE)
                # as in `_mean`: z below the first count for nothing, those from `sure` on as one
                start, sure = np.searchsorted(z, [at[0] / 40, math.hypot(40, math.sqrt(2 * at[-1])) + 40])
                begin = max(few, start) if close else start
                sums = np.zeros((2, at.size))
                if close and start < few:
                    bells = np.exp(-0.5 * (at[:, None] / z[start:few]) ** 2) / math.sqrt(2 * math.pi)
                    sums[0] = (2 * np.cosh(0.5 * at[:, None] * places) * (bells @ even[start:])).sum(axis=1)
                ratio, some = at[:, None] / z[begin:sure], weight[begin:sure]
                above, below = (ndtr(half - ratio) @ some for half in (z[begin:sure] / 2, -z[begin:sure] / 2))
                beyond = float(weight[max(sure, begin) :].sum())
                sums[0] += above - below + beyond
                sums[1] = above + below + beyond
                rounded = 40 + z.size / 8 + 8 * np.sqrt(at)
                with np.errstate(divide="ignore", invalid="ignore"):
                    own = np.where(sums > 0, sums * (rounded + 8 * np.abs(np.log(sums))), 0.0)
                found[part], off[part] = sums[0], 2.0**-50 * own.sum(axis=0)
        return found, off

    def nodes(self, loss: float) -> tuple[Array, Array]:
        """Values of z and their weights, for means of what a loss of this size says."""
        return _nodes(self.noise_multiplier, self.projections, min(abs(loss), 1e6), self.depth)

    def scaled_tail(self, t: Array) -> Array:
        """e^t Q(u > t) at large t, which Q(u > t) itself underflows at.

        With a = t/z + z/2 and d = t/z - z/2, Phi(-a) = erfcx(a/sqrt 2) e^{-a^2/2}/2 and a^2 = d^2 + 2t.
        """
        result = np.empty_like(t)
        for part in np.array_split(np.argsort(t), max(1, t.size // 64)):
            least, most = float(t[part[0]]), float(t[part[-1]])
            z, weight = self.nodes(most)
            ends = math.hypot(40, math.sqrt(2 * least)) - 40, math.hypot(40, math.sqrt(2 * most)) + 40
            first, last = np.searchsorted(z, ends)
            z, weight = z[first:last], weight[first:last]
            ratio = t[part, None] / z
            terms = erfcx((ratio + z / 2) / math.sqrt(2)) * np.exp(-0.5 * (ratio - z / 2) ** 2)
            result[part] = 0.5 * (terms * weight).sum(axis=1)
        return result

    def log_tails(self, t: Array, depth: float) -> tuple[Array, Array]:
        """log P(u > t) and log Q(u > t) at ascending t > 0, good to `log_doubt` of themselves where P's exceeds -depth.

        (P(u > t) itself is good to e^{-40 - depth} besides: docs/certificate.md with A = 2 depth.)  Of some t that are
        close together no term counts that is below e^-60 of the largest, by what it has at the least of them.
        """
        log_p, log_q = np.empty_like(t), np.empty_like(t)
        for power in np.unique(decades := decade(t)):
            here = np.flatnonzero(decades == power)
            v, log_weights = self._log_nodes(float(t[here[-1]]), depth)
            z = np.exp(v) / self.noise_multiplier
            for part in np.array_split(here, -(-here.size // 32)):
                for logs, half in ((log_p, z / 2), (log_q, -z / 2)):
                    most, least = (log_weights + log_ndtr(half - t[k] / z) for k in (part[0], part[-1]))
                    kept = np.flatnonzero(most > float(least.max()) - 60 - math.log(z.size))
                    some = slice(int(kept[0]), int(kept[-1]) + 1)
                    terms = log_weights[some] + log_ndtr(half[some] - t[part, None] / z[some])
                    peaks = terms.max(axis=1)
                    logs[part] = peaks + np.log(np.exp(terms - peaks[:, None]).sum(axis=1))
        return log_p, log_q

    def _log_nodes(self, largest: float, depth: float) -> tuple[Array, Array]:
        square = 2 * depth
        near = (math.sqrt(square + 300) - math.sqrt(square)) ** -2
        return _log_nodes(
            self.noise_multiplier, self.projections, min(largest, 1e6), square, near, -44 - depth, normalised=True
        )

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds on log delta of one release, however small: the mean over z of what a Gaussian one has.

        That weighs the integral of P(u > epsilon) by 1 - e^{epsilon - u}, so it errs as little.  Given z both tails are
        off by as much as in `log_tails`.
        """
        depth, log_total = DEEP, -math.inf
        while True:
            v, logs = self._log_nodes(epsilon, depth)
            z = np.exp(v) / self.noise_multiplier
            above, below = log_ndtr(z / 2 - epsilon / z), epsilon + log_ndtr(-z / 2 - epsilon / z)
            with np.errstate(divide="ignore"):
                terms = logs + above + np.log(-np.expm1(np.minimum(below - above, 0.0)))
            log_total = float(np.logaddexp.reduce(terms))
            if log_total > 1 - depth or depth >= DEEPEST:
                break
            depth = min(1.1 * max(-log_total, depth) + 100, DEEPEST)
        doubt = self.log_doubt(np.full(z.shape, epsilon), logs + above) + self.log_doubt(np.zeros(z.shape), below)
        log_off = np.logaddexp(float(np.logaddexp.reduce(logs + above + np.log(2 * doubt))), -40 - depth)
        share = math.exp(min(float(log_off) - log_total, 0.0))
        lower = log_total + math.log1p(-share) if share < 0.5 else -math.inf
        return lower, float(np.logaddexp(log_total, log_off))

    def rough_depth(self, t: float) -> float:
        """About minus log P(u > t) at most: what z beyond sqrt(2t) have, half of it."""
        x = 2 * max(math.log(self.noise_multiplier * math.sqrt(2 * t)), 0.0)
        return 0.5 * self.projections * (math.expm1(-x) + x)

    @staticmethod
    def log_doubt(t: Array, logs: Array) -> Array:
        """How far such logarithms of tails may be off.

        In units of 2^-50: a weight that counts, down to e^-100 of the tail, 2 of its exponent; log Phi(y) 1 of itself,
        and of its argument, off by 2 * 2^-50 of both its parts, 4 of itself and 2 t; and sums.
        """
        return np.asarray(2.0**-50 * (10 * np.abs(logs) + 2 * t + 1000))

    def _tails(self, t: Array) -> tuple[Array, Array, Array]:
        """Q(u > t), P(u > t) and P(u <= t) for t >= 0; one quadrature for each decade of t, which sets the step."""
        q_far, p_far, p_near = np.zeros_like(t), np.zeros_like(t), np.zeros_like(t)
        decades = decade(t)
        for power in np.unique(decades):
            here = decades == power
            q_far[here], p_far[here], p_near[here] = self._mean(t[here], float(np.max(t[here])))
        return q_far, p_far, p_near

    def _mean(self, t: Array, largest: float) -> tuple[Array, Array, Array]:
        z, weight = _nodes(self.noise_multiplier, self.projections, min(largest, 1e6), self.depth)
        q_far, p_far, p_near = np.empty_like(t), np.empty_like(t), np.empty_like(t)
        order = np.argsort(t)
        for part in np.array_split(order, max(1, t.size // 64)):
            at = t[part]
            # Phi is 0 to the last bit below -40 and 1 above 40: z below `first` count for nothing, those from `sure` on
            # as one, and Q's Phi(-t/z - z/2) is 0 unless z lies between two roots
            first, sure = np.searchsorted(
                z, [math.hypot(40, math.sqrt(2 * at[0])) - 40, math.hypot(40, math.sqrt(2 * at[-1])) + 40]
            )
            first = min(int(first), z.size - 1)
            some, shares = z[first:sure], weight[first:sure]
            last = int(np.searchsorted(some, 80.0))
            p_far[part] = _mean_of(at, some, shares, 0.5, -1.0, float(weight[sure:].sum()))
            p_near[part] = 1 - p_far[part]
            if p_near[part[0]] < 0.5:  # the smaller tail has its own sum: the difference would lose its digits
                p_near[part] = _mean_of(at, some, shares, -0.5, 1.0, float(weight[:first].sum()))
            q_far[part] = _mean_of(at, some[:last], shares[:last], -0.5, -1.0, 0.0)
        return q_far, p_far, p_near


def _mean_of(t: Array, z: Array, weight: Array, tilt: float, sign: float, beside: float) -> Array:
    """Sums of weight Phi(tilt z +- t/z) at ascending t that are close together, and what is known beside.

    All terms change with t in one direction.  Those are left out that, where they are largest, are below e^-45 of the
    least sum over how many there are.
    """
    most, least = (weight * ndtr(tilt * z + sign * t[end] / z) for end in ((0, -1) if sign < 0 else (-1, 0)))
    kept = np.flatnonzero(most >= _COUNTS / max(z.size, 1) * (beside + least.sum()))
    if kept.size == 0:
        return np.full(t.shape, beside)
    some = slice(int(kept[0]), int(kept[-1]) + 1)
    terms = ndtr(tilt * z[some] + sign * t[:, None] / z[some])
    return np.asarray((terms * weight[some]).sum(axis=1) + beside)


def decade(t: Array) -> Array:
    """log10 of the sizes that share their nodes: losses t up to ten, to a hundred, ..."""
    return np.asarray(np.ceil(np.log10(np.clip(t, 10.0, 1e300))))


def _nodes(noise_multiplier: float, projections: int, largest: float, depth: Depth) -> tuple[Array, Array]:
    """Trapezoid nodes z and weights for the law of z, cut where next to nothing is left."""
    v, logs = _log_nodes(
        noise_multiplier, projections, largest, depth.square, depth.near, math.log(depth.cut), normalised=False
    )
    weight = np.exp(logs)
    return np.exp(v) / noise_multiplier, weight / weight.sum()


def _log_nodes(
    noise_multiplier: float,
    projections: int,
    largest: float,
    square: float,
    near: float,
    log_cut: float,
    *,
    normalised: bool = True,
) -> tuple[Array, Array]:
    """v = log(sigma z) at the nodes, and logs of their weights.

    Its density is proportional to e^{-(r/2) b(2v)}, b(x) = e^-x - 1 + x, and by Chernoff's inequality the chance of a v
    beyond some place is at most that exponential there.
    """
    r = float(projections)
    narrow = (2 + near / noise_multiplier**2) * r + math.sqrt(r) / noise_multiplier + largest + square + 200
    step = math.pi / math.sqrt(_CERTAINTY * narrow)
    low, high = _bent_to(-2 * math.log(_BELOW) / r, -1.0) / 2, _bent_to(-2 * log_cut / r, 1.0) / 2
    v = np.asarray(step * np.arange(math.floor(low / step), math.ceil(high / step) + 1), dtype=np.float64)
    logs = -(r / 2) * _bend(2 * v)
    # Normalising by the sum (1 up to the error bound) spares the cancellation of large gamma functions.
    return v, logs - math.log(np.exp(logs).sum()) if normalised else logs


def _bend(x: Array) -> Array:
    """b(x) = e^-x - 1 + x, a series where the terms nearly cancel."""
    near, series = np.clip(x, -_NEAR, _NEAR), np.zeros_like(x)
    for k in range(26, 1, -1):
        series = 1 / math.factorial(k) - near * series
    return np.where(np.abs(x) < _NEAR, near * near * series, np.expm1(-x) + x)


def _bent_to(value: float, sign: float) -> float:
    """Where b(x) is that, above or below 0, or a little beyond: Newton's method from further out, where b is convex."""
    x = value + 1 if sign > 0 else -min(math.sqrt(2 * value), 1 + 2 * math.log1p(value))
    for _ in range(60):
        bent = math.expm1(-x) + x if abs(x) > 1e-3 else x * x * (0.5 - x / 6 + x * x / 24)
        x -= (bent - value) / -math.expm1(-x)
        if abs(bent - value) < 1e-10 * value:
            break
    return x * (1 + 1e-6)


def deepened(pair: Pair) -> Pair:
    """The pair as groups of records need it: projected norms with digits in deeper tails, the rest as it is."""
    return instead(pair, lambda projected: replace(projected, deep=True))


def instead(pair: Pair, change: Callable[[ProjectedPair], Pair]) -> Pair:
    """The pair with its projected norms, if it has any, changed."""
    if isinstance(pair, ProjectedPair):
        return change(pair)
    if isinstance(pair, Reversed):
        seen = instead(pair.pair, change)
        return pair if seen is pair.pair else Reversed(seen)
    if isinstance(pair, Poisson):
        seen = instead(pair.inner, change)
        return pair if seen is pair.inner else Poisson(seen, pair.rate)
    return pair
