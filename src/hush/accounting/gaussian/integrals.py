"""The contour integral over the labels that don't decide on their own: (B0 + B1)^T - B0^T, or B1^T without bulk.

B0 and B1 are E[g^r; bulk] and E[g^r; middle] of a step (strips.py).  Their T-th powers' transform is that of a positive
measure, so line.py's certificate holds for it; here the line is chosen and the integrand evaluated on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.line import Line, alias_free_spacing, chernoff_points, chernoff_values, power_errors
from hush.accounting.contours.thinning import alike
from hush.accounting.gaussian import decay, rules
from hush.accounting.gaussian.axis import Axis
from hush.accounting.gaussian.contour import ADD, REMOVE, log1p, place
from hush.accounting.gaussian.labels import Labels, bulk_axis, counts, is_split, reach_below, thinned_labels
from hush.accounting.gaussian.nearby import Nearby
from hush.accounting.gaussian.strips import Part
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Numbers

_MOST_TERMS = 24_000_000
_FEW_STEPS = 1000
_SHARP = -24.0
"""log of a tolerance below which every digit counts."""
_SEVERAL = 8
"""Kinds of steps of which a few stand for all."""
_CHUNK = 256
_LOOKS = 5
"""Nodes at which it is looked at how little is left of what is not bulk."""
_GOOD = 1.0
"""log of how much more than wanted an error may be that no search would make smaller."""


class TooManyTermsError(Exception):
    """All steps together have too many nodes and points, whatever the line."""


@dataclass(frozen=True)
class Aim:
    """What is wanted: the integral at epsilon, to about exp(budget), which is exp(log_tolerance) of the answer."""

    direction: int
    epsilon: float
    budget: float
    log_tolerance: float
    complement: bool
    """Whether the answer is 1 - delta."""


def _powers(direction: int, s: Numbers) -> Numbers:
    """r with a positive imaginary part for s with one: in the add direction the conjugate of -s."""
    return np.asarray(1 + s if direction == REMOVE else -np.conj(s))


def _log_mgf(labels: Sequence[Labels], direction: int, points: Array) -> Array:
    """log of (B0 + B1)^T - B0^T at real points, for each kind of step multiplied together."""
    powers, repeats = _powers(direction, points), counts(labels)
    with np.errstate(all="ignore"):
        sizes = bulk_axis(labels).log_sizes(powers)
        total = repeats @ sizes
        if is_split(labels):
            parted = [k for k, label in enumerate(labels) if label.low is not None]
            middle = Axis([labels[k].axis[0] for k in parted])
            jumps = (middle.mgf(powers) + middle.missed(powers)) / np.exp(sizes[parted])
            total = total + _log_expm1(repeats[parted] @ np.log1p(jumps))
    return np.where(np.isnan(total), np.inf, total)


def _log_expm1(ratio: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.where(ratio > 30, ratio, np.log(np.expm1(np.minimum(ratio, 30.0))))


def candidates(labels: Sequence[Labels], aim: Aim) -> tuple[Array, Array]:
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
class Sketch:
    """A line that suits some steps: its nodes' spacing, and what that was found from."""

    c: float
    log_budget: float
    spacing: float
    value: float
    """log of the integrand's size at c."""
    points: Array
    values: Array
    """Where Chernoff's inequality is tried."""

    def relative(self, aim: Aim) -> float:
        """log of what the integral may be off, over the integrand's size."""
        return self.log_budget - (self.value - self.c * aim.epsilon)


def line_through(labels: Sequence[Labels], aim: Aim, most: int) -> Line | None:
    """The integral to about exp(budget), unless it takes more nodes than `most`, as a few of many kinds show."""
    some = thinned_labels(labels)
    sketch = _sketch(some, aim)
    if sketch is None or not _log_tail_beyond(_fewest(labels), aim, sketch, most)[1]:
        return None
    try:
        found = _line(labels, aim, _alike(labels, aim, sketch), most)
        if found is None and len(some) < len(labels) and (own := _sketch(labels, aim)) is not None:
            found = _line(labels, aim, own, most)
    except TooManyTermsError:
        return None
    return found


