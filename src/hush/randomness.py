"""Random numbers that a user's code draws while it sees records: dropout in a loss, augmentation in a data set.

They must be secret.  A dropout mask belongs to a row of the batch, so one record more gives all later records other
masks.  Over secret masks that makes no difference: all rows' have the same law, so each record can be taken to keep its
own, and a mixture of private outputs is private.  But to whoever knows the generator's seed (`torch.manual_seed(0)` in
a published notebook) the masks are known numbers, and every record's gradient moves.  So inside, the global generators
begin anew from the run's key at every step, and afterwards go on where they were.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from hush.keys import Key

Found = TypeVar("Found")
Losses = Callable[..., Any]
_WORDS = 624  # the state of the Mersenne twister, which PyTorch's CPU generator, NumPy's and Python's all are


class Randomness:
    """The generators of a run's losses.  Those of PyTorch's CPU, NumPy and Python are set as soon as one is used."""

    def __init__(self) -> None:
        self.used = True
        """Whether generators of the CPU's are, as far as is known; else what is computed is given up if they move."""
        self._calls = 0
        self._replayed = False  # the last step was a program's replay, which calls nobody's code
        self._counted: tuple[Losses, Losses] | None = None

    def of_step(
        self,
        key: Key,
        step: int,
        devices: Iterable[torch.device],
        losses: Losses,
        compute: Callable[[Losses], Found],
    ) -> Found:
        """What is computed by calling `losses`, with everything that those calls draw being this step's own."""
        counted = self._counting(losses)
        numbers = _numbers(devices)
        before = {k: torch.cuda.default_generators[k].get_state() for k in numbers}
        try:
            if not self.used:
                _seed_cuda(key, step, numbers)
                calls, begun = self._calls, None if self._replayed else _Place()
                found = compute(counted)
                self._replayed = calls == self._calls
                if self._replayed or (begun is not None and begun == _Place()):
                    return found
                del found  # once more: some of its random numbers were nobody's secret, or may have been
            _seed_cuda(key, step, numbers)
            self.used = True
            with seeded(key.derive("losses", step)):
                begun = _Place()
                found = compute(counted)
                self.used = begun != _Place()
            return found
        finally:
            for k, state in before.items():
                torch.cuda.default_generators[k].set_state(state)

    def _counting(self, losses: Losses) -> Losses:
        """The loss function with its calls counted: without one, nothing was drawn on the CPU.  One for each."""
        if self._counted is None or self._counted[0] is not losses:

            def counted(*batch: Any) -> Any:
                self._calls += 1
                return losses(*batch)

            self._counted = losses, counted
        return self._counted[1]


def _numbers(devices: Iterable[torch.device]) -> list[int]:
    return [device.index or 0 for device in devices if device.type == "cuda"]


def _seed_cuda(key: Key, step: int, numbers: Iterable[int]) -> None:
    for k in numbers:
        torch.cuda.default_generators[k].manual_seed(key.seed64("losses", step, k) >> 1)


@contextmanager
def seeded(secret: bytes) -> Iterator[None]:
    """PyTorch's CPU generator, NumPy's and Python's begin from `secret` inside, and are put back after."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    np.random.seed(_words(secret + b"NumPy"))
    random.seed(secret + b"Python")
    try:
        with _torch_seeded(secret):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextmanager
def _torch_seeded(secret: bytes) -> Iterator[None]:
    """`manual_seed` would keep 32 bits of a seed, so the whole state is set: all words of it come from the secret."""
    before = torch.get_rng_state()
    state = before.clone()
    fields = state.numpy()
    fields[:] = 0
    fields[:24].view(np.int32)[2:4] = 1  # no words left, so the next ones are made first; and it is seeded
    fields[24 : 24 + 8 * _WORDS].view(np.uint64)[:] = _words(secret + b"PyTorch")
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _words(secret: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(hashlib.shake_256(secret).digest(4 * _WORDS), dtype=np.uint32)


class Place:
    """Where the global generators are, to go back to; those of the CPU's only if `used`, since reading takes time."""

    def __init__(self, devices: Iterable[torch.device], used: bool = True) -> None:
        self._cuda = {k: torch.cuda.default_generators[k].get_state() for k in _numbers(devices)}
        self._cpu = (torch.get_rng_state(), np.random.get_state(), random.getstate()) if used else None

    def go_back(self) -> None:
        for k, state in self._cuda.items():
            torch.cuda.default_generators[k].set_state(state)
        if self._cpu is not None:
            of_torch, of_numpy, of_python = self._cpu
            torch.set_rng_state(of_torch)
            np.random.set_state(of_numpy)
            random.setstate(of_python)


@contextmanager
def unmoved(devices: Iterable[torch.device]) -> Iterator[None]:
    """What is drawn inside makes no difference to what is drawn after."""
    place = Place(devices)
    try:
        yield
    finally:
        place.go_back()


def drawn_in_python() -> object:
    """How far NumPy's and Python's global generators are: another value once one of them has drawn."""
    return repr(np.random.get_state(legacy=False)), random.getstate()


class _Place:
    """Whether the global generators moved; of NumPy's two words and the place are enough, and quickly read."""

    def __init__(self) -> None:
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        twister: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if isinstance(twister, np.random.MT19937):
            address = twister.ctypes.state_address
            self._numpy: object = ctypes.string_at(address, 8), ctypes.string_at(address + 4 * _WORDS, 4)
        else:
            self._numpy = repr(twister.state)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Place)
            and self._numpy == other._numpy
            and self._python == other._python
            and torch.equal(self._torch, other._torch)
        )

    __hash__ = None  # type: ignore[assignment]
