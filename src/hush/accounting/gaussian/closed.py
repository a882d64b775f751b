"""Certified curves in closed form: the Gaussian mechanism, and a single step of it on a Poisson sample."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.contours.crossing import Curve
from hush.accounting.contours.line import complements
from hush.accounting.gaussian.contour import REMOVE
from hush.accounting.gaussian.transform import Array, Step

MORE = 64.0
"""What `short_of_a_hit` is less: more than the log of any difference of two numbers, as a share of them."""


def gaussian_curve(squared: float) -> Curve:
    mu = float(np.sqrt(squared))

    def curve(epsilons: Array) -> tuple[Array, Array]:
        if mu == 0:
            value = np.where(epsilons < 0, np.log(-np.expm1(np.minimum(epsilons, -1e-300))), -np.inf)
            return value, value
        value = _gaussian_log_delta(mu, epsilons)
        size = log_ndtr(0.5 * mu - epsilons / mu)
        margin = _margin(size, value, np.abs(epsilons))
        lower, upper = _sharper(value, margin, _gaussian_log_complement(mu, epsilons), np.abs(epsilons))
        # far out the difference has no digits, but delta is at most the first of its terms
        return lower, np.minimum(upper, size + 0.5 * _margin(size, size, np.abs(epsilons)))

    return curve


def single_curve(step: Step, direction: int) -> Curve:
    mu = 1 / step.noise

    def curve(epsilons: Array) -> tuple[Array, Array]:
        value = single_step_log_delta(step, direction, epsilons)
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = inner_loss(step.rate, direction * epsilons)
            size = log_ndtr(0.5 * mu - direction * inner / mu)
            doubt = inner_doubt(step.rate, direction * epsilons, inner)
            margin = _margin(size, value - np.log(step.rate), doubt)
        margin = np.where(np.isnan(margin), 0.0, margin)
        lower, upper = _sharper(value, margin, single_step_log_complement(step, direction, epsilons), doubt)
        low, high = _plateau(step, direction, epsilons, inner, doubt)
        return np.fmax(lower, low), np.fmin(upper, high)

    return curve


def short_of_a_hit(step: Step) -> Curve:
    """Minus the log of 1 - delta/p, one record removed, less a number: what a hit doesn't tell, two Gaussian tails.

    Where delta is next to p, p - delta has all digits, and log delta has none that tell epsilons apart.  (The number
    makes it the size of a log delta that isn't near 1, which roots are looked for of.)
    """
    mu = 1 / step.noise

    def curve(epsilons: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = inner_loss(step.rate, epsilons)
            low, high = _within(_gaussian_log_complement(mu, inner), inner_doubt(step.rate, epsilons, inner))
        return -high - MORE, -low - MORE

    return curve


def single_step_log_delta(step: Step, direction: int, epsilons: Array) -> Array:
    """delta of one subsampled Gaussian step, in closed form: p times the Gaussian's own, at the inner epsilon.

    remove: delta(eps) = p (P1(u > t) - e^t Q(u > t)) with e^t = 1 + (e^eps - 1)/p.
    add:    delta(eps) = Q(u < t) - e^eps (...) = p e^(eps + t) ... with e^t = 1 + (e^-eps - 1)/p, 0 where that is <= 0.
    """
    mu = 1 / step.noise
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = inner_loss(step.rate, direction * epsilons)
        if direction == REMOVE:
            # log(Phi(a) - e^t Phi(b)) with a = mu/2 - t/mu, b = -mu/2 - t/mu
            return np.asarray(np.log(step.rate) + _gaussian_log_delta(mu, inner))
        # Q(u<t) - e^eps ((1-p) Q(u<t) + p P1(u<t)) = p e^eps (e^t Q(u<t) - P1(u<t)) = p e^(eps+t) delta_gauss(-t)
        value = np.log(step.rate) + epsilons + inner + _gaussian_log_delta(mu, -inner)
    return np.where(np.isnan(value), -np.inf, value)


def single_step_log_complement(step: Step, direction: int, epsilons: Array) -> Array:
    """log(1 - delta) of one subsampled Gaussian step, from positive terms.

    remove: 1 - p + p (1 - delta_gauss(t));  add: (1-p) e^eps + p e^(eps+t) (1 - delta_gauss(-t)).
    """
    mu = 1 / step.noise
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = inner_loss(step.rate, direction * epsilons)
        if direction == REMOVE:
            missed, hit = np.log1p(-step.rate), np.log(step.rate) + _gaussian_log_complement(mu, inner)
        else:
            missed = np.log1p(-step.rate) + epsilons
            hit = np.log(step.rate) + epsilons + inner + _gaussian_log_complement(mu, -inner)
        return np.where(np.isnan(inner), 0.0, np.logaddexp(missed, hit))


def _plateau(step: Step, direction: int, epsilons: Array, inner: Array, doubt: Array) -> tuple[Array, Array]:
    """The same as log p (add: + eps + t) and the log of 1 less two Gaussian tails: sharp where these are small.

    They are as good as in `_sharper`; a few functions and sums, 8 u each, of the logarithms that are added up.
    """
    mu = 1 / step.noise
    with np.errstate(invalid="ignore", divide="ignore"):
        tails = _gaussian_log_complement(mu, direction * inner)
        most = np.log(step.rate) + (0.0 if direction == REMOVE else epsilons + inner)
        low, high = complements(*_within(tails, doubt))
        sizes = 4 + abs(np.log(step.rate)) + np.abs(low) + (0.0 if direction == REMOVE else np.abs(epsilons) + doubt)
    return np.asarray(most + low - 8 * 2.0**-53 * sizes), np.asarray(most + high + 8 * 2.0**-53 * sizes)


def _within(tails: Array, argument: Array) -> tuple[Array, Array]:
    """Bounds on the log of a sum of two Gaussian tails."""
    doubt = 4e-13 + 2.0**-53 * 64 * (1 + np.abs(tails) + np.nan_to_num(argument))
    return tails - doubt, np.minimum(tails + doubt, 0.0)


def _gaussian_log_delta(mu: float, epsilon: Array) -> Array:
    """log(Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)), any sign of eps, no cancellation in the tail."""
    upper = log_ndtr(0.5 * mu - epsilon / mu)
    lower = epsilon + log_ndtr(-0.5 * mu - epsilon / mu)
    gap = lower - upper
    with np.errstate(divide="ignore"):
        return np.asarray(upper + np.log(-np.expm1(np.minimum(gap, -1e-300))))


def _gaussian_log_complement(mu: float, epsilon: Array) -> Array:
    """log(1 - delta) = log(Phi(eps/mu - mu/2) + e^eps Phi(-mu/2 - eps/mu)): both terms are positive."""
    return np.asarray(np.logaddexp(log_ndtr(epsilon / mu - 0.5 * mu), epsilon + log_ndtr(-0.5 * mu - epsilon / mu)))


def _sharper(value: Array, margin: Array, complement: Array, argument: Array) -> tuple[Array, Array]:
    """log delta within its margin, or, where delta is near 1, from log(1 - delta), a sum of two Gaussian tails."""
    lower, upper = value - margin, np.minimum(value + margin, 0.0)
    near = value > -0.7
    if not near.any():
        return lower, upper
    low, high = complements(*_within(complement, argument))
    return np.where(near, np.maximum(lower, low), lower), np.where(near, np.minimum(upper, high), upper)


def _margin(size: Array, value: Array, argument: Array) -> Array:
    """Rounding of log(e^size - something) = value: a few ulp of log_ndtr, and what the difference loses."""
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.exp(np.minimum(size - value, 40.0))
    return np.asarray(2.0**-53 * 64 * (1 + np.abs(size) + argument) * (1 + lost))


def inner_loss(rate: float, loss: Array) -> Array:
    """The inner loss u with log(1 - p + p e^u) = loss; NaN where no u gives so small a loss."""
    moderate = np.log1p(np.expm1(np.minimum(loss, 30.0)) / rate)
    large = loss - np.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, 30.0)))
    negative = np.log((np.exp(np.minimum(loss, 0.0)) - (1 - rate)) / rate)  # p > 1/2, where 1 - p is exact
    return np.where(loss > 30.0, large, np.where(loss < -0.7, negative, moderate))


def inner_doubt(rate: float, loss: Array, inner: Array) -> Array:
    """How many units of rounding `inner_loss` is off: e^u = (e^loss - 1 + p)/p loses digits where it is small."""
    size = np.where(
        loss < -0.7, np.exp(np.minimum(loss, 0.0)) * (1 + np.abs(loss)), np.abs(np.expm1(np.minimum(loss, 0.0)))
    )
    return np.asarray(np.abs(inner) + size / (rate * np.exp(np.minimum(inner, 700.0))))
