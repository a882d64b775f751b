"""Many equal samples under replace-one: C_p's own transform, against mpmath, and composed by a Fourier transform."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from hush.accounting import REPLACE_ONE, Gaussian
from hush.accounting.kinds import directions
from hush.accounting.pairs.losses import GaussianPair, Uniform
from hush.accounting.replaced import many as replaced_many


def _steps(noise: float, rate: float, count: int):
    return directions(Gaussian(noise, REPLACE_ONE).poisson(rate) * count)[0]


def _transform(noise: float, rate: float, s, top: float = math.inf):
    """E_P[e^{sL}] - 1 by what is seen, x: (1-p) N(0, 1) + p N(mu, 1) ahead, N(0, 1) behind, the rest at 0."""
    p, mu = mp.mpf(rate), 1 / mp.mpf(noise)

    def both(x):
        grown = p * mp.expm1(mu * x - mu**2 / 2)
        loss = mp.log1p(grown)
        return mp.npdf(x) * ((1 + grown) * mp.expm1(s * loss) + mp.expm1(-s * loss))

    last = mu / 2 + 15 + 2 * mu if math.isinf(top) else mp.log1p(mp.expm1(top) / p) / mu + mu / 2
    places = [mu / 2 + mp.mpf(k) for k in (0, 1, 3, 6, 10 + mu)]
    return mp.quad(both, [*(x for x in places if x < last), last])


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1e-2), (5000.0, 1e-6), (0.4, 0.3), (20.0, 0.9)])
def test_the_transform_is_as_far_off_as_it_says(noise, rate):
    law = replaced_many.Law.of(_steps(noise, rate, 1000)[0][0], -60.0, 1.0)
    scale = rate * min(1, 1 / noise)
    orders = np.array([0.3, 1 + 2j, 0.5 - 7j, 3.0]) / scale if noise > 2 else np.array([0.3, 1 + 2j, 0.5 - 7j, 3.0])
    values, errors = law.rises(orders)
    with mp.workdps(30):
        for order, value, error in zip(orders, values, errors, strict=True):
            true = _transform(noise, rate, mp.mpc(complex(order)), law.density.panels.top)
            assert abs(true - mp.mpc(complex(value))) <= error
            assert error < 1e-6 * abs(value)


@pytest.mark.parametrize(("noise", "rate", "c"), [(1.0, 1e-2, 5.0), (50.0, 1e-3, 3e4), (2.0, 0.5, 1.0)])
def test_bounds_on_the_transform_hold(noise, rate, c):
    law = replaced_many.Law.of(_steps(noise, rate, 1000)[0][0], -50.0)
    whole = law.log_mgf(np.array([c]))[0]
    rng = np.random.default_rng(5)
    for panels in (2, 4, 6):
        near, fall = law.small_angles(c, panels)
        for t in near * rng.uniform(0, 1, 20):
            size = math.log(abs(1 + complex(law.rises(np.array([c + 1j * t]))[0][0])))
            assert size - whole <= -fall * t * t + 1e-12
    decay = law.log_decay(c, near)
    for t in near * np.exp(rng.uniform(0, 3, 40)):
        value, error = (complex(part[0]) for part in law.rises(np.array([c + 1j * t])))
        if abs(error) < 1e-3:
            assert math.log(abs(1 + value)) - whole <= decay + 1e-3


def _composed(noise: float, rate: float, count: int, epsilon: float, spacing: float, points: int) -> float:
    """delta from masses on a lattice, each loss moved to the nearest point, and a Fourier transform."""
    mu = 1 / noise
    edges = (np.arange(1, points // 2) - 0.5) * spacing
    x = noise * np.log1p(np.expm1(np.minimum(edges, 600.0)) / rate) + mu / 2
    ahead = (1 - rate) * ndtr(-x) + rate * ndtr(mu - x)
    behind = ndtr(-x)
    law = np.zeros(points)
    law[1 : points // 2 - 1] = -np.diff(ahead)
    law[-1 : points // 2 + 1 : -1] = -np.diff(behind)
    law[0] = 1 - ahead[0] - behind[0]
    total = np.fft.irfft(np.fft.rfft(law) ** count, points)
    losses = np.arange(points // 2) * spacing
    return float((total[: points // 2] * np.maximum(-np.expm1(epsilon - losses), 0.0)).sum())


@pytest.mark.parametrize(
    ("noise", "rate", "count", "delta"),
    [(3.0, 0.01, 3000, 1e-5), (20.0, 0.1, 20_000, 1e-6), (4.0, 0.3, 1000, 1e-4), (2.0, 0.4, 40, 1e-3)],
)
def test_epsilon_as_a_lattice_finds_it(noise, rate, count, delta):
    low, high = replaced_many.epsilon(_steps(noise, rate, count), math.log(delta), 9e-5)
    assert 0 < high - low < 1e-8 * high
    assert high == pytest.approx((Gaussian(noise, REPLACE_ONE).poisson(rate) * count).epsilon(delta).upper, rel=1e-9)
    spacing = 2e-3 * rate / noise
    found = _composed(noise, rate, count, low, spacing, 1 << 22)
    assert found == pytest.approx(delta, rel=3e-5)


@pytest.mark.parametrize(("noise", "rate", "count", "delta"), [(5607.47, 92 / 16530, 324348827, 1.17e-6)])
def test_a_billion_tiny_losses_as_mpmath_adds_them_up(noise, rate, count, delta):
    low, high = replaced_many.epsilon(_steps(noise, rate, count), math.log(delta), 9e-5)
    assert 0 < high - low < 1e-8 * high
    with mp.workdps(22):
        variance = count * _transform(noise, rate, mp.mpf(1))
        c = 3 / mp.sqrt(variance)
        spacing = mp.mpf(1) / 3 / mp.sqrt(variance)
        sizes = []
        for k in range(60):
            s = mp.mpc(c, k * spacing)
            sizes.append(count * mp.log1p(_transform(noise, rate, s)))
            if abs(mp.e ** sizes[-1]) < 1e-18 * abs(mp.e ** sizes[0]):
                break
        for end, sign in ((low, 1), (high, -1)):
            total = mp.mpf(0)
            for k, size in enumerate(sizes):
                s = mp.mpc(c, k * spacing)
                total += (0.5 if k == 0 else 1) * mp.re(mp.e ** (size - s * mp.mpf(end)) / (s * (s + 1)))
            found = total * spacing / mp.pi
            assert sign * (found / mp.mpf(delta) - 1) >= -(mp.mpf(10) ** -12)


def test_where_large_losses_rule_others_answer():
    mechanism = Gaussian(0.5, REPLACE_ONE).poisson(1e-5) * 1000
    found = mechanism.epsilon(1e-4)
    assert found.width <= 1e-4 * found.upper


@pytest.mark.parametrize(
    ("mu", "rate", "count", "log_delta"), [(0.0324, 0.00932, 10, -72.7), (0.0424, 1.07e-4, 11, -132.2)]
)
@np.errstate(all="ignore")
def test_far_nodes_of_few_steps_are_as_far_off_as_they_say(mu, rate, count, log_delta):
    """Where orders are large, sums over long panels say nothing: errors below 0 had said that all was known."""
    pair = Uniform(GaussianPair(mu), rate)
    law = replaced_many.Law.of(pair, log_delta + math.log(1e-10 / count))
    order, guess = replaced_many._saddle(law, count, log_delta)
    law = replaced_many.Law.of(pair, log_delta + math.log(1e-10 / count), 6 / (order + 1))
    line = replaced_many._line(law, count, order, guess)
    lower, upper = line.log_delta(np.array([guess]))
    assert lower[0] <= upper[0]
    assert np.all(line.errors >= 0)
    # the same by what is seen, x, on panels so short that no loss turns far on one
    last = math.log1p(math.expm1(law.density.panels.top) / rate) / mu + mu / 2
    at, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(mu / 2, last, 4001)
    x = (edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + at)).ravel()
    masses = (0.5 * np.diff(edges)[:, None] * weights).ravel() * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    grown = rate * np.expm1(mu * (x - mu / 2))
    losses = np.log1p(grown)

    def transform(s):
        return 1 + (masses * ((1 + grown) * np.expm1(s * losses) + np.expm1(-s * losses))).sum()

    for node, found, error in list(zip(line.nodes, line.values, line.errors, strict=True))[:: line.nodes.size // 20]:
        assert abs((transform(node) / transform(line.c)) ** count - found) <= error + 1e-9
