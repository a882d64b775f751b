"""One release beside a few sums of atoms: against closed forms and integrals by mpmath, summed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import reference
from reference import ADD, REMOVE

from hush.accounting import ADD_REMOVE, Gaussian, Guarantees, Laplace, Mechanism, RandomisedResponse
from hush.accounting.kinds import directions
from hush.accounting.pairs import single

Delta = Callable[[mp.mpf, int], mp.mpf]
Outcomes = list[tuple[mp.mpf, mp.mpf]]


def response(truth: float, rate: float) -> Outcomes:
    """P- and Q-masses of what a sampled randomised response shows."""
    yes = 1 / (1 + mp.exp(-mp.mpf(truth)))
    p = mp.mpf(rate)
    return [((1 - p) * q + p * hit, q) for hit, q in ((yes, 1 - yes), (1 - yes, yes))]


def sampled_laplace(noise: float, rate: float) -> Delta:
    mu, p = 1 / mp.mpf(noise), mp.mpf(rate)

    def delta(epsilon: mp.mpf, direction: int) -> mp.mpf:
        def gain(x: mp.mpf) -> mp.mpf:
            absent = mp.exp(-abs(x)) / 2
            present = (1 - p) * absent + p * mp.exp(-abs(x - mu)) / 2
            first, second = (present, absent) if direction == REMOVE else (absent, present)
            return max(first - mp.exp(epsilon) * second, mp.mpf(0))

        ratio = (mp.exp(direction * epsilon) - 1 + p) / p  # where the loss is epsilon
        kink = (mp.log(ratio) + mu) / 2 if ratio > 0 else mp.mpf(0)
        edges = sorted({mp.mpf(-90), mp.mpf(0), min(max(kink, mp.mpf(0)), mu), mu, mu + 90})
        return mp.quad(gain, edges, maxdegree=9)

    return delta


def composed(own: Delta, lists: list[Outcomes], epsilon: float, direction: int) -> mp.mpf:
    total = mp.mpf(0)
    for path in itertools.product(*lists):
        p, q = mp.fprod(one[0] for one in path), mp.fprod(one[1] for one in path)
        first, second = (p, q) if direction == REMOVE else (q, p)
        total += first * own(mp.mpf(epsilon) - mp.log(first / second), direction)
    return total


CASES: list[tuple[Mechanism, Delta, list[Outcomes]]] = [
    (
        Gaussian(0.5).poisson(0.2) + RandomisedResponse(1.3, ADD_REMOVE).poisson(0.1) * 2,
        lambda epsilon, direction: reference.one_step(0.2, 0.5, direction, epsilon),
        [response(1.3, 0.1)] * 2,
    ),
    (
        Gaussian(3.0) * 4 + RandomisedResponse(0.4, ADD_REMOVE) + RandomisedResponse(2.0, ADD_REMOVE).poisson(0.5),
        lambda epsilon, _: (
            mp.ncdf(mp.mpf(1) / 3 - 3 * epsilon / 2) - mp.exp(epsilon) * mp.ncdf(-mp.mpf(1) / 3 - 3 * epsilon / 2)
        ),
        [response(0.4, 1.0), response(2.0, 0.5)],
    ),
    (
        Laplace(0.05, ADD_REMOVE).poisson(0.04) + Guarantees.of(1.3, 0.0, ADD_REMOVE).poisson(0.2) * 2,
        sampled_laplace(0.05, 0.04),
        [response(1.3, 0.2)] * 2,
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.05, 0.7])
def test_delta_agrees_with_a_sum_over_all_that_happens(case: int, epsilon: float) -> None:
    run, own, lists = CASES[case]
    with mp.workdps(30):
        for steps, direction in zip(directions(run), (REMOVE, ADD), strict=True):
            curve = single.among(steps)
            assert curve is not None
            lower, upper = (float(bound[0]) for bound in curve(np.array([epsilon])))
            truth = composed(own, lists, epsilon, direction)
            if truth > 1e-25:
                assert lower <= mp.log(truth) * (1 - mp.sign(mp.log(truth)) * mp.mpf(10) ** -20) <= upper
                assert upper - lower < 1e-10 / float(truth)
            else:
                assert lower == -math.inf


def test_just_above_the_total_variation_epsilon_keeps_its_digits() -> None:
    # bins knew this delta to 4e-3, and epsilon to 5%
    run, own, lists = CASES[2]
    with mp.workdps(30):
        truth = composed(own, lists, 6.5e-7, REMOVE)
    found = run.epsilon(float(truth))
    assert found.lower <= 6.5e-7 <= found.upper
    assert found.width <= 1e-5 * found.upper


@pytest.mark.parametrize(("count", "rate"), [(3, 0.1), (40, 0.02), (900, 1e-3)])
def test_sums_over_all_that_happens_keep_their_digits(count: int, rate: float) -> None:
    """Binomial sums by mpmath: bounds were a flat 4e-11 apart from rounding."""
    run = Guarantees.of(1.0, 0.0, ADD_REMOVE).poisson(rate) * count
    with mp.workdps(40):
        outcomes = response(1.0, rate)
        for epsilon in (0.0, 1e-7, 0.01):
            truth = max(_binomial(outcomes, count, epsilon), _binomial([(q, p) for p, q in outcomes], count, epsilon))
            found = run.delta(epsilon)
            assert found.lower <= truth <= found.upper
            assert found.width <= (1e-12 if count < 100 else 4e-11) * found.upper


def _binomial(outcomes: Outcomes, count: int, epsilon: float) -> mp.mpf:
    (p1, q1), (p0, q0) = outcomes
    factor = mp.exp(mp.mpf(epsilon))
    gains = (p1**k * p0 ** (count - k) - factor * q1**k * q0 ** (count - k) for k in range(count + 1))
    return mp.fsum(mp.binomial(count, k) * max(gain, 0) for k, gain in enumerate(gains))
