"""Is an example's loss the same in any company? Asked of the loss function itself, now and then, while training.

Gradients show where examples meet behind a parameter, but not where they meet before the first one (`x - x.mean(0)`).
Such a model is found by computing one example alone, and where that differs, among copies of itself, among
twice as many, and in another row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hush.gradients.engines import Losses, one_loss_each, pick
from hush.gradients.filling import VECTOR
from hush.gradients.repeated import Repeated
from hush.randomness import unmoved

CROSSING = (
    "An example's loss depends on other examples of its batch, so no example's gradient can be bounded alone; "
    "let every example be computed by itself."
)


def refuse_company(losses: Losses, batch: Sequence[Any], values: Tensor, last: int = -1) -> None:
    """Raise if the first or last example's loss isn't the same alone as among the others, nor in another company.

    Alone it is computed by other algorithms. That tells apart the two losses of an example whose huge numbers all but
    cancel, though it meets no other; such a record must not stop a run. So before raising it is compared where only
    the company differs. What comes after the last one are copies that fill the batch up.
    """
    n, together = len(values), values.detach()
    last %= n
    devices = sorted({x.device for x in batch if isinstance(x, Tensor) and x.is_cuda}, key=str)
    half = values.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(values.device.type)
    with unmoved(devices):
        alone = torch.cat([_losses(losses, pick(batch, slice(i, i + 1)), 1) for i in (0, last)])
        if _close(alone, together[[0, last]], together, 1e-1 if half else 1e-2):
            return
        if _in_other_company(losses, batch, n, last, 1e-2 if half else 1e-5):
            raise ValueError(CROSSING)


def _in_other_company(losses: Losses, batch: Sequence[Any], n: int, last: int, tolerance: float) -> bool:
    """Whether the first or last example's loss changes among copies of itself, among twice as many, or further down.

    Small batches are repeated up to sizes at which an example is rounded as in any larger one, and asked about at
    places that are alike in this, too (`filling`). The random numbers are the same each time, and so are the shapes: a
    dropout layer draws the same masks. Of twice as many, or in another row, it doesn't: that is asked only where
    nothing is random. There an example may be rounded in another way, which shows where huge numbers all but cancel: so
    it counts only if it happens in the same row whichever examples are there. Values alone don't tell what is random:
    beside one example's huge loss all others' look the same, and dropout may twice leave it the same mask by chance.
    """
    times = -(-2 * VECTOR // n)
    size, whole = n * times, _each(batch, lambda x: torch.cat([x] * times))

    repeated = Repeated(losses, [x for x in batch if isinstance(x, Tensor)])

    def drawn(examples: Sequence[Any], size: int = size) -> Tensor:
        return _losses(repeated, examples, size)

    def same(found: Tensor, expected: Tensor) -> bool:
        return _close(found, expected, once, 1e3 * tolerance)

    once, again = drawn(whole), drawn(whole)
    random = repeated.drew()
    if not _close(again, once, once, tolerance):
        return False  # its random numbers come from elsewhere
    asked = [0, size - n + last]
    for i in asked:
        alike = _each(whole, lambda x, i=i: x[i : i + 1].expand_as(x))  # type: ignore[misc]
        if not same(drawn(alike)[i], once[i]):
            return True
    if random or not all(_close(drawn(whole), once, once, tolerance) for _ in range(2)):
        return False

    def moved(order: int) -> Tensor:
        """Rows whose losses are others among twice as many, or further down."""
        rolled = _each(whole, lambda x: x.roll(order, 0))
        here = drawn(rolled)
        twice, later = drawn(_each(rolled, lambda x: torch.cat([x, x])), 2 * size), drawn(_each(rolled, _later))
        return torch.stack([_far(found, here, here, 1e3 * tolerance) for found in (twice[:size], later.roll(-VECTOR))])

    places = moved(0)
    return bool(places[:, asked].any()) and bool((places & moved(1) & moved(2)).any())


def _each(batch: Sequence[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    return [change(x) if isinstance(x, Tensor) else x for x in batch]


def _later(x: Tensor) -> Tensor:
    """Rows whole vectors further down."""
    return x.roll(VECTOR, 0)


def _losses(losses: Losses, batch: Sequence[Any], n: int) -> Tensor:
    copies = [x.clone() if isinstance(x, Tensor) else x for x in batch]  # the examples are needed as they are
    return one_loss_each(losses(*copies), n).detach()


def _close(found: Tensor, expected: Tensor, among: Tensor, tolerance: float) -> bool:
    return not bool(_far(found, expected, among, tolerance).any())


def _far(found: Tensor, expected: Tensor, among: Tensor, tolerance: float) -> Tensor:
    scale = among.abs().max().clamp_min(1e-6)
    return (found - expected).abs() > tolerance * scale  # what isn't finite can't be told
