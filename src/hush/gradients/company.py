"""Is an example's loss the same in any company? Asked of the loss function itself, now and then, while training.

Gradients show where examples meet behind a parameter, but not where they meet before the first one (`x - x.mean(0)`).
Such a model is found by computing one example alone; where the loss is random (dropout), among copies of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hush.gradients.engines import Losses, one_loss_each, pick

CROSSING = (
    "An example's loss depends on other examples of its batch, so no example's gradient can be bounded alone; "
    "let every example be computed by itself."
)


def refuse_company(losses: Losses, batch: Sequence[Any], values: Tensor, last: int = -1) -> None:
    """Raise if the first or last example's loss isn't the same alone as among the others, though nothing is random.

    What comes after the last one are copies that fill the batch up.
    """
    n, together = len(values), values.detach()
    last %= n
    devices = sorted({x.device for x in batch if isinstance(x, Tensor) and x.is_cuda}, key=str)
    half = values.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(values.device.type)
    with torch.random.fork_rng(devices=devices):
        alone = torch.cat([_losses(losses, pick(batch, slice(i, i + 1)), 1) for i in (0, last)])
        if _close(alone, together[[0, last]], together, 1e-1 if half else 1e-2):
            return
        if _close(_losses(losses, batch, n), together, together, 1e-2 if half else 1e-5):
            raise ValueError(CROSSING)
        if _in_other_company(losses, batch, n, last, devices, 1e-2 if half else 1e-5):
            raise ValueError(CROSSING)


def _in_other_company(
    losses: Losses, batch: Sequence[Any], n: int, last: int, devices: Sequence[torch.device], tolerance: float
) -> bool:
    """Whether the first or last example's random loss changes when copies of it take the others' places.

    The random numbers are the same each time, and so are the shapes: a dropout layer draws the same masks.
    """

    def drawn(examples: Sequence[Any]) -> Tensor:
        with torch.random.fork_rng(devices=list(devices)):
            return _losses(losses, examples, n)

    once, again = drawn(batch), drawn(batch)
    if not _close(again, once, once, tolerance):
        return False  # its random numbers come from elsewhere
    for i in (0, last):
        alike = [x[i : i + 1].expand_as(x) if isinstance(x, Tensor) else x for x in batch]
        if not _close(drawn(alike)[i : i + 1], once[i : i + 1], once, 1e3 * tolerance):
            return True
    return False


def _losses(losses: Losses, batch: Sequence[Any], n: int) -> Tensor:
    copies = [x.clone() if isinstance(x, Tensor) else x for x in batch]  # the examples are needed as they are
    return one_loss_each(losses(*copies), n).detach()


def _close(found: Tensor, expected: Tensor, among: Tensor, tolerance: float) -> bool:
    scale = among.abs().max().clamp_min(1e-6)
    return not bool(((found - expected).abs() > tolerance * scale).any())  # what isn't finite can't be told
