"""The networks that `hush train` trains: small, without anything that mixes examples."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Network:
    """What is needed to build it: a perceptron on features, or a small convolutional network on images."""

    inputs: int
    outputs: int
    hidden: int
    image: tuple[int, int, int] | None = None

    def build(self) -> nn.Module:
        """With random weights."""
        from torch import nn

        if self.image is not None:
            return self._convolutional(*self.image)
        if self.hidden == 0:
            return nn.Sequential(nn.Linear(self.inputs, self.outputs))
        return nn.Sequential(nn.Linear(self.inputs, self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.outputs))

    def _convolutional(self, channels: int, height: int, width: int) -> nn.Module:
        """Two layers of 5x5 and 3x3 with tanh, which bounds activations and so gradients (Papernot et al. 2021)."""
        from torch import nn

        first = [nn.Conv2d(channels, 16, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        size = 32 * (height // 4) * (width // 4)
        if min(height, width) < 16:  # too small to halve twice
            second, size = [], 16 * (height // 2) * (width // 2)
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(size, self.outputs))

    @property
    def size(self) -> int:
        """About how many parameters it has."""
        if self.image is not None:
            return 20_000 + 32 * self.image[1] * self.image[2] * self.outputs
        return (self.inputs + 1 + self.outputs) * max(self.hidden, 1)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Network:
        image = None if data["image"] is None else tuple(data["image"])
        return Network(int(data["inputs"]), int(data["outputs"]), int(data["hidden"]), image)
