"""Where curves end: largest losses, what lies close to them, and epsilons far beyond all losses that matter."""

import math

import mpmath
import numpy as np
import pytest

from hush.accounting import ADD_REMOVE, Gaussian, Guarantees, Laplace, RandomisedResponse
from hush.accounting.kinds import directions
from hush.accounting.pairs.bounded import largest_total, near_top
from hush.accounting.pairs.points import LaplaceLaw
from hush.accounting.tails.sides import Side


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_loss_of_a_sample_encloses_that_of_the_numbers_given(seed):
    # 1/noise is rounded, and a sample's loss log(1 + p (e^l - 1)) takes that up to log 1/p times
    draw = np.random.default_rng(seed)
    with mpmath.workdps(60):
        for noise, rate in zip(draw.uniform(0.04, 0.5, 200), 10 ** draw.uniform(-12, 0, 200), strict=True):
            released = Laplace(float(noise)).poisson(float(rate))
            true = mpmath.log1p(mpmath.mpf(float(rate)) * mpmath.expm1(1 / mpmath.mpf(float(noise))))
            found = released.epsilon(0.0)
            assert found.lower <= true <= found.upper
            assert found.width < 1e-13 * found.upper
            assert largest_total(directions(released)[0]) >= true


@pytest.mark.parametrize(("size", "count"), [(2, 1), (2, 3), (3, 40)])
def test_losses_close_to_the_largest_are_no_likelier_than_the_less_revealing_pair_has_them(size, count):
    # of Laplace releases, groups or not, half of P has the largest loss: at most that, and the upper pair has more
    steps = directions(Laplace(1.0).group(size) * count)
    log_mass, total = near_top(steps[0])
    for below in (1e-4, 1e-5, 1e-6):  # so close to the end nothing but the largest loss of each step counts
        at = size * count * (1 - below / count)
        true = count * math.log(0.5) + math.log(-math.expm1(at - size * count))
        claimed = log_mass + math.log(-math.expm1(at - total)) if at < total else -math.inf
        assert claimed <= true + 1e-4


@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("epsilon", [1e3, 1e4, 1e6, 1e308])
def test_far_out_a_gaussian_release_leaks_next_to_nothing(noise, epsilon):
    found = Gaussian(noise).delta(epsilon)
    assert math.copysign(1.0, found.lower) == 1.0
    if epsilon > 2 / noise**2:
        assert found.upper < 1e-300


def test_the_rounding_of_many_closed_losses_is_counted_for_each_of_them():
    once, often = (Side(((LaplaceLaw(100.0), count),), above=True).doubt(-20.0) for count in (1, 1000))
    assert often > 900 * once


def test_a_billion_coins_that_hardly_ever_tell_and_then_tell_all_but_everything():
    # places on the lattice were beyond what integers count; how often a coin tells is a Poisson number, next to exactly
    loss, delta = 700 + math.log(1e-9), 1e-5
    chances = [math.exp(-1) / math.factorial(k) for k in range(30)]
    above = math.fsum(chances[9:])  # nine coins and more exceed any epsilon that eight may reach
    true = 8 * loss - 1 + math.log1p(-(delta - above) / chances[8])
    found = (RandomisedResponse(700.0, ADD_REMOVE).poisson(1e-9) * 10**9).epsilon(delta)
    assert found.lower <= true + 1e-6 <= found.upper + 2e-6


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.longdouble])
def test_a_delta_may_be_any_kind_of_number(kind):
    leaking = Guarantees.of(1.0, 0.25) * 3
    assert leaking.epsilon(kind(0.75)) == leaking.epsilon(0.75)
