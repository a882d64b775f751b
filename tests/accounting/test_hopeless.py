"""Compositions beyond epsilon 1e4 are recognised without composing them, and no others are taken for such."""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
from busy import BUSY

from hush.accounting import REPLACE_ONE, Bounds, Gaussian, Guarantees, Laplace, Mechanism, Projected
from hush.accounting.pairs.hopeless import log_delta_above, log_short_of_one, surely_beyond
from hush.accounting.pairs.losses import GaussianPair, LaplacePair, Poisson, randomised_response


def test_a_hundred_hopeless_steps_take_no_time() -> None:
    generator = np.random.default_rng(0)
    run: Mechanism = Laplace(0.2) * 5000
    for _ in range(50):
        run = run + Gaussian(float(generator.uniform(0.2, 2))).poisson(float(generator.uniform(0, 0.5))) * 10_000
        run = run + Projected(float(generator.uniform(0.5, 2)), 20).poisson(float(generator.uniform(0, 0.1))) * 100
    began = time.process_time()
    assert run.epsilon(1e-9) == Bounds(1e4, math.inf)
    assert time.process_time() - began < BUSY * 1.0


def test_a_leak_above_delta_is_seen_at_once() -> None:
    run = Guarantees.of(0.1, 1e-6) * 1000 + Gaussian(1.0).poisson(0.01) * 100 + Laplace(3.0)
    assert run.epsilon(1e-4) == Bounds(1e4, math.inf)
    assert run.epsilon(1e-2).upper < 100


def test_what_is_just_below_the_limit_is_not_taken_for_hopeless() -> None:
    # N(1, 1) against N(0, 1): the loss is N(1/2, 1)
    for steps in (18_000, 19_980):
        assert not surely_beyond([(GaussianPair(1.0), steps)], math.log(0.9))
    assert surely_beyond([(GaussianPair(1.0), 22_000)], math.log(0.3))
    assert surely_beyond([(GaussianPair(1.0), 22_000)], math.log(1 - 1e-9))  # 1 - delta is 8e-12
    assert not surely_beyond([(GaussianPair(1.0), 22_000)], math.log(1 - 1e-14))


@pytest.mark.parametrize("epsilon", [10.0, 1000.0, 1e4])
@pytest.mark.parametrize("part", [1.0, 1.03, 1.3, 3.0])
def test_a_delta_next_to_one_is_seen_and_never_too_large(epsilon: float, part: float) -> None:
    steps = round(2 * part * epsilon)  # losses of N(1/2, 1) each
    mu = mpmath.sqrt(steps)
    exact = mpmath.log(mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))
    seen = log_delta_above([(GaussianPair(1.0), steps)], epsilon)
    assert seen <= exact
    if part == 3.0 and epsilon >= 1000:
        assert seen > -2e-3


@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 400), (1.0, 300), (3.0, 40), (20.0, 4)])
def test_what_is_left_of_one_is_seen_and_never_too_small(epsilon: float, count: int) -> None:
    """Randomised responses: 1 - delta(0) is a sum over binomials."""
    with mpmath.workdps(50):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        exact = mpmath.log(
            sum(
                mpmath.binomial(count, k) * min(p**k * (1 - p) ** (count - k), (1 - p) ** k * p ** (count - k))
                for k in range(count + 1)
            )
        )
    for pair in (randomised_response(epsilon), randomised_response(epsilon).reverse()):
        assert exact <= log_short_of_one([(pair, count)], 0.0) <= 0.95 * exact + 5
    log_half = float(mpmath.log((1 + mpmath.exp(-mpmath.mpf(epsilon))) / 2))  # a sample of half the records
    sampled = log_short_of_one([(Poisson(randomised_response(epsilon), 0.5), count)], 0.0)
    assert count * log_half - 1e-9 <= sampled < 0


def test_delta_next_to_one_takes_no_composition() -> None:
    assert (Laplace(1.0) * 10**9).epsilon(1 - 1e-7) == Bounds(1e4, math.inf)
    for run in (
        Laplace(1.0) * 10**9,
        Projected(0.9, 3) * 56_000_000,
        Gaussian(0.2, REPLACE_ONE).uniform(4, of=54) * 10**7,
    ):
        assert run.delta(0.0).lower > 1 - 1e-14


@pytest.mark.parametrize("seed", range(5))
def test_a_pure_composition_below_the_limit_never_is(seed: int) -> None:
    generator = np.random.default_rng(seed)
    sizes = generator.uniform(0.1, 1, 40)
    counts = np.floor(9_990 / sizes.sum() * np.ones(40)).astype(int)
    steps = [
        (LaplacePair(float(size)) if k % 2 else Poisson(randomised_response(float(size)), 0.999), int(count))
        for k, (size, count) in enumerate(zip(sizes, counts, strict=True))
    ]
    assert not surely_beyond(steps, -700.0)


def test_a_crowd_is_asked_as_a_smaller_one_first() -> None:
    """Fewer records tell no more, and a thousand are beyond 1e4 already; a chain of a million would take minutes."""
    crowd = (Gaussian(1.0).poisson(1e-2) * 100).group(10**6)
    assert crowd.epsilon(1e-5) == Bounds(1e4, math.inf)


@pytest.mark.parametrize(("steps", "delta"), [(10, 0.05), (1000, 0.2), (1000, 1e-5)])
def test_one_large_loss_that_is_enough_is_seen_however_little_noise_there_is(steps: int, delta: float) -> None:
    """With noise 0.005 a record that is sampled is seen: its loss is about 1/(2 * 0.005^2) = 20,000.

    Bins as fine as the smallest losses took all memory.
    """
    assert delta < 1 - 0.99**steps
    assert (Gaussian(0.005, REPLACE_ONE).poisson(0.01) * steps).epsilon(delta) == Bounds(1e4, math.inf)
