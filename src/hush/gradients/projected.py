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

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush import noise
from hush.gradients import lean
from hush.gradients.company import refuse_company
from hush.gradients.directional import dot, forward, parts, transposed, vectorised
from hush.gradients.engines import (
    ClippedSum,
    Directions,
    Groups,
    Losses,
    Memory,
    Projected,
    Task,
    count,
    one_loss_each,
    pick,
)
from hush.gradients.factors import wide
from hush.gradients.filling import AS_IT_IS
from hush.gradients.fitting import Fit, Fitting, Sizes, plain_bytes
from hush.gradients.owned import add_gradients, owned
from hush.gradients.placing import now_and_then
from hush.gradients.plain import gradient_of, members_of
from hush.gradients.repeated import Repeated
from hush.gradients.unfused import unfused
from hush.keys import Key

_HALF = (torch.float16, torch.bfloat16)
_PIECE, _PIECES_ON_CPU = 1 << 18, (1 << 10, 1 << 14)  # where the pieces' sizes don't change the numbers
_CHECKED = 8
_TOLERANCE, _ROUNDING = 1 / 400, 1 / 50_000
"""Of the threshold and of the sum, on so many directions."""


def gaussian_directions(key: Key, step: int, parameters: Sequence[Tensor]) -> Directions:
    """The directions of a step: functions of the run's key, the step and their number, whatever the microbatches.

    The analysis hands them to the attacker, so they need to be independent of the data and nothing else: they come
    from the fast generator also where noise and coins come from a cipher.
    """
    device, dtype = parameters[0].device, parameters[0].dtype
    most = _PIECE
    if device.type == "cpu":
        least, largest = _PIECES_ON_CPU
        most = min(max(sum(p.numel() for p in parameters) // 16, least), largest)
    sizes = [min(most, p.numel() - start) for p in parameters for start in range(0, p.numel(), most)]

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
    """The clipped sum with estimated norms; in parts where that saves memory and random numbers forbid other ways."""
    _refuse(task.parameters, task.groups)
    if engine.directions is None:
        raise ValueError(
            "Projected norms need directions; train by Plan(projections=...), or give "
            "Projected(r, gaussian_directions(key, step, parameters))."
        )
    with torch.compiler.set_stance("force_eager"):
        repeated = Repeated(task.losses, task.parameters)
        sizes = Sizes(task.parameters, repeated, pick(task.batch, slice(0, engine.rows)), memory)
        plain = plain_bytes(sizes, count(task.batch))  # in the precision that it would have
        with full_float32(task.parameters):
            return _in_parts(task, engine, memory, sizes, plain)


def _in_parts(task: Task, engine: Projected, memory: Memory, sizes: Sizes, plain: float | None) -> ClippedSum:
    """Parts go through all passes where the loss draws random numbers and the whole batch doesn't fit."""
    n = count(task.batch)
    task = replace(task, filling=AS_IT_IS) if task.units is not None else task
    size = task.filling.size(n)
    held = sizes.input * n
    fitting = Fitting(sizes, engine, min(size, engine.rows or size), plain, held, size > n)
    rows = fitting.rows_of_random(double=memory.way > 1) if task.units is None else None
    sizes.losses.rewind()
    if rows is None or rows >= size:
        return _first_that_works(task, fitting, memory)
    held += sizes.vector + (size > n) * rows * sizes.input  # the sum of the other parts, and a part with copies
    found, start = None, 0
    for part in parts(task.batch, rows, task.filling):
        repeated = Repeated(task.losses, task.parameters)  # its random numbers follow those of the part before
        here = replace(task, batch=part, copies=max(0, start + count(part) - n), filling=AS_IT_IS)
        own = Fitting(Sizes(task.parameters, repeated, part, memory), engine, count(part), plain, held)
        more = _first_that_works(here, own, memory)
        found = more if found is None else _added(found, more)
        start += count(part)
        del more  # its sums are as large as the parameters
    assert found is not None
    return found


def _added(found: ClippedSum, more: ClippedSum) -> ClippedSum:
    torch._foreach_add_(found.sums, more.sums)
    assert found.spoiled is not None
    assert more.spoiled is not None
    return ClippedSum(
        found.sums,
        torch.cat([found.norms, more.norms]),
        torch.cat([found.losses, more.losses]),
        tuple(dict.fromkeys((*found.notes, *more.notes))),
        found.spoiled | more.spoiled,
    )


def _first_that_works(task: Task, fitting: Fitting, memory: Memory) -> ClippedSum:
    """By the first way that works; `memory` keeps which."""
    losses, engine, repeated = task.losses, fitting.engine, fitting.sizes.losses
    assert engine.directions is not None
    work = _Work(task, repeated, engine.projections, engine.directions)
    back = fitting.backward(memory.way > 1)
    if work.n > 1 and now_and_then("company", memory):
        asked = pick(task.batch, slice(0, min(work.n, back.rows)))
        repeated.rewind()
        with torch.no_grad(), lean.channels(back.last):
            refuse_company(losses, asked, one_loss_each(losses(*asked), count(asked)))
    repeated.rewind()
    fit = Fit(1, fitting.n)
    if memory.way == 0:
        fit = fitting.forward() if engine.at_once is None else Fit(engine.at_once, fitting.n)
    ways: tuple[tuple[str, Callable[[], _Found]], ...] = (
        (f"{fit.at_once} directions at once", lambda: _by_forward_mode(work, fit, back)),
        ("one direction at a time", lambda: _by_forward_mode(work, fitting.forward(most=1), back)),
        ("two backward passes", lambda: _by_two_backward_passes(work, fitting.transposed(), fitting.backward(True))),
    )
    for k, (name, way) in enumerate(ways):
        if k < memory.way or (k == 0 and fit.at_once == 1):
            continue
        try:
            found = way()
        except Exception as error:  # whatever stops it, the next way asks less of the user's code
            memory.way, memory.reason = k + 1, _reason(error)
            continue
        if bool(found.spoiled):
            return found.result(f"projected, {name}{memory.reason}")  # its units will be left out
        along = torch.stack([dot(found.sums, work.directions(j)) for j in range(found.checked.shape[1])])
        if bool(torch.isfinite(along).all()):  # the sum may not be
            if _agrees(work, found, along):
                return found.result(f"projected, {name}{memory.reason}")
            memory.way, memory.reason = k + 1, " (forward and backward derivatives differ)"
        del found  # its sums are as large as the parameters
    kept = fitting.directions_kept()
    repeated.rewind()
    return _by_loop(work, losses, kept).result(f"projected, one unit after the other{memory.reason}")


@contextmanager
def full_float32(parameters: Sequence[Tensor]) -> Iterator[None]:
    """No products in TF32 inside: they are coarser than what the two modes may differ by.

    PyTorch has older and newer switches; where the newer ones were used, the older can't be read.
    """
    if not any(p.is_cuda for p in parameters):
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

    task: Task
    losses: Losses
    projections: int
    directions: Directions

    @property
    def parameters(self) -> Sequence[Tensor]:
        return self.task.parameters

    @property
    def units(self) -> Tensor | None:
        return self.task.units

    @cached_property
    def n(self) -> int:
        """How many examples count."""
        return count(self.task.batch) - self.task.copies

    @property
    def wanted(self) -> range:
        return range(self.projections)

    def pieces(self, rows: int) -> list[tuple[Any, ...]]:
        return parts(self.task.batch, rows, self.task.filling)

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
    spoiled: Tensor  # whether a norm, be it a copy's, isn't finite

    def result(self, note: str) -> ClippedSum:
        return ClippedSum(self.sums, self.norms, self.values, (note,), self.spoiled)


def _by_forward_mode(work: _Work, fit: Fit, back: Fit) -> _Found:
    given = work.parameters, work.losses, work.pieces(fit.rows), work.directions, work.wanted
    with unfused() as mode, lean.channels(fit.last), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)  # PyTorch's own use of it
        derivatives = vectorised(*given, fit.at_once) if fit.at_once > 1 else forward(*given)
    del given  # and with it what fills the batch up
    return _weighed(work, derivatives, mode.random, back)


def _by_two_backward_passes(work: _Work, rows: int, back: Fit) -> _Found:
    with unfused() as mode:
        each, pieces = [], work.pieces(rows)
        if len(pieces) == 1:  # one graph for all, whose random numbers needn't be repeated
            values = one_loss_each(work.losses(*pieces[0]), count(pieces[0]))
            derivatives = transposed(work.parameters, values, work.directions, work.wanted)
            return _weighed(work, derivatives, mode.random, back, values)
        for part in pieces:
            values = one_loss_each(work.losses(*part), count(part))
            each.append(transposed(work.parameters, values, work.directions, work.wanted))
        del values, part, pieces
    return _weighed(work, torch.cat(each), mode.random, back)


def _weighed(work: _Work, derivatives: Tensor, random: bool, back: Fit, values: Tensor | None = None) -> _Found:
    """The weights by the derivatives, and the sum of the gradients by one backward pass.

    Where fused operations were taken apart and drew `random` numbers, they are taken apart here as well.  Copies that
    fill the batch up have weight zero.
    """
    every = work.norms(derivatives)
    norms = every if work.units is not None else every[: work.n]
    weights = work.task.weigh(norms)
    each = work.per_example(weights)
    if values is None:
        with unfused() if random else nullcontext(), lean.channels(back.last):
            values, sums = _in_pieces(work, each, work.pieces(back.rows))
    else:
        sums = _backward(work, values, each)
    checked, spoiled = derivatives[: work.n, :_CHECKED], ~torch.isfinite(every).all()
    return _Found(values.detach()[: work.n], checked, norms, weights, sums, spoiled)


def _in_pieces(work: _Work, weights: Tensor, pieces: list[tuple[Any, ...]]) -> tuple[Tensor, list[Tensor]]:
    """The losses, and the gradient of `sum_i w_i loss_i`."""
    if len(pieces) == 1:
        values = one_loss_each(work.losses(*pieces[0]), count(pieces[0]))
        return values, _backward(work, values, weights)
    sums = [torch.zeros_like(p, memory_format=torch.contiguous_format) for p in work.parameters]
    seen: list[Tensor] = []
    for piece in pieces:
        values = one_loss_each(work.losses(*piece), count(piece))
        own, weights = weights[: len(values)], weights[len(values) :]
        add_gradients(work.parameters, values, _like(values, own), sums)
        seen.append(values.detach())
    return torch.cat(seen), sums


def _by_loop(work: _Work, losses: Losses, most: int) -> _Found:
    """Each unit's gradient formed: for what can be differentiated backwards only, and once.

    As many directions are kept as may be, the others drawn anew for every unit.
    """
    sums = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in work.parameters]
    kept = {j: list(work.directions(j)) for j in work.wanted[:most]}
    losses_seen, order, all_norms = [], [], []
    real = pick(work.task.batch, slice(0, work.n))
    for members in members_of(real, work.units):
        value, grads = gradient_of(work.parameters, losses, pick(real, members))
        along = [dot(grads, kept[j] if j in kept else work.directions(j)) for j in work.wanted]
        norms = (torch.linalg.vector_norm(torch.stack(along)) / work.projections**0.5).to(grads[0].dtype)[None, None]
        weight = work.task.weigh(norms)[0, 0]
        if bool(torch.isfinite(norms).all()):
            for total, grad in zip(sums, grads, strict=True):
                total.add_(grad, alpha=float(weight))
        losses_seen.append(value)
        order.append(members)
        all_norms.append(norms[0])
        del grads
    joined = torch.cat(losses_seen)
    where = torch.cat(order).to(joined.device)
    found = torch.stack(all_norms)
    values = torch.empty_like(joined).index_copy_(0, where, joined)
    return _Found(values, joined[:, None], found, found, sums, ~torch.isfinite(found).all())


