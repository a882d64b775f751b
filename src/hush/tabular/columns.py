"""Public maps from a column's cells to features: what a published model needs to read new rows.

Every map works cell by cell with numbers that were declared or released; `width` features each.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hush.tabular import cells as reading

Features = NDArray[np.float32]

BUCKETS = 32
"""Into how many features a column's texts are hashed if nobody says which texts there are."""

LOG_FROM = 4.0
"""From which ratio of its bounds on a positive number is taken on a logarithmic scale."""

A_DATE = "date, such as 2024-01-31,"
_YEAR, _WEEK = 365.2425, 7.0


class Column(ABC):
    """What a column of the table means."""

    kind: ClassVar[str]
    _kinds: ClassVar[dict[str, type[Column]]] = {}

    def __init_subclass__(cls) -> None:
        Column._kinds[cls.kind] = cls

    @property
    @abstractmethod
    def width(self) -> int:
        """How many features it makes."""

    @abstractmethod
    def encode(self, cells: Sequence[str], name: str = "the column") -> Features:
        """The features of every cell, one row each."""

    @abstractmethod
    def __str__(self) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind} | asdict(self)  # type: ignore[call-overload,no-any-return]

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Column:
        kinds = Column._kinds
        if not isinstance(data, dict) or data.get("kind") not in kinds:
            raise ValueError(f"Not a column: {str(data)[:80]}; its 'kind' must be one of {', '.join(kinds)}.")
        cls = kinds[data["kind"]]
        names = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if cls is Ignored:
            data = {"declared": True, **data}  # older models don't say
        if set(data) - {"kind"} != names:
            raise ValueError(f"A {cls.kind} column has {', '.join(sorted(names)) or 'nothing'}, got {sorted(data)}.")
        values = {name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in names}
        return cls(**values)


@dataclass(frozen=True)
class Number(Column):
    """Numbers: clipped to [low, high], then (x - centre)/scale; a second feature tells what is missing.

    With `log` it is (log x - centre)/scale: right for sizes and amounts, which spread over orders of magnitude.
    Where the kind was declared, a text is an error; where it was released with noise, a text counts as missing.
    """

    kind: ClassVar[str] = "number"
    low: float
    high: float
    centre: float
    scale: float
    declared: bool = True
    log: bool = False

    def __post_init__(self) -> None:
        if self.log and not self.low > 0:
            raise ValueError(f"Logarithms are taken of positive numbers, but the lower bound is {self.low:g}.")

    @staticmethod
    def between(low: float, high: float) -> Number:
        """Declared bounds become -1 and 1, on a logarithmic scale if both are positive and one is 4 times the other."""
        check_range("number", low, high)
        if not (low > 0 and high / low >= LOG_FROM):
            return Number.linear(low, high)
        first, last = math.log(low), math.log(high)
        return Number(low, high, (first + last) / 2, (last - first) / 2, log=True)

    @staticmethod
    def linear(low: float, high: float) -> Number:
        """Declared bounds become -1 and 1."""
        check_range("number", low, high)
        return Number(low, high, (low + high) / 2, (high - low) / 2)

    @property
    def width(self) -> int:
        return 2

    def encode(self, cells: Sequence[str], name: str = "the column") -> Features:
        values = reading.numbers(cells)
        if self.declared:
            refuse_others(cells, values, name, "number")
        if self.log:
            logs = np.log(np.clip(values, self.low, self.high))
            return _scaled(logs, math.log(self.low), math.log(self.high), self.centre, self.scale)
        return _scaled(values, self.low, self.high, self.centre, self.scale)

    def __str__(self) -> str:
        low, high = (f"{end:,.0f}" if 1e3 <= abs(end) < 1e9 else f"{end:.4g}" for end in (self.low, self.high))
        return f"numbers from {low} to {high}" + (", on a logarithmic scale" if self.log else "")


