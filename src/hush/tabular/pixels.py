"""Columns whose names say that together they are one image: a header is public, so this looks at no record."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

LEAST = 8
"""Smaller sides are left as columns: such images have no features to speak of."""

_TWO = re.compile(r"(?:pixel|px)[ _-]?(\d{1,4})[ _x,-](\d{1,4})|(\d{1,4})x(\d{1,4})", re.IGNORECASE)
_ONE = re.compile(r"(?:pixel|px)[ _-]?(\d{1,7})", re.IGNORECASE)

Grid = tuple[tuple[int, int], tuple[str, ...]]
"""Height and width, and the columns row by row."""


def grid(names: Sequence[str]) -> Grid | None:
    """The image that columns are by their names, if all of them are its pixels and none is lacking.

    pixel_0_0 ... pixel_7_7 (scikit-learn), 1x1 ... 28x28, pixel0 ... pixel783 or pixel1 ... pixel784, a square.
    """
    two, one = [_TWO.fullmatch(name) for name in names], [_ONE.fullmatch(name) for name in names]
    if all(two):
        places = [(int(m[1] or m[3]), int(m[2] or m[4])) for m in two if m is not None]
    elif all(one):
        numbers = [int(m[1]) for m in one if m is not None]
        side, least = math.isqrt(len(names)), min(numbers)
        if side * side != len(names) or least > 1:
            return None
        places = [(number // side, number % side) for number in (number - least for number in numbers)]
    else:
        return None
    return _filled(names, places)


def _filled(names: Sequence[str], places: Sequence[tuple[int, int]]) -> Grid | None:
    first = min(places)
    height, width = (1 + max(place[axis] for place in places) - first[axis] for axis in (0, 1))
    if first not in ((0, 0), (1, 1)) or min(height, width) < LEAST or len(names) != height * width:
        return None
    wanted = {(first[0] + row, first[1] + column) for row in range(height) for column in range(width)}
    if set(places) != wanted:
        return None
    return (height, width), tuple(name for _, name in sorted(zip(places, names, strict=True)))
