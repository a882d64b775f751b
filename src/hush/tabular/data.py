"""The records of a file or a folder: inputs, targets, and whose they are.  All of it is private."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.tabular.arrays import read_arrays
from hush.tabular.cells import numbers
from hush.tabular.columns import refuse_others
from hush.tabular.images import read_images
from hush.tabular.pixels import grid
from hush.tabular.tables import Table, read_table

Pixels = NDArray[Any]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Data:
    """Either a table of cells or an array of pixels, with a target (as text) for every record."""

    inputs: Table | Pixels
    targets: list[str] | None
    users: list[str] | None = None
    pixels: tuple[str, ...] | None = None
    """The columns that the pixels come from, if they come from a table.  Public."""

    @property
    def records(self) -> int:
        return self.inputs.rows if isinstance(self.inputs, Table) else len(self.inputs)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Data:
        index = [int(row) for row in rows]
        inputs = self.inputs.take(index) if isinstance(self.inputs, Table) else self.inputs[index]
        targets, users = (
            None if column is None else [column[row] for row in index] for column in (self.targets, self.users)
        )
        return Data(inputs, targets, users, self.pixels)

    def contents(self) -> list[bytes]:
        """Every record as bytes; with users, the user's id."""
        if self.users is not None:
            return [user.encode() for user in self.users]
        if isinstance(self.inputs, Table):
            inputs = self.inputs.contents()
        else:
            inputs = [np.ascontiguousarray(row).tobytes() for row in self.inputs]
        targets = self.targets or [""] * len(inputs)
        return [content + b"\x00" + target.encode() for content, target in zip(inputs, targets, strict=True)]

    def digest(self, secret: bytes) -> str:
        """Of all records, to tell whether they are the same later; keyed, so that it tells nobody else anything."""
        found = hashlib.blake2b(key=secret, digest_size=32)
        inputs = self.inputs.contents() if isinstance(self.inputs, Table) else [self.inputs.tobytes()]
        for content in inputs:
            found.update(hashlib.blake2b(content).digest())
        found.update(repr((self.targets, self.users)).encode())
        return found.hexdigest()

    def speakers(self) -> list[int]:
        """One record of every unit: all of them or, with users, each one's first."""
        if self.users is None:
            return list(range(self.records))
        first: dict[str, int] = {}
        for row, user in enumerate(self.users):
            first.setdefault(user, row)
        return list(first.values())


@dataclass(frozen=True)
class Reading:
    """How to read the records: options of the command line, all public."""

    target: str | None
    user_column: str | None = None
    inputs: str | None = None
    delimiter: str | None = None
    image_size: int = 32
    grey: bool = False
    shape: tuple[int, int] | None = None
    """Height and width, if the rows of a table are images, a column a pixel, row by row."""
    pixels: tuple[str, ...] | None = None
    """Which columns; None: all but target and users, in their order."""
    by_name: bool = True
    """Whether columns whose names make them the pixels of one image are taken for that (`hush.tabular.pixels`)."""

    def __post_init__(self) -> None:
        if self.shape is not None:  # lists, where they come from JSON
            object.__setattr__(self, "shape", tuple(self.shape))
            if len(self.shape) != 2 or not all(1 <= side <= 4096 for side in self.shape):
                raise ValueError(f"An image's height and width lie from 1 to 4096, got {self.shape}.")
        if self.pixels is not None:
            object.__setattr__(self, "pixels", tuple(self.pixels))


def refuse_missing(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"There is no file or folder {path}.")


def read_data(path: Path, how: Reading, labelled: bool = True) -> Data:
    """The records of a CSV, TSV, Parquet or .npz file, or of a folder of images with a subfolder for each class."""
    if path.is_dir():
        if how.user_column is not None:
            raise ValueError("A folder of images has no column of users; leave --user-column out.")
        pixels, labels = read_images(path, how.image_size, how.grey, labelled)
        return Data(pixels, labels)
    refuse_missing(path)
    if path.suffix.lower() == ".npz":
        return _from_arrays(path, how, labelled)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt", ".parquet", ".pq"):
        raise ValueError(f"{path} is none of .csv, .tsv, .parquet, .npz, or a folder of images.")
    return _from_table(read_table(path, how.delimiter), path, how, labelled)


