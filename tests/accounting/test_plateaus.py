"""Promises at and beside what they leak: which side of the jump a delta lies on is decided exactly."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from busy import BUSY
from scipy.special import ndtr, ndtri

from hush.accounting import (
    REPLACE_ONE,
    Bounds,
    Gaussian,
    Guarantees,
    Laplace,
    Mechanism,
    Tradeoff,
    answers,
    calibrate,
    leaks,
)


def exact_leak(failing: list[tuple[float, int]]) -> Fraction:
    product = Fraction(1)
    for delta, count in failing:
        product *= (1 - Fraction(delta)) ** count
    return 1 - product


@pytest.mark.parametrize("failing", [[(1e-6, 10)], [(0.3, 7)], [(1e-9, 3), (1e-5, 2)], [(1e-40, 2)], [(0.5, 2)]])
def test_epsilon_is_finite_at_the_leak_and_infinite_one_floating_point_number_below(
    failing: list[tuple[float, int]],
) -> None:
    run: Mechanism | None = None
    for delta, count in failing:
        part = Guarantees.of(1.0, delta) * count
        run = part if run is None else run + part
    assert run is not None
    steps = sum(count for _, count in failing)
    leak = exact_leak(failing)
    above = float(leak)
    while Fraction(above) < leak:
        above = math.nextafter(above, 1.0)
    below = math.nextafter(above, 0.0)
    assert Fraction(below) < leak <= Fraction(above)
    bounds = run.epsilon(above)
    assert bounds.upper <= steps * (1 + 1e-12)
    assert bounds.width <= 1e-3 * bounds.upper
    assert (run.epsilon(below).lower, run.epsilon(below).upper) == (1e4, math.inf)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_of_delta_agrees_with_fractions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    failing = [
        (float(10 ** generator.uniform(-20, -1)), int(generator.integers(1, 6)))
        for _ in range(int(generator.integers(1, 4)))
    ]
    leak = exact_leak(failing)
    for distance in (1e-15, 1e-9, 1e-2):
        delta = min(float(leak) * (1 + distance) + math.ulp(float(leak)), 0.99)
        least, most = leaks.left_of(delta, failing)
        exact = (Fraction(delta) - leak) / (1 - leak)
        assert Fraction(least) <= exact <= Fraction(most)
        assert most - least <= 1e-14 * most


@pytest.mark.parametrize("epsilon", [0.1, 0.9, 2.0])
def test_promises_are_a_leak_and_what_is_pure(epsilon: float) -> None:
    """delta of (1, 1e-3) twice: 1 - (1 - 1e-3)^2 (1 - delta of randomised response twice), in closed form."""
    truth = math.e / (1 + math.e)
    twice = truth**2 * max(-math.expm1(epsilon - 2), 0.0)  # else the losses cancel or are negative
    exact = 1 - (1 - 1e-3) ** 2 * (1 - twice)
    bounds = (Guarantees.of(1.0, 1e-3) * 2).delta(epsilon)
    assert bounds.lower <= exact * (1 + 1e-14)
    assert bounds.upper >= exact * (1 - 1e-14)
    assert bounds.width <= 1e-9 * bounds.upper


def test_lists_of_promises_leak_the_least_of_their_deltas() -> None:
    run = Guarantees(((1.0, 1e-6), (2.0, 1e-9))) * 3
    bounds = run.epsilon(math.nextafter(float(exact_leak([(1e-9, 3)])), 1.0))
    assert 5.9 < bounds.lower <= bounds.upper <= 6 * (1 + 1e-12)
    rest, failing = leaks.without_leaks(run)
    assert failing == [(1e-9, 3)]
    part = rest.parts()[0][0]
    assert isinstance(part, Guarantees)
    for (_, left), (_, given) in zip(part.promises, run.parts()[0][0].promises, strict=True):  # type: ignore[attr-defined]
        assert 1 - (1 - 1e-9) * (1 - left) == pytest.approx(given, rel=1e-6)


def test_beside_other_releases_a_leak_at_delta_leaves_their_largest_loss() -> None:
    leak = math.nextafter(float(exact_leak([(1e-6, 10)])), 1.0)
    bounds = (Guarantees.of(1.0, 1e-6) * 10 + Laplace(1.0) * 3).epsilon(leak)
    assert bounds.upper <= 13 * (1 + 1e-12)
    assert bounds.width <= 1e-3 * bounds.upper
    gaussian = Guarantees.of(0.0, 1e-6) * 10 + Gaussian(1.0)
    assert gaussian.epsilon(leak).width <= 1e-6 * gaussian.epsilon(leak).upper


def test_a_hundred_different_promises_have_a_narrow_answer_in_a_second() -> None:
    generator = np.random.default_rng(5)
    run: Mechanism = Guarantees.of(0.1, 1e-9, REPLACE_ONE)
    for _ in range(99):
        size, delta = (float(10 ** generator.uniform(*ends)) for ends in ((-2, 0), (-12, -7)))
        run = run + Guarantees.of(size, delta, REPLACE_ONE)
    began = time.process_time()
    bounds = run.epsilon(1e-5)
    assert time.process_time() - began < BUSY * 1.0
    assert bounds.width <= 1e-3 * bounds.upper


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-11, 1e-13])
def test_a_sampled_trade_off_function_is_known_as_deep_as_its_values_tell(mu: float, delta: float) -> None:
    """Its values are good to 1e-16, hence deltas of 1e-13 to a thousandth; against the Gaussian's closed form."""
    run = Tradeoff.of(lambda alpha: ndtr(-ndtri(alpha) - mu))
    exact, bounds = Gaussian(1 / mu).epsilon(delta), run.epsilon(delta)
    assert bounds.lower <= exact.upper
    assert bounds.upper >= exact.lower
    assert bounds.width <= 1e-3 * bounds.upper


