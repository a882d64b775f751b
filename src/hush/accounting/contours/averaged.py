"""One line of a contour integral for laws at points, averaged by a kernel: aliases, nodes left out, rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hush.accounting.contours.heights import Heights
from hush.accounting.contours.line import Line, alias_free_spacing, chernoff_points
from hush.accounting.contours.smoothing import Kernel
from hush.accounting.contours.turns import Crowd, Look
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Complex

_FEW = 40  # nodes that aren't worth saving
_LEAST = 8
_TURNED = 0.4  # turns of a deviation between heights that are looked at, at most
_LOOKS = 80  # heights, but for those close to the axis, and up to twice as many where they can't be just as long
_PART = 0.25  # of what may be left out, by such a look
_AFFORDABLE = 8_000_000  # products of a node and a point that may be spent on leaving nodes out


class Measure(Protocol):
    """A measure on paths, seen through the transform of their losses."""

    @property
    def steps(self) -> int:
        """How many steps a path has."""

    @property
    def squared(self) -> float:
        """mu^2 of all Gaussian steps together: their part of the transform decays like exp(-mu^2 t^2/2)."""

    def log_mgf(self, orders: Array) -> Array:
        """Lambda at real orders."""

    def crowd(self, c: float) -> Crowd:
        """Its steps, as bounds on their transforms see them."""

    def transform(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        """exp(Lambda(s) - Lambda(c)) at s = c + i spacing j, bounds on its errors, and Lambda(c)."""


@dataclass(frozen=True)
class Wanted:
    """What a line is for: near which epsilon, and how good, as a share of exp(Lambda(c) - c eps)."""

    epsilon: float
    size: float
    most: int
    """No more nodes than that."""


def averaged_line(measure: Measure, c: float, spread: float, kernel: Kernel, wanted: Wanted) -> Line | None:
    """The integrand on the line Re s = c; None if that takes too many nodes.

    Chernoff's values are raised by 1e-6 and 64 u a step, more than rounding can take from them.
    """
    value = float(measure.log_mgf(np.array([c]))[0])
    points = chernoff_points(c, spread)
    reach, weight = kernel.reach
    raised = 1e-6 + 64 * UNIT_ROUNDOFF * measure.steps
    values = measure.log_mgf(points) + raised + reach * points + math.log(weight)
    spacing = alias_free_spacing(c, wanted.epsilon, value, points, values, math.log(wanted.size))
    if not 0 < spacing < math.inf:
        return None
    count, log_tail = _nodes(measure, c, kernel, wanted.size, spacing)
    if count > wanted.most:
        return None
    nodes = np.asarray(c + 1j * spacing * np.arange(count))
    turned, turned_errors = kernel.on_line(nodes)
    shape, errors, scale = measure.transform(c, spacing, count)
    height = float(nodes[-1].imag)
    return Line(
        c=c,
        spacing=spacing,
        nodes=nodes,
        values=shape * turned,
        errors=errors * (np.abs(turned) + turned_errors) + np.abs(shape) * turned_errors,
        log_scale=scale,
        log_tail=log_tail + math.log(height),
        chernoff_points=points,
        chernoff_values=values,
    )


def _nodes(measure: Measure, c: float, kernel: Kernel, size: float, spacing: float) -> tuple[int, float]:
    """How many nodes are enough, and the log of what those left out add up to.

    The kernel's decay ends the sum.  Where the measure's own is seen to end it sooner, what lies in between is bounded
    by the largest value it may still have.
    """
    count = 16
    while count < 1 << 22:
        height = spacing * (count - 1)
        beyond = kernel.log_tail(c, height) - 0.5 * measure.squared * height**2
        if beyond < math.log(size):
            break
        count = math.ceil(1.2 * count)
    left = beyond
    for crowd in _crowds(measure.crowd(c), spacing * count) if count > _FEW else ():
        look = crowd.seen(spacing * count)
        count, between, perhaps = _fewer(look, c, kernel, size, spacing, count)
        left = float(np.logaddexp(left, between))
    if count > _FEW and perhaps <= count // 2 and look.points * count <= _AFFORDABLE:
        # what is true of the heights looked at isn't known to be true around them
        count, between = _needed(look.at(spacing, count), c, kernel, size, spacing)
        left = float(np.logaddexp(left, between))
    return count, left


def _crowds(crowd: Crowd, height: float) -> tuple[Crowd, ...]:
    """A few kinds of steps first: what they see to be small far out need not be seen by all."""
    some = crowd.some(height)
    return (crowd,) if some is crowd else (some, crowd)


def _fewer(look: Look, c: float, kernel: Kernel, size: float, spacing: float, count: int) -> tuple[int, float, int]:
    """A number of nodes that leaves out little of so many, by bounds around some heights; and the log of it.

    And how many they would be if what is true of these heights were true around them.
    """
    if count <= _LEAST:
        return count, -math.inf, count
    heights = _heights(_LEAST * spacing, count * spacing, look.deviation)
    ends = heights.ends
    terms = (np.diff(ends) + spacing) * kernel.most(c, ends[:-1])
    found = []
    for logs in look.near(heights):
        left_out = np.append(np.cumsum((terms * np.exp(logs))[::-1])[::-1], 0.0) * (1 + 1e-9)
        first = int(np.argmax(left_out < _PART * size))
        found.append((math.floor(ends[first] / spacing) + 1, float(left_out[first])))
    (perhaps, _), (enough, between) = found
    if enough >= count:
        return count, -math.inf, perhaps
    return enough, math.log(max(between, 1e-300)), perhaps


def _heights(first: float, last: float, deviation: float) -> Heights:
    """In stretches that are short enough for a law not to turn within them, if that doesn't take too many."""
    return Heights.between(first, last, max(_TURNED / max(deviation, 1e-300), last / _LOOKS))


def _needed(logs: Array, c: float, kernel: Kernel, size: float, spacing: float) -> tuple[int, float]:
    """How many of so many nodes leave out no more than that, by bounds on the transform there; and the log of it."""
    nodes = np.asarray(c + 1j * spacing * np.arange(logs.size), dtype=np.complex128)
    turned, errors = kernel.on_line(nodes)
    terms = spacing * np.exp(logs) * (np.abs(turned) + errors) / np.abs(nodes * (nodes + 1))
    left_out = np.append(np.cumsum(terms[::-1])[::-1], 0.0)[1:] * (1 + 1e-9)  # by the nodes after each
    needed = max(int(np.argmax(left_out < size)) + 1, _LEAST)
    return needed, math.log(max(float(left_out[needed - 1]), 1e-300))
