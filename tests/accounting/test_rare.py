"""Whole curves of a few large losses among many small ones: against integrals in many digits, and other engines."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import gammaln, log_ndtr
from two_samples import one_sample, two_samples_beside

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Guarantees, Laplace, Mechanism, RandomisedResponse
from hush.accounting.grouping import record
from hush.accounting.kinds import directions
from hush.accounting.lattices import rare
from hush.accounting.lattices.listed import Known, Listed, Mean, apart, listed
from hush.accounting.pairs.points import Points, exact
from hush.accounting.releases import Projected

LOG_TOLERANCE = 1e-9  # of the references


def curve_of(run: Mechanism, deepest: float, slack: float, way: int = 0, furthest: float = 1e4) -> Known:
    found = record.curve(directions(run)[way], deepest, slack, furthest, (rare.curve,))
    assert found is not None
    return found


def assert_encloses(found: Known, epsilons: np.ndarray, exact: np.ndarray) -> np.ndarray:
    lower, upper = found(epsilons)
    assert np.all(lower <= exact + LOG_TOLERANCE)
    assert np.all(upper >= exact - LOG_TOLERANCE)
    return np.asarray(upper - lower)


@pytest.mark.parametrize(("rate", "noise"), [(1e-3, 2.0), (0.02, 5.0), (0.3, 1.1)])
def test_one_sample_beside_a_coin(rate: float, noise: float) -> None:
    """delta is the mean of one sample's over the two outcomes of the coin, from e^-0.1 to e^-250."""
    truth = 0.8
    run = Gaussian(noise, REPLACE_ONE).poisson(rate) + RandomisedResponse(truth, REPLACE_ONE)
    found, epsilons = curve_of(run, -300.0, 1e-4), np.array([0.0, 0.3, 0.79, 0.81, 0.9, 1.5, 3.0])
    with mpmath.workdps(60):
        chance = 1 / (1 + mpmath.exp(-mpmath.mpf(truth)))

        def one(epsilon: mpmath.mpf) -> mpmath.mpf:
            return one_sample(epsilon, rate, noise)

        expected = np.array(
            [
                float(mpmath.log(chance * one(e - truth) + (1 - chance) * one(e + truth)))
                for e in map(mpmath.mpf, epsilons.tolist())
            ]
        )
    kept = expected > -250
    gaps = assert_encloses(found, epsilons[kept], expected[kept])
    assert np.all(gaps < 0.1 * np.maximum(1.0, -expected[kept]))


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 3.0), (0.1, 8.0)])
def test_two_samples_beside_a_coin(rate: float, noise: float) -> None:
    truth = 0.6
    run = Gaussian(noise, REPLACE_ONE).poisson(rate) * 2 + RandomisedResponse(truth, REPLACE_ONE)
    found, epsilons = curve_of(run, -200.0, 1e-5), np.array([0.0, 0.2, 0.59, 0.61, 0.7, 0.9])
    with mpmath.workdps(40):
        exact = np.array([float(mpmath.log(two_samples_beside(e, rate, noise, truth))) for e in epsilons.tolist()])
    gaps = assert_encloses(found, epsilons, exact)
    assert np.all(gaps < 0.05 * np.maximum(1.0, -exact))


