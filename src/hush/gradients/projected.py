"""Norms estimated from random projections, as in DP-SGD-JL (Bu et al. 2021), then one weighted backward pass.

With v_1, ..., v_r standard normal vectors and g a unit's gradient, `<g, v_j>` is normal with deviation ||g||, so

    M = sqrt((<g, v_1>^2 + ... + <g, v_r>^2) / r)    has the law of    ||g|| sqrt(chi2_r / r)      (their Prop. 2.1).

The derivatives `<g_i, v_j>` come from forward mode; weighted by min(1, C/M_i) the losses are summed and differentiated
once.  No example's gradient is formed, and memory stays near plain training's.  The price: M may come out too small,
so the sensitivity is random, `C / sqrt(chi2_r / r)`, which `hush.accounting.Projected` accounts.

That account is of the gradients that are summed, which come from backward mode.  So every step checks on a few
directions that both modes agree: `<sum_i w_i g_i, v> = sum_i w_i <g_i, v>`.  Where they don't (gradient hooks, custom
functions whose derivatives differ, random numbers that can't be repeated) or forward mode fails, the next way is taken:
two backward passes, and at last one unit after the other.

How fine the check is.  Let D be the difference of the two sums, of norm d.  It shows as <D, v_j>, normal with standard
deviation d, and the check passes if the root mean square over eight directions is at most

    t = C/400 + |S|/50,000,    |S| the root mean square of the sum's own derivatives,

so with probability P(chi2_8 <= 8 (t/d)^2) <= 11 (t/d)^8.  |S| is about sqrt(B) C for gradients that point anywhere, and
B C at most, for gradients that all point the same way: a difference of C is missed once in 3e7 steps then at B = 4096,
and less than once in 10^13 at B = 256.  What rounding makes of honest networks is up to |S|/200,000, by measurement.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush import noise
from hush.gradients.company import refuse_company
from hush.gradients.directional import dot, forward, transposed, vectorised
from hush.gradients.engines import (
    ClippedSum,
    Directions,
    Groups,
    Losses,
    Memory,
    Projected,
    Task,
    Weigh,
    count,
    one_loss_each,
    pick,
)
from hush.gradients.factors import wide
from hush.gradients.placing import now_and_then
from hush.gradients.plain import gradient_of, members_of
from hush.gradients.unfused import unfused
from hush.keys import Key
from hush.precision import tf32_allowed

_HALF = (torch.float16, torch.bfloat16)
_KEPT_BYTES = 1 << 27
_PIECE = 1 << 18
_MOST_MEMORY = 1.3
_MOST_AT_ONCE = 16
_CHECKED = 8
_TOLERANCE, _ROUNDING = 1 / 400, 1 / 50_000
"""Of the threshold and of the sum, on so many directions."""


def gaussian_directions(key: Key, step: int, parameters: Sequence[Tensor]) -> Directions:
    """The directions of a step: functions of the run's key, the step and their number, whatever the microbatches.

    The analysis hands them to the attacker, so they need to be independent of the data and nothing else: they come
    from the fast generator also where noise and coins come from a cipher.
    """
    sizes = [min(_PIECE, p.numel() - start) for p in parameters for start in range(0, p.numel(), _PIECE)]
    device, dtype = parameters[0].device, parameters[0].dtype

    def direction(j: int) -> Iterator[Tensor]:
        if device.type == "cpu":
            generator = np.random.Generator(key.philox("direction", step, j))
            kind: Any = np.float64 if dtype == torch.float64 else np.float32
            for size in sizes:
                yield torch.from_numpy(generator.standard_normal(size, dtype=kind)).to(dtype)
        else:
            source = torch.Generator(device)
            noise.seed(source, key, step, f"direction {j}")
            for size in sizes:
                yield torch.randn(size, generator=source, device=device, dtype=dtype)

    return direction


def projected(task: Task, engine: Projected, memory: Memory) -> ClippedSum:
    """The clipped sum with estimated norms, by the first way that works; `memory` keeps which."""
    parameters, losses, batch = task.parameters, task.losses, task.batch
    _refuse(parameters, task.groups)
    if engine.directions is None:
        raise ValueError(
            "Projected norms need directions; train by Plan(projections=...), or give "
            "Projected(r, gaussian_directions(key, step, parameters))."
        )
    state = _randomness(parameters)

    def repeated(*given: Any) -> Tensor:
        _rewind(state)
        return losses(*given)

    work = _Work(parameters, repeated, batch, task.weigh, task.units, engine.projections, engine.directions)
    with torch.compiler.set_stance("force_eager"), full_float32(parameters):
        if work.n > 1 and now_and_then("company", memory):
            with torch.no_grad():
                refuse_company(losses, batch, one_loss_each(losses(*batch), work.n))
            _rewind(state)
        at_once = engine.at_once or _at_once(work, memory)
        ways: tuple[tuple[str, Callable[[], _Found]], ...] = (
            (f"{at_once} directions at once", lambda: _by_forward_mode(work, at_once)),
            ("one direction at a time", lambda: _by_forward_mode(work, 1)),
            ("two backward passes", lambda: _by_two_backward_passes(work)),
        )
        for k, (name, way) in enumerate(ways):
            if k < memory.way or (k == 0 and at_once == 1):
                continue
            try:
                found = way()
            except Exception as error:  # whatever stops it, the next way asks less of the user's code
                memory.way, memory.reason = k + 1, _reason(error)
                continue
            if not bool(torch.isfinite(found.norms).all()):
                return found.result(f"projected, {name}{memory.reason}")  # its units will be left out
            along = torch.stack([dot(found.sums, work.directions(j)) for j in range(found.checked.shape[1])])
            if not bool(torch.isfinite(along).all()):  # and so isn't the sum
                continue
            if _agrees(work, found, along):
                return found.result(f"projected, {name}{memory.reason}")
            memory.way, memory.reason = k + 1, " (forward and backward derivatives differ)"
        _rewind(state)
        return _by_loop(work, losses).result(f"projected, one unit after the other{memory.reason}")


@contextmanager
def full_float32(parameters: Sequence[Tensor]) -> Iterator[None]:
    """No products in TF32 inside: they are coarser than what the two modes may differ by.

    PyTorch has older and newer switches; where the newer ones were used, the older can't be read.
    """
    if not any(p.is_cuda for p in parameters) or not tf32_allowed():
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    switches: list[tuple[Any, str]] = [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]
    off: Any = False
    try:
        before = [getattr(*switch) for switch in switches]
    except RuntimeError:
        switches = [(part, "fp32_precision") for part in (matmul, cudnn.conv, cudnn.rnn)]  # type: ignore[attr-defined]
        before, off = [getattr(*switch) for switch in switches], "ieee"
    try:
        for switch in switches:
            setattr(*switch, off)
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(*switch, value)


@dataclass(frozen=True)
class _Work:
    """What is to be computed."""

    parameters: Sequence[Tensor]
    losses: Losses
    batch: Sequence[Any]
    weigh: Weigh
    units: Tensor | None
    projections: int
    directions: Directions

    @cached_property
    def n(self) -> int:
        return count(self.batch)

    @property
    def wanted(self) -> range:
        return range(self.projections)

    def norms(self, derivatives: Tensor) -> Tensor:
        """The units' estimates `[units, 1]`: a unit's derivatives are the sums of its examples'."""
        each = wide(derivatives)
        if self.units is not None:
            where = self.units.to(each.device)
            each = each.new_zeros(int(self.units.max()) + 1, each.shape[1]).index_add_(0, where, each)
        lengths: Tensor = torch.linalg.vector_norm(each, dim=1)
        column: Tensor = (lengths / self.projections**0.5)[:, None]
        return column

    def per_example(self, weights: Tensor) -> Tensor:
        return weights[:, 0] if self.units is None else weights[:, 0][self.units.to(weights.device)]


