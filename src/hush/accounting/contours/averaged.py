"""One line of a contour integral for laws at points, averaged by a kernel: aliases, nodes left out, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hush.accounting.contours.line import Line, alias_free_spacing, chernoff_points
from hush.accounting.contours.smoothing import Kernel
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Array, Complex

_FEW = 40  # nodes that aren't worth saving
_LEAST = 8
_SEEN = 48  # nodes that are looked at first
_PART = 0.25  # of what may be left out, by such a look
_AFFORDABLE = 8_000_000  # products of a node and a point that may be spent on leaving nodes out


@dataclass(frozen=True)
class Sizes:
    """Bounds on log |exp(Lambda(s) - Lambda(c))| at so many nodes of a spacing, and how many points each takes.

    Or, with a reach, at all heights within that of a node.
    """

    at: Callable[[float, int, float], Array]
    points: int


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

    def sizes(self, c: float, height: float) -> Sizes:
        """Bounds at nodes up to that height, for less than the values cost."""

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
    while count > _FEW:
        sizes = measure.sizes(c, spacing * count)
        stride = -(-count // _SEEN)
        some, _ = _needed(sizes.at(stride * spacing, count // stride, 0.0), c, kernel, size, stride * spacing)
        if some * stride > count // 2:
            break  # no fewer will do, as a look at some of them tells
        if sizes.points * count <= _AFFORDABLE:
            count, between = _needed(sizes.at(spacing, count, 0.0), c, kernel, size, spacing)
            return count, float(np.logaddexp(between, left))
        looks = (_fewer(sizes, c, kernel, size, spacing, count, seen) for seen in (_SEEN, 8 * _SEEN))
        fewer, between = next((look for look in looks if look[0] <= count // 2), (count, -math.inf))
        if fewer == count:
            break
        count, left = fewer, float(np.logaddexp(left, between))
    return count, left


def _fewer(
    sizes: Sizes, c: float, kernel: Kernel, size: float, spacing: float, count: int, seen: int
) -> tuple[int, float]:
    """A number of nodes that leaves out little of so many, by bounds around some of them; and the log of it."""
    stride = -(-count // seen)
    apart = stride * spacing
    logs = sizes.at(apart, count // stride + 2, 0.5 * apart * (1 + 1e-9))[1:]
    lowest = np.asarray(apart * (np.arange(logs.size) + 0.5), dtype=np.float64)
    terms = (stride + 1) * spacing * np.exp(logs) * kernel.most(c, lowest)
    left_out = np.append(np.cumsum(terms[::-1])[::-1], 0.0) * (1 + 1e-9)
    first = int(np.argmax(left_out < _PART * size))
    return math.ceil(stride * (first + 0.5)), math.log(max(float(left_out[first]), 1e-300))


def _needed(logs: Array, c: float, kernel: Kernel, size: float, spacing: float) -> tuple[int, float]:
    """How many of so many nodes leave out no more than that, by bounds on the transform there; and the log of it."""
    nodes = np.asarray(c + 1j * spacing * np.arange(logs.size), dtype=np.complex128)
    turned, errors = kernel.on_line(nodes)
    terms = spacing * np.exp(logs) * (np.abs(turned) + errors) / np.abs(nodes * (nodes + 1))
    left_out = np.append(np.cumsum(terms[::-1])[::-1], 0.0)[1:] * (1 + 1e-9)  # by the nodes after each
    needed = max(int(np.argmax(left_out < size)) + 1, _LEAST)
    return needed, math.log(max(float(left_out[needed - 1]), 1e-300))
