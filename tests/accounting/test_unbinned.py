"""Samples of Gaussian and Laplace noise without bins: every bound against integrals with twenty digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from hush.accounting.grouping.makers import Binned
from hush.accounting.grouping.powers import of_lines
from hush.accounting.mixed import decaying, stretches, unbinned
from hush.accounting.mixed.scattered import Task
from hush.accounting.pairs.losses import (
    GaussianPair,
    LaplacePair,
    Pair,
    Poisson,
    Reversed,
    Uniform,
    randomised_response,
)

PAIRS: dict[str, Pair] = {
    "removed": Poisson(GaussianPair(0.7), 0.2),
    "added": Reversed(Poisson(GaussianPair(0.7), 0.2)),
    "replaced": Uniform(GaussianPair(1.5), 0.05),
    "rare": Uniform(GaussianPair(1.2), 1e-4),
    "laplace": Poisson(LaplacePair(1.3), 0.3),
    "laplace added": Reversed(Poisson(LaplacePair(1.3), 0.3)),
    "laplace replaced": Uniform(LaplacePair(2.0), 0.4),
}


def transform(pair: Pair) -> Callable[[mp.mpc], mp.mpc]:
    """E_P[e^{sL}] from the definition: an integral over x, and what has mass of its own."""
    one = pair.pair if isinstance(pair, Reversed) else pair
    assert isinstance(one, Poisson | Uniform)
    rate, inner = mp.mpf(one.rate), one.inner
    assert isinstance(inner, GaussianPair | LaplacePair)
    mu = mp.mpf(inner.mu)

    def ratio(u: mp.mpf) -> mp.mpf:
        return 1 - rate + rate * mp.e**u

    def part(above: bool, s: mp.mpc, positive: bool) -> mp.mpc:
        """Of removing a record, or of adding one; only losses above 0, if so."""
        power = 1 + s if above else -s
        if isinstance(inner, GaussianPair):
            peak = max(float(mu) * float(mp.re(power)), 0.0)
            start = mu / 2 if positive else mp.mpf(-14)
            places = sorted({start, *(p for p in (mp.mpf(0), mu / 2, mp.mpf(peak), mp.mpf(peak) / 2) if p > start)})
            places += [places[-1] + 4, places[-1] + 9, places[-1] + 16]
            return mp.quad(lambda x: ratio(mu * x - mu**2 / 2) ** power * mp.npdf(x), places)
        start = mu / 2 if positive else mp.mpf(0)
        total = mp.quad(lambda x: ratio(2 * x - mu) ** power * mp.e**-x / 2, [start, (start + mu) / 2, mu])
        total += ratio(mu) ** power * mp.e**-mu / 2
        return total if positive else total + ratio(-mu) ** power / 2

    def at(s: mp.mpc) -> mp.mpc:
        if isinstance(one, Poisson):
            return part(not isinstance(pair, Reversed), s, False)
        rest = mp.erf(mu / 2 / mp.sqrt(2)) if isinstance(inner, GaussianPair) else 1 - mp.e ** (-mu / 2)
        return part(True, s, True) + part(False, s, True) + (1 - rate) * rest

    return at


def log_delta(steps: Sequence[tuple[Pair, int]], epsilon: float, c: float, spacing: float, nodes: int) -> float:
    """By the contour integral itself, with twenty digits."""
    return log_deltas(steps, [epsilon], c, spacing, nodes)[0]


def log_deltas(
    steps: Sequence[tuple[Pair, int]], epsilons: Sequence[float], c: float, spacing: float, nodes: int
) -> list[float]:
    with mp.workdps(22):
        known = [(transform(pair), count) for pair, count in steps if isinstance(pair, Reversed | Poisson | Uniform)]
        atoms = [(pair, count) for pair, count in steps if not isinstance(pair, Reversed | Poisson | Uniform)]
        totals = [mp.mpf(0) for _ in epsilons]
        for j in range(nodes):
            s = mp.mpc(c, spacing * j)
            value = (mp.mpf(1) / 2 if j == 0 else 1) / (s * (s + 1))
            for at, count in known:
                value *= at(s) ** count
            for pair, count in atoms:
                value *= sum(p * mp.e ** (s * loss) for p, loss in zip(pair.p, pair.losses, strict=True)) ** count
            totals = [
                total + mp.re(value * mp.e ** (-s * epsilon)) for total, epsilon in zip(totals, epsilons, strict=True)
            ]
        return [float(mp.log(total * spacing / mp.pi)) for total in totals]


def test_nodes_and_weights_are_those_of_gauss() -> None:
    with mp.workdps(40):
        for node, weight in zip(stretches._NODES, stretches._WEIGHTS, strict=True):
            root = mp.findroot(lambda x: mp.legendre(20, x), mp.mpf(float(node)))
            slope = mp.diff(lambda x: mp.legendre(20, x), root)
            assert abs(root - float(node)) < 4e-16
            assert abs(2 / ((1 - root**2) * slope**2) - float(weight)) < 4e-16


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("c", [0.6, 9.0])
def test_transforms_are_as_good_as_they_say(name: str, c: float) -> None:
    pair = PAIRS[name]
    less, more = unbinned._laws(pair, c, -600.0, -45.0)
    at = transform(pair)
    spacing = 0.4
    for law in (less, more):
        values, errors, scale = law.on_line(c, spacing, 24)
        assert np.all(errors < 1e-11)
        for j in (0, 5, 23):
            with mp.workdps(22):
                truth = complex(at(mp.mpc(c, spacing * j)) * mp.e ** (-mp.mpf(scale)))
            assert abs(truth - values[j]) <= errors[j] + 1e-14
    with mp.workdps(22):
        truth = float(mp.log(at(mp.mpf(c))))
    assert truth - 1e-12 <= more.log_mgf(np.array([c]))[0] <= truth + 1e-9


@pytest.mark.parametrize("name", PAIRS)
def test_errors_of_few_panels_are_no_larger_than_their_bounds(name: str) -> None:
    less, _ = unbinned._laws(PAIRS[name], 3.0, -60.0, -30.0)
    seen = 0
    for stretch in less.stretches:
        for count in (1, 3):
            losses, logs, _, _ = stretch.points(count)
            for s in (3.0, 3.0 + 60j):
                found = complex(np.exp(s * losses + logs).sum())
                with mp.workdps(22):
                    power = 1 + mp.mpmathify(s) if stretch.above else -mp.mpmathify(s)
                    places = [stretch.start + (stretch.end - stretch.start) * mp.mpf(k) / 12 for k in range(13)]
                    truth = mp.quad(
                        lambda x, one=stretch, power=power: (
                            (1 - one.rate + one.rate * mp.e ** (one.slope * x + one.offset)) ** power
                            * mp.e ** (-one.bend * x * x / 2 - one.fall * x - one.constant)
                        ),
                        places,
                    )
                error = abs(complex(truth) - found)
                bound = float(np.exp(stretch.log_errors(count, np.array([3.0]), abs(complex(s).imag))[0]))
                assert error <= bound + 1e-13 * (1 + abs(complex(truth)))
                seen += error > 1e-12
    assert seen > 0 or "laplace" in name


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("c", [0.6, 9.0])
def test_no_transform_is_larger_than_its_decay(name: str, c: float) -> None:
    _, more = unbinned._laws(PAIRS[name], c, -600.0, -45.0)
    at = transform(PAIRS[name])
    for height in (0.3, 15.0):
        bound = more.log_decay(c, height)
        for further in (1.0, 1.7):
            with mp.workdps(20):
                assert float(mp.log(abs(at(mp.mpc(c, height * further))))) <= bound + 1e-12
    assert more.log_decay(c, 200.0) < more.log_decay(c, 0.0)


def test_much_noise_decays_as_a_gaussian_does() -> None:
    # E[g^(1+s)] of a release without sampling is e^{mu^2 s (s+1)/2}, and g is that of a sample at a rate next to 1
    mu, c, height = 1e-4, 5e4, 6e4
    _, more = unbinned._laws(Poisson(GaussianPair(mu), 1 - 1e-9), c, -600.0, -45.0)
    size = 0.5 * mu**2 * (c * (c + 1))
    assert more.log_mgf(np.array([c]))[0] == pytest.approx(size, rel=1e-6)
    assert size - 0.5 * (mu * height) ** 2 - 1e-6 <= more.log_decay(c, height) <= size - 0.45 * (mu * height) ** 2


MIXED: list[tuple[Pair, int]] = [
    (Poisson(GaussianPair(0.25), 0.1), 900),
    (Poisson(LaplacePair(0.2), 0.3), 120),
    (randomised_response(0.3), 4),
]


@pytest.mark.parametrize(
    ("steps", "epsilon", "c", "spacing", "nodes"),
    [
        (MIXED, 3.0, 1.9, 0.3, 40),
        ([(pair.reverse(), count) for pair, count in MIXED], 3.0, 3.0, 0.3, 40),
        ([(Uniform(GaussianPair(0.4), 0.1), 1500)], 25.0, 8.0, 0.2, 40),
    ],
)
def test_mixtures_agree_with_twenty_digits(
    steps: list[tuple[Pair, int]], epsilon: float, c: float, spacing: float, nodes: int
) -> None:
    truth = log_delta(steps, epsilon, c, spacing, nodes)
    found = decaying.curve_at(Task.of(steps), epsilon, truth, 1e-4)
    assert found is not None
    lower, upper = (float(side[0]) for side in found(np.array([epsilon])))
    assert lower <= truth <= upper
    assert upper - lower < 1e-6
    assert truth <= decaying.Chernoff.of(Task.of(steps), epsilon, truth)(np.array([epsilon]))[0] <= truth + 9
    # and nearby, where the same lines serve
    for other in (1.04 * epsilon,):
        lower, upper = (float(side[0]) for side in found(np.array([other])))
        assert lower <= log_delta(steps, other, c, spacing, nodes) <= upper


def test_replaced_records_are_known_deep_down() -> None:
    # bounds were those of removing a record, and these moved by 135976 rates: 92 apart
    rate, mu, count, epsilon = 318 / 3389322, 1 / 0.655232, 135976, 837.9
    steps = [(Uniform(GaussianPair(mu), rate), count)]
    truth = log_delta(steps, epsilon, 7.2, 0.007, 40)
    with np.errstate(all="ignore"):
        found = Binned(steps).curve(epsilon, truth, 3e-5)
        assert found is not None
        lower, upper = (float(side[0]) for side in found(np.array([epsilon])))
    assert lower <= truth <= upper
    assert upper - lower < 0.1


def test_the_least_of_lines_is_a_curve() -> None:
    random = np.random.default_rng(3)
    epsilons = np.sort(random.uniform(0.0, 40.0, 60))
    values = -0.03 * epsilons**2 - 1.5 + 0.01 * random.normal(size=60)
    levels = -np.geomspace(1e-3, 80.0, 200)
    found = of_lines(np.append(0.0, epsilons), np.append(-1.4, values)).at(levels)
    for level, one in zip(levels, found, strict=True):
        with mp.workdps(22):
            a = mp.e ** mp.mpf(float(level))
            lines = [
                (mp.mpf(float(e)), mp.e ** mp.mpf(float(v)))
                for e, v in zip(np.append(0.0, epsilons), np.append(-1.4, values), strict=True)
            ]
            above = min(v + mp.e**e * a for e, v in lines)
            below = min(1 - mp.e**-e * (1 - v) + mp.e**-e * a for e, v in lines)
            assert float(mp.log(min(above, below, mp.mpf(1)))) == pytest.approx(float(one), abs=1e-12)
    assert math.isfinite(float(found[0]))


@pytest.mark.parametrize("mu", [20.0, 30.0, 60.0])
def test_whatever_little_noise_there_is_the_masses_of_the_two_laws_enclose_one(mu: float) -> None:
    """C_p's negative losses begin at x = mu/2, where a Gaussian may have next to no mass."""
    less, more = (
        law[0][0] for law in unbinned.enclosing_laws([(Uniform(GaussianPair(mu), 0.01), 10)], 0.5, math.log(1e-5), 20.0)
    )
    zero = np.zeros(1)
    assert less.usual.log_mgf(zero)[0] <= 1e-12
    assert np.logaddexp(more.log_mgf(zero)[0], more.log_hidden) >= -1e-12


