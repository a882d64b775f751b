"""Bytes that PyTorch's allocator on the CPU hands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.autograd.profiler import profile


def peak(function: Callable[[], object]) -> int:
    """The most bytes allocated at a time; nothing that was allocated before may be freed inside."""
    with profile(profile_memory=True) as profiler:
        function()
    kineto: Any = profiler.kineto_results
    events = [(e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]"]
    return int(max(np.cumsum([size for _, size in sorted(events)])))
