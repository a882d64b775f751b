"""Per-example gradients of one parameter, kept as factors so that they need not be formed.

For most layers the gradient of example i is a sum of outer products over the positions t where the layer was applied,

    G_i = sum_t  b_it a_it^T        a: the layer's input, b: the loss's gradient at its output,

and both its norm and a weighted sum of such gradients come from the factors:

    ||G_i||^2 = sum_{t,s} (a_it . a_is) (b_it . b_is)            (two Gram matrices; Goodfellow 2015, Li et al. 2022)
    sum_i w_i G_i = sum_{i,t} (w_i b_it) a_it^T                  (one matrix product)

Three kinds cover every layer: `Outer` (dense a and b), `Rows` (an embedding: b is a row's number) and `Formed` (small
gradients, written out). A parameter that was used several times has several factors; their cross terms are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.gradients.adding import added, steady, weighted_rows
from hush.gradients.products import aligned, fitted, product, scaled, wide
from hush.rounding import TOGETHER

# Forming a gradient costs dim(a) * dim(b) a position and saves the second matrix product; Gram matrices cost
# T * (dim(a) + dim(b)), and each is written and read once more. So forming costs less up to twice the factors' memory,
# but it may take no more than they do on a GPU, and little more on a CPU.
_ROOM_ON_GPU, _ROOM_ON_CPU = 1.0, 1.2
UNFOLDED_ON_GPU, UNFOLDED_ON_CPU = 1 << 27, 1 << 22  # bytes of windows at a time


@dataclass(frozen=True)
class Formed:
    """The per-example gradients themselves, `[n, *shape]`."""

    grads: Tensor

    @property
    def examples(self) -> int:
        return self.grads.shape[0]


@dataclass(frozen=True)
class Outer:
    """`sum_t b_t a_t^T` for each example and each of `groups` independent blocks of the weight's rows.

    a: `[n, groups, T, d_in]`, b: `[n, groups, T, d_out]`; the weight's shape is `[groups * d_out, *]`, `d_in` entries a
    row. `transposed`: the weight is stored as `[d_in, d_out]` instead (`x @ w`). Where a is much larger than what it is
    made of (a convolution's windows), `compact` is that, and `unfold(compact)` gives a whenever it is needed. `coarse`:
    its products may be in TF32, whatever others are. Rows may have zeros behind them (`aligned`).
    """

    compact: Tensor
    b: Tensor
    shape: tuple[int, ...]
    transposed: bool = False
    unfold: Callable[[Tensor], Tensor] | None = None
    coarse: bool = False

    @property
    def a(self) -> Tensor:
        return self.compact if self.unfold is None else self.unfold(self.compact)

    @property
    def examples(self) -> int:
        return self.b.shape[0]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Groups, positions, and the lengths of a's and b's rows."""
        _, groups, positions, _ = self.b.shape
        rows, row = self.shape[0], math.prod(self.shape[1:])
        return (groups, positions, rows, row) if self.transposed else (groups, positions, row, rows // groups)


@dataclass(frozen=True)
class Rows:
    """An embedding's gradient: `values[i, t]` is added to row `index[i, t]` of the table; index -1 counts nothing."""

    index: Tensor
    values: Tensor
    shape: tuple[int, ...]

    @property
    def examples(self) -> int:
        return self.index.shape[0]


Factor = Formed | Outer | Rows


def settle(factors: list[Factor]) -> list[Factor]:
    """The same gradients in their cheapest form: uses of one parameter joined, written out where that costs less.

    What isn't written out holds the numbers that its products see, so that all of them see the same.
    """
    if len(factors) > 1:
        factors = _joined(factors)
    if len(factors) == 1:
        return [_as_seen(_cheapest(factors[0]))]
    pair = tied(factors)
    if pair is not None and isinstance(_cheapest(pair[1]), Outer):
        return [_as_seen(factor) for factor in factors]
    return [Formed(sum((formed(factor) for factor in factors[1:]), formed(factors[0])))]


def _as_seen(factor: Factor) -> Factor:
    if not isinstance(factor, Outer):
        return factor
    compact, b, coarse = fitted(factor.compact, factor.coarse), fitted(factor.b, factor.coarse), factor.coarse
    if factor.sizes[1] > 1:
        compact, b = compact if factor.unfold is not None else aligned(compact, coarse), aligned(b, coarse)
    return replace(factor, compact=compact, b=b)


def weighted_sum(factors: list[Factor], weights: Tensor) -> Tensor:
    """`sum_i weights_i G_i`, in float32 or better."""
    total = _weighted(factors[0], weights)
    for factor in factors[1:]:
        total = total + _weighted(factor, weights)
    return total


def formed(factor: Factor) -> Tensor:
    """The per-example gradients written out, `[n, *shape]`, in float32 or better."""
    if isinstance(factor, Formed):
        return wide(factor.grads)
    if isinstance(factor, Rows):
        n, vocabulary, dim = factor.examples, factor.shape[0], factor.values.shape[-1]
        values, index = without_padding(factor)
        offset = torch.arange(n, device=index.device).view(-1, 1) * vocabulary
        table = values.new_zeros(n * vocabulary, dim)
        table.index_add_(0, (index + offset).flatten(), values.reshape(-1, dim))
        return table.view(n, *factor.shape)
    pieces = in_pieces(factor)
    found = (product(piece.b.transpose(-1, -2), piece.a, factor.coarse) for piece in pieces)
    grads = next(found) if len(pieces) == 1 else _joined_rows(found, factor.examples)
    return _as_weight(grads, factor).reshape(factor.examples, *factor.shape)


def _as_weight(grads: Tensor, factor: Outer) -> Tensor:
    """Products of b's and a's columns as the weight has them, without what alignment added."""
    *_, d_in, d_out = factor.sizes
    grads = grads[..., :d_out, :d_in]
    return grads.transpose(-1, -2) if factor.transposed else grads


def _joined_rows(pieces: Iterable[Tensor], n: int) -> Tensor:
    """Pieces one below the other; on a CPU written there as they come, which halves the memory."""
    whole, done = None, 0
    for piece in pieces:
        if piece.is_cuda:
            return torch.cat([piece, *pieces])
        whole = piece.new_empty(n, *piece.shape[1:]) if whole is None else whole
        whole[done : done + len(piece)] = piece
        done += len(piece)
    assert whole is not None
    return whole


def _joined(factors: list[Factor]) -> list[Factor]:
    """Uses of the same kind become one factor with more positions, so their cross terms come by themselves."""
    outers = [factor for factor in factors if isinstance(factor, Outer)]
    rows = [factor for factor in factors if isinstance(factor, Rows)]
    small = [factor for factor in factors if isinstance(factor, Formed)]
    joined: list[Factor] = []
    kinds = {(outer.transposed, outer.b.shape[1], outer.compact.dtype, outer.b.dtype, outer.coarse) for outer in outers}
    if len(kinds) == 1:
        a, b = torch.cat([outer.a for outer in outers], 2), torch.cat([outer.b for outer in outers], 2)
        joined.append(replace(outers[0], compact=a, b=b, unfold=None))
    elif outers:
        joined.append(Formed(sum((formed(outer) for outer in outers[1:]), formed(outers[0]))))
    if rows:
        index, values = torch.cat([row.index for row in rows], 1), torch.cat([row.values for row in rows], 1)
        joined.append(replace(rows[0], index=index, values=values))
    if small:
        joined.append(Formed(sum((formed(factor) for factor in small[1:]), formed(small[0]))))
    return joined


def _cheapest(factor: Factor) -> Factor:
    if not isinstance(factor, Outer):
        return factor
    _, positions, d_in, d_out = factor.sizes
    if positions == 1:
        return factor
    return Formed(formed(factor)) if worth_forming(positions, d_in, d_out, factor.b) else factor


def worth_forming(positions: int, d_in: int, d_out: int, like: Tensor) -> bool:
    """Whether gradients of a layer with several positions are written out, whatever the batch's size."""
    return d_in * d_out <= (_ROOM_ON_GPU if like.is_cuda else _ROOM_ON_CPU) * positions * (d_in + d_out)


def tied(factors: list[Factor]) -> tuple[Rows, Outer] | None:
    """An embedding and a linear layer that share their weight."""
    if len(factors) == 2:
        rows, outer = sorted(factors, key=lambda factor: isinstance(factor, Outer))
        if isinstance(rows, Rows) and isinstance(outer, Outer) and outer.b.shape[1] == 1:
            return rows, outer
    return None


def _weighted(factor: Factor, weights: Tensor) -> Tensor:
    if isinstance(factor, Formed):
        grads = wide(factor.grads)
        return weighted_rows(grads.reshape(len(grads), -1), weights).view(grads.shape[1:])
    if isinstance(factor, Rows):
        values, index = without_padding(factor)
        values = values * weights.view(-1, 1, 1)
        dim, dtype = values.shape[-1], values.dtype
        values = values.double() if steady(values) else values
        table: Tensor = torch.ops.aten.embedding_dense_backward(
            values.reshape(-1, dim), index.flatten(), factor.shape[0], -1, False
        )
        return table.to(dtype).view(factor.shape)
    if not factor.b.is_cuda:
        factor = replace(factor, b=wide(factor.b))
    if steady(factor.b) and factor.sizes[1] == 1 and factor.unfold is None:
        # one position an example: all in float64 costs no more than adding up many small products
        double = replace(factor, compact=factor.compact.double(), b=factor.b.double())
        return _weighted_outer(double, weights.double()).to(factor.b.dtype)
    pieces = in_pieces(factor, TOGETHER if steady(factor.b) else None)
    shares = weights.split([piece.examples for piece in pieces])
    if len(pieces) == 1:
        return _weighted_outer(pieces[0], shares[0])
    total: Tensor | None = None
    for piece, share in zip(pieces, shares, strict=True):
        product = _weighted_outer(piece, share)
        total = added(total, product)
    assert total is not None
    return total.to(product.dtype)


def _weighted_outer(factor: Outer, weights: Tensor) -> Tensor:
    n, (groups, positions, *_) = factor.examples, factor.sizes
    b = scaled(factor.b, weights.view(-1, 1, 1, 1), factor.coarse)
    a, b = (x.transpose(0, 1).reshape(groups, n * positions, -1) for x in (factor.a, b))
    return _as_weight(product(b.transpose(-1, -2), a, factor.coarse), factor).reshape(factor.shape)


def in_pieces(factor: Outer, together: int | None = None) -> list[Outer]:
    """The factor in parts of some examples each, so that unfolding one takes little memory; of `together` at most."""
    n, (groups, positions, d_in, _) = factor.examples, factor.sizes
    most = n if together is None else together
    if factor.unfold is not None and factor.compact.shape[0] == n:
        each = groups * positions * d_in * factor.compact.element_size()
        most = min(most, max(1, (UNFOLDED_ON_GPU if factor.b.is_cuda else UNFOLDED_ON_CPU) // max(each, 1)))
    elif factor.unfold is not None and most < n:
        factor = replace(factor, compact=factor.a, unfold=None)
    if most >= n:
        return [factor]
    pairs = zip(factor.compact.split(most), factor.b.split(most), strict=True)
    return [replace(factor, compact=compact, b=b) for compact, b in pairs]


def without_padding(rows: Rows) -> tuple[Tensor, Tensor]:
    """The values as their products see them, in float32 or better, and the rows' numbers."""
    values = torch.where((rows.index >= 0)[..., None], wide(rows.values), 0)
    return fitted(values, coarse=False), rows.index.clamp_min(0)
