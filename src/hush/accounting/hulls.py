"""The greatest convex function below some points, decided exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Point = tuple[float, float]

_SURE = 1e-15  # of two products of differences: by more, and rounding can't tell their order wrongly


def lower_hull(x: Array, y: Array) -> tuple[Array, Array]:
    """Its corners, from left to right (Andrew's monotone chain).

    Which side of a chord a point lies on is decided in fractions where rounding might: of points within 1e-16 of each
    other a chord may have any slope, and one that is steeper than the chord before it, extended, is wrong everywhere.
    """
    order = np.lexsort((y, x))
    hull: list[Point] = []
    for point in zip(x[order].tolist(), y[order].tolist(), strict=True):
        if hull and point[0] == hull[-1][0]:
            continue
        while len(hull) > 1 and not _below_chord(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    corners = np.array(hull)
    return corners[:, 0], corners[:, 1]


def _below_chord(first: Point, middle: Point, last: Point) -> bool:
    """Whether the middle point lies below the line through the others."""
    left = (middle[1] - first[1]) * (last[0] - first[0])
    right = (last[1] - first[1]) * (middle[0] - first[0])
    if abs(left - right) > _SURE * (abs(left) + abs(right)):
        return left < right
    (x, y), (at, value), (end, height) = ((Fraction(a), Fraction(b)) for a, b in (first, middle, last))
    return (value - y) * (end - x) < (height - y) * (at - x)
