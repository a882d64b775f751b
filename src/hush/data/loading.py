"""Finds a data set in a folder, reads it by its format, and checks it against what is known."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.data import formats, packed
from hush.data.catalogue import CATALOGUE, Facts

Array = NDArray[Any]
Pair = tuple[Array, Array]
Folder = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Split:
    """Records and their labels (classes, or ratings from 1 to 5)."""

    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set in memory.  MovieLens has no canonical test records: `test` is empty, `cut` draws some."""

    name: str
    train: Split
    test: Split
    files: tuple[Path, ...]

    def cut(self, share: float, seed: int) -> DataSet:
        """The training records cut at random: `share` of them become the test records."""
        order = np.random.default_rng(seed).permutation(len(self.train))
        count = round(share * len(order))
        held, kept = order[:count], order[count:]
        train, test = Split(self.train.x[kept], self.train.y[kept]), Split(self.train.x[held], self.train.y[held])
        return DataSet(self.name, train, test, self.files)

    def first(self, records: int) -> DataSet:
        """The first training records, and as many for testing: for a quick try."""
        train, test = (Split(part.x[:records], part.y[:records]) for part in (self.train, self.test))
        return DataSet(self.name, train, test, self.files)


def folders(given: Folder | None = None) -> tuple[Path, ...]:
    """Where data sets are looked for: the given folder, or HUSH_DATA (several, separated as in PATH)."""
    text = os.fspath(given) if given is not None else os.environ.get("HUSH_DATA", "")
    if not text:
        raise ValueError("No folder with data sets is known; give --data-dir, or set HUSH_DATA to one.")
    return tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part)


def load(name: str, folder: Folder | None = None, *, check: bool = True) -> DataSet:
    """A data set by name.  `check=False` takes files of other sizes and digests than the known ones."""
    if name not in CATALOGUE:
        raise ValueError(f"There is no data set {name!r}; the names are {', '.join(CATALOGUE)}.")
    facts = CATALOGUE[name]
    searched = folders(folder)
    for find, read in _WAYS[name]:
        files = find(searched)
        if files:
            if check:
                _check_digests(facts, files)
            train, test = read(files)
            found = DataSet(name, Split(*train), Split(*test), tuple(files))
            if check:
                _check_counts(facts, found)
            return found
    raise ValueError(
        f"The data set {name} is not in {os.pathsep.join(map(str, searched))}; get it from {facts.source} and put "
        f"there {facts.files}."
    )


def _check_digests(facts: Facts, files: Sequence[Path]) -> None:
    for path in files:
        known = facts.digests.get(path.name.removesuffix(".gz"))
        if known is not None:
            method = hashlib.sha256 if len(known) == 64 else hashlib.md5
            if method(formats.content(path)).hexdigest() != known:
                raise ValueError(
                    f"{path} is not the known file of {facts.name} (its digest differs); get it again from "
                    f"{facts.source} (hush.data.load takes it as it is with check=False)."
                )


def _check_counts(facts: Facts, found: DataSet) -> None:
    for part, split, counts in (("training", found.train, facts.train), ("test", found.test, facts.test)):
        if not counts:
            continue
        first = 1 if facts.name == "movielens" else 0
        seen = np.bincount(split.y, minlength=first + len(counts))[first:]
        if split.x.shape[1:] != facts.shape or tuple(seen) != counts:
            raise ValueError(
                f"{found.files[0]} and its kin hold {len(split)} {part} records of shape {split.x.shape[1:]} where "
                f"{facts.name} has {sum(counts)} of shape {facts.shape} with known counts by class; get them again "
                f"from {facts.source} (hush.data.load takes them as they are with check=False)."
            )


# Ways a set may lie there: files that must all exist, possibly gzipped, and how they are read


def _all(*names: str) -> Callable[[Sequence[Path]], list[Path]]:
    def find(searched: Sequence[Path]) -> list[Path]:
        found = [_first(searched, name) for name in names]
        return [path for path in found if path is not None] if None not in found else []

    return find


def _first(searched: Sequence[Path], name: str) -> Path | None:
    places = (folder / (name + suffix) for folder in searched for suffix in ("", ".gz"))
    return next((place for place in places if place.exists()), None)


def _idx_names(folder: str) -> tuple[str, ...]:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(f"{folder}/{part}-ubyte" for part in parts)


def _read_idx(files: Sequence[Path]) -> tuple[Pair, Pair]:
    a, b, c, d = (formats.idx(path) for path in files)
    return (a, b), (c, d)


def _read_cifar_parts(files: Sequence[Path]) -> tuple[Pair, Pair]:
    parts = [packed.cifar(path) for path in files]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return (x, y), parts[-1]


def _without_test(pair: Pair) -> tuple[Pair, Pair]:
    return pair, (pair[0][:0], pair[1][:0])


_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
_Way = tuple[Callable[[Sequence[Path]], list[Path]], Callable[[Sequence[Path]], tuple[Pair, Pair]]]
_WAYS: dict[str, tuple[_Way, ...]] = {
    "mnist": (
        (_all("mnist.npz"), lambda files: packed.plain(files[0])),
        (_all(*_idx_names("mnist")), _read_idx),
    ),
    "fashion_mnist": (
        (_all("fashion_mnist.npz"), lambda files: packed.plain(files[0])),
        (_all(*_idx_names("fashion_mnist")), _read_idx),
    ),
    "cifar10": (
        (_all(*(f"cifar10_train_{k}.npz" for k in range(4)), "cifar10_test.npz"), _read_cifar_parts),
        (
            _all(*(f"cifar-10-batches-bin/{name}.bin" for name in (*_BATCHES, "test_batch"))),
            lambda files: (formats.cifar_binary(files[:-1]), formats.cifar_binary(files[-1:])),
        ),
        (
            _all(*(f"cifar-10-batches-py/{name}" for name in (*_BATCHES, "test_batch"))),
            lambda files: (formats.cifar_pickled(files[:-1]), formats.cifar_pickled(files[-1:])),
        ),
    ),
    "adult": (
        (_all("adult_a9a.npz"), lambda files: packed.plain(files[0])),
        (_all("a9a", "a9a.t"), lambda files: (formats.libsvm(files[0], 123), formats.libsvm(files[1], 123))),
    ),
    "imdb": (
        (_all("imdb.npz"), lambda files: packed.plain(files[0])),
        (_all("aclImdb"), lambda files: formats.reviews(files[0])),
    ),
    "movielens": (
        (_all("movielens_1m.npz"), lambda files: _without_test(packed.ratings(files[0]))),
        (_all("ml-1m/ratings.dat"), lambda files: _without_test(formats.ratings(files[0]))),
    ),
    "usps": (
        (_all("usps.npz"), lambda files: packed.plain(files[0])),
        (_all("zip.train", "zip.test"), lambda files: (formats.zip_digits(files[0]), formats.zip_digits(files[1]))),
    ),
}
