"""What is asked of mechanisms: epsilon, delta, the attacker's errors, the papers' accountants, calibration."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from hush.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    Bounds,
    Gaussian,
    Guarantees,
    Laplace,
    Mechanism,
    Projected,
    RandomisedResponse,
    Renyi,
    Tradeoff,
    answers,
    calibrate,
    curves,
    limits,
    moments,
)
from hush.accounting.errors import lines_from_curve

MNIST = Gaussian(1.3).poisson(256 / 60_000) * 3516


def gaussian_tradeoff(mu: float, alpha: np.ndarray) -> np.ndarray:
    return np.asarray(ndtr(-ndtri(alpha) - mu))


# Answers agree with closed forms


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-30, 1e-100])
def test_gaussian_epsilon_satisfies_the_closed_form(mu: float, delta: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 150
    bounds = (Gaussian(1 / mu)).epsilon(delta)

    def closed(epsilon: float) -> object:
        e, m = mpmath.mpf(epsilon), mpmath.mpf(1) / mpmath.mpf(1 / mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)

    assert closed(bounds.upper) <= delta
    assert bounds.lower == 0 or closed(bounds.lower) >= delta
    assert bounds.width <= max(1e-6 * bounds.upper, 1e-12)


def test_randomised_response_composes_to_binomials() -> None:
    epsilon, n = 0.3, 20
    run = RandomisedResponse(epsilon) * n
    q = 1 / (1 + math.exp(epsilon))
    k = np.arange(n + 1)
    p_mass, q_mass = binom.pmf(k, n, 1 - q), binom.pmf(k, n, q)
    for total in (0.0, 0.7, 2.0, 4.0):
        exact = np.maximum(p_mass - math.exp(total) * q_mass, 0).sum()
        bounds = run.delta(total)
        assert bounds.lower <= exact * (1 + 1e-12)
        assert bounds.upper >= exact * (1 - 1e-12)
        assert bounds.width <= 1e-3 * exact


@pytest.mark.parametrize("share", [0.5, 0.3, 0.02])
def test_a_one_norm_spread_over_two_coordinates_reveals_less_than_in_one(share: float) -> None:
    both, one = Laplace(1 / share) + Laplace(1 / (1 - share)), Laplace(1.0)
    for epsilon in (0.0, 0.3, 0.7, 0.99):
        assert both.delta(epsilon).lower < one.delta(epsilon).upper


def test_pure_mechanisms_have_an_epsilon_at_delta_zero() -> None:
    assert 5.0 in (Laplace(10.0) * 50).epsilon(0.0)
    assert (RandomisedResponse(0.2) * 3).epsilon(0.0).upper == pytest.approx(0.6)
    assert Guarantees.of(1.0).poisson(0.1).epsilon(0.0).upper == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
    amplified = Guarantees.of(1.0, neighbours=REPLACE_ONE).uniform(1, of=10).epsilon(0.0)
    assert amplified.upper == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))


def test_an_epsilon_delta_guarantee_gives_itself_back() -> None:
    one = Guarantees.of(1.0, 1e-6)
    assert one.epsilon(1e-6).upper == pytest.approx(1.0, rel=1e-6)
    assert one.delta(1.0).upper == pytest.approx(1e-6, rel=1e-6)


def test_a_list_of_guarantees_is_the_best_of_them() -> None:
    several = Guarantees(((1.0, 1e-6), (0.5, 1e-3), (3.0, 0.0)))
    for epsilon, delta in several.promises[:2]:
        assert several.delta(epsilon).upper <= delta * (1 + 1e-9)
    assert several.epsilon(0.0).upper == pytest.approx(3.0)


def test_a_sampled_tradeoff_function_composes_like_the_gaussian_it_is() -> None:
    run = Tradeoff.of(lambda alpha: gaussian_tradeoff(0.5, alpha)) * 4
    truth = Gaussian(1.0).epsilon(1e-5).middle
    bounds = run.epsilon(1e-5)
    assert truth in bounds
    assert bounds.width <= 1e-3 * truth
    one = Tradeoff.of(lambda alpha: gaussian_tradeoff(1.5, alpha))
    assert Gaussian(1 / 1.5).epsilon(1e-5).middle in one.epsilon(1e-5)


def test_a_tradeoff_function_may_take_one_number_at_a_time() -> None:
    promise = Tradeoff.of(lambda alpha: max(0.0, 1 - 0.1 - math.exp(0.5) * alpha, math.exp(-0.5) * (1 - 0.1 - alpha)))
    assert 0.5 in promise.epsilon(0.1)


def test_a_formula_that_loses_its_digits_is_told_where() -> None:
    with pytest.raises(ValueError, match=r"alpha = \d\S*e-17: a formula in 1 - alpha loses its digits here"):
        Tradeoff.of(lambda alpha: ndtr(ndtri(1 - alpha) - 1.0))
    for function in (lambda alpha: 1 - alpha**2, lambda alpha: 1 + alpha, lambda alpha: np.minimum(1.0, 1.2 - alpha)):
        with pytest.raises(ValueError, match="lies between 0 and 1 - alpha"):  # cut to 1 - alpha, it promised all
            Tradeoff.of(function)
    with pytest.raises(ValueError, match=r"not so at alpha = 0.5\."):
        Tradeoff((0.0, 0.5, 1.0), (1.0, 0.7, 0.0))


def test_a_few_points_of_a_tradeoff_function_promise_what_every_function_through_them_keeps() -> None:
    few = Tradeoff((0.0, 0.2, 0.5, 1.0), (1.0, 0.6, 0.2, 0.0))
    # the chord from (0.2, 0.6) to (0.5, 0.2) extended to 0: f(0+) = 0.6 + 0.2 * 4/3
    leak = 1 - 0.6 - 0.2 * 4 / 3
    assert few.epsilon(leak * 0.99).lower == 1e4
    assert few.delta(1e4).lower == pytest.approx(leak, rel=1e-12)
    assert few.delta(1e4).upper == pytest.approx(leak, rel=1e-12)
    bounds = few.epsilon(0.15)
    assert bounds.width <= 1e-6
    # neighbouring chords, extended, meet at (0.375, 0.25) and (0.65, 0); f is made symmetric
    alpha = np.linspace(0, 1, 200_001)
    corners, values = [0.0, 0.375, 0.65, 1.0], [1 - leak, 0.25, 0.0, 0.0]
    inverse = np.interp(alpha, [0.0, 0.25, 1 - leak, 1.0], [0.65, 0.375, 0.0, 0.0])
    least = np.maximum(np.interp(alpha, corners, values), inverse)
    assert np.max(1 - least - math.exp(bounds.middle) * alpha) == pytest.approx(0.15, abs=1e-5)
    assert Mechanism.from_json(few.to_json()) == few
    sampled = Tradeoff.of(lambda alpha: gaussian_tradeoff(1.0, alpha), points=50)
    assert Mechanism.from_json(sampled.to_json()) == sampled
    assert Gaussian(1.0).epsilon(1e-3).middle in sampled.epsilon(1e-3)


def test_beyond_ten_thousand_the_answer_is_open_ended_and_delta_remains() -> None:
    hopeless = Gaussian(0.01) * 100
    assert hopeless.epsilon(1e-5).lower == 1e4
    assert math.isinf(hopeless.epsilon(1e-5).upper)
    assert hopeless.delta(1e4).lower > 1e-5


def test_a_delta_too_small_for_floating_point_is_not_called_zero() -> None:
    assert 0 < (Gaussian(1.0) * 2).delta(800.0).upper < 1e-300
    assert Laplace(1.0).delta(2.0).upper == 0.0


def test_pure_steps_beyond_ten_thousand_are_open_ended_too() -> None:
    for run in (RandomisedResponse(0.45) * 1_700_000, RandomisedResponse(1.7) + Laplace(0.5, REPLACE_ONE) * 30_000):
        assert run.epsilon(1e-12) == Bounds(1e4, math.inf)


def test_above_the_total_variation_epsilon_is_zero() -> None:
    assert MNIST.epsilon(0.2).upper == 0.0
    assert MNIST.epsilon(0.2).lower == 0.0


# Answers agree with each other


@pytest.mark.parametrize(
    "mechanism",
    [
        MNIST,
        Gaussian(1.3).uniform(256, of=60_000) * 3516,
        Laplace(10.0) * 30,
        Projected(1.3, 30).poisson(256 / 60_000) * 500,
        Guarantees.of(0.1, 1e-7) * 20,
        MNIST.group(2),
        MNIST + Laplace(20.0),
    ],
    ids=str,
)
def test_delta_and_epsilon_are_inverse_and_the_curve_is_a_tradeoff_function(mechanism: Mechanism) -> None:
    epsilon = mechanism.epsilon(1e-5)
    assert mechanism.delta(epsilon.upper * (1 + 1e-9)).lower <= 1e-5 * (1 + 1e-6)
    assert mechanism.delta(epsilon.lower * (1 - 1e-9)).upper >= 1e-5 * (1 - 1e-6)
    curve = mechanism.tradeoff(points=200)
    assert np.all(curve.lower <= curve.upper + 1e-15)
    assert np.all(curve.upper <= 1 - curve.alpha + 1e-15)
    assert np.all(np.diff(curve.lower) <= 1e-12)
    sums = curve.alpha + curve.lower
    assert curve.error_sum.lower <= sums.min() + 1e-6
    assert curve.error_sum.lower >= sums.min() - 2e-2


def test_the_tradeoff_band_encloses_the_gaussian_curve_and_is_narrow() -> None:
    curve = (Gaussian(2.0) * 4).tradeoff(points=1000)
    alpha = np.linspace(1e-6, 1 - 1e-6, 500)
    lower, upper = curve(alpha)
    truth = gaussian_tradeoff(1.0, alpha)
    assert np.all(lower <= truth + 1e-12)
    assert np.all(upper >= truth - 1e-12)
    assert np.max(upper - lower) < 1e-3


def test_error_sum_advantage_and_bayes_error_are_one_number() -> None:
    advantage, total, bayes = MNIST.advantage(), MNIST.error_sum(), MNIST.bayes_error()
    assert total.lower == pytest.approx(1 - advantage.upper)
    assert bayes.upper == pytest.approx(total.upper / 2)


# Group privacy


def test_groups_of_gaussian_mechanisms_multiply_mu() -> None:
    assert (Gaussian(2.0) * 9).group(4).epsilon(1e-6) == Gaussian(2 / 12).epsilon(1e-6)


@pytest.mark.parametrize(("mu", "size"), [(0.2, 2), (0.2, 5), (1.5, 3)])
def test_group_privacy_by_curves_encloses_the_gaussian_closed_form(mu: float, size: int) -> None:
    by_curve = Tradeoff.of(lambda alpha: gaussian_tradeoff(mu, alpha), points=4000).group(size)
    truth = Gaussian(1 / (mu * size)).epsilon(1e-4).middle
    assert truth in by_curve.epsilon(1e-4)


@pytest.mark.parametrize("points", [10, 50, 1000])
def test_the_bands_lines_enclose_the_attackers_power_at_any_level_and_coarseness(points: int) -> None:
    epsilons = curves.spread_epsilons(Gaussian(2.0), points, 1e-100)
    below, above = lines_from_curve(epsilons, *answers.log_delta_curve(Gaussian(2.0), epsilons))
    alpha = np.geomspace(1e-30, 1, 300)
    power = ndtr(ndtri(alpha) + 0.5)
    assert np.all(below.power(alpha) >= power * (1 - 1e-12))
    assert np.all(above.power(alpha) <= power * (1 + 1e-12))
    for lines in (below, above):
        assert np.interp(alpha, *lines.vertices()) == pytest.approx(lines.power(alpha), rel=1e-12)


def test_group_privacy_grows_with_the_group_and_a_group_of_one_is_nothing_new() -> None:
    assert MNIST.group(1) == MNIST
    epsilons = [MNIST.group(k).epsilon(1e-5).upper for k in (1, 2, 3, 4)]
    assert epsilons == sorted(epsilons)
    assert epsilons[1] > 1.9 * epsilons[0]


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-27])
def test_groups_of_promises_are_enumerated(size: int, delta: float) -> None:
    run = RandomisedResponse(0.3) * 3 + RandomisedResponse(0.7)
    bounds = run.group(size).epsilon(delta)
    assert bounds.width <= 1e-5 * bounds.upper
    assert bounds.upper <= 1.6 * size * (1 + 1e-15)
    # delta of the group is the least over epsilons that add up of delta(e1) + e^e1 delta(e2) + ... (lines composed)
    share = bounds.lower / size
    chain = sum(math.exp(k * share) * run.delta(share).upper for k in range(size))
    assert chain >= delta * (1 - 1e-9)
    leaky = (Guarantees.of(0.1, 1e-9) * 3).group(size)
    assert leaky.epsilon(1e-12) == Bounds(1e4, math.inf)
    assert leaky.epsilon(1e-5).width <= 1e-6


@pytest.mark.parametrize("size", [2, 4, 8])
def test_group_answers_are_narrow(size: int) -> None:
    bounds = MNIST.group(size).epsilon(1e-5)
    assert bounds.width <= 1e-3 * bounds.upper


# Renyi curves


def test_a_renyi_curve_gives_upper_bounds_only() -> None:
    orders = np.arange(2.0, 65.0)
    run = Renyi(tuple(orders), tuple(orders * 0.5 / 4.0**2)) * 10
    exact = (Gaussian(4.0) * 10).epsilon(1e-5)
    bounds = run.epsilon(1e-5)
    assert bounds.lower == 0.0
    assert exact.upper <= bounds.upper <= 1.25 * exact.upper
    assert (run + Laplace(10.0)).epsilon(1e-5).upper > bounds.upper


# The papers' accountants


def test_delta_exact_is_below_delta_by_moments_at_finite_T() -> None:
    # Bu et al. 2019, Theorem 2
    for epsilon in (0.3, 0.8, 1.5, 3.0):
        assert MNIST.delta(epsilon).upper < MNIST.moments().delta(epsilon)


def test_moments_of_what_has_none_are_refused() -> None:
    with pytest.raises(ValueError, match="moments"):
        (Projected(1.3, 10).poisson(0.01) * 3).moments().epsilon(1e-5)


def test_clt_is_stated_where_the_papers_state_it() -> None:
    assert MNIST.clt().mu == pytest.approx(0.2273, abs=1e-4)
    assert (Gaussian(1.3).uniform(256, of=60_000) * 3516).clt().mu == pytest.approx(0.2847, abs=1e-4)
    assert "approximation" in MNIST.clt().note
    with pytest.raises(ValueError, match="central limit"):
        (Laplace(1.0) * 5).clt()


def test_berry_esseen_brackets_the_certified_curve() -> None:
    run = Gaussian(2.0).uniform(100, of=1000) * 20_000
    band = limits.berry_esseen_subsampled_gaussian(0.1, 2.0, 20_000)
    curve = run.tradeoff(points=300)
    alpha = np.linspace(band.gamma, 1 - band.gamma, 50)
    lower, upper = curve(alpha)
    assert np.all(band.lower(alpha) <= upper + 1e-12)
    assert np.all(band.upper(alpha) >= lower - 1e-12)


def test_uniform_sampling_costs_about_what_its_limit_theorem_says() -> None:
    bounds = (Gaussian(1.3).uniform(256, of=60_000) * 3516).epsilon(1e-5)
    assert bounds.middle == pytest.approx(1.067, abs=0.002)
    assert bounds.width <= 1e-4 * bounds.upper


# JL projections (errata, item 5)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "expected"),
    [
        (256 / 60_000, 1.3, 3516, {4: (508.5, 0.01), 10: (7.15, 0.005), 30: (0.955, 0.005), 100: (0.885, 0.005)}),
        (256 / 50_000, 0.9, 3906, {4: (1233, 0.01), 10: (19.6, 0.005), 30: (3.23, 0.005), 100: (2.31, 0.005)}),
        (256 / 25_000, 0.6, 1953, {4: (2790, 0.01), 10: (50.8, 0.005), 30: (14.3, 0.005), 100: (11.1, 0.005)}),
    ],
)
def test_projected_norms_cost_what_the_errata_say(
    rate: float, noise: float, steps: int, expected: dict[int, tuple[float, float]]
) -> None:
    for projections, (epsilon, relative) in expected.items():
        bounds = (Projected(noise, projections).poisson(rate) * steps).epsilon(1e-5)
        assert bounds.middle == pytest.approx(epsilon, rel=relative)
        assert bounds.width <= (1e-4 if projections >= 10 else 4e-4) * bounds.upper
    one = Projected(noise, 1).poisson(rate) * steps
    assert one.epsilon(1e-5).lower == 1e4
    assert one.delta(1e4).lower > 1e-5


def test_many_projections_tend_to_the_exact_norms() -> None:
    run = Projected(1.3, 100_000).poisson(256 / 60_000) * 3516
    assert run.epsilon(1e-5).middle == pytest.approx(MNIST.epsilon(1e-5).middle, rel=1e-3)


def test_epsilon_is_not_monotone_in_the_number_of_projections() -> None:
    # Bu et al. 2021, Appendix C.  At loose deltas fewer projections can be more private, at tight ones less.
    loose = [Projected(0.2, r).epsilon(0.97).upper for r in (1, 4, 100)]
    assert loose == sorted(loose)
    tight = [Projected(0.2, r).epsilon(1e-3).upper for r in (4, 10, 100)]
    assert tight == sorted(tight, reverse=True)


# Calibration


@pytest.mark.parametrize("target", [0.1, 1.0, 8.0])
def test_calibrated_noise_keeps_the_target_and_a_millionth_less_does_not(target: float) -> None:
    def family(noise: float) -> Mechanism:
        return Gaussian(noise).poisson(0.01) * 1000

    noise = calibrate.noise(family, target, 1e-5)
    assert family(noise).epsilon(1e-5).upper <= target
    assert family(noise * (1 - 2e-6)).epsilon(1e-5).upper > target


@pytest.mark.parametrize(
    ("rate", "steps", "delta", "epsilon"),
    [(4.665e-4, 2, 2.04e-11, 3.5e-5), (1.066e-7, 93, 4.055e-8, 1.68e-9), (0.2123, 11_295_282, 0.00945, 0.0596)],
)
def test_a_large_noise_is_calibrated_to_a_millionth_too_not_to_a_share_of_itself(
    rate: float, steps: int, delta: float, epsilon: float
) -> None:
    found = calibrate.noise(lambda noise: Gaussian(noise).poisson(rate) * steps, epsilon, delta)
    assert found > 5
    assert (Gaussian(found).poisson(rate) * steps).epsilon(delta).upper <= epsilon
    assert (Gaussian(found - 1e-6).poisson(rate) * steps).epsilon(delta).upper > epsilon


def test_calibrated_rate_and_steps_keep_the_target_tightly() -> None:
    rate = calibrate.rate(lambda p: Gaussian(1.0).poisson(p) * 1000, 1.0, 1e-5)
    assert (Gaussian(1.0).poisson(rate) * 1000).epsilon(1e-5).upper <= 1.0
    assert (Gaussian(1.0).poisson(rate * (1 + 2e-6)) * 1000).epsilon(1e-5).upper > 1.0
    steps = calibrate.steps(lambda t: Gaussian(1.0).poisson(0.01) * t, 1.0, 1e-5)
    assert (Gaussian(1.0).poisson(0.01) * steps).epsilon(1e-5).upper <= 1.0
    assert (Gaussian(1.0).poisson(0.01) * (steps + 1)).epsilon(1e-5).upper > 1.0


def test_fewest_projections_are_found_by_scanning() -> None:
    fewest = calibrate.projections(lambda r: Projected(1.3, r).poisson(256 / 60_000) * 3516, 1.0, 1e-5)
    assert (Projected(1.3, fewest).poisson(256 / 60_000) * 3516).epsilon(1e-5).upper <= 1.0
    assert (Projected(1.3, fewest - 1).poisson(256 / 60_000) * 3516).epsilon(1e-5).upper > 1.0


def test_less_noise_serves_at_the_epsilon_the_moments_accountant_claims() -> None:
    # Section 3.2 of Bu et al. 2019, with the certified account in place of their approximation
    steps = round(20 * 60_000 / 256)
    claimed = moments.moments_epsilon(
        256 / 60_000, 1.3, steps, 1e-5, orders=moments.FOOTNOTE_13_ORDERS, conversion=moments.TAIL_BOUND
    )
    noise = calibrate.noise(lambda s: Gaussian(s).poisson(256 / 60_000) * steps, claimed, 1e-5)
    assert claimed == pytest.approx(1.350, abs=0.001)
    assert 1.06 < noise < 1.3


def test_a_target_out_of_reach_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="No noise multiplier"):
        calibrate.noise(lambda s: Gaussian(1.0) + Gaussian(s), 0.1, 1e-5)
    with pytest.raises(ValueError, match="Not even one step"):
        calibrate.steps(lambda t: Gaussian(0.5) * t, 0.1, 1e-5)
    with pytest.raises(ValueError, match="target epsilon"):
        calibrate.noise(lambda s: Gaussian(s), 0.0, 1e-5)


@pytest.mark.parametrize("first", [30.0, 36.9, 38.0, 300.0, 700.0, 800.0])
@pytest.mark.parametrize("second", [39.0, 690.0])
def test_promises_that_tell_nearly_all_are_counted_as_such(first: float, second: float) -> None:
    """With e^-30 and less left out delta(0) is the chance that either is sampled, in both directions."""
    both = Guarantees.of(first).poisson(0.3) + RandomisedResponse(second, neighbours=ADD_REMOVE).poisson(0.3)
    told = both.delta(0.0)
    assert told.lower <= 1 - 0.7**2 + 1e-12
    assert 1 - 0.7**2 - 1e-12 <= told.upper <= 0.5101
    assert both.epsilon(0.45).lower > 0
    unsampled = (Guarantees.of(first) + Guarantees.of(8.0)).delta(0.0)
    assert 0.99 < unsampled.lower <= 1 <= unsampled.upper + 1e-12


@pytest.mark.parametrize("epsilon", [100.0, 340.0, 400.0, 700.0, 800.0])
def test_groups_of_promises_too_large_for_floating_point_are_not_called_small(epsilon: float) -> None:
    """1 - delta = e^(eps - 2 epsilon), but for e^-100, is the steepest line of two records' power curve."""
    found = Guarantees.of(epsilon).group(2).epsilon(0.5)
    assert found.lower <= 2 * epsilon - math.log(2) <= found.upper <= 2 * epsilon * (1 + 1e-12)


