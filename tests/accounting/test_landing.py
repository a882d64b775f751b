"""Epsilons near 0: one integral serves both directions, in a few set-ups, and still encloses tens of digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import reference
from reference import ADD, REMOVE, Setting

from hush.accounting import Gaussian
from hush.accounting.contours import crossing
from hush.accounting.gaussian import closed, jumps, landing
from hush.accounting.gaussian.transform import Array, Step


@pytest.mark.parametrize(
    ("rate", "noise"),
    [(4.7e-6, 0.81), (1e-9, 0.16), (1e-9, 0.93), (3e-4, 0.12), (0.01, 0.6), (0.3, 0.4), (1e-9, 100.0)],
)
@pytest.mark.parametrize("share", [0.0, 1e-5, 0.1])
def test_the_other_directions_delta_comes_from_the_same_integral_at_minus_epsilon(
    rate: float, noise: float, share: float
) -> None:
    epsilon = share * rate
    truth, error = reference.two_steps(rate, noise, ADD, epsilon, digits=25)
    target = min(float(mp.log(reference.two_steps(rate, noise, REMOVE, epsilon, digits=25)[0])), -0.7)
    jump = jumps.jumps([Step(rate, noise, 2)], REMOVE, max(epsilon, 1e-12), target)
    assert jump is not None
    lower, upper = (float(bound[0]) for bound in crossing.mirrored(jump.log_delta)(np.array([epsilon])))
    log_truth, doubt = float(mp.log(truth)), float(error / truth) + 1e-14
    assert lower - doubt <= log_truth <= upper + doubt
    if share < 1e-3:
        assert upper - lower < 1e-6


@pytest.mark.parametrize("epsilon", [1e-12, 1e-4, 0.1, 3.0])
def test_closed_forms_mirror_each_other(epsilon: float) -> None:
    at = np.array([epsilon])
    for mine, other in [
        (closed.gaussian_curve(0.7), closed.gaussian_curve(0.7)),
        (closed.gaussian_curve(400.0), closed.gaussian_curve(400.0)),
        *(
            (closed.single_curve(step, REMOVE), closed.single_curve(step, ADD))
            for step in (Step(0.9, 0.5, 1), Step(0.999, 0.2, 1))
        ),
    ]:
        lower, upper = crossing.mirrored(mine)(at)
        low, high = other(at)
        assert lower[0] <= high[0]
        assert low[0] <= upper[0]
        assert epsilon > 0.01 or upper[0] - lower[0] < 1e-9


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "most"),
    [
        (0.8093499712752229, 4.712168157143728e-06, 12, 1.0590595437496738e-05, 2),
        (0.558594261568078, 5.799967902657054e-06, 1173, 0.00034576255570368364, 2),
        (0.9345299513619465, 4.231996862473253e-09, 8, 6.2000287306060484e-09, 2),
        (0.15779784470570887, 1.1562105001514568e-09, 8, 9.211460950215215e-09, 2),
        (0.1340384215715032, 1.7720453689675566e-06, 14, 2.4791561148995184e-05, 3),  # a long plateau
        (0.11824965290095908, 3.4160219412175235e-05, 10, 0.00034152485040630777, 4),
    ],
)
def test_an_epsilon_near_0_takes_a_few_set_ups(
    noise: float, rate: float, steps: int, delta: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*arguments: Any) -> jumps.Jumps | None:
        made.append(arguments)
        return original(*arguments)

    original = landing.jumps.jumps
    monkeypatch.setattr(landing.jumps, "jumps", counted)
    bounds = (Gaussian(noise).poisson(rate) * steps).epsilon(delta)
    assert len(made) <= most
    assert bounds.upper - bounds.lower <= max(1e-6 * bounds.upper, 1e-12)
    if steps > 13:  # test_sweep.py has such, in full mode
        return
    curve = reference.delta_curve(Setting(rate, noise, steps), math.log(delta))
    assert curve is not None
    for end, side in ((bounds.lower, 1), (bounds.upper, -1)):
        if end > 0:
            value, error = curve(end)
            assert side * (value - math.log(delta)) >= -error


def _one_of_each(first: Step, second: Step, direction: int, epsilon: float) -> tuple[mp.mpf, mp.mpf]:
    """delta of two different steps: the first's closed form averaged over the second's loss; and its absolute error."""
    with mp.workdps(20):
        p, mu = mp.mpf(second.rate), 1 / mp.mpf(second.noise)
        edges = {mp.mpf(x) for x in (-12, -8, -5, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10, 14)}
        last = (mp.exp(-epsilon) / (1 - mp.mpf(first.rate)) - 1 + p) / p
        if direction == ADD and last > 0:  # where the first's delta becomes 0
            kink = (mp.log(last) + mu * mu / 2) / mu
            edges |= {
                kink + x for x in (-1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1) if abs(kink + x) < 12
            }

        def integrand(x: mp.mpf) -> mp.mpf:
            g = 1 - p + p * mp.exp(mu * x - mu * mu / 2)
            weight = mp.npdf(x) * (g if direction == REMOVE else 1)
            return weight * reference.one_step(first.rate, first.noise, direction, epsilon - direction * mp.log(g))

        value, error = mp.quad(integrand, sorted(edges), error=True, maxdegree=7)
        return value, error


@pytest.mark.parametrize(
    ("first", "second", "direction", "epsilon"),
    [
        (Step(1e-4, 0.2, 1), Step(1e-3, 3.0, 1), REMOVE, 0.5),
        (Step(0.02, 0.3, 1), Step(1e-4, 5.0, 1), REMOVE, 3.0),
        (Step(0.2, 0.25, 1), Step(1e-3, 1.5, 1), REMOVE, 9.0),
        (Step(1e-3, 0.12, 1), Step(0.01, 10.0, 1), REMOVE, 9.0),
        (Step(0.02, 0.3, 1), Step(1e-4, 5.0, 1), ADD, 0.004),
        (Step(0.02, 0.3, 1), Step(1e-4, 5.0, 1), ADD, 0.016),
    ],
)
def test_steps_that_lose_little_may_be_bulk_as_a_whole(
    first: Step, second: Step, direction: int, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jumps, "_FEW_NODES", 8)  # or it would do without bulk
    truth, error = _one_of_each(first, second, direction, epsilon)
    log_truth, doubt = float(mp.log(truth)), float(error / truth) + 1e-14
    jump = jumps.jumps([first, second], direction, epsilon, log_truth)
    assert jump is not None
    assert [label.low is None for label in jump.labels] == [False, True]
    lower, upper = (float(bound[0]) for bound in jump.log_delta(np.array([epsilon])))
    assert lower - doubt <= log_truth <= upper + doubt
    assert upper - lower < 0.01


@pytest.mark.parametrize(
    ("kinds", "delta", "rough"),
    [
        ([(0.404672, 0.0299901, 5), (2.69878, 1.25577e-06, 9609)], 8.789502546442336e-05, (7.457226, 7.457738)),
        ([(0.108198, 1.39992e-08, 126281), (2.36076, 0.00580531, 6)], 3.170881156e-4, (32.1295, 32.4309)),
    ],
)
def test_many_small_losses_beside_a_few_large_ones_cost_no_digits(
    kinds: list[tuple[float, float, int]], delta: float, rough: tuple[float, float]
) -> None:
    # the lattice knows this much; the contour took 6 and 19 seconds to know no more
    first, second = (Gaussian(noise).poisson(rate) * steps for noise, rate, steps in kinds)
    bounds = (first + second).epsilon(delta)
    assert rough[0] <= bounds.lower <= bounds.upper <= rough[1]
    assert bounds.upper - bounds.lower <= 1e-6 * bounds.upper


@pytest.mark.parametrize("slope", [1.0, 2000.0, 1e-3])
@pytest.mark.parametrize("root", [4.2e-6, 0.3, 700.0])
def test_a_search_that_starts_at_the_root_stays_there(root: float, slope: float) -> None:
    """Beyond its place this curve says nothing, as those of a contour integral do."""

    def curve(epsilons: Array) -> tuple[Array, Array]:
        value = -18.0 - slope * (epsilons - root)
        near = np.abs(epsilons / root - 1) < 0.5
        return np.where(near, value - 1e-13, -np.inf), np.where(near, value + 1e-13, 0.0)

    assert abs(crossing.search(curve, root, -18.0) / root - 1) < 1e-9
    for guess in (root, np.nextafter(root, 0.0), np.nextafter(root, np.inf), 1.1 * root):
        low, high = crossing.certified_root(curve, float(guess), -18.0)
        assert root * (1 - 1e-6) - 1e-9 / slope < low <= root <= high < root * (1 + 1e-6) + 1e-9 / slope


@pytest.mark.parametrize(("rate", "noise", "epsilon"), [(0.3, 0.1, 0.02), (0.45, 0.1, 0.05), (0.33, 0.105, 1.0)])
def test_plateaus_at_little_noise_are_as_sharp_as_their_digits(rate: float, noise: float, epsilon: float) -> None:
    # where nearly all is in closed form the rest of the integral was given up, and the interval was 3% to 19% wide
    truth, _ = reference.two_steps(rate, noise, REMOVE, epsilon, digits=40)
    found = (Gaussian(noise).poisson(rate) * 2).epsilon(float(truth))
    assert found.lower <= epsilon <= found.upper
    assert found.width <= 1e-5 * epsilon


def test_one_jump_that_decides_is_found_at_once() -> None:
    truth, _ = reference.two_steps(0.0334805, 0.105401, REMOVE, 0.0588, digits=30)
    guess = landing.one_jump_epsilon([Step(0.0334805, 0.105401, 2)], float(mp.log(truth)))
    assert guess == pytest.approx(0.0588, rel=1e-4)


def test_a_curve_that_only_meets_a_rounded_logarithm_proves_nothing() -> None:
    """log(delta) is rounded: what isn't a unit beyond it may lie on either side of delta itself."""
    target = math.log(1e-5)

    def flat(epsilons: Array) -> tuple[Array, Array]:
        logs = np.where(epsilons < 1, target + 1 - epsilons, target)
        return logs, logs

    low, high = crossing.certified_root(flat, 1.0, target)
    assert 0.99 < low < 1
    assert high == math.inf
