"""Batches filled up with copies that count nothing, so that a record's numbers are the same in any company.

A matrix product of 3 rows is rounded otherwise than one of 4: libraries choose another algorithm for another size.
Where a pre-activation lies at a kink, its last bit decides whether a gradient is there, so that one record more could
turn the gradients of all the others: 15 duplicates and then 16 moved a sum by 18 thresholds. On the processor we
measured (x86 with MKL and oneDNN, one to three threads) a record's bits depend on the size of its batch below 16
examples, and in element-wise functions on whether it lies in a last, incomplete vector of 32 numbers; otherwise neither
on its place nor on what else is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hush.accounting.checks import check_whole

if TYPE_CHECKING:
    from hush.gradients.engines import ClippedSum, Task


@dataclass(frozen=True)
class Filling:
    """Sizes that batches, or parts of them, are filled up to: `least`, or the next multiple of `multiple`."""

    multiple: int = 1
    least: int = 1

    def size(self, n: int) -> int:
        return max(self.least, self.multiple * math.ceil(n / self.multiple))


AS_IT_IS = Filling()
LEAST, VECTOR = 16, 32
"""Fewer examples are computed by other algorithms; so many fill whole vectors of any element-wise function."""
AT_ONCE = 1024
"""So many are computed at once on a CPU: more take as much time, and more memory."""


def affordable(batch: float, microbatch: int | None) -> Filling:
    """What costs less than a tenth for batches of about this size: half a multiple, or part, on average."""
    if microbatch is not None and 5 * microbatch <= batch:
        return Filling(microbatch, microbatch)
    at_once = min(batch, microbatch or batch)
    multiple = min(VECTOR, 1 << int(math.log2(max(at_once / 5, 1))))
    while microbatch is not None and microbatch % multiple:
        multiple //= 2  # whole parts stay as they are
    return Filling(multiple, LEAST if at_once >= 1.25 * LEAST else 1)


def cut(
    batch: float, microbatch: int | None, alike: bool, whole: bool = False, on_cpu: bool = False
) -> tuple[int | None, Filling]:
    """How many examples are computed at once, and what they are filled up to; `alike`: always to one size.

    `whole` batches aren't cut, as the sums of pieces would need more memory, but filled up to whole vectors. Of a
    microbatch whole vectors are taken, or halves or quarters; in pieces of fewer, but one, an example's place counts.
    """
    if microbatch is not None:
        check_whole("The microbatch", microbatch)
        microbatch = int(microbatch)
    if not alike:
        if on_cpu and not whole and microbatch is None and batch > AT_ONCE:
            microbatch = AT_ONCE
        return microbatch, affordable(batch, microbatch)
    if whole:
        return microbatch, Filling(VECTOR, VECTOR)
    size = VECTOR * min(max(round(batch / 128), 1), 8) if microbatch is None else _alike(microbatch)
    return size, Filling(size, size)


def _alike(microbatch: int) -> int:
    """The most examples up to a microbatch that are rounded alike in any place."""
    if microbatch >= VECTOR:
        return microbatch // VECTOR * VECTOR
    return next(size for size in (VECTOR // 2, VECTOR // 4, 1) if size <= microbatch)


def filled(task: Task, compute: Callable[[Task], ClippedSum]) -> ClippedSum:
    """The clipped sum of a batch that is filled up with copies of its first example, whose weight is zero.

    With units, the copies belong to none. A copy has random numbers of its own: where its gradient isn't finite though
    no other is, the sum, which has zero times that in it, is marked as spoiled.
    """
    n = next(x.shape[0] for x in task.batch if isinstance(x, Tensor))
    short = task.filling.size(n) - n
    if short == 0:
        return compute(task)

    found = compute(replace(task, batch=up_to(n + short, task.batch, task.spare), copies=short))
    spoiled = ~torch.isfinite(found.norms).all() if found.spoiled is None else found.spoiled
    norms = found.norms[:n] if task.units is None else found.norms
    return replace(found, norms=norms, losses=found.losses[:n], spoiled=spoiled)


def up_to(size: int, batch: Sequence[Any], spare: Sequence[Any] | None = None) -> tuple[Any, ...]:
    """The batch with copies of its first example, or of `spare` ones, behind it, so many that there are `size`."""

    def longer(x: Tensor, others: Tensor) -> Tensor:
        short = size - len(x)
        if short <= 0:
            return x
        copies = others[torch.arange(short, device=x.device) % len(others)] if len(others) > 1 else others
        return torch.cat([x, copies.expand(short, *x.shape[1:])])

    if spare is None:
        spare = [x[:1] if isinstance(x, Tensor) else x for x in batch]
    return tuple(longer(x, others) if isinstance(x, Tensor) else x for x, others in zip(batch, spare, strict=True))


def weights_of(task: Task, norms: Tensor) -> Tensor:
    """The weights of all units' norms, of copies zero."""
    if task.copies == 0 or task.units is not None:
        return task.weights(norms)
    weights = task.weights(norms[: -task.copies])
    return torch.cat([weights, weights.new_zeros(task.copies, weights.shape[1])])
