"""One release of any kind: its curve against mpmath, at depths where lattices gave nothing."""

from __future__ import annotations

import math
import time

import mpmath as mp
import numpy as np
import pytest
from busy import BUSY

from hush.accounting import Gaussian, Laplace, Mechanism, Projected
from hush.accounting.gaussian import transform
from hush.accounting.gaussian.transform import Step
from hush.accounting.mechanisms import compose
from hush.accounting.pairs import single
from hush.accounting.pairs.losses import GaussianPair, LaplacePair, Pair, Poisson, Uniform
from hush.accounting.pairs.projection import ProjectedPair


def gaussian(mu: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.e**epsilon * mp.ncdf(-mu / 2 - epsilon / mu)


def projected(noise: float, projections: int, epsilon: mp.mpf) -> mp.mpf:
    """The mean of the Gaussian's delta over chi^2, by the trapezoidal rule in log chi^2."""
    r = mp.mpf(projections)
    constant = mp.loggamma(r / 2) + r / 2 * mp.log(2)
    step = mp.mpf(1) / 24
    total = mp.mpf(0)
    for k in range(-12 * 24, 8 * 24):
        y = k * step
        density = mp.e ** (r / 2 * y - mp.e**y / 2 - constant)
        total += density * gaussian(mp.sqrt(r / mp.e**y) / mp.mpf(noise), epsilon)
    return step * total


def inner_delta(pair: Pair, epsilon: mp.mpf) -> mp.mpf:
    if isinstance(pair, GaussianPair):
        return gaussian(mp.mpf(pair.mu), epsilon)
    if isinstance(pair, LaplacePair):
        return 1 - mp.e ** ((epsilon - mp.mpf(pair.mu)) / 2) if epsilon < pair.mu else mp.mpf(0)
    assert isinstance(pair, ProjectedPair)
    return projected(pair.noise_multiplier, pair.projections, epsilon)


@pytest.mark.parametrize(
    "pair", [GaussianPair(0.8), LaplacePair(2.0), ProjectedPair(5.0, 50), ProjectedPair(1.0, 12)], ids=repr
)
@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-6, 1 - 1e-9])
def test_one_release_has_the_curve_of_its_definition(pair: Pair, rate: float) -> None:
    mp.mp.dps = 40
    p = mp.mpf(rate)
    samples = [(pair, 1)] if rate == 1 else [(Poisson(pair, rate), 1), (Uniform(pair, rate), 1)]
    for kind, direction in [*samples, (Poisson(pair, rate).reverse(), -1)]:
        curve = single.curve(kind)
        assert curve is not None
        for epsilon in (0.0, 0.3 * rate, 1.0) if direction > 0 else (0.0, 0.3 * rate):
            e = mp.mpf(epsilon)
            if direction > 0:
                exact = p * inner_delta(pair, mp.log(1 + (mp.e**e - 1) / p))
            else:
                t = mp.log(1 + (mp.e**-e - 1) / p)
                exact = p * mp.e ** (e + t) * inner_delta(pair, -t)
            lower, upper = (float(side[0]) for side in curve(np.array([epsilon])))
            assert mp.e ** mp.mpf(lower) <= exact <= mp.e ** mp.mpf(upper)
            assert upper - lower <= 1e-9 or exact < 1e-300


@pytest.mark.parametrize(("noise", "projections", "epsilon"), [(5.0, 50, 13.0), (100.0, 50, 0.55), (1.0, 50, 122.9)])
def test_projected_norms_keep_their_digits_in_far_tails(noise: float, projections: int, epsilon: float) -> None:
    mp.mp.dps = 40
    exact = float(mp.log(projected(noise, projections, mp.mpf(epsilon))))
    curve = single.curve(ProjectedPair(noise, projections))
    assert curve is not None
    lower, upper = (float(side[0]) for side in curve(np.array([epsilon])))
    assert exact < -100
    assert lower <= exact <= upper <= lower + 1e-9


