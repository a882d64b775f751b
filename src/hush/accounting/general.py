"""Epsilon and delta of mechanisms other than Gaussian steps: groups, and steps of any kind.

groups of records                                              -> grouped (links of a chain)
one release with finitely many outcomes                        -> single (a sum)
steps of any kind                                              -> engines, one direction at a time
"""

from __future__ import annotations

import math

import numpy as np

from hush.accounting import engines
from hush.accounting.answers import LOOSE, largest
from hush.accounting.contours import crossing
from hush.accounting.contours.crossing import EPSILON_LIMIT
from hush.accounting.grouping import grouped
from hush.accounting.grouping.asked import heavy_curve
from hush.accounting.grouping.chains import LONGEST
from hush.accounting.groups import Group
from hush.accounting.kinds import directions, has_renyi
from hush.accounting.kinds import tolerance as usual_tolerance
from hush.accounting.leaks import left_of, sampled_leaks
from hush.accounting.mechanisms import Mechanism
from hush.accounting.mixed import decaying
from hush.accounting.pairs import hopeless, single
from hush.accounting.pairs.hopeless import least_delta
from hush.accounting.pairs.losses import Array, Atoms, Enclosed
from hush.accounting.pairs.points import exact, loss_range
from hush.accounting.releases import Guarantees, RandomisedResponse, Tradeoff
from hush.accounting.sampled import Poisson, Uniform
from hush.accounting.tails import cells, heavy

_FAR_OUT = 100.0  # an epsilon beyond which a curve shows nothing
_CURVED = 1.5e-4  # of delta: what a whole curve of heavy tails may be off
_BLURRED = 4e-4  # of delta: what a curve may be off at most where others could do better
_UNSEEN = 0.02  # of a delta too small to be seen on it
_SHOWN = 0.3  # of the tolerance: what a whole curve need not tell apart of delta
_FAR_BELOW = 1e-6  # of a delta: one that adds next to nothing to it


def epsilon(mechanism: Mechanism, delta: float, tolerance: float | None = None) -> tuple[float, float]:
    """Bounds on the smallest epsilon >= 0 at a delta between 0 and 1."""
    log_delta = math.log(delta)
    if (known := sampled_leaks(mechanism)) and left_of(delta, known)[1] < 0:
        return EPSILON_LIMIT, math.inf  # the leak alone exceeds delta
    aim = tolerance or usual_tolerance(mechanism)
    if isinstance(mechanism, Group):
        return _group_epsilon(mechanism, delta, aim)
    if (finite := _finite_curve(mechanism)) is not None:
        low, high = crossing.root_of_each(finite, 1.0, log_delta, aim)
        return low, min(high, largest(mechanism)[1])
    found: list[tuple[float, float]] = []
    for steps in directions(mechanism):
        if found and engines.falls_before(steps, found[0][0], log_delta):
            continue  # the other direction has the larger epsilon
        found.append(engines.epsilon(steps, log_delta, aim, found[0][0] if found else 0.0))
        if found[-1][0] >= EPSILON_LIMIT:
            break  # the other direction changes nothing
    lowest = max(end for end, _ in found)
    highest = min(max(end for _, end in found), largest(mechanism)[1])
    if known and left_of(delta, known)[0] >= 0:
        highest = min(highest, _largest_finite(mechanism))
    return lowest, highest


def _group_epsilon(group: Group, delta: float, aim: float) -> tuple[float, float]:
    """By its chain or, where that isn't enough, from its whole curve."""
    log_delta, least, most = math.log(delta), 0.0, math.inf
    if (log_delta < engines.NEAR_ONE or group.size > LONGEST) and grouped.fits(group):
        least, most = grouped.epsilon(group, log_delta, aim)
        # whole curves take seconds
        dear = group.size > LONGEST or any(heavy.fits(steps) for steps in directions(group.inner))
        if dear and least == 0 and math.isinf(most):  # its tails' digits end before the chain does
            beyond = grouped.log_delta(group, EPSILON_LIMIT, aim)[0] > log_delta
            least = EPSILON_LIMIT if beyond else group.inner.epsilon(delta).lower
        if dear or least >= EPSILON_LIMIT or most < math.inf:
            return least, min(most, largest(group)[1])
    curve = single.curve(group.pair_above(delta * _FAR_BELOW))
    low, high = crossing.root_of_each(curve, 1.0, log_delta, aim)
    return max(least, low), min(most, high, largest(group)[1])


def _largest_finite(mechanism: Mechanism) -> float:
    """The largest total loss beside infinite ones, rounded up: there delta is the leak."""
    tops = [
        [(law.top if (law := exact(pair)) is not None else loss_range(pair)[1], count) for pair, count in steps]
        for steps in directions(mechanism)
    ]
    return max(math.fsum(count * top for top, count in row) for row in tops) * (1 + 4 * LOOSE)


