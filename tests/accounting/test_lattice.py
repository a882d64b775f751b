"""The lattice accountant: certified bounds against closed forms, exact sums, peers and the table of true epsilons."""

from __future__ import annotations

import itertools
import math
import time

import mpmath
import numpy as np
import pytest
from busy import BUSY
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp

from hush.accounting import engines
from hush.accounting.lattices import readings
from hush.accounting.lattices.lattice import LARGEST, epsilon, log_delta, log_mgf
from hush.accounting.lattices.laws import Law, compose, on_lattice
from hush.accounting.pairs.losses import (
    Enclosed,
    GaussianPair,
    LaplacePair,
    Pair,
    Poisson,
    Uniform,
    guarantees,
    randomised_response,
)
from hush.accounting.pairs.projection import ProjectedPair

MNIST = 256 / 60_000


def gaussian_log_delta(mu: float, eps: float) -> float:
    """log of Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    first, second = log_ndtr(-eps / mu + mu / 2), eps + log_ndtr(-eps / mu - mu / 2)
    return float(first + np.log(-np.expm1(second - first)))


def gaussian_epsilon(mu: float, target: float) -> float:
    return float(brentq(lambda eps: gaussian_log_delta(mu, eps) - target, 0.0, 1e5, xtol=1e-12))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-30, 1e-100])
@pytest.mark.parametrize(
    ("sigma", "steps"), [(1.0, 1), (0.2, 1), (3.0, 10), (30.0, 1000), (100.0, 10**5), (3e4, 10**9), (1e3, 10**9)]
)
def test_gaussian_compositions_enclose_the_closed_form(sigma: float, steps: int, delta: float) -> None:
    low, high = epsilon([(GaussianPair(1 / sigma), steps)], math.log(delta))
    exact = gaussian_epsilon(math.sqrt(steps) / sigma, math.log(delta))
    assert low <= exact <= high
    assert high - low <= 1e-3 * high


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (10.0, 100), (100.0, 10**6)])
def test_the_whole_gaussian_curve_is_enclosed(sigma: float, steps: int) -> None:
    mu = math.sqrt(steps) / sigma
    grid = mu * np.array([-6.0, -2.0, -0.5, 0.0, 0.4, 1.0, 3.0, 9.0, 20.0])
    low, high = log_delta([(GaussianPair(1 / sigma), steps)], grid)
    exact = [gaussian_log_delta(mu, float(eps)) for eps in grid]
    assert np.all(low <= exact)
    assert np.all(exact <= high)
    assert np.all(high - low <= 2e-3 * np.maximum(1, -high))


TABLE = [
    (MNIST, 1.3, 3516, 1e-5, 0.864540),
    (MNIST, 1.1, 14062, 1e-5, 2.3816),
    (MNIST, 0.7, 10547, 1e-5, 5.63968),
    (MNIST, 0.6, 14531, 1e-5, 10.9495),
    (MNIST, 0.55, 15938, 1e-5, 15.7163),
    (MNIST, 0.5, 23438, 1e-5, 28.04602),
    (256 / 29305, 0.55, 2061, 1e-5, 11.8073),
    (512 / 25000, 0.56, 439, 1e-5, 12.1407),
    (1 / 80, 0.6, 1600, 1e-6, 12.7494),
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta", "known"), TABLE)
def test_subsampled_gaussians_enclose_the_true_epsilons(
    rate: float, sigma: float, steps: int, delta: float, known: float
) -> None:
    pair = Poisson(GaussianPair(1 / sigma), rate)
    low, high = epsilon([(pair, steps)], math.log(delta))
    assert low <= known * (1 + 5e-6)
    assert known * (1 - 5e-6) <= high
    assert high - low <= 1e-3 * high
    # The other direction reveals less here, and is enclosed as tightly.
    back_low, back_high = epsilon([(pair.reverse(), steps)], math.log(delta))
    assert back_high < low
    assert back_high - back_low <= 1e-3 * back_high


def test_a_finer_tolerance_gives_a_narrower_enclosure() -> None:
    low, high = epsilon([(Poisson(GaussianPair(1 / 1.3), MNIST), 3516)], math.log(1e-5), tolerance=1e-5)
    assert low <= 0.864540 + 5e-7
    assert high >= 0.864540 - 5e-7
    assert high - low <= 1e-5 * high


def test_few_steps_with_little_noise() -> None:
    low, high = epsilon([(Poisson(GaussianPair(1 / 0.6), 0.01), 100)], math.log(1e-6))
    assert low == pytest.approx(4.75, abs=0.005)
    assert high == pytest.approx(4.75, abs=0.005)


def test_one_subsampled_step_has_its_closed_form() -> None:
    pair, grid = Poisson(GaussianPair(1.0), 0.001), np.array([0.0, 0.05, 0.2, 0.8])
    low, high = log_delta([(pair, 1)], grid)
    exact = []
    for eps in grid:
        p, q = pair.masses(np.array([eps]))
        exact.append(math.log(p[1] - math.exp(eps) * q[1]))
    assert np.all(low <= exact)
    assert np.all(exact <= high)


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.01, 0.6, 100), (0.2, 2.0, 30)])
def test_subsampled_gaussians_agree_with_the_peer(rate: float, sigma: float, steps: int) -> None:
    peer = {
        pessimistic: pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(steps)
        for pessimistic in (False, True)
    }
    pair = Poisson(GaussianPair(1 / sigma), rate)
    grid = np.array([0.05, 0.2, 0.8])
    low, high = np.maximum(log_delta([(pair, steps)], grid), log_delta([(pair.reverse(), steps)], grid))
    with np.errstate(divide="ignore"):
        optimistic = np.log([peer[False].get_delta_for_epsilon(float(eps)) for eps in grid])
        pessimistic = np.log([peer[True].get_delta_for_epsilon(float(eps)) for eps in grid])
    assert np.all(high >= optimistic - 1e-6)
    assert np.all(low <= pessimistic + 1e-6)


PROJECTED = [
    (MNIST, 1.3, 3516, {4: 508.5, 10: 7.15, 30: 0.955, 100: 0.885}),
    (256 / 50_000, 0.9, 3906, {4: 1233, 10: 19.6, 30: 3.23, 100: 2.31}),
    (256 / 25_000, 0.6, 1953, {4: 2790, 10: 50.8, 30: 14.3, 100: 11.1}),
]


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "projections", "known"),
    [(rate, sigma, steps, r, known) for rate, sigma, steps, row in PROJECTED for r, known in row.items()],
)
def test_projected_norms_agree_with_the_table(
    rate: float, sigma: float, steps: int, projections: int, known: float
) -> None:
    pair = Poisson(ProjectedPair(sigma, projections), rate)
    low, high = epsilon([(pair, steps)], math.log(1e-5), tolerance=1e-4)
    slack = 0.01 if projections == 4 else 0.005
    assert known * (1 - slack) <= low <= high <= known * (1 + slack)
    assert high - low <= 1e-4 * high


@pytest.mark.parametrize(("rate", "sigma", "steps"), [row[:3] for row in PROJECTED])
def test_a_single_projection_gives_no_privacy_in_the_bad_direction(rate: float, sigma: float, steps: int) -> None:
    pair = Poisson(ProjectedPair(sigma, 1), rate)
    assert epsilon([(pair, steps)], math.log(1e-5)) == (LARGEST, math.inf)
    low, high = log_delta([(pair, steps)], np.array([40.0]))
    # By simulation of 4000 runs: 0.675, 0.898, 0.970, with standard errors of 0.007, 0.005, 0.003.
    assert math.exp(low[0]) == pytest.approx({1.3: 0.664, 0.9: 0.896, 0.6: 0.9735}[sigma], abs=0.006)
    assert high[0] - low[0] < 0.01
    assert epsilon([(pair.reverse(), steps)], math.log(1e-5))[1] < 20


def test_one_laplace_release_has_its_closed_form() -> None:
    mu, grid = 1.2, np.array([0.0, 0.3, 0.9, 1.1])
    low, high = log_delta([(LaplacePair(mu), 1)], grid)
    exact = np.log(-np.expm1((grid - mu) / 2))
    assert np.all(low <= exact)
    assert np.all(exact <= high)
    assert np.all(high - low <= 1e-3 * np.maximum(1, -high))
    assert epsilon([(LaplacePair(mu), 1)], math.log(1e-9))[1] <= mu * (1 + 1e-9)


@pytest.mark.parametrize("steps", [2, 20, 300])
def test_laplace_compositions_agree_with_the_peer(steps: int) -> None:
    mu = 0.2
    interval = [
        pld.from_laplace_mechanism(1 / mu, value_discretization_interval=1e-4, pessimistic_estimate=way)
        .self_compose(steps)
        .get_epsilon_for_delta(1e-6)
        for way in (False, True)
    ]
    low, high = epsilon([(LaplacePair(mu), steps)], math.log(1e-6))
    assert low <= interval[1] + 1e-9
    assert high >= interval[0] - 1e-9
    assert high - low <= 1e-3 * high


def binomial_log_delta(eps0: float, steps: int, eps: float) -> float:
    """Randomised response composed: T(Binomial(n, p), Binomial(n, 1 - p)), p = e^eps0 / (1 + e^eps0), as a sum."""
    k = np.arange(steps + 1)
    logs = stats.binom.logpmf(k, steps, 1 / (1 + math.exp(-eps0)))
    loss = (2 * k - steps) * eps0
    use = loss > eps + 1e-12
    return float(logsumexp(logs[use] + np.log(-np.expm1(eps - loss[use])))) if use.any() else -math.inf


@pytest.mark.parametrize(("eps0", "steps"), [(0.1, 1), (0.1, 100), (0.5, 30), (0.02, 20_000)])
def test_randomised_response_is_exact_to_rounding(eps0: float, steps: int) -> None:
    grid = eps0 * math.sqrt(steps) * np.array([-1.03, 0.013, 0.51, 0.93])
    low, high = log_delta([(randomised_response(eps0), steps)], grid)
    exact = np.array([binomial_log_delta(eps0, steps, float(eps)) for eps in grid])
    np.testing.assert_array_less(low - 1e-11, exact)
    np.testing.assert_array_less(exact, high + 1e-11)
    np.testing.assert_allclose(low, high, atol=1e-7)


def test_epsilon_delta_guarantees_compose_by_the_optimal_theorem() -> None:
    """Kairouz, Oh and Viswanath 2015, Theorem 3.3: delta = 1 - (1 - delta0)^k + (1 - delta0)^k times the pure part."""
    eps0, delta0, steps = 0.1, 1e-6, 50
    grid = np.array([0.0, 0.5, 1.0, 2.0])
    low, high = log_delta([(randomised_response(eps0, delta0), steps)], grid)
    keep = (1 - delta0) ** steps
    exact = np.log([1 - keep + keep * math.exp(binomial_log_delta(eps0, steps, float(eps))) for eps in grid])
    np.testing.assert_allclose(low, exact, atol=1e-7)
    np.testing.assert_allclose(high, exact, atol=1e-7)
    assert epsilon([(randomised_response(eps0, 1e-3), 10)], math.log(1e-3)) == (LARGEST, math.inf)


def test_guarantees_of_different_size_share_a_lattice() -> None:
    steps = [(randomised_response(0.1), 20), (randomised_response(0.25), 5), (guarantees([(0.3, 0.0), (0.1, 0.05)]), 2)]
    low, high = epsilon(steps, math.log(1e-4))
    assert high - low <= 1e-6 * high


def test_uniform_sampling_is_near_its_central_limit() -> None:
    """Corollary 4 of Dong, Roth and Su 2022 gives mu = 0.2847 and epsilon = 1.0686 in the limit."""
    low, high = epsilon([(Uniform(GaussianPair(1 / 1.3), MNIST), 3516)], math.log(1e-5))
    assert high - low <= 1e-3 * high
    assert low == pytest.approx(1.0686, rel=0.06)


def test_one_uniform_step_is_the_poisson_step_above_loss_zero() -> None:
    grid = np.array([0.01, 0.1, 0.7])
    uniform = log_delta([(Uniform(GaussianPair(1.0), 0.1), 1)], grid)
    poisson = log_delta([(Poisson(GaussianPair(1.0), 0.1), 1)], grid)
    assert np.all(uniform[0] <= poisson[1])
    assert np.all(poisson[0] <= uniform[1])


def test_an_enclosed_pair_takes_each_bound_from_its_own_side() -> None:
    low, high = epsilon([(Enclosed(GaussianPair(0.9), GaussianPair(1.1)), 1)], math.log(1e-5))
    assert low == pytest.approx(gaussian_epsilon(0.9, math.log(1e-5)), rel=2e-3)
    assert high == pytest.approx(gaussian_epsilon(1.1, math.log(1e-5)), rel=2e-3)
    assert low <= gaussian_epsilon(0.9, math.log(1e-5))
    assert high >= gaussian_epsilon(1.1, math.log(1e-5))


def test_a_large_delta_needs_no_epsilon() -> None:
    assert epsilon([(GaussianPair(0.1), 3)], math.log(0.5)) == (0.0, 0.0)


def test_a_hundred_different_steps_are_enclosed() -> None:
    steps: list[tuple[Pair, int]] = [(GaussianPair(0.01 * (1 + k / 50)), 10 + k) for k in range(100)]
    mu = math.sqrt(sum(count * (0.01 * (1 + k / 50)) ** 2 for k, (_, count) in enumerate(steps)))
    low, high = epsilon(steps, math.log(1e-6))
    assert low <= gaussian_epsilon(mu, math.log(1e-6)) <= high
    assert high - low <= 1e-3 * high


def test_more_steps_reveal_more() -> None:
    pair = Poisson(GaussianPair(1.0), 0.01)
    bounds = [epsilon([(pair, steps)], math.log(1e-6)) for steps in (1, 3, 10, 100, 1000, 10_000, 10**6)]
    for (low, _), (_, high) in itertools.pairwise(bounds):
        assert low <= high
    assert all(high > low for (_, low), (high, _) in itertools.pairwise(bounds))


@pytest.mark.parametrize("pair", [GaussianPair(0.8), Poisson(GaussianPair(1.0), 0.05), LaplacePair(1.0)], ids=repr)
def test_the_log_mgf_is_an_upper_bound_and_close(pair: Pair) -> None:
    orders = np.array([0.5, 2.0, 10.0])
    bounds, outside = log_mgf(pair, orders)
    edges = np.linspace(-30, 60, 400_001)
    p, q = pair.masses(edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.where((p > 1e-280) & (q > 1e-280), np.log(p / q), -np.inf)
        exact = [float(logsumexp(np.log(p[losses > -np.inf]) + order * losses[losses > -np.inf])) for order in orders]
    assert outside < 1e-280
    assert np.all(bounds >= np.array(exact) - 1e-7)
    assert np.all(bounds <= np.array(exact) * 1.01 + 1e-6)


def random_steps(generator: np.random.Generator) -> list[tuple[Pair, int]]:
    def one() -> Pair:
        inner: Pair = [
            lambda: GaussianPair(float(10 ** generator.uniform(-2, 0.7))),
            lambda: LaplacePair(float(10 ** generator.uniform(-2, 0.5))),
            lambda: randomised_response(float(10 ** generator.uniform(-2, 0.5)), float(generator.choice([0.0, 1e-9]))),
            lambda: ProjectedPair(float(10 ** generator.uniform(-0.3, 1)), int(generator.integers(1, 200))),
        ][generator.integers(4)]()
        rate = float(10 ** generator.uniform(-6, 0))
        pair: Pair = [
            lambda: inner,
            lambda: Poisson(inner, rate),
            lambda: Poisson(inner, rate).reverse(),
            lambda: Uniform(inner, rate),
        ][generator.integers(4)]()
        return pair

    return [(one(), int(10 ** generator.uniform(0, 6))) for _ in range(generator.integers(1, 4))]


@pytest.mark.parametrize("seed", range(50))
def test_any_composition_gets_an_answer_in_time(seed: int) -> None:
    generator = np.random.default_rng(seed)
    steps = random_steps(generator)
    target = float(generator.uniform(-80, -1))
    began = time.thread_time()
    low, high = epsilon(steps, target)
    assert time.thread_time() - began < 3.0
    assert 0 <= low <= high
    assert low <= LARGEST
    assert not math.isnan(high)
    if low > 0 and high < math.inf and seed < 15:
        log_low, log_high = log_delta(steps, np.array([low, high]))
        assert np.all(log_low <= log_high)
        assert np.all(log_high <= 0)
        # The two interfaces agree: delta is large enough at the lower end and small enough at the upper.
        assert log_high[0] >= target - 1e-9
        assert log_low[1] <= target + 1e-9


def test_masses_beyond_the_floating_point_range_give_no_bound_rather_than_an_error() -> None:
    pair = Poisson(GaussianPair(1 / 0.7225785669228689), 4.274211771704099e-08)
    low, high = epsilon([(pair, 271_800)], math.log(1.6958195718272284e-89), tolerance=0.03)
    assert 0 <= low <= high


def test_steps_far_smaller_than_the_lattice_are_not_moved_by_a_whole_spacing() -> None:
    """Of a bin without neighbours that rounding leaves short of P-mass a whole spacing was lost, a step at a time."""
    steps: list[tuple[Pair, int]] = [(Uniform(GaussianPair(0.1), 1e-5), 1000), (Uniform(GaussianPair(2.0), 0.05), 200)]
    low, high = epsilon(steps, math.log(1e-5), tolerance=1e-4)
    assert high - low <= 1e-4 * high
    alone = epsilon(steps[1:], math.log(1e-5), tolerance=1e-4)
    assert alone[0] <= high
    assert low <= alone[1] + 1e-3


def test_a_long_composition_of_points_is_not_put_on_a_lattice_without_spacing() -> None:
    steps: list[tuple[Pair, int]] = [
        (Poisson(GaussianPair(1 / 3.479), 6.26e-9), 241_175),
        (Poisson(randomised_response(0.000329), 0.255), 554),
        (GaussianPair(1 / 3.785), 363),
    ]
    low, high = epsilon(steps, math.log(8.1e-15))
    assert high - low <= 1e-3 * high


def test_a_hundred_different_uniform_steps_are_narrow_within_a_second() -> None:
    generator = np.random.default_rng(3)
    steps: list[tuple[Pair, int]] = [
        (
            Uniform(GaussianPair(float(10 ** generator.uniform(-1, 0.3))), float(generator.uniform(1e-4, 0.1))),
            int(10 ** generator.uniform(0, 3)),
        )
        for _ in range(100)
    ]
    began = time.process_time()
    low, high = engines.epsilon(steps, math.log(1e-5), 9e-5)
    assert time.process_time() - began < BUSY * 1.0
    assert high - low <= 1e-4 * high
    lattice_low, lattice_high = epsilon(steps, math.log(1e-5), tolerance=9e-5)
    assert max(low, lattice_low) <= min(high, lattice_high)


@pytest.mark.parametrize("seed", range(12))
def test_the_curve_of_a_law_counts_what_rounding_takes(seed: int) -> None:
    """Of the law itself, in 40 digits: small losses and deep tails were off by up to 2e-5 of delta."""
    generator = np.random.default_rng(seed)
    count, spacing = int(10 ** generator.uniform(1, 2.5)), 10 ** generator.uniform(-9, -1)
    logs = generator.uniform(-700, -5) - np.linspace(-6, 6, count) ** 2 + generator.uniform(0, 0.1, count)
    law = Law(spacing, 0.0, np.arange(count), logs, 0.0)
    with mpmath.workdps(40):
        points = [
            (mpmath.exp(log), mpmath.mpf(loss)) for log, loss in zip(logs.tolist(), law.losses.tolist(), strict=True)
        ]
        for share in (0.0, 0.3, 0.9):
            epsilon = share * count * spacing
            terms = (mass * -mpmath.expm1(mpmath.mpf(epsilon) - loss) for mass, loss in points if loss > epsilon)
            truth = mpmath.log(mpmath.fsum(terms))
            low, high = (readings.curve(law, np.array([epsilon]), 1.0, upper=side)[0] for side in (False, True))
            assert low <= truth <= high
            assert high - low < 1e-6


def test_a_rival_that_is_larger_spares_no_more_than_work() -> None:
    """Bounds hold whatever is known of another direction, and where that is smaller they are as narrow as ever."""
    mu, grid = 1.7, np.linspace(0.0, 6.0, 40)
    first, second = log_ndtr(-grid / mu + mu / 2), grid + log_ndtr(-grid / mu - mu / 2)
    exact = first + np.log(-np.expm1(second - first))
    steps = [(GaussianPair(mu), 1)]
    for rival, shown in ((exact + 0.5, 0.0), (exact - 1.0, 0.0), (exact - 1.0, 1e-2)):
        low, high = log_delta(steps, grid, 1e-3, shown, rival)
        assert np.all(low <= exact + 1e-12)
        assert np.all(exact <= high + 1e-12)
        if rival[0] < exact[0]:
            allowed = np.maximum(1e-3 * np.maximum(1, -high), shown / np.exp(low))
            assert np.all(high - low <= 1.5 * allowed)


def test_what_lies_beyond_a_deep_window_is_counted() -> None:
    """e^-900 is no floating-point number: as one it would be lost from the law that reveals more."""
    losses = 1.0 * np.arange(2000)
    law = on_lattice(losses, -losses, 1.0, 0.5, upper=True)
    run = compose([law], [2], 0.5, upper=True, floor=-800.0)
    assert -2000 < run.log_hidden < -700
    at = np.array([run.losses[-1] - 1.0])
    truth = float(np.logaddexp.reduce(np.log(np.arange(1, 4001.0)[int(at[0]) :]) - np.arange(4000.0)[int(at[0]) :]))
    assert readings.curve(run, at, 0.0, upper=True)[0] >= truth + math.log(-math.expm1(-1.0)) - 1e-9


def test_losses_too_small_to_be_told_keep_what_is_hidden() -> None:
    law = Law(1.0, 0.0, np.arange(3), np.log(np.full(3, 1 / 3)), 0.0, log_hidden=-900.0)
    assert readings.curve(law, np.array([5.0]), 0.0, upper=True)[0] == pytest.approx(-900.0)
    twice = compose([law], [2], 0.1, upper=True)
    assert readings.curve(twice, np.array([9.0]), 0.0, upper=True)[0] >= -900.0 + math.log(2)


def test_tilted_masses_that_are_lost_are_counted_wherever_a_law_is_read() -> None:
    losses, logs = np.array([0.0, 1000.0]), np.array([0.0, -1500.0])
    law = on_lattice(losses, logs, 1.0, 3.0, upper=True)
    for one in (law, compose([law], [2], 3.0, upper=True)):
        assert readings.curve(one, np.array([-1.0]), 0.0, upper=True)[0] >= math.log(-math.expm1(-1.0))
