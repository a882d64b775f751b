"""Averages of the weights along the run: what is computed from released weights costs no privacy.

Noise makes the last weights jitter around a better point; their average is nearer to it (Polyak and Juditsky 1992;
for private training De et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Average:
    """An exponential average: after step t, a <- a + (1 - d)(weights - a) with d = min(decay, (1 + t)/(10 + t)).

    The small d of the first steps lets go of the starting point, which a fixed decay would remember for 1/(1 - decay)
    steps.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"The decay of an average lies between 0 and 1, got {self.decay}.")

    @torch.no_grad()
    def update(self, averages: Sequence[Tensor], weights: Sequence[Tensor], step: int) -> None:
        """Moves the averages, kept in float32 or better, towards the weights after a step."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight.to(average.dtype), share)


@torch.no_grad()
def start(weights: Sequence[Tensor]) -> list[Tensor]:
    """Averages that begin at the weights, in float32 or better."""
    return [weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True) for weight in weights]


@torch.no_grad()
def swap(averages: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Puts the averages where the weights are and the weights where the averages were."""
    for average, weight in zip(averages, weights, strict=True):
        kept = weight.clone()
        weight.copy_(average)
        average.copy_(kept)
