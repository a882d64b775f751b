"""What a trade-off function says in other currencies: epsilon and delta, divergences, moments of the loss.

A trade-off function f = T(P, Q) is the whole story of telling P from Q; every divergence is one number read off it. The
bridge is the substitution x = type I error of the likelihood ratio test: |f'(x)| is the likelihood ratio dQ/dP at the
test's threshold, and x is uniform under P, so E_P[h(log dQ/dP)] = integral over [0, 1] of h(log |f'(x)|) dx
(Dong, Roth, Su 2022, Appendix B). The direction follows: D(P || Q) is read off f and D(Q || P) off f.inverse().

The Gaussian case is closed form and is written without cancellation, because delta = 1e-300 is a fair question.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, log_ndtr, ndtri_exp

from hush.accounting.roots import bracketed_root

if TYPE_CHECKING:
    from hush.accounting.representations import Array, TradeoffFunction

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(80)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_LARGEST_EXPONENT = 700.0  # e^epsilon stays within the floating-point range
_SMALL = 1e-3  # divergences below lose digits if their terms are added as they are


def delta(f: TradeoffFunction, epsilon: ArrayLike) -> Array:
    """The delta(epsilon) = 1 + f*(-e^epsilon) that f-DP implies (Dong, Roth, Su 2022, Proposition 6).

    The proposition is for symmetric f. For any f = T(P, Q) this is the hockey-stick divergence
    sup_E Q(E) - e^epsilon P(E), one direction only: use `max(delta(f, e), delta(f.inverse(), e))` for both.
    """
    return f.hockey_stick(np.asarray(epsilon, dtype=np.float64))


def epsilon(f: TradeoffFunction, delta_target: float) -> float:
    """The smallest epsilon >= 0 with delta(f, epsilon) <= delta_target; infinite where no epsilon will do.

    A function without a closed form has its delta to an absolute 1e-15, so ask of it no delta below 1e-12.
    """
    _check_delta(delta_target)
    if f.mu is not None:
        return gaussian_epsilon(f.mu, delta_target)

    def excess(e: float) -> float:
        return float(delta(f, e)) - delta_target

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        if high == _LARGEST_EXPONENT:
            return math.inf
        high = min(2 * high, _LARGEST_EXPONENT)
    return bracketed_root(excess, 0.0, high, absolute=1e-13)


def kl(f: TradeoffFunction) -> float:
    """KL(P || Q) = -integral of log|f'| (Dong, Roth, Su 2022, Section 3.2).

    Where it is small its terms nearly cancel.  With l = log|f'|, E_P[e^l] = f(0), so it is the integral of e^l - 1 - l,
    which is positive, and 1 - f(0).
    """
    if f.mu is not None:
        return f.mu**2 / 2
    plain = f.expectation(lambda ratio: -ratio)
    return plain if not plain < _SMALL else f.expectation(_remainder) + (1 - float(f(0.0)))


def _remainder(ratio: Array) -> Array:
    """e^l - 1 - l, also where l is tiny."""
    series = 0.5 * ratio**2 * (1 + ratio / 3 * (1 + ratio / 4 * (1 + ratio / 5)))
    return np.where(np.abs(ratio) < 1e-3, series, np.expm1(ratio) - ratio)


def kappa2(f: TradeoffFunction) -> float:
    """The second moment of the log-likelihood ratio under P, integral of log^2|f'|."""
    return f.mu**2 * (1 + f.mu**2 / 4) if f.mu is not None else f.expectation(np.square)


def kappa3(f: TradeoffFunction) -> float:
    """The absolute third moment of the log-likelihood ratio under P, integral of |log|f'||^3."""
    if f.mu is not None:  # of a normal variable with mean -mu^2/2 and deviation mu
        t = f.mu / 2
        density = math.exp(-0.5 * t * t - _LOG_ROOT_TWO_PI)
        return f.mu**3 * (t * (t * t + 3) * math.erf(t / math.sqrt(2)) + 2 * (t * t + 2) * density)
    return f.expectation(lambda ratio: np.abs(ratio) ** 3, bends=(0.0,))


def kappa3_bar(f: TradeoffFunction) -> float:
    """The absolute third *central* moment, integral of |log|f'| + kl(f)|^3."""
    if f.mu is not None:
        return f.mu**3 * math.sqrt(8 / math.pi)
    mean = kl(f)
    return f.expectation(lambda ratio: np.abs(ratio + mean) ** 3, bends=(-mean,)) if math.isfinite(mean) else math.inf


def chi_square(f: TradeoffFunction) -> float:
    """E_P[(dQ/dP - 1)^2] = integral of (|f'| - 1)^2 (Bu et al. 2019, Theorem 6); infinite when f(0) < 1."""
    if f.mu is not None:
        return math.expm1(f.mu**2) if f.mu**2 < _LARGEST_EXPONENT else math.inf
    return math.inf if f(0.0) < 1 else f.expectation(lambda ratio: np.expm1(-np.abs(ratio)) ** 2, growth=2.0)


def chi_square_plus(f: TradeoffFunction) -> float:
    """The half of chi-square where Q is the likelier, integral of (|f'| - 1)_+^2 (Dong, Roth, Su 2022, Theorem 11)."""
    if f.mu is not None and f.mu > 8:  # Lemma 3, but for less than 1e-25 of it
        return math.exp(f.mu**2) if f.mu**2 < _LARGEST_EXPONENT else math.inf
    return (
        math.inf
        if f(0.0) < 1
        else f.expectation(lambda ratio: np.expm1(-np.maximum(ratio, 0.0)) ** 2, bends=(0.0,), growth=2.0)
    )


