"""Compositions with heavy tails: projected norms on samples, against the closed form of their loss's density.

The inner loss of a projected release is generalised hyperbolic: given z it is N(z^2/2, z^2) under P, and the mean over
z is a Bessel function (docs/certificate.md).  The references below use that; hush itself sums over z.
"""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
from busy import BUSY
from projected import Kind, composed
from scipy.special import kve

from hush.accounting import Gaussian, Laplace, Projected, RandomisedResponse
from hush.accounting.answers import log_delta_curve
from hush.accounting.curves import spread_epsilons
from hush.accounting.kinds import directions
from hush.accounting.mechanisms import ADD_REMOVE, REPLACE_ONE
from hush.accounting.pairs.losses import GaussianPair, Poisson
from hush.accounting.pairs.projection import ProjectedPair
from hush.accounting.tails import binning, heavy
from hush.accounting.tails.cells import rough_look


def _log_density(u: np.ndarray, sigma: float, r: int, sign: int) -> np.ndarray:
    """log density of the inner loss under P (sign +1) or Q (-1), but for a constant."""
    nu, x = (r + 1) / 2, 0.5 * np.sqrt(u * u + r / sigma**2)
    return np.asarray(-nu * np.log(x) + np.log(kve(nu, x)) - x + sign * u / 2)


