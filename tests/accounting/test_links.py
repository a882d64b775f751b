"""Groups of records by their links: against all ways to split epsilon, closed forms, and deltas far below 1e-300."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from busy import BUSY
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

from hush.accounting import REPLACE_ONE, Gaussian, Laplace, Mechanism
from hush.accounting import sampled as sampling
from hush.accounting.answers import log_delta_curve
from hush.accounting.gaussian import contour, jumps
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.gaussian.composition import Composition
from hush.accounting.gaussian.transform import Step
from hush.accounting.grouping import chains, links, rounds
from hush.accounting.kinds import directions
from hush.accounting.pairs import single
from hush.accounting.pairs.losses import Atoms, Enclosed, GaussianPair, Pair, Poisson, Uniform
from hush.accounting.tails import heavy
from hush.accounting.tails.cells import rough_look

RUNS: list[tuple[Mechanism, int, float]] = [
    (Gaussian(1.3).poisson(0.01) * 100, 2, 1e-5),
    (Gaussian(5.3).poisson(0.014) * 8, 3, 1e-28),
    (Gaussian(2.1).poisson(1e-3) * 105, 5, 1e-20),
    (Gaussian(2.1).uniform(11, of=10_000) * 1705, 3, 1e-29),
    (Gaussian(2.4).uniform(23, of=10_000) * 4, 2, 1e-24),
    (Laplace(3.0).poisson(0.02) * 500, 3, 1e-9),
]


def least_split(run: Mechanism, size: int, epsilon: float, side: int) -> float:
    """The least, over splits of epsilon, of the sum of delta(e_i) e^(e_(i+1) + ...), by a general-purpose search.

    Of lower (0) or upper (1) bounds on the deltas, interpolated.
    """
    sampled = isinstance(run.parts()[0][0], sampling.Uniform)
    places = epsilon / size * (np.linspace(0.94, 1.06, 11) if sampled else np.linspace(0.6, 1.7, 24))
    found = heavy.log_delta(directions(run)[0], places, 1e-4) if sampled else log_delta_curve(run, places)
    log_delta = CubicSpline(places, found[side])

    def log_sum(free: np.ndarray) -> float:
        parts = np.append(free, epsilon - free.sum())
        if parts.min() < places[0] or parts.max() > places[-1]:
            return 1e3
        after = np.append(np.cumsum(parts[::-1])[::-1][1:], 0.0)
        return float(np.logaddexp.reduce(log_delta(parts) + after))

    start = epsilon / size * np.linspace(1.02, 0.98, size)[:-1]
    return float(minimize(log_sum, start, method="Nelder-Mead", options={"xatol": 1e-5 * epsilon}).fun)


@pytest.mark.parametrize(("run", "size", "delta"), RUNS)
def test_a_groups_epsilon_is_where_the_best_split_has_that_delta(run: Mechanism, size: int, delta: float) -> None:
    began = time.process_time()
    bounds = run.group(size).epsilon(delta)
    assert time.process_time() - began < BUSY * 1.0
    assert bounds.width <= 1e-3 * bounds.upper
    assert least_split(run, size, bounds.lower, 1) >= math.log(delta) - 1e-3
    assert least_split(run, size, bounds.upper, 0) <= math.log(delta) + 1e-3


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.7])
@pytest.mark.parametrize("size", [2, 7])
@pytest.mark.parametrize("delta", [1e-3, 1e-50])
def test_groups_of_gaussians_of_any_size_agree_with_the_closed_form(noise: float, size: int, delta: float) -> None:
    """Epsilons up to 1e4, where a single record's log delta is asked down to -9000."""
    curve, places = gaussian_curve(noise**-2), np.append(0.0, np.geomspace(1e-3, 2e4, 300))
    exact = gaussian_curve((size / noise) ** 2)
    oracle, rough = (lambda at, sizes, sharpness: curve(at)), links.Model(places, curve(places)[1])
    low, high = rounds.epsilon(oracle, rough, size, -math.inf, math.log(delta), 9e-4)
    if low >= 1e4:
        assert exact(np.array([1e4]))[1][0] >= math.log(delta)
        return
    assert high - low <= 9e-4 * high
    assert exact(np.array([low]))[1][0] >= math.log(delta)
    assert exact(np.array([high]))[0][0] <= math.log(delta)