def total_variation(f: TradeoffFunction) -> float:
    """sup_E |P(E) - Q(E)| = 1 - min over alpha of alpha + f(alpha), which is delta at epsilon = 0."""
    return float(delta(f, 0.0))


def renyi(f: TradeoffFunction, order: float) -> float:
    """The Renyi divergence D_order(Q || P) = log(integral of |f'|^order) / (order - 1); at order 1 it is KL(Q || P).

    Equation (11) of Bu et al. 2019 has the exponent one too small (their Lemma B.5 has it right): for G_mu the integral
    must give order * mu^2 / 2, and does with this exponent only.
    """
    if order <= 0:
        raise ValueError(f"The Renyi order must be positive, got {order}.")
    if f.mu is not None:
        return order * f.mu**2 / 2
    if order == 1:
        return kl(f.inverse())
    if order > 1 and f(0.0) < 1:
        return math.inf
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        plain = f.expectation(lambda ratio: np.exp(order * np.minimum(ratio, 0.0)), growth=order)
        if abs(plain - 1) < _SMALL:  # as in `kl`
            gap = f.expectation(lambda ratio: _remainder(order * ratio) - order * _remainder(ratio))
            gap -= order * (1 - float(f(0.0)))
            if math.isfinite(gap):
                return max(math.log1p(gap) / (order - 1), 0.0)
        return float(np.log(plain)) / (order - 1)


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """log delta(epsilon) of mu-GDP, to full relative accuracy however small delta is.

    Dong, Roth, Su 2022, Corollary 1: delta = Phi(-a) - e^epsilon Phi(-b) with a = epsilon/mu - mu/2, b = a + mu.
    As e^epsilon phi(b) = phi(a), this is phi(a) (R(a) - R(b)) with Mills' ratio R(x) = Phi(-x)/phi(x), and
    R(a) - R(b) = integral over t > 0 of exp(-a t - t^2/2) (1 - exp(-mu t)) dt, where nothing cancels.
    """
    if not mu >= 0 or not epsilon >= 0:
        raise ValueError(f"mu and epsilon must be non-negative, got mu={mu}, epsilon={epsilon}.")
    if mu == 0 or epsilon == math.inf:
        return -math.inf
    if mu == math.inf:
        return 0.0
    return _log_delta_at(epsilon / mu, mu)


def _log_delta_at(scaled: float, mu: float) -> float:
    """`gaussian_log_delta` at epsilon = mu * scaled, the form the root finder can use at any mu."""
    a, b = scaled - mu / 2, scaled + mu / 2
    if a < -1:  # then b > 1: both tails are small against the 1 they are taken from
        return math.log1p(-math.exp(log_ndtr(a)) - math.exp(-0.5 * a * a - _LOG_ROOT_TWO_PI) * _mills(b))
    difference = _mills(a) - _mills(b)
    if difference < 0.5 * _mills(a):
        length = 90 / (a + math.sqrt(a * a + 90))  # beyond it exp(-a t - t^2/2) is below e^-45
        t = 0.5 * length * (_NODES + 1)
        integrand = np.exp(-a * t - 0.5 * t * t) * -np.expm1(-mu * t)
        difference = 0.5 * length * float(_WEIGHTS @ integrand)
    return -0.5 * a * a - _LOG_ROOT_TWO_PI + math.log(difference)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon with mu-GDP implying (epsilon, delta)-DP: the inverse of Corollary 1.

    Zero where delta is at least the total variation 2 Phi(mu/2) - 1; infinite at delta = 0. Checked for mu from 1e-10
    to 1e5 and delta from 1e-300 to 1.
    """
    _check_delta(delta)
    if not mu >= 0:
        raise ValueError(f"mu must be non-negative, got {mu}.")
    if mu == 0 or delta == 1:
        return 0.0
    if delta == 0 or mu == math.inf:
        return math.inf
    target = math.log(delta)
    if _log_delta_at(0.0, mu) <= target:
        return 0.0
    # delta <= Phi(-a) gives the bracket: at a = -Phi^-1(delta) delta is already met.
    high = max(mu / 2 - float(ndtri_exp(target)), 0.0) * (1 + 1e-12) + 1e-300
    root = bracketed_root(lambda scaled: _log_delta_at(scaled, mu) - target, 0.0, high, relative=4e-16)
    return mu * float(root)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu such that mu-GDP implies (epsilon, delta)-DP: Corollary 1 solved for mu."""
    _check_delta(delta)
    if not 0 <= epsilon < math.inf or delta in (0, 1):
        raise ValueError(f"mu needs 0 <= epsilon < inf and 0 < delta < 1, got epsilon={epsilon}, delta={delta}.")
    target, low, high = math.log(delta), 0.0, 1.0
    while gaussian_log_delta(high, epsilon) < target:
        low, high = high, 2 * high
    while low == 0.0 and gaussian_log_delta(high / 2, epsilon) >= target:
        high /= 2
    low = max(low, high / 2)
    return float(bracketed_root(lambda mu: gaussian_log_delta(mu, epsilon) - target, low, high, relative=1e-14))


def _mills(x: float) -> float:
    """Mills' ratio Phi(-x) / phi(x)."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _check_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}.")
