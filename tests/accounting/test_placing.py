"""Outcomes put on given points, against sums over all that can happen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf

from hush.accounting.lattices.placing import merged, split


def _outcomes(random: np.random.Generator, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Losses and logs of P-masses of two distributions, whose masses differ by factors like e^scale."""
    log_p, log_q = scale * random.standard_normal((2, 9))
    log_p, log_q = (logs - np.logaddexp.reduce(logs) for logs in (log_p, log_q))
    order = np.argsort(log_p - log_q)
    return (log_p - log_q)[order], log_p[order]


def _log_delta(losses: np.ndarray, logs: np.ndarray, count: int, epsilon: float) -> float:
    """By a sum over all paths, with fifty digits."""
    mp.dps = 50
    atoms = [(mpf(float(loss)), mp.exp(mpf(float(log)))) for loss, log in zip(losses, logs, strict=True)]
    total = mpf(0)
    for path in itertools.product(atoms, repeat=count):
        loss = sum(atom[0] for atom in path)
        if loss > epsilon:
            total += mp.fprod(atom[1] for atom in path) * (1 - mp.exp(mpf(epsilon) - loss))
    return float(mp.log(total)) if total > 0 else -math.inf


@pytest.mark.parametrize("scale", [1e-4, 1.0, 800.0])
@pytest.mark.parametrize("seed", range(4))
def test_split_outcomes_reveal_more(seed: int, scale: float) -> None:
    """Also where Q-masses are e^-1600."""
    losses, logs = _outcomes(np.random.default_rng([seed, 5]), scale)
    edges = np.linspace(float(losses[0]), float(losses[-1]) * (1 + 1e-9) + 1e-9, 4)
    for count in (1, 3):
        for epsilon in (0.0, 0.1 * scale, 0.8 * scale, 1.5 * scale):
            truth = _log_delta(losses, logs, count, epsilon)
            assert truth <= _log_delta(*split(losses, logs, edges), count, epsilon) + 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_merged_outcomes_reveal_less(seed: int) -> None:
    losses, logs = _outcomes(np.random.default_rng([seed, 6]), 1.0)
    spacing = 0.25
    first, last = (round(float(losses[end]) / spacing) + way for end, way in ((0, -2), (-1, 2)))
    masses = merged(losses, np.exp(logs), first, last, spacing)
    kept = masses > 0
    places = (spacing * np.arange(first, last + 1))[kept]
    for count in (1, 3):
        for epsilon in (0.0, 0.1, 0.8, 1.5):
            truth = _log_delta(losses, logs, count, epsilon)
            assert _log_delta(places, np.log(masses[kept]), count, epsilon) <= truth + 1e-12


@pytest.mark.parametrize("spacing", [1e-2, 1e-3])
def test_points_close_together_say_what_the_outcomes_do(spacing: float) -> None:
    random = np.random.default_rng(3)
    losses = np.sort(random.standard_normal(8))
    logs = np.full(8, -math.log(8))
    edges = spacing * np.arange(math.floor(losses[0] / spacing), math.ceil(losses[-1] / spacing) + 2)
    for epsilon in (0.0, 0.4, 0.9):
        truth = _log_delta(losses, logs, 1, epsilon)
        assert _log_delta(*split(losses, logs, edges), 1, epsilon) == pytest.approx(truth, abs=2 * spacing)


def test_losses_that_rounding_may_exchange_keep_their_order() -> None:
    """A mass of e^-700 has a loss that is good to 1e-12 only: raised by that it passes the next, of mass 1."""
    edges = np.array([0.5, 1.0, 2.0])
    losses, logs = 1.0 - np.array([2e-14, 1e-14, -0.9]), np.array([-700.0, math.log(0.9), math.log(0.1)])
    for epsilon in (0.0, 0.7, 1.0, 1.5):
        assert _log_delta(*split(losses, logs, edges), 1, epsilon) >= _log_delta(losses, logs, 1, epsilon)
