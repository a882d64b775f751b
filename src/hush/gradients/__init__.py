"""Clipped sums of per-example gradients, exact on any PyTorch model: pure functions of (parameters, losses, batch)."""

from hush.gradients.check import Report, check, refuse
from hush.gradients.engines import (
    Auto,
    ClippedSum,
    Engine,
    Ghost,
    Grouped,
    Loop,
    Memory,
    Projected,
    Vmap,
    clipped_sum,
)

__all__ = [
    "Auto",
    "ClippedSum",
    "Engine",
    "Ghost",
    "Grouped",
    "Loop",
    "Memory",
    "Projected",
    "Report",
    "Vmap",
    "check",
    "clipped_sum",
    "refuse",
]
