"""Data sets as the experiments' models want them.  Nothing here may depend on private records without being charged.

Images are divided by a constant; scattering features are fixed and normalised image by image.  Principal directions
are released with noise, which the plan charges beside the training.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hush import data
from hush.accounting import Mechanism
from hush.data import DataSet, Split
from hush.experiments import architectures
from hush.experiments.stacked import Model
from hush.experiments.trainer import Records
from hush.features import Scattering, group_normalise
from hush.keys import Key

GROUPS = 27
"""Groups of channels for the 81 scattering paths of a channel, as Tramer and Boneh 2021 use."""


@dataclass(frozen=True, eq=False)
class Task:
    """Records to train on, records to test on, and what their preparation cost."""

    train: Records
    test: Records
    beside: Mechanism | None = None


def held_out(task: Task, share: float = 1 / 6) -> Task:
    """The training records cut in two, for searches: the last ones, which no search may train on, become the test."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0)).to(task.train.x.device)
    keep = len(order) - round(share * len(order))

    def part(index: Tensor) -> Records:
        return Records(task.train.x[index], task.train.y[index])

    return Task(part(order[:keep]), part(order[keep:]), task.beside)


def prepare(
    name: str,
    folder: str | None,
    device: torch.device,
    pca_noise: float | None = None,
    seed: int = 0,
    records: int | None = None,
    directions: int = 60,
) -> Task:
    """A task by name; with the first `records` records only, if given."""
    if name not in TASKS:
        raise ValueError(f"There is no task {name!r}; the names are {', '.join(TASKS)}.")
    source, make = TASKS[name]
    found = data.load(source, folder)
    if records is not None:
        found = found.first(records)
    if name.endswith("-directions"):
        return _directions(found, device, pca_noise, seed, directions, GREY if "centred" in name else 0.0)
    train, test = make(found, device)
    return Task(train, test)


def model(name: str, task: Task) -> Model:
    """An architecture by name, for a task's shapes."""
    x = task.train.x

    def hidden(units: int) -> Model:
        return architectures.multilayer((x.shape[2], units, 10))

    makers: dict[str, Callable[[], Model]] = {
        "linear": lambda: architectures.linear(x[0, 0].numel(), 10),
        "binary-linear": lambda: architectures.linear(x[0, 0].numel(), 2),
        **{
            f"words-{n}-{how}": partial(architectures.weighted_words, n, how)
            for n in (1000, 3000, 10_000)
            for how in architectures.WEIGHTINGS
        },
        "mnist-network": architectures.mnist_network,
        "cifar-network": architectures.cifar_network,
        "cifar-network-maxima": partial(architectures.cifar_network, maxima=True),
        "text-network": architectures.text_network,
        "mnist-tanh-network": lambda: architectures.mnist_network(torch.tanh),
        "scattering-network": lambda: architectures.scattering_network(x.shape[4], x.shape[2]),
        "adult-network": lambda: architectures.multilayer((x.shape[2], 16, 2)),
        "word-network": architectures.word_network,
        "word-network-by-positions": lambda: architectures.word_network(repeated=False),
        **{f"hidden-{n}": partial(hidden, n) for n in (100, 200, 300, 500, 1000, 2000)},
        "autoencoder": lambda: architectures.multilayer((256, 300, 100, 20, 100, 300, 256)),
        "neural-factorisation": lambda: architectures.neural_factorisation(6040, 3706),
        **{f"factorisation-{n}": partial(architectures.factorisation, 6040, 3706, n) for n in (2, 5, 10, 20)},
    }
    if name not in makers:
        raise ValueError(f"There is no model {name!r}; the names are {', '.join(makers)}.")
    return makers[name]()


Pair = tuple[Records, Records]


def _both(
    found: DataSet, device: torch.device, prepared: Callable[[Split], Tensor], target: Callable[[Split], Tensor]
) -> Pair:
    train, test = (Records(prepared(part), target(part).to(device)) for part in (found.train, found.test))
    return train, test


