"""Copies that fill batches and programs up count nothing, whatever they draw or however they are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.gradients import Auto, ClippedSum, Engine, Ghost, Loop, Memory, Projected, Vmap, clipped_sum
from hush.gradients.filling import Filling
from hush.gradients.projected import gaussian_directions
from hush.keys import Key


def clipped(norms: Tensor) -> Tensor:
    return (1 / norms.clamp_min(1e-30)).clamp_max(1.0)


class BackwardOnce(torch.autograd.Function):
    """Can be differentiated backwards only, and once: projected norms go one unit after the other."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return x.T @ grad, None


def by_projections(weight: Tensor, losses: Any, x: Tensor) -> ClippedSum:
    engine = Projected(200, gaussian_directions(Key.from_seed(1), 0, [weight]))
    return clipped_sum([weight], losses, (x,), groups=[[0]], weigh=clipped, engine=engine, filling=Filling(32, 32))


@pytest.mark.parametrize("n", [20, 33])
@pytest.mark.parametrize("kind", ["once", "dropout", "plain"])
def test_projected_norms_count_no_copies(kind: str, n: int) -> None:
    weight = torch.zeros(6, requires_grad=True)
    x = torch.zeros(n, 6)
    x[0, 0] = 100.0  # its copies would show; the others have no gradient
    losses = {
        "once": lambda x: BackwardOnce.apply(weight, x),
        "dropout": lambda x: F.dropout(x, 0.0) @ weight + 0 * torch.rand_like(x[:, 0]),
        "plain": lambda x: x @ weight,
    }[kind]
    found = by_projections(weight, losses, x)
    assert 0.8 < float(found.sums[0].norm()) < 1.25  # a projected norm is off by a twentieth
    assert found.norms.shape == (n, 1)
    assert found.losses.shape == (n,)


@pytest.mark.parametrize("engine", [Ghost(), Vmap(), Auto(compile=False), Loop()], ids=lambda e: type(e).__name__)
def test_a_copy_whose_random_numbers_spoil_it_spoils_no_sum(engine: Engine) -> None:
    model, drop = nn.Linear(20, 4), nn.Dropout(0.5)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        words = drop(x)
        return F.cross_entropy(model(words / words.sum(1, keepdim=True)), y, reduction="none")

    x, y = torch.ones(41, 20), torch.arange(41) % 4
    x[0] = torch.eye(20)[0]  # a single word, which dropout may take away: 0/0
    capacity = 64 if isinstance(engine, Auto) else None  # a captured program's padding
    memory = Memory(capacity=capacity)
    for seed in range(12):
        torch.manual_seed(seed)
        found = clipped_sum(
            list(model.parameters()),
            losses,
            (x, y),
            groups=[[0, 1]],
            weigh=clipped,
            engine=engine,
            filling=Filling(32, 32),
            memory=memory,
        )
        assert all(bool(torch.isfinite(total).all()) for total in found.sums)


@pytest.mark.parametrize("engine", [Vmap(), Loop()], ids=lambda e: type(e).__name__)
def test_norms_of_ten_million_equal_entries_are_not_short(engine: Engine) -> None:
    weight = torch.zeros(10_000_000, requires_grad=True)
    x = torch.full((1, 1), 0.77)
    found = clipped_sum([weight], lambda x: (weight * x).sum(1), (x,), groups=[[0]], weigh=clipped, engine=engine)
    true = float(torch.tensor(0.77).double()) * 10_000_000**0.5
    assert found.norms.item() == pytest.approx(true, rel=1e-6)
