"""A single record's log delta from below, however small, without a single contour integral.

Losses are tilted towards an epsilon, or a few large ones of one kind make it up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, ndtr

from hush.accounting.lattices.bins import one_law
from hush.accounting.pairs import single
from hush.accounting.pairs.hopeless import log_delta_above
from hush.accounting.pairs.losses import Array, GaussianPair, Pair
from hush.accounting.pairs.points import Points
from hush.accounting.pairs.projection import deepened

Steps = Sequence[tuple[Pair, int]]

_EVERY = 14  # of them, at which mean and variance are asked
_EDGES = np.concatenate([-np.geomspace(1e-6, 30.0, 30)[::-1], [0.0], np.geomspace(1e-6, 3e4, 400)])
_MOST, _NUMBERS = 1e4, 24  # large losses, and how many numbers of them are tried
_TIMES = 4
_ORDERS = np.append(0.0, np.geomspace(1e-3, 1e4, 120))
_LARGEST = np.geomspace(1e-3, 3e4, 32)
_PARTS, _DEVIATIONS = (0.03, 0.1, 0.3, 1.0, 3.0), (1.2, 1.7, 3.0)  # of a tilted law
_PLACED, _SPARES = np.linspace(-6.0, 4.0, 41), (0.1, 0.3, 1.0, 3.0, 8.0)
_ROUNDED, _DOUBT = 1e-12, 1e-6  # of sums, and of deviations where they are no smaller a part of losses
_FINE = np.concatenate([[-30.0, 0.0], np.geomspace(1e-6, 3e4, 2400)])
_BEYOND, _MOST_BEYOND = (1.0, 0.03, 1e-3, 3e-5), 3.0  # parts of an epsilon: what more large losses add up to


@np.errstate(all="ignore")
def log_deltas(steps: Steps, places: Array) -> Array:
    """Lower bounds on log delta: by mean and variance, tilted or not, and by several large losses of one kind."""
    found = _by_tilts(steps, places)
    found[::_EVERY] = np.fmax(found[::_EVERY], [log_delta_above(steps, float(place)) for place in places[::_EVERY]])
    for pair, count in steps:
        law = one_law(pair, _FINE, above=False)
        found = np.fmax(found, np.max([_by_large_ones(law, count, places, part) for part in _BEYOND], axis=0))
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


def _by_large_ones(law: Points, count: int, places: Array, part: float) -> Array:
    """log delta at epsilons, from below, by the event A that just m of T losses exceed some x.

    With r the chance of one, P(A) is (T choose m) r^m (1-r)^{T-m}, and Q(A) at most (T choose m) (e^-x r)^m.  So with
    m x >= eps + y - (T-m) log(1-r) delta is at least P(A) - e^eps Q(A) >= (1 - e^-y) P(A).
    """
    order = np.argsort(law.losses, kind="stable")
    losses, tails = law.losses[order], np.append(np.logaddexp.accumulate(law.logs[order][::-1])[::-1], -np.inf)
    numbers = np.unique(np.rint(np.geomspace(1, min(count, _MOST), _NUMBERS)))
    beyond = np.minimum(part * places, _MOST_BEYOND)
    needed = np.add.outer(places + beyond, np.zeros(numbers.size))
    more = np.zeros(needed.shape)
    for _ in range(_TIMES):
        at = (needed + more) / numbers * (1 + 1e-9)
        rate = tails[np.searchsorted(losses, at, side="right")]
        rest = (count - numbers) * np.log1p(-np.minimum(np.exp(rate) + 1e-12, 1 - 1e-16))
        more = np.maximum(more, -rest)
    whole = gammaln(count + 1)  # of which rounding may take a few units
    ways = whole - gammaln(numbers + 1) - gammaln(count - numbers + 1) - 1e-14 * whole
    logs = ways * (1 - 1e-9) - 1e-6 + numbers * rate + rest
    logs = np.where(needed - rest <= numbers * at * (1 - 1e-12), logs, -np.inf)
    return np.asarray(logs.max(axis=1) + np.log(-np.expm1(-beyond)) - 1e-9)
