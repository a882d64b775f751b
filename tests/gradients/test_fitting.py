"""How much of a batch, and how many directions, go through at once, where kernels need memory of their own.

No GPU is needed: the meter is replaced by one that sees a workspace as well, in full float32 or in plain training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush
from hush.experiments.networks import network
from hush.gradients import ClippedSum, Memory, Projected, clipped_sum, footprint, projected
from hush.gradients.fitting import Fit, Fitting
from hush.gradients.owned import add_gradients
from hush.gradients.projected import gaussian_directions
from hush.gradients.sizes import Sizes, plain_bytes
from hush.keys import Key

MIB = 2**20
Workspace = Callable[["Kernels"], float]


@dataclass
class Kernels:
    """What a pretended kernel can see: its precision and how many examples it is given."""

    full: bool = False
    examples: int = 0
    calls: list[int] = field(default_factory=list)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The precision as a GPU would have it; the loss functions tell the rest."""
    seen = Kernels()

    @contextmanager
    def full_float32(_: Any) -> Iterator[None]:
        seen.full = True
        try:
            yield
        finally:
            seen.full = False

    monkeypatch.setattr(projected, "full_float32", full_float32)
    monkeypatch.setattr(footprint, "sees_kernels", lambda _: True)
    return seen


def measure_with(monkeypatch: pytest.MonkeyPatch, kernels: Kernels, workspace: Workspace) -> list[float]:
    """The meter that sees workspaces, and hands out no more than it may; what it handed out is in the list."""
    counted, found = footprint.peak_bytes, []

    def peak_bytes(computation: Callable[[], object], device: torch.device, limit: float = math.inf) -> float:
        needed = counted(computation, device) + workspace(kernels)
        found.append(min(needed, limit))
        return needed if needed <= limit else math.inf

    monkeypatch.setattr(footprint, "peak_bytes", peak_bytes)
    return found


def images() -> nn.Module:
    layers = [part for _ in range(4) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())]
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *layers, nn.Flatten(), nn.Linear(8 * 144, 10))


def clipped(
    net: nn.Module,
    kernels: Kernels,
    at_once: int | None = None,
    n: int = 128,
    r: int = 4,
    units: Tensor | None = None,
) -> tuple[ClippedSum, list[int]]:
    """The clipped sum, and what the loss was called with once nothing was measured any more."""
    torch.manual_seed(1)
    batch = torch.randn(n, 1, 12, 12), torch.randint(10, (n,))
    parameters = list(net.parameters())

    def losses(x: Tensor, y: Tensor) -> Tensor:
        kernels.examples = len(x)
        kernels.calls.append(len(x))
        return F.cross_entropy(net(x), y, reduction="none")

    engine, memory = Projected(r, gaussian_directions(Key.from_seed(0), 0, parameters), at_once), Memory()

    def run() -> ClippedSum:
        given: dict[str, Any] = {"groups": [range(len(parameters))], "weigh": weigh, "units": units}
        return clipped_sum(parameters, losses, batch, engine=engine, memory=memory, **given)

    run(), run()  # measured at the first; examples are asked about each other at both
    kernels.calls.clear()
    return run(), list(kernels.calls)


def weigh(norms: Tensor) -> Tensor:
    return (0.5 / norms).clamp_max(1)


