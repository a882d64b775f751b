"""The experiments' small networks in stacked form; dimensions as in `stacked`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.experiments.stacked import Model, Parameters, Tape


def _weights(name: str, inputs: int, outputs: int, gain: float = 1.0) -> dict[str, tuple[tuple[int, ...], float]]:
    return {name: ((inputs, outputs), gain / math.sqrt(inputs)), name + ".bias": ((outputs,), 0.0)}


def linear(inputs: int, classes: int) -> Model:
    """Softmax regression from zero; augmented copies (S, B, A, ...) give logits (S, B, A, C)."""
    shapes = _weights("out", inputs, classes, gain=0.0)
    return Model(shapes, lambda tape, p, x: tape.affine("out", p, x.flatten(3)))


WEIGHTINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "even": lambda rank: (rank > 0).float(),
    "fourth-root": lambda rank: rank**0.25,
    "root": torch.sqrt,
    "rank": lambda rank: rank,
}
"""Weights of words by their public rank: rarer words say more."""


def weighted_words(words: int, weighting: str) -> Model:
    """Logistic regression, without a bias, on which of the `words` most frequent words occur (S, B, 1, 10,000).

    Words are weighted by their rank and a text is scaled to length one.  The first three numbers aren't words.
    """
    shapes: dict[str, tuple[tuple[int, ...], float]] = {"out": ((words, 2), 0.0)}

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        seen = x[:1] if x.stride(0) == 0 else x  # what all models see is prepared once
        weights = WEIGHTINGS[weighting](torch.arange(words, device=x.device).sub(3).clamp_min(0).float())
        each = seen[..., :words] * weights.to(p["out"].dtype)
        unit = each / torch.linalg.vector_norm(each, dim=3, keepdim=True).clamp_min(1e-6)
        return tape.affine("out", p, unit.expand(len(x), -1, -1, -1))

    return Model(shapes, forward)


def multilayer(sizes: tuple[int, ...]) -> Model:
    """Dense layers, rectifiers between them."""
    names = [f"layer{k}" for k in range(len(sizes) - 1)]
    shapes: dict[str, tuple[tuple[int, ...], float]] = {}
    for name, inputs, outputs in zip(names, sizes[:-1], sizes[1:], strict=True):
        shapes |= _weights(name, inputs, outputs, gain=math.sqrt(2) if name != names[-1] else 1.0)

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        for name in names[:-1]:
            x = torch.relu(tape.affine(name, p, x))
        return tape.affine(names[-1], p, x)

    return Model(shapes, forward)


def word_network(words: int = 10_000, width: int = 16, repeated: bool = True) -> Model:
    """Bu et al. 2019's network for texts (S, B, L) of word numbers: averaged embeddings, a dense layer, two classes."""
    shapes: dict[str, tuple[tuple[int, ...], float]] = {"words": ((words, width), 0.03)}  # Keras: uniform in +-0.05
    shapes |= _weights("dense", width, 16, math.sqrt(2)) | _weights("out", 16, 2)

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        mean = tape.bag("words", p, x, repeated)[:, :, None]
        return tape.affine("out", p, torch.relu(tape.affine("dense", p, mean)))

    return Model(shapes, forward)


def text_network(words: int = 8185, width: int = 64) -> Model:
    """The network of `networks.TextNetwork` on texts (S, B, L) of word numbers; its LSTM has one bias a gate here.

    Gates lie as i, f, g, o along a layer's outputs.  With z_t = x_t W + b + h_{t-1} U, the gradient at x_t W + b is the
    one at z_t, and so U's gradient is the sum over t of h_{t-1} times it.
    """
    spread = 1 / math.sqrt(3 * width)  # PyTorch's start
    shapes: dict[str, tuple[tuple[int, ...], float]] = {"words": ((words, width), 0.03)}
    for name in ("ahead", "back"):
        shapes |= {name: ((width, 4 * width), spread), name + ".bias": ((4 * width,), 0.0)}
        shapes[name + ".state"] = ((width, 4 * width), spread)
    shapes |= _weights("dense", 2 * width, width, math.sqrt(2)) | _weights("out", width, 2)

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        models = len(x)
        seen = tape.words("words", p, x)
        inputs = {"ahead": tape.affine("ahead", p, seen), "back": tape.affine("back", p, seen.flip(2))}
        both = torch.cat([inputs["ahead"], inputs["back"]])
        last, before = _recurrent(both, torch.cat([p["ahead.state"], p["back.state"]]))
        for name, states in zip(inputs, (before[:models], before[models:]), strict=True):
            tape.again(name + ".state", states, inputs[name])
        ends = torch.cat([last[:models], last[models:]], 2)[:, :, None]
        return tape.affine("out", p, torch.relu(tape.affine("dense", p, ends)))

    return Model(shapes, forward)


