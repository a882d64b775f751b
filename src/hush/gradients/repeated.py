"""A loss that sees the same random numbers at every call of a step, so that all its passes are of one function."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.gradients.engines import Losses


class Repeated:
    """The loss function, with the generators it may draw from (dropout, augmentation) put back before every call."""

    def __init__(self, losses: Losses, parameters: Sequence[Tensor]) -> None:
        self._losses = losses
        self._devices = sorted({p.device for p in parameters if p.is_cuda}, key=str)
        self._begin = self._state()

    def __call__(self, *batch: Any) -> Tensor:
        self.rewind()
        return self._losses(*batch)

    def rewind(self) -> None:
        cpu, (for_numpy, words, *place), for_python, *cuda = self._begin
        torch.set_rng_state(cpu)
        for device, value in zip(self._devices, cuda, strict=True):
            torch.cuda.set_rng_state(value, device)
        np.random.set_state((for_numpy, words, *place))
        random.setstate(for_python)

    def drew(self) -> bool:
        """Whether random numbers were drawn since the last call began."""
        cpu, (_, words, *place), for_python, *cuda = self._begin
        cpu_now, (_, words_now, *place_now), python_now, *cuda_now = self._state()
        return not (
            torch.equal(cpu, cpu_now)
            and all(torch.equal(old, new) for old, new in zip(cuda, cuda_now, strict=True))
            and np.array_equal(words, words_now)
            and place == place_now
            and for_python == python_now
        )

    def _state(self) -> tuple[Any, ...]:
        cuda = (torch.cuda.get_rng_state(device) for device in self._devices)
        return torch.get_rng_state(), np.random.get_state(), random.getstate(), *cuda
