"""What attacks gain, as a function that is composed with itself: a group of any size takes some twenty compositions.

The best attack with type I error a has the power g(a), and gains h(a) = g(a) - a.  A group of k records has the power
g(g(...g(a))) (Dong, Roth, Su 2022, Theorem 3), so groups of j and k gain together

    h_{j+k}(a) = h_j(a) + h_k(a + h_j(a)).

Gains add up, so that none of their digits is lost where powers are hardly more than type I errors, and their relative
errors don't add up at all: what h is off, as a share of itself, h_2, h_4, h_8, ... are off by about the same share.

Curves are straight between corners.  g is concave: chords of lower bounds lie below it whatever the corners, while
upper bounds keep all of theirs, or are raised by what a chord cuts off.  Both go without corners that say next to
nothing.
Type I errors are told apart by log a - log(1 - a), from e^-12000 to 1 - e^-12000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.grouping.powers import least_of
from hush.accounting.pairs.losses import Array

DEEPEST = 12_000.0
"""Minus the log of the smallest type I error told apart: epsilons up to 1e4 at deltas down to e^-700."""
_ULP = 2.0**-52
_FEWEST = 64  # corners that are never too many
_MOST = 30_000  # and that are too many
_SHALLOW = 30.0  # minus the log of a type I error


@dataclass(frozen=True)
class Gains:
    """Corners: log a - log(1 - a), ascending from -inf to inf, and logs of gains; nothing is gained at the last."""

    places: Array
    logs: Array

    @cached_property
    def _levels(self) -> tuple[Array, Array]:
        """log a and log(1 - a) at corners."""
        return _log(self.places), _log(-self.places)

    @np.errstate(all="ignore")
    def at(self, places: Array) -> Array:
        """Logs of gains: sums of two positive terms, with weights that keep their digits near both ends."""
        k = np.clip(np.searchsorted(self.places, places, side="right") - 1, 0, self.places.size - 2)
        less, more = self._levels
        ends = self.places[k], self.places[k + 1], more[k], less[k + 1]
        return _between(places, *ends, self.logs[k], self.logs[k + 1])

    def moved(self, places: Array) -> Array:
        """Where the powers are, as type I errors: those that the next record's attack begins with."""
        return added(places, self.at(places))

    def after(self, first: Gains, *, upper: bool) -> Gains:
        """Those of both records or groups together."""
        places = np.union1d(first.places, first.reaching(self.places))
        gained = first.at(places)
        logs = np.logaddexp(gained, self.at(added(places, gained)))
        logs[-1] = -np.inf
        doubt = _doubt(places, gained) + _doubt(places, logs)
        return Gains(places, logs + doubt if upper else logs - doubt)

    @np.errstate(all="ignore")
    def reaching(self, reached: Array) -> Array:
        """The places that are moved to those, as far as any are.

        Raised gains may be more than is left, 1 - a: places are those of the straight line beyond.
        """
        ends, left = np.maximum.accumulate(added(self.places, self.logs)), _log(-self.places)
        beyond = np.where(self.logs > left, self.logs + np.log(-np.expm1(left - self.logs)), -np.inf)
        reached = reached[(reached > ends[0]) & (reached < np.inf)]
        k = np.clip(np.searchsorted(ends, reached, side="right") - 1, 0, ends.size - 2)
        less, more = _log(ends), _log(-ends)
        rest, part = _weights(reached, ends[k], ends[k + 1], more[k], less[k + 1])
        over = ends[k + 1] == np.inf
        whole = np.logaddexp(_log(-ends[k]), beyond[k + 1])
        rest = np.where(over, np.logaddexp(_log(-reached), beyond[k + 1]) - whole, rest)
        part = np.where(over, _log_apart(ends[k], reached) - whole, part)
        first, last = self._levels
        found = np.logaddexp(rest + first[k], part + first[k + 1]) - np.logaddexp(rest + last[k], part + last[k + 1])
        found = np.clip(found, self.places[k], self.places[k + 1])
        return np.asarray(found[np.isfinite(found)])

    def times(self, size: int, *, upper: bool, share: float, deepest: float = DEEPEST) -> Gains:
        """Those of so many records, by doubling, at no cost of more than a share; levels of e^-deepest at least."""
        share = share / (2 * size.bit_length())
        doubt = self.places.size * _doubt(self.places, self.logs)  # as mirror images are off by, sums of so many
        logs = _steady(self.places, self.logs + doubt) if upper else self.logs - doubt
        begun = Gains(self.places, logs)
        result, double = None, begun.thinned(share, deepest, upper=upper)
        while True:
            if size % 2:
                result = double if result is None else double.after(result, upper=upper)
                result = result.thinned(share, deepest, upper=upper)
            size //= 2
            if size == 0:
                assert result is not None
                return result
            double = double.after(double, upper=upper).thinned(share, deepest, upper=upper)

    @np.errstate(all="ignore")
    def thinned(self, share: float, deepest: float = DEEPEST, *, upper: bool) -> Gains:
        """Without corners that lie above the chord of their neighbours by less than a share of what is gained.

        By more where they are too many.
        """
        places, logs = self._within(deepest, upper=upper)
        while places.size > _FEWEST:
            odd = np.arange(2, places.size - 2, 2)
            low, high = places[odd - 1], places[odd + 1]
            chord = _between(places[odd], low, high, _log(-low), _log(high), logs[odd - 1], logs[odd + 1])
            above = logs[odd] - chord + _doubt(places[odd], chord)
            share = max(2 * share, _ULP) if places.size > _MOST else share
            dropped = above <= share * allowed(places[odd])
            if upper:  # both neighbours are raised by what was cut off
                raised = np.zeros(places.size)
                cut = np.where(dropped, np.maximum(above, 0.0), 0.0)
                np.maximum.at(raised, odd - 1, cut)
                np.maximum.at(raised, odd + 1, cut)
                logs = _steady(places, logs + raised)
            kept = np.ones(places.size, dtype=bool)
            kept[odd[dropped]] = False
            places, logs = places[kept], logs[kept]
            if places.size <= _MOST or share == math.inf:
                break
        return Gains(places, logs)

    def _within(self, deepest: float, *, upper: bool) -> tuple[Array, Array]:
        """Corners between e^-deepest and 1 less that; beyond, an attack gains all it can there, or as if by chance."""
        ends = np.array([-deepest, deepest])
        inner = np.abs(self.places) < deepest
        if np.sum(~inner) <= 2:
            return self.places, self.logs
        first, last = self.at(ends)
        begin = self.logs[0]
        if upper:
            begin = first = max(float(first), float(self.logs[self.places < -deepest].max()))
            last = float(_log(-ends[1]) + _doubt(ends[1:], ends[1:])[0])
        places = np.concatenate([[-np.inf], ends[:1], self.places[inner], ends[1:], [np.inf]])
        return places, np.concatenate([[begin, first], self.logs[inner], [last, -np.inf]])


