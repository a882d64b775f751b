"""A certified accountant for any composition of `Pair`s: delta(epsilon) and epsilon(delta), enclosed.

The bounds come from the lattice laws of `laws.py`. Here a rough survey of the losses says where to look
(tilt, cut-offs, spacing), and the lattice is refined until lower and upper bound agree. The survey enters no bound: a
poor one costs width, not truth.

Proved: the bounds hold for every tilt, spacing and cut-off, in exact arithmetic, with the rounding of the transforms
counted and with masses as far off as `hush.accounting.pairs.doubts` says. The losses of atoms and edges are good to
e = 2^-50 of themselves; T steps shift epsilon by 2.1 T e at most, and the bounds carry twice that margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush.accounting.lattices import readings
from hush.accounting.lattices.laws import Law, WindowTooLongError, compose_long, discretise, is_short
from hush.accounting.lattices.readings import MASS_ERROR
from hush.accounting.pairs.doubts import doubts
from hush.accounting.pairs.joined import joined
from hush.accounting.pairs.losses import Array, Enclosed, Pair
from hush.accounting.pairs.survey import LARGEST, Plan, Survey

Steps = Sequence[tuple[Pair, int]]

_POINTS = 5_000_000  # lattice points transformed, all steps together: refinement stops here, after about a second
_MASS_COST, _LAW_COST = 40, 8000  # what the mass of a bin, and a law, cost in lattice points
_FINEST = 8e-13  # no narrower epsilon is asked for
_ANCHORS = 12
_MOST_FINER = 8.0  # than the lattice before
_SOME, _MANY = 4, 25
_NARROW, _BELOW, _ABOVE = 0.03, 120.0, 20.0
"""Width of the bins around a large epsilon, and how far below and above it they reach."""


@dataclass
class Budget:
    """How many more lattice points may be transformed: counted, not timed, so that answers are the same everywhere."""

    left: int
    finer: float = 2.0
    """How many times finer the next lattice is to be."""


@np.errstate(all="ignore")
def log_delta(
    steps: Steps, epsilons: Array, tolerance: float = 1e-3, shown: float = 0.0, rival: Array | None = None
) -> tuple[Array, Array]:
    """Certified bounds (lower, upper) on log delta at ascending epsilons (negative ones too), in the direction given.

    ``delta(eps) = P(L = inf) + E_P[(1 - exp(eps - L))_+]`` for the sum L of all losses. Pass the reversed pairs for
    the other direction. Refines until the width is ``tolerance * max(1, |log delta|)``, or ``shown`` of delta, or the
    upper bound hardly exceeds the ``rival``, another one of which the larger counts, or until the budget of lattice
    points is spent.
    """
    wanted = np.asarray(epsilons, dtype=np.float64)
    flat = wanted.ravel()
    others = np.full(flat.shape, -np.inf) if rival is None else rival.ravel()
    lower, upper = np.full(flat.shape, -np.inf), np.zeros(flat.shape)
    survey = _surveyed(steps)
    budget = Budget(_POINTS * (1 if flat.size <= _ANCHORS else 2))
    tilts: list[float] = []

    def is_enough(k: int) -> bool:
        allowed = tolerance * max(1.0, -upper[k])
        seen = math.exp(upper[k]) - math.exp(lower[k]) <= shown
        return seen or upper[k] <= others[k] + 0.3 * allowed or _settled(lower[k], upper[k], tolerance)

    anchors, together = _anchors(flat.size), flat.size > _ANCHORS
    for at in anchors:
        if is_enough(at):
            continue
        if budget.left <= 0 and np.all(np.isfinite(lower)):
            break
        plan, rough = survey.plan_at(float(flat[at]))
        if together and plan.tilt in tilts and lower[at] > -math.inf:
            continue  # the same law again
        tilts.append(plan.tilt)
        for less, more in _refinements(survey, plan, rough, tolerance, budget):
            lower = np.maximum(lower, readings.curve(less, flat, survey.doubt, upper=False))
            upper = np.minimum(upper, readings.curve(more, flat, survey.doubt, upper=True))
            poor = [k for k in (anchors if together and plan.tilt == 0 else [at]) if not is_enough(k)]
            if not poor:
                break
            # what is wrong is of second order in the spacing, or a little less
            excess = max(float(upper[k] - lower[k]) / (tolerance * max(1.0, -upper[k])) for k in poor)
            budget.finer = min(max(1.2 * excess**0.6, 2.0), _MOST_FINER)
        budget.finer = 2.0
    return np.minimum(lower, upper).reshape(wanted.shape), np.maximum(lower, upper).reshape(wanted.shape)


def _surveyed(steps: Steps) -> Survey:
    """The steps joined, unless one lattice passes through all their atoms."""
    alone = Survey(tuple(steps))
    if len(steps) < _SOME or shares_lattice(steps):
        return alone
    fewer, owed = joined(steps)
    return Survey(fewer, owed=alone.doubt + owed) if len(fewer) < len(steps) else alone


def _anchors(size: int) -> list[int]:
    """Which epsilons of many to set up a computation for, from the middle outwards: its laws serve the others too."""
    if size <= _ANCHORS:
        return sorted(range(size), key=lambda k: abs(k - size // 2))
    chosen = np.unique(np.rint(np.linspace(0, size - 1, _ANCHORS)).astype(int)).tolist()
    return sorted(chosen, key=lambda k: abs(k - size // 2))


@np.errstate(all="ignore")
def guess(steps: Steps, log_delta: float) -> float:
    """Roughly the epsilon of a delta, without a bound."""
    return _surveyed(steps).guess(log_delta)


@np.errstate(all="ignore")
def epsilon(steps: Steps, log_delta: float, tolerance: float = 1e-3) -> tuple[float, float]:
    """Certified bounds (lower, upper) on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta).

    (0, 0) where delta(0) is small enough already; (LARGEST, inf) where epsilon exceeds LARGEST.
    """
    survey = _surveyed(steps)
    budget = Budget(_POINTS)
    low, high = 0.0, math.inf
    target = survey.guess(log_delta)
    tolerance = max(tolerance, min(_FINEST / target, 0.1))
    # A coarse round corrects the guess, which is far off for heavy tails; with many laws it would cost as much again.
    for aim in (max(tolerance, 0.05) if len(survey.steps) < _MANY else tolerance, tolerance):
        for less, more in _refinements(survey, survey.plan(target, log_delta)[0], log_delta, aim, budget):
            low = max(low, readings.epsilon_lower(less, log_delta, survey.doubt))
            high = min(high, readings.epsilon_upper(more, log_delta, survey.doubt))
            if low >= LARGEST or high - low <= max(aim * high, _FINEST) < math.inf:
                break
        target = high if high < math.inf else max(low, target)
        if budget.left <= 0:
            break
        if low >= LARGEST or high - low <= max(tolerance * high, _FINEST) < math.inf:
            break
    if high > LARGEST:
        return min(low, LARGEST), math.inf
    return min(low, high), max(low, high)


@np.errstate(all="ignore")
def log_mgf(pair: Pair, orders: Array, fineness: float = 0.02) -> tuple[Array, float]:
    """Upper bounds on log E_P[e^{order L}] of one step at each order > 0, and the P-mass outside them.

    The bounds are of the more revealing lattice law without its mass at infinite loss, which is the second value:
    Renyi bounds from the first hold but for an event of that probability. It is 1e-290 unless the tail is heavy.
    """
    wanted = np.asarray(orders, dtype=np.float64)
    survey = Survey(((pair, 1),))
    bounds, outside = np.empty(wanted.size), 0.0
    for k, order in enumerate(wanted.ravel()):
        plan = survey.plan_tilt(float(order), -survey.reach, survey.reach)
        _, more = _discretised(survey, plan, plan.deviation * fineness, on_atoms=False)[0]
        bounds[k] = more.tilted(float(order))[0] + 3 * MASS_ERROR * (1 + order)
        outside = max(outside, more.infinite)
    return bounds.reshape(wanted.shape), outside


def _refinements(
    survey: Survey, plan: Plan, log_delta: float, tolerance: float, budget: Budget
) -> Iterator[tuple[Law, Law]]:
    """Pairs (lower, upper) of composed laws by a plan, each finer than the one before, while the budget lasts."""
    floor = log_delta - math.log(survey.total) - 20
    fineness = min(0.5, (2.2 if len(survey.steps) < _MANY else 1.9) * math.sqrt(tolerance))
    step = _common_step(survey.steps)
    first = fineness * plan.deviation
    # Where all mass lies on one lattice, that lattice is exact, however coarse.
    if 0.02 * plan.deviation < step < (20 * plan.deviation if shares_lattice(survey.steps) else first):
        first = step
    counts = [count for _, count in survey.steps]
    cost, finest, before = 0, math.inf, math.inf
    for attempt in range(16):
        if attempt > 0 and 1.5 * cost > budget.left:
            return
        spacing = fineness * plan.deviation if attempt > 0 else first
        if step > spacing / 2:
            spacing = step / max(1, round(step / spacing))
        if spacing > 0.75 * before:
            fineness /= 2
            continue
        before = spacing
        try:
            laws = _discretised(survey, plan, spacing, on_atoms=step > spacing / 2)
            less = compose_long([less for less, _ in laws], counts, plan.tilt, fineness, floor, upper=False)
            more = compose_long([more for _, more in laws], counts, plan.tilt, fineness, floor, upper=True)
            stages = (
                1 if is_short([more for _, more in laws], counts, plan.tilt) else 1 + 4 * math.log(survey.total, 1024)
            )
            points = sum(int(law.index[-1] - law.index[0]) for law in (less, more))
            asked = int(4 * plan.deviation / spacing)  # bins at least, though few of them hold any mass
            masses = sum(_LAW_COST + _MASS_COST * max(more.index.size, asked) for _, more in laws)
            cost = max(int(stages * len(laws) * points) + masses, _POINTS // 40)
            budget.left -= cost
            yield less, more
            finest = fineness
            finer = min(budget.finer, max(budget.left / cost, 1.5))
            fineness /= finer if spacing <= 2 * fineness * plan.deviation else 1
        except WindowTooLongError as problem:
            before = math.inf
            fineness *= 1.05 * problem.excess
            if fineness > 0.9 * finest:
                return
        except (ValueError, OverflowError):  # masses beyond the floating-point range: no law, hence no bound
            return


def _discretised(survey: Survey, plan: Plan, spacing: float, *, on_atoms: bool) -> list[tuple[Law, Law]]:
    """Lower and upper lattice law of every step.

    Points are ``spacing`` apart within four deviations of the centre; beyond, they spread in proportion to the
    distance, which by Chebyshev's inequality adds no more variance than the fine part does; at losses above 50, where a
    few jumps decide, four times more slowly.  Bins wider than 1 cost first order in their width, and where a single
    large loss decides it is those around epsilon that count: there they are narrow again.
    """
    laws = []
    for (pair, _), centre in zip(survey.steps, plan.centres, strict=True):
        atoms = _on_lattice(pair, spacing) if on_atoms else ()
        origin = atoms[0] if atoms else _origin(pair, float(centre), spacing)
        middle = round((float(centre) - origin) / spacing)
        ratio = spacing / (4 * plan.deviation)
        near = max(4, math.ceil(1 / ratio))
        bend = max(near + 1.0, 50 / spacing)
        furthest = max((plan.high - centre) / spacing, (centre - plan.low) / spacing, near + 1.0)
        far = near * (1 + 1 / near) ** np.arange(1, math.log(min(furthest, bend) / near) * (near + 1) + 2)
        further = far[-1] * (1 + 1 / (4 * near)) ** np.arange(
            1, math.log(furthest / min(furthest, bend)) * (4 * near + 1) + 2
        )
        offsets = np.concatenate([np.arange(near + 1), np.minimum(np.append(far, further), 2.0**60)]).astype(np.int64)
        index = np.concatenate([middle - offsets, middle + offsets, _places(atoms, origin, spacing)]).astype(np.int64)
        around = _around(plan.epsilon - origin, spacing)
        index = np.concatenate([index, around]) if plan.epsilon > 8 else index
        losses = origin + spacing * index
        ends = [math.floor((plan.low - origin) / spacing), math.ceil((plan.high - origin) / spacing)]
        index = np.unique(np.append(index[(losses > plan.low) & (losses < plan.high)], ends).astype(np.int64))
        laws.append(discretise(pair, spacing, origin, index, isolated=np.isin(index, _places(atoms, origin, spacing))))
    return laws


def _around(offset: float, spacing: float) -> NDArray[np.int64]:
    """Lattice points close together where one loss that reaches an offset may lie, the others adding a little."""
    step = max(1, round(_NARROW / spacing))
    first, last = (math.floor(place / spacing / step) for place in (offset - _BELOW, offset + _ABOVE))
    return step * np.arange(first, last + 1, dtype=np.int64)


def _places(losses: Sequence[float], origin: float, spacing: float) -> NDArray[np.int64]:
    return np.rint((np.asarray(losses, dtype=np.float64) - origin) / spacing).astype(np.int64)


def _on_lattice(pair: Pair, spacing: float) -> tuple[float, ...]:
    """The pair's atoms, if one lattice passes through them all."""
    if not pair.atoms:
        return ()
    gaps = np.asarray(pair.atoms) - pair.atoms[0]
    missed = np.abs(gaps - spacing * np.rint(gaps / spacing))
    return pair.atoms if np.all(missed <= 2 * MASS_ERROR * (1 + np.abs(pair.atoms).max())) else ()


