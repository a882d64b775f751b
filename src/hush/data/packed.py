"""The `.npz` layout: typed arrays, no pickles.

`x_train`, `y_train`, `x_test`, `y_test` for most sets; `user`, `movie`, `rating` for MovieLens; for CIFAR-10 four parts
and a test file with a lossless delta code `d` (planes G, R - G, B - G, then vertical and horizontal differences, modulo
256), which deflates to 60% of the images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pair = tuple[Array, Array]


def plain(path: Path) -> tuple[Pair, Pair]:
    """Train and test arrays."""
    with np.load(path, allow_pickle=False) as found:
        return (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])


def ratings(path: Path) -> Pair:
    """(user, movie) pairs and ratings."""
    with np.load(path, allow_pickle=False) as found:
        return np.stack([found["user"], found["movie"]], 1).astype(np.int32), found["rating"]


def cifar(path: Path) -> Pair:
    """One delta-coded part: (N, 32, 32, 3) and (N,)."""
    with np.load(path, allow_pickle=False) as found:
        planes = np.cumsum(np.cumsum(found["d"], 2, dtype=np.uint8), 3, dtype=np.uint8)
        labels = found["y"]
    planes[:, 1:] += planes[:, :1]
    return np.ascontiguousarray(planes[:, [1, 0, 2]].transpose(0, 2, 3, 1)), labels


def cifar_deltas(images: Array) -> Array:
    """The code of (N, 32, 32, 3) images: the inverse of what `cifar` undoes."""
    planes = images.transpose(0, 3, 1, 2)[:, [1, 0, 2]].copy()
    planes[:, 1:] -= planes[:, :1]
    for axis in (3, 2):
        planes = np.diff(planes, axis=axis, prepend=np.zeros_like(planes.take([0], axis)))
    return planes.astype(np.uint8)
