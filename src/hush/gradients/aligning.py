"""Operations that round an example alike wherever it lies in its batch.

Rows whose length isn't a multiple of 4 begin at different places of a processor's vector, and MKL rounds their products
differently: a narrow linear layer's in rows 0, 1, 2 and 3, attention's by heads of 5 or 33 numbers in each example. So
they are filled up with zeros to whole vectors, on a CPU. Not inside a checkpoint, which computes the operation again,
and not from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_VECTOR = 16  # numbers


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`."""
    short = -weight.shape[-1] % _VECTOR
    if short and min(weight.shape) <= _VECTOR and input.device.type == "cpu" and not _checkpointed():
        input, weight = F.pad(input, (0, short)), F.pad(weight, (0, short))
    return F.linear(input, weight, bias)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """`F.scaled_dot_product_attention`."""
    size, scale = value.shape[-1], query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value = (whole_vectors(x) for x in (query, key, value))
    attended = F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options
    )
    return attended if attended.shape[-1] == size else attended[..., :size]


def whole_vectors(heads: Tensor) -> Tensor:
    """Queries, keys or values, filled up where their size isn't a multiple of 4."""
    short = -heads.shape[-1] % _VECTOR if heads.shape[-1] % 4 else 0
    return F.pad(heads, (0, short)) if short and heads.device.type == "cpu" and not _checkpointed() else heads


def _checkpointed() -> bool:
    """Whether somebody watches which tensors are kept for the backward pass."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


ALIGNED: dict[Any, Callable[..., Tensor]] = {F.linear: linear, F.scaled_dot_product_attention: attention}
"""What takes an operation's place, wherever it is seen."""