def _steady(places: Array, logs: Array) -> Array:
    """Raised until h/a falls and h/(1 - a) rises, as those of a concave h do: h then changes no faster than places."""
    less, more = _log(places), _log(-places)
    inner = slice(1, -1)  # of a at the first nothing is known so, nor of 1 - a at the last
    rising = np.maximum.accumulate(logs[:-1] - more[:-1])[1:] + more[inner]
    falling = np.maximum.accumulate((logs[inner] - less[inner])[::-1])[::-1] + less[inner]
    logs = logs.copy()
    logs[inner] = np.maximum(rising, falling) + _doubt(places[inner], logs[inner])
    return logs


@np.errstate(all="ignore")
def of_lines(log_slopes: Array, log_intercepts: Array) -> Gains:
    """Power below the least of straight lines with slopes of at least 1, up to the diagonal, and its mirror image.

    What power leaves, 1 - g, is what is left at the diagonal and what is gained up to there: positive terms.
    """
    least = least_of(log_slopes, log_intercepts)
    alpha = np.append(least.starts[: least.last + 1], least.end)
    places = alpha - np.log(-np.expm1(alpha))
    logs = np.append(least.intercepts[0], least.at(alpha[1:]))
    rises = least.slopes[: least.last + 1] + alpha[1:] + np.log(-np.expm1(alpha[:-1] - alpha[1:]))
    left = np.logaddexp.accumulate(np.append(rises, least.end)[::-1])
    # the mirror image of (a, g) is (1 - g, 1 - a), with the same gain
    mirrored = left - np.logaddexp(alpha, logs)[::-1]
    places, logs = np.concatenate([places, mirrored, [np.inf]]), np.concatenate([logs, logs[::-1], [-np.inf]])
    order = np.argsort(places, kind="stable")
    places, kept = np.unique(places[order], return_index=True)
    return Gains(places, logs[order][kept])


@np.errstate(all="ignore")
def added(places: Array, log_gains: Array) -> Array:
    """The place of a + h: where nothing is left of 1 - a - h, the last."""
    left = np.log1p(np.exp(-np.abs(places)))
    less, more = np.minimum(places, 0.0) - left, np.minimum(-places, 0.0) - left
    missed = np.minimum(log_gains - more, 0.0)
    moved = np.where(np.isneginf(places), log_gains, places + np.logaddexp(0.0, log_gains - less))
    return np.asarray(np.where(places == np.inf, np.inf, moved - np.log(-np.expm1(missed))))