@pytest.mark.parametrize(
    ("steps", "c", "spacing", "nodes"),
    [
        ([(Uniform(GaussianPair(mu), 0.1), 60) for mu in np.geomspace(0.3, 0.5, 13).tolist()], 4.0, 0.5, 16),
        ([(Poisson(LaplacePair(mu), 0.1), 60) for mu in np.geomspace(0.3, 0.5, 13).tolist()], 4.9, 0.65, 13),
    ],
)
def test_many_kinds_that_differ_in_their_noise_go_by_one_line(
    steps: list[tuple[Pair, int]], c: float, spacing: float, nodes: int
) -> None:
    low, high = decaying.epsilon(steps, math.log(1e-7), 1e-4)
    assert 0 < high - low < 1e-9 * high
    before, after = log_deltas(steps, [low, high], c, spacing, nodes)
    assert before >= math.log(1e-7) >= after
    lower, upper = (float(side[0]) for side in decaying.log_delta(steps, np.array([low]), 1e-4))
    assert lower <= before <= upper <= lower + 1e-6


def test_atoms_of_the_law_that_reveals_more_are_counted_on_the_line_of_the_other() -> None:
    steps = [(Uniform(GaussianPair(0.4), 0.1), 200)]
    epsilon, c = np.array([3.0]), 4.0
    less, more = decaying._sides(Task.of(steps), c, -10.0)
    line = decaying._line(less, c, float(epsilon[0]), -26.0)
    assert line is not None
    for loss, mass in ((0.5, 1e-3), (-0.2, 1e-6), (2.0, 1e-5)):
        ((law, count),) = more.laws
        assert isinstance(law, unbinned.Smooth)
        raised = replace(more, laws=[(replace(law, atoms=(*law.atoms, (loss, math.log(mass)))), count)])
        own = decaying._line(raised, c, float(epsilon[0]), -26.0)
        assert own is not None
        before, after = decaying.Curve(less, more, line)(epsilon)[1], decaying.Curve(less, raised, line)(epsilon)[1]
        assert after[0] >= own.log_delta(epsilon)[0][0] > before[0]


