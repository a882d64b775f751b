"""Sums in double precision that are to be released: symmetric matrices as vectors, and the room that rounding needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DOUBLE = 2.0**-53
"""The unit roundoff of a float64."""


def pack(matrices: Tensor) -> Tensor:
    """The upper triangles of symmetric matrices (..., d, d) as vectors (..., d (d + 1)/2), off-diagonals times 2^(1/2).

    An off-diagonal entry stands for two of the matrix, so with this factor the Euclidean norm of the vector is the
    Frobenius norm of the matrix, and inner products agree as well.  Noise of standard deviation s on the vector is
    then s on the diagonal and s/2^(1/2) elsewhere, the same in every orthonormal basis.  Plain triangles would need
    the same s: their norm reaches the Frobenius norm, too, for matrices on the diagonal.
    """
    rows, columns = torch.triu_indices(matrices.shape[-1], matrices.shape[-1], device=matrices.device)
    return matrices[..., rows, columns] * _weights(rows, columns, matrices.dtype)


def unpack(vectors: Tensor, size: int) -> Tensor:
    """The symmetric matrices of packed triangles, mirrored."""
    rows, columns = torch.triu_indices(size, size, device=vectors.device)
    entries = vectors / _weights(rows, columns, vectors.dtype)
    matrices = vectors.new_zeros(*vectors.shape[:-1], size, size)
    matrices[..., rows, columns] = entries
    matrices[..., columns, rows] = entries
    return matrices


def margin(batch: float) -> float:
    """The share of a bound kept free, so that rounding in float64 can't carry a sum beyond its sensitivity.

    As `hush.rounding.rounding_margin` has it for float32: 64 u for what leads to a term, and for each of two sums
    B g u with g = 1 + B^(1/2)/2, B the largest batch to be expected.
    """
    largest = batch + 10 * math.sqrt(batch)
    return (64 + 2 * largest * (1 + math.sqrt(largest) / 2)) * DOUBLE


def _weights(rows: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    one = torch.ones(len(rows), dtype=dtype, device=rows.device)
    return torch.where(rows == columns, one, math.sqrt(2) * one)
