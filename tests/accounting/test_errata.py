"""Claims of `docs/errata.md` that no other test holds."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import ndtr

from hush.accounting import Gaussian, Projected, kinds, limits, log_moments
from hush.accounting import classical as c
from hush.accounting import tradeoff as t
from hush.accounting.lattices import lattice

MNIST = 256 / 60_000


# Dong, Roth, Su 2022


def test_sampling_raises_the_error_sum_where_the_text_after_corollary_3_says_lower() -> None:
    """At their epsilon = 3, delta = 0.1, p = 0.2: C_p(f) lies above the curve of Lemma 2, so the sum is larger."""
    lemma_2 = t.approximate(*c.amplified(3.0, 0.1, 0.2))
    sampled = t.subsample(t.approximate(3.0, 0.1), 0.2)
    assert sampled.error_sum() > lemma_2.error_sum() + 0.1


def test_kappa_3_bar_of_lemma_4_is_one_percent_short_as_printed() -> None:
    kl, _, third = limits.subsampled_gaussian_functionals(0.3, 2.0)
    assert third == pytest.approx(t.kappa3_bar(t.subsample(t.gaussian(2.0), 0.3)), rel=1e-7) == pytest.approx(3.29416)
    printed = third - kl**3 * 0.7 * (1 - 2 * ndtr(-1.0))
    assert printed == pytest.approx(3.26373, abs=1e-5)


def test_neither_constant_that_theorem_8_could_mean_at_mu_1_is_a_tenth() -> None:
    """The largest distance is 0.125/n; the band, which shifts G_1 both ways, needs c = 0.048 only."""
    gaussian = t.gaussian(1.0)
    for n in (100, 400, 1000):
        power = t.approximate(1 / math.sqrt(n)) ** n
        assert n * t.distance(power, gaussian) == pytest.approx(0.125, abs=1e-3)
        for shift, holds in ((0.0472 / n, False), (0.0478 / n, True)):
            alpha = np.linspace(shift, 1 - shift, 20_001)
            above = np.all(power(alpha) <= gaussian(alpha - shift) + shift)
            below = np.all(power(alpha) >= gaussian(alpha + shift) - shift)
            assert (above and below) == holds


# Bu, Dong, Long, Su 2019


def test_mu_of_theorem_5_depends_on_nu_alone() -> None:
    """With p sqrt(T) = nu fixed the limit is nu sqrt(e^(1/sigma^2) - 1); a second T under the root would diverge."""
    for steps in (100, 10_000, 10**8):
        limit = limits.poisson_limit(0.5 / math.sqrt(steps), 1.3, steps)
        assert limit.mu == pytest.approx(0.5 * math.sqrt(math.expm1(1.3**-2)), rel=1e-12)


def test_kappa_3_without_absolute_values_is_far_too_small() -> None:
    """Lemma B.2 prints the integral of log^3, the theorem wants |log|^3."""
    f = t.poisson(t.gaussian(0.1), 0.01)
    printed = f.expectation(lambda ratio: ratio**3)
    assert t.kappa3(f) > 4 * abs(printed)


@pytest.mark.parametrize("batch", [10, 100, 10_000])
def test_dividing_by_the_realised_batch_size_doubles_the_sensitivity(batch: int) -> None:
    """Algorithms 1 and 2: one record of -C joins `batch` records of C. The mean falls by twice what was accounted."""
    noise = 1.3
    without = 1.0
    with_record = (batch - 1) / (batch + 1)
    shift = (without - with_record) / (noise / batch)
    assert 1.8 / noise < shift < 2 / noise


# Abadi et al. 2016


def test_shuffled_lots_are_far_from_what_coin_flips_give() -> None:
    """q = 0.01, sigma = 4, 100 epochs. A shuffled epoch is one unamplified release, and a replacement moves by 2C."""
    coins = (Gaussian(4.0).poisson(0.01) * 10_000).epsilon(1e-5)
    shuffled = (Gaussian(4.0 / 2).shuffled() * 100).epsilon(1e-5)
    assert coins.upper == pytest.approx(0.94687, abs=1e-5)
    assert shuffled.lower > 30


def test_the_comparison_with_strong_composition_is_below_what_its_own_lemmas_prove() -> None:
    """With the amplification that holds, log(1 + q (e^eps0 - 1)), the value 9.34 becomes 26.4."""

    def proper(share: float) -> float:
        step_delta = share * 1e-5 / (10_000 * 0.01)
        epsilon, delta = c.amplified(math.sqrt(2 * math.log(1.25 / step_delta)) / 4, step_delta, 0.01)
        return c.strong_composition(epsilon, delta, 10_000, (1 - share) * 1e-5)[0]

    assert min(proper(share) for share in np.linspace(0.01, 0.99, 99)) == pytest.approx(26.4, abs=0.1)


def test_both_expectations_of_equations_3_and_4_matter_outside_the_gaussian() -> None:
    """A pair whose two directions have different moments: either one alone would understate the other."""
    p, q = np.array([0.7, 0.3]), np.array([0.4, 0.6])
    there, back = (float(np.log(np.sum(a * (a / b) ** 9))) for a, b in pairwise([p, q, p]))
    assert abs(there - back) > 0.5
    first, second = log_moments._log_excess(0.01, 4.0, 30.0)
    assert second > first


# Bu, Gopi, Kulkarni, Lee, Shen, Tantipongpipat 2021


def test_one_projection_looks_harmless_in_the_direction_that_does_not_count() -> None:
    run = Projected(1.3, 1).poisson(MNIST) * 3516
    removing, adding = (lattice.epsilon(steps, math.log(1e-5), 0.01) for steps in kinds.directions(run))
    assert adding[1] < 4.7
    assert removing[0] == 1e4


def test_one_projection_leaves_a_delta_of_two_thirds_at_epsilon_40() -> None:
    run = Projected(1.3, 1).poisson(MNIST) * 3516
    lower, upper = lattice.log_delta(kinds.directions(run)[0], np.array([40.0]), 0.01)
    assert 0.65 < math.exp(lower[0]) <= math.exp(upper[0]) < 0.68


def test_a_simulated_run_with_one_projection_agrees() -> None:
    """delta(40) = E_P[(1 - e^(40 - L))_+]. Fixed seed, 4000 runs; five standard errors: false alarm below 1e-6."""
    generator, runs, steps = np.random.default_rng(3), 4000, 3516
    total = np.zeros(runs)
    for some in np.array_split(np.arange(steps), 40):
        size = (runs, some.size)
        z = 1 / (1.3 * np.abs(generator.normal(size=size)))
        x = generator.normal(size=size) + z * (generator.random(size) < MNIST)
        total += np.logaddexp(math.log1p(-MNIST), math.log(MNIST) + x * z - z * z / 2).sum(axis=1)
    spared = -np.expm1(np.minimum(40 - total, 0.0))
    assert abs(spared.mean() - 0.663) < 5 * spared.std() / math.sqrt(runs) + 0.001