@pytest.mark.parametrize("delta", [1e-3, 1e-20, 1e-48, 1e-100])
@pytest.mark.parametrize(
    "release",
    [
        Projected(5.0, 50),
        Projected(100.0, 10),
        Projected(1.0, 300).poisson(1e-9),
        Gaussian(10.0).uniform(1, of=10**9),
        Laplace(0.5).uniform(1, of=1000),
        Laplace(3.0).poisson(1e-4),
    ],
    ids=str,
)
def test_one_release_is_answered_narrowly_at_once_at_any_depth(release: Mechanism, delta: float) -> None:
    began = time.process_time()
    bounds = release.epsilon(delta)
    assert time.process_time() - began < BUSY * 0.5
    assert bounds.lower >= 1e4 or bounds.width <= max(1e-5 * bounds.upper, 1e-12)
    if bounds.upper < math.inf:
        assert release.delta(bounds.upper).lower <= delta


@pytest.mark.parametrize(("noise", "rate"), [(0.1, 1e-4), (0.5, 0.01), (2.0, 0.3)])
@pytest.mark.parametrize("count", [100, 10**6])
@pytest.mark.parametrize("spacing", [0.0, 0.37, -0.37], ids=["one by one", "on a line", "on a line downwards"])
def test_the_rounding_of_a_transform_is_less_than_what_is_claimed(
    noise: float, rate: float, count: int, spacing: float
) -> None:
    mp.mp.dps = 40
    grid = transform.grid_for(Step(rate, noise, count), math.log(1e-12))
    powers = 1.7 + 1j * (spacing * np.arange(90.0) if spacing != 0 else np.array([0.0, 0.9, 25.0]))
    found = transform.excess(grid, powers, 0.0, spacing)
    claimed = transform.rounding(grid, 1.7, np.abs(powers))
    p, sigma = mp.mpf(rate), mp.mpf(noise)
    for k in (0, 1, 2) if spacing == 0 else (1, 38, 89):
        power = powers[k]
        r, total = mp.mpc(power.real, power.imag), mp.mpf(0)
        for j in range(grid.size):
            x = mp.mpf(grid.left) + mp.mpf(grid.spacing) * (j + mp.mpf(1) / 2)
            g = 1 - p + p * mp.e ** (x / sigma - 1 / (2 * sigma**2))
            weight = mp.mpf(grid.spacing) / mp.sqrt(2 * mp.pi) * mp.e ** (-x * x / 2)
            total += weight * (mp.e ** (r * mp.log(g)) - 1 - r * (g - 1))
        assert abs(complex(total - mp.mpc(found[k].real, found[k].imag))) <= claimed[k]


def test_thousands_of_different_gaussians_lose_nothing_to_the_sum_of_their_squares() -> None:
    """Added one after the other, each of these squares lost half a unit of the sum: delta was 1e-11 too small."""
    mp.mp.dps = 40
    noises = [0.1, *(1000.000062 * (1 + 1e-13 * k) for k in range(3000))]
    run = compose([(Gaussian(noise), 1) for noise in noises])
    mu = mp.sqrt(mp.fsum(1 / mp.mpf(noise) ** 2 for noise in noises))
    assert abs(run.mu / mu - 1) < 1e-15
    for epsilon in (50.0, 92.0, 200.0):
        truth = mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
        found = run.delta(epsilon)
        assert found.lower <= truth <= found.upper


@pytest.mark.parametrize(("noise", "projections", "epsilon"), [(1.0, 1, 1e4), (0.5, 1, 2000.0), (1.0, 2, 1e4)])
def test_few_projections_are_told_far_out_where_their_largest_scales_decide(
    noise: float, projections: int, epsilon: float
) -> None:
    """Doubts that grew with the square of the scale z, where Phi is 1, left no lower bound."""
    mp.mp.dps = 30
    places = [-4, -2, -1, 0, 1, 2, 4, *(4 + mp.mpf(k) / 20 for k in range(1, 60)), 7, 8, 16, 32, 64]

    def weight(v: mp.mpf) -> mp.mpf:
        return mp.e ** (-(mp.mpf(projections) / 2) * (mp.e ** (-2 * v) - 1 + 2 * v))

    def told(v: mp.mpf) -> mp.mpf:
        z = mp.e**v / noise
        return weight(v) * (mp.ncdf(z / 2 - epsilon / z) - mp.e**epsilon * mp.ncdf(-z / 2 - epsilon / z))

    exact = mp.quad(told, places) / mp.quad(weight, places)
    found = Projected(noise, projections).delta(epsilon)
    assert found.lower <= exact <= found.upper < (1 + 1e-11) * found.lower
