"""The defaults of a private run, from public numbers only.

Large batches, few steps, gradients scaled rather than clipped, momentum, and an average of the last weights.  The
rates were tried on scikit-learn's breast-cancer and digits data and on Adult, which are public; on private records
such a search would cost privacy as well.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

GRID = 2**20
"""Rates are whole multiples of 1/GRID, so that rate * records / records is the rate again, exactly."""

LARGEST_BATCH = 60_000
"""Beyond that many gradients at once, what float32 sums lose to rounding is felt, and so is the time."""


@dataclass(frozen=True)
class Recipe:
    """How to train; every number is public.

    rate      the share of the records in an expected batch
    steps     how many noisy steps
    hidden    the width of the hidden layer; 0: none
    clip      the norm that every record's gradient is scaled to
    momentum  of SGD
    learning_rate  None: from the noise (`learning_rate_for`)
    decay     of the average of the weights
    """

    rate: float
    steps: int = 100
    hidden: int = 128
    clip: float = 1.0
    stability: float = 0.1
    momentum: float = 0.9
    learning_rate: float | None = None
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 1 / GRID <= self.rate <= 1:
            raise ValueError(f"The sampling rate lies above 0 and at most at 1, got {self.rate:g}.")
        object.__setattr__(self, "rate", max(round(self.rate * GRID), 1) / GRID)
        for name, value, least, most in (("steps", self.steps, 1, 10**7), ("hidden units", self.hidden, 0, 10**5)):
            if not least <= value <= most:
                raise ValueError(f"The number of {name} lies from {least} to {most:,}, got {value}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"The learning rate is a positive number, got {self.learning_rate:g}.")

    def learning_rate_for(self, noise_multiplier: float, batch: float) -> float:
        """So that the noise of all steps moves a weight by about a fifth.

        A step's noise moves a weight by lr/(1 - momentum) * z C/batch in the long run; T steps by T^(1/2) times as
        much.  Where there is hardly any noise, 20 is enough.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        quiet = 0.2 * batch / (noise_multiplier * self.clip * math.sqrt(self.steps))
        return min(quiet, 20.0 / self.clip) * (1 - self.momentum)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def default_rate(records: int | None) -> float:
    """All of a few records, half of an unknown number, a quarter of many, and never more than 60,000 at once."""
    if records is None:
        return 0.5
    if records <= 10_000:
        return 1.0
    rate = 0.25
    while rate * records > LARGEST_BATCH:
        rate /= 2
    return rate


def default_share(rate: float, records: int) -> float:
    """Of how many records, by a coin each, a batch of this rate isn't too large; `records` was released with noise."""
    return min(1.0, LARGEST_BATCH / (rate * records))
