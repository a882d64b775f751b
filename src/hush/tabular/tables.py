"""Tables of texts: CSV by the standard library, Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LONGEST_CELL = 1 << 20


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of texts, all of one length.  Private."""

    columns: dict[str, list[str]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def take(self, rows: Sequence[int]) -> Table:
        """The given rows, in their order."""
        return Table({name: [cells[row] for row in rows] for name, cells in self.columns.items()})

    def contents(self) -> list[bytes]:
        """Every row as bytes, different for different rows."""
        return [
            b"".join(len(cell := text.encode()).to_bytes(4, "little") + cell for text in row)
            for row in zip(*self.columns.values(), strict=True)
        ]


def read_table(path: Path, delimiter: str | None = None) -> Table:
    """The table of a CSV, TSV or Parquet file; the first line of a text has the columns' names."""
    with unchanged(path):
        if path.suffix.lower() in (".parquet", ".pq"):
            return _parquet(path)
        return _csv(path, delimiter)


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Reading inside; refuses a file that can't be read, or that somebody writes to meanwhile."""
    try:
        before = _state(path)
        yield
        after = _state(path)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {first_line(error.strerror or error)}.") from error
    except MemoryError:
        raise ValueError(f"{path} doesn't fit into memory; give a smaller file.") from None
    if before != after:
        raise ValueError(f"{path} changed while it was read; wait until it is complete, or copy it first.")


def first_line(error: object) -> str:
    """What a library says about a file, cut to where a full stop can follow."""
    return (str(error).splitlines() or ["unreadable"])[0].rstrip(". ")


def _state(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _csv(path: Path, given: str | None) -> Table:
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    delimiter = usual if given is None else given.replace("\\t", "\t")
    if len(delimiter) != 1:
        raise ValueError(f"The delimiter of a CSV file is one character, got {given!r}.")
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            names = _names(path, next(reader, []))
            if given is None:
                _refuse_unsplit(path, names)
            rows: list[list[str]] = []
            for row in reader:
                if row and len(row) != len(names):
                    raise ValueError(
                        f"Line {reader.line_num} of {path} has {len(row)} cells and the header {len(names)}."
                    )
                if row:
                    rows.append(row)
        except csv.Error as error:
            raise ValueError(f"Line {reader.line_num} of {path} isn't CSV: {error}.") from error
        except UnicodeDecodeError:
            raise ValueError(f"{path} isn't UTF-8 text; save it as UTF-8.") from None
    if not rows:
        raise ValueError(f"{path} has no rows below its header.")
    columns = (list(cells) for cells in zip(*rows, strict=True))
    return Table(dict(zip(names, columns, strict=True)))


def _refuse_unsplit(path: Path, names: Sequence[str]) -> None:
    """One column whose name has what other files put between cells."""
    found = [character for character in ";\t|," if len(names) == 1 and character in names[0]]
    if found:
        shown = found[0].replace("\t", "\\t")
        raise ValueError(
            f"{path} has a single column, {names[0][:60]!r}; if {shown!r} stands between its cells, say --delimiter "
            f"'{shown}'."
        )


def _names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if not any(names):
        raise ValueError(f"{path} has no header; its first line must name the columns.")
    if "" in names:
        hint = " (pandas writes such a first one unless to_csv has index=False)" if names[0] == "" else ""
        raise ValueError(f"Column {names.index('') + 1} of {path} has no name{hint}; name it in the first line.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has several columns named {twice[0]!r}; give each its own name.")
    return names


def _parquet(path: Path) -> Table:
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ValueError(
            f"{path} is a Parquet file, which takes the pyarrow package: pip install pyarrow, or save it as CSV."
        ) from None
    try:
        found = parquet.read_table(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path} isn't a Parquet file that can be read: {first_line(error)}.") from error
    names = _names(path, found.column_names)
    columns = {
        name: ["" if value is None else str(value) for value in found.column(position).to_pylist()]
        for position, name in enumerate(names)
    }
    if not found.num_rows:
        raise ValueError(f"{path} has no rows.")
    return Table(columns)
