"""Epsilon and delta of steps composed, in one direction, by the engine that fits them.

one release                                                    -> single (the tails of its loss)
projected norms, or many kinds of continuous losses            -> heavy (paths sorted by their largest loss)
a few equal samples under replace-one                          -> replaced.few (quadrature), close to delta(0)
many equal samples under replace-one                           -> replaced.many (one contour integral), no loss large
many samples of Gaussian or Laplace noise, among others        -> decaying (one contour integral), no loss large
other steps that share no lattice                              -> scattered (contour integrals of averaged curves)
steps on one lattice, and what none of these makes narrow      -> lattice (two discretised laws that enclose the truth)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from hush.accounting.contours import crossing
from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.kinds import Steps
from hush.accounting.lattices import lattice
from hush.accounting.mixed import decaying, scattered
from hush.accounting.pairs import single
from hush.accounting.pairs.bounded import largest_total
from hush.accounting.pairs.hopeless import least_delta, log_short_of_one, surely_beyond
from hush.accounting.pairs.losses import Array, Enclosed
from hush.accounting.pairs.points import Points, exact
from hush.accounting.replaced import few as replaced_few
from hush.accounting.replaced import many as replaced_many
from hush.accounting.tails import heavy

Engine = Callable[[Steps, float, float], tuple[float, float]]

NEAR_ONE = -0.1  # log of a delta above which the digits of 1 - delta count
FEW = 4  # epsilons that may each have a look of their own
_ENOUGH = 0.01  # the relative width of an interval that no other engine makes narrower
_FINEST = 1e-12  # the width of an interval that is narrow enough whatever epsilon
_NEXT_TO_ONE = -34.0  # log of 1 - delta: in floating point it is 1
_LOWEST = -600.0  # log of a delta that no floating-point number shows much of
_DEEP_TAIL = -250.0  # and one where tails of projections have few digits left
_ENUMERABLE = 1000  # totals of all steps together


def epsilon(steps: Steps, log_delta: float, tolerance: float, known: float = 0.0) -> tuple[float, float]:
    """By contour integrals or, where all atoms share a lattice, by that; by both if one isn't enough.

    Of less than is `known` of the other direction it is enough to know that it is.
    """
    if surely_beyond(steps, log_delta):
        return EPSILON_LIMIT, math.inf
    engines: list[Engine] = [lattice.epsilon]
    by_tails: Engine = partial(heavy.epsilon, known=known)
    if log_delta < NEAR_ONE:
        # the other one next: deep, or with a tiny rate, one large loss may decide, and elsewhere many small ones
        contours = [by_tails, scattered.epsilon] if heavy.fits(steps) else [scattered.epsilon, by_tails]
        engines.insert(1 if lattice.shares_lattice(steps) else 0, contours[0])
        if heavy.knows(steps) and not heavy.is_heavy(steps):
            engines.insert(len(engines) - 1, contours[1])
    if len(steps) == 1 and steps[0][1] == 1:
        # between two pairs nothing knows more than their own curves
        engines = [_single_epsilon] if isinstance(steps[0][0], Enclosed) else [_single_epsilon, *engines]
    if log_delta < NEAR_ONE and scattered.enumerated(steps, _ENUMERABLE) is not None:
        engines = [scattered.epsilon]  # a sum over all that can happen: nothing knows more
    if (beside_atoms := single.among(steps)) is not None and log_delta < NEAR_ONE:
        return crossing.root_of_each(beside_atoms, 1.0, log_delta, tolerance)
    if log_delta < NEAR_ONE and decaying.fits(steps):
        engines.insert(0, decaying.epsilon)
    if replaced_few.fits(steps, log_delta):
        engines.insert(0, replaced_few.epsilon)
    if replaced_many.fits(steps) and log_delta < NEAR_ONE:
        engines.insert(0, replaced_many.epsilon)
    low, high = 0.0, math.inf
    for engine in engines:
        found = engine(steps, log_delta, tolerance)
        low, high = max(low, found[0]), min(high, found[1])
        # the lattice knows less of heavy tails and of many kinds, and bins less of deltas close to delta(0)
        best = engine is replaced_few.epsilon or (engine is by_tails and heavy.fits(steps))
        enough = max(1.1 * tolerance, _ENOUGH if best else 0.0)
        if low >= EPSILON_LIMIT or high <= known or high - low <= max(enough * high, _FINEST) < math.inf:
            break
    return low, high


def _single_epsilon(steps: Steps, log_delta: float, tolerance: float) -> tuple[float, float]:
    """Of one release, by the tails of its loss."""
    return crossing.root_of_each(single.curve(steps[0][0]), 1.0, log_delta, tolerance)


def log_delta(
    steps: Steps, epsilons: Array, tolerance: float, shown: float = 0.0, rival: Array | None = None
) -> tuple[Array, Array]:
    """In one direction: as well as a curve shows, or only from above as far as another direction's doesn't hide it."""
    if np.all(epsilons >= largest_total(steps)):
        return np.full(len(epsilons), -np.inf), np.full(len(epsilons), -np.inf)
    least = least_delta(steps)
    if least > 1 - 1e-9:
        return np.full(len(epsilons), math.log(least)), np.zeros(len(epsilons))
    if (short := log_short_of_one(steps, float(epsilons[-1]))) < _NEXT_TO_ONE:
        return np.full(len(epsilons), math.log1p(-math.exp(short))), np.zeros(len(epsilons))
    if scattered.enumerated(steps, _ENUMERABLE) is not None:
        return scattered.log_delta(steps, epsilons, tolerance)
    if len(steps) == 1 and steps[0][1] == 1:
        lower, upper = single.curve(steps[0][0])(epsilons)
        if isinstance(steps[0][0], Enclosed) or _settled(lower, upper, tolerance):
            return lower, upper
    if (beside_atoms := single.among(steps)) is not None:
        return beside_atoms(epsilons)
    if (
        epsilons.size <= FEW
        and replaced_few.serves(steps, epsilons)
        and (curve := replaced_few.curve(steps)) is not None
    ):
        lower, upper = curve(epsilons)
        if _settled(lower, upper, 12 * tolerance):
            return lower, upper
    finite = all(isinstance(exact(pair), Points) for pair, _ in steps)
    on_lattice = lattice.shares_lattice(steps) and (finite or epsilons.size > FEW)
    if on_lattice or (epsilons.size > FEW and not scattered.fits(steps)):
        return lattice.log_delta(steps, epsilons, tolerance, shown, rival)  # one law serves many epsilons
    if epsilons.size <= FEW and decaying.fits(steps):
        lower, upper = decaying.log_delta(steps, epsilons, tolerance)
        if _settled(lower, upper, 12 * tolerance):
            return lower, upper
    by_tails = heavy.fits(steps) and epsilons.size <= FEW
    lower, upper = (
        heavy.log_delta(steps, epsilons, tolerance, rival)
        if by_tails
        else scattered.log_delta(steps, epsilons, tolerance)
    )
    hidden = rival is not None and np.all(upper <= rival)
    # the lattice knows less of heavy tails, and of what is deep or too far out to be seen
    deep = _DEEP_TAIL if by_tails or np.all(lower == -np.inf) else _LOWEST
    if hidden or _settled(lower, upper, 12 * tolerance) or np.all(upper < deep):
        return lower, upper
    if heavy.knows(steps) and not heavy.fits(steps) and epsilons.size <= FEW:
        low, high = heavy.log_delta(steps, epsilons, tolerance, rival)
        lower, upper = np.maximum(lower, low), np.minimum(upper, high)
        if _settled(lower, upper, 12 * tolerance):
            return lower, upper
    low, high = lattice.log_delta(steps, epsilons, tolerance, shown, rival)
    return np.maximum(lower, low), np.minimum(upper, high)


def falls_before(steps: Steps, epsilon: float, log_delta: float) -> bool:
    """Whether a glance shows that delta is that small at epsilon: as no loss is larger, or as heavy tails are seen."""
    if largest_total(steps) <= epsilon:
        return True
    if heavy.fits(steps):
        return heavy.is_below(steps, epsilon, log_delta)
    return epsilon > 0 and decaying.fits(steps) and decaying.is_below(steps, epsilon, log_delta)


def is_below(steps: Steps, epsilons: Array, log_deltas: Array) -> bool:
    """Whether a glance shows that a curve lies nowhere above these values."""
    return all(falls_before(steps, float(e), float(log)) for e, log in zip(epsilons, log_deltas, strict=True))


def _settled(lower: Array, upper: Array, tolerance: float) -> bool:
    """Whether bounds on log delta are narrow everywhere; both are -inf where delta is 0."""
    with np.errstate(invalid="ignore"):
        return bool(np.all((upper == lower) | (upper - lower <= tolerance * np.maximum(1.0, -upper))))
