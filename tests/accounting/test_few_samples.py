"""Few samples and many records: a single record's curve down to e^-15,000, by sums over the first step's outcomes."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from busy import BUSY
from scipy.interpolate import CubicSpline
from scipy.special import log_ndtr

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Mechanism, RandomisedResponse
from hush.accounting.grouping import told
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.grouped import makers
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.lattices.laws import on_lattice
from hush.accounting.pairs.losses import Array
from hush.accounting.releases import Projected


def one_step(noise: float, rate: float, epsilons: Array) -> Array:
    """log delta of one sample, a record removed: where the loss is more than epsilon, x is above some point."""
    from_below = math.log1p(-rate)
    with np.errstate(all="ignore"):
        over = np.where(epsilons > 600, epsilons, np.log(np.expm1(np.minimum(epsilons, 600.0)) + rate)) - math.log(rate)
        point = noise * over + 0.5 / noise
        hit, missed = log_ndtr(1 / noise - point) + math.log(rate), log_ndtr(-point)
        # p (tail of hits) - (e^eps - 1 + p) (tail of misses): the latter's factor is p e^over
        some = hit + np.log(-np.expm1(math.log(rate) + over + missed - hit))
        all_of = np.log(-np.expm1(epsilons))
    return np.where(epsilons <= from_below, all_of, some)


def after_another(noise: float, rate: float, epsilons: Array, points: int) -> Array:
    """log delta of two samples: the mean of one's, by the trapezoidal rule, over what the other reveals."""
    furthest = noise * (epsilons.max() - math.log(rate)) + 1 / noise + 30
    x, h = np.linspace(-30.0, furthest, points, retstep=True)
    exponents = x / noise - 0.5 / noise**2 + math.log(rate)
    losses = np.logaddexp(math.log1p(-rate), exponents)
    logs = losses - 0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(h)
    return np.array([np.logaddexp.reduce(logs + one_step(noise, rate, e - losses)) for e in epsilons])


FEW = [(6.693, 6.2e-4), (0.5471, 8e-8), (3.9, 1.2e-3), (1.8, 0.2), (20.0, 1e-5)]


@pytest.mark.parametrize(("noise", "rate"), FEW)
def test_what_few_large_losses_tell_is_nearly_all_there_is(noise: float, rate: float) -> None:
    """Of one sample, to a hundredth of log delta from where delta is e^-100 on."""
    (way, *_) = directions(Gaussian(noise).poisson(rate) * 1)
    epsilons = np.geomspace(1e-4, 60.0 / noise, 40)
    exact, found = one_step(noise, rate, epsilons), told.log_deltas(way, epsilons)
    assert np.all(found <= exact + 1e-9)
    deep = exact < -100
    assert deep.any()
    assert np.all(found[deep] >= 1.02 * exact[deep] - 5)


@pytest.mark.parametrize(("noise", "rate"), FEW)
def test_two_samples_are_told_however_deep(noise: float, rate: float) -> None:
    """By lines or, where none is sharp, by what large losses tell: one of them decides, or two."""
    run = Gaussian(noise).poisson(rate) * 2
    (way, *_), (maker, *_) = directions(run), makers(Group(run, 2))
    epsilons = np.array([0.01, 0.1, 0.7, 3.0, 9.0])
    exact = after_another(noise, rate, epsilons, 400_000)
    assert np.all(told.log_deltas(way, epsilons) <= exact + 1e-6)
    for epsilon, log in zip(epsilons, exact, strict=True):
        if log < -15_000:
            continue
        tolerance = np.array([1e-3 / min(max(-log, 1.0), 200.0)])
        lower, upper = Asked([maker])(np.array([epsilon]), np.array([0.99 * log]), tolerance)
        assert lower[0] <= log + 1e-6
        assert upper[0] >= log - 1e-6
        assert upper[0] - lower[0] <= (0.01 if log > -1000 else 0.05 * -log)


@pytest.mark.parametrize(
    ("noise", "rate", "size", "delta"),
    [(6.693, 6.2e-4, 30, 1e-80), (3.9, 1.2e-3, 7, 1e-9), (3.9, 1.2e-3, 40, 1e-80), (0.93, 3.7e-5, 100, 1e-60)],
)
def test_groups_of_two_samples_have_the_epsilon_of_their_composed_curve(
    noise: float, rate: float, size: int, delta: float
) -> None:
    """The best level, followed along the least of lines of the exact curve."""
    found = (Gaussian(noise).poisson(rate) * 2).group(size).epsilon(delta)
    assert found.width <= 1e-3 * found.upper
    places = found.upper / size * np.geomspace(1e-3, 6.0, 300)
    epsilons = found.upper / size * np.linspace(1e-3, 6.0, 8000)
    logs = CubicSpline(np.log(places), after_another(noise, rate, places, 40_000))(np.log(epsilons))

    logs = np.append(logs, np.logaddexp(np.log(-np.expm1(-epsilons)), logs - epsilons))  # and their mirror images
    slopes, top = np.append(epsilons, -epsilons), math.log(delta)

    def reached(level: float) -> float:
        power = level
        for _ in range(size):
            power = min(float(np.min(np.logaddexp(logs, slopes + power))), 0.0)
        return power + math.log(-math.expm1(top - power)) - level if power > top else -math.inf

    levels = np.linspace(top - found.upper - 40, min(top + 150, -1e-3), 60)
    for _ in range(4):
        values = [reached(float(level)) for level in levels]
        best = int(np.argmax(values))
        levels = np.linspace(levels[max(best - 1, 0)], levels[min(best + 1, levels.size - 1)], 9)
    assert found.lower * (1 - 1e-3) <= max(values) <= found.upper * (1 + 1e-3)


