"""What is seen of groups at a glance is never more than they lose, and tells where they are beyond all limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Guarantees, Laplace, Mechanism, RandomisedResponse
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping import seen, told
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.releases import Projected

RUNS = [
    Gaussian(0.21, REPLACE_ONE).poisson(0.12) * 9,
    Gaussian(1.1, REPLACE_ONE).poisson(0.04) * 4800,
    Gaussian(0.7).poisson(2e-3) * 50,
    Gaussian(3.0).poisson(0.01) * 1000 + RandomisedResponse(1.0, ADD_REMOVE) * 5,
    Gaussian(2.0) * 6,
    Laplace(0.5) * 20,
    Laplace(0.3).poisson(0.02) * 300,
    Guarantees.of(0.4, 1e-9) * 8 + Gaussian(5.0).poisson(0.1) * 30,
    Projected(2.0, 40).poisson(0.01) * 80,
    Projected(0.5, 300) * 3,
    Gaussian(4.0).uniform(20, of=1000) * 500,
    Projected(13.2, 40) * 3843,
    Laplace(0.5).poisson(0.2) * 4000,
    RandomisedResponse(0.3, ADD_REMOVE) * 900,
]


@np.errstate(all="ignore")
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_single_records_deltas_are_at_least_what_is_seen(run: Mechanism) -> None:
    places = np.geomspace(0.05, 400.0, 8)
    logs = np.max([told.log_deltas(steps, places) for steps in directions(run)], axis=0)
    assert np.any(logs > -500)
    for place, log in zip(places.tolist(), logs.tolist(), strict=True):
        assert math.exp(log) <= run.delta(place).upper * (1 + 1e-9)


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_groups_delta_is_at_least_what_is_seen(run: Mechanism, size: int) -> None:
    group = Group(run, size)
    for epsilon in (20.0, 1e4):
        log = seen.log_chained(group, epsilon)
        if log > -650:
            assert math.exp(log) <= run.group(size).delta(epsilon).upper * (1 + 1e-9)


@pytest.mark.parametrize("size", [2, 9, 60])
@pytest.mark.parametrize("epsilon", [0.0, 11.0, 30.0, 1000.0])
def test_chains_of_plain_noise_lie_below_the_closed_form(size: int, epsilon: float) -> None:
    mu = 2.0
    exact = float(gaussian_curve((size * mu) ** 2)(np.array([epsilon]))[1][0])
    assert seen.log_chained(Group(Gaussian(1 / mu), size), epsilon) <= exact + 1e-9


@pytest.mark.parametrize(
    ("run", "size"),
    [
        (Gaussian(0.21, REPLACE_ONE).poisson(0.12) * 9, 51),
        (Gaussian(0.178).poisson(1.6e-6) * 1_600_000, 61),
        (Projected(0.466, 461) * 26, 26),
    ],
)
def test_groups_far_beyond_the_limit_are_told(run: Mechanism, size: int) -> None:
    assert seen.log_chained(Group(run, size), 1e4) > -1e-6
    assert run.group(size).epsilon(1e-5).lower == 1e4
    assert run.group(size).delta(1e4).lower > 1 - 1e-3


def test_many_small_losses_beside_a_large_one_tell_of_a_group() -> None:
    """A first link that one large loss decides, and others that thousands of small ones do."""
    group = Group(Projected(13.2288, 940) * 3843, 27)
    assert seen.log_chained(group, 1e4) > math.log1p(-1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 60.0])
@pytest.mark.parametrize("steps", [1, 40, 5000])
def test_tilts_tell_of_plain_noise_nearly_all_there_is(steps: int, epsilon: float) -> None:
    mu = 3 / math.sqrt(steps)
    (way, *_) = directions(Gaussian(1 / mu) * steps)
    exact = float(gaussian_curve(9.0)(np.array([epsilon]))[0][0])
    assert 1.2 * exact - 1 < told._by_tilts(way, np.array([epsilon]))[0] <= exact
