"""Many small models trained together: seeds, and settings that share an architecture, along a first dimension.

Dimensions: S models, B examples a batch, A augmented copies of each, L positions (pixels), K inputs, C outputs.

A model is a function of stacked parameters that calls `tape.affine` for every layer with weights and `tape.lookup` or
`tape.bag` for every embedding.  The tape keeps the inputs and outputs; one `autograd.grad` of the losses with respect
to the outputs then gives every example's gradient as a product of what was kept, so that clipping needs no second pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

    def along(self, g: Tensor, directions: Parameters) -> Tensor:
        """(S, B): every example's gradient times a direction in the space of this layer's parameters."""
        weight = directions[self.name].to(self.inputs.dtype)
        moved = (self.inputs.flatten(1, 2) @ weight).view_as(g).to(g.dtype)
        total = (moved * g).sum((2, 3))
        return total + (g.sum(2) * directions[self.name + ".bias"][:, None]).sum(2) if self.bias else total

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
class Words:
    """out[s, b, l] = table[s, index[s, b, l]]: a text's embeddings, word by word.

    A word that occurs twice has the sum of both gradients: |gradient|^2 is the sum of g_l . g_m over all places l, m of
    the same word.
    """

    name: str
    index: Tensor
    out: Tensor
    rows: int

    def squared_norms(self, g: Tensor) -> Tensor:
        same = self.index[:, :, :, None] == self.index[:, :, None]
        return ((g @ g.mT) * same).sum((2, 3))

    def along(self, g: Tensor, directions: Parameters) -> Tensor:
        return (_rows(directions[self.name], self.index) * g).sum((2, 3))

    def weighted_sums(self, g: Tensor, weights: Tensor) -> Parameters:
        models, width = len(g), g.shape[3]
        offsets = self.index + self.rows * torch.arange(models, device=g.device)[:, None, None]
        sums = g.new_zeros(models * self.rows, width)
        sums.index_add_(0, offsets.flatten(), (g * weights[:, :, None, None]).flatten(0, 2))
        return {self.name: sums.view(models, self.rows, width)}


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """(S, rows, width) at (S, B, L) to (S, B, L, width)."""
    models = torch.arange(len(table), device=table.device)
    return table[models[:, None, None], index]


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

    met: list[Affine | Lookup | Words | Bag] = field(default_factory=list)

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

    def words(self, name: str, parameters: Parameters, index: Tensor) -> Tensor:
        table = parameters[name]
        out = _rows(table, index).requires_grad_()
        self.met.append(Words(name, index, out, table.shape[1]))
        return out

    def again(self, name: str, inputs: Tensor, out: Tensor) -> None:
        """A weight without a bias that met `inputs` in a sum with an `affine`'s output: it has that one's gradients."""
        self.met.append(Affine(name, inputs.detach(), out, False))

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
    apart: bool = False,
    directions: Sequence[Parameters] = (),
) -> Parameters:
    """Each model's sum of clipped per-example gradients; `losses(outputs, targets)` is (S, B).

    `weigh` takes norms (S, B, 1) to weights; with `apart` those of every layer, (S, B, layers), in the tape's order.
    Given random `directions`, norms are estimated from them (Bu et al. 2021): (mean over v of <gradient, v>^2)^(1/2).
    """
    tape = Tape()
    with torch.enable_grad():
        total = losses(forward(tape, parameters, inputs), targets).sum()
        gradients = torch.autograd.grad(total, [met.out for met in tape.met])
    if directions:
        squares = torch.stack([_along(tape, gradients, each).square() for each in directions]).mean(0)[:, :, None]
    else:
        squares = torch.stack([met.squared_norms(g) for met, g in zip(tape.met, gradients, strict=True)], 2)
        squares = squares if apart else squares.sum(2, keepdim=True)
    weights = weigh(squares.clamp_min(0).sqrt()).expand(-1, -1, len(tape.met))
    sums: Parameters = {}
    for k, (met, g) in enumerate(zip(tape.met, gradients, strict=True)):
        sums |= met.weighted_sums(g, weights[:, :, k])
    return sums


def _along(tape: Tape, gradients: Sequence[Tensor], directions: Parameters) -> Tensor:
    products = []
    for met, g in zip(tape.met, gradients, strict=True):
        if not isinstance(met, Affine | Words):
            raise ValueError(
                f"Norms of the embedding {met.name!r} aren't estimated from projections in stacked models."
            )
        products.append(met.along(g, directions))
    return torch.stack(products).sum(0)


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
