"""Matrix products: `F.linear`, `x @ w`, `torch.addmm`, with any leading dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.gradients import aligning
from hush.gradients.factors import Outer
from hush.gradients.rules.common import cast, hold, positions, summed
from hush.gradients.tape import Tape


def linear(tape: Tape, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`y = x W^T + b`: `dW_i = sum_t dy_t x_t^T`, `db_i = sum_t dy_t`."""
    if not tape.is_data(input) or tape.is_data(weight) or weight.dim() != 2 or input.dim() < 2:
        return NotImplemented
    input = cast(input)
    w, b = tape.stand_in(weight), tape.stand_in(bias)
    output = _owned(aligning.linear(input, w, b))
    record_product(tape, "linear", input, weight, w, output, transposed=False)
    if bias is not None:
        shape = tuple(bias.shape)
        tape.record("linear bias", bias, b, output, lambda layout, grad: summed(layout, grad, shape))
    return output


def matmul(tape: Tape, input: Tensor, other: Tensor) -> Any:
    """`y = x W`: `dW_i = sum_t x_t dy_t^T`."""
    if not isinstance(input, Tensor) or not tape.is_data(input) or tape.is_data(other):
        return NotImplemented
    if other.dim() != 2 or input.dim() < 2:
        return NotImplemented
    input = cast(input)
    w = tape.stand_in(other)
    output = _owned(torch.matmul(input, w))
    record_product(tape, "matmul", input, other, w, output, transposed=True)
    return output


def addmm(tape: Tape, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """`y = b + x W`, as some transformers write their linear layers."""
    if beta != 1 or alpha != 1 or not tape.is_data(mat1) or tape.is_data(mat2) or tape.is_data(input):
        return NotImplemented
    mat1 = cast(mat1)
    b, w = tape.stand_in(input), tape.stand_in(mat2)
    output = torch.addmm(b, mat1, w)
    record_product(tape, "addmm", mat1, mat2, w, output, transposed=True)
    shape = tuple(input.shape)
    tape.record("addmm bias", input, b, output, lambda layout, grad: summed(layout, grad, shape))
    return output


def _owned(output: Tensor) -> Tensor:
    """The same tensor, not seen as a view: products of some strides are views of a matrix, and autograd would lead the
    gradient of what is later written into such a view past the output that was recorded."""
    if not output._is_view():
        return output
    owned: Tensor = torch.ops.aten._unsafe_view(output, list(output.shape))
    return owned


def record_product(
    tape: Tape, name: str, input: Tensor, weight: Tensor, stand_in: Tensor, output: Tensor, *, transposed: bool
) -> None:
    """Record a weight whose per-example gradient is the outer product of input and output gradient."""
    held, shape = hold(input), tuple(weight.shape)
    tape.record(
        name,
        weight,
        stand_in,
        output,
        lambda layout, grad: Outer(positions(layout, held()), positions(layout, grad), shape, transposed),
    )


RULES: dict[Any, Callable[..., Any]] = {
    F.linear: linear,
    torch.matmul: matmul,
    torch.mm: matmul,
    Tensor.matmul: matmul,
    Tensor.mm: matmul,
    Tensor.__matmul__: matmul,
    torch.addmm: addmm,
    Tensor.addmm: addmm,
}
