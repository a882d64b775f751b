"""A unit whose gradient isn't finite is left out, and nobody else's random numbers change for it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush
from hush.gradients import Auto, ClippedSum, Ghost, Grouped, Loop, Memory, Projected, Vmap, clipped_sum
from hush.gradients.filling import AS_IT_IS, Filling
from hush.gradients.projected import gaussian_directions
from hush.keys import Key

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
OWN = 8  # features that all records but one share; that one has features of its own
N = 37


def flat(norms: Tensor) -> Tensor:
    weights = (1 / norms.clamp_min(1e-30)).clamp_max(1.0)
    return weights.where(norms.isfinite().all(1, keepdim=True), 0.0)


def projected(parameters: list[Tensor], at_once: int | None = None) -> Projected:
    return Projected(5, gaussian_directions(Key.from_seed(3), 0, parameters), at_once)


ENGINES: dict[str, Any] = {
    "loop": lambda _: Loop(),
    "vmap": lambda _: Vmap(),
    "chunks": lambda _: Vmap(chunk=8),
    "ghost": lambda _: Ghost(),
    "captured": lambda _: Auto(compile=False),
    "one direction": lambda parameters: projected(parameters, 1),
    "three directions": lambda parameters: projected(parameters, 3),
}


class Dropping(nn.Module):
    """Dropout before the only layer: what a record adds to the weight has the record's own features and mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * OWN, 5, bias=False)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layer(F.dropout(x, 0.5)), y, reduction="none")


def records(device: str, place: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 2 * OWN, generator=torch.Generator().manual_seed(5))
    x[:, OWN:] = 0
    x[place] = 0
    x[place, OWN:] = 1.0
    return x.to(device), (torch.arange(N) % 5).to(device)


def summed(
    losses: Any, parameters: list[Tensor], batch: tuple[Tensor, ...], engine: Any, memory: Memory, **options: Any
) -> ClippedSum:
    seed()
    return clipped_sum(parameters, losses, batch, groups=[[0]], weigh=flat, engine=engine, memory=memory, **options)