@dataclass(frozen=True)
class _Found:
    values: Tensor
    checked: Tensor  # the derivatives along the first few directions
    norms: Tensor
    weights: Tensor
    sums: list[Tensor]

    def result(self, note: str) -> ClippedSum:
        return ClippedSum(self.sums, self.norms, self.values, (note,))


def _by_forward_mode(work: _Work, at_once: int) -> _Found:
    with unfused() as mode, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)  # PyTorch's own use of it
        if at_once > 1:
            derivatives = vectorised(work.parameters, work.losses, work.batch, work.directions, work.wanted, at_once)
        else:
            derivatives = forward(work.parameters, work.losses, work.batch, work.directions, work.wanted)
    norms = work.norms(derivatives)
    weights = work.weigh(norms)
    if mode.random:
        with unfused():
            values = one_loss_each(work.losses(*work.batch), work.n)
    else:
        values = one_loss_each(work.losses(*work.batch), work.n)
    return _Found(values.detach(), derivatives[:, :_CHECKED], norms, weights, _backward(work, values, weights))


def _by_two_backward_passes(work: _Work) -> _Found:
    with unfused():
        values = one_loss_each(work.losses(*work.batch), work.n)
        derivatives = transposed(work.parameters, values, work.directions, work.wanted)
    norms = work.norms(derivatives)
    weights = work.weigh(norms)
    return _Found(values.detach(), derivatives[:, :_CHECKED], norms, weights, _backward(work, values, weights))


