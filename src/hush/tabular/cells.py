"""One cell of a table: a number, a date, a text, or nothing.

A cell is read on its own, never by what its neighbours look like, so that a record can't change how others are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""What stands for a missing value, in any case."""

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_OTHER_DATES = ("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y")
_DAY = 86_400.0


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def number(cell: str) -> float | None:
    """The finite number a cell holds, or None."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def date(cell: str) -> float | None:
    """The days from 1970 to the date a cell holds, or None: 2024-01-31 (with a time, too), 2024/01/31, 31.01.2024."""
    text = cell.strip()
    moment: datetime | None = None
    if _ISO.fullmatch(text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
    elif text[:1].isdigit() and 8 <= len(text) <= 10:
        for pattern in _OTHER_DATES:
            try:
                moment = datetime.strptime(text, pattern)
                break
            except ValueError:
                continue
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        return aware.timestamp() / _DAY
    except (OverflowError, ValueError):
        return None


def numbers(cells: Sequence[str]) -> Floats:
    """The numbers of a column, NaN where a cell holds none.

    Both ways read a cell by `float`.  NumPy's fixed-width texts would not: they drop a NUL at the end, so that whether
    "5\\0" is a number would depend on the other rows, and one long text would take its memory in every row.
    """
    try:
        quick = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        quick = np.array([np.nan])
    if np.isfinite(quick).all() and not any("_" in cell for cell in cells):
        return quick
    return np.array([math.nan if (value := number(cell)) is None else value for cell in cells], dtype=np.float64)


def dates(cells: Sequence[str]) -> Floats:
    """The dates of a column in days, NaN where a cell holds none."""
    return np.array([math.nan if (value := date(cell)) is None else value for cell in cells], dtype=np.float64)


def missing(cells: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([is_missing(cell) for cell in cells], dtype=bool)