@dataclass(frozen=True)
class Date(Column):
    """Dates as days since 1970: scaled like numbers, with the time of the year and the day of the week on circles."""

    kind: ClassVar[str] = "date"
    low: float
    high: float
    centre: float
    scale: float
    declared: bool = True

    @staticmethod
    def between(low: float, high: float) -> Date:
        check_range("date", low, high)
        return Date(low, high, (low + high) / 2, (high - low) / 2)

    @property
    def width(self) -> int:
        return 6

    def encode(self, cells: Sequence[str], name: str = "the column") -> Features:
        days = reading.dates(cells)
        if self.declared:
            refuse_others(cells, days, name, A_DATE)
        known = np.nan_to_num(days)
        circles = [
            f(2 * np.pi * known / period) * np.isfinite(days) for period in (_YEAR, _WEEK) for f in (np.sin, np.cos)
        ]
        scaled = _scaled(days, self.low, self.high, self.centre, self.scale)
        return np.concatenate([scaled, np.stack(circles, axis=1).astype(np.float32)], axis=1)

    def __str__(self) -> str:
        first, last = (np.datetime64(int(day), "D") for day in (self.low, math.ceil(self.high)))
        return f"dates from {first} to {last}"


@dataclass(frozen=True)
class Category(Column):
    """One of the given texts: a feature each; any other text, and nothing, has none."""

    kind: ClassVar[str] = "category"
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"Categories are given once each, at least one, got {', '.join(self.values) or 'none'}.")

    @property
    def width(self) -> int:
        return len(self.values)

    def encode(self, cells: Sequence[str], name: str = "the column") -> Features:
        places = {value: place for place, value in enumerate(self.values)}
        return _one_hot([places.get(cell.strip(), -1) for cell in cells], self.width)

    def __str__(self) -> str:
        return f"one of {len(self.values)} categories"


@dataclass(frozen=True)
class Hashed(Column):
    """Any text, by its hash: one of `buckets` features.  Needs to know nothing about the texts, so it costs nothing."""

    kind: ClassVar[str] = "text"
    buckets: int = BUCKETS

    @property
    def width(self) -> int:
        return self.buckets

    def encode(self, cells: Sequence[str], name: str = "the column") -> Features:
        known: dict[str, int] = {}
        for cell in cells:
            if cell not in known:
                digest = hashlib.blake2b(cell.strip().encode(), digest_size=8).digest()
                known[cell] = -1 if reading.is_missing(cell) else int.from_bytes(digest, "little") % self.buckets
        return _one_hot([known[cell] for cell in cells], self.buckets)

    def __str__(self) -> str:
        return f"texts, hashed into {self.buckets} buckets"


@dataclass(frozen=True)
class Ignored(Column):
    """Left out: as declared, or because the survey's noise hid it."""

    kind: ClassVar[str] = "ignore"
    declared: bool = True

    @property
    def width(self) -> int:
        return 0

    def encode(self, cells: Sequence[str], name: str = "the column") -> Features:
        return np.zeros((len(cells), 0), dtype=np.float32)

    def __str__(self) -> str:
        return "left out" if self.declared else "left out, since it was lost in the survey's noise"


def check_range(what: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
        raise ValueError(f"The bounds of a {what} are finite and ascend, got {low:g} to {high:g}.")


def _scaled(values: reading.Floats, low: float, high: float, centre: float, scale: float) -> Features:
    known = np.isfinite(values)
    scaled = np.where(known, (np.clip(np.nan_to_num(values), low, high) - centre) / scale, 0.0)
    return np.stack([scaled, ~known], axis=1).astype(np.float32)


def _one_hot(places: Sequence[int], width: int) -> Features:
    found = np.zeros((len(places), width), dtype=np.float32)
    where = np.asarray(places, dtype=np.int64).reshape(-1)
    rows = np.flatnonzero(where >= 0)
    found[rows, where[rows]] = 1.0
    return found


def refuse_others(cells: Sequence[str], values: reading.Floats, name: str, what: str) -> None:
    """Refuse cells that hold something, but not what was declared."""
    for row in np.flatnonzero(np.isnan(values)).tolist():
        if not reading.is_missing(cells[row]):
            raise ValueError(
                f"Row {row + 1} has {cells[row][:40]!r} in {name}, which was declared to hold a {what} in every row; "
                "correct the row or the declaration."
            )
