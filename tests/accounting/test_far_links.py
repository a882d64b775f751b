"""Groups whose links are far out: at infinite losses, at losses beyond e^700, and few of them next to a delta of 1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.accounting import REPLACE_ONE, Gaussian, Guarantees, Laplace, Mechanism, answers
from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.gaussian.composition import Composition
from hush.accounting.gaussian.contour import REMOVE
from hush.accounting.gaussian.transform import Step
from hush.accounting.grouping import grouped, samples
from hush.accounting.grouping.links import Model
from hush.accounting.groups import Group
from hush.accounting.pairs import single
from hush.accounting.pairs.losses import GaussianPair, Poisson

LEAKING = [
    (Gaussian(1.7, REPLACE_ONE) * 6 + Guarantees.of(0.07, 1.5e-8, REPLACE_ONE) * 8, 6),
    (Gaussian(3.0, REPLACE_ONE) + Guarantees.of(0.3, 1e-12, REPLACE_ONE) * 2 + Laplace(5.0, REPLACE_ONE) * 3, 4),
    (Gaussian(2.0).poisson(0.01) * 30 + Guarantees.of(0.2, 1e-5), 3),
    (Guarantees.of(0.23, 1e-6) * 138 + Laplace(5.0) * 19, 3),
]


def log_power_at_nothing(run: Mechanism, size: int, side: int) -> float:
    """log g(g(...g(0))), g the least of delta(e) + e^e a on a grid: no less than with all e, and by little more."""
    epsilons = np.append(0.0, np.geomspace(1e-4, 60.0, 1500))
    logs = answers.log_delta_curve(run, epsilons)[side]
    with np.errstate(divide="ignore"):
        shifted = np.logaddexp(np.log(-np.expm1(-epsilons)), logs - epsilons)  # delta(-e)
    log_deltas, slopes = np.append(logs, shifted), np.append(epsilons, -epsilons)
    level = float(logs[-1])
    for _ in range(size - 1):
        level = float(np.logaddexp(log_deltas, slopes + level).min())
    return level


@pytest.mark.parametrize(("run", "size"), LEAKING)
def test_a_group_loses_everything_as_often_as_its_first_record_and_what_follows(run: Mechanism, size: int) -> None:
    """Beyond all finite losses delta is the power at a type I error of 0: its first link is as far out as one likes."""
    bounds = run.group(size).delta(1e4)
    assert bounds.lower <= math.exp(log_power_at_nothing(run, size, 1)) * (1 + 1e-9)
    assert bounds.upper >= math.exp(log_power_at_nothing(run, size, 0)) * (1 - 1e-3)
    assert bounds.upper <= 1.01 * bounds.lower


def log_delta_of(run: Mechanism, size: int, epsilon: float, side: int) -> float:
    """log of the largest g(g(...g(a))) - e^eps a over a grid of levels a, g as above."""
    top = run.largest_loss
    near = top * (1 - np.geomspace(1e-8, 0.1, 200))
    epsilons = np.unique(np.concatenate([np.linspace(0.0, top, 2000), near, [top * (1 + 1e-9)]]))
    logs = np.maximum(answers.log_delta_curve(run, epsilons)[side], -1e4)
    levels, best = np.linspace(-epsilon - 60, -1e-3, 400), -math.inf
    for _ in range(3):
        powers = levels
        for _ in range(size):
            powers = np.minimum(np.logaddexp(logs, np.add.outer(powers, epsilons)).min(axis=1), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = powers + np.log(-np.expm1(epsilon + levels - powers))
        k, best = int(np.nanargmax(found)), max(best, float(np.nanmax(found)))
        levels = np.linspace(levels[max(k - 1, 0)], levels[min(k + 1, levels.size - 1)], 200)
    return best


@pytest.mark.parametrize(
    ("bounded", "slight", "size", "epsilon"),
    [
        (Guarantees.of(0.8) * 12, Gaussian(45.0).poisson(5e-5), 4, 36.0),
        (Guarantees.of(1.2) * 30, Gaussian(60.0).poisson(3e-5) * 20, 3, 90.0),
    ],
)
def test_beside_bounded_losses_those_that_lose_next_to_nothing_hardly_count(
    bounded: Mechanism, slight: Mechanism, size: int, epsilon: float
) -> None:
    """Far beyond the largest of the former delta is e^-1e9, of which a chain knows little."""
    run = bounded + slight
    group = Group(run, size)
    found = group.delta(epsilon)
    assert math.log(found.lower) <= log_delta_of(bounded + Guarantees.of(1e-3), size, epsilon, 1) + 1e-6
    assert math.log(found.upper) >= log_delta_of(bounded, size, epsilon, 0) - 1e-3
    assert found.upper <= found.lower * (1 + 0.012 * max(1.0, -math.log(found.upper)))
    there = group.epsilon(found.upper)
    assert there.lower <= epsilon <= there.upper * (1 + 2e-3)
    assert there.width <= 1e-3 * there.upper


@pytest.mark.parametrize(("run", "size", "share"), [(Laplace(2.66) * 80, 5, 0.73), (Laplace(0.72) * 13, 11, 0.968)])
def test_links_at_a_largest_loss_stay_there(run: Mechanism, size: int, share: float) -> None:
    """Moved a little below it to sum up to epsilon, one of them had the split far above 1."""
    epsilon = share * size * run.largest_loss
    bounds = run.group(size).delta(epsilon)
    assert math.log(bounds.lower) <= log_delta_of(run, size, epsilon, 1) + 1e-3
    assert math.log(bounds.upper) >= log_delta_of(run, size, epsilon, 0) - 1e-3
    assert bounds.upper <= bounds.lower * (1 + 0.012 * max(1.0, -math.log(bounds.upper)))


@pytest.mark.parametrize("epsilon", [500.0, 700.0, 720.0, 800.0])
def test_a_contour_integral_knows_losses_whose_exponential_is_no_number(epsilon: float) -> None:
    """What its quadrature leaves out at the ends was infinite from losses of 709 on, and so was the bound."""
    noise, rate = 0.22, 1e-3
    _, line, _ = samples._line(Composition((Step(rate, noise, 1),), 0.0), REMOVE, epsilon)
    assert line is not None
    lower, upper = line.log_delta(np.array([epsilon]))
    exact = single.curve(Poisson(GaussianPair(1 / noise), rate))(np.array([epsilon]))
    assert lower[0] <= exact[1][0]
    assert upper[0] >= exact[0][0]
    assert upper[0] - lower[0] < 1e-6


def test_a_delta_next_to_one_is_seen_at_a_glance_also_where_small_losses_are_known_less_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such points were left out beside sharper ones, and with them what a chain needs near its end: of 48 lines."""
    lines: list[float] = []
    curve = samples.Replaced.curve

    def counted(self: samples.Replaced, epsilon: float, size: float, tolerance: float):  # type: ignore[no-untyped-def]
        lines.append(epsilon)
        return curve(self, epsilon, size, tolerance)

    monkeypatch.setattr(samples.Replaced, "curve", counted)
    bounds = Group(Gaussian(0.762465).uniform(3, of=18) * 54, 97).delta(1e4)
    assert bounds.lower > 1 - 1e-7
    assert len(lines) <= 20


@pytest.mark.parametrize(("mu", "size", "epsilon"), [(3.0, 5, 40.0), (20.0, 30, 9e3), (0.4, 100, 300.0)])
def test_equal_links_promise_no_more_than_the_group_has(mu: float, size: int, epsilon: float) -> None:
    """k Gaussian records are one with k mu."""
    curve, places = gaussian_curve(mu**2), np.append(0.0, np.geomspace(1e-3, 2e4, 300))
    model = Model(places, np.minimum(curve(places)[1], -1e-12))
    promised = grouped.log_by_equal_links(lambda at, sizes, tolerance: curve(at), model, size, epsilon, -1e6)
    truth = float(gaussian_curve((size * mu) ** 2)(np.array([epsilon]))[1][0])
    assert -1e6 < promised <= truth
    assert grouped.log_by_equal_links(lambda at, sizes, tolerance: curve(at), model, size, epsilon, 0.0) == -math.inf
