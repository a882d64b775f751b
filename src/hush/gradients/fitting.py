"""How many directions, and examples, are computed at once, so that memory stays near that of plain training.

A plain step holds the parameters, their gradients and what the forward pass keeps for the backward pass.  Forward mode
keeps nothing: k directions hold themselves and, at a time, an operation's values and tangents.  Where those alone are
too large (few layers, each with much to compute; kernels in float32 where plain training has them in TF32), the batch
goes through in parts of some rows.

All of it is measured on the first examples of a batch, once for each shape of examples and a few powers of two, so that
a resumed run decides the same.  Let f(m) be the most bytes that m examples need at a time.  It is a maximum of lines
c + m a with c, a >= 0, so f(k m) <= k f(m), and the line through two of its values lies below it further on.  A pass is
measured on a sixteenth of the batch, and on twice as much while that bound is too coarse and twice as much is sure to
fit.  What is known to be constant (directions, gradients) is left out of f.  A GPU's libraries choose other kernels for
other sizes, so there what should fit as a whole is measured as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from hush.gradients import footprint, lean
from hush.gradients.directional import forward, transposed, vectorised
from hush.gradients.engines import Directions, Projected, pick
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
    """So many directions at once, so many examples at once, and whether convolutions see their channels last."""

    at_once: int
    rows: int
    last: bool = False


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
        return Fit(fit.at_once, self.n, fit.last) if self._random() else fit

    def transposed(self) -> int:
        """Rows at once for two backward passes, within 2.5 times plain training's memory; all of random ones."""
        return self.n if self._random() else self._transposed()

    def backward(self, double: bool) -> Fit:
        """For the weighted backward pass; after two backward passes there may be more."""
        fit = self._backward(double)
        return Fit(1, self.n, fit.last) if self._random() else fit

    def rows_of_random(self, double: bool) -> int | None:
        """How many examples go through all passes of a step together, where their losses are random; else None.

        The other parts' sum is beside them, and the backward pass may have to take fused operations apart as well.
        """
        if not self._random():
            return None
        if self.engine.at_once is not None:
            return self.n
        beside = replace(self, held=self.held + self.sizes.vector)
        rows = beside._transposed() if double else beside._forward(_MOST_AT_ONCE).rows
        return min(rows, beside._backward(double).rows)

    def directions_kept(self) -> int:
        """How many directions may be kept beside two vectors like the parameters."""
        return 0 if self.plain is None else max(0, int(self._room(DOUBLE) / self.sizes.vector) - 2)

    def _room(self, times: float) -> float:
        """What there is beside the parameters, in so many times the memory of plain training."""
        assert self.plain is not None
        return times * self.plain - self.sizes.vector - self.held

    def _forward(self, most: int) -> Fit:
        most = min(most, self.engine.projections)
        if self.plain is None:
            return Fit(1, self.n)
        try:
            one = self._best(self._room(FORWARD) - self.sizes.vector, "one direction", self._forward_bytes)
            if most == 1 or one != Fit(1, self.n):
                return one
            passes = -(-self.engine.projections // self._at_once(most, self._room(FORWARD)))
            return Fit(-(-self.engine.projections // passes), self.n)
        except Exception:  # it will come up where it is computed, and may do so early
            return Fit(1, self._few)

    def _transposed(self) -> int:
        if self.plain is None:
            return self.n
        try:
            return self._rows(self._room(DOUBLE) - 2 * self.sizes.vector, "transposed", self._transposed_bytes)
        except Exception:
            return self._few

    def _backward(self, double: bool) -> Fit:
        if self.plain is None:
            return Fit(1, self.n)
        apart = self._random() > 1
        room = self._room(DOUBLE if double else FORWARD) - self.sizes.vector
        try:
            if self._rows(room, f"backward {apart}", self._whole_bytes) >= self.n:
                return Fit(1, self.n)
            return self._best(room, f"parts backward {apart}", self._part_bytes)
        except Exception:
            return Fit(1, self.n)

    def _best(self, room: float, what: str, bytes_of: Callable[[bool, int], float]) -> Fit:
        """As many rows as there can be, with their channels as they are or last."""
        fits = []
        for last in lean.layouts(self.sizes.parameters[0].device):
            rows = self._rows(room, f"{what}, {last}", partial(bytes_of, last))
            fits.append(Fit(1, rows, last))
            if fits[-1].rows >= self.n:
                break
        return max(fits, key=lambda fit: fit.rows)

    def _rows(self, room: float, what: str, bytes_of: Bytes) -> int:
        """How many examples at once fit; all of them where less room than none is left, as parts wouldn't help."""
        n, known, rows = self.n, self.sizes.known, self._few
        if room <= 0:
            return n

        def need(rows: int) -> float:
            return self.sizes.measured(what, rows, bytes_of) + rows * self._copied

        while rows < known:
            all_fit = need(rows) * n <= room * rows
            if all_fit and not self._kernels:
                return n
            if not all_fit and 2 * need(rows) > room:
                break
            following = known if all_fit else 2 * rows
            while need(following) > room and following > 2 * rows:
                following //= 2
            if need(following) > room:  # other kernels than those of fewer examples
                return rows
            rows = following
        if need(rows) * n <= room * rows:
            return n
        return max(-(-n // _MOST_PARTS), int(rows * room / need(rows)), 1)

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
        while at_once > 1 and self._kernels:  # those of the whole batch may be others
            need = self.sizes.measured(f"{at_once} directions", known, partial(self._vectorised_bytes, at_once))
            possible = int((room - n * self._copied) / (vector + need * n / known / at_once))
            if possible >= at_once:
                break
            at_once = possible
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

    def _drawn(self, rows: int) -> float:
        with torch.no_grad(), unfused() as mode:
            self.sizes.losses(*self._first(rows))
        return (2.0 if mode.random else 1.0) if self.sizes.losses.drew() else 0.0

    def _whole_bytes(self, rows: int) -> float:
        if self._random() > 1:
            with unfused():
                return self.sizes.backward(rows)
        return self.sizes.backward(rows)

    def _part_bytes(self, last: bool, rows: int) -> float:
        parameters = self.sizes.parameters

        def step() -> None:
            with torch.enable_grad():
                sums = [torch.zeros_like(p) for p in parameters]
                values = self.sizes.losses(*self._first(rows))
                add_gradients(parameters, values, torch.ones_like(values), sums)

        with lean.channels(last):
            if self._random() > 1:
                with unfused():
                    return self.sizes.beyond(step, 1)
            return self.sizes.beyond(step, 1)

    def _forward_bytes(self, last: bool, rows: int) -> float:
        given = self.sizes.parameters, self.sizes.losses, [self._first(rows)], self._directions, range(1)
        with unfused(), lean.channels(last):
            return self.sizes.beyond(lambda: forward(*given), 1) + rows * self.sizes.unseen

    def _vectorised_bytes(self, at_once: int, rows: int) -> float:
        given = self.sizes.parameters, self.sizes.losses, [self._first(rows)], self._directions, range(at_once)
        with unfused():
            try:
                return self.sizes.beyond(lambda: vectorised(*given, at_once), at_once) + rows * self.sizes.unseen
            except Exception:  # it can't be vectorised
                return math.inf

    def _transposed_bytes(self, rows: int) -> float:
        def step() -> None:
            with torch.enable_grad(), unfused():
                transposed(self.sizes.parameters, self.sizes.losses(*self._first(rows)), self._directions, range(1))

        return self.sizes.beyond(step, 2)

    @property
    def _directions(self) -> Directions:
        assert self.engine.directions is not None
        return self.engine.directions

    def _first(self, rows: int) -> tuple[Any, ...]:
        return pick(self.sizes.batch, slice(0, rows))
