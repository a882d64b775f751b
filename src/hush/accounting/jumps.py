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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr, ndtr

from hush.accounting import strips
from hush.accounting.contour import ADD, REMOVE, is_complement, log1p, log_complement, place
from hush.accounting.labels import (
    Labels,
    bulk_log_mgf,
    bulk_points,
    choose_high,
    choose_low,
    log_all_bulk,
    log_dropped,
    log_misplaced,
    log_overlap,
    log_size,
    loss_position,
    lowered,
    reach_below,
)
from hush.accounting.line import Line, alias_free_spacing, chernoff_points, chernoff_values, complements
from hush.accounting.strips import Edge
from hush.accounting.transform import UNIT_ROUNDOFF, Array, Numbers, Step

_MOST_NODES = 20_000
_FEW_NODES = 1500
"""Up to so many the integral without bulk is taken at once."""
_MOST_TERMS = 12_000_000
_FEW_STEPS = 1000
_CHUNK = 256
_LOG_SMALLEST = -650.0
"""No delta below this is asked for."""
LOG_TOLERANCE = -19.0
_MUCH_LARGER = 6.0
"""log of how much larger than the answer the integrand may be before it pays to split it."""
_NARROW = 0.2
"""How much narrower bulk ends where it has a line of its own: it can then end close to where huge begins."""


