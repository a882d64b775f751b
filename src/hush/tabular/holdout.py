"""Which records are put aside: every record, or every user, by a coin of its own.

The coin is a keyed hash of the record's content (of the user's id), so adding a record anywhere in a file moves no
other, and equal records stay on one side.  Given the key, what is trained on is a record-by-record selection: the
neighbours of a data set have neighbouring training parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def aside(contents: Sequence[bytes], share: float, secret: bytes) -> NDArray[np.bool_]:
    """Whether each content is put aside: heads with probability `share`."""
    if not 0 <= share < 1:
        raise ValueError(f"The share of the hold-out lies from 0 to below 1, got {share:g}.")
    threshold = int(share * 2**64)
    coins = (hashlib.blake2b(content, key=secret, digest_size=8).digest() for content in contents)
    return np.array([int.from_bytes(coin, "little") < threshold for coin in coins], dtype=bool)
