"""A composition's curve for those who ask often: certified log delta at any epsilons, from lines that are kept.

A contour integral set up at one epsilon is sharp at those nearby too.  So what was set up is kept, and asked first; a
new one is set up only where none of them is sharp.  A direction whose Chernoff bound lies below what the other has
already isn't computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hush.accounting import contour, heavy, jumps, scattered
from hush.accounting.bounded import largest_total, near_top
from hush.accounting.cells import Rough, Steps, rough_look
from hush.accounting.crossing import Curve
from hush.accounting.line import Line, log_peak
from hush.accounting.losses import Array
from hush.accounting.sides import Chernoff
from hush.accounting.subsampled import Composition, chernoff_curve

Places = NDArray[np.intp]

_LINES = 40  # that are set up for one question
_DEEP = 200.0  # a log delta below minus that is known no less well
_CLOSE = 0.04  # as parts of epsilon: what is asked within it gets one line
_ALIKE = 0.2  # log deltas that are no further apart share a line too
_BELOW_BINS = -650.0  # a log delta for which bins of probabilities may have too little
_BELOW_LABELS = -640.0  # and one for which labelled integrals have none
_NEAREST = 6  # lines that are kept, asked for one epsilon
_USELESS = 0.1  # of log delta, or of 100: known no better
_LOST = 3  # such lines, and no more are set up: the next ones would be as bad
_MANY = -100.0  # and below that one of many large ones
_NEGLIGIBLE = -36.0, -24.0, -16.0  # logs of what a line may miss: where the first takes too many nodes, more
_LARGE = -30.0  # a log delta for which losses are mostly large
_ORDERS = np.geomspace(0.8, 1.25, 21)  # as parts of a line's own
_BINNED = 3e-4  # of log delta: what bins know at once
_FURTHEST = 8.0  # times as far, where lines serve as much
_SAME = 0.003  # where a new one would say the same
_FURTHER = 1.5  # as deep as that a line may be asked, as a multiple of its own log delta
_DEEPER = 8.0  # logs: labelled integrals so much sharper than they need be serve far to the left
_GLANCED = 16.0  # minus the log of a delta for which bins are good enough for a glance at all larger ones
_PLACES = 60  # of a whole curve, at which a rough look is had
_REACH = 0.6  # and where a line that is kept may be sharp


class Maker(Protocol):
    """One direction of a composition."""

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        """Sharp near epsilon, where log delta is about `size`: to that share of it, or of 1."""

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        """Upper bounds on log delta that cost little, good near epsilon."""

    def least(self, epsilons: Array) -> Array:
        """Lower bounds on log delta that cost next to nothing."""

    @property
    def largest(self) -> float:
        """From here on delta is 0."""

    @property
    def one_sided(self) -> bool:
        """Whether curves are sharp to the left of where they were set up, and hardly to the right."""


@dataclass
class Whole:
    """A curve that is sharp everywhere."""

    known: Curve
    largest: float = math.inf
    one_sided: bool = False

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        return self.known

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return np.zeros(epsilons.shape)

    def least(self, epsilons: Array) -> Array:
        return np.full(epsilons.shape, -np.inf)


@dataclass
class Binned:
    """Steps of any kind: bins, and lines for each of the two laws that enclose the composition.

    Where losses are continuous, paths are sorted by their largest loss: many small losses or a large one may decide.
    """

    steps: Steps
    one_sided: bool = False

    @cached_property
    def task(self) -> scattered.Task:
        return scattered.Task.of(self.steps)

    @cached_property
    def largest(self) -> float:
        return largest_total(self.steps)

    @cached_property
    def _near_top(self) -> tuple[float, float]:
        return near_top(self.steps)

    def least(self, epsilons: Array) -> Array:
        log_mass, total = self._near_top
        return np.asarray(log_mass + np.log(np.maximum(-np.expm1(np.minimum(epsilons - total, 0.0)), 0.0)) - 1e-12)

    @cached_property
    def look(self) -> Rough | None:
        return rough_look(self.steps) if heavy.serves(self.steps) else None

    def rough(self, epsilons: Array) -> Array:
        """About log delta."""
        if self.look is None:
            return self.task.rough_curve(epsilons)
        infinite = self.look.survey.infinite
        leak = math.log(infinite) if infinite > 0 else -math.inf
        sizes = [np.logaddexp.reduce(self.look.sizes(float(epsilon))) for epsilon in epsilons]
        return np.logaddexp(sizes, leak)

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        if self.look is not None and (epsilon > 0 or heavy.fits(self.steps)):
            return heavy.curve_at(self.look, epsilon, size, tolerance)
        return scattered.curve_at(self.task, epsilon, size, tolerance)

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        if self.look is not None and heavy.fits(self.steps):
            depth = math.ceil(math.log2(max(_GLANCED, -size)))
            if depth not in self._bounds:
                place = self.look.guess(-(2.0**depth))
                self._bounds[depth] = heavy.chernoff_near(self.look, place, -(2.0**depth))
            return self._bounds[depth](epsilons)
        return scattered.chernoff_at(self.task, epsilons, epsilon, size)

    @cached_property
    def _bounds(self) -> dict[int, Chernoff]:
        """From one law each, for a depth and all that is less deep."""
        return {}


@dataclass
class Sampled:
    """Gaussian steps on Poisson samples: one contour integral, or, where a few large losses decide, labelled ones."""

    composition: Composition
    direction: int
    binned: Binned
    before: jumps.Jumps | None = None
    one_sided: bool = True

    @property
    def largest(self) -> float:
        bounded = self.direction == contour.ADD and self.composition.gaussian == 0
        return self.composition.most_added if bounded else math.inf

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        enough = tolerance * max(1.0, -size)
        _, line, saddle = _line(self.composition, self.direction, epsilon)
        if line is not None and _width(line.log_delta, epsilon) <= enough:
            return line.log_delta
        size = saddle if saddle < _MANY else size  # many losses: the saddle point knows best
        binned = self.binned.curve(epsilon, size, tolerance) if tolerance > _BINNED else None
        if binned is not None and _width(binned, epsilon) <= enough:
            return binned
        labelled = self.composition.gaussian == 0 and epsilon > 0 and size > _BELOW_LABELS
        found = self._jumps(epsilon, size, enough) if labelled else None
        return found or binned or self.binned.curve(epsilon, size, tolerance)

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return chernoff_curve(self.composition, self.direction, epsilons)

    def least(self, epsilons: Array) -> Array:
        return np.full(epsilons.shape, -np.inf)

    def _jumps(self, epsilon: float, size: float, enough: float) -> Curve | None:
        best, narrowest = None, math.inf
        for _ in range(4):
            aim = float(np.clip(math.log(enough) - _DEEPER, -20.0, -12.0))
            found = jumps.jumps(self.composition.steps, self.direction, epsilon, size, aim, self.before)
            if found is None:
                size -= 12
                continue
            self.before = found
            lower, upper = (float(side[0]) for side in found.log_delta(np.array([epsilon])))
            if best is None or upper - lower < narrowest:
                best, narrowest = found, upper - lower
            if narrowest <= enough:
                break
            size = min(0.5 * (lower + upper) if math.isfinite(lower) else upper - 6, -0.7)
        return None if best is None or not narrowest < 0.3 else best.log_delta


@dataclass
class Replaced:
    """Gaussian steps on samples, one record replaced, where many losses are large: as if one were removed.

    C_p has the Poisson pair's losses where these are positive, and at most a mass of 1 at losses that are not.  So its
    delta is at least that of removing a record, and, with M the moment generating function of a step of that, at most
    this and k(t) e^{-t eps} ((1 + M(t))^T - M(t)^T) for any t > 0: what paths add on which some loss is not positive.
    And losses that are not positive are at most 0, where removing a record has no less than log(1-p): delta(eps) is at
    most that of removing a record at eps + T log(1-p).
    """

    composition: Composition
    binned: Binned
    below_bins: float = -math.inf
    """A log delta where bins had less to say."""
    largest: float = math.inf
    one_sided: bool = False

    def curve(self, epsilon: float, size: float, tolerance: float) -> Curve | None:
        enough = tolerance * max(1.0, -size)
        deep = self._deep(epsilon) if size < _LARGE else None
        if deep is not None and (size < self.below_bins or _width(deep, epsilon) <= enough):
            return deep
        found = self.binned.curve(epsilon, size, tolerance)
        if deep is not None and (found is None or _width(deep, epsilon) < _width(found, epsilon)):
            self.below_bins = size if size < _BELOW_BINS else self.below_bins
            return deep
        return found

    def bound(self, epsilons: Array, epsilon: float, size: float) -> Array:
        return self.binned.bound(epsilons, epsilon, size)

    def least(self, epsilons: Array) -> Array:
        return self.binned.least(epsilons)

    def _deep(self, epsilon: float) -> Curve | None:
        task, line, _ = _line(self.composition, contour.REMOVE, epsilon)
        if task is None or line is None:
            return None
        points = line.c * _ORDERS
        added = task.log_added(points) + log_peak(points)
        points, added = points[np.isfinite(added)], added[np.isfinite(added)]
        if points.size == 0:
            return None

        def curve(epsilons: Array) -> tuple[Array, Array]:
            lower, upper = line.log_delta(epsilons)
            more = (added - np.multiply.outer(epsilons, points)).min(axis=1)
            more += 1e-12 * (1 + np.abs(added).max() + float(np.abs(epsilons).max()) * float(points.max()))
            before = line.log_delta(np.maximum(epsilons - self.composition.most_added, 0.0))[1]
            return lower, np.minimum(np.minimum(np.logaddexp(upper, more), before), 0.0)

        return curve


@dataclass(frozen=True)
class Kept:
    """A line that was set up: where, for which log delta, how sharp it was to be."""

    at: float
    size: float
    tolerance: float
    curve: Curve

    def knows(self, at: float, size: float, tolerance: float, largest: float) -> bool:
        """Whether another one, set up there, would hardly say more."""
        close = abs(at - self.at) <= _SAME * min(self.at, 10 * abs(largest - self.at))
        close &= abs(size - self.size) <= 1 + _SAME * abs(self.size)
        return close and self.tolerance <= 1.01 * tolerance


@dataclass
class Asked:
    """The larger of all directions."""

    makers: Sequence[Maker]
    kept: list[list[Kept]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = [[] for _ in self.makers]

    @np.errstate(all="ignore")
    def __call__(self, epsilons: Array, sizes: Array, tolerance: float | Array) -> tuple[Array, Array]:
        """Certified bounds on log delta at ascending epsilons >= 0, where it is about as large as `sizes` say.

        These are those of the first direction, or one row for each; and so are tolerances, where they vary.
        As wide as the tolerance says, as a share of log delta, or of 1, where that can be had.
        """
        lower, upper = np.full(epsilons.shape, -np.inf), np.full(epsilons.shape, -np.inf)
        for k, (maker, kept) in enumerate(zip(self.makers, self.kept, strict=True)):
            same = (epsilons == 0) & (k > 0)  # delta(0) is the same in both directions
            own, wanted = (np.broadcast_to(row, (len(self.makers), epsilons.size))[k] for row in (sizes, tolerance))
            enough = np.where(same & (upper - lower <= wanted), np.inf, lower)
            low, high = self._one(maker, kept, epsilons, own, enough, wanted)
            lower, upper = np.fmax(lower, low), np.where(same, np.minimum(upper, high), np.maximum(upper, high))
        return np.minimum(lower, upper), np.maximum(lower, upper)

    def _one(
        self,
        maker: Maker,
        kept: list[Kept],
        epsilons: Array,
        sizes: Array,
        enough: Array,
        tolerances: Array,
    ) -> tuple[Array, Array]:
        lower, upper = maker.least(epsilons), np.zeros(epsilons.shape)
        upper[epsilons >= maker.largest] = -np.inf
        tried = np.zeros(epsilons.shape, dtype=bool)

        def ask(curve: Curve, where: Places) -> None:
            if where.size:
                low, high = curve(epsilons[where])
                lower[where], upper[where] = np.fmax(lower[where], low), np.fmin(upper[where], high)
                # delta falls: a lower bound holds to the left as well, an upper bound to the right
                lower[:], upper[:] = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)

        def waiting() -> Places:
            wide = ~(upper - lower <= tolerances * np.clip(-upper, 1.0, _DEEP)) & (upper > enough)
            return np.flatnonzero(wide & ~tried)

        # those nearby first, and no more than a few: each costs a sum over its nodes
        nearest = np.argsort(np.abs(np.subtract.outer(epsilons, [line.at for line in kept])), axis=1, kind="stable")
        for rank in range(min(_NEAREST, len(kept))):
            where = waiting()
            for k in np.unique(nearest[where, rank]):
                line, own = kept[k], where[nearest[where, rank] == k]
                ask(line.curve, own[np.abs(epsilons[own] - line.at) <= _REACH * max(line.at, 1e-3)])
        lines, lost, further = 0, 0, 1.0
        # from the right: what is cut off beyond one epsilon is negligible at smaller ones
        while (left := waiting()).size and lines < _LINES and lost < _LOST:
            last = float(epsilons[left[-1]])
            # curves bend near the end
            reach = min(last * _CLOSE * further + 1e-12, max(maker.largest - last, 0.0))
            near = left[epsilons[left] >= last - reach]
            close = np.union1d(near, left[sizes[left] < sizes[left[-1]] + _ALIKE])
            where = close[-1 if maker.one_sided else close.size // 2]
            at, size, tolerance = (float(row[where]) for row in (epsilons, sizes, tolerances))
            tried[close] = True
            if np.isfinite(enough[close]).all():
                deep = max(size, float(enough[close].min()))
                upper[close] = np.fmin(upper[close], maker.bound(epsilons[close], at, deep))
                if np.all(upper[close] <= enough[close]):
                    continue
            if any(line.knows(at, size, tolerance, maker.largest) for line in kept):
                continue  # it would be no sharper
            lines += 1
            made = maker.curve(at, size, 0.7 * tolerance * share(size) / max(1.0, -size))
            lost += made is None or not _width(made, at) < _USELESS * max(100.0, -size)
            if made is not None:
                kept.append(Kept(at, size, tolerance, made))
                ask(made, np.union1d(close, left[epsilons[left] >= at * (1 - _REACH) - 1e-3]))
            # where lines serve all they were set up for the next may be further apart
            tried[close] = False
            served = not np.isin(close, waiting()).any()
            tried[near] = further == 1
            further = min(2 * further, _FURTHEST) if served else 1.0
        return lower, upper


@np.errstate(all="ignore")
def heavy_curve(ways: Sequence[Steps], epsilons: Array, least: float, most: float) -> tuple[Array, Array]:
    """A whole curve of losses with heavy tails, at many ascending epsilons >= 0.

    log delta is as wide as the `least` for delta itself to be as wide as that, but no wider than the `most`.
    """
    makers = [Binned(steps) for steps in ways]
    spread = np.append(0, np.geomspace(1, epsilons.size - 1, _PLACES))
    places = np.unique(epsilons[np.rint(spread).astype(int)])
    sizes = np.array([np.interp(epsilons, places, np.minimum(maker.rough(places), 0.0)) for maker in makers])
    widths = np.clip(least * np.exp(-sizes), least, most)
    return Asked(makers)(epsilons, sizes, widths / np.clip(-sizes, 1.0, _DEEP))


def share(size: float) -> float:
    """What a tolerance is a share of, where log delta is about `size`."""
    return min(max(1.0, -size), _DEEP)


def _line(
    composition: Composition, direction: int, epsilon: float
) -> tuple[contour.Problem | None, Line | None, float]:
    """One contour integral, cut so deep that it may be asked far around epsilon, and about log delta there."""
    try:
        task, c, size = contour.solve_for_epsilon(
            composition.steps, composition.gaussian, direction, epsilon, depth=_FURTHER
        )
    except contour.TooWideError:
        return None, None, 0.0
    lines = (contour.line(task, c, negligible) for negligible in _NEGLIGIBLE)
    return task, next((line for line in lines if line is not None), None), size


def _width(curve: Curve, epsilon: float) -> float:
    lower, upper = curve(np.array([epsilon]))
    return float(upper[0] - lower[0])