def _labels(part: Split) -> Tensor:
    return torch.from_numpy(part.y.astype(np.int64))


def _images(found: DataSet, device: torch.device) -> Pair:
    scale = 2000 if found.name == "usps" else 255

    def prepared(part: Split) -> Tensor:
        x = torch.from_numpy(part.x.astype(np.float32) / scale).to(device)
        return x[:, None, :, :, None] if x.dim() == 3 else x[:, None]

    return _both(found, device, prepared, _labels)


def _scattered(images: Tensor, device: torch.device, transform: Scattering, chunk: int = 500) -> Tensor:
    """(N, channels, H, W) on any device to (N, h, w, channels * paths) in half precision on the given one."""
    found = []
    for part in images.split(chunk):
        features = transform(part.to(device))
        features = group_normalise(features, GROUPS * images.shape[1])
        found.append(features.permute(0, 2, 3, 1).half())
    return torch.cat(found)


def _grey_scattering(found: DataSet, device: torch.device) -> Pair:
    scale, transform = (2000 if found.name == "usps" else 255), Scattering()

    def prepared(part: Split) -> Tensor:
        place = _kept(f"{found.name}-{'train' if part is found.train else 'test'}-{len(part)}-scattering.npy")
        if place is not None and place.exists():
            return torch.from_numpy(np.load(place)).to(device)
        x = _scattered(torch.from_numpy(part.x.astype(np.float32) / scale)[:, None], device, transform)[:, None]
        if place is not None:
            np.save(place, x.cpu().numpy())
        return x

    return _both(found, device, prepared, _labels)


def _kept(name: str) -> Path | None:
    """Where features are kept between runs: a file in the folder HUSH_CACHE, if that is set."""
    folder = os.environ.get("HUSH_CACHE")
    return Path(folder) / name if folder else None


def _colour_scattering(found: DataSet, device: torch.device, thin: bool = False) -> Pair:
    """Eight copies: mirrored or not, and moved by up to two pixels in four ways; tests take the mean over them.

    `thin` leaves out what green says already: of red and blue it keeps the first 18 of 81 paths, those of first order
    above all, which halves the channels; and it moves in two ways only.
    """
    transform = Scattering()
    moves = ((0, 0), (2, 1), (-2, -1), (1, -2))[: (2 if thin else 4) if len(found.train) > 5000 else 1]
    kept = torch.tensor([*range(18), *range(81, 162), *range(162, 180)], device=device)

    def copies(part: Split) -> Tensor:
        images = torch.from_numpy(part.x).permute(0, 3, 1, 2).to(device).half() / 255
        out: Tensor | None = None
        for place, (mirrored, (down, right)) in enumerate((m, move) for m in (False, True) for move in moves):
            around = F.pad(images, (2, 2, 2, 2), mode="reflect")[:, :, 2 + down : 34 + down, 2 + right : 34 + right]
            features = _scattered(around.flip(3) if mirrored else around, device, transform)
            features = features.index_select(3, kept) if thin else features
            if out is None:
                out = features.new_empty(len(features), 2 * len(moves), *features.shape[1:])
            out[:, place] = features
        assert out is not None
        return out

    return _both(found, device, copies, _labels)


def _rows(found: DataSet, device: torch.device) -> Pair:
    return _both(found, device, lambda part: torch.from_numpy(part.x.astype(np.float32))[:, None].to(device), _labels)


def _tenth(found: DataSet, device: torch.device) -> Pair:
    return _rows(found.cut(0.1, seed=0), device)


def _tokens(found: DataSet, device: torch.device) -> Pair:
    """The 256 words of a review by number, padding included."""
    return _both(found, device, lambda part: torch.from_numpy(part.x.astype(np.int64)).to(device), _labels)


