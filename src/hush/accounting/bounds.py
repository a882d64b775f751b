"""A certified answer: an interval that encloses the number asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """lower <= the true number <= upper.  Quote `upper` for privacy losses, `lower` for an attacker's errors."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"A lower bound can't exceed its upper bound, got [{self.lower}, {self.upper}].")

    @property
    def width(self) -> float:
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def middle(self) -> float:
        return self.upper if math.isinf(self.upper) else 0.5 * (self.lower + self.upper)

    def __iter__(self) -> Iterator[float]:
        """So that `lower, upper = run.epsilon(1e-5)` works."""
        return iter((self.lower, self.upper))

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper
