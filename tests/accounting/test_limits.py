"""The papers' approximations: their printed numbers, their accuracy, and that the proved band is one."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from hush.accounting import limits, moments
from hush.accounting import tradeoff as t

MNIST = 256 / 60_000
LEVELS = np.linspace(0, 1, 201)
# rate, noise, steps, delta, mu and epsilon printed in Tables 1-4 of Bu et al. 2019, true epsilon
TABLES = [
    (MNIST, 1.3, 3516, 1e-5, 0.23, 0.83, 0.864540),
    (MNIST, 1.1, 14062, 1e-5, 0.57, 2.32, 2.3816),
    (MNIST, 0.7, 10547, 1e-5, 1.13, 5.07, 5.63968),
    (MNIST, 0.6, 14531, 1e-5, 2.00, 9.98, 10.9495),
    (MNIST, 0.55, 15938, 1e-5, 2.76, 14.98, 15.7163),
    (MNIST, 0.5, 23438, 1e-5, 4.78, 31.12, 28.04602),
    (256 / 29305, 0.55, 2061, 1e-5, 2.03, 10.20, 11.8073),
    (512 / 25000, 0.56, 439, 1e-5, 2.07, 10.43, 12.1407),
    (1 / 80, 0.6, 1600, 1e-6, 1.94, 10.61, 12.7494),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "mu", "epsilon", "truth"), TABLES)
def test_the_clt_columns_of_bu2019_come_out_to_the_digit(
    rate: float, noise: float, steps: int, delta: float, mu: float, epsilon: float, truth: float
) -> None:
    limit = limits.poisson_limit(rate, noise, steps)
    assert limit.mu == pytest.approx(mu, abs=0.0051)
    assert limit.epsilon(delta) == pytest.approx(epsilon, abs=0.0051)
    assert abs(limit.epsilon(delta) / truth - 1) > 0.02
    assert limit.delta(limit.epsilon(delta)) == pytest.approx(delta, rel=1e-9)
    assert "not a guarantee" in limit.note


def test_the_clt_errs_on_both_sides_and_absurdly_at_few_steps() -> None:
    assert limits.poisson_limit(0.01, 0.6, 100).epsilon(1e-6) == pytest.approx(1.71, abs=0.005)  # true: 4.75
    assert limits.poisson_limit(*TABLES[0][:3]).epsilon(1e-5) < TABLES[0][6]
    assert limits.poisson_limit(*TABLES[5][:3]).epsilon(1e-5) > TABLES[5][6]


def test_corollary_4_of_dong2022_comes_out_as_corrected() -> None:
    limit = limits.uniform_limit(MNIST, 1.3, 3516)
    assert limit.mu == pytest.approx(0.2847, abs=5e-5)
    assert limit.epsilon(1e-5) == pytest.approx(1.0686, abs=1e-4)


@pytest.mark.parametrize("noise", [0.15, 0.19, 0.21, 1.0, 30.0, 1e4])
def test_the_uniform_limit_is_lemma_3_without_its_cancellation(noise: float) -> None:
    with mpmath.workdps(60):
        mu = 1 / mpmath.mpf(noise)
        lemma = mpmath.exp(mu**2) * mpmath.ncdf(1.5 * mu) + 3 * mpmath.ncdf(-mu / 2) - 2
        expected = float(mpmath.sqrt(2 * lemma))
    assert limits.uniform_limit(1.0, noise, 1).mu == pytest.approx(expected, rel=1e-10)


def test_nothing_overflows_before_mu_does() -> None:
    assert limits.poisson_limit(1e-200, 0.03, 1).mu == pytest.approx(1e-200 * math.exp(0.5 / 0.03**2), rel=1e-9)
    assert limits.poisson_limit(1.0, 0.01, 1).mu == math.inf
    assert limits.poisson_limit(1.0, 0.01, 1).epsilon(1e-5) == math.inf
    assert limits.uniform_limit(1.0, 0.01, 1).mu == math.inf
    assert limits.poisson_limit(0.0, 1.0, 1).epsilon(1e-5) == 0
    assert limits.poisson_limit(0.1, 1e8, 1).mu == pytest.approx(1e-9, rel=1e-9)


def test_figure_4_of_bu2019_trades_moments_for_clt() -> None:
    by_moments = moments.moments_epsilon(MNIST, 1.3, 20 / MNIST, 1e-5, moments.FOOTNOTE_13_ORDERS, moments.TAIL_BOUND)
    assert limits.poisson_limit(MNIST, 1.06, 20 / MNIST).epsilon(1e-5) == pytest.approx(by_moments, rel=0.01)
    by_moments = moments.moments_epsilon(MNIST, 0.7, 70 / MNIST, 1e-5, moments.FOOTNOTE_13_ORDERS, moments.TAIL_BOUND)
    assert limits.poisson_limit(MNIST, 0.638, 70 / MNIST).epsilon(1e-5) == pytest.approx(by_moments, rel=0.01)


def test_error_sums_of_section_4_1_come_out_with_the_rounded_mu_the_paper_used() -> None:
    """77.6% is 2 Phi(-mu/2) at the printed mu = 0.57; at mu = 0.5739 it is 77.4%."""
    limit = limits.poisson_limit(*TABLES[1][:3])
    assert limit.function().error_sum() == pytest.approx(0.7743, abs=5e-5)
    assert t.gaussian(0.57).error_sum() == pytest.approx(0.776, abs=5e-4)
    assert t.approximate(3.01, 1e-5).error_sum() == pytest.approx(0.094, abs=5e-4)


def test_the_symmetric_limit_is_exact_for_gaussians_up_to_its_own_bias_and_converges() -> None:
    """For f = G_h the theorem gives 2K/s = mu / sqrt(1 + h^2/4)."""
    for h in (0.3, 0.03):
        limit = limits.symmetric_limit([(t.gaussian(h), 1 / h**2)])
        assert limit.mu == pytest.approx(1 / math.sqrt(1 + h**2 / 4), rel=1e-9)
    mixed = limits.symmetric_limit([(t.gaussian(0.03), 500), (t.approximate(0.02), 700)])
    assert mixed.mu == pytest.approx(math.sqrt(500 * 0.03**2 + 700 * 0.02**2), rel=1e-3)
    assert limits.symmetric_limit([(t.identity(), 10)]).mu == 0


def test_the_asymmetric_limit_agrees_with_the_closed_form_where_steps_are_small() -> None:
    step = t.poisson(t.gaussian(1 / 2.0), 1e-3)
    general = limits.asymmetric_limit([(step, 10**6)])
    assert general.mu == pytest.approx(limits.poisson_limit(1e-3, 2.0, 10**6).mu, rel=2e-3)


def test_the_limit_of_approximate_steps_is_close_to_the_exact_product() -> None:
    n = 50
    limit = limits.guarantees_limit([((1 / math.sqrt(n), 0.1 / n), n)])
    assert limit.mu == pytest.approx(1.0)
    assert limit.leak == pytest.approx(-math.expm1(-0.1))
    exact = t.approximate(1 / math.sqrt(n), 0.1 / n) ** n
    assert t.distance(exact, limit.function()) < 0.005
    assert limit.delta(1.0) == pytest.approx(float(t.delta(limit.function(), 1.0)), rel=1e-9)
    assert limit.epsilon(0.05) == math.inf
    assert limit.delta(limit.epsilon(0.15)) == pytest.approx(0.15, rel=1e-9)


def test_theorem_8_beats_berry_esseen_at_rate_one_over_n() -> None:
    errors = [n * t.distance(t.approximate(1 / math.sqrt(n)) ** n, t.gaussian(1.0)) for n in (10, 40, 160, 640)]
    assert all(0.05 < error < 0.16 for error in errors)


def test_lemma_4_as_completed_agrees_with_the_functionals_and_as_printed_does_not() -> None:
    for rate, mu in ((0.1, 1.0), (0.3, 2.0), (1e-3, 0.7)):
        f = t.subsample(t.gaussian(mu), rate)
        values = limits.subsampled_gaussian_functionals(rate, mu)
        assert values == pytest.approx((t.kl(f), t.kappa2(f), t.kappa3_bar(f)), rel=1e-8)
    kl, _, third = limits.subsampled_gaussian_functionals(0.3, 2.0)
    missing = kl**3 * 0.7 * (1 - 2 * stats.norm.cdf(-1.0))
    assert missing / third > 0.009


def test_berry_esseen_brackets_exact_products_of_equal_and_of_mixed_steps() -> None:
    cases = [
        ([(t.approximate(0.1), 200)], t.approximate(0.1) ** 200),
        (
            [(t.approximate(0.1), 100), (t.approximate(0.15), 80)],
            t.tensor(t.approximate(0.1) ** 100, t.approximate(0.15) ** 80),
        ),
        ([(t.gaussian(0.05), 400)], t.gaussian(1.0)),
        ([(t.subsample(t.gaussian(1.0), 0.2), 32)], t.discretise(t.subsample(t.gaussian(1.0), 0.2), 800) ** 32),
    ]
    for steps, exact in cases:
        band = limits.berry_esseen(steps)
        assert 0 < band.gamma < 0.3
        assert np.all(band.lower(LEVELS) <= exact(LEVELS) + 1e-4)
        assert np.all(band.upper(LEVELS) >= exact(LEVELS) - 1e-4)
        middle = LEVELS[100:141]  # where |G_mu'| <= 1 the two shifts cost at most gamma each
        assert np.max(band.upper(middle) - band.lower(middle)) < 6 * band.gamma
        assert band.delta(0.5) >= float(t.delta(exact, 0.5))


def test_corollary_5_is_theorem_5_applied_to_the_subsampled_gaussian() -> None:
    general = limits.berry_esseen([(t.subsample(t.gaussian(1.0), 0.05), 1000)])
    special = limits.berry_esseen_subsampled_gaussian(0.05, 1.0, 1000)
    assert (special.mu, special.gamma) == pytest.approx((general.mu, general.gamma), rel=1e-7)
    limit = limits.uniform_limit(0.001, 1.0, 10**6).mu
    assert limits.berry_esseen_subsampled_gaussian(0.001, 1.0, 10**6).mu == pytest.approx(limit, rel=5e-3)


@pytest.mark.parametrize(("rate", "noise"), [(0.004, 0.6), (0.3, 1.0), (1e-6, 3.0), (1.0, 2.0)])
def test_moments_of_one_step_agree_with_mpmath(rate: float, noise: float) -> None:
    def moment(power: int, tilted: bool, centre: float, absolute: bool = False) -> float:
        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - mpmath.mpf(rate) + rate * mpmath.exp(x / mpmath.mpf(noise) - 1 / mpmath.mpf(2 * noise**2))
            deviation = mpmath.log(ratio) - centre
            return (abs(deviation) if absolute else deviation) ** power * mpmath.npdf(x) * (ratio if tilted else 1)

        with mpmath.workdps(30):
            return float(mpmath.quad(integrand, [-15, -6, -2, 0, 1, 2, 4, 7, 15 + 1 / noise]))

    for tilted, side in enumerate(limits.poisson_step_moments(rate, noise)):
        assert side.mean == pytest.approx(moment(1, bool(tilted), 0.0), rel=1e-9)
        for power, value in ((2, side.variance), (3, side.third), (4, side.fourth)):
            assert value == pytest.approx(moment(power, bool(tilted), side.mean), rel=1e-7, abs=1e-13)
        assert side.absolute_third == pytest.approx(moment(3, bool(tilted), side.mean, True), rel=1e-3)


def test_edgeworth_is_exact_for_a_gaussian() -> None:
    exact = limits.edgeworth_poisson(1.0, 5.0, 25)
    assert np.allclose(exact.tradeoff(LEVELS), t.gaussian(1.0)(LEVELS), atol=1e-6)
    assert exact.epsilon(1e-5) == pytest.approx(t.gaussian_epsilon(1.0, 1e-5), rel=1e-8)


def test_edgeworth_improves_on_the_clt_where_steps_are_many() -> None:
    for row, tolerance in ((TABLES[0], 1e-3), (TABLES[1], 1e-3), (TABLES[2], 0.03)):
        by_edgeworth = abs(limits.edgeworth_poisson(*row[:3]).epsilon(row[3]) / row[6] - 1)
        by_clt = abs(limits.poisson_limit(*row[:3]).epsilon(row[3]) / row[6] - 1)
        assert by_edgeworth < tolerance
        assert by_edgeworth < 0.3 * by_clt


def test_edgeworth_improves_the_trade_off_curve_of_a_composed_step() -> None:
    step = t.poisson(t.gaussian(1.0), 0.2)
    exact = t.discretise(step, 800) ** 32
    edgeworth = np.max(np.abs(limits.edgeworth_poisson(0.2, 1.0, 32).tradeoff(LEVELS) - exact(LEVELS)))
    clt = np.max(np.abs(limits.poisson_limit(0.2, 1.0, 32).tradeoff(LEVELS) - exact(LEVELS)))
    assert edgeworth < 0.1 * clt
    assert edgeworth < 0.005


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: limits.poisson_limit(1.5, 1.0, 10),
        lambda: limits.uniform_limit(0.1, 0.0, 10),
        lambda: limits.symmetric_limit([(t.gaussian(1.0), -1)]),
        lambda: limits.berry_esseen([(t.identity(), 10)]),
        lambda: limits.berry_esseen_subsampled_gaussian(0.0, 1.0, 10),
        lambda: limits.edgeworth_poisson(0.0, 1.0, 10),
        lambda: limits.edgeworth_poisson(0.1, 1.0, 10).epsilon(0.0),
        lambda: limits.poisson_limit(0.1, 1.0, 10).epsilon(2.0),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(mistake) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"^[^\n]*\.$"):
        mistake()
