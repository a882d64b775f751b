"""Poisson-subsampled Gaussian steps: published numbers, both directions against the references, and properties."""

from __future__ import annotations

import math
import time

import mpmath as mp
import numpy as np
import pytest
import reference
from reference import ADD, REMOVE, Setting

from hush.accounting import Gaussian, answers
from hush.accounting.gaussian import closed, jumps, subsampled, transform
from hush.accounting.gaussian.composition import Composition
from hush.accounting.gaussian.transform import Step
from hush.accounting.lattices import lattice
from hush.accounting.mechanisms import Mechanism


def _run(rate: float, noise: float, steps: int) -> Mechanism:
    return Gaussian(noise_multiplier=noise).poisson(rate) * steps


# ERRATA, item 1


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "expected"),
    [
        (256 / 60000, 1.3, 3516, 1e-5, "0.864540"),
        (256 / 60000, 1.1, 14062, 1e-5, "2.3816"),
        (256 / 60000, 0.7, 10547, 1e-5, "5.63968"),
        (256 / 60000, 0.6, 14531, 1e-5, "10.9495"),
        (256 / 60000, 0.55, 15938, 1e-5, "15.7163"),
        (256 / 60000, 0.5, 23438, 1e-5, "28.04602"),
        (256 / 29305, 0.55, 2061, 1e-5, "11.8073"),
        (512 / 25000, 0.56, 439, 1e-5, "12.1407"),
        (1 / 80, 0.6, 1600, 1e-6, "12.7494"),
        (0.01, 0.6, 100, 1e-6, "4.75"),
    ],
)
def test_true_epsilons_come_out_to_all_digits(
    rate: float, noise: float, steps: int, delta: float, expected: str
) -> None:
    bounds = _run(rate, noise, steps).epsilon(delta)
    places = len(expected.split(".")[1])
    assert f"{bounds.lower:.{places}f}" == f"{bounds.upper:.{places}f}" == expected
    assert bounds.upper - bounds.lower <= 1e-6 * bounds.upper


# Odd corners


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [
        (2.6e-9, 1.76, 165809, 3e-49),  # one large loss competes with the sum of many small ones
        (3.27283e-4, 9638.01, 3, 5.9266e-16),  # much noise and few steps
        (0.373869, 4.48961, 101, 0.3249527),  # epsilon near 0
        (3.20887e-7, 0.229265, 6, 1.78756e-6),
        (2.715769e-5, 0.1235523, 22474, 0.4553889),
        (0.737253, 0.223273, 36, 1 - 1e-12),
    ],
)
def test_corners_get_six_digits_too(rate: float, noise: float, steps: int, delta: float) -> None:
    bounds = _run(rate, noise, steps).epsilon(delta)
    assert 0 <= bounds.lower <= bounds.upper
    assert bounds.upper - bounds.lower <= max(1e-6 * bounds.upper, 1e-12)


# Near delta = 1


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "log_short"),
    [
        (0.447, 0.142, 92, math.log(1e-9)),  # a few hits of large losses: labels
        (0.9, 0.1, 5, math.log(1e-4)),
        (0.3, 0.5, 600, -20.0),  # many small losses: one line
        (0.6, 3.0, 900, -3.0),
    ],
)
def test_deltas_near_one_are_enclosed_to_the_digits_of_what_is_missing_to_one(
    rate: float, noise: float, steps: int, log_short: float
) -> None:
    laws = [reference.RealSpace(Setting(rate, noise, steps), 120.0, resolution) for resolution in (1.0, 1.3)]
    for direction in (REMOVE, ADD):
        composition = Composition((Step(rate, noise, steps),))
        low, high = subsampled._epsilon(composition, direction, math.log1p(-math.exp(log_short)))[0]
        for end, side in ((low, 1), (high, -1)):
            if end > 0:
                first, second = (law.log_complement(direction, end) for law in laws)
                assert abs(first - second) < 1e-7
                assert side * (second - log_short) <= 1e-10 + 4 * abs(first - second)
        if direction == REMOVE:
            assert 0 < high - low <= 1e-6 * high


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("rate", [0.3, 0.999, 1 - 1e-12])
def test_one_step_near_delta_one_has_the_digits_of_its_closed_form(rate: float, direction: int) -> None:
    epsilons = np.array([1e-3, 0.3, 1.1, 20.0])
    low, high = closed.single_curve(Step(rate, 0.1, 1), direction)(epsilons)
    for i, epsilon in enumerate(epsilons):
        with mp.workdps(60):
            exact = reference.one_step(rate, 0.1, direction, mp.mpf(float(epsilon)))
            if exact > 0:
                assert low[i] <= mp.log(exact) <= high[i]
                assert high[i] - low[i] <= 1e-9 * max(-float(mp.log(exact)), float(1 - exact)) + 1e-25


