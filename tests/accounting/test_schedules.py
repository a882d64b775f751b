"""Noise that moves: many kinds of steps that are much alike, where a few large losses decide."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import reference
from scipy import fft
from scipy.special import ndtr

from hush.accounting import Bounds, Gaussian, Mechanism, compose
from hush.accounting.contours import thinning
from hush.accounting.gaussian import closed, contour, decay, integrals, landing, rules, shifted, subsampled, transform
from hush.accounting.gaussian.composition import Composition
from hush.accounting.gaussian.sharpest import blurred
from hush.accounting.gaussian.strips import Edge, Part
from hush.accounting.gaussian.transform import Step
from hush.accounting.kinds import directions
from hush.accounting.pairs.points import Points, on_lines
from hush.accounting.tails import heavy

SAMPLED = [
    # noise at first, rate, steps of each kind, kinds, delta
    (2.0, 2.2e-4, 4, 33, 4e-11),
    (1.4, 0.02, 1, 8, 3e-13),
    (0.62, 9.5e-5, 2, 40, 2e-5),
    (2.3, 5.5e-4, 32, 20, 8e-37),
]


def schedule(noise: float, growth: float, rate: float, steps: int, kinds: int) -> Mechanism:
    return compose([(Gaussian(noise * growth**k).poisson(rate), steps) for k in range(kinds)])


@pytest.mark.parametrize(("noise", "rate", "steps", "kinds", "delta"), SAMPLED)
def test_many_kinds_next_to_each_other_lie_between_as_many_steps_of_the_first_and_of_the_last(
    noise: float, rate: float, steps: int, kinds: int, delta: float
) -> None:
    growth = 1 + 1e-10
    found = schedule(noise, growth, rate, steps, kinds).epsilon(delta)
    most, least = (
        (Gaussian(one).poisson(rate) * (steps * kinds)).epsilon(delta) for one in (noise, noise * growth ** (kinds - 1))
    )
    assert found.width <= 1e-6 * found.upper
    assert found.lower <= most.upper
    assert found.upper >= least.lower


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(2.3, 5.5e-4, 1472, 8e-37), (2.3, 5.5e-4, 800, 1e-45), (3.0, 1e-3, 1000, 1e-60), (2.3, 5.5e-4, 1472, 1e-50)],
)
def test_a_deep_delta_is_found_again_at_its_epsilon(noise: float, rate: float, steps: int, delta: float) -> None:
    run = Gaussian(noise).poisson(rate) * steps
    found = run.delta(run.epsilon(delta).upper)
    assert found.lower <= delta
    assert found.lower == pytest.approx(delta, rel=1e-3)
    assert found.upper == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(
    ("first", "last", "kinds", "rate", "steps", "delta"),
    [
        (0.62, 9.0, 10, 7.15e-6, 7972, 1.4e-90),  # [0.47, inf] after 9 s
        (0.54, 3.94, 4, 9.14e-5, 6, 9e-94),  # 2e-4 wide after 7 s
        (0.52, 2.26, 30, 7e-4, 210, 3e-43),
    ],
)
def test_kinds_far_apart_agree_with_paths_sorted_by_their_largest_loss(
    first: float, last: float, kinds: int, rate: float, steps: int, delta: float
) -> None:
    run = compose([(Gaussian(noise).poisson(rate), steps) for noise in np.geomspace(first, last, kinds).tolist()])
    found, log_delta = run.epsilon(delta), math.log(delta)
    assert found.width <= 1e-6 * found.upper
    binned = [heavy.epsilon(way, log_delta, 1e-4) for way in directions(run)]
    low, high = max(low for low, _ in binned), max(high for _, high in binned)
    assert low <= found.upper
    assert found.lower <= high
    assert high - low <= 2e-4 * high
    back = run.delta(found.lower)
    assert back.lower * (1 - 1e-9) <= math.exp(log_delta + 1e-3)
    assert back.upper >= delta * (1 - 1e-9)
    assert math.log(back.upper / back.lower) < 1e-5


def bracket(noises: list[float], rate: float, steps: int, epsilon: float, spacing: float, size: int) -> Bounds:
    """delta by laws on a grid: every loss rounded up or down, convolved by FFT, what is beyond the grid for sure."""
    grid = spacing * np.arange(-size // 4, size - size // 4)
    deltas = []
    for up in (0, 1):
        transform, left_out = np.ones(size // 2 + 1, dtype=complex), 0.0
        for noise in noises:
            inner = (np.expm1(grid) + rate) / rate
            x = noise * (np.log(np.maximum(inner, 1e-300)) + 0.5 / noise**2)
            below = (1 - rate) * ndtr(x) + rate * ndtr(x - 1 / noise)
            masses = np.diff(below)  # of losses between two points
            law = np.zeros(size)
            law[up : size - 1 + up] = masses
            transform *= fft.rfft(np.roll(law, -(size // 4))) ** steps
            left_out += steps * (1 - below[-1])
        total = np.maximum(np.roll(fft.irfft(transform, size), size // 4), 0.0)
        value = float((total * -np.expm1(np.minimum(epsilon - grid, 0.0))).sum())
        deltas.append(value + up * left_out)
    return Bounds(*deltas)


@pytest.mark.parametrize(
    ("noise", "last", "rate", "steps", "kinds", "delta"),
    [(0.62, 2.0, 9.5e-5, 2, 40, 2e-5), (0.8, 3.0, 1e-3, 1, 25, 1e-6)],
)
def test_a_wide_schedule_agrees_with_laws_on_a_grid(
    noise: float, last: float, rate: float, steps: int, kinds: int, delta: float
) -> None:
    growth = (last / noise) ** (1 / (kinds - 1))
    run = schedule(noise, growth, rate, steps, kinds)
    found = run.epsilon(delta)
    assert found.width <= 1e-6 * found.upper
    around = bracket([noise * growth**k for k in range(kinds)], rate, steps, found.upper, found.upper / 4000, 2**18)
    assert around.lower <= delta <= around.upper
    assert around.width < 0.2 * delta
    there = run.delta(found.upper)
    assert around.lower <= there.upper
    assert there.lower <= around.upper


def test_what_was_only_sought_with_a_few_kinds_is_no_bound_where_all_of_them_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noises = [0.5 if k in (17, 18) else 0.62 for k in range(40)]  # the few look past these two
    steps = [Step(9.5e-5 * (1 + 1e-7 * k), noise, 2) for k, noise in enumerate(noises)]
    monkeypatch.setattr(integrals, "_MOST_TERMS", 1_000_000)
    (low, high), _ = landing.epsilon(steps, 1, math.log(2e-5), 0.0217)
    around = bracket(noises, 9.5e-5, 2, 0.02, 5e-6, 2**18)
    assert around.lower > 2e-5  # so epsilon exceeds 0.02
    assert low <= 0.0223
    assert high >= 0.02


def test_a_few_stand_for_all_where_what_they_add_up_to_is_smooth() -> None:
    for size in (1, 2, 3, 5, 12, 13, 40, 97):
        few = thinning.standing(list(range(size)))
        assert len(few) <= 12
        for power in (0, 1, 2):
            assert sum(share * place**power for place, share in few) == pytest.approx(
                sum(k**power for k in range(size))
            )


@pytest.mark.parametrize("part", [Part(Step(0.01, 0.8, 1), Edge(4.0, 0.07)), Part(Step(1e-3, 1.5, 1), Edge(5.0, 0.12))])
def test_whatever_bend_or_strip_is_known_from_others_the_bounds_hold(part: Part) -> None:
    real, height = 3.0, 40.0

    def mean(power: complex) -> complex:
        """E[g^r; label] by mpmath."""
        rate, noise, edge = part.step.rate, part.step.noise, part.falls

        def integrand(x: mp.mpf) -> mp.mpc:
            ratio = 1 - rate + rate * mp.exp(x / noise - 0.5 / noise**2)
            return ratio ** mp.mpc(power) * mp.npdf(x) * mp.ncdf((edge.place - x) / edge.width)

        with mp.workdps(30):
            return complex(mp.quad(integrand, [k / 2 for k in range(-26, 15)]))

    size = math.log(abs(mean(complex(real, height))))
    best, chosen = decay.log_bound(part, real, height)
    assert decay.log_bound(part, real, height, {chosen})[0] == pytest.approx(best)
    for bend in [(1, 0), (2, 2), (3, 1), (4, 0), (99, 0)]:
        assert decay.log_bound(part, real, height, {bend})[0] >= max(size, best - 1e-12)
    for share in (0.1, 0.5, 1.0):
        assert decay.log_sharp_bound(part, real, height, {share})[0] >= size
    for strip in [None, (3, 12), (5, 15), (8, 14)]:
        rule = rules.rule(part, real, height - 5, height, -25.0, True, () if strip is None else {strip})
        off = abs(complex(1 + rule.excess(np.array([complex(real, height)]))[0]) - mean(complex(real, height)))
        assert off <= math.exp(rule.log_error) + float(rule.rounding(real, np.array([height]), True)[0])
        assert math.exp(rule.log_error) < 1e-9 or strip is not None


@pytest.mark.parametrize(
    ("rate", "noise", "direction", "c", "height"),
    [
        (2.5e-4, 1.62, contour.ADD, 692.0, 1624.0),  # sides of a wide strip once counted as if all grew on them
        (2.5e-4, 1.67, contour.ADD, 692.0, 1624.0),
        (0.02, 0.8, contour.ADD, 30.0, 400.0),
        (0.01, 1.1, contour.REMOVE, 9.0, 60.0),
        (0.3, 2.0, contour.REMOVE, 3.0, 25.0),
    ],
)
def test_nodes_of_a_line_are_as_good_as_their_strip_proves(
    rate: float, noise: float, direction: int, c: float, height: float
) -> None:
    """E[g^r] within the cut, in 40 digits, at several heights."""
    task = contour.problem((Step(rate, noise, 23),), 0.0, direction, -18.0, tilt=c)
    power, wanted = float(task.power(c)), -34.0
    fine, sides = shifted.fine_enough(task.grids[0], power, height, wanted, 0.0, 10_000)
    assert sides < math.exp(wanted)
    powers = np.asarray(task.power(c + 1j * height * np.array([0.0, 0.3, 1.0])), dtype=complex)
    found = contour._cut_excess(fine, powers)
    allowed = math.exp(wanted) + sides + transform.rounding(fine, power, np.abs(powers))
    with mp.workdps(40):
        p, sigma = mp.mpf(rate), mp.mpf(noise)
        ends = mp.linspace(mp.mpf(fine.left), mp.mpf(fine.right), 60)
        for k, r in enumerate(powers):

            def integrand(x: mp.mpf, r: complex = complex(r)) -> mp.mpc:
                g = 1 - p + p * mp.exp(x / sigma - 1 / (2 * sigma**2))
                return g ** mp.mpc(r) * mp.npdf(x)

            truth = mp.quad(integrand, ends) - 1
            assert abs(mp.mpc(found[k]) - truth) <= allowed[k]


@pytest.mark.parametrize(("rate", "noise", "count"), [(0.01, 0.6, 1), (0.2, 0.3, 1), (0.1, 0.5, 2), (1e-4, 1.0, 2)])
@pytest.mark.parametrize("direction", [contour.REMOVE, contour.ADD])
def test_a_gaussian_beside_the_steps_bounds_delta_from_above(
    rate: float, noise: float, count: int, direction: int
) -> None:
    """By closed form and by quadrature of two steps; and it is of use: a tenth of log delta too large at most."""
    composition = Composition((Step(rate, noise, count),))
    for share in (0.1, 0.5, 0.9):
        epsilon = share * composition.most_added
        if count == 1:
            truth = float(mp.log(reference.one_step(rate, noise, direction, mp.mpf(epsilon))))
        else:
            truth = float(mp.log(reference.two_steps(rate, noise, direction, epsilon, digits=24)[0]))
        bound = blurred(composition, direction, epsilon)
        assert bound >= truth - 1e-12
        assert bound == 0 or direction == contour.REMOVE or bound < truth + 0.1 * (1 - truth)


def test_the_add_direction_of_a_schedule_needs_no_labels() -> None:
    """Its plain line had infinite errors; labels told -17.8174 in 0.7 s."""
    steps = tuple(Step(2.5159e-4, noise, 23) for noise in np.geomspace(1.6164, 2.07487, 100).tolist())
    epsilon = np.array([0.0293862])
    task, c, _ = contour.solve_for_epsilon(steps, 0.0, contour.ADD, float(epsilon[0]))
    line = contour.line(task, c)
    assert line is not None
    lower, upper = line.log_delta(epsilon)
    assert lower[0] <= upper[0] <= lower[0] + 1e-6
    labelled, width = landing.sharpest(steps, contour.ADD, float(epsilon[0]), float(upper[0]), -12.0)
    assert labelled is not None
    assert width < 1e-3
    low, high = labelled.log_delta(epsilon)
    assert low[0] <= upper[0]
    assert lower[0] <= high[0]


def test_what_a_line_leaves_out_counts_however_far_out_it_is_asked() -> None:
    """It was capped at e^700 of the line's own scale: log delta of -8.7e7 at most, where one step alone has -5968.6."""
    steps = (Step(4.385338885467355e-09, 6.295612958762551, 1000),)
    task, c, _ = contour.solve_for_delta(steps, 0.0, contour.REMOVE, math.log(3.93e-61))
    line = contour.line(task, c)
    assert line is not None
    assert line.log_delta(np.array([0.136357249606692]))[1][0] > -5962


