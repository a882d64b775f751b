"""Epsilons next to 0, where delta is within a millionth of delta(0): every rounding counts, and none is forgotten."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from reference import REMOVE, one_step, two_steps

from hush.accounting import Gaussian, Mechanism, calibrate
from hush.accounting.gaussian.axis import Axis
from hush.accounting.gaussian.certain import hits
from hush.accounting.gaussian.labels import Labels, on_axis
from hush.accounting.gaussian.nearby import Nearby
from hush.accounting.gaussian.rules import Rule, rule
from hush.accounting.gaussian.strips import Edge, Part
from hush.accounting.gaussian.transform import Step


def _phi(y: mp.mpc) -> mp.mpc:
    return mp.erfc(-y / mp.sqrt(2)) / 2


@pytest.mark.parametrize(
    ("noise", "rate", "delta"),
    [
        (0.341, 0.325, 0.45088974359039086),  # 4 times as wide as promised, once
        (0.341, 0.325, 0.45089014939156596),
        (0.439, 0.146, 0.1850231804486641),
        (0.365, 0.517, 0.6250906397059891),
        (0.156, 0.221, 0.39246174761276),  # the chance of a hit, less a millionth
        (0.168, 0.087, 0.16576473479436646),
    ],
)
def test_two_steps_next_to_delta_at_zero_agree_with_mpmath(noise: float, rate: float, delta: float) -> None:
    bounds = (Gaussian(noise).poisson(rate) * 2).epsilon(delta)
    assert bounds.width <= max(1e-6 * bounds.upper, 1e-12)
    above, below = (two_steps(rate, noise, REMOVE, end, 30)[0] for end in (bounds.lower, bounds.upper))
    assert below <= delta <= above


@pytest.mark.parametrize(
    ("noise", "rate", "share"),
    [(0.113491, 0.22731, 2e-5), (0.113491, 0.22731, 1e-5), (0.2, 0.01, 1e-3), (0.15, 1e-6, 1e-3), (0.12, 0.45, 1e-5)],
)
def test_one_step_next_to_its_rate_agrees_with_mpmath(noise: float, rate: float, share: float) -> None:
    run = Gaussian(noise).poisson(rate)
    delta = run.delta(0.0).lower * (1 - share)
    bounds = run.epsilon(delta)
    assert bounds.width <= max(1e-6 * bounds.upper, 1e-12)
    with mp.workdps(40):
        ends = (one_step(rate, noise, REMOVE, mp.mpf(end)) for end in (bounds.upper, bounds.lower))
        below, above = ends
        assert below <= mp.mpf(delta) <= above


@pytest.mark.parametrize("seed", range(6))
def test_windowed_sums_are_off_by_less_than_the_rounding_claimed(seed: int) -> None:
    """The same sums in forty digits, at the nodes and for the parts that plateaus have, real nodes and complex ones."""
    rng = np.random.default_rng(seed)
    step = Step(float(rng.uniform(0.05, 0.5)), float(rng.uniform(0.2, 0.5)), 6)
    low, high = Edge(float(rng.uniform(1, 2)), 0.07, 9.0), Edge(float(rng.uniform(3, 5)), 0.03)
    shift = 0.0 if seed % 2 else float(rng.uniform(0.01, 0.1))
    rule = Rule(Part(step, high, low), shift, low.place - 0.8, 0.01, 300, -np.inf)
    real, height = 0.55, float(rng.uniform(0, 5))
    found = complex(rule.mgf(np.array([complex(real, height)]))[0])
    with mp.workdps(40):
        total = mp.mpc(0)
        for k in range(rule.size):
            x = mp.mpf(rule.left) + k * mp.mpf(rule.spacing) + 1j * mp.mpf(shift)
            g = 1 - mp.mpf(step.rate) + step.rate * mp.exp(x / step.noise - 1 / (2 * mp.mpf(step.noise) ** 2))
            window = _phi((high.place - x) / high.width) - _phi((low.place - x) / low.width)
            total += window * rule.spacing * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) * g ** mp.mpc(real, height)
        off = float(abs(total - found))
    claimed = float(rule.rounding(real, np.array([height]), False)[0])
    assert off <= claimed <= 2e-13 * abs(found) * (1 + height)


@pytest.mark.parametrize(("shift", "careful"), [(0.0, False), (0.06, False), (0.06, True), (-0.06, False)])
@pytest.mark.parametrize("bulk", [False, True])
def test_sums_on_a_line_are_off_by_less_than_the_rounding_claimed(shift: float, careful: bool, bulk: bool) -> None:
    """Turns that are products of few exponentials; below the axis g^r grows with Im r, and so does what is lost."""
    step, low, high = Step(0.2, 0.3, 6), Edge(1.5, 0.07, 9.0), Edge(4.0, 0.03)
    part = Part(step, low) if bulk else Part(step, high, low)
    left, size = (-9.0, 1112) if bulk else (0.7, 300)
    rule = Rule(part, shift, left, 0.01, size, -np.inf, careful)
    real, first, spacing = 0.55, 1.3, 0.7
    heights = first + spacing * np.arange(120)
    powers = real + 1j * heights
    assert rule.is_turned(spacing, heights.size)
    assert not rule.is_turned(spacing, 3)
    assert rule.is_turned(30 * spacing, heights.size) is (shift >= 0)  # what grows too much is summed one by one
    found = rule.excess(powers, spacing) if bulk else rule.mgf(powers, spacing)
    claimed = rule.rounding(real, heights, bulk, spacing)
    with mp.workdps(40):
        for k in (0, 37, 119):
            power, total = mp.mpc(real, heights[k]), mp.mpc(0)
            for j in range(rule.size):
                x = mp.mpf(rule.left) + j * mp.mpf(rule.spacing) + 1j * mp.mpf(shift)
                g = 1 - mp.mpf(step.rate) + step.rate * mp.exp(x / step.noise - 1 / (2 * mp.mpf(step.noise) ** 2))
                window = _phi((part.falls.place - x) / part.falls.width)
                if part.rises is not None:
                    window -= _phi((part.rises.place - x) / part.rises.width)
                value = g**power - (1 + power * (g - 1) if bulk else 0)
                total += window * rule.spacing * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) * value
            if bulk:
                spread = mp.sqrt(1 + mp.mpf(low.width) ** 2)
                absent, present = (_phi((mean - mp.mpf(low.place)) / spread) for mean in (0, 1 / mp.mpf(step.noise)))
                total -= absent + power * step.rate * (present - absent)
            off = float(abs(total - mp.mpc(complex(found[k]))))
            assert off <= claimed[k]
            alone = rule.rounding(real, heights[k : k + 1], bulk)[0]
            assert claimed[k] >= alone * (1 - 1e-9)


def test_a_part_that_counts_for_nothing_has_a_sum_that_is_a_number() -> None:
    """At the cut g^r is e^1000 times as large as any floating-point number, and the window 0."""
    part = Part(Step(4e-6, 2.5, 45), Edge(45.0, 0.2), Edge(20.0, 0.5))
    found = rule(part, 10_000.0, 0.0, 10.0, 1e5, False)
    assert found.log_error < 1e5
    assert np.all(np.isfinite(found.mgf(np.array([complex(10_000.0, 5.0)]))))
    assert np.all(np.isfinite(found.rounding(10_000.0, np.array([5.0]), False)))


def test_labels_at_once_have_the_sums_of_each() -> None:
    rng = np.random.default_rng(2)
    steps = [Step(10.0 ** rng.uniform(-6, -0.5), float(rng.uniform(0.3, 3)), 1) for _ in range(9)]
    bulks = [on_axis(Part(step, Edge(float(rng.uniform(2, 6)), 0.1 * step.noise))) for step in steps]
    rests = [on_axis(Part(one.part.step, Edge(8.0, 0.05), one.part.falls)) for one in bulks]
    powers = np.array([-3.0, -0.5, 0.0, 1.0, 2.5, 40.0])
    axis = Axis([*bulks, *rests])
    assert axis.mgf(powers) == pytest.approx(np.array([one.mgf(powers) for one in axis.rules]), rel=1e-12)
    assert axis.missed(powers) == pytest.approx(np.array([one.missed(powers) for one in axis.rules]), rel=1e-12)
    sizes, least = Axis(bulks).log_sizes(powers), [Axis(bulks).least(float(power)) for power in powers]
    for row, one in enumerate(bulks):
        step, edge = one.part.step, one.part.falls
        exact = Axis(bulks).excess(powers)[row] - one.excess(powers).real
        assert np.all(np.abs(exact) <= 1e-13 * np.maximum(1.0, np.exp(sizes[row])))
        for column, power in enumerate(powers.tolist()):

            def integrand(x: mp.mpf, step: Step = step, edge: Edge = edge, power: float = power) -> mp.mpf:
                ratio = 1 - step.rate + step.rate * mp.exp(x / step.noise - 1 / (2 * mp.mpf(step.noise) ** 2))
                return ratio**power * mp.npdf(x) * mp.ncdf((edge.place - x) / edge.width)

            with mp.workdps(25):
                true = mp.quad(integrand, [*range(-16, 16)])
                assert least[column][row] <= true <= mp.exp(sizes[row, column]) * (1 + mp.mpf(10) ** -13)


def test_gaussian_windows_are_as_good_as_assumed() -> None:
    rng = np.random.default_rng(4)
    for _ in range(40):
        edge, shift = Edge(float(rng.uniform(-1, 5)), float(10 ** rng.uniform(-2.5, -0.5))), 0.0
        if rng.random() < 0.8:
            shift = float(edge.width * rng.uniform(0.001, 6))
        reach = float(rng.choice([3.0, 12.0])) * edge.width
        rule = Rule(Part(Step(0.1, 0.3, 1), edge), shift, edge.place - reach, reach / 10, 21, -np.inf)
        claimed = rule._window_unsure * 4 * 2.0**-53
        with mp.workdps(40):
            for x, told, doubt in zip(rule.nodes.tolist(), rule.window.tolist(), claimed.tolist(), strict=True):
                # what the node's own rounding does is counted beside it
                true = _phi((mp.mpf(edge.place) - mp.mpc(x)) / mp.mpf(edge.width))
                assert abs(true - mp.mpmathify(told)) <= 0.7 * doubt


@pytest.mark.parametrize("seed", range(20))
def test_what_errors_of_both_parts_do_to_the_product_of_all_steps(seed: int) -> None:
    """Random parts, moved by as much as they may be off, in fifty digits."""
    rng = np.random.default_rng(seed)
    kinds = [(int(rng.integers(1, 30)), bool(rng.random() < 0.8)) for _ in range(int(rng.integers(1, 4)))]
    size = 10 ** rng.uniform(-9, 0)
    near, exact, moved = Nearby(1), [mp.mpc(1), mp.mpc(1)], [mp.mpc(1), mp.mpc(1)]
    with mp.workdps(50):
        by_bulk = by_middle = mp.mpf(0)
        for count, split in kinds:
            turns = np.exp(2j * np.pi * rng.random(4))
            bulk, middle = complex(0.9 * turns[0]), complex(size * turns[1]) if split else 0j
            off, other = 10 ** rng.uniform(-9, -3), 10 ** rng.uniform(-9, -3) if split else 0.0
            near.add(count, np.array([bulk]), np.array([middle]), np.array([off]), np.array([other]))
            there = mp.mpc(bulk) + off * mp.mpc(complex(turns[2])), mp.mpc(middle) + other * mp.mpc(complex(turns[3]))
            for product, (one, two) in ((exact, (mp.mpc(bulk), mp.mpc(middle))), (moved, there)):
                product[0] *= (one + two) ** count
                product[1] *= one**count
        by_middle, by_bulk = (float(part[0]) for part in near.errors(0.0))
        assert abs((exact[0] - exact[1]) - (moved[0] - moved[1])) <= by_middle + by_bulk


@pytest.mark.parametrize("seed", range(30))
def test_the_chance_of_a_hit_less_what_is_short_of_it(seed: int) -> None:
    """P - Q of some step huge, in eighty digits."""
    rng = np.random.default_rng(seed)
    labels = []
    for _ in range(int(rng.integers(1, 4))):
        noise, rate = float(10 ** rng.uniform(-1, 0)), float(10 ** rng.uniform(-9, -0.1))
        place, count = float(rng.uniform(0.2, 1.2) / noise), int(10 ** rng.uniform(0, 4))
        labels.append(Labels(Step(rate, noise, count), Edge(place, noise / 12), dropped=False))
    known = hits(labels)
    assert known is not None
    with mp.workdps(80):
        with_record, without = mp.mpf(1), mp.mpf(1)
        none = mp.mpf(1)
        for label in labels:
            step, spread = label.step, mp.sqrt(1 + mp.mpf(label.high.width) ** 2)
            at, hit_at = (mp.mpf(label.high.place) - mean for mean in (0, 1 / mp.mpf(step.noise)))
            absent, present = 1 - _phi(-at / spread), 1 - _phi(-hit_at / spread)
            without *= absent**step.count
            with_record *= ((1 - mp.mpf(step.rate)) * absent + step.rate * present) ** step.count
            none *= (1 - mp.mpf(step.rate)) ** step.count
        assert abs(known.chance - (1 - none)) <= 2.0**-53 * known.chance
        assert abs(known.short - (1 - none - (without - with_record))) <= 0.7 * known.doubt


@pytest.mark.parametrize(
    ("rate", "steps", "delta", "epsilon"),
    [(0.05, 10, 0.38, 1.0), (0.02, 20, 0.3, 5.0), (1e-3, 50, 0.045, 10.0), (0.2, 5, 0.6, 0.5), (0.01, 100, 1e-5, 1e3)],
)
def test_calibration_on_a_plateau_takes_few_answers(
    rate: float, steps: int, delta: float, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secants that aim a hair beyond the root: false position took up to 28 answers."""
    asked: list[float] = []
    excess = calibrate._excess

    def counted(mechanism: Mechanism, target: float, at: float) -> float:
        asked.append(excess(mechanism, target, at))
        return asked[-1]

    monkeypatch.setattr(calibrate, "_excess", counted)
    noise = calibrate.noise(lambda value: Gaussian(value).poisson(rate) * steps, epsilon, delta)
    assert len(asked) <= 12
    assert (Gaussian(noise).poisson(rate) * steps).epsilon(delta).upper <= epsilon
    assert (Gaussian(noise * (1 - 1e-6)).poisson(rate) * steps).epsilon(delta).upper > epsilon
