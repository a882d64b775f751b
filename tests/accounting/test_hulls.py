"""Convex hulls are decided exactly, and promises about points come out as the functions behind them have it."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from hush.accounting import Tradeoff
from hush.accounting.hulls import lower_hull


@pytest.mark.parametrize("seed", range(20))
def test_no_chord_of_a_hull_falls_faster_than_the_one_before(seed):
    draw = np.random.default_rng(seed)
    at = np.repeat(np.sort(draw.uniform(0, 1, 12)), 4)
    x = np.unique(np.concatenate([[0.0], at + draw.integers(-2, 3, at.size) * 2.0**-53, [1.0]]))
    y = np.maximum(1 - 1.15 * x, 0.1 * (1 - x)) + draw.integers(-2, 3, x.size) * 2.0**-53
    corners = [(Fraction(a), Fraction(b)) for a, b in zip(*lower_hull(x, y), strict=True)]
    slopes = [(b - d) / (c - a) for (a, b), (c, d) in pairwise(corners)]
    assert all(before > after for before, after in pairwise(slopes))
    exact = {Fraction(a): Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)}
    for (a, b), slope in zip(corners, slopes, strict=False):
        assert all(value >= b - slope * (place - a) for place, value in exact.items())


def test_points_closer_together_than_rounding_tell_no_slope():
    # f = max(1 - 1.149 a, 0.156 (1 - a)): two corners lay 1e-16 apart, and the chord between them had a slope of 1.19
    alphas = (0.0, 0.21247463098087274, 0.4249492619617455, 0.6374238929426183, 0.849898523923491, 0.8874238929426183)
    betas = (1.0, 0.7558433554717429, 0.5116867109434856, 0.2675300664152284, 0.023373421886971314, 0.01753006641522848)
    promised = Tradeoff(
        (*alphas, 0.9249492619617454, 0.9624746309808727, 1.0),
        (*betas, 0.011686710943485666, 0.005843355471742833, 0.0),
    )
    slope = (betas[0] - betas[1]) / (alphas[1] - alphas[0])
    for delta, rate in ((1e-3, 1.0), (2e-4, 0.3)):
        # P has slope/(1 + slope) at a loss of log slope: delta = p (P - e^t Q) with e^t = 1 + (e^epsilon - 1)/p
        inner = slope - delta / rate * (1 + slope)
        found = promised.poisson(rate).epsilon(delta)
        assert found.lower - 1e-12 <= math.log1p(rate * (inner - 1)) <= found.upper + 1e-12
        assert found.width < 1e-5


def _two_sided(seed):
    """A random trade-off function that isn't symmetric, its corners, and the losses of max(f, f^-1)."""
    draw = np.random.default_rng(seed)
    p, q = draw.dirichlet(np.ones(3)), draw.dirichlet(np.ones(3))
    order = np.argsort(-q / p)
    corners = [(0.0, 1.0)]
    for a, b in zip(p[order], q[order], strict=True):
        corners.append((corners[-1][0] + a, corners[-1][1] - b))
    return np.array([(min(a, 1.0), max(b, 0.0)) for a, b in corners[:-1]] + [(1.0, 0.0)])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_a_function_that_is_not_symmetric_promises_the_larger_of_it_and_its_inverse(seed, rate):
    corners = _two_sided(seed)
    alphas = np.unique(np.concatenate([np.linspace(a, b, 5) for (a, _), (b, _) in pairwise(corners)]))
    betas = np.minimum(np.interp(alphas, *corners.T), 1 - alphas)
    promised = Tradeoff(tuple(alphas), tuple(betas)).poisson(rate)
    # the largest 1 - f(a) - e^t a of both, over the corners of max(f, f^-1): found among a fine grid and all corners
    grid = np.unique(np.concatenate([np.linspace(0, 1, 20_001), corners[:, 0], corners[:, 1]]))
    inverse = np.interp(grid, corners[::-1, 1], corners[::-1, 0])
    larger = np.maximum(np.interp(grid, *corners.T), inverse)
    for epsilon in (0.0, 0.1, 0.5):
        t = math.log1p(math.expm1(epsilon) / rate)
        true = rate * max(float(np.max(1 - larger - math.exp(t) * grid)), 0.0)
        if rate < 1 and math.expm1(-epsilon) / rate > -1:  # the other direction
            back = math.log1p(math.expm1(-epsilon) / rate)
            true = max(true, rate * math.exp(epsilon) * float(np.max((1 - grid) * math.exp(back) - larger)))
        found = promised.delta(epsilon)
        assert found.lower - 1e-12 <= true + 1e-4 * true
        assert true <= found.upper + 1e-12
