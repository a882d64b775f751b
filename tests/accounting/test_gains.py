"""What links of a chain gain: digits are kept where a group's powers are hardly more than its levels."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from hush.accounting import Gaussian, Guarantees, RandomisedResponse, answers
from hush.accounting.grouping.chains import Chain
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.powers import least_of


@pytest.mark.parametrize("seed", range(6))
def test_gains_are_those_of_the_least_line_in_many_digits(seed: int) -> None:
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.uniform(-9, 2)
    slopes = np.sort(random.uniform(0.0, scale, 40))
    logs = -np.cumsum(random.uniform(0.0, 5.0, 40)) - 1
    least = least_of(slopes, logs)
    levels = random.uniform(-300.0, least.end, 50)
    found = least.at(levels)
    with mpmath.workdps(40):
        for level, log_gain in zip(levels, found, strict=True):
            lines = [
                mpmath.exp(v) + mpmath.expm1(t) * mpmath.exp(mpmath.mpf(level))
                for t, v in zip(slopes, logs, strict=True)
            ]
            assert abs(float(mpmath.log(min(lines)) - mpmath.mpf(log_gain))) < 1e-12


def test_a_chain_of_gains_is_that_of_powers_in_many_digits() -> None:
    """Powers that exceed their level by 1e-12 of it, three links long."""
    places = np.linspace(1e-13, 4e-12, 30)
    logs = -60.0 - (places / 1e-12) ** 2

    def oracle(at: np.ndarray, sizes: np.ndarray, tolerance: object) -> tuple[np.ndarray, np.ndarray]:
        exact = -60.0 - (at / 1e-12) ** 2
        return exact, exact

    chain = Chain(oracle, Model(np.append(0.0, places), np.append(-60.0, logs)), 3, -np.inf)
    chain.places = places
    chain.ask(places)
    levels = np.linspace(-50.0, -30.0, 21)
    found = chain.gains(levels, 3)
    slopes, intercepts = chain.lines()
    with mpmath.workdps(60):
        lines = [(mpmath.exp(t), mpmath.exp(v)) for t, v in zip(slopes.tolist(), intercepts.tolist(), strict=True)]
        for level, log_gain in zip(levels.tolist(), found.tolist(), strict=True):
            first = at = mpmath.exp(mpmath.mpf(level))
            for _ in range(3):
                at = min(v + t * at for t, v in lines)
            truth = float(mpmath.log(at - first))
            assert log_gain <= truth
            assert log_gain > truth - 1e-9


TINY = Gaussian(6100.7).poisson(1.84e-9) * 2109


def test_tiny_epsilons_of_a_group_are_known_from_below() -> None:
    """Any split of epsilon bounds delta from above: the lower bound lies below all of them, and not far."""
    delta = TINY.group(3).delta(6.64e-10)
    parts = 6.64e-10 / 3 * np.array([0.9, 0.95, 1.0, 1.05, 1.1])
    logs = answers.log_delta_curve(TINY, parts)[1]
    splits = [
        np.exp(logs[i]) * np.exp(parts[j] + parts[4 - i]) + np.exp(logs[j]) * np.exp(parts[4 - i]) + np.exp(logs[4 - i])
        for i, j in ((0, 2), (1, 2), (2, 2))
    ]
    assert delta.lower > 0
    assert delta.lower <= min(splits)
    assert delta.upper < 1.1 * delta.lower
    epsilon = TINY.group(3).epsilon(delta.upper)
    assert epsilon.lower <= 6.64e-10 <= epsilon.upper * (1 + 1e-3)
    assert epsilon.upper < 1.001 * epsilon.lower


@pytest.mark.parametrize("run", [Guarantees.of(0.0268431, 0.0).poisson(0.203644) * 22, RandomisedResponse(0.3) * 9])
def test_a_delta_close_to_the_largest_loss_is_known_from_below(run: Guarantees) -> None:
    """There all records lose all they can: delta is P (1 - e^{eps - k l}), P the chance of one's largest loss l."""
    top = run.largest_loss
    near = top * (1 - 1e-5)
    chance = run.delta(near).lower / -np.expm1(near - top)
    for size in (2, 4):
        delta = run.group(size).delta(size * near)
        assert delta.lower > 0
        assert delta.lower <= chance * -np.expm1(size * (near - top)) * (1 + 1e-6)
        assert delta.upper >= chance * -np.expm1(size * (near - top)) * (1 - 1e-6)
        assert delta.upper < 1.3 * delta.lower  # 1e-2 of log delta


def test_a_flat_tail_of_a_group_is_known_as_well_as_its_record() -> None:
    """Log delta falls by 2 in 1000 of epsilon: points as close together as what is known of them allows."""
    found = (Gaussian(1.09613).poisson(0.00798416) * 62).group(72).epsilon(1.19e-10)
    assert found.upper < 1.001 * found.lower
    found = Gaussian(0.282383).poisson(0.00220035).group(100).epsilon(0.18919)
    assert found.upper < 1.001 * found.lower
