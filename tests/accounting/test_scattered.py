"""Losses at points that share no lattice: against enumeration, an integral by mpmath, the kernels' inequalities."""

from __future__ import annotations

import itertools
import math
import time

import mpmath as mp
import numpy as np
import pytest
from busy import BUSY
from mpmath.calculus.quadrature import GaussLegendre
from scipy.special import log_ndtr, logsumexp, ndtr

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, Guarantees, Laplace, Mechanism, RandomisedResponse
from hush.accounting.contours.smoothing import Kernel
from hush.accounting.gaussian.closed import single_step_log_delta
from hush.accounting.gaussian.contour import REMOVE
from hush.accounting.gaussian.transform import Step
from hush.accounting.mixed import binned, scattered
from hush.accounting.pairs.losses import Array, GaussianPair, LaplacePair, Pair, Poisson, Uniform, randomised_response
from hush.accounting.pairs.points import sampled_loss

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
    assert time.process_time() - began < BUSY * 1.0
    assert bounds.width <= 1e-4 * bounds.upper
    assert 0 < bounds.lower <= bounds.upper <= run.largest_loss * (1 + 3e-15)  # rounded outwards
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


# Continuous losses among the others


def gaussian_delta(mu: float, epsilon: Array) -> Array:
    return np.asarray(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


@pytest.mark.parametrize("kind", ["poisson", "reversed", "uniform"])
@pytest.mark.parametrize(
    ("mu", "rate", "plain", "coin"),
    [(1.0, 0.1, 0.5, 0.3), (3.0, 1e-3, 0.2, 0.07), (0.05, 0.5, 0.02, 1e-3), (8.0, 1e-6, 0.1, 1.0)],
)
def test_a_sampled_gaussian_beside_a_coin_and_a_plain_one_agrees_with_one_integral(
    kind: str, mu: float, rate: float, plain: float, coin: float
) -> None:
    steps: list[tuple[Pair, int]] = [
        (on_sample(kind, GaussianPair(mu), rate), 1),
        (GaussianPair(plain), 1),
        (randomised_response(coin), 1),
    ]
    start = mu / 2 if kind == "uniform" else -10.0  # C_p takes the half with losses above 0
    ends = np.linspace(start, mu + 10, 401)
    places, weights = np.polynomial.legendre.leggauss(20)
    x = (ends[:-1, None] + (ends[1] - ends[0]) * (places + 1) / 2).ravel()
    weight = np.tile(weights * (ends[1] - ends[0]) / 2, 400)
    q = weight * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    loss = np.log1p(rate * np.expm1(mu * x - mu**2 / 2))
    p = q * np.exp(loss)

    def rest(epsilon: Array) -> Array:
        heads = 1 / (1 + math.exp(-coin))
        return heads * gaussian_delta(plain, epsilon - coin) + (1 - heads) * gaussian_delta(plain, epsilon + coin)

    def delta(epsilon: float) -> float:
        if kind == "reversed":
            return float(q @ rest(epsilon + loss))
        total = float(p @ rest(epsilon - loss))
        if kind == "uniform":
            total += float(q @ rest(epsilon + loss))
            total += (1 - float(p.sum() + q.sum())) * float(rest(np.array([epsilon]))[0])
        return total

    for log_delta in (-2.5, -5.0, -9.0, -14.0):
        low, high = scattered.epsilon(steps, log_delta, 9e-5)
        assert high - low <= 1e-4 * high
        assert low == 0 or delta(low) >= math.exp(log_delta) * (1 - 1e-8)
        assert delta(high) <= math.exp(log_delta) * (1 + 1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_many_points_in_bins_agree_with_enumeration(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises as if they were continuous, each seen through its bins only."""
    monkeypatch.setattr(scattered, "_FEW", 1)
    monkeypatch.setattr(binned, "_MANY", 1)
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
        assert math.isinf(high) or enumerated_delta(listed, high) <= math.exp(log_delta) * (1 + 1e-9)


MIXED = {
    "coins and sampled Gaussians": (
        Gaussian(3.91, REPLACE_ONE).poisson(1.5e-8) * 224339
        + Guarantees.of(8.2e-4, 1e-9, REPLACE_ONE) * 2916
        + RandomisedResponse(3.1e-3) * 4477241,
        1.6e-4,
        1e-4,
    ),
    "deep, sampled Gaussians and Laplace": (
        Gaussian(0.364).poisson(0.0072) * 55 + Gaussian(0.42).poisson(0.0025) * 108 + Laplace(0.86).poisson(0.21) * 47,
        1e-71,
        1e-3,
    ),
    "few large losses, deep": (Gaussian(0.3, REPLACE_ONE).poisson(4e-9) * 3, 1e-48, 1e-4),
    "uniform batches and promises": (
        Gaussian(2.37).uniform(15, of=10000) * 30 + Laplace(0.65, REPLACE_ONE).poisson(0.2) * 387,
        8e-55,
        1e-4,
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_compositions_have_a_narrow_answer_in_a_second(name: str) -> None:
    run, delta, width = MIXED[name]
    began = time.process_time()
    bounds = run.epsilon(delta)
    assert time.process_time() - began < BUSY * 1.0
    assert 0 < bounds.width <= width * bounds.upper


# The kernels


def averaged(deviation: float, u: Array) -> Array:
    """E[(1 - e^{-(u - U)})_+] for the Gaussian U with E[e^U] = 1, in closed form."""
    at = u / deviation
    return ndtr(at + deviation / 2) - np.exp(-u) * ndtr(at - deviation / 2)


@pytest.mark.parametrize("deviation", [1e-3, 0.1, 1.0, 3.0])
def test_the_kernels_bound_the_payoff_from_their_own_side(deviation: float) -> None:
    u = deviation * np.linspace(-9, 9, 4001)
    payoff = np.maximum(-np.expm1(-u), 0.0)
    density = np.exp(-0.5 * (u / deviation + deviation / 2) ** 2) / (deviation * math.sqrt(2 * math.pi))
    taken = Kernel(deviation, above=False)._taken
    rounding = 1e-15 * (1 + np.exp(-u))
    assert np.all(averaged(deviation, u) >= payoff - rounding)
    assert np.all(averaged(deviation, u) - taken * density <= payoff + rounding)
    middle = u.size // 2  # where they touch, so that no smaller tau would do
    assert averaged(deviation, u)[middle] == pytest.approx(taken * density[middle], rel=1e-9)


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("deviation", [1e-3, 0.5])
def test_the_kernels_transforms_are_those_of_what_they_average(above: bool, deviation: float) -> None:
    """The transform of (1 - e^{-u})_+ is 1/(s (s+1)); that of the average is the kernel's times as much."""
    kernel = Kernel(deviation, above)
    last = 12 * deviation  # from there on it is 1 - e^{-u}
    places, weights = np.polynomial.legendre.leggauss(20)
    u = (np.arange(-120, 120)[:, None] / 10 + (places + 1) / 20).ravel() * deviation
    density = np.exp(-0.5 * (u / deviation + deviation / 2) ** 2) / (deviation * math.sqrt(2 * math.pi))
    payoff = averaged(deviation, u) - (0.0 if above else kernel._taken * density)
    for s in 2.0 + 1j * np.array([0.0, 0.5, 3.0]) / deviation:
        expected = np.tile(weights * deviation / 20, 240) @ (np.exp(-s * u) * payoff)
        expected += np.exp(-s * last) / s - np.exp(-(s + 1) * last) / (s + 1)
        values, errors = kernel.on_line(np.array([s]))
        found = values[0] / (s * (s + 1))
        assert abs(expected - found) <= 1e-9 * abs(1 / (s * (s + 1)))
        assert errors[0] < 1e-12
    at = kernel.on_line(np.array([0.5 + 0j]))[0][0].real
    assert math.exp(kernel.log_at(0.5)) == pytest.approx(float(at), rel=1e-12)


def test_what_the_kernels_leave_out_is_less_than_their_bound() -> None:
    for above in (True, False):
        kernel = Kernel(0.02, above)
        t = np.linspace(200.0, 2000.0, 400_000)
        values, _ = kernel.on_line(1.5 + 1j * t)
        rest = float(np.sum(np.abs(values) / t**2) * (t[1] - t[0]))
        assert 0.3 * math.exp(kernel.log_tail(1.5, 200.0)) <= rest <= math.exp(kernel.log_tail(1.5, 200.0))


def test_a_plateau_of_promises_on_a_sample_is_told_at_once() -> None:
    promised = Guarantees(((10, 1e-10), (100, 1e-30)), neighbours=REPLACE_ONE).uniform(1, of=100)
    began = time.process_time()
    bounds = promised.epsilon(1e-12)  # exactly what the first promise leaves, on the sample
    assert time.process_time() - began < BUSY * 0.2
    assert bounds.lower <= math.log1p(0.01 * math.expm1(10)) <= bounds.upper <= 95.4


def laplace_delta(noise: float, rate: float, steps: int, epsilon: float, reverse: bool) -> mp.mpf:
    """A Poisson sample's by a contour integral in 40 digits, the inner loss by Gauss's rule and two atoms."""
    with mp.workdps(40):
        mu, p = 1 / mp.mpf(noise), mp.mpf(rate)
        nodes = [(mp.mpf(x), mp.mpf(w)) for x, w in GaussLegendre(mp.mp).calc_nodes(3, 160)]
        q = [(mu * x, w * mu * mp.exp(-mu * (1 + x) / 2) / 4) for x, w in nodes]
        q += [(mu, mp.exp(-mu) / 2), (-mu, mp.mpf(1) / 2)]
        assert abs(sum(mass for _, mass in q) - 1) < mp.mpf(10) ** -30
        losses = [(mp.log1p(p * mp.expm1(u)), mass) for u, mass in q]

        def integrand(s: mp.mpc) -> mp.mpc:
            order = -s if reverse else 1 + s
            log = steps * mp.log(sum(mass * mp.exp(order * loss) for loss, mass in losses))
            return mp.exp(log - s * epsilon) / (s * (s + 1))

        orders = [mp.mpf(2) ** k / (p * mu * mp.sqrt(steps)) for k in range(-12, 13)]
        c = min(orders, key=lambda order: mp.re(integrand(order)))
        total, k, step = integrand(c) / 2, 1, c / 12
        while abs(value := integrand(mp.mpc(c, k * step))) > abs(total) * mp.mpf(10) ** -14:
            total, k = total + mp.re(value), k + 1
        return mp.re(total) * step / mp.pi


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (1964.0, 5.82e-8, 74_499_025, 9.17e-8),  # losses of 3e-11: masses good to 1e-16 gave [0, 2.9e-7]
        (836.0, 1.62e-7, 480_546_734, 2.75e-26),
        (72.7, 1.2e-9, 12_521, 1.37e-11),
        (3.0, 1e-5, 1000, 1e-8),
    ],
)
def test_samples_of_laplace_keep_the_digits_of_tiny_losses(noise: float, rate: float, steps: int, delta: float) -> None:
    bounds = (Laplace(noise).poisson(rate) * steps).epsilon(delta)
    assert bounds.width <= 1e-3 * bounds.upper
    above, below = (
        max(laplace_delta(noise, rate, steps, epsilon, reverse) for reverse in (False, True))
        for epsilon in (bounds.lower, bounds.upper)
    )
    assert above >= delta >= below


def test_curves_of_losses_too_fine_for_a_lattice_are_narrow() -> None:
    """2e7 losses of 3e-5 each: a lattice as fine as that has too many points, and a coarser one was off by 0.017."""
    noise, rate, steps = 23.1, 6.117e-4, 15_850_235
    run = Laplace(noise).poisson(rate) * steps
    curve = run.tradeoff()
    assert np.max(curve.upper - curve.lower) <= 1e-3
    for epsilon in (0.0, 0.07, 0.2):
        delta = max(laplace_delta(noise, rate, steps, epsilon, reverse) for reverse in (False, True))
        # 1 - delta - e^epsilon alpha touches the curve, which lies above it everywhere else
        short = curve.upper + math.exp(epsilon) * curve.alpha - (1 - float(delta))
        assert -1e-12 <= short.min() <= 1e-3


def _one_sampled_gaussian(rate: float, noise: float, epsilons: np.ndarray) -> np.ndarray:
    """log delta of one step at any epsilon; below log(1 - p) no loss lies, and delta is 1 - e^eps."""
    known = np.maximum(epsilons, 0.999 * math.log1p(-rate))
    below = np.log(-np.expm1(np.minimum(epsilons, -1e-9)))
    return np.where(epsilons < known, below, single_step_log_delta(Step(rate, noise, 1), REMOVE, known))


@pytest.mark.parametrize("epsilon", [11.19, 11.21])
def test_close_to_a_largest_loss_epsilon_has_its_digits(epsilon: float) -> None:
    """Coins that all fall one way beside two sampled Gaussians: a sum over coins of an integral over one Gaussian."""
    rate, noise, sampled, coin, few, all_coins = 0.0213, 15.0, 0.00098, 0.056, 40, 67
    truth = 1 / (1 + math.exp(-coin))
    up, down = (1 - sampled) * (1 - truth) + sampled * truth, (1 - sampled) * truth + sampled * (1 - truth)
    x, step = np.linspace(-40, 40, 40_001, retstep=True)
    log_g = np.log1p(rate * np.expm1(x / noise - 0.5 / noise**2))
    log_density = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + log_g + math.log(step)
    terms = []
    for lies in range(few + 1):
        losses = (few - lies) * math.log(up / (1 - truth)) + lies * math.log(down / truth)
        rest = epsilon - all_coins * 0.1665 - losses  # one more coin fallen the other way takes away too much
        ways = math.log(math.comb(few, lies)) + (few - lies) * math.log(up) + lies * math.log(down)
        terms.append(ways + logsumexp(log_density + _one_sampled_gaussian(rate, noise, rest - log_g)))
    log_delta = logsumexp(terms) - all_coins * math.log1p(math.exp(-0.1665))
    run = Gaussian(noise).poisson(rate) * 2 + RandomisedResponse(coin, ADD_REMOVE).poisson(sampled) * few
    low, high = (run + RandomisedResponse(0.1665, ADD_REMOVE) * all_coins).epsilon(math.exp(log_delta))
    assert low <= epsilon <= high
    assert high - low <= 1e-3 * high
