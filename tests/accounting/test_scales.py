"""Sums on two lattices: whole curves down to deltas of 1e-400, against integrals in many digits and other engines."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from two_samples import two_samples_beside

from hush.accounting import REPLACE_ONE, Gaussian, Laplace, Mechanism, Projected, RandomisedResponse
from hush.accounting.gaussian import subsampled
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.grouping import makers, samples
from hush.accounting.kinds import directions, gaussian_composition
from hush.accounting.lattices.scales import Task
from hush.accounting.lattices.sums import Frame, on_lattices
from hush.accounting.pairs.points import Points


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon"), [(0.01, 1.0, 3.0), (0.01, 0.5, 40.0), (0.3, 2.0, 12.0), (1e-4, 0.7, 25.0)]
)
def test_a_curve_encloses_an_integral_in_many_digits(rate: float, noise: float, epsilon: float) -> None:
    run = Gaussian(noise, REPLACE_ONE).poisson(rate) * 2 + RandomisedResponse(0.8, REPLACE_ONE)
    with mpmath.workdps(50):
        truth = {at: float(mpmath.log(two_samples_beside(at, rate, noise, 0.8))) for at in (epsilon, 0.6 * epsilon)}
    curve = Task(directions(run)[0]).curve_at(epsilon, truth[epsilon], 1e-3 * max(1.0, -truth[epsilon]))
    assert curve is not None
    lower, upper = curve(np.array([0.6 * epsilon, epsilon]))
    for k, at in enumerate((0.6 * epsilon, epsilon)):
        assert lower[k] - 1e-9 <= truth[at] <= upper[k] + 1e-9
    assert upper[1] - lower[1] <= 1e-3 * max(1.0, -truth[epsilon])


@pytest.mark.parametrize(
    "run",
    [
        Gaussian(0.7).poisson(3e-4) * 3000,
        Gaussian(1.1).poisson(0.008) * 62,
        Gaussian(0.4).poisson(1e-6) * 200_000,
        Gaussian(0.9).poisson(1e-3) * 77 + Gaussian(5.0).poisson(2e-3) * 40,
    ],
)
def test_a_curve_meets_the_contour_integral_of_sampled_gaussians(run: Mechanism) -> None:
    """Which is good to nine digits, in either direction."""
    composition = gaussian_composition(run)
    assert composition is not None
    for direction, steps in enumerate(directions(run)):
        maker = samples.Sampled(composition, (REMOVE, ADD)[direction], makers.Binned(steps))
        largest = maker.largest
        for epsilon in (2.0, 8.0, 20.0):
            if epsilon >= largest:
                continue
            sharp = maker.curve(epsilon, -100.0, 1e-6)
            assert sharp is not None
            low, high = (float(end[0]) for end in sharp(np.array([epsilon])))
            if not high - low < 1e-3:
                continue
            curve = Task(steps).curve_at(epsilon, high, 2e-3 * max(1.0, -high))
            if curve is None:
                continue
            places = epsilon * np.array([0.5, 0.8, 1.0])
            lower, upper = curve(places)
            assert lower[-1] <= high
            assert upper[-1] >= low
            known = subsampled.log_delta(composition, places)
            if direction == 0:
                assert np.all(lower <= known[1] + 1e-9)


MIXED = [
    (Gaussian(2.8, REPLACE_ONE).poisson(6e-4) * 18 + RandomisedResponse(0.5, REPLACE_ONE) * 30, 17.0),
    (Gaussian(0.68, REPLACE_ONE).uniform(3, of=10_000) * 500, 20.0),
    (Projected(1.0, 40) * 3, 60.0),
    (Gaussian(3.0).poisson(0.01) * 20 + Laplace(8.0) * 2, 2.0),
    (Laplace(0.5).poisson(1e-3) * 40 + Gaussian(1.0).poisson(1e-3) * 7, 9.0),
]


@pytest.mark.parametrize(("run", "epsilon"), MIXED)
@pytest.mark.parametrize("part", [0.4, 0.8, 1.0])
def test_a_curve_and_lines_never_contradict_each_other(run: Mechanism, epsilon: float, part: float) -> None:
    for steps in directions(run):
        maker, at = makers.Binned(steps), part * epsilon
        size = float(maker.rough(np.array([at]))[0])
        lines = maker.lines(at, size, 1e-4)
        curve = maker.sums.curve_at(at, size, 1e-3 * max(1.0, -size))
        if lines is None or curve is None:
            continue
        low, high = (float(end[0]) for end in lines(np.array([at])))
        lower, upper = curve(np.array([at]))
        assert lower[0] <= high + 1e-9
        assert upper[0] >= low - 1e-9


@pytest.mark.parametrize("points", [100, 301, 800])
@pytest.mark.parametrize(("run", "epsilon"), MIXED)
def test_finer_lattices_lie_between_coarser_ones_roughly(run: Mechanism, epsilon: float, points: int) -> None:
    """Any lattice bounds the same number: lower bounds of one never exceed upper bounds of another."""
    task = Task(directions(run)[0])
    at = np.linspace(0.2, 1.0, 9) * epsilon
    bounds = []
    for number in (points, 1000):
        for tilt in (1.0, 5.0):
            frames = [Frame.of(-6.0, 1.3 * epsilon + 12, number, tilt, above=above) for above in (False, True)]
            with np.errstate(all="ignore"):
                bounds.append([task.bound(frame, -400.0)(at) for frame in frames])
    lowest = np.nanmax([low for low, _ in bounds], axis=0)
    highest = np.nanmin([high for _, high in bounds], axis=0)
    assert np.all(lowest <= highest + 1e-9)


def test_losses_that_fit_into_no_lattice_are_left_to_other_engines() -> None:
    """Below the first point they are left out, and then nothing is left."""
    low = Points(np.array([-5.0]), np.array([0.0]))
    with pytest.raises(OverflowError):
        on_lattices(low, Frame.of(-1.0, 1.0, 100, 1.0, above=False))
    assert Task(directions(Gaussian(1.0).poisson(0.1) * 5)[0]).curve_at(1e-9, -1e4, 1.0) is None


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 2), (1.0, 5), (0.5, 5)])
def test_a_group_of_a_few_steps_with_projections_is_answered(noise: float, steps: int) -> None:
    """On all records: where few steps decide lines are sharp but at their own place, if anywhere."""
    found = (Projected(noise, 828) * steps).group(13).epsilon(1e-5)
    assert found.upper < 1.001 * found.lower
    alone = Projected(noise, 828).group(13).epsilon(1e-5)
    plain = (Gaussian(noise) * steps).group(13).epsilon(1e-5)
    assert max(alone.lower, plain.lower) < found.lower
