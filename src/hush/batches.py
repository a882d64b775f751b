"""Draws turned into data, step by step, in this process or by workers; each step is charged before it is drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hush.keys import Key
from hush.sources import Items, Source, Tensors
from hush.units import Draw


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of one step, as the collate function made it (for tensors a tuple), and the draw behind it: secrets."""

    step: int
    draw: Draw
    data: Any


def batches(
    source: Source,
    steps: Iterable[int],
    draw: Callable[[int], Draw],
    *,
    charge: Callable[[int], object],
    key: Key,
    workers: int = 0,
    prefetch: int = 2,
) -> Iterator[Batch]:
    """One batch for each of `steps`; `charge(step)` is called before `draw(step)`, and if it raises nothing is drawn.

    Workers (processes, for data sets; tensors need none, and on a GPU can have none) are ahead of the training by up to
    workers * prefetch steps, and those are charged before they are drawn, too.  When `charge` refuses a step, the
    batches of the steps before it are all handed out first; then its error is raised.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"The number of workers is a whole number from 0 on, got {workers}.")
    if isinstance(source, Tensors):
        return _from_tensors(source, steps, draw, charge)
    if workers == 0 or source.on_device:
        return _from_items(source, steps, draw, charge, key)
    return _from_workers(source, steps, draw, charge, key, workers, prefetch)


def _from_tensors(
    source: Tensors, steps: Iterable[int], draw: Callable[[int], Draw], charge: Callable[[int], object]
) -> Iterator[Batch]:
    for step in steps:
        charge(step)
        drawn = draw(step)
        yield Batch(step, drawn, source.take(drawn.indices))


def _from_items(
    source: Items, steps: Iterable[int], draw: Callable[[int], Draw], charge: Callable[[int], object], key: Key
) -> Iterator[Batch]:
    for step in steps:
        charge(step)
        drawn = draw(step)
        data = source.take(drawn.indices.tolist(), _secret(key, step))
        yield Batch(step, drawn, source.empty() if len(drawn) == 0 else data)


def _from_workers(
    source: Items,
    steps: Iterable[int],
    draw: Callable[[int], Draw],
    charge: Callable[[int], object],
    key: Key,
    workers: int,
    prefetch: int,
) -> Iterator[Batch]:
    drawn: deque[tuple[int, Draw]] = deque()
    refused: list[Exception] = []

    def orders() -> Iterator[tuple[list[int], bytes]]:
        for step in steps:
            try:
                charge(step)
                drawn.append((step, draw(step)))
            except Exception as error:  # raised below, after the batches that were charged
                refused.append(error)
                return
            yield drawn[-1][1].indices.tolist(), _secret(key, step)

    loader: DataLoader[Any] = DataLoader(
        _Orders(source),
        batch_size=None,
        sampler=orders(),
        num_workers=workers,
        prefetch_factor=prefetch,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # or the loader would draw from the global one
    )
    for data in loader:
        step, taken = drawn.popleft()
        yield Batch(step, taken, source.empty() if len(taken) == 0 else data)
    if refused:
        raise refused[0]


class _Orders(Dataset[Any]):
    """A data set whose "records" are whole batches: (positions, secret) in, batch out.  No worker is sent the key."""

    def __init__(self, source: Items) -> None:
        self.source = source

    def __getitem__(self, order: tuple[list[int], bytes]) -> Any:
        return self.source.take(*order)


def _as_it_is(batch: Any) -> Any:
    return batch


def _secret(key: Key, step: int) -> bytes:
    return key.derive("transformations", step)
