"""Groups among other groups, against plain sums: powers on a grid of levels, composed and convolved."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate
from scipy.special import log_ndtr, ndtr

from hush.accounting import ADD_REMOVE, Gaussian, Guarantees, Laplace, RandomisedResponse
from hush.accounting.among import beside
from hush.accounting.among.aims import Shares
from hush.accounting.among.parts import Part, Single
from hush.accounting.groups import Group
from hush.accounting.mechanisms import REPLACE_ONE, Mechanism
from hush.accounting.pairs.losses import Enclosed

Array = NDArray[np.float64]


def _laplace(mu: float, epsilons: Array) -> Array:
    return np.maximum(-np.expm1((epsilons - mu) / 2), 0.0)


def _sampled(noise: float, rate: float, epsilons: Array) -> Array:
    """One Gaussian step on a sample, the larger of both directions."""
    mu = 1 / noise

    def gaussian(at: Array) -> Array:
        return np.asarray(ndtr(mu / 2 - at / mu) - np.exp(at) * ndtr(-mu / 2 - at / mu))

    removed = rate * gaussian(np.log1p(np.expm1(epsilons) / rate))
    left = np.maximum(1 + np.expm1(-epsilons) / rate, 1e-300)
    added = rate * np.exp(epsilons) * left * gaussian(-np.log(left))
    return np.maximum(removed, np.where(left > 1e-290, added, 0.0))


def _group(delta: Callable[[Array], Array], furthest: float, size: int, least: float = 1e-14) -> tuple[Array, Array]:
    """Losses and P-masses of a group's pair, from lines that touch the single record's power."""
    places = furthest * np.linspace(0, 1, 1500) ** 1.5
    deltas = delta(places)
    slopes = np.append(np.exp(places), np.exp(-places))
    cuts = np.append(deltas, -np.expm1(-places) + np.exp(-places) * deltas)
    levels = np.concatenate(
        [np.geomspace(least, 0.3, 2400), np.linspace(0.3, 0.7, 200), 1 - np.geomspace(0.3, 1e-14, 1200)]
    )
    powers = levels
    for _ in range(size):
        powers = np.array([(cuts + slopes * level).min() for level in powers])
    p, q = np.diff(powers, prepend=0.0, append=1.0), np.diff(levels, prepend=0.0, append=1.0)
    kept = (p > 0) & (q > 0)
    return np.log(p[kept] / q[kept]), p[kept]


def _delta(pairs: list[tuple[Array, Array]], epsilon: float) -> float:
    (first, p), (second, q) = pairs
    return float(
        sum(
            mass * (q * -np.expm1(np.minimum(epsilon - loss - second, 0.0))).sum()
            for loss, mass in zip(first, p, strict=True)
        )
    )


CASES = [
    (Laplace(3.0), _laplace, (1 / 3.0,), 0.34, Gaussian(2.0).poisson(0.1), _sampled, (2.0, 0.1), 2.5, 3, 1.1),
    (Laplace(3.0), _laplace, (1 / 3.0,), 0.34, Gaussian(1.0).poisson(0.3), _sampled, (1.0, 0.3), 5.0, 2, 3.0),
    (
        Gaussian(4.0).poisson(0.5),
        _sampled,
        (4.0, 0.5),
        2.0,
        Gaussian(3.0).poisson(0.2),
        _sampled,
        (3.0, 0.2),
        2.0,
        5,
        2.5,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=["bounded", "one decides", "alike"])
def test_two_groups_against_sums_on_a_grid(case: tuple) -> None:  # type: ignore[type-arg]
    one, first, numbers, far, other, second, others, further, size, epsilon = case
    pairs = [
        _group(lambda at: first(*numbers, at), far, size),
        _group(lambda at: second(*others, at), further, size),
    ]
    both = one.group(size) + other.group(size)
    assert beside.fits(both)
    delta = _delta(pairs, epsilon)
    found = both.delta(epsilon)
    assert found.lower <= delta * (1 + 1e-3)
    assert delta * (1 - 1e-3) <= found.upper
    assert found.upper - found.lower < 0.05 * delta
    known = both.epsilon(delta)
    assert known.lower <= epsilon * (1 + 1e-4)
    assert epsilon * (1 - 1e-4) <= known.upper
    assert known.upper - known.lower <= 1e-3 * known.upper


def test_one_large_loss_decides() -> None:
    """Among losses of nearly nothing: delta lies far below what Chernoff's bound says."""
    size, epsilon = 8, 60.0
    pairs = [
        _group(lambda at: _sampled(0.32, 1.2e-6, at), 30.0, size, 1e-60),
        _group(lambda at: _sampled(0.5, 8e-7, at), 30.0, size, 1e-60),
    ]
    both = Gaussian(0.32).poisson(1.2e-6).group(size) + Gaussian(0.5).poisson(8e-7).group(size)
    delta = _delta(pairs, epsilon)
    found = both.delta(epsilon)
    assert found.lower <= delta * (1 + 1e-3)
    assert delta * (1 - 1e-3) <= found.upper <= 1.02 * found.lower
    known = both.epsilon(delta)
    assert known.lower <= epsilon * (1 + 1e-4)
    assert epsilon * (1 - 1e-4) <= known.upper
    assert known.upper - known.lower <= 1e-3 * known.upper


