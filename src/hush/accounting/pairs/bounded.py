"""Compositions whose losses have a largest value: that value, and about log delta, also close to it, by saddle points.

With Lambda the log of the losses' moment generating function, the integrand of line.py has its saddle point at c where
epsilon = Lambda'(c) - 1/c - 1/(c + 1).  So c tells epsilon and log delta at once, and a row of c gives a curve that
comes as close to the largest total as one likes.  A model, for those who must know where to look: it enters no bound.
(The largest total does, and the chance of it: beyond it delta is 0, and close to it at least so much.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hush.accounting.grouping.links import Model
from hush.accounting.pairs.losses import Array, Enclosed, Pair
from hush.accounting.pairs.points import Points, Scattered, enclosing, exact, loss_range

Steps = Sequence[tuple[Pair, int]]

_ORDERS = 400
_CLOSEST = 1e-9  # to the largest total, as a part of it
NOTHING = -2.5e4  # log of a delta beyond the largest total: smaller than any that is asked for
_MANY = 2000  # points of a law that are worth no bins
_OUT = np.geomspace(1e-10, 1.0, 160)
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


def model(directions: Sequence[Steps]) -> Model | None:
    """The larger of all directions; None where some loss has no bound."""
    curves = [_curve(steps) for steps in directions]
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(curves):
        return None
    places = np.unique(np.concatenate([at for at, _ in known]))
    logs = np.max([np.interp(places, at, values) for at, values in known], axis=0)
    return Model(places, np.minimum.accumulate(np.minimum(logs, -1e-12)))


@np.errstate(all="ignore")
def _curve(steps: Steps) -> tuple[Array, Array] | None:
    laws = [(_law(pair), count) for pair, count in steps]
    if not all(law is not None and law.top < math.inf for law, _ in laws):
        return None
    known = [(law, count) for law, count in laws if law is not None]
    top = math.fsum(count * law.top for law, count in known)
    if not top > 0:
        return None
    orders = np.geomspace(1e-3, 1 / _CLOSEST, _ORDERS) / top
    nudge = 1e-3
    below, here, above = (
        np.sum([count * law.log_mgf(orders * (1 + change)) for law, count in known], axis=0)
        for change in (-nudge, 0.0, nudge)
    )
    means = (above - below) / (2 * nudge * orders)
    spreads = np.maximum((above - 2 * here + below) / (nudge * orders) ** 2, 0.0) + orders**-2 + (orders + 1) ** -2
    epsilons = means - 1 / orders - 1 / (orders + 1)
    logs = here - orders * epsilons - np.log(orders * (orders + 1)) - 0.5 * np.log(2 * math.pi * spreads)
    kept = (epsilons < top * (1 - _CLOSEST)) & np.isfinite(logs)
    kept &= epsilons >= np.maximum.accumulate(np.where(kept, epsilons, -np.inf))
    none = float(np.interp(0.0, epsilons[kept], logs[kept])) if kept.any() else 0.0
    kept &= epsilons > 0
    if kept.sum() < 2:
        return None
    epsilons, logs = epsilons[kept], np.minimum.accumulate(np.minimum(logs[kept], -1e-12))
    leaks = float(sum(count * law.infinite for law, count in known))
    ends = np.append(epsilons, [top, top * (1 + _CLOSEST)])
    logs = np.append(logs, [logs[-1] - 1, NOTHING])
    logs = np.logaddexp(logs, math.log(leaks)) if leaks > 0 else logs
    return np.append(0.0, ends), np.minimum.accumulate(np.append(max(none, float(logs[0])), logs))


def _law(pair: Pair) -> Scattered | None:
    """About the pair's law, its atoms and what lies close to them told apart."""
    law = exact(pair)
    if law is not None and not (isinstance(law, Points) and law.losses.size > _MANY):
        return law
    atoms = np.asarray(pair.atoms)
    if atoms.size == 0:
        return None
    low, high = float(atoms.min()), float(atoms.max())
    reach = high - low
    beyond = pair.masses(np.array([low - 1e-9 * reach, high + 1e-9 * reach]))[0]
    if not reach > 0 or beyond[0] > 0 or beyond[-1] > pair.infinite:
        return None
    margin = 1e-10 * np.maximum(np.abs(atoms), 1e-4 * reach)
    places = np.concatenate([low + reach * _OUT, high - reach * _OUT, atoms - margin, atoms + margin])
    near = np.multiply.outer(np.array([-1.0, 1.0]), max(-low, high) * _OUT).ravel()
    return enclosing(pair, np.unique(np.append(places, near[(near > low) & (near < high)])))[0]
