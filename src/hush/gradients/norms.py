"""Norms of per-example gradients from their factors, no smaller than those of what is summed.

    ||G_i||^2 = sum_{t,s} (a_it . a_is) (b_it . b_is)

comes from two Gram matrices.  What rounding may hide where positions cancel, and what it may add when gradients are
scaled, is counted (`products`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.gradients.factors import UNFOLDED_ON_CPU, Factor, Formed, Outer, Rows, in_pieces, tied, without_padding
from hush.gradients.products import aligned, hidden, own, product, rounding_of_scaled, wide


def squared_norms(factors: list[Factor]) -> Tensor:
    """`||sum of settled factors||^2` of every example, in float32 or better; at most a rounding error too small.

    With what rounding may add when they are scaled (`hush.gradients.products`).
    """
    pair = tied(factors)
    if pair is None:
        (factor,) = factors
        squares, slack = _squares(factor)
    else:
        rows, outer = pair
        of_outer, slack = _squares(outer)
        cross = _cross(rows, outer) + _hidden_in_cross(rows, outer)
        squares = (_squares(rows)[0] + of_outer + 2 * cross).clamp_min(0.0)
    return squares if slack is None else (squares.sqrt() + slack).square()


def _squares(factor: Factor) -> tuple[Tensor, Tensor | None]:
    """Squared norms, and by how much more than scaled norms the scaled gradients may come out, if they may."""
    if isinstance(factor, Formed):
        flat = wide(factor.grads).reshape(factor.examples, -1)
        return _dot(flat, flat), None
    if isinstance(factor, Rows):
        values, index = without_padding(factor)
        gram = product(values, values.transpose(-1, -2))
        same = index[:, :, None] == index[:, None, :]
        squares = _total(torch.where(same, gram, 0))
        # A row's values may cancel: what rounding hides of the norm, and of the sum, is relative to their magnitudes.
        lengths = gram.diagonal(0, -2, -1).clamp_min(0.0).sqrt()
        sizes = _total(torch.where(same, lengths[:, :, None] * lengths[:, None, :], 0))
        return (squares + hidden(gram, values.shape[-1], values.shape[1]) * sizes).clamp_min(0.0), None
    found = [_outer_squares(piece) for piece in in_pieces(factor)]
    squares, sizes = found[0] if len(found) == 1 else [torch.cat(column) for column in zip(*found, strict=True)]
    share = rounding_of_scaled(factor.b, factor.coarse)
    return squares, share * sizes if share else None


def _outer_squares(factor: Outer) -> tuple[Tensor, Tensor]:
    """Squared norms, and `sum_t |a_t| |b_t|`."""
    a, b = factor.a, factor.b
    n, (_, positions, d_in, d_out) = factor.examples, factor.sizes
    if positions == 1:
        wide_a, wide_b = wide(a), wide(b)
        # squares below the smallest number vanish, though what they are multiplied with may be large
        tiny = torch.finfo(wide_a.dtype).tiny
        each = (_dot(wide_a, wide_a) + d_in * tiny) * (_dot(wide_b, wide_b) + d_out * tiny)
        return each.flatten(1).sum(1), each.sqrt().flatten(1).sum(1)
    a, b = aligned(a, factor.coarse), aligned(b, factor.coarse)
    gram_a, gram_b = (product(x, x.transpose(-1, -2), factor.coarse) for x in (a, b))
    squares = _dot(gram_a.reshape(n, -1), gram_b.reshape(n, -1))
    # What rounding may hide where positions cancel: relative to (sum_t |a_t| |b_t|)^2, not to the norm itself.
    of_a, of_b = (gram.diagonal(0, -2, -1).clamp_min(0.0).sqrt() for gram in (gram_a, gram_b))
    sizes = (of_a * of_b).flatten(1).sum(1)
    # squares below the smallest number vanish, though what they are multiplied with may be large
    least_a, least_b = (math.sqrt(d * torch.finfo(gram_a.dtype).tiny) for d in (d_in, d_out))
    vanished = (of_a.flatten(1).sum(1) * least_b).square() + (of_b.flatten(1).sum(1) * least_a).square()
    return (squares + (hidden(gram_a, d_in, d_out) * sizes) * sizes + vanished).clamp_min(0.0), sizes


@own
def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of rows; their entries' products are written out, on a CPU not of all examples at once."""
    n, each = len(x), x[:1].numel() * x.element_size()
    at_once = n if x.is_cuda else max(1, UNFOLDED_ON_CPU // max(each, 1))
    if at_once >= n:
        result: Tensor = torch.linalg.vecdot(x, y)
        return result
    return torch.cat([torch.linalg.vecdot(a, b) for a, b in zip(x.split(at_once), y.split(at_once), strict=True)])


def _total(x: Tensor) -> Tensor:
    """The sum of every example's matrix, by rows first: compilers give a whole one to one of a GPU's processors."""
    return x.sum(2).sum(1)


def _cross(rows: Rows, outer: Outer) -> Tensor:
    """`<G_rows, G_outer>`: a tied embedding. Row index[t] of `b_s a_s^T` is `b_s[index[t]] a_s`."""
    a, values, picked = _meeting(rows, outer)
    return _total(product(a, values.transpose(-1, -2)) * picked)


def _hidden_in_cross(rows: Rows, outer: Outer) -> Tensor:
    """What rounding may hide of it, relative to the magnitudes that are added up."""
    a, values, picked = _meeting(rows, outer)
    of_a, of_values = (torch.linalg.vector_norm(wide(x), dim=-1) for x in (a, values))
    sizes = _total(of_a[:, :, None] * of_values[:, None, :] * picked.abs())
    return hidden(sizes, values.shape[-1], values.shape[1]) * sizes


def _meeting(rows: Rows, outer: Outer) -> tuple[Tensor, Tensor, Tensor]:
    """`a_s`, the rows' values, and `b_s[index[t]]`."""
    values, index = without_padding(rows)
    a, b = outer.a[:, 0], outer.b[:, 0]
    if outer.transposed:
        a, b = b, a
    return a[..., : values.shape[-1]], values, wide(b.gather(2, index[:, None, :].expand(-1, b.shape[1], -1)))
