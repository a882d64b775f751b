"""Sums of losses on a lattice, by logarithms of positive masses: a mass of e^-9000 has its digits beside one of 1."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hush.accounting.pairs.losses import Array

_ROWS = 1 << 16  # sums of two logarithms that stay close at hand
_BLOCK = 64
_FEW = 2 * _BLOCK  # masses that are worth no blocks
_NOTHING = -1e300  # instead of minus infinity, which has no differences
_SMALLEST = -690.0  # log of a floating-point number beside which all that underflows is nothing


def convolved(one: Array, other: Array, size: int) -> Array:
    """Logs of the masses of sums: the first so many of index i + j; an index begins at 0 for both."""
    size = min(size, one.size + other.size - 1)
    one, other = one[:size], other[:size]
    if not (one > -np.inf).any() or not (other > -np.inf).any():
        return np.full(size, -np.inf)
    if min(one.size, other.size) < _FEW:
        return _one_by_one(one, other, np.arange(size))
    found, told = _in_blocks(one, other)
    found = found[:size]
    rest = np.flatnonzero(~told[:size])
    found[rest] = _one_by_one(one, other, rest)
    return found


def _in_blocks(one: Array, other: Array) -> tuple[Array, NDArray[np.bool_]]:
    """By products of floating-point numbers, each a part of the largest in its block; and which sums these tell.

    All sums whose indices lie in one block are parts of the largest product of two blocks that meet there.  What
    underflows beside that is less than 2^-1074 for each product, and is nothing to sums above e^-690.
    """
    (tops, parts), (others, factors) = _blocks(one), _blocks(other)
    heights = np.add.outer(tops, others)
    ends = np.add.outer(np.arange(tops.size), np.arange(others.size))
    most = np.full(tops.size + others.size, _NOTHING)
    np.maximum.at(most, ends, heights)
    most[1:] = np.maximum(most[1:], most[:-1])  # a product of blocks reaches into the next one
    bands = np.lib.stride_tricks.sliding_window_view(np.pad(factors[:, ::-1], ((0, 0), (_BLOCK - 1,) * 2)), _BLOCK, 1)
    products = parts @ bands.transpose(0, 2, 1)[:, :, ::-1]  # [block of the other, block of one, index]
    sums = np.zeros((most.size, _BLOCK))
    for late in (0, 1):
        weights = np.exp(heights - most[ends + late])
        piece = products[:, :, late * _BLOCK : (late + 1) * _BLOCK]
        np.add.at(sums[:, : piece.shape[2]], ends + late, weights[:, :, None] * piece.transpose(1, 0, 2))
    with np.errstate(divide="ignore"):
        found = np.log(sums)
    return (found + most[:, None]).ravel(), (found > _SMALLEST).ravel()


def _blocks(row: Array) -> tuple[Array, Array]:
    """The largest of each block, and all as parts of it."""
    padded = np.pad(row, (0, -row.size % _BLOCK), constant_values=-np.inf).reshape(-1, _BLOCK)
    tops = np.maximum(padded.max(axis=1), _NOTHING)
    return tops, np.exp(padded - tops[:, None])


def _one_by_one(one: Array, other: Array, indices: NDArray[np.int64]) -> Array:
    """Those of some indices, each by its own largest term."""
    short, long = (one, other) if one.size <= other.size else (other, one)
    short, long = np.maximum(short, _NOTHING), np.maximum(long, _NOTHING)
    padded = np.concatenate([np.full(short.size - 1, _NOTHING), long, np.full(short.size, _NOTHING)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, short.size)
    found = np.empty(indices.size)
    rows = max(_ROWS // short.size, 1)
    for first in range(0, indices.size, rows):
        terms = windows[indices[first : first + rows]] + short[::-1]
        peaks = terms.max(axis=1)
        terms -= peaks[:, None]
        found[first : first + rows] = peaks + np.log(np.exp(terms, out=terms).sum(axis=1))
    return np.where(found < 0.5 * _NOTHING, -np.inf, found)


def powered(one: Array, count: int, size: int) -> Array:
    """So many of them added up, by doubling."""
    result, double = None, one
    while True:
        if count % 2:
            result = double if result is None else convolved(result, double, size)
        count //= 2
        if count == 0:
            assert result is not None
            return result
        double = convolved(double, double, size)


def compounded(large: Array, count: int, size: int) -> Array:
    """Logs of the coefficients of (1 + J)^count, from above; J has the logs given, of an index of at least 1.

    With F that power and f = J, F' (1 + f) = T f' F, so n F_n is the sum over k of (k (T + 1) - n) f_k F_{n-k}.  Where
    that has negative terms, as it has for fewer steps than indices, without them it is larger.
    """
    first = int(np.argmax(large > -np.inf)) if (large > -np.inf).any() else size
    found = np.full(size, -np.inf)
    found[0] = 0.0
    indices = np.arange(size, dtype=np.float64)
    for n in range(first, size):
        last = min(n, large.size - 1)
        with np.errstate(divide="ignore"):
            weights = np.log(np.maximum(indices[first : last + 1] * (count + 1.0) - n, 0.0))
        terms = weights + large[first : last + 1] + found[n - last : n - first + 1][::-1]
        peak = float(terms.max())
        if peak > -np.inf:
            found[n] = peak + math.log(float(np.exp(terms - peak).sum())) - math.log(n)
    return found
