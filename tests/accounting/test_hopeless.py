"""Compositions beyond epsilon 1e4 are recognised without composing them, and no others are taken for such."""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
from busy import BUSY

from hush.accounting import Bounds, Gaussian, Guarantees, Laplace, Mechanism, Projected
from hush.accounting.hopeless import log_delta_above, surely_beyond
from hush.accounting.losses import GaussianPair, LaplacePair, Poisson, randomised_response


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
    assert not surely_beyond([(GaussianPair(1.0), 22_000)], math.log(1 - 1e-9))


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
