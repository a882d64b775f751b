"""About log delta by saddle points: a model that places links, against certified deltas and closed forms."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Laplace, Mechanism, Projected, RandomisedResponse
from hush.accounting.grouping import saddles
from hush.accounting.kinds import directions
from hush.accounting.pairs.losses import GaussianPair, Pair, Poisson, Uniform


@pytest.mark.parametrize(
    ("run", "epsilons"),
    [
        (Gaussian(2.0) * 30, (1.0, 5.0, 20.0)),
        (Gaussian(20.0).poisson(0.3) * 10_000, (0.5, 3.0, 10.0)),
        (Gaussian(10.0, REPLACE_ONE).uniform(100, of=1000) * 5_000, (0.5, 2.0, 8.0)),
        (Laplace(3.0) * 40 + Gaussian(4.0), (2.0, 8.0, 13.0)),
        (Gaussian(1.0).poisson(0.1) * 60 + RandomisedResponse(0.2, ADD_REMOVE) * 100, (2.0, 6.0, 12.0)),
        (Laplace(1.0).poisson(0.2) * 100, (2.0, 6.0, 10.0)),
    ],
)
def test_where_many_losses_add_up_it_is_close(run: Mechanism, epsilons: tuple[float, ...]) -> None:
    model = saddles.model(directions(run))
    assert model is not None
    for epsilon in epsilons:
        truth = math.log(run.delta(epsilon).upper)
        assert float(model.at(np.array([epsilon]))[0]) == pytest.approx(truth, abs=0.1 + 0.03 * abs(truth))


def _log_mgf(pair: Pair, order: float) -> float:
    """By an integral in many digits."""
    sample = pair.pair if hasattr(pair, "pair") else pair
    assert isinstance(sample, Poisson | Uniform)
    assert isinstance(sample.inner, GaussianPair)
    with mpmath.workdps(30):
        mu, rate, c = mpmath.mpf(sample.inner.mu), mpmath.mpf(sample.rate), mpmath.mpf(order)

        def ratio(z: mpmath.mpf) -> mpmath.mpf:
            return 1 - rate + rate * mpmath.exp(mu * z - mu**2 / 2)

        far = (1 + c) * mu
        places = sorted({mpmath.mpf(-14), mpmath.mpf(0), mu / 2, far / 2, far, far + 14})
        if isinstance(sample, Uniform):
            places = [place for place in places if place >= mu / 2]
            gain = mpmath.quad(lambda z: mpmath.npdf(z) * (ratio(z) ** (1 + c) - ratio(z) + ratio(z) ** -c - 1), places)
            return float(mpmath.log1p(gain))
        power = (lambda z: ratio(z) ** -c) if sample is not pair else (lambda z: ratio(z) ** (1 + c))
        return float(mpmath.log(mpmath.quad(lambda z: mpmath.npdf(z) * power(z), places)))


@pytest.mark.parametrize("order", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("noise", [0.7, 4.0])
@pytest.mark.parametrize("way", ["removed", "added", "replaced"])
def test_moments_of_gaussian_samples_are_those_of_an_integral(order: float, noise: float, way: str) -> None:
    run = Gaussian(noise, REPLACE_ONE if way == "replaced" else ADD_REMOVE).poisson(0.02)
    pair = directions(run)[1 if way == "added" else 0][0][0]
    moments = saddles._cumulants(pair)
    assert moments is not None
    assert float(moments(np.array([order]))[0][0]) == pytest.approx(_log_mgf(pair, order), rel=1e-6, abs=1e-12)


def test_where_losses_have_no_moments_there_is_no_model() -> None:
    assert saddles.model(directions(Projected(1.0, 20).poisson(0.1) * 10)) is None
