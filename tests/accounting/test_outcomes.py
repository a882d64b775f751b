"""Pairs with many outcomes cut into bins by their P-masses, against sums over all that can happen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf

from hush.accounting import Laplace
from hush.accounting.among.outcomes import Outcomes
from hush.accounting.mixed.tilted import Side


def _outcomes(random: np.random.Generator, scale: float, infinite: float) -> Outcomes:
    """Of two distributions, whose masses differ by factors like e^scale."""
    log_p, log_q = scale * random.standard_normal((2, 9))
    log_p, log_q = (logs - np.logaddexp.reduce(logs) for logs in (log_p, log_q))
    order = np.argsort(log_p - log_q)
    return Outcomes((log_p - log_q)[order], log_p[order] + math.log1p(-infinite), infinite)


def _log_delta(outcomes: Outcomes, count: int, epsilon: float) -> float:
    """By a sum over all paths, with fifty digits."""
    mp.dps = 50
    atoms = [
        (mpf(float(loss)), mp.exp(mpf(float(log)))) for loss, log in zip(outcomes.losses, outcomes.logs, strict=True)
    ]
    total = 1 - (1 - mpf(outcomes.infinite)) ** count
    for path in itertools.product(atoms, repeat=count):
        loss = sum(atom[0] for atom in path)
        if loss > epsilon:
            mass = mp.fprod(atom[1] for atom in path)
            total += mass * (1 - mp.exp(mpf(epsilon) - loss))
    return float(mp.log(total)) if total > 0 else -math.inf


def _seen(side: Side, count: int, epsilon: float) -> float:
    """The same of a law at points, with what is counted apart."""
    law = side.laws[0][0]
    finite = Outcomes(law.losses, law.logs, 0.0)  # type: ignore[attr-defined]
    apart = float(side.seen(np.array([epsilon]))[0])
    return float(np.logaddexp(_log_delta(finite, count, epsilon), math.log(apart) if apart > 0 else -math.inf))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 800.0])
@pytest.mark.parametrize("cut", [0.3, 1.2, math.inf])
@pytest.mark.parametrize("seed", range(4))
def test_bins_reveal_less_and_more(seed: int, cut: float, scale: float) -> None:
    """Also where losses beyond the cut count as infinite, or apart, and where Q-masses are e^-1600."""
    random = np.random.default_rng([seed, 5])
    outcomes = _outcomes(random, scale, 1e-9 if seed % 2 else 0.0)
    last = min(cut * scale, float(outcomes.losses[-1]) + 1e-9)
    edges = np.linspace(float(outcomes.losses[0]), last, 4)
    less, more = outcomes.less(edges), outcomes.more(edges)
    for count in (1, 3):
        for epsilon in (0.0, 0.1 * scale, 0.8 * scale, 1.5 * scale):
            truth = _log_delta(outcomes, count, epsilon)
            low = _seen(Side(((less, count),), above=False), count, epsilon)
            high = float(
                np.logaddexp(
                    _log_delta(Outcomes(more.losses, more.logs, 0.0), count, epsilon),
                    math.log(-math.expm1(count * math.log1p(-min(more.infinite, 1 - 1e-16)))),
                )
            )
            assert low - 1e-12 <= truth <= high + 1e-12


def test_narrow_bins_say_what_the_outcomes_do() -> None:
    random = np.random.default_rng(3)
    losses = np.sort(900 + 5 * random.standard_normal(3000))
    outcomes = Outcomes(losses, np.full(3000, -math.log(3000)), 0.0)
    edges = outcomes.edges(0.5, 1e4, 1e-3, 1)
    less, more = outcomes.less(edges), outcomes.more(edges)
    assert less.losses.size < 600
    at = np.array([880.0, 900.0, 908.0])
    truth = outcomes.less(losses).log_delta(at)
    np.testing.assert_allclose(less.log_delta(at), truth, atol=2e-3)
    np.testing.assert_allclose(more.log_delta(at), truth, atol=2e-3)


def test_losses_that_rounding_may_exchange_keep_their_order() -> None:
    """A mass of e^-700 has a loss that is good to 1e-12 only: raised by that it passes the next, of mass 1."""
    edges = np.array([0.5, 1.0, 2.0])
    losses = 1.0 - np.array([2e-14, 1e-14, -1.0])
    outcomes = Outcomes(losses, np.array([-700.0, math.log(0.9), math.log(0.1)]), 0.0)
    more = outcomes.more(edges)
    for epsilon in (0.0, 0.7, 1.0, 1.5):
        law = Outcomes(more.losses, more.logs, more.infinite)
        assert _log_delta(law, 1, epsilon) >= _log_delta(outcomes, 1, epsilon)


def _two_laplace(first: float, second: float, epsilon: float) -> float:
    """delta of two Laplace releases: the second's loss is mu - 2x, x exponential, between two atoms."""

    def alone(at: float) -> float:
        if at >= first:
            return 0.0
        return -math.expm1((at - first) / 2) if at > -first else -math.expm1(at)

    x = (np.arange(200_000) + 0.5) * second / 200_000
    between = np.array([alone(epsilon - second + 2 * t) for t in x]) * 0.5 * np.exp(-x)
    ends = 0.5 * alone(epsilon - second) + 0.5 * math.exp(-second) * alone(epsilon + second)
    return float(between.sum() * second / 200_000 + ends)


@pytest.mark.parametrize("epsilon", [880.0, 897.0, 902.0, 905.0])
def test_groups_with_losses_of_hundreds_beside_others_against_one_integral(epsilon: float) -> None:
    """k records of a Laplace release of mu are one of k mu: the noise is log-concave, and its tests are thresholds."""
    both = Laplace(1 / 300).group(3) + Laplace(0.5).group(3)
    truth = _two_laplace(900.0, 6.0, epsilon)
    delta = both.delta(epsilon)
    assert delta.lower <= truth * (1 + 1e-9)
    assert delta.upper >= truth * (1 - 1e-9)
    assert math.log(delta.upper / delta.lower) < 0.02
    found = both.epsilon(truth)
    assert found.lower <= epsilon * (1 + 1e-9)
    assert found.upper >= epsilon * (1 - 1e-9)
    assert found.upper - found.lower < 1e-3 * epsilon
