"""The masses of bins are as good as the certificate says, whatever the bins."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from hush.accounting.pairs.doubts import doubts
from hush.accounting.pairs.losses import Array, GaussianPair, Pair, Poisson, Reversed, Uniform, randomised_response
from hush.accounting.pairs.projection import ProjectedPair


def _gaussian_tail(mu: float, edge: float, with_record: bool) -> mp.mpf:
    shift = mp.mpf(mu) / 2 if with_record else -mp.mpf(mu) / 2
    return mp.ncdf(shift - mp.mpf(edge) / mp.mpf(mu))


def _projected_tail(noise: float, r: int, edge: float, with_record: bool) -> mp.mpf:
    """E_z of the Gaussian tail, by mpmath's quadrature over v = log of Z_r."""
    half, sign = mp.mpf(r) / 2, 1 if with_record else -1

    def integrand(v: mp.mpf) -> mp.mpf:
        z = mp.exp(v) / mp.mpf(noise)
        density = 2 * half**half / mp.gamma(half) * mp.exp(-half * mp.exp(-2 * v) - 2 * half * v)
        return density * mp.ncdf(sign * z / 2 - mp.mpf(edge) / z)

    return mp.quad(integrand, mp.linspace(-2.5, 12, 30))


def _exact(tails: list[mp.mpf]) -> Array:
    return np.array([float(a - b) for a, b in itertools.pairwise(tails)])


@pytest.mark.parametrize(
    ("start", "width", "projections"), [(-0.3, 1e-4, 4), (0.2, 1e-5, 20), (3.0, 1e-3, 20), (900.0, 0.03, 4)]
)
def test_masses_of_projections_in_narrow_bins_are_within_their_doubts(
    start: float, width: float, projections: int
) -> None:
    edges = start + width * np.arange(3)
    pair = ProjectedPair(1.1, projections)
    p, q = pair.masses(edges)
    doubt = doubts(pair, p, q, edges)
    with mp.workdps(30):
        for masses, own, with_record in ((p, doubt.own_p, True), (q, doubt.own_q, False)):
            exact = _exact([_projected_tail(1.1, projections, float(edge), with_record) for edge in edges])
            keeps = exact > 1e-100  # what the quadrature over z was made for
            assert np.all((np.abs(masses[1:-1] - exact) <= own[1:-1])[keeps])
            assert np.all((own[1:-1] <= 1e-4 * exact)[keeps])


@pytest.mark.parametrize(("start", "width"), [(-0.3, 1e-6), (0.2, 1e-5), (3.0, 1e-6), (40.0, 1e-4)])
def test_masses_of_a_gaussian_in_narrow_bins_are_within_their_doubts(start: float, width: float) -> None:
    edges, pair = start + width * np.arange(6), GaussianPair(1.7)
    p, q = pair.masses(edges)
    doubt = doubts(pair, p, q, edges)
    with mp.workdps(60):
        for masses, own, with_record in ((p, doubt.own_p, True), (q, doubt.own_q, False)):
            exact = _exact([_gaussian_tail(1.7, float(edge), with_record) for edge in edges])
            assert np.all(np.abs(masses[1:-1] - exact) <= own[1:-1])


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.7])
@pytest.mark.parametrize("kind", ["poisson", "reversed", "uniform"])
def test_sampled_masses_lie_between_those_that_reveal_more_and_less(rate: float, kind: str) -> None:
    mu = 1.7
    sampled = Poisson(GaussianPair(mu), rate)
    pair: Pair = {"poisson": sampled, "reversed": Reversed(sampled), "uniform": Uniform(GaussianPair(mu), rate)}[kind]
    scale = min(rate, 0.3)
    edges = scale * np.array([0.11, 0.1101, 0.3, 0.30001, 0.9])
    edges = edges if kind != "reversed" else -edges[::-1]
    p, q = pair.masses(edges)
    doubt = doubts(pair, p, q, edges)
    low_p, high_q = doubt.less(p, q)
    high_p, low_q = doubt.more(p, q)
    with mp.workdps(60):
        inner = [mp.log((mp.exp(mp.mpf(float(abs(edge)))) - 1 + rate) / mp.mpf(rate)) for edge in edges]
        hit, miss = (_exact_between(mu, inner, side) for side in (True, False))
        true_p = [(1 - mp.mpf(rate)) * b + mp.mpf(rate) * a for a, b in zip(hit, miss, strict=True)]
        true_q = miss
        if kind == "reversed":
            true_p, true_q = [abs(v) for v in true_q], [abs(v) for v in true_p]
        for k in range(len(true_p)):
            at = k + 1
            for epsilon in (-0.2, 0.0, float(edges[k]), 0.5):
                delta = max(true_p[k] - mp.exp(epsilon) * true_q[k], 0)
                # masses and edges are floating-point numbers: the lattice's own margin
                slack = 2.0**-50 * float(true_p[k] + true_q[k])
                assert max(low_p[at] - math.exp(epsilon) * high_q[at], 0.0) <= delta + slack
                assert delta <= max(high_p[at] - math.exp(epsilon) * low_q[at], 0.0) + slack


def _exact_between(mu: float, inner: list[mp.mpf], with_record: bool) -> list[mp.mpf]:
    tails = [_gaussian_tail(mu, edge, with_record) for edge in inner]
    return [a - b for a, b in itertools.pairwise(tails)]


def test_finite_pairs_are_sums_and_not_in_doubt() -> None:
    edges = np.array([-1.0, 0.0, 1.0])
    pair = Poisson(randomised_response(0.4), 0.1)
    p, q = pair.masses(edges)
    doubt = doubts(pair, p, q, edges)
    assert not doubt.own_p.any()
    assert not doubt.common.any()
