"""Convolutions and transposed convolutions in one, two and three dimensions, with stride, padding, dilation and groups.

A convolution is a linear layer applied to windows of its input, so its per-example gradient is a sum of outer
products of windows and output gradients. A transposed convolution is the adjoint of a convolution: input and output
gradient swap roles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.gradients.factors import Outer, worth_forming
from hush.gradients.layout import Layout
from hush.gradients.rules.common import cast, hold, summed
from hush.gradients.tape import Tape
from hush.precision import tf32_in_convolutions

Sizes = int | Sequence[int]


def _convolution(func: Callable[..., Tensor], dims: int) -> Callable[..., Any]:
    def convolution(
        tape: Tape,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Any:
        if not tape.is_data(input) or tape.is_data(weight) or input.dim() != dims + 2:
            return NotImplemented
        input = cast(input)
        w, b = tape.stand_in(weight), tape.stand_in(bias)
        output = func(input, w, b, stride, padding, dilation, groups)
        shape, strides, steps = tuple(weight.shape), _sizes(stride, dims), _sizes(dilation, dims)
        before, after = _padding(padding, shape[2:], steps, dims)
        held = hold(input)

        def factor(layout: Layout, grad: Tensor) -> Outer:
            b = _front(layout, _by_group(grad, groups))
            apart = worth_forming(b.shape[2], math.prod(shape[1:]), b.shape[3], b)

            def unfold(x: Tensor) -> Tensor:
                return _front(layout, windows(x, shape[2:], strides, steps, before, after, groups, apart=apart))

            return Outer(held(), b, shape, unfold=unfold, coarse=tf32_in_convolutions())

        tape.record(f"conv{dims}d", weight, w, output, factor)
        _record_bias(tape, bias, b, output, dims)
        return output

    return convolution


def _transposed(func: Callable[..., Tensor], dims: int) -> Callable[..., Any]:
    def convolution(
        tape: Tape,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Any:
        if not tape.is_data(input) or tape.is_data(weight) or input.dim() != dims + 2:
            return NotImplemented
        input = cast(input)
        w, b = tape.stand_in(weight), tape.stand_in(bias)
        output = func(input, w, b, stride, padding, output_padding, groups, dilation)
        shape, strides, steps = tuple(weight.shape), _sizes(stride, dims), _sizes(dilation, dims)
        pads = _sizes(padding, dims)
        held = hold(input)

        def factor(layout: Layout, grad: Tensor) -> Outer:
            x = held()
            places = tuple(x.shape[2:])

            def unfold(dy: Tensor) -> Tensor:
                return _front(layout, windows(dy, shape[2:], strides, steps, pads, pads, groups, places))

            b = _front(layout, _by_group(x, groups))
            return Outer(grad, b, shape, unfold=unfold, coarse=tf32_in_convolutions())

        tape.record(f"conv_transpose{dims}d", weight, w, output, factor)
        _record_bias(tape, bias, b, output, dims)
        return output

    return convolution


def windows(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    groups: int,
    most: tuple[int, ...] | None = None,
    apart: bool = False,
) -> Tensor:
    """`[N, groups, positions, channels / groups * kernel]`: what the kernel sees at every position.

    At most `most` positions a dimension. Taken as strided views and copied once, on a CPU with the positions in a row
    in memory, which is ten times faster there; `F.unfold` costs ten times the step on a GPU. `apart`: each example is
    multiplied by itself.
    """
    dims = len(kernel)
    pads = [size for k in reversed(range(dims)) for size in (before[k], after[k])]
    if any(pads):
        x = F.pad(x, pads)
    for k in range(dims):
        x = x.unfold(2 + k, dilation[k] * (kernel[k] - 1) + 1, stride[k])
        if most is not None:
            x = x.narrow(2 + k, 0, most[k])
    every: list[Any] = [slice(None, None, step) for step in dilation]
    x = x[(..., *every)]
    x = x.unflatten(1, (groups, -1))  # [N, groups, channels, *positions, *kernel]
    spatial, inner = range(3, 3 + dims), range(3 + dims, 3 + 2 * dims)
    if x.is_cuda:
        return x.permute(0, 1, *spatial, 2, *inner).flatten(2 + dims).flatten(2, 1 + dims)
    if groups > 1 or apart:
        return x.permute(0, 1, 2, *inner, *spatial).flatten(2, 2 + dims).flatten(3).transpose(2, 3)
    # all examples' positions in a row, too: a weighted sum over both is one product of this as it lies
    return x.permute(1, 2, *inner, 0, *spatial).flatten(1, 1 + dims).flatten(3).permute(2, 0, 3, 1)


def _by_group(x: Tensor, groups: int) -> Tensor:
    result: Tensor = x.unflatten(1, (groups, -1)).flatten(3).transpose(2, 3)
    return result


def _front(layout: Layout, x: Tensor) -> Tensor:
    """Examples first; where they were folded, the positions beside them join the others."""
    x = layout.first(x)
    return x.transpose(1, 2).flatten(2, 3) if layout.folded else x


def _record_bias(tape: Tape, bias: Tensor | None, stand_in: Any, output: Tensor, dims: int) -> None:
    if bias is not None:
        spread = (bias.shape[0], *[1] * dims)
        shape = tuple(bias.shape)

        def factor(layout: Layout, grad: Tensor) -> Any:
            found = summed(layout, grad, spread)
            return type(found)(found.grads.reshape(-1, *shape))

        tape.record(f"conv{dims}d bias", bias, stand_in, output, factor)


def _sizes(value: Sizes, dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)


def _padding(
    padding: Sizes | str, kernel: Sequence[int], dilation: Sequence[int], dims: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if padding == "same":
        total = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        return tuple(size // 2 for size in total), tuple(size - size // 2 for size in total)
    pads = (0,) * dims if isinstance(padding, str) else _sizes(padding, dims)
    return pads, pads


RULES = {
    torch.conv1d: _convolution(torch.conv1d, 1),
    torch.conv2d: _convolution(torch.conv2d, 2),
    torch.conv3d: _convolution(torch.conv3d, 3),
    torch.conv_transpose1d: _transposed(torch.conv_transpose1d, 1),
    torch.conv_transpose2d: _transposed(torch.conv_transpose2d, 2),
    torch.conv_transpose3d: _transposed(torch.conv_transpose3d, 3),
}
