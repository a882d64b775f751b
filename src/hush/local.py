"""What a step saw: for the person at the machine, not for publication."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Local:
    """What a step saw of its sample: LOCAL ONLY, not paid for.  Look, but don't publish it or choose by it."""

    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    norms: Tensor = field(default_factory=lambda: torch.empty(0, 1))
    limits: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    """How sums were computed, in this step and those before: one record can bring a note about."""

    def report(self) -> str:
        """What the run met, in words."""
        return "\n".join(["LOCAL, not for publication: a single record may be what a note is about.", *self.notes])

    @property
    def size(self) -> int:
        """How many examples the step saw."""
        return len(self.losses)

    @property
    def loss(self) -> float:
        """Their mean loss; NaN for an empty batch."""
        return float(self.losses.float().mean())

    @property
    def clipped(self) -> float:
        """The share of units that were clipped in any group; NaN for an empty batch."""
        return float((self.norms > self.norms.new_tensor(self.limits)).any(dim=1).float().mean())
