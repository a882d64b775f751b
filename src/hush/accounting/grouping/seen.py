"""What a group is seen to lose at a glance: lower bounds on its delta, without a single contour integral.

They tell where epsilon is beyond 1e4, or delta next to 1, and cost some milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping.powers import of_lines
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.lattices.bins import one_law
from hush.accounting.pairs.hopeless import least_delta, log_delta_above
from hush.accounting.pairs.losses import Array, Pair
from hush.accounting.pairs.points import Points

Steps = Sequence[tuple[Pair, int]]

BESIDE = 20.0
"""Beyond an epsilon: e^-20 of delta are left out."""
_PLACES = 200
_NEAREST, _FURTHEST = 1e-3, 1.5  # shares of an epsilon where a single record is looked at
_EVERY = 14  # of them, at which mean and variance are asked
_EDGES = np.concatenate([-np.geomspace(1e-6, 30.0, 30)[::-1], [0.0], np.geomspace(1e-6, 3e4, 400)])
_MOST, _NUMBERS = 1e4, 24  # large losses, and how many numbers of them are tried
_TIMES = 4
_WORTH = 10.0  # an epsilon: at smaller ones looks cost little
_SPARE = 3.0  # logs: all but e^-3 of the chance of large losses is told
_LEVELS = np.concatenate([np.linspace(0.0, 60.0, 61), np.geomspace(70.0, 1000.0, 40)])


def log_seen(group: Group, epsilon: float) -> float:
    """log of the largest of what a single record, the plain Gaussians alone, equal links, and chains tell.

    A single record's d = delta(e) gives g(a) >= min(d, e^e a) for every a, so k of them min(d, e^{ke} a), and with
    a = d e^{-ke} delta(eps) >= d (1 - e^{eps - ke}).
    """
    squared = plain(group)
    alone = gaussian_curve(squared)(np.array([epsilon]))[0][0] if squared > 0 else -math.inf
    equal, ways = (epsilon + BESIDE) / group.size, directions(group.inner)
    links = max(log_delta_above(steps, equal) for steps in ways) + log_reached(group.size, equal, epsilon)
    single = max(log_delta_above(steps, epsilon) for steps in ways)
    return max(float(alone), links, single, log_chained(group, epsilon))


def log_reached(size: int, equal: float, epsilon: float) -> float:
    """log of what equal links keep of a single record's delta, from below: 1 - e^{eps - ke}."""
    return math.log(-math.expm1(epsilon - size * equal)) - 1e-12


def plain(group: Group) -> float:
    """mu^2 of the plain Gaussians alone."""
    return group.size**2 * math.fsum(count * part.mu**2 for part, count in group.inner.parts() if part.mu is not None)


@np.errstate(all="ignore")
def log_chained(group: Group, epsilon: float) -> float:
    """log delta of a group, from below, by a chain of links that are looked at but roughly.

    Let v_1 >= v_2 >= .. be lower bounds on a single record's delta at places e_1 < e_2 < .., as delta falls those up to
    them too.  So for e in (e_{j-1}, e_j] delta(e) + e^e a is at least v_j + e^{e_{j-1}} a, and g at least the least of
    these lines, with e_0 = 0, and of one of slope e^{e_n} from the least delta.  From any level a the power
    p = g(g(..g(a))) gives delta >= p - e^eps a.
    """
    if epsilon < _WORTH:
        return -math.inf
    ways = directions(group.inner)
    places = np.geomspace(_NEAREST * epsilon, _FURTHEST * epsilon, _PLACES)
    logs = np.max([_log_deltas(steps, places) for steps in ways], axis=0)
    least = max(least_delta(steps) for steps in ways)
    slopes, values = np.append(0.0, places), np.append(logs, math.log(least) if least > 0 else -math.inf)
    told = np.append(values[:-1] > -np.inf, True)
    last = int(np.sum(told)) - 1  # from the last place that tells anything on
    power = of_lines(slopes[: last + 1], np.append(values[:last], values[-1]))
    levels = -epsilon - _LEVELS
    reached = levels
    for _ in range(group.size):
        reached = power.at(reached)
    reached = np.minimum(reached, 0.0) - 1e-12 - 2.0**-48 * group.size * (1 + np.abs(levels) + epsilon)
    found = reached + np.log(np.maximum(-np.expm1(np.minimum(epsilon + levels - reached, 0.0)), 0.0))
    best = float(np.max(np.nan_to_num(found, nan=-np.inf, neginf=-np.inf)))
    return best - 1e-12 if best > -1e300 else -math.inf


def _log_deltas(steps: Steps, places: Array) -> Array:
    """Lower bounds on log delta: by mean and variance, and by several large losses of one kind of steps."""
    found = np.full(places.size, -np.inf)
    found[::_EVERY] = [log_delta_above(steps, float(place)) for place in places[::_EVERY]]
    for pair, count in steps:
        law = one_law(pair, _EDGES, above=False)
        found = np.fmax(found, _by_large_ones(law, count, places))
    return np.maximum.accumulate(found[::-1])[::-1]


def _by_large_ones(law: Points, count: int, places: Array) -> Array:
    """log delta at epsilons, from below, by the event A that just m of T losses exceed some x.

    With r the chance of one, P(A) is (T choose m) r^m (1-r)^{T-m}, and Q(A) at most (T choose m) (e^-x r)^m.  So with
    m x >= eps + 3 - (T-m) log(1-r) delta is at least P(A) - e^eps Q(A) >= (1 - e^-3) P(A).
    """
    order = np.argsort(law.losses, kind="stable")
    losses, tails = law.losses[order], np.append(np.logaddexp.accumulate(law.logs[order][::-1])[::-1], -np.inf)
    numbers = np.unique(np.rint(np.geomspace(1, min(count, _MOST), _NUMBERS)))
    needed = np.add.outer(places, np.zeros(numbers.size)) + _SPARE
    more = np.zeros(needed.shape)
    for _ in range(_TIMES):
        at = (needed + more) / numbers * (1 + 1e-9)
        rate = tails[np.searchsorted(losses, at, side="right")]
        rest = (count - numbers) * np.log1p(-np.minimum(np.exp(rate) + 1e-12, 1 - 1e-16))
        more = np.maximum(more, -rest)
    ways = gammaln(count + 1) - gammaln(numbers + 1) - gammaln(count - numbers + 1)
    logs = ways * (1 - 1e-9) - 1e-6 + numbers * rate + rest
    logs = np.where(needed - rest <= numbers * at * (1 - 1e-12), logs, -np.inf)
    return np.asarray(logs.max(axis=1) + math.log(-math.expm1(-_SPARE)) - 1e-9)