DEEP = [
    (Gaussian(5.91351).poisson(0.000584962) * 1776, 39, 4, Laplace(10.0) * 3, 2.3e-8),
    (Gaussian(4.0).poisson(2e-5) * 50, 60, 14, Gaussian(30.0) * 2, 1e-12),
    (Gaussian(5.5).poisson(2e-4) * 400, 90, 9, Gaussian(11.0) * 7, 1e-90),
]


@pytest.mark.parametrize(("inner", "size", "count", "other", "delta"), DEEP, ids=["bounded", "small", "deep"])
def test_large_groups_beside_others_stay_narrow(
    inner: Mechanism, size: int, count: int, other: Mechanism, delta: float
) -> None:
    both = inner.group(size) * count + other.group(size)
    found = both.epsilon(delta)
    assert 0 < found.upper - found.lower <= 1e-3 * found.upper < math.inf
    # what leaves groups out tells no more
    assert found.upper >= other.group(size).epsilon(delta).lower
    assert found.upper >= (inner.group(size) * count).epsilon(delta).lower


def test_a_group_beyond_the_limit_decides() -> None:
    far = (Gaussian(7.8).poisson(0.88) * 118_000).group(7) * 3 + (Laplace(25.0) * 2).group(7)
    found = far.epsilon(6e-12)
    assert (found.lower, found.upper) == (1e4, math.inf)
    plain = (Gaussian(0.63) * 12_000).group(23) * 9 + Laplace(0.148).group(23)
    found = plain.epsilon(3e-11)
    assert (found.lower, found.upper) == (1e4, math.inf)


def test_what_leaks_is_told_where_nothing_else_is_left() -> None:
    """k records of an (epsilon, delta) promise leak delta (e^{k epsilon} - 1)/(e^epsilon - 1), others nothing."""
    leaking, other = Guarantees.of(0.5, 1e-7), Gaussian(2.0).poisson(0.01) * 10
    both = leaking.group(3) * 2 + other.group(3)
    leak = 1e-7 * math.expm1(1.5) / math.expm1(0.5)
    truth = -math.expm1(2 * math.log1p(-leak))
    found = both.delta(9000.0)
    assert found.lower <= truth <= found.upper <= 1.001 * found.lower
    far = both.epsilon(0.5 * truth)
    assert (far.lower, far.upper) == (1e4, math.inf)


def test_a_group_that_tells_next_to_nothing_changes_nothing() -> None:
    """Its delta(0) is below all that counts; the other group is one plain release of 7 sqrt(323)/2.3 in closed form."""
    little = Gaussian(63.469, REPLACE_ONE).uniform(21, of=3_924_836) * 13
    both = little.group(7) + (Gaussian(2.33576, REPLACE_ONE) * 323).group(7)
    mu, epsilon = 7 * math.sqrt(323) / 2.33576, 1620.0
    truth = float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))
    found = both.delta(epsilon)
    assert found.lower <= truth * (1 + 1e-3)
    assert truth * (1 - 1e-9) <= found.upper <= truth * (1 + 1e-2)


def test_a_piece_across_the_diagonal_is_not_counted_twice() -> None:
    """The less revealing pair of two records had 1 + 9e-8 of mass, and delta a lower bound that much too high.

    Noise with a log-concave density hides two records as it hides one shift twice as large, and two answers agree with
    the truth, or cancel: so delta is a mean of the Gaussian's own.
    """
    response, laplace, gaussian, epsilon = 4.629827907520626, 6.16507490427236, 6.032843654568155, 3.400579258630502
    mu, shift = 2 / gaussian, 2 / laplace
    found = (Guarantees.of(response).group(2) + Laplace(laplace).group(2) + Gaussian(gaussian).group(2)).delta(epsilon)

    def alone(at: float) -> float:
        return float(ndtr(mu / 2 - at / mu) - math.exp(at) * ndtr(-mu / 2 - at / mu))

    def with_laplace(at: float) -> float:
        ends = alone(at - shift) / 2 + math.exp(-shift) / 2 * alone(at + shift)
        inside = integrate.quad(lambda x: math.exp(-x) / 2 * alone(at - shift + 2 * x), 0, shift, epsabs=1e-14)[0]
        return ends + inside

    same = 1 / (1 + math.exp(-response))
    other = same * math.exp(-2 * response)
    losses = ((2 * response, same), (0.0, 1 - same - other), (-2 * response, other))
    truth = sum(chance * with_laplace(epsilon - loss) for loss, chance in losses)
    assert found.lower <= truth * (1 + 1e-12)
    assert truth <= found.upper * (1 + 1e-12)


