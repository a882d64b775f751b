"""A promise that fails with a small probability, beside other releases: no lattice is needed, and nothing is lost."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest

from hush.accounting import REPLACE_ONE, Gaussian, Guarantees, Laplace, Mechanism
from hush.accounting.kinds import directions
from hush.accounting.pairs import points

STEPS = Gaussian(2.4).poisson(1 / 8) * 100 + Gaussian(20.0)
LEAK = Guarantees.of(0.0, 1e-8)


def test_a_leak_adds_its_share_to_every_delta() -> None:
    for epsilon in (0.0, 0.5, 3.0, 12.0):
        alone, both = STEPS.delta(epsilon), (STEPS + LEAK).delta(epsilon)
        assert both.lower <= 1e-8 + (1 - 1e-8) * alone.lower <= 1e-8 + (1 - 1e-8) * alone.upper <= both.upper
        assert both.width <= alone.width + 1e-13 * both.upper


@pytest.mark.parametrize("delta", [1.1e-8, 1e-6, 0.1])
def test_epsilon_is_the_inverse_of_delta(delta: float) -> None:
    found = (STEPS + LEAK).epsilon(delta)
    assert found.width < 1e-6
    assert (STEPS + LEAK).delta(found.upper).lower <= delta
    if found.lower > 0:
        assert (STEPS + LEAK).delta(found.lower * (1 - 1e-9)).upper >= delta


def test_no_epsilon_holds_at_a_delta_below_the_leak() -> None:
    assert math.isinf((STEPS + LEAK).epsilon(0.5e-8).upper)
    assert math.isinf((STEPS + LEAK).epsilon(1e-8).upper)


@pytest.mark.parametrize("rest", [Gaussian(1.5), Laplace(2.0)], ids=["Gaussian", "Laplace"])
def test_the_lattice_agrees(rest: Mechanism) -> None:
    # two promises, of which one isn't pure leak, keep the composition on the lattice
    nearly = Guarantees(((0.0, 1e-3), (50.0, 1e-3)))
    slow, fast = (rest + nearly).epsilon(1e-2), (rest + Guarantees.of(0.0, 1e-3)).epsilon(1e-2)
    assert slow.lower <= fast.upper
    assert fast.lower <= slow.upper


def test_many_leaks_add_up() -> None:
    found = (STEPS + Guarantees.of(0.0, 1e-3) * 100).delta(9.0)
    assert found.upper == pytest.approx(1 - (1 - 1e-3) ** 100, rel=1e-6)


def test_the_trade_off_curve_shifts_by_the_leak_and_is_quick() -> None:
    began = time.perf_counter()
    curve = (STEPS + Guarantees.of(0.0, 0.01)).tradeoff(200)
    assert time.perf_counter() - began < 10
    alone, _ = STEPS.tradeoff(200)(np.array([0.2]))
    both, _ = curve(np.array([0.2]))
    assert both[0] == pytest.approx(0.99 * alone[0], abs=5e-3)
    assert curve.error_sum.lower == pytest.approx(0.99 * STEPS.error_sum().lower, rel=1e-6)


@pytest.mark.parametrize(
    ("run", "leak", "count"),
    [
        (Guarantees.of(1.0, 1e-5).poisson(0.1), Fraction(1e-5) * Fraction(0.1), 10),
        (Guarantees.of(0.5, 1e-3, REPLACE_ONE).uniform(1, of=3), Fraction(1e-3) / 3, 3),
        (Guarantees(((0.5, 1e-3), (2.0, 1e-9))).poisson(1e-3), Fraction(1e-9) * Fraction(1e-3), 1),
    ],
)
def test_promises_on_a_sample_jump_at_their_leak_and_nowhere_else(run: Mechanism, leak: Fraction, count: int) -> None:
    """One floating-point number below the leak nothing is enough, at it and above the largest finite loss is."""
    whole, total = 1 - (1 - leak) ** count, run * count
    at = float(whole)
    above = at if Fraction(at) >= whole else math.nextafter(at, 1.0)
    below = math.nextafter(above, 0.0)
    assert total.epsilon(below).lower == 1e4
    bounds = total.epsilon(above)
    assert bounds.width <= 1e-3 * bounds.upper
    largest = max(exact.top for steps in directions(run) if (exact := points.exact(steps[0][0])) is not None)
    assert bounds.upper == pytest.approx(count * largest, rel=1e-3)
