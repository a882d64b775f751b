"""Groups by doubling: gains composed with itself in many digits, by closed forms and by chains of links."""

from __future__ import annotations

import math
from bisect import bisect_right

import mpmath
import numpy as np
import pytest

from hush.accounting import Gaussian, Guarantees, Laplace, Mechanism, Projected, RandomisedResponse, calibrate
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping import doubling, gains, grouped, rounds
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.gains import Gains
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import Whole
from hush.accounting.mechanisms import ADD_REMOVE
from hush.accounting.pairs.losses import Array

DIGITS = 60
PLACES = np.geomspace(1e-9, 1e4, 3000)


def number_at(place: float) -> mpmath.mpf:
    """The type I error at a place."""
    return 1 / (1 + mpmath.exp(-mpmath.mpf(place)))


class Power:
    """The same power curve in many digits, straight between corners."""

    def __init__(self, of: Gains) -> None:
        self.alpha = [mpmath.mpf(0), *(number_at(x) for x in of.places[1:-1].tolist()), mpmath.mpf(1)]
        self.beta = [
            a + (mpmath.exp(h) if h > -math.inf else 0) for a, h in zip(self.alpha, of.logs.tolist(), strict=True)
        ]

    def __call__(self, alpha: mpmath.mpf) -> mpmath.mpf:
        k = min(max(bisect_right(self.alpha, alpha) - 1, 0), len(self.alpha) - 2)
        part = (alpha - self.alpha[k]) / (self.alpha[k + 1] - self.alpha[k])
        return min(self.beta[k] + part * (self.beta[k + 1] - self.beta[k]), mpmath.mpf(1))


def some_lines(random: np.random.Generator) -> tuple[Array, Array]:
    """Of a convex delta, that begins near 1 or far below, and is steep or flat."""
    scale, number = 10.0 ** random.uniform(-6, 2.5), int(random.integers(2, 40))
    slopes = np.append(0.0, np.sort(random.uniform(0.0, scale, number)))
    first = -(10.0 ** random.uniform(-3, 2.0))
    logs = first - np.append(0.0, np.cumsum(random.exponential(10.0 ** random.uniform(-3, 1.5), number)))
    return slopes, logs


