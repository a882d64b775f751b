"""LSTM and GRU sweeps over time as one GPU kernel each way.

A block of examples stays with one multiprocessor for the whole sequence: the state's weights live in its registers, the
state never leaves it, and a time step costs one small matrix product instead of a dozen launches. Products are
three-fold tf32, which keeps float32's accuracy. Used for float32 on CUDA with up to 64 hidden units; elsewhere
`cells.py` does the same work.
"""

# Triton kernels are their own language, which mypy can't read.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 16  # examples a program: the smallest tile of the matrix units
MOST_HIDDEN = 64


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _lstm_forward(
    fed, w, h0, c0, states, memory, gates, steps, n, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr
):
    one = tl.full((), 1, tl.int64)  # offsets may pass 2^31
    rows = tl.program_id(0) * block + tl.arange(0, block)
    cols = tl.arange(0, width)
    here = (rows < n)[:, None] & (cols < size)[None, :]
    square = (cols < size)[:, None] & (cols < size)[None, :]
    turned = cols[:, None] + cols[None, :] * size  # [k, j] of a gate's weight, stored as [j, k]
    w_i = tl.load(w + turned, square, 0.0)
    w_f = tl.load(w + size * size + turned, square, 0.0)
    w_g = tl.load(w + 2 * size * size + turned, square, 0.0)
    w_o = tl.load(w + 3 * size * size + turned, square, 0.0)
    place = rows[:, None] * size + cols[None, :]
    wide_place = rows[:, None] * (4 * size) + cols[None, :]
    h = tl.load(h0 + place, here, 0.0)
    c = tl.load(c0 + place, here, 0.0)
    tl.store(memory + place, c, here)
    for t in range(steps):
        at = one * t * n * size
        f_at = fed + 4 * at + wide_place
        g_at = gates + 4 * at + wide_place
        i = tl.sigmoid(tl.load(f_at, here, 0.0) + tl.dot(h, w_i, input_precision="tf32x3"))
        f = tl.sigmoid(tl.load(f_at + size, here, 0.0) + tl.dot(h, w_f, input_precision="tf32x3"))
        g = _tanh(tl.load(f_at + 2 * size, here, 0.0) + tl.dot(h, w_g, input_precision="tf32x3"))
        o = tl.sigmoid(tl.load(f_at + 3 * size, here, 0.0) + tl.dot(h, w_o, input_precision="tf32x3"))
        c = f * c + i * g
        h = o * _tanh(c)
        tl.store(g_at, i, here)
        tl.store(g_at + size, f, here)
        tl.store(g_at + 2 * size, g, here)
        tl.store(g_at + 3 * size, o, here)
        tl.store(memory + at + n * size + place, c, here)
        tl.store(states + at + place, h, here)


