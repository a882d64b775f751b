"""Trade-off functions known at points, as pairs of finite distributions: `Tradeoff` and `Tradeoff.of`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from hush.accounting.errors import Array, Lines
from hush.accounting.hulls import lower_hull
from hush.accounting.pairs.losses import Atoms, Enclosed

_POINTS = 1.6e-15  # how far off a corner between extended chords may be
_FORMULA = 1e-9  # what a formula may lose to rounding
_CORNERS = 8e-16  # how far off the powers at the corners of a curve may be


def check_tradeoff_points(alphas: Sequence[float], betas: Sequence[float]) -> None:
    a, b = np.asarray(alphas, dtype=float), np.asarray(betas, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or a.size < 2 or a[0] != 0 or a[-1] != 1:
        raise ValueError("A trade-off function needs as many type II as type I errors, the latter from 0 to 1.")
    if not (np.all(np.diff(a) > 0) and np.all(np.isfinite(b))):
        raise ValueError("The type I errors must ascend and the type II errors be numbers.")
    middle = (b[:-2] * (a[2:] - a[1:-1]) + b[2:] * (a[1:-1] - a[:-2])) / (a[2:] - a[:-2])
    wrong = (b < 0) | (b > 1 - a + 1e-14)
    wrong[1:] |= np.diff(b) > 1e-14
    wrong[1:-1] |= b[1:-1] > middle + 1e-14
    if np.any(wrong):
        at = float(a[np.argmax(wrong)])
        why = ": a formula in 1 - alpha loses its digits here" if 0 < at < 1e-8 else ""
        raise ValueError(
            f"A trade-off function is convex, falls, and lies between 0 and 1 - alpha; not so at alpha = {at:.3g}{why}."
        )


def sample_tradeoff(function: Callable[[Array], Array], points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    ends = np.geomspace(1e-14, 0.5, points // 2)
    deep = np.geomspace(1e-60, 1e-14, points // 4)
    alphas = np.unique(np.concatenate([[0.0], deep, ends, 1 - ends, [1.0]]))
    values = _values(function, alphas)
    betas = np.minimum.accumulate(np.clip(values, 0.0, 1 - alphas))
    if not np.all(np.abs(values - betas) <= _FORMULA):  # no rounding: it isn't such a function
        check_tradeoff_points(alphas.tolist(), values.tolist())
    return tuple(alphas.tolist()), tuple(betas.tolist())


def _values(function: Callable[[Array], Array], at: Array) -> Array:
    """The function of an array, or of one number at a time where it takes no arrays."""
    try:
        values = np.asarray(function(at), dtype=float)
    except (TypeError, ValueError):
        values = np.array([])
    return values if values.shape == at.shape else np.array([float(function(one)) for one in at])


def pair_of_points(alphas: Sequence[float], betas: Sequence[float], *, chords: bool) -> Enclosed:
    """The function below every convex one through the points (chords extended), between two pairs that rounding allows.

    With ``chords`` it may be any that is convex through the points: less revealing than it is that made of the chords.
    """
    a, b = np.asarray(alphas, dtype=float), np.asarray(betas, dtype=float)
    corners = _rounded_corners(a, b) if chords else _exact_corners(alphas, betas)
    corner_a, corner_b, steepness = (np.array(row) for row in zip(*corners, strict=True))
    # Of the points the lower hull: chords between points that rounding moved have slopes that are not those of f.
    above = lower_hull(a, b) if chords else lower_hull(np.append(corner_a, 1.0), np.append(corner_b, 0.0))
    # Lowered by what rounding may do to a point, upwards or, where f is flat, sideways: every line of the hull is then
    # below f from end to end.  Short ones near 1 would else, mirrored, be wrong by far more than rounding.
    lowered = np.maximum(corner_b - _POINTS * np.minimum(1.0, steepness), 0.0)
    hull = lower_hull(np.append(corner_a, 1.0), np.append(lowered, 0.0))
    below = _under(_lines_of_hull(*hull), *hull)
    lower = _lines_of_hull(*above).mirrored()
    return Enclosed(lower=_moved(atoms_of(lower), -1), upper=_moved(atoms_of(below.mirrored()), 1))


Corner = tuple[float, float, float]
"""A type I error, the least type II error there, and how steep the chord before it is."""


def _rounded_corners(a: Array, b: Array) -> list[Corner]:
    """Where neighbouring chords, extended, meet: between two points f lies above the chords before and after.

    The values of f were rounded, and a short chord that is extended far carries that along.
    """
    slopes = -np.diff(b) / np.diff(a)
    corners: list[Corner] = [(0.0, float(b[0]), 1.0)]
    for k in range(len(slopes)):
        before = slopes[k - 1] if k > 0 else np.inf
        after = slopes[k + 1] if k + 1 < len(slopes) else 0.0
        at = a[k]
        if np.isfinite(before) and before - after > 1e-300:
            at = float(np.clip((b[k] - b[k + 1] + before * a[k] - after * a[k + 1]) / (before - after), a[k], a[k + 1]))
        value = b[k + 1] + after * (a[k + 1] - at)
        if k + 1 < len(slopes):
            value -= 4e-16 * max((a[k + 1] - at) / (a[k + 2] - a[k + 1]) - 1, 0.0)
        if np.isfinite(before):
            carried = 4e-16 * max((at - a[k]) / (a[k] - a[k - 1]) - 1, 0.0)
            value = min(max(value, b[k] - before * (at - a[k]) - carried), b[k])
        corners.append((float(at), float(np.clip(value, 0.0, 1 - at)), float(before)))
    return corners


def _exact_corners(alphas: Sequence[float], betas: Sequence[float]) -> list[Corner]:
    """The same of points that are what they are: in fractions, each corner rounded once.

    Chords that rise, or don't flatten, by what rounding did to the points, are met at an end of the cell.
    """
    a, b = ([Fraction(number) for number in row] for row in (alphas, betas))
    slopes = [(y - last) / (end - x) for x, end, y, last in zip(a, a[1:], b, b[1:], strict=False)]
    corners: list[Corner] = [(0.0, float(b[0]), 1.0)]
    for k, start in enumerate(a[:-1]):
        after = max(slopes[k + 1], Fraction(0)) if k + 1 < len(slopes) else Fraction(0)
        if k == 0:
            corners.append((0.0, float(min(b[1] + after * a[1], b[0])), math.inf))
            continue
        before, rest = slopes[k - 1], b[k] - b[k + 1] - after * (a[k + 1] - start)
        at = start + min(max(rest / (before - after), Fraction(0)), a[k + 1] - start) if before > after else start
        value = min(b[k + 1] + after * (a[k + 1] - at), b[k])
        corners.append((float(at), max(float(min(value, 1 - at)), 0.0), float(before)))
    return corners


def _lines_of_hull(alpha: Array, beta: Array) -> Lines:
    slopes = -np.diff(beta) / np.diff(alpha)
    misses = beta[:-1] + slopes * alpha[:-1]
    return Lines(1 - misses, slopes, misses)


def _under(lines: Lines, alpha: Array, beta: Array) -> Lines:
    """Lowered until none is above any of the points: rounding turns short lines, and where f is straight that shows."""
    excess = np.zeros(lines.slopes.size)
    for start in range(0, lines.slopes.size, 256):
        part = slice(start, start + 256)
        values = lines.misses[part, None] - np.multiply.outer(lines.slopes[part], alpha)
        excess[part] = np.max(values - beta, axis=1, initial=0.0)
    misses = lines.misses - np.where(excess > 0, excess + 4e-16 * np.minimum(1.0, lines.slopes), 0.0)
    return Lines(1 - misses, lines.slopes, misses)


def _moved(atoms: Atoms, sign: int) -> Atoms:
    """The pair whose power is larger (+1) or smaller (-1) by what rounding may do to the corners of a curve.

    A corner lies on lines whose intercepts are good to 4e-16, above or, where they are flat, beside it: all powers
    together are off by no more than twice that.  (Masses are differences of corners, good to their own last places.)
    Larger, it is told at once; smaller, it is taken from the most revealing outcomes.  Before that, outcomes whose
    losses don't fall, as only rounding can have it, are seen as one: a sum over outcomes must not choose among them.
    """
    if sign > 0:
        masses = tuple(mass * (1 + 4e-16) for mass in atoms.p)
        return Atoms(atoms.losses, masses, atoms.q, min(atoms.infinite + _CORNERS, 1.0), atoms.vanishing)
    p, q = _falling(np.asarray(atoms.p), np.asarray(atoms.q))
    infinite, rest = max(atoms.infinite - _CORNERS, 0.0), max(_CORNERS - atoms.infinite, 0.0)
    left = np.minimum(p, np.maximum(np.cumsum(p) - rest, 0.0)) * (1 - 4e-16)
    kept = left > 0
    losses = np.log(left[kept]) - np.log(q[kept])
    return Atoms(tuple(losses.tolist()), tuple(left[kept].tolist()), tuple(q[kept].tolist()), infinite, atoms.vanishing)


def _falling(p: Array, q: Array) -> tuple[Array, Array]:
    """Neighbouring outcomes, the steepest first, joined where the loss of the next is no smaller."""
    joined: list[tuple[float, float]] = []
    for mass in zip(p.tolist(), q.tolist(), strict=True):
        joined.append(mass)
        while len(joined) > 1 and joined[-1][0] * joined[-2][1] >= joined[-2][0] * joined[-1][1]:
            last, before = joined.pop(), joined.pop()
            joined.append((before[0] + last[0], before[1] + last[1]))
    found = np.array(joined, dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def atoms_of(lines: Lines) -> Atoms:
    """The finite pair with this concave power curve: Q-mass the step in alpha, P-mass the rise of the power.

    Where the curve is flat the rise is slope times step: a difference of powers near 1 would have no digits.
    """
    alpha, power, slopes = lines.pieces()
    q, p = np.diff(alpha), np.diff(power)
    return _atoms(np.where(slopes < 1, slopes * q, p), q, float(power[0]))


def _atoms(p: Array, q: Array, infinite: float) -> Atoms:
    keep = (q > 0) & (p > 0)
    vanishing = float(q[(q > 0) & ~keep].sum())
    q, p = q[keep], p[keep]
    losses = np.log(p) - np.log(q)
    return Atoms(tuple(losses.tolist()), tuple(p.tolist()), tuple(q.tolist()), max(infinite, 0.0), vanishing)
