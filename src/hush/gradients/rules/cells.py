"""Recurrent cells, forwards and backwards in time, keeping the gates' gradients.

A cell sees two pre-activations at each step: what was fed, `x W_in^T + b_in`, and what the state gives, `h W_state^T
+ b_state`. `sweep` runs it over time; autograd sees the sweep as one operation whose gradients at both
pre-activations are at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Cell(Protocol):
    """One time step and its derivative. `fed` and `state` are pre-activations `[n, gates]`."""

    @property
    def has_memory(self) -> bool: ...

    def forward(
        self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        """New output, new memory, and what `backward` needs."""

    def backward(
        self, kept: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Any]:
        """Gradients at fed, at state, directly at the previous h (None: none), and at the previous memory."""


@dataclass(frozen=True)
class LSTM:
    """`i, f, g, o` gates; `c' = f c + i g`, `h' = o tanh(c')`."""

    has_memory = True

    def forward(
        self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        assert c is not None
        i, f, g, o = (fed + state).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        new = torch.addcmul(f * c, i, g)
        squashed = new.tanh()
        return o * squashed, new, (i, f, g, o, c, squashed)

    def backward(
        self, kept: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Any]:
        assert dc is not None
        i, f, g, o, c, squashed = kept
        dc = torch.addcmul(dc, dh * o, 1 - squashed * squashed)
        gates = torch.cat(
            [dc * g * (i - i * i), dc * c * (f - f * f), dc * i * (1 - g * g), dh * squashed * (o - o * o)], 1
        )
        return gates, gates, None, dc * f


@dataclass(frozen=True)
class GRU:
    """`r, z, n` gates; `n = tanh(fed_n + r state_n)`, `h' = (1 - z) n + z h`."""

    has_memory = False

    def forward(
        self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        (fed_r, fed_z, fed_n), (state_r, state_z, state_n) = fed.chunk(3, 1), state.chunk(3, 1)
        r, z = (fed_r + state_r).sigmoid(), (fed_z + state_z).sigmoid()
        n = torch.addcmul(fed_n, r, state_n).tanh()
        return torch.lerp(n, h, z), None, (r, z, n, h, state_n)

    def backward(
        self, kept: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Any]:
        r, z, n, h, state_n = kept
        dn = dh * (1 - z) * (1 - n * n)
        dr = dn * state_n * (r - r * r)
        dz = dh * (h - n) * (z - z * z)
        return torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1), dh * z, None


@dataclass(frozen=True)
class Plain:
    """`h' = activation(fed + state)`, with tanh or relu."""

    activation: Callable[[Tensor], Tensor]
    has_memory = False

    def forward(
        self, fed: Tensor, state: Tensor, h: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        new = self.activation(fed + state)
        return new, None, (new,)

    def backward(
        self, kept: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Any]:
        (new,) = kept
        d = dh * (1 - new * new) if self.activation is torch.tanh else dh * (new > 0)
        return d, d, None, None


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
        w_state: Tensor,
        b_state: Tensor | None,
        w_out: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = fed.dtype
        w_state = w_state.to(dtype)
        b_state = None if b_state is None else b_state.to(dtype)
        w_out = None if w_out is None else w_out.to(dtype)
        h, c = h0.to(dtype), c0.to(dtype) if cell.has_memory else None
        states, outputs, kept = [], [], []
        for fed_t in fed.unbind(0):
            out, c, keep = cell.forward(fed_t, F.linear(h, w_state, b_state), h, c)
            h = out if w_out is None else F.linear(out, w_out)
            states.append(h)
            outputs.append(out)
            kept.append(keep)
        ctx.cell, ctx.kept, ctx.weights = cell, kept, (w_state, w_out)
        stacked = torch.stack(states)
        unprojected = stacked.detach() if w_out is None else torch.stack(outputs)
        ctx.mark_non_differentiable(unprojected)
        return stacked, unprojected, fed.new_zeros(()) if c is None else c

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        d_states, _, d_memory = grads
        cell, (w_state, w_out) = ctx.cell, ctx.weights
        dh_next: Tensor | None = None
        dc: Any = d_memory if cell.has_memory else None
        fed, state, output = [], [], []
        for dh, kept in zip(reversed(d_states.unbind(0)), reversed(ctx.kept), strict=True):
            if dh_next is not None:
                dh = dh + dh_next
            output.append(dh)
            d_fed, d_state, direct, dc = cell.backward(kept, dh if w_out is None else dh @ w_out, dc)
            dh_next = d_state @ w_state if direct is None else torch.addmm(direct, d_state, w_state)
            fed.append(d_fed)
            state.append(d_state)
        d_fed_all = torch.stack(fed[::-1])
        d_state_all = d_fed_all if state[0] is fed[0] else torch.stack(state[::-1])
        d_output = None if w_out is None else torch.stack(output[::-1])
        return None, d_fed_all, d_state_all, d_output, dh_next, dc, None, None, None
