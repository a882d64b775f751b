"""How many directions, and examples, are computed at once, so that memory stays near that of plain training.

A plain step holds the parameters, their gradients and what the forward pass keeps for the backward pass.  Forward mode
keeps nothing: k directions hold themselves and, at a time, an operation's values and tangents.  Where those alone are
too large (few layers, each with much to compute), the batch goes through in parts of some rows.

All of it is measured on the first examples of a batch, once for each shape of examples and each power of two that their
number reaches, so that a resumed run decides the same.  Let f(m) be the most bytes that m examples need at a time.  It
is a maximum of lines c + m a with c, a >= 0, so f(k m) <= k f(m); what is known to be constant (directions, gradients)
is left out of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hush.gradients.directional import forward, transposed, vectorised
from hush.gradients.engines import Directions, Memory, Projected, count, pick
from hush.gradients.footprint import peak_bytes
from hush.gradients.repeated import Repeated
from hush.gradients.unfused import unfused

FORWARD, DOUBLE = 1.25, 2.4
"""Times the memory of plain training: a little less than the 1.3 in forward mode, and 2.5 with two backward passes,
that it may be, since kernels need memory that isn't seen here."""
_MOST_AT_ONCE = 16
_MOST_PARTS = 64


@dataclass(frozen=True)
class Fit:
    """So many directions at once, so many examples at once."""

    at_once: int
    rows: int


@dataclass(frozen=True)
class Fitting:
    """Of what the size is asked."""

    parameters: Sequence[Tensor]
    losses: Repeated
    batch: Sequence[Any]
    engine: Projected
    memory: Memory

    def forward(self, most: int = _MOST_AT_ONCE) -> Fit:
        """For forward mode, within 1.3 times plain training's memory; `most` directions at once at most.

        A batch whose losses are random isn't parted here: all passes of a step must see the same numbers.
        """
        fit = self._forward(most, self._size)
        return Fit(fit.at_once, count(self.batch)) if self._random() else fit

    def transposed(self) -> int:
        """Rows at once for two backward passes, within 2.5 times plain training's memory; all of random ones."""
        return count(self.batch) if self._random() else self._transposed(2 * self._size)

    def rows_of_random(self, double: bool) -> int:
        """How many examples go through all passes of a step together, where their losses are random.

        The other parts' sum is beside them, and the backward pass may have to take fused operations apart as well.
        """
        n = count(self.batch)
        kind = self._random()
        if not kind:
            return n
        rows = self._transposed(3 * self._size) if double else self._forward(_MOST_AT_ONCE, 2 * self._size).rows
        if kind > 1:
            try:
                room = self._room(DOUBLE if double else FORWARD) - 2 * self._size
                rows = min(rows, self._rows(room, self._measured("apart", self._apart_bytes)))
            except Exception:
                return rows
        return rows

    def directions_kept(self) -> int:
        """How many directions may be kept beside two vectors like the parameters."""
        try:
            return max(0, int(self._room(DOUBLE) / self._size) - 2)
        except Exception:
            return 0

    def _forward(self, most: int, held: int) -> Fit:
        n, most = count(self.batch), min(most, self.engine.projections)
        try:
            room = self._room(FORWARD) - (held - self._size)
            one = self._measured("one direction", self._forward_bytes)
            if most > 1 and 2 * self._size + one * n <= room:
                two = self._measured("two directions", self._vectorised_bytes)
                at_once = min(most, int(room / (self._size + two * n / 2)))
                if at_once > 1:
                    return Fit(at_once, n)
        except Exception:  # whatever it is, it will come up, and be dealt with, where it is computed
            return Fit(1, n)
        return Fit(1, self._rows(room - self._size, one))

    def _transposed(self, held: int) -> int:
        try:
            return self._rows(self._room(DOUBLE) - held, self._measured("transposed", self._transposed_bytes))
        except Exception:
            return count(self.batch)

    @property
    def _directions(self) -> Directions:
        assert self.engine.directions is not None
        return self.engine.directions

    @property
    def _size(self) -> int:
        return max(1, sum(p.numel() * p.element_size() for p in self.parameters))

    @property
    def _known(self) -> int:
        """The largest power of two that isn't more than there are examples."""
        return 1 << (count(self.batch).bit_length() - 1)

    def _measured(self, what: str, bytes_of: Callable[[], float]) -> float:
        """Bytes an example, beyond directions and gradients of the parameters' size."""
        shapes = tuple(x.shape[1:] if isinstance(x, Tensor) else None for x in self.batch)
        key = (what, shapes, self._known)
        if key not in self.memory.sizes:
            self.memory.sizes[key] = bytes_of()
        return self.memory.sizes[key]

    def _room(self, times: float) -> float:
        """What there is beside the parameters, in so many times the memory of plain training."""
        each = self._measured("plain", self._plain_bytes)
        return times * (2 * self._size + each * count(self.batch)) - self._size

    def _rows(self, room: float, each: float) -> int:
        n = count(self.batch)
        if each * n <= room or room <= 0:  # or it wouldn't help
            return n
        return max(-(-n // _MOST_PARTS), int(room / each), 1)

    def _random(self) -> float:
        """0 where the loss draws no random numbers, 2 where a fused operation that is taken apart does, else 1."""
        try:
            return self._measured("random", self._drawn)
        except Exception:
            return 0.0

    def _plain_bytes(self) -> float:
        return self._backward_bytes(self._known)

    def _apart_bytes(self) -> float:
        with unfused():
            return self._backward_bytes(self._few()[1])

    def _backward_bytes(self, rows: int) -> float:
        part = pick(self.batch, slice(0, rows))

        def step() -> None:
            with torch.enable_grad():
                values = self.losses(*part)
                if values.requires_grad:
                    torch.autograd.grad(values, list(self.parameters), torch.ones_like(values), allow_unused=True)

        return self._beyond(step, 1, rows)

    def _drawn(self) -> float:
        with torch.no_grad(), unfused() as mode:
            self.losses(*self._few()[0])
        return (2.0 if mode.random else 1.0) if self.losses.drew() else 0.0

    def _forward_bytes(self) -> float:
        part, few = self._few()
        with unfused():
            return self._beyond(
                lambda: forward(self.parameters, self.losses, part, self._directions, range(1), few), 1, few
            )

    def _vectorised_bytes(self) -> float:
        part, few = self._few()
        with unfused():
            try:
                return self._beyond(
                    lambda: vectorised(self.parameters, self.losses, part, self._directions, range(2), 2, few), 2, few
                )
            except Exception:  # it can't be vectorised
                return math.inf

    def _transposed_bytes(self) -> float:
        part, few = self._few()

        def step() -> None:
            with torch.enable_grad(), unfused():
                transposed(self.parameters, self.losses(*part), self._directions, range(1))

        return self._beyond(step, 2, few)

    def _beyond(self, computation: Callable[[], object], vectors: int, rows: int) -> float:
        """Bytes an example beyond so many vectors like the parameters."""
        return max(0, peak_bytes(computation) - vectors * self._size) / rows

    def _few(self) -> tuple[tuple[Any, ...], int]:
        """So few examples that even several times a plain step's memory each wouldn't matter."""
        few = max(1, self._known // 16)
        return pick(self.batch, slice(0, few)), few
