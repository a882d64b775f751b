"""The papers' approximations, named as such: central limit theorems, Berry-Esseen, Edgeworth.

Composed privacy losses add up, so the trade-off function of many small steps approaches a Gaussian one. That is an
*approximation*: at finite T the epsilon of a central limit theorem can be below the true one (Bu et al. 2019, Table 1:
0.83 for 0.8645; at p = 0.01, sigma = 0.6, T = 100, delta = 1e-6 it says 1.71 for 4.75) or above it (31.12 for 28.05).
Nothing here may be quoted as a guarantee, except `BerryEsseen.lower`, a bound, and at usual deltas an empty one.

    >>> round(poisson_limit(256 / 60_000, 1.3, 3516).epsilon(1e-5), 2)
    0.83
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from hush.accounting.divergences import gaussian_epsilon, gaussian_log_delta, kappa2, kappa3_bar, kl
from hush.accounting.moments import log_ratio, log_remainder
from hush.accounting.roots import bracketed_root
from hush.accounting.tradeoff import TradeoffFunction, approximate, gaussian, tensor

Array = NDArray[np.float64]
Repeated = tuple[TradeoffFunction, float]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


# Gaussian limits

_LARGEST = 345.0  # log of a mu whose square is a floating-point number


@dataclass(frozen=True)
class Approximation:
    """G_mu (x) f_{0,leak}: the Gaussian that a composition approaches. An approximation, not a bound.

    `kind` names the theorem, `mu` is the Gaussian parameter, `leak` the share that is given away outright.
    """

    kind: str
    mu: float
    leak: float = 0.0

    @property
    def note(self) -> str:
        """The sentence to print beside any number taken from here."""
        return f"{self.kind}: mu = {self.mu:.6g}, an approximation that can err on either side, not a guarantee."

    def delta(self, epsilon: float) -> float:
        """The approximate delta at epsilon: leak + (1 - leak) delta of G_mu (Dong, Roth, Su 2022, Eq. 12)."""
        return self.leak + (1 - self.leak) * math.exp(gaussian_log_delta(self.mu, epsilon))

    def epsilon(self, delta: float) -> float:
        """The approximate epsilon at delta; infinite below the leak."""
        if delta < self.leak:
            return math.inf
        return gaussian_epsilon(self.mu, (delta - self.leak) / (1 - self.leak) if self.leak < 1 else 1.0)

    def tradeoff(self, alpha: ArrayLike) -> Array:
        """The approximate type II error at type I error alpha."""
        return self.function()(alpha)

    def function(self) -> TradeoffFunction:
        """The approximation as a trade-off function."""
        return tensor(gaussian(self.mu), approximate(0.0, self.leak))


def poisson_limit(rate: float, noise: float, steps: float) -> Approximation:
    """Poisson-subsampled Gaussian: mu = p sqrt(T (e^(1/sigma^2) - 1)) (Bu et al. 2019, Eq. 5).

    Their Theorem 5 prints a second T under the root. Computed by logarithms: no overflow before mu itself does.
    """
    _check_run(rate, noise, steps)
    inverse = 1 / noise**2
    log_chi = math.log(math.expm1(inverse)) if inverse < 1 else inverse + math.log1p(-math.exp(-inverse))
    return Approximation("CLT, Poisson sampling (Bu et al. 2019, Eq. 5)", _scaled_root(rate, steps, log_chi))


def uniform_limit(rate: float, noise: float, steps: float) -> Approximation:
    """Uniform sampling of a share m/n, one record replaced: mu = sqrt(2) c sqrt(chi_+^2(G_{1/sigma})).

    With c = (m/n) sqrt(T): Dong, Roth, Su 2022, Corollary 4, whose root in print seems to cover c as well. The noise is
    scaled to the sensitivity 2C of a replacement.
    """
    _check_run(rate, noise, steps)
    kind = "CLT, uniform sampling (Dong, Roth, Su 2022, Corollary 4)"
    return Approximation(kind, _scaled_root(rate, steps, math.log(2) + _log_chi_square_plus(1 / noise)))


def _scaled_root(rate: float, steps: float, log_square: float) -> float:
    log_mu = (math.log(rate) if rate > 0 else -math.inf) + 0.5 * (math.log(steps) + log_square)
    return math.exp(log_mu) if log_mu < _LARGEST else math.inf


def _log_chi_square_plus(mu: float) -> float:
    """log of e^(mu^2) Phi(3 mu/2) + 3 Phi(-mu/2) - 2 (Dong et al. 2022, Lemma 3), by its integral where it cancels."""
    if mu > 5:
        return mu * mu + math.log(ndtr(1.5 * mu) + (3 * ndtr(-mu / 2) - 2) * math.exp(-mu * mu))
    x, weights = _panels(mu / 2, 2 * mu + 14, 40)
    return math.log(float(weights @ (np.expm1(mu * x - mu * mu / 2) ** 2 * _density(x))))


def symmetric_limit(steps: Iterable[Repeated]) -> Approximation:
    """Symmetric steps f_i, each n_i times: mu = 2K/s, K = sum kl, s^2 = sum kappa_2 (Dong et al. 2022, Theorem 6)."""
    listed = _repeated(steps)
    total = sum(times * kl(f) for f, times in listed)
    spread = sum(times * kappa2(f) for f, times in listed)
    return Approximation(
        "CLT, symmetric (Dong, Roth, Su 2022, Theorem 6)", 2 * total / math.sqrt(spread) if spread else 0.0
    )


def asymmetric_limit(steps: Iterable[Repeated]) -> Approximation:
    """Steps f_i that need not be symmetric: mu = K/s, K = sum (kl + reverse kl) (Bu et al. 2019, Theorem 7).

    The theorem wants sum kappa_2 of f and of f^-1 to share the limit s^2; at finite n they differ: we take the mean.
    """
    listed = _repeated(steps)
    total = sum(times * (kl(f) + kl(f.inverse())) for f, times in listed)
    spread = sum(times * (kappa2(f) + kappa2(f.inverse())) / 2 for f, times in listed)
    return Approximation("CLT, asymmetric (Bu et al. 2019, Theorem 7)", total / math.sqrt(spread) if spread else 0.0)


def guarantees_limit(guarantees: Iterable[tuple[tuple[float, float], float]]) -> Approximation:
    """Steps that are (epsilon_i, delta_i)-DP, each n_i times: G_mu (x) f_{0, 1 - exp(-sum n_i delta_i)}.

    With mu^2 = sum n_i epsilon_i^2 (Dong, Roth, Su 2022, Theorem 7). For equal epsilon = mu/sqrt(n) the error is O(1/n)
    (Theorem 8), about 0.12/n at mu = 1.
    """
    listed = list(guarantees)
    mu = math.sqrt(sum(times * e * e for (e, _), times in listed))
    kind = "CLT, (epsilon, delta) steps (Dong, Roth, Su 2022, Theorem 7)"
    return Approximation(kind, mu, -math.expm1(-sum(times * d for (_, d), times in listed)))


# Berry-Esseen


@dataclass(frozen=True)
class BerryEsseen:
    """A band around G_mu that contains the composed trade-off function (Dong, Roth, Su 2022, Theorem 5).

    G_mu(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_mu(alpha - gamma) + gamma. This one is proved.
    """

    mu: float
    gamma: float

    def lower(self, alpha: ArrayLike) -> Array:
        """A valid trade-off guarantee, max{G_mu(alpha + gamma) - gamma, 0}."""
        shifted = np.minimum(np.asarray(alpha, dtype=np.float64) + self.gamma, 1.0)
        return np.maximum(gaussian(self.mu)(shifted) - self.gamma, 0.0)

    def upper(self, alpha: ArrayLike) -> Array:
        """No composition of these steps is more private than this."""
        levels = np.asarray(alpha, dtype=np.float64)
        return np.minimum(gaussian(self.mu)(np.maximum(levels - self.gamma, 0.0)) + self.gamma, 1 - levels)

    def delta(self, epsilon: float) -> float:
        """The delta that `lower` proves: delta of G_mu plus gamma (1 + e^epsilon), at most 1.

        Useful only where gamma is far below e^-epsilon delta, which takes very many steps.
        """
        return min(math.exp(gaussian_log_delta(self.mu, epsilon)) + self.gamma * (1 + math.exp(min(epsilon, 700))), 1.0)


def berry_esseen(steps: Iterable[Repeated]) -> BerryEsseen:
    """The band of Theorem 5 for symmetric f_i, each n_i times, by their functionals kl, kappa_2 and kappa_3-bar.

    mu = 2 sum kl / V^(1/2), gamma = 0.56 sum kappa_3-bar / V^(3/2), V = sum kappa_2 - kl^2.
    """
    return _band([(times, kl(f), kappa2(f), kappa3_bar(f)) for f, times in _repeated(steps)])


def berry_esseen_subsampled_gaussian(rate: float, noise: float, steps: float) -> BerryEsseen:
    """Corollary 5: the band for C_p(G_{1/sigma}) composed T times, its functionals by the integrals of Lemma 4."""
    _check_run(rate, noise, steps)
    return _band([(steps, *subsampled_gaussian_functionals(rate, 1 / noise))])


def subsampled_gaussian_functionals(rate: float, mu: float) -> tuple[float, float, float]:
    """kl, kappa_2 and kappa_3-bar of C_p(G_mu) (Dong, Roth, Su 2022, Lemma 4, completed).

    The printed kappa_3-bar leaves out the stretch where C_p(G_mu) has slope -1: there the ratio is 1, its distance from
    the mean is kl, and kl^3 (1 - p)(1 - 2 Phi(-mu/2)) is missing. Without it gamma is too small to be a bound.
    """

    if rate == 0:
        return 0.0, 0.0, 0.0

    def integrals(lower: float, split: float) -> tuple[Array, Array]:
        upper = mu + 14 + mu / 2
        points = sorted({lower, min(max(split, lower), upper), upper})
        parts = [_panels(a, b, 40) for a, b in pairwise(points)]
        return np.concatenate([x for x, _ in parts]), np.concatenate([w for _, w in parts])

    x, weights = integrals(mu / 2, 0.0)
    z, shifted, plain = log_ratio(rate, mu, x), _density(x - mu), _density(x)
    divergence = rate * float(weights @ (z * (shifted - plain)))
    second = float(weights @ (z**2 * (rate * shifted + (2 - rate) * plain)))
    # |Z - kl|^3 turns where Z = kl.
    turn = (math.log1p(math.expm1(divergence) / rate) + mu * mu / 2) / mu
    x, weights = integrals(mu / 2, turn)
    z, shifted, plain = log_ratio(rate, mu, x), _density(x - mu), _density(x)
    third = np.abs(z - divergence) ** 3 * (rate * shifted + (1 - rate) * plain) + (z + divergence) ** 3 * plain
    flat = divergence**3 * (1 - rate) * (1 - 2 * float(ndtr(-mu / 2)))
    return divergence, second, float(weights @ third) + flat


def _band(parts: Iterable[tuple[float, float, float, float]]) -> BerryEsseen:
    listed = list(parts)
    variance = sum(times * (second - divergence**2) for times, divergence, second, _ in listed)
    if not variance > 0:
        raise ValueError("Berry-Esseen needs steps that aren't perfectly private.")
    return BerryEsseen(
        mu=2 * sum(times * divergence for times, divergence, _, _ in listed) / math.sqrt(variance),
        gamma=0.56 * sum(times * third for times, _, _, third in listed) / variance**1.5,
    )


# Edgeworth


@dataclass(frozen=True)
class LossMoments:
    """Moments of a log-likelihood ratio log dQ/dP under one of the two: mean, and central moments."""

    mean: float
    variance: float
    third: float
    fourth: float
    absolute_third: float


def poisson_step_moments(rate: float, noise: float) -> tuple[LossMoments, LossMoments]:
    """One Poisson-subsampled Gaussian step: moments of log(1 - p + p e^(x/sigma - 1/(2 sigma^2))) under P and under Q.

    P = N(0, 1) is without the record, Q = (1 - p) N(0, 1) + p N(1/sigma, 1) with it. By integration. The means are
    integrals of one sign: -E_P[r(l)] and E_P[e^l r(-l)] with l = log dQ/dP and r(y) = e^y - 1 - y.
    """
    _check_run(rate, noise, 1)
    if rate == 0:
        nothing = LossMoments(0.0, 0.0, 0.0, 0.0, 0.0)
        return nothing, nothing
    shift = 1 / noise
    x, weights = _panels(-14.0, shift + 14.0, max(80, math.ceil(8 * shift)))
    ratio = log_ratio(rate, shift, x)
    log_null = np.log(weights) - 0.5 * x * x - 0.5 * math.log(2 * math.pi)
    null_mean = -float(np.exp(log_null + log_remainder(ratio)).sum())
    alternative_mean = float(np.exp(log_null + ratio + log_remainder(-ratio)).sum())
    return (
        _central_moments(null_mean, ratio, np.exp(log_null)),
        _central_moments(alternative_mean, ratio, np.exp(log_null + ratio)),
    )


def _central_moments(mean: float, ratio: Array, masses: Array) -> LossMoments:
    centred = ratio - mean
    second, third, fourth = (float(masses @ centred**power) for power in (2, 3, 4))
    return LossMoments(mean, second, third, fourth, float(masses @ np.abs(centred) ** 3))


@dataclass(frozen=True)
class Edgeworth:
    """The second-order Edgeworth correction of the central limit theorem (Zheng et al. 2020).

    An approximation, not a bound. `null` and `alternative` are the first four cumulants of the total log-likelihood
    ratio under P and under Q.
    """

    null: tuple[float, float, float, float]
    alternative: tuple[float, float, float, float]

    note = "Edgeworth expansion of second order (Zheng et al. 2020): an approximation, not a guarantee."

    def tradeoff(self, alpha: ArrayLike) -> Array:
        """F_Q(F_P^-1(1 - alpha)), both distribution functions expanded."""
        levels = np.asarray(alpha, dtype=np.float64)
        mean, variance = self.null[:2]
        loss = mean + math.sqrt(variance) * np.linspace(-9, 9, 3601)
        type_one = np.maximum.accumulate(_tail(self.null, loss)[::-1])
        type_two = np.minimum.accumulate((1 - _tail(self.alternative, loss))[::-1])
        inner = np.interp(levels, type_one, type_two, left=1.0, right=0.0)
        return np.clip(inner, 0.0, 1 - levels)

    def delta(self, epsilon: float) -> float:
        """The larger of the two directions' E[(1 - e^(epsilon - loss))_+] = integral of e^-y Pr[loss > epsilon + y] dy.

        Only the distribution under which the loss is large enters: the other's tail there is beyond any expansion.
        """
        flipped = tuple((-1) ** (i + 1) * c for i, c in enumerate(self.null))
        y, weights = _panels(0.0, 40.0, 60)
        directions = (self.alternative, (flipped[0], flipped[1], flipped[2], flipped[3]))
        return max(float((weights * np.exp(-y)) @ _tail(cumulants, epsilon + y)) for cumulants in directions)

    def epsilon(self, delta: float) -> float:
        """The approximate epsilon at delta."""
        return _solve(self.delta, delta)


def edgeworth_poisson(rate: float, noise: float, steps: float) -> Edgeworth:
    """The expansion for T Poisson-subsampled Gaussian steps: cumulants of one step, times T."""
    return edgeworth([(poisson_step_moments(rate, noise), steps)])


def edgeworth(steps: Iterable[tuple[tuple[LossMoments, LossMoments], float]]) -> Edgeworth:
    """The expansion for a list of (moments under P and Q, times)."""
    listed = list(steps)

    def total(side: int) -> tuple[float, float, float, float]:
        rows = [np.array(_cumulants(moments[side])) * times for moments, times in listed]
        first, second, third, fourth = np.sum(rows, axis=0).tolist()
        return first, second, third, fourth

    null, alternative = total(0), total(1)
    if not min(null[1], alternative[1]) > 0:
        raise ValueError("The Edgeworth expansion needs steps that aren't perfectly private.")
    return Edgeworth(null, alternative)


def _cumulants(moments: LossMoments) -> tuple[float, float, float, float]:
    return moments.mean, moments.variance, moments.third, moments.fourth - 3 * moments.variance**2


def _tail(cumulants: tuple[float, float, float, float], loss: Array) -> Array:
    """Pr[loss exceeds] = Phi(-u) + phi(u) (k3/6 He_2(u) + k4/24 He_3(u) + k3^2/72 He_5(u)), k standardised."""
    mean, variance, third, fourth = cumulants
    u = (loss - mean) / math.sqrt(variance)
    skew, excess = third / variance**1.5, fourth / variance**2
    second, cubic, fifth = u**2 - 1, u**3 - 3 * u, u**5 - 10 * u**3 + 15 * u
    correction = skew / 6 * second + excess / 24 * cubic + skew**2 / 72 * fifth
    return np.asarray(np.clip(ndtr(-u) + _density(u) * correction, 0.0, 1.0))


# Helpers


def _solve(delta_of: Callable[[float], float], delta: float) -> float:
    """The epsilon where a falling delta(epsilon) meets delta."""
    if not 0 < delta <= 1:
        raise ValueError(f"delta must be positive and at most 1, got {delta}.")
    if delta_of(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high) > delta:
        high *= 2
    return bracketed_root(lambda e: delta_of(e) - delta, 0.0, high, absolute=1e-12)


def _panels(low: float, high: float, count: int) -> tuple[Array, Array]:
    """Nodes and weights of composite Gauss-Legendre on [low, high]."""
    edges = np.linspace(low, high, count + 1)
    half = 0.5 * np.diff(edges)[:, None]
    return (edges[:-1, None] + half * (_NODES + 1)).ravel(), (half * _WEIGHTS).ravel()


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def _repeated(steps: Iterable[Repeated]) -> list[Repeated]:
    listed = list(steps)
    if not all(times >= 0 for _, times in listed):
        raise ValueError("Steps can't be repeated a negative number of times.")
    return listed


def _check_run(rate: float, noise: float, steps: float) -> None:
    if not 0 <= rate <= 1 or not 0 < noise < math.inf or not 0 < steps < math.inf:
        raise ValueError(f"Needs 0 <= rate <= 1, noise > 0, steps > 0, got {rate}, {noise}, {steps}.")
