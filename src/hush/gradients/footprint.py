"""How much memory a computation needs at a time, so that it can be kept small.

On a GPU the allocator is asked, which also serves what kernels need for themselves: cuDNN's convolutions in float32
may take more than all of a network's activations.  It can be told to hand out no more than so much.  cuDNN then chooses
other kernels, and keeps to them: where there is no room for a convolution's first choice, PyTorch tries the next, and
remembers for this size which it was.  Elsewhere the bytes of tensors are counted.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_SEGMENTS = 40 * 2**20
"""Bytes that the allocator of a GPU may take beyond what it hands out: it takes 20 MiB at a time for small tensors."""


def peak_bytes(computation: Callable[[], object], device: torch.device, limit: float = math.inf) -> float:
    """The most bytes held at a time that weren't held before and aren't afterwards.

    On a GPU never much more than `limit`: infinity, where the computation can't do with so little.
    """
    return _allocated(computation, device, limit) if device.type == "cuda" else _counted(computation)


def sees_kernels(device: torch.device) -> bool:
    """Whether what kernels need for themselves is seen."""
    return device.type == "cuda"


def _allocated(computation: Callable[[], object], device: torch.device, limit: float) -> float:
    """As the allocator of a GPU saw it; its peak stays what a user would read without this question.

    What is held before and after doesn't count, as the workspaces that a library makes at its first call and keeps.
    The cache is emptied: what blocks lie in it decides how much more than asked for is handed out.
    """
    torch.cuda.empty_cache()
    highest = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    before, fits = torch.cuda.memory_allocated(device), True
    try:
        with _no_more_than(limit, device):
            computation()
    except RuntimeError as error:  # out of memory, or no kernel that needs so little
        if limit == math.inf or isinstance(error, NotImplementedError):
            raise
        fits = False
    finally:
        most, after = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        if highest > most:
            torch.cuda.empty_cache()
            with suppress(torch.OutOfMemoryError):
                torch.empty(highest - after, dtype=torch.uint8, device=device)
    return most - max(before, after) if fits else math.inf


@contextmanager
def _no_more_than(limit: float, device: torch.device) -> Iterator[None]:
    """Inside, the allocator takes at most `limit` bytes more, and a little for its own bookkeeping."""
    if limit == math.inf:
        yield
        return
    number = torch.cuda.current_device() if device.index is None else device.index
    total = torch.cuda.get_device_properties(number).total_memory
    before: float = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(number)
    most = (torch.cuda.memory_allocated(number) + limit + _SEGMENTS) / total
    torch.cuda.set_per_process_memory_fraction(max(0.0, min(before, most)), number)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, number)


def _counted(computation: Callable[[], object]) -> int:
    """In the bytes of new tensors.

    Every operation passes by, below autograd: tangents, gradients and what is kept for the backward pass are tensors
    like any others.  What a kernel needs for itself isn't seen.
    """
    live = _Live()
    with live:
        computation()
    return live.most


class _Live(TorchDispatchMode):
    """Counts the memory of new tensors until it is given back."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._held: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {x.untyped_storage()._cdata for x in tree_iter((args, kwargs)) if _is_dense(x)}
        result = func(*args, **kwargs)
        for x in tree_iter(result):
            if _is_dense(x) and x.untyped_storage()._cdata not in given:
                self._count(x.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name in self._held:
            return

        def freed(_: object) -> None:
            if self._held.pop(name, None) is not None:
                self.now -= size

        self._held[name] = weakref.ref(storage, freed)
        self.now += size
        self.most = max(self.most, self.now)


def _is_dense(x: Any) -> bool:
    """Sparse tensors have no memory of their own but that of their parts, and zeros that nobody wrote out have none."""
    return isinstance(x, Tensor) and x.layout is torch.strided and not x._is_zerotensor()
