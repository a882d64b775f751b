"""Many small models trained together: seeds, and settings that share an architecture, along a first dimension.

Dimensions: S models, B examples a batch, A augmented copies of each, L positions (pixels), K inputs, C outputs.

A model is a function of stacked parameters that calls `tape.affine` for every layer with weights and `tape.lookup` or
`tape.bag` for every embedding.  The tape keeps the inputs and outputs; one `autograd.grad` of the losses with respect
to the outputs then gives every example's gradient as a product of what was kept, so that clipping needs no second pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

Parameters = dict[str, Tensor]
Forward = Callable[["Tape", Parameters, Tensor], Tensor]


@dataclass(eq=False)
class Affine:
    """out = inputs @ weight + bias, with (S, B, L, K) inputs and (S, B, L, C) outputs.

    Inputs in half precision stay so, for the sake of memory: they have as many digits as TF32 keeps in a product.
    """

    name: str
    inputs: Tensor
    out: Tensor
    bias: bool
    formed: Tensor | None = None
    """Every example's gradient (S, B, K, C), where forming it is cheapest, over its `scale` (S, B)."""
    scale: Tensor | None = None

    def squared_norms(self, g: Tensor) -> Tensor:
        L, K, C = self.inputs.shape[2], self.inputs.shape[3], g.shape[3]
        if self.inputs.dtype is torch.float16:
            self.scale = g.abs().amax((2, 3)).clamp_min(1e-30)
            self.formed = self.inputs.mT @ (g / self.scale[:, :, None, None]).half()
            lengths: Tensor = torch.linalg.vector_norm(self.formed.flatten(2), dim=2, dtype=torch.float32)
            total = (self.scale * lengths).square()
        elif L == 1:
            total = self.inputs.square().sum((2, 3)) * g.square().sum((2, 3))
        elif L * (K + C) < K * C:  # |sum_l x_l g_l^T|^2 = sum_lm (x_l . x_m)(g_l . g_m)
            total = ((self.inputs @ self.inputs.mT) * (g @ g.mT)).sum((2, 3))
        else:
            self.formed = self.inputs.mT @ g
            total = self.formed.square().sum((2, 3))
        return total + g.sum(2).square().sum(2) if self.bias else total

    def weighted_sums(self, g: Tensor, weights: Tensor) -> Parameters:
        if self.formed is not None:
            shares = weights if self.scale is None else weights * self.scale
            whole = shares.sum(1, keepdim=True).clamp_min(1e-30)  # a mean can't overflow in half precision
            mean = (shares / whole).to(self.formed.dtype)[:, None] @ self.formed.flatten(2)
            summed = mean.to(g.dtype) * whole[:, :, None]
            weight = summed.view(-1, *self.formed.shape[2:])
        else:
            weight = self.inputs.flatten(1, 2).mT @ (g * weights[:, :, None, None]).flatten(1, 2)
        sums = {self.name: weight}
        return sums | {self.name + ".bias": (weights[:, None] @ g.sum(2))[:, 0]} if self.bias else sums


@dataclass(eq=False)
class Lookup:
    """out[s, b] = table[s, index[s, b]], one row an example."""

    name: str
    index: Tensor
    out: Tensor
    rows: int

    def squared_norms(self, g: Tensor) -> Tensor:
        return g.square().sum(2)

    def weighted_sums(self, g: Tensor, weights: Tensor) -> Parameters:
        models, _, width = g.shape
        offsets = self.index + self.rows * torch.arange(models, device=g.device)[:, None]
        sums = g.new_zeros(models * self.rows, width)
        sums.index_add_(0, offsets.flatten(), (g * weights[:, :, None]).flatten(0, 1))
        return {self.name: sums.view(models, self.rows, width)}


@dataclass(eq=False)
class Bag:
    """out[s, b] = mean over positions l of table[s, index[s, b, l]]: averaged embeddings of a text.

    With g the gradient at out and c_w how often word w occurs in L positions, word w's row has gradient c_w g/L, so the
    squared norm is |g|^2 sum_w c_w^2/L^2.  With `repeated` false it is taken position by position, |g|^2/L, as
    TensorFlow's global norm of sparse gradients does: too small wherever a word occurs twice, and so no bound.
    """

    name: str
    index: Tensor
    out: Tensor
    rows: int
    repeated: bool

    def squared_norms(self, g: Tensor) -> Tensor:
        length = self.index.shape[2]
        squares = g.square().sum(2)
        if not self.repeated:
            return squares / length
        words = self.index.sort(2).values
        counts = torch.searchsorted(words, words, right=True) - torch.searchsorted(words, words)
        return squares * counts.sum(2) / length**2  # sum over positions of c = sum over words of c^2

    def weighted_sums(self, g: Tensor, weights: Tensor) -> Parameters:
        models, _, length = self.index.shape
        offsets = self.index + self.rows * torch.arange(models, device=g.device)[:, None, None]
        each = (g * (weights / length)[:, :, None])[:, :, None].expand(-1, -1, length, -1)
        sums = g.new_zeros(models * self.rows, g.shape[2])
        sums.index_add_(0, offsets.flatten(), each.reshape(-1, g.shape[2]))
        return {self.name: sums.view(models, self.rows, -1)}


