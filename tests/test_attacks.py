"""Attacks on the privacy claims: each of these once gave less privacy than was reported."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush import Ledger, Plan, Private, journal, noise
from hush.gradients import Auto, ClippedSum, Engine, Ghost, Loop, Memory, Projected, Vmap, captured, check, clipped_sum
from hush.gradients.check import refuse_memories
from hush.keys import Key
from hush.precision import unit_roundoff
from hush.rounding import BFLOAT16


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

        def replay(*arguments: Any) -> list[Tensor]:
            made = run(*arguments)
            held[:] = held or [x.clone() for x in made]
            for place, new in zip(held, made, strict=True):
                place.copy_(new)
            return held

        return replay

    def built(*arguments: Any) -> captured.Program:
        program = build(*arguments)
        return captured.Program(program.capacity, static(program.run), program.notes)

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


def test_a_record_whose_terms_cancel_cannot_wash_away_the_others() -> None:
    table = nn.Embedding(5, 8)
    losses = lambda scale, u, v: scale * (table(u) - table(v)).sum(1)  # noqa: E731  (a ranking of u against v)
    n = 64
    others = (torch.full((n,), 0.2), torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=torch.long))
    hostile = (torch.tensor([3e9]), torch.tensor([0]), torch.tensor([0]))
    with_it = tuple(torch.cat(pair) for pair in zip(others, hostile, strict=True))
    parameters = list(table.parameters())
    assert moved(summed(parameters, losses, others), summed(parameters, losses, with_it)) <= 1.0  # 36 once


def test_a_row_looked_up_twice_with_opposite_gradients_keeps_the_bound() -> None:
    table = nn.Embedding(5, 8)
    losses = lambda scale, u: (scale * table(u).sum(2)).sum(1)  # noqa: E731
    numbers = torch.Generator().manual_seed(0)
    scale = 1e5 * (1 + torch.rand(200, 1, generator=numbers))
    nearly = -scale * (1 - 1e-4 * (1 + torch.rand(200, 1, generator=numbers)))
    for pair in torch.cat([scale, nearly], 1):
        found = summed(list(table.parameters()), losses, (pair[None], torch.zeros(1, 2, dtype=torch.long)))
        assert float(found.sums[0].norm()) <= 1.0  # 110 once


@pytest.mark.parametrize("positions", [1, 2, 3])
def test_tiny_gradients_on_huge_inputs_keep_the_bound(positions: int) -> None:
    layer = nn.Linear(64, 64, bias=False)
    losses = lambda x, scale: scale * layer(x).sum((1, 2))  # noqa: E731
    x = torch.zeros(1, positions, 64)
    x[:, :, 0] = 5e18
    for scale in (1e-23, 2e-23, 3e-23):  # whose squares are below the smallest float32
        found = summed(list(layer.parameters()), losses, (x, torch.tensor([scale])), norm=1e-4)
        assert float(found.sums[0].double().norm()) <= 1e-4  # 40 times that once


def test_half_precision_does_not_round_clipped_gradients_up() -> None:
    layer = nn.Linear(64, 64, bias=False).half()
    losses = lambda x: layer(x).float().sum(1)  # noqa: E731
    for size in torch.linspace(200, 6e4, 200):
        x = torch.full((1, 64), float(size)).half()
        found = summed(list(layer.parameters()), losses, (x,), norm=0.1)
        assert float(found.sums[0].norm()) <= 0.1 * (1 + 2**-8)  # twice that once, in float16's smallest numbers


def test_a_captured_program_is_not_used_for_other_parameters() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    x, memory = torch.randn(4, 3), Memory(capacity=4)
    losses = lambda x: layer(x).square().sum(1)  # noqa: E731
    engine = Auto(compile=False)
    summed(list(layer.parameters()), losses, (x,), engine=engine, memory=memory)
    other = nn.Linear(3, 2)
    layer.load_state_dict(other.state_dict(), assign=True)
    parameters = list(layer.parameters())
    found = summed(parameters, losses, (x,), engine=engine, memory=memory)
    assert moved(found, summed(parameters, losses, (x,), engine=Loop())) < 1e-5
    (only := parameters[0]).requires_grad_(False)
    assert only is layer.weight
    found = summed(parameters[1:], losses, (x,), engine=engine, memory=memory)
    assert moved(found, summed(parameters[1:], losses, (x,), engine=Loop())) < 1e-5


PLAN = Plan(records=100, batch=10, steps=1000, noise_multiplier=1.0)
ROWS = torch.randn(100, 4, generator=torch.Generator().manual_seed(1))


def private_of(model: nn.Module, **options: Any) -> Private:
    return Private(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, **options)


def steps(private: Private, count: int, sign: float = 1.0) -> None:
    for (x,) in private.batches((ROWS,), steps=count):
        private.step(lambda x: sign * private.model(x)[:, 0], x)


def resumed(folder: Path) -> Private:
    model = nn.Linear(4, 1)
    return Private.resume(folder, model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("before", [0, 3])
def test_a_checkpoint_resumed_twice_uses_its_noise_once(tmp_path: Path, before: int) -> None:
    private = private_of(nn.Linear(4, 1), ledger=tmp_path / "ledger")
    if before:
        steps(private, before)
    private.save(tmp_path / "checkpoint")
    one, other = resumed(tmp_path / "checkpoint"), resumed(tmp_path / "checkpoint")
    assert one.key == other.key == private.key
    steps(one, 1)
    for late in (other, private):
        with pytest.raises(ValueError, match="went on elsewhere"):
            steps(late, 1, sign=-1.0)
    again = resumed(tmp_path / "checkpoint")
    assert again.key != one.key
    steps(again, 1)


def test_an_old_loop_that_ends_late_gives_nothing_back_of_the_resumed_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    private = private_of(nn.Linear(4, 1), ledger=ledger)
    old = private.batches((ROWS,))
    for (x,) in islice(old, 990):
        private.step(lambda x: private.model(x)[:, 0], x)
    private.save(tmp_path / "checkpoint")
    next(old)  # a block is in hand when it is interrupted
    model = nn.Linear(4, 1)
    again = Private.resume(tmp_path / "checkpoint", model, torch.optim.SGD(model.parameters(), lr=0.1), ledger=ledger)
    new = again.batches((ROWS,))
    for (x,) in islice(new, 10):
        again.step(lambda x: model(x)[:, 0], x)
    before = ledger.spent().epsilon(1e-5).upper
    private.steps_done = 995  # wherever it thinks it is
    old.close()  # type: ignore[attr-defined]
    assert ledger.spent().epsilon(1e-5).upper >= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_neither_steps_nor_gives_back_its_parents_block(tmp_path: Path) -> None:
    private = private_of(nn.Linear(4, 1), ledger=tmp_path / "ledger")
    batches = private.batches((ROWS,))
    (x,) = next(batches)
    child = os.fork()
    if child == 0:  # no assertion of pytest's may run on here
        code = 1
        try:
            private.step(lambda x: private.model(x)[:, 0], x)
        except ValueError:
            try:
                next(batches)
            except ValueError:  # which also ends the generator, and would give the block back
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    private.step(lambda x: private.model(x)[:, 0], x)
    for _ in range(5):
        (x,) = next(batches)
        private.step(lambda x: private.model(x)[:, 0], x)
    charged = Ledger(tmp_path / "ledger").mechanism()
    assert charged is not None
    assert sum(count for _, count in charged.parts()) >= 6


def test_an_interrupt_while_a_block_is_closed_leaves_no_step_uncharged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = private_of(nn.Linear(4, 1), ledger=tmp_path / "ledger")
    batches = private.batches((ROWS,))
    next(batches)
    really = journal._sync

    def interrupted(descriptor: int) -> None:
        really(descriptor)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(journal, "_sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batches.close()  # type: ignore[attr-defined]
    for done, _ in enumerate(private.batches((ROWS,), steps=15), start=2):
        charged = Ledger(tmp_path / "ledger").mechanism()
        assert charged is not None
        assert sum(count for _, count in charged.parts()) >= done


def test_noise_has_the_digits_of_the_sums_it_hides() -> None:
    sums = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (noisy,) = noise.add(Key.from_seed(0), 0, [sums], [1.0])
    drawn = noisy - sums
    assert float((drawn.float().double() == drawn).double().mean()) < 0.01  # all of them once: a sum was recognised


def test_what_an_account_rests_on_is_fixed() -> None:
    private = private_of(nn.Linear(4, 1))
    less = Plan(records=100, batch=10, steps=1000, noise_multiplier=0.01)
    for name, value in (("plan", less), ("engine", Projected(1)), ("key", Key.fresh()), ("microbatch", 1)):
        with pytest.raises(ValueError, match="can't be changed"):
            setattr(private, name, value)
    steps(private, 2)
    with pytest.raises(ValueError, match="can't be changed"):
        private.steps_done = 0  # the first step's noise again


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_can_not_be_copied(copied: Callable[[Private], object]) -> None:
    with pytest.raises(TypeError, match="can't be copied"):
        copied(private_of(nn.Linear(4, 1)))


def test_one_key_given_to_two_runs_gives_them_different_noise() -> None:
    key = Key.fresh()
    one, other = (private_of(nn.Linear(4, 1), key=key) for _ in range(2))
    assert len({one.key, other.key, key}) == 3
    assert private_of(nn.Linear(4, 1), key=Key.from_seed(3)).key == Key.from_seed(3)


def test_examples_that_meet_before_a_dropout_are_found() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    private = private_of(layer, key=Key.from_seed(1))
    batches = private.batches((ROWS,))
    (x,) = next(batch for batch in batches if len(batch[0]) > 1)
    with pytest.raises(ValueError, match="other examples"):
        private.step(lambda x: F.dropout(layer(x - x.mean(0)), 0.1).square().sum(1), x)


def test_dropout_alone_is_no_meeting() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    private = private_of(layer)
    for (x,) in private.batches((ROWS,), steps=9):
        private.step(lambda x: F.dropout(layer(F.dropout(x, 0.5)), 0.5).square().sum(1), x)
    assert private.steps_done == 9


def test_coarse_products_are_counted_in_the_margin() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert unit_roundoff(list(nn.Linear(2, 2).parameters())) == BFLOAT16
    finally:
        torch.set_float32_matmul_precision(before)


class Remembering(nn.Module):
    """Keeps an average of what passes, and the number of passes, which is no secret."""

    average: Tensor
    passes: Tensor

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.layer = nn.Linear(4, 1)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.keeps:
            self.average += 0.1 * (x.detach().mean(0) - self.average)
        output: Tensor = self.layer(x)
        return output


def test_a_buffer_that_remembers_the_data_is_refused_in_training() -> None:
    steps(private_of(Remembering(keeps=False)), 3)
    model = Remembering(keeps=True)
    private = private_of(model)
    with pytest.raises(ValueError, match="average depends on the data"):
        steps(private, 3)
    assert not torch.any(model.average)


@pytest.mark.parametrize("rows", [30, 3])  # of so few, the first batches hold one or none
def test_a_buffer_that_every_pass_changes_does_not_count_the_records(rows: int) -> None:
    for engine in (Loop(), Auto()):
        model = Remembering(keeps=False)
        private = private_of(model, engine=engine, microbatch=3, key=Key.from_seed(1))
        sizes = []
        for (x,) in private.batches((ROWS[:rows],), steps=20):  # about 3 of 30 rows a batch
            sizes.append(len(x))
            private.step(lambda x, model=model: model(x)[:, 0], x)
        assert 0 in sizes
        assert float(model.passes) == len(sizes)


def test_two_threads_do_not_make_one_step(tmp_path: Path) -> None:
    private = private_of(nn.Linear(4, 1))
    batches = private.batches((ROWS,))
    (x,) = next(batches)
    refused: list[str] = []

    def losses(x: Tensor) -> Tensor:
        if not refused:
            refused.append("tried")
            with pytest.raises(ValueError, match="Another thread"):
                private.step(losses, x)
        value: Tensor = private.model(x)[:, 0]
        return value

    private.step(losses, x)
    assert refused


def test_a_collate_function_that_sorts_is_refused_where_users_are_clipped_together() -> None:
    records = [torch.randn(1 + i % 7) for i in range(100)]
    users = [i // 5 for i in range(100)]
    plan = Plan(records=20, batch=5, steps=9, noise_multiplier=1.0, unit="user")
    layer = nn.Linear(1, 1)
    private = Private(layer, torch.optim.SGD(layer.parameters(), lr=0.1), plan)

    def padded(items: list[Tensor]) -> tuple[Tensor, Tensor]:
        return nn.utils.rnn.pad_sequence(items, batch_first=True), torch.tensor([len(item) for item in items])

    def by_length(items: list[Tensor]) -> tuple[Tensor, Tensor]:
        return padded(sorted(items, key=len, reverse=True))

    with pytest.raises(ValueError, match="another order"):
        private.batches(records, users=users, collate=by_length)
    for x, length in private.batches(records, users=users, collate=padded, steps=2):
        private.step(lambda x, length: layer(x[:, :, None]).sum((1, 2)) / length, x, length)
    assert private.steps_done == 2


class Experts(nn.Module):
    """Records far out go to an expert in bfloat16: each by itself, but not all in the same precision."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        far, out = x.abs().amax(1) > 50, torch.zeros_like(x)
        out[~far] = self.near(x[~far])
        if far.any():
            with torch.autocast("cpu", torch.bfloat16):
                out[far] = self.far(x[far]).float()
        return self.last(out.tanh())


