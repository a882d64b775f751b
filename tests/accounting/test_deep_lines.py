"""Contour integrals at log deltas of thousands below 0, as groups ask for them, against closed forms and integrals."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from reference import one_step

from hush.accounting import Gaussian
from hush.accounting.gaussian import contour
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.gaussian.transform import Step


def _ratio(x: mpmath.mpf, p: mpmath.mpf, sigma: mpmath.mpf) -> mpmath.mpf:
    return 1 - p + p * mpmath.exp(x / sigma - 1 / (2 * sigma**2))


def _truth(rate: float, noise: float, epsilon: float, count: int) -> float:
    with mpmath.workdps(40):
        p, sigma, at = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(epsilon)
        if count == 1:
            return float(mpmath.log(one_step(rate, noise, REMOVE, at)))

        def second(x: mpmath.mpf) -> mpmath.mpf:
            ratio = _ratio(x, p, sigma)
            return ratio * mpmath.npdf(x) * one_step(rate, noise, REMOVE, at - mpmath.log(ratio))

        # half of the loss in each step is where most of it comes from
        middle = noise * (epsilon / 2 - np.log(rate)) + 0.5 / noise
        places = np.linspace(middle - 15, middle + 15, 31).tolist()
        scale = max(second(mpmath.mpf(x)) for x in places)  # quad counts errors beside 1
        return float(mpmath.log(scale) + mpmath.log(mpmath.quad(lambda x: second(x) / scale, places)))


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "count"),
    [
        (0.1, 0.784, 150.0, 1),
        (0.01, 2.0, 100.0, 1),
        (0.3, 1.0, 120.0, 1),
        (5.87e-8, 0.404, 313.0, 2),
        (0.1, 0.784, 150.0, 2),
        (0.3, 1.0, 300.0, 2),
        (1e-3, 0.3, 500.0, 2),
    ],
)
def test_a_line_whose_moments_are_no_floating_point_numbers(
    rate: float, noise: float, epsilon: float, count: int
) -> None:
    """One step's E[g^r] is e^2000 and more there: there was no line, and a group's epsilon was infinite."""
    truth = _truth(rate, noise, epsilon, count)
    with np.errstate(all="ignore"):
        task, c, _ = contour.solve_for_epsilon((Step(rate, noise, count),), 0.0, REMOVE, epsilon, depth=1.5)
        line = contour.line(task, c)
        assert line is not None
        lower, upper = (float(side[0]) for side in line.log_delta(np.array([epsilon])))
    assert truth < -2000
    assert lower <= truth <= upper <= lower + 1e-7


@pytest.mark.parametrize(("direction", "power"), [(REMOVE, 40.0), (ADD, 3000.0)])
def test_moments_beyond_the_floating_point_range(direction: int, power: float) -> None:
    """The log-MGF by sums in many digits; and (1 + M) - M is 1 whatever M is."""
    rate, noise = (0.2, 0.5) if direction == REMOVE else (0.5, 1.0)
    task = contour.problem((Step(rate, noise, 1),), 0.0, direction, -9000.0, tilt=power)
    with mpmath.workdps(60):
        p, sigma, r = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(1 + power if direction == REMOVE else -power)
        nodes = [mpmath.mpf(k) / 40 for k in range(-40 * 60, 40 * 130)]
        truth = mpmath.log(sum(_ratio(x, p, sigma) ** r * mpmath.npdf(x) for x in nodes) / 40)
    found = float(task.log_mgf(np.array([power]))[0])
    assert truth > 709
    assert abs(found - float(truth)) < 1e-9 * float(truth)
    assert 0 <= task.log_added(np.array([power]))[0] < 0.02


def test_a_group_that_needs_log_deltas_of_minus_4800() -> None:
    """Was [3717.6, inf]."""
    found = (Gaussian(0.404128).poisson(5.8727e-08) * 2).group(30).epsilon(6e-81)
    assert found.upper < 1.0003 * found.lower
    assert 4890 < found.lower < 4900