def log_delta(mechanism: Mechanism, epsilons: Array, floor: float) -> tuple[Array, Array]:
    """Certified bounds on log delta at ascending epsilons >= 0, the larger of both directions."""
    few = epsilons.size <= engines.FEW
    if isinstance(mechanism, Group):
        if not few and mechanism.size > LONGEST and grouped.fits(mechanism):
            return grouped.curve(mechanism, epsilons, usual_tolerance(mechanism))
        if not few or not grouped.fits(mechanism):
            return single.curve(mechanism.pair_above(floor * _FAR_BELOW))(epsilons)
        found = [grouped.log_delta(mechanism, float(epsilon), usual_tolerance(mechanism)) for epsilon in epsilons]
        return np.array([low for low, _ in found]), np.array([high for _, high in found])
    if (finite := _finite_curve(mechanism)) is not None:
        return finite(epsilons)
    most = _CURVED if floor == 0 else _UNSEEN
    if not few and all(decaying.fits(steps) for steps in directions(mechanism)):
        known, lower, upper = decaying.whole(directions(mechanism), epsilons, _CURVED, most)
        if known:
            return lower, upper
    if not few and (is_heavy(mechanism) or (epsilons[-1] < _FAR_OUT and _is_fine(mechanism))):
        return heavy_curve(directions(mechanism), epsilons, _CURVED, most)
    lower, upper = _composed(mechanism, epsilons, floor)
    wide = np.flatnonzero(np.exp(upper) - np.exp(lower) > _BLURRED)
    if few or wide.size == 0 or len(mechanism.parts()) >= cells.MANY:
        return lower, upper
    # one law for all of them isn't sharp: where that can be seen, lines are
    some = slice(max(int(wide[0]) - 1, 0), int(wide[-1]) + 2)
    low, high = heavy_curve(directions(mechanism), epsilons[some], _CURVED, _UNSEEN)
    lower[some], upper[some] = np.maximum(lower[some], low), np.minimum(upper[some], high)
    return np.minimum(lower, upper), np.maximum(lower, upper)


def _composed(mechanism: Mechanism, epsilons: Array, floor: float) -> tuple[Array, Array]:
    """Certified bounds on log delta of pairs composed."""
    aim = usual_tolerance(mechanism)
    curves: list[tuple[Array, Array]] = []
    for steps in directions(mechanism):
        if curves and not epsilons.any():
            continue  # delta(0) is the same in both directions
        if curves and epsilons.size <= engines.FEW and engines.is_below(steps, epsilons, curves[0][0]):
            continue  # the other direction has the larger delta
        rival = curves[0][1] if curves else None
        curves.append(engines.log_delta(steps, epsilons, aim, _SHOWN * aim if floor > 0 else 0.0, rival))
    return np.max([low for low, _ in curves], axis=0), np.max([high for _, high in curves], axis=0)


def log_least(mechanism: Mechanism) -> float:
    """log of what delta is at least, at any epsilon.

    Groups of what never tells everything don't either, and their pair, which takes a whole curve, needn't be known.
    """
    if has_renyi(mechanism) or (isinstance(mechanism, Group) and log_least(mechanism.inner) == -math.inf):
        return -math.inf
    if isinstance(mechanism, Group) and mechanism.size > LONGEST:
        return grouped.log_leak(mechanism, usual_tolerance(mechanism))
    least = max(least_delta(steps) for steps in directions(mechanism))
    return math.log(least) if least > 0 else -math.inf


def most_certain(mechanism: Mechanism) -> float:
    """An upper bound on what delta falls to as epsilon grows; of groups of what may tell everything, and curves, 1."""
    if has_renyi(mechanism):
        return 1.0
    if isinstance(mechanism, Group):
        return 1.0 if most_certain(mechanism.inner) > 0 else 0.0
    return max(hopeless.most_certain(steps) for steps in directions(mechanism))


def is_heavy(mechanism: Mechanism) -> bool:
    """Whether a whole curve is one of a few kinds of heavy-tailed steps."""
    if has_renyi(mechanism) or isinstance(mechanism, Group):
        return False
    return all(heavy.is_simple(steps) for steps in directions(mechanism))


def _is_fine(mechanism: Mechanism) -> bool:
    """Whether a whole curve is one of samples whose losses may be too fine for a lattice."""
    samples = all(isinstance(part, Poisson | Uniform) for part, _ in mechanism.parts())
    return samples and all(heavy.is_fine(steps) for steps in directions(mechanism))


def _finite_curve(mechanism: Mechanism) -> crossing.Curve | None:
    """The curve of a single release whose pair is finite and symmetric: a sum, no engine needed."""
    parts = mechanism.parts()
    if len(parts) > 1 or parts[0][1] > 1 or not isinstance(parts[0][0], Tradeoff | Guarantees | RandomisedResponse):
        return None
    pair = parts[0][0].pair()
    lower, upper = (pair.lower, pair.upper) if isinstance(pair, Enclosed) else (pair, pair)
    if not (isinstance(lower, Atoms) and isinstance(upper, Atoms)):
        return None
    return single.curve(pair)