def _recurrent(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """An LSTM's last state (S, B, H), and the states before every step (S, B, L, H), from what its inputs add."""
    width = weight.shape[1]
    h = c = inputs.new_zeros(*inputs.shape[:2], width)
    before = []
    for part in inputs.unbind(2):
        before.append(h.detach())
        gates = torch.baddbmm(part, h, weight)
        i, f, o = gates[..., :width].sigmoid(), (gates[..., width : 2 * width] + 1).sigmoid(), gates[..., 3 * width :]
        c = f * c + i * gates[..., 2 * width : 3 * width].tanh()
        h = o.sigmoid() * c.tanh()
    return h, torch.stack(before, 2)


def _patches(x: Tensor, size: int, stride: int) -> Tensor:
    """(S, B, A, H, W, K) to (S, B, A, h, w, size*size*K) by views and one copy."""
    views = x.unfold(3, size, stride).unfold(4, size, stride)  # S B A h w K size size
    return views.flatten(5)


def _convolve(tape: Tape, name: str, p: Parameters, x: Tensor, size: int, stride: int) -> Tensor:
    patches = _patches(x, size, stride)
    shape = patches.shape
    out = tape.affine(name, p, patches.reshape(shape[0], shape[1], -1, shape[5]))
    return out.view(*shape[:5], out.shape[3])


def _pool(x: Tensor, size: int, stride: int) -> Tensor:
    shape = x.shape
    images = x.reshape(-1, *shape[3:]).permute(0, 3, 1, 2)
    pooled = F.max_pool2d(images, size, stride).permute(0, 2, 3, 1)
    return pooled.reshape(*shape[:3], *pooled.shape[1:])


def _pad(x: Tensor, low: int, high: int) -> Tensor:
    return F.pad(x, (0, 0, low, high, low, high))


def mnist_network(activation: Callable[[Tensor], Tensor] = torch.relu) -> Model:
    """Bu et al. 2019's network, TensorFlow Privacy's tutorial: 26,010 parameters on (28, 28, 1) images."""
    root = math.sqrt(2)
    shapes = _weights("conv1", 64, 16, root) | _weights("conv2", 256, 32, root)
    shapes |= _weights("dense", 512, 32, root) | _weights("out", 32, 10)

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        x = activation(_convolve(tape, "conv1", p, _pad(x, 3, 3), 8, 2))
        x = activation(_convolve(tape, "conv2", p, _pool(x, 2, 1), 4, 2))
        x = _pool(x, 2, 1).flatten(3)
        return tape.affine("out", p, activation(tape.affine("dense", p, x)))

    return Model(shapes, forward)


def cifar_network(maxima: bool = False) -> Model:
    """The network of `networks.cifar_network` on (32, 32, 3) images: 623,146 parameters."""
    widths = (3, 32, 32, 64, 64, 128, 128, 256)
    names = [f"conv{k}" for k in range(1, 8)]
    shapes: dict[str, tuple[tuple[int, ...], float]] = {}
    for name, channels, width in zip(names, widths[:-1], widths[1:], strict=True):
        shapes |= _weights(name, 9 * channels, width)
    shapes |= _weights("out", 4 * 4 * 256, 10)

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        for k, name in enumerate(names, 1):
            x = torch.tanh(_convolve(tape, name, p, _pad(x, 1, 1), 3, 1))
            if k in (2, 4, 6):
                fours = x.unflatten(4, (-1, 2)).unflatten(3, (-1, 2))
                x = fours.amax((4, 6)) if maxima else fours.mean((4, 6))
        return tape.affine("out", p, x.flatten(3))

    return Model(shapes, forward)


def scattering_network(channels: int, side: int, width: int = 64) -> Model:
    """Tramer and Boneh 2021's network on scattering features (side, side, channels): two 3 by 3 layers with tanh."""
    shapes = _weights("conv1", 9 * channels, width) | _weights("conv2", 9 * width, width)
    shapes |= _weights("out", width * (side // 2) ** 2, 10)

    def forward(tape: Tape, p: Parameters, x: Tensor) -> Tensor:
        x = torch.tanh(_convolve(tape, "conv1", p, _pad(x, 1, 1), 3, 1))
        x = torch.tanh(_convolve(tape, "conv2", p, _pad(_pool(x, 2, 2), 1, 1), 3, 1))
        return tape.affine("out", p, x.flatten(3))

    return Model(shapes, forward, half=True)


def neural_factorisation(users: int, movies: int, product: int = 5, plain: int = 10, classes: int = 5) -> Model:
    """Bu et al. 2019's simplified neural collaborative filtering on pairs (user, movie)."""
    shapes: dict[str, tuple[tuple[int, ...], float]] = {}
    for kind, rows in (("user", users), ("movie", movies)):
        shapes |= {f"{kind}.product": ((rows, product), 0.05), f"{kind}.plain": ((rows, plain), 0.05)}
    shapes |= _weights("out", product + 2 * plain, classes)

    def forward(tape: Tape, p: Parameters, pairs: Tensor) -> Tensor:
        user, movie = pairs[..., 0], pairs[..., 1]
        both = tape.lookup("user.product", p, user) * tape.lookup("movie.product", p, movie)
        beside = [tape.lookup("user.plain", p, user), tape.lookup("movie.plain", p, movie)]
        return tape.affine("out", p, torch.cat([both, *beside], 2)[:, :, None])

    return Model(shapes, forward)


def factorisation(users: int, movies: int, factors: int) -> Model:
    """A rating as user bias + movie bias + product of factors; the last column of each table is the bias."""
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "user": ((users, factors), 0.1),
        "movie": ((movies, factors), 0.1),
        "user.bias": ((users, 1), 0.0),
        "movie.bias": ((movies, 1), 0.0),
    }

    def forward(tape: Tape, p: Parameters, pairs: Tensor) -> Tensor:
        user, movie = pairs[..., 0], pairs[..., 1]
        both = (tape.lookup("user", p, user) * tape.lookup("movie", p, movie)).sum(2)
        return both + tape.lookup("user.bias", p, user)[..., 0] + tape.lookup("movie.bias", p, movie)[..., 0]

    return Model(shapes, forward)
