"""Basic, strong and optimal composition."""

import itertools
import math

import numpy as np
import pytest

from hush.accounting import classical as c
from hush.accounting import tradeoff as t


def test_basic_composition_adds() -> None:
    assert c.basic_composition([(0.1, 1e-6), (0.2, 2e-6)]) == pytest.approx((0.3, 3e-6))
    assert c.basic_composition([]) == (0, 0)
    assert c.basic_composition([(1.0, 0.7), (1.0, 0.7)])[1] == 1


def test_strong_composition_is_the_formula_and_is_beaten_by_the_optimal_theorem_and_beats_basic_for_many_steps() -> (
    None
):
    epsilon, delta, times, slack = 0.05, 1e-8, 400, 1e-6
    strong, total = c.strong_composition(epsilon, delta, times, slack)
    assert strong == pytest.approx(0.05 * math.sqrt(800 * math.log(1e6)) + 400 * 0.05 * math.expm1(0.05))
    assert total == pytest.approx(400e-8 + 1e-6)
    assert c.optimal_epsilon(epsilon, delta, times, total) < strong < times * epsilon


def test_abadi2016_strong_composition_values_come_out_within_a_third_of_a_percent() -> None:
    assert c.strong_epsilon_of_subsampled_gaussian(0.01, 4.0, 10_000, 1e-5) == pytest.approx(9.34, rel=3e-3)
    assert c.strong_epsilon_of_subsampled_gaussian(0.01, 4.0, 40_000, 1e-5) == pytest.approx(24.22, rel=3e-3)


def test_the_papers_comparison_leaves_the_domain_of_the_gaussian_formula_and_understates_the_amplification() -> None:
    """eps0 = sqrt(2 log(1.25/delta0))/sigma exceeds 1 at every split, and q eps0 < log(1 + q (e^eps0 - 1))."""
    largest_step_delta = 1e-5 / (10_000 * 0.01)
    epsilon = math.sqrt(2 * math.log(1.25 / largest_step_delta)) / 4
    assert epsilon > 1.4
    proper, delta = c.amplified(epsilon, largest_step_delta, 0.01)
    assert proper > 1.9 * 0.01 * epsilon
    assert delta == pytest.approx(0.01 * largest_step_delta)


def test_optimal_composition_is_the_theorem_of_kairouz_oh_viswanath_at_its_own_points() -> None:
    epsilon, delta, k = 0.3, 0.01, 7
    for i in range(k // 2 + 1):
        numerator = sum(
            math.comb(k, j) * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon)) for j in range(i)
        )
        expected = 1 - (1 - delta) ** k * (1 - numerator / (1 + math.exp(epsilon)) ** k)
        assert c.optimal_delta(epsilon, delta, k, (k - 2 * i) * epsilon) == pytest.approx(expected, abs=1e-14)


def test_optimal_composition_is_the_tensor_power() -> None:
    for epsilon, delta, times in itertools.product((0.05, 0.8), (0.0, 1e-3), (1, 4, 50)):
        power = t.approximate(epsilon, delta) ** times
        for total in np.linspace(0, times * epsilon, 7):
            expected = float(t.delta(power, total))
            assert c.optimal_delta(epsilon, delta, times, total) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_optimal_epsilon_inverts_delta_and_reproduces_figure_5_of_dong2022() -> None:
    assert c.optimal_epsilon(1 / math.sqrt(10), 0.0, 10, 0.001) == pytest.approx(2.89, abs=0.005)
    for target in (1e-9, 1e-4, 0.05):
        total = c.optimal_epsilon(0.2, 0.0, 30, target)
        assert c.optimal_delta(0.2, 0.0, 30, total) == pytest.approx(target, rel=1e-6)
    assert c.optimal_epsilon(0.2, 1e-3, 30, 1e-3) == math.inf
    assert c.optimal_epsilon(0.2, 0.0, 30, 1.0) == 0
    assert c.optimal_epsilon(0.2, 0.0, 30, 0.0) == pytest.approx(6.0)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: c.basic_composition([(-1.0, 0.0)]),
        lambda: c.strong_composition(1.0, 0.0, 0, 0.1),
        lambda: c.strong_composition(1.0, 0.0, 2, 0.0),
        lambda: c.amplified(1.0, 0.0, 2.0),
        lambda: c.optimal_delta(1.0, 0.0, 2, -1.0),
        lambda: c.strong_epsilon_of_subsampled_gaussian(0.0, 1.0, 10, 1e-5),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(mistake) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"^[^\n]*\.$"):
        mistake()