@pytest.mark.parametrize("seed", range(40))
def test_gains_of_many_records_are_enclosed_by_a_power_curve_in_many_digits(seed: int) -> None:
    random = np.random.default_rng(seed)
    record = gains.of_lines(*some_lines(random))
    size, share = int(random.integers(2, 40)), 10.0 ** random.uniform(-6, -2)
    below, above = (record.times(size, upper=upper, share=share) for upper in (False, True))
    levels = np.concatenate(
        [random.uniform(-3000, 3000, 10), random.uniform(-40, 40, 20), random.choice(record.places[1:-1], 10)]
    )
    with mpmath.workdps(3000 // 2 + DIGITS):
        power = Power(record)
        for level, low, high in zip(levels.tolist(), below.at(levels), above.at(levels), strict=True):
            reached = first = number_at(level)
            for _ in range(size):
                reached = power(reached)
            gained = reached - first
            truth = float(mpmath.log(gained)) if gained > 0 else -math.inf
            slack = 1e-13 * (1 + abs(truth))  # of the logarithm as a float
            assert low - slack <= truth <= high + slack
            assert high - low <= 4 * size * share + 1e-9 * (1 + abs(level))


def least(lines: list[tuple[mpmath.mpf, mpmath.mpf]], alpha: mpmath.mpf) -> mpmath.mpf:
    """Power below lines of such slopes and intercepts, and below their mirror images."""
    above = (intercept + slope * alpha for slope, intercept in lines)
    below = (1 - (1 - alpha - intercept) / slope for slope, intercept in lines)
    return min(*above, *below, mpmath.mpf(1))


@pytest.mark.parametrize("seed", range(30))
def test_gains_below_lines_are_enclosed_however_close_to_1_these_begin(seed: int) -> None:
    random = np.random.default_rng(seed)
    slopes, logs = np.array([0.0, random.uniform(4.0, 12.0)]), np.array([-1e-12, -random.uniform(20.0, 200.0)])
    if seed % 2:
        number = int(random.integers(1, 12))
        slopes = np.append(0.0, np.sort(random.uniform(0.0, 10.0 ** random.uniform(-6, 2.3), number)))
        first, scale = -(10.0 ** random.uniform(-13, 0.5)), 10.0 ** random.uniform(-13, 2.0)
        logs = first - np.append(0.0, np.cumsum(random.exponential(scale, number)))
    record, size = gains.of_lines(slopes, logs), int(random.integers(1, 9))
    below, above = (record.times(size, upper=upper, share=1e-9) for upper in (False, True))
    inner = np.unique(np.concatenate([below.places, above.places, record.places]))
    inner = inner[np.abs(inner) < 150]
    levels = np.concatenate([inner, 0.5 * (inner[1:] + inner[:-1]), random.uniform(-20.0, 20.0, 10)])
    with mpmath.workdps(170):
        lines = [(mpmath.exp(t), mpmath.exp(v)) for t, v in zip(slopes.tolist(), logs.tolist(), strict=True)]
        for level, low, high in zip(levels.tolist(), below.at(levels), above.at(levels), strict=True):
            reached = alpha = number_at(level)
            for _ in range(size):
                reached = least(lines, reached)
            truth = float(mpmath.log(reached - alpha)) if reached > alpha else -math.inf
            assert low <= truth + 4e-15 * (1 + abs(truth))
            assert high >= truth - 4e-15 * (1 + abs(truth))


@pytest.mark.parametrize("seed", range(20))
def test_epsilon_and_delta_of_gains_are_those_of_the_power_curve(seed: int) -> None:
    random = np.random.default_rng(seed)
    record = gains.of_lines(*some_lines(random))
    epsilon = 10.0 ** random.uniform(-7, 2)
    log_delta = float(record.logs[0]) * random.uniform(1.0, 2.0) + random.uniform(-1.0, 0.0)
    with mpmath.workdps(1000):
        power = Power(record)
        corners = list(zip(power.alpha[1:], power.beta[1:], strict=True))
        left = max(b - mpmath.exp(mpmath.mpf(epsilon)) * a for a, b in [(mpmath.mpf(0), power.beta[0]), *corners])
        truth = float(mpmath.log(left)) if left > 0 else -math.inf
        low, high = (gains.log_delta(record, epsilon, upper=upper) for upper in (False, True))
        assert low <= truth + 1e-15 * abs(truth)
        assert high >= truth - 1e-15 * abs(truth)
        assert not high - low > 1e-9 * (1 + abs(truth))
        steepest = max((b - mpmath.exp(mpmath.mpf(log_delta))) / a for a, b in corners)
        expected = float(mpmath.log(steepest)) if steepest > 1 else 0.0
        low, high = (gains.epsilon(record, log_delta, upper=upper) for upper in (False, True))
        assert low <= expected * (1 + 1e-15)
        assert high >= expected * (1 - 1e-15) or record.logs[0] > log_delta
        if high < math.inf:
            assert high - low <= 1e-9 * expected + 1e-15


def test_thinned_gains_are_on_the_safe_side_and_no_further_off_than_was_said() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        slopes = np.sort(random.uniform(0.0, 30.0, 800))
        record = gains.of_lines(slopes, -np.cumsum(random.exponential(0.1, 800)))
        places = random.uniform(-200.0, 200.0, 400)
        exact, share = record.at(places), 10.0 ** random.uniform(-4, -2)
        below, above = (record.thinned(share, upper=upper) for upper in (False, True))
        assert below.places.size < record.places.size
        assert np.all(below.at(places) <= exact + 1e-12)
        assert np.all(above.at(places) >= exact - 1e-12)
        off = share * gains.allowed(places) * 1.1  # corners nearby may be allowed a little more
        assert np.all(below.at(places) >= exact - off - 1e-12)
        assert np.all(above.at(places) <= exact + 2 * off + 1e-12)


def gaussian_task(mu: float, size: int) -> doubling.Task:
    curve = gaussian_curve(mu**2)
    logs = np.minimum.accumulate(np.clip(curve(PLACES * mu)[1], -1e5, -1e-12))
    return doubling.Task(
        Asked([Whole(curve)]), Model(np.append(0.0, PLACES * mu), np.append(logs[0], logs)), size, -np.inf
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 1001, 12_345, 10**6])
@pytest.mark.parametrize("together", [1e-3, 0.5, 4.0, 30.0])
def test_a_group_of_gaussian_records_is_gaussian(size: int, together: float) -> None:
    """G_mu composed with itself k times is G_{k mu}."""
    task, whole = gaussian_task(together / size, size), gaussian_curve(together**2)
    for log_delta in (-3.0, -20.0, -200.0):
        if whole(np.zeros(1))[0][0] < log_delta:
            continue  # epsilon is 0
        low, high = task.epsilon(log_delta, 1e-3)
        ends = whole(np.array([low, high]))
        assert ends[1][0] >= log_delta - 1e-9
        assert ends[0][1] <= log_delta + 1e-9
        assert high - low <= 1e-3 * high
        at = 0.5 * (low + high)
        (least, most), known = task.log_delta(at, 1e-3), whole(np.array([at]))
        assert least <= known[1][0] + 1e-9
        assert most >= known[0][0] - 1e-9
        assert most - least <= 12e-3 * max(1.0, -most)