@dataclass(frozen=True)
class Reach:
    """All other steps together lose no more than `below`, but for a chance of exp(-log_certain)."""

    below: float
    log_certain: float


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
        """Certified lower and upper bounds on log delta at each epsilon > 0."""
        lower, upper = self.log_value(epsilons)
        return complements(lower, upper) if self.complement else (lower, upper)

    def log_value(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on the log of delta, or of 1 - delta, at each epsilon > 0."""
        lines = [self.line] if self.bulk_line is None else [self.line, self.bulk_line]
        integrals = [line.log_value(np.asarray(epsilons, dtype=float)) for line in lines]
        lows, highs = (np.logaddexp.reduce([one[side] for one in integrals]) for side in (0, 1))
        lower, upper = np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
        for i, epsilon in enumerate(epsilons):
            # all relative to the largest part, so that deltas of 1e-300 keep their digits
            sure_bulk = self.bulk_line is None and self.labels[0].low is not None
            parts = _closed_form(self.labels, self.direction, float(epsilon), self.complement, sure_bulk)
            errors = [_log_misjudged(self.labels, self.direction, float(epsilon), self.reach)]
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
        return lower, upper


@dataclass(frozen=True)
class Aim:
    """What is wanted: the integral at epsilon, to about exp(budget), which is exp(log_tolerance) of the answer."""

    direction: int
    epsilon: float
    budget: float
    log_tolerance: float
    complement: bool
    """Whether the answer is 1 - delta."""


def jumps(
    steps: Sequence[Step],
    direction: int,
    epsilon: float,
    log_target: float,
    log_tolerance: float = LOG_TOLERANCE,
    before: Jumps | None = None,
) -> Jumps | None:
    """Set up for epsilon, where delta is about exp(log_target), to about exp(log_tolerance) of it, or of 1 - delta.

    `before` served nearby: what did there is tried first.  None where this way has no answer.
    """
    complement = is_complement(log_target)
    budget = max(log_complement(log_target) if complement else log_target, _LOG_SMALLEST) + log_tolerance
    # huge has little mass without the record, and all else counts beside that; in the add direction it has much
    certain = float(np.clip(6 - log_tolerance, 14.0, 36.0)) if direction == REMOVE else max(2 - budget, 14.0)
    reach = Reach(reach_below(steps, certain), certain)
    aim = Aim(direction, epsilon, budget, log_tolerance, complement)
    enough = 10 * np.exp(log_tolerance)
    unsplit = _without_bulk(steps, aim, reach)
    if unsplit is None:
        return None
    labels, log_largest = unsplit
    found: list[Jumps | None] = []
    if before is not None and before.bulk_line is not None:
        found.append(_apart(labels, aim, reach))
        if _narrowest(found, epsilon) < 100 * enough:
            return found[0]
    found.append(_set_up(labels, aim, _line(labels, aim, _FEW_NODES), reach))
    if _narrowest(found, epsilon) < enough:
        return found[-1]
    split = choose_low(labels, direction, epsilon, budget, reach.below)
    if split is not None:
        found.append(_set_up(split, aim, _line(split, aim, _MOST_NODES), reach))
    cancelling = log_largest > budget - log_tolerance + _MUCH_LARGER
    if cancelling and _narrowest(found, epsilon) > 100 * enough and (before is None or before.bulk_line is None):
        found.append(_apart(labels, aim, reach))
    if not any(found):
        return _set_up(labels, aim, _line(labels, aim, _MOST_NODES), reach)
    return min((one for one in found if one is not None), key=lambda one: _width_at(one, epsilon))


def _narrowest(found: Sequence[Jumps | None], epsilon: float) -> float:
    return min((_width_at(one, epsilon) for one in found if one is not None), default=np.inf)


def _apart(labels: Sequence[Labels], aim: Aim, reach: Reach) -> Jumps | None:
    """All steps bulk on one line, the rest on another: each through its own saddle point.

    Where one large loss competes with the sum of many small ones, no single line suits both: on it the integrand is far
    larger than the integral, and digits cancel.  The higher bulk ends, the larger its integrand and the smaller the
    other: it ends where they are equal.
    """

    def parted(lowering: int) -> tuple[list[Labels], list[Labels]]:
        split = lowered(labels, aim.epsilon, aim.budget, lowering, np.inf, _NARROW)
        return split, [Labels(label.step, label.low, True) for label in split if label.low is not None]

    few, many = 0, 96
    while many - few > 1:
        middle = (few + many) // 2
        rest, bulk = (float(np.min(_candidates(some, aim)[1])) for some in parted(middle))
        few, many = (middle, many) if rest < bulk else (few, middle)
    split, alone = parted(many)
    line = _line(split, aim, _MOST_NODES)
    bulk_line = None if line is None else _line(alone, aim, _MOST_NODES)
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


def _without_bulk(steps: Sequence[Step], aim: Aim, reach: Reach) -> tuple[list[Labels], float] | None:
    """Labels without bulk, and the log of the integrand's size."""
    tilt = 0.0
    labels: list[Labels] | None = None
    for _ in range(3):
        labels = choose_high(steps, aim.direction, aim.epsilon, aim.budget, reach.below, tilt)
        if labels is None or not all(label.middle.is_reasonable for label in labels):
            return None
        candidates, objective = _candidates(labels, aim)
        if not np.isfinite(objective.min()):
            return None
        before, tilt = tilt, float(candidates[np.argmin(objective)])
        if aim.direction == ADD or (before != 0 and 0.7 < tilt / before < 1.4):
            break
    assert labels is not None
    return labels, float(objective.min() + np.log(abs(tilt)))


def _powers(direction: int, s: Numbers) -> Numbers:
    """r with a positive imaginary part for s with one: in the add direction the conjugate of -s."""
    return np.asarray(1 + s if direction == REMOVE else -np.conj(s))


def _log_mgf(labels: Sequence[Labels], direction: int, points: Array) -> Array:
    """log of (B0 + B1)^T - B0^T at real points, for each kind of step multiplied together."""
    powers = _powers(direction, points)
    bulk, ratio = np.zeros(points.shape), np.zeros(points.shape)
    with np.errstate(all="ignore"):
        for label in labels:
            middle, base = label.axis
            if base is None:
                bulk += label.step.count * log_size(middle, powers)
                continue
            part = log_size(base, powers)
            bulk += label.step.count * part
            ratio += label.step.count * np.log1p(middle.mgf(powers).real / np.exp(part))
        total = bulk if labels[0].low is None else bulk + _log_expm1(ratio)
    return np.where(np.isnan(total), np.inf, total)


def _log_expm1(ratio: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.where(ratio > 30, ratio, np.log(np.expm1(np.minimum(ratio, 30.0))))


def _candidates(labels: Sequence[Labels], aim: Aim) -> tuple[Array, Array]:
    """Lines worth trying, and the size of the integrand on the axis there."""
    scale = aim.epsilon + reach_below([label.step for label in labels])
    furthest = float(np.log1p(scale)) + 7
    first, last = (-furthest, furthest) if aim.complement else (float(np.log(1e-3 / scale)), float(np.log(1e5 / scale)))
    tried = np.linspace(first, last, 64)
    found, objective = tried, np.empty(0)
    for _ in range(3):
        lines = place(tried, aim.complement)
        values = _log_mgf(labels, aim.direction, lines) - lines * aim.epsilon - np.log(np.abs(lines * (1 + lines)))
        found, objective = (
            (tried, values) if not objective.size else (np.append(found, tried), np.append(objective, values))
        )
        order = np.argsort(found)
        found, objective = found[order], np.where(np.isnan(objective), np.inf, objective)[order]
        best = int(np.argmin(objective))
        tried = np.linspace(found[max(best - 1, 0)], found[min(best + 1, len(found) - 1)], 14)[1:-1]
    return place(found, aim.complement), objective


@dataclass(frozen=True)
class Known:
    """A part of the answer in closed form: its sign, the log of its size, and the log of what may be wrong with it."""

    sign: float
    log_size: float
    log_error: float


@dataclass(frozen=True)
class Below:
    """All steps below an edge each: log of the chance of it without the record, and with it.

    The errors of both follow from Gaussian tails that are good to 4e-13 of themselves.
    """

    log_absent: float
    log_ratio: float
    """log of the chance with the record, less that without it."""
    doubt_absent: float
    doubt_ratio: float

    @property
    def log_present(self) -> float:
        return self.log_absent + self.log_ratio

    @property
    def doubt_present(self) -> float:
        return self.doubt_absent + self.doubt_ratio


def _all_below(edges: Sequence[tuple[Step, Edge]]) -> Below:
    log_absent, log_ratio, doubt_ratio = 0.0, 0.0, 0.0
    for step, edge in edges:
        spread = np.sqrt(1 + edge.width**2)
        log_below = float(log_ndtr(edge.place / spread))
        log_hit_below = float(log_ndtr((edge.place - 1 / step.noise) / spread))
        # log of P(below)/Q(below), from what is above if that is little
        above = float(ndtr(-edge.place / spread))
        hit_above = float(ndtr((1 / step.noise - edge.place) / spread))
        if log_below < -0.5:
            change, unsure = np.expm1(log_hit_below - log_below), abs(log_hit_below) + abs(log_below)
            unsure *= np.exp(log_hit_below - log_below)
        else:
            change, unsure = (above - hit_above) / np.exp(log_below), 2 * (above + hit_above)
        one = float(np.log1p(step.rate * change))
        log_absent += step.count * log_below
        log_ratio += step.count * one
        doubt_ratio += step.count * 4e-13 * (abs(one) + step.rate * float(unsure) * float(np.exp(-one)))
    return Below(log_absent, log_ratio, 4e-13 * abs(log_absent), doubt_ratio)


def _known(log_size: float, log_error: float, epsilon: float, sign: float = 1.0) -> Known:
    """With the rounding of the logarithms themselves."""
    rounded = np.log(64 * UNIT_ROUNDOFF * (4 + abs(log_size) + abs(epsilon))) if np.isfinite(log_size) else -np.inf
    return Known(sign, log_size, float(np.logaddexp(log_error, log_size + rounded)))


def _closed_form(labels: Sequence[Labels], direction: int, epsilon: float, complement: bool, bulk: bool) -> list[Known]:
    """The labels whose total is on one side of epsilon for sure, and what they add to delta, or to 1 - delta.

    Above epsilon that is P - e^eps Q, or e^eps Q; below it nothing, or P.
    """
    high = _all_below([(label.step, label.high) for label in labels if not label.dropped])
    low = _all_below([(label.step, label.low) for label in labels if label.low is not None])
    counted = not all(label.dropped for label in labels)
    parts = []
    with np.errstate(divide="ignore"):
        # of some step huge: in the remove direction e^eps Q, or P - e^eps Q = (P - Q) - (e^eps - 1) Q; in the other P
        absent, wrong = np.log(-np.expm1(high.log_absent)), high.log_absent + np.log(high.doubt_absent)
        if counted and direction == REMOVE and complement:
            parts.append(_known(epsilon + absent, epsilon + wrong, epsilon))
        elif counted and direction == REMOVE:
            growth, gain = epsilon + np.log(-np.expm1(-epsilon)), -np.expm1(high.log_ratio)
            doubt = high.doubt_ratio + high.doubt_absent * gain
            parts.append(_known(high.log_absent + np.log(gain), high.log_absent + np.log(doubt), epsilon))
            parts.append(_known(growth + absent, growth + wrong, epsilon, -1.0))
        elif counted and complement:
            parts.append(_known(absent, wrong, epsilon))
        # all steps bulk
        if bulk and complement:
            size = low.log_present + (0.0 if direction == REMOVE else epsilon)
            parts.append(_known(size, size + np.log(low.doubt_present), epsilon))
        elif bulk and direction == ADD:
            # P - e^eps Q, with P = N(0, 1) and Q the mixture
            gap = epsilon + low.log_ratio
            size = low.log_absent + (np.log(abs(np.expm1(gap))) if gap < 700 else gap)
            doubt = low.doubt_absent + low.doubt_ratio + 4 * UNIT_ROUNDOFF * (epsilon - low.log_ratio)
            parts.append(_known(size, low.log_absent + max(gap, 0.0) + np.log(doubt), epsilon, float(-np.sign(gap))))
    return parts


def _log_misjudged(labels: Sequence[Labels], direction: int, epsilon: float, reach: Reach) -> float:
    """log of what the labels get wrong: huge or bulk without the certainty assumed, or left out."""
    errors = []
    for label in labels:
        step, high = label.step, label.high
        log_count = float(np.log(step.count))
        if label.dropped:
            errors.append(log_count + log_dropped(label, direction))
        else:
            point = loss_position(step, reach.below + direction * epsilon)
            errors.append(epsilon + log_count + log_misplaced(point, high.place, high.width))
            # a huge step, while the others are below -reach
            errors.append(epsilon + log_count + label.log_huge(False) - reach.log_certain)
        # what the cuts leave out adds between nothing and its probability under P ...
        errors += [log_count + part.log_cut(direction) for part in (label.middle, label.bulk) if part is not None]
        errors.append(log_count + log_overlap(label, direction))
        if direction == ADD and label.bulk is not None:
            # ... and as much as e^eps Q to what falls short of P - e^eps Q
            errors.append(epsilon + log_count + label.bulk.log_cut(REMOVE))
    return float(np.logaddexp.reduce(errors))


def _line(labels: Sequence[Labels], aim: Aim, most: int) -> Line | None:
    """The integral to about exp(budget), unless it takes more nodes than `most`."""
    candidates, objective = _candidates(labels, aim)
    # Off the saddle point digits cancel, but the nodes may be further apart: a few digits buy many nodes.
    least = float(np.min(objective))
    if not np.isfinite(least):
        return None
    # where delta turns out larger than was asked for, less will do
    log_budget = max(aim.budget, least + aim.log_tolerance - 6)
    near = candidates[objective < least + 3]
    tried = [_alias_free(labels, aim, float(c), log_budget) for c in near[:: max(len(near) // 4, 1)]]
    spacing, c, value, points, values = max(tried, key=lambda one: one[0])
    relative = log_budget - (value - c * aim.epsilon)
    tails: dict[float, float] = {}

    def is_high_enough(count: float) -> bool:
        tails[count] = _log_tail(labels, aim.direction, c, count * spacing) - value
        return bool(tails[count] - np.log(np.pi * count * spacing) <= relative - 1)

    few, many = 8.0, float(most)
    if not is_high_enough(many):
        return None
    while many > 1.25 * few:
        middle = np.sqrt(few * many)
        few, many = (few, middle) if is_high_enough(middle) else (middle, many)
    # the errors of the nodes are summed against 1/|s (s+1)|
    allowed = relative + 0.5 * np.log(abs(c * (c + 1))) - 1
    return _evaluate(labels, aim.direction, c, spacing, many, value, tails[many], points, values, allowed)


def _alias_free(
    labels: Sequence[Labels], aim: Aim, c: float, log_budget: float
) -> tuple[float, float, float, Array, Array]:
    """The widest spacing of nodes at c, and what it was found from."""
    room = min(abs(c), 1 + c) if c < 0 else c
    at = _log_mgf(labels, aim.direction, c + 0.01 * room * np.array([0.0, -1.0, 1.0]))
    value = float(at[0])
    curvature = max(float(at[1] + at[2] - 2 * value), 0.0) / (0.01 * room) ** 2
    points = chernoff_points(c, float(np.sqrt(curvature + room**-2)))
    values = chernoff_values(lambda points: _log_mgf(labels, aim.direction, points), points)
    wanted = log_budget - (value - c * aim.epsilon) - 1
    return alias_free_spacing(c, aim.epsilon, value, points, values, wanted), c, value, points, values


def _log_tail(labels: Sequence[Labels], direction: int, c: float, height: float) -> float:
    """log of a bound on |(B0+B1)^T - B0^T| for every |Im s| >= height: B0 at most its value at c, B1 by moving x."""
    power = 1 + c if direction == REMOVE else -c
    bulk, ratio = 0.0, 0.0
    for label in labels:
        base = label.axis[1]
        if base is None:
            rough = strips.log_bound(label.middle, power, height) if label.step.count < _FEW_STEPS else np.inf
            bulk += label.step.count * min(rough, strips.log_sharp_bound(label.middle, power, height))
            continue
        part = float(log_size(base, np.array([power]))[0])
        bulk += label.step.count * part
        middle = strips.log_bound(label.middle, power, height)
        ratio += label.step.count * float(np.logaddexp(0.0, middle - part))
    return bulk if labels[0].low is None else bulk + float(_log_expm1(np.array([ratio]))[0])


def _evaluate(
    labels: Sequence[Labels],
    direction: int,
    c: float,
    spacing: float,
    count: float,
    value: float,
    log_tail: float,
    points: Array,
    values: Array,
    log_allowed: float,
) -> Line | None:
    nodes = np.asarray(c + 1j * spacing * np.arange(int(np.ceil(count)) + 1), dtype=np.complex128)
    power = 1 + c if direction == REMOVE else -c
    shape, errors = np.empty(nodes.shape, complex), np.zeros(nodes.shape)
    split = labels[0].low is not None
    # |d/dB1| and |d/dB0| of (B0+B1)^T - B0^T are at most T (B0+B1)^(T-1) and T ((B0+B1)^(T-1) - B0^(T-1)) at c
    whole = 1.01
    top = whole + np.exp(_log_bulk(labels, power) - value) * 1.01 if split else whole
    terms, start = 0, 0
    few = 8 if log_allowed < -24 else 32  # where digits count: the less r varies, the more of x is summed by series
    while start < len(nodes):
        end = min(max(2 * start, few), len(nodes))
        low, high = float(nodes[start].imag), float(nodes[end - 1].imag)
        rules = [_rules(label, power, low, high, log_allowed, whole, top) for label in labels]
        terms += sum(rule.size for pair in rules for rule in pair if rule is not None) * (end - start)
        if terms > _MOST_TERMS:
            return None
        for first in range(start, end, _CHUNK):
            part = slice(first, min(first + _CHUNK, end))
            powers = _powers(direction, nodes[part])
            bulk, ratio, error = (
                np.zeros(powers.shape, complex),
                np.zeros(powers.shape, complex),
                np.zeros(powers.shape),
            )
            for label, (middle, base) in zip(labels, rules, strict=True):
                count = label.step.count
                if base is None:
                    excess = middle.excess(powers)
                    bulk += count * log1p(excess)
                    wrong = np.exp(middle.log_error) + middle.rounding(power, powers.imag, True)
                    error += count * np.log1p(wrong / np.maximum(np.abs(1 + excess), 1e-300))
                    continue
                excess = base.excess(powers)
                bulk += count * log1p(excess)
                ratio += count * log1p(np.asarray(middle.mgf(powers) / np.where(excess == -1, 1e-290, 1 + excess)))
                wrong = top * (np.exp(middle.log_error) + middle.rounding(power, powers.imag, False))
                wrong = wrong + whole * (np.exp(base.log_error) + base.rounding(power, powers.imag, True))
                error += count * wrong / _least_bulk(label, power)
            with np.errstate(all="ignore"):
                if split:
                    shape[part] = np.exp(bulk - value) * np.expm1(ratio)
                    errors[part] = error + 4 * UNIT_ROUNDOFF * np.abs(shape[part]) * (1 + abs(value))
                else:
                    shape[part] = np.exp(bulk - value)
                    error += 4 * UNIT_ROUNDOFF * np.abs(bulk)
                    errors[part] = np.abs(shape[part]) * np.expm1(np.minimum(error, 700.0))
        start = end
    if not (np.all(np.isfinite(shape)) and np.all(np.isfinite(errors))):
        return None
    if direction == ADD:
        shape = np.conj(shape)
    return Line(c, spacing, nodes, shape, errors, value, log_tail, points, values, 0.0)


def _log_bulk(labels: Sequence[Labels], power: float) -> float:
    at = np.array([power])
    return float(sum(label.step.count * log_size(label.axis[1], at)[0] for label in labels if label.axis[1]))


def _least_bulk(label: Labels, power: float) -> float:
    """B0 on the axis, from below: its absolute error is 1e-12 at most."""
    return max(float(np.exp(_log_bulk([label], power) / label.step.count)) - 3e-12, 1e-290)


def _rules(
    label: Labels, power: float, low: float, high: float, log_allowed: float, whole: float, top: float
) -> tuple[strips.Rule, strips.Rule | None]:
    """Rules for what is not bulk and for the bulk, good enough for all the steps together."""
    allowed = max(log_allowed, -34.0) - 2 - np.log(label.step.count)
    if label.bulk is None:
        return strips.rule(label.middle, power, low, high, allowed, True), None
    size = float(np.log(max(1 + label.axis[1].excess(np.array([power]))[0].real, 1e-290))) if label.axis[1] else 0.0
    middle = strips.rule(label.middle, power, low, high, allowed + size - np.log(top), False)
    return middle, strips.rule(label.bulk, power, low, high, allowed + size - np.log(whole), True)