@dataclass(eq=False)
class Tape:
    """What met which parameter; every name at most once."""

    met: list[Affine | Lookup | Bag] = field(default_factory=list)

    def affine(self, name: str, parameters: Parameters, inputs: Tensor) -> Tensor:
        bias = parameters.get(name + ".bias")
        weight = parameters[name]
        out = (inputs.flatten(1, 2) @ weight.to(inputs.dtype)).view(*inputs.shape[:3], weight.shape[2])
        out = out.float() if inputs.dtype is torch.float16 else out
        out = out if bias is None else out + bias[:, None, None]
        # the parameters aren't asked for gradients; the outputs are
        out = out if out.requires_grad else out.requires_grad_()
        self.met.append(Affine(name, inputs.detach(), out, bias is not None))
        return out

    def lookup(self, name: str, parameters: Parameters, index: Tensor) -> Tensor:
        table = parameters[name]
        models, rows, _ = table.shape
        out = table[torch.arange(models, device=table.device)[:, None], index].requires_grad_()
        self.met.append(Lookup(name, index, out, rows))
        return out

    def bag(self, name: str, parameters: Parameters, index: Tensor, repeated: bool = True) -> Tensor:
        table = parameters[name]
        models, rows, width = table.shape
        offsets = index + rows * torch.arange(models, device=table.device)[:, None, None]
        out = F.embedding_bag(offsets.flatten(0, 1), table.reshape(-1, width), mode="mean")
        out = out.view(models, -1, width).requires_grad_()
        self.met.append(Bag(name, index, out, rows, repeated))
        return out


def clipped_sums(
    forward: Forward,
    parameters: Parameters,
    losses: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    weigh: Callable[[Tensor], Tensor],
) -> Parameters:
    """Each model's sum of clipped per-example gradients; `losses(outputs, targets)` and `weigh(norms)` are (S, B)."""
    tape = Tape()
    with torch.enable_grad():
        total = losses(forward(tape, parameters, inputs), targets).sum()
        gradients = torch.autograd.grad(total, [met.out for met in tape.met])
    squares = torch.stack([met.squared_norms(g) for met, g in zip(tape.met, gradients, strict=True)]).sum(0)
    weights = weigh(squares.clamp_min(0).sqrt())
    sums: Parameters = {}
    for met, g in zip(tape.met, gradients, strict=True):
        sums |= met.weighted_sums(g, weights)
    return sums


# Models: (parameters of S models from a generator, forward)


@dataclass(frozen=True)
class Model:
    """An architecture; `shapes` maps a parameter's name to (shape, standard deviation of its start)."""

    shapes: dict[str, tuple[tuple[int, ...], float]]
    forward: Forward
    half: bool = False
    """Whether records kept in half precision go in as they are."""

    def start(self, generators: list[torch.Generator], device: torch.device) -> Parameters:
        """One model for every generator."""
        return {
            name: torch.stack([spread * torch.randn(shape, generator=g) for g in generators]).to(device)
            for name, (shape, spread) in self.shapes.items()
        }

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape, _ in self.shapes.values())


def _weights(name: str, inputs: int, outputs: int, gain: float = 1.0) -> dict[str, tuple[tuple[int, ...], float]]:
    return {name: ((inputs, outputs), gain / math.sqrt(inputs)), name + ".bias": ((outputs,), 0.0)}


def linear(inputs: int, classes: int, bias: bool = True) -> Model:
    """Softmax regression from zero; augmented copies (S, B, A, ...) give logits (S, B, A, C)."""
    shapes = _weights("out", inputs, classes, gain=0.0)
    if not bias:
        del shapes["out.bias"]
    return Model(shapes, lambda tape, p, x: tape.affine("out", p, x.flatten(3)))


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
