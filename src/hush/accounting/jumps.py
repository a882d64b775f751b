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
of the labels, and that mass is counted as error (docs/certificate.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from hush.accounting import strips
from hush.accounting.contour import ADD, REMOVE, Line, alias_free_spacing, chernoff_points, log1p
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
    reach_below,
)
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

    def log_delta(self, epsilons: Array) -> tuple[Array, Array]:
        """Certified lower and upper bounds on log delta at each epsilon > 0."""
        lows, highs = self.line.log_delta(np.asarray(epsilons, dtype=float))
        lower, upper = np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
        for i, epsilon in enumerate(epsilons):
            # all relative to the largest part, so that deltas of 1e-300 keep their digits
            parts = _closed_form(self.labels, self.direction, float(epsilon))
            errors = [_log_misjudged(self.labels, self.direction, float(epsilon), self.reach)]
            if self.labels[0].low is not None:
                errors.append(log_all_bulk(self.direction, float(epsilon), self.bulk_points, self.bulk_values) + 1e-6)
            scale = max(highs[i], *(log for _, log in parts), *errors)
            if not np.isfinite(scale):
                continue
            sizes = np.array([sign * np.exp(log - scale) for sign, log in parts])
            closed, error = float(sizes.sum()), float(np.exp(np.array(errors) - scale).sum())
            # each logarithm is good to a few ulp of itself, and to 1e-13 where it is of a Gaussian's tail
            error += float(np.abs(sizes).sum()) * (64 * UNIT_ROUNDOFF * (4 + abs(scale) + abs(epsilon)) + 4e-13)
            low, high = np.exp(lows[i] - scale) + closed - error, np.exp(highs[i] - scale) + closed + error
            margin = 8 * UNIT_ROUNDOFF * (4 + abs(scale))
            if low > 0:
                lower[i] = np.log(low) + scale - margin
            if high > 0:
                upper[i] = min(np.log(high) + scale + margin, 0.0)
        return lower, upper


def jumps(
    steps: Sequence[Step], direction: int, epsilon: float, log_target: float, log_tolerance: float = LOG_TOLERANCE
) -> Jumps | None:
    """Set up for epsilon, where delta is about exp(log_target), to about exp(log_tolerance) of it.

    None where this way has no answer.
    """
    certain = float(np.clip(6 - log_tolerance, 14.0, 36.0))
    reach = Reach(reach_below(steps, certain), certain)
    budget = max(log_target, _LOG_SMALLEST) + log_tolerance
    found = _without_bulk(steps, direction, epsilon, budget, reach, log_tolerance)
    if found is None:
        return None
    labels, line, _ = found
    whole = None if line is None else _set_up(labels, direction, line, epsilon, reach)
    if whole is not None and _width_at(whole, epsilon) < 10 * np.exp(log_tolerance):
        return whole
    split = choose_low(labels, direction, epsilon, budget, reach.below)
    line = None if split is None else _line(split, direction, epsilon, budget, log_tolerance, _MOST_NODES)[0]
    parted = None if split is None or line is None else _set_up(split, direction, line, epsilon, reach)
    if whole is None and parted is None:
        line = _line(labels, direction, epsilon, budget, log_tolerance, _MOST_NODES)[0]
        return None if line is None else _set_up(labels, direction, line, epsilon, reach)
    if whole is None or parted is None:
        return whole or parted
    return parted if _width_at(parted, epsilon) < _width_at(whole, epsilon) else whole


def _set_up(labels: Sequence[Labels], direction: int, line: Line, epsilon: float, reach: Reach) -> Jumps:
    points = bulk_points(epsilon + reach.below)
    return Jumps(tuple(labels), direction, line, epsilon, reach, points, bulk_log_mgf(labels, points))


def _width_at(jump: Jumps, epsilon: float) -> float:
    lower, upper = jump.log_delta(np.array([epsilon]))
    return float(upper[0] - lower[0])


def _without_bulk(
    steps: Sequence[Step], direction: int, epsilon: float, budget: float, reach: Reach, log_tolerance: float
) -> tuple[list[Labels], Line | None, float] | None:
    """Labels without bulk; their integral if few nodes do, and how many would."""
    tilt = 0.0
    for _ in range(3):
        chosen = choose_high(steps, direction, epsilon, budget, reach.below, tilt)
        if chosen is None or not all(label.middle.is_reasonable for label in chosen):
            return None
        labels = chosen
        candidates, objective = _candidates(labels, direction, epsilon)
        if not np.isfinite(objective.min()):
            return None
        before, tilt = tilt, float(candidates[np.argmin(objective)])
        if direction == ADD or 0.7 < tilt / max(before, 1e-300) < 1.4:
            break
    line, nodes = _line(labels, direction, epsilon, budget, log_tolerance, _FEW_NODES)
    return labels, line, nodes


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


def _candidates(labels: Sequence[Labels], direction: int, epsilon: float) -> tuple[Array, Array]:
    """Lines worth trying, and the size of the integrand on the axis there."""
    tried = np.geomspace(1e-3, 1e5, 64) / (epsilon + reach_below([label.step for label in labels]))
    candidates, objective = tried, np.empty(0)
    for _ in range(3):
        values = _log_mgf(labels, direction, tried) - tried * epsilon - np.log(tried) - np.log1p(tried)
        candidates, objective = (
            (tried, values) if not objective.size else (np.append(candidates, tried), np.append(objective, values))
        )
        order = np.argsort(candidates)
        candidates, objective = candidates[order], np.where(np.isnan(objective), np.inf, objective)[order]
        best = int(np.argmin(objective))
        tried = np.geomspace(candidates[max(best - 1, 0)], candidates[min(best + 1, len(candidates) - 1)], 14)[1:-1]
    return candidates, objective