@pytest.mark.parametrize("epsilon", [0.1, 0.9, 30.0])
@pytest.mark.parametrize("size", [2, 5])
def test_a_groups_delta_agrees_with_the_closed_form(size: int, epsilon: float) -> None:
    curve, places = gaussian_curve(1.0), np.append(0.0, np.geomspace(1e-3, 100.0, 200))
    oracle, rough = (lambda at, sizes, sharpness: curve(at)), links.Model(places, curve(places)[1])
    low, high = rounds.log_delta(oracle, rough, size, -math.inf, epsilon, 9e-4)
    exact = gaussian_curve(float(size**2))(np.array([epsilon]))
    assert low <= exact[1][0]
    assert high >= exact[0][0]
    assert high - low <= 9e-4 * max(1.0, -high)


@pytest.mark.parametrize(("mu", "size", "epsilon"), [(0.12, 93, 40.2), (0.12, 93, 90.0), (0.05, 200, 60.0)])
def test_a_large_groups_delta_has_as_many_points_as_it_needs(mu: float, size: int, epsilon: float) -> None:
    """Links close together shared a sixtieth of the points that are allowed: delta was half of what it is."""
    curve, places = gaussian_curve(mu**2), np.append(0.0, np.geomspace(1e-4, 10.0, 300))
    oracle, rough = (lambda at, sizes, sharpness: curve(at)), links.Model(places, curve(places)[1])
    low, high = rounds.log_delta(oracle, rough, size, -math.inf, epsilon, 9e-4)
    exact = gaussian_curve((mu * size) ** 2)(np.array([epsilon]))
    assert low <= exact[1][0]
    assert high >= exact[0][0]
    assert high - low <= 9e-4 * max(8.0, -high)


@pytest.mark.parametrize(("size", "most"), [(60, math.inf), (70, 99), (90, 99), (110, 15), (400, 15)])
def test_a_delta_next_to_one_takes_few_looks(size: int, most: float) -> None:
    """At epsilon 1e4 it is 0.73, 1 - 1e-9 and 1 - 1e-83: the more a group is beyond, the less need be asked.

    Of 400 some are enough, and all of them would tell more than the model knows of.
    """
    asked: list[int] = []
    curve, places = gaussian_curve(2.37**2), np.append(0.0, np.geomspace(1e-3, 2e4, 300))

    def oracle(at: np.ndarray, sizes: np.ndarray, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
        asked.append(at.size)
        lower, upper = curve(at)
        return lower - 0.01, np.minimum(upper + 0.01, 0.0)

    rough = links.Model(places, curve(places)[1])
    low, high = rounds.log_delta(oracle, rough, size, -math.inf, 1e4, 9e-4)
    exact = gaussian_curve((2.37 * size) ** 2)(np.array([1e4]))
    assert low <= exact[1][0]
    assert high >= exact[0][0]
    assert size == 60 or high - low <= 9e-4
    assert sum(asked) <= most


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "size", "delta"),
    [(5046.8, 3.9e-9, 943, 26, 1.943e-12), (2139.86, 2.785e-7, 192_417, 14, 1e-7), (900.0, 1e-8, 5000, 3, 2e-10)],
)
def test_groups_that_tell_next_to_nothing_are_as_good_as_gaussian(
    noise: float, rate: float, steps: int, size: int, delta: float
) -> None:
    """Losses p x/sigma, epsilons of 1e-9: the model began at 1e-5, delta(0) was [0, 3e-7] and epsilon 3% wide."""
    group, near = (Gaussian(noise).poisson(rate) * steps).group(size), Gaussian(noise / (rate * size * steps**0.5))
    found, expected = group.epsilon(delta), near.epsilon(delta)
    assert expected.lower * (1 - 2e-3) <= found.upper <= found.lower * (1 + 2e-3)
    assert found.lower <= expected.upper * (1 + 2e-3)
    for epsilon in (0.0, expected.upper):
        seen, reference = group.delta(epsilon), near.delta(epsilon)
        assert reference.lower * (1 - 0.02) <= seen.upper <= seen.lower * (1 + 0.02)
        assert seen.lower <= reference.upper * (1 + 0.02)


