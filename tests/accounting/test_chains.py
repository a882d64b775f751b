"""Groups of records: power curves in logarithms against Gaussian closed forms, enumeration and the minimum formula."""

from __future__ import annotations

import itertools
import math
import time

import mpmath
import numpy as np
import pytest
from busy import BUSY
from scipy import integrate
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from hush.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    Gaussian,
    Guarantees,
    Laplace,
    Mechanism,
    RandomisedResponse,
    answers,
)
from hush.accounting.answers import log_delta_curve
from hush.accounting.errors import corner, corners
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping import chains, grouped, links, powers, rounds
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.makers import Whole
from hush.accounting.grouping.samples import Replaced
from hush.accounting.groups import Group
from hush.accounting.pairs.losses import Array, Atoms, Enclosed, Pair
from hush.accounting.releases import Tradeoff

LEVELS = np.array([-3000.0, -300.0, -80.0, -20.0, -5.0, -1.0, -0.1, -1e-3, -1e-9, -1e-25])


def gaussian_power(mu: float, log_alpha: np.ndarray) -> np.ndarray:
    return np.asarray(log_ndtr(ndtri_exp(log_alpha) + mu))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("points", [4, 9, 60])
def test_bands_of_any_coarseness_enclose_the_gaussian_groups_power(size: int, points: int) -> None:
    mu = 0.7
    epsilons = 25.0 * np.linspace(0.0, 1.0, points) ** 1.3
    less, more = chains.bands(epsilons, *gaussian_curve(mu**2)(epsilons), -np.inf)
    exact = gaussian_power(size * mu, LEVELS)
    below, above = less.times(size, upper=False).at(LEVELS), more.times(size, upper=True).at(LEVELS)
    slack = 1e-12 * (1 + np.abs(exact))
    assert np.all(below <= exact + slack)
    assert np.all(above >= exact - slack)
    if points == 60 and size < 5:
        middle = (LEVELS > -80) & (LEVELS < -1e-2)
        assert np.all((above - below)[middle] < 0.6)


@pytest.mark.parametrize("seed", range(8))
def test_corners_lie_below_the_curve_whatever_the_bounds(seed: int) -> None:
    """delta as a mixture of hinges, known up to a few percent at points far apart: no line exceeds its conjugate."""
    generator = np.random.default_rng(seed)
    hinges, weights = generator.uniform(0, 12, 6), generator.dirichlet(np.ones(6)) * 10 ** generator.uniform(-30, 0)

    def log_delta(epsilons: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(-np.expm1(np.subtract.outer(epsilons, hinges)), 0.0) @ weights)

    epsilons = np.sort(np.append(0.0, generator.uniform(0, 13, 9)))
    noise = generator.uniform(0, 0.05, (2, epsilons.size))
    lower, upper = log_delta(epsilons) - noise[0], log_delta(epsilons) + noise[1]
    dense = np.linspace(0, 13, 20_001)
    for log_alpha in -np.linspace(0, 60, 40):
        power = np.min(np.logaddexp(log_delta(dense), dense + log_alpha))
        lines = [*zip(*corners(epsilons, lower, upper), strict=True)]
        lines += [*zip(epsilons, lower, strict=True), (float(epsilons[-1]), -math.inf)]
        least = min(float(np.logaddexp(value, at + log_alpha)) for at, value in lines)
        assert least <= power + 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_a_corner_lies_below_both_chords_to_the_last_place(seed: int) -> None:
    """In 60 digits, however much cells differ in length: a chord over 1e-8 extended by 100 was off by 1e-9 of delta."""
    generator = np.random.default_rng(seed)
    epsilons = np.cumsum(10 ** generator.uniform(-8, 2, 6)) + generator.choice([0.0, 600.0])
    falls, weights = 10 ** generator.uniform(-2, 3, (2, 1)), 10 ** generator.uniform(-6, 0, (2, 1))
    logs = np.logaddexp(*(np.log(weights) - falls * (epsilons - epsilons[0]))) + generator.uniform(-600, 0)
    gaps = 10.0 ** generator.uniform(-14, -3) * generator.uniform(0, 1, (2, epsilons.size))
    lower, upper = np.nextafter(logs - gaps[0], -np.inf), np.nextafter(logs + gaps[1], np.inf)
    with mpmath.workdps(60):
        y = [mpmath.exp(float(epsilon)) for epsilon in epsilons]
        least, most = ([mpmath.exp(float(log)) for log in side] for side in (lower, upper))
        for j, reach in itertools.product(range(1, epsilons.size - 2), (1, 2, 3)):
            i, k = max(j - reach, 0), min(j + 1 + reach, epsilons.size - 1)
            place, log_value = corner(epsilons, lower, upper, j, i, k)
            at, value = mpmath.exp(place), mpmath.exp(log_value)
            before = least[j] - (most[i] - least[j]) / (y[j] - y[i]) * (at - y[j])
            after = least[j + 1] + (least[j + 1] - most[k]) / (y[k] - y[j + 1]) * (y[j + 1] - at)
            assert y[j] <= at <= y[j + 1]
            assert value <= max(after, least[j + 1])
            assert value <= max(before, least[j + 1])


