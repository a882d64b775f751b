"""Groups of records: epsilon and delta from a single record's curve, looked at closely where it matters.

With g(a) = min over e of delta(e) + e^e a the power of the best attack, a group of k has the power g(g(...g(a))), so

    delta_k(eps) = min over e_1 + ... + e_k = eps of the sum over i of delta(e_i) exp(e_{i+1} + ... + e_k).

Upper bounds on delta(e) at some e give lines above g, lower ones with the convexity of delta (in e^e) lines below it
(errors.py).  Both bands are composed exactly (powers.py).  The e_i that decide are those at which the attack's chain of
errors a, g(a), g(g(a)), ... meets the curve: there, and only there, points are added until the bands agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hush.accounting.crossing import EPSILON_LIMIT, Curve, certified_root
from hush.accounting.errors import corner
from hush.accounting.losses import Array, Atoms, Enclosed
from hush.accounting.powers import Power, of_lines

Oracle = Callable[[Array], tuple[Array, Array]]
"""Certified lower and upper bounds on log delta of a single record at ascending epsilons >= 0."""

_ROUNDS = 7
_FIRST = 8
_MOST = 600  # points on the curve
_LONGEST = 400  # links of a chain that are looked at
_TOP = 9000.0


def bands(epsilons: Array, lower: Array, upper: Array, log_least: float) -> tuple[Power, Power]:
    """Power curves below and above the true one, from bounds on log delta at ascending epsilons."""
    slopes, intercepts = [*epsilons], [*lower]
    for j in range(epsilons.size - 1):
        at, value = corner(epsilons, lower, upper, j)
        slopes.append(at)
        intercepts.append(value)
    slopes.append(epsilons[-1])
    intercepts.append(log_least)
    return of_lines(np.array(slopes), np.array(intercepts)), of_lines(epsilons, upper)


def enclosed(less: Power, more: Power, size: int, largest: float) -> Enclosed:
    """The group's pair between two finite ones, from bands of the single record's power, with losses up to so much."""
    below, above = _composed(less, more, size)
    margin = _margin(more, size, largest)
    return Enclosed(below.atoms(-margin), above.atoms(margin))


def _composed(less: Power, more: Power, size: int) -> tuple[Power, Power]:
    return less.times(size, upper=False), more.times(size, upper=True)


def _margin(curve: Power, size: int, largest: float) -> float:
    """What rounding may do to the logarithm of a power: each link a few units of the logarithms it adds."""
    return 1e-12 + 2.0**-48 * size * (1 + abs(float(curve.alpha[1])) + (largest if math.isfinite(largest) else 0.0))


def top_for(single: Callable[[float], float], size: int, log_delta: float) -> float:
    """About the largest e_i that counts: where delta(e) falls below the group's by what the other links multiply."""
    first = single(log_delta)
    if not math.isfinite(first):
        return first
    return max(single(max(log_delta - (size - 1) * first - 5, -600.0)), first)