@pytest.mark.parametrize("pair", [Uniform(GaussianPair(0.4), 0.3), Poisson(GaussianPair(0.4), 0.3), GaussianPair(2.0)])
@pytest.mark.parametrize("depth", [-300.0, -900.0, -4000.0])
def test_bins_enclose_deltas_that_are_no_floating_point_numbers(pair: Pair, depth: float) -> None:
    """One release, whose delta has a closed form in logarithms."""
    known = single.curve(pair)
    assert known is not None
    low, high = 1e-3, 1e5
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if known(np.array([middle]))[1][0] > depth else (low, middle)
    exact = known(np.array([high]))
    lower, upper = heavy.curve_at(rough_look([(pair, 1)]), high, depth, 1e-4)(np.array([high]))
    assert lower[0] <= exact[1][0]
    assert upper[0] >= exact[0][0]


@pytest.mark.parametrize("epsilon", [7.0, 11.0, 20.0])
def test_bins_of_many_steps_agree_with_the_contour_integral_however_deep(epsilon: float) -> None:
    """log deltas of -340, -800 and -2300: one of what is below any floating-point number was taken for nothing."""
    composition = Composition((Step(40 / 184, 16.522, 402),))
    task, c, size = contour.solve_for_epsilon(composition.steps, 0.0, contour.REMOVE, epsilon)
    line = contour.line(task, c)
    assert line is not None
    exact = line.log_delta(np.array([epsilon]))
    steps = composition.pairs(contour.REMOVE)
    lower, upper = heavy.curve_at(rough_look(steps), epsilon, size, 1e-4)(np.array([epsilon]))
    assert lower[0] <= exact[1][0]
    assert upper[0] >= exact[0][0]
    assert upper[0] - lower[0] < 0.2


@pytest.mark.parametrize("epsilon", [230.0, 320.0, 420.0])
def test_labelled_integrals_agree_with_one_contour_integral_however_deep(epsilon: float) -> None:
    """log deltas of -840, -1170 and -1550: labels ended at -650."""
    steps = (Step(2e-4, 0.488, 819),)
    task, c, size = contour.solve_for_epsilon(steps, 0.0, contour.REMOVE, epsilon)
    line = contour.line(task, c, -16.0)
    assert line is not None
    with np.errstate(all="ignore"):
        found = jumps.jumps(steps, contour.REMOVE, epsilon, size, -14.0)
        assert found is not None
        at = epsilon * np.array([0.9, 0.97, 1.0])
        (lower, upper), (least, most) = found.log_delta(at), line.log_delta(at)
    assert np.all(lower <= most)
    assert np.all(upper >= least)
    assert np.all(upper - lower < 1e-2)
    assert most[2] - least[2] < 1e-2


