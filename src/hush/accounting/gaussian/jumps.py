"""Certified delta(epsilon) where large losses matter: little noise, few steps, tiny rates, deep deltas.

There the loss of one step spans many scales: mostly a near-atom at log(1-p), and rarely a jump of any size between
p and infinity.  On the plain contour (contour.py) the largest of them, however improbable, rule the moment generating
function.  So every step is labelled, at random, by where its x fell,

    bulk (b0):  x below x0          middle (b1):  between          huge (b2):  x above x2

with smooth probabilities, b0 = Phi((x0-x)/w), b2 = Phi((x-x2)/n), and delta is the sum over the labels of all steps:

                             remove (losses l(x) = log g(x))              add (losses -l(x))
    some step huge           so improbable that it is left out, or else
                             the total exceeds eps for sure: closed form  the total is below eps for sure: 0
    all bulk                 the total is below eps, by Chernoff: 0       it exceeds eps, by Chernoff: closed form
    else (no huge, some      contour integral of (B0 + B1)^T - B0^T, whose middle part is smooth on the scale of eps,
    middle)                  so that some hundred nodes do

Where many small losses decide there is no bulk and the integrand is B1^T.  "For sure" fails only in the Gaussian tails
of the labels, and that mass is counted as error (docs/certificate.md).  Near delta = 1 the same labels give 1 - delta:
each of them adds its probability less what it adds to delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hush.accounting.contours.line import Line, complements
from hush.accounting.gaussian.certain import Hits, Known, Reach, closed_form, hits, log_misjudged
from hush.accounting.gaussian.contour import ADD, REMOVE, is_complement, log_complement
from hush.accounting.gaussian.integrals import Aim, candidates, line_through
from hush.accounting.gaussian.labels import (
    Labels,
    bulk_log_mgf,
    bulk_points,
    choose_high,
    choose_low,
    is_split,
    log_all_bulk,
    lowered,
    reach_below,
    thinned_labels,
)
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Step

_MOST_NODES = 20_000
_FEW_NODES, _SEVERAL, _FEWEST_NODES = 1500, 8, 400
"""Up to so many, of so many kinds of steps, or up to fewer of more, the integral without bulk is taken at once."""
_LOG_SMALLEST = -20_000.0
"""No delta below this is asked for: groups ask for what is no floating-point number."""
LOG_TOLERANCE = -19.0
_MUCH_LARGER = 6.0
"""log of how much larger than the answer the integrand may be before it pays to split it."""
_NEARLY = 4.0
"""How much wider than wanted a curve with bulk may be before another is tried."""
_NARROW = 0.2
"""How much narrower bulk ends where it has a line of its own: it can then end close to where huge begins."""


@dataclass(frozen=True)
class Jumps:
    """The integral set up around one epsilon; valid at any other, sharp near it."""

    labels: tuple[Labels, ...]
    direction: int
    line: Line
    epsilon: float
    reach: Reach
    bulk_points: Array
    bulk_values: Array
    """The bulk's log-MGF where Chernoff's inequality is tried on it."""
    bulk_line: Line | None = None
    """The integral of all steps bulk, where that is not negligible."""

    @property
    def complement(self) -> bool:
        """Whether 1 - delta is what is computed."""
        return self.line.c < 0

    def log_delta(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on log delta at each epsilon, also below 0."""
        lower, upper = self.log_value(epsilons)
        return complements(lower, upper) if self.complement else (lower, upper)

    def log_value(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on the log of delta, or of 1 - delta, at each epsilon, also below 0."""
        lines = [self.line] if self.bulk_line is None else [self.line, self.bulk_line]
        integrals = [line.log_value(np.asarray(epsilons, dtype=float)) for line in lines]
        lows, highs = (np.logaddexp.reduce([one[side] for one in integrals]) for side in (0, 1))
        lower, upper = np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
        for i, epsilon in enumerate(epsilons):
            # all relative to the largest part, so that deltas of 1e-300 keep their digits
            sure_bulk = self.bulk_line is None and is_split(self.labels)
            parts = closed_form(self.labels, self.direction, float(epsilon), self.complement, sure_bulk)
            errors = [log_misjudged(self.labels, self.direction, float(epsilon), self.reach)]
            errors += [part.log_error for part in parts]
            if sure_bulk:
                errors.append(log_all_bulk(self.direction, float(epsilon), self.bulk_points, self.bulk_values) + 1e-6)
            scale = max(highs[i], *(part.log_size for part in parts), *errors)
            if not np.isfinite(scale):
                continue
            closed = float(sum(part.sign * np.exp(part.log_size - scale) for part in parts))
            error = float(np.exp(np.array(errors) - scale).sum())
            low, high = np.exp(lows[i] - scale) + closed - error, np.exp(highs[i] - scale) + closed + error
            margin = 8 * UNIT_ROUNDOFF * (4 + abs(scale))
            if low > 0:
                lower[i] = np.log(low) + scale - margin
            if high > 0:
                upper[i] = min(np.log(high) + scale + margin, 0.0)
            if self._hits is not None:
                low, high = self._by_hits(self._hits, parts[1], errors[:1] + errors[2:], lows[i], highs[i])
                lower[i], upper[i] = max(lower[i], low), min(upper[i], high)
        return lower, upper

    @cached_property
    def _hits(self) -> Hits | None:
        """Where delta is known as the chance of a hit, less something."""
        return hits(self.labels) if self.direction == REMOVE and not self.complement else None

    def _by_hits(
        self, hits: Hits, growth: Known, log_errors: list[float], log_low: float, log_high: float
    ) -> tuple[float, float]:
        """Bounds on log delta, by numbers and their sums: a logarithm near -10 has lost digits that count on a plateau.

        Numbers beside the chance of a hit are rounded by 16 u, the chance, the sums and the logarithm by one unit each,
        and so is that of the delta asked for.
        """
        if not max(growth.log_size, *log_errors) < 0:
            return -math.inf, 0.0
        grown = growth.sign * math.exp(growth.log_size)
        low, high = math.exp(log_low), math.exp(min(log_high, 0.0))
        wrong = math.fsum(math.exp(error) for error in log_errors) + hits.doubt
        wrong += 16 * UNIT_ROUNDOFF * (high + abs(grown) + hits.short) + 4 * UNIT_ROUNDOFF * hits.chance
        least = math.fsum((hits.chance, -hits.short, grown, low, -wrong))
        most = math.fsum((hits.chance, -hits.short, grown, high, wrong))
        found = [math.log(end) if end > 0 else -math.inf for end in (least, most)]
        margins = [4 * UNIT_ROUNDOFF * (1 + abs(end)) if end > -math.inf else 0.0 for end in found]
        return found[0] - margins[0], min(found[1] + margins[1], 0.0)


def jumps(
    steps: Sequence[Step],
    direction: int,
    epsilon: float,
    log_target: float,
    log_tolerance: float = LOG_TOLERANCE,
    before: Jumps | None = None,
    also: tuple[float, float] | None = None,
) -> Jumps | None:
    """Set up for epsilon, where delta is about exp(log_target), to about exp(log_tolerance) of it, or of 1 - delta.

    `before` served nearby: what did there is tried first.  And for a smaller epsilon with its log delta, if another is
    given.  None where this way has no answer.
    """
    complement = is_complement(log_target)
    budget = max(log_complement(log_target) if complement else log_target, _LOG_SMALLEST) + log_tolerance
    aim = Aim(direction, epsilon, budget, log_tolerance, complement)
    enough = 10 * np.exp(log_tolerance)
    unsplit = _without_bulk(steps, aim)
    if unsplit is None:
        return None
    labels, reach, log_largest = unsplit
    found: list[Jumps | None] = []
    if before is not None and before.bulk_line is not None:
        found.append(_apart(labels, aim, reach))
        if _narrowest(found, epsilon) < 100 * enough:
            return found[0]

    def whole() -> Jumps | None:
        few = min(_FEW_NODES, max(_FEW_NODES * _SEVERAL // len(labels), _FEWEST_NODES))
        return _set_up(labels, aim, line_through(labels, aim, few), reach)

    def parted() -> Jumps | None:
        left = [] if also is None else [(also[0], also[1] + log_tolerance)]
        split = choose_low(labels, direction, epsilon, budget, reach.below, left)
        return None if split is None else _set_up(split, aim, line_through(split, aim, _MOST_NODES), reach)

    for attempt in (parted, whole) if before is not None and is_split(before.labels) else (whole, parted):
        found.append(attempt())
        if _narrowest(found, epsilon) < (_NEARLY * enough if attempt is parted else enough):
            break
    cancelling = log_largest > budget - log_tolerance + _MUCH_LARGER
    if cancelling and _narrowest(found, epsilon) > 100 * enough and (before is None or before.bulk_line is None):
        found.append(_apart(labels, aim, reach))
    if not any(found):
        return _set_up(labels, aim, line_through(labels, aim, _MOST_NODES), reach)
    return min((one for one in found if one is not None), key=lambda one: _width_at(one, epsilon))


def _narrowest(found: Sequence[Jumps | None], epsilon: float) -> float:
    return min((_width_at(one, epsilon) for one in found if one is not None), default=np.inf)


def _apart(labels: Sequence[Labels], aim: Aim, reach: Reach) -> Jumps | None:
    """All steps bulk on one line, the rest on another: each through its own saddle point.

    Where one large loss competes with the sum of many small ones, no single line suits both: on it the integrand is far
    larger than the integral, and digits cancel.  The higher bulk ends, the larger its integrand and the smaller the
    other: it ends where they are equal.
    """

    def parted(these: Sequence[Labels], lowering: int) -> tuple[list[Labels], list[Labels]]:
        split = lowered(these, aim.epsilon, aim.budget, lowering, np.inf, _NARROW)
        return split, [Labels(label.step, label.bulk_edge, True) for label in split]

    some, few, many = thinned_labels(labels), 0, 96
    while many - few > 1:
        middle = (few + many) // 2
        rest, bulk = (float(np.min(candidates(part, aim)[1])) for part in parted(some, middle))
        few, many = (middle, many) if rest < bulk else (few, middle)
    split, alone = parted(labels, many)
    line = line_through(split, aim, _MOST_NODES)
    bulk_line = None if line is None else line_through(alone, aim, _MOST_NODES)
    found = None if bulk_line is None else _set_up(split, aim, line, reach)
    return None if found is None else replace(found, bulk_line=bulk_line)


def _set_up(labels: Sequence[Labels], aim: Aim, line: Line | None, reach: Reach) -> Jumps | None:
    if line is None:
        return None
    points = bulk_points(aim.epsilon + reach.below)
    return Jumps(tuple(labels), aim.direction, line, aim.epsilon, reach, points, bulk_log_mgf(labels, points))


def _width_at(jump: Jumps, epsilon: float) -> float:
    lower, upper = jump.log_value(np.array([epsilon]))
    return float(upper[0] - lower[0])


def _without_bulk(steps: Sequence[Step], aim: Aim) -> tuple[list[Labels], Reach, float] | None:
    """Labels without bulk, what all but a huge step lose at most, and the log of the integrand's size."""
    # huge mostly has little mass without the record, and all else counts beside that; in the add direction it has much
    remove = aim.direction == REMOVE
    reach = _reach(steps, float(np.clip(6 - aim.log_tolerance, 14.0, 36.0)) if remove else max(2 - aim.budget, 14.0))
    tilt = 0.0
    labels: list[Labels] | None = None
    for _ in range(3):
        labels = choose_high(steps, aim.direction, aim.epsilon, aim.budget, reach.below, tilt)
        needed = _log_huge(labels or (), aim.epsilon) - aim.budget + 2
        if needed > reach.log_certain + 1:
            reach = _reach(steps, needed)
            labels = choose_high(steps, aim.direction, aim.epsilon, aim.budget, reach.below, tilt)
        if labels is None or not all(label.middle.is_reasonable for label in labels):
            return None
        lines, objective = candidates(thinned_labels(labels), aim)
        if not np.isfinite(objective.min()):
            return None
        before, tilt = tilt, float(lines[np.argmin(objective)])
        if aim.direction == ADD or (before != 0 and 0.7 < tilt / before < 1.4):
            break
    assert labels is not None
    return labels, reach, float(objective.min() + np.log(abs(tilt)))


def _reach(steps: Sequence[Step], log_certain: float) -> Reach:
    """What all steps lose at most, but for a chance of exp(-log_certain), or for sure where that is hardly more."""
    below = reach_below(steps, log_certain)
    surely = math.fsum(-step.count * np.log1p(-step.rate) for step in steps) * (1 + 1e-12)
    return Reach(surely, np.inf) if surely < 1.2 * below else Reach(below, log_certain)


def _log_huge(labels: Sequence[Labels], epsilon: float) -> float:
    """log of e^eps times the chance, without the record, that a step is huge and decides, and so counts."""
    return max(
        (epsilon + float(np.log(one.step.count)) + one.log_huge(False) for one in labels if not one.dropped),
        default=-np.inf,
    )
