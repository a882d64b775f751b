"""The moments accountant against mpmath, the binomial theorem, closed forms and the papers' numbers."""

import math

import mpmath
import numpy as np
import pytest

from hush.accounting import log_moments
from hush.accounting import moments as m

MNIST = 256 / 60_000
# rate, noise, steps, delta, epsilon with footnote-13 orders, epsilon printed in Bu et al. 2019
TABLES = [
    (MNIST, 1.3, 3516, 1e-5, 1.192, 1.19),
    (MNIST, 1.1, 14062, 1e-5, 3.009, 3.01),
    (MNIST, 0.7, 10547, 1e-5, 7.123, 7.10),
    (MNIST, 0.6, 14531, 1e-5, 13.33, 13.27),
    (MNIST, 0.55, 15938, 1e-5, 18.77, 18.72),
    (MNIST, 0.5, 23438, 1e-5, 32.36, 32.40),
    (256 / 29305, 0.55, 2061, 1e-5, 14.71, 14.70),
    (512 / 25000, 0.56, 439, 1e-5, 15.29, 15.24),
    (1 / 80, 0.6, 1600, 1e-6, 15.39, 15.39),
]
TRUE_EPSILON = [0.864540, 2.3816, 5.63968, 10.9495, 15.7163, 28.04602, 11.8073, 12.1407, 12.7494]


def _reference(rate: float, noise: float, order: float) -> float:
    """log max(E1, E2) by mpmath quadrature."""
    with mpmath.workdps(40):
        s, q = 1 / mpmath.mpf(noise), mpmath.mpf(rate)

        def expectation(power: mpmath.mpf) -> mpmath.mpf:
            def integrand(x: mpmath.mpf) -> mpmath.mpf:
                return (1 - q + q * mpmath.exp(s * x - s * s / 2)) ** power * mpmath.npdf(x)

            peak = power * s
            points = sorted({-12.0, -4.0, 0.0, 4.0, 12.0, *(float(peak) + d for d in (-12, -4, 0, 4, 12))})
            return mpmath.quad(integrand, [-mpmath.inf, *points, mpmath.inf])

        return float(mpmath.log(max(expectation(mpmath.mpf(order) + 1), expectation(-mpmath.mpf(order)))))


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [(1e-9, 1.0, 3.7), (0.01, 4.0, 0.05), (0.01, 0.5, 2.5), (0.3, 1.3, 12.5), (0.9, 2.0, 0.5), (1e-4, 0.3, 1.25)],
)
def test_log_moments_at_real_orders_agree_with_mpmath(rate: float, noise: float, order: float) -> None:
    assert m.log_moment(rate, noise, order) == pytest.approx(_reference(rate, noise, order), rel=1e-10)


@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.01, 0.3, 0.99])
@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 10.0, 1e4])
def test_log_moments_at_whole_orders_agree_with_the_binomial_theorem(rate: float, noise: float) -> None:
    orders = np.array([1, 2, 5, 32, 100, 1000, 10_000])
    exact = m.log_moment_binomial(rate, noise, orders)
    assert np.allclose(m.log_moment(rate, noise, orders), exact, rtol=3e-11, atol=0)


def test_log_moments_are_closed_form_where_sampling_is_total_and_meet_it_from_below() -> None:
    orders = np.array([0.3, 2.0, 40.0])
    whole = m.gaussian_moment(0.8)(orders)
    assert np.array_equal(m.log_moment(1.0, 0.8, orders), whole)
    nearly = m.log_moment(1 - 1e-9, 0.8, orders)
    assert np.all(nearly < whole)
    assert np.allclose(nearly, whole, rtol=1e-7)
    assert np.all(m.log_moment(0.0, 0.8, orders) == 0)


def test_log_moments_are_convex_and_grow_with_rate_and_fall_with_noise() -> None:
    orders = np.linspace(0.1, 60, 200)
    values = m.log_moment(0.02, 0.8, orders)
    assert np.all(np.diff(values, 2) > -1e-12)
    assert np.all(m.log_moment(0.03, 0.8, orders) > values)
    assert np.all(m.log_moment(0.02, 0.9, orders) < values)


def test_the_second_expectation_is_the_larger_one() -> None:
    """Mironov, Talwar, Zhang 2019 prove E2 >= E1 for the subsampled Gaussian; both are computed all the same."""
    for rate, noise, order in [(1e-6, 0.5, 0.2), (0.01, 4.0, 30.0), (0.5, 1.0, 3.0), (0.95, 0.7, 8.0)]:
        first, second = log_moments._log_excess(rate, noise, order)
        assert second >= first


def test_log_moments_of_a_simulated_step_agree() -> None:
    """Importance-free Monte Carlo of E2 at lambda = 2; fixed seed, five standard errors: false alarm below 1e-6."""
    generator, n = np.random.default_rng(2), 400_000
    x = generator.normal(size=n)
    powers = (0.8 + 0.2 * np.exp(x / 1.5 - 1 / 4.5)) ** 3
    estimate, error = powers.mean(), powers.std() / math.sqrt(n)
    assert abs(math.exp(float(m.log_moment(0.2, 1.5, 2.0))) - estimate) < 5 * error


