"""Bounds on transforms from fewer points: never below the truth, and close enough to leave nodes out."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from hush.accounting.averaged import Wanted, averaged_line
from hush.accounting.brackets import bracket
from hush.accounting.points import GaussianLaw, LaplaceLaw, Points
from hush.accounting.smoothing import Kernel
from hush.accounting.tilted import Side
from hush.accounting.turns import gathered


def some_law(seed: int, points: int) -> Points:
    generator = np.random.default_rng(seed)
    losses = generator.normal(0.0, 0.3, points) + 2.0 * (generator.random(points) < 0.1)
    masses = generator.random(points) ** 4
    return Points(losses, np.log(masses / masses.sum()))


def log_size(law: Points, c: float, height: float) -> float:
    """log |E[e^{sL}]/E[e^{cL}]| with fifty digits."""
    with mpmath.workdps(50):
        points = [
            (mpmath.mpf(float(loss)), mpmath.mpf(float(log))) for loss, log in zip(law.losses, law.logs, strict=True)
        ]
        top = mpmath.fsum(mpmath.exp(log + mpmath.mpc(c, height) * loss) for loss, log in points)
        return float(mpmath.log(abs(top) / mpmath.fsum(mpmath.exp(log + c * loss) for loss, log in points)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("c", [0.3, 20.0])
@pytest.mark.parametrize("spacing", [0.02, 0.7, 9.0])
def test_fewer_points_never_make_a_transform_smaller(seed: int, c: float, spacing: float) -> None:
    law, nodes = some_law(seed, 400), 12
    found = gathered(law, c, spacing * nodes)
    assert found.points < 200 or spacing > 1
    for node, bound in enumerate(found.log_sizes(spacing, nodes)):
        exact = log_size(law, c, spacing * node)
        assert exact - 1e-15 <= bound <= 0
        assert c > 1 or 1 - math.exp(bound) >= 0.5 * (1 - math.exp(exact)) - 1e-12  # nor much larger


@pytest.mark.parametrize("jumping", [False, True])
def test_the_paths_of_a_bracket_have_decayed_no_more_than_is_said(jumping: bool) -> None:
    laws = [(some_law(1, 300), 40), (some_law(2, 200), 3), (GaussianLaw(0.01), 1), (LaplaceLaw(0.1), 5)]
    paths = bracket(laws, 1.0 if jumping else -math.inf, 5.0)
    assert paths is not None
    assert paths.jumps is jumping
    c, spacing, nodes = 1.3, 0.2, 30
    values, errors, _ = paths.transform(c, spacing, nodes)
    sizes = paths.sizes(c, spacing * nodes).at(spacing, nodes)
    assert np.all(np.exp(sizes) >= np.abs(values) - errors)
    assert sizes[-1] < -20  # nor is nothing said


def test_many_steps_take_few_nodes_and_say_the_same() -> None:
    """The sum of a thousand losses is nearly Gaussian: its transform ends long before that of a narrow kernel."""
    side = Side(((some_law(3, 400), 1000),), above=True)
    c = 0.8
    value, mean, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    line = averaged_line(side, c, math.sqrt(variance), Kernel(0.02, True), Wanted(mean, 1e-9, 10**6))
    assert line is not None
    assert line.nodes.size < 60
    low, high = line.log_delta(np.array([mean]))
    assert 0 < high[0] - low[0] < 1e-5
    # every node up to the kernel's end, one after the other
    every = c + 1j * line.spacing * np.arange(10_000)
    law = side.laws[0][0]
    assert isinstance(law, Points)
    steps = np.array([np.exp(law.logs + s * law.losses).sum() for s in every])
    angles, sizes = np.angle(steps), np.log(np.abs(steps))
    terms = np.exp(1000 * sizes - value + 1j * (1000 * angles - every.imag * mean)) * np.exp(
        0.5 * 0.02**2 * every * (every + 1)
    )
    terms = terms / (every * (every + 1))
    total = line.spacing / math.pi * float(terms.real.sum() - 0.5 * terms[0].real)
    assert math.log(total) + value - c * mean == pytest.approx(high[0], abs=1e-5)