def sum_of_step(data: tuple[Tensor, ...], engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    torch.manual_seed(0)
    model, seen, add = Experts(), [], noise.add
    monkeypatch.setattr(noise, "add", lambda *a, **k: (seen.append([x.clone() for x in a[2]]), add(*a, **k))[1])
    plan = Plan(records=400, batch=400, steps=1, noise_multiplier=1.0, clip=0.1)
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.0), plan, engine=engine)
    for x, y in private.batches(data):
        private.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
    monkeypatch.undo()
    return list(seen[0])


@pytest.mark.parametrize("engine", [Ghost(), Vmap(), Loop()], ids=repr)
@pytest.mark.parametrize("first", [False, True])
def test_a_record_in_half_precision_lowers_nobody_elses_threshold(
    engine: Engine, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(1, 8) + 1e-3 * torch.randn(400, 8), torch.zeros(401, dtype=torch.long)
    one = sum_of_step((x, y[:400]), engine, monkeypatch)
    parts = [100 * x[:1], x] if first else [x, 100 * x[:1]]
    other = sum_of_step((torch.cat(parts), y), engine, monkeypatch)
    difference = torch.cat([(a - b).double().flatten() for a, b in zip(one, other, strict=True)]).norm()
    assert difference <= 0.1  # 0.25 once: all thresholds were lowered by 0.4% when the record came


@pytest.mark.parametrize("counting", [False, True])
def test_a_loss_that_differentiates_is_trained(counting: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model.register_buffer("passes", torch.zeros(()))

    def losses(x: Tensor) -> Tensor:
        if counting:
            model.passes.add_(1)
        x = x.detach().requires_grad_()
        values = model(x).squeeze(1)
        (slopes,) = torch.autograd.grad(values.sum(), x, create_graph=True)
        return values + slopes.square().sum(1)

    x = torch.randn(30, 4)
    assert "derivatives of its own" in str(check(model, x, losses))
    model.passes.zero_()
    plan = Plan(records=30, batch=2, steps=12, noise_multiplier=1.0)  # some of these batches are empty
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, key=Key.from_seed(1))
    sizes = []
    for (batch,) in private.batches((x,)):
        private.step(losses, batch)
        sizes.append(len(batch))
    assert 0 in sizes[1:]
    assert sizes[0] > 1  # until then buffers aren't looked at
    assert model.passes == (12 if counting else 0)


class Codebook(nn.Module):
    """Its table isn't trained by gradients: every pass writes some of its input there."""

    def __init__(self, write: Callable[[nn.Parameter, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.table, self.write = nn.Linear(3, 2), nn.Parameter(torch.zeros(3), requires_grad=False), write

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self.table, x.mean(0))
        return self.layer(x - self.table)


@pytest.mark.parametrize(
    "write", [lambda p, x: p.mul_(0.9).add_(x), lambda p, x: p.data.lerp_(x, 0.1)], ids=["in place", "by data"]
)
def test_a_frozen_parameter_that_remembers_the_data_is_refused_in_training(
    write: Callable[[nn.Parameter, Tensor], object],
) -> None:
    torch.manual_seed(0)
    model = Codebook(write)
    plan = Plan(records=20, batch=20, steps=1, noise_multiplier=1.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    private = Private(model, torch.optim.SGD(trained, lr=0.1), plan)
    ((x,),) = islice(private.batches((torch.randn(20, 3),)), 1)
    with pytest.raises(ValueError, match="table changes in the forward pass, outside the noisy gradient"):
        private.step(lambda x: model(x).square().sum(1), x)


@pytest.mark.parametrize("records", [0, 1])
def test_what_buffers_remember_is_found_on_fewer_than_two_records(records: int) -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("passes", torch.zeros(()))
    model.register_buffer("mean", torch.zeros(3))

    def counted(x: Tensor) -> Tensor:
        model.passes.add_(1)
        return model(x).sum(1)

    def remembered(x: Tensor) -> Tensor:
        model.mean.lerp_(x.mean(0), 0.1)
        return counted(x)

    x = torch.randn(records, 3)
    assert refuse_memories(model, counted, (x,)) == [model.passes]
    assert model.passes == 0
    with pytest.raises(ValueError, match="buffer mean depends on the data"):
        refuse_memories(model, remembered, (x,))
    assert not model.mean.any()
