"""Attacks on the privacy claims: each of these once gave less privacy than was reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hush.gradients import Auto, ClippedSum, Engine, Ghost, Loop, Memory, captured, clipped_sum


def clip_at(norm: float) -> Callable[[Tensor], Tensor]:
    return lambda norms: (norm / norms.clamp_min(1e-30)).clamp_max(1.0).nan_to_num(0.0)


def summed(
    parameters: list[nn.Parameter],
    losses: Callable[..., Tensor],
    batch: tuple[Tensor, ...],
    norm: float = 1.0,
    engine: Engine = Ghost(),  # noqa: B008
    **options: Any,
) -> ClippedSum:
    groups = (tuple(range(len(parameters))),)
    return clipped_sum(parameters, losses, batch, groups=groups, weigh=clip_at(norm), engine=engine, **options)


def moved(one: ClippedSum, other: ClippedSum) -> float:
    return float(torch.stack([(a - b).double().norm() for a, b in zip(one.sums, other.sums, strict=True)]).norm())


def in_place(build: Callable[..., captured.Program]) -> Callable[..., captured.Program]:
    """Programs whose outputs always lie in the same memory, as a CUDA graph's do."""

    def static(run: captured.Run) -> captured.Run:
        held: list[Tensor] = []

        def replay(*tensors: Tensor) -> list[Tensor]:
            made = run(*tensors)
            held[:] = held or [x.clone() for x in made]
            for place, new in zip(held, made, strict=True):
                place.copy_(new)
            return held

        return replay

    def built(*arguments: Any) -> captured.Program:
        program = build(*arguments)
        return captured.Program(program.capacity, static(program.first), static(program.second), program.notes)

    return built


def test_microbatches_of_a_captured_program_are_all_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "build", in_place(captured.build))
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    x = torch.randn(12, 3)
    losses = lambda x: layer(x).square().sum(1)  # noqa: E731
    parameters = list(layer.parameters())
    found = summed(parameters, losses, (x,), engine=Auto(compile=False), microbatch=4, memory=Memory(capacity=4))
    assert moved(found, summed(parameters, losses, (x,), engine=Loop())) < 1e-5