def test_groups_have_finite_bounds_up_to_an_epsilon_of_ten_thousand() -> None:
    for run, size in ((Gaussian(1.16).poisson(0.28) * 751, 5), (Gaussian(2.3).uniform(4000, of=10_000) * 2161, 5)):
        bounds = run.group(size).epsilon(1e-24)
        assert 1000 < bounds.lower <= bounds.upper < 2000
        assert bounds.width <= 1e-3 * bounds.upper


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_tiny_rates_and_deltas_under_replace_one_are_narrow(noise: float) -> None:
    run = Gaussian(noise, REPLACE_ONE).poisson(4e-9) * 100
    bounds = run.epsilon(1e-48)
    assert bounds.width <= 1e-4 * bounds.upper
    # no single step is more revealing than all of them, and a hundred steps are no more than their sum
    one = Gaussian(noise, REPLACE_ONE).poisson(4e-9)
    assert one.epsilon(1e-48).lower <= bounds.upper
    assert bounds.lower <= 100 * one.epsilon(1e-50).upper
    lower, upper = (heavy.log_delta(directions(run)[0], np.array([end]), 1e-4) for end in (bounds.lower, bounds.upper))
    assert lower[1][0] >= math.log(1e-48)
    assert upper[0][0] <= math.log(1e-48)


def test_steps_that_all_have_closed_forms_are_not_lost_among_brackets() -> None:
    """No law is a finite sum here, so the first bracket holds all paths.  (It held none: epsilon came out as 0.)"""
    run: Mechanism = Gaussian(1.0)
    for k in range(12):
        run = run + Laplace(2.0 + 0.3 * k)
    bounds = run.epsilon(1e-5)
    assert bounds.lower >= Gaussian(1.0).epsilon(1e-5).lower
    assert bounds.width <= 1e-3 * bounds.upper
    # deltas by sampling the losses: 4 standard deviations on either side, a false alarm in 16,000 tries
    generator = np.random.default_rng(1)
    losses = generator.normal(0.5, 1.0, 400_000)
    for k in range(12):
        shift = 1 / (2.0 + 0.3 * k)
        noise = generator.laplace(size=losses.size)
        losses += np.abs(noise - shift) - np.abs(noise)
    spared = np.maximum(-np.expm1(2.0 - losses), 0.0)
    found, spread = float(spared.mean()), 4 * float(spared.std()) / math.sqrt(losses.size)
    delta = run.delta(2.0)
    assert delta.lower - spread <= found <= delta.upper + spread


def test_groups_of_few_bounded_losses_are_narrow_near_the_largest() -> None:
    for run, size, delta in ((Laplace(7.3).poisson(0.03) * 11, 2, 8e-22), (Laplace(3.3).poisson(0.036) * 26, 2, 5e-24)):
        bounds = run.group(size).epsilon(delta)
        assert bounds.upper <= size * run.largest_loss * (1 + 1e-12)
        assert bounds.width <= 1e-3 * bounds.upper


def least_of_three(run: Mechanism, epsilon: float) -> float:
    """log delta of a group of three: the least over a grid of all splits, from a spline of the certified curve."""
    places = np.geomspace(1e-2, 1.0, 120) * epsilon
    logs = np.concatenate([np.mean(log_delta_curve(run, part), axis=0) for part in np.array_split(places, 30)])
    log_delta = CubicSpline(places, logs)
    low, high = np.full(2, 0.02 * epsilon), np.full(2, 0.6 * epsilon)
    for _ in range(3):
        second, third = np.meshgrid(*(np.linspace(a, b, 300) for a, b in zip(low, high, strict=True)))
        first = np.maximum(epsilon - second - third, places[0])
        sums = np.logaddexp(
            log_delta(first) + second + third, np.logaddexp(log_delta(second) + third, log_delta(third))
        )
        sums = np.where(first + second + third > epsilon * (1 + 1e-12), np.inf, sums)
        best = np.unravel_index(np.argmin(sums), sums.shape)
        middle, reach = np.array([second[best], third[best]]), (high - low) / 50
        low, high = np.maximum(middle - reach, 0.01 * epsilon), middle + reach
    return float(sums.min())


@pytest.mark.parametrize(
    ("run", "delta"),
    [(Gaussian(0.550707).poisson(0.256868) * 481, 6.7e-23), (Gaussian(0.643205).poisson(0.151518) * 15, 1.4e-3)],
)
def test_links_far_apart_are_those_of_the_best_split(run: Mechanism, delta: float) -> None:
    """Their deltas have no scale in common: the first was [1472, 2664]."""
    bounds = run.group(3).epsilon(delta)
    assert bounds.width <= 1e-3 * bounds.upper
    assert least_of_three(run, bounds.lower) >= math.log(delta) - 1e-3
    assert least_of_three(run, bounds.upper) <= math.log(delta) + 1e-3


