"""Gradients in memory of their own, so that noise can be added where they lie instead of in a second copy of them.

What autograd returns may be the user's (a custom function may return a tensor that it keeps), may be the same tensor
for two parameters (that of `a + b`), or one number seen many times (that of `sum`).  Such ones are copied.  Gradients
of parts of a batch are added where their sum lies, one parameter after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def owned(tensors: list[Tensor]) -> list[Tensor]:
    """The same numbers, each tensor contiguous and held by the returned list alone.  Empties the list it is given."""
    with torch.no_grad():
        alone = (_holders([torch.empty(2, 2)]), _holders([torch.empty(2, 2).t()]))
    tensors.reverse()
    result = []
    while tensors:
        mine = tensors[-1].is_contiguous() and _holders(tensors) in alone
        x = tensors.pop()
        result.append(x if mine else x.clone(memory_format=torch.contiguous_format))
    return result


def add_gradients(parameters: Sequence[Tensor], values: Tensor, weights: Tensor, sums: Sequence[Tensor]) -> None:
    """Add the gradient of `sum_i w_i value_i` to `sums`, each parameter's as soon as the backward pass has it.

    No second vector of the parameters' size is held: what autograd goes on with is a zero seen many times.
    """
    if not values.requires_grad:
        return
    hooks = [p.register_hook(_adding(total)) for p, total in zip(parameters, sums, strict=True)]
    try:
        torch.autograd.grad(values, list(parameters), weights, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()


def _adding(total: Tensor) -> Callable[[Tensor], Tensor | None]:
    def hook(grad: Tensor) -> Tensor | None:
        total.add_(grad)
        return None if grad.is_sparse else grad.new_zeros(()).expand(grad.shape)

    return hook


def _holders(tensors: list[Tensor]) -> tuple[int, int, int | None]:
    """How many hold the list's last tensor, its memory, and the tensor it is a view of."""
    x = tensors[-1]
    base: Any = x._base
    uses = int(torch._C._storage_Use_Count(x.untyped_storage()._cdata))
    return sys.getrefcount(x), uses, None if base is None else sys.getrefcount(base)
