"""The ghost engine as one program: any batch size, thresholds that change, records that can't be summed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from hush.clipping import Flat, Normalised, PerLayer
from hush.clipping.base import Clipping
from hush.gradients import Auto, ClippedSum, Loop, Memory, captured, clipped_sum
from hush.gradients.engines import Task, Weights

NET = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
NAMES = [name for name, _ in NET.named_parameters()]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def losses(x: Tensor) -> Tensor:
    return NET(x).square().sum(1)


def examples(count: int, device: str = "cpu") -> Tensor:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    return (x * torch.linspace(0.1, 3, count, dtype=torch.float64)[:, None]).to(device)


def summed(
    x: Tensor, clip: Clipping, limits: tuple[float, ...], engine: Any, memory: Memory | None = None
) -> ClippedSum:
    parameters = list(NET.to(x.device).parameters())
    weigh = Weights(clip.weigh, lambda: limits)
    return clipped_sum(parameters, losses, (x,), groups=clip.groups(NAMES), weigh=weigh, engine=engine, memory=memory)


def assert_equal(one: ClippedSum, other: ClippedSum) -> None:
    for a, b in zip(one.sums, other.sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.norms, other.norms, rtol=1e-10, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clip", [Flat(1.0), Normalised(1.0), PerLayer(1.0)], ids=lambda clip: clip.kind)
def test_one_program_serves_all_sizes_and_thresholds(clip: Clipping, device: str) -> None:
    memory = Memory(capacity=8)
    groups = len(clip.groups(NAMES))
    for count, limit in [(8, 1.0), (3, 1.0), (8, 0.25), (5, 2.0), (8, 1.0), (19, 0.5), (1, 0.5)]:
        limits = tuple(limit * (1 + k) for k in range(groups))
        x = examples(count, device)
        found = summed(x, clip, limits, Auto(compile=False), memory)
        assert "not captured" not in " ".join(found.notes)
        assert_equal(found, summed(x, clip, limits, Loop()))
    assert len(memory.programs) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_larger_batch_left_behind_is_not_in_the_next(device: str) -> None:
    memory, clip = Memory(capacity=8), Flat(1.0)
    spoiled = examples(8, device)
    spoiled[5] = torch.inf
    for x in (spoiled, examples(3, device), spoiled[4:7]):
        found = summed(x, clip, (1.0,), Auto(compile=False), memory)
        assert_equal(found, summed(x, clip, (1.0,), Loop()))
        assert all(bool(total.isfinite().all()) for total in found.sums)


def test_a_program_that_would_hold_too_much_works_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = captured._build

    def hungry(*arguments: Any) -> captured.Program:
        program = plain(*arguments)
        return replace(program, held=program.capacity * 2**28)

    monkeypatch.setattr(captured, "_build", hungry)
    monkeypatch.setattr(captured, "_ordinary", lambda task: 2**30)
    memory, clip = Memory(capacity=32), Flat(1.0)
    for count in (32, 7, 70):
        x = examples(count)
        found = summed(x, clip, (0.5,), Auto(compile=False), memory)
        assert "in parts of 8 examples, to save memory" in found.notes
        assert_equal(found, summed(x, clip, (0.5,), Loop()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_an_ordinary_steps_memory_is_counted_and_the_peak_stays_what_it_was() -> None:
    layer = nn.Linear(1000, 500, bias=False).cuda()
    x = torch.randn(640, 1000, device="cuda")
    task = Task(list(layer.parameters()), lambda x: layer(x).square().sum(1), [x], [[0]], torch.ones_like)
    captured._ordinary(task)  # what cuBLAS keeps is there from now on
    torch.empty(2**28, device="cuda")
    highest = torch.cuda.max_memory_allocated()
    # at least the output and its square, and the weight's gradient; at most some more of these
    least = 4 * (2 * 640 * 500 + 1000 * 500)
    assert least <= captured._ordinary(task) <= 3 * least
    assert abs(torch.cuda.max_memory_allocated() - highest) <= 2**21


def test_a_recurrent_networks_program_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # needs no C++ compiler
    torch.manual_seed(0)
    network, clip = nn.RNN(3, 4, batch_first=True).double(), Flat(1.0)
    x = torch.randn(6, 3, 3, dtype=torch.float64)
    names, parameters = zip(*network.named_parameters(), strict=True)

    def last(x: Tensor) -> Tensor:  # whose gradient arrives at one time step only, in memory with gaps
        return network(x)[0][:, -1].square().sum(1)

    def by(engine: Any) -> ClippedSum:
        weigh = Weights(clip.weigh, lambda: (0.1,))
        groups = clip.groups(names)
        return clipped_sum(parameters, last, (x,), groups=groups, weigh=weigh, engine=engine, memory=Memory(capacity=6))

    found = by(Auto())
    assert "compiled" in found.notes
    assert_equal(found, by(Loop()))


def test_a_program_is_traced_without_computing() -> None:
    calls = []

    def watched(x: Tensor) -> Tensor:
        calls.append(isinstance(x, FakeTensor))
        return losses(x)

    clip, memory = Flat(1.0), Memory(capacity=8)
    parameters, groups = list(NET.cpu().parameters()), clip.groups(NAMES)
    found = clipped_sum(
        parameters,
        watched,
        (examples(8),),
        groups=groups,
        weigh=Weights(clip.weigh, lambda: (0.5,)),
        engine=Auto(compile=False),
        memory=memory,
    )
    assert "not captured" not in " ".join(found.notes)
    assert calls == [False] * (len(calls) - 1) + [True]  # to learn where examples are, then in name only
    assert_equal(found, summed(examples(8), clip, (0.5,), Loop()))