RUNS = [
    (Gaussian(2.0).poisson(0.01) * 300, 12, -20.0),
    (Gaussian(1.5).poisson(0.001) * 5000, 40, -25.0),
    (Gaussian(20.0) + Laplace(30.0) * 10, 30, -15.0),
    (Laplace(3.0).poisson(0.02) * 200 + RandomisedResponse(1.0, ADD_REMOVE).poisson(0.001) * 40, 6, -30.0),
    (Guarantees.of(0.3, 1e-7).poisson(0.01) * 400 + Gaussian(5.0) * 2, 5, -9.0),
    (Projected(14.6, 14).poisson(0.00056) * 6864, 11, -21.6),
    (Gaussian(2.0).uniform(4, of=100) * 50, 9, -18.0),
]


@pytest.mark.parametrize(("run", "size", "log_delta"), RUNS)
def test_doubling_and_chains_of_links_agree(run: Mechanism, size: int, log_delta: float) -> None:
    """Two ways from the same single record's curve to its group."""
    group = run.group(size)
    asked = grouped._asked(group, log_delta=log_delta)
    largest = grouped.largest(group)
    low, high = doubling.Task(*asked, largest).epsilon(log_delta, 1e-3)
    least, most = rounds.epsilon(*asked, log_delta, 1e-3, largest)
    assert high - low <= 2e-2 * high
    assert most - least <= 2e-3 * most
    assert max(low, least) <= min(high, most) * (1 + 1e-12)
    at = 0.5 * (least + most)
    asked = grouped._asked(group, epsilon=at)
    low, high = doubling.Task(*asked, largest).log_delta(at, 1e-3)
    least, most = rounds.log_delta(*asked, at, 1e-3, largest)
    assert max(low, least) <= min(high, most) + 1e-12


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "size"),
    [
        (500.0, 0.001, 10_000, 10_000),
        (1e4, 1e-4, 10**6, 10**6),
        (3000.0, 0.01, 1000, 50_000),
    ],
)
def test_ten_thousand_records_are_about_as_gaussian_as_their_run(
    noise: float, rate: float, steps: int, size: int
) -> None:
    """Samples with much noise are G_mu of mu = k p sqrt(T)/sigma, nearly."""
    run, mu = Gaussian(noise).poisson(rate) * steps, size * rate * math.sqrt(steps) / noise
    expected, found = Gaussian(1 / mu).epsilon(1e-6), run.group(size).epsilon(1e-6)
    assert found.width <= 1e-3 * found.upper
    assert found.lower == pytest.approx(expected.lower, rel=0.02)


def test_a_million_records_that_lose_everything_now_and_then_do_so_more_often() -> None:
    """The delta of k records with (e, d) each is d (e^{k e} - 1)/(e^e - 1) beyond k e."""
    found, truth = Guarantees.of(1e-12, 1e-9).group(10**6).delta(1.0), 1e-9 * math.expm1(1e-6) / math.expm1(1e-12)
    assert found.lower <= truth <= found.upper
    assert found.width <= 1e-3 * found.upper


@pytest.mark.parametrize("size", [1500, 40_000])
def test_whole_curves_of_many_records_are_enclosed_by_closed_forms(size: int) -> None:
    task = gaussian_task(2.0 / size, size)
    epsilons = np.linspace(0.0, 12.0, 200)
    (low, high), truth = task.curve(epsilons, 1e-3), gaussian_curve(4.0)(epsilons)
    assert np.all(low <= truth[1] + 1e-9)
    assert np.all(high >= truth[0] - 1e-9)
    assert np.max(np.exp(high) - np.exp(low)) < 1e-3


