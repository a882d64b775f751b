"""What the owner of the data declares about it: a small JSON or TOML file, or options of the command line.

    target = "income"
    records = 32561

    [columns]
    age = { kind = "number", low = 17, high = 90 }
    workclass = { kind = "category", values = ["Private", "State-gov", "Self-emp"] }
    hired = { kind = "date", low = "2000-01-01", high = "2024-12-31" }
    remark = { kind = "text" }
    id = { kind = "ignore" }
    income = { kind = "category", values = ["<=50K", ">50K"] }

What is declared is taken for public, so it must not have been read off the private records.  A column that isn't
declared, or a number without bounds, is surveyed with noise, for a charge.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hush.tabular import cells
from hush.tabular.columns import BUCKETS, Category, Column, Date, Hashed, Ignored, Number

_KINDS = ("number", "category", "date", "text", "ignore")
_FIELDS = {
    "number": {"low", "high"},
    "date": {"low", "high"},
    "category": {"values"},
    "text": {"buckets"},
    "ignore": set(),
}
_KEYS = {"target", "records", "user_column", "columns"}


@dataclass(frozen=True)
class Wanted:
    """A column whose kind is declared, but not its bounds: those are to be released."""

    kind: str


@dataclass(frozen=True)
class Schema:
    """Everything declared."""

    target: str | None = None
    records: int | None = None
    user_column: str | None = None
    columns: Mapping[str, Column | Wanted] = field(default_factory=dict)

    def with_bounds(self, low: float, high: float, names: Sequence[str]) -> Schema:
        """Numbers between these bounds in all of the named columns that have no declaration of their own."""
        common: dict[str, Column | Wanted] = {name: Number.between(low, high) for name in names}
        own = {name: column for name, column in self.columns.items() if not isinstance(column, Wanted)}
        kept = {n: c for n, c in self.columns.items() if isinstance(c, Wanted) and c.kind != "number"}
        return replace(self, columns=common | kept | own)

    def to_dict(self) -> dict[str, Any]:
        columns = {n: {"wanted": c.kind} if isinstance(c, Wanted) else c.to_dict() for n, c in self.columns.items()}
        return {"target": self.target, "records": self.records, "user_column": self.user_column, "columns": columns}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Schema:
        columns: dict[str, Column | Wanted] = {
            name: Wanted(value["wanted"]) if "wanted" in value else Column.from_dict(value)
            for name, value in data["columns"].items()
        }
        return Schema(data["target"], data["records"], data["user_column"], columns)


def read_schema(path: Path) -> Schema:
    """The declarations of a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(f"The schema {path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
        raise ValueError(f"The schema {path} isn't {kind}: {error}.") from error
    try:
        return _schema(data)
    except ValueError as error:
        raise ValueError(f"The schema {path}: {error}") from error


def _schema(data: Any) -> Schema:
    if not isinstance(data, dict) or set(data) - _KEYS:
        unknown = ", ".join(map(str, sorted(set(data) - _KEYS))) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"it may have {', '.join(sorted(_KEYS))}, not {unknown}.")
    columns = data.get("columns", {})
    if not isinstance(columns, dict):
        raise ValueError("its columns are a table of names and declarations.")
    records = data.get("records")
    if records is not None and (isinstance(records, bool) or not isinstance(records, int) or records < 1):
        raise ValueError(f"its records are a whole number of at least 1, not {records!r}.")
    for key in ("target", "user_column"):
        if data.get(key) is not None and not isinstance(data[key], str):
            raise ValueError(f"its {key} is a column's name, not {data[key]!r}.")
    declared = {str(name): declaration(str(name), value) for name, value in columns.items()}
    return Schema(data.get("target"), records, data.get("user_column"), declared)


def declaration(name: str, data: Any) -> Column | Wanted:
    """A column as declared."""
    if not isinstance(data, dict) or data.get("kind") not in _KINDS:
        raise ValueError(f"column {name!r} needs a kind, one of {', '.join(_KINDS)}, got {str(data)[:60]}.")
    kind = str(data["kind"])
    unknown = set(data) - {"kind"} - _FIELDS[kind]
    if unknown:
        raise ValueError(f"column {name!r}, a {kind}, can't have {', '.join(map(str, sorted(unknown)))}.")
    if kind == "category":
        return _category(name, data.get("values"))
    if kind == "text":
        return _hashed(name, data.get("buckets", BUCKETS))
    if kind == "ignore":
        return Ignored()
    if "low" not in data and "high" not in data:
        return Wanted(kind)
    low, high = (_bound(name, kind, data.get(end)) for end in ("low", "high"))
    try:
        return Number.between(low, high) if kind == "number" else Date.between(low, high)
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}") from error


def _bound(name: str, kind: str, value: Any) -> float:
    found = cells.number(str(value)) if kind == "number" else cells.date(str(value))
    if found is None or isinstance(value, bool):
        what = "a number" if kind == "number" else "a date such as 2024-01-31"
        raise ValueError(f"column {name!r} needs {what} for both low and high, got {value!r}.")
    return found


def _category(name: str, values: Any) -> Column | Wanted:
    if values is None:
        return Wanted("category")
    if not isinstance(values, list) or not all(isinstance(v, str | int | float) for v in values):
        raise ValueError(f"column {name!r} needs a list of values, got {str(values)[:60]}.")
    try:
        return Category(tuple(str(value).strip() for value in values))
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}") from error


def _hashed(name: str, buckets: Any) -> Hashed:
    if isinstance(buckets, bool) or not isinstance(buckets, int) or not 1 <= buckets <= 4096:
        raise ValueError(f"column {name!r} needs from 1 to 4096 buckets, got {buckets!r}.")
    return Hashed(buckets)