def _last_words(found: DataSet, device: torch.device) -> Pair:
    """The last 150 words, those beyond the 8,185 most frequent numbers taken as unknown (2), as Bu et al. 2021."""

    def prepared(part: Split) -> Tensor:
        x = torch.from_numpy(part.x[:, -150:].astype(np.int64)).to(device)
        return torch.where(x < 8185, x, 2)

    return _both(found, device, prepared, _labels)


def _words(found: DataSet, device: torch.device) -> Pair:
    """Which of the 10,000 words occur in a review."""

    def prepared(part: Split) -> Tensor:
        x = torch.from_numpy(part.x.astype(np.int64)).to(device)
        return torch.zeros(len(x), 10_000, device=device, dtype=torch.uint8).scatter_(1, x, 1)[:, None]

    return _both(found, device, prepared, _labels)


def _pairs(device: torch.device) -> Callable[[Split], Tensor]:
    return lambda part: torch.from_numpy(part.x.astype(np.int64)).to(device)


def _classes_of_ratings(found: DataSet, device: torch.device) -> Pair:
    return _both(
        found.cut(0.2, seed=0), device, _pairs(device), lambda part: torch.from_numpy(part.y.astype(np.int64) - 1)
    )


def _centred_ratings(found: DataSet, device: torch.device) -> Pair:
    return _both(
        found.cut(0.2, seed=0), device, _pairs(device), lambda part: torch.from_numpy(part.y.astype(np.float32) - 3.5)
    )


def _pixels(found: DataSet, device: torch.device) -> Pair:
    def flat(part: Split) -> Tensor:
        return torch.from_numpy(part.x.reshape(-1, 256).astype(np.float32) / 2000)

    return _both(found, device, lambda part: flat(part)[:, None].to(device), flat)


GREY = 0.1307
"""What is quoted everywhere as the mean pixel of MNIST: a public constant, not computed from the records."""


def _directions(
    found: DataSet, device: torch.device, noise: float | None, seed: int, count: int, grey: float = 0.0
) -> Task:
    """Private principal directions (Abadi et al. 2016), released once for all models trained together.

    Images, less `grey` in every pixel, are scaled to length one for the directions' sake only; the network sees their
    coordinates as they are.
    """
    from hush.methods.pca import PCA

    def flat(part: Split) -> NDArray[np.float64]:
        return (part.x.reshape(len(part), -1).astype(np.float64) / 255 - grey) / (1 - grey)

    pca = PCA(count, records=len(found.train), noise_multiplier=noise).fit(flat(found.train), key=Key.from_seed(seed))
    across = torch.from_numpy(pca.components_.T).float()

    def prepared(part: Split) -> Tensor:
        return (torch.from_numpy(flat(part)).float() @ across)[:, None].to(device)

    train, test = _both(found, device, prepared, _labels)
    return Task(train, test, pca.mechanism)


TASKS: dict[str, tuple[str, Callable[[DataSet, torch.device], Pair]]] = {
    "mnist": ("mnist", _images),
    "mnist-scattering": ("mnist", _grey_scattering),
    "mnist-directions": ("mnist", _images),
    "mnist-centred-directions": ("mnist", _images),
    "fashion-scattering": ("fashion_mnist", _grey_scattering),
    "usps-scattering": ("usps", _grey_scattering),
    "usps-pixels": ("usps", _pixels),
    "cifar10": ("cifar10", _images),
    "cifar10-scattering": ("cifar10", _colour_scattering),
    "cifar10-thin-scattering": ("cifar10", partial(_colour_scattering, thin=True)),
    "adult": ("adult", _rows),
    "adult-tenth": ("adult", _tenth),
    "imdb-tokens": ("imdb", _tokens),
    "imdb-last-words": ("imdb", _last_words),
    "imdb-words": ("imdb", _words),
    "movielens-classes": ("movielens", _classes_of_ratings),
    "movielens": ("movielens", _centred_ratings),
}
