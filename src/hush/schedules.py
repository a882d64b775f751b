"""Numbers that vary with the step and are fixed in advance: clip norms, noise (Abadi et al. 2016, Section 3.1).

Fixed in advance means chosen without looking at the data, so a schedule is a public value like any other number of a
plan, and the account of the whole run is known before it starts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hush.accounting.checks import check_positive, check_whole


@dataclass(frozen=True)
class Schedule:
    """Constant pieces: `Schedule((0, 1.0), (500, 0.5))` is 1.0 for steps 0 to 499 and 0.5 from step 500 on.

    Pieces rather than a curve: steps of equal noise are accounted together, so a run of few pieces is accounted as
    fast and as tightly as one of a single piece.
    """

    pieces: tuple[tuple[int, float], ...]

    def __init__(self, *pieces: tuple[int, float]) -> None:
        if not pieces or pieces[0][0] != 0:
            raise ValueError(f"A schedule's first piece starts at step 0, got {pieces[:1] or 'no piece'}.")
        for first, value in pieces:
            if not isinstance(first, int) or isinstance(first, bool):
                raise ValueError(f"A piece of a schedule starts at a whole step, got {first!r}.")
            check_positive("A value of a schedule", value)
        if any(later <= earlier for (earlier, _), (later, _) in pairwise(pieces)):
            raise ValueError("The pieces of a schedule start at ever later steps; put them in order, each once.")
        object.__setattr__(self, "pieces", tuple((first, float(value)) for first, value in pieces))

    def at(self, step: int) -> float:
        """The value at a step, counted from 0."""
        return self.pieces[bisect_right(self.pieces, step, key=lambda piece: piece[0]) - 1][1]

    @staticmethod
    def linear(start: float, end: float, steps: int, pieces: int = 20) -> Schedule:
        """From `start` to `end` in equal differences over `steps` steps."""
        return _sampled(lambda share: start + share * (end - start), steps, pieces)

    @staticmethod
    def geometric(start: float, end: float, steps: int, pieces: int = 20) -> Schedule:
        """From `start` to `end` in equal ratios over `steps` steps."""
        check_positive("The start of a schedule", start)
        check_positive("The end of a schedule", end)
        return _sampled(lambda share: start * math.exp(share * math.log(end / start)), steps, pieces)

    def __str__(self) -> str:
        if len(self.pieces) == 1:
            return f"{self.pieces[0][1]:g}"
        return f"{self.pieces[0][1]:g} to {self.pieces[-1][1]:g} in {len(self.pieces)} pieces"


Number = float | Schedule
"""A number of a plan: the same at every step, or by schedule."""


def at(value: Number, step: int) -> float:
    """The number at a step."""
    return value.at(step) if isinstance(value, Schedule) else value


def check_number(name: str, value: Number) -> Number:
    """A positive number or a schedule; a schedule checks itself."""
    if isinstance(value, Schedule):
        return value
    check_positive(name, value)
    return float(value)


def to_plain(value: Number) -> Any:
    """For JSON: a number stays one, a schedule becomes its pieces."""
    return [list(piece) for piece in value.pieces] if isinstance(value, Schedule) else value


def from_plain(value: Any) -> Number:
    """From JSON."""
    return Schedule(*((int(first), float(v)) for first, v in value)) if isinstance(value, list) else float(value)


def _sampled(value: Callable[[float], float], steps: int, pieces: int) -> Schedule:
    check_whole("The number of steps", steps)
    check_whole("The number of pieces", pieces)
    count = min(pieces, steps)
    return Schedule(*((steps * k // count, value(k / max(count - 1, 1))) for k in range(count)))