def test_abadi2016_example_comes_out() -> None:
    arguments = {"delta": 1e-5, "orders": m.INTEGER_ORDERS, "conversion": m.TAIL_BOUND}
    assert m.moments_epsilon(0.01, 4.0, 10_000, **arguments) == pytest.approx(1.2586, abs=5e-5)
    assert m.moments_epsilon(0.01, 4.0, 40_000, **arguments) == pytest.approx(2.5759, abs=5e-5)


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "footnote", "printed"), TABLES)
def test_bu2019_moments_column_comes_out_to_the_digit_with_the_tutorial_orders(
    rate: float, noise: float, steps: int, delta: float, footnote: float, printed: float
) -> None:
    by_footnote = m.moments_epsilon(rate, noise, steps, delta, m.FOOTNOTE_13_ORDERS, m.TAIL_BOUND)
    assert by_footnote == pytest.approx(footnote, abs=0.0051)
    by_tutorial = m.moments_epsilon(rate, noise, steps, delta, m.TUTORIAL_ORDERS, m.TAIL_BOUND)
    assert by_tutorial == pytest.approx(printed, abs=0.0055)


def test_footnote_13_lists_renyi_orders_and_not_lambdas() -> None:
    read_as_lambda = m.moments_epsilon(*TABLES[5][:4], m.FOOTNOTE_13_ORDERS + 1, m.TAIL_BOUND)
    assert read_as_lambda == pytest.approx(41.22, abs=0.01)


def test_figure_4_of_bu2019_comes_out() -> None:
    first = m.moments_epsilon(MNIST, 1.3, 20 / MNIST, 1e-5, m.FOOTNOTE_13_ORDERS, m.TAIL_BOUND)
    second = m.moments_epsilon(MNIST, 0.7, 70 / MNIST, 1e-5, m.FOOTNOTE_13_ORDERS, m.TAIL_BOUND)
    assert (first, second) == pytest.approx((1.350, 8.676), abs=5e-4)


@pytest.mark.parametrize(("row", "truth"), list(zip(TABLES, TRUE_EPSILON, strict=True)))
def test_the_bound_is_above_the_truth_and_todays_conversion_and_real_orders_only_tighten_it(
    row: tuple[float, float, int, float, float, float], truth: float
) -> None:
    best = m.moments_epsilon(*row[:4])
    tail = m.moments_epsilon(*row[:4], conversion=m.TAIL_BOUND)
    listed = m.moments_epsilon(*row[:4], m.FOOTNOTE_13_ORDERS, m.TAIL_BOUND)
    assert truth < best < tail <= listed + 1e-9
    assert best < 1.2 * truth


@pytest.mark.parametrize("conversion", [m.TAIL_BOUND, m.IMPROVED], ids=["tail", "improved"])
def test_delta_and_epsilon_of_moments_undo_each_other(conversion: m.Conversion) -> None:
    orders = np.array([1.0, 4.0, 9.5, 20.0])
    moments = m.gaussian_moment(1.4)(orders)
    epsilon = m.epsilon_from_moments(orders, moments, 1e-6, conversion)
    assert m.delta_from_moments(orders, moments, epsilon, conversion) == pytest.approx(1e-6, rel=1e-9)
    curve_epsilon = m.curve_epsilon(m.gaussian_moment(1.4), 1e-6, conversion)
    assert m.curve_delta(m.gaussian_moment(1.4), curve_epsilon, conversion) == pytest.approx(1e-6, rel=1e-3)
    assert m.moments_delta(0.01, 1.0, 100, 1.0, orders, conversion) <= 1
    together = m.curve_log_deltas(m.gaussian_moment(1.4), [curve_epsilon, 100.0], conversion)
    assert together[0] == pytest.approx(math.log(1e-6), abs=2e-3)
    assert together[0] >= math.log(m.curve_delta(m.gaussian_moment(1.4), curve_epsilon, conversion)) - 1e-9
    assert -1e5 < together[1] < -5000


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0])
def test_both_conversions_are_valid_and_the_improved_one_is_optimal_to_the_known_gap_for_a_gaussian(
    sigma: float,
) -> None:
    from hush.accounting.divergences import gaussian_epsilon

    for delta in (1e-2, 1e-5, 1e-10):
        exact = gaussian_epsilon(1 / sigma, delta)
        improved = m.curve_epsilon(m.gaussian_moment(sigma), delta)
        tail = m.curve_epsilon(m.gaussian_moment(sigma), delta, m.TAIL_BOUND)
        by_hand = 1 / (2 * sigma**2) + math.sqrt(2 * math.log(1 / delta)) / sigma
        assert exact <= improved <= tail
        assert tail == pytest.approx(by_hand, rel=1e-4)


