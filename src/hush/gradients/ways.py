"""The ways to clipped sums by projected norms: forward mode, two backward passes, one unit after the other.

Each finds the examples' derivatives along the directions, the units' norms and weights from them, and the sum of the
weighted gradients by backward mode; `agreeing` compares the two modes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hush.gradients.directional import dot, forward, parts, transposed, vectorised
from hush.gradients.engines import ClippedSum, Directions, Losses, Task, count, one_loss_each, pick
from hush.gradients.fitting import Fit
from hush.gradients.owned import add_gradients, owned
from hush.gradients.plain import gradient_of, members_of
from hush.gradients.products import wide
from hush.gradients.unfused import unfused

_PIECE = 1 << 14


@dataclass(frozen=True)
class Work:
    """What is to be computed."""

    task: Task
    losses: Losses
    projections: int
    directions: Directions

    @property
    def parameters(self) -> Sequence[Tensor]:
        return self.task.parameters

    @property
    def units(self) -> Tensor | None:
        return self.task.units

    @cached_property
    def n(self) -> int:
        """How many examples count."""
        return count(self.task.batch) - self.task.copies

    @property
    def wanted(self) -> range:
        return range(self.projections)

    def pieces(self, fit: Fit) -> list[tuple[Any, ...]]:
        return parts(self.task.batch, fit.rows, fit.filling(self.task.filling), self.task.spare)

    def norms(self, derivatives: Tensor) -> Tensor:
        """The units' estimates `[units, 1]`: a unit's derivatives are the sums of its examples'."""
        each = wide(derivatives)
        if self.units is not None:
            where = self.units.to(each.device)
            units = each.new_zeros(int(self.units.max()) + 1, each.shape[1])
            each = units.index_add_(0, where, each[: len(where)])  # copies belong to none
        lengths: Tensor = torch.linalg.vector_norm(each, dim=1)
        column: Tensor = (lengths / self.projections**0.5)[:, None]
        return column

    def per_example(self, weights: Tensor) -> Tensor:
        return weights[:, 0] if self.units is None else weights[:, 0][self.units.to(weights.device)]


@dataclass(frozen=True)
class Found:
    values: Tensor
    derivatives: Tensor  # of the examples, along the directions
    norms: Tensor
    weights: Tensor
    sums: list[Tensor]
    spoiled: Tensor  # whether a norm, be it a copy's, isn't finite and may be in the sums
    apart: bool = False  # whether fused operations were taken apart in the backward pass
    twice: bool = False  # whether derivatives are from two backward passes

    def result(self, note: str) -> ClippedSum:
        return ClippedSum(self.sums, self.norms, self.values, (note,), self.spoiled)


def by_forward_mode(work: Work, fit: Fit, back: Fit) -> Found:
    given = work.parameters, work.losses, work.pieces(fit), work.directions, work.wanted
    with unfused() as mode, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)  # PyTorch's own use of it
        derivatives = vectorised(*given, fit.at_once) if fit.at_once > 1 else forward(*given)
    del given  # and with it what fills the batch up
    return _weighed(work, derivatives, mode.random, back)


def by_two_backward_passes(work: Work, fit: Fit, back: Fit) -> Found:
    with unfused() as mode:
        each, pieces = [], work.pieces(fit)
        if len(pieces) == 1:  # one graph for all, whose random numbers needn't be repeated
            values = one_loss_each(work.losses(*pieces[0]), count(pieces[0]))
            derivatives = transposed(work.parameters, values, work.directions, work.wanted)
            alone = work.pieces(back)[1:] == []
            return replace(_weighed(work, derivatives, mode.random, back, values if alone else None), twice=True)
        for part in pieces:
            values = one_loss_each(work.losses(*part), count(part))
            each.append(transposed(work.parameters, values, work.directions, work.wanted))
        del values, part, pieces
    return replace(_weighed(work, torch.cat(each), mode.random, back), twice=True)