def test_delta_at_zero_where_all_points_of_a_curve_decide() -> None:
    """No other points were left to ask for, which had been an error; by exact sums over all outcomes 0.46789030255688.

    (Power curves are the concave hulls of both directions' corners, composed six times and multiplied out.)
    """
    coins = RandomisedResponse(0.38, ADD_REMOVE).poisson(0.0011).group(6)
    run = coins * 2 + Guarantees.of(0.21, 1e-4, ADD_REMOVE).group(6)
    found = run.delta(0.0)
    assert found.lower <= 0.467890302556878 <= found.upper
    assert found.width < 1e-3


def test_groups_that_tell_all_or_nothing_have_the_delta_of_what_they_tell() -> None:
    """An answer that is all but sure on a sample: one of six records is in it with 6 * 0.003, and twice at least once.

    Lattices had become finer and finer where no loss is left to be told apart, beyond what integers count.
    """
    run = RandomisedResponse(38.0, ADD_REMOVE).poisson(0.003).group(6) * 2
    found = run.delta(0.0)
    assert found.lower <= 1 - (1 - 6 * 0.003) ** 2 <= found.upper
    assert found.width < 1e-4
    beside_gaussians = RandomisedResponse(40.0, ADD_REMOVE).poisson(0.3).group(3) + Gaussian(133.0).group(3)
    assert beside_gaussians.delta(0.0).lower >= 0.9 - 1e-6


def test_groups_that_tell_next_to_nothing_beside_a_largest_loss() -> None:
    """Half of P has the largest loss of Laplace noise, 14/30 for 14 records: with two of them delta > 0 up to 28/30."""
    nothing = Gaussian(4.5).poisson(6e-9).group(14) * 11
    found = ((Laplace(30.0) * 2).group(14) + nothing).epsilon(8e-68)
    assert found.lower <= 28 / 30 + 1e-4  # what a sample at 6e-9 adds, 18 deviations out, is far less
    assert found.upper * (1 + 1e-12) >= 28 / 30
    assert found.upper - found.lower <= 1.1e-3 * found.upper


@pytest.mark.parametrize("beyond", [-1e-3, 1e-6, 1e-5])
def test_delta_is_told_on_a_cliff(beyond: float) -> None:
    """Beside a largest loss of 20 * 4 * 0.114336, whose chance is p: p times the others' delta at what is beyond it.

    Every other loss of that group is lower by twice 0.114336.  The samples' own delta comes from them alone.
    """
    samples = Gaussian(498.0, REPLACE_ONE).uniform(64, of=4862381).group(20) * 40
    coins = (RandomisedResponse(0.114336, REPLACE_ONE) * 4).group(20)
    top = 80 * 0.114336
    found = (samples + coins).delta(top + beyond)
    below = coins.delta(top - 1e-3)
    assert below.upper - below.lower < 1e-6 * below.upper
    chance = 0.5 * (below.lower + below.upper) / -math.expm1(-1e-3)
    if beyond > 0:
        alone = samples.delta(beyond)
        assert found.lower <= chance * alone.upper * (1 + 1e-5)
        assert chance * alone.lower * (1 - 1e-5) <= found.upper
    else:  # the samples hardly move that
        assert found.lower <= below.upper * (1 + 1e-2)
        assert below.lower * (1 - 1e-2) <= found.upper
    assert found.upper - found.lower < 0.3 * found.upper


def test_delta_next_to_one_where_every_loss_is_large() -> None:
    """Nine times a hundred steps with little noise: delta was anything from 0 to 1.

    Groups tell no less than one record, and removing that leaves delta(eps) >= P(L > eps + 30) (1 - e^-30), L the sum
    of 900 losses: P(L <= a) <= E[e^{-sL}] e^{sa}, with E[e^{-sL}] by quadrature.
    """
    noise, rate, steps, epsilon = 0.3, 0.9, 900, 3000.0
    run = (Gaussian(noise).poisson(rate) * 100).group(60) * 9 + Laplace(0.5).group(60)

    def moment(s: float) -> float:
        """E[e^{-sL}] of one loss log(P/Q) = log(1 - p + p e^{(x - 1/2)/noise^2}), Q the noise alone."""

        def weighed(x: float) -> float:
            ratio = 1 - rate + rate * math.exp((x - 0.5) / noise**2)
            density = math.exp(-0.5 * (x / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
            return density * ratio ** (1 - s)

        return integrate.quad(weighed, -4.0, 5.0, epsabs=1e-13, limit=400)[0]

    log_missed = min(steps * math.log(moment(s)) + s * (epsilon + 30) for s in np.linspace(0.05, 0.5, 10))
    assert log_missed < -15
    found = run.delta(epsilon)
    assert 0.999 <= found.lower <= 1 == found.upper


def test_a_group_that_is_worth_next_to_nothing_is_asked_all_the_same() -> None:
    """A share of 5e-324, the smallest number there is, times what a link has of it is 0: that had been an error."""
    group = (Gaussian(2.0).poisson(0.01) * 10).group(3)
    assert isinstance(group, Group)
    pair, _ = Part(Single(group), 1, -50.0).pair(Shares(np.array([1.0]), np.array([5e-324])), 0.1)
    assert isinstance(pair, Enclosed)