@pytest.mark.parametrize(
    ("run", "size", "delta"),
    [
        (Laplace(0.609631).poisson(0.492473) * 12, 5, 1.3e-27),
        (Laplace(0.828675).poisson(0.00060329) * 28, 10, 1.3e-24),
        (Laplace(2.20646).poisson(0.171609) * 29 + Laplace(4.41292) * 3, 7, 3.2e-10),
        (Laplace(3.39425, REPLACE_ONE).uniform(266, of=10_000) * 26, 3, 6.7e-17),
    ],
)
def test_links_at_the_largest_loss_agree_with_bands_of_the_whole_curve(run: Mechanism, size: int, delta: float) -> None:
    """Another route to the same: both bands of a single record's curve, composed with themselves."""
    group = run.group(size)
    began = time.process_time()
    bounds = group.epsilon(delta)
    assert time.process_time() - began < BUSY * 0.3
    assert bounds.width <= 1e-3 * bounds.upper
    pair = group.pair()
    assert isinstance(pair, Enclosed)
    assert isinstance(pair.lower, Atoms)
    assert isinstance(pair.upper, Atoms)
    assert pair.lower.log_delta(np.array([bounds.upper]))[0] <= math.log(delta) + 1e-9
    assert pair.upper.log_delta(np.array([bounds.lower]))[0] >= math.log(delta) - 1e-9


@pytest.mark.parametrize(
    ("run", "size", "delta"),
    [
        (Laplace(0.694224).poisson(0.157871) * 216, 10, 6.3e-4),  # was [599, 888]
        (Laplace(1.12477).poisson(0.372674) * 785, 5, 5.4e-10),  # deltas below e^-690
        (Gaussian(0.597529).uniform(1147, of=10_000) * 1179, 5, 5.9e-7),  # was [293, 4985]
        (Gaussian(0.569343).uniform(1477, of=10_000) * 150, 5, 5e-20),
        (Gaussian(4.99721).uniform(154, of=10_000) * 27, 2, 1.7e-22),
        (Gaussian(9.26278).uniform(1, of=10_000) * 110, 5, 1e-13),  # tails that count only once they are tilted
    ],
)
def test_deep_links_are_narrow_and_keep_to_their_bounds(run: Mechanism, size: int, delta: float) -> None:
    bounds = run.group(size).epsilon(delta)
    assert bounds.width <= 1e-3 * bounds.upper < math.inf
    assert bounds.lower >= run.epsilon(delta).lower


def test_corners_between_points_far_apart_lie_below_the_curve() -> None:
    """Against a curve that is known everywhere: N(0, 1) and N(mu, 1), at points up to 900 apart."""
    curve = gaussian_curve(4.0)
    places = np.array([3.0, 3.1, 3.2, 40.0, 40.1, 40.2, 700.0, 700.2, 700.4, 1600.0, 1600.3])
    lower, upper = curve(places)
    slopes, values = chains.lines_below(places, lower, upper, -math.inf)
    levels = -np.linspace(5.0, 3000.0, 400)
    dense = np.append(0.0, np.geomspace(1e-2, 1700.0, 40_000))
    log_delta = curve(dense)[1]
    below = np.array([np.logaddexp(values, level + slopes).min() for level in levels])
    truth = np.array([np.logaddexp(log_delta, level + dense).min() for level in levels])
    assert np.all(below <= truth + 1e-9)
    near = [
        k
        for k, level in enumerate(levels)
        if np.abs(dense[np.logaddexp(log_delta, level + dense).argmin()] - places).min() < 0.1
    ]
    assert np.all(below[near] >= truth[near] - 0.05)