def test_trade_off_curves_of_promises_end_where_they_fail() -> None:
    """Links followed one by one: the errors of (e, d) are the larger of two lines."""
    for size in (900, 1001, 2000):
        curve = Guarantees.of(1e-3, 1e-6).group(size).tradeoff()
        at = np.array([1e-6, 0.01, 0.3])
        power = at
        for _ in range(size):
            power = 1 - np.maximum(1 - 1e-6 - math.exp(1e-3) * power, math.exp(-1e-3) * (1 - 1e-6 - power))
        lower, upper = curve(at)
        assert np.all(lower <= 1 - power + 1e-9)
        assert np.all(upper >= 1 - power - 1e-9)
        assert np.max(upper - lower) < 1e-3


def test_what_nothing_is_left_of_is_told_in_finite_time() -> None:
    """Gains known to no share at all were thinned for ever, and a delta just at the largest loss was nothing known."""
    assert Guarantees.of(1e-12, 1e-9).group(10**6).epsilon(0.02).upper == 0
    found = Laplace(1e4).group(10_000).delta(1.0)
    assert found.lower == 0
    assert found.upper < 1e-7
    flat = Gains(np.append(np.linspace(-7.0, 7.0, 40_000), np.inf), np.append(np.full(40_000, -1.0), -np.inf))
    assert flat.thinned(0.0, upper=True).places.size <= 30_000


@pytest.mark.parametrize(
    ("run", "size", "most"), [(RandomisedResponse(1e-5, ADD_REMOVE) * 3, 10**6, 30.0), (Laplace(1e4), 10**5, 10.0)]
)
def test_a_million_records_of_pure_promises_lose_nearly_all_they_can(run: Mechanism, size: int, most: float) -> None:
    assert (
        0.999 * most < run.group(size).epsilon(1e-6).lower <= run.group(size).epsilon(1e-6).upper <= most * (1 + 1e-12)
    )
    assert run.group(size).delta(most + 1e-6).upper == 0


def test_a_group_whose_model_reaches_beyond_the_largest_loss_is_answered() -> None:
    run = RandomisedResponse(0.44395052393361367, ADD_REMOVE).poisson(0.01)
    assert 0 < run.group(7).delta(0.0).lower <= run.group(7).delta(0.0).upper < 0.0153
    assert run.group(7).epsilon(0.4).upper == 0


@pytest.mark.parametrize("size", [2, 17, 1000, 1001])
def test_next_to_no_loss_is_answered_at_any_delta(size: int) -> None:
    """Links at no losses at all were none, and a chain of none an exception."""
    run = RandomisedResponse(1e-12, ADD_REMOVE).poisson(0.5)
    for delta in (1e-300, 1e-13, 0.1):
        found = run.group(size).epsilon(delta)
        assert found.width <= max(1e-3 * found.upper, 1e-12)
        assert found.upper <= 0.5e-12 * size * (1 + 1e-6)


def test_whole_curves_tell_finite_losses_apart_beside_a_leak() -> None:
    """Points were spread out to the leak's own loss, and none was left for the others: 0.4 wide."""
    for promise, size in ((Guarantees.of(1e-3, 1e-12), 1001), (Guarantees.of(6.28e-5, 1e-12), 20_000)):
        curve = promise.group(size).tradeoff(200)
        assert np.max(curve.upper - curve.lower) < 1e-3


@pytest.mark.parametrize(("noise", "size"), [(100.0, 2), (208.8, 4), (10.0, 2), (9.0, 2), (208.8, 20_000)])
def test_deltas_far_below_what_is_asked_for_are_told_to_be(noise: float, size: int) -> None:
    """They were [0, 1] where one hit more would be needed than any epsilon that far out."""
    group = (Gaussian(noise).poisson(0.01) * 100).group(size)
    assert group.delta(2.0 if size < 100 else 5000.0).upper < 1e-100


def test_noise_for_thousands_of_records_is_found() -> None:
    found = calibrate.noise(lambda noise: (Gaussian(noise).poisson(0.01) * 100).group(3000), epsilon=3, delta=1e-5)
    assert 0.999 * 3 < (Gaussian(found).poisson(0.01) * 100).group(3000).epsilon(1e-5).upper <= 3


def test_points_are_where_the_curve_bends_whatever_the_model_has_there() -> None:
    """A model moved to what was found has steps; points that all went to them left [352.9, 361.9]."""
    run = Gaussian(8.83482).poisson(0.0123093) * 144
    found = run.group(1140).epsilon(2.1521863e-12)
    assert 357.9 < found.lower <= found.upper < 1.001 * found.lower
