"""Buffers that every forward pass changes, whatever passes: a power iteration (`spectral_norm`), a counter.

A model is published with its buffers, and how many passes a step makes depends on how many records were drawn.  So each
pass of a step finds such buffers as they were when the step began: after it they have changed once, whoever was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Once:
    """A loss function that changes its buffers once a step, however often it is called."""

    def __init__(self, losses: Callable[..., Tensor], buffers: Iterable[Tensor]) -> None:
        self.losses = losses
        self._buffers = list(buffers)
        self._kept = [buffer.clone() for buffer in self._buffers]

    def begin(self, batch: Sequence[Any], size: int) -> None:
        """A step begins; without a record in it, the pass is made on zeros, so that nobody can tell."""
        with torch.no_grad():
            for kept, buffer in zip(self._kept, self._buffers, strict=True):
                kept.copy_(buffer)  # in place: a captured program reads it there
        if size == 0:
            zeros = [x.new_zeros(1, *x.shape[1:]) if isinstance(x, Tensor) and x.dim() else x for x in batch]
            with torch.enable_grad():  # a loss may take derivatives of its own
                self.losses(*zeros)

    def __call__(self, *batch: Any) -> Tensor:
        with torch.no_grad():
            for kept, buffer in zip(self._kept, self._buffers, strict=True):
                buffer.copy_(kept)
        return self.losses(*batch)
