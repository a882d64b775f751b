"""Gradients in memory of their own, so that noise can be added where they lie instead of in a second copy of them.

What autograd returns may be the user's (a custom function may return a tensor that it keeps), may be the same tensor
for two parameters (that of `a + b`), or one number seen many times (that of `sum`).  Such ones are copied.
"""

from __future__ import annotations

import sys
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


def _holders(tensors: list[Tensor]) -> tuple[int, int, int | None]:
    """How many hold the list's last tensor, its memory, and the tensor it is a view of."""
    x = tensors[-1]
    base: Any = x._base
    uses = int(torch._C._storage_Use_Count(x.untyped_storage()._cdata))
    return sys.getrefcount(x), uses, None if base is None else sys.getrefcount(base)
