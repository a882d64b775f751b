"""The networks that `hush train` trains: small, without anything that mixes examples.

A table's features go through one hidden layer.  Images go through a fixed scattering transform, and what is learnt is a
linear model on that: filters that were written down in advance carry no noise (Tramer and Boneh 2021).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

_AT_ONCE = 512  # images transformed together


@dataclass(frozen=True)
class Network:
    """What is needed to build it.

    inputs   numbers of a record
    hidden   width of the hidden layer, for what isn't an image; 0: none
    image    channels, height and width, if a record is one
    """

    inputs: int
    outputs: int
    hidden: int
    image: tuple[int, int, int] | None = None

    def build(self) -> nn.Module:
        """With random weights."""
        from torch import nn

        if self.image is not None:
            return nn.Sequential(nn.Linear(self._scattered(*self.image), self.outputs))
        if self.hidden == 0:
            return nn.Sequential(nn.Linear(self.inputs, self.outputs))
        return nn.Sequential(nn.Linear(self.inputs, self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.outputs))

    def prepared(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the network takes, for records of numbers from -1 to 1: features of images, anything else as it is."""
        if self.image is None:
            return values
        import torch
        import torch.nn.functional as F

        from hush.features import Scattering, group_normalise

        channels, height, width = self.image
        step = 2 ** _scales(height, width)
        scattering = Scattering(_scales(height, width))
        found = np.empty((len(values), self._scattered(*self.image)), dtype=np.float32)
        for first in range(0, len(values), _AT_ONCE):
            images = (torch.from_numpy(values[first : first + _AT_ONCE]) + 1) / 2
            images = F.pad(images, (0, -width % step, 0, -height % step))
            features = group_normalise(scattering(images), channels * scattering.paths // 3)
            found[first : first + _AT_ONCE] = features.flatten(1).numpy()
        return found

    @staticmethod
    def _scattered(channels: int, height: int, width: int) -> int:
        from hush.features import Scattering

        scales = _scales(height, width)
        rows, columns = (math.ceil(side / 2**scales) for side in (height, width))
        return int(channels * Scattering(scales).paths * rows * columns)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Network:
        image = None if data["image"] is None else tuple(data["image"])
        return Network(int(data["inputs"]), int(data["outputs"]), int(data["hidden"]), image)


def _scales(height: int, width: int) -> int:
    """How often an image is halved."""
    return 2 if min(height, width) >= 16 else 1
