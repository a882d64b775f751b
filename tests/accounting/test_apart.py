"""Groups of steps with bounded losses and others that have none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from hush.accounting import ADD_REMOVE, Gaussian, Guarantees, Laplace, RandomisedResponse
from hush.accounting.mechanisms import Mechanism


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("rest", [Guarantees.of(0.7, 1e-4) * 3, Gaussian(1.5)], ids=["promises", "Gaussian"])
def test_a_bounded_loss_adds_no_more_than_is_proved(rest: Mechanism, size: int) -> None:
    coin = RandomisedResponse(0.4, ADD_REMOVE)
    for extra in (0.01, 0.5, 1.0, 3.0):
        whole = (rest + coin).group(size).delta(0.4 * size + extra)
        assert whole.lower <= math.exp(0.4 * (size - 1)) * rest.group(size).delta(extra).upper


@pytest.mark.parametrize(
    ("inner", "size", "delta"),
    [
        (Gaussian(44.6923).poisson(1.31137e-06) * 120571 + Laplace(44.6923) * 3, 5, 1.3e-28),
        (Gaussian(2.55524).poisson(3.90691e-06) * 1886 + Laplace(2.55524) * 3, 5, 4.7e-20),
    ],
    ids=["tiny rate", "few losses"],
)
def test_a_little_beside_a_sure_loss_leaves_the_answer_narrow(inner: Mechanism, size: int, delta: float) -> None:
    found = inner.group(size).epsilon(delta)
    assert found.upper - found.lower <= 5e-3 * found.upper < math.inf


def test_a_bounded_loss_beyond_the_limit_decides_alone() -> None:
    found = (Gaussian(1.0).poisson(0.01) * 100 + Laplace(0.1) * 1000).group(50).epsilon(1e-5)
    assert (found.lower, found.upper) == (1e4, math.inf)


@pytest.mark.parametrize("size", [2, 5])
def test_several_plain_gaussians_beside_bounded_losses(size: int) -> None:
    both = Gaussian(4.0) * 2 + Laplace(30.0) * 2
    found = both.group(size).epsilon(1e-5)
    assert found.lower >= (Gaussian(4.0) * 2).group(size).epsilon(1e-5).lower
    alone = (Gaussian(2.0 * math.sqrt(2)) + Laplace(30.0) + Laplace(30.0)).group(size).epsilon(1e-5)
    assert found.lower <= alone.upper
    assert alone.lower <= found.upper
    assert found.upper - found.lower <= 1e-3 * found.upper


def pair_of_records(log_ratios: list[float], masses: list[float], mu: float, epsilon: float) -> float:
    """delta of two records: the best split of epsilon; a single record's is a mean of Gaussian curves."""

    def gaussian(e: np.ndarray) -> np.ndarray:
        return np.asarray(ndtr(mu / 2 - e / mu) - np.exp(e) * ndtr(-mu / 2 - e / mu))

    def single(e: np.ndarray) -> np.ndarray:
        forward = sum(mass * gaussian(e - loss) for loss, mass in zip(log_ratios, masses, strict=True))
        backward = sum(
            mass * math.exp(-loss) * gaussian(e + loss) for loss, mass in zip(log_ratios, masses, strict=True)
        )
        return np.asarray(np.maximum(forward, backward))

    def either(e: np.ndarray) -> np.ndarray:
        size = np.abs(e)
        return np.where(e >= 0, single(size), -np.expm1(-size) + np.exp(-size) * single(size))

    splits = np.linspace(-1.0, epsilon + 1.0, 200_001)
    return float((either(splits) * np.exp(epsilon - splits) + either(epsilon - splits)).min())


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_coins_on_a_sample_beside_plain_gaussians(delta: float) -> None:
    rate, coin, noise = 0.187, 1.245, 2.0
    inner = RandomisedResponse(coin, ADD_REMOVE).poisson(rate) + Gaussian(noise) * 3
    found = inner.group(2).epsilon(delta)
    truth = math.exp(coin) / (1 + math.exp(coin))
    absent = [1 - truth, truth]
    seen = [(1 - rate) * q + rate * (1 - q) for q in absent]
    losses = [math.log(p / q) for p, q in zip(seen, absent, strict=True)]
    mu = math.sqrt(3) / noise
    assert found.upper - found.lower <= 1e-3 * found.upper
    assert pair_of_records(losses, seen, mu, found.lower) >= delta * (1 - 1e-6)
    assert pair_of_records(losses, seen, mu, found.upper) <= delta * (1 + 1e-6)