def test_a_blunt_line_tells_which_direction_is_the_smaller_one() -> None:
    steps = [(pair.reverse(), count) for pair, count in MIXED]
    truth = log_delta(steps, 3.0, 3.0, 0.3, 40)
    assert decaying.is_below(steps, 3.0, truth + 1)
    assert not decaying.is_below(steps, 3.0, truth - 1e-9)


def test_a_few_lines_know_a_whole_curve_of_both_directions() -> None:
    ways = [MIXED, [(pair.reverse(), count) for pair, count in MIXED]]
    epsilons = np.linspace(0.0, 12.0, 241)
    known, lower, upper = decaying.whole(ways, epsilons, 1e-4, 0.02)
    assert known
    assert np.all(upper - lower <= np.clip(1e-4 * np.exp(-upper), 1e-4, 0.02))
    for at in (20, 60, 160):
        epsilon = float(epsilons[at])
        truth = max(log_delta(steps, epsilon, c, 0.2, 60) for steps, c in zip(ways, (1.9, 3.0), strict=True))
        assert lower[at] <= truth <= upper[at]


def test_a_whole_curve_is_not_said_to_be_known_where_no_line_is_sharp() -> None:
    steps: list[tuple[Pair, int]] = [(Uniform(GaussianPair(20.0), 1e-4), 3)]
    known, lower, upper = decaying.whole([steps], np.linspace(0.0, 300.0, 50), 1e-4, 0.02)
    assert not known
    assert np.all(lower <= upper)
