"""Per-example directional derivatives `<g_i, v_j>`: example i's gradient along direction j, with no gradient formed.

Three ways give the same numbers:

- `vectorised`: forward mode, several directions at once;
- `forward`: forward mode, one direction at a time, on any code whose operations know it;
- `transposed`: two backward passes.  The gradient of `sum_i a_i loss_i` is linear in a, with transpose
  `v -> (<g_i, v>)_i`, so differentiating it by a gives the derivatives along v (the double-vjp trick).

Each may take the batch in parts, to need less memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hush.gradients.engines import Directions, Losses, count, one_loss_each, pick
from hush.gradients.filling import AS_IT_IS, LEAST, VECTOR, Filling, up_to
from hush.gradients.plain import Substitute
from hush.gradients.rules.common import without_speed_warnings


def forward(
    parameters: Sequence[Tensor],
    losses: Losses,
    pieces: Sequence[Sequence[Any]],
    directions: Directions,
    wanted: range,
) -> Tensor:
    """Derivatives `[n, len(wanted)]` of the examples of a batch in pieces, direction by direction.

    The parameters themselves carry the tangents, so whatever code uses them is differentiated.  Leaving the level takes
    the tangents away again.
    """
    columns = []
    for j in wanted:
        with torch.no_grad(), forward_ad.dual_level():
            fill([_tangent(parameter) for parameter in parameters], directions(j))
            columns.append(torch.cat([_along_tangents(losses, part) for part in pieces]))
    return torch.stack(columns, 1)


def _along_tangents(losses: Losses, batch: Sequence[Any]) -> Tensor:
    value, tangent = forward_ad.unpack_dual(one_loss_each(losses(*batch), count(batch)))
    return torch.zeros_like(value) if tangent is None else tangent.clone()


def parts(
    batch: Sequence[Any], rows: int, filling: Filling = AS_IT_IS, spare: Sequence[Any] | None = None
) -> list[tuple[Any, ...]]:
    """The batch in parts of up to `rows` examples, or as a whole where it isn't larger; the last of them is filled up.

    Whole vectors of them, where there are as many, and no fewer than batches are filled up to at least: a record is
    then rounded the same in any part (see `filling`).  What counts is the size that the batch is filled up to, so that
    one record more doesn't change how the others are cut.
    """
    n, rows = count(batch), max(rows, filling.least)
    size, unit = filling.size(n), next((unit for unit in (VECTOR, LEAST) if rows >= unit), 1)
    if rows >= size:
        return [up_to(size, batch, spare)]
    each = unit * -(-size // (unit * -(-size // (rows - rows % unit))))
    found = [pick(batch, slice(k, min(k + each, n))) for k in range(0, n, each)]
    return [*found[:-1], up_to(min(filling.size(count(found[-1])), each), found[-1], spare)]


def vectorised(
    parameters: Sequence[Tensor],
    losses: Losses,
    pieces: Sequence[Sequence[Any]],
    directions: Directions,
    wanted: range,
    at_once: int,
) -> Tensor:
    """The same, `at_once` directions in one pass over the batch."""
    current = tuple(p.detach() for p in parameters)

    def along(part: Sequence[Any]) -> Callable[..., Tensor]:
        def loss(*given: Tensor) -> Tensor:
            with Substitute({id(p): x for p, x in zip(parameters, given, strict=True)}):
                return one_loss_each(losses(*part), count(part))

        def derivative(*direction: Tensor) -> Tensor:
            found: Tensor = torch.func.jvp(loss, current, direction)[1]
            return found

        return derivative

    found = []
    with torch.no_grad(), without_speed_warnings():
        stacked = [p.new_empty(min(at_once, len(wanted)), *p.shape) for p in parameters]
        for start in range(wanted.start, wanted.stop, at_once):
            numbers = range(start, min(start + at_once, wanted.stop))
            for row, j in enumerate(numbers):
                fill([column[row] for column in stacked], directions(j))
            now = [column[: len(numbers)] for column in stacked]
            each = [torch.func.vmap(along(part), randomness="same")(*now) for part in pieces]
            found.append(torch.cat(each, 1))
    return torch.cat(found).T


def fill(tensors: Sequence[Tensor], pieces: Iterable[Tensor]) -> None:
    """Write a direction into tensors shaped like the parameters."""
    rest = iter(pieces)
    for tensor in tensors:
        whole = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        flat, done = whole.view(-1), 0
        while done < flat.numel():
            piece = next(rest)
            flat[done : done + len(piece)] = piece
            done += len(piece)
        if whole is not tensor:
            tensor.copy_(whole)


def dot(tensors: Sequence[Tensor], pieces: Iterable[Tensor]) -> Tensor:
    """The inner product of tensors shaped like the parameters with a direction."""
    rest, total = iter(pieces), torch.zeros((), dtype=torch.float64, device=tensors[0].device)
    for tensor in tensors:
        flat, done = tensor.reshape(-1), 0
        while done < flat.numel():
            piece = next(rest)
            total += torch.dot(flat[done : done + len(piece)], piece.to(flat.dtype))
            done += len(piece)
    return total


def _tangent(parameter: Tensor) -> Tensor:
    """The parameter's tangent, zero at first: one of its entries is written with its own value and tangent zero."""
    if parameter.numel() == 0:
        return torch.empty_like(parameter)
    corner = parameter[tuple(slice(0, 1) for _ in parameter.shape)]
    corner.copy_(forward_ad.make_dual(corner.detach().clone(), torch.zeros_like(corner)))
    tangent: Tensor = forward_ad.unpack_dual(parameter).tangent
    return tangent


def transposed(parameters: Sequence[Tensor], values: Tensor, directions: Directions, wanted: range) -> Tensor:
    """The same from the losses' graph, which must be twice differentiable and stays usable."""
    if not values.requires_grad:
        return values.new_zeros(len(values), len(wanted))
    weights = torch.ones_like(values).requires_grad_()
    found = torch.autograd.grad(values, list(parameters), weights, create_graph=True, allow_unused=True)
    used = [(k, grad) for k, grad in enumerate(found) if grad is not None and grad.requires_grad]
    columns = []
    direction = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
    for j in wanted:
        fill(direction, directions(j))
        along = [direction[k] for k, _ in used]
        column = torch.autograd.grad([grad for _, grad in used], weights, along, retain_graph=True)[0]
        columns.append(column.clone())  # it might be the direction itself
    return torch.stack(columns, 1)