@pytest.mark.parametrize("delta", [0.01, 1e-8, 1e-30])
def test_a_promise_alone_encloses_its_delta(delta: float) -> None:
    found = Guarantees.of(2.0, delta).delta(5.0)
    assert found.lower <= delta <= found.upper <= delta * (1 + 1e-12)


@pytest.mark.parametrize("mu", [3.0, 6.0])
def test_the_flat_end_of_a_sampled_tradeoff_function_reveals_no_more_than_it_does(mu: float) -> None:
    sampled = Tradeoff.of(lambda a: gaussian_tradeoff(mu, np.clip(a, 1e-320, 1.0)), points=400)
    for epsilon in (0.0, 1.0, 8.0, 20.0):
        found, true = sampled.delta(epsilon), Gaussian(1 / mu).delta(epsilon)
        assert found.lower <= true.upper
        assert true.lower <= found.upper


@pytest.mark.parametrize("mu", [0.033, 0.3, 1.5])
def test_a_sampled_gaussian_curve_composes_like_the_gaussian(mu: float) -> None:
    """Rounding at type I errors of 1e-14 must not bend the curve elsewhere: lower bounds were an eighth of this."""
    curve = Tradeoff.of(lambda alpha: ndtr(-ndtri(alpha) - mu))
    for steps, delta in ((1, 1e-3), (187, 1.5e-3), (20, 1e-6)):
        bounds, exact = (curve * steps).epsilon(delta), Gaussian(1 / (mu * math.sqrt(steps))).epsilon(delta)
        assert bounds.lower <= exact.upper
        assert bounds.upper >= exact.lower
        assert bounds.width <= 1e-3 * bounds.upper


