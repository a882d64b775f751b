"""Sums and products of data and a parameter, and a parameter that is copied to every example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hush.gradients.layout import Layout
from hush.gradients.rules.common import Unfit, hold, summed
from hush.gradients.tape import Tape


def _plus(func: Callable[..., Tensor], signs: tuple[int, int]) -> Callable[..., Any]:
    def rule(tape: Tape, input: Any, other: Any, *, alpha: float = 1) -> Any:
        if alpha != 1 or (func is Tensor.add_ and tape.is_source(input)):
            return NotImplemented
        x, y = tape.stand_in(input), tape.stand_in(other)
        output = func(x, y)
        for source, stand_in, sign in ((input, x, signs[0]), (other, y, signs[1])):
            if source is not stand_in:
                _record_sum(tape, source, stand_in, sign, output)
        return output

    return rule


def _record_sum(tape: Tape, source: Tensor, stand_in: Tensor, sign: int, output: Tensor) -> None:
    shape = tuple(source.shape)
    tape.record(
        "sum", source, stand_in, output, lambda layout, grad: summed(layout, grad if sign > 0 else -grad, shape)
    )


def _times(tape: Tape, input: Any, other: Any) -> Any:
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        return NotImplemented
    source, data = (other, input) if tape.is_source(other) else (input, other)
    if not tape.is_data(data):
        return NotImplemented
    stand_in = tape.stand_in(source)
    output = torch.mul(data, stand_in)
    held, shape = hold(data), tuple(source.shape)

    def factor(layout: Layout, grad: Tensor) -> Any:
        x = held()
        if x.shape != grad.shape:
            raise Unfit("its product has another shape than the data")
        return summed(layout, grad * x, shape)

    tape.record("product", source, stand_in, output, factor)
    return output


def _copy(func: Callable[..., Tensor]) -> Callable[..., Any]:
    def rule(tape: Tape, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        stand_in = tape.stand_in(input)
        output = func(stand_in, *args, **kwargs)
        shape = tuple(input.shape)
        lead = output.dim() - len(shape)
        if output.dim() == 0 or output.shape[0] != tape.examples or (lead == 0 and shape[0] != 1):
            return NotImplemented
        if func is Tensor.repeat and output.numel() != tape.examples * input.numel():
            return NotImplemented
        tape.record("copy", input, stand_in, output, lambda layout, grad: summed(layout, grad, shape))
        return output

    return rule


RULES: dict[Any, Callable[..., Any]] = {
    **{func: _plus(torch.add, (1, 1)) for func in (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)},
    **{func: _plus(Tensor.add_, (1, 1)) for func in (Tensor.add_, Tensor.__iadd__)},
    **{func: _plus(torch.sub, (1, -1)) for func in (torch.sub, Tensor.sub, Tensor.__sub__)},
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _times),
    **{func: _copy(func) for func in (Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.broadcast_to)},
    torch.broadcast_to: _copy(torch.broadcast_to),
}