class Chain:
    """The single record's curve at some points, and the group's pair between two others."""

    def __init__(self, oracle: Oracle, size: int, log_least: float, points: Array) -> None:
        self.oracle, self.size, self.log_least = oracle, size, log_least
        self.epsilons, self.lower, self.upper = np.empty(0), np.empty(0), np.empty(0)
        self.add(points)

    def add(self, points: Array) -> bool:
        """Ask for more points; whether there were any."""
        new = np.setdiff1d(np.asarray(points, dtype=np.float64), self.epsilons)
        if new.size == 0 or self.epsilons.size + new.size > _MOST:
            return False
        lower, upper = self.oracle(new)
        order = np.argsort(np.append(self.epsilons, new), kind="stable")
        self.epsilons = np.append(self.epsilons, new)[order]
        # delta falls with epsilon: each bound holds on one side of its point
        self.lower = np.maximum.accumulate(np.append(self.lower, lower)[order][::-1])[::-1]
        self.upper = np.minimum.accumulate(np.append(self.upper, upper)[order])
        self.less, self.more = bands(self.epsilons, self.lower, self.upper, self.log_least)
        self.less_group, self.more_group = _composed(self.less, self.more, self.size)
        return True

    def width(self, epsilon: float, tolerance: float) -> float:
        """How far apart points may lie: between them the bands are off by h^2/8 of what is left after its slope."""
        known = np.isfinite(self.lower)
        falls = -np.diff(self.upper[known]) / np.diff(self.epsilons[known])
        return min(math.sqrt(2 * tolerance * epsilon / (1 + float(falls.max(initial=1.0)))), epsilon / 8)

    def pair(self) -> Enclosed:
        margin = _margin(self.more, self.size, float(self.epsilons[-1]))
        return Enclosed(self.less_group.atoms(-margin), self.more_group.atoms(margin))

    def curve(self) -> Curve:
        return curve_of(self.pair())

    def model(self) -> tuple[Power, Power]:
        """A smooth model of the single record's power, and the group's: where to look, no bound."""
        known = np.isfinite(self.lower)
        places = np.linspace(0.0, float(self.epsilons[known][-1]) if known.any() else 1.0, 1500)
        heights = _smooth(self.epsilons[known], 0.5 * (self.lower + self.upper)[known], places)
        base = of_lines(places, np.minimum.accumulate(heights))
        return base, base.times(self.size, upper=True)

    def links(self, base: Power, group: Power, epsilon: float) -> Array:
        """Where the chain of errors that decides at an epsilon meets the curve: the e_i."""
        log_p, log_q = group.pieces()
        at = group.alpha[1:][log_p - log_q > epsilon]
        link = np.array([float(at[-1]) if at.size else float(group.alpha[min(2, group.alpha.size - 1)])])
        base_p, base_q = base.pieces()
        losses = np.nan_to_num(np.abs(base_p - base_q), posinf=float(self.epsilons[-1]))
        found = []
        for _ in range(min(self.size, _LONGEST)):
            k = int(np.searchsorted(base.alpha, link[0]))
            found.append(0.5 * float(losses[min(max(k - 1, 0), losses.size - 1)] + losses[min(k, losses.size - 1)]))
            link = base.at(link)
        return np.array(found)

    def look(self, epsilon: float | None, log_delta: float, round_: int, tolerance: float) -> bool:
        """Ask for points where they count at an epsilon, or at the one that a model of the group has for delta."""
        base, group = self.model()
        at = _model_root(group, log_delta) if epsilon is None else epsilon
        if round_ not in (1, 3):
            return self.add(self.between(at))
        return self.add(self.around(self.links(base, group, at), self.width(max(at, 1e-3), tolerance)))

    def around(self, links: Array, width: float) -> Array:
        """Points to add: two on either side of each link, so far apart, and beyond the last if a link is there."""
        found = []
        apart = -np.inf
        for link in np.sort(links):
            if link - apart < 0.7 * width:
                continue  # a link before has points all around this one
            found += [max(link + width * share, 0.0) for share in (-1.5, -0.5, 0.5, 1.5)]
            apart = link
        last = float(self.epsilons[-1])
        if links.max() > 0.95 * last and last < _TOP and self.lower[-1] > -np.inf:
            found += [1.3 * last, 1.7 * last]
        return np.unique(found)

    def between(self, epsilon: float) -> Array:
        """Points to add: in the middle of the cells that the chain of the upper band meets, and beyond the last."""
        log_p, log_q = self.more_group.pieces()
        at = self.more_group.alpha[1:][log_p - log_q > epsilon]
        link = np.array([float(at[-1]) if at.size else float(self.more_group.alpha[1])])
        base_p, base_q = self.more.pieces()
        losses = np.abs(base_p - base_q)
        found: list[float] = []
        last = self.epsilons.size - 1
        for _ in range(min(self.size, _LONGEST)):
            k = int(np.searchsorted(self.more.alpha, link[0]))
            beside = losses[[max(k - 2, 0), min(max(k - 1, 0), losses.size - 1), min(k, losses.size - 1)]]
            places = np.searchsorted(self.epsilons, np.nan_to_num(beside) * (1 - 1e-9))
            first, end = max(int(places.min()) - 1, 0), min(int(places.max()) + 1, last)
            found += [0.5 * (self.epsilons[j] + self.epsilons[j + 1]) for j in range(first, end)]
            if places.max() >= last and self.epsilons[-1] < _TOP and self.lower[-1] > -np.inf:
                found.append(1.5 * float(self.epsilons[-1]))
            link = self.more.at(link)
        return np.unique(found)


