"""Sums of losses on a lattice, by logarithms of positive masses: a mass of e^-9000 has its digits beside one of 1."""

from __future__ import annotations

import math

import numpy as np

from hush.accounting.pairs.losses import Array

_ROWS = 1 << 16  # sums of two logarithms that stay close at hand
_NOTHING = -1e300  # instead of minus infinity, which has no differences
_PLAIN = 600.0  # logs: floating-point numbers and their products


def convolved(one: Array, other: Array, size: int) -> Array:
    """Logs of the masses of sums: the first so many of index i + j; an index begins at 0 for both."""
    short, long = (one, other) if one.size <= other.size else (other, one)
    size = min(size, one.size + other.size - 1)
    if not (one > -np.inf).any() or not (other > -np.inf).any():
        return np.full(size, -np.inf)
    if (found := _plainly(one, other)) is not None:
        return found[:size]
    short, long = np.maximum(short, _NOTHING), np.maximum(long, _NOTHING)
    padded = np.concatenate([np.full(short.size - 1, _NOTHING), long, np.full(short.size, _NOTHING)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, short.size)
    found = np.empty(size)
    rows = max(_ROWS // short.size, 1)
    for first in range(0, size, rows):
        terms = windows[first : min(first + rows, size)] + short[::-1]
        peaks = terms.max(axis=1)
        terms -= peaks[:, None]
        found[first : first + rows] = peaks + np.log(np.exp(terms, out=terms).sum(axis=1))
    return np.where(found < 0.5 * _NOTHING, -np.inf, found)


def _plainly(one: Array, other: Array) -> Array | None:
    """By a product of floating-point numbers, where all of them are large enough for that."""
    ends = [(float(row.max()), float(row[row > -np.inf].min(initial=np.inf))) for row in (one, other)]
    if not sum(high - low for high, low in ends) < _PLAIN:
        return None
    with np.errstate(divide="ignore"):
        found = np.log(np.convolve(np.exp(one - ends[0][0]), np.exp(other - ends[1][0])))
    return np.asarray(found + ends[0][0] + ends[1][0])


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
