"""Log moments of mechanisms: alpha(lambda) = log E[exp(lambda c)], c the privacy loss, in the worse direction.

In closed form for Gaussian, Laplace and pure mechanisms; for the Poisson-subsampled Gaussian by integration at any real
order, by the binomial theorem at whole ones, and by the asymptotic formulas of Abadi et al. 2016 in their domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp

Array = NDArray[np.float64]
LogMoment = Callable[[Array], Array]

_NEAR: Array = np.arange(-12.0, 13.0) / 4
_REACHES: Array = np.asarray(4.0 * 1.3 ** np.arange(36), dtype=np.float64)


def gaussian_moment(noise: float) -> LogMoment:
    """The Gaussian mechanism of standard deviation `noise` at sensitivity 1: lambda (lambda + 1) / (2 noise^2)."""
    _check(noise=noise)
    return lambda orders: orders * (orders + 1) / (2 * noise**2)


def laplace_moment(scale: float) -> LogMoment:
    """The Laplace mechanism of scale b at sensitivity 1 (Mironov 2017, Proposition 6).

    alpha = log((l + 1)/(2l + 1) e^(l/b) + l/(2l + 1) e^(-(l + 1)/b)) at l = lambda.
    """
    _check(scale=scale)

    def moment(orders: Array) -> Array:
        high = np.log((orders + 1) / (2 * orders + 1)) + orders / scale
        low = np.log(orders / (2 * orders + 1)) - (orders + 1) / scale
        return np.maximum(np.logaddexp(high, low), 0.0)

    return moment


def pure_moment(epsilon: float) -> LogMoment:
    """The largest log moment an epsilon-DP mechanism can have, that of randomised response.

    alpha = log((e^((l + 1) epsilon) + e^(-l epsilon)) / (1 + e^epsilon)) at l = lambda. Lemma C.1 of
    Abadi et al. 2016 (`pure_moment_lemma_c1`) is above it everywhere.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be non-negative, got {epsilon}.")
    return lambda orders: np.maximum(
        np.logaddexp((orders + 1) * epsilon, -orders * epsilon) - np.logaddexp(0, epsilon), 0.0
    )