def test_a_gaussian_near_delta_one_has_the_digits_of_its_closed_form() -> None:
    epsilons = np.array([0.0, 1.0, 60.0])
    low, high = closed.gaussian_curve(225.0)(epsilons)
    with mp.workdps(60):
        for i, eps in enumerate(map(mp.mpf, epsilons)):
            short = mp.ncdf(eps / 15 - mp.mpf("7.5")) + mp.exp(eps) * mp.ncdf(-eps / 15 - mp.mpf("7.5"))
            assert low[i] <= mp.log(1 - short) <= high[i]
            assert high[i] - low[i] <= 1e-11 * float(short)


# Against the references, each direction on its own


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(
    ("rate", "noise", "steps", "log_delta"),
    [
        (0.01, 0.6, 100, math.log(1e-6)),
        (256 / 60000, 1.3, 3516, math.log(1e-5)),
        (0.3, 0.15, 10, -3.0),
        (0.5, 0.3, 5, -60.0),
        (1e-3, 0.4, 30, -8.0),
        (0.2, 3.0, 7, -200.0),
        (0.9, 1e3, 50, -20.0),
        (0.05, 1.0, 1, -30.0),
        (0.1, 0.5, 2, -10.0),
        (1e-6, 3.0, 715, -121.0),
    ],
)
def test_each_direction_encloses_its_reference(
    rate: float, noise: float, steps: int, log_delta: float, direction: int
) -> None:
    composition = Composition((Step(rate, noise, steps),))
    curve = reference.delta_curve(Setting(rate, noise, steps), log_delta)
    assert curve is not None
    low, high = subsampled._epsilon(composition, direction, log_delta)[0]
    value, error = curve.direction(direction, high)
    assert value <= log_delta + error
    if low > 0:
        value, error = curve.direction(direction, low)
        assert value >= log_delta - error
    for epsilon in (0.0, 0.5 * low, low):
        value, error = curve.direction(direction, epsilon)
        lower, upper = subsampled._log_delta(composition, direction, np.array([epsilon]))[:2]
        assert lower[0] <= value + error
        assert upper[0] >= value - error


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 0.5), (0.9, 0.3), (1e-6, 0.7)])
def test_every_set_up_for_large_losses_encloses_the_exact_value_at_two_steps(
    rate: float, noise: float, direction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # near the largest loss what all steps bulk leave over once was lost to rounding, and the interval missed the truth
    steps = (Step(rate, noise, 2),)
    checked = 0
    for share in (0.1, 0.97):
        epsilon = share * Composition(steps).most_added
        truth = float(mp.log(reference.two_steps(rate, noise, direction, epsilon, digits=24)[0]))
        for nodes, tolerance in ((9, -9.0), (9, -19.0), (1500, -9.0), (1500, -19.0)):
            monkeypatch.setattr(jumps, "_FEW_NODES", nodes)  # few: with bulk
            jump = jumps.jumps(steps, direction, epsilon, truth, tolerance)
            if jump is not None:
                lower, upper = jump.log_delta(np.array([epsilon]))
                assert lower[0] <= truth + 1e-10
                assert upper[0] >= truth - 1e-10
                checked += 1
    assert checked >= 5


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_the_references_agree_with_each_other(direction: int) -> None:
    setting = Setting(256 / 60000, 1.3, 3516)
    law, inversion = reference.RealSpace(setting, 60.0), reference.GilPelaez(setting, -15.0)
    for epsilon in (0.0, 0.4, 0.8):
        expected = float(reference.mp.log(inversion.delta(direction, epsilon)))
        assert law.log_delta(direction, epsilon) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.05, 1.0, 40), (0.3, 2.0, 10)])
