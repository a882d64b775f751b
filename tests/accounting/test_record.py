"""Whole curves of a single record: by lines and by sums of large losses, which are certified on their own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.accounting import REPLACE_ONE, Gaussian, Laplace, Mechanism, RandomisedResponse
from hush.accounting.grouping import record
from hush.accounting.kinds import directions
from hush.accounting.lattices import rare
from hush.accounting.lattices.listed import Known

RUNS = [
    (Gaussian(1780.0).poisson(1.9e-6) * 248_916 + Laplace(0.2) * 14, -900.0, 1e-3),
    (Gaussian(60.0, REPLACE_ONE).poisson(0.01) * 4000 + Laplace(0.9, REPLACE_ONE) * 9, -120.0, 1e-3),
    (Gaussian(30.0, REPLACE_ONE).uniform(400, of=1000) * 2000 + RandomisedResponse(0.8, REPLACE_ONE) * 4, -80.0, 1e-3),
    (Gaussian(40.0).poisson(0.2) * 900 + Laplace(3.0) * 6, -60.0, 1e-3),
]


def curve_of(run: Mechanism, deepest: float, slack: float, way: int, by: record.Way) -> Known:
    found = record.curve(directions(run)[way], deepest, slack, 2e4, (by,))
    assert found is not None
    return found


def epsilons_of(run: Mechanism, reach: float) -> np.ndarray:
    top = sum(count * part.largest_loss for part, count in run.parts() if math.isfinite(part.largest_loss))
    return np.unique(np.concatenate([np.linspace(0, top, 60), top + reach * np.geomspace(1e-3, 1.0, 40)]))


@pytest.mark.parametrize(("run", "deepest", "slack"), RUNS, ids=str)
def test_lines_and_sums_of_large_losses_meet(run: Mechanism, deepest: float, slack: float) -> None:
    for way in range(len(directions(run))):
        lined, summed = (curve_of(run, deepest, slack, way, by) for by in (record.lined, rare.curve))
        epsilons = epsilons_of(run, float(lined.more.places[-1]))
        (low, high), (least, most) = lined(epsilons), summed(epsilons)
        assert np.all(low <= high)
        assert np.all(low <= most + 1e-9)
        assert np.all(least <= high + 1e-9)
        told = (low > 0.9 * deepest) & (low < -1.0)
        assert told.sum() > 10
        for curve in (lined, summed):
            below, further = curve(epsilons)[0], curve(epsilons + 10 * slack)[1]
            assert np.all((further <= below)[told])


@pytest.mark.parametrize(("run", "deepest", "slack"), RUNS, ids=str)
@pytest.mark.parametrize("by", record.WAYS)
def test_the_larger_direction_is_the_answer(run: Mechanism, deepest: float, slack: float, by: record.Way) -> None:
    """Which comes from engines of its own, in floating-point numbers."""
    curves = [curve_of(run, deepest, slack, way, by) for way in range(len(directions(run)))]
    epsilons = epsilons_of(run, float(curves[0].more.places[-1]))[::9]
    ends = np.array([curve(epsilons) for curve in curves])
    for epsilon, low, high in zip(epsilons.tolist(), ends[:, 0].max(axis=0), ends[:, 1].max(axis=0), strict=True):
        known = run.delta(epsilon)
        assert math.exp(low) <= known.upper * (1 + 1e-9)
        assert math.exp(high) >= known.lower * (1 - 1e-9)


def test_bounded_losses_alone_are_left_to_others() -> None:
    assert record.curve(directions(Laplace(3.0) * 4)[0], -20.0, 1e-3, 1e4) is None


def test_where_lines_are_blunt_there_are_none() -> None:
    """One large loss decides: no line is as sharp as that far below Chernoff's bound."""
    steps = directions(Gaussian(0.8, REPLACE_ONE).poisson(1e-6) * 300)[0]
    assert record.lined(steps, -300.0, 1e-4, 1e4) is None
