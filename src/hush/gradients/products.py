"""Matrix products of factors, as coarse as the user allows, and what their rounding may do to a bound.

A sum of outer products over positions, `sum_t b_t a_t^T`, can be far smaller than its terms, and rounding is relative
to the terms.  So two things must hold where norms and sums come from different products.

*The norm is that of what is summed.*  A GPU's TF32 products read 11 significant bits of every number.  Some of its
kernels round and some cut off, so that the gradient behind a Gram matrix wouldn't be the one behind the sum: `fitted`
rounds the factors beforehand, to numbers that all kernels read alike.  Then both products see the same gradient.

*Scaling is counted.*  A weight times a factor must be rounded again, by a share r of it (`rounding_of_scaled`).  The
contribution `sum_t (w b_t) a_t^T` then differs from w times the gradient by at most

    r w sum_t ||a_t|| ||b_t||,

so that `||G|| + r sum_t ||a_t|| ||b_t||` takes the place of ||G|| where the weight is found.  (Two positions whose
gradients all but cancel, in bfloat16: 1.45 thresholds without it.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.precision import tf32_in_products, with_tf32
from hush.rounding import BFLOAT16, TF32

_HALF = (torch.bfloat16, torch.float16)


def wide(x: Tensor) -> Tensor:
    """At least float32: sums and norms in half precision break the bound (11% short, sensitivity 2.8 C)."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def aligned(x: Tensor, coarse: bool) -> Tensor:
    """Rows padded with zeros to a multiple of 8: a GPU's matrix units are slow on others."""
    short = -x.shape[-1] % 8
    return F.pad(x, (0, short)) if short and x.is_cuda and (x.dtype in _HALF or in_tf32(x, coarse)) else x


def in_tf32(x: Tensor, coarse: bool) -> bool:
    """Whether products of this read 11 bits of it: where the user allows that of all products, or `coarse` of these."""
    return x.is_cuda and x.dtype != torch.float64 and x.dtype != torch.bfloat16 and (coarse or tf32_in_products())


def in_bfloat16(x: Tensor) -> bool:
    """Whether products of this read 8 bits of it, which is all it has; a CPU's are computed in float32."""
    return x.is_cuda and x.dtype == torch.bfloat16


def fitted(x: Tensor, coarse: bool) -> Tensor:
    """The numbers that products of this see: rounded to nearest, where they read fewer bits than it has."""
    return nearest_tf32(x) if x.dtype == torch.float32 and in_tf32(x, coarse) else x


def nearest_tf32(x: Tensor) -> Tensor:
    """Float32 numbers rounded to 11 significant bits, ties away from zero."""
    rounded = ((x.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def scaled(b: Tensor, weights: Tensor, coarse: bool) -> Tensor:
    """Weights times a factor, of the kind that its products are computed in."""
    result = wide(b) * weights
    if in_bfloat16(b):
        return aligned(result.to(b.dtype), coarse)
    return fitted(result, coarse)  # float16's small numbers would be rounded by up to their own size


def rounding_of_scaled(b: Tensor, coarse: bool) -> float:
    """By which share of itself a scaled factor may be rounded."""
    if in_bfloat16(b):
        return BFLOAT16
    return TF32 / 2 if in_tf32(b, coarse) else 0.0


def own(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function in the precision that it is written in, also inside the user's autocast."""

    @functools.wraps(function)
    def as_written(x: Tensor, *others: Any, **named: Any) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return function(x, *others, **named)
        with torch.autocast(x.device.type, enabled=False):
            return function(x, *others, **named)

    return as_written


@own
def product(x: Tensor, y: Tensor, coarse: bool = False) -> Tensor:
    """A batched matrix product whose result is float32 or better, whatever its factors are; `coarse`: TF32 will do."""
    if x.dtype != y.dtype:
        dtype = torch.promote_types(wide(x).dtype, wide(y).dtype)  # weights are double where any parameter is
        x, y = x.to(dtype), y.to(dtype)
    if x.dtype == torch.float32 and coarse and x.is_cuda and not tf32_in_products():
        result: Tensor = _tf32_product(x, y)
        return result
    if x.dtype in (torch.float32, torch.float64):
        return torch.matmul(x, y)
    if x.is_cuda:
        lead = x.shape[:-2]
        x3, y3 = x.reshape(math.prod(lead), *x.shape[-2:]), y.reshape(math.prod(lead), *y.shape[-2:])
        return torch.bmm(x3, y3, out_dtype=torch.float32).view(*lead, x.shape[-2], y.shape[-1])
    return torch.matmul(x.float(), y.float())


def hidden(gram: Tensor, d_in: int, d_out: int) -> float:
    """What rounding may hide of a Gram product: errors of d-term sums grow like sqrt(d) (Higham and Mary 2019)."""
    return torch.finfo(gram.dtype).eps * (4 + math.sqrt(d_in) + math.sqrt(d_out))


@torch.library.custom_op("hush::tf32_product", mutates_args=())
def _tf32_product(x: Tensor, y: Tensor) -> Tensor:
    """In TF32, whatever other products are in: an operation of its own, since a traced program has no switches."""
    with torch.no_grad(), with_tf32():
        return torch.matmul(x, y)


@_tf32_product.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(x, y)