def _weighed(work: Work, derivatives: Tensor, random: bool, back: Fit, values: Tensor | None = None) -> Found:
    """The weights by the derivatives, and the sum of the gradients by one backward pass.

    Where fused operations were taken apart and drew `random` numbers, they are taken apart here as well.  Copies that
    fill the batch up have weight zero.
    """
    every = work.norms(derivatives)
    norms = every if work.units is not None else every[: work.n]
    weights = work.task.weights(norms)
    if values is None:
        values, sums = weighted_sums(work, weights, random, back)
    else:
        sums = _backward(work, values, work.per_example(weights))
    spoiled = ~torch.isfinite(every).all()
    return Found(values.detach()[: work.n], derivatives[: work.n], norms, weights, sums, spoiled, random)


def weighted_sums(work: Work, weights: Tensor, apart: bool, back: Fit) -> tuple[Tensor, list[Tensor]]:
    """The losses, and the gradient of `sum_u w_u loss_u` over units; fused operations taken apart or not."""
    with unfused() if apart else nullcontext():
        return _in_pieces(work, work.per_example(weights), work.pieces(back))


def _in_pieces(work: Work, weights: Tensor, pieces: list[tuple[Any, ...]]) -> tuple[Tensor, list[Tensor]]:
    """The losses, and the gradient of `sum_i w_i loss_i`."""
    if len(pieces) == 1:
        values = one_loss_each(work.losses(*pieces[0]), count(pieces[0]))
        return values, _backward(work, values, weights)
    sums = [torch.zeros_like(p, memory_format=torch.contiguous_format) for p in work.parameters]
    seen: list[Tensor] = []
    for piece in pieces:
        values = one_loss_each(work.losses(*piece), count(piece))
        own, weights = weights[: len(values)], weights[len(values) :]
        add_gradients(work.parameters, values, _like(values, own), sums)
        seen.append(values.detach())
    return torch.cat(seen), sums


def by_loop(work: Work, losses: Losses, most: int) -> Found:
    """Each unit's gradient formed: for what can be differentiated backwards only, and once.

    As many directions are kept as may be, the others drawn anew for every unit.  Sums are in float64: one after the
    other, thousands of aligned gradients in float32 would carry a record's place away.
    """
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in work.parameters]
    kept = {j: list(work.directions(j)) for j in work.wanted[:most]}
    losses_seen, order, all_norms = [], [], []
    real = pick(work.task.batch, slice(0, work.n))
    for u, members in enumerate(members_of(real, work.units)):
        value, grads = gradient_of(work.parameters, losses, pick(real, members))
        along = [dot(grads, kept[j] if j in kept else work.directions(j)) for j in work.wanted]
        norms = (torch.linalg.vector_norm(torch.stack(along)) / work.projections**0.5).to(grads[0].dtype)[None, None]
        weight = work.task.weights(norms, first=u)[0, 0]
        if bool(torch.isfinite(norms).all()):
            for total, grad in zip(sums, grads, strict=True):
                pieces = total.view(-1).split(_PIECE), grad.reshape(-1).split(_PIECE)  # in each other's type at a time
                for to, more in zip(*pieces, strict=True):
                    to.add_(more, alpha=float(weight))
        losses_seen.append(value)
        order.append(members)
        all_norms.append(norms[0])
        del grads
    joined = torch.cat(losses_seen)
    where = torch.cat(order).to(joined.device)
    found = torch.stack(all_norms)
    values = torch.empty_like(joined).index_copy_(0, where, joined)
    none = torch.zeros((), dtype=torch.bool, device=found.device)
    for k, p in enumerate(work.parameters):  # one after the other: they are twice as large
        sums[k] = sums[k].to(torch.promote_types(p.dtype, torch.float32))
    return Found(values, joined[:, None], found, found, sums, spoiled=none)


def _backward(work: Work, values: Tensor, weights: Tensor) -> list[Tensor]:
    """The gradient of `sum_i w_i loss_i`."""
    if not values.requires_grad:
        return [torch.zeros_like(p) for p in work.parameters]
    grads: list[Any] = list(
        torch.autograd.grad(values, list(work.parameters), _like(values, weights), allow_unused=True)
    )
    for k, p in enumerate(work.parameters):
        grads[k] = (
            torch.zeros_like(p) if grads[k] is None else wide(grads[k].to_dense() if grads[k].is_sparse else grads[k])
        )
    return owned(grads)


def _like(values: Tensor, weights: Tensor) -> Tensor:
    """Weights of the values' type; zero for copies that fill a batch up."""
    return torch.nn.functional.pad(weights, (0, len(values) - len(weights))).to(values.dtype)
