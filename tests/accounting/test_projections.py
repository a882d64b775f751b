"""Projected norms in any company: how narrow and how fast, and what a glance at them is worth."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hush.accounting import Mechanism, Projected
from hush.accounting.losses import Pair, Poisson
from hush.accounting.projection import ProjectedPair, glance

Kind = tuple[float, int, float, int]
"""sigma, projections, rate, steps."""


def _run(kinds: list[Kind]) -> Mechanism:
    parts = [(Projected(s, r) if rate == 1 else Projected(s, r).poisson(rate)) * steps for s, r, rate, steps in kinds]
    run: Mechanism = parts[0]
    for part in parts[1:]:
        run = run + part
    return run


@pytest.mark.parametrize(("seed", "delta"), [(0, 1e-5), (0, 1e-12), (9, 1e-8), (4, 1e-20)])
def test_a_hundred_different_projections_are_narrow_within_a_second(seed: int, delta: float) -> None:
    generator = np.random.default_rng(seed)
    kinds = [
        (
            float(generator.uniform(0.8, 6)),
            int(10 ** generator.uniform(1, 2.7)),
            float(10 ** generator.uniform(-4, -1)),
            int(10 ** generator.uniform(0, 3)),
        )
        for _ in range(100)
    ]
    run = _run(kinds)
    start, began = time.process_time(), time.perf_counter()
    bounds = run.epsilon(delta)
    # threads that wait count as busy, and other processes as waiting
    assert min(time.process_time() - start, time.perf_counter() - began) < 1.0
    assert bounds.width <= 1e-4 * bounds.upper


@pytest.mark.parametrize("rate", [1.0, 0.01, 1e-9])
@pytest.mark.parametrize(("sigma", "r"), [(1.3, 1), (0.1, 1000), (0.9, 30), (5.0, 300), (1e4, 3)])
def test_a_glance_is_a_percent_off_and_its_two_laws_fit_each_other(sigma: float, r: int, rate: float) -> None:
    pair: Pair = ProjectedPair(sigma, r) if rate == 1 else Poisson(ProjectedPair(sigma, r), rate)
    places = np.geomspace(1e-10, 3e4, 400)
    edges = np.concatenate([-places[::-1], [0.0], places])
    for seen, exact in zip(glance(pair).masses(edges), pair.masses(edges), strict=True):
        large = exact > 1e-120
        np.testing.assert_allclose(seen[large], exact[large], rtol=0.03)
        assert seen.sum() == pytest.approx(1.0, abs=1e-13)
