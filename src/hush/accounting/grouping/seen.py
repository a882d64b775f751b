"""What a group is seen to lose at a glance: lower bounds on its delta, without a single contour integral.

They tell where epsilon is beyond 1e4, or delta next to 1, and cost some ten milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, ndtr

from hush.accounting.gaussian.closed import gaussian_curve
from hush.accounting.grouping import gains
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.lattices.bins import one_law
from hush.accounting.pairs import single
from hush.accounting.pairs.hopeless import least_delta, log_delta_above
from hush.accounting.pairs.losses import Array, GaussianPair, Pair
from hush.accounting.pairs.points import Points
from hush.accounting.pairs.projection import deepened

Steps = Sequence[tuple[Pair, int]]

BESIDE = 20.0
"""Beyond an epsilon: e^-20 of delta are left out."""
_PLACES = 280
_NEAREST, _FURTHEST = 1e-5, 1.5  # shares of an epsilon where a single record is looked at
_EVENLY = 0.1  # times smaller than if all records told as much
_EVERY = 14  # of them, at which mean and variance are asked
_EDGES = np.concatenate([-np.geomspace(1e-6, 30.0, 30)[::-1], [0.0], np.geomspace(1e-6, 3e4, 400)])
_MOST, _NUMBERS = 1e4, 24  # large losses, and how many numbers of them are tried
_TIMES = 4
_ORDERS = np.append(0.0, np.geomspace(1e-3, 1e4, 120))
_LARGEST = np.geomspace(1e-3, 3e4, 32)
_PARTS, _DEVIATIONS = (0.03, 0.1, 0.3, 1.0, 3.0), (1.2, 1.7, 3.0)  # of a tilted law
_PLACED, _SPARES = np.linspace(-6.0, 4.0, 41), (0.1, 0.3, 1.0, 3.0, 8.0)
_ROUNDED, _DOUBT = 1e-12, 1e-6  # of sums, and of deviations where they are no smaller a part of losses
_WORTH = 10.0  # an epsilon: at smaller ones looks cost little
_SPARE = 3.0  # logs: all but e^-3 of the chance of large losses is told
_LOST = 1e-3  # of what many records gain


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
    logs = np.max([_log_deltas(steps, places) for steps in ways], axis=0)
    least = max(least_delta(steps) for steps in ways)
    slopes, values = np.append(0.0, places), np.append(logs, math.log(least) if least > 0 else -math.inf)
    told = np.append(values[:-1] > -np.inf, True)
    last = int(np.sum(told)) - 1  # from the last place that tells anything on
    record = gains.of_lines(slopes[: last + 1], np.append(values[:last], values[-1]))
    return gains.log_delta(record.times(group.size, upper=False, share=_LOST), epsilon, upper=False)


def _log_deltas(steps: Steps, places: Array) -> Array:
    """Lower bounds on log delta: by mean and variance, tilted or not, and by several large losses of one kind."""
    found = _by_tilts(steps, places)
    found[::_EVERY] = np.fmax(found[::_EVERY], [log_delta_above(steps, float(place)) for place in places[::_EVERY]])
    for pair, count in steps:
        law = one_law(pair, _EDGES, above=False)
        found = np.fmax(found, _by_large_ones(law, count, places))
        if (deep := deepened(pair)) is not pair:  # one of them is as far out as all
            found[::_EVERY] = np.fmax(found[::_EVERY], single.curve(deep)(places[::_EVERY])[0])
    return np.maximum.accumulate(found[::-1])[::-1]


@np.errstate(all="ignore")
def _by_tilts(steps: Steps, places: Array) -> Array:
    """log delta at epsilons, from below, by the central limit theorem for tilted losses, none of which exceeds some x.

    The law e^{cL - K(c)} P of all such steps, K the log of their moment generating function, has the mean m = K'(c) and
    the variance v = K''(c).  Of it at least Phi(u) - 1/2 - 1.12 r lies between m and m + t, t = u sqrt(v), by Berry and
    Esseen's theorem (with 0.56, Shevtsova 2010; r adds up the third absolute moments about the means, over v^(3/2), and
    normal losses, sums of ever smaller ones, have none), and 1 - 1/u^2 between m - t and m + t by Chebyshev's
    inequality.  There P is at least e^{K - c(m + t)} of it, and delta(e) at least 1 - e^-y of what P has beyond e + y.
    """
    laws = [(one_law(pair, _EDGES, above=False), n) for pair, n in steps if not isinstance(pair, GaussianPair)]
    square = math.fsum(count * pair.mu**2 for pair, count in steps if isinstance(pair, GaussianPair))
    found = [_by_tilts_up_to(largest, laws, square) for largest in (_LARGEST if laws else _LARGEST[-1:])]
    reached, logs = (np.concatenate([part[k] for part in found]) for k in (0, 1))
    order = np.argsort(reached, kind="stable")
    best = np.append(np.maximum.accumulate(logs[order][::-1])[::-1], -np.inf)
    return np.asarray(best[np.searchsorted(reached[order], places)])


def _by_tilts_up_to(largest: float, laws: Sequence[tuple[Points, int]], square: float) -> tuple[Array, Array]:
    """Epsilons, and lower bounds on log delta there, from losses up to so much, and the normal ones' mu^2."""
    value, mean = 0.5 * square * _ORDERS * (_ORDERS + 1), square * (_ORDERS + 0.5)
    variance, third = np.full(_ORDERS.size, square), np.zeros(_ORDERS.size)
    value, off = value * (1 - _ROUNDED), mean * _ROUNDED
    for law, count in laws:
        inside = law.losses <= largest
        if not inside.any():
            return np.empty(0), np.empty(0)
        own, middle, spread, beyond = _tilted(law.losses[inside], law.logs[inside])
        size = np.sqrt(spread + middle**2)
        value = value + count * (own - _ROUNDED * (10 + np.abs(own) + 2 * _ORDERS * size))
        mean, variance, third = mean + count * middle, variance + count * spread, third + count * beyond
        off = off + count * np.where(spread >= _ROUNDED * middle**2, _ROUNDED * size, np.inf)
    deviation, ratio, y = np.sqrt(variance), third / variance**1.5 * (1 + _DOUBT), 1 / _ORDERS
    rows = []
    for part in _PARTS:
        kept = ndtr(part) - 0.5 - 1.12 * ratio - 1e-9
        rows.append((-off, off + part * deviation * (1 + _DOUBT), y, kept))
    for times in _DEVIATIONS:
        away = off + times * deviation * (1 + _DOUBT)
        rows.append((-away, away, y, np.full(y.size, 1 - 1 / times**2 - 1e-9)))
    ends = [(mean + begin - y, value - _ORDERS * (mean + end), y, kept) for begin, end, y, kept in rows]
    # untilted, all that lies beyond some place counts
    at = mean[0] - off[0] + _PLACED * deviation[0] * (1 - _DOUBT * np.sign(_PLACED))
    for spare in _SPARES:
        kept, all_of = ndtr(-_PLACED) - 0.56 * ratio[0] - 1e-9, np.full(at.size, value[0])
        ends.append((at - spare, all_of, np.full(at.size, spare), kept))
    reached = np.concatenate([end[0] for end in ends])
    logs = np.concatenate([heights + np.log(-np.expm1(-y)) + np.log(kept) - 1e-9 for _, heights, y, kept in ends])
    known = np.isfinite(reached) & np.isfinite(logs)
    return reached[known], logs[known]


def _tilted(losses: Array, logs: Array) -> tuple[Array, Array, Array, Array]:
    """Of one law at all orders: K, the mean, the variance, and the third absolute moment about the mean."""
    exponents = np.multiply.outer(_ORDERS, losses) + logs
    peaks = exponents.max(axis=1)
    weights = np.exp(exponents - peaks[:, None])
    totals = weights.sum(axis=1)
    weights /= totals[:, None]
    mean = weights @ losses
    apart = np.abs(losses - mean[:, None])
    weights *= apart * apart
    return peaks + np.log(totals), mean, weights.sum(axis=1), (weights * apart).sum(axis=1)


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
