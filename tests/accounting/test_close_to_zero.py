"""Samples of other kinds close to delta(0), where epsilon hangs on the digits of delta."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.accounting import Gaussian, Guarantees, Laplace
from hush.accounting.kinds import directions
from hush.accounting.lattices import lattice
from hush.accounting.mechanisms import REPLACE_ONE
from hush.accounting.releases import Projected


def replaced_delta(noise: float, rate: float, steps: int, c: float, epsilon: float) -> float:
    """delta of C_p's composition by a plain sum on a line, from its losses on a fine grid, no bound anywhere."""
    mu = 1 / noise
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(0.5 * mu, mu + 10, 40)
    half = 0.5 * np.diff(edges)
    x = ((edges[1:] + edges[:-1])[:, None] / 2 + half[:, None] * nodes).ravel()
    q = (half[:, None] * weights).ravel() * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    loss = np.log1p(rate * np.expm1(mu * x - 0.5 * mu * mu))
    rest = 1 - float((q * (np.exp(loss) + 1)).sum())
    spacing, total = 0.1, 0.0
    for first in range(0, 14_000, 2000):
        t = spacing * np.arange(first, first + 2000)
        turned = np.exp(1j * np.multiply.outer(t, loss))
        values = turned @ (q * np.exp((1 + c) * loss)) + np.conj(turned) @ (q * np.exp(-c * loss)) + rest
        s = c + 1j * t
        terms = np.exp(steps * np.log(values) - s * epsilon) / (s * (s + 1))
        total += float(terms.real.sum()) - (0.5 * float(terms[0].real) if first == 0 else 0.0)
    # other periods add less than e^{-20 pi c}, and nodes left out some 1e-10
    return spacing / math.pi * total


@pytest.mark.parametrize(("noise", "rate", "steps", "c"), [(1.0, 0.01, 40, 3.0), (0.8, 0.1, 60, 0.4)])
@pytest.mark.parametrize("share", [1e-6, 1e-3])
def test_some_samples_under_replacement_close_to_delta_zero(
    noise: float, rate: float, steps: int, c: float, share: float
) -> None:
    mechanism = Gaussian(noise, REPLACE_ONE).poisson(rate) * steps
    nothing = mechanism.delta(0.0)
    assert nothing.upper <= nothing.lower * (1 + 1e-9)
    assert replaced_delta(noise, rate, steps, c, 0.0) == pytest.approx(nothing.lower, rel=1e-9)
    bounds = mechanism.epsilon(nothing.lower * (1 - share))
    assert 0 < bounds.upper - bounds.lower <= 1.1e-4 * bounds.upper
    # their difference keeps fewer digits than either
    fallen = nothing.lower - replaced_delta(noise, rate, steps, c, 0.5 * (bounds.lower + bounds.upper))
    assert fallen == pytest.approx(share * nothing.lower, rel=2e-3 if share < 1e-5 else 1e-5)


def test_a_mixture_of_continuous_and_finite_losses_close_to_delta_zero() -> None:
    """Bins on a lattice say less: they were 60 percent wide."""
    mechanism = Laplace(0.024).poisson(0.037) * 3 + Guarantees.of(1.0, 1e-6).poisson(0.1) * 5
    nothing = mechanism.delta(0.0)
    delta = nothing.lower * (1 - 1e-4)
    bounds = mechanism.epsilon(delta)
    assert bounds.upper - bounds.lower <= 1.1e-3 * bounds.upper
    found = [lattice.epsilon(steps, math.log(delta), 1e-3) for steps in directions(mechanism)]
    assert max(low for low, _ in found) <= bounds.upper
    assert max(high for _, high in found) >= bounds.lower


def test_one_loss_beyond_an_epsilon_between_two_places_that_were_looked_at() -> None:
    """The tail falls by two percent from 1e4 to where losses count as infinite: no line was drawn for these."""
    mechanism = Projected(8.91117, 16).poisson(0.00159209) * 213
    bounds = mechanism.delta(1e4)
    assert bounds.upper <= bounds.lower * (1 + 1.1e-2)
    # one loss decides: the integral of its tail, P(L > l) (1 - e^(eps - l)) weighed by how fast that falls
    (pair, count), *_ = directions(mechanism)[0]
    places = 1e4 + np.append(0.0, np.geomspace(1e-6, 60.0, 4000))
    p, _ = pair.masses(places)
    least, most = (float((p[1:] * -np.expm1(1e4 - ends)).sum()) for ends in (places, np.append(places[1:], np.inf)))
    assert bounds.lower <= count * most * (1 + 1e-3)
    assert bounds.upper >= count * least * (1 - 1e-3)
