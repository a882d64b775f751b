"""LSTM, GRU and plain RNN: several layers, both directions, projections.

The gradient of a recurrent weight is a sum of outer products over time of the state that went in and the gradient at
the gates' pre-activations. One backward sweep over time yields those; nothing is formed per example. The fused
kernels don't give them away, so a layer is computed here: one matrix product for all inputs, and a sweep over time
for the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.gradients.factors import Formed, Outer
from hush.gradients.layout import Layout
from hush.gradients.rules.cells import GRU, LSTM, Cell, Plain, sweep
from hush.gradients.rules.common import cast, hold, positions, summed
from hush.gradients.rules.linear import record_product
from hush.gradients.tape import Tape


def _gated(cell: Cell) -> Callable[..., Any]:
    def rule(tape: Tape, *args: Any, **kwargs: Any) -> Any:
        # torch._VF.lstm(input, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first);
        # with packed sequences batch_sizes come second, the state third, and the examples are interleaved and sorted by
        # length: the slower path.
        if len(args) != 9 or kwargs or not isinstance(args[2], list | tuple) or not isinstance(args[8], bool):
            return NotImplemented
        if cell.has_memory and isinstance(args[1], Tensor):
            return NotImplemented
        input, state, weights, has_biases, layers, dropout, training, bidirectional, batch_first = args
        h0, c0 = state if cell.has_memory else (state, None)
        if not tape.is_data(input) or input.dim() != 3 or any(tape.is_source(s) for s in (h0, c0) if s is not None):
            return NotImplemented
        directions = 2 if bidirectional else 1
        per = len(weights) // (layers * directions)
        x, last_h, last_c = cast(input), [], []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                first = None if c0 is None else c0[k]
                names = weights[k * per : (k + 1) * per]
                y, h, c = _layer(tape, cell, x, h0[k], first, names, has_biases, direction == 1, batch_first)
                outputs.append(y)
                last_h.append(h)
                last_c.append(c)
            x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
            if dropout > 0 and training and layer < layers - 1:
                x = F.dropout(x, dropout, True)
        if cell.has_memory:
            return x, torch.stack(last_h), torch.stack(last_c)
        return x, torch.stack(last_h)

    return rule


def _layer(
    tape: Tape,
    cell: Cell,
    x: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    weights: Sequence[Tensor],
    has_biases: bool,
    backwards: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction; time runs first inside, reversed where it runs backwards."""
    w_in, w_state = weights[0], weights[1]
    b_in, b_state = (weights[2], weights[3]) if has_biases else (None, None)
    w_out = weights[-1] if len(weights) % 2 == 1 else None

    w, b = tape.stand_in(w_in), tape.stand_in(b_in)
    fed = F.linear(x, w, b)
    record_product(tape, "recurrent input", x, w_in, w, fed, transposed=False)
    if b_in is not None:
        shape = tuple(b_in.shape)
        tape.record("recurrent bias", b_in, b, fed, lambda layout, grad: summed(layout, grad, shape))

    timed = fed.transpose(0, 1) if batch_first else fed
    timed = (timed.flip(0) if backwards else timed).contiguous()
    states, outputs, memory, at_state, at_output = sweep(cell, timed, h0, c0, w_state, b_state, w_out)

    start = h0.detach().to(states.dtype).unsqueeze(0)
    record_time(tape, "recurrent state", w_state, at_state, torch.cat([start, states.detach()[:-1]]))
    if b_state is not None:
        record_bias(tape, b_state, at_state)
    if w_out is not None:
        record_time(tape, "recurrent projection", w_out, at_output, outputs.detach())
    y = states.flip(0) if backwards else states
    return (y.transpose(0, 1) if batch_first else y), states[-1], memory


def record_time(tape: Tape, name: str, weight: Tensor, edge_of: Tensor, input: Tensor) -> None:
    """A weight that met `input` at every time step, its gradient seen through the zeros `edge_of`."""
    held, shape = hold(input), tuple(weight.shape)

    def factor(layout: Layout, grad: Tensor) -> Outer:
        return Outer(positions(layout, held()), positions(layout, grad), shape)

    _record_unseen(tape, name, weight, edge_of, factor)


def record_bias(tape: Tape, bias: Tensor, edge_of: Tensor) -> None:
    shape = tuple(bias.shape)

    def factor(layout: Layout, grad: Tensor) -> Formed:
        return summed(layout, grad, shape)

    _record_unseen(tape, "recurrent state bias", bias, edge_of, factor)


def _record_unseen(tape: Tape, name: str, source: Tensor, edge_of: Tensor, factor: Any) -> None:
    if tape.is_source(source):
        tape.record(name, source, None, edge_of, factor)


RULES: dict[Any, Callable[..., Any]] = {
    torch._VF.lstm: _gated(LSTM()),
    torch._VF.gru: _gated(GRU()),
    torch._VF.rnn_tanh: _gated(Plain(torch.tanh)),
    torch._VF.rnn_relu: _gated(Plain(torch.relu)),
}
