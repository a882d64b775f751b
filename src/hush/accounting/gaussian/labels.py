"""Random labels for steps whose losses span many scales: bulk, middle or huge, by where x fell.

A step is bulk with probability Phi((low-x)/w), huge with Phi((x-high)/n), else middle; there may be no bulk.  This file
chooses low and high such that what jumps.py takes for sure, or drops, counts for a negligible part of the delta in
question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.contours.line import log_peak
from hush.accounting.contours.thinning import GROUPS, standing
from hush.accounting.gaussian.axis import Axis
from hush.accounting.gaussian.contour import ADD, REMOVE, problem
from hush.accounting.gaussian.rules import Rule
from hush.accounting.gaussian.strips import Edge, Part
from hush.accounting.gaussian.transform import Array, Step, log_ratio

_APART = 11.0
"""Widths between the end of bulk and the beginning of huge."""
_CUTS = np.append(np.arange(9.0, 40.0, 0.5), np.arange(40.0, 240.0, 5.0))
"""Widths beyond which bulk is cut off."""
_FURTHEST = 210.0
"""Standard deviations at which huge may begin: deltas down to e^-20,000.  Cells grow in number with it."""
_LOWEST = 1024
"""Half widths by which the end of bulk is lowered at most."""
_LITTLE = 0.1
"""The share of what decides that is little."""


@dataclass(frozen=True)
class Labels:
    """One kind of step and where its labels change."""

    step: Step
    high: Edge
    """Where huge begins."""
    dropped: bool
    """Whether huge steps are so improbable that they are left out, instead of deciding for sure."""
    low: Edge | None = None
    """Where bulk ends.  Where other steps have an end of bulk and this has none, all that is not huge is bulk."""
    _seen: dict[tuple[Edge, Edge | None], tuple[Part, Rule]] = field(default_factory=dict, compare=False, repr=False)
    """Parts and their rules on the real axis, also for other edges, however often the step is taken."""

    def _part(self, falls: Edge, rises: Edge | None = None) -> tuple[Part, Rule]:
        if (falls, rises) not in self._seen:
            part = Part(self.step, falls, rises)
            self._seen[falls, rises] = part, on_axis(part)
        return self._seen[falls, rises]

    @property
    def bulk(self) -> Part | None:
        return None if self.low is None else self._part(self.low)[0]

    @property
    def middle(self) -> Part:
        return self._part(self.high, self.low)[0]

    @property
    def axis(self) -> tuple[Rule, Rule | None]:
        """Rules on the real axis for what is not bulk, and for the bulk."""
        return self._part(self.high, self.low)[1], None if self.low is None else self._part(self.low)[1]

    @property
    def bulk_edge(self) -> Edge:
        """Where bulk ends, or huge begins if nothing lies between."""
        return self.high if self.low is None else self.low

    @property
    def bulk_axis(self) -> Rule:
        """The rule on the real axis for the bulk."""
        middle, bulk = self.axis
        return middle if bulk is None else bulk

    def log_huge(self, hit: bool) -> float:
        """log of the chance of a huge label, for x of mean 0 or of mean 1/sigma."""
        mean = 1 / self.step.noise if hit else 0.0
        return float(log_ndtr((mean - self.high.place) / np.sqrt(1 + self.high.width**2)))


def counts(labels: Sequence[Labels]) -> Array:
    """How many steps there are of each kind."""
    return np.array([label.step.count for label in labels], dtype=np.float64)


def bulk_axis(labels: Sequence[Labels]) -> Axis:
    """The bulk of all kinds on the real axis."""
    return Axis([label.bulk_axis for label in labels])


def is_split(labels: Sequence[Labels]) -> bool:
    """Whether there is bulk."""
    return any(label.low is not None for label in labels)


def thinned_labels(labels: Sequence[Labels], groups: int = GROUPS) -> Sequence[Labels]:
    """Some of many kinds of steps, counted for all of them: for searches, not for certificates."""
    found = standing(labels, groups)
    return [replace(one, step=replace(one.step, count=one.step.count * share)) for one, share in found]


def on_axis(part: Part) -> Rule:
    """A rule on the real axis: good to ten digits, for searches and for Chernoff's inequality."""
    left, width, count = part.cells
    right = left + width * count
    spacing = min(0.5 * part.narrowest, 0.15 * min(part.step.noise, 1.0))
    size = max(int(np.ceil((right - left) / spacing)), 2)
    return Rule(part, 0.0, left + 0.5 * (right - left) / size, (right - left) / size, size, np.nan)


def loss_position(step: Step, loss: float) -> float:
    """The x at which log g(x) is `loss`; -inf where no x gives so small a loss."""
    argument = np.expm1(min(loss, 600.0)) / step.rate
    if argument <= -1:
        return -np.inf
    exponent = np.log1p(argument) if loss < 600 else loss - np.log(step.rate)
    return float(step.noise * (exponent + 0.5 / step.noise**2))


