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
from hush.gradients.engines import Directions, Losses, Memory, count, pick
from hush.gradients.footprint import peak_bytes
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
    """Of what the size is asked; `random()` tells whether the last call of `losses` drew random numbers.

    Then the batch isn't parted: all passes of a step must see the same numbers.
    """

    parameters: Sequence[Tensor]
    losses: Losses
    batch: Sequence[Any]
    directions: Directions
    projections: int
    memory: Memory
    random: Callable[[], bool]

    def forward(self, most: int = _MOST_AT_ONCE) -> Fit:
        """For forward mode, within 1.3 times plain training's memory; `most` directions at once at most."""
        n = count(self.batch)
        try:
            room = self._room(FORWARD)
            one = self._measured("one direction", self._forward_bytes)
            if min(most, self.projections) > 1 and 2 * self._size + one * n <= room:
                two = self._measured("two directions", self._vectorised_bytes)
                at_once = min(most, self.projections, int(room / (self._size + two * n / 2)))
                if at_once > 1:
                    return Fit(at_once, n)
        except Exception:  # whatever it is, it will come up, and be dealt with, where it is computed
            return Fit(1, n)
        return Fit(1, self._rows(room - self._size, one))

    def transposed(self) -> int:
        """Rows at once for two backward passes, within 2.5 times plain training's memory."""
        try:
            room = self._room(DOUBLE)
            each = self._measured("transposed", self._transposed_bytes)
        except Exception:
            return count(self.batch)
        return self._rows(room - 2 * self._size, each)

    def directions_kept(self) -> int:
        """How many directions may be kept beside two vectors like the parameters."""
        try:
            return max(0, int(self._room(DOUBLE) / self._size) - 2)
        except Exception:
            return 0

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
        if each * n <= room or self._measured("random", self._drawn):
            return n
        return max(-(-n // _MOST_PARTS), int(room / each), 1)

    def _plain_bytes(self) -> float:
        part = pick(self.batch, slice(0, self._known))

        def step() -> None:
            with torch.enable_grad():
                values = self.losses(*part)
                if values.requires_grad:
                    torch.autograd.grad(values, list(self.parameters), torch.ones_like(values), allow_unused=True)

        return self._beyond(step, 1, self._known)

    def _drawn(self) -> float:
        """1 where the loss draws random numbers, 0 where it doesn't."""
        with torch.no_grad():
            self.losses(*self._few()[0])
        return float(self.random())

    def _forward_bytes(self) -> float:
        part, few = self._few()
        with unfused():
            return self._beyond(
                lambda: forward(self.parameters, self.losses, part, self.directions, range(1), few), 1, few
            )

    def _vectorised_bytes(self) -> float:
        part, few = self._few()
        with unfused():
            try:
                return self._beyond(
                    lambda: vectorised(self.parameters, self.losses, part, self.directions, range(2), 2, few), 2, few
                )
            except Exception:  # it can't be vectorised
                return math.inf

    def _transposed_bytes(self) -> float:
        part, few = self._few()

        def step() -> None:
            with torch.enable_grad(), unfused():
                transposed(self.parameters, self.losses(*part), self.directions, range(1))

        return self._beyond(step, 2, few)

    def _beyond(self, computation: Callable[[], object], vectors: int, rows: int) -> float:
        """Bytes an example beyond so many vectors like the parameters."""
        return max(0, peak_bytes(computation) - vectors * self._size) / rows

    def _few(self) -> tuple[tuple[Any, ...], int]:
        """So few examples that even several times a plain step's memory each wouldn't matter."""
        few = max(1, self._known // 16)
        return pick(self.batch, slice(0, few)), few