def test_the_sum_of_errors_encloses_what_no_floating_point_number_shows():
    """1 less an advantage of 5e-18 was [1, 1]."""
    total = RandomisedResponse(1e-17).error_sum()
    assert total.lower < 1 == total.upper


def test_bounds_that_contradict_each_other_make_a_wider_interval() -> None:
    assert answers._ordered((2.0, 1.0)) == Bounds(1.0, 2.0)


@pytest.mark.parametrize(
    ("run", "epsilon"),
    [
        (Gaussian(15.18).poisson(1.294e-7) * 18_333_460, 2.077),
        (Gaussian(226.0).poisson(0.006) * 2964, 4.765),
        (Gaussian(1.0).poisson(0.01) * 1000 + Laplace(10.0).poisson(0.01) * 1000, 300.0),
        (Gaussian(1.348).uniform(791, of=459_799) * 26_654_274, 7429.0),
    ],
)
def test_far_out_delta_is_told_to_be_below_all_that_can_be_asked_for(run: Mechanism, epsilon: float) -> None:
    bounds = run.delta(epsilon)
    assert bounds.lower == 0
    assert 0 < bounds.upper < 1e-100
    sampled = run.neighbours == ADD_REMOVE and len(run.parts()) == 1
    assert not sampled or run.moments().delta(epsilon) < 1e-100


