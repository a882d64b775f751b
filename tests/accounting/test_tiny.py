"""Rates and deltas next to the smallest floating-point numbers: an answer that holds, however wide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.special import ndtr, ndtri

from hush.accounting import Gaussian, Laplace, Mechanism, Tradeoff
from hush.accounting.mixed.unbinned import enclosing_laws


def gaussian_curve(points: int) -> Tradeoff:
    return Tradeoff.of(lambda alpha: ndtr(-ndtri(alpha) - 1.0), points=points)


@pytest.mark.parametrize("rate", [1e-300, 1e-200])
@pytest.mark.parametrize("release", [Laplace(0.1), Laplace(10.0), gaussian_curve(10)])
def test_samples_that_are_never_drawn_tell_nothing(release: Mechanism, rate: float) -> None:
    """A hit has a chance of 1e-191 at most."""
    run = release.poisson(rate) * 10**9
    total = run.error_sum()
    assert 1 - 1e-8 < total.lower <= total.upper <= 1  # a billion roundings
    assert run.delta(0.5).upper < 1e-100


def test_samples_that_are_never_drawn_beside_others() -> None:
    run = Gaussian(1e4).poisson(1e-300) * 2 + gaussian_curve(10)
    alone = 2 * ndtr(-0.5)  # of mu = 1, known at a few points of the curve
    total = run.error_sum()
    assert total.lower <= alone <= total.upper


def test_the_smallest_delta_there_is_of_a_curve_with_leaks() -> None:
    """Ten Gaussians of mu = 1, as far as points of their curve tell."""
    found = (gaussian_curve(2000) * 10).epsilon(5e-324)
    assert 0 < found.lower <= Gaussian(10**-0.5).epsilon(5e-324).upper <= found.upper


def test_what_is_left_out_is_never_capped() -> None:
    """Atoms left out that weigh e^2000 of the rest are counted as that."""
    pair = (Laplace(1.0).poisson(0.1) * 2).parts()[0][0].pair()
    less = enclosing_laws([(pair, 2)], 1.0, -10.0, 20.0)[0][0][0]
    more = replace(less, atoms=(*less.atoms, (2000.0, 0.0)))
    assert less.rise(more, 1.0) > 1999