def test_plain_gaussian_steps_mixed_in_agree_with_the_lattice(
    rate: float, noise: float, steps: int, direction: int
) -> None:
    composition = Composition((Step(rate, noise, steps),), gaussian=0.5)
    low, high = subsampled._epsilon(composition, direction, math.log(1e-6))[0]
    lattice_low, lattice_high = lattice.epsilon(composition.pairs(direction), math.log(1e-6))
    assert lattice_low <= high
    assert low <= lattice_high
    assert high - low <= 1e-6 * high


# Properties


RUNS = [(0.01, 1.0, 1000), (0.2, 4.0, 50), (1e-3, 0.5, 20), (1e-5, 0.8, 10**6)]


@pytest.mark.parametrize(("rate", "noise", "steps"), RUNS)
def test_epsilon_falls_with_noise_and_delta_and_rises_with_steps_and_rate(
    rate: float, noise: float, steps: int
) -> None:
    here = _run(rate, noise, steps).epsilon(1e-7)
    assert _run(rate, 1.01 * noise, steps).epsilon(1e-7).lower <= here.upper
    assert _run(rate, noise / 1.01, steps).epsilon(1e-7).upper >= here.lower
    assert _run(rate, noise, steps + max(1, steps // 50)).epsilon(1e-7).lower >= here.upper * (1 - 1e-9)
    assert _run(1.02 * rate, noise, steps).epsilon(1e-7).lower >= here.upper
    assert _run(rate, noise, steps).epsilon(1.1e-7).upper <= here.lower


@pytest.mark.parametrize(("rate", "noise", "steps"), RUNS)
def test_delta_at_the_epsilon_of_a_delta_is_that_delta(rate: float, noise: float, steps: int) -> None:
    run = _run(rate, noise, steps)
    for delta in (1e-3, 1e-8, 1e-30):
        epsilon = run.epsilon(delta)
        if epsilon.upper == 0:
            assert run.delta(0.0).lower <= delta
            continue
        assert run.delta(epsilon.upper).lower <= delta
        assert run.delta(epsilon.lower).upper >= delta
        assert run.delta(epsilon.upper).upper == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (3.0, 20), (0.7, 3), (50.0, 10_000)])
def test_a_rate_that_tends_to_one_tends_to_the_plain_gaussian(noise: float, steps: int) -> None:
    plain = (Gaussian(noise_multiplier=noise) * steps).epsilon(1e-6)
    assert (Gaussian(noise_multiplier=noise).poisson(1.0) * steps).epsilon(1e-6) == plain
    for rate in (0.999999, 1 - 1e-10):
        near = _run(rate, noise, steps).epsilon(1e-6)
        assert near.lower <= plain.upper
        assert near.upper == pytest.approx(plain.upper, rel=20 * (1 - rate) + 1e-6)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.2, 4.0, 50), (0.02, 0.6, 1)])
