"""A few equal samples under replace-one, against mpmath and against a Fourier integral: neither knows of panels."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from hush.accounting import REPLACE_ONE, Gaussian
from hush.accounting.contours.crossing import certified_root
from hush.accounting.kinds import directions
from hush.accounting.replaced import few as replaced_few
from hush.accounting.replaced.densities import Density, Loss, Panels, convolved


def _steps(noise: float, rate: float, count: int):
    return directions(Gaussian(noise, REPLACE_ONE).poisson(rate) * count)[0]


def _one(noise: float, rate: float, epsilon):
    """delta of one step at any epsilon, in mpmath."""
    if epsilon < 0:
        return -mp.expm1(epsilon) + mp.e**epsilon * _one(noise, rate, -epsilon)
    mu, t = 1 / mp.mpf(noise), mp.log1p(mp.expm1(epsilon) / rate)
    return rate * (mp.ncdf(mu / 2 - t / mu) - mp.e**t * mp.ncdf(-mu / 2 - t / mu))


def _two(noise: float, rate: float, epsilon: float):
    """delta of two steps: the mean of one's over what the other shows, x."""
    with mp.workdps(22):
        p, mu, eps = mp.mpf(rate), 1 / mp.mpf(noise), mp.mpf(epsilon)
        loss = lambda x: mp.log1p(p * mp.expm1(mu * x - mu**2 / 2))  # noqa: E731
        ahead = lambda x: (1 - p) * mp.npdf(x) + p * mp.npdf(x - mu)  # noqa: E731
        kink = (mp.log1p(mp.expm1(eps) / p) + mu**2 / 2) / mu
        cuts = sorted({mu / 2, kink, *(mu / 2 + k for k in range(1, 12 + int(mu)))})
        both = lambda x: ahead(x) * _one(noise, rate, eps - loss(x)) + mp.npdf(x) * _one(noise, rate, eps + loss(x))  # noqa: E731
        atom = (1 - p) * (2 * mp.ncdf(mu / 2) - 1)
        return atom * _one(noise, rate, eps) + mp.quad(both, cuts)


def _by_fourier(noise: float, rate: float, count: int, epsilon: float = 0.0) -> float:
    """delta(e) = 1 - e^(e/2) (1/pi) integral over t > 0 of M(t)^k cos(t e)/(t^2 + 1/4), M the transform at -1/2 + it.

    (At 0 the integral of 1/(t^2 + 1/4) is pi: so it is that of (1 - M^k cos)/(t^2 + 1/4), and what e^(e/2) adds.)
    """
    mu = 1 / noise
    at, weights = np.polynomial.legendre.leggauss(800)
    x = mu / 2 + (at + 1) * (4.5 + mu / 2)
    weights = weights * (4.5 + mu / 2) * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    loss = np.log1p(rate * np.expm1(mu * x - mu * mu / 2))
    atom = (1 - rate) * math.erf(mu / math.sqrt(8))
    nodes, steps = np.polynomial.legendre.leggauss(20)
    total, last = 0.0, 40 / (rate * min(1, mu))
    edges = np.concatenate([np.linspace(0, 10, 31), np.geomspace(10, last, 80)[1:]])
    for low, high in itertools.pairwise(edges):
        t, w = low + (nodes + 1) * (high - low) / 2, steps * (high - low) / 2
        moved = atom + 2 * (weights * np.exp(0.5 * loss) * np.cos(np.outer(t, loss))).sum(axis=1)
        total += float((w * (1 - moved**count * np.cos(t * epsilon)) / (t * t + 0.25)).sum())
    short = (total + (1 - atom**count) * 2 * math.atan(0.5 / last)) / math.pi
    return short - math.expm1(0.5 * epsilon) * (1 - short)


@pytest.mark.parametrize(
    ("noise", "rate"), [(1.0, 1e-3), (0.3, 1e-5), (0.15, 0.02), (3.0, 0.4), (50.0, 1e-2), (0.6, 0.9)]
)
def test_two_steps_as_mpmath_has_them(noise, rate):
    curve = replaced_few.curve(_steps(noise, rate, 2))
    scale = rate * min(1.0, 1 / noise)
    for epsilon in (0.0, 1e-3 * scale, 0.7 * scale, 5 * scale):
        lower, upper = (float(end[0]) for end in curve(np.array([epsilon])))
        with mp.workdps(22):
            true = mp.log(_two(noise, rate, epsilon))
            assert mp.mpf(lower) <= true <= mp.mpf(upper)
        assert upper - lower < 3e-10 if epsilon < 2 * scale else upper - lower < 1e-6


@pytest.mark.parametrize(
    ("noise", "rate", "count"), [(1.0, 0.3, 3), (0.8, 0.5, 5), (2.0, 0.2, 9), (0.5, 0.7, 4), (1.0, 0.4, 6)]
)
def test_several_steps_as_a_fourier_integral_has_them(noise, rate, count):
    lower, upper = (math.exp(float(end[0])) for end in replaced_few.curve(_steps(noise, rate, count))(np.zeros(1)))
    assert upper / lower - 1 < 3e-9
    assert _by_fourier(noise, rate, count) == pytest.approx(lower, rel=1e-6)


@pytest.mark.parametrize(("noise", "rate", "short"), [(0.7, 3e-4, 1e-6), (0.3, 1e-5, 1e-4), (1.7, 1e-3, 1e-3)])
def test_epsilons_just_below_delta_at_zero(noise, rate, short):
    mechanism = Gaussian(noise, REPLACE_ONE).poisson(rate) * 2
    with mp.workdps(22):
        delta = float(_two(noise, rate, 0.0) * (1 - mp.mpf(short)))
        found = mechanism.epsilon(delta)
        assert 0 < found.width <= 1e-4 * found.upper
        assert _two(noise, rate, found.lower) >= mp.mpf(delta) >= _two(noise, rate, found.upper)


