"""The papers' networks as modules, each with the number of parameters that its paper states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


def mnist_network() -> nn.Module:
    """The network of `architectures.mnist_network`: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def cifar_network(maxima: bool = False) -> nn.Module:
    """Papernot et al. 2020's for CIFAR-10, as Bu et al. 2021 count it: seven convolutions, one dense, 623,146.

    Neither the count nor the text tells how it pools; by means here unless by `maxima`.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((32, 2), (64, 2), (128, 2), (256, 1)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
            channels = width
        if count == 2:
            layers.append(nn.MaxPool2d(2) if maxima else nn.AvgPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 10))


class TextNetwork(nn.Module):
    """TensorFlow's tutorial, as in Bu et al. 2021: 8,185 words, one bidirectional LSTM of 64, a dense layer of 64.

    598,274 parameters there; PyTorch's LSTM has two biases a gate, which makes 512 more.
    """

    def __init__(self, words: int = 8185, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.uniform_(self.words.weight, -0.05, 0.05)  # Keras's start
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        for name, values in self.lstm.named_parameters():
            if name.startswith("bias_ih"):  # gates i, f, g, o: Keras starts with what was seen kept
                nn.init.ones_(values.data[width : 2 * width])
        self.dense = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.words(tokens))
        return self.out(torch.relu(self.dense(torch.cat([last[0], last[1]], 1))))  # type: ignore[no-any-return]


def alexnet() -> nn.Module:
    """Krizhevsky et al. 2012 on (1, 28, 28) images: five convolutions, three dense layers, 21,598,922 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 96, 11, stride=4, padding=4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(96, 256, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(256, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 10),
    )


def vgg13() -> nn.Module:
    """Simonyan and Zisserman 2014 on (3, 32, 32) images, ten classes behind the thousand: 32,394,562 parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 128, 256, 512, 512):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    dense = [nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(1000, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mnist-network": mnist_network,
    "cifar-network": cifar_network,
    "cifar-network-maxima": partial(cifar_network, maxima=True),
    "text-network": TextNetwork,
    "alexnet": alexnet,
    "vgg13": vgg13,
}


def network(name: str) -> nn.Module:
    """A network by name, with fresh parameters."""
    if name not in NETWORKS:
        raise ValueError(f"There is no network {name!r}; the names are {', '.join(NETWORKS)}.")
    return NETWORKS[name]()
