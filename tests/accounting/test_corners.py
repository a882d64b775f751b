"""Corners where a certified answer once was wrong, or none: each with the truth from elsewhere."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from busy import BUSY
from scipy.special import ndtri

from hush.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    Gaussian,
    Guarantees,
    Laplace,
    Mechanism,
    Poisson,
    Projected,
    RandomisedResponse,
    Renyi,
    Tradeoff,
    classical,
    tradeoff,
)
from hush.accounting.pairs import survey
from hush.accounting.pairs.losses import guarantees
from hush.accounting.releases import SampledTradeoff
from hush.accounting.tails import binning


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


def test_leaks_that_are_all_but_certain_leave_their_digits() -> None:
    # (delta - leak)/(1 - leak) divided by 0, or lost what is left of 1 - leak
    assert (Guarantees.of(0.0, 0.5) * 100 + Laplace(1.0)).epsilon(0.9).lower == 1e4
    run = Guarantees.of(0.0, 0.3) * 65 + Gaussian(1.0)
    with mp.workdps(40):
        holds = (1 - mp.mpf(0.3)) ** 65
        for missing in (3e-11, 1e-11, 1e-12):
            target = 1 - missing
            rest = 1 - (1 - mp.mpf(target)) / holds
            found, alone = run.epsilon(target), Gaussian(1.0).epsilon(float(rest))
            assert found.lower <= alone.upper * (1 + 1e-9)
            assert found.upper >= alone.lower * (1 - 1e-9)
            assert found.width <= 1e-4 * found.upper


def test_a_delta_that_equals_the_leak_is_no_proof_of_more() -> None:
    for count in range(2, 40):
        with mp.workdps(60):
            leak = 1 - (1 - mp.mpf(1e-5)) ** count
            above = float(leak)
            while above < leak:
                above = math.nextafter(above, 1.0)
        assert (Guarantees.of(0.0, 1e-5) * count + Laplace(1.0)).epsilon(above).lower <= 1.0


def test_what_tells_everything_composes() -> None:
    everything, silent = Guarantees.of(1.0, 1.0), Tradeoff((0.0, 1.0), (0.0, 0.0))
    for run in (everything * 3, everything.group(2), silent * 3, everything + Projected(1.0, 5).poisson(0.1)):
        found = run.delta(0.5)  # once a math domain error
        assert found.lower >= 1 - 1e-9
        assert found.upper == 1.0
        assert run.epsilon(0.5).lower == 1e4


@pytest.mark.parametrize(
    "run",
    [
        Gaussian(1.0).poisson(0.1) * 5,
        Laplace(1.0).poisson(0.1) * 5,
        Laplace(1e-6).poisson(0.1) * 5,
        Gaussian(1.0).uniform(1, of=10) * 5,
        Guarantees.of(1.0, 1e-5) * 3,
        (Gaussian(1.0).poisson(0.1) * 5).group(2),
    ],
    ids=lambda run: run.describe(),
)
def test_no_epsilon_is_too_large_to_ask_about(run: Mechanism) -> None:
    near, far = run.delta(1e4), run.delta(1e300)  # once an overflow
    assert 0 <= far.lower <= near.upper
    assert far.upper <= 1.0


def test_beyond_the_largest_loss_nothing_is_computed() -> None:
    run = RandomisedResponse(10.0).uniform(2, of=10) * 5
    began = time.process_time()
    assert run.delta(50.0).upper == 0.0  # once in three seconds
    assert time.process_time() - began < BUSY * 0.5


def test_promises_are_tight_at_delta_zero_too() -> None:
    for run in (Guarantees.of(0.7) * 3, Laplace(2.0, REPLACE_ONE).uniform(1, of=10) * 4, Guarantees.of(0.7).group(2)):
        found = run.epsilon(0.0)
        assert found.width <= 1e-12 * found.upper
        assert run.epsilon(1e-13).lower <= found.upper


def test_a_few_outcomes_are_enough_for_any_delta() -> None:
    # five steps with three outcomes each, on a lattice from 1e-9 to 79: 3.7 s, and a lower bound of 1e-45
    run = Guarantees.of(100.0, 1e-100).poisson(1e-9) * 5
    found = run.delta(1e-6)
    assert found.lower <= 4.99999999e-9 <= found.upper
    assert found.width <= 1e-9 * found.upper


def test_a_renyi_curve_has_a_trade_off_curve_and_no_delta_of_nothing() -> None:
    published = Renyi(orders=(2.0, 8.0, 32.0), divergences=(0.01, 0.04, 0.16))
    assert published.delta(100.0).upper > 0
    lower, upper = published.tradeoff(100)(np.array([0.0, 0.1, 0.9]))
    assert np.all(lower <= upper)
    assert 0.8 < lower[1] < 0.9 <= upper[1]


def test_lines_with_a_million_nodes_are_not_searched() -> None:
    # near the chance of an infinite loss a curve is flat, and a root on it was looked for on such lines: 97 s
    run = Guarantees.of(0.01487902789699455, 0.1).poisson(0.009016272341724352) * 4 + Gaussian(3.3076869572275576)
    began = time.process_time()
    found = run.epsilon(0.0036016342778607546)
    assert time.process_time() - began < BUSY * 4
    assert found.upper >= run.epsilon(0.0036017).lower


def test_the_algebra_takes_any_epsilon() -> None:
    # e^1000 is no floating-point number: once an OverflowError
    for function in (tradeoff.approximate(1000.0), tradeoff.laplace(1000.0)):
        assert float(function(0.5)) < 1e-200
        assert float(function(1.0)) == 0.0
    assert tradeoff.epsilon(tradeoff.approximate(650.0), 1e-5) == pytest.approx(650, abs=1e-4)
    assert float(tradeoff.delta(tradeoff.laplace(3.0), 1.0)) == pytest.approx(-math.expm1(-1.0), rel=1e-12)
    assert classical.amplified(800.0, 0.0, 0.1)[0] == pytest.approx(800 + math.log(0.1))
    assert classical.amplified(800.0, 0.0, 1.0)[0] == 800.0
    assert classical.amplified(800.0, 0.0, 0.0)[0] == 0.0
    assert classical.strong_composition(800.0, 0.0, 10, 1e-5)[0] == math.inf
    assert 0 < Guarantees.of(701.0).poisson(1e-310).largest_loss < 1e-5


_ORDERS = (*np.linspace(1.05, 10.0, 40).tolist(), *np.geomspace(11.0, 2000.0, 60).tolist())


@pytest.mark.parametrize(
    "other",
    [
        Guarantees.of(1.0, 1e-6),
        Guarantees(((1.0, 1e-6), (0.1, 0.01))),
        Gaussian(1.0, ADD_REMOVE).poisson(0.1),
        Gaussian(1.0).uniform(1, of=100),
        Laplace(0.1).poisson(1e-3),
        Projected(1.0, 20).poisson(0.01),
        Tradeoff.of(lambda alpha: (1 - alpha) ** 1.1, points=400),
        Guarantees.of(1.0).poisson(0.3),
    ],
    ids=lambda other: other.describe(),
)
def test_a_renyi_curve_composes_with_everything(other: Mechanism) -> None:
    # the curve of a Gaussian, whose own composition is known: it must not come out below, nor far above
    curve = Renyi(_ORDERS, tuple(order / 2 for order in _ORDERS), other.neighbours)
    published, known = curve + other * 3, Gaussian(1.0, other.neighbours) + other * 3
    for delta in (1e-5,) if isinstance(other, Poisson) else (1e-5, 1e-3, 0.05):
        upper, truth = published.epsilon(delta).upper, known.epsilon(delta)
        assert truth.lower <= upper <= 1.8 * truth.upper + 0.6
    for epsilon in (1.0,) if isinstance(other, Poisson) else (0.1, 1.0, 5.0):
        assert published.delta(epsilon).upper >= known.delta(epsilon).lower


def test_a_renyi_curve_beside_others_has_a_trade_off_curve() -> None:
    run = Renyi(_ORDERS, tuple(order / 2 for order in _ORDERS)) + Guarantees.of(1.0, 1e-6)
    lower, upper = run.tradeoff(300)(np.array([0.01, 0.1, 0.5]))
    known, _ = (Gaussian(1.0) + Guarantees.of(1.0, 1e-6)).tradeoff(300)(np.array([0.01, 0.1, 0.5]))
    assert np.all(lower <= known + 1e-9)
    assert np.all(upper >= known)


def test_far_beyond_delta_is_no_larger_than_before() -> None:
    run = Gaussian(1.0).poisson(0.1) * 5
    assert run.delta(75.0).lower > 0
    for epsilon in (300.0, 1e3, 1e4, 1e6):
        assert run.delta(epsilon).upper <= 1e-300  # once 2.5e-25 at 1000


def test_losses_of_bins_are_as_sharp_as_the_certificate_says() -> None:
    # log p - log q of masses near 1e-200 was off by 1e-13, where 2^-50 of the loss is assumed
    rng = np.random.default_rng(1)
    p = 10 ** rng.uniform(-280, 0, 300)
    q = np.minimum(p * np.exp(rng.uniform(-5, 5, 300)), 1.0)
    with mp.workdps(40):
        for number, other, loss in zip(p.tolist(), q.tolist(), binning._log_quotient(p, q).tolist(), strict=True):
            truth = mp.log(mp.mpf(number) / mp.mpf(other))
            assert abs(loss - truth) <= 2.0**-50 * abs(truth)


@pytest.mark.parametrize("noise", [1e200, 1e-200, 1e308, 5e-324])
def test_noise_whose_square_is_no_number_is_refused_in_a_sentence(noise: float) -> None:
    for release in (Gaussian, Laplace, lambda given: Projected(given, 10), Gaussian.joint):
        with pytest.raises(ValueError, match="noise multiplier must lie between"):
            release(noise)


@pytest.mark.parametrize("noise", [1e-12, 1e12])
def test_noise_far_beyond_any_use_is_refused_when_it_is_asked_about(noise: float) -> None:
    assert (Gaussian(noise) * 3).epsilon(0.1).lower >= 0  # in closed form
    sample = Gaussian(noise, REPLACE_ONE).uniform(1, of=10)
    for run in (
        Gaussian(noise).poisson(0.1) * 5,
        Projected(noise, 10),
        sample.group(2),
        Gaussian(noise) + Laplace(1.0),
    ):
        for ask in (lambda run=run: run.epsilon(1e-5), lambda run=run: run.delta(1.0), run.tradeoff, run.advantage):
            with pytest.raises(ValueError, match="beside other releases noise multipliers are accounted for"):
                ask()


def test_numbers_of_any_kind_survive_json() -> None:
    third = Fraction(1, 3)
    for run in (
        Gaussian(third).poisson(Fraction(1, 100)) * 5,
        Laplace(third),
        Projected(third, 4),
        RandomisedResponse(third),
        Gaussian(np.float32(2)),  # type: ignore[arg-type]
    ):
        assert Mechanism.from_json(run.to_json()) == run
    assert Gaussian(Fraction(13, 10)) == Gaussian(1.3)


def test_little_noise_beyond_the_domain_raises_nothing() -> None:
    bounds = (Gaussian(0.01).poisson(0.01) * 100).delta(1.0)
    assert 0.6 < bounds.lower <= bounds.upper <= 1


def test_groups_of_groups_whose_losses_have_no_known_centre_raise_nothing() -> None:
    sample = Gaussian(0.2539982264332249, REPLACE_ONE).uniform(3222, of=154147) * 141
    bounds = (sample.group(4) * 2).epsilon(5.47e-7)
    assert 1000 < bounds.lower <= bounds.upper


def test_groups_of_what_is_all_but_told_raise_nothing() -> None:
    # every finite loss of the more revealing law had lost its mass: a survey of nothing raised
    alphas = (0.0, 4.7128070335134e-09, 4.712807255558005e-09, 1.0)
    betas = (2.404688759494178e-05, 2.220446049250313e-16, 0.0, 0.0)
    run = (SampledTradeoff(alphas, betas) * 2).group(3)
    for epsilon in (0.0, 1.0, 1e4):
        assert run.delta(epsilon).upper >= 1 - betas[0] ** 2
    assert run.epsilon(0.99999).upper == math.inf


def test_the_scale_of_rounding_counts_every_atom() -> None:
    # of pairs with more than 32 outcomes none was counted
    many = guarantees(tuple((0.1 * k, 10.0 ** (-0.2 * k) * 0.5) for k in range(1, 60)))
    assert len(many.losses) > 32
    assert survey.Survey(((many, 3),)).doubt >= 3 * (1 + max(many.losses))


@pytest.mark.parametrize(
    "text",
    [
        '{"mechanism": "guarantees", "promises": [1], "neighbours": "add/remove one"}',
        '{"mechanism": "trade-off", "alphas": [null], "betas": [0], "neighbours": "add/remove one"}',
        '{"mechanism": "composition", "counted": 3}',
    ],
)
def test_plain_data_of_the_wrong_shape_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="mechanism can't be made of"):
        Mechanism.from_json(text)
