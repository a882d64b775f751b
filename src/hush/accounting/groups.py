"""Protection for several records at once, such as all those of one person.

A group is always of a whole run: groups of groups are larger groups, and groups of the same size compose to the group
of what they compose (`compose`).  Both are what Theorem 3 says of the run's own trade-off function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from hush.accounting.checks import check_whole
from hush.accounting.mechanisms import BOUND, EXACT, Mechanism, Neighbours
from hush.accounting.releases import Renyi

if TYPE_CHECKING:
    from hush.accounting.pairs.losses import Pair


@dataclass(frozen=True)
class Group(Mechanism):
    """A mechanism seen by neighbours that differ in up to `size` records: 1 - (1 - f)^(o size) (Theorem 3)."""

    kind: ClassVar[str] = "group"
    inner: Mechanism
    size: int

    def __post_init__(self) -> None:
        check_whole("The size of a group", self.size)
        object.__setattr__(self, "size", int(self.size))
        if any(isinstance(part, Renyi) for part, _ in self.inner.parts()):
            raise ValueError("A Renyi curve has no trade-off function to take to groups.")
        if isinstance(self.inner, Group):  # (f^(o j))^(o k) = f^(o jk)
            object.__setattr__(self, "size", self.size * self.inner.size)
            object.__setattr__(self, "inner", self.inner.inner)

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return self.inner.neighbours

    @property
    def records(self) -> int:
        return self.size

    @property
    def single(self) -> Mechanism:
        return self.inner

    @property
    def tag(self) -> str:
        return EXACT if self.mu is not None and self.inner.tag == EXACT else BOUND

    @property
    def mu(self) -> float | None:
        return None if self.inner.mu is None else self.size * self.inner.mu

    def describe(self) -> str:
        return f"({self.inner.describe()}).group({self.size})"

    @property
    def largest_loss(self) -> float:
        return self.size * self.inner.largest_loss

    def pair(self) -> Pair:
        return _pair(self, 0)

    def pair_above(self, floor: float) -> Pair:
        """As sharp for those who ask for no deltas smaller than that: it takes less of the single record's curve."""
        return _pair(self, 0 if floor < 1e-120 else min(math.floor(math.log10(floor) / 10), -1))


@lru_cache(maxsize=8)
def _pair(group: Group, tens: int) -> Pair:
    """Kept for a while: it takes a whole curve, and several questions follow each other."""
    from hush.accounting.grouping import grouped

    return grouped.pair(group, 10.0 ** (10 * tens) if tens < 0 else 0.0)
