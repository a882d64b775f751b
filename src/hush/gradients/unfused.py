"""Fused operations in plain ones: recurrent layers and attention, whose kernels can't be differentiated forwards.

Inside `unfused()` they are computed step by step from operations that every kind of differentiation knows.  The
values are the same up to rounding, only slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Cell = Callable[[Tensor, Tensor, Tensor, Any], tuple[Tensor, Any]]
"""From what is fed and what the state gives (pre-activations), the state and the memory: the new state and memory."""


def _lstm(fed: Tensor, given: Tensor, h: Tensor, c: Any) -> tuple[Tensor, Any]:
    i, f, g, o = (fed + given).chunk(4, 1)
    memory = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru(fed: Tensor, given: Tensor, h: Tensor, c: Any) -> tuple[Tensor, Any]:
    (fed_r, fed_z, fed_n), (given_r, given_z, given_n) = fed.chunk(3, 1), given.chunk(3, 1)
    r, z = (fed_r + given_r).sigmoid(), (fed_z + given_z).sigmoid()
    new = (fed_n + r * given_n).tanh()
    return new + z * (h - new), None


_BLOCKS = 8
"""Parts of a sequence whose inputs are multiplied by the weights at once: all together, along several directions, would
be more than all else that is held."""
_CELLS: dict[Any, Cell] = {
    torch._VF.lstm: _lstm,
    torch._VF.gru: _gru,
    torch._VF.rnn_tanh: lambda fed, given, h, c: ((fed + given).tanh(), None),
    torch._VF.rnn_relu: lambda fed, given, h, c: ((fed + given).relu(), None),
}


class Unfused(TorchFunctionMode):
    """Takes recurrent layers apart; `random` tells that one of them, or attention, drew random numbers.

    A fused kernel may draw them in another order, so a computation that is to see the same ones must be inside too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.random = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CELLS and len(args) == 9 and not kwargs:
            packed = isinstance(args[1], Tensor) and isinstance(args[3], list | tuple)
            dropout, training = (args[6], args[7]) if packed else (args[5], args[6])
            self.random = self.random or (training and dropout > 0)
            return _packed(_CELLS[func], *args) if packed else _padded(_CELLS[func], *args)
        if func is F.scaled_dot_product_attention:
            dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            self.random = self.random or dropout > 0
        return func(*args, **kwargs)


@contextmanager
def unfused() -> Iterator[Unfused]:
    """Recurrent layers and attention in plain operations, and no shortcuts for inference."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), Unfused() as mode:
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _padded(
    cell: Cell,
    input: Tensor,
    state: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """`torch._VF.lstm` and its like on `[time, examples, features]`: a packed batch whose lengths are all the same."""
    x = input.transpose(0, 1) if batch_first else input
    time, n = x.shape[:2]
    sizes = [n] * time
    y, *last = _layers(
        cell, x.reshape(time * n, -1), sizes, state, weights, has_biases, layers, dropout, training, bidirectional
    )
    y = y.view(time, n, -1)
    return (y.transpose(0, 1) if batch_first else y, *last)


def _packed(
    cell: Cell,
    data: Tensor,
    batch_sizes: Tensor,
    state: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """The same on packed sequences: at time t the first `batch_sizes[t]` of them are still running."""
    sizes = batch_sizes.tolist()
    return _layers(cell, data, sizes, state, weights, has_biases, layers, dropout, training, bidirectional)


def _layers(
    cell: Cell,
    x: Tensor,
    sizes: list[int],
    state: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    h0, c0 = (state, None) if isinstance(state, Tensor) else state
    directions = 2 if bidirectional else 1
    per = len(weights) // (layers * directions)
    last_h, last_c = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            own = weights[k * per : (k + 1) * per]
            y, h, c = _layer(cell, x, sizes, h0[k], None if c0 is None else c0[k], own, has_biases, direction == 1)
            outputs.append(y)
            last_h.append(h)
            last_c.append(c)
        del x, y  # nobody else may hold them
        x = torch.cat(outputs, -1)
        if dropout > 0 and training and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    return (x, torch.stack(last_h)) if c0 is None else (x, torch.stack(last_h), torch.stack(last_c))


def _layer(
    cell: Cell,
    x: Tensor,
    sizes: list[int],
    h: Tensor,
    c: Tensor | None,
    weights: Sequence[Tensor],
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, Tensor, Any]:
    """One layer in one direction.  A sequence that isn't running (has ended, or not begun) keeps its state."""
    b_in, b_state = (weights[2], weights[3]) if has_biases else (None, None)
    w_out = weights[-1] if len(weights) % 2 == 1 else None
    most = -(-len(sizes) // _BLOCKS)
    blocks = [range(k, min(k + most, len(sizes))) for k in range(0, len(sizes), most)]
    inputs = x.split([sum(sizes[t] for t in block) for block in blocks])
    outputs: list[Tensor] = [h] * len(sizes)
    order = -1 if backwards else 1
    for block, part in list(zip(blocks, inputs, strict=True))[::order]:
        fed = F.linear(part, weights[0], b_in).split([sizes[t] for t in block])
        for t, here in list(zip(block, fed, strict=True))[::order]:
            size = sizes[t]
            before = h[:size]
            memory = None if c is None else c[:size]
            out, new = cell(here, F.linear(before, weights[1], b_state), before, memory)
            out = out if w_out is None else F.linear(out, w_out)
            outputs[t] = out
            h = out if size == len(h) else torch.cat([out, h[size:]])
            if c is not None and new is not None:
                c = new if size == len(c) else torch.cat([new, c[size:]])
        del fed, here  # before the next block's are there, too
    return torch.cat(outputs), h, c
