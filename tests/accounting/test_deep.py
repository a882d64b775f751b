"""Tilted lattices in logarithms: deltas down to 1e-1400, against integrals in many digits and other engines."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr
from two_samples import two_samples_beside

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Laplace, Mechanism, RandomisedResponse
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.grouping import makers, samples
from hush.accounting.kinds import directions, gaussian_composition
from hush.accounting.lattices import deep
from hush.accounting.lattices.laws import Law, compose, on_lattice
from hush.accounting.lattices.readings import curve as reading


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon"), [(0.01, 1.0, 3.0), (0.01, 0.5, 40.0), (0.3, 2.0, 30.0), (1e-4, 0.7, 60.0)]
)
def test_a_curve_encloses_an_integral_in_many_digits(rate: float, noise: float, epsilon: float) -> None:
    run = Gaussian(noise, REPLACE_ONE).poisson(rate) * 2 + RandomisedResponse(0.8, REPLACE_ONE)
    with mpmath.workdps(50):
        truth = {at: float(mpmath.log(two_samples_beside(at, rate, noise, 0.8))) for at in (epsilon, 0.6 * epsilon)}
    curve = deep.curve_at(directions(run)[0], epsilon, truth[epsilon], 1e-3 * max(1.0, -truth[epsilon]))
    assert curve is not None
    lower, upper = curve(np.array([0.6 * epsilon, epsilon]))
    for k, at in enumerate((0.6 * epsilon, epsilon)):
        assert lower[k] <= truth[at] <= upper[k]
    assert upper[1] - lower[1] <= 1e-3 * max(1.0, -truth[epsilon])


@pytest.mark.parametrize(("mu", "count"), [(0.3, 1), (0.1, 40), (2.0, 3)])
@pytest.mark.parametrize("deviations", [5.0, 30.0, 80.0])
def test_plain_gaussians_against_their_closed_form(mu: float, count: int, deviations: float) -> None:
    """Their bins have only logarithms beyond 35 deviations."""
    total = mu * math.sqrt(count)
    epsilon = total * deviations
    a, b = (float(log_ndtr(sign * total / 2 - epsilon / total)) for sign in (1, -1))
    truth = a + math.log(-math.expm1(epsilon + b - a))
    curve = deep.curve_at(directions(Gaussian(1 / mu) * count)[0], epsilon, truth, 1e-3 * max(1.0, -truth))
    assert curve is not None
    lower, upper = curve(np.array([epsilon]))
    assert lower[0] - 1e-9 * abs(truth) <= truth <= upper[0] + 1e-9 * abs(truth)
    assert upper[0] - lower[0] <= 1e-3 * max(1.0, -truth)


@pytest.mark.parametrize(
    "run",
    [
        Gaussian(0.7).poisson(3e-4) * 3000,
        Gaussian(1.1).poisson(0.008) * 62,
        Gaussian(0.9).poisson(1e-3) * 77 + Gaussian(5.0).poisson(2e-3) * 40,
    ],
)
def test_sampled_gaussians_meet_their_contour_integral(run: Mechanism) -> None:
    """Which is good to six digits, in either direction."""
    composition = gaussian_composition(run)
    assert composition is not None
    met = 0
    for direction, steps in zip((REMOVE, ADD), directions(run), strict=True):
        maker = samples.Sampled(composition, direction, makers.Binned(steps))
        for epsilon in (2.0, 8.0, 20.0):
            sharp = maker.curve(epsilon, -100.0, 1e-6) if epsilon < maker.largest else None
            low, high = (-math.inf, 0.0) if sharp is None else (float(end[0]) for end in sharp(np.array([epsilon])))
            curve = deep.curve_at(steps, epsilon, high, 2e-3 * max(1.0, -high)) if high - low < 1e-3 else None
            if curve is not None:
                lower, upper = curve(np.array([epsilon]))
                assert lower[0] <= high
                assert upper[0] >= low
                met += upper[0] - lower[0] < 0.1 * max(1.0, -high)
    assert met


MIXED = [
    (Gaussian(2.8, REPLACE_ONE).poisson(6e-4) * 18 + RandomisedResponse(0.5, REPLACE_ONE) * 30, 17.0),
    (Gaussian(1.4, REPLACE_ONE).uniform(3, of=1000) * 50, 40.0),
    (Gaussian(3.0).poisson(0.01) * 20 + Laplace(8.0) * 2, 2.0),
    (Laplace(0.5).poisson(1e-3) * 40 + Gaussian(1.0).poisson(1e-3) * 7, 9.0),
    (RandomisedResponse(0.3, ADD_REMOVE).poisson(0.2) * 9 + Gaussian(0.8), 30.0),
]


@pytest.mark.parametrize(("run", "epsilon"), MIXED)
@pytest.mark.parametrize("part", [0.4, 0.8, 1.0])
def test_lattices_and_lines_never_contradict_each_other(run: Mechanism, epsilon: float, part: float) -> None:
    for steps in directions(run):
        maker, at = makers.Binned(steps), part * epsilon
        size = float(maker.rough(np.array([at]))[0])
        lines, curve = maker.lines(at, size, 1e-4), deep.curve_at(steps, at, size, 1e-3 * max(1.0, -size))
        if lines is None or curve is None:
            continue
        low, high = (float(end[0]) for end in lines(np.array([at])))
        lower, upper = curve(np.array([at]))
        assert lower[0] <= high
        assert upper[0] >= low


@pytest.mark.parametrize("points", [100, 301, 2000])
@pytest.mark.parametrize(("run", "epsilon"), MIXED)
def test_any_lattice_and_any_tilt_bound_the_same_number(run: Mechanism, epsilon: float, points: int) -> None:
    steps = directions(run)[0]
    at = np.linspace(0.2, 1.0, 9) * epsilon
    bounds = []
    for number in (points, 1000):
        for tilt in (1.0, 5.0):
            frame = deep.Frame.of(epsilon, tilt, number)
            with np.errstate(all="ignore"):
                bounds.append([deep.composed(steps, frame, -400.0, above=above)(at) for above in (False, True)])
    lowest = np.nanmax([low for low, _ in bounds], axis=0)
    highest = np.nanmin([high for _, high in bounds], axis=0)
    assert np.all(lowest <= highest)


def test_what_lies_beyond_a_deep_window_is_counted() -> None:
    """e^-900 is no floating-point number: as one it would be lost from the law that reveals more."""
    losses = 1.0 * np.arange(2000)
    law = on_lattice(losses, -losses, 1.0, 0.5, upper=True)
    run = compose([law], [2], 0.5, upper=True, floor=-800.0)
    assert -2000 < run.log_hidden < -700
    at = np.array([run.losses[-1] - 1.0])
    truth = float(np.logaddexp.reduce(np.log(np.arange(1, 4001.0)[int(at[0]) :]) - np.arange(4000.0)[int(at[0]) :]))
    assert reading(run, at, 0.0, upper=True)[0] >= truth + math.log(-math.expm1(-1.0)) - 1e-9


def test_losses_too_small_to_be_told_keep_what_is_hidden() -> None:
    law = Law(1.0, 0.0, np.arange(3), np.log(np.full(3, 1 / 3)), 0.0, log_hidden=-900.0)
    assert reading(law, np.array([5.0]), 0.0, upper=True)[0] == pytest.approx(-900.0)
    twice = compose([law], [2], 0.1, upper=True)
    assert reading(twice, np.array([9.0]), 0.0, upper=True)[0] >= -900.0 + math.log(2)


def _log_gaussian(mu: float, epsilon: float) -> float:
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)))


@pytest.mark.parametrize("guess", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("mu", "deviations"), [(0.05, 20), (0.26, 60), (0.26, 130), (3.0, 60)])
def test_far_from_its_own_epsilon_a_curve_still_encloses(mu: float, deviations: float, guess: float) -> None:
    """Tilted masses below e^-745 are lost there: of the law that reveals more nearly all was, and nobody counted it."""
    epsilon = mu * deviations
    curve = deep.curve_at(directions(Gaussian(1 / mu))[0], epsilon, guess * _log_gaussian(mu, epsilon), 0.3)
    assert curve is not None
    places = epsilon * np.array([0.0, 0.05, 0.3, 0.6, 0.9, 1.0, 1.1, 1.5, 3.0])
    with np.errstate(all="ignore"):
        lower, upper = curve(places)
    for at, low, high in zip(places, lower, upper, strict=True):
        truth = _log_gaussian(mu, at)
        assert low - 1e-9 <= truth <= high + 1e-9


@pytest.mark.parametrize("tilt", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("points", [600, 2000])
def test_any_tilt_bounds_a_plain_gaussian(tilt: float, points: int) -> None:
    mu, epsilon = 0.26, 33.8
    frame, truth = deep.Frame.of(epsilon, tilt, points), _log_gaussian(mu, epsilon)
    with np.errstate(all="ignore"):
        low, high = (
            float(deep.composed(directions(Gaussian(1 / mu))[0], frame, truth, above=above)(np.array([epsilon]))[0])
            for above in (False, True)
        )
    assert low <= truth <= high


def test_a_lattice_too_coarse_for_its_tilt_is_refused() -> None:
    """Masses overflowed on the way up, and what was left of the law was made up."""
    steps = directions(RandomisedResponse(13.236854775335662, ADD_REMOVE) * 200)[0]
    with np.errstate(all="ignore"), pytest.raises(OverflowError, match="coarse"):
        deep.composed(steps, deep.Frame.of(2644.72, 963.2, 64), -10.0, above=True)


def test_tilted_masses_that_are_lost_are_counted_wherever_a_law_is_read() -> None:
    losses, logs = np.array([0.0, 1000.0]), np.array([0.0, -1500.0])
    law = on_lattice(losses, logs, 1.0, 3.0, upper=True)
    for one in (law, compose([law], [2], 3.0, upper=True)):
        assert reading(one, np.array([-1.0]), 0.0, upper=True)[0] >= math.log(-math.expm1(-1.0))


def _group_of_one_sample_beside_coins(
    noise: float, rate: float, coin: float, coins: int, size: int, at: float
) -> float:
    """log delta, one record replaced: the power curve of closed forms, followed link by link from the best level."""
    mu, places = 1 / noise, np.arange(0.0, 200.0, 0.004)

    def single(x: np.ndarray) -> np.ndarray:
        size = np.abs(x)
        t = np.where(size > 30, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 30.0)) / rate))
        a, b = log_ndtr(mu / 2 - t / mu), log_ndtr(-mu / 2 - t / mu) + t
        found = math.log(rate) + a + np.log(-np.expm1(b - a))
        return np.where(x < 0, np.logaddexp(np.log(-np.expm1(-size)), found - size), found)

    truth = 1 / (1 + math.exp(-coin))
    logs = np.full(places.shape, -np.inf)
    with np.errstate(all="ignore"):
        for heads in range(coins + 1):
            chance = math.comb(coins, heads) * truth**heads * (1 - truth) ** (coins - heads)
            logs = np.logaddexp(logs, math.log(chance) + single(places - (2 * heads - coins) * coin))

    def delta(level: float) -> float:
        power = level
        for _ in range(size):
            power = min(float(np.min(np.logaddexp(logs, places + power))), 0.0)
        return power + math.log(-math.expm1(at + level - power)) if at + level < power else -math.inf

    levels = np.linspace(-at - 300, -at - 20, 29)
    for _ in range(4):
        values = [delta(float(level)) for level in levels]
        best = int(np.argmax(values))
        levels = np.linspace(levels[max(best - 1, 0)], levels[min(best + 1, levels.size - 1)], 9)
    return max(values)


def test_a_group_asks_lattices_far_from_where_they_were_set_up() -> None:
    """An upper bound of 3e-105 where 1e-50 is true."""
    run = Gaussian(1.2774, REPLACE_ONE).poisson(0.000182974) + RandomisedResponse(0.898, REPLACE_ONE) * 3
    truth = _group_of_one_sample_beside_coins(1.2774, 0.000182974, 0.898, 3, 100, 2749.64)
    found = run.group(100).delta(2749.64)
    assert found.lower * 0.999 <= math.exp(truth) <= found.upper * 1.001


def test_a_group_of_coins_and_rare_large_losses_is_answered() -> None:
    """Its single record's delta of 1e-300 needs all coins and one large loss."""
    run = Gaussian(2.75867, REPLACE_ONE).poisson(0.000634161) * 18 + RandomisedResponse(0.75, REPLACE_ONE) * 20
    found = run.group(12).epsilon(1e-12)
    assert found.upper < 1.001 * found.lower
    assert found.lower >= (RandomisedResponse(0.75, REPLACE_ONE) * 20).group(12).epsilon(1e-12).lower * (1 - 1e-9)


def test_few_large_losses_of_many_records() -> None:
    """76 records whose single deltas go down to e^-3200: 9 s and 6e-4 wide by lines alone."""
    found = (Gaussian(1.35777, REPLACE_ONE).poisson(650 / 293200) * 51).group(76).epsilon(5.9e-53)
    assert found.upper - found.lower <= 1e-3 * found.upper