def pure_moment_lemma_c1(epsilon: float) -> LogMoment:
    """Lemma C.1 of Abadi et al. 2016: alpha <= lambda epsilon (e^epsilon - 1) + lambda^2 epsilon^2 e^(2 epsilon) / 2.

    Right, and loose: Hoeffding's lemma on the range [-epsilon, epsilon] has epsilon^2/2 where it has
    epsilon^2 e^(2 epsilon)/2, and above epsilon = log 2 it exceeds the trivial lambda epsilon at every lambda.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be non-negative, got {epsilon}.")
    return lambda orders: orders * epsilon * math.expm1(epsilon) + (orders * epsilon * math.exp(epsilon)) ** 2 / 2


def renyi_moment(renyi_orders: ArrayLike, divergences: ArrayLike) -> LogMoment:
    """A published curve of Renyi guarantees (order > 1, divergence) as log moments at every lambda.

    alpha(lambda) is convex and alpha(0) = 0, so the chord between two given orders, or from the origin to the first,
    is an upper bound; beyond the last order nothing is promised and the moment is infinite.
    """
    a, d = np.asarray(renyi_orders, dtype=np.float64), np.asarray(divergences, dtype=np.float64)
    if a.shape != d.shape or a.ndim != 1 or not (np.all(a > 1) and np.all(np.diff(a) > 0) and np.all(d >= 0)):
        raise ValueError("A Renyi curve needs ascending orders above 1 and as many non-negative divergences.")
    knots, values = np.append(0.0, a - 1), np.append(0.0, (a - 1) * d)
    return lambda orders: np.interp(orders, knots, values, right=math.inf)


def subsampled_gaussian_moment(rate: float, noise: float) -> LogMoment:
    """`log_moment` of the Poisson-subsampled Gaussian as a curve."""
    _check_rate(rate)
    _check(noise=noise)
    return lambda orders: log_moment(rate, noise, orders)


def log_moment(rate: float, noise: float, orders: ArrayLike) -> Array:
    """alpha(lambda) = log max(E1, E2) of Eqs. (3), (4) of Abadi et al. 2016, at any real lambda > 0, by integration.

    With g = mu/mu_0 = 1 - q + q exp((2z - 1)/(2 sigma^2)): E2 = E[g^(lambda + 1)], E1 = E[g^-lambda], both under
    mu_0 = N(0, sigma^2). As E[g] = 1, with l = log g and r(y) = e^y - 1 - y >= 0,

        E2 - 1 = E[e^l (r(lambda l) + lambda r(-l))]    and    E1 - 1 = E[r(-lambda l) + lambda r(l)],

    sums of positive terms: nothing cancels at small rates, and logarithms carry the large orders. Relative
    accuracy of alpha about 1e-12 for q from 1e-9 to 1, sigma from 0.1 to 1e4, lambda up to 1e5.
    """
    _check_rate(rate)
    _check(noise=noise)
    points = np.asarray(orders, dtype=np.float64)
    if not np.all(points > 0):
        raise ValueError("Orders lambda must be positive.")
    if rate == 0:
        return np.zeros_like(points)
    if rate == 1:
        return gaussian_moment(noise)(points)
    values = [max(*_log_excess(rate, noise, float(order))) for order in points.ravel()]
    return np.asarray(np.logaddexp(0.0, np.array(values))).reshape(points.shape)


def log_ratio(rate: float, shift: float, x: Array) -> Array:
    """log(1 - q + q exp(shift x - shift^2/2)), the log-likelihood ratio of a subsampled Gaussian step, at any x.

    With full relative accuracy where the ratio is close to 1, and without overflow where it is large.
    """
    exponent = shift * x - shift * shift / 2
    if rate == 1:
        return exponent
    close = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    return np.where(exponent < 1.0, close, np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _log_excess(rate: float, noise: float, order: float) -> tuple[float, float]:
    """log(E1 - 1) and log(E2 - 1), by the trapezoid rule on each integrand's own stretch of the line."""
    s = 1 / noise

    def first(x: Array) -> Array:
        ratio = log_ratio(rate, s, x)
        return np.logaddexp(log_remainder(-order * ratio), math.log(order) + log_remainder(ratio)) - x * x / 2

    def second(x: Array) -> Array:
        ratio = log_ratio(rate, s, x)
        inner = np.logaddexp(log_remainder(order * ratio), math.log(order) + log_remainder(-ratio))
        return ratio + inner - x * x / 2

    # The trapezoid rule errs by exp(-2 pi d / step), d <= pi sigma the distance to the zeros of g off the real line.
    step = min(0.2, 0.4 * noise)
    modes = _modes(rate, s, order + 1)
    return (
        _log_integral(first, [0.0, -s, -order * s, *(-m for m in modes)], step),
        _log_integral(second, [0.0, s, 2 * s, *modes], step),
    )


def _modes(rate: float, s: float, power: float) -> list[float]:
    """Where x -> g(x)^power exp(-x^2/2) peaks: the roots of x = power s w(x), w the logistic weight of g's second part.

    The right side is sigmoid, so there are one or three roots; the outer ones are the peaks.
    """
    logit = math.log(rate) - math.log1p(-rate)

    def gap(x: float) -> float:
        argument = s * x - s * s / 2 + logit
        weight = 1 / (1 + math.exp(-argument)) if argument > -700 else 0.0
        return x - power * s * weight

    steepness, top = power * s * s, power * s
    if steepness <= 4:
        return [_root(gap, 0.0, top)]
    turn = math.log((1 + math.sqrt(1 - 4 / steepness)) / (1 - math.sqrt(1 - 4 / steepness)))
    inner, outer = (min(max((sign * turn - logit) / s + s / 2, 0.0), top) for sign in (-1, 1))
    return [_root(gap, 0.0, inner), _root(gap, outer, top)]


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Bisection for an increasing function, ending at an end of the interval where there is no root."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return 0.5 * (low + high)


def _log_integral(log_density: Callable[[Array], Array], centres: Sequence[float], step: float) -> float:
    """log of the integral of exp(log_density) / sqrt(2 pi), whose mass lies around the given centres."""
    middle = np.array(centres)[:, None]
    values = log_density((middle + np.concatenate([-_REACHES[::-1], _NEAR, _REACHES])).ravel())
    left, near, right = np.split(values.reshape(len(centres), -1), [len(_REACHES), -len(_REACHES)], axis=1)
    floor = float(near.max()) - 45
    counted = near.max(axis=1) > floor
    # The first reach at which the density has fallen below the floor, on either side of every centre that counts.
    down = _REACHES[np.argmax(left[counted, ::-1] < floor, axis=1)]
    up = _REACHES[np.argmax(right[counted] < floor, axis=1)]
    start, stop = float(np.min(middle[counted, 0] - down)), float(np.max(middle[counted, 0] + up))
    points = np.arange(start, stop + step, step)
    return float(logsumexp(log_density(points))) + math.log(step) - 0.5 * math.log(2 * math.pi)