@pytest.mark.parametrize("epsilon", [0.3, 5.0, 40.0, 700.0, 2500.0])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_groups_of_pure_mechanisms_reach_their_largest_loss_and_no_more(epsilon: float, size: int) -> None:
    run = Guarantees.of(epsilon).group(size)
    bounds = run.epsilon(1e-9)
    if epsilon * size > 1e4:
        assert (bounds.lower, bounds.upper) == (1e4, math.inf)
        return
    assert bounds.upper <= epsilon * size * (1 + 1e-12)
    assert bounds.width <= 2e-6 * bounds.upper
    # the likeliest path is all truths: below k eps by no more than where its part of delta is used up
    assert run.delta(0.999 * size * epsilon).lower > 1e-9 or size * epsilon < 3


@pytest.mark.parametrize("size", [2, 3])
def test_a_groups_delta_is_the_least_of_all_ways_to_split_epsilon(size: int) -> None:
    """delta_k(eps) = min over e_1 + ... + e_k = eps of the sum of delta(e_i) exp(e_{i+1} + ... + e_k), on a grid."""
    run = Laplace(1.3).poisson(0.2)
    grid = np.linspace(-1.0, 1.6, 53)
    deltas = np.array([run.delta(abs(float(e))).upper for e in grid])
    deltas = np.where(grid < 0, -np.expm1(grid) + np.exp(grid) * deltas, deltas)
    for epsilon in (0.2, 0.6):
        if size == 2:
            other = np.interp(epsilon - grid, grid, deltas)
            least = np.min(deltas + np.exp(grid) * other)
        else:
            a, b = np.meshgrid(grid, grid)
            last = np.interp(epsilon - a - b, grid, deltas, left=1.0)
            least = np.min(np.interp(a, grid, deltas) + np.exp(a) * np.interp(b, grid, deltas) + np.exp(a + b) * last)
        bounds = run.group(size).delta(epsilon)
        assert bounds.lower <= least * (1 + 1e-9)
        assert size > 2 or bounds.upper >= least * (1 - 2e-2)  # the grid is coarse, and no split is below the least


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("delta", [1e-5, 1e-50, 0.3])
def test_a_chain_of_gaussians_agrees_with_the_closed_form(size: int, delta: float) -> None:
    mu = 1 / 1.3
    exact = Gaussian(1.3 / size).epsilon(delta)
    curve, places = gaussian_curve(mu**2), np.append(0.0, np.geomspace(1e-3, 100.0, 200))
    oracle, rough = (lambda at, sizes, sharpness: curve(at)), links.Model(places, curve(places)[1])
    low, high = rounds.epsilon(oracle, rough, size, -math.inf, math.log(delta), 9e-4)
    assert low <= exact.upper
    assert high >= exact.lower
    assert high - low <= 9e-4 * high


