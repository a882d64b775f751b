"""Recurrent cells, forwards and backwards in time, keeping the gates' gradients.

A cell sees two pre-activations at each step: what was fed, `x W_in^T + b_in`, and what the state gives,
`h W_state^T + b_state`. `sweep` runs it over time; autograd sees the sweep as one operation whose gradients at both
pre-activations are at hand. Whatever doesn't wait for the state is computed for all time steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Weights(NamedTuple):
    """Of the state: `[gates, size]`, its bias, and the projection of the output (LSTM only)."""

    state: Tensor
    bias: Tensor | None
    out: Tensor | None


class Grads(NamedTuple):
    """At what was fed, at the state's pre-activations, at the projected outputs, and at the first state and memory."""

    fed: Tensor
    state: Tensor
    output: Tensor | None
    h0: Tensor
    c0: Tensor | None


class Cell(Protocol):
    """A whole sweep and its derivative. `fed` is `[T, n, gates]`, states are `[T, n, size]`."""

    @property
    def has_memory(self) -> bool: ...

    def step(self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One time step in plain operations: the output and the new memory from both pre-activations `[n, gates]`."""

    def forward(
        self, fed: Tensor, h0: Tensor, c0: Tensor | None, w: Weights
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        """States, unprojected outputs, last memory, and what `backward` needs."""

    def backward(self, kept: tuple[Tensor, ...], d_states: Tensor, d_memory: Tensor | None, w: Weights) -> Grads:
        """The sweep back through time."""


@dataclass(frozen=True)
class LSTM:
    """`i, f, g, o` gates; `c' = f c + i g`, `h' = o tanh(c')`, projected where there is a projection."""

    has_memory = True

    def step(self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert c is not None
        i, f, g, o = (fed + state).chunk(4, 1)
        new = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * new.tanh(), new

    def forward(
        self, fed: Tensor, h0: Tensor, c0: Tensor | None, w: Weights
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        assert c0 is not None
        # tanh(x) = 2 sigmoid(2x) - 1, so with g's pre-activation doubled one sigmoid serves all four gates.
        doubled = fed.new_ones(4, 1)
        doubled[2] = 2
        scale = doubled.expand(4, c0.shape[-1]).reshape(-1)
        fed = (fed if w.bias is None else fed + w.bias) * scale
        turned = (w.state * scale[:, None]).T.contiguous()
        h, c = h0, c0
        states, outputs, memories, gates = [], [], [c0], []
        for fed_t in fed.unbind(0):
            gate = torch.addmm(fed_t, h, turned).sigmoid_()
            i, f, g, o = gate.chunk(4, 1)
            g.mul_(2).sub_(1)
            c = torch.addcmul(f * c, i, g)
            out = o * c.tanh()
            h = out if w.out is None else F.linear(out, w.out)
            states.append(h)
            outputs.append(out)
            memories.append(c)
            gates.append(gate)
        stacked = torch.stack(states)
        unprojected = stacked.detach() if w.out is None else torch.stack(outputs)
        return stacked, unprojected, c, (torch.stack(gates), torch.stack(memories))

    def backward(self, kept: tuple[Tensor, ...], d_states: Tensor, d_memory: Tensor | None, w: Weights) -> Grads:
        assert d_memory is not None
        gates, memories = kept
        i, f, g, o = gates.chunk(4, -1)
        squashed = memories[1:].tanh()
        through = o * (1 - squashed * squashed)  # dc = dh * through + ...
        by_memory = torch.stack([g * (i - i * i), memories[:-1] * (f - f * f), i * (1 - g * g)], 2)
        by_output = squashed * (o - o * o)
        n, size = d_memory.shape
        d_gates = torch.empty_like(gates)
        by_gate = d_gates.view(len(gates), n, 4, size)
        d_output = None if w.out is None else torch.empty_like(d_states)
        dc, dh_next = d_memory, torch.zeros_like(d_states[0])
        for t in range(len(gates) - 1, -1, -1):
            dh = d_states[t] + dh_next
            if w.out is not None and d_output is not None:
                d_output[t] = dh
                dh = dh @ w.out
            dc = torch.addcmul(dc, dh, through[t])
            torch.mul(dc.unsqueeze(1), by_memory[t], out=by_gate[t, :, :3])
            torch.mul(dh, by_output[t], out=by_gate[t, :, 3])
            dc = dc * f[t]
            dh_next = d_gates[t] @ w.state
        return Grads(d_gates, d_gates, d_output, dh_next, dc)


@dataclass(frozen=True)
class GRU:
    """`r, z, n` gates; `n = tanh(fed_n + r state_n)`, `h' = (1 - z) n + z h`."""

    has_memory = False

    def step(self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        (fed_r, fed_z, fed_n), (state_r, state_z, state_n) = fed.chunk(3, 1), state.chunk(3, 1)
        new = (fed_n + (fed_r + state_r).sigmoid() * state_n).tanh()
        return new + (fed_z + state_z).sigmoid() * (h - new), None

    def forward(
        self, fed: Tensor, h0: Tensor, c0: Tensor | None, w: Weights
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        size = h0.shape[-1]
        bias = fed.new_zeros(3 * size) if w.bias is None else w.bias
        turned = w.state.T.contiguous()
        h = h0
        states, both, news, parts = [h0], [], [], []
        for fed_t in fed.unbind(0):
            state = torch.addmm(bias, h, turned)
            gate = (fed_t[:, : 2 * size] + state[:, : 2 * size]).sigmoid_()
            part = state[:, 2 * size :]
            new = torch.addcmul(fed_t[:, 2 * size :], gate[:, :size], part).tanh_()
            h = torch.lerp(new, h, gate[:, size:])
            states.append(h)
            both.append(gate)
            news.append(new)
            parts.append(part)
        stacked = torch.stack(states)
        kept = (torch.stack(both), torch.stack(news), torch.stack(parts), stacked)
        return stacked[1:].clone(), stacked[1:].detach(), None, kept

    def backward(self, kept: tuple[Tensor, ...], d_states: Tensor, d_memory: Tensor | None, w: Weights) -> Grads:
        both, new, part, states = kept
        r, z = both.chunk(2, -1)
        by_n = (1 - z) * (1 - new * new)
        by_r = by_n * part * (r - r * r)
        by_z = (states[:-1] - new) * (z - z * z)
        by_state = torch.stack([by_r, by_z, by_n * r], 2)
        time, n, size = d_states.shape
        d_state = d_states.new_empty(time, n, 3, size)
        totals = torch.empty_like(d_states, memory_format=torch.contiguous_format)
        dh_next = torch.zeros_like(d_states[0])
        for t in range(time - 1, -1, -1):
            dh = torch.add(d_states[t], dh_next, out=totals[t])
            torch.mul(dh.unsqueeze(1), by_state[t], out=d_state[t])
            dh_next = torch.addmm(dh * z[t], d_state[t].view(n, -1), w.state)
        d_fed = torch.cat([d_state[:, :, :2].flatten(2), totals * by_n], -1)
        return Grads(d_fed, d_state.flatten(2), None, dh_next, None)


@dataclass(frozen=True)
class Plain:
    """`h' = activation(fed + state)`, with tanh or relu."""

    activation: Callable[[Tensor], Tensor]
    has_memory = False

    def step(self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.activation(fed + state), None

    def forward(
        self, fed: Tensor, h0: Tensor, c0: Tensor | None, w: Weights
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        fed = fed if w.bias is None else fed + w.bias
        turned = w.state.T.contiguous()
        h, states = h0, []
        for fed_t in fed.unbind(0):
            h = self.activation(torch.addmm(fed_t, h, turned))
            states.append(h)
        stacked = torch.stack(states)
        return stacked, stacked.detach(), None, (stacked.detach(),)

    def backward(self, kept: tuple[Tensor, ...], d_states: Tensor, d_memory: Tensor | None, w: Weights) -> Grads:
        (states,) = kept
        slope = 1 - states * states if self.activation is torch.tanh else (states > 0).to(states.dtype)
        d_fed = torch.empty_like(d_states, memory_format=torch.contiguous_format)  # the compiler writes to no other
        dh_next = torch.zeros_like(d_states[0])
        for t in range(len(states) - 1, -1, -1):
            torch.mul(d_states[t] + dh_next, slope[t], out=d_fed[t])
            dh_next = d_fed[t] @ w.state
        return Grads(d_fed, d_fed, None, dh_next, None)


def sweep(
    cell: Cell,
    fed: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    w_state: Tensor,
    b_state: Tensor | None,
    w_out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """States `[T, n, size]`, unprojected outputs, last memory, and two tensors of zeros.

    Their gradients are those at the state's pre-activations and at the projection's output.
    """
    time, n, gates = fed.shape
    zero = fed.new_zeros((), requires_grad=True)
    at_state = zero.expand(time, n, gates)
    at_output = zero.expand(time, n, h0.shape[-1])
    c0 = fed.new_zeros(()) if c0 is None else c0
    weights = [None if w is None else w.detach() for w in (w_state, b_state, w_out)]
    if _fuses(cell, fed, h0, w_out):
        return (*_fused(cell, fed, at_state, h0, c0, weights[0], weights[1]), at_state, at_output)
    run: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Sweep.apply
    states, outputs, memory = run(cell, fed, at_state, at_output, h0, c0, *weights)
    return states, outputs, memory, at_state, at_output


def _fuses(cell: Cell, fed: Tensor, h0: Tensor, w_out: Tensor | None) -> bool:
    """Whether the GPU's kernels take this sweep."""
    if not fed.is_cuda or fed.dtype != torch.float32 or w_out is not None or not isinstance(cell, LSTM | GRU):
        return False
    try:
        from hush.gradients.rules import fused
    except ImportError:
        return False
    return h0.shape[-1] <= fused.MOST_HIDDEN and h0.dtype == torch.float32


def _fused(
    cell: Cell, fed: Tensor, at_state: Tensor, h0: Tensor, c0: Tensor, w: Tensor | None, b: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from hush.gradients.rules import fused

    if isinstance(cell, LSTM):
        lstm: Callable[..., tuple[Tensor, Tensor]] = fused.LSTMSweep.apply
        states, memory = lstm(fed, at_state, h0, c0, w, b)
        return states, states.detach(), memory
    gru: Callable[..., Tensor] = fused.GRUSweep.apply
    states = gru(fed, at_state, h0, w, b)
    return states, states.detach(), fed.new_zeros(())


class _Sweep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        fed: Tensor,
        at_state: Tensor,
        at_output: Tensor,
        h0: Tensor,
        c0: Tensor,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        state, bias, out = (None if w is None else w.to(fed.dtype) for w in weights)
        assert state is not None
        ctx.cell, ctx.weights = cell, Weights(state, bias, out)
        first = c0.to(fed.dtype) if cell.has_memory else None
        states, outputs, memory, ctx.kept = cell.forward(fed, h0.to(fed.dtype), first, ctx.weights)
        ctx.mark_non_differentiable(outputs)
        return states, outputs, fed.new_zeros(()) if memory is None else memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        d_states, _, d_memory = grads
        found = ctx.cell.backward(ctx.kept, d_states, d_memory if ctx.cell.has_memory else None, ctx.weights)
        return None, found.fed, found.state, found.output, found.h0, found.c0, None, None, None
