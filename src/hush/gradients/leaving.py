"""Units whose gradients aren't finite contribute nothing, and change nothing for anybody else.

Zero times infinity isn't zero, so a weight alone doesn't keep them out of a sum.  Where an engine has gradients or
their factors in hand, it empties theirs.  Where it hasn't (captured programs, a backward pass of weighted losses), the
sum is computed again.  Were that done without them, all others would draw other random numbers, as dropout masks belong
to rows, and those that are finite only under some of them would get another chance to fail: one record would decide
about the contributions of others.

So everything stays as it was: generators go back to where they began, shapes and places are the same, and another
example, that was finite, stands in for each that is left out, with weight zero.  Everyone else then gets the same
numbers, to the last bit where the device computes the same twice.  Should the one who stands in not be finite under
that row's random numbers, the next one does, and so on.  Numbers under which nobody is finite are nobody's fault: then
all units are computed anew, one after the other, with fresh numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hush.randomness import Place

if TYPE_CHECKING:
    from hush.gradients.engines import ClippedSum, Memory, Task

_ASKED = 4
_STAND_INS, _COPIES = 32, 8
_NOT_DUE = -4
"""Calls so far: nothing is looked at now and then, and what must be looked at is looked at as the first time."""


def of_finite_units(
    task: Task,
    run: Callable[[Task, Memory], ClippedSum],
    alone: Callable[[], ClippedSum],
    memory: Memory,
    random: bool,
    meanwhile: Callable[[list[Tensor]], object] | None = None,
) -> ClippedSum:
    """What `run` computes, without the units that aren't finite; what `alone` does, if nobody can stand in for them.

    A program that couldn't be captured may be captured with those who stand in, and a way to projected norms that
    worked may not work; random numbers are others then.  So it is asked once more who isn't finite.  So it is where a
    slower way was gone because gradients that aren't finite, of finite losses, show no places: with those who stand in
    places are found, and known when all are computed as they were.
    """
    place = memory.begun = Place({p.device for p in task.parameters}, random)
    way, now = memory.way, memory
    for _ in range(_ASKED):
        first = run(task, now)
        memory.way, memory.reason = now.way, now.reason
        if meanwhile is not None:
            meanwhile(first.sums)
            meanwhile = None
        if not _spoiled(first):
            return replace(first, spoiled=None)
        slow = _slow(first)  # then factors were emptied, and its sums are right
        if slow:
            memory.places.clear()  # what was found with those who aren't finite
        first = first if slow else replace(first, sums=[])
        before = now = replace(memory, way=way, calls=dict.fromkeys(memory.calls, _NOT_DUE))

        def again(changed: Task, before: Memory = before) -> ClippedSum:
            place.go_back()
            before.calls = dict.fromkeys(memory.calls, _NOT_DUE)
            return run(changed, before)

        found = _with_stand_ins(task, first, again)
        guessed = slow and (found is None or _slow(found))
        if guessed:
            found = _with_stand_ins(task, first, again, by_norms=True)
        if found is None or (_kind(found) == _kind(first) and not (guessed and not _slow(found))):
            break
        way, now.calls = now.way, dict.fromkeys(memory.calls, _NOT_DUE)
        place.go_back()
    if slow and (guessed or found is None or _slow(found)):
        return replace(first, spoiled=None)
    if found is None:
        found = alone()
        found = replace(found, notes=(*first.notes, *found.notes))
    return replace(found, spoiled=None)


def _with_stand_ins(
    task: Task, first: ClippedSum, again: Callable[[Task], ClippedSum], by_norms: bool = False
) -> ClippedSum | None:
    """The clipped sum with others in the places of the units that aren't finite; None if nobody fits there.

    They take turns, and so do those that fill the batch up.
    """
    units = torch.arange(len(first.norms)) if task.units is None else task.units
    left_out = _failed(first, units, by_norms)
    sizes = first.norms.amax(1).cpu().masked_fill(left_out, torch.inf)[units]
    order = torch.argsort(sizes)[: int(torch.isfinite(sizes).sum())]  # small gradients are harmless
    if len(order) == 0:
        nothing = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in task.parameters]
        return replace(first, sums=nothing)
    rows = turn = torch.arange(len(units))
    for k in range(_COPIES if _slow(first) and not bool(left_out.any()) else _STAND_INS):
        batch = _pick(task, torch.where(left_out[units], order[turn % len(order)], rows))
        shuffled = torch.randperm(len(order), generator=torch.Generator().manual_seed(k))
        spare, gone = _pick(task, order[shuffled]), left_out.to(first.norms.device)
        found = again(replace(task, batch=batch, spare=spare, left_out=gone))
        if not _spoiled(found):
            return replace(found, norms=found.norms.masked_fill(gone[:, None], torch.nan), losses=first.losses)
        failed = _failed(found, units, by_norms)
        left_out, turn = left_out | failed, turn + failed[units]
    return None


def _failed(result: ClippedSum, units: Tensor, by_norms: bool) -> Tensor:
    """The units that aren't finite.

    Of a slower way the norms come from another pass than the losses, with other random numbers.  It may have been gone
    for want of finite examples only, so the first pass is what counts: its losses, though gradients of finite ones may
    not be finite.  Whom the norms accuse, `by_norms`, is a guess.
    """
    failed = ~torch.isfinite(result.norms).all(1).cpu()
    if not _slow(result):
        return failed
    failed &= by_norms
    failed[units[~torch.isfinite(result.losses).cpu()]] = True
    return failed


def _pick(task: Task, rows: Tensor) -> tuple[Any, ...]:
    return tuple(x[rows.to(x.device)] if isinstance(x, Tensor) else x for x in task.batch)


def _spoiled(result: ClippedSum) -> bool:
    """Whether what isn't finite may be in the sum; waits for the device."""
    return not bool(torch.isfinite(result.norms).all()) if result.spoiled is None else bool(result.spoiled)


def _slow(result: ClippedSum) -> bool:
    return any(note.startswith("parameter ") for note in result.notes)


def _kind(result: ClippedSum) -> list[str]:
    return [note for note in result.notes if not note.startswith("parameter ")]