def _sketch(labels: Sequence[Labels], aim: Aim) -> Sketch | None:
    """The line whose nodes may be furthest apart, of a few that are nearly best."""
    lines, objective = candidates(labels, aim)
    # Off the saddle point digits cancel, but the nodes may be further apart: a few digits buy many nodes.
    least = float(np.min(objective))
    if not np.isfinite(least):
        return None
    # where delta turns out larger than was asked for, less will do
    log_budget = max(aim.budget, least + aim.log_tolerance - 6)
    near = lines[objective < least + (3.0 if aim.log_tolerance > _SHARP else 0.7)]
    tried = [_alias_free(labels, aim, float(c), log_budget) for c in near[:: max(len(near) // 4, 1)]]
    return max(tried, key=lambda one: one.spacing)


def _alike(labels: Sequence[Labels], aim: Aim, sketch: Sketch) -> Sketch:
    """The same line for all of the steps."""
    value = float(_log_mgf(labels, aim.direction, np.array([sketch.c]))[0])
    return _alias_free(labels, aim, sketch.c, sketch.log_budget + min(value - sketch.value, 0.0))


def _line(labels: Sequence[Labels], aim: Aim, sketch: Sketch, most: int) -> Line | None:
    """The integral on such a line."""
    found = _height(labels, aim, sketch, most)
    if found is None:
        return None
    # the errors of the nodes are summed against 1/|s (s+1)|
    allowed = sketch.relative(aim) + 0.5 * np.log(abs(sketch.c * (sketch.c + 1))) - 1
    return _evaluate(labels, aim.direction, sketch, *found, allowed)


def _height(labels: Sequence[Labels], aim: Aim, sketch: Sketch, most: int) -> tuple[float, float] | None:
    """How many nodes it takes until the rest is negligible, up to a quarter, and log of a bound on the rest.

    Sought for the fewest of many kinds of steps.
    """
    some, few, many = _fewest(labels), 8.0, float(most)
    log_tail, enough = _log_tail_beyond(some, aim, sketch, many)
    if not enough:
        return None
    while many > 1.25 * few:
        middle = np.sqrt(few * many)
        found, enough = _log_tail_beyond(some, aim, sketch, middle)
        few, many, log_tail = (few, middle, found) if enough else (middle, many, log_tail)
    while some is not labels:
        log_tail, enough = _log_tail_beyond(labels, aim, sketch, many)
        if enough:
            break
        many *= 1.25
        if many > most:
            return None
    return many, log_tail


def _fewest(labels: Sequence[Labels]) -> Sequence[Labels]:
    return thinned_labels(labels, 2) if len(labels) > _SEVERAL else labels


def _log_tail_beyond(labels: Sequence[Labels], aim: Aim, sketch: Sketch, count: float) -> tuple[float, bool]:
    """log of a bound on the integrand beyond so many nodes, over its size, and whether the rest is negligible."""
    height = count * sketch.spacing
    enough = sketch.relative(aim) - 1 + np.log(np.pi * height)
    found = _log_tail(labels, aim.direction, sketch.c, height, enough + sketch.value) - sketch.value
    return found, bool(found <= enough)


def _alias_free(labels: Sequence[Labels], aim: Aim, c: float, log_budget: float) -> Sketch:
    """The widest spacing of nodes at c."""
    room = min(abs(c), 1 + c) if c < 0 else c
    at = _log_mgf(labels, aim.direction, c + 0.01 * room * np.array([0.0, -1.0, 1.0]))
    value = float(at[0])
    curvature = max(float(at[1] + at[2] - 2 * value), 0.0) / (0.01 * room) ** 2
    points = chernoff_points(c, float(np.sqrt(curvature + room**-2)))
    values = chernoff_values(lambda points: _log_mgf(labels, aim.direction, points), points)
    wanted = log_budget - (value - c * aim.epsilon) - 1
    spacing = alias_free_spacing(c, aim.epsilon, value, points, values, wanted)
    return Sketch(c, log_budget, spacing, value, points, values)


def _log_tail(labels: Sequence[Labels], direction: int, c: float, height: float, enough: float) -> float:
    """log of a bound on |(B0+B1)^T - B0^T| for every |Im s| >= height: B0 at most its value at c, B1 by moving x.

    The rough bounds, if with them it is low enough.
    """
    power = 1 + c if direction == REMOVE else -c
    bulk, ratio = 0.0, 0.0
    sizes = bulk_axis(labels).log_sizes(np.array([power]))[:, 0].tolist() if is_split(labels) else [0.0] * len(labels)
    roughly: list[tuple[Labels, float]] = []
    for group in alike(list(zip(labels, sizes, strict=True))):
        bends: set[decay.Bend] = set()
        for label, part in group:
            if label.low is None and label.step.count >= _FEW_STEPS:
                roughly.append((label, np.inf))
                continue
            middle, bend = decay.log_bound(label.middle, power, height, bends)
            bends = bends or {bend}
            if label.low is None:
                roughly.append((label, middle))
                continue
            bulk += label.step.count * part
            ratio += label.step.count * float(np.logaddexp(0.0, middle - part))
    rest = bulk + float(_log_expm1(np.array([ratio]))[0]) if is_split(labels) else bulk
    total = rest + sum(label.step.count * rough for label, rough in roughly)
    if total <= enough or not roughly:
        return total
    for several in alike(roughly):
        shifts: set[float] = set()
        for label, rough in several:
            sharp, shift = decay.log_sharp_bound(label.middle, power, height, shifts)
            shifts = shifts or {shift}
            rest += label.step.count * min(rough, sharp)
    return rest


def _evaluate(
    labels: Sequence[Labels], direction: int, sketch: Sketch, count: float, log_tail: float, log_allowed: float
) -> Line | None:
    c, spacing, value = sketch.c, sketch.spacing, sketch.value
    nodes = np.asarray(c + 1j * spacing * np.arange(int(np.ceil(count)) + 1), dtype=np.complex128)
    power = 1 + c if direction == REMOVE else -c
    shape, errors = np.empty(nodes.shape, complex), np.zeros(nodes.shape)
    split = is_split(labels)
    # |d/dB1| and |d/dB0| of (B0+B1)^T - B0^T are at most T (B0+B1)^(T-1) and T ((B0+B1)^(T-1) - B0^(T-1)) at c
    whole = 1.01
    top = whole + np.exp(_log_bulk(labels, power) - value) * 1.01 if split else whole
    least = bulk_axis(labels).least(power) if split else [1.0] * len(labels)
    terms, start = 0, 0
    few = 8 if log_allowed < _SHARP else 32  # where digits count: the less r varies, the more of x is summed by series
    few = few if len(labels) <= _SEVERAL else 512  # of many kinds it takes longer to choose rules than to use them
    while start < len(nodes):
        end = min(max(2 * start, few), len(nodes))
        low, high = float(nodes[start].imag), float(nodes[end - 1].imag)
        chosen = _all_rules(labels, least, power, low, high, log_allowed, top)
        size = sum(rule.size for pair in chosen for rule in pair if rule is not None)
        # rules hardly grow from here on
        if terms + size * (len(nodes) - start) > _MOST_TERMS:
            raise TooManyTermsError
        terms += size * (end - start)
        for first in range(start, end, _CHUNK):
            part = slice(first, min(first + _CHUNK, end))
            powers = _powers(direction, nodes[part])
            bulk, ratio = np.zeros(powers.shape, complex), np.zeros(powers.shape, complex)
            error, bulk_error, near = np.zeros(powers.shape), np.zeros(powers.shape), Nearby(powers.size)
            for label, (middle, base), bulk_size in zip(labels, chosen, least, strict=True):
                count = label.step.count
                if base is None:
                    excess = middle.excess(powers, spacing)
                    bulk += count * log1p(excess)
                    wrong = np.exp(middle.log_error) + middle.rounding(power, powers.imag, True, spacing)
                    if split:
                        bulk_error += count * whole * wrong / bulk_size
                        near.add(count, 1 + excess, np.zeros(powers.shape), wrong, np.zeros(powers.shape))
                    else:
                        error += count * np.log1p(wrong / np.maximum(np.abs(1 + excess), 1e-300))
                    continue
                excess = base.excess(powers, spacing)
                bulk += count * log1p(excess)
                other = middle.mgf(powers, spacing)
                ratio += count * log1p(np.asarray(other / np.where(excess == -1, 1e-290, 1 + excess)))
                wrong = np.exp(middle.log_error) + middle.rounding(power, powers.imag, False, spacing)
                wrong_bulk = np.exp(base.log_error) + base.rounding(power, powers.imag, True, spacing)
                error += count * top * wrong / bulk_size
                bulk_error += count * whole * wrong_bulk / bulk_size
                near.add(count, 1 + excess, other, wrong_bulk, wrong)
            with np.errstate(all="ignore"):
                if split:
                    shape[part] = np.exp(bulk - value) * np.expm1(ratio)
                    # to first order; the rest is less than e^error times as much.  Then the rounding of both factors.
                    rest = np.exp(np.minimum(error + bulk_error, 700.0))
                    by_middle, by_bulk = near.errors(value)
                    errors[part] = np.fmin(error * rest, by_middle) + np.fmin(bulk_error * rest, by_bulk)
                    rounded = np.abs(shape[part]) * (1 + abs(value) + np.abs(bulk))
                    rounded += np.exp(bulk.real - value + ratio.real) * np.abs(ratio)
                    errors[part] += 4 * UNIT_ROUNDOFF * rounded
                else:
                    shape[part] = np.exp(bulk - value)
                    error += 4 * UNIT_ROUNDOFF * np.abs(bulk)
                    errors[part] = power_errors(bulk.real - value, error)
        start = end
    if not (np.all(np.isfinite(shape)) and np.all(np.isfinite(errors))):
        return None
    if direction == ADD:
        shape = np.conj(shape)
    return Line(c, spacing, nodes, shape, errors, value, log_tail, sketch.points, sketch.values)


def _log_bulk(labels: Sequence[Labels], power: float) -> float:
    return float(counts(labels) @ bulk_axis(labels).log_sizes(np.array([power]))[:, 0])


Strips = set[tuple[int, int]]


def _all_rules(
    labels: Sequence[Labels],
    sizes: Sequence[float],
    power: float,
    low: float,
    high: float,
    log_allowed: float,
    top: float,
) -> list[tuple[rules.Rule, rules.Rule | None]]:
    """Rules for what is not bulk and for the bulk, of such sizes, of each kind of step, good enough for all together.

    Of many kinds some are looked at closely, and what strips are best there serve the others, if they do.  Far from the
    axis, where little is left of what is not bulk, hardly anything depends on the bulk (`Nearby`): less will do.
    """
    allowed = max(log_allowed, -34.0) - 2
    at = np.asarray(power + 1j * np.linspace(low, high, _LOOKS))
    groups = alike(list(zip(labels, sizes, strict=True)))
    middles: list[rules.Rule] = []
    exchanged = 0.0
    for group in groups:
        known: Strips = set()
        for label, size in group:
            count, whole = label.step.count, label.bulk is None
            wanted = allowed - np.log(count) + (0.0 if whole else np.log(size / top))
            middles.append(_rule(label.middle, power, low, high, wanted, whole, known))
            if not whole:
                exchanged += count * float(np.abs(middles[-1].mgf(at)).max()) / size
    # with the bulk's product over the integrand's size at the axis, about top - 1, as in Nearby.errors
    depends = exchanged * np.exp(min(exchanged, 100.0)) * (top - 1)
    # all steps' errors together stay below a hundredth, or their powers would be far off
    spare = float(np.clip(-np.log(depends), 0.0, max(-5.0 - allowed, 0.0))) if depends > 0 else 0.0
    chosen: list[tuple[rules.Rule, rules.Rule | None]] = []
    rest = iter(middles)
    for group in groups:
        bulks: Strips = set()
        for label, size in group:
            middle, base = next(rest), None
            if label.bulk is not None:
                wanted = allowed - np.log(label.step.count / size) + spare
                base = _rule(label.bulk, power, low, high, wanted, True, bulks)
            chosen.append((middle, base))
    return chosen


def _rule(
    part: Part, power: float, low: float, high: float, log_wanted: float, excess: bool, known: Strips
) -> rules.Rule:
    """By the known strips if they do, else by the best one, which is then known."""
    if known:
        found = rules.rule(part, power, low, high, log_wanted, excess, known)
        if found.log_error < log_wanted + _GOOD:
            return found
    found = rules.rule(part, power, low, high, log_wanted, excess)
    if found.strip is not None:
        known.add(found.strip)
    return found