def _closed_form(labels: Sequence[Labels], direction: int, epsilon: float) -> list[tuple[float, float]]:
    """The labels whose total is on one side of epsilon for sure: as signed parts, (sign, log of size)."""
    log_absent, log_ratio = 0.0, 0.0
    counted = [label for label in labels if not label.dropped] if direction == REMOVE else labels
    for label in counted:
        step, edge = label.step, label.high if direction == REMOVE else label.low
        if edge is None:
            return []
        spread = np.sqrt(1 + edge.width**2)
        log_below = float(log_ndtr(edge.place / spread))
        log_hit_below = float(log_ndtr((edge.place - 1 / step.noise) / spread))
        log_absent += step.count * log_below
        # log of P(below)/Q(below), from what is above if that is little
        above, hit_above = (
            float(log_ndtr(-edge.place / spread)),
            float(log_ndtr((1 / step.noise - edge.place) / spread)),
        )
        change = (
            np.expm1(log_hit_below - log_below)
            if log_below < -0.5
            else (np.exp(above) - np.exp(hit_above)) / np.exp(log_below)
        )
        log_ratio += step.count * float(np.log1p(step.rate * change))
    if not counted:
        return []
    with np.errstate(divide="ignore"):
        if direction == REMOVE:
            # P(some huge) - e^eps Q(some huge), with Q(none) = exp(log_absent) and P(none) = Q(none) exp(log_ratio)
            present = -np.expm1(log_absent + log_ratio)
            return [(1.0, float(np.log(present))), (-1.0, float(epsilon + np.log(-np.expm1(log_absent))))]
        # P(all bulk) - e^eps Q(all bulk), with P = N(0, 1) and Q the mixture
        gap = float(epsilon + log_ratio)
        return [(-np.sign(gap), log_absent + (float(np.log(abs(np.expm1(gap)))) if gap < 700 else gap))]


def _log_misjudged(labels: Sequence[Labels], direction: int, epsilon: float, reach: Reach) -> float:
    """log of what the labels get wrong: huge or bulk without the certainty assumed, or left out."""
    errors = []
    for label in labels:
        step, high = label.step, label.high
        log_count = float(np.log(step.count))
        if label.dropped:
            errors.append(
                log_count + float(np.logaddexp(log_dropped(label, direction), log_dropped(label, -direction)))
            )
        else:
            point = loss_position(step, reach.below + direction * epsilon)
            errors.append(epsilon + log_count + log_misplaced(point, high.place, high.width))
            # a huge step, while the others are below -reach
            errors.append(epsilon + log_count + label.log_huge(False) - reach.log_certain)
        # what the cuts leave out, under P and under Q
        for part in (label.middle, label.bulk):
            if part is not None:
                errors += [log_count + part.log_cut(1), log_count + part.log_cut(-1)]
        errors += [log_count + log_overlap(label, REMOVE), log_count + log_overlap(label, ADD)]
    return float(np.logaddexp.reduce(errors))


def _line(
    labels: Sequence[Labels], direction: int, epsilon: float, log_budget: float, log_tolerance: float, most: int
) -> tuple[Line | None, float]:
    """The integral to about exp(log_budget), unless it takes more nodes than `most`, and how many it takes."""
    candidates, objective = _candidates(labels, direction, epsilon)
    # Off the saddle point digits cancel, but the nodes may be further apart: a few digits buy many nodes.
    least = float(np.min(objective))
    if not np.isfinite(least):
        return None, np.inf
    # where delta turns out larger than was asked for, less will do
    log_budget = max(log_budget, least + log_tolerance - 6)
    near = candidates[objective < least + 3]
    tried = [_alias_free(labels, direction, epsilon, float(c), log_budget) for c in near[:: max(len(near) // 4, 1)]]
    spacing, c, value, points, values = max(tried, key=lambda one: one[0])
    relative = log_budget - (value - c * epsilon)
    tails: dict[float, float] = {}

    def is_high_enough(count: float) -> bool:
        tails[count] = _log_tail(labels, direction, c, count * spacing) - value
        return bool(tails[count] - np.log(np.pi * count * spacing) <= relative - 1)

    few, many = 8.0, float(most)
    if not is_high_enough(many):
        return None, np.inf
    while many > 1.25 * few:
        middle = np.sqrt(few * many)
        few, many = (few, middle) if is_high_enough(middle) else (middle, many)
    # the errors of the nodes are summed against 1/|s (s+1)|
    allowed = relative + 0.5 * np.log(c * (c + 1)) - 1
    return _evaluate(labels, direction, c, spacing, many, value, tails[many], points, values, allowed), many


def _alias_free(
    labels: Sequence[Labels], direction: int, epsilon: float, c: float, log_budget: float
) -> tuple[float, float, float, Array, Array]:
    """The widest spacing of nodes at c, and what it was found from."""
    at = _log_mgf(labels, direction, c * np.array([1.0, 0.99, 1.01]))
    value = float(at[0])
    curvature = max(float(at[1] + at[2] - 2 * value), 0.0) / (0.01 * c) ** 2
    points = chernoff_points(c, float(np.sqrt(curvature + c**-2)))
    values = np.concatenate([[0.0], _log_mgf(labels, direction, points[1:])]) + 1e-6
    wanted = log_budget - (value - c * epsilon) - 1
    return alias_free_spacing(c, epsilon, value, points, values, wanted), c, value, points, values


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
    while start < len(nodes):
        end = min(max(2 * start, 32), len(nodes))
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
