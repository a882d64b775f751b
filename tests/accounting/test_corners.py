"""Corners where a certified answer once was wrong, or none: each with the truth from elsewhere."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtri

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Guarantees, Mechanism, RandomisedResponse


@pytest.mark.parametrize("delta", [1e-310])
def test_no_lower_bound_exceeds_what_the_unsampled_releases_cost(delta: float) -> None:
    # a floor of 1e-300 under a lower bound of delta(1e4) made it [1e4, inf] at every delta below
    sampled, whole = Gaussian(1.0).poisson(0.1) * 5, Gaussian(1.0) * 5
    found = sampled.epsilon(delta)
    assert found.lower <= whole.epsilon(delta).upper


def _chained(run: Mechanism, size: int, epsilon: float) -> mp.mpf:
    """A group's delta from all that can happen, the power curve composed corner by corner in 60 digits."""
    outcomes = [(mp.mpf(1), mp.mpf(1))]
    for part, count in run.parts():
        odds = mp.exp(mp.mpf(part.pair().losses[0]))
        for _ in range(count):
            outcomes = [(a * x, b * y) for a, b in outcomes for x, y in ((odds, 1), (1, odds))]
            merged: dict[str, tuple[mp.mpf, mp.mpf]] = {}
            for a, b in ((a / (1 + odds), b / (1 + odds)) for a, b in outcomes):
                key = mp.nstr(mp.log(a / b), 30)
                before = merged.get(key, (mp.mpf(0), mp.mpf(0)))
                merged[key] = (before[0] + a, before[1] + b)
            outcomes = list(merged.values())
    corners = [(mp.mpf(0), mp.mpf(0))]
    for a, b in sorted(outcomes, key=lambda both: -both[0] / both[1]):
        corners.append((corners[-1][0] + b, corners[-1][1] + a))

    def power(level: mp.mpf) -> mp.mpf:
        for (x, y), (right, top) in pairwise(corners):
            if level <= right:
                return y + (top - y) * (level - x) / (right - x)
        return mp.mpf(1)

    def level_of(wanted: mp.mpf) -> mp.mpf:
        for (x, y), (right, top) in pairwise(corners):
            if wanted <= top:
                return x + (right - x) * (wanted - y) / (top - y)
        return mp.mpf(1)

    places = {x for x, _ in corners}
    for _ in range(size - 1):
        places |= {level_of(place) for place in places}
    best = mp.mpf(0)
    for place in places:
        reached = place
        for _ in range(size):
            reached = power(reached)
        best = max(best, reached - mp.exp(epsilon) * place)
    return best


@pytest.mark.parametrize(("truth_epsilon", "steps", "size"), [(0.3447533007606001, 100, 4), (0.7, 30, 2), (3.1, 6, 3)])
def test_groups_of_coins_that_cancel_lose_no_outcome(truth_epsilon: float, steps: int, size: int) -> None:
    # 50 losses of 0.34 and 50 of -0.34 add up to -7e-15, and what was neither above 0 nor 0 was left out: at
    # 4 records epsilon came out as 75.73 where it is 76.40
    run = RandomisedResponse(truth_epsilon) * steps
    with mp.workdps(60):
        for epsilon in (0.0, 0.3 * run.group(size).largest_loss, 0.55 * run.group(size).largest_loss):
            truth = _chained(run, size, epsilon)
            found = run.group(size).delta(epsilon)
            assert found.lower <= truth <= found.upper
            assert found.width <= 1e-9


def test_a_groups_lower_bound_is_no_sum_of_rounding_errors() -> None:
    # outcomes with losses near 0 were counted by what rounding made of them: 2.4766e-3 at a delta of 3e-18
    run = Guarantees.of(4.105e-4, 1e-100) * 3 + RandomisedResponse(0.0026, ADD_REMOVE).poisson(1.4e-4) * 2
    largest = 3 * 4.105e-4 + 2 * math.log1p(1.4e-4 * math.expm1(0.0026))
    assert run.group(2).epsilon(3e-18).lower <= 2 * largest * (1 + 1e-12)
    # and losses of -1e-12 were mirrored to 1e-12: 0.00999991666786
    promised = Guarantees(((2.0, 1e-100), (0.01, 8.3e-17)), REPLACE_ONE) * 2
    assert promised.group(2).delta(0.0).lower <= 0.0099999166675005


def test_a_group_of_what_tells_everything_is_told_everything() -> None:
    run = Guarantees.of(40.0, 1e-5).poisson(0.5) + RandomisedResponse(75.8, ADD_REMOVE) * 20
    assert run.group(4).delta(5.0).upper == 1.0  # once NaN


@pytest.mark.parametrize("mu", [1e-4, 0.1, 1.0, 3.0])
def test_the_band_of_errors_holds_to_the_last_place(mu: float) -> None:
    # 1 less a power had no margin for its own rounding: off by 1e-16, at levels near 1 a lower bound above the truth
    curve = Gaussian(1 / mu).tradeoff(200)
    levels = np.array([1e-16, 1e-10, 0.3, 0.5, 1 - 1e-6, 1 - 1e-10, 1 - 1e-13, 1 - 2.0**-52, 1 - 2.0**-53])
    lower, upper = curve(levels)
    with mp.workdps(60):
        for level, low, high in zip(levels.tolist(), lower.tolist(), upper.tolist(), strict=True):
            rest = 1 - mp.mpf(level)
            quantile = mp.findroot(lambda x, rest=rest: mp.log(mp.ncdf(x)) - mp.log(rest), _start(level), tol=1e-80)
            assert low <= mp.ncdf(quantile - 1 / mp.mpf(1 / mu)) <= high


def _start(level: float) -> float:
    return float(ndtri(1 - level)) if level > 0.5 else -float(ndtri(level))