def reach_below(steps: Sequence[Step], log_certain: float = 30.0) -> float:
    """A number that the sum of -log g over all steps exceeds with probability exp(-log_certain) at most, under N(0, 1).

    The sum of -log(1-p) bounds it for sure; Chernoff's inequality, with E[g^-t], often does better.
    """
    surely = float(sum(-step.count * np.log1p(-step.rate) for step in steps))
    task = problem(steps, 0.0, ADD, -max(40.0, log_certain))
    points = np.geomspace(0.1, 1e6, 60) / surely
    with np.errstate(all="ignore"):
        bounds = (task.log_mgf(points) + 1e-6 + log_certain + 0.1) / points
        likely = float(np.min(np.where(np.isnan(bounds), np.inf, bounds)))
    return min(surely, likely) if task.log_dropped < -log_certain - 3 else surely


def choose_high(
    steps: Sequence[Step], direction: int, epsilon: float, log_budget: float, reach: float, tilt: float
) -> list[Labels] | None:
    """Where huge begins: where it decides for sure, or where it is negligible, whichever comes first."""
    total = sum(step.count for step in steps)
    sure = epsilon + reach if direction == REMOVE else reach - epsilon
    labels = []
    for step in steps:
        width = min(step.noise / 12, 0.2)
        for _ in range(2):
            found = _high_label(step, direction, epsilon, sure, log_budget - np.log(total), width)
            if found is None:
                return None
            label = found
            # a window much wider than the tilted law rises on lets too much of it pass
            x = label.high.place
            exponent = x / step.noise - 0.5 / step.noise**2 + np.log(step.rate)
            share = 1 / (1 + np.exp(np.clip(np.log1p(-step.rate) - exponent, -700, 700)))
            rise = (1 + tilt) * share / step.noise - x if direction == REMOVE else 0.0
            if rise * width <= 1.5:
                break
            width = max(1.5 / rise, width / 50)
        labels.append(label)
    return labels


def _high_label(
    step: Step, direction: int, epsilon: float, sure: float, log_budget: float, width: float
) -> Labels | None:
    def far_enough(place: float) -> bool:
        return log_dropped(Labels(step, Edge(place, width), True), direction) < log_budget

    ends = [-5.0, float(np.clip(np.sqrt(-2 * log_budget) + 10, 60.0, _FURTHEST)) + 1 / step.noise]
    if not far_enough(ends[1]):
        return None
    while ends[1] - ends[0] > 0.02 * min(step.noise, 1.0):
        middle = 0.5 * (ends[0] + ends[1])
        ends = [ends[0], middle] if far_enough(middle) else [middle, ends[1]]
    dropping = ends[1]
    point = loss_position(step, sure)
    for out in np.arange(2.0, 60.0, 0.25):
        place = point + out * width
        if place > dropping or not np.isfinite(point):
            break
        if log_misplaced(point, place, width) + max(epsilon, 0.0) < log_budget:
            return Labels(step, Edge(float(place), width), False)
    return Labels(step, Edge(dropping, width), True)


def log_overlap(label: Labels, direction: int) -> float:
    """log of the mass, under P, where bulk and huge add up to more than one: beyond all edges, on the wider one's side.

    There the one that reaches over has Phi(-widths) at most: above huge's edge if bulk is wider, else below bulk's.
    """
    if label.low is None or label.low.width == label.high.width:
        return -np.inf
    widths = (label.high.place - label.low.place) / abs(label.low.width - label.high.width)
    if label.low.width < label.high.width:
        return float(log_ndtr(-widths) + log_ndtr(label.low.place - widths * label.low.width))
    mean = 1 / label.step.noise if direction == REMOVE else 0.0
    return float(log_ndtr(-widths) + log_ndtr(mean - label.high.place - widths * label.high.width))


def log_dropped(label: Labels, direction: int) -> float:
    """log of the chance that one step is huge, under P."""
    rate = label.step.rate if direction == REMOVE else 0.0
    with np.errstate(divide="ignore"):
        return float(np.logaddexp(np.log1p(-rate) + label.log_huge(False), np.log(rate) + label.log_huge(True)))


def choose_low(
    labels: Sequence[Labels],
    direction: int,
    epsilon: float,
    log_budget: float,
    reach: float,
    also: Sequence[tuple[float, float]] = (),
) -> list[Labels] | None:
    """Where bulk ends: so low that all steps bulk hardly exceed epsilon (remove), or hardly fall short of it (add).

    And other epsilons, with budgets of their own.
    """
    points = bulk_points(epsilon + reach)
    top = epsilon + reach if direction == REMOVE else reach

    def with_bulk_below(these: Sequence[Labels], lowering: int) -> list[Labels] | None:
        changed = lowered(these, epsilon, log_budget, lowering, top)
        # what loses little at most is bulk as a whole: a middle of it would have to be resolved on its own scale
        little = [label.dropped and largest_loss(label) < _LITTLE * top for label in these]
        result = changed
        if not all(little):
            result = [old if whole else new for old, new, whole in zip(these, changed, little, strict=True)]
        values = bulk_log_mgf(result, points)
        wanted = [(epsilon, log_budget), *also]
        return result if all(log_all_bulk(direction, at, points, values) < budget for at, budget in wanted) else None

    some = thinned_labels(labels)  # of many kinds some say how low
    few, many = 0, 8
    while with_bulk_below(some, many) is None:
        few, many = many, 2 * many
        if many > _LOWEST:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if with_bulk_below(some, middle) is not None else (middle, many)
    best = with_bulk_below(labels, many)
    while best is None and many <= _LOWEST:
        many += 1 + many // 8
        best = with_bulk_below(labels, many)
    return best


