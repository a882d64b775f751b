"""Sums of many examples' gradients, for rounding not to carry them away: at most 16 in float32, the rest in float64.

Float32 sums of equal terms are off by up to an eighth of the number of terms in units of rounding, all in one
direction, and by how much depends on how a library cuts the sum: MKL takes 192 terms in a row, but 193 in two halves.
So a product over 193 aligned examples differed from one over 192 by more than the threshold.

That is on a CPU. A GPU's products are added up as they come; captured programs have one size, so that they are always
cut in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hush.gradients.products import own
from hush.rounding import TOGETHER


def steady(x: Tensor) -> bool:
    """Whether float64 is to be used for sums of tensors like this one."""
    return x.device.type == "cpu" and x.dtype == torch.float32


@own
def weighted_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """`sum_i weights_i rows_i` of `[n, entries]`."""
    weights = weights.to(rows.dtype)
    n, entries = rows.shape
    if not steady(rows) or n <= TOGETHER:
        return torch.mv(rows.T, weights)
    whole = n - n % TOGETHER
    shares = weights[:whole].view(-1, 1, TOGETHER)
    sums = torch.bmm(shares, rows[:whole].reshape(-1, TOGETHER, entries)).squeeze(1)
    total = sums.sum(0, dtype=torch.float64)
    if whole < n:
        total += torch.mv(rows[whole:].T, weights[whole:])
    return total.to(rows.dtype)


def added(total: Tensor | None, more: Tensor) -> Tensor:
    """A running sum of sums, in float64 on a CPU; its first term is copied."""
    if total is None:
        return more.double() if steady(more) else more.clone()
    return total.add_(more)
