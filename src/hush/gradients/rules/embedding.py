"""Embedding tables and bags: an example's gradient touches only the rows it looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.gradients.factors import Rows
from hush.gradients.layout import Layout
from hush.gradients.rules.common import hold
from hush.gradients.tape import Tape


def embedding(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Row `index[t]` gains `dy_t`; the padding row gains nothing."""
    _refuse(max_norm, scale_grad_by_freq)
    if not tape.is_data(input) or tape.is_data(weight):
        return NotImplemented
    w = tape.stand_in(weight)
    output = F.embedding(input, w, padding_idx)
    held, shape = hold(input), tuple(weight.shape)
    padding = None if padding_idx is None else padding_idx % shape[0]

    def factor(layout: Layout, grad: Tensor) -> Rows:
        index, values = layout.first(held()), layout.first(grad)
        index, values = index.reshape(index.shape[0], -1), values.reshape(values.shape[0], -1, values.shape[-1])
        if padding is not None:
            index = torch.where(index == padding, -1, index)
        return Rows(index, values, shape)

    tape.record("embedding", weight, w, output, factor)
    return output


def embedding_bag(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """A bag is an embedding followed by a sum, a mean or a maximum over its entries, padding left out."""
    _refuse(max_norm, scale_grad_by_freq)
    if input.dim() != 2 or offsets is not None:
        return NotImplemented
    with tape:
        rows = F.embedding(input, weight, padding_idx)
        if padding_idx is None:
            count: Tensor | int = input.shape[1]
            keep = torch.ones_like(input, dtype=torch.bool)
        else:
            keep = input != padding_idx % weight.shape[0]
            count = keep.sum(1, keepdim=True).clamp_min(1)
        if mode == "max":
            filled = rows.masked_fill(~keep.unsqueeze(-1), float("-inf")).amax(1)
            return torch.where(keep.any(1, keepdim=True), filled, torch.zeros_like(filled))
        rows = rows * keep.unsqueeze(-1)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        return rows.sum(1) if mode == "sum" else rows.sum(1) / count


def _refuse(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None:
        raise ValueError(
            "An embedding with max_norm rewrites its weights as it looks at the data, outside the noisy gradient; "
            "use one without max_norm."
        )
    if scale_grad_by_freq:
        raise ValueError(
            "An embedding with scale_grad_by_freq scales one example's gradient by counts of the whole batch; "
            "use one without scale_grad_by_freq."
        )


RULES: dict[Any, Callable[..., Any]] = {F.embedding: embedding, F.embedding_bag: embedding_bag}