def _smooth(places: Array, values: Array, at: Array) -> Array:
    """Cubic interpolation with the slopes of parabolas through neighbours: a model, no bound."""
    if places.size < 3:
        return np.interp(at, places, values)
    steps, slopes = np.diff(places), np.diff(values) / np.diff(places)
    middle = (slopes[:-1] * steps[1:] + slopes[1:] * steps[:-1]) / (steps[1:] + steps[:-1])
    slope = np.concatenate([[2 * slopes[0] - middle[0]], middle, [2 * slopes[-1] - middle[-1]]])
    k = np.clip(np.searchsorted(places, at) - 1, 0, places.size - 2)
    t = (at - places[k]) / steps[k]
    return np.asarray(
        values[k] * (1 + 2 * t) * (1 - t) ** 2
        + values[k + 1] * t * t * (3 - 2 * t)
        + steps[k] * t * (1 - t) * (slope[k] * (1 - t) - slope[k + 1] * t)
    )


def curve_of(pair: Enclosed) -> Curve:
    """Certified bounds on log delta of one release of a pair between two finite ones."""
    less, more = pair.lower, pair.upper
    assert isinstance(less, Atoms)
    assert isinstance(more, Atoms)

    def curve(epsilons: Array) -> tuple[Array, Array]:
        return less.log_delta(epsilons, -1e-12), np.minimum(more.log_delta(epsilons, 1e-12), 0.0)

    return curve


@np.errstate(all="ignore")
def epsilon(
    oracle: Oracle, size: int, log_least: float, top: float, log_delta: float, tolerance: float
) -> tuple[float, float]:
    """Certified bounds on the group's epsilon; `top` is about where a single record's delta is far below this one."""
    chain = Chain(oracle, size, log_least, max(top, 1e-9) * np.linspace(0.0, 1.0, _FIRST) ** 1.3)
    low, high = 0.0, math.inf
    for k in range(_ROUNDS):
        guess = 0.5 * (low + high) if math.isfinite(high) else max(size * top, low)
        found = certified_root(chain.curve(), max(guess, 1e-9), log_delta)
        before = high - low
        low, high = max(low, found[0]), min(high, found[1])
        if low >= EPSILON_LIMIT or high - low <= max(tolerance * high, 1e-12) < math.inf:
            break
        if k > 3 and high - low > 0.6 * before:  # the curve itself isn't known well enough
            break
        if not chain.look(None, log_delta, k, tolerance):
            break
    return min(low, high), high


def _model_root(group: Power, log_delta: float) -> float:
    """Where the delta of a power curve is so large."""
    atoms = group.atoms(0.0)
    low, high = 0.0, EPSILON_LIMIT
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if atoms.log_delta(np.array([middle]))[0] > log_delta else (low, middle)
    return high


@np.errstate(all="ignore")
def log_delta(oracle: Oracle, size: int, log_least: float, at: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on log delta of the group at one epsilon."""
    chain = Chain(oracle, size, log_least, max(at, 1e-3) * np.linspace(0.0, 1.0, _FIRST))
    low, high = -math.inf, 0.0
    for k in range(_ROUNDS):
        lower, upper = chain.curve()(np.array([at]))
        low, high = max(low, float(lower[0])), min(high, float(upper[0]))
        if high - low <= tolerance * max(1.0, -high):
            break
        if not chain.look(at, 0.0, k, tolerance):
            break
    return min(low, high), high
