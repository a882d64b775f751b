"""The sharpest curve there is near an epsilon: a plain contour integral, or one that tells large losses apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hush.accounting.contours.crossing import Curve
from hush.accounting.contours.line import Line
from hush.accounting.gaussian import contour, jumps, landing
from hush.accounting.gaussian.composition import QUIETLY, Composition, log_total_variation

NOTHING = 1e-12
"""A delta that is this close to 1 is known well enough, and so is an epsilon this close to 0."""
NEARLY, _PROMISING = 0.1, 10
"""The relative width of an epsilon of some steps with which the line of all may be sharp; and that of a delta, as a
multiple of what is wanted."""
_BLUR, _ROUGHLY = 0.3, -9.0
"""The share of a scale that hides nothing, and log of what a rough line may neglect."""
SELDOM = 0.3
"""Hits below which a few equal jumps are a good guess."""


def curve_at(
    composition: Composition,
    direction: int,
    epsilon: float,
    many: bool,
    log_tolerance: float = jumps.LOG_TOLERANCE,
    complement: bool = False,
) -> tuple[Curve | None, float]:
    """A curve that is sharp at epsilon (and, for many points, far around it), and the spread of its tilted loss."""
    few = composition.few
    enough = landing.ENOUGH if log_tolerance >= jumps.LOG_TOLERANCE else float(np.exp(log_tolerance))
    line, width, target, spread = line_at(few, direction, epsilon, many, complement)
    if len(few.steps) < len(composition.steps):  # some of many kinds tell of all: their line is about as wide
        line = None
        if many or width < _PROMISING * enough:
            line, width, target, spread = line_at(composition, direction, epsilon, many, complement)
    if line is not None and (many or not width > enough):
        return line.log_delta, spread
    jump = None
    if composition.gaussian == 0 and not many:
        largest = log_total_variation(composition, direction)
        if few.hits < SELDOM and not complement:
            target = landing.few_jumps_log_delta(few.steps, direction, max(epsilon, NOTHING))
        target = min(target, largest) if np.isfinite(target) else largest
        jump, jump_width = landing.sharpest(composition.steps, direction, epsilon, target, log_tolerance)
        if jump is not None and not jump_width > width:
            return jump.log_delta, 0.0
    if line is None and width < NEARLY:
        line = line_at(composition, direction, epsilon, many, complement)[0]
    best = jump if line is None else line
    return (None if best is None else best.log_delta), 0.0


def line_at(
    composition: Composition, direction: int, epsilon: float, many: bool, complement: bool
) -> tuple[Line | None, float, float, float]:
    """The line of the saddle point at epsilon, its width there, about log delta, and the spread of the tilted loss."""
    try:
        task, c, target = contour.solve_for_epsilon(
            composition.steps, composition.gaussian, direction, epsilon, complement
        )
        line = contour.line(task, c, -45.0) if many else contour.line(task, c)
    except contour.TooWideError:
        target = float(landing.sum_of_log_deltas(composition.steps, direction, np.array([epsilon]))[0])
        return None, np.inf, target, 0.0
    target = contour.log_complement(min(target, -1e-300)) if complement else min(target, -0.7)
    if line is None:
        return None, np.inf, target, 0.0
    width = float(np.diff(np.ravel(line.log_delta(np.array([epsilon]))))[0])
    return line, width, target, float(np.sqrt(task.cumulants(c)[2]))


@QUIETLY
def blurred(composition: Composition, direction: int, epsilon: float) -> float:
    """An upper bound on log delta(epsilon), a few parts in a hundred too large, from a plain contour integral.

    It is that of the same steps and a Gaussian release beside them, which can only tell more.  A Gaussian of a share of
    the scale on which delta falls tells little, and with it the integrand decays soon, whatever near-atoms there are.
    """
    try:
        task, c, _ = contour.solve_for_epsilon(composition.steps, composition.gaussian, direction, epsilon)
        line = contour.line(replace(task, gaussian=task.gaussian + _BLUR**2 / (c * (c + 1))), c, _ROUGHLY)
    except contour.TooWideError:
        return 0.0
    return 0.0 if line is None else float(line.log_delta(np.array([epsilon]))[1][0])
