"""A few kinds of steps that stand for many: as many as they stand for, and like those."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.accounting import Gaussian, Laplace
from hush.accounting.kinds import directions
from hush.accounting.mechanisms import Mechanism, compose
from hush.accounting.pairs.hopeless import log_short_of_one, surely_beyond
from hush.accounting.pairs.losses import GaussianPair
from hush.accounting.pairs.single import curve
from hush.accounting.pairs.standing import _noise, few_of, leading
from hush.accounting.releases import Projected
from hush.accounting.tails.cells import rough_look


def schedule(levels: int, rate: float, count: int, projections: int = 0) -> Mechanism:
    noises = np.geomspace(0.7, 5.0, levels).tolist()
    parts: list[tuple[Mechanism, int]] = [
        ((Projected(noise, projections) if projections else Gaussian(noise)).poisson(rate), count) for noise in noises
    ]
    return compose(parts)


@pytest.mark.parametrize("projections", [0, 50])
def test_a_few_levels_stand_for_a_hundred(projections: int) -> None:
    for steps in directions(schedule(100, 0.01, 7, projections)):
        few = few_of(steps)
        assert len(few.steps) <= 12
        assert math.fsum(few.shares) == pytest.approx(100)
        assert sum(count for _, count in few.counted) == pytest.approx(700, rel=0.02)
        assert len(few.like) == len(steps)
        for place, step in enumerate(steps):
            if step in few.steps:
                assert few.steps[few.like[place]] == step


def test_what_differs_in_more_than_its_noise_stands_for_itself() -> None:
    mechanism = schedule(13, 0.01, 1) + Laplace(2.0).poisson(0.1) * 3 + Gaussian(2.0)
    for rate in (0.02, 0.03):
        mechanism = mechanism + Gaussian(1.0).poisson(rate) * 5
    steps = directions(mechanism)[0]
    few = few_of(steps)
    assert len(few.steps) < len(steps)
    for place, (pair, count) in enumerate(steps):
        if isinstance(pair, GaussianPair) or count > 1:
            assert few.steps[few.like[place]] == (pair, count)
            assert few.shares[few.like[place]] == 1


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_a_look_at_a_few_of_them_is_about_that_at_all(epsilon: float) -> None:
    steps = directions(schedule(40, 0.01, 200))[0]
    few = rough_look(steps).log_delta(epsilon)
    every = rough_look([step for pair, count in steps for step in ((pair, count - 1), (pair, 1))])  # too few alike
    assert len(every.survey.steps) <= 24
    singly = schedule(12, 0.01, 200)
    assert few == pytest.approx(every.log_delta(epsilon), abs=0.2)
    assert rough_look(directions(singly)[0]).log_delta(epsilon) < few


def test_many_levels_next_to_no_noise_are_told_at_a_glance() -> None:
    noises = np.geomspace(0.01, 0.02, 40).tolist()
    little = compose([(Gaussian(noise).poisson(0.5), 100) for noise in noises] + [(Laplace(1.0), 1)])
    steps = directions(little)[0]
    assert surely_beyond(steps, math.log(1e-5))
    assert log_short_of_one(steps, 10.0) < -100
    assert not surely_beyond(directions(schedule(40, 0.01, 200))[0], math.log(1e-5))
    assert log_short_of_one(directions(schedule(40, 0.01, 200))[0], 1.0) == 0


@pytest.mark.parametrize("projections", [0, 50])
def test_the_least_noise_of_neighbours_stands_for_them_from_above(projections: int) -> None:
    noises = np.geomspace(0.7, 5.0, 23)[::-1].tolist()
    kinds = [(Projected(noise, projections) if projections else Gaussian(noise)).poisson(0.01) for noise in noises]
    mechanism = compose([*((kind, 1 + k) for k, kind in enumerate(kinds)), (Laplace(2.0).poisson(0.1), 100)])
    for steps in directions(mechanism):
        leaders = leading(steps)
        sampled = [k for k, (_, count) in enumerate(steps) if count != 100]
        ordered = sorted(sampled, key=lambda k: _noise(steps[k][0]))
        groups = [ordered[first : first + 5] for first in range(0, 23, 5)]
        assert len(ordered) == 23
        assert {group[0]: sum(steps[k][1] for k in group) for group in groups}.items() <= leaders.items()
        assert len(leaders) == 6
        assert sum(leaders.values()) == sum(count for _, count in steps)
        epsilons = np.array([0.0, 0.01, 0.1, 1.0])
        for group in groups:
            most = curve(steps[group[0]][0])(epsilons)[1]
            for other in group[1:]:
                assert np.all(curve(steps[other][0])(epsilons)[0] <= most)
