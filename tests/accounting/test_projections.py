"""Projected norms in any company: how narrow and how fast, and what a glance at them is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from busy import BUSY
from projected import Kind, composed

from hush.accounting import Gaussian, Projected
from hush.accounting.pairs.glances import glance
from hush.accounting.pairs.losses import Pair, Poisson
from hush.accounting.pairs.projection import ProjectedPair
from hush.accounting.tails.binning import enclosing


@pytest.mark.parametrize(("seed", "delta"), [(9, 1e-5), (9, 1e-8), (0, 1e-12), (4, 1e-20)])
def test_a_hundred_different_projections_are_narrow_and_fast(seed: int, delta: float) -> None:
    """Alone on a core they take 0.5, 0.5, 0.7 and 0.8 s, and up to twice that in company."""
    generator = np.random.default_rng(seed)
    kinds = [
        (
            float(generator.uniform(0.8, 6)),
            int(10 ** generator.uniform(1, 2.7)),
            float(10 ** generator.uniform(-4, -1)),
            int(10 ** generator.uniform(0, 3)),
        )
        for _ in range(100)
    ]
    run = composed(kinds)
    start, began = time.process_time(), time.perf_counter()
    bounds = run.epsilon(delta)
    # threads that wait count as busy, and other processes as waiting
    assert min(time.process_time() - start, time.perf_counter() - began) < BUSY * 1.0
    assert bounds.width <= 1e-4 * bounds.upper


@pytest.mark.parametrize(
    ("kind", "delta"),
    [
        ((0.5595, 99, 1.879e-8, 61_646_841), 1.06e-5),  # 2^-50 a step would be 1e-4 of epsilon
        ((3.116, 105, 4.75e-9, 2310), 1.55e-8),
        ((388.9, 9, 1.419e-6, 71_393), 1.93e-10),
        ((11.96, 357, 3.76e-6, 155_152_048), 6.07e-12),
        ((2.562, 41, 1.328e-5, 2), 1.89e-43),
        ((0.2025, 599, 9.55e-6, 1886), 8.26e-70),
        ((37.68, 5, 3.999e-5, 15), 1.7e-19),
        ((1.0, 20, 1e-5, 10**9), 1e-9),  # bins off by their tails, as factors, would be 5e-4
        ((7.874, 6, 8.485e-5, 169_825_051), 6.65e-7),
        ((927.0, 6, 0.004781, 631_045), 6.82e-17),  # a bracket without a line, its Chernoff bound at any order: 4e-3
        ((7854.0, 28, 3.984e-8, 3_201_601), 2.55e-16),  # losses of 5e-12
    ],
)
def test_tiny_losses_of_very_many_steps_keep_their_digits(kind: Kind, delta: float) -> None:
    run = composed([kind])
    start, began = time.process_time(), time.perf_counter()
    bounds = run.epsilon(delta)
    assert min(time.process_time() - start, time.perf_counter() - began) < BUSY * 1.0
    assert bounds.width <= 1e-4 * bounds.upper


def test_small_losses_are_told_apart_beside_large_ones() -> None:
    kinds = [(0.4864, 7, 9.74e-7, 9), (1.846, 650, 1.0, 18), (0.2441, 19, 2.131e-8, 21_561_523)]
    bounds = composed(kinds).epsilon(6.24e-12)
    assert bounds.width <= 1e-4 * bounds.upper


@pytest.mark.parametrize(
    ("kind", "delta"),
    [((9334.0, 11, 2.217e-8, 98), 9.47e-16), ((3533.0, 64_469, 3.427e-9, 76), 1e-50)],  # losses of 1e-12
)
def test_nothing_narrower_than_asked_for_is_looked_for(kind: Kind, delta: float) -> None:
    start, began = time.process_time(), time.perf_counter()
    bounds = composed([kind]).epsilon(delta)
    assert bounds.width <= 1e-12 < bounds.upper
    assert min(time.process_time() - start, time.perf_counter() - began) < BUSY * 1.0


def test_many_projections_of_tiny_losses_are_a_gaussian() -> None:
    bounds = composed([(3533.0, 10**6, 3.427e-9, 76)]).epsilon(1e-50)
    exact = (Gaussian(3533.0).poisson(3.427e-9) * 76).epsilon(1e-50).middle
    assert bounds.width <= 2e-3 * bounds.upper
    assert bounds.middle == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "epsilon"),
    [((35.28, 358, 1.0, 21), 105.6), ((3533.0, 64_469, 3.427e-9, 76), 0.037), ((1.243, 50_061, 3.624e-4, 27), 15.2)],
)
def test_far_out_delta_is_below_what_can_be_asked_for_and_no_more_is_said(kind: Kind, epsilon: float) -> None:
    """Z_r exceeds 1 + 40/sqrt(r) with a chance far below 1e-100: so does delta that of a Gaussian with such a loss."""
    sigma, r, rate, steps = kind
    more = Gaussian(sigma / (1 + 40 / r**0.5)).poisson(rate) * steps
    assert more.delta(epsilon).upper < 1e-100
    bounds = composed([kind]).delta(epsilon)
    assert bounds.lower == 0
    assert 0 < bounds.upper < 1e-100


def test_a_gaussian_beside_projections_takes_no_longer() -> None:
    run = Gaussian(1.0) + Projected(1.0, 20).poisson(0.01) * 3
    start, began = time.process_time(), time.perf_counter()
    bounds = run.epsilon(1e-5)
    assert bounds.width <= 1e-4 * bounds.upper
    assert min(time.process_time() - start, time.perf_counter() - began) < BUSY * 0.8


def test_a_look_that_says_nothing_costs_time_and_nothing_else() -> None:
    run = composed([(0.6344, 47, 1.0, 5), (0.6359, 28, 1.0, 103), (12.33, 77, 0.01066, 10_498)])
    bounds = run.epsilon(1.148e-4)
    assert 207.62 < bounds.lower <= bounds.upper < 207.64
    assert bounds.width <= 1e-4 * bounds.upper


@pytest.mark.parametrize("reverse", [False, True])
def test_laws_of_small_losses_are_rounded_to_their_own_side(reverse: bool) -> None:
    sample = Poisson(ProjectedPair(2.0, 20), 1e-8)
    pair: Pair = sample.reverse() if reverse else sample
    edges = np.unique(np.concatenate([1e-8 * np.linspace(-1 + 1e-9, 3.0, 400), np.geomspace(1e-9, 30.0, 60)]))
    edges = -edges[::-1] if reverse else edges
    less, more = enclosing(pair, edges)
    # E_P[e^-L] is the Q-mass: a little below 1 in the law that reveals more, a little above in the other
    for law, sign in ((more, -1), (less, +1)):
        assert law.directed
        with mp.workdps(40):
            p = [mp.exp(mp.mpf(float(log))) for log in law.logs]
            losses = [mp.mpf(float(loss)) for loss in law.losses]
            off = mp.fsum(m * mp.expm1(-loss) for m, loss in zip(p, losses, strict=True))
            mean = mp.fsum(m * abs(loss) for m, loss in zip(p, losses, strict=True))
            assert 0 < sign * off < 1e-9 * mean


@pytest.mark.parametrize("rate", [1.0, 0.01, 1e-9])
@pytest.mark.parametrize(("sigma", "r"), [(1.3, 1), (0.1, 1000), (0.9, 30), (5.0, 300), (1e4, 3)])
def test_a_glance_is_a_percent_off_and_its_two_laws_fit_each_other(sigma: float, r: int, rate: float) -> None:
    pair: Pair = ProjectedPair(sigma, r) if rate == 1 else Poisson(ProjectedPair(sigma, r), rate)
    places = np.geomspace(1e-10, 3e4, 400)
    edges = np.concatenate([-places[::-1], [0.0], places])
    for seen, exact in zip(glance(pair).masses(edges), pair.masses(edges), strict=True):
        large = exact > 1e-120
        np.testing.assert_allclose(seen[large], exact[large], rtol=0.03)
        assert seen.sum() == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize(
    ("sigma", "r", "loss"),
    [(2.77311, 68, 9650.0), (1.0, 60, 9e5), (0.365188, 97, 2e5), (3.0, 400, 25.0), (9.0, 40, 5e5), (30.0, 1000, 1.5)],
)
def test_tails_keep_their_digits_far_below_1e_130(sigma: float, r: int, loss: float) -> None:
    """They had an error of up to 1e-147, and groups of a few records an infinite epsilon."""
    with mp.workdps(30):
        t, half = mp.mpf(loss), mp.mpf(r) / 2

        def term(y: mp.mpf) -> mp.mpf:  # over the logarithm of chi^2
            z = mp.sqrt(r / mp.exp(y)) / sigma
            return mp.exp(half * y - mp.exp(y) / 2) * mp.erfc((t / z - z / 2) / mp.sqrt(2)) / 2

        middle = float(mp.log(r / (2 * t * sigma**2)))  # the argument of Phi is 0
        near = middle + np.linspace(-20, 20, 41) / math.sqrt(loss)
        far = np.linspace(middle - 200 / r - 3, min(middle + 12, math.log(r) + 2), 60)
        places = np.union1d(far, near).tolist()
        scale = max(term(mp.mpf(y)) for y in places)
        total = mp.quad(lambda y: term(y) / scale, places)
        truth = float(mp.log(scale * total) - half * mp.log(2) - mp.loggamma(half))
    assert -630 < truth < -300
    pair = ProjectedPair(sigma, r, deep=True)
    above = float(pair.masses(np.array([loss]))[0][-1])
    unit = 2.0**-50 * (float(pair.accuracy(np.array([loss]))[0]) + abs(truth))
    assert abs(math.log(above) - truth) <= unit + pair.depth.missed / above


def test_a_group_of_projected_norms_needs_deltas_below_1e_147() -> None:
    """Was [65, inf] after 4 s.  The powers of 1, ..., 5 records at 1e-9 e^-10000 are e^-365, -200, -78, -17 and 1/2."""
    bounds = (Projected(2.77311, 68).poisson(0.166198) * 12_322).group(5).epsilon(1.2267e-9)
    assert (bounds.lower, bounds.upper) == (1e4, math.inf)


@pytest.mark.parametrize(("sigma", "r"), [(0.3, 1), (0.3, 1000), (0.5, 10**8), (2.0, 10**12)])
@pytest.mark.parametrize("loss", [0.3, 12.0])
def test_tails_of_any_number_of_projections_take_few_nodes(sigma: float, r: int, loss: float) -> None:
    """Against quadrature over log z with 30 digits, as far off as `accuracy` says at most."""
    pair = ProjectedPair(sigma, r)
    assert pair.nodes(loss)[0].size < 25_000 / math.sqrt(min(r, 10_000))
    with mp.workdps(30):

        def weight(v: mp.mpf) -> mp.mpf:
            return mp.exp(-mp.mpf(r) / 2 * (mp.expm1(-2 * v) + 2 * v))

        def tail(v: mp.mpf, sign: int) -> mp.mpf:
            z = mp.exp(v) / mp.mpf(sigma)
            return weight(v) * mp.erfc((loss / z + sign * z / 2) / mp.sqrt(2)) / 2

        unit = 1 / mp.sqrt(2 * r)
        ends = [unit * k for k in range(-40, 41, 4)] if r > 100 else np.linspace(-4, 60 if r == 1 else 8, 65).tolist()

        def integral(f: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
            scale = max(f(v) for v in ends) + mp.mpf(10) ** -900
            return scale * mp.quad(lambda v: f(v) / scale, ends)

        whole = integral(weight)
        above, below = (integral(lambda v, sign=sign: tail(v, sign)) / whole for sign in (-1, 1))
    p, q = pair.masses(np.array([loss]))
    for found, true in ((p[1], above), (q[1], below)):
        allowed = 2.0**-50 * (float(pair.accuracy(np.array([loss]))[0]) + abs(float(mp.log(true))))
        assert abs(found / float(true) - 1) < allowed


def test_very_many_projections_are_next_to_a_gaussian() -> None:
    """With 1e12 of them z is 1/sigma to a millionth of it."""
    bounds, plain = (Projected(2.0, 10**12).poisson(0.01) * 1000).epsilon(1e-6), Gaussian(2.0).poisson(0.01) * 1000
    assert bounds.width < 1e-4 * bounds.upper
    near = plain.epsilon(1e-6)
    assert bounds.lower < near.upper * (1 + 1e-5)
    assert near.lower * (1 - 1e-5) < bounds.upper


@pytest.mark.parametrize(("sigma", "r"), [(5000.0, 200), (3000.0, 10), (20.0, 50)])
def test_what_p_has_more_than_q_keeps_its_digits(sigma: float, r: int) -> None:
    """P(u > t) - Q(u > t), far smaller than either, given the nodes of z."""
    pair = ProjectedPair(sigma, r)
    losses = np.array([0.0, 1e-5, 0.3 / sigma, 10 / sigma, 0.5, 3.9, 4.1, 9.0])
    found, off = pair.gains(losses)
    nodes, weights = pair.nodes(9.0)
    with mp.workdps(120):
        for t, value, unsure in zip(losses.tolist(), found, off, strict=True):
            true = mp.mpf(0)
            for z, weight in zip(map(mp.mpf, nodes.tolist()), map(mp.mpf, weights.tolist()), strict=True):
                above, below = ((t / z + sign * z / 2) / mp.sqrt(2) for sign in (-1, 1))
                if weight > 1e-250 and above < 30:
                    true += weight * (mp.erfc(above) - mp.erfc(below)) / 2
            assert abs(value - true) <= unsure + 1e-240
            assert unsure <= 1e-10 * value


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(5000.0, 0.1, 10**8), (1500.0, 0.01, 10**9), (1e4, 0.5, 5 * 10**7)]
)
def test_much_noise_and_very_many_steps_are_as_narrow_as_others(sigma: float, rate: float, steps: int) -> None:
    """With 1e13 projections z is 1/sigma to 1e-6, and the Gaussian's contour integral tells; were 2e-4 wide."""
    bounds = (Projected(sigma, 10**13).poisson(rate) * steps).epsilon(1e-6)
    plain = (Gaussian(sigma).poisson(rate) * steps).epsilon(1e-6)
    assert bounds.width <= 1e-4 * bounds.upper
    assert bounds.lower < plain.upper * (1 + 1e-6)
    assert plain.lower * (1 - 1e-6) < bounds.upper
    few = (Projected(sigma, 100).poisson(rate) * steps).epsilon(1e-6)
    assert few.width <= 1e-4 * few.upper