@pytest.mark.parametrize(("rate", "epsilon"), [(0.9, -180.0), (0.8987222565805062, -181.90066080823647)])
def test_a_step_at_an_epsilon_far_below_0_has_a_lower_and_an_upper_bound(rate: float, epsilon: float) -> None:
    """Margins that are a share of epsilon were negative there: the upper bound on log delta was -1.1e-15."""
    (low,), (high,) = closed.single_curve(Step(rate, 0.1, 1), contour.ADD)(np.array([epsilon]))
    with mp.workdps(120):
        mu, e = mp.mpf(10), mp.mpf(epsilon)
        # delta = 1 - e^eps + e^eps delta'(-eps), the other direction's being that of a sampled Gaussian in closed form
        inner = mp.log((mp.exp(-e) - 1 + mp.mpf(rate)) / mp.mpf(rate))
        other = mp.mpf(rate) * (mp.ncdf(mu / 2 - inner / mu) - mp.exp(inner) * mp.ncdf(-mu / 2 - inner / mu))
        truth = mp.log(1 - mp.exp(e) + mp.exp(e) * other)
        assert mp.mpf(float(low)) <= truth <= mp.mpf(float(high)) <= 0


def test_transforms_of_several_laws_at_once_are_their_own_at_any_tilt() -> None:
    """A shorter law was filled up with a point at 0, which is all that counts where all of its own lie far below."""
    laws = [
        Points(np.array([-1.0, 0.0, 1.0]), np.log([0.3, 0.3, 0.4])),
        Points(np.array([-5.0, -4.0]), np.log([0.5, 0.5])),
    ]
    values, errors, scales = on_lines(laws, 3e5, 0.3, 3)
    assert abs(scales[1] - (math.log(0.5) - 4 * 3e5)) < 1e-9 * 3e5
    assert np.all(np.abs(values[1] - np.exp(-4j * 0.3 * np.arange(3))) <= errors[1])


def test_the_direction_that_reveals_more_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of real runs that is nearly always the one in which a record is removed: so the other's curve is made larger."""
    own, composition = subsampled._epsilon, Composition((Step(0.01, 1.0, 100),))
    before = subsampled.epsilon(composition, math.log(1e-5))

    def larger(composition: Composition, direction: int, target: float) -> object:
        (low, high), curve = own(composition, direction, target)
        return ((2 * before[0], 2 * before[1]), None) if direction == contour.ADD else ((low, high), curve)

    monkeypatch.setattr(subsampled, "_epsilon", larger)
    monkeypatch.setattr(subsampled, "_is_below", lambda *_: False)
    assert subsampled.epsilon(composition, math.log(1e-5)) == (2 * before[0], 2 * before[1])