def _backward(work: _Work, values: Tensor, weights: Tensor) -> list[Tensor]:
    """The gradient of `sum_i w_i loss_i`."""
    if not values.requires_grad:
        return [torch.zeros_like(p) for p in work.parameters]
    grads: list[Any] = list(
        torch.autograd.grad(values, list(work.parameters), _like(values, weights), allow_unused=True)
    )
    for k, p in enumerate(work.parameters):
        grads[k] = (
            torch.zeros_like(p) if grads[k] is None else wide(grads[k].to_dense() if grads[k].is_sparse else grads[k])
        )
    return owned(grads)


def _like(values: Tensor, weights: Tensor) -> Tensor:
    """Weights of the values' type; zero for copies that fill a batch up."""
    return torch.nn.functional.pad(weights, (0, len(values) - len(weights))).to(values.dtype)


def _agrees(work: _Work, found: _Found, backward: Tensor) -> bool:
    """Whether the sum's derivatives along a few directions are the sums of the examples' derivatives.

    The largest share that a unit has in the sum stands for the threshold, which it doesn't exceed.
    """
    weights = work.per_example(found.weights).double()
    forwards = (weights[:, None] * found.checked.double()).sum(0)
    threshold = (found.weights * found.norms).double().max()
    allowed = _TOLERANCE * threshold + _ROUNDING * forwards.square().mean().sqrt()
    return bool((backward - forwards).square().mean().sqrt() <= allowed)


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
