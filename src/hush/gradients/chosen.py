"""Factors of other examples: some of them, all but some, or joined into units."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hush.gradients.factors import Factor, Formed, Rows


def regroup(factor: Factor, slots: Tensor) -> Factor:
    """Join examples into units: row u of `slots` (`[units, most]`) names unit u's examples, padded with -1."""
    units, most = slots.shape
    there = slots >= 0
    if isinstance(factor, Formed):
        grads = factor.grads[slots.clamp_min(0)]
        keep = there.view(units, most, *[1] * (grads.dim() - 2))
        return Formed(torch.where(keep, grads, 0).sum(1))
    if isinstance(factor, Rows):
        index = torch.where(there[..., None], factor.index[slots.clamp_min(0)], -1).flatten(1, 2)
        return replace(factor, index=index, values=factor.values[slots.clamp_min(0)].flatten(1, 2))
    keep = there.view(units, most, 1, 1, 1)

    def gathered(x: Tensor) -> Tensor:
        picked = torch.where(keep, x[slots.clamp_min(0)], 0)
        return picked.transpose(1, 2).flatten(2, 3)

    return replace(factor, compact=gathered(factor.a), b=gathered(factor.b), unfold=None)


def among(factor: Factor, index: Tensor) -> Factor:
    """The factor of some of the examples."""
    if isinstance(factor, Formed):
        return Formed(factor.grads[index])
    if isinstance(factor, Rows):
        return replace(factor, index=factor.index[index], values=factor.values[index])
    if factor.unfold is None or factor.compact.shape[0] != factor.examples:
        return replace(factor, compact=_as_it_lies(factor.a, index), b=_as_it_lies(factor.b, index), unfold=None)
    return replace(factor, compact=factor.compact[index], b=_as_it_lies(factor.b, index))


def emptied(factor: Factor, which: Tensor) -> Factor:
    """The factor with nothing in the places of some examples: zero times what isn't finite wouldn't be zero."""

    def without(x: Tensor) -> Tensor:
        return x.masked_fill(which.view(-1, *[1] * (x.dim() - 1)), 0)

    if isinstance(factor, Formed):
        return Formed(without(factor.grads))
    if isinstance(factor, Rows):
        return replace(factor, index=factor.index.masked_fill(which[:, None], -1))
    if factor.unfold is None or factor.compact.shape[0] != factor.examples:
        return replace(factor, compact=without(factor.a), b=without(factor.b), unfold=None)
    return replace(factor, compact=without(factor.compact), b=without(factor.b))


def _as_it_lies(x: Tensor, index: Tensor) -> Tensor:
    """Some rows of a tensor, without turning its last two dimensions round in memory."""
    return x[index] if x.stride(-1) == 1 else x.transpose(-1, -2)[index].transpose(-1, -2)
