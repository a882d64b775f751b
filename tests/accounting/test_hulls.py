"""Convex hulls are decided exactly, and promises about points come out as the functions behind them have it."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, mpf

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


@pytest.mark.parametrize(
    ("alphas", "betas"),
    [
        (
            (0.0, 8.659739592076221e-14, 2.4291679778798425e-13, 0.9528866465241064, 0.9528866492870989, 1.0),
            (
                0.9462170928665432,
                0.9461863473759935,
                0.9461863473732797,
                6.197087287773684e-11,
                2.8642199723094564e-11,
                0.0,
            ),
        ),
        (
            (0.0, 6.517009154549669e-13, 8.404388296412435e-13, 0.9961937915766996, 1.0),
            (0.8151777653697199, 0.8151777653646393, 0.8151777653641576, 0.0014404216840824269, 0.0),
        ),
        (
            (0.0, 5.038949105973245e-06, 0.9936517118983175, 1.0),
            (0.6813584202181726, 0.6813340805573245, 2.220446049250313e-16, 0.0),
        ),
    ],
)
def test_short_chords_extended_far_are_what_the_points_say(alphas: tuple[float, ...], betas: tuple[float, ...]) -> None:
    """In fractions.  What rounding might do to a chord over 1e-13 was taken from both bounds: 0.89693407, not ...06."""
    a, b = ([Fraction(number) for number in row] for row in (alphas, betas))
    slopes = [(y - z) / (end - x) for x, end, y, z in zip(a, a[1:], b, b[1:], strict=False)] + [Fraction(0)]
    corners = [(a[0], min(b[1] + slopes[1] * a[1], b[0]))]
    for k in range(1, len(a) - 1):
        height = b[k] - b[k + 1] - slopes[k + 1] * (a[k + 1] - a[k])
        at = a[k] + height / (slopes[k - 1] - slopes[k + 1])
        corners += [(a[k], b[k]), (at, b[k] - slopes[k - 1] * (at - a[k]))]
    corners.append((Fraction(1), Fraction(0)))
    # every line below all corners, and its mirror image, is below f: the best attack is the least of what they allow
    lines = []
    for j, (x, y) in enumerate(corners):
        for u, v in corners[:j]:
            slope = (v - y) / (x - u) if x > u else None
            if slope is not None and slope > 0 and all(v - slope * (p - u) <= q for p, q in corners):
                miss = v + slope * u
                lines += [(1 - miss, slope), (1 - miss / slope, 1 / slope)]
    lines.append((Fraction(1), Fraction(0)))
    places = {Fraction(0), Fraction(1)}
    for c, m in lines:
        places |= {(d - c) / (m - n) for d, n in lines if m != n and 0 < (d - c) / (m - n) < 1}
    release = Tradeoff(alphas, betas)
    for epsilon in (0.0, 1e-3, 0.5):
        truth = max(min(c + m * x for c, m in lines) - Fraction(math.exp(epsilon)) * x for x in places)
        found = release.delta(epsilon)
        assert found.lower <= float(truth) + 1e-15
        assert found.upper >= float(truth) - 1e-15
        assert found.width <= 1e-9


def test_a_group_of_points_is_not_beyond_all_epsilons() -> None:
    """Composed in 80 digits epsilon is 32.30036; it came out as beyond 1e4."""
    alphas = (0.0, 5.038949105973245e-06, 0.9936517118983175, 1.0)
    betas = (0.6813584202181726, 0.6813340805573245, 2.220446049250313e-16, 0.0)
    found = Tradeoff(alphas, betas).group(2).epsilon(0.46789548794614166)
    assert found.lower <= 32.30036113 <= found.upper


def test_steep_lines_count_what_their_losses_are_rounded() -> None:
    """Losses of hundreds are good to 1e-14, and so is delta beside them: it had been 1e-14 too small, or too large.

    Where the function falls like e^300, delta(eps) is the most that a corner has: 1 - beta - e^eps alpha.
    """
    mp.dps = 60
    cases = [
        (9.210742685872601e-144, 7.484310220136368e-143, 0.8499008867981703, 0.7086082366498889, 0.441123305307072),
        (1.121945187654673e-71, 4.957537672376911e-71, 0.7975396794783692, 0.6716379147663692, 0.36608614577753573),
    ]
    for case in cases:
        alphas, betas = (0.0, *case[:2], 1.0), (*case[2:], 0.0)
        a, b = ([Fraction(number) for number in row] for row in (alphas, betas))
        falls = [(y - low) / (end - x) for (x, end), (y, low) in zip(pairwise(a), pairwise(b), strict=True)]
        # the chord after, extended to 0; where the first and the last chord meet; where the second has fallen to 0
        at = (b[1] + falls[0] * a[1] - b[2] - falls[2] * a[2]) / (falls[0] - falls[2])
        corners = [(a[0], b[1] + falls[1] * a[1]), (at, b[1] - falls[0] * (at - a[1])), (a[2] + b[2] / falls[1], a[0])]
        promised = Tradeoff(alphas, betas)
        (x, y), (end, low) = corners[:2]
        middle = float(mp.log(_exact((y - low) / (end - x))))
        for epsilon in np.linspace(middle - 1e-7, middle + 1e-7, 41).tolist():
            truth = max(1 - _exact(beta) - mp.exp(mpf(epsilon)) * _exact(alpha) for alpha, beta in corners)
            found = promised.delta(epsilon)
            assert found.lower <= truth <= found.upper


def _exact(number: Fraction) -> mpf:
    return mpf(number.numerator) / number.denominator
