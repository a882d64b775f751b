"""Groups of records: a single record's curve, looked at closely where the chain of a group's best attack meets it.

With g(a) = min over e of delta(e) + e^e a the power of the best attack, a group of k has the power g(g(...g(a))), so

    delta_k(eps) = min over e_1 + ... + e_k = eps of the sum over i of delta(e_i) exp(e_{i+1} + ... + e_k).

*Any* split bounds delta_k from above, with upper bounds on the k values delta(e_i).  And delta_k(eps) is at least
g(g(...g(a))) - e^eps a at *any* level a, where lower bounds on delta at some points, with its convexity in e^e, give
lines below which g doesn't fall (errors.py).  Both are sharp to second order in e_i and a, so a model of the curve
(links.py) is enough to choose them, and a few points around each e_i are enough to ask for (asked.py).  How often, and
what follows for epsilon and delta: rounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hush.accounting.errors import corners
from hush.accounting.grouping.links import Links, Model, extended
from hush.accounting.grouping.makers import DEEP, share
from hush.accounting.grouping.powers import Power, least_of, of_lines
from hush.accounting.pairs.losses import Array, Enclosed

Oracle = Callable[[Array, Array, float | Array], tuple[Array, Array]]
"""Certified bounds on log delta of a single record at ascending epsilons >= 0, where it is about as large as the second
row says, to about so much of it, or of 1."""

_GLANCE = 2e-4  # of log delta, at a glance: lines that serve the look that follows as well
_APART = 0.05  # logs of epsilons where it is had
_SPARED = 0.6  # of the log of how much further out a chain may be: between points slopes are smaller by no more
SHARP = 1e-4
"""Of log delta, at first."""
_LEVELS = np.concatenate(  # that are tried, beside the model's
    [-np.geomspace(32.0, 0.5, 13), np.linspace(-0.4, 0.4, 33), np.geomspace(0.5, 4096.0, 28)]
)
_CLOSER = 33  # between the best one's neighbours, where a power curve has a corner
_HIGHER = 0.5  # of the width asked for: how much higher a chain may begin, as a logarithm
_BESIDE = 2.5  # widths on either side of a link where points are asked
_FURTHER = np.array([2.0, 6.0, 14.0])  # and beyond them: where delta hardly falls other levels do as well
_TOWARDS = 2.0 ** np.arange(7, -1, -1)
_CLOSE = 0.05  # to the largest loss, as a share of the tolerance: closer is as good as there
TOLD = 0.5
"""A log delta known that well corrects a model."""
_NEIGHBOURS = 4  # on either side, that a point is compared with
_SHALLOW = 1.0  # losses of a whole group, where chains cross the diagonal and delta bends quickly
_FILLED = 40  # points that are worth a whole stretch of epsilons
MOST = 2400
"""Points asked in all."""
LONGEST = 1000
"""Links that are followed one by one."""


def bands(epsilons: Array, lower: Array, upper: Array, log_least: float) -> tuple[Power, Power]:
    """Power curves below and above the true one, from bounds on log delta at ascending epsilons."""
    return of_lines(*lines_below(epsilons, lower, upper, log_least)), of_lines(epsilons, upper)


def lines_below(epsilons: Array, lower: Array, upper: Array, log_least: float) -> tuple[Array, Array]:
    """Logs of slopes and intercepts of lines, the least of which lies below g above the diagonal."""
    places, values = corners(epsilons, lower, upper)
    slopes = np.concatenate([epsilons, places, [_beyond(epsilons, lower, upper, log_least)]])
    return slopes, np.concatenate([lower, values, [log_least]])


def _beyond(epsilons: Array, lower: Array, upper: Array, log_least: float) -> float:
    """Where the last chord, extended, has fallen to the least delta: up to there delta, being convex, lies above it."""
    last, low = float(epsilons[-1]), float(lower[-1])
    if epsilons.size < 2 or not low > log_least or upper[-2] - low > 600:
        return last
    before = math.exp(float(upper[-2]) - low)
    # steeper than it is, and not as far down as it is: each number on the safe side
    fall = max(before - 1 + 1e-14 * (before + 1), 1e-300) / -math.expm1(float(epsilons[-2]) - last) * (1 + 1e-14)
    return last + math.log1p(-math.expm1(log_least - low) / fall * (1 - 1e-14)) * (1 - 1e-15)


def below_chords(epsilons: Array, upper: Array, largest: float) -> Array:
    """Upper bounds on log delta: it is convex in e^eps and 0 at the largest loss, below all chords that end there."""
    if not math.isfinite(largest):
        return upper
    left = np.log(-np.expm1(np.minimum(epsilons - largest, 0.0)))
    near = epsilons > largest * (1 - 1e-6)  # where the distance has few digits
    chords = np.minimum.accumulate(np.where(near, math.inf, upper - left)) + left + 1e-9
    return np.where(near, upper, np.fmin(upper, chords))


def enclosed(less: Power, more: Power, size: int, largest: float) -> Enclosed:
    """The group's pair between two finite ones, from bands of the single record's power, with losses up to so much."""
    below, above = less.times(size, upper=False), more.times(size, upper=True)
    margin = _margin(size, abs(float(more.alpha[1])) + (largest if math.isfinite(largest) else 0.0))
    return Enclosed(below.atoms(-margin), above.atoms(margin))


def _margin(size: int, logs: float) -> float:
    """What rounding may do to the logarithm of a power: each link a few units of the logarithms it adds."""
    return 1e-12 + 2.0**-48 * size * (1 + logs)


class Chain:
    """The single record's curve at some points, and a model of it in between."""

    def __init__(self, oracle: Oracle, rough: Model, size: int, log_least: float, largest: float = math.inf) -> None:
        self.oracle, self.rough, self.size, self.log_least, self.largest = oracle, rough, size, log_least, largest
        self.epsilons, self.lower, self.upper = np.empty(0), np.empty(0), np.empty(0)
        self.model = rough
        self.places: Array = np.empty(0)
        self.ends: Array = np.empty(0)
        self.glanced: Array = np.empty(0)
        self.sharpness = SHARP
        self.slack = 0.0
        """By how much the logarithm of the group's power may be off, and so that of a single record's delta."""

    def ask(self, points: Array) -> None:
        """Ask for more points."""
        new = np.setdiff1d(points, self.epsilons)
        if new.size == 0:
            return
        sizes = self.model.at(new)
        lower, upper = self.oracle(new, sizes, np.maximum(self.sharpness, self.slack / np.clip(-sizes, 1.0, DEEP)))
        order = np.argsort(np.append(self.epsilons, new), kind="stable")
        self.epsilons = np.append(self.epsilons, new)[order]
        # delta falls with epsilon: each bound holds on one side of its point
        self.lower = np.maximum.accumulate(np.append(self.lower, lower)[order][::-1])[::-1]
        upper = np.minimum.accumulate(np.append(self.upper, upper)[order])
        self.upper = below_chords(self.epsilons, upper, self.largest)
        self.model = self._corrected()

    def _corrected(self) -> Model:
        """The rough model, moved to what is known."""
        gaps = np.abs(np.log(np.divide.outer(self.glanced, np.maximum(self.places, 1e-300))))
        glanced = self.glanced[gaps.min(axis=1, initial=math.inf) > _APART]
        told = np.isin(self.epsilons, np.append(self.places, glanced))
        known = np.isfinite(self.lower) & told
        if not known.any():
            return self.rough
        gaps = (self.upper - self.lower)[known]
        known[known] = gaps <= max(4 * float(gaps.min()), TOLD)
        return self.rough.moved_to(self.epsilons[known], 0.5 * (self.lower + self.upper)[known])

    def above(self) -> Model:
        """The rough model, moved to the upper bounds: what is known of deep links may be little."""
        known = (self.upper < 0) & np.isfinite(self.upper)
        return self.rough.moved_to(self.epsilons[known], self.upper[known]) if known.any() else self.rough

    def glance(self, links: Links) -> None:
        """Ask for the links themselves, roughly: so that a closer look is had where they are."""
        at = np.unique(np.abs(links.slopes))
        at = at[(at > 0) & (at < self.largest)]
        # what is close together would say nothing of a slope
        spared = links.spare / links.epsilon if 0 < links.spare < links.epsilon else 0.0
        apart = max(_APART, -_SPARED * math.log1p(-spared))
        first = np.unique(np.floor(np.log(at) / apart), return_index=True)[1]
        self.glanced = at = at[first]
        spare = min(links.spare / links.slopes.size / 1000, 100 * _GLANCE)
        sharpness, self.sharpness = self.sharpness, max(_GLANCE, spare)
        self.ask(at)
        self.sharpness = sharpness

    def look(self, links: Links, tolerance: float, *, for_delta: bool = False) -> None:
        """Ask for some points around each link, as far apart as the width asked for, of epsilon or log delta, allows.

        Bounds between points h apart are off by 3/8 c h^2 of g, where delta falls like e^{-c e}.  With the group's own
        c that is 1 + c times as much of its delta, and (1 + c)/c times as much in epsilon.
        """
        at = np.abs(links.slopes)
        at = np.unique(np.where(at > self.largest * (1 - _CLOSE * tolerance), self.largest, at))
        # the last of their chords ends near the largest loss
        ends: Array = np.asarray(self.largest * (1 - _CLOSE * tolerance * _TOWARDS), dtype=np.float64)
        self.ends = ends = ends if at[-1] == self.largest else ends[:0]
        at = at[at < self.largest]
        if at.size == 0:
            self._look_at(ends)
            return
        falls = np.maximum(self.model.falls(at), 1e-9)
        steep = links.steep
        wanted = max(links.epsilon, 1e-3 * float(at.sum()), 1e-9) * steep / (1 + steep)
        if for_delta:
            wanted = links.scale / (1 + steep)
        allowed = 0.2 * max(tolerance * wanted, links.spare) / links.slopes.size
        unsure = self._unsure(at)
        told = np.maximum(4 * unsure / ((1 + falls) * falls), (2 * unsure / falls) ** 2)
        # closer together, points say nothing of the slope
        square = np.maximum(allowed / falls, told)
        width = np.minimum(np.sqrt(square), 0.1 * np.maximum(at, 0.1 * at[-1]) + 1e-7)
        if self.size * at[-1] < _SHALLOW:
            width = np.maximum(width, 0.5 * np.sqrt(told))
        points: list[Array] = []
        first = 0
        # links close together share their points, equally far apart; if few are enough, down to 0
        shared = 4.0
        if at[-1] + _BESIDE * width[-1] <= _FILLED * float(width.min()):
            at, width, shared = np.append(0.0, at), np.append(width[0], width), math.inf
        for last in range(at.size):
            if last + 1 < at.size and at[last + 1] - at[last] < shared * width[last]:
                continue
            # a power that is known to be less than it is belongs to a chain that begins higher, with links further left
            left = max(
                _BESIDE * width[first], _HIGHER * tolerance * links.epsilon / (1 + falls[min(first, falls.size - 1)])
            )
            begin, end = at[first] - left, at[last] + _BESIDE * width[last]
            most = MOST * (last + 1 - first) // (3 * at.size) + 8
            count = min(math.ceil((end - begin) / float(width[first : last + 1].min())), most)
            points.append(np.linspace(max(begin, 0.0), end, count + 1))
            points += [np.maximum(begin - width[first] * _FURTHER, 0.0), end + width[last] * _FURTHER]
            first = last + 1
        new = np.unique(np.concatenate([*points, ends]))
        new = new[new < self.largest * (1 - 0.9 * _CLOSE * tolerance)] if math.isfinite(self.largest) else new
        # chords between points too close together would say little: others nearby are left out
        apart = np.abs(np.subtract.outer(self.places, new)).min(axis=1, initial=math.inf)
        self.places = self.places[apart > np.max(width)]
        self._look_at(new)

    def _unsure(self, at: Array) -> Array:
        """How well log delta will be known: as well as it is nearby, where a line often tells more than it was asked.

        Points closer together than that say nothing of a slope.
        """
        asked = self.sharpness * np.array([share(float(size)) for size in self.model.at(at)])
        gaps = self.upper - self.lower
        known = np.isfinite(gaps)
        if not known.any():
            return asked
        nearest = np.abs(np.subtract.outer(at, self.epsilons[known])).argmin(axis=1)
        near = np.abs(self.epsilons[known][nearest] - at) <= 0.02 * at
        return np.where(near, 0.5 * gaps[known][nearest], asked)

    def _look_at(self, new: Array) -> None:
        self.places = np.union1d(self.places, new)
        self.ask(new)

    def lines(self, *, glanced: bool = False) -> tuple[Array, Array]:
        """Logs of slopes and intercepts of lines, the least of which lies below g above the diagonal."""
        places = self.glanced if glanced else self.places
        at = np.searchsorted(self.epsilons, places)
        sharp = _sharp(np.nan_to_num(self.upper[at] - self.lower[at], nan=math.inf)) | np.isin(places, self.ends)
        sharp |= glanced & np.isfinite(self.lower[at])  # far apart, none spoils another's chord
        at, places = at[sharp], places[sharp]
        lower, upper = self.lower[at], self.upper[at]
        slopes, values = lines_below(places, lower, upper, self.log_least)
        # from 0 to the first point delta is above its first chord, extended
        return np.append(slopes, 0.0), np.append(values, _extended_to_zero(places, lower, upper))

    def gains(self, levels: Array, size: int, *, glanced: bool = False) -> Array:
        """Lower bounds on log(g(g(...g(a))) - a), a group's gain at logs of levels, from what was looked or glanced at.

        What links gain adds up, so that its digits are kept where powers are hardly more than levels.  Beyond the
        diagonal slopes are less than 1, and powers are followed instead.
        """
        if (self.glanced if glanced else self.places).size == 0:
            return np.full(levels.shape, -np.inf)
        lines = self.lines(glanced=glanced)
        least = least_of(*lines)
        found, at = np.full(levels.shape, -np.inf), levels
        beyond = np.zeros(levels.shape, dtype=bool)
        for _ in range(size):
            beyond |= at > least.end
            found = np.logaddexp(found, least.at(at))
            at = np.logaddexp(levels, found)
        if beyond.any():
            power, reached = of_lines(*lines), levels[beyond]
            for _ in range(size):
                reached = power.at(reached)
            reached = np.minimum(reached, 0.0) - self._doubt(levels, size)
            found[beyond] = reached + np.log(-np.expm1(np.minimum(levels[beyond] - reached, 0.0)))
        return np.where(beyond, found, found - self._doubt(levels, size))

    def _doubt(self, levels: Array, size: int) -> float:
        return _margin(size, float(np.abs(levels).max()) + float(self.epsilons[-1]))

    def split(self, slopes: Array) -> float:
        """An upper bound on log delta of the group at epsilon = the sum of the e_i given."""
        places, back = np.unique(np.abs(slopes), return_inverse=True)
        self.ask(places)
        logs = extended(slopes, self.upper[np.searchsorted(self.epsilons, places)][back])
        after = np.append(np.cumsum(slopes[::-1])[::-1][1:], 0.0)
        size = float(np.abs(slopes).sum()) + float(np.abs(logs[np.isfinite(logs)]).max(initial=0.0))
        return float(np.logaddexp.reduce(logs + after)) + _margin(self.size, size)

    def epsilon_below(self, links: Links, log_delta: float, *, glanced: bool = False) -> float:
        """An epsilon at which delta is still too large, log(1 + (gain - delta)/a); 0 where none was seen.

        Links may be fewer than the group's records: its power is at least that of fewer.
        """

        def seen(levels: Array) -> Array:
            gains = self.gains(levels, links.slopes.size, glanced=glanced)
            return np.logaddexp(0.0, gains + np.log(-np.expm1(log_delta - gains)) - levels)

        best = max(self._best(seen, links), 0.0)
        # what is off of the quotient x counts x/(1 + x) times, which is no more than 1 and than log(1 + x)
        return best - _margin(1, abs(links.level)) * min(best, 1.0)

    def log_delta_below(self, links: Links, epsilon: float, *, glanced: bool = False) -> float:
        """A lower bound on log delta of the group, or of as many of its records as there are links.

        That is gain - (e^epsilon - 1) a.
        """
        log_rise = epsilon + math.log(-math.expm1(-epsilon)) if epsilon > 0 else -math.inf
        doubt = _margin(1, abs(links.level) + epsilon - min(log_rise, 0.0)) if epsilon > 0 else 0.0

        def seen(levels: Array) -> Array:
            gains = self.gains(levels, links.slopes.size, glanced=glanced)
            return np.asarray(gains + np.log(-np.expm1(log_rise + levels + doubt - gains)))

        return self._best(seen, links)

    def _best(self, seen: Callable[[Array], Array], links: Links) -> float:
        """The largest of bounds at some levels, each of which holds.

        Of losses with a largest value the power curve has corners, and the best level is at one of them.
        """
        levels = np.minimum(links.level + _LEVELS, 0.0)
        with np.errstate(all="ignore"):
            found = np.nan_to_num(seen(levels), nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
            best = int(np.argmax(found))
            if not math.isfinite(self.largest):
                return float(found[best])
            closer = np.linspace(levels[max(best - 1, 0)], levels[min(best + 1, levels.size - 1)], _CLOSER)
            again = np.nan_to_num(seen(closer), nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
        return max(float(found[best]), float(again.max()))


def _sharp(gaps: Array) -> NDArray[np.bool_]:
    """Which points to draw lines through: any will do, and those that say less than their neighbours spoil the chords.

    (Beside their neighbours, not beside all: where a deep link is known less well than the rest it is needed as well.)
    """
    around = np.pad(gaps, _NEIGHBOURS, constant_values=math.nan)
    windows = np.lib.stride_tricks.sliding_window_view(around, 2 * _NEIGHBOURS + 1)
    return np.asarray(gaps <= 4 * np.nanmedian(windows, axis=1) + 1e-9)


def _extended_to_zero(places: Array, lower: Array, upper: Array) -> float:
    """log of what delta(0) is at least: delta is convex in e^eps, hence above its first chord on the left of it."""
    low = float(lower[0])
    if places.size < 2 or not math.isfinite(low):
        return low
    fall = -math.expm1(min(float(upper[1]) - low + 1e-12, 700.0))
    length = math.expm1(min(float(places[1] - places[0]), 700.0))
    back = -math.expm1(-float(places[0]))
    return low + math.log1p(max(fall, 0.0) * back / length * (1 - 1e-12)) - 1e-12
