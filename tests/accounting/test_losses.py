"""The pairs: their masses against quadrature and closed forms, and what must hold for every pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import ndtr

from hush.accounting.pairs.losses import (
    Atoms,
    GaussianPair,
    LaplacePair,
    Pair,
    Poisson,
    Uniform,
    guarantees,
    randomised_response,
)
from hush.accounting.pairs.projection import ProjectedPair

PAIRS: list[Pair] = [
    GaussianPair(0.7),
    LaplacePair(1.2),
    randomised_response(0.5),
    randomised_response(0.5, 1e-3),
    guarantees([(0.0, 0.3), (0.5, 0.1), (1.0, 1e-3)]),
    Poisson(GaussianPair(1.5), 0.03),
    Poisson(GaussianPair(1.5), 0.03).reverse(),
    Poisson(LaplacePair(1.2), 0.3),
    Poisson(randomised_response(0.5, 1e-3), 0.2),
    Poisson(randomised_response(0.5, 1e-3), 0.2).reverse(),
    Poisson(GaussianPair(1.0), 1.0),
    Uniform(GaussianPair(1.0), 0.1),
    Uniform(randomised_response(1.0, 1e-3), 0.1),
    ProjectedPair(1.3, 1),
    ProjectedPair(0.6, 30),
    Poisson(ProjectedPair(1.3, 10), 0.01).reverse(),
]


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
@pytest.mark.parametrize("edges", [[], [0.3], [-0.4, -0.1, 0.0, 0.02, 0.4, 2.0], [-3.0, -1.0], [0.5, 0.6]], ids=str)
def test_masses_add_up_and_have_the_ratio_of_their_bin(pair: Pair, edges: list[float]) -> None:
    p, q = pair.masses(np.array(edges))
    assert p.shape == q.shape == (len(edges) + 1,)
    assert p.sum() == pytest.approx(1, abs=1e-13)
    assert q.sum() == pytest.approx(1, abs=1e-13)
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    finite = np.append(p[:-1], p[-1] - pair.infinite)
    with np.errstate(invalid="ignore"):  # an empty bin without upper end
        assert not np.any(finite > np.exp(high) * q * (1 + 1e-12) + 1e-15)
    assert np.all(p * (1 + 1e-12) + 1e-15 >= np.exp(low) * np.append(q[0] - pair.vanishing, q[1:]))


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_reversing_twice_changes_nothing_and_once_swaps_the_masses(pair: Pair) -> None:
    edges = np.array([-0.41, -0.13, 0.017, 0.37])
    p, q = pair.masses(edges)
    p_back, q_back = pair.reverse().masses(-edges[::-1])
    np.testing.assert_allclose(p_back[::-1], q, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(q_back[::-1], p, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(pair.reverse().reverse().masses(edges)[0], p)
    assert pair.reverse().infinite == pytest.approx(pair.vanishing)
    assert hash(pair) == hash(pair.reverse().reverse())


def test_gaussian_tails_keep_their_digits() -> None:
    p, q = GaussianPair(1.0).masses(np.array([-20.0, 20.0]))
    np.testing.assert_allclose(p[[0, -1]], [ndtr(-20.5), ndtr(-19.5)], rtol=1e-13)
    np.testing.assert_allclose(q[[0, -1]], [ndtr(-19.5), ndtr(-20.5)], rtol=1e-13)


def test_laplace_masses_agree_with_the_distribution() -> None:
    mu, edges = 1.2, np.array([-0.5, 0.3, 0.9])
    x = (mu - edges) / 2  # the loss falls from mu at x = 0 to -mu at x = mu
    p, q = LaplacePair(mu).masses(edges)
    np.testing.assert_allclose(np.cumsum(p)[:-1], stats.laplace.sf(x), rtol=1e-13)
    np.testing.assert_allclose(np.cumsum(q)[:-1], stats.laplace.sf(x - mu), rtol=1e-13)


def test_an_epsilon_delta_guarantee_is_four_atoms() -> None:
    epsilon, delta = 0.8, 0.01
    pair = randomised_response(epsilon, delta)
    big = (1 - delta) / (1 + math.exp(-epsilon))
    assert pair.losses == (epsilon, -epsilon)
    np.testing.assert_allclose(pair.p, [big, big * math.exp(-epsilon)], rtol=1e-14)
    np.testing.assert_allclose(pair.q, pair.p[::-1], rtol=1e-14)
    assert pair.infinite == pytest.approx(delta)
    assert pair.vanishing == pytest.approx(delta)


def test_several_guarantees_give_the_largest_trade_off_function() -> None:
    promises = [(0.0, 0.3), (0.5, 0.1), (1.0, 1e-3), (1.1, 1e-3), (0.6, 0.2)]
    pair = guarantees(promises)
    alphas = np.linspace(0, 1, 101)
    best = np.max(
        [
            np.maximum.reduce([0 * alphas, 1 - d - math.exp(e) * alphas, math.exp(-e) * (1 - d - alphas)])
            for e, d in promises
        ],
        axis=0,
    )
    knots = np.concatenate([[0.0], np.cumsum(pair.q), [1.0]])
    heights = np.concatenate([[1 - pair.infinite], 1 - pair.infinite - np.cumsum(pair.p), [0.0]])
    np.testing.assert_allclose(np.interp(alphas, knots, heights), best, atol=1e-12)


def test_a_guarantee_that_says_nothing_beyond_another_is_ignored() -> None:
    assert guarantees([(1.0, 1e-5), (2.0, 1e-4)]).losses == randomised_response(1.0, 1e-5).losses


def test_sampling_everybody_changes_nothing() -> None:
    edges = np.array([-0.3, 0.1, 0.9])
    for inner in (GaussianPair(1.1), LaplacePair(0.7), randomised_response(0.5, 0.01)):
        np.testing.assert_allclose(Poisson(inner, 1.0).masses(edges), inner.masses(edges))


@pytest.mark.parametrize("loss", [-0.0099, -0.005, 1e-6, 0.3, 3.0, 40.0])
def test_poisson_masses_agree_with_the_mixture(loss: float) -> None:
    mu, rate = 1.3, 0.01
    x = math.log((math.exp(loss) - 1 + rate) / rate) / mu + mu / 2
    p, q = Poisson(GaussianPair(mu), rate).masses(np.array([loss]))
    assert q[1] == pytest.approx(ndtr(-x), rel=1e-9)
    assert p[1] == pytest.approx((1 - rate) * ndtr(-x) + rate * ndtr(mu - x), rel=1e-9)


def test_poisson_keeps_vanishing_mass_at_its_floor() -> None:
    rate, inner = (
        0.2,
        Atoms(
            (0.5, -0.5),
            (0.6, 0.3),
            (0.6 * math.exp(-0.5), 0.3 * math.exp(0.5)),
            0.1,
            1 - 0.6 * math.exp(-0.5) - 0.3 * math.exp(0.5),
        ),
    )
    floor = math.log1p(-rate)
    p, q = Poisson(inner, rate).masses(np.array([floor - 1, floor - 0.01, floor + 0.01]))
    assert p[0] == p[1] == q[0] == q[1] == 0
    assert p[2] == pytest.approx((1 - rate) * q[2])
    assert q[2] == pytest.approx(inner.vanishing)


def test_uniform_is_the_operator_of_equation_13() -> None:
    """delta(eps) of C_p(f), from its masses, against its conjugate, with min{f_p, f_p^-1} evaluated on a grid."""
    mu, rate = 1.0, 0.1
    alphas = np.concatenate([np.geomspace(1e-9, 0.01, 4000), np.linspace(0.01, 1, 200_001)[1:]])
    f = ndtr(stats.norm.isf(alphas) - mu)
    mixed = rate * f + (1 - rate) * (1 - alphas)
    inverse = np.interp(alphas, mixed[::-1], alphas[::-1])
    smaller = np.minimum(mixed, inverse)
    pair = Uniform(GaussianPair(mu), rate)
    for epsilon in (0.0, 0.05, 0.3, 1.0):
        # The double conjugate has the same conjugate: delta = max over a of 1 - C(a) - e^eps a.
        expected = float(np.max(1 - smaller - math.exp(epsilon) * alphas))
        edges = np.linspace(epsilon, 8, 200_001)
        p, q = pair.masses(edges)
        assert float(np.sum(p[1:] - math.exp(epsilon) * q[1:])) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("projections", [1, 4, 30, 1000])
@pytest.mark.parametrize("loss", [0.0, 0.3, 5.0, 40.0])
def test_projected_masses_agree_with_adaptive_quadrature(projections: int, loss: float) -> None:
    sigma, law = 1.3, stats.chi2(projections)

    def mean(sign: int) -> float:
        def integrand(quantile: float) -> float:
            z = math.sqrt(projections / law.ppf(quantile)) / sigma
            return float(ndtr(-loss / z + sign * z / 2))

        return float(integrate.quad(integrand, 0, 1, points=[1e-6, 1e-4, 1e-2], limit=400, epsabs=1e-13)[0])

    p, q = ProjectedPair(sigma, projections).masses(np.array([loss]))
    assert p[1] == pytest.approx(mean(1), abs=1e-10, rel=1e-8)
    assert q[1] == pytest.approx(mean(-1), abs=1e-10, rel=1e-8)


@pytest.mark.parametrize("projections", [10, 30, 10_000, 1_000_000])
def test_projected_tails_do_not_depend_on_the_step(projections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = np.array([-30.0, -8.0, 0.5, 10.0, 100.0, 900.0])
    coarse = ProjectedPair(0.9, projections).masses(edges)
    monkeypatch.setattr("hush.accounting.pairs.projection._CERTAINTY", 400.0)
    fine = ProjectedPair(0.9, projections).masses(edges)
    for one, other in zip(coarse, fine, strict=True):
        large = other > 1e-100
        np.testing.assert_allclose(one[large], other[large], rtol=1e-10)


def test_many_projections_are_the_gaussian_mechanism() -> None:
    edges = np.array([-2.0, 0.1, 3.0])
    np.testing.assert_allclose(
        ProjectedPair(1.3, 1_000_000).masses(edges), GaussianPair(1 / 1.3).masses(edges), rtol=1e-4
    )


@pytest.mark.parametrize("epsilon", [1.0, 36.0, 38.0, 300.0, 700.0, 800.0])
@pytest.mark.parametrize("others", [[], [(0.0, 0.2)], [(0.5, 1e-5)], [(0.5, 1e-5), (20.0, 1e-12)]])
@pytest.mark.parametrize("delta", [0.0, 1e-14])
def test_promises_with_a_large_epsilon_keep_their_mirrored_atom(
    epsilon: float, others: list[tuple[float, float]], delta: float
) -> None:
    pair = guarantees([*others, (epsilon, delta)])
    assert math.fsum(pair.p) + pair.infinite == pytest.approx(1.0, abs=1e-14)
    assert math.fsum(pair.q) + pair.vanishing == pytest.approx(1.0, abs=1e-14)
    assert pair.losses == tuple(-loss for loss in reversed(pair.losses))
    assert pair.p == tuple(reversed(pair.q))


def test_a_finite_pairs_curve_is_the_sum_over_its_losses_however_many_are_asked_at_once() -> None:
    random = np.random.default_rng(5)
    at = np.sort(random.normal(0.0, 3.0, 500))
    q = np.exp(-4 * np.abs(at)) * random.random(500)
    p = q * np.exp(at)
    pair = Atoms(tuple(at), tuple(p / p.sum()), tuple(q / p.sum()), 1e-9)
    for epsilons in (
        np.linspace(0.0, 12.0, 1000),
        np.linspace(0.0, 8.0, 65),
        np.array([3.0, 1.0, 2.0]),
        np.array([0.3]),
    ):
        spared = -np.expm1(np.minimum(np.subtract.outer(epsilons, at), 0.0))
        np.testing.assert_allclose(np.exp(pair.log_delta(epsilons)), 1e-9 + spared @ (p / p.sum()), rtol=1e-13)
