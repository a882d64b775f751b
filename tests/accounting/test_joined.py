"""Steps joined: the same composition in fewer pairs, and bounds that get narrower."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from hush.accounting import ADD_REMOVE, Gaussian, Guarantees, Laplace, Mechanism, RandomisedResponse
from hush.accounting.kinds import directions
from hush.accounting.lattices import lattice
from hush.accounting.pairs.joined import joined
from hush.accounting.pairs.losses import Atoms, GaussianPair


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


RESPONSES = [0.83, 0.21, 1.37, 0.052, 0.47, 2.1]
NOISES = [0.9, 2.3, 7.0]


def test_responses_beside_gaussians_agree_with_a_sum_of_closed_forms() -> None:
    """delta(eps) is the mean over all answers of the Gaussians' delta at what is left of eps."""
    run: Mechanism = Gaussian(NOISES[0])
    for noise in NOISES[1:]:
        run = run + Gaussian(noise)
    for response in RESPONSES:
        run = run + RandomisedResponse(response, ADD_REMOVE)
    mu = math.sqrt(sum(noise**-2 for noise in NOISES))
    epsilons = np.array([0.0, 0.3, 1.0, 2.5, 5.0])
    (steps,) = directions(run)
    lower, upper = (np.exp(log) for log in lattice.log_delta(steps, epsilons, 1e-4))
    for k, epsilon in enumerate(epsilons):
        truth = 0.0
        for signs in itertools.product((1, -1), repeat=len(RESPONSES)):
            loss = sum(sign * response for sign, response in zip(signs, RESPONSES, strict=True))
            chance = math.prod(1 / (1 + math.exp(-s * r)) for s, r in zip(signs, RESPONSES, strict=True))
            truth += chance * gaussian_delta(mu, float(epsilon) - loss)
        assert lower[k] <= truth * (1 + 1e-12)
        assert truth <= upper[k] * (1 + 1e-12)
        assert upper[k] - lower[k] <= 2e-4


def test_what_is_joined_has_the_same_delta_in_both_directions() -> None:
    run: Mechanism = RandomisedResponse(0.7, ADD_REMOVE).poisson(0.3) + Guarantees.of(0.4, 1e-3, ADD_REMOVE).poisson(
        0.6
    )
    run = run + RandomisedResponse(1.3, ADD_REMOVE) + RandomisedResponse(0.2, ADD_REMOVE).poisson(0.01)
    for steps in directions(run):
        (fewer, owed) = joined(steps)
        assert owed == 0
        ((pair, count),) = fewer
        assert isinstance(pair, Atoms)
        assert count == 1
        lists = [_outcomes(one) for one, _ in steps]
        for epsilon in (-0.4, 0.0, 0.5, 1.1):
            truth = 0.0
            for path in itertools.product(*lists):
                p, q = math.prod(one[0] for one in path), math.prod(one[1] for one in path)
                truth += max(p - math.exp(epsilon) * q, 0.0)
            assert math.exp(pair.log_delta(np.array([epsilon]))[0]) == pytest.approx(truth, rel=1e-12)


def _outcomes(pair: object) -> list[tuple[float, float]]:
    """P- and Q-masses of all that can be seen, from bins no wider than 1e-6."""
    edges = np.linspace(-2.0, 2.0, 4_000_001)
    p, q = pair.masses(edges)  # type: ignore[attr-defined]
    kept = (p > 0) | (q > 0)
    return list(zip(p[kept].tolist(), q[kept].tolist(), strict=True))


def test_plain_gaussians_are_one() -> None:
    run = Gaussian(2.0) * 3 + Gaussian(0.7) + Laplace(1.0, ADD_REMOVE)
    (steps,) = directions(run)
    fewer, owed = joined(steps)
    gaussians = [pair for pair, _ in fewer if isinstance(pair, GaussianPair)]
    assert [pair.mu for pair in gaussians] == [pytest.approx(math.sqrt(3 / 4 + 0.7**-2), rel=1e-15)]
    assert owed > 0
    assert len(fewer) == 2


def test_curves_of_many_different_steps_are_narrow() -> None:
    """Atoms between lattice points cost first order in the spacing: this curve was 2e-3 wide."""
    generator = np.random.default_rng(3)
    run: Mechanism = Gaussian(1.3).poisson(0.4) + Laplace(0.9, ADD_REMOVE)
    for k in range(24):
        response = RandomisedResponse(float(generator.uniform(0.05, 0.9)), ADD_REMOVE)
        run = run + (response if k % 2 else response.poisson(float(generator.uniform(0.05, 0.9))))
    curve = run.tradeoff()
    assert float(np.max(curve.upper - curve.lower)) < 1e-3


@pytest.mark.parametrize("response", [600.0, 800.0, 5000.0])
def test_answers_that_tell_all_but_everything_are_kept(response: float) -> None:
    """Their Q-mass is no floating-point number: they had been left out, and delta was 1e-214 where it is 0.01."""
    run: Mechanism = RandomisedResponse(response, ADD_REMOVE).poisson(0.01) + Gaussian(1.5).poisson(0.1)
    for other in (0.1, 0.23, 0.37):
        run = run + RandomisedResponse(other, ADD_REMOVE)
    (lower,), (upper,) = lattice.log_delta(directions(run)[0], np.array([100.0]))
    # the others lose no more than 100 but for a chance of 1e-300, and without the sampled answer nothing is seen of it
    assert lower <= math.log(0.01) <= upper
    assert run.tradeoff()(1e-6)[0] <= 0.99


def test_steps_that_say_nothing_but_a_leak_are_kept_and_cost_nothing() -> None:
    """A list of one loss had been joined step by step, a billion times, and left out with all that it leaks."""
    silent, leaking = Atoms((0.0,), (1.0,), (1.0,)), Atoms((0.0,), (0.9,), (0.9,), 0.1, 0.1)
    (steps,) = directions(RandomisedResponse(0.3) + RandomisedResponse(0.2))
    fewer, _ = joined((*steps, (leaking, 1)))
    finite = math.prod((1 - pair.infinite) ** count for pair, count in fewer)
    assert finite == pytest.approx(0.9, rel=1e-15)
    fewer, _ = joined((*steps, (silent, 10**9)))
    assert [count for _, count in fewer] == [1, 10**9]
