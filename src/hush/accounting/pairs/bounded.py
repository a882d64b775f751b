"""Compositions whose losses have a largest value: that value, beyond which delta is 0, and the chance of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hush.accounting.pairs.losses import Enclosed, Pair
from hush.accounting.pairs.points import exact, loss_range

Steps = Sequence[tuple[Pair, int]]

_LOOSE = 2e-13  # of losses: what amplifying (at rates from 1e-300 on) and adding them loses


def largest_total(steps: Steps) -> float:
    """No total loss exceeds it; infinite where nothing of the kind is known."""
    tops = [(loss_range(pair)[1], count) for pair, count in steps]
    return math.fsum(count * top for top, count in tops) + _LOOSE * math.fsum(count * abs(top) for top, count in tops)


def largest_finite(steps: Steps) -> tuple[float, float]:
    """What no finite total exceeds, and the log of the chance of an infinite one, from above: beyond, delta is that."""
    rest, log_none = [], 0.0
    total = 0.0
    for pair, count in steps:
        law = exact(pair) if pair.infinite > 0 else None
        if law is None:
            rest.append((pair, count))
            continue
        total += count * law.top + _LOOSE * count * abs(law.top)
        log_none += count * math.log1p(-min(law.infinite * (1 + 1e-12), 1 - 2.0**-53))
    leak = -math.expm1(log_none) * (1 + 1e-12)
    return (total + largest_total(rest)) * (1 + 1e-12), min(math.log(leak), 0.0) if leak > 0 else -math.inf


def near_top(steps: Steps) -> tuple[float, float]:
    """log of the chance P that every loss is about its largest, and that total l: delta(e) >= P (1 - e^{e - l})."""
    log_mass, total = 0.0, 0.0
    for one, count in steps:
        pair = one.lower if isinstance(one, Enclosed) else one
        top = loss_range(pair)[1]
        if not 0 < top < math.inf:
            return -math.inf, 0.0
        edge = top * (1 - 1e-9)
        mass = float(pair.masses(np.array([edge]))[0][-1])
        if mass <= 0:
            return -math.inf, 0.0
        log_mass += count * (math.log(mass) - 1e-12)
        total += count * edge
    return log_mass * (1 + 1e-14), total * (1 - 1e-14)
