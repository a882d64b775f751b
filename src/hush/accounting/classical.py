"""Composition of (epsilon, delta) guarantees without looking inside the mechanisms: basic, strong, optimal.

These are what the moments accountant was compared with in 2016. Given only that each step is (epsilon, delta)-DP, the
optimal theorem (Kairouz, Oh, Viswanath 2017) is the last word; the others are kept because papers quote them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from hush.accounting.roots import bracketed_root

Guarantee = tuple[float, float]


def basic_composition(guarantees: Iterable[Guarantee]) -> Guarantee:
    """The epsilons and the deltas add (Dwork et al. 2006)."""
    listed = list(guarantees)
    for epsilon, delta in listed:
        _check(epsilon, delta)
    return sum(e for e, _ in listed), min(sum(d for _, d in listed), 1.0)


def amplified(epsilon: float, delta: float, rate: float) -> Guarantee:
    """Poisson sampling turns (epsilon, delta) into (log(1 + q (e^epsilon - 1)), q delta) (Ullman 2017)."""
    _check(epsilon, delta)
    if not 0 <= rate <= 1:
        raise ValueError(f"A sampling rate lies between 0 and 1, got {rate}.")
    if epsilon < 700:
        return math.log1p(rate * math.expm1(epsilon)), rate * delta
    with np.errstate(divide="ignore"):
        return float(np.logaddexp(np.log1p(-rate), np.log(rate) + epsilon)), rate * delta


def strong_composition(epsilon: float, delta: float, times: int, slack: float) -> Guarantee:
    """k-fold composition (Dwork, Rothblum, Vadhan 2010): epsilon sqrt(2 k log(1/slack)) + k epsilon (e^epsilon - 1).

    The delta is k delta + slack, with 0 < slack < 1 free to choose.
    """
    _check(epsilon, delta)
    _check_times(times)
    if not 0 < slack < 1:
        raise ValueError(f"The slack must lie strictly between 0 and 1, got {slack}.")
    gain = math.expm1(epsilon) if epsilon < 700 else math.inf
    total = epsilon * math.sqrt(2 * times * math.log(1 / slack)) + times * epsilon * gain
    return total, min(times * delta + slack, 1.0)


def strong_epsilon_of_subsampled_gaussian(rate: float, noise: float, times: int, delta: float) -> float:
    """The strong-composition curve of Figure 2 of Abadi et al. 2016, reproduced: a comparison, *not a valid bound*.

    Each step is taken to be (eps0, delta0) with sigma = sqrt(2 log(1.25/delta0)) / eps0, amplified to
    (q eps0, q delta0), composed by `strong_composition`; the split of delta is optimised. Two steps of this don't hold:
    the Gaussian formula needs eps0 < 1 (at the paper's q = 0.01, sigma = 4, delta = 1e-5 it is above 1.4), and
    amplification gives log(1 + q (e^eps0 - 1)), about twice q eps0 there.
    """
    if not 0 < rate <= 1 or not 0 < noise < math.inf or not 0 < delta < 1:
        raise ValueError(f"Needs 0 < rate <= 1, noise > 0, 0 < delta < 1, got {rate}, {noise}, {delta}.")
    _check_times(times)

    def total(share_logit: float) -> float:
        share = 1 / (1 + math.exp(-share_logit))
        step_delta = min(share * delta / (times * rate), 1.0)
        step_epsilon = math.sqrt(2 * math.log(1.25 / step_delta)) / noise
        return strong_composition(rate * step_epsilon, rate * step_delta, times, (1 - share) * delta)[0]

    from scipy.optimize import minimize_scalar

    return float(minimize_scalar(total, bounds=(-30, 30), method="bounded", options={"xatol": 1e-9}).fun)


def optimal_delta(epsilon: float, delta: float, times: int, total_epsilon: float) -> float:
    """The exact delta at `total_epsilon` of k mechanisms that are each (epsilon, delta)-DP (Kairouz et al. 2017).

    The worst case is randomised response beside a leak: with p = e^epsilon/(1 + e^epsilon) and B ~ Binomial(k, p),
    1 - (1 - delta)^k (1 - delta_k), delta_k = E_B[(1 - e^(total_epsilon - (2B - k) epsilon))_+]. At total_epsilon =
    (k - 2i) epsilon this is their Theorem 3.3; in between it interpolates as the trade-off curve does.
    """
    _check(epsilon, delta)
    _check_times(times)
    if not total_epsilon >= 0:
        raise ValueError(f"The total epsilon must be non-negative, got {total_epsilon}.")
    from scipy.stats import binom  # imports half of SciPy, so only where needed

    counts = np.arange(times + 1)
    losses = (2 * counts - times) * epsilon
    gain = -np.expm1(np.minimum(total_epsilon - losses, 0.0))
    pure = float(binom.pmf(counts, times, 1 / (1 + math.exp(-epsilon))) @ gain)
    if delta == 1:
        return 1.0
    kept = times * math.log1p(-delta)
    return -math.expm1(kept) + math.exp(kept) * pure


def optimal_epsilon(epsilon: float, delta: float, times: int, total_delta: float) -> float:
    """The smallest epsilon with `optimal_delta` at most `total_delta`; infinite where 1 - (1 - delta)^k exceeds it."""
    _check(0.0, total_delta)

    def excess(total: float) -> float:
        return optimal_delta(epsilon, delta, times, total) - total_delta

    if excess(0.0) <= 0:
        return 0.0
    top = times * epsilon
    if excess(top) > 0:
        return math.inf
    return bracketed_root(excess, 0.0, top, absolute=1e-14, relative=1e-14)


def _check(epsilon: float, delta: float) -> None:
    if not 0 <= epsilon < math.inf or not 0 <= delta <= 1:
        raise ValueError(f"A guarantee needs 0 <= epsilon < inf and 0 <= delta <= 1, got ({epsilon}, {delta}).")


def _check_times(times: int) -> None:
    if times < 1 or times != int(times):
        raise ValueError(f"The number of compositions must be a whole number, at least 1, got {times}.")
