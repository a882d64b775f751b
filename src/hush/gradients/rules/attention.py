"""Multi-head attention, taken apart into its projections; attention proper has no parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.gradients import aligning
from hush.gradients.factors import Outer
from hush.gradients.layout import Layout
from hush.gradients.rules.common import cast, hold, positions, summed
from hush.gradients.tape import Tape


def multi_head_attention(
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """`F.multi_head_attention_forward` for batched input `[length, examples, features]`."""
    if query.dim() != 3 or bias_k is not None or bias_v is not None or add_zero_attn:
        return NotImplemented
    if static_k is not None or static_v is not None:
        return NotImplemented
    dim = query.shape[-1]
    weights: tuple[Tensor | None, ...] = (in_proj_weight,) * 3
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    if any(weight is None for weight in weights):
        return NotImplemented
    projected = []
    if query is key and key is value and not use_separate_proj_weight:
        assert in_proj_weight is not None
        whole = (0, 3 * dim)
        projected = list(_part(tape, query, in_proj_weight, in_proj_bias, whole, whole).chunk(3, -1))
        weights = ()
    for k, (x, weight) in enumerate(zip((query, key, value), weights, strict=False)):
        assert weight is not None
        rows = (0, dim) if use_separate_proj_weight else (k * dim, (k + 1) * dim)
        projected.append(_part(tape, x, weight, in_proj_bias, rows, (k * dim, (k + 1) * dim)))
    (length, n, _), source, head = query.shape, key.shape[0], dim // num_heads
    q, k_, v = (x.reshape(x.shape[0], n, num_heads, head).permute(1, 2, 0, 3) for x in projected)
    mask = _mask(attn_mask, key_padding_mask, n, num_heads, length, source, q)
    rate = dropout_p if training else 0.0
    if need_weights:
        q, k_, v = (aligning.whole_vectors(x) for x in (q, k_, v))
        scores = q @ k_.transpose(-1, -2) / math.sqrt(head)
        probabilities: Tensor | None = F.softmax(scores if mask is None else scores + mask, -1)
        assert probabilities is not None
        attended = ((F.dropout(probabilities, rate) if rate > 0 else probabilities) @ v)[..., :head]
        if average_attn_weights:
            probabilities = probabilities.mean(1)
    else:
        causal = is_causal and mask is None
        attended = aligning.attention(q, k_, v, mask, rate, causal)
        probabilities = None
    attended = attended.permute(2, 0, 1, 3).reshape(length, n, dim)
    tape.mark_data([attended])
    with tape:
        return F.linear(attended, out_proj_weight, out_proj_bias), probabilities


def _part(
    tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, rows: tuple[int, int], bias_rows: tuple[int, int]
) -> Tensor:
    """A linear layer by some rows of a larger weight; the other rows get no gradient from it."""
    x = cast(x)
    w, b = tape.stand_in(weight), tape.stand_in(bias)
    part = None if b is None else b[bias_rows[0] : bias_rows[1]]
    output = aligning.linear(x, w[rows[0] : rows[1]], part)
    held, shape = hold(x), tuple(weight.shape)

    def among(grad: Tensor, rows: tuple[int, int], total: int) -> Tensor:
        return F.pad(grad, (rows[0], total - rows[1])) if rows[1] - rows[0] < total else grad

    def factor(layout: Layout, grad: Tensor) -> Outer:
        return Outer(positions(layout, held()), positions(layout, among(grad, rows, shape[0])), shape)

    tape.record("attention projection", weight, w, output, factor)
    if bias is not None:
        total = bias.shape[0]
        tape.record(
            "attention bias",
            bias,
            b,
            output,
            lambda layout, grad: summed(layout, among(grad, bias_rows, total), (total,)),
        )
    return output


def _mask(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    n: int,
    heads: int,
    length: int,
    source: int,
    like: Tensor,
) -> Tensor | None:
    """Both masks as one that is added to the scores, `[n or 1, heads or 1, length or 1, source]`."""

    def additive(mask: Tensor) -> Tensor:
        if mask.dtype == torch.bool:
            return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
        return mask.to(like.dtype)

    total: Tensor | None = None
    if attn_mask is not None:
        shaped = attn_mask.view(n, heads, length, source) if attn_mask.dim() == 3 else attn_mask[None, None]
        total = additive(shaped)
    if key_padding_mask is not None:
        padding = additive(key_padding_mask).view(n, 1, 1, source)
        total = padding if total is None else total + padding
    return total


RULES = {F.multi_head_attention_forward: multi_head_attention}
