"""Labelled integrals at deltas whose tails no floating-point number holds, against one step's closed form."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from reference import one_step
from scipy.special import ndtr

from hush.accounting.gaussian import jumps
from hush.accounting.gaussian.composition import Composition
from hush.accounting.gaussian.contour import REMOVE
from hush.accounting.gaussian.transform import Step
from hush.accounting.grouping.makers import Binned
from hush.accounting.grouping.samples import Replaced, Sampled
from hush.accounting.pairs.losses import GaussianPair, Pair, Uniform


@pytest.mark.parametrize(
    ("noise", "rate", "epsilon"),
    [
        (0.0853241, 0.000311883, 397.289),
        (0.247788, 0.000756661, 136.775),
        (0.375314, 1.68334e-06, 84.3558),
        (1.16718, 3.74148e-06, 26.8986),
        (0.119461, 0.0410288, 314.198),
    ],
)
def test_tails_below_the_floating_point_range_are_counted(noise: float, rate: float, epsilon: float) -> None:
    """They were taken for nothing: bounds of log delta were 0.07 to 0.5 too large, one upper bound 7e-8 too small."""
    with mpmath.workdps(400):
        sigma, p, e = mpmath.mpf(noise), mpmath.mpf(rate), mpmath.mpf(epsilon)
        inner = mpmath.log(1 + (mpmath.e**e - 1) / p)
        place = sigma**2 * inner + mpmath.mpf(1) / 2
        tails = [mpmath.erfc(x / sigma / mpmath.sqrt(2)) / 2 for x in (place - 1, place)]
        truth = float(mpmath.log(p * (tails[0] - mpmath.e**inner * tails[1])))
    found = jumps.jumps((Step(rate, noise, 1),), REMOVE, epsilon, truth, -14.0, None)
    assert found is not None
    with np.errstate(all="ignore"):
        lower, upper = (float(side[0]) for side in found.log_delta(np.array([epsilon])))
    assert lower <= truth <= upper


def _log_delta_of_two(rate: float, noise: float, epsilon: float) -> float:
    """Of two steps, a record removed: the mean of the second's closed form over what the first lost."""
    with mpmath.workdps(40):
        p, sigma, e = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(epsilon)

        def both(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - p + p * mpmath.exp(x / sigma - 1 / (2 * sigma**2))
            return ratio * mpmath.npdf(x) * one_step(rate, noise, REMOVE, e - mpmath.log(ratio))

        # the second's delta bends within p of a loss of 0
        bend = float(sigma * mpmath.log(1 + (mpmath.exp(e) - 1) / p) + 1 / (2 * sigma))
        near = bend + np.append(2.0 ** -np.arange(28), -(2.0 ** -np.arange(28)))
        places = np.union1d(np.linspace(-14, bend + 12, int(bend) + 14), near).tolist()
        scale = max(both(mpmath.mpf(x)) for x in places)  # quad counts errors beside 1
        return float(mpmath.log(scale) + mpmath.log(mpmath.quad(lambda x: both(x) / scale, places)))


@pytest.mark.parametrize(
    ("noise", "rate", "epsilon"),
    [
        (2.585, 1.54e-6, 2.0),  # one large loss decides: a closed form, which gave [-inf, -712]
        (2.585, 1.54e-6, 4.0),
        (1.387, 1.71e-8, 16.0),
        (1.167, 3.74e-6, 60.0),  # both are large: nothing was said
    ],
)
def test_two_steps_far_below_the_floating_point_range(noise: float, rate: float, epsilon: float) -> None:
    truth = _log_delta_of_two(rate, noise, epsilon)
    assert truth < -720
    with np.errstate(all="ignore"):
        found = jumps.jumps((Step(rate, noise, 2),), REMOVE, epsilon, truth, -14.0, None)
        assert found is not None
        lower, upper = (float(side[0]) for side in found.log_delta(np.array([epsilon])))
    assert lower <= truth <= upper <= lower + 1e-4


def _on_a_lattice(rate: float, noise: float, steps: int, epsilon: float) -> tuple[float, float]:
    """log delta between those of two lattice laws, losses rounded down and up, tilted so that no digit is lost."""
    bin_width = 4e-5
    losses = np.log1p(-rate) + bin_width * np.arange(int((epsilon + 6) / bin_width))
    places = noise * np.log1p(np.expm1(losses[1:]) / rate) + 0.5 / noise
    above = np.append(1.0, (1 - rate) * ndtr(-places) + rate * ndtr(1 / noise - places))
    masses = -np.diff(np.append(above, 0.0))
    tilts = np.geomspace(1.0, 60.0, 60)
    log_masses = np.log(masses, where=masses > 0, out=np.full(masses.shape, -np.inf))
    logs = np.array([np.logaddexp.reduce(tilt * losses + log_masses) for tilt in tilts])
    best = int(np.argmin(steps * logs - tilts * epsilon))
    weights = np.exp(tilts[best] * losses + log_masses - logs[best])
    size = 1 << (steps * losses.size - 1).bit_length()
    sums = np.fft.irfft(np.fft.rfft(weights, size) ** steps, size)
    found = []
    for shift in (0, steps):
        total = steps * losses[0] + bin_width * (np.arange(size) + shift)
        gained = np.where(total > epsilon, -np.expm1(np.minimum(epsilon - total, 0.0)), 0.0)
        tilted = np.exp(np.minimum(tilts[best] * (epsilon - total), 0.0))
        log_scale = steps * logs[best] - tilts[best] * (epsilon - bin_width * shift)
        found.append(float(np.log((gained * tilted * sums).sum()) + log_scale))
    return found[0], found[1]


@pytest.mark.parametrize(("noise", "rate"), [(0.88213, 0.00573145), (0.6, 1e-4)])
def test_a_curve_set_up_at_one_epsilon_serves_far_to_the_left(noise: float, rate: float) -> None:
    """Bulk ends where it is negligible there as well: next to nothing was known below half of the epsilon."""
    epsilon = 8.0
    at = epsilon * np.array([0.2, 0.35, 0.5, 1.0])
    least, most = np.array([_on_a_lattice(rate, noise, 4, float(one)) for one in at]).T
    assert np.all(most - least < 0.01)
    with np.errstate(all="ignore"):
        steps, ends = (Step(rate, noise, 4),), (float(at[0]), float(least[0]))
        found = jumps.jumps(steps, REMOVE, epsilon, float(least[-1]), -15.0, None, ends)
        assert found is not None
        lower, upper = found.log_delta(at)
    assert np.all((lower <= most) & (least <= upper))
    assert np.all(upper - lower < 0.01)


def test_a_delta_taken_for_larger_than_it_is_is_found_all_the_same() -> None:
    """Labels left out all that makes it up, nothing was known, and the next delta asked for was e^-6."""
    noise, rate, epsilon = 0.6, 1e-4, 8.0
    least, most = _on_a_lattice(rate, noise, 4, epsilon)
    composition = Composition((Step(rate, noise, 4),))
    with np.errstate(all="ignore"):
        sampled = Sampled(composition, REMOVE, Binned(composition.pairs(REMOVE)))
        curve = sampled.jumps(epsilon, least + 30, 1e-3)
        assert curve is not None
        lower, upper = (float(side[0]) for side in curve(np.array([epsilon])))
    assert lower <= most <= least + 0.01
    assert least <= upper <= lower + 1e-3


def _log_delta_of_two_replaced(rate: float, noise: float, epsilon: float) -> float:
    """Of two steps, a record replaced: positive losses as where one is removed, their mirror images, and the rest 0."""
    with mpmath.workdps(40):
        p, sigma, e = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(epsilon)

        def one(left: mpmath.mpf) -> mpmath.mpf:
            if left < 0:
                return 1 - mpmath.exp(left) + mpmath.exp(left) * one(-left)
            place = sigma**2 * mpmath.log(1 + (mpmath.exp(left) - 1) / p) + mpmath.mpf(1) / 2
            hit, absent = (mpmath.erfc(x / sigma / mpmath.sqrt(2)) / 2 for x in (place - 1, place))
            return p * hit + (1 - p - mpmath.exp(left)) * absent

        def both(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - p + p * mpmath.exp(x / sigma - 1 / (2 * sigma**2))
            return mpmath.npdf(x) * (ratio * one(e - mpmath.log(ratio)) + one(e + mpmath.log(ratio)))

        start = float(1 / (2 * sigma))  # a loss of 0
        bend = float(sigma * mpmath.log(1 + (mpmath.exp(e) - 1) / p) + 1 / (2 * sigma))
        near = bend + np.append(2.0 ** -np.arange(28), -(2.0 ** -np.arange(28)))
        places = np.union1d(np.linspace(start, bend + 12, int(bend) + 14), near).tolist()
        scale = max(both(mpmath.mpf(x)) for x in places)
        above, absent = (mpmath.ncdf(mean - start) for mean in (1 / sigma, mpmath.mpf(0)))
        still = 1 - (1 - p) * absent - p * above - absent
        moved = scale * mpmath.quad(lambda x: both(x) / scale, places)
        return float(mpmath.log(moved + still * one(e)))


@pytest.mark.parametrize(("noise", "rate", "epsilon"), [(0.929574, 3.66e-5, 17.0), (1.8, 1e-6, 9.0)])
def test_two_steps_of_records_replaced(noise: float, rate: float, epsilon: float) -> None:
    """Where a few large losses decide: there were bins alone, and a group took 6 s."""
    truth = _log_delta_of_two_replaced(rate, noise, epsilon)
    composition = Composition((Step(rate, noise, 2),))
    pairs: list[tuple[Pair, int]] = [(Uniform(GaussianPair(1 / noise), rate), 2)]
    with np.errstate(all="ignore"):
        curve = Replaced(composition, Binned(pairs)).curve(epsilon, truth, 1e-5)
        assert curve is not None
        lower, upper = (float(side[0]) for side in curve(np.array([epsilon])))
    assert lower <= truth <= upper <= lower + 0.01
