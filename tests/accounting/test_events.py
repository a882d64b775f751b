"""Groups among other groups, proved to tell much by one event of each: against sums over all that can happen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from hush.accounting import Gaussian, Laplace, RandomisedResponse
from hush.accounting.among import beside, events
from hush.accounting.among.outcomes import Outcomes
from hush.accounting.grouping import grouped
from hush.accounting.groups import Group
from hush.accounting.mechanisms import REPLACE_ONE


def _delta(laws: list[Outcomes], epsilon: float) -> float:
    """Of independent outcomes, all of them multiplied out."""
    losses, masses, infinite = np.zeros(1), np.ones(1), 0.0
    for law in laws:
        losses = np.add.outer(losses, law.losses).ravel()
        masses = np.multiply.outer(masses, np.exp(law.logs)).ravel()
        infinite += law.infinite * (1 - infinite)
    return infinite + float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))


@pytest.mark.parametrize("seed", range(30))
def test_two_outcomes_reveal_no_more_than_what_they_are_drawn_from(seed: int) -> None:
    """Random pairs, their delta at one place, and compositions of three: never above the pairs' own."""
    random = np.random.default_rng(seed)
    pairs, drawn = [], []
    for _ in range(3):
        p, q = random.dirichlet(np.full(6, 0.4), size=2)
        at = random.uniform(0.0, 4.0)
        loss = np.log(p / q)
        pairs.append(Outcomes(loss, np.log(p), 0.0))
        drawn.append(events.two_outcomes(at, math.log(max(_delta(pairs[-1:], at), 1e-300))))
    for epsilon in np.linspace(-3.0, 9.0, 25):
        assert _delta(drawn, epsilon) <= _delta(pairs, epsilon) + 1e-12


def test_two_outcomes_of_what_tells_nothing_tell_nothing() -> None:
    for at, log_delta in ((0.0, math.log(0.3)), (1.0, -700.0), (3.0, -math.inf)):
        assert _delta([events.two_outcomes(at, log_delta)], 0.0) == 0.0


@pytest.mark.parametrize(("size", "count"), [(1, 1), (3, 1), (3, 10), (8, 4)])
def test_equal_links_tell_no_more_than_a_group_does(size: int, count: int) -> None:
    """Groups of randomised responses, whose pairs are exact."""
    group = Group(RandomisedResponse(0.7, REPLACE_ONE) * count, size)
    for epsilon in np.linspace(0.0, 0.6 * size * count, 12):
        assert grouped.log_seen(group, float(epsilon)) <= math.log(group.delta(float(epsilon)).upper) + 1e-9


def test_equal_links_see_that_a_group_tells_nearly_all() -> None:
    group = Group(Laplace(0.2, REPLACE_ONE) * 300, 40)
    assert grouped.log_seen(group, 1e4) > -1e-3  # no record alone: 1500 at most


@pytest.mark.parametrize("epsilon", [60.0, 150.0, 400.0])
def test_an_event_of_each_group_tells_no_more_than_records_that_are_in_every_sample(epsilon: float) -> None:
    """Samples of nearly all records reveal no more than all of them do: plain Gaussians, in closed form."""
    run = (Gaussian(1.0).poisson(0.98) * 4).group(5) * 6 + (Gaussian(2.0).poisson(0.9) * 3).group(5)
    mu = 5 * math.sqrt(6 * 4 + 3 / 4)
    most = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    parts = beside._parts(run, -50.0)
    found = events.log_delta_above(parts, epsilon, 0.5)
    assert found <= math.log(most)
    if epsilon < 100:  # 300 is lost on average by what is in every sample
        assert found > -0.5


def test_fewer_records_tell_that_a_large_group_tells_all() -> None:
    """Most records are in some sample, and tell thousands then: of sixty-seven there is no doubt."""
    run = (Gaussian(0.228, REPLACE_ONE).uniform(3, of=104) * 37).group(67) * 61
    assert run.delta(1e4).lower > 1 - 1e-3
    assert run.epsilon(0.5).lower >= 1e4