def _origin(pair: Pair, centre: float, spacing: float) -> float:
    """An origin at the pair's only atom or where most mass lies.

    Where next to nothing lies outside that point's bin it finds no partner, and were it short of P-mass by rounding it
    would move down by a whole spacing: so the origin lies where it isn't short.
    """
    origin = pair.atoms[0] if len(pair.atoms) == 1 else _centroid(pair, centre, spacing)
    edges = np.array([origin - spacing / 2, origin + spacing / 2])
    lower = pair.lower if isinstance(pair, Enclosed) else pair
    p, q = lower.masses(edges)
    if p[2] > 1e-9 * p[1]:
        return origin
    p, q = doubts(lower, p, q, edges).less(p, q)
    level = math.log(p[1] / q[1]) - 2.0**-50 if p[1] > 0 and q[1] > 0 else origin
    return min(origin, level) if abs(level - origin) < 1e-3 * spacing else origin


def _centroid(pair: Pair, centre: float, spacing: float) -> float:
    """An origin with a lattice point where the mass of the heaviest bin lies, so that a near-atom needs no partner.

    It is missed by a little towards the side where there is more mass, so that what is left finds a partner there.
    """
    p, q = pair.masses(np.asarray(centre + spacing * (np.arange(-40, 41) + 0.5), dtype=np.float64))
    heaviest, missed = int(np.argmax(p[1:-1])) + 1, 0.0
    for _ in range(40):
        if not (p[heaviest] > 0 and q[heaviest] > 0):
            return centre
        before, centre = centre, math.log(p[heaviest] / q[heaviest])
        p, q = pair.masses(np.array([centre - spacing / 2, centre + spacing / 2]))
        heaviest = 1
        missed = min(1e-3, 0.01 * max(p[0], p[2]) / max(p[1], 1e-300))
        if abs(centre - before) < max(0.03 * missed, 1e-12) * spacing:
            break
    return centre + math.copysign(missed, p[2] - p[0]) * spacing


def _common_step(steps: Steps) -> float:
    """The largest spacing whose lattices pass through all atoms, each step's through its own.

    Where there is none, a gap of the commonest step; 0 without atoms.
    """
    often = sorted(steps, key=lambda step: -step[1])
    gaps = [abs(atom - pair.atoms[0]) for pair, _ in often for atom in pair.atoms[1:]]
    gaps = [gap for gap in gaps if gap > 0]
    if not gaps:
        return 0.0
    step = 0.0
    for gap in gaps:
        larger, smaller = max(step, gap), min(step, gap)
        while smaller > 1e-9 * max(gaps):
            larger, smaller = smaller, abs(larger - smaller * round(larger / smaller))
        step = larger
    return step if step > 1e-3 * max(gaps) else gaps[0]


def shares_lattice(steps: Steps) -> bool:
    """Whether all atoms lie on one lattice, each step's moved to its own origin: then it is exact, however coarse."""
    step = _common_step(steps)
    return step > 0 and all(_on_lattice(pair, step) for pair, _ in steps if pair.atoms)


def _settled(lower: float, upper: float, tolerance: float) -> bool:
    return lower > -math.inf and upper - lower <= tolerance * max(1.0, -upper)
