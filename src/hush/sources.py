"""Records by their positions: tensors, NumPy arrays, or any map-style data set; anything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset, default_collate

from hush.randomness import seeded
from hush.units import Positions

Collate = Callable[[list[Any]], Any]


class Tensors:
    """A tuple of tensors or arrays whose first axes go together; a batch is the tuple of their chosen rows.

    Rows are taken where a tensor lives, so data on a GPU stays there.  Arrays may be memory-mapped.
    """

    def __init__(self, columns: Sequence[Tensor | np.ndarray[Any, Any]]) -> None:
        for column in columns:
            if column.ndim == 0:
                raise ValueError(
                    "Every tensor of the data needs a first axis, one entry per record, but one is a number."
                )
            if isinstance(column, np.ndarray):
                _as_tensor(column[:0])
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise ValueError(f"The data's tensors must have as many records each, got {sorted(lengths)}.")
        self.columns = tuple(c.detach() if isinstance(c, Tensor) else c for c in columns)
        self.records = lengths.pop()

    def take(self, indices: Positions) -> tuple[Tensor, ...]:
        """The rows at these positions, in their order."""
        index = torch.from_numpy(indices)
        moved: dict[torch.device, Tensor] = {torch.device("cpu"): index}
        rows = []
        for column in self.columns:
            if isinstance(column, np.ndarray):
                rows.append(_as_tensor(column[indices]))
                continue
            if column.device not in moved:
                source = index.pin_memory() if column.is_cuda else index
                moved[column.device] = source.to(column.device, non_blocking=True)
            rows.append(column.index_select(0, moved[column.device]))
        return tuple(rows)


class Items:
    """A map-style data set: `data[i]` is a record, `len(data)` their number; a collate function makes the batch."""

    def __init__(self, data: Any, collate: Collate | None) -> None:
        self.data = data
        self.collate = default_collate if collate is None else collate
        self.records = len(data)
        self.on_device = isinstance(data, _Rows) and data.on_device
        self._empty: Any = None

    def take(self, indices: list[int], secret: bytes) -> Any:
        """The batch of the records at these positions, or None if there are none.

        Random transformations see PyTorch's CPU generator, NumPy's and Python's begin from `secret`: what they make of
        a step doesn't depend on the steps before, on the number of workers, or on where a run was resumed.
        """
        if not indices:
            return None
        with seeded(secret):
            several = getattr(self.data, "__getitems__", None)
            items = several(indices) if several is not None else [self.data[i] for i in indices]
            return self.collate(list(items))

    def refuse_reordering(self) -> None:
        """Raise if the collate function sorts: a row must be its record's for its user's rows to be clipped together.

        Tried on the first records, forwards and backwards: the rows must be those of the same records each time.
        """
        first = list(range(min(self.records, _TRIED)))
        there, back = self.take(first, b""), self.take(first[::-1], b"")
        for one, other in zip(_columns(there), _columns(back), strict=False):
            same_rows = one.shape == other.shape and len(one) == len(first)
            if same_rows and not torch.equal(one.flip(0), other) and _rows(one) == _rows(other):
                raise ValueError(
                    "The collate function puts the records of a batch in another order, so it isn't known any more "
                    "whose they are; let it keep the order, and sort inside the loss function."
                )

    def empty(self) -> Any:
        """A batch of no records, shaped like one that has some: nothing but the shapes of record 0 is used."""
        if self._empty is None:
            if self.records == 0:
                raise ValueError("A data set without records doesn't tell the shape of an empty batch; pass tensors.")
            self._empty = without_rows(self.take([0], b""))
        return self._empty


Source = Tensors | Items


def source(data: Any, collate: Collate | None = None) -> Source:
    """The records of `data`, ready to be taken by position; refuses what doesn't leave the drawing to hush."""
    _refuse(data)
    if isinstance(data, TensorDataset) and type(data) is TensorDataset:
        data = data.tensors
    if isinstance(data, Tensor | np.ndarray):
        data = (data,)
    if isinstance(data, list) and collate is None:
        _refuse_columns(data)
    if not isinstance(data, tuple):
        return Items(data, collate)
    if not data or not all(isinstance(column, Tensor | np.ndarray) for column in data):
        names = ", ".join(type(column).__name__ for column in data)
        raise ValueError(
            f"A tuple of data holds tensors or NumPy arrays, got ({names}); pass a list of records as a list."
        )
    return Tensors(data) if collate is None else Items(_Rows(Tensors(data)), collate)


def _refuse_columns(data: list[Any]) -> None:
    """A list is one of records; tensors of different shapes that are all as long can't be a batch, but columns."""
    tensors = [part for part in data if isinstance(part, Tensor | np.ndarray) and part.ndim > 0]
    if 1 < len(tensors) == len(data) and len({len(x) for x in tensors}) == 1 and len({x.shape for x in tensors}) > 1:
        raise ValueError("A list holds one record in each place, and these look like columns; pass them in a tuple.")


class _Rows:
    """Tensors seen as a list of records, for a collate function of the user's."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.on_device = any(isinstance(column, Tensor) and column.device.type != "cpu" for column in tensors.columns)

    def __len__(self) -> int:
        return self.tensors.records

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        return tuple(torch.as_tensor(column[i]) for column in self.tensors.columns)


_TRIED = 16


def _columns(batch: Any) -> list[Tensor]:
    leaves = tree_flatten(batch)[0]
    tensors = [torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    return [leaf for leaf in tensors if isinstance(leaf, Tensor) and leaf.dim() > 0]


def _rows(column: Tensor) -> list[bytes]:
    return sorted(repr(row.tolist()).encode() for row in column)


def without_rows(batch: Any) -> Any:
    """The batch with the first axis of each tensor cut to length zero, inside tuples, lists and dictionaries too."""
    if isinstance(batch, Tensor | np.ndarray) and batch.ndim > 0:
        return batch[:0]
    if isinstance(batch, Mapping):
        return type(batch)({name: without_rows(part) for name, part in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(without_rows(part) for part in batch))
    if isinstance(batch, list | tuple):
        parts = [part for part in batch if not isinstance(part, str | bytes)]  # those are one per record
        return type(batch)(without_rows(part) for part in parts)
    raise ValueError(
        f"A batch may be empty, and hush can't make an empty one of {type(batch).__name__}; "
        "let the collate function return tensors with one row per record, in tuples, lists or dictionaries."
    )


def _refuse(data: Any) -> None:
    name = type(data).__name__
    if isinstance(data, DataLoader):
        reason = "draws its own batches, which can't be accounted for; pass its data set (loader.dataset) and workers="
    elif isinstance(data, Sampler):
        reason = "chooses records in a way that hush can't account for; pass the data, and the plan's sampling draws"
    elif isinstance(data, IterableDataset) or hasattr(data, "__next__"):
        reason = "can only be read in its own order, so records can't be drawn from it; load it into a list or tensors"
    elif isinstance(data, Mapping | set | frozenset | str | bytes) or hasattr(data, "iloc"):
        reason = "has no records numbered 0, 1, ...; pass a tuple of tensors or arrays, or a map-style data set"
    elif not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        reason = "has no length or can't be indexed; pass a tuple of tensors or arrays, or a map-style data set"
    else:
        return
    raise ValueError(f"{name} {reason}.")


def _as_tensor(rows: np.ndarray[Any, Any]) -> Tensor:
    try:
        return torch.from_numpy(rows if rows.flags.writeable else rows.copy())
    except TypeError:
        raise ValueError(
            f"PyTorch has no tensors of NumPy's {rows.dtype}; convert the array to numbers first."
        ) from None