def log_remainder(y: Array) -> Array:
    """log(e^y - 1 - y), by series near 0 and without overflow anywhere."""
    small = np.abs(y) < 0.5
    near = np.where(small, y, 0.0)
    series = np.ones_like(near)
    for k in range(16, 2, -1):
        series = 1 + series * near / k
    far = np.where(small, 1.0, y)
    with np.errstate(divide="ignore", over="ignore"):
        rising = np.where(far > 0, far, 1.0)
        above = rising + np.log1p(-(1 + rising) * np.exp(-rising))
        falling = np.where(far > 0, -1.0, far)
        below = np.log(np.expm1(falling) - falling)
        close = 2 * np.log(np.abs(near)) - math.log(2) + np.log(series)
    return np.where(small, close, np.where(far > 0, above, below))


def log_moment_binomial(rate: float, noise: float, orders: ArrayLike) -> Array:
    """log E2 at whole lambda = l, by the binomial theorem.

    E2 = sum over k of C(l + 1, k) (1 - q)^(l + 1 - k) q^k e^(k (k - 1) / (2 sigma^2)). Summed as E2 - 1, whose terms
    e^(...) - 1 are all non-negative.
    """
    _check_rate(rate)
    _check(noise=noise)
    points = np.asarray(orders, dtype=np.float64)
    if not np.all((points >= 1) & (points == np.round(points))):
        raise ValueError("The binomial form needs whole orders lambda >= 1: use `log_moment` for others.")
    if rate in (0, 1):
        return log_moment(rate, noise, points)

    def one(order: float) -> float:
        k = np.arange(2, order + 2)
        n = order + 1
        exponent = k * (k - 1) / (2 * noise**2)
        log_gain = np.where(
            exponent < 1, np.log(np.expm1(np.minimum(exponent, 1))), exponent + np.log1p(-np.exp(-exponent))
        )
        weights = (
            gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * math.log(rate) + (n - k) * math.log1p(-rate)
        )
        return float(np.logaddexp(0.0, logsumexp(weights + log_gain)))

    return np.array([one(float(order)) for order in points.ravel()]).reshape(points.shape)


def log_moment_leading_term(rate: float, noise: float, orders: ArrayLike) -> Array:
    """q^2 l (l + 1) / ((1 - q) sigma^2), Lemma 3 of Abadi et al. 2016 without its O(q^3 l^3 / sigma^3).

    An asymptotic formula: the lemma promises nothing once the O() is dropped. Inside the lemma's domain, which is
    enforced (sigma >= 1, q < 1/(16 sigma), l <= sigma^2 log(1/(q sigma))), it exceeds the moment wherever we looked.
    """
    _check_rate(rate)
    _check(noise=noise)
    points = np.asarray(orders, dtype=np.float64)
    if noise < 1 or not 0 < rate < 1 / (16 * noise):
        raise ValueError(f"Lemma 3 needs noise >= 1 and 0 < rate < 1/(16 noise), got noise={noise}, rate={rate}.")
    limit = noise**2 * math.log(1 / (rate * noise))
    if not np.all((points >= 1) & (points <= limit)):
        raise ValueError(f"Lemma 3 needs orders between 1 and noise^2 log(1/(rate noise)) = {limit:.4g}.")
    return rate**2 * points * (points + 1) / ((1 - rate) * noise**2)


def theorem_1_noise(rate: float, steps: float, epsilon: float, delta: float, constant: float = 2.0) -> float:
    """The noise c2 q sqrt(T log(1/delta)) / epsilon of Theorem 1 of Abadi et al. 2016, which leaves c2 open.

    Following their proof with alpha(l) <= T q^2 l^2 / sigma^2 gives c2 = 2. That inequality isn't Lemma 3 (which has
    l (l + 1) / (1 - q)), and Lemma 3's domain must hold: an order of magnitude, to be checked with an accountant.
    """
    _check_rate(rate)
    _check(steps=steps, epsilon=epsilon, constant=constant)
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}.")
    return constant * rate * math.sqrt(steps * math.log(1 / delta)) / epsilon


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}.")


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"A sampling rate lies between 0 and 1, got {rate}.")
