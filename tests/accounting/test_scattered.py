"""Losses at points that share no lattice: against enumeration, an integral by mpmath, the kernels' inequalities."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from hush.accounting import REPLACE_ONE, Guarantees, Laplace, Mechanism, RandomisedResponse, scattered
from hush.accounting.losses import Array, LaplacePair, Pair, Poisson, Uniform, randomised_response
from hush.accounting.points import sampled_loss
from hush.accounting.smoothing import FOLDS, Kernel

KINDS = ("plain", "poisson", "reversed", "uniform")


def on_sample(kind: str, pair: Pair, rate: float) -> Pair:
    return {
        "plain": pair,
        "poisson": Poisson(pair, rate),
        "reversed": Poisson(pair, rate).reverse(),
        "uniform": Uniform(pair, rate),
    }[kind]


def outcomes(kind: str, epsilon: float, delta: float, rate: float) -> list[tuple[float, float]]:
    """(P, Q) of every outcome, from the definitions."""
    truth = 1 / (1 + math.exp(-epsilon))
    p = [delta, (1 - delta) * truth, (1 - delta) * (1 - truth), 0.0]
    q = [0.0, (1 - delta) * (1 - truth), (1 - delta) * truth, delta]
    mixed = [(1 - rate) * b + rate * a for a, b in zip(p, q, strict=True)]
    if kind == "plain":
        return list(zip(p, q, strict=True))
    if kind == "poisson":
        return list(zip(mixed, q, strict=True))
    if kind == "reversed":
        return list(zip(q, mixed, strict=True))
    high = [(a, b) for a, b in zip(mixed, q, strict=True) if a > b]
    rest = 1 - sum(a + b for a, b in high)
    return [*high, (rest, rest), *((b, a) for a, b in high)]


def enumerated_delta(steps: list[list[tuple[float, float]]], epsilon: float) -> float:
    paths = itertools.product(*steps)
    terms = (math.prod(a for a, _ in path) - math.exp(epsilon) * math.prod(b for _, b in path) for path in paths)
    return math.fsum(term for term in terms if term > 0)


@pytest.mark.parametrize("seed", range(12))
def test_promises_on_samples_of_all_kinds_agree_with_enumeration(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(scattered, "_FEW", 1)  # the contour, though enumeration would do
    generator = np.random.default_rng(seed)
    listed, steps = [], []
    for _ in range(5):
        kind = KINDS[generator.integers(4)]
        epsilon, rate = float(10 ** generator.uniform(-2, 1)), float(10 ** generator.uniform(-3, 0))
        delta = float(generator.choice([0.0, 1e-9, 1e-4]))
        listed.append(outcomes(kind, epsilon, delta, rate))
        steps.append((on_sample(kind, randomised_response(epsilon, delta), rate), 1))
    for log_delta in (-1.0, -4.0, -8.0):
        low, high = scattered.epsilon(steps, log_delta, 9e-4)
        assert low == 0 or enumerated_delta(listed, low) >= math.exp(log_delta) * (1 - 1e-9)
        assert enumerated_delta(listed, high) <= math.exp(log_delta) * (1 + 1e-9)
    at = np.array([0.1, 1.0])
    lower, upper = scattered.log_delta(steps, at, 9e-4)
    with np.errstate(divide="ignore"):
        exact = np.log([enumerated_delta(listed, float(e)) for e in at])
    assert np.all(lower <= exact + 1e-9)
    assert np.all(exact <= upper + 1e-9)


@pytest.mark.parametrize(
    ("kind", "mu", "rate"),
    [("plain", 1.0, 1.0), ("poisson", 1.5, 0.1), ("reversed", 1.5, 0.1), ("uniform", 0.7, 0.3), ("uniform", 5.0, 1e-3)],
)
def test_two_laplace_releases_and_a_coin_agree_with_one_integral(kind: str, mu: float, rate: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    other, coin = 0.6, 0.25
    steps: list[tuple[Pair, int]] = [
        (on_sample(kind, LaplacePair(mu), rate), 1),
        (LaplacePair(other), 1),
        (randomised_response(coin), 1),
    ]

    def rest(epsilon: float) -> float:
        """delta of the second Laplace release and the coin."""
        total = 0.0
        for loss, mass in ((coin, 1 / (1 + math.exp(-coin))), (-coin, 1 / (1 + math.exp(coin)))):
            e = epsilon - loss
            total += mass * (0.0 if e >= other else -math.expm1((e - other) / 2) if e >= -other else -math.expm1(e))
        return total

    def delta(epsilon: float) -> float:
        def of(u: float, p: float, q: float) -> float:
            mixed, loss = (1 - rate) * q + rate * p, math.log1p(rate * math.expm1(u))
            if kind == "reversed":
                return q * rest(epsilon + loss)
            return mixed * rest(epsilon - loss) + (q * rest(epsilon + loss) if kind == "uniform" else 0.0)

        def density(u: float) -> float:
            return of(float(u), math.exp((u - mu) / 2) / 4, math.exp((-u - mu) / 2) / 4)

        places = [epsilon - s * coin - t * other for s in (1, -1) for t in (1, -1)]
        corners = [math.log(y / rate) for place in places for e in (place, -place) if (y := math.expm1(e) + rate) > 0]
        start = 0.0 if kind == "uniform" else -mu
        breaks = sorted({start, mu, *(u for u in corners if start < u < mu)})
        total = of(mu, 0.5, math.exp(-mu) / 2) + float(mpmath.quad(density, breaks))
        if kind == "uniform":
            q = math.exp(-mu / 2) / 2
            return total + (1 - q - (1 - rate) * q - rate * (1 - q)) * rest(epsilon)
        return total + of(-mu, math.exp(-mu) / 2, 0.5)

    for log_delta in (-1.5, -3.0, -7.0):
        low, high = scattered.epsilon(steps, log_delta, 9e-5)
        assert high - low <= 1e-4 * high
        assert low == 0 or delta(low) >= math.exp(log_delta) * (1 - 1e-9)
        assert delta(high) <= math.exp(log_delta) * (1 + 1e-9)


def pure_steps(seed: int, count: int) -> Mechanism:
    generator = np.random.default_rng(seed)
    run: Mechanism = Guarantees.of(0.017, neighbours=REPLACE_ONE)
    for _ in range(count - 1):
        size = float(10 ** generator.uniform(-2, 0))
        kinds: list[Mechanism] = [
            RandomisedResponse(size),
            Laplace(1 / size, REPLACE_ONE),
            Laplace(1 / size, REPLACE_ONE).uniform(int(generator.integers(1, 100)), of=100),
            RandomisedResponse(size).uniform(int(generator.integers(1, 100)), of=100),
        ]
        run = run + kinds[generator.integers(4)]
    return run


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-30, 1e-100])
def test_a_hundred_different_pure_steps_have_a_narrow_answer_in_a_second(delta: float) -> None:
    run = pure_steps(1, 100)
    began = time.process_time()
    bounds = run.epsilon(delta)
    assert time.process_time() - began < 1.0
    assert bounds.width <= 1e-4 * bounds.upper
    assert 0 < bounds.lower <= bounds.upper <= run.largest_loss * (1 + 1e-15)
    assert run.delta(bounds.upper).lower <= delta * (1 + 1e-9)
    assert run.delta(bounds.lower).upper >= delta * (1 - 1e-9)


def test_pure_steps_in_both_orders_of_outcomes_are_never_called_hopeless() -> None:
    run = RandomisedResponse(0.3) + RandomisedResponse(0.7234) * 3 + Guarantees.of(0.1, neighbours=REPLACE_ONE)
    for delta in (1e-17, 1e-30, 1e-100):
        bounds = run.epsilon(delta)
        assert bounds.upper <= run.largest_loss * (1 + 1e-12)
        assert bounds.width <= 1e-3 * bounds.upper


def test_epsilon_falls_with_delta_where_it_is_enclosed() -> None:
    run = pure_steps(7, 30)
    answers = [run.epsilon(delta) for delta in (1e-40, 1e-20, 1e-10, 1e-5, 1e-2, 0.3, 0.9, 0.999)]
    for deep, shallow in itertools.pairwise(answers):
        assert shallow.lower <= deep.upper


def test_sampled_losses_keep_their_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 50
    for rate in (1e-9, 0.3, 0.7, 1 - 1e-9):
        for u in (-50.0, -1.0, -1e-9, 1e-12, 0.4, 1.3, 30.0, 900.0):
            exact = mpmath.log(1 - mpmath.mpf(rate) + mpmath.mpf(rate) * mpmath.e ** mpmath.mpf(u))
            assert float(sampled_loss(np.array([u]), rate)[0]) == pytest.approx(float(exact), rel=2e-15, abs=0)


# The kernels


def spline(width: float) -> tuple[Array, Array]:
    """The density of the sum of uniform variables on [0, width], at many points, by convolution."""
    size = 600
    box = np.ones(size) / size
    density = box
    for _ in range(FOLDS - 1):
        density = np.convolve(density, box)
    return (np.arange(density.size) + FOLDS / 2) * width / (FOLDS * size), density


@pytest.mark.parametrize("width", [1e-3, 0.1, 1.0, 3.0])
def test_the_kernels_bound_every_hinge_from_their_own_side(width: float) -> None:
    u, mass = spline(width)
    lift = float(mass @ np.exp(u))
    slope = np.gradient(mass, u)
    below = mass + (1 - 1 / lift) * slope
    shift = -math.log(lift)
    for hinge in np.exp(np.linspace(-width, 2 * width, 61)):
        exact = max(hinge - 1, 0.0)
        assert mass @ np.maximum(hinge - np.exp(u + shift), 0) >= exact - 1e-9 * width
        assert below @ np.maximum(hinge - np.exp(u), 0) <= exact + 2e-5 * width


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("width", [1e-3, 0.5])
def test_the_kernels_transforms_are_those_of_their_densities(above: bool, width: float) -> None:
    u, mass = spline(width)
    lift = float(mass @ np.exp(u))
    density, places = (mass, u - math.log(lift)) if above else (mass + (1 - 1 / lift) * np.gradient(mass, u), u)
    nodes = 2.0 + 1j * np.array([0.0, 3.0, 20.0]) / width
    expected = [density @ np.exp(-s * places) for s in nodes]
    values, errors = Kernel(width, above).on_line(nodes)
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert np.all(errors < 1e-12)
    assert math.exp(Kernel(width, above).log_at(2.0)) == pytest.approx(float(values[0].real), rel=1e-12)


def test_what_the_kernels_leave_out_is_less_than_their_bound() -> None:
    for above in (True, False):
        kernel = Kernel(0.2, above)
        t = np.linspace(300.0, 30_000.0, 400_000)
        values, _ = kernel.on_line(1.5 + 1j * t)
        rest = float(np.sum(np.abs(values) / t**2) * (t[1] - t[0]))
        assert rest <= math.exp(kernel.log_tail(1.5, 300.0))
