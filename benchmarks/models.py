"""The models that `training.py` times, with synthetic data of the right shapes.

Speed doesn't depend on what the pixels show, so the data are random.  A `Row` of the benchmark is a model, a batch size
and a precision; everything that trains it, plain or private, gets the same row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 50_257


def mnist_cnn() -> nn.Module:
    """The two-layer CNN of the TF-Privacy and Opacus tutorials: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def cifar_cnn() -> nn.Module:
    """The tanh CNN for CIFAR-10 of Papernot et al. 2020, in the form of Tramer and Boneh 2021: 550,570 parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.Tanh()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 128), nn.Tanh(), nn.Linear(128, 10))


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each after normalisation and ReLU, beside a shortcut (Zagoruyko and Komodakis 2016)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(16, channels)
        self.first = nn.Conv2d(channels, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(16, width)
        self.second = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != width:
            self.shortcut = nn.Conv2d(channels, width, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.first_norm(x))
        beside = x if self.shortcut is None else self.shortcut(active)
        return beside + self.second(functional.relu(self.second_norm(self.first(active))))


def wide_resnet() -> nn.Module:
    """WRN-16-4 with GroupNorm for CIFAR-10, as private training uses it (De et al. 2022): 2.7 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, kernel_size=3, padding=1, bias=False)]
    channels = 16
    for width, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [WideBlock(channels, width, stride), WideBlock(width, width, 1)]
        channels = width
    return nn.Sequential(
        *layers, nn.GroupNorm(16, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


class TextLSTM(nn.Module):
    """Words to two classes: embedding 8000 x 64, one bidirectional LSTM of 64, the mean over time, a linear layer.

    `recurrent` is what to build the LSTM with: a peer that can't train `nn.LSTM` brings its own.
    """

    def __init__(self, recurrent: Callable[..., nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8000, 64)
        self.lstm = recurrent(64, 64, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(128, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.classifier(states.mean(dim=1))


class TransformerBlock(nn.Module):
    """Pre-norm causal attention and a four times wider MLP, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.queries_keys_values(self.attention_norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.narrow(functional.gelu(self.widen(self.mlp_norm(x)), approximate="tanh"))


class GPT2(nn.Module):
    """The shape of GPT-2 small: 12 layers, width 768, 12 heads, tied embeddings, 124 million parameters; no dropout.

    Positions are looked up for every example, so that each layer sees the batch first, which the peers need;
    `tied=False` is for a peer that refuses tied weights.
    """

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, context: int = 1024, tied: bool = True
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Row:
    """One line of the benchmark: what is trained, on how many examples a step, in which precision."""

    name: str
    model: Callable[[], nn.Module]
    batch: int
    records: int  # of the data set that the model is usually trained on
    shape: tuple[int, ...]  # of one example; a single number is a count of tokens
    classes: int
    vocabulary: int | None = None
    every_token: bool = False  # a target for each token rather than one for each example
    adam: bool = False
    precision: str = "float32"  # "tf32" and "bf16" (autocast) are for CUDA

    def data(self, device: torch.device, examples: int | None = None) -> tuple[Tensor, Tensor]:
        """Random inputs and targets: one batch, the same for every method, or as many examples as asked for."""
        examples = self.batch if examples is None else examples
        coins = torch.Generator().manual_seed(0)
        size = (examples, *self.shape)
        if self.vocabulary is None:
            inputs = torch.randn(size, generator=coins)
        else:
            inputs = torch.randint(self.vocabulary, size, generator=coins)
        targets = torch.randint(self.classes, size if self.every_token else (examples,), generator=coins)
        return inputs.to(device), targets.to(device)

    def optimiser(self, parameters: Any) -> torch.optim.Optimizer:
        """What the model is usually trained with, by PyTorch's defaults."""
        if self.adam:
            return torch.optim.AdamW(parameters, lr=1e-4)
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def losses(self, model: Callable[[Tensor], Tensor], device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """One loss per example, under the row's autocast; a text's loss is the mean over its tokens."""

        def losses(inputs: Tensor, targets: Tensor) -> Tensor:
            with self.autocast(device):
                scores = model(inputs)
                if not self.every_token:
                    return functional.cross_entropy(scores, targets, reduction="none")
                each = functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
                return each.view_as(targets).mean(dim=1)

        return losses


def _mnist(batch: int) -> Row:
    return Row(f"mnist-{batch}", mnist_cnn, batch, 60_000, (1, 28, 28), 10)


def _cifar(batch: int) -> Row:
    return Row(f"cifar-{batch}", cifar_cnn, batch, 50_000, (3, 32, 32), 10)


def _wide(batch: int) -> Row:
    return Row(f"wrn-{batch}", wide_resnet, batch, 50_000, (3, 32, 32), 10)


def _lstm(batch: int) -> Row:
    return Row(f"lstm-{batch}", TextLSTM, batch, 25_000, (150,), 2, vocabulary=8000, adam=True)


def _gpt2(batch: int, tokens: int, precision: str) -> Row:
    name = f"gpt2-{batch}x{tokens}-{precision}"
    return Row(
        name, GPT2, batch, 42_000, (tokens,), VOCABULARY, VOCABULARY, every_token=True, adam=True, precision=precision
    )


CUDA_ROWS = (
    _mnist(256),
    _mnist(2048),
    _cifar(1024),
    _wide(256),
    _lstm(256),
    _gpt2(16, 512, "bf16"),
    _gpt2(16, 512, "tf32"),
)
# The same models, with batches that two cores finish in seconds.
CPU_ROWS = (_mnist(256), _mnist(2048), _cifar(256), _wide(32), _lstm(256), _gpt2(2, 128, "float32"))
ROWS = {row.name: row for row in CUDA_ROWS + CPU_ROWS}