@pytest.mark.parametrize(
    ("noise", "rate", "count", "short"),
    [(1.2, 0.6, 10, 1e-3), (2.0, 0.5, 13, 1e-4), (1.7, 0.05, 16, 1e-3), (2.0, 0.2, 12, 1e-3), (2.6, 0.02, 23, 1e-2)],
)
def test_a_dozen_steps_just_below_delta_at_zero(noise, rate, count, short):
    """Widths of 1e-3 and more, once.  Fourier's integral is good to 2e-11 where its tail has decayed."""
    delta = _by_fourier(noise, rate, count) * (1 - short)
    steps = _steps(noise, rate, count)
    found = certified_root(replaced_few.curve(steps), 0.1, math.log(delta))
    assert found[1] - found[0] <= 1e-4 * found[1]
    assert _by_fourier(noise, rate, count, found[0]) >= delta * (1 - 2e-11)
    assert _by_fourier(noise, rate, count, found[1]) <= delta * (1 + 2e-11)
    asked = (Gaussian(noise, REPLACE_ONE).poisson(rate) * count).epsilon(delta)
    assert asked.width <= 1e-4 * asked.upper
    assert asked.lower <= found[1]
    assert found[0] <= asked.upper


def test_five_steps_just_below_delta_at_zero_are_known():
    mechanism = Gaussian(0.4, REPLACE_ONE).poisson(6e-5) * 5
    nothing = mechanism.delta(0.0)
    assert nothing.width < 1e-9 * nothing.upper
    found = mechanism.epsilon(nothing.lower * (1 - 1e-4))
    assert 0 < found.width <= 1e-4 * found.upper
    assert mechanism.delta(found.lower).upper >= nothing.lower * (1 - 1e-4) >= mechanism.delta(found.upper).lower


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.2, 1e-4), (5.0, 0.5)])
def test_densities_add_up_and_fall(noise, rate):
    loss = Loss(rate, noise)
    panels = Panels.of(loss, 4, replaced_few._reach(loss, 4, 1e-20), 1e-20, 200)
    one = Density.single(panels)
    two = convolved(one, one)
    points, weights = panels.points
    for density in (one, two, convolved(two, one), convolved(two, two)):
        value, _ = density(points)
        assert loss.atom**density.steps + float((value * weights * 2 * np.cosh(points / 2)).sum()) == pytest.approx(
            1, abs=1e-12
        )
        assert np.all(np.diff(density.values) <= 2 * np.repeat(density.errors, 32)[1:])


def test_two_losses_have_the_density_that_mpmath_finds():
    noise, rate = 0.8, 0.02
    loss = Loss(rate, noise)
    panels = Panels.of(loss, 2, 6.0, 1e-30, 200)
    one = Density.single(panels)
    two = convolved(one, one)

    def single(l):
        l = abs(l)
        v = 1 + mp.expm1(l) / rate
        top = noise / (rate * mp.sqrt(2 * mp.pi)) * mp.e ** (-mp.mpf(1) / (8 * noise**2))
        return top * (mp.e**l / v) ** 1.5 * mp.e ** (-((noise * mp.log(v)) ** 2) / 2)

    with mp.workdps(25):
        for e in (0.003, 0.04, 0.5):
            cuts = [
                -8,
                -4,
                -2,
                -1,
                -0.5,
                -0.1,
                -0.01,
                0,
                e / 2,
                e,
                e + 0.01,
                e + 0.1,
                e + 0.5,
                e + 1,
                e + 2,
                e + 4,
                e + 8,
            ]
            true = 2 * mp.mpf(loss.atom) * single(e) + mp.quad(lambda l: single(l) * single(e - l), cuts)  # noqa: B023
            value, error = (float(part[0]) for part in two(np.array([e])))
            assert abs(mp.mpf(value) - true) <= error
            assert error < 1e-10 * value


def test_densities_off_the_real_axis_are_bounded_as_claimed():
    rng = np.random.default_rng(3)
    for _ in range(300):
        noise, rate = math.exp(rng.uniform(-2.3, 3)), math.exp(rng.uniform(-14, -0.01))
        real, imaginary = math.exp(rng.uniform(-16, 3)), math.exp(rng.uniform(-16, 2))
        z = mp.mpc(real, imaginary)
        with mp.workdps(40):
            w = 1 - (1 - mp.mpf(rate)) * mp.e ** (-z)
            log_v = z + mp.log(w) - mp.log(rate)
            log_m = mp.mpf(1.5) * (z - log_v) - noise**2 * log_v**2 / 2
            real_v = mp.log1p(mp.expm1(real) / mp.mpf(rate))
            on_axis = mp.mpf(1.5) * (real - real_v) - noise**2 * real_v**2 / 2
            turn = Loss(rate, noise).turn(real, imaginary)
            assert (
                mp.re(log_m) <= on_axis + noise**2 * mp.mpf(turn) ** 2 / 2 * (1 + mp.mpf(10) ** -12) + mp.mpf(10) ** -12
            )
            for part in (0.1, 0.5, 0.9):  # along the ray from 0, and further to the right
                for other in (part * z, z + part * 5):
                    v = other + mp.log(1 - (1 - mp.mpf(rate)) * mp.e ** (-other))
                    assert mp.im(v) <= turn * (1 + 1e-12)