def _by_loop(work: _Work, losses: Losses) -> _Found:
    """Each unit's gradient formed: for what can be differentiated backwards only, and once."""
    sums = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in work.parameters]
    size = sum(p.numel() * p.element_size() for p in work.parameters) * work.projections
    kept = [list(work.directions(j)) for j in work.wanted] if size <= _KEPT_BYTES else None
    values, order, all_norms = [], [], []
    for members in members_of(work.batch, work.units):
        value, grads = gradient_of(work.parameters, losses, pick(work.batch, members))
        along = [dot(grads, kept[j] if kept is not None else work.directions(j)) for j in work.wanted]
        norms = (torch.linalg.vector_norm(torch.stack(along)) / work.projections**0.5).to(grads[0].dtype)[None, None]
        weight = work.weigh(norms)[0, 0]
        if bool(torch.isfinite(norms).all()):
            for total, grad in zip(sums, grads, strict=True):
                total += weight * grad
        values.append(value)
        order.append(members)
        all_norms.append(norms[0])
    joined = torch.cat(values)
    where = torch.cat(order).to(joined.device)
    found = torch.stack(all_norms)
    return _Found(torch.empty_like(joined).index_copy_(0, where, joined), joined[:, None], found, found, sums)


def _backward(work: _Work, values: Tensor, weights: Tensor) -> list[Tensor]:
    """The gradient of `sum_i w_i loss_i`."""
    grads: Sequence[Tensor | None] = [None] * len(work.parameters)
    if values.requires_grad:
        each = work.per_example(weights).to(values.dtype)
        grads = torch.autograd.grad(values, list(work.parameters), each, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(work.parameters, grads, strict=True)]
    return [wide(g.to_dense() if g.is_sparse else g) for g in filled]


def _agrees(work: _Work, found: _Found, backward: Tensor) -> bool:
    """Whether the sum's derivatives along a few directions are the sums of the examples' derivatives.

    The largest share that a unit has in the sum stands for the threshold, which it doesn't exceed.
    """
    weights = work.per_example(found.weights).double()
    forwards = (weights[:, None] * found.checked.double()).sum(0)
    threshold = (found.weights * found.norms).double().max()
    allowed = _TOLERANCE * threshold + _ROUNDING * forwards.square().mean().sqrt()
    return bool((backward - forwards).square().mean().sqrt() <= allowed)


def _at_once(work: _Work, memory: Memory) -> int:
    """How many directions at once need at most 1.3 times the memory of a plain training step.

    A plain step holds the parameters, the gradients and what is saved for the backward pass.  k directions hold
    themselves and, at a time, the tangents of an operation and of what is kept beside it: about eight tensors like the
    largest (attention in plain operations has the most).  What one example needs is measured once for each shape of
    examples, so that a resumed run decides the same.
    """
    shapes = tuple(x.shape[1:] if isinstance(x, Tensor) else None for x in work.batch)
    if shapes not in memory.sizes:
        memory.sizes[shapes] = _saved_bytes(work)
    saved, largest = memory.sizes[shapes]
    size = sum(p.numel() * p.element_size() for p in work.parameters)
    layers = 8 * largest * work.n
    room = _MOST_MEMORY * (2 * size + saved * work.n) - 2 * size - layers
    return max(1, min(_MOST_AT_ONCE, work.projections, int(room // max(size + layers, 1))))


def _saved_bytes(work: _Work) -> tuple[int, int]:
    """What one example's forward pass keeps for the backward pass, and the largest tensor among it."""
    own = {p.untyped_storage().data_ptr() for p in work.parameters}
    sizes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            sizes[x.data_ptr()] = x.numel() * x.element_size()
        return x

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        values = work.losses(*pick(work.batch, slice(0, 1)))
    del values
    return sum(sizes.values()), max(sizes.values(), default=0)


def _randomness(parameters: Sequence[Tensor]) -> tuple[Any, ...]:
    """Where the generators stand that a loss may draw from (dropout, augmentation)."""
    devices = sorted({p.device for p in parameters if p.is_cuda}, key=str)
    cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _rewind(state: tuple[Any, ...]) -> None:
    """The loss must be the same function at every call of a step, its random numbers the same."""
    cpu, cuda, for_numpy, for_python = state
    torch.set_rng_state(cpu)
    for device, value in cuda:
        torch.cuda.set_rng_state(value, device)
    np.random.set_state(for_numpy)
    random.setstate(for_python)


def _refuse(parameters: Sequence[Tensor], groups: Groups) -> None:
    if len(groups) != 1:
        raise ValueError(
            f"Projected norms are analysed for one norm of the whole gradient, not for {len(groups)} groups; "
            "clip flat, or use exact norms (leave projections out)."
        )
    devices = {p.device.type for p in parameters}
    if any(p.dtype in _HALF for p in parameters) or any(torch.is_autocast_enabled(device) for device in devices):
        raise ValueError(
            "A backward pass in half precision rounds the whole sum coarsely, which no noise hides; turn autocast off "
            "or use exact norms (leave projections out)."
        )


def _reason(error: Exception) -> str:
    """Which operation couldn't, where PyTorch says so; other messages might quote the data."""
    named = isinstance(error, NotImplementedError) and str(error)
    return f" ({str(error).splitlines()[0]})" if named else f" (forward mode failed: {type(error).__name__})"