def _from_table(table: Table, path: Path, how: Reading, labelled: bool) -> Data:
    columns = dict(table.columns)
    if labelled and how.target is None:
        raise ValueError(f"Say which column is to be predicted: --target, one of {_some(table.names)}.")
    for name, option in ((how.target, "target"), (how.user_column, "column of users")):
        if name is not None and name not in columns and (labelled or option != "target"):
            raise ValueError(f"{path} has no column {name!r} for the {option}; it has {_some(table.names)}.")
    if how.target is not None and how.target == how.user_column:
        raise ValueError(f"The column {how.target!r} can't be both the target and the users.")
    targets = None if how.target is None else columns.pop(how.target, None)
    users = None if how.user_column is None else columns.pop(how.user_column)
    if users is not None and not all(user.strip() for user in users):
        raise ValueError(f"The column {how.user_column!r} names no user in some rows; every row needs one.")
    if not columns:
        raise ValueError(f"{path} has no column beside the target to predict it from.")
    data = Data(Table(columns), targets, users)
    if how.shape is not None:
        return pictured(data, how)
    found = grid(tuple(columns)) if how.by_name else None
    if found is None:
        return data
    try:
        return pictured(data, replace(how, shape=found[0], pixels=found[1]))
    except ValueError as error:
        raise ValueError(f"{error} It was declared by the columns' names; --pixels none takes that back.") from error


def pictured(data: Data, how: Reading) -> Data:
    """The rows of a table as images; a missing pixel is NaN."""
    assert isinstance(data.inputs, Table)
    assert how.shape is not None
    height, width = how.shape
    columns, names = data.inputs.columns, how.pixels or data.inputs.names
    lost = [name for name in names if name not in columns]
    if lost:
        raise ValueError(f"The rows lack the column {lost[0]!r}, which the model was trained on.")
    if len(names) != height * width:
        raise ValueError(
            f"Images of {height}x{width} have {height * width} pixels, but there are {len(names)} columns."
        )
    pixels = np.empty((data.records, height * width), dtype=np.float32)
    for place, name in enumerate(names):
        values = numbers(columns[name])
        refuse_others(columns[name], values, repr(name), "number")
        pixels[:, place] = np.clip(values, -_LARGEST, _LARGEST)
    return Data(pixels.reshape(-1, 1, height, width), data.targets, data.users, tuple(names))


def _from_arrays(path: Path, how: Reading, labelled: bool) -> Data:
    arrays = read_arrays(path)
    targets, users = None, None
    if how.target is not None and (labelled or how.target in arrays):
        targets = _texts(path, arrays, how.target, "target")
    elif labelled:
        raise ValueError(f"Say which array is to be predicted: --target, one of {_some(tuple(arrays))}.")
    if how.user_column is not None:
        users = _texts(path, arrays, how.user_column, "users")
    used = {how.target, how.user_column}
    length = None if targets is None else len(targets)
    rest = [n for n, a in arrays.items() if n not in used and a.ndim > 1 and length in (None, len(a))]
    name = how.inputs or (rest[0] if len(rest) == 1 else None)
    if name is None or name not in arrays:
        raise ValueError(f"Say which array of {path} has the inputs: --inputs, one of {_some(rest)}.")
    inputs = arrays[name]
    if inputs.ndim < 2 or not len(inputs) or inputs[0].size == 0 or inputs.dtype.kind not in "biuf":
        raise ValueError(f"The inputs {name!r} need numbers, a row for each record, got {inputs.dtype} {inputs.shape}.")
    if length not in (None, len(inputs)) or (users is not None and len(users) != len(inputs)):
        raise ValueError(f"The inputs {name!r} have {len(inputs)} records and the targets or users another number.")
    if inputs.ndim == 2 and inputs.shape[1] <= 512 and inputs.dtype != np.uint8:
        table = Table({f"{name}{j}": [str(v) for v in inputs[:, j].tolist()] for j in range(inputs.shape[1])})
        return Data(table, targets, users)
    return Data(_channels_first(name, inputs), targets, users)


def _channels_first(name: str, inputs: Pixels) -> Pixels:
    if inputs.ndim == 2:
        return inputs
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.ndim == 4 and inputs.shape[3] in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(inputs, 3, 1))
    if inputs.ndim == 4:
        return inputs
    raise ValueError(f"The inputs {name!r} have {inputs.ndim} axes; images have 3 or 4, other records 2.")


def _texts(path: Path, arrays: dict[str, Pixels], name: str, what: str) -> list[str]:
    if name not in arrays:
        raise ValueError(f"{path} has no array {name!r} for the {what}; it has {_some(tuple(arrays))}.")
    found = arrays[name].squeeze()
    if found.ndim != 1:
        raise ValueError(f"The array {name!r} needs one entry for each record, got shape {arrays[name].shape}.")
    return [str(value) for value in found.tolist()]


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:8])
    return (listed or "none") + (f" and {len(names) - 8} more" if len(names) > 8 else "")
