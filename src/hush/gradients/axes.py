"""Where the examples of a tensor are, as one number of its indices, and what views, joints and products do to that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Lost(Exception):
    """Where the examples are can't be told from the call."""


class Axis(NamedTuple):
    """The n examples are in this dimension (from the front), whose size is `outer * n * inner`: example i is at all
    indices `(j n + i) inner + k`. Almost always outer and inner are 1; folded with positions, they aren't."""

    dim: int
    outer: int = 1
    inner: int = 1

    def size(self, examples: int) -> int:
        return self.outer * examples * self.inner


PACKED = Axis(0, 0, 0)
"""Sequences packed by time, whose examples end one by one: what `pad_packed_sequence` undoes."""


def reshaped(axis: Axis, examples: int, old: Sequence[int], new: Sequence[int]) -> Axis:
    """The axis after the same numbers, in the same order, got another shape; lost where a dimension parts it."""
    inside = axis.inner * math.prod(old[axis.dim + 1 :])
    outside = inside * examples
    if axis == PACKED or math.prod(old) != math.prod(new) or inside == 0:
        raise Lost
    below = 1
    for dim in range(len(new) - 1, -1, -1):
        above = below * new[dim]
        if below <= inside and above >= outside:
            if inside % below or above % outside:
                raise Lost
            return Axis(dim, above // outside, inside // below)
        below = above
    raise Lost


def joined(axes: Sequence[Axis | None], along: int) -> Axis | None:
    """The axis of tensors that are put together along a dimension.

    Whole rows of examples after one another are examples inside positions.
    """
    known = {axis for axis in axes if axis is not None}
    if not known:
        return None
    if PACKED in known or len({axis.dim for axis in known}) > 1:
        raise Lost
    here = next(axis for axis in axes if axis is not None)
    if here.dim != along:
        return agreed(known)
    if len(axes) > 1 and (None in axes or any(axis.inner != 1 for axis in known)):
        raise Lost
    return here._replace(outer=sum(axis.outer for axis in axes if axis is not None))


def agreed(axes: Any) -> Axis | None:
    """The one axis that all who have one share."""
    known = {axis for axis in axes if axis is not None}
    if len(known) > 1:
        raise Lost
    return next(iter(known), None)


def cut(axis: Axis, examples: int, start: int, length: int) -> Axis:
    """The axis in a piece of its dimension: whole rows of examples only."""
    if start == 0 and length == axis.size(examples):
        return axis
    if axis.inner != 1 or start % examples or length % examples or length == 0:
        raise Lost
    return axis._replace(outer=length // examples)


def product(a: Axis | None, a_dims: int, b: Axis | None, b_dims: int, out_dims: int) -> Axis | None:
    """The axis of a matrix product: examples among its rows, its columns or the products done side by side."""
    found = []
    if a is not None:
        if a.dim == a_dims - 1:
            raise Lost  # summed over
        from_end = a.dim - a_dims + (1 if b_dims == 1 else 0)
        found.append(a._replace(dim=out_dims + from_end))
    if b is not None:
        if b.dim == max(b_dims - 2, 0):
            raise Lost
        from_end = b.dim - b_dims
        if a_dims == 1 and from_end < -2:
            from_end += 1
        found.append(b._replace(dim=out_dims + from_end))
    return agreed(found)


def contracted(equation: str, axes: Sequence[Axis | None], dims: Sequence[int]) -> Axis | None:
    """The axis of an `einsum`: all operands have their examples under one letter, and so has the result."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "->" not in equation or len(terms) != len(axes):
        raise Lost
    most = max(dim - len(term.replace("...", "")) for term, dim in zip(terms, dims, strict=True))
    dots = [chr(0x100 + k) for k in range(max(most, 0))]

    def letters(term: str, own: int) -> list[str]:
        before, ellipsis, after = term.partition("...")
        return [*before, *(dots[len(dots) - own :] if ellipsis and own else []), *after]

    spelt = [letters(term, dim - len(term.replace("...", ""))) for term, dim in zip(terms, dims, strict=True)]
    found = {(term[axis.dim], axis[1:]) for term, axis in zip(spelt, axes, strict=True) if axis is not None}
    result = letters(output, len(dots))
    if not found:
        return None
    (letter, folded) = next(iter(found))
    if len(found) > 1 or letter not in result or any(term.count(letter) > 1 for term in spelt):
        raise Lost
    return Axis(result.index(letter), *folded)


def in_order(index: Any, examples: int) -> bool:
    """Whether an index is `0, 1, ..., n - 1`, in one dimension of its own."""
    values = _tensor(index)
    if values.dtype == torch.bool or values.is_floating_point() or values.numel() != examples:
        return False
    there = torch.arange(examples, device=values.device, dtype=values.dtype)
    return examples in values.shape and torch.equal(values.flatten(), there)


class Indexed(NamedTuple):
    """What basic and advanced indexing does to the dimensions: where each of the old ones is, and its part."""

    dims: dict[int, tuple[int, slice]]  # of dimensions that are kept or cut: where they are in the result
    taken: dict[int, Any]  # of dimensions that are indexed by arrays or tensors: by which
    block: int  # where in the result the indices' own dimensions are
    width: int  # how many these are


def indexed(shape: Sequence[int], index: Any) -> Indexed:
    """Take an index apart, by PyTorch's rules."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(item, bool | np.bool_) for item in items):
        raise Lost
    spans = [_spans(item) for item in items]
    if any(item is Ellipsis for item in items):
        where = next(k for k, item in enumerate(items) if item is Ellipsis)
        items[where : where + 1] = [slice(None)] * (len(shape) - sum(spans))
    else:
        items += [slice(None)] * (len(shape) - sum(spans))
    kept: dict[int, tuple[int, slice]] = {}
    taken: dict[int, Any] = {}
    places: list[int] = []  # of the indices, among the items
    dim = out = first = 0
    for k, item in enumerate(items):
        if item is None:
            out += 1
            continue
        if isinstance(item, slice):
            kept[dim] = (out, item)
            out += 1
        else:
            taken[dim] = item
            if _is_array(item) and _dims(item) > 0:  # single numbers count as slices, unlike in NumPy
                first = out if not places else first
                places.append(k)
        dim += 1
    width = max((_dims(item) for item in taken.values()), default=0)
    apart = bool(places) and places[-1] - places[0] + 1 != len(places)
    block = 0 if apart else first
    if width:
        kept = {d: (o + width if o >= block else o, part) for d, (o, part) in kept.items()}
    return Indexed(kept, taken, block, width)


def _is_array(item: Any) -> bool:
    return isinstance(item, Tensor | np.ndarray | list | range)


def _spans(item: Any) -> int:
    """How many dimensions an item of an index uses up."""
    if item is None or item is Ellipsis:
        return 0
    if _is_array(item):
        if _tensor(item).dtype in (torch.bool, torch.uint8):
            raise Lost
    elif not isinstance(item, slice | int | np.integer):
        raise Lost
    return 1


def _dims(item: Any) -> int:
    return _tensor(item).dim() if _is_array(item) else 0


def _tensor(item: Any) -> Tensor:
    try:
        return torch.as_tensor(item)
    except (TypeError, ValueError, RuntimeError):
        raise Lost from None