def test_a_curve_of_1000_points_agrees_with_single_points(rate: float, noise: float, steps: int) -> None:
    run = _run(rate, noise, steps)
    epsilons = np.linspace(0.0, run.epsilon(1e-15).upper, 1000)
    lower, upper = answers.log_delta_curve(run, epsilons)
    assert np.all(lower <= upper)
    assert np.all(upper - lower < 2e-5)
    assert np.all(np.diff(lower) <= upper[:-1] - lower[:-1])
    for i in (0, 1, 100, 500, 998, 999):
        single = run.delta(float(epsilons[i]))
        assert math.log(single.lower) <= upper[i]
        assert math.log(single.upper) >= lower[i]


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.3, 0.3, 6), (1e-6, 0.3, 50)])
def test_steps_split_into_two_groups_give_the_same(rate: float, noise: float, steps: int) -> None:
    whole = Composition((Step(rate, noise, steps),))
    halves = Composition((Step(rate, noise, steps // 2), Step(rate, noise, steps - steps // 2)))
    for direction in (REMOVE, ADD):
        low, high = subsampled._epsilon(whole, direction, math.log(1e-6))[0]
        other_low, other_high = subsampled._epsilon(halves, direction, math.log(1e-6))[0]
        assert low <= other_high
        assert other_low <= high


def test_a_hundred_distinct_settings_take_less_than_a_second() -> None:
    steps = tuple(Step(0.01 * (1 + k / 100), 0.8 + k / 100, 10) for k in range(100))
    start = time.process_time()
    low, high = subsampled.epsilon(Composition(steps), math.log(1e-6))
    assert time.process_time() - start < 1
    assert 0 < low <= high <= low * (1 + 1e-6)
    every_worst = subsampled.epsilon(Composition((Step(0.02, 0.8, 1000),)), math.log(1e-6))
    assert high <= every_worst[1]


def test_epsilon_beyond_the_limit_is_the_interval_from_it() -> None:
    bounds = _run(0.5, 0.5, 10**6).epsilon(1e-6)
    assert (bounds.lower, bounds.upper) == (1e4, math.inf)


def test_delta_above_the_total_variation_needs_no_epsilon() -> None:
    run = _run(0.01, 2.0, 100)
    total = run.delta(0.0).upper
    bounds = run.epsilon(total * 1.001)
    assert (bounds.lower, bounds.upper) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "epsilon", "direction", "truth"),
    [
        (2.7790982350893716e-09, 0.6164891594558934, 33, 1.1790474791e-4, REMOVE, -37.03324113778),
        (1.9615211173528055e-08, 1.1581807887353708, 43, 2.2451591268e-7, REMOVE, -19.0725618120),
        (5.7660110390031465e-08, 1.8028444811814113, 125, 8.1204979985e-7, ADD, -20.2766164235),
    ],
)
def test_tiny_losses_keep_their_digits(
    rate: float, noise: float, steps: int, epsilon: float, direction: int, truth: float
) -> None:
    # log(1 - p + p e^u) once lost 1e-16 u absolutely, which is 1e-9 of a loss of 1e-7: the interval missed the truth
    composition = Composition((Step(rate, noise, steps),))
    lower, upper = subsampled._log_delta(composition, direction, np.array([epsilon]))[:2]
    assert lower[0] <= truth + 2e-10
    assert upper[0] >= truth - 2e-10


@pytest.mark.parametrize("rate", [1e-9, 1e-5, 0.3, 1.0 - 1e-9])
def test_the_loss_is_accurate_in_its_own_last_place(rate: float) -> None:
    exponents = np.concatenate([-np.geomspace(1e-6, 300, 40), np.geomspace(1e-6, 690, 60)])
    losses = transform.log_ratio(exponents, rate)
    with mp.workdps(60):
        for exponent, loss in zip(exponents.tolist(), losses.tolist(), strict=True):
            exact = mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(exponent)))
            assert abs(loss - exact) <= 1e-15 * abs(exact)


@pytest.mark.parametrize("noise", [0.005, 0.006, 0.01, 0.05])
@pytest.mark.parametrize(("rate", "steps"), [(0.5, 3), (0.01, 3), (1e-3, 1000)])
def test_with_next_to_no_noise_delta_is_the_chance_of_a_hit(noise: float, rate: float, steps: int) -> None:
    run = Gaussian(noise).poisson(rate) * steps
    with mp.workdps(40):
        hit = 1 - (1 - mp.mpf(rate)) ** steps
        unseen = steps * mp.ncdf(-1 / mp.mpf(noise) / 2)  # a test at half the mean misses or errs no more often
        low, high = run.delta(0.0)
        assert low <= hit
        assert hit - 2 * unseen <= high
        assert high - low <= 1e-12
    assert run.error_sum().lower == pytest.approx(float(1 - hit), abs=1e-12)
    assert run.epsilon(float(hit) * 1.001).upper == 0
    if noise <= 0.006:
        assert run.epsilon(float(hit) * 0.99).lower == 1e4
        assert run.delta(1e4).lower == pytest.approx(float(hit), rel=1e-12)


def test_a_line_that_is_nearly_sharp_enough_is_drawn_again() -> None:
    found = (Gaussian(1.16309).poisson(0.00301504) * 17 + Gaussian(13.7636)).epsilon(1.18e-14)
    assert found.width <= 1e-6 * found.upper  # was 1.7e-6
