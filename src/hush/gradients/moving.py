"""Which calls give the examples of a batch another order, or drop some, depending on the data.

Where examples are in a tensor is found once for a model and then remembered. That is no use where a model sorts its
batch by length or sends examples to experts: there the places must be looked for at every call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_TAKING = {"index_select", "gather", "take_along_dim", "sort", "topk"}
_SCATTERING = {"masked_select", "take", "msort"}


def moves_examples(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], examples: int) -> bool:
    """Whether a call on data (its first argument) may put examples elsewhere than they were.

    Indexing by `0, 1, ..., n - 1` along the examples moves nothing, whatever happens to the other dimensions.
    """
    name = getattr(func, "__name__", "")
    if func is Tensor.__getitem__:
        return _index_moves(args[0], args[1], examples)
    if name in _SCATTERING or func is F.embedding:
        return True
    if name not in _TAKING:
        return False
    x: Tensor = args[0] if args else kwargs["input"]
    index = next((value for value in (*args[1:], *kwargs.values()) if isinstance(value, Tensor)), None)
    if index is not None and _in_order(index, examples):
        return False
    return _along(name, x, args, kwargs) in _example_dims(x, examples)


def _index_moves(x: Tensor, index: Any, examples: int) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, list | Tensor) for item in items):
        return False
    first = items[0]
    if isinstance(first, Tensor):
        return not _in_order(first, examples)
    if isinstance(first, slice) and first == slice(None):
        return 1 in _example_dims(x, examples)
    return not isinstance(first, int)


def _example_dims(x: Tensor, examples: int) -> set[int]:
    return {0, 1} if x.dim() > 1 and x.shape[1] == examples else {0}


def _along(name: str, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    numbers = [value for value in args[1:] if isinstance(value, int) and not isinstance(value, bool)]
    if name == "topk":
        numbers = numbers[1:] if "k" not in kwargs else numbers
    dim = kwargs.get("dim", numbers[0] if numbers else -1)
    return int(dim) % max(x.dim(), 1)


def _in_order(index: Tensor, examples: int) -> bool:
    if index.dim() == 0 or index.shape[0] != examples:
        return False
    if index.dtype == torch.bool:
        return index.dim() == 1 and bool(index.all())
    return index.numel() == examples and torch.equal(
        index.flatten(), torch.arange(examples, device=index.device, dtype=index.dtype)
    )
