"""The moments accountant (Abadi et al. 2016), as in the paper and with the conversion of today.

The log moment of a mechanism at lambda > 0 is alpha(lambda) = log E[exp(lambda c)], with c the privacy loss, the larger
of the two directions: lambda times the Renyi divergence of order lambda + 1. Log moments add under composition (their
Theorem 2.1), and any one of them gives a pair (epsilon, delta) (Theorem 2.2). A mechanism is here just a function from
an array of lambdas to an array of log moments, so whatever has moments composes: the subsampled Gaussian, a Laplace
mechanism, a pure-DP guarantee, a published Renyi curve.

    >>> round(moments_epsilon(0.01, 4.0, 10_000, 1e-5, orders=INTEGER_ORDERS, conversion=TAIL_BOUND), 4)
    1.2586

The result is an upper bound on epsilon, and not a tight one: `contour` has the certified answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.conversions import (
    IMPROVED,
    TAIL_BOUND,
    Conversion,
    curve_delta,
    curve_epsilon,
    curve_log_delta,
    curve_log_deltas,
    delta_from_moments,
    epsilon_from_moments,
)
from hush.accounting.log_moments import (
    Array,
    LogMoment,
    gaussian_moment,
    laplace_moment,
    log_moment,
    log_moment_binomial,
    log_moment_leading_term,
    log_ratio,
    log_remainder,
    pure_moment,
    pure_moment_lemma_c1,
    renyi_moment,
    subsampled_gaussian_moment,
    theorem_1_noise,
)

__all__ = [
    "FOOTNOTE_13_ORDERS",
    "IMPROVED",
    "INTEGER_ORDERS",
    "TAIL_BOUND",
    "TUTORIAL_ORDERS",
    "Array",
    "Conversion",
    "LogMoment",
    "Moments",
    "compose",
    "curve_delta",
    "curve_epsilon",
    "curve_log_delta",
    "curve_log_deltas",
    "delta_from_moments",
    "epsilon_from_moments",
    "gaussian_moment",
    "laplace_moment",
    "log_moment",
    "log_moment_binomial",
    "log_moment_leading_term",
    "log_ratio",
    "log_remainder",
    "moments_delta",
    "moments_epsilon",
    "pure_moment",
    "pure_moment_lemma_c1",
    "renyi_moment",
    "subsampled_gaussian_moment",
    "theorem_1_noise",
]

INTEGER_ORDERS: Array = np.arange(1.0, 33.0)
"""The lambdas of Abadi et al. 2016: whole numbers up to 32."""

FOOTNOTE_13_ORDERS: Array = (
    np.concatenate([[1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5], np.arange(5.0, 65.0), [128.0, 256.0, 512.0]])
    - 1
)
"""Footnote 13 of Bu et al. 2019. It lists Renyi orders, lambda + 1: read as lambdas, Table 1 ends in 41, not 32."""

TUTORIAL_ORDERS: Array = np.array([*(k / 10 for k in range(1, 100)), *range(11, 63)], dtype=np.float64)
"""Renyi orders 1.1, 1.2, ..., 10.9, 12, ..., 63, those of the tensorflow/privacy tutorial.

With these, and not with footnote 13, the moments column of Bu et al. 2019 comes out to the printed digit."""


def compose(parts: Iterable[tuple[LogMoment, float]]) -> LogMoment:
    """The sum of log moments, each times how often its mechanism runs (Abadi et al. 2016, Theorem 2.1)."""
    listed = list(parts)

    def moment(orders: Array) -> Array:
        return sum((times * curve(orders) for curve, times in listed), start=np.zeros_like(orders))

    return moment


@dataclass(frozen=True)
class Moments:
    """A composition's log moments, to be asked for upper bounds; over all real lambdas unless orders are given."""

    log_moment: LogMoment

    def epsilon(self, delta: float, orders: ArrayLike | None = None, conversion: Conversion = IMPROVED) -> float:
        """The smallest epsilon proved at delta."""
        if orders is None:
            return curve_epsilon(self.log_moment, delta, conversion)
        points = np.asarray(orders, dtype=np.float64)
        return epsilon_from_moments(points, self.log_moment(points), delta, conversion)

    def delta(self, epsilon: float, orders: ArrayLike | None = None, conversion: Conversion = IMPROVED) -> float:
        """The smallest delta proved at epsilon."""
        if orders is None:
            return curve_delta(self.log_moment, epsilon, conversion)
        points = np.asarray(orders, dtype=np.float64)
        return delta_from_moments(points, self.log_moment(points), epsilon, conversion)


def moments_epsilon(
    rate: float,
    noise: float,
    steps: float,
    delta: float,
    orders: ArrayLike | None = None,
    conversion: Conversion = IMPROVED,
) -> float:
    """epsilon of `steps` Poisson-subsampled Gaussian steps by the moments accountant."""
    return _repeated_steps(rate, noise, steps).epsilon(delta, orders, conversion)


def moments_delta(
    rate: float,
    noise: float,
    steps: float,
    epsilon: float,
    orders: ArrayLike | None = None,
    conversion: Conversion = IMPROVED,
) -> float:
    """delta of `steps` Poisson-subsampled Gaussian steps by the moments accountant."""
    return _repeated_steps(rate, noise, steps).delta(epsilon, orders, conversion)


def _repeated_steps(rate: float, noise: float, steps: float) -> Moments:
    return Moments(compose([(subsampled_gaussian_moment(rate, noise), steps)]))