@pytest.mark.parametrize(
    ("run", "leak"),
    [
        (Gaussian(0.2).uniform(129, of=17903) * 13_736, 0.0),  # delta(600) is large
        (Projected(0.8, 148).poisson(0.25) * 7585, 0.0),
        ((Gaussian(0.5) * 100).group(10), 0.0),
        (Laplace(0.3) * 50 + Guarantees.of(0.1, 0.01, ADD_REMOVE), 0.01),
    ],
)
def test_without_false_alarms_only_what_tells_everything_is_found(run: Mechanism, leak: float) -> None:
    curve = run.tradeoff()
    assert curve.lower[0] == pytest.approx(1 - leak, abs=1e-13)
    assert curve.lower[0] <= 1 - leak <= curve.upper[0]
    # that is so at 0 alone: as soon as there are false alarms at all, finite losses count
    alpha, lower, upper = curve.drawn()
    assert alpha[1] == math.ulp(0.0)
    assert np.all(lower <= upper)


@pytest.mark.parametrize("unsure", [1e-4, 3e-3])
def test_the_band_is_hardly_wider_than_the_deltas_behind_it(unsure: float) -> None:
    """Chords to the next points would make it nearly twice as wide: longer ones don't hang on single points."""
    mu, epsilons = 1.2, np.linspace(0, 8, 600)
    delta = ndtr(-epsilons / mu + mu / 2) - np.exp(epsilons) * ndtr(-epsilons / mu - mu / 2)
    below, above = lines_from_curve(epsilons, np.log(delta) - unsure, np.log(delta) + unsure)
    alpha = np.geomspace(1e-4, 1, 300)
    exact = ndtr(ndtri(alpha) + mu)
    low, high = above.power(alpha), below.power(alpha)
    assert np.all(low <= exact + 1e-15)
    assert np.all(exact <= high + 1e-15)
    assert np.max(high - low) <= 1.1 * unsure + 1e-4