def test_mirrored_outcomes_keep_their_mass_where_powers_round_to_one() -> None:
    curve = powers.of_steps(np.array([-math.log1p(math.exp(-60.0))]), np.array([-60.0]), -math.inf, -math.inf)
    pair = curve.times(2, upper=True).atoms(1e-12)
    assert isinstance(pair, Atoms)
    masses = dict(zip(np.rint(pair.losses), pair.p, strict=True))
    assert masses[-120.0] == pytest.approx(math.exp(-120.0), rel=1e-6)


def test_powers_agree_with_plain_interpolation_where_that_has_digits() -> None:
    epsilons = np.linspace(0, 4, 40)
    curve = chains.bands(epsilons, *gaussian_curve(1.0)(epsilons), -np.inf)[1]
    alpha = np.linspace(0.001, 0.999, 200)
    plain = np.interp(alpha, np.exp(curve.alpha), np.exp(curve.power))
    np.testing.assert_allclose(np.exp(curve.at(np.log(alpha))), plain, rtol=1e-12)
    np.testing.assert_allclose(np.exp(curve.reached(np.log(plain))), alpha, rtol=1e-9)
    assert np.all(np.diff(ndtr(curve.power)) >= 0)


def test_groups_of_sampled_gaussians_have_a_narrow_answer_in_a_second() -> None:
    for run, size in ((Gaussian(1.3).poisson(0.01) * 100, 2), (Gaussian(1.3).poisson(256 / 60_000) * 3516, 5)):
        began = time.process_time()
        bounds = run.group(size).epsilon(1e-5)
        assert time.process_time() - began < BUSY * 1.0
        assert bounds.width <= 1e-3 * bounds.upper


