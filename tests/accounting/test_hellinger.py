"""Projected norms against tens of digits by another method: the true epsilon lies in the interval.

The reference (hellinger.py) inverts the transform on the line Re s = -1/2, where heavy tails need no cut: good to 1e-10
of delta.  delta falls with epsilon, so the interval holds the true epsilon if delta at its ends is on either side.
"""

from __future__ import annotations

import os
import random

import mpmath as mp
import pytest
from hellinger import Hellinger, TooManyNodesError
from projected import Kind, composed

FULL = os.environ.get("HUSH_FULL") == "1"
ACCURACY = 1e-10

FEW: list[tuple[list[Kind], float]] = [
    ([(1.3, 10, 0.02, 200)], 1e-5),
    ([(2.0, 6, 0.3, 60)], 1e-6),
    ([(3.579, 168, 1.0, 10)], 1.6e-7),
    ([(0.8698, 37, 0.006187, 5036)], 3.5e-9),
    ([(2.77, 18, 0.01299, 20164)], 0.087),
    ([(2.64, 15, 0.5357, 229)], 3.6e-8),
    ([(3.636, 4, 1.637e-4, 540_522_514)], 0.5),
    ([(1.274, 28, 0.0266, 555), (3.967, 8, 0.1588, 6705)], 9.2e-8),
]
MORE: list[tuple[list[Kind], float]] = [
    ([(2.335, 50, 0.0366, 31)], 4.3e-7),
    ([(3.942, 124, 0.00402, 903), (3.455, 10, 0.0171, 1330)], 1.2e-4),
    ([(8.0, 7, 1.0, 30)], 1e-9),
    ([(5.0, 40, 0.2, 500)], 1e-30),
    ([(1.455, 217, 0.0475, 2583)], 7.1e-32),
    ([(1.995, 258, 0.002764, 40884)], 4.6e-35),
    ([(2.148, 157, 1.71e-4, 249_113_199)], 1.86e-12),
    ([(7.874, 6, 8.485e-5, 169_825_051)], 6.65e-7),
]
SEEDS = range(60) if FULL else [1]  # a quick one


def _check(kinds: list[Kind], delta: float, most: int) -> None:
    bounds = composed(kinds).epsilon(delta)
    curve = Hellinger(kinds, delta, bounds.upper, most=most)
    assert curve.largest(bounds.upper) <= delta * (1 + ACCURACY)
    assert bounds.lower == 0 or curve.largest(bounds.lower) >= delta * (1 - ACCURACY)


@pytest.mark.parametrize(("kinds", "delta"), FEW + (MORE if FULL else []))
def test_the_interval_holds_the_epsilon_of_a_computation_with_tens_of_digits(kinds: list[Kind], delta: float) -> None:
    _check(kinds, delta, most=2000)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_at_random_settings(seed: int) -> None:
    generator = random.Random(seed)
    while True:
        kinds = [
            (
                10 ** generator.uniform(-0.3, 1.2),
                round(10 ** generator.uniform(0.3, 2.7)),
                1.0 if generator.random() < 0.1 else 10 ** generator.uniform(-3, -0.1),
                int(10 ** generator.uniform(0.5, 5)),
            )
            for _ in range(generator.choice([1, 1, 1, 2, 3]))
        ]
        delta = 10 ** generator.uniform(-40 if generator.random() < 0.3 else -12, -1)
        if not 0 < composed(kinds).epsilon(delta).upper < 60:
            continue
        try:
            _check(kinds, delta, most=500)
        except TooManyNodesError:
            continue
        return


def test_the_reference_agrees_with_itself_at_another_resolution_and_with_the_mean_over_z() -> None:
    coarse = Hellinger([(2.0, 6, 0.3, 60)], 1e-6, 60.0)
    fine = Hellinger([(2.0, 6, 0.3, 60)], 1e-6, 60.0, resolution=1.2)
    assert abs(fine.largest(56.0) / coarse.largest(56.0) - 1) < ACCURACY / 10

    def gaussian(z: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
        return mp.ncdf(z / 2 - epsilon / z) - mp.exp(epsilon) * mp.ncdf(-z / 2 - epsilon / z)

    sigma, r, epsilon = mp.mpf(2), 12, mp.mpf(1)
    weight = 2 * (r / (2 * sigma**2)) ** (mp.mpf(r) / 2) / mp.gamma(mp.mpf(r) / 2)
    mean = mp.quad(
        lambda y: weight * mp.exp(-r * y - r / (2 * sigma**2) * mp.exp(-2 * y)) * gaussian(mp.exp(y), epsilon),
        [-3, -2, -1, 0, 1, 2, 6],
    )
    assert abs(Hellinger([(2.0, r, 1.0, 1)], 1e-3, 1.0).largest(1.0) / mean - 1) < ACCURACY