def test_laplace_moments_agree_with_the_trade_off_function() -> None:
    from hush.accounting.tradeoff import laplace, renyi

    for order in (0.5, 3.0, 10.0):
        assert m.laplace_moment(0.7)(np.array(order)) == pytest.approx(
            order * renyi(laplace(1 / 0.7), order + 1), rel=1e-9
        )


def test_lemma_c1_holds_and_is_looser_than_randomised_response_everywhere() -> None:
    orders = np.geomspace(0.01, 1000, 60)
    for epsilon in (0.01, 0.3, 1.0, 3.0):
        exact, lemma = m.pure_moment(epsilon)(orders), m.pure_moment_lemma_c1(epsilon)(orders)
        assert np.all(exact <= lemma)
        assert np.all(exact <= np.minimum(orders * epsilon, orders * (orders + 1) * epsilon**2 / 2) + 1e-12)
    assert np.all(m.pure_moment_lemma_c1(0.7)(orders) > orders * 0.7)
    two_points = np.log((math.exp(1.0 * 3) + math.exp(-2.0)) / (1 + math.e))
    assert m.pure_moment(1.0)(np.array(2.0)) == pytest.approx(two_points)


@pytest.mark.parametrize(("rate", "noise"), [(1e-4, 4.0), (0.01, 4.0), (0.0624, 1.0), (0.006, 10.0), (1e-9, 20.0)])
def test_lemma_3_without_its_remainder_still_exceeds_the_moment_inside_its_domain(rate: float, noise: float) -> None:
    """Checked, not proved. For large noise it is twice the moment, whose leading term is q^2 l (l+1) / (2 sigma^2)."""
    limit = noise**2 * math.log(1 / (rate * noise))
    orders = np.unique(np.floor(np.linspace(1, limit, 25)))
    ratio = m.log_moment(rate, noise, orders) / m.log_moment_leading_term(rate, noise, orders)
    assert np.all((ratio > 0.49) & (ratio < 0.95))
    with pytest.raises(ValueError, match="Lemma 3"):
        m.log_moment_leading_term(rate, noise, limit + 1)


def test_theorem_1_with_constant_two_is_enough_at_the_papers_setting() -> None:
    for epsilon, delta in ((1.0, 1e-5), (0.5, 1e-7), (2.0, 1e-5)):
        noise = m.theorem_1_noise(0.01, 10_000, epsilon, delta)
        assert m.moments_epsilon(0.01, noise, 10_000, delta, conversion=m.TAIL_BOUND) <= epsilon
        assert m.moments_epsilon(0.01, noise / 2, 10_000, delta, conversion=m.TAIL_BOUND) > epsilon


def test_curves_compose_and_published_renyi_points_interpolate_from_above() -> None:
    orders = np.array([0.7, 3.0, 11.0])
    both = m.compose([(m.gaussian_moment(2.0), 3), (m.laplace_moment(4.0), 2)])
    assert np.allclose(both(orders), 3 * m.gaussian_moment(2.0)(orders) + 2 * m.laplace_moment(4.0)(orders))
    assert np.all(m.compose([])(orders) == 0)
    given = np.array([1.5, 2.0, 4.0, 8.0, 32.0])
    published = m.renyi_moment(given, given / (2 * 2.0**2))
    assert np.allclose(published(given - 1), m.gaussian_moment(2.0)(given - 1))
    inside = np.linspace(0.01, 31, 50)
    assert np.all(published(inside) >= m.gaussian_moment(2.0)(inside) - 1e-12)
    assert published(np.array([40.0])) == math.inf
    assert m.curve_epsilon(published, 1e-5) >= m.curve_epsilon(m.gaussian_moment(2.0), 1e-5)


def test_extremes_stay_finite() -> None:
    for rate in (1e-9, 0.5, 1 - 1e-12):
        for noise in (0.1, 1e4):
            values = m.log_moment(rate, noise, np.array([1e-3, 1.0, 1e5]))
            assert np.all(np.isfinite(values) & (values >= 0))
    assert m.moments_epsilon(0.01, 1.0, 10, 1.0) == 0
    assert m.moments_epsilon(0.01, 1.0, 10, 0.0) == math.inf


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: m.log_moment(1.5, 1.0, 2.0),
        lambda: m.log_moment(0.1, 0.0, 2.0),
        lambda: m.log_moment(0.1, 1.0, -1.0),
        lambda: m.log_moment_binomial(0.1, 1.0, 1.5),
        lambda: m.log_moment_leading_term(0.1, 0.9, 1.0),
        lambda: m.renyi_moment([2.0, 1.5], [1.0, 1.0]),
        lambda: m.theorem_1_noise(0.1, 10, 1.0, 0.0),
        lambda: m.epsilon_from_moments([1.0], [1.0], 1.5),
        lambda: m.delta_from_moments([1.0], [1.0], -1.0),
        lambda: m.pure_moment(-1.0),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(mistake) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"^[^\n]*\.$"):
        mistake()