def tilted_log_delta(
    rate: float, noise: float, count: int, tilt: float, epsilon: float, *, replaced: bool = False
) -> float:
    """log delta of removing a record, by another way: losses tilted, put on a lattice and convolved by FFT.

    With a record replaced: positive losses, their mirror images, and what is left at 0.
    """
    spacing, size = 2e-3, 1 << 20
    x = np.linspace(-60.0, 60.0, 600_001)
    loss = np.log1p(rate * np.expm1(x / noise - 0.5 / noise**2))
    logs = loss - 0.5 * x**2 - 0.5 * math.log(2 * math.pi) + math.log(x[1] - x[0])
    if replaced:
        logs, loss = logs[loss > 0], loss[loss > 0]
        rest = 1 - np.exp(logs).sum() - np.exp(logs - loss).sum()
        loss, logs = np.concatenate([loss, -loss, [0.0]]), np.concatenate([logs, logs - loss, [math.log(rest)]])
    logs += tilt * loss
    log_mass = float(np.logaddexp.reduce(logs))
    weights = np.exp(logs - log_mass)
    place = np.floor(loss / spacing)
    above, place = loss / spacing - place, place.astype(int)
    law = np.bincount(place % size, (1 - above) * weights, size) + np.bincount(
        (place + 1) % size, above * weights, size
    )
    law = np.fft.irfft(np.fft.rfft(law) ** count, size)
    places = round(count * float(weights @ loss) / spacing) + np.arange(-size // 2, size // 2)
    excess = np.maximum(spacing * places - epsilon, 0.0)
    terms = np.maximum(law[places % size], 0.0) * np.exp(-tilt * excess) * -np.expm1(-excess)
    return float(count * log_mass - tilt * epsilon + np.log(np.sum(terms)))


def test_a_single_records_curve_is_sharp_where_groups_of_fifty_ask_for_it() -> None:
    """At log deltas of thousands, where it had not been: the tilted law lies half at no loss, half at a large one."""
    for epsilon, tilt in ((100.0, 8.37), (648.5, 8.8), (1000.0, 8.9)):
        (low,), (high,) = answers.log_delta_curve(Gaussian(1.0).poisson(0.01) * 1000, np.array([epsilon]))
        assert high - low < 1e-6
        assert low == pytest.approx(tilted_log_delta(0.01, 1.0, 1000, tilt, epsilon), abs=1e-4)


@pytest.mark.parametrize(("epsilon", "tilt"), [(50.0, 6.8), (100.0, 13.2), (200.0, 25.0)])
def test_replacing_a_record_is_as_sharp_where_losses_are_large(epsilon: float, tilt: float) -> None:
    group = (Gaussian(1.3, REPLACE_ONE).poisson(0.7) * 13).group(50)
    (maker,) = grouped.makers(Group(group.inner, 50))
    assert isinstance(maker, Replaced)
    deep = maker._deep(epsilon)
    assert deep is not None
    (low,), (high,) = deep(np.array([epsilon]))
    assert high - low < (1e-2 if epsilon < 60 else 1e-6)
    expected = tilted_log_delta(0.7, 1.3, 13, tilt, epsilon, replaced=True)
    assert low - 1e-3 <= expected <= high + 1e-3


@np.errstate(all="ignore")
def test_bounds_for_replaced_records_enclose_where_losses_are_small() -> None:
    for run in (Gaussian(1.0).uniform(100, of=10_000) * 1000, Gaussian(1.0).uniform(3000, of=10_000) * 30):
        (maker,) = grouped.makers(Group(run, 2))
        assert isinstance(maker, Replaced)
        for epsilon in (5.0, 12.0, 40.0):
            deep = maker._deep(epsilon)
            size = float(maker.binned.rough(np.array([epsilon]))[0])
            binned = maker.binned.curve(epsilon, size, 1e-4)
            assert deep is not None
            assert binned is not None
            assert deep(np.array([epsilon]))[0][0] <= binned(np.array([epsilon]))[1][0]
            assert deep(np.array([epsilon]))[1][0] >= binned(np.array([epsilon]))[0][0]


def two_replaced(rate: float, noise: float, epsilon: float) -> float:
    """delta of two steps of C_p: one of them in closed form, averaged over the other's losses by quadrature.

    C_p has the losses l(x) = log(1 + p (e^u - 1)) > 0 of x > 1/(2 sigma) as they are under P, their mirror images with
    P and Q exchanged, and the rest of its mass at 0.
    """
    mu = 1 / noise

    def one(at: float) -> float:
        if at < 0:
            return -math.expm1(at) + math.exp(at) * one(-at)
        inner = math.log1p(math.expm1(at) / rate)
        return float(rate * (ndtr(mu / 2 - inner / mu) - math.exp(inner) * ndtr(-mu / 2 - inner / mu)))

    def density(x: float) -> float:
        ratio = 1 + rate * math.expm1(mu * x - mu * mu / 2)
        both = ratio * one(epsilon - math.log(ratio)) + one(epsilon + math.log(ratio))
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * both

    corner = math.log1p(math.expm1(epsilon) / rate) / mu + mu / 2
    inside = [integrate.quad(density, *ends, epsabs=1e-14)[0] for ends in ((mu / 2, corner), (corner, corner + 12))]
    return (1 - rate) * (1 - 2 * float(ndtr(-mu / 2))) * one(epsilon) + math.fsum(inside)


@pytest.mark.parametrize(("rate", "noise"), [(0.9, 1.0), (0.5, 1e4), (0.99, 0.3)])
def test_replacing_a_record_tells_more_than_removing_one_also_near_zero(rate: float, noise: float) -> None:
    """A bound shifted beyond 0 had been taken for that at 0: a total variation of 0.47 where it is 0.4816."""
    (maker,) = grouped.makers(Group(Gaussian(noise, REPLACE_ONE).poisson(rate) * 2, 2))
    assert isinstance(maker, Replaced)
    deep = maker._deep(2.5 * rate / noise)
    assert deep is not None
    for share in (0.0, 0.1, 0.5, 2.5):
        (low,), (high,) = deep(np.array([share * rate / noise]))
        assert low - 1e-7 <= math.log(two_replaced(rate, noise, share * rate / noise)) <= high + 1e-9


@pytest.mark.parametrize(
    ("size", "expected"), [(20, 176.2), (40, 2010.9), (50, 6189.4), (55, math.inf), (1000, math.inf)]
)
def test_large_groups_are_narrow_in_a_second_or_told_to_be_beyond(size: int, expected: float) -> None:
    """[293, inf] after 80 s for a group of 50."""
    began = time.process_time()
    bounds = (Gaussian(1.0).poisson(0.01) * 1000).group(size).epsilon(1e-5)
    assert time.process_time() - began < BUSY * 1.0
    if math.isinf(expected):
        assert (bounds.lower, bounds.upper) == (1e4, math.inf)
    else:
        assert bounds.width <= 1e-3 * bounds.upper
        assert bounds.lower * (1 - 1e-3) <= expected <= bounds.upper * (1 + 1e-3)


def test_deep_chains_agree_with_gaussians_where_nearly_everybody_is_sampled() -> None:
    exact = Gaussian(1 / 100.0).epsilon(1e-5)  # 50 records, 4 steps: mu = 100
    bounds = (Gaussian(1.0).poisson(1 - 1e-12) * 4).group(50).epsilon(1e-5)
    assert bounds.lower <= exact.upper * (1 + 1e-6)
    assert bounds.upper >= exact.lower * (1 - 1e-6)
    assert bounds.width <= 1e-3 * bounds.upper


GROUPS: list[Mechanism] = [
    (Laplace(2.0).poisson(0.05) * 100).group(3),
    (Gaussian(1.5).uniform(100, of=10_000) * 500).group(4),
]


@pytest.mark.parametrize("group", GROUPS)
def test_an_attacker_on_a_group_is_answered_within_a_second(group: Mechanism) -> None:
    """The advantage, delta(0), took 3 and 11 s: its chains cross the diagonal, where points had been too close."""
    began = time.process_time()
    advantage = group.advantage()
    assert time.process_time() - began < BUSY * 1.0
    assert advantage.width <= 1e-3 * advantage.upper
    assert isinstance(group, Group)
    pair = group.pair()  # another route: bands of the whole curve
    assert isinstance(pair, Enclosed)
    assert isinstance(pair.lower, Atoms)
    assert isinstance(pair.upper, Atoms)
    assert math.exp(pair.lower.log_delta(np.zeros(1))[0]) <= advantage.upper
    assert math.exp(pair.upper.log_delta(np.zeros(1))[0]) >= advantage.lower


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("floor", [1e-30, 1e-12])
def test_pairs_that_end_at_a_floor_enclose_those_that_go_deeper(group: Mechanism, floor: float) -> None:
    assert isinstance(group, Group)
    deep, shallow = group.pair(), group.pair_above(floor)
    assert isinstance(deep, Enclosed)
    assert isinstance(shallow, Enclosed)
    epsilons = np.linspace(0.0, 8.0, 30)
    curves = [side.log_delta(epsilons) for pair in (deep, shallow) for side in (pair.lower, pair.upper)]  # type: ignore[attr-defined]
    assert np.all(curves[2] <= curves[1] + 1e-9)
    assert np.all(curves[0] <= curves[3] + 1e-9)
    told = curves[0] > math.log(floor) + 14
    assert np.all((curves[3] - curves[2])[told] < 0.05)


def test_a_first_chord_may_be_longer_than_any_floating_point_number():
    places, logs = np.array([1.0, 900.0]), np.array([-5.0, -2000.0])
    assert -5.0 - 1e-9 < chains._extended_to_zero(places, logs, logs) < -5.0


def test_a_group_is_beyond_where_a_single_record_is() -> None:
    """An OverflowError: a single record's delta is 1 far beyond 1e4, and nothing else was known of it."""
    bounds = (Laplace(0.23).poisson(0.005) * 238_214_400).group(5).epsilon(1e-18)
    assert (bounds.lower, bounds.upper) == (1e4, math.inf)


@pytest.mark.parametrize(("points", "rate", "size"), [(20, 1.0, 2), (30, 0.066, 2), (12, 0.3, 3)])
def test_a_group_of_a_function_known_at_few_points_is_that_of_its_two_envelopes(
    points: int, rate: float, size: int
) -> None:
    """By all splits on a fine grid.  Bounds that were spread in the wrong order gave 10.0006 where it is 10.638."""
    known = Tradeoff.of(lambda a: ndtr(-ndtri(a) - 1.0), points=points)
    pair, delta = known.pair(), 1e-5
    assert isinstance(pair, Enclosed)

    def deltas(law: Pair, at: Array) -> Array:
        """The larger of both directions, on a sample or not, from the atoms themselves."""
        assert isinstance(law, Atoms)
        p, q = np.array(law.p), np.array(law.q)
        with_p = (1 - rate) * np.append(q, law.vanishing) + rate * np.append(p, 0.0)
        with_q = np.append(q, law.vanishing)
        forward = np.maximum(with_p - np.multiply.outer(np.exp(at), with_q), 0.0).sum(axis=1) + rate * law.infinite
        back = np.maximum(with_q - np.multiply.outer(np.exp(at), with_p), 0.0).sum(axis=1)
        return np.maximum(forward, back)

    grid = np.linspace(-12.0, 24.0, 9001)
    found = known.poisson(rate).group(size).epsilon(delta)
    for law, end, sign in ((pair.lower, found.lower, -1), (pair.upper, found.upper, 1)):
        alone = deltas(law, grid)
        # delta_k(e) = min over splits of delta_{k-1}(e - f) e^f + delta(f), which is a curve on the grid again
        total = alone
        for _ in range(size - 1):
            total = np.array([np.min(np.interp(at - grid, grid, total) * np.exp(grid) + alone) for at in grid])
        root = float(grid[np.argmax(total <= delta)])
        assert sign * (end - root) > -0.02


def test_curves_are_asked_at_ascending_epsilons() -> None:
    """What holds at one epsilon holds on one side of it: in another order that would be the wrong side."""
    asked: list[Array] = []

    def curve(epsilons: Array) -> tuple[Array, Array]:
        asked.append(epsilons)
        return -epsilons - 1e-3, -epsilons

    Asked([Whole(curve)])(np.linspace(0.5, 9.0, 200), -np.linspace(0.5, 9.0, 200), 1e-4)
    assert asked
    assert all(np.all(np.diff(some) >= 0) for some in asked)
    with pytest.raises(ValueError, match="ascend"):
        log_delta_curve(Tradeoff.of(lambda a: ndtr(-ndtri(a) - 1.0)), np.array([2.0, 1.0]))


@pytest.mark.parametrize("kink", [1e-9, 1e-11, 1e-13, 1e-300])
def test_a_corner_next_to_zero_is_found_in_finite_time(kink: float) -> None:
    """A sample's curve is 1 - e^e up to -p: one floating-point number after another takes forever there."""
    places = np.array([-2e-3, -1e-3, 0.0, 1e-3, 2e-3])
    logs = np.log(np.where(places < -kink, -np.expm1(np.minimum(places, -1e-300)), kink))
    at, values = corners(places, logs, logs)
    assert np.all(np.diff(at) >= 0)
    assert -1.01e-3 < at[1] <= -kink * (1 - 1e-3) + 1e-15
    assert values[1] <= math.log(kink) + 1e-9


@pytest.mark.parametrize("rate", [1e-15, 1e-100])
def test_groups_of_coins_beside_samples_of_next_to_no_loss_are_answered(rate: float) -> None:
    """One place was all there was to know of such samples: an exception."""
    run = Gaussian(1.0).poisson(rate) * 2 + RandomisedResponse(1.0, ADD_REMOVE) * 3
    alone = (RandomisedResponse(1.0, ADD_REMOVE) * 3).group(2)
    for epsilon in (5.994, 6.006):
        assert run.group(2).delta(epsilon).upper >= alone.delta(epsilon).lower
        assert run.group(2).delta(epsilon).lower <= alone.delta(epsilon).upper + 1e-12
