"""Gaussian noise: drawn once a step from the run's key, whatever the microbatches.

On the CPU it comes from NumPy's Philox with all of the key's bits (PyTorch's CPU generator keeps 32 bits of a seed), in
double precision; every million numbers have a stream of their own, so that several threads draw them.  On a GPU it
comes from PyTorch's generator there, seeded anew each step with 64 bits derived from the key.  With a secure key it is
drawn on the CPU from a cipher, and added and rounded as `hush.hardened` explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from hush.accounting.checks import check_positive
from hush.hardened import rounded
from hush.keys import Key

PURPOSE = "noise"
_GPU_BLOCK = 1 << 21  # numbers drawn at once
_CPU_BLOCK = 1 << 20  # numbers of one stream


def add(
    key: Key,
    step: int,
    sums: Sequence[Tensor],
    stds: Sequence[float],
    purpose: str = PURPOSE,
    in_place: bool = False,
) -> list[Tensor]:
    """Each of `sums` plus Gaussian noise of its standard deviation: what may leave the process.

    The same key, step and purpose give the same noise: never use them for different sums.  `in_place` writes over the
    sums, which must share no memory, and draws the same noise piece by piece.
    """
    _check(sums, stds)
    if not sums:
        return []
    # noise coarser than the sums would leave their last digits as they are
    dtype = torch.float64 if any(total.dtype == torch.float64 for total in sums) else torch.float32
    if in_place:
        _add_in_place(key, step, sums, stds, dtype, purpose)
        return list(sums)
    if key.secure:
        copies = [total.detach().clone(memory_format=torch.contiguous_format) for total in sums]
        return add(key, step, copies, stds, purpose, in_place=True)
    noise = gaussian(key, step, [t.shape for t in sums], stds, sums[0].device, dtype, purpose)
    if any(total.dtype is not dtype or total.device != sums[0].device for total in sums):
        noise = [z.to(total) for total, z in zip(sums, noise, strict=True)]
    torch._foreach_add_(noise, list(sums))
    return noise


def gaussian(
    key: Key,
    step: int,
    shapes: Sequence[Sequence[int]],
    stds: Sequence[float],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    purpose: str = PURPOSE,
) -> list[Tensor]:
    """One tensor of noise for each shape, with the standard deviation that goes with it."""
    _check(shapes, stds)
    device = torch.device(device)
    if key.secure:
        zeros = [torch.zeros(tuple(shape), dtype=dtype) for shape in shapes]
        return [z.to(device) for z in add(key, step, zeros, stds, purpose, in_place=True)]
    if device.type == "cpu":
        drawn = [torch.empty(tuple(shape), dtype=dtype) for shape in shapes]
        _draw(key, step, purpose, [x.view(-1) for x in drawn], stds, lambda part, z: part.copy_(z))
        return drawn
    source = torch.Generator(device)
    seed(source, key, step, purpose)
    if len(set(stds)) == 1:
        return standard(source, shapes, dtype, float(stds[0]))
    tensors = standard(source, shapes, dtype)
    if tensors:
        torch._foreach_mul_(tensors, [float(std) for std in stds])
    return tensors


def seed(generator: torch.Generator, key: Key, step: int, purpose: str = PURPOSE) -> None:
    """Sets a GPU's generator to the beginning of this step's noise."""
    if generator.device.type == "cpu":
        raise ValueError("PyTorch's CPU generator keeps 32 bits of a seed, too few for noise; use gaussian(...).")
    generator.manual_seed(key.seed64(purpose, step))


def standard(
    generator: torch.Generator, shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32, std: float = 1.0
) -> list[Tensor]:
    """The generator's next normal numbers, in few launches: a tensor for each shape, all parts of one."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.empty(sum(sizes), device=generator.device, dtype=dtype)
    for block in flat.split(_GPU_BLOCK) if len(flat) > _GPU_BLOCK else (flat,):
        block.normal_(0.0, std, generator=generator)
    parts = flat.split(sizes)
    return [part if len(shape) == 1 else part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _add_in_place(
    key: Key, step: int, sums: Sequence[Tensor], stds: Sequence[float], dtype: torch.dtype, purpose: str
) -> None:
    """What `gaussian` draws, or hardened noise, block by block, so that it needs little memory of its own."""
    flat = [total.detach().reshape(-1) for total in sums]
    sizes = [len(x) for x in flat]
    if key.secure:
        harden = _Hardened(key, step, purpose)
        for block in _blocks(sizes, _little(sizes)):
            for k, start, stop in block:
                harden(flat[k][start:stop], float(stds[k]))
    elif sums[0].device.type == "cpu":
        _draw(key, step, purpose, flat, stds, lambda part, z: part.add_(z.to(dtype).to(part)))
    else:
        source = torch.Generator(sums[0].device)
        seed(source, key, step, purpose)
        for block in _blocks(sizes, _GPU_BLOCK):
            parts = [flat[k][start:stop] for k, start, stop in block]
            one = len(set(stds)) == 1
            drawn = standard(source, [part.shape for part in parts], dtype, float(stds[0]) if one else 1.0)
            if not one:
                torch._foreach_mul_(drawn, [float(stds[k]) for k, _, _ in block])
            torch._foreach_add_(parts, [z.to(part) for part, z in zip(parts, drawn, strict=True)])
    for total, x in zip(sums, flat, strict=True):
        if not total.is_contiguous():  # then it was copied
            total.detach().copy_(x.view(total.shape))


def _draw(
    key: Key,
    step: int,
    purpose: str,
    flat: Sequence[Tensor],
    stds: Sequence[float],
    write: Callable[[Tensor, Tensor], object],
) -> None:
    """Hands noise in double precision to `write`, for the vectors' parts, a little at a time, by several threads."""
    sizes = [len(x) for x in flat]
    blocks, little = list(_blocks(sizes, _CPU_BLOCK)), _little(sizes)

    def draw(b: int) -> None:
        generator = np.random.Generator(key.philox(purpose, step, *([b] if b else [])))
        for k, first, end in blocks[b]:
            for start in range(first, end, little):
                stop = min(start + little, end)
                write(flat[k][start:stop], torch.from_numpy(generator.standard_normal(stop - start) * stds[k]))

    if len(blocks) <= 1 or torch.get_num_threads() == 1:
        for b in range(len(blocks)):
            draw(b)
        return
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(draw, range(len(blocks))))


