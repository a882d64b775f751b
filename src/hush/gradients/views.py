"""Calls that reshape, join, cut or index tensors: where the examples are afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hush.gradients.axes import (
    Axis,
    Lost,
    agreed,
    cut,
    indexed,
    joined,
    reshaped,
)

if TYPE_CHECKING:
    from hush.gradients.calls import Call


def reshaping(call: Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis = call.of(x)
    return None if axis is None else reshaped(axis, call.examples, x.shape, out.shape)


def permuting(call: Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis, dims = call.of(x), list(range(x.dim()))
    if axis is None:
        return None
    if call.name == "permute":
        given = call.argument(1, "dims")
        order = [d % x.dim() for d in (given if isinstance(given, list | tuple) else call.args[1:])]
    elif call.name in ("movedim", "moveaxis"):
        one, two = call.argument(1, "source"), call.argument(2, "destination")
        one, two = ([d % x.dim() for d in ([a] if isinstance(a, int) else a)] for a in (one, two))
        order = [d for d in dims if d not in one]
        for to, source in sorted(zip(two, one, strict=True)):
            order.insert(to, source)
    else:
        order = dims
        if call.name in ("t", "T"):
            order = dims[::-1]
        else:
            fixed = (-2, -1) if call.name in ("mT", "mH", "adjoint") else None
            a, b = fixed or (call.argument(1, "dim0"), call.argument(2, "dim1"))
            order[a], order[b] = order[b], order[a]
    return axis._replace(dim=order.index(axis.dim))


def expanding(call: Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis = call.of(x)
    if axis is None:
        return None
    axis, before = axis._replace(dim=out.dim() - x.dim() + axis.dim), axis
    return axis._replace(outer=axis.outer * (out.shape[axis.dim] // x.shape[before.dim]))


def stretching(call: Call, out: Tensor, _: int) -> Axis | None:
    """repeat_interleave"""
    x, times, dim = call.tensors[0], call.argument(1, "repeats"), call.dim(2)
    axis = call.of(x)
    if not isinstance(times, int) or (dim is None and x.dim() > 1):
        raise Lost
    along = (dim or 0) % x.dim()
    return axis if axis is None or axis.dim != along else axis._replace(inner=axis.inner * times)


def joining(call: Call, out: Tensor, _: int) -> Axis | None:
    pieces = call.argument(0, "tensors")
    axes = [call.of(piece) for piece in pieces]
    dim = call.dim(1, 0) % out.dim()
    if call.name == "hstack":
        dim = min(1, out.dim() - 1)
    if call.name != "stack":
        return joined(axes, dim)
    axis = agreed(axes)
    return None if axis is None else axis._replace(dim=axis.dim + (dim <= axis.dim))


def parting(call: Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis, along = call.of(x), call.dim(2, 0) % x.dim()
    if axis is None or axis.dim != along:
        return axis
    return cut(axis, call.examples, 0, out.shape[along])  # pieces of whole rows begin where one does


def narrowing(call: Call, out: Tensor, _: int) -> Axis | None:
    axis, along = call.of(call.tensors[0]), call.dim(1) % out.dim()
    if axis is None or axis.dim != along:
        return axis
    return cut(axis, call.examples, int(call.argument(2, "start")), out.shape[along])


def choosing(call: Call, out: Tensor, _: int) -> Axis | None:
    """One index along a dimension, which is gone then."""
    x = call.tensors[0]
    axis, along = call.of(x), call.dim(1, 0) % x.dim()
    if axis is None or axis.dim == along:
        if axis is not None:
            raise Lost
        return None
    return axis._replace(dim=axis.dim - (along < axis.dim))


def turning(call: Call, out: Tensor, _: int) -> Axis | None:
    """flip and roll"""
    x = call.tensors[0]
    axis, dims = call.of(x), call.argument(1 if call.name == "flip" else 2, "dims", None)
    if call.name == "flip" and isinstance(dims, int):
        dims = call.args[1:]
    dims = [dims] if isinstance(dims, int) else dims
    if axis is not None and (not dims or axis.dim in {d % x.dim() for d in dims}):
        raise Lost
    return axis


def ordering(call: Call, out: Tensor, _: int) -> Axis | None:
    """sort, argsort, topk"""
    x = call.tensors[0]
    axis = call.of(x)
    numbers = [value for value in call.args[1:] if isinstance(value, int) and not isinstance(value, bool)]
    if call.name == "topk" and "k" not in call.kwargs:
        numbers = numbers[1:]
    dim = call.kwargs.get("dim", numbers[0] if numbers else -1)
    if axis is not None and dim % x.dim() == axis.dim:
        raise Lost
    return axis


def gathering(call: Call, out: Tensor, _: int) -> Axis | None:
    x, index = call.tensors[0], call.tensors[1]
    axis, own = call.of(x), call.of(index)
    dim = call.dim(2 if call.name == "take_along_dim" else 1)
    if axis is None:
        return own
    if dim is None or x.dim() != index.dim() or dim % x.dim() == axis.dim:
        raise Lost
    return agreed((axis, own))


def scattering(call: Call, out: Tensor, _: int) -> Axis | None:
    """Entries of one example are put at entries of the same one."""
    axis = agreed(call.axes)
    if axis is not None and (call.dim(1) % out.dim() == axis.dim or any(t.dim() != out.dim() for t in call.tensors)):
        raise Lost
    return axis


def selecting(call: Call, out: Tensor, _: int) -> Axis | None:
    x, along, index = call.tensors[0], call.dim(1) % out.dim(), call.argument(2, "index")
    axis, own = call.of(x), call.of(index)
    if axis is None:
        return None if own is None else own._replace(dim=along)
    if axis.dim == along:
        if axis[1:] != (1, 1) or not call.whereabouts.stays(index):
            raise Lost
        return axis
    if own is not None:
        raise Lost
    return axis


def indexing(call: Call, out: Tensor, _: int) -> Axis | None:
    return at_index(call, call.args[0], call.args[1], call.of(call.args[0]))


def writing(call: Call, out: Tensor, _: int) -> Axis | None:
    """`x[index] = value`: what is written lies at the examples' own places."""
    x, index, value = call.args
    axis = call.of(x)
    wanted = call.of(value) if isinstance(value, Tensor) else None
    if isinstance(index, Tensor) and index.dtype == torch.bool and wanted is None:
        return agreed((axis, call.of(index)))
    view = indexed(x.shape, index)
    dims = len(view.dims) + view.width + sum(item is None for item in (index if isinstance(index, tuple) else (index,)))
    there = None if wanted is None else wanted._replace(dim=dims - value.dim() + wanted.dim)
    if axis is not None:
        agreed((at_index(call, x, index, axis), there))
        return axis
    rows = [Axis(d) for d, row in view.taken.items() if not isinstance(row, int) and call.whereabouts.stays(row)]
    if there is not None:
        rows += [
            there._replace(dim=d) for d, (at, part) in view.dims.items() if at == there.dim and part == slice(None)
        ]
    elif not any(isinstance(item, Tensor) and call.of(item) is not None for item in view.taken.values()):
        return None
    if len(rows) != 1:
        raise Lost
    agreed((at_index(call, x, index, rows[0]), there))
    return rows[0]


def at_index(call: Call, x: Tensor, index: Any, axis: Axis | None) -> Axis | None:
    view, n = indexed(x.shape, index), call.examples
    own = {  # where the indices have their examples, counted from the end of their own dimensions
        here._replace(dim=here.dim - item.dim())
        for item in view.taken.values()
        if isinstance(item, Tensor) and (here := call.of(item)) is not None
    }
    if axis is None:  # a table that holds none
        by = agreed(own)
        return None if by is None else by._replace(dim=view.block + view.width + by.dim)
    if axis.dim in view.dims:
        place, part = view.dims[axis.dim]
        if own or part.step not in (None, 1):
            raise Lost
        if part == slice(None):
            return axis._replace(dim=place)
        start, stop, _ = slice(part.start, part.stop).indices(x.shape[axis.dim])
        return cut(axis, n, start, max(stop - start, 0))._replace(dim=place)
    row = view.taken[axis.dim]
    if isinstance(row, int) or axis[1:] != (1, 1) or view.width == 0 or not call.whereabouts.stays(row):
        raise Lost
    shape = torch.as_tensor(row).shape
    along = Axis(list(shape).index(n) - len(shape))
    agreed((along, *own))
    return along._replace(dim=view.block + view.width + along.dim)