def seed(number: int = 7) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("place", [0, 20, N - 1])
@pytest.mark.parametrize("cut", ["whole", "microbatches", "users", "filled"])
def test_nobody_elses_dropout_changes(name: str, place: int, cut: str, device: str) -> None:
    """Sums over the features of all others, with a record that isn't finite in one place and one that is."""
    seed(1)
    model = Dropping().to(device)
    parameters, batch = list(model.parameters()), records(device, place)
    options: dict[str, Any] = {"filling": Filling(32, 32) if cut == "filled" else AS_IT_IS}
    if cut == "microbatches":
        options["microbatch"] = 16
    if cut == "users":
        options["units"] = torch.arange(N) // 2
        batch[0][torch.arange(N, device=device) // 2 == place // 2] = batch[0][place].clone()
    spoiled = batch[0].clone()
    spoiled[place] = float("nan")
    for start in (Memory, lambda: Memory(calls={"company": 2})):  # with looks and checks, and without
        memory, other = (start() for _ in range(2))
        memory.capacity = other.capacity = 64 if name == "captured" else None
        engine = ENGINES[name](parameters)
        for _ in range(3):
            expected = summed(model.losses, parameters, batch, engine, memory, **options)
            found = summed(model.losses, parameters, (spoiled, batch[1]), engine, other, **options)
            assert torch.isfinite(found.sums[0]).all()
            assert not found.sums[0][:, OWN:].any()
            assert expected.sums[0][:, OWN:].any()
            torch.testing.assert_close(found.sums[0][:, :OWN], expected.sums[0][:, :OWN], rtol=1e-6, atol=1e-6)


class Fragile:
    """Records with an entry of their own, not finite under a share of the random numbers."""

    def __init__(self, draw: str, engine: str) -> None:
        self.weight = nn.Parameter(torch.zeros(12, 1))
        self._draw, self._engine = draw, engine

    def losses(self, x: Tensor, share: Tensor) -> Tensor:
        draws = {
            "torch": lambda n: torch.rand(n),
            "numpy": lambda n: torch.from_numpy(np.random.rand(n)).float(),
            "python": lambda n: torch.tensor([random.random() for _ in range(n)]),
        }
        own = x.argmax(1) / 12  # one record's numbers are not another's
        bad = (draws[self._draw](len(x)).to(x) + own) % 1.0 < share
        return (x @ self.weight).squeeze(1) * torch.where(bad, torch.inf, 2.0)

    def sum(self, fails: bool, number: int) -> Tensor:
        x, share = torch.eye(12), torch.full((12,), 0.2)
        share[5] = 1.0 if fails else 0.0
        engine = ENGINES[self._engine]([self.weight])
        memory = Memory(capacity=16 if self._engine == "captured" else None)
        seed(number)
        found = clipped_sum(
            [self.weight],
            self.losses,
            (x, share),
            groups=[[0]],
            weigh=flat,
            engine=engine,
            memory=memory,
            filling=Filling(16, 16),
        )
        return found.sums[0].flatten()


@pytest.mark.parametrize(
    ("engine", "draw"),
    [
        *((engine, "torch") for engine in ENGINES if engine != "chunks"),
        *((engine, draw) for engine in ("ghost", "loop", "one direction") for draw in ("numpy", "python")),
    ],
)
def test_a_record_that_always_fails_gives_nobody_else_another_chance_to_fail(engine: str, draw: str) -> None:
    """Eleven others of which each fails by its own random numbers; those that stand in for it fail now and then."""
    case, others, failed = Fragile(draw, engine), torch.arange(12) != 5, 0
    for number in range(25):
        without, with_it = case.sum(False, number), case.sum(True, number)
        assert float(without[5]) != 0
        assert float(with_it[5]) == 0
        torch.testing.assert_close(with_it[others], without[others], rtol=1e-6, atol=0.0)
        failed += int((without[others] == 0).sum())
    assert 25 <= failed <= 90  # of 275 by 0.2 each: false alarm below 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_random_numbers_under_which_nobody_is_finite_spoil_nothing(engine: str) -> None:
    """Then nobody can stand in; everyone is computed one after the other."""
    weight = nn.Parameter(torch.zeros(12, 1))

    def losses(x: Tensor) -> Tensor:
        return (x @ weight).squeeze(1) * torch.where(torch.rand(len(x)) < 0.3, torch.nan, 2.0)

    memory = Memory(capacity=16 if engine == "captured" else None)
    for number in range(4):
        seed(number)
        by = ENGINES[engine]([weight])
        found = clipped_sum([weight], losses, (torch.eye(12),), groups=[[0]], weigh=flat, engine=by, memory=memory)
        sizes = found.sums[0].flatten()
        assert torch.isfinite(sizes).all()
        assert int((sizes == 0).sum()) in range(1, 11)
        if not isinstance(by, Projected):
            assert torch.all((sizes == 0) | ((sizes - 1).abs() < 1e-6))


def test_groups_keep_their_size_and_their_means() -> None:
    weight = nn.Parameter(torch.zeros(6, 1))
    units = torch.tensor([0, 0, 0, 1, 1, 2])
    scale = torch.full((6,), 0.3)
    scale[1] = torch.nan

    def losses(x: Tensor, scale: Tensor) -> Tensor:
        return (x @ weight).squeeze(1) * scale * (1 + 0 * torch.rand(len(x)))

    found = clipped_sum(
        [weight], losses, (torch.eye(6), scale), groups=[[0]], weigh=flat, units=units, engine=Grouped(2)
    )
    expected = torch.tensor([0, 0, 0, 0.15, 0.15, 0.3])
    torch.testing.assert_close(found.sums[0].flatten(), expected)


def test_generators_go_on_after_a_batch_as_after_any_other() -> None:
    """One record that isn't finite must not decide what the next batch's losses draw."""
    model, (x, y) = Dropping(), records("cpu", 3)
    after = []
    for value in (1.0, torch.nan):
        x[3, 0] = value
        summed(model.losses, list(model.parameters()), (x, y), Ghost(), Memory())
        after.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert after[0] == after[1]


@pytest.mark.parametrize("cut", ["whole", "filled", "users"])
@pytest.mark.parametrize("engine", ["ghost", "captured", "vmap", "one direction"])
@pytest.mark.parametrize("place", [0, 20])
def test_nobody_elses_dropout_changes_where_only_a_gradient_is_not_finite(engine: str, cut: str, place: int) -> None:
    """The loss of the record is zero, its gradient 0/0; nobody can see by it where examples are."""
    torch.manual_seed(1)
    layer = nn.Linear(16, 6, bias=False)
    calls = []

    def losses(x: Tensor, share: Tensor) -> Tensor:
        calls.append(len(x))
        return layer(F.dropout(x, 0.5)).square().sum(1).sqrt() * share

    x, share = torch.randn(N, 16), torch.ones(N)
    options: dict[str, Any] = {"filling": Filling(32, 32) if cut == "filled" else AS_IT_IS}
    share[place] = share[7] = 0
    if cut == "users":
        options["units"] = torch.arange(N)
    spoiled = x.clone()
    spoiled[place] = 0
    if place:
        spoiled[7] = torch.nan  # another one, whose loss tells
    parameters = [layer.weight]
    memory, other = (Memory(capacity=64 if engine == "captured" else None) for _ in range(2))
    for _ in range(5):
        expected = summed(losses, parameters, (x, share), ENGINES[engine](parameters), memory, **options)
        calls.clear()
        found = summed(losses, parameters, (spoiled, share), ENGINES[engine](parameters), other, **options)
        assert len(calls) <= 200
        torch.testing.assert_close(found.sums, expected.sums, rtol=1e-5, atol=1e-5)


RUNS: dict[str, dict[str, Any]] = {
    "auto": {},
    "ghost in microbatches": {"engine": Ghost(), "microbatch": 16},
    "vmap": {"engine": Vmap()},
    "loop": {"engine": Loop()},
    "secure": {"secure": True},
    "projected": {"projections": 3},
    "users": {"users": True},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_in_a_run_only_the_records_own_contribution_is_gone(name: str, value: float) -> None:
    """Replayed with the same key: noisy gradients differ where that record alone has features, by the threshold."""
    options = dict(RUNS[name])
    if options.get("secure"):
        pytest.importorskip("cryptography")
    projections, users = options.pop("projections", None), options.pop("users", False)
    clip, place = 0.5, 20
    x, y = records("cpu", place)
    ids = np.arange(N) // 2
    if users:
        x[place + 1] = x[place]
    spoiled = x.clone()
    spoiled[place, 0] = value
    plan = hush.Plan(
        records=N // 2 + 1 if users else N,
        batch=18 if users else 30,
        steps=6,
        noise_multiplier=0.3,
        clip=clip,
        projections=projections,
        unit="user" if users else "record",
    )
    found = []
    for data in (x, spoiled):
        seed(1)
        model = Dropping()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        private = hush.Private(model, optimiser, plan, key=Key.from_seed(9), **options)
        grads = []
        for batch in private.batches((data, y), users=ids if users else None):
            private.step(model.losses, *batch)
            grad = model.layer.weight.grad
            assert grad is not None
            grads.append(grad.clone() * plan.normaliser)
        found.append(torch.stack(grads))
    away = found[0] - found[1]
    assert torch.isfinite(away).all()
    assert float(away[..., :OWN].abs().max()) <= 1e-4 * clip
    sizes = away.flatten(1).norm(dim=1)
    assert int((sizes > 0.1 * clip).sum()) in range(1, 7)
    if projections is None:
        assert float(sizes.max()) <= clip


@pytest.mark.parametrize("draw", ["numpy", "python"])
def test_a_programs_random_numbers_are_others_at_every_step(draw: str) -> None:
    """Those that Python code draws would be constants of a captured program."""
    weight = nn.Parameter(torch.zeros(12, 1))

    def losses(x: Tensor) -> Tensor:
        size = float(np.random.rand()) if draw == "numpy" else random.random()
        return (x @ weight).squeeze(1) * torch.full((len(x),), size)

    memory, found = Memory(capacity=16), []
    for number in range(5):
        seed(number)
        by = Auto(compile=False)
        step = clipped_sum([weight], losses, (torch.eye(12),), groups=[[0]], weigh=flat, engine=by, memory=memory)
        found.append(float(step.sums[0][0]))
    assert len(set(found)) == 5


@pytest.mark.parametrize("size", [1e19, 1e20, 1e30, 1e38])
@pytest.mark.parametrize("engine", [Ghost(), Grouped(2)], ids=["ghost", "grouped"])
def test_a_huge_record_that_shows_no_places_changes_nobody_elses_dropout(size: float, engine: Any) -> None:
    """It sends all through a slower way, which draws the same masks: else others moved by several thresholds."""
    torch.manual_seed(1)
    first, norm, last = nn.Linear(16, 12), nn.LayerNorm(12), nn.Linear(12, 5)
    parameters = [*first.parameters(), *norm.parameters(), *last.parameters()]
    x, y, counted = torch.randn(37, 16), torch.arange(37) % 5, torch.ones(37)

    def losses(x: Tensor, y: Tensor, counted: Tensor) -> Tensor:
        hidden = F.dropout(first(F.dropout(x, 0.5)).relu(), 0.3)
        return torch.where(counted > 0, F.cross_entropy(last(norm(hidden)), y, reduction="none"), 0.0)

    def total(x: Tensor, counted: Tensor) -> Tensor:
        torch.manual_seed(7)
        found = clipped_sum(
            parameters,
            losses,
            (x, y, counted),
            groups=[range(len(parameters))],
            weigh=lambda norms: (1 / norms.clamp_min(1e-30)).clamp_max(1.0).where(norms.isfinite(), 0.0),
            units=torch.arange(37) // 2 if isinstance(engine, Grouped) else None,
            engine=engine,
            filling=Filling(32, 32),
            memory=Memory(),
        )
        return torch.cat([part.flatten() for part in found.sums])

    huge, without = x.clone(), counted.clone()
    huge[0], without[0] = size * x[0], 0.0
    most = 2.0 if isinstance(engine, Grouped) else 1.0
    assert (total(huge, counted) - total(x, without)).norm() <= most * (1 + 1e-3)
