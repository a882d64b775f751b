"""What passes over the first examples of a batch need, and what plain training holds, measured once and remembered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hush.gradients import footprint
from hush.gradients.engines import Memory, count, pick
from hush.gradients.filling import up_to
from hush.gradients.repeated import Repeated

Bytes = Callable[[int, float], float]
"""What so many examples need at most, beyond vectors of the parameters' size; infinity, where that is more than can be
had."""


@dataclass(frozen=True)
class Sizes:
    """What passes over the first examples of a batch need, measured where it isn't remembered."""

    parameters: Sequence[Tensor]
    losses: Repeated
    batch: Sequence[Any]
    memory: Memory

    @property
    def vector(self) -> int:
        """Bytes of a vector of the parameters' size."""
        return max(1, sum(p.numel() * p.element_size() for p in self.parameters))

    @property
    def input(self) -> float:
        """Bytes of an example of the batch."""
        tensors = [x for x in self.batch if isinstance(x, Tensor)]
        return sum(x.numel() * x.element_size() for x in tensors) / count(self.batch)

    @property
    def unseen(self) -> float:
        """Bytes an example that forward mode may need beyond what is counted on a CPU: its first operation writes out
        the tangent of what it is given, which is zero."""
        return 0.0 if footprint.sees_kernels(self.parameters[0].device) else self.input

    @property
    def known(self) -> int:
        """The largest power of two that isn't more than there are examples."""
        return 1 << (count(self.batch).bit_length() - 1)

    def measured(self, what: str, rows: int, bytes_of: Bytes, room: float = math.inf) -> float:
        """What `bytes_of` says; that something needs more than some room is remembered as minus that."""
        shapes = tuple(x.shape[1:] if isinstance(x, Tensor) else None for x in self.batch)
        key, sizes = (what, shapes, rows), self.memory.sizes
        if key not in sizes or (sizes[key] < 0 and room > -1.05 * sizes[key]):
            found = bytes_of(rows, room)
            sizes[key] = found if found < math.inf else -max(room, 0.0)
        return sizes[key] if sizes[key] >= 0 else math.inf

    def beyond(self, computation: Callable[[], object], vectors: int, room: float = math.inf) -> float:
        """Bytes that a computation needs beyond so many vectors like the parameters."""
        limit = room + vectors * self.vector
        return max(0, footprint.peak_bytes(computation, self.parameters[0].device, limit) - vectors * self.vector)

    def first(self, rows: int) -> tuple[Any, ...]:
        """So many examples, filled up with copies where there are fewer."""
        return up_to(rows, pick(self.batch, slice(0, rows)))

    def backward(self, rows: int, room: float = math.inf) -> float:
        """The gradient of a sum of losses."""
        examples = self.first(rows)

        def step() -> None:
            with torch.enable_grad():
                values = self.losses(*examples)
                if values.requires_grad:
                    torch.autograd.grad(values, list(self.parameters), torch.ones_like(values), allow_unused=True)

        return self.beyond(step, 1, room)


def plain_bytes(sizes: Sizes, inputs: int) -> float | None:
    """What plain training holds at least beside `inputs` examples; None where it fails.

    To be asked in the precision that it has.
    """
    known = sizes.known
    try:
        most = sizes.measured("plain", known, sizes.backward)
        if known > 1 and count(sizes.batch) > known:
            half = sizes.measured("plain", known // 2, sizes.backward)
            most += (count(sizes.batch) / known - 1) * 2 * max(0.0, most - half)
    except Exception:  # whatever it is, it will come up, and be dealt with, where it is computed
        return None
    return 2 * sizes.vector + most + sizes.input * inputs
