"""One line of a contour integral for laws at points, averaged by a kernel: aliases, nodes left out, rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hush.accounting.line import Line, alias_free_spacing, chernoff_points
from hush.accounting.smoothing import Kernel
from hush.accounting.transform import UNIT_ROUNDOFF, Array, Complex


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
    count = _nodes(c, kernel, wanted.size, measure.squared, spacing)
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
        log_tail=kernel.log_tail(c, height) + math.log(height) - 0.5 * measure.squared * height**2,
        chernoff_points=points,
        chernoff_values=values,
    )


def _nodes(c: float, kernel: Kernel, size: float, squared: float, spacing: float) -> int:
    count = 16
    while count < 1 << 22:
        height = spacing * (count - 1)
        if kernel.log_tail(c, height) - 0.5 * squared * height**2 < math.log(size):
            break
        count = math.ceil(1.2 * count)
    return count
