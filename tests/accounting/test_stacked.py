"""Laws added up on a lattice, against sums over all that can happen and against Gaussians in closed form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf

from hush.accounting import Gaussian, Laplace
from hush.accounting.among import stacked
from hush.accounting.among.outcomes import Outcomes
from hush.accounting.among.stacks import Window
from hush.accounting.pairs.points import GaussianLaw

# a loss of 40 or 300 is rare: where it decides, delta lies far below what a line through the saddle point can tell
HEAVY = Outcomes(
    np.array([-0.8, -0.01, 0.0, 0.02, 0.9, 40.0, 300.0]),
    np.log([1e-3, 0.3, 0.398, 0.3, 1e-3 - 3e-9, 2e-9, 1e-9]),
    1e-13,
)
LIGHT = Outcomes(np.array([-1.5, -0.3, 0.4, 1.7]), np.log([0.05, 0.35, 0.45, 0.15]), 0.0)


def _log_delta(laws: list[tuple[Outcomes, int]], epsilon: float) -> float:
    """By a sum over all paths, with fifty digits."""
    mp.dps = 50
    atoms, kept = [], mpf(1)
    for law, count in laws:
        pairs = [(mpf(float(loss)), mp.exp(mpf(float(log)))) for loss, log in zip(law.losses, law.logs, strict=True)]
        atoms += [pairs] * count
        kept *= (1 - mpf(law.infinite)) ** count
    total = 1 - kept
    for path in itertools.product(*atoms):
        loss = mp.fsum(atom[0] for atom in path)
        if loss > epsilon:
            total += mp.fprod(atom[1] for atom in path) * (1 - mp.exp(mpf(epsilon) - loss))
    return float(mp.log(total))


# a largest loss, and others so small that they tell how far beyond it epsilon is
CLIFF = Outcomes(np.array([-9.0, -3.0, 3.0, 9.0]), np.log([1e-4, 0.1, 0.4, 0.5 - 1e-4]), 0.0)
SMALL = Outcomes(np.array([-2e-6, -1e-6, 1e-6, 2e-6]), np.log([0.1, 0.4, 0.4, 0.1]), 0.0)

LAWS = [
    ([(CLIFF, 1), (SMALL, 5)], (9.0, 9.000005, 9.0000095)),
    ([(SMALL, 4), (CLIFF, 2)], (17.9999, 18.000003)),
    ([(HEAVY, 1), (LIGHT, 2)], (0.3, 2.0, 38.0, 299.0)),
    ([(HEAVY, 4)], (0.1, 1.1, 39.0, 41.0, 250.0)),
    ([(LIGHT, 6)], (0.0, 3.3, 10.1)),
    ([(HEAVY, 2), (LIGHT, 1)], (0.5, 5.0, 79.0, 299.0, 339.0)),
]


@pytest.mark.parametrize(("laws", "epsilons"), LAWS)
def test_sums_of_a_few_laws_against_all_paths(laws: list[tuple[Outcomes, int]], epsilons: tuple[float, ...]) -> None:
    for epsilon in epsilons:
        truth = _log_delta(laws, epsilon)
        low, high = stacked.log_delta(laws, laws, epsilon, 1e-3)
        assert low <= truth + 1e-12 * abs(truth)
        assert truth - 1e-12 * abs(truth) <= high
        assert high - low < 0.2
        least, most = stacked.epsilon(laws, laws, epsilon, truth, 1e-3)
        assert least <= epsilon * (1 + 1e-9)
        assert epsilon * (1 - 1e-9) <= most


@pytest.mark.parametrize("points", [7, 60, 1000])
@pytest.mark.parametrize("spread", [0.3, 5.0, math.inf])
@pytest.mark.parametrize("floor", [-math.inf, 2.0, 44.0])
@pytest.mark.parametrize("top", [0.7, 3.0, 60.0, 400.0])
def test_any_lattice_encloses(top: float, floor: float, spread: float, points: int) -> None:
    """However coarse it is, wherever it ends, and whatever is cut off."""
    laws = [(HEAVY, 2), (LIGHT, 2)]
    window = Window(top, floor, top, spread, (40.0, 1.5), (41.0, 3.0))
    for rare in (1e-30, 1e-9, 1e-2):
        curve = stacked.Curve.of(laws, laws, window, points, rare)
        for epsilon in (0.0, 0.8, 2.9, 38.5, 300.5):
            truth = _log_delta(laws, epsilon)
            low, high = (float(side[0]) for side in curve(np.array([epsilon])))
            assert low <= truth + 1e-10
            assert truth <= high + 1e-10


@pytest.mark.parametrize(("mus", "epsilon"), [((0.02, 0.03), 0.15), ((1.0, 2.0, 0.5), 8.0), ((30.0, 48.0), 1800.0)])
def test_gaussians_against_the_closed_form(mus: tuple[float, ...], epsilon: float) -> None:
    """Of mu^2 in all, with forty digits; losses of a thousand have Q-masses that no floating-point number holds."""
    mp.dps = 40
    mu = mp.sqrt(mp.fsum(mpf(one) ** 2 for one in mus))
    truth = float(mp.log(mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)))
    laws = [(GaussianLaw(one**2), 1) for one in mus]
    low, high = stacked.log_delta(laws, laws, epsilon, 1e-4)
    assert low <= truth <= high
    assert high - low < 1e-2
    least, most = stacked.epsilon(laws, laws, epsilon, truth, 1e-4)
    assert least <= epsilon <= most
    assert most - least < 1e-3 * epsilon


def test_groups_that_are_beyond_the_limit_only_together() -> None:
    """Laplace noise is log-concave: k records of mu are one of k mu, and half of P has the largest loss each time."""
    alone = (Laplace(0.01) + Laplace(0.02)).group(3)
    assert alone.epsilon(1e-10).upper < 1e3
    far = (alone * 40 + Gaussian(2.0).poisson(0.1).group(3)).epsilon(1e-10)
    assert (far.lower, far.upper) == (1e4, math.inf)