@pytest.mark.parametrize("seed", range(12))
def test_trade_off_functions_of_straight_pieces_are_enclosed(seed: int) -> None:
    """Sampled, their chords are turned by rounding, and mirrored ones near 1 far more: an upper bound was too small."""
    generator = np.random.default_rng(seed + 3)
    count = int(generator.integers(1, 5))
    sizes = np.sort(10 ** generator.uniform(-2, 1.3, count))
    deltas = np.sort(10 ** generator.uniform(-14, -1, count))[::-1]
    promises = tuple((float(e), float(d)) for e, d in zip(sizes, deltas, strict=True))

    def function(alpha: np.ndarray) -> np.ndarray:
        lines = [np.zeros(np.shape(alpha))]
        for e, d in promises:
            lines += [1 - d - math.exp(e) * alpha, math.exp(-e) * (1 - d - alpha)]
        return np.max(lines, axis=0)

    sampled, given = Tradeoff.of(function), Guarantees(promises)
    for e in (0.0, *(share * float(size) for size in sizes for share in (0.5, 0.99, 0.999))):
        ours, exact = sampled.delta(e), given.delta(e)
        assert ours.lower <= exact.upper
        assert ours.upper >= exact.lower
    for delta in (1e-2, 1e-6, 1e-10):
        ours, exact = sampled.epsilon(delta), given.epsilon(delta)
        assert ours.lower <= exact.upper * (1 + 1e-12)
        assert ours.upper >= exact.lower * (1 - 1e-12)


@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon", "delta"),
    [(0.108, 0.00221, 2, 12.05, 0.00439), (0.1358, 7.25357e-6, 45, 1.05819e-5, 0.000325904)],
    ids=["few", "near 0"],
)
def test_calibration_on_a_plateau_takes_few_looks(
    noise: float, rate: float, count: int, epsilon: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There epsilon is 0 up to some parameter and rises steeply from it on."""
    looks: list[Mechanism] = []
    answered = answers.epsilon

    def watched(mechanism: Mechanism, at: float, tolerance: float | None = None) -> Bounds:
        looks.append(mechanism)
        return answered(mechanism, at, tolerance)

    monkeypatch.setattr(answers, "epsilon", watched)
    least = calibrate.noise(lambda value: Gaussian(value).poisson(rate) * count, epsilon, delta)
    assert len(looks) <= 26
    looks.clear()
    most = calibrate.rate(lambda value: Gaussian(noise).poisson(value) * count, epsilon, delta)
    assert len(looks) <= 40
    for kept, missed in (
        (Gaussian(least).poisson(rate), Gaussian(least - 1e-6).poisson(rate)),
        (Gaussian(noise).poisson(most), Gaussian(noise).poisson(most * (1 + 1e-6))),
    ):
        assert answered(kept * count, delta).upper <= epsilon < answered(missed * count, delta).upper


@pytest.mark.parametrize(("rate", "noise"), [(0.289726, 0.102497), (1e-3, 0.1), (0.9, 0.13), (1e-7, 0.2), (0.5, 0.35)])
@pytest.mark.parametrize("epsilon", [3e-6, 7.8e-4, 0.03, 2.0])
def test_one_sample_keeps_its_digits_next_to_the_chance_of_a_hit(rate: float, noise: float, epsilon: float) -> None:
    """delta = p P(u > t) - (e^eps - 1 + p) Q(u > t), in sixty digits: logarithms of it left five of epsilon."""
    with mpmath.workdps(60):
        p, mu = mpmath.mpf(rate), 1 / mpmath.mpf(noise)

        def delta_at(at: mpmath.mpf) -> mpmath.mpf:
            t = mpmath.log1p(mpmath.expm1(at) / p)
            return p * (mpmath.ncdf(mu / 2 - t / mu) - mpmath.exp(t) * mpmath.ncdf(-mu / 2 - t / mu))

        delta = float(delta_at(mpmath.mpf(epsilon)))
        start = mpmath.mpf(epsilon)
        truth = mpmath.findroot(lambda at: delta_at(at) - mpmath.mpf(delta), (start * 0.99, start * 1.01), tol=1e-50)
    found = (Gaussian(noise).poisson(rate) * 1).epsilon(delta)
    assert found.lower <= truth <= found.upper
    assert found.width <= max(1e-6 * found.upper, 1e-12)
