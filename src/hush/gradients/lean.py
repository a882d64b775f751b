"""Convolutions whose kernels need little memory of their own.

In full float32 cuDNN may choose algorithms that transform the weights: 873 MiB for a layer whose weights have 9 and
whose outputs 8 (VGG-13 on an H200).  There are none of these for images whose channels lie last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FORMATS: dict[Any, tuple[int, Any]] = {
    torch.conv2d: (4, torch.channels_last),
    torch.conv_transpose2d: (4, torch.channels_last),
    torch.conv3d: (5, torch.channels_last_3d),
    torch.conv_transpose3d: (5, torch.channels_last_3d),
}


def layouts(device: torch.device) -> tuple[bool, ...]:
    """Whether channels may come last: the choices there are, the preferred one first."""
    return (False, True) if device.type == "cuda" else (False,)


@contextmanager
def channels(last: bool) -> Iterator[None]:
    """With `last`, convolutions inside see images with their channels last; the numbers are the same up to rounding."""
    if not last:
        yield
        return
    with _Last():
        yield


class _Last(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        dimensions, format = _FORMATS.get(func, (0, None))
        if dimensions and args and isinstance(args[0], Tensor) and args[0].dim() == dimensions:
            args = args[0].contiguous(memory_format=format), *args[1:]
        return func(*args, **(kwargs or {}))
