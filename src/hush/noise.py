"""Gaussian noise: drawn once a step from the run's key, whatever the microbatches.

On the CPU it comes from NumPy's Philox with all of the key's bits (PyTorch's CPU generator keeps 32 bits of a seed), in
double precision.  On a GPU it comes from PyTorch's generator there, seeded anew each step with 64 bits derived from the
key.  With a secure key it is drawn on the CPU from a cipher, and added and rounded as `hush.hardened` explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hush.accounting.checks import check_positive
from hush.hardened import rounded
from hush.keys import Key

PURPOSE = "noise"


def add(key: Key, step: int, sums: Sequence[Tensor], stds: Sequence[float], purpose: str = PURPOSE) -> list[Tensor]:
    """Each of `sums` plus Gaussian noise of its standard deviation: what may leave the process.

    The same key, step and purpose give the same noise: never use them for different sums.
    """
    _check(sums, stds)
    if key.secure:
        return _hardened(key, step, sums, stds, purpose)
    if not sums:
        return []
    # noise coarser than the sums would leave their last digits as they are
    dtype = torch.float64 if any(total.dtype == torch.float64 for total in sums) else torch.float32
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
        return [z.to(device) for z in _hardened(key, step, zeros, stds, purpose)]
    if device.type == "cpu":
        generator = np.random.Generator(key.philox(purpose, step))
        drawn = (generator.standard_normal(tuple(shape)) * std for shape, std in zip(shapes, stds, strict=True))
        return [torch.as_tensor(z, dtype=dtype) for z in drawn]
    source = torch.Generator(device)
    seed(source, key, step, purpose)
    if len(set(stds)) == 1:
        return standard(source, shapes, dtype, float(stds[0]))
    tensors = standard(source, shapes, dtype)
    if tensors:
        torch._foreach_mul_(tensors, [float(std) for std in stds])
    return tensors


def seed(generator: torch.Generator, key: Key, step: int, purpose: str = PURPOSE) -> None:
    """Sets a GPU's generator to the beginning of this step's noise.

    For a CUDA graph: register the generator with the graph, call `standard` while capturing, and `seed` before each
    replay; the replay then draws what `gaussian` would.
    """
    if generator.device.type == "cpu":
        raise ValueError("PyTorch's CPU generator keeps 32 bits of a seed, too few for noise; use gaussian(...).")
    generator.manual_seed(key.seed64(purpose, step))


def standard(
    generator: torch.Generator, shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32, std: float = 1.0
) -> list[Tensor]:
    """The generator's next normal numbers, in one launch: a tensor for each shape, all parts of one."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.empty(sum(sizes), device=generator.device, dtype=dtype).normal_(0.0, std, generator=generator)
    return [part.view(tuple(shape)) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]


def _hardened(key: Key, step: int, sums: Sequence[Tensor], stds: Sequence[float], purpose: str) -> list[Tensor]:
    stream = key.stream(purpose, step)
    noisy, first = [], 0
    for total, std in zip(sums, stds, strict=True):
        values = total.detach().to("cpu", torch.float64).numpy().ravel()
        if not np.isfinite(values).all():
            raise ValueError("A sum that is to be published has NaN or infinite entries; clip its parts first.")

        def more(i: int, first: int = first) -> bytes:
            return key.derive(f"{purpose}, further bits", step, first + i, size=24)

        result = rounded(values, float(std), stream.words(values.size), more)
        noisy.append(torch.from_numpy(result).view(total.shape).to(total.device, total.dtype))
        first += values.size
    return noisy


def _check(targets: Sequence[object], stds: Sequence[float]) -> None:
    if len(targets) != len(stds):
        raise ValueError(f"Each tensor has its standard deviation, got {len(targets)} tensors and {len(stds)} numbers.")
    for std in set(stds):
        check_positive("A standard deviation", std)