def assert_same(a: ClippedSum, b: ClippedSum) -> None:
    torch.testing.assert_close(a.norms, b.norms, rtol=1e-5, atol=0)
    for x, y in zip(a.sums, b.sums, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_batch_whose_float32_kernels_need_too_much_goes_through_in_parts(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = images()
    expected, calls = clipped(net, kernels, at_once=1)
    assert set(calls) == {128}
    found = measure_with(monkeypatch, kernels, lambda k: 0.2 * MIB * k.examples if k.full else 0)
    given, calls = clipped(net, kernels)
    plain, *passes = found
    assert max(passes) <= 1.25 * plain  # measuring doesn't need more, either
    assert min(calls) >= 8
    assert max(calls) <= 64
    assert sum(calls) == 5 * 128  # four directions and the sum
    assert_same(given, expected)


def test_kernels_that_only_large_batches_have_are_seen(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = images()
    measure_with(monkeypatch, kernels, lambda k: 40 * MIB if k.full and k.examples > 32 else 0)
    _, calls = clipped(net, kernels)
    assert set(calls) == {32}


def test_parts_are_of_exactly_the_size_that_was_measured(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is filled up with copies, which count nothing, for units of several examples too."""
    torch.manual_seed(0)
    net = images()
    for units in (None, torch.arange(100) % 40):
        expected, _ = clipped(net, kernels, at_once=1, n=100, units=units)
        with monkeypatch.context() as patch:
            measure_with(patch, kernels, lambda k: 0 if not k.full or k.examples == 32 else 40 * MIB)
            given, calls = clipped(net, kernels, n=100, units=units)
        assert calls == 5 * [32, 32, 32, 32]
        assert given.norms.shape == expected.norms.shape
        assert_same(given, expected)


def test_random_losses_go_through_all_passes_in_parts_of_that_size(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(images(), nn.Dropout(0.1))
    measure_with(monkeypatch, kernels, lambda k: 0 if not k.full or k.examples <= 32 else 40 * MIB)
    given, calls = clipped(net, kernels, n=100, r=2)
    assert calls == 4 * [32, 32]  # both directions at once, and the sum, of every part
    assert given.norms.shape == (100, 1)


def test_directions_at_once_are_fewer_where_large_batches_have_other_kernels(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 300), nn.Tanh(), nn.Linear(300, 10))
    measure_with(monkeypatch, kernels, lambda k: 10 * MIB if not k.full else 9 * MIB * (k.examples > 64))
    several, _ = clipped(net, kernels, r=12)
    assert several.notes[0] in {f"projected, {k} directions at once" for k in (2, 3, 4, 6)}


def test_memory_that_only_plain_trainings_kernels_need_is_room_for_several_directions(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 300), nn.Tanh(), nn.Linear(300, 10))
    alone, _ = clipped(net, kernels, r=12)
    assert "one direction at a time" in alone.notes[0]
    measure_with(monkeypatch, kernels, lambda k: 0 if k.full else 0.2 * MIB * k.examples)
    several, calls = clipped(net, kernels, r=12)
    assert several.notes == ("projected, 12 directions at once",)
    assert calls == [128, 128]
    assert_same(several, alone)


def test_directions_are_shared_out_evenly_over_the_passes(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 300), nn.Tanh(), nn.Linear(300, 10))
    measure_with(monkeypatch, kernels, lambda k: 0 if k.full else 4.0 * MIB)
    several, calls = clipped(net, kernels, r=12)
    assert several.notes[0] in {f"projected, {k} directions at once" for k in (2, 3, 4, 6)}
    assert len(calls) == 12 // int(several.notes[0].split()[1]) + 1


def test_what_plain_training_needs_is_asked_in_its_own_precision(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    measure_with(monkeypatch, kernels, lambda k: asked.append(k.full) or 0.0)
    torch.manual_seed(0)
    clipped(images(), kernels, n=160)
    assert asked[:2] == [False, False]  # of 128 and of 64
    assert all(asked[2:])


def test_what_plain_training_needs_is_never_overestimated() -> None:
    layer = nn.Linear(3, 1)
    sizes = Sizes(list(layer.parameters()), layer, (torch.zeros(250, 3),), Memory())  # type: ignore[arg-type]
    shapes = (torch.Size([3]),)
    sizes.memory.sizes |= {("plain", shapes, 128): 700.0, ("plain", shapes, 64): 600.0}
    assert plain_bytes(sizes, 300) == pytest.approx(2 * 16 + 300 * 12 + 700 + 100 * (250 - 128) / 64)


VGG = {  # MiB beyond a vector of 123.6 that VGG-13's passes need on an H200 in float32, by examples; 358 in TF32
    "forward": {16: 84.1, 32: 240.2, 64: 346.2, 128: 354.7, 256: 916.1, 288: 957.1},
    "backward": {16: 46.8, 32: 91.2, 64: 172.5, 128: 269.6, 256: 1075.0, 288: 1150.9},
    "parts": {16: 96.8, 32: 215.4, 64: 297.4, 128: 394.6, 256: 1200.0, 288: 1276.0},
}
LEAN = {"forward": {256: 386.1, 288: 434.1}, "backward": {256: 324.6, 288: 365.3}}  # with kernels that need no more


class Table:
    """Passes as VGG-13's: they need what the table says, or what a leaner one does where there is no more room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lean: dict[str, dict[int, float]]) -> None:
        self.asked: list[tuple[str, int]] = []
        self.most = 0.0
        monkeypatch.setattr(footprint, "sees_kernels", lambda _: True)
        monkeypatch.setattr(Sizes, "vector", property(lambda _: 123.6 * MIB))
        monkeypatch.setattr(Fitting, "_random", lambda _: 0.0)
        for kind, name in (("forward", "_forward"), ("backward", "_whole"), ("parts", "_part")):
            bytes_of = partial(self.bytes_of, kind, (VGG[kind], lean.get(kind, {})))
            monkeypatch.setattr(Fitting, f"{name}_bytes", lambda _, rows, room, of=bytes_of: of(rows, room))

    def bytes_of(self, kind: str, tables: Sequence[dict[int, float]], rows: int, room: float) -> float:
        self.asked.append((kind, rows))
        fitting = [needed for table in tables if (needed := MIB * table.get(rows, math.inf)) <= room]
        self.most = max(self.most, fitting[0] if fitting else room)
        return fitting[0] if fitting else math.inf


def fitting_of(n: int, memory: Memory, projections: int = 30) -> Fitting:
    layer = nn.Linear(3, 1)
    sizes = Sizes(list(layer.parameters()), layer, (torch.zeros(n - 5, 3),), memory)  # type: ignore[arg-type]
    plain = (2 * 123.6 + 358.1 + 1.36 * (n - 256)) * MIB
    return Fitting(sizes, Projected(projections, lambda _: ()), n, plain, held=3 * MIB, filled=True)


@pytest.mark.parametrize("n", [256, 288])
@pytest.mark.parametrize("projections", [1, 30])
def test_kernels_as_vggs_are_never_given_more_than_1_3_times_plain_training_has(
    n: int, projections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, memory = Table(monkeypatch, {}), Memory()
    fitting = fitting_of(n, memory, projections)
    assert fitting.forward() == fitting.backward(False) == Fit(1, 128, exactly=True)
    beside = (2 * 123.6 + 3) * MIB  # the parameters, a direction or the sum, the batch
    assert fitting.plain is not None
    assert beside + table.most <= 1.3 * fitting.plain
    asked = [*table.asked]
    assert {rows for _, rows in asked} <= {128, 256, n}
    assert fitting_of(n, memory, projections).forward().rows == fitting.backward(False).rows
    assert table.asked == asked  # nothing is measured twice


def test_leaner_kernels_are_taken_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch, LEAN)
    fitting = fitting_of(256, Memory(), projections=1)
    assert fitting.forward() == fitting.backward(False) == Fit(1, 256)
    assert table.asked == [("forward", 256), ("backward", 256)]


def test_what_didnt_fit_is_asked_again_only_where_there_is_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    table, memory = Table(monkeypatch, {}), Memory()
    assert fitting_of(256, memory, 1).forward().rows == 128
    asked = len(table.asked)
    more = replace(fitting_of(256, memory, 1), held=0.0)
    assert more.forward().rows == 128
    assert len(table.asked) == asked
    assert replace(more, plain=1200.0 * MIB).forward() == Fit(1, 256)
    assert len(table.asked) == asked + 1


class Fake:
    """An allocator's figures, moved by `take` and `give`."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def take(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)

    def reset(self, _: Any = None) -> None:
        self.most = self.now


def test_the_allocators_peak_is_read_and_left_as_a_user_would_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: fake.most)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: fake.now)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", fake.reset)

    def empty(size: int, **_: Any) -> None:
        fake.take(size)
        fake.take(-size)

    monkeypatch.setattr(torch, "empty", empty)
    fake.take(1000)
    fake.take(-900)

    def computation() -> None:
        fake.take(30)  # a library's own, kept
        fake.take(200)
        fake.take(-200)

    assert footprint.peak_bytes(computation, torch.device("cuda")) == 200
    assert (fake.now, fake.most) == (130, 1000)
    assert footprint.peak_bytes(lambda: (fake.take(2000), fake.take(-2000)), torch.device("cuda")) == 2000
    assert fake.most == 2130


@pytest.mark.parametrize(
    "error", [None, torch.OutOfMemoryError("no"), RuntimeError("no engine"), NotImplementedError()]
)
def test_the_allocator_is_limited_while_it_is_asked(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    fake, gib = Fake(), 2**30
    fractions, inside = [0.9], []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: fake.most)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: fake.now)
    fake.take(2 * gib)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", fake.reset)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=100 * gib))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    get, put = {0: lambda: fractions[-1]}, {0: fractions.append}  # they want a number, not torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda number: get[number](), raising=False)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda x, number: put[number](x))

    def computation() -> None:
        inside.append(fractions[-1])
        fake.take(300)
        fake.take(-300)
        if error is not None:
            raise error

    ask = partial(footprint.peak_bytes, computation, torch.device("cuda"))
    if isinstance(error, NotImplementedError):
        with pytest.raises(NotImplementedError):
            ask(3 * gib)
    else:
        assert ask(3 * gib) == (300 if error is None else math.inf)
    assert inside == [pytest.approx(0.05, abs=0.001)]  # 3 GiB beyond the 2 that are held, of 100
    assert fractions[-1] == 0.9
    if error is not None:
        with pytest.raises(type(error)):
            ask()
        assert inside[-1] == 0.9


def test_gradients_of_parts_are_added_to_their_sum_and_leave_nothing_behind() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Flatten(), nn.Linear(24, 24), nn.Tanh())
    twice, unused = nn.Linear(24, 24, bias=False), nn.Parameter(torch.ones(3))
    parameters = [*net.parameters(), *twice.parameters(), unused]
    x, weights = torch.randint(20, (8, 4)), torch.rand(8)

    def values(x: Tensor) -> Tensor:
        return twice(twice(net(x)).tanh()).sum(1)

    expected = torch.autograd.grad(values(x), parameters, weights, allow_unused=True)
    sums = [torch.zeros_like(p) for p in parameters]
    for start in (0, 5):
        part = slice(start, start + 5)
        add_gradients(parameters, values(x[part]), weights[part], sums)
    for total, grad in zip(sums, expected, strict=True):
        dense = torch.zeros_like(total) if grad is None else grad.to_dense()
        torch.testing.assert_close(total, dense, rtol=1e-5, atol=1e-6)
    assert all(p.grad is None and not p._backward_hooks for p in parameters)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGPU:
    def test_the_allocator_sees_what_is_held_at_a_time(self) -> None:
        device = torch.device("cuda")
        torch.empty(200 * MIB, dtype=torch.uint8, device=device)
        highest = torch.cuda.max_memory_allocated(device)

        def computation() -> None:
            a = torch.ones(10 * MIB, device=device)
            (a * 2).sum()

        assert 80 * MIB <= footprint.peak_bytes(computation, device) < 84 * MIB
        assert torch.cuda.max_memory_allocated(device) == pytest.approx(highest, abs=4 * MIB)

    def test_no_more_is_handed_out_than_may_be_and_kernels_keep_to_it(self) -> None:
        device = torch.device("cuda")
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        many = partial(torch.empty, 400 * MIB, dtype=torch.uint8, device=device)
        assert footprint.peak_bytes(many, device, 100 * MIB) == math.inf
        assert torch.cuda.max_memory_allocated(device) - before < 200 * MIB
        many()
        layer, x = nn.Conv2d(512, 512, 3, padding=1, device=device), torch.randn(256, 512, 4, 4, device=device)
        with projected.full_float32(list(layer.parameters())), torch.no_grad():
            limited = footprint.peak_bytes(lambda: layer(x), device, 100 * MIB)
            assert limited <= 100 * MIB
            assert footprint.peak_bytes(lambda: layer(x), device) == pytest.approx(limited, abs=4 * MIB)

    @pytest.mark.parametrize("name", ["vgg13", "alexnet", "cifar-network", "text-network"])
    def test_whole_steps_need_at_most_1_3_times_the_memory_of_plain_ones(self, name: str) -> None:
        batch, device = 64 if name == "alexnet" else 256, torch.device("cuda")
        shape = {"alexnet": (1, 28, 28), "text-network": (150,)}.get(name, (3, 32, 32))
        torch.manual_seed(0)
        net = network(name).to(device)
        x = torch.randint(8185, (batch, *shape)) if name == "text-network" else torch.randn(batch, *shape)
        data = x.to(device), torch.randint(2, (batch,), device=device)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.0)

        def losses(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x), y, reduction="none")

        def plain() -> None:
            for _ in range(2):
                optimiser.zero_grad()
                losses(*(part.clone() for part in data)).mean().backward()
                optimiser.step()
            optimiser.zero_grad()

        plan = hush.Plan(records=batch, batch=batch, steps=100, noise_multiplier=1.0, delta=1e-5, projections=4)
        private = hush.Private(net, optimiser, plan, key=Key.from_seed(0))

        def steps() -> None:
            for given in private.batches(data, steps=2):
                private.step(losses, *given)
            optimiser.zero_grad()

        def most(function: Callable[[], None]) -> int:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            function()
            return torch.cuda.max_memory_allocated(device) - before

        own = sum(p.numel() * p.element_size() for p in net.parameters())
        plain()
        assert (most(steps) + own) / (most(plain) + own) <= 1.3
