"""Samples keep the digits of small losses: laws on their own side to the last digit, intervals narrow to 1e9 steps."""

from __future__ import annotations

import os

import mpmath as mp
import numpy as np
import pytest

from hush.accounting import Gaussian
from hush.accounting.pairs.losses import GaussianPair, Pair, Poisson, Uniform
from hush.accounting.pairs.points import sampled_loss
from hush.accounting.tails.binning import directed

FULL = os.environ.get("HUSH_FULL") == "1"
RUNS = [
    (2.0, 1, 10**6, 10**9, 1e-5),  # noise multiplier, batch, records, steps, delta
    (1.0, 1, 10**9, 10**9, 1e-9),
    (100.0, 1, 10**9, 10**9, 1e-9),
    (4413.0, 2, 10**9, 30_751, 7.21e-74),
]


def _gaussian(mu: mp.mpf, t: mp.mpf) -> mp.mpf:
    return mp.ncdf(mu / 2 - t / mu) - mp.exp(t) * mp.ncdf(-mu / 2 - t / mu)


def _sampled(mu: mp.mpf, rate: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    """delta of (1-p) Q + p P against Q, at an epsilon of any sign."""
    odds = mp.expm1(epsilon) + rate
    return -mp.expm1(epsilon) if odds <= 0 else rate * _gaussian(mu, mp.log(odds / rate))


@pytest.mark.parametrize("kind", ["added", "removed", "replaced"])
@pytest.mark.parametrize(
    ("mu", "rate", "bins"), [(1.0, 1e-9, 900), (0.01, 1e-6, 300), (1e-4, 0.02, 2000), (3.0, 0.3, 40), (0.5, 0.999, 500)]
)
def test_one_step_lies_between_its_two_laws_to_the_last_digit(kind: str, mu: float, rate: float, bins: int) -> None:
    edges = np.unique(sampled_loss(mu * np.linspace(-6, 8, bins), rate))
    sample = Poisson(GaussianPair(mu), rate)
    pair: Pair = sample
    if kind == "added":
        pair, edges = sample.reverse(), -edges[::-1]
    elif kind == "replaced":
        pair, edges = Uniform(GaussianPair(mu), rate), np.unique(np.concatenate([-edges, [0.0], edges]))
    laws = directed(pair, edges)
    assert laws is not None
    with mp.workdps(40):
        known = [(law, [mp.exp(mp.mpf(float(log))) for log in law.logs]) for law in laws]
        for at in np.append(edges[:: max(1, edges.size // 12)], 0.3 * edges[-2] + 0.7 * edges[-1]):
            epsilon = mp.mpf(float(at))
            forward = kind == "removed" or (kind == "replaced" and at >= 0)
            true = _sampled(mp.mpf(mu), mp.mpf(rate), epsilon if forward else -epsilon)
            true = true if forward else -mp.expm1(epsilon) + mp.exp(epsilon) * true
            less, more = (
                law.infinite
                + mp.fsum(
                    -mass * mp.expm1(epsilon - mp.mpf(float(loss)))
                    for mass, loss in zip(masses, law.losses, strict=True)
                    if loss > at
                )
                for law, masses in known
            )
            assert less <= true <= more


@pytest.mark.parametrize(("noise", "batch", "records", "steps", "delta"), RUNS)
def test_uniform_sampling_is_narrow_up_to_a_billion_steps(
    noise: float, batch: int, records: int, steps: int, delta: float
) -> None:
    bounds = (Gaussian(noise).uniform(batch, of=records) * steps).epsilon(delta)
    assert 0 < bounds.width <= 1e-4 * bounds.upper


def _transform(mu: mp.mpf, rate: mp.mpf, s: mp.mpc) -> mp.mpc:
    """E_P[e^{sL}] - 1 of C_p: both signs of the loss, each over the inner losses above 0."""

    def integrand(x: mp.mpf) -> mp.mpc:
        loss = mp.log1p(rate * mp.expm1(mu * x - mu * mu / 2))
        return mp.npdf(x) * (mp.expm1((1 + s) * loss) + mp.expm1(-s * loss))

    # the atom at 0 is 1 less both halves' masses, of which P has more than Q by this
    return mp.quad(integrand, [mu / 2 + k for k in (0, 2, 4, 8, 12)]) - rate * _gaussian(mu, mp.mpf(0))


@pytest.mark.parametrize(("noise", "batch", "records", "steps", "delta"), RUNS[:3] if FULL else RUNS[1:2])
def test_a_billion_uniform_samples_agree_with_a_contour_integral_in_high_precision(
    noise: float, batch: int, records: int, steps: int, delta: float
) -> None:
    bounds = (Gaussian(noise).uniform(batch, of=records) * steps).epsilon(delta)
    with mp.workdps(30):
        mu, rate = 1 / mp.mpf(noise), mp.mpf(batch) / records
        total = mp.sqrt(steps * _transform(mu, rate, mp.mpf(1)).real)  # the Gaussian's mu, about
        for end, above in ((bounds.lower, True), (bounds.upper, False)):
            epsilon = mp.mpf(end)
            c = epsilon / total**2
            spacing = 2 * mp.pi / (epsilon + 30 * total)
            terms = []
            for k in range(int(mp.ceil(8 / (total * spacing))) + 1):
                s = c + 1j * spacing * k
                value = mp.exp(steps * mp.log1p(_transform(mu, rate, s)) - s * epsilon) / (s * (s + 1))
                terms.append(value.real * (0.5 if k == 0 else 1))
            found = spacing / mp.pi * mp.fsum(terms)
            assert (found > delta) == above
            assert abs(found / delta - 1) < 0.01