@pytest.mark.parametrize(
    ("run", "size", "delta"),
    [
        (Gaussian(1.82363).poisson(4.16553e-05) * 5, 23_929, 2.49e-11),  # was [239, inf]
        (Gaussian(9.20918).uniform(45, of=1400) * 5, 135_240, 9e-15),
        (Gaussian(6.693).poisson(0.000620711) * 3, 126_988, 5.9e-9),
        (Gaussian(0.777).poisson(5.85e-6) * 10_269, 48_341, 7e-15),
    ],
)
def test_thousands_of_records_in_few_samples_are_seen_to_be_beyond_the_limit(
    run: Mechanism, size: int, delta: float
) -> None:
    began = time.process_time()
    assert run.group(size).epsilon(delta).lower == 1e4
    assert run.group(size).delta(1e4).lower > delta
    assert time.process_time() - began < BUSY * 3.0


@pytest.mark.parametrize("delta", [0.9, 0.99, 1 - 1e-6, 1 - 1e-9])
def test_deltas_next_to_1_of_thousands_of_records_are_answered(delta: float) -> None:
    """They took minutes, where a whole curve was drawn for them."""
    group = (RandomisedResponse(1e-3, ADD_REMOVE) * 10).group(5000)
    began = time.process_time()
    bounds = group.epsilon(delta)
    assert time.process_time() - began < BUSY * 1.0
    assert 0 < bounds.lower <= bounds.upper < math.inf
    assert group.delta(bounds.upper).lower <= delta
    assert group.delta(bounds.lower).upper >= delta


def test_gains_tell_where_chains_do_not_converge() -> None:
    """Delta at 1e4, next to that at 0 of a single record: was [0.44, 0.98]."""
    group = (Gaussian(9.07044, REPLACE_ONE).uniform(19, of=66) * 16_889).group(33)
    bounds = group.delta(1e4)
    assert 0.43 < bounds.lower <= bounds.upper < 0.47


def test_finer_lattices_tell_of_coins_beside_rare_large_losses() -> None:
    """Was 0.5% wide: lattice points were eleven logarithms of a large loss's density apart."""
    run = Gaussian(1.58491).poisson(0.000295496) * 608 + RandomisedResponse(3.42615, ADD_REMOVE).poisson(0.396259) * 5
    bounds = run.group(61).epsilon(3.98e-14)
    assert bounds.width <= 1e-3 * bounds.upper
    assert 1803 < bounds.lower <= bounds.upper < 1813


def followed(noise: float, rate: float, size: int, delta: float) -> float:
    """A group's epsilon for one sample, link by link from the best of many levels: up to what few places cost."""
    places = np.append(0.0, np.geomspace(1e-8, 300.0, 2500))
    logs = one_step(noise, rate, places)
    low, high = -80.0, -3.0
    for _ in range(3):
        levels = np.linspace(low, high, 24)
        power = levels
        for _ in range(size):
            power = np.logaddexp(logs[:, None], places[:, None] + power).min(axis=0)
        with np.errstate(all="ignore"):
            told = np.where(power > math.log(delta), power + np.log(-np.expm1(math.log(delta) - power)) - levels, -1.0)
        best = int(np.nanargmax(told))
        low, high = levels[max(best - 1, 0)], levels[min(best + 1, levels.size - 1)]
    return float(told[best])


@pytest.mark.parametrize(
    ("noise", "rate", "size", "delta"),
    [(0.5486473118688251, 1.0333978614548574e-05, 1371, 1e-3), (1.4183986047882338, 0.0002101992655726585, 1564, 1e-6)],
)
def test_one_sample_of_many_records_is_followed_from_its_first_link_to_its_last(
    noise: float, rate: float, size: int, delta: float
) -> None:
    """The last links touch the curve next to 0, far from the first: upper bounds were infinite."""
    bounds = Gaussian(noise).poisson(rate).group(size).epsilon(delta)
    assert bounds.width <= 1e-3 * bounds.upper
    about = followed(noise, rate, size, delta)
    assert bounds.lower * (1 - 2e-3) < about < bounds.upper * (1 + 2e-3)


@pytest.mark.parametrize(
    ("run", "size", "delta"),
    [
        (Gaussian(4.85222883975203, REPLACE_ONE).poisson(1.7035327655226605e-05), 3699, 1e-6),  # was [1e-6, inf]
        (Gaussian(4.063681725425395).uniform(11, of=4997), 1057, 1e-6),  # was [0, 43]
        (Gaussian(1.8799388243636959).uniform(168, of=37064), 1229, 0.3),  # was [23, 3836]
        (Gaussian(5.660424939503113, REPLACE_ONE).poisson(0.00026164849555374367), 841, 1e-8),  # was [0.24, 0.31]
    ],
)
def test_one_sample_of_many_records_is_known_well(run: Mechanism, size: int, delta: float) -> None:
    bounds = run.group(size).epsilon(delta)
    assert bounds.width <= 2e-3 * bounds.upper
    assert run.group(size).delta(bounds.upper * (1 + 1e-9)).lower <= delta
    assert run.group(size).delta(bounds.lower * (1 - 1e-9)).upper >= delta


def test_projections_of_thousands_of_records_warn_of_nothing() -> None:
    """Tails of norms that underflow are logarithms of nothing."""
    assert (Projected(1.4, 199).poisson(0.001) * 100).group(2000).delta(3.0).lower > 0.9


def test_lattices_too_long_for_any_memory_are_refused() -> None:
    with pytest.raises(OverflowError, match="fine"):
        on_lattice(np.array([0.0, 3e4]), np.log([0.5, 0.5]), 1e-6, 0.0, upper=True)