def allowed(places: Array) -> Array:
    """How many times as much gains may be off there: deep down it hardly matters from where an attack sets out."""
    return np.asarray(np.clip(np.abs(places) / _SHALLOW, 1.0, DEEPEST / _SHALLOW))


def _log(places: Array) -> Array:
    """log a; of 1 - a at minus the places."""
    return np.asarray(np.minimum(places, 0.0) - np.log1p(np.exp(-np.abs(places))))


def _weights(places: Array, low: Array, high: Array, more: Array, less: Array) -> tuple[Array, Array]:
    """Logs of (a_1 - a)/(a_1 - a_0) and (a - a_0)/(a_1 - a_0), from log(1 - a_0) and log a_1 too.

    a - b = a (1 - b) (1 - e^{y - x}) at places x, y.
    """
    whole, left = np.log(-np.expm1(low - high)), np.log1p(np.exp(-np.abs(places)))
    rest = np.minimum(-places, 0.0) - left - more + np.log(-np.expm1(np.minimum(places - high, 0.0))) - whole
    part = np.minimum(places, 0.0) - left - less + np.log(-np.expm1(np.minimum(low - places, 0.0))) - whole
    return np.where(places <= low, 0.0, rest), np.where(places >= high, 0.0, part)


def _between(places: Array, low: Array, high: Array, more: Array, less: Array, first: Array, last: Array) -> Array:
    rest, part = _weights(places, low, high, more, less)
    found = np.logaddexp(rest + first, part + last)
    return np.asarray(np.where(places <= low, first, np.where(places >= high, last, found)))


def _doubt(places: Array, logs: Array) -> Array:
    """What rounding may do to the logarithm of a gain: gains change no faster than places do."""
    sizes = np.abs(np.where(np.isfinite(places), places, 0.0)) + np.abs(np.where(np.isfinite(logs), logs, 0.0))
    return 16 * _ULP * (1 + sizes)


@np.errstate(all="ignore")
def slopes(gains: Gains) -> Array:
    """Logs of the slopes of power between corners."""
    moved = gains.moved(gains.places)
    return _log_apart(moved[:-1], moved[1:]) - _log_apart(gains.places[:-1], gains.places[1:])


def _log_apart(low: Array, high: Array) -> Array:
    """log of a_1 - a_0 at places x_0 <= x_1."""
    return _log(high) + _log(-low) + np.log(-np.expm1(np.minimum(low - high, 0.0)))


@np.errstate(all="ignore")
def log_epsilons(gains: Gains, log_delta: float) -> Array:
    """log of e^eps - 1 at each corner: the line through it with such an intercept; -inf where that is higher."""
    found = gains.logs + np.log(-np.expm1(log_delta - gains.logs)) - _log(gains.places)
    return np.asarray(np.where((gains.logs > log_delta) & np.isfinite(gains.places), found, -np.inf))


def epsilon(gains: Gains, log_delta: float, *, upper: bool) -> float:
    """Of an attack with such gains, rounded up or down: the steepest line from delta to a corner."""
    if upper and gains.logs[0] > log_delta:
        return math.inf
    rounded = _ULP * (8 + 4 * abs(log_delta))
    steepest = float(log_epsilons(gains, log_delta - rounded if upper else log_delta + rounded).max(initial=-np.inf))
    found = float(np.logaddexp(0.0, steepest))
    doubt = (1e-12 + 64 * _ULP * (abs(steepest) + abs(log_delta))) * min(found, 1.0) if found > 0 else 0.0
    return found + doubt if upper else max(found - doubt, 0.0)


@np.errstate(all="ignore")
def log_left(gains: Gains, epsilon: float, sign: int = 0) -> Array:
    """log of h(a) - (e^eps - 1) a at each corner, rounded up (1) or down (-1): the largest is delta."""
    if epsilon == 0:
        return gains.logs
    rise = epsilon + math.log(-math.expm1(-epsilon))
    lost = rise + _log(gains.places)
    doubt = _ULP * (16 + 4 * (epsilon + abs(rise))) + 8 * _ULP * np.abs(np.where(np.isfinite(lost), lost, 0.0))
    lost = lost - sign * doubt
    left = gains.logs + np.log(-np.expm1(lost - gains.logs))
    return np.asarray(np.where(gains.logs > lost, left, -np.inf) + sign * 1e-13)


def log_delta(gains: Gains, epsilon: float, *, upper: bool) -> float:
    """log of the largest h(a) - (e^eps - 1) a, rounded up or down: it is at a corner."""
    return min(float(log_left(gains, epsilon, 1 if upper else -1).max()), 0.0)