def _little(sizes: Sequence[int]) -> int:
    """Numbers whose memory doesn't matter beside that of vectors of these sizes."""
    return min(max(sum(sizes) // 64, 1 << 12), 1 << 16)


def _blocks(sizes: Sequence[int], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """Vectors of these sizes, one after the other, cut into blocks: which one, from where, to where."""
    block: list[tuple[int, int, int]] = []
    room = most
    for k, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(size, start + room)
            block.append((k, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield block
                block, room = [], most
    if block:
        yield block


class _Hardened:
    """Writes hardened noise onto one piece after another."""

    def __init__(self, key: Key, step: int, purpose: str) -> None:
        self._key, self._step, self._purpose = key, step, purpose
        self._stream = key.stream(purpose, step)
        self._done = 0

    def __call__(self, piece: Tensor, std: float) -> None:
        values = piece.to("cpu", torch.float64).numpy()
        if not np.isfinite(values).all():
            raise ValueError("A sum that is to be published has NaN or infinite entries; clip its parts first.")
        result = rounded(values, std, self._stream.words(values.size), self._more)
        piece.copy_(torch.from_numpy(result))
        self._done += values.size

    def _more(self, i: int) -> bytes:
        return self._key.derive(f"{self._purpose}, further bits", self._step, self._done + i, size=24)


def _check(targets: Sequence[object], stds: Sequence[float]) -> None:
    if len(targets) != len(stds):
        raise ValueError(f"Each tensor has its standard deviation, got {len(targets)} tensors and {len(stds)} numbers.")
    for std in set(stds):
        check_positive("A standard deviation", std)
