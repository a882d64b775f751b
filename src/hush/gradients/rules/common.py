"""What the rules share: holding an operation's input, and bringing examples to the front."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hush.gradients.factors import Formed
from hush.gradients.layout import Layout, Order
from hush.gradients.products import wide


class Unfit(Exception):
    """A rule can't give the per-example gradients of this use after all; the parameter takes a slower path."""


def hold(x: Tensor) -> Callable[[], Tensor]:
    """The tensor's value now, for later; a write into it in between is noticed."""
    value, version = x.detach(), x._version

    def held() -> Tensor:
        if value._version != version:
            raise Unfit("its input was overwritten in place")
        return value

    return held


@contextmanager
def without_speed_warnings() -> Iterator[None]:
    """Vectorising an operation that has no rule for it is slow, not wrong, and the notes say what is slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        yield


def cast(x: Tensor) -> Tensor:
    """What autocast would compute with, so that the recorded input is the one that was used."""
    device = x.device.type
    if x.is_floating_point() and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x


def positions(layout: Layout, x: Tensor) -> Tensor:
    """`[examples, 1, T, features]`: one group, all positions of an example in a row."""
    x = layout.first(x)
    return x.reshape(x.shape[0], 1, -1, x.shape[-1])


def summed(layout: Layout, grad: Tensor, shape: tuple[int, ...]) -> Formed:
    """Each example's gradient added up over the dimensions along which a tensor of `shape` was broadcast."""
    missing = grad.dim() - len(shape)
    if missing == 0 and layout.order is Order.SECOND and len(shape) > 1 and shape[1] == 1:
        turned = summed(Layout(Order.FIRST, layout.examples), grad.transpose(0, 1), (1, shape[0], *shape[2:]))
        return Formed(turned.grads.reshape(-1, *shape))
    whole = layout.first(grad)
    offset = whole.dim() - len(shape)
    if missing < 0 or (offset < 1 and not (offset == 0 and shape[0] == 1)):
        raise Unfit("it isn't broadcast over the examples")
    if missing == 0 and layout.folded and shape[0] != 1:
        raise Unfit("it isn't broadcast over the examples")
    spread = range(1, max(offset, 1))
    ones = [
        k + offset for k, size in enumerate(shape) if size == 1 and k + offset >= 1 and whole.shape[k + offset] != 1
    ]
    dims = sorted({*spread, *ones})
    if whole.numel() // math.prod(whole.shape[k] for k in dims) != whole.shape[0] * math.prod(shape):
        raise Unfit("it isn't broadcast over the examples")
    return Formed((wide(whole).sum(dims) if dims else whole).reshape(whole.shape[0], *shape))