def _loss_law(kind: Kind, direction: int, upper: float, step: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses, P-masses on a fine grid, and the P-mass beyond; what is far below 0 sits at the lowest loss."""
    sigma, r, rate, _ = kind
    u = step * np.arange(-round(45 / step), round(upper / step) + 1)
    far = (u[-1] + step / 2) * np.exp(1e-3 * (np.arange(10_000) + 0.5))
    whole = np.concatenate([u, far])
    logs = _log_density(whole, sigma, r, +1)
    gaps = np.concatenate([np.full(u.size, step), 1e-3 * far])
    total = float((np.exp(logs - logs.max()) * gaps).sum())
    p = np.exp(logs - logs.max()) * gaps / total
    q = np.exp(_log_density(u, sigma, r, -1) - logs.max()) * step / total
    beyond, below = float(p[u.size :].sum()), max(0.0, 1 - float(q.sum()))
    losses = np.logaddexp(math.log1p(-rate), math.log(rate) + u)
    if direction > 0:
        masses = np.append((1 - rate) * q + rate * p[: u.size], (1 - rate) * below)
        return np.append(losses, math.log1p(-rate)), masses, rate * beyond
    return -np.append(losses, math.log1p(-rate)), np.append(q, below), 0.0


def _fourier_delta(kinds: list[Kind], direction: int, epsilon: float, upper: float, step: float = 0.02) -> float:
    """delta by a plain Fourier sum over the closed-form densities: good to about 1e-13 T absolutely.

    Not with three projections and the like: three losses near `upper` reach the first alias then.
    """
    laws = [(*_loss_law(kind, direction, upper, step), kind[3]) for kind in kinds]
    period, count = 2 * upper + 6 * epsilon + 20, 4096
    c, spacing = 32 / period, 2 * math.pi / period
    s = c + 1j * spacing * np.arange(count)
    logs = np.zeros(count, dtype=complex)
    for losses, masses, _, steps in laws:
        turns = np.exp(1j * spacing * np.multiply.outer(losses, np.arange(64)))
        leaps = np.exp(np.multiply.outer(c + 64j * spacing * np.arange(64), losses)) * masses
        logs += steps * np.log((leaps @ turns).ravel())
    terms = np.exp(logs - s * epsilon) / (s * (s + 1))
    assert np.abs(terms[-20:]).max() < 1e-13
    total = float(terms.real.sum() - 0.5 * terms[0].real)
    beyond = -math.expm1(sum(steps * math.log1p(-mass) for _, _, mass, steps in laws))
    return spacing / math.pi * total + beyond


@pytest.mark.parametrize("direction", [+1, -1])
@pytest.mark.parametrize(
    ("kinds", "delta"),
    [
        ([(3.942, 124, 0.00402, 903), (3.455, 10, 0.0171, 1330)], 1.2e-4),
        ([(2.335, 50, 0.0366, 31)], 4.3e-7),
        ([(1.3, 10, 0.02, 200)], 1e-5),
        ([(2.0, 6, 0.3, 60)], 1e-6),
    ],
)
def test_epsilon_agrees_with_a_fourier_sum_over_the_density_in_closed_form(
    kinds: list[Kind], delta: float, direction: int
) -> None:
    steps = directions(composed(kinds))[0 if direction > 0 else 1]
    low, high = heavy.epsilon(steps, math.log(delta), 9e-5)
    assert high - low <= 1e-4 * high
    upper = high + 30
    assert _fourier_delta(kinds, direction, low, upper) >= delta * (1 - 1e-6)
    assert _fourier_delta(kinds, direction, high, upper) <= delta * (1 + 1e-6)


@pytest.mark.parametrize(
    ("first", "second", "delta"),
    [
        ((3.0, 16, 0.05, 1), (4.0, 20, 0.1, 1), 1e-12),
        ((2.5, 30, 0.01, 1), (2.5, 30, 0.01, 1), 1e-18),
        ((6.0, 40, 0.2, 1), (6.0, 40, 0.2, 1), 1e-30),
    ],
)
def test_two_steps_agree_with_a_sum_of_positive_terms_at_any_depth(first: Kind, second: Kind, delta: float) -> None:
    bounds = composed([first, second]).epsilon(delta)
    assert bounds.width <= 1e-4 * bounds.upper
    laws = [_loss_law(kind, +1, bounds.upper + 12, 0.01) for kind in (first, second)]
    (losses, masses, beyond), (others, other_masses, other_beyond) = laws
    for epsilon, sign in ((bounds.lower, 1), (bounds.upper, -1)):
        exact = beyond + other_beyond
        for part in np.array_split(np.arange(losses.size), 20):
            spared = np.maximum(-np.expm1(epsilon - np.add.outer(losses[part], others)), 0.0)
            exact += float(masses[part] @ (spared @ other_masses))
        assert sign * (exact / delta - 1) >= -2e-5


def _bracket_delta(kind: Kind, epsilon: float, ends: list[float], orders: list[float], step: float) -> float:
    """delta in the remove direction at any depth: paths by their largest loss, a Fourier sum for each kind of them.

    The losses are those of a fine grid over the density in closed form.  They are blurred by a Gaussian of 2e-3 of
    1/order, which changes delta by a few 1e-6 of itself; of the brackets `ends`, those with no order are left out.
    """
    _, _, rate, steps = kind
    losses, masses, beyond = _loss_law(kind, +1, ends[-1] - math.log(rate) + 1, step)
    found = beyond * steps
    for low, high, c in zip([-np.inf, *ends], ends, orders, strict=False):
        if c == 0:
            continue
        blur, spacing = 2e-3 / c, 2 * math.pi / (2 * high + 4 * epsilon + 60 / c)
        count = math.ceil(6.5 / blur / spacing / 256)
        turn = np.exp(1j * spacing * np.multiply.outer(losses, np.arange(256)))
        leap = np.exp(256j * spacing * np.multiply.outer(np.arange(count), losses))
        tilted = masses * np.exp(c * np.minimum(losses, high))
        small, large = losses <= low, (losses > low) & (losses <= high)
        if low == -np.inf:
            logs = steps * np.log(((leap[:, large] * tilted[large]) @ turn[large]).ravel())
        else:
            base, jump = (((leap[:, part] * tilted[part]) @ turn[part]).ravel() for part in (small, large))
            ratio = jump / base  # NumPy's log1p forgets the real part of tiny numbers
            rise = steps * np.where(np.abs(ratio) < 1e-6, ratio - ratio**2 / 2, np.log1p(ratio))
            logs = steps * np.log(base) + np.log(np.expm1(rise))
        s = c + 1j * spacing * np.arange(logs.size)
        terms = np.exp(logs - s * epsilon + 0.5 * blur**2 * s * (s + 1)) / (s * (s + 1))
        found += spacing / math.pi * float(terms.real.sum() - 0.5 * terms[0].real)
    return found


SHARES_MISTAKEN: list[tuple[Kind, float, list[float], list[float], float]] = [
    # two losses of a fifth of epsilon, taken for a hundredth of what they are
    ((0.587341, 207, 0.000114438, 2568), 4.36e-6, [0.05, 0.3, 1.8, 18.0], [0.0, 27.0, 4.6, 1.3], 0.02),
    # beside a jump that is rarer than 1e-16 small losses had no bins
    ((2.25846, 231, 5.14004e-5, 8284), 2.27e-36, [0.015, 0.045, 0.28, 2.0], [0.0, 854.0, 89.0, 0.0], 0.02),
    # steep lines, wide bins
    ((0.8448, 410, 0.00293, 313), 1.8e-90, [5.6, 35.0], [7.09, 6.67], 0.1),
]


@pytest.mark.parametrize(("kind", "delta", "ends", "orders", "step"), SHARES_MISTAKEN)
def test_jumps_of_several_sizes_agree_with_fourier_sums_at_any_depth(
    kind: Kind, delta: float, ends: list[float], orders: list[float], step: float
) -> None:
    bounds = composed([kind]).epsilon(delta)
    assert bounds.width <= 1e-4 * bounds.upper
    assert _bracket_delta(kind, bounds.lower, ends, orders, step) >= delta * (1 - 4e-6)
    assert _bracket_delta(kind, bounds.upper, ends, orders, step) <= delta * (1 + 4e-6)
    there = composed([kind]).delta(bounds.upper)
    assert there.lower <= delta * (1 + 1e-9)
    assert there.upper <= there.lower * (1 + 2e-3 * max(1.0, -math.log(delta) / 10))


@pytest.mark.parametrize("kind", [(1.3, 10, 0.02, 200), (2.335, 50, 0.0366, 31), (0.8, 12, 0.3, 40)])
def test_whole_curves_agree_with_fourier_sums(kind: Kind) -> None:
    run = composed([kind])
    epsilons = spread_epsilons(run, 400, 1e-9)
    lower, upper = log_delta_curve(run, epsilons, 1e-6)
    seen = upper > math.log(1e-6)
    assert np.all(np.exp(upper) - np.exp(lower) <= 4e-4)
    for k in [0, *np.flatnonzero(seen)[1 :: np.count_nonzero(seen) // 12]]:
        exact = max(_fourier_delta([kind], way, epsilons[k], epsilons[k] + 40) for way in (+1, -1))
        assert math.exp(lower[k]) <= exact * (1 + 1e-6)
        assert math.exp(upper[k]) >= exact * (1 - 1e-6)


def test_a_line_says_the_same_of_many_epsilons_as_of_each() -> None:
    rough = rough_look(directions(composed([(2.0, 6, 0.3, 60)]))[0])
    curve = heavy.curve_at(rough, 5.0, rough.log_delta(5.0), 1e-4)
    epsilons = np.linspace(3.0, 7.0, 50)
    lower, upper = curve(epsilons)
    alone = [curve(epsilons[k : k + 1]) for k in range(50)]
    np.testing.assert_allclose(lower, [low[0] for low, _ in alone], rtol=0, atol=1e-11)
    np.testing.assert_allclose(upper, [high[0] for _, high in alone], rtol=0, atol=1e-11)


WIDE_BEFORE: list[tuple[list[Kind], float]] = [
    ([(4.6, 18, 0.01, 2209)], 2e-13),
    ([(8.04, 16, 0.0126, 899)], 2.6e-14),
    ([(6.2, 10, 0.0185, 415_569)], 1.3e-6),
    ([(8.5, 5, 3e-4, 11)], 9e-9),
    ([(12.5, 8, 0.03, 667_960)], 5e-11),
    ([(1.15, 374, 2e-4, 3031)], 6e-14),
    ([(12.6, 14, 1.0, 2977)], 7e-20),
    ([(0.66, 89, 1e-6, 368)], 7e-20),
    ([(3.54, 8, 0.2, 119_450)], 1e-10),
    ([(6.4, 8, 2.15e-4, 10)], 1.6e-5),
    ([(0.54, 284, 0.073, 1), (11.5, 742, 2.95e-6, 674_656)], 4.6e-7),
    ([(1.02, 12, 8.6e-6, 58_979), (18.1, 16, 7.4e-6, 59), (16.4, 83, 1.7e-3, 1)], 1.8e-18),
]


@pytest.mark.parametrize(("kinds", "delta"), WIDE_BEFORE)
def test_projections_on_samples_are_narrow_within_a_second(kinds: list[Kind], delta: float) -> None:
    run = composed(kinds)
    start = time.process_time()
    bounds = run.epsilon(delta)
    assert time.process_time() - start < BUSY * 1.0
    assert bounds.width <= 1e-4 * bounds.upper


@pytest.mark.parametrize(
    ("kind", "epsilon"),
    [((0.365188, 97, 0.00452898, 36), 9726.0), ((0.365188, 97, 0.00452898, 1), 9726.0), ((0.5, 200, 1.0, 3), 4000.0)],
)
def test_tails_too_small_for_their_digits_are_counted(kind: Kind, epsilon: float) -> None:
    """delta is at least what one step has beyond epsilon + 2: 1e-149 and less, of which e^-367 and 0 were said."""
    sigma, r, rate, _ = kind
    z = mpmath.sqrt(2 * (epsilon + 2 - math.log(rate)))
    rare = mpmath.gammainc(mpmath.mpf(r) / 2, 0, r / (sigma * z) ** 2 / 2, regularized=True)
    least = mpmath.log(0.5 * rate * (1 - mpmath.exp(-2)) * rare)
    bounds = composed([kind]).delta(epsilon)
    assert bounds.upper > 0
    assert math.log(bounds.upper) >= least


def test_a_group_is_beyond_where_one_step_alone_shows_it() -> None:
    """The power of 39 records in one of 36 steps, by tails of the density in closed form, composed 39 times."""
    kind, size, delta = (0.365188, 97, 0.00452898, 36), 39, 4.57e-30
    sigma, r, rate, _ = kind
    u = np.append(np.arange(-40.0, 40.0, 0.01), 40 * np.exp(1e-3 * np.arange(6500)))
    gaps = np.log(np.gradient(u))
    p, q = (_log_density(u, sigma, r, sign) + gaps for sign in (+1, -1))
    p, q = (np.logaddexp.accumulate(row[::-1])[::-1] - np.logaddexp.reduce(p) for row in (p, q))
    power = np.logaddexp(math.log(rate) + p, math.log1p(-rate) + q)
    level = -1e4 + math.log(delta)
    for _ in range(size):
        level = float(np.interp(level, q[::-1], power[::-1]))
    assert level > math.log(2 * delta)
    assert (composed([kind]).group(size)).epsilon(delta).lower == 1e4


def test_a_poor_first_guess_does_not_end_the_search() -> None:
    """epsilon was taken for 1e-12 at first, for which 2% of it are enough."""
    bounds = composed([(6.88579, 2, 0.000226373, 31_980)]).epsilon(0.0128)
    assert bounds.width <= 1e-4 * bounds.upper


def test_one_projection_is_beyond_or_nothing_at_once() -> None:
    start = time.process_time()
    assert (Projected(0.34, 2).poisson(0.1) * 395).epsilon(1e-20).lower == 1e4
    assert (Projected(0.74, 464).poisson(1.6e-6) * 16_732).epsilon(2.5e-4).upper == 0.0
    assert time.process_time() - start < BUSY * 1.0


def test_projections_beside_other_steps_are_between_fewer_and_more_of_them() -> None:
    projected = Projected(2.0, 20).poisson(0.01) * 200
    mixed = projected + Gaussian(5.0) * 3 + Gaussian(1.5).poisson(0.02) * 100 + Laplace(20.0)
    bounds, alone = mixed.epsilon(1e-8), projected.epsilon(1e-8)
    assert bounds.width <= 1e-4 * bounds.upper
    assert alone.upper < bounds.lower < alone.upper + 3


@pytest.mark.parametrize(("sigma", "r"), [(0.3, 1), (1.3, 4), (0.9, 30), (5.0, 300), (0.1, 40)])
def test_the_sum_over_z_is_the_density_in_closed_form_however_far_out(sigma: float, r: int) -> None:
    pair = ProjectedPair(sigma, r)
    places = np.array([0.0, 0.7, 5.0, 60.0, 900.0])
    z, weight = pair.nodes(900.0)
    sums = np.array([float((weight / z * np.exp(-0.5 * (v / z - z / 2) ** 2)).sum()) for v in places])
    seen = sums > 1e-290
    sums, closed = sums[seen], _log_density(places[seen], sigma, r, +1)
    np.testing.assert_allclose(np.log(sums) - np.log(sums[0]), closed - closed[0], rtol=0, atol=2e-11)


def test_delta_is_narrow_at_one_epsilon_and_undoes_epsilon() -> None:
    run = composed([(4.6, 18, 0.01, 2209)])
    began = time.process_time()
    low, high = run.delta(1.0191), run.delta(1.0192)
    assert time.process_time() - began < BUSY * 1.0
    assert all(bounds.width <= 3e-3 * bounds.upper for bounds in (low, high))
    assert high.lower <= 2e-13 <= low.upper


def test_the_lower_end_of_the_first_bin_keeps_its_mass():
    """It was dropped where nothing lies below: epsilon of a mixture was 19.988 where 20.268 is true."""
    edges = np.concatenate([[-1.0, -0.01], np.geomspace(1e-3, 60.0, 40)])
    less, more = binning.enclosing(Poisson(GaussianPair(1 / 2.185), 4e-4), edges)
    for law in (less, more):
        assert float(np.exp(law.logs).sum()) + law.infinite == pytest.approx(1.0, abs=1e-12)


def test_many_kinds_deep_down_are_as_narrow_as_promised() -> None:
    """Lines of tails are blunt here; averaged curves aren't, and are asked as well."""
    sampled = [(0.4, 0.0786), (1.83, 4.6e-5), (14.2, 0.0238), (17.4, 0.181), (18.6, 0.405), (4.52, 5.1e-4)]
    whole = [0.301, 0.322, 0.324, 12.2]
    noisy = [Laplace(0.124).poisson(7.4e-5), Laplace(8.04).poisson(2.5e-3), Laplace(0.106)]
    coins = [RandomisedResponse(likelier, ADD_REMOVE) for likelier in (1.586, 2.67)]
    run = sum([*(Gaussian(s).poisson(p) for s, p in sampled), *map(Gaussian, whole), *noisy, *coins])
    low, high = run.epsilon(9e-76)
    assert high - low <= 1e-3 * high
    assert run.delta(low * (1 - 1e-9)).upper >= 9e-76
    assert run.delta(high * (1 + 1e-9)).lower <= 9e-76


def test_bounds_sharper_than_can_be_had_are_as_sharp_as_can_be() -> None:
    """Asked for 3e-5 of log delta, a bracket had too many nodes for a line: 4.7 wide, where 1e-4 was had to 2e-3."""
    (steps,) = directions(Gaussian(0.62917, REPLACE_ONE).poisson(2.3969e-4) * 287)
    rough, at = rough_look(steps), np.array([10.79])
    sharp, enough = (heavy.curve_at(rough, 10.79, -70.8, tolerance)(at) for tolerance in (2.7e-5, 1e-4))
    assert sharp[1] - sharp[0] < 0.01
    assert sharp[0] <= enough[1]
    assert enough[0] <= sharp[1]
