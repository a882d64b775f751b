"""How many directions, and examples, are computed at once, so that memory stays near that of plain training.

A plain step holds the parameters, their gradients and what the forward pass keeps for the backward pass.  Forward mode
keeps nothing: k directions hold themselves and, at a time, an operation's values and tangents.  Where those alone are
too large (few layers, each with much to compute; kernels in float32 where plain training has them in TF32), the batch
goes through in parts of some rows.

All of it is measured on the first examples of a batch and remembered, so that a resumed run decides the same.

On a CPU, let f(m) be the most bytes that m examples need at a time.  It is a maximum of lines c + m a with c, a >= 0,
so f(k m) <= k f(m), and the line through two of its values lies below it further on.  A pass is measured on a sixteenth
of the batch, and on twice as much while that bound is too coarse and twice as much is sure to fit.  What is known to be
constant (directions, gradients) is left out of f.

A GPU's libraries choose other kernels for other sizes, and f jumps: 58 MiB for 32 examples of VGG-13, 378 for 64.  So
there every size is measured before it is used, with no more memory than there is room (`footprint`): the whole batch,
then powers of two, until one fits.  Parts are of exactly that size, the last one filled up with copies.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from hush.gradients import footprint
from hush.gradients.directional import forward, transposed, vectorised
from hush.gradients.engines import Directions, Projected
from hush.gradients.filling import Filling
from hush.gradients.owned import add_gradients
from hush.gradients.sizes import Bytes, Sizes
from hush.gradients.unfused import unfused

FORWARD, DOUBLE = 1.2, 2.4
"""Times the memory of plain training: a little less than the 1.3 in forward mode, and 2.5 with two backward passes,
that it may be."""
_MOST_AT_ONCE = 32
_MOST_PARTS = 64
_FEW = 16  # of so many examples, one is measured first


@dataclass(frozen=True)
class Fit:
    """So many directions at once, and so many examples: at most, or `exactly` so many."""

    at_once: int
    rows: int
    exactly: bool = False

    def filling(self, usual: Filling) -> Filling:
        """What batches, and their last parts, are filled up to."""
        return Filling(self.rows, self.rows) if self.exactly else usual


@dataclass(frozen=True)
class Fitting:
    """Of what the size is asked: of up to `n` examples at once, copied where the batch is `filled` up.

    `plain` is what plain training holds, `held` what a step holds beside its parameters and what is computed.
    """

    sizes: Sizes
    engine: Projected
    n: int
    plain: float | None
    held: float
    filled: bool = False

    def forward(self, most: int = _MOST_AT_ONCE) -> Fit:
        """For forward mode, within 1.3 times plain training's memory; `most` directions at once at most.

        A batch whose losses are random isn't parted here: all passes of a step must see the same numbers.
        """
        fit = self._forward(most)
        return Fit(fit.at_once, self.n) if self._random() else fit

    def transposed(self) -> Fit:
        """For two backward passes, within 2.5 times plain training's memory; all rows of random losses."""
        return Fit(1, self.n) if self._random() else self._transposed()

    def backward(self, double: bool) -> Fit:
        """For the weighted backward pass; after two backward passes there may be more."""
        return Fit(1, self.n) if self._random() else self._backward(double)

    def of_random(self, double: bool) -> Fit | None:
        """How many examples go through all passes of a step together, where their losses are random; else None.

        The other parts' sum is beside them, and the backward pass may have to take fused operations apart as well.
        """
        if not self._random():
            return None
        if self.engine.at_once is not None:
            return Fit(1, self.n)
        beside = replace(self, held=self.held + self.sizes.vector)
        passes = beside._transposed() if double else beside._forward(_MOST_AT_ONCE)
        return min(passes, beside._backward(double), key=lambda fit: fit.rows)

    def directions_kept(self) -> int:
        """How many directions may be kept beside a gradient and a sum in float64."""
        return 0 if self.plain is None else max(0, int(self._room(DOUBLE) / self.sizes.vector) - 3)

    def _room(self, times: float) -> float:
        """What there is beside the parameters, in so many times the memory of plain training."""
        assert self.plain is not None
        return times * self.plain - self.sizes.vector - self.held

    def _forward(self, most: int) -> Fit:
        most = min(most, self.engine.projections)
        if self.plain is None:
            return Fit(1, self.n)
        try:
            one = self._fit(self._room(FORWARD) - self.sizes.vector, "one direction", self._forward_bytes)
            if most == 1 or one.rows < self.n:
                return one
            at_once = self._at_once_by_kernels if self._kernels else self._at_once
            passes = -(-self.engine.projections // at_once(most, self._room(FORWARD)))
            return Fit(-(-self.engine.projections // passes), self.n)
        except Exception:  # it will come up where it is computed, and may do so early
            return Fit(1, self._few)

    def _transposed(self) -> Fit:
        if self.plain is None:
            return Fit(1, self.n)
        try:
            return self._fit(self._room(DOUBLE) - 2 * self.sizes.vector, "transposed", self._transposed_bytes)
        except Exception:
            return Fit(1, self._few)

    def _backward(self, double: bool) -> Fit:
        if self.plain is None:
            return Fit(1, self.n)
        apart = self._random() > 1
        room = self._room(DOUBLE if double else FORWARD) - self.sizes.vector
        try:
            whole, parts = (f"backward {apart}", self._whole_bytes), (f"parts backward {apart}", self._part_bytes)
            if self._kernels:
                return self._fit_by_kernels(room, whole, parts)
            if self._rows(room, *whole) >= self.n:
                return Fit(1, self.n)
            return Fit(1, self._rows(room, *parts))
        except Exception:
            return Fit(1, self.n)

    def _fit(self, room: float, what: str, bytes_of: Bytes) -> Fit:
        if self._kernels:
            return self._fit_by_kernels(room, (what, bytes_of), (what, bytes_of))
        return Fit(1, self._rows(room, what, bytes_of))

    def _fit_by_kernels(self, room: float, whole: tuple[str, Bytes], parts: tuple[str, Bytes]) -> Fit:
        """The whole batch where it fits, else parts of a power of two; none but sizes that were measured.

        All of it where less room than none is left, as parts wouldn't help.
        """
        if room <= 0 or self._needs(*whole, self.n, room) <= room or self.n == 1:
            return Fit(1, self.n)
        rows = 1 << ((self.n - 1).bit_length() - 1)
        while self._needs(*parts, rows, room) > room and rows > self._few:
            rows //= 2
        return Fit(1, rows, exactly=True)

    def _needs(self, what: str, bytes_of: Bytes, rows: int, room: float = math.inf) -> float:
        copied = rows * self._copied
        return self.sizes.measured(what, rows, bytes_of, room - copied) + copied

    def _rows(self, room: float, what: str, bytes_of: Bytes) -> int:
        """How many examples at once fit; all of them where less room than none is left, as parts wouldn't help."""
        n, known, rows = self.n, self.sizes.known, self._few
        if room <= 0:
            return n

        def need(rows: int) -> float:
            return self._needs(what, bytes_of, rows)

        while rows < known and need(rows) * n > room * rows and 2 * need(rows) <= room:
            rows *= 2
        if need(rows) * n <= room * rows:
            return n
        return max(-(-n // _MOST_PARTS), int(rows * room / need(rows)), 1)

    def _at_once_by_kernels(self, most: int, room: float) -> int:
        """How many directions fit, the whole batch with each, where one does."""
        n, vector, copied = self.n, self.sizes.vector, self.n * self._copied
        at_once = min(most, int((room - copied) / (2 * vector)))  # an operation has to make something of each
        while at_once > 1:
            bytes_of, left = partial(self._vectorised_bytes, at_once), room - copied - at_once * vector
            if self.sizes.measured(f"{at_once} directions", n, bytes_of, left) <= left:
                return at_once
            at_once -= max(1, at_once // 4)
        return 1

    def _at_once(self, most: int, room: float) -> int:
        """How many directions fit; what they share was counted for each, so their number is asked about again."""
        n, vector, known, rows = self.n, self.sizes.vector, self.sizes.known, self._few
        at_once, asked = 1, 2
        while 4 * vector < room:  # two directions, and what a first operation makes of them
            need = self.sizes.measured(f"{asked} directions", rows, partial(self._vectorised_bytes, asked))
            possible = min(most, int((room - n * self._copied) / (vector + need * n / rows / asked)))
            if possible >= asked:
                at_once = possible
            if possible > asked:
                asked = possible
            elif possible == asked or asked > 2:
                at_once = max(1, min(at_once, possible))
                break
            elif rows < known and 2 * (vector + need) <= room:
                rows *= 2
            else:
                break
        return max(1, at_once)

    @property
    def _few(self) -> int:
        """So few examples that even several times a plain step's memory each wouldn't matter."""
        return max(1, self.sizes.known // _FEW)

    @property
    def _copied(self) -> float:
        """Bytes an example of a copy of the batch, which is made to fill it up."""
        return self.sizes.input if self.filled else 0.0

    @property
    def _kernels(self) -> bool:
        return footprint.sees_kernels(self.sizes.parameters[0].device)

    def _random(self) -> float:
        """0 where the loss draws no random numbers, 2 where a fused operation that is taken apart does, else 1."""
        try:
            return self.sizes.measured("random", self._few, self._drawn)
        except Exception:
            return 0.0

    def _drawn(self, rows: int, _: float) -> float:
        with torch.no_grad(), unfused() as mode:
            self.sizes.losses(*self.sizes.first(rows))
        return (2.0 if mode.random else 1.0) if self.sizes.losses.drew() else 0.0

    def _whole_bytes(self, rows: int, room: float) -> float:
        with unfused() if self._random() > 1 else nullcontext():
            return self.sizes.backward(rows, room)

    def _part_bytes(self, rows: int, room: float) -> float:
        parameters, examples = self.sizes.parameters, self.sizes.first(rows)

        def step() -> None:
            with torch.enable_grad():
                sums = [torch.zeros_like(p) for p in parameters]
                values = self.sizes.losses(*examples)
                add_gradients(parameters, values, torch.ones_like(values), sums)

        with unfused() if self._random() > 1 else nullcontext():
            return self.sizes.beyond(step, 1, room)

    def _forward_bytes(self, rows: int, room: float) -> float:
        given = self.sizes.parameters, self.sizes.losses, [self.sizes.first(rows)], self._directions, range(1)
        with unfused():
            return self.sizes.beyond(lambda: forward(*given), 1, room) + rows * self.sizes.unseen

    def _vectorised_bytes(self, at_once: int, rows: int, room: float) -> float:
        wanted, examples = range(at_once), self.sizes.first(rows)
        given = self.sizes.parameters, self.sizes.losses, [examples], self._directions, wanted, at_once
        with unfused():
            try:
                return self.sizes.beyond(lambda: vectorised(*given), at_once, room) + rows * self.sizes.unseen
            except Exception:  # it can't be vectorised
                return math.inf

    def _transposed_bytes(self, rows: int, room: float) -> float:
        examples = self.sizes.first(rows)

        def step() -> None:
            with torch.enable_grad(), unfused():
                transposed(self.sizes.parameters, self.sizes.losses(*examples), self._directions, range(1))

        return self.sizes.beyond(step, 2, room)

    @property
    def _directions(self) -> Directions:
        assert self.engine.directions is not None
        return self.engine.directions