RUNS = [
    Gaussian(4.56, REPLACE_ONE).poisson(1.8e-4) * 22_000 + RandomisedResponse(1.2, REPLACE_ONE) * 5,
    Gaussian(2.2, REPLACE_ONE).uniform(2, of=24_652) * 1300 + Laplace(1.4, REPLACE_ONE) * 4,
    Gaussian(12.0).poisson(0.0064) * 597 + Laplace(3.2) * 10,
    Gaussian(6.6).poisson(4.8e-4) * 709 + Laplace(0.6) * 3,
    Gaussian(0.8).poisson(1e-3) * 3 + RandomisedResponse(0.5, ADD_REMOVE) * 2,
    Gaussian(3.0).poisson(1e-3) * 50 + Gaussian(20.0) * 3 + Laplace(9.0).poisson(0.1) * 5,
    Gaussian(1.5).poisson(2e-3) * 40 + Guarantees.of(0.4, 1e-9) * 3,
    Projected(6.0, 60).poisson(2e-3) * 30 + RandomisedResponse(0.3, ADD_REMOVE) * 4,
    Gaussian(2.0).poisson(5e-4) * 90 + Gaussian(9.0).poisson(0.02) * 60 + RandomisedResponse(1.0, ADD_REMOVE) * 3,
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_the_larger_of_both_directions_agrees_with_contour_integrals(run: Mechanism) -> None:
    """Which are certified on their own: no two intervals may be disjoint, and where delta is rare both are narrow."""
    curves = [curve_of(run, -60.0, 1e-3, way) for way in range(len(directions(run)))]
    top = sum(count * part.largest_loss for part, count in run.parts() if math.isfinite(part.largest_loss))
    epsilons = np.unique(np.concatenate([top * np.linspace(0, 1, 7), top + np.geomspace(1e-4, 1.0, 12)]))
    ends = np.array([found(epsilons) for found in curves])
    lower, upper = ends[:, 0].max(axis=0), ends[:, 1].max(axis=0)
    near = 0
    for epsilon, low, high in zip(epsilons.tolist(), lower.tolist(), upper.tolist(), strict=True):
        known = run.delta(epsilon)
        assert math.exp(low) <= known.upper * (1 + 1e-9)
        assert math.exp(high) >= known.lower * (1 - 1e-9)
        near += known.lower > 1e-25 and high - low < 0.5
    assert near > 5


def test_a_curve_falls_and_its_bounds_keep_their_order() -> None:
    for way in (0, 1):
        found = curve_of(RUNS[3], -2000.0, 1e-3, way)
        epsilons = np.linspace(0.0, 60.0, 3000)
        lower, upper = found(epsilons)
        assert not np.isnan(lower).any()
        assert not np.isnan(upper).any()
        assert np.all(lower <= upper)
        told = upper[upper > -np.inf]  # in one direction there is a largest loss
        assert np.all(np.diff(told) <= 1e-9 * np.abs(told[1:]) + 1e-12)


def test_coarse_and_fine_bounds_meet() -> None:
    epsilons = np.linspace(0.0, 3.6, 40)
    coarse, fine = (curve_of(RUNS[2], -80.0, slack)(epsilons) for slack in (0.02, 0.001))
    assert np.all(coarse[0] <= fine[1] + 1e-12)
    assert np.all(fine[0] <= coarse[1] + 1e-12)


def test_bounded_losses_alone_are_left_to_others() -> None:
    assert record.curve(directions(Laplace(3.0) * 4 + RandomisedResponse(0.2, ADD_REMOVE))[0], -20.0, 1e-3, 1e4) is None


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_listed_laplace_noise_encloses_its_delta(count: int, noise: float) -> None:
    """With all its mass, and at the largest loss as much as there is."""
    steps = directions(Laplace(noise) * count)[0]
    few, even, rest = apart(steps, 1e-4)
    assert not few
    assert not rest
    below, above = (listed(few, even, 1e-4, 1e9, above=side) for side in (False, True))
    assert below is not None
    assert above is not None
    assert np.logaddexp.reduce(below.logs) <= 1e-9
    assert np.logaddexp.reduce(above.logs) >= -1e-9
    for epsilon in np.linspace(0.0, 0.999 * count / noise, 9).tolist():
        known = (Laplace(noise) * count).delta(epsilon)
        deltas = [
            float(np.exp(one.logs) @ np.maximum(-np.expm1(epsilon + sign * one.shift - one.losses), 0.0))
            for one, sign in ((below, 1.0), (above, -1.0))
        ]
        assert deltas[0] <= known.upper * (1 + 1e-9)
        assert deltas[1] >= known.lower * (1 - 1e-9)
        assert deltas[1] - deltas[0] <= 0.02 * deltas[1] + 1e-6
    assert math.isclose(below.losses[-1], count / noise, rel_tol=1e-8)
    assert math.isclose(above.losses[-1], count / noise, rel_tol=1e-8)


def test_promises_of_several_kinds_that_fail_are_no_sum() -> None:
    """12 of each of three kinds, too many to be listed: they fail with a chance of 0.5174, not of 0.635."""
    promises: Mechanism = Gaussian(3.0).poisson(1e-3) * 50
    for epsilon, delta in ((0.3, 0.02), (0.2, 0.03), (0.1, 0.01)):
        promises = promises + Guarantees.of(epsilon, delta) * 12
    found = curve_of(promises, -30.0, 1e-3, furthest=2e4)
    exact = -math.expm1(12 * sum(math.log1p(-delta) for delta in (0.02, 0.03, 0.01)))
    lower, upper = found(np.array([11.0, 20.0]))
    assert np.all(np.exp(lower) <= exact * (1 + 1e-9))
    assert np.all(np.exp(upper) >= exact * (1 - 1e-9))


def log_delta_of_hits(run: Mechanism, noise: float, epsilon: float, most: int) -> float:
    """log delta of samples that are hit up to so many times, counted one by one, beside a Gaussian release."""
    losses, chances = np.zeros(1), np.zeros(1)
    for pair, count in directions(run)[0]:
        law = exact(pair)
        if not isinstance(law, Points):
            continue
        (miss, hit), order = law.losses[np.argsort(law.losses)], np.argsort(law.losses)
        hits = np.arange(most + 1)
        ways = gammaln(count + 1) - gammaln(hits + 1) - gammaln(count - hits + 1)
        logs = ways + hits * law.logs[order[1]] + (count - hits) * law.logs[order[0]]
        losses = np.add.outer(losses, hits * hit + (count - hits) * miss).ravel()
        chances = np.add.outer(chances, logs).ravel()
        kept = chances > -120
        losses, chances = losses[kept], chances[kept]
    mu, left = 1 / noise, epsilon - losses
    p, q = log_ndtr(mu / 2 - left / mu), left + log_ndtr(-mu / 2 - left / mu)
    told = p > q
    return float(np.logaddexp.reduce((chances + p)[told] + np.log(-np.expm1((q - p)[told]))))


@pytest.mark.parametrize(
    ("kinds", "rate", "count", "truth", "deepest", "slack", "furthest", "epsilon"),
    [
        (8, 1e-6, 10**5, 20.0, -10.0, 1e-4, 2e4, 47.903),
        (4, 1e-6, 10**5, 20.0, -15.0, 1e-2, 2e4, 51.469),
        (6, 1e-8, 10**7, 24.0, -60.0, 1e-2, 27.0, 27.457),
        (6, 1e-8, 10**7, 24.0, -60.0, 1e-2, 15.3, 15.17),
    ],
)
def test_large_losses_of_several_kinds_add_up_beyond_the_lattice(
    kinds: int, rate: float, count: int, truth: float, deepest: float, slack: float, furthest: float, epsilon: float
) -> None:
    run: Mechanism = Gaussian(5.0)
    for k in range(kinds):
        run = run + RandomisedResponse(truth + 0.01 * k, ADD_REMOVE).poisson(rate) * count
    found = curve_of(run, deepest, slack, furthest=furthest)
    lower, upper = found(np.array([epsilon]))
    expected = log_delta_of_hits(run, 5.0, epsilon, 6)
    assert lower[0] <= expected + 1e-6
    assert upper[0] >= expected - 1e-6


def test_steps_without_large_losses_have_a_curve() -> None:
    """Their sums leave no mass on the lattice, which is no number's logarithm."""
    run = Gaussian(4.0).poisson(1e-3) + Gaussian(1.0)
    for way in (0, 1):
        found = curve_of(run, -20.0, 1e-3, way)
        lower, upper = found(np.array([0.0, 1.0, 3.0]))
        known = [run.delta(epsilon) for epsilon in (0.0, 1.0, 3.0)]
        assert np.all(np.exp(lower) <= [bounds.upper * (1 + 1e-9) for bounds in known])
        assert np.all(upper - lower < 0.1)


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("spread", [0.01, 3.0, 400.0])
def test_a_mean_over_listed_sums_is_that_of_its_chords(above: bool, spread: float) -> None:
    """One by one, in many digits: chords fall by up to e^-400 over a cell, and sums reach far beyond all cells."""
    random = np.random.default_rng([above, int(spread)])
    places = np.cumsum(random.uniform(0.01, 1.0, 40)) - 2.0
    values = -np.cumsum(random.uniform(0.0, 1.0, 40) ** 3 * spread)
    losses = np.sort(random.uniform(-30.0, 30.0, 300))
    masses = -random.exponential(20.0, 300)
    masses -= np.logaddexp.reduce(masses)
    mean = Mean(Listed(losses, masses, 0.0, 0.0, 0.0), places, values, -np.inf, -np.inf, above)
    epsilons = np.sort(random.uniform(-5.0, 45.0, 30))
    with np.errstate(all="ignore"):
        found = mean(epsilons)

    def chord(at: mpmath.mpf) -> mpmath.mpf:
        if at >= places[-1]:
            return mpmath.mpf(0)
        if at < places[0]:  # from above a chord that is 1 where e^at is 0; from below P less e^at Q
            slope = (1 - mpmath.exp(values[0])) / mpmath.exp(places[0]) if above else mpmath.mpf(1)
            return max(1 - slope * mpmath.exp(at), mpmath.mpf(0))
        k = int(np.searchsorted(places, float(at), side="right")) - 1
        low, high = (mpmath.exp(end) for end in places[k : k + 2])
        part = (high - mpmath.exp(at)) / (high - low)
        return part * mpmath.exp(values[k]) + (1 - part) * mpmath.exp(values[k + 1])

    with mpmath.workdps(60):
        for at, log in zip(epsilons.tolist(), found.tolist(), strict=True):
            truth = mpmath.fsum(
                mpmath.exp(mass) * chord(mpmath.mpf(at) - loss)
                for loss, mass in zip(losses.tolist(), masses.tolist(), strict=True)
            )
            if truth == 0:
                assert above or log == -np.inf
                continue
            assert log >= mpmath.log(truth) if above else log <= mpmath.log(truth)
            assert abs(log - mpmath.log(truth)) < 1e-6 * (1 + spread)


@pytest.mark.parametrize("above", [False, True])
def test_a_mean_where_rounding_decides_on_which_side_of_a_place_a_sum_lies(above: bool) -> None:
    """Two places that are one gave no number, and a cliff at the first place was asked next to it."""
    losses = np.array([-26.0, 0.0, 26.14368865365870])
    listed_sums = Listed(losses, np.log([0.2, 0.3, 0.5]), 0.0, 0.0, 0.0)
    places, values = np.array([-1.0, 0.0, 0.7, 1.3, 1.3]), np.array([-0.3, -1.0, -3.0, -9.0, -9.0])
    mean = Mean(listed_sums, places, values, -np.inf, -np.inf, above)
    ends = np.concatenate([losses + places[-1], losses + places[0]])
    beside = np.sort(np.concatenate([np.nextafter(ends, -np.inf), ends, np.nextafter(ends, np.inf)]))
    with np.errstate(all="ignore"):
        found = mean(beside)
    assert not np.isnan(found).any()
    assert np.all(np.diff(found[found > -np.inf]) <= 1e-9)
    cells, ends = np.array([-1e-8, 1.0]), np.array([-22.5, -40.0])
    for at in (-20.0, 845.0, 4000.0):
        alone = Listed(np.array([at]), np.zeros(1), 0.0, 0.0, 0.0)
        cliff = Mean(alone, cells, ends, -np.inf, -np.inf, above)
        asked = at - 1e-8 + math.ulp(at) * np.arange(-4, 5)
        with np.errstate(all="ignore"):
            log = cliff(asked)
        inside = asked - at >= -1e-8  # exact: a difference of neighbours
        assert np.all(log[~inside] >= -22.5) if above else np.all(log[inside] <= -22.5 + 1e-9)
        assert np.all(log[inside] >= -22.5 - 1e-3) if above else True


@pytest.mark.parametrize("above", [False, True])
def test_a_mean_of_tiny_masses_is_rounded_outwards(above: bool) -> None:
    random = np.random.default_rng(5)
    losses, masses = np.sort(random.uniform(-2.0, 2.0, 20)), random.uniform(-19_991.0, -19_990.0, 20)
    places, values = np.linspace(-6.0, 6.0, 30), -np.linspace(0.01, 2.0, 30)
    mean = Mean(Listed(losses, masses, 0.0, 0.0, 0.0), places, values, -np.inf, -np.inf, above)
    epsilons = random.uniform(-3.0, 3.0, 50)
    with np.errstate(all="ignore"):
        found = mean(np.sort(epsilons))
    with mpmath.workdps(50):
        for at, log in zip(np.sort(epsilons).tolist(), found.tolist(), strict=True):
            total = mpmath.mpf(0)
            for loss, mass in zip(losses.tolist(), masses.tolist(), strict=True):
                place = mpmath.mpf(at) - loss
                k = int(np.searchsorted(places, float(place), side="right")) - 1
                low, high = (mpmath.exp(mpmath.mpf(float(end))) for end in places[k : k + 2])
                part = (high - mpmath.exp(place)) / (high - low)
                worth = part * mpmath.exp(float(values[k])) + (1 - part) * mpmath.exp(float(values[k + 1]))
                total += mpmath.exp(mpmath.mpf(mass)) * worth
            truth = mpmath.log(total)
            assert log >= truth if above else log <= truth
            assert abs(log - truth) < 1e-9