def lowered(
    labels: Sequence[Labels], epsilon: float, log_budget: float, lowering: int, top: float, narrow: float = 1.0
) -> list[Labels]:
    """With bulk below the loss `top` and well apart from huge, and so many half widths lower still.

    It ends at about the same loss for all kinds, p e^u being the same.  What has no room for that below huge, which is
    left out, loses less: it is bulk as a whole.
    """
    total = sum(label.step.count for label in labels)
    widths = [narrow * _width(label.step, epsilon) for label in labels]
    firsts = [
        min(loss_position(label.step, top), label.high.place - _APART * max(width, label.high.width))
        for label, width in zip(labels, widths, strict=True)
    ]
    levels = [
        first / label.step.noise - 0.5 / label.step.noise**2 + float(np.log(label.step.rate))
        for label, first in zip(labels, firsts, strict=True)
    ]
    most = int(np.argmax(levels))
    down = 0.5 * lowering * widths[most] / labels[most].step.noise
    result = []
    for label, width, first, level in zip(labels, widths, firsts, levels, strict=True):
        place = first + label.step.noise * min(levels[most] - down - level, 0.0)
        whole = label.dropped and levels[most] - down > level
        edge = None if whole else _low_edge(label.step, place, width, log_budget - np.log(total))
        result.append(replace(label, low=edge))
    return result


def largest_loss(label: Labels) -> float:
    """log g where huge begins."""
    exponent = label.high.place / label.step.noise - 0.5 / label.step.noise**2
    return float(log_ratio(np.array([exponent]), label.step.rate)[0])


def bulk_points(scale: float) -> Array:
    return np.geomspace(0.3, 1e6, 64) / scale


def _width(step: Step, epsilon: float) -> float:
    """A quarter of an e-fold of small losses, or a sixtieth of a large epsilon, in units of x."""
    return float(min(step.noise * max(1 / 4, epsilon / 60), 0.5))


def _low_edge(step: Step, place: float, width: float, log_budget: float) -> Edge:
    """An edge cut off where what is cut counts for nothing."""
    tails = log_ndtr(-_CUTS) + np.logaddexp(
        log_ndtr(-place - _CUTS * width), log_ndtr(1 / step.noise - place - _CUTS * width)
    )
    enough = tails < log_budget - 4
    return Edge(place, width, float(_CUTS[np.argmax(enough)] if enough.any() else _CUTS[-1]))


def log_misplaced(point: float, threshold: float, width: float) -> float:
    """log of a bound on the chance, for x ~ N(0, 1), that x is below `point` and yet labelled as above `threshold`.

    A label above b means x + w z > b with z standard normal.  Three bounds on P(x < a, x + w z > b): Phi(-(b-a)/w);
    P(x + w z > b); and, since the logarithm of the integrand over x rises at least at the rate v = (b-a)/w^2 - a
    up to a, also Phi(-(b-a)/w) phi(a) / v.
    """
    log_gap = float(log_ndtr(-(threshold - point) / width))
    rate = (threshold - point) / width**2 - point
    density = -0.5 * point * point - 0.9189 - np.log(rate) if rate > 0 else np.inf
    return float(min(log_gap, float(log_ndtr(-threshold / np.sqrt(1 + width**2))), log_gap + density))


def bulk_log_mgf(labels: Sequence[Labels], points: Array) -> Array:
    """log E[g^(1+t); bulk] of all steps together, at real t."""
    if not is_split(labels):
        return np.full(points.shape, -np.inf)
    with np.errstate(all="ignore"):
        total = counts(labels) @ bulk_axis(labels).log_sizes(1 + points)
    return np.where(np.isnan(total), np.inf, total)


def log_all_bulk(direction: int, epsilon: float, points: Array, values: Array) -> float:
    """log of a bound on what all steps bulk add to delta beyond nothing (remove) or beyond P - e^eps Q (add).

    remove: E_P[(1 - e^(eps-L))_+] <= k(t) E_P[e^(t (L-eps))].
    add: E_P[(e^(eps-L) - 1)_+] <= k(t) E_P[e^((1+t) (eps-L))].
    Both are powers 1 + t of g under N(0, 1).
    """
    exponents = -points * epsilon if direction == REMOVE else (1 + points) * epsilon
    return float(np.nanmin(values + exponents + log_peak(points)))
