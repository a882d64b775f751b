"""How much memory a computation needs at a time, counted in the bytes of its tensors, so that it can be kept small.

Every operation passes by, below autograd: tangents, gradients and what is kept for the backward pass are tensors like
any others.  What a kernel needs for itself isn't seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def peak_bytes(computation: Callable[[], object]) -> int:
    """The most bytes that tensors made inside held at a time; what was there before isn't counted."""
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
