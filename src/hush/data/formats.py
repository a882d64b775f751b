"""Readers of the public distributions' formats: IDX, CIFAR-10 batches, LIBSVM, aclImdb, ratings.dat, zip text."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path} can't be unpacked; get it again.") from None


def idx(path: Path) -> Array:
    """An IDX file of bytes: 0, 0, type 8, number of dimensions, the dimensions (big-endian int32), the bytes."""
    raw = content(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is no IDX file of bytes; get it again.")
    start = 4 + 4 * raw[3]
    shape = np.frombuffer(raw[4:start], ">i4")
    if len(raw) - start != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} has {len(raw) - start} bytes where its header says {shape.tolist()}; get it again.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def cifar_binary(paths: Iterable[Path]) -> tuple[Array, Array]:
    """Rows of a label byte and 3072 pixels, plane by plane, to (N, 32, 32, 3) and (N,)."""
    raw = np.frombuffer(b"".join(content(path) for path in paths), np.uint8)
    if len(raw) % 3073:
        raise ValueError("A CIFAR-10 batch has rows of 3,073 bytes; these files don't, get them again.")
    rows = raw.reshape(-1, 3073)
    return _planes(rows[:, 1:]), rows[:, 0].copy()


class _ArraysOnly(pickle.Unpickler):
    """Reads dictionaries, strings, numbers and NumPy arrays; anything else in a pickle is refused."""

    allowed = frozenset({"_reconstruct", "ndarray", "dtype", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in self.allowed:
            raise ValueError(
                f"A CIFAR-10 batch holds arrays only, but this one asks for {module}.{name}; don't trust it."
            )
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def cifar_pickled(paths: Iterable[Path]) -> tuple[Array, Array]:
    """The Python version: dictionaries with b"data" (N, 3072) and b"labels"."""
    found = [_ArraysOnly(io.BytesIO(content(path)), encoding="bytes").load() for path in paths]
    return _planes(np.concatenate([batch[b"data"] for batch in found])), np.concatenate(
        [np.asarray(batch[b"labels"], np.uint8) for batch in found]
    )


def _planes(rows: Array) -> Array:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def libsvm(path: Path, features: int) -> tuple[Array, Array]:
    """Lines `label index:value ...`, indices from 1, with values 0 or 1 and labels -1 or +1."""
    labels: list[int] = []
    rows: list[int] = []
    columns: list[int] = []
    for line in content(path).decode("ascii").splitlines():
        label, *entries = line.split()
        for entry in entries:
            index, value = entry.split(":")
            if not 1 <= int(index) <= features or float(value) != 1:
                raise ValueError(f"{path} has the entry {entry}; expected 1 at an index from 1 to {features}.")
            rows.append(len(labels))
            columns.append(int(index) - 1)
        labels.append(int(float(label) > 0))
    x = np.zeros((len(labels), features), np.uint8)
    x[rows, columns] = 1
    return x, np.asarray(labels, np.uint8)


_TO_SPACE = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))
_LOWER = str.maketrans({chr(code): chr(code + 32) for code in range(65, 91)})


def reviews(folder: Path, words: int = 10_000, length: int = 256) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The aclImdb folder as word indices, as Keras numbers them: train (x, y) and test (x, y).

    0 pads in front, 1 starts a review, 2 stands for a word outside the `words` most frequent of the training reviews,
    the word of frequency rank r is r + 3; a longer review keeps its last `length` indices.  Words of equal frequency
    are ranked by spelling.
    """
    texts = {
        (part, sentiment): [
            path.read_text("utf-8").translate(_TO_SPACE).translate(_LOWER).split()
            for path in sorted((folder / part / sentiment).glob("*.txt"))
        ]
        for part in ("train", "test")
        for sentiment in ("neg", "pos")
    }
    counts = Counter(word for sentiment in ("neg", "pos") for text in texts["train", sentiment] for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    index = {word: rank + 4 for rank, word in enumerate(ranked)}

    def encoded(part: str) -> tuple[Array, Array]:
        both = texts[part, "neg"] + texts[part, "pos"]
        x = np.zeros((len(both), length), np.int16)
        for row, text in enumerate(both):
            known = [index[word] for word in text if word in index]
            ids = ([1] + [i if i < words else 2 for i in known])[-length:]
            x[row, length - len(ids) :] = ids
        y = np.repeat(np.arange(2, dtype=np.uint8), [len(texts[part, "neg"]), len(texts[part, "pos"])])
        return x, y

    return encoded("train"), encoded("test")


def ratings(path: Path) -> tuple[Array, Array]:
    """Lines `user::movie::rating::time` to (user, movie) pairs numbered from 0 and ratings."""
    table = np.array([line.split("::")[:3] for line in content(path).decode("ascii").splitlines()], np.int32)
    movies = np.unique(table[:, 1], return_inverse=True)[1]
    return np.stack([table[:, 0] - 1, movies], 1).astype(np.int32), table[:, 2].astype(np.uint8)


def zip_digits(path: Path) -> tuple[Array, Array]:
    """Lines of a digit and 256 grey values from -1 to 1 (ESL's zip.train), to integers from 0 to 2000."""
    table = np.loadtxt(io.StringIO(content(path).decode("ascii")), ndmin=2)
    if table.shape[1] != 257:
        raise ValueError(f"{path} has {table.shape[1]} numbers a line; expected a digit and 256 grey values.")
    return np.rint(1000 * (table[:, 1:] + 1)).astype(np.int16).reshape(-1, 16, 16), table[:, 0].astype(np.uint8)