@triton.jit
def _lstm_backward(
    gates,
    memory,
    w,
    d_states,
    d_memory,
    d_fed,
    d_h0,
    d_c0,
    steps,
    n,
    size: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    one = tl.full((), 1, tl.int64)  # offsets may pass 2^31
    rows = tl.program_id(0) * block + tl.arange(0, block)
    cols = tl.arange(0, width)
    here = (rows < n)[:, None] & (cols < size)[None, :]
    square = (cols < size)[:, None] & (cols < size)[None, :]
    straight = cols[:, None] * size + cols[None, :]  # [j, k]
    w_i = tl.load(w + straight, square, 0.0)
    w_f = tl.load(w + size * size + straight, square, 0.0)
    w_g = tl.load(w + 2 * size * size + straight, square, 0.0)
    w_o = tl.load(w + 3 * size * size + straight, square, 0.0)
    place = rows[:, None] * size + cols[None, :]
    wide_place = rows[:, None] * (4 * size) + cols[None, :]
    dh_next = tl.zeros([block, width], tl.float32)
    dc = tl.load(d_memory + place, here, 0.0)
    for back in range(steps):
        t = steps - 1 - back
        at = one * t * n * size
        g_at = gates + 4 * at + wide_place
        i = tl.load(g_at, here, 0.0)
        f = tl.load(g_at + size, here, 0.0)
        g = tl.load(g_at + 2 * size, here, 0.0)
        o = tl.load(g_at + 3 * size, here, 0.0)
        squashed = _tanh(tl.load(memory + at + n * size + place, here, 0.0))
        before = tl.load(memory + at + place, here, 0.0)
        dh = tl.load(d_states + at + place, here, 0.0) + dh_next
        dc = dc + dh * o * (1 - squashed * squashed)
        d_i = dc * g * i * (1 - i)
        d_f = dc * before * f * (1 - f)
        d_g = dc * i * (1 - g * g)
        d_o = dh * squashed * o * (1 - o)
        dc = dc * f
        d_at = d_fed + 4 * at + wide_place
        tl.store(d_at, d_i, here)
        tl.store(d_at + size, d_f, here)
        tl.store(d_at + 2 * size, d_g, here)
        tl.store(d_at + 3 * size, d_o, here)
        dh_next = tl.dot(d_i, w_i, input_precision="tf32x3") + tl.dot(d_f, w_f, input_precision="tf32x3")
        dh_next += tl.dot(d_g, w_g, input_precision="tf32x3") + tl.dot(d_o, w_o, input_precision="tf32x3")
    tl.store(d_h0 + place, dh_next, here)
    tl.store(d_c0 + place, dc, here)


@triton.jit
def _gru_forward(
    fed, w, b_n, h0, states, gates, steps, n, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr
):
    one = tl.full((), 1, tl.int64)  # offsets may pass 2^31
    rows = tl.program_id(0) * block + tl.arange(0, block)
    cols = tl.arange(0, width)
    here = (rows < n)[:, None] & (cols < size)[None, :]
    square = (cols < size)[:, None] & (cols < size)[None, :]
    turned = cols[:, None] + cols[None, :] * size
    w_r = tl.load(w + turned, square, 0.0)
    w_z = tl.load(w + size * size + turned, square, 0.0)
    w_n = tl.load(w + 2 * size * size + turned, square, 0.0)
    bias = tl.load(b_n + cols, cols < size, 0.0)[None, :]
    place = rows[:, None] * size + cols[None, :]
    fed_place = rows[:, None] * (3 * size) + cols[None, :]
    gate_place = rows[:, None] * (4 * size) + cols[None, :]
    h = tl.load(h0 + place, here, 0.0)
    tl.store(states + place, h, here)
    for t in range(steps):
        at = one * t * n * size
        f_at = fed + 3 * at + fed_place
        g_at = gates + 4 * at + gate_place
        r = tl.sigmoid(tl.load(f_at, here, 0.0) + tl.dot(h, w_r, input_precision="tf32x3"))
        z = tl.sigmoid(tl.load(f_at + size, here, 0.0) + tl.dot(h, w_z, input_precision="tf32x3"))
        state_n = tl.dot(h, w_n, input_precision="tf32x3") + bias
        new = _tanh(tl.load(f_at + 2 * size, here, 0.0) + r * state_n)
        h = new + z * (h - new)
        tl.store(g_at, r, here)
        tl.store(g_at + size, z, here)
        tl.store(g_at + 2 * size, new, here)
        tl.store(g_at + 3 * size, state_n, here)
        tl.store(states + at + n * size + place, h, here)


@triton.jit
def _gru_backward(
    gates,
    states,
    w,
    d_states,
    d_fed,
    d_state,
    d_h0,
    steps,
    n,
    size: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    one = tl.full((), 1, tl.int64)  # offsets may pass 2^31
    rows = tl.program_id(0) * block + tl.arange(0, block)
    cols = tl.arange(0, width)
    here = (rows < n)[:, None] & (cols < size)[None, :]
    square = (cols < size)[:, None] & (cols < size)[None, :]
    straight = cols[:, None] * size + cols[None, :]
    w_r = tl.load(w + straight, square, 0.0)
    w_z = tl.load(w + size * size + straight, square, 0.0)
    w_n = tl.load(w + 2 * size * size + straight, square, 0.0)
    place = rows[:, None] * size + cols[None, :]
    fed_place = rows[:, None] * (3 * size) + cols[None, :]
    gate_place = rows[:, None] * (4 * size) + cols[None, :]
    dh_next = tl.zeros([block, width], tl.float32)
    for back in range(steps):
        t = steps - 1 - back
        at = one * t * n * size
        g_at = gates + 4 * at + gate_place
        r = tl.load(g_at, here, 0.0)
        z = tl.load(g_at + size, here, 0.0)
        new = tl.load(g_at + 2 * size, here, 0.0)
        state_n = tl.load(g_at + 3 * size, here, 0.0)
        before = tl.load(states + at + place, here, 0.0)
        dh = tl.load(d_states + at + place, here, 0.0) + dh_next
        d_n = dh * (1 - z) * (1 - new * new)
        d_r = d_n * state_n * r * (1 - r)
        d_z = dh * (before - new) * z * (1 - z)
        d_sn = d_n * r
        f_at = d_fed + 3 * at + fed_place
        s_at = d_state + 3 * at + fed_place
        tl.store(f_at, d_r, here)
        tl.store(f_at + size, d_z, here)
        tl.store(f_at + 2 * size, d_n, here)
        tl.store(s_at, d_r, here)
        tl.store(s_at + size, d_z, here)
        tl.store(s_at + 2 * size, d_sn, here)
        dh_next = dh * z + tl.dot(d_r, w_r, input_precision="tf32x3")
        dh_next += tl.dot(d_z, w_z, input_precision="tf32x3") + tl.dot(d_sn, w_n, input_precision="tf32x3")
    tl.store(d_h0 + place, dh_next, here)


def _launch(kernel: Any, n: int, size: int, *arguments: Any) -> None:
    width = max(16, triton.next_power_of_2(size))
    warps = 4 if width <= 32 else 8
    kernel[(triton.cdiv(n, _BLOCK),)](*arguments, size, width, _BLOCK, num_warps=warps)


@torch.library.custom_op(
    "hush::lstm_forward", mutates_args=(), schema="(Tensor fed, Tensor w, Tensor h0, Tensor c0) -> Tensor[]"
)
def lstm_forward(fed: Tensor, w: Tensor, h0: Tensor, c0: Tensor) -> list[Tensor]:
    """States `[T, n, size]`, memories with the first one before them, and gates `[T, n, 4 size]`."""
    found = _room_for_lstm_forward(fed, w, h0, c0)
    steps, n, size = found[0].shape
    _launch(_lstm_forward, n, size, fed, w, h0, c0, *found, steps, n)
    return found


@lstm_forward.register_fake
def _room_for_lstm_forward(fed: Tensor, w: Tensor, h0: Tensor, c0: Tensor) -> list[Tensor]:
    steps, n, size = fed.shape[0], fed.shape[1], h0.shape[-1]
    return [fed.new_empty(steps, n, size), fed.new_empty(steps + 1, n, size), torch.empty_like(fed)]


@torch.library.custom_op(
    "hush::lstm_backward",
    mutates_args=(),
    schema="(Tensor gates, Tensor memory, Tensor w, Tensor d_states, Tensor d_memory) -> Tensor[]",
)
def lstm_backward(gates: Tensor, memory: Tensor, w: Tensor, d_states: Tensor, d_memory: Tensor) -> list[Tensor]:
    """Gradients at the fed pre-activations, and at the first state and memory."""
    found = _room_for_lstm_backward(gates, memory, w, d_states, d_memory)
    steps, n, size = d_states.shape
    _launch(_lstm_backward, n, size, gates, memory, w, d_states, d_memory, *found, steps, n)
    return found


@lstm_backward.register_fake
def _room_for_lstm_backward(
    gates: Tensor, memory: Tensor, w: Tensor, d_states: Tensor, d_memory: Tensor
) -> list[Tensor]:
    return [torch.empty_like(gates), torch.empty_like(d_memory), torch.empty_like(d_memory)]


@torch.library.custom_op(
    "hush::gru_forward", mutates_args=(), schema="(Tensor fed, Tensor w, Tensor b_n, Tensor h0) -> Tensor[]"
)
def gru_forward(fed: Tensor, w: Tensor, b_n: Tensor, h0: Tensor) -> list[Tensor]:
    """States with the first one before them; r, z, n and the state's part of n, `[T, n, 4 size]`."""
    found = _room_for_gru_forward(fed, w, b_n, h0)
    steps, n, size = fed.shape[0], fed.shape[1], h0.shape[-1]
    _launch(_gru_forward, n, size, fed, w, b_n, h0, *found, steps, n)
    return found


@gru_forward.register_fake
def _room_for_gru_forward(fed: Tensor, w: Tensor, b_n: Tensor, h0: Tensor) -> list[Tensor]:
    steps, n, size = fed.shape[0], fed.shape[1], h0.shape[-1]
    return [fed.new_empty(steps + 1, n, size), fed.new_empty(steps, n, 4 * size)]


@torch.library.custom_op(
    "hush::gru_backward",
    mutates_args=(),
    schema="(Tensor gates, Tensor states, Tensor w, Tensor d_states) -> Tensor[]",
)
def gru_backward(gates: Tensor, states: Tensor, w: Tensor, d_states: Tensor) -> list[Tensor]:
    """Gradients at the fed and at the state's pre-activations, and at the first state."""
    found = _room_for_gru_backward(gates, states, w, d_states)
    steps, n, size = d_states.shape
    _launch(_gru_backward, n, size, gates, states, w, d_states, *found, steps, n)
    return found


@gru_backward.register_fake
def _room_for_gru_backward(gates: Tensor, states: Tensor, w: Tensor, d_states: Tensor) -> list[Tensor]:
    steps, n, size = d_states.shape
    shape = (steps, n, 3 * size)
    return [gates.new_empty(shape), gates.new_empty(shape), gates.new_empty(n, size)]


class LSTMSweep(torch.autograd.Function):
    """What `cells.sweep` gives, by the kernels; without projections."""

    @staticmethod
    def forward(ctx: Any, fed: Tensor, at_state: Tensor, h0: Tensor, c0: Tensor, w: Tensor, b: Tensor | None) -> Any:
        fed = fed if b is None else fed + b
        states, memory, gates = lstm_forward(fed.contiguous(), w.contiguous(), h0.contiguous(), c0.contiguous())
        ctx.save_for_backward(gates, memory, w)
        return states, memory[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gates, memory, w = ctx.saved_tensors
        d_fed, d_h0, d_c0 = lstm_backward(gates, memory, w.contiguous(), grads[0].contiguous(), grads[1].contiguous())
        return d_fed, d_fed, d_h0, d_c0, None, None


class GRUSweep(torch.autograd.Function):
    """What `cells.sweep` gives, by the kernels."""

    @staticmethod
    def forward(ctx: Any, fed: Tensor, at_state: Tensor, h0: Tensor, w: Tensor, b: Tensor | None) -> Any:
        size = h0.shape[-1]
        b_n = fed.new_zeros(size) if b is None else b[2 * size :].contiguous()
        if b is not None:
            fed = fed + torch.cat([b[: 2 * size], torch.zeros_like(b_n)])
        states, gates = gru_forward(fed.contiguous(), w.contiguous(), b_n, h0.contiguous())
        ctx.save_for_backward(gates, states, w)
        return states[1:].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gates, states, w = ctx.saved_tensors
        d_fed, d_state, d_h0 = gru_backward(gates, states, w.contiguous(), grads[0].contiguous())
        return d_fed, d_state, d_h0, None, None
