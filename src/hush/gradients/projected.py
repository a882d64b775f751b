"""Norms estimated from random projections, as in DP-SGD-JL (Bu et al. 2021), then one weighted backward pass.

With v_1, ..., v_r standard normal vectors and g a unit's gradient, `<g, v_j>` is normal with deviation ||g||, so

    M = sqrt((<g, v_1>^2 + ... + <g, v_r>^2) / r)    has the law of    ||g|| sqrt(chi2_r / r)      (their Prop. 2.1).

The derivatives `<g_i, v_j>` come from forward mode; weighted by min(1, C/M_i) the losses are summed and differentiated
once.  No example's gradient is formed, and memory stays near plain training's.  The price: M may come out too small,
so the sensitivity is random, `C / sqrt(chi2_r / r)`, which `hush.accounting.Projected` accounts.

That account is of the gradients that are summed, which come from backward mode.  So every step checks that both modes
agree (`agreeing`).  Where they don't (gradient hooks, custom functions whose derivatives differ, random numbers that
can't be repeated) or forward mode fails, the next way is taken: two backward passes, and at last one unit after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush import noise
from hush.gradients.agreeing import agrees
from hush.gradients.company import refuse_company
from hush.gradients.directional import parts
from hush.gradients.engines import (
    ClippedSum,
    Directions,
    Groups,
    Memory,
    Projected,
    Task,
    count,
    one_loss_each,
    pick,
)
from hush.gradients.filling import AS_IT_IS
from hush.gradients.fitting import Fit, Fitting
from hush.gradients.placing import now_and_then
from hush.gradients.repeated import Repeated
from hush.gradients.sizes import Sizes, plain_bytes
from hush.gradients.ways import Found, Work, by_forward_mode, by_loop, by_two_backward_passes
from hush.keys import Key
from hush.precision import full_float32

_HALF = (torch.float16, torch.bfloat16)
_PIECE, _PIECES_ON_CPU = 1 << 18, (1 << 10, 1 << 14)  # where the pieces' sizes don't change the numbers
_ADDED_UP = 256
"""So many examples are added up in a row on a CPU, then the sums of parts.

PyTorch adds gradients of embeddings up one by one, in float32.  Roundings of equal ones conspire to n/8 units of the
sum, as measured: 4096 and 4097 of them differed by 1.047 thresholds.  Of 256 it is within what `hush.rounding` counts,
2 * 17, and most is the same in both.
"""


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
        with full_float32(task.parameters):  # TF32 is coarser than what the two modes may differ by
            return _in_parts(task, engine, memory, sizes, plain)


def _in_parts(task: Task, engine: Projected, memory: Memory, sizes: Sizes, plain: float | None) -> ClippedSum:
    """Parts go through all passes where the loss draws random numbers and the whole batch doesn't fit or is many."""
    n = count(task.batch)
    task = replace(task, filling=AS_IT_IS) if task.units is not None else task
    size = task.filling.size(n)
    held = sizes.input * size
    fitting = Fitting(sizes, engine, min(size, engine.rows or size), plain, held, size > n)
    fit = fitting.of_random(double=memory.way > 1) if task.units is None else None
    if fit is not None and not task.parameters[0].is_cuda:
        fit = replace(fit, rows=min(fit.rows, _ADDED_UP))
    sizes.losses.rewind()
    if fit is None or fit.rows >= size:
        return _first_that_works(task, fitting, memory)
    filling = fit.filling(task.filling)
    copied = filling.size(n) > n
    held += sizes.vector + copied * fit.rows * sizes.input  # the sum of the other parts, and a part with copies
    found, start = None, 0
    for part in parts(task.batch, fit.rows, filling, task.spare):
        repeated = Repeated(task.losses, task.parameters)  # its random numbers follow those of the part before
        gone = None if task.left_out is None else task.left_out[start : start + count(part)]
        short = max(0, start + count(part) - n)
        here = replace(task, batch=part, copies=short, filling=AS_IT_IS, left_out=gone)
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
    work = Work(task, repeated, engine.projections, engine.directions)
    back = _backward(fitting, memory.way > 1)
    if work.n > 1 and now_and_then("company", memory):
        asked = work.pieces(back)[0]
        for grad in (False, True):
            repeated.rewind()
            try:
                with torch.set_grad_enabled(grad):
                    values = one_loss_each(losses(*asked), count(asked)).detach()
                    refuse_company(losses, asked, values, last=min(work.n, count(asked)) - 1)
                break
            except RuntimeError:  # a loss may take derivatives of its own
                if grad:
                    raise
        del asked
    repeated.rewind()
    fit = Fit(1, fitting.n)
    if memory.way == 0:
        fit = fitting.forward() if engine.at_once is None else Fit(engine.at_once, fitting.n)
    ways: tuple[tuple[str, Callable[[], Found]], ...] = (
        (f"{fit.at_once} directions at once", lambda: by_forward_mode(work, fit, back)),
        ("one direction at a time", lambda: by_forward_mode(work, fitting.forward(most=1), back)),
        ("two backward passes", lambda: by_two_backward_passes(work, fitting.transposed(), _backward(fitting, True))),
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
        beside = replace(fitting, held=fitting.held + fitting.sizes.vector)  # the sums that there are
        agree = agrees(work, found, partial(_backward, beside, k > 1), fitting)
        if agree:
            return found.result(f"projected, {name}{memory.reason}")
        if agree is not None:
            memory.way, memory.reason = k + 1, " (forward and backward derivatives differ)"
        del found  # its sums are as large as the parameters
    kept = fitting.directions_kept()
    repeated.rewind()
    return by_loop(work, losses, kept).result(f"projected, one unit after the other{memory.reason}")


def _backward(fitting: Fitting, double: bool) -> Fit:
    """How many examples are differentiated, and so added up, together; all of random losses that weren't parted."""
    fit = fitting.backward(double)
    if fitting.sizes.parameters[0].is_cuda or fitting.of_random(double) is not None:
        return fit
    return replace(fit, rows=min(fit.rows, _ADDED_UP))


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
