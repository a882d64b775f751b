"""What a group is seen to lose at a glance: lower bounds on its delta, without a single contour integral.

They tell where epsilon is beyond 1e4, or delta next to 1, and cost some ten milliseconds.
"""

from __future__ import annotations

import math

import numpy as np

from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping import gains
from hush.accounting.grouping.told import log_deltas
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.pairs.hopeless import least_delta, log_delta_above

BESIDE = 20.0
"""Beyond an epsilon: e^-20 of delta are left out."""
_PLACES = 280
_NEAREST, _FURTHEST = 1e-5, 1.5  # shares of an epsilon where a single record is looked at
_EVENLY = 1e-3  # times smaller than if all records told as much
_WORTH = 10.0  # an epsilon: at smaller ones looks cost little
_LOST = 2e-4  # of what many records gain


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
    nearest = min(_NEAREST, _EVENLY / group.size)
    places = np.geomspace(nearest * epsilon, _FURTHEST * epsilon, _PLACES)
    logs = np.max([log_deltas(steps, places) for steps in ways], axis=0)
    least = max(least_delta(steps) for steps in ways)
    slopes, values = np.append(0.0, places), np.append(logs, math.log(least) if least > 0 else -math.inf)
    told = np.append(values[:-1] > -np.inf, True)
    last = int(np.sum(told)) - 1  # from the last place that tells anything on
    record = gains.of_lines(slopes[: last + 1], np.append(values[:last], values[-1]))
    return gains.log_delta(record.times(group.size, upper=False, share=_LOST), epsilon, upper=False)
