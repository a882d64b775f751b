"""Many short rows one after the other, taken together as far as they stay close at hand: in a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def blocks(sizes: Sequence[int] | NDArray[np.intp], most: int) -> Iterator[tuple[slice, slice, NDArray[np.intp]]]:
    """Which rows, which of their numbers, and where each of the rows begins among these.

    A block has no more than `most` numbers, unless it is a single row.
    """
    begins = np.append(0, np.cumsum(sizes)).astype(np.intp)
    rows = [0]
    while rows[-1] < len(sizes):
        last = int(np.searchsorted(begins, begins[rows[-1]] + most, side="right")) - 1
        rows.append(max(last, rows[-1] + 1))
    for first, last in pairwise(rows):
        yield slice(first, last), slice(begins[first], begins[last]), begins[first:last] - begins[first]
