"""Private training: bounded steps, post-processing as in plain PyTorch, steps charged before they happen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush
from hush import noise
from hush.accounting import Gaussian
from hush.clipping import Adaptive, Clipping, Flat, Normalised, PerLayer
from hush.gradients import Auto, Engine, Ghost, Grouped, Loop, Vmap
from hush.keys import Key
from hush.ledger import Budget, BudgetExceededError, Ledger
from hush.optim import AdamBC
from hush.plan import Plan
from hush.rounding import BFLOAT16, FLOAT32
from hush.sampling import Poisson, Shuffled, Uniform
from hush.schedules import Schedule
from hush.spending import Spending, open_ledger
from hush.training import Private

RECORDS = 60
SILENT = {"noise_multiplier": 1e-12, "clip": 1e3}  # all but no noise and no clipping: plain training


def make(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def data(records: int = RECORDS, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return scale * torch.randn(records, 5, generator=generator), torch.randint(0, 3, (records,), generator=generator)


def losses_of(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: F.cross_entropy(model(x), y, reduction="none")


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def train(private: Private, records: Any, **options: Any) -> None:
    losses = losses_of(private.model)
    for x, y in private.batches(records, **options):
        private.step(losses, x, y)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# What follows the noisy gradient is as in PyTorch


def groups_of(model: nn.Sequential) -> list[dict[str, Any]]:
    return [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "weight_decay": 0.0}]


OPTIMISERS: dict[str, Callable[[nn.Sequential], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(groups_of(m), lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda m: torch.optim.AdamW(groups_of(m), lr=0.01, weight_decay=0.1),
    "Adam": lambda m: torch.optim.Adam(groups_of(m), lr=0.01, amsgrad=True, weight_decay=0.1),
    "RMSprop": lambda m: torch.optim.RMSprop(groups_of(m), lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda m: torch.optim.Adagrad(groups_of(m), lr=0.1, lr_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_without_noise_and_clipping_it_is_plain_training(name: str) -> None:
    plan = Plan(records=RECORDS, batch=20, steps=12, sampling=Uniform(), **SILENT)
    x, y = data()
    key = Key.from_seed(3)
    ours, theirs = make().double(), make().double()
    optimiser, plain = OPTIMISERS[name](ours), OPTIMISERS[name](theirs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 12)
    private = Private(ours, optimiser, plan, key=key, scheduler=scheduler)
    train(private, (x.double(), y))
    plain_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 12)
    for step in range(12):
        chosen = torch.from_numpy(plan.draw(key, step, RECORDS).indices)
        plain.zero_grad()
        F.cross_entropy(theirs(x[chosen].double()), y[chosen]).backward()
        plain.step()
        plain_scheduler.step()
    assert torch.allclose(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)
    assert optimiser.param_groups[0]["lr"] == plain.param_groups[0]["lr"]


def test_a_frozen_parameter_is_not_trained_and_a_leftover_gradient_never_used() -> None:
    model = make()
    model[0].weight.requires_grad_(False)
    private = Private(model, sgd(model), Plan(records=RECORDS, batch=20, steps=3, noise_multiplier=1.0))
    before = model[0].weight.clone()
    losses = losses_of(model)
    for x, y in private.batches(data()):
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e6)
        private.step(losses, x, y)
    assert torch.equal(model[0].weight, before)
    assert weights(model).abs().max() < 100


# The bound, replayed: same coins, same noise, neighbouring data

CLIPPINGS: list[Clipping] = [
    Flat(0.5),
    Flat(Schedule((0, 1.0), (2, 0.25))),
    Normalised(0.5),
    PerLayer(0.3),
    PerLayer({"0": 0.2, "2": 0.7}, noise={"0": 1.0, "2": 3.0}),
    Adaptive(0.3, count_noise=10.0),
]


class Sums:
    """Stands in for the noise and keeps what it was given: a step's sums before noise."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Tensor], list[float]]] = []

    def add(self, key: Key, step: int, sums: Any, stds: Any, purpose: str = "noise", **_: Any) -> list[Tensor]:
        self.seen.append(([s.double().clone() for s in sums], list(stds)))
        return [torch.zeros_like(s) for s in sums]


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Sums:
    kept = Sums()
    monkeypatch.setattr(noise, "add", kept.add)
    return kept


def moved(one: Sums, two: Sums, plan: Plan) -> list[float]:
    """By how many standard deviations of the noise each step's whole release moved, times the noise multiplier.

    The accounted sensitivity is 1 in these units, whatever the groups and whatever is released beside the gradient.
    """
    per_step = len(one.seen) // plan.steps
    result = []
    for step in range(plan.steps):
        total = 0.0
        for (a, stds), (b, _) in zip(
            one.seen[step * per_step : (step + 1) * per_step],
            two.seen[step * per_step : (step + 1) * per_step],
            strict=True,
        ):
            total += sum(((p - q).norm().item() / s) ** 2 for p, q, s in zip(a, b, stds, strict=True))
        result.append(math.sqrt(total) * plan.release(step).noise_multiplier)
    return result


def replay(plan: Plan, neighbours: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[float]:
    found = []
    for records in neighbours:
        kept = Sums()
        monkeypatch.setattr(noise, "add", kept.add)
        model = make()
        private = Private(model, sgd(model, lr=0.0), plan, key=Key.from_seed(5), **options)
        private.threshold = plan.clip.start()
        train(private, records)
        found.append(kept)
    return moved(*found, plan)


@pytest.mark.parametrize("clip", CLIPPINGS, ids=str)
@pytest.mark.parametrize("sampling", [Poisson(), Uniform(), Shuffled()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("size", [1.0, 1e4], ids=["ordinary", "huge"])
def test_replayed_on_a_neighbour_a_step_moves_by_at_most_the_sensitivity(
    clip: Clipping, sampling: Any, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=4, noise_multiplier=1.5, clip=clip, sampling=sampling)
    x, y = data()
    other = x.clone()
    if plan.neighbours.sensitivity == 2:
        x[-1], other[-1] = size * x[0], -size * x[0]
        neighbours = ((x, y), (other, y.roll(1)[-1].expand(RECORDS).where(torch.arange(RECORDS) == RECORDS - 1, y)))
    else:
        x[-1] *= size
        neighbours = ((x, y), (x[:-1], y[:-1]))
    distances = replay(plan, neighbours, monkeypatch)
    assert max(distances) <= 1.0
    assert max(distances) > 0.2  # the record was drawn, and the bound isn't met by doing nothing


@pytest.mark.parametrize("engine", [Auto(), Loop(), Vmap(), Ghost()], ids=str)
@pytest.mark.parametrize("microbatch", [None, 7])
def test_every_engine_and_microbatch_keeps_the_bound_tightly(
    engine: Engine, microbatch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=3, noise_multiplier=1.5, clip=0.5)
    x, y = data()
    x[-1] *= 1e3
    distances = replay(plan, ((x, y), (x[:-1], y[:-1])), monkeypatch, engine=engine, microbatch=microbatch)
    assert 0.99 < max(distances) <= 1.0


def test_groups_move_by_at_most_two_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=6, noise_multiplier=1.5, clip=0.1, grouped=4)
    x, y = data()[0][:1].repeat(RECORDS, 1), torch.zeros(RECORDS, dtype=torch.long)
    y[-1] = 1
    x[-1] *= 1e3  # turns its group's mean gradient round
    assert 0.5 < max(replay(plan, ((x, y), (x[:-1], y[:-1])), monkeypatch)) <= 1.0  # more than one norm, up to two


def test_many_equal_records_in_float32_keep_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # the worst case of rounding: thousands of gradients in the same direction, all clipped
    plan = Plan(records=4000, batch=3999.9, steps=3, noise_multiplier=1.5, clip=0.05)
    x, y = data(1, scale=3.0)
    many = x.repeat(4000, 1), y.repeat(4000)
    distances = replay(plan, (many, (many[0][:-1], many[1][:-1])), monkeypatch)
    assert 0.9 < max(distances) <= 1.0


@pytest.mark.parametrize("sampling", [Poisson(), Uniform()], ids=lambda s: type(s).__name__)
def test_in_bfloat16_the_bound_survives_rounding(sampling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=5, noise_multiplier=1.5, clip=0.5, sampling=sampling)
    x, y = data()
    x[-1] *= 100
    other = x.clone()
    other[-1] *= -1
    neighbours = (x, other) if plan.neighbours.sensitivity == 2 else (x, x[:-1])
    kept = []
    for records in neighbours:
        sums = Sums()
        monkeypatch.setattr(noise, "add", sums.add)
        model = make()
        private = Private(model, sgd(model, lr=0.0), plan, key=Key.from_seed(5))
        for batch in private.batches((records, y[: len(records)])):
            with torch.autocast("cpu", torch.bfloat16):
                private.step(losses_of(model), *batch)
        kept.append(sums)
    assert 0.7 < max(moved(*kept, plan)) <= 1.0


def test_a_user_with_many_records_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(records=12, batch=6, steps=4, noise_multiplier=1.5, clip=0.5, unit="user")
    x, y = data()
    users = np.minimum(np.arange(RECORDS) // 3, 11)  # the last one has 27 records
    kept = []
    for records in (RECORDS, 33):
        sums = Sums()
        monkeypatch.setattr(noise, "add", sums.add)
        model = make()
        private = Private(model, sgd(model, lr=0.0), plan, key=Key.from_seed(5))
        train(private, (x[:records], y[:records]), users=users[:records])
        kept.append(sums)
    assert 0.9 < max(moved(*kept, plan)) <= 1.0


def test_batches_of_users_are_taken_one_by_one() -> None:
    plan = Plan(records=12, batch=6, steps=4, noise_multiplier=1.5, unit="user")
    model = make()
    private = Private(model, sgd(model), plan, key=Key.from_seed(5))
    batches = private.batches(data(), users=np.arange(RECORDS) % 12)
    next(batches)
    with pytest.raises(ValueError, match="wasn't given to step"):
        next(batches)
    assert private.steps_done == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clip", CLIPPINGS, ids=str)
def test_a_record_whose_gradient_is_not_finite_contributes_nothing(
    bad: float, clip: Clipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=3, noise_multiplier=1.5, clip=clip)
    x, y = data()
    x[-1, 0] = bad
    distances = replay(plan, ((x, y), (x[:-1], y[:-1])), monkeypatch)
    assert max(distances) <= (0.1 if isinstance(clip, Adaptive) else 1e-5)  # its vote is counted, its gradient not


def test_autocast_inside_the_loss_is_seen_and_leaves_more_room() -> None:
    model = make()
    plan = Plan(records=RECORDS, batch=30, steps=2, noise_multiplier=1.0)

    def half(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y, reduction="none")

    coarse, fine = (Private(model, sgd(model), plan, key=Key.from_seed(1)) for _ in range(2))
    for private, losses in ((coarse, half), (fine, losses_of(model))):
        for x, y in private.batches(data()):
            private.step(losses, x, y)
    assert 1 - coarse.local.limits[0] > BFLOAT16
    assert 1 - fine.local.limits[0] < 1e4 * FLOAT32


# Noise


@pytest.mark.parametrize("clip", [Flat(0.5), PerLayer({"0": 0.2, "2": 0.7}, noise={"0": 1.0, "2": 3.0})], ids=str)
def test_the_gradient_carries_the_planned_noise(clip: Clipping) -> None:
    # Chi-squared: a variance over n entries lies within 5 (2/n)^(1/2) of its mean but for a chance of about 1e-6.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 80), nn.Identity(), nn.Linear(80, 30))
    plan = Plan(records=1000, batch=10, steps=1, noise_multiplier=1.5, clip=clip)
    private = Private(model, sgd(model), plan, key=Key.from_seed(2))
    for x, y in private.batches((torch.zeros(0, 50), torch.zeros(0, dtype=torch.long))):
        private.step(losses_of(model), x, y)
    names = [name for name, _ in model.named_parameters()]
    stds = plan.stds(0, names)
    for group, std in zip(clip.groups(names), stds, strict=True):
        parts = [list(model.parameters())[i].grad for i in group]
        entries = torch.cat([part.flatten() for part in parts if part is not None]) * plan.normaliser / std
        assert entries.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / len(entries)))


def test_microbatches_change_neither_sample_nor_noise_nor_ledger() -> None:
    found = []
    for microbatch in (None, 1, 7):
        model = make().double()
        plan = Plan(records=RECORDS, batch=20, steps=10, noise_multiplier=1.0, clip=Adaptive(0.5, count_noise=5.0))
        private = Private(model, sgd(model), plan, key=Key.from_seed(4), microbatch=microbatch)
        x, y = data()
        train(private, (x.double(), y))
        found.append((weights(model), private.threshold, private.spent()))
    for other in found[1:]:
        assert torch.allclose(found[0][0], other[0], rtol=1e-9, atol=1e-12)
        assert found[0][1] == pytest.approx(other[1], rel=1e-12)
        assert other[2] == found[0][2]


def test_the_same_key_gives_the_same_bits_and_another_key_others() -> None:
    found = []
    for seed in (7, 7, 8):
        model = make()
        private = Private(
            model, sgd(model), Plan(records=RECORDS, batch=20, steps=5, noise_multiplier=1.0), key=Key.from_seed(seed)
        )
        train(private, data())
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_keys_come_from_the_operating_system_by_default() -> None:
    model = make()
    plan = Plan(records=RECORDS, batch=20, steps=5, noise_multiplier=1.0)
    one, two = Private(model, sgd(model), plan), Private(model, sgd(model), plan)
    assert one.key.secret != two.key.secret
    assert one.key.seed is None
    assert "from the operating system" in one.report()


def test_secure_training_says_so_and_trains() -> None:
    pytest.importorskip("cryptography")
    model = make()
    plan = Plan(records=RECORDS, batch=20, steps=3, noise_multiplier=1.0, clip=Adaptive(0.5, count_noise=5.0))
    private = Private(model, sgd(model), plan, secure=True)
    before = weights(model)
    train(private, data())
    assert private.key.secure
    assert "AES-256" in private.report()
    assert torch.isfinite(weights(model)).all()
    assert not torch.equal(weights(model), before)


# Steps and batches


def test_an_empty_batch_is_a_step_of_noise_and_is_charged() -> None:
    model = make()
    plan = Plan(records=100_000, batch=1, steps=5, noise_multiplier=1.0)
    private = Private(model, sgd(model), plan, key=Key.from_seed(1))
    before = weights(model)
    x, y = data(3)
    sizes = []
    for batch in private.batches((x, y)):
        sizes.append(len(batch[0]))
        private.step(losses_of(model), *batch)
        assert not torch.equal(weights(model), before)
        before = weights(model)
    assert sizes == [0] * 5
    assert private.spent().mechanism == plan.mechanism
    assert math.isnan(private.local.loss)


def test_a_step_needs_a_batch_of_its_own() -> None:
    model = make()
    private = Private(model, sgd(model), Plan(records=RECORDS, batch=20, steps=5, noise_multiplier=1.0))
    x, y = data()
    with pytest.raises(ValueError, match=r"take one from batches\(\)"):
        private.step(losses_of(model), x, y)
    loop = private.batches((x, y))
    batch = next(loop)
    with pytest.raises(ValueError, match="examples and"):
        private.step(losses_of(model), x, y)
    private.step(losses_of(model), *batch)
    with pytest.raises(ValueError, match=r"take one from batches\(\)"):
        private.step(losses_of(model), *batch)


def test_a_failed_step_may_be_tried_again_with_the_same_batch() -> None:
    model = make()
    private = Private(model, sgd(model), Plan(records=RECORDS, batch=20, steps=1, noise_multiplier=1.0))

    def broken(x: Tensor, y: Tensor) -> Tensor:
        raise MemoryError

    for batch in private.batches(data()):
        with pytest.raises(MemoryError):
            private.step(broken, *batch)
        private.step(losses_of(model), *batch)


def test_two_loops_at_once_are_refused() -> None:
    model = make()
    private = Private(model, sgd(model), Plan(records=RECORDS, batch=20, steps=9, noise_multiplier=1.0))
    one = private.batches(data())
    next(one)
    two = private.batches(data())
    next(two)
    with pytest.raises(ValueError, match="Another loop"):
        next(one)
    assert private.steps_done == 2


def test_a_loop_begun_late_goes_on_where_the_run_is_and_repeats_no_step() -> None:
    model = make()
    private = Private(model, sgd(model), Plan(records=RECORDS, batch=20, steps=9, noise_multiplier=1.0))
    late = private.batches(data())
    train(private, data(), steps=4)
    next(late)
    assert private.steps_done == 5


def test_a_run_may_be_cut_into_parts() -> None:
    found = []
    for parts in ((9,), (4, 4, 4)):
        model = make()
        plan = Plan(records=RECORDS, batch=20, steps=9, noise_multiplier=1.0)
        private = Private(model, sgd(model), plan, key=Key.from_seed(1))
        for part in parts:
            train(private, data(), steps=part)
        assert private.steps_done == 9
        assert private.spent().mechanism == plan.mechanism
        found.append(weights(model))
    assert torch.equal(*found)


def test_dictionaries_and_nested_batches_train_as_well() -> None:
    x, y = data()
    rows = [{"x": x[i], "label": {"y": y[i]}} for i in range(RECORDS)]
    found = []
    for nested in (True, False):
        model = make()
        plan = Plan(records=RECORDS, batch=20, steps=4, noise_multiplier=1.0)
        private = Private(model, sgd(model), plan, key=Key.from_seed(1))
        losses = losses_of(model)
        if nested:
            for batch in private.batches(rows):
                private.step(lambda b, losses=losses: losses(b["x"], b["label"]["y"]), batch)
        else:
            train(private, (x, y))
        found.append(weights(model))
    assert torch.equal(*found)


def test_worker_processes_give_the_same_run() -> None:
    x, y = data()
    rows = [(x[i], y[i]) for i in range(RECORDS)]
    found = []
    for workers in (0, 2):
        model = make()
        plan = Plan(records=RECORDS, batch=10, steps=8, noise_multiplier=1.0)
        private = Private(model, sgd(model), plan, key=Key.from_seed(1))
        train(private, rows, workers=workers)
        found.append(weights(model))
        assert private.spent().mechanism == plan.mechanism
    assert torch.equal(*found)


def test_averages_follow_the_weights_and_are_lent_for_evaluation() -> None:
    model = make()
    average = hush.Average(0.5)
    plan = Plan(records=RECORDS, batch=20, steps=6, noise_multiplier=1.0)
    private = Private(model, sgd(model), plan, key=Key.from_seed(1), average=average)
    expected = weights(model)
    losses = losses_of(model)
    for step, batch in enumerate(private.batches(data())):
        private.step(losses, *batch)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights(model)
    own = weights(model)
    with private.averaged() as averaged:
        assert torch.allclose(weights(averaged), expected, atol=1e-6)
    assert torch.equal(weights(model), own)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda m, p: Private(m, torch.optim.LBFGS(m.parameters()), p), "LBFGS"),
        (
            lambda m, p: Private(m, s := sgd(m), p, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(s)),
            "ReduceLROnPlateau",
        ),
        (lambda m, p: Private(m, sgd(m), p, engine=Grouped(4)), r"Plan\(grouped=4\)"),
        (lambda m, p: Private(m.requires_grad_(False), sgd(m), p), "nothing to train"),
        (lambda m, p: Private(m, sgd(m), p).batches(data(), users=[1] * RECORDS), "takes no users"),
        (lambda m, p: next(Private(m, sgd(m), p).averaged().gen), "No average"),
        (
            lambda m, p: Private(
                m, sgd(m), Plan(records=9, batch=3, steps=1, noise_multiplier=1.0, clip=PerLayer({"0": 1.0}))
            ),
            r"'2\.weight'",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_charged(build: Any, words: str) -> None:
    plan = Plan(records=RECORDS, batch=20, steps=5, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=words):
        build(make(), plan)


# Adaptive thresholds


def test_an_adaptive_threshold_finds_the_median_of_the_norms() -> None:
    # noise of 2 on a count of about 500 a step: the share is known to 0.004, the threshold to a few per cent
    x, y = data(1000)
    model = make()
    plan = Plan(records=1000, batch=500, steps=60, noise_multiplier=0.5, clip=Adaptive(20.0, count_noise=2.0))
    private = Private(model, sgd(model, lr=0.0), plan, key=Key.from_seed(1))
    train(private, (x, y))
    norms = private.local.norms[:, 0]
    assert private.threshold == pytest.approx(norms.median().item(), rel=0.15)


# Adam without the noise's bias


def test_without_noise_it_is_adamw() -> None:
    ours, theirs = make().double(), make().double()
    one = AdamBC(ours.parameters(), lr=0.01, weight_decay=0.1)
    two = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    x, y = data()
    for _ in range(20):
        for model, optimiser in ((ours, one), (theirs, two)):
            optimiser.zero_grad()
            F.cross_entropy(model(x.double()), y).backward()
            optimiser.step()
    assert torch.allclose(weights(ours), weights(theirs), atol=1e-9)


def test_the_noise_leaves_the_second_moment_also_when_it_varies() -> None:
    # 4000 coordinates with gradient 1 under noise of variance 4, then 1: corrected, their mean second moment is 1.
    # One coordinate's estimate varies by about (2 q)^(1/2) <= 0.3, so the mean by 0.3/4000^(1/2): 0.03 is six of that.
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.zeros(4000))
    optimiser = AdamBC([parameter], lr=0.0, betas=(0.9, 0.99))
    for step in range(1000):
        variance = 4.0 if step < 500 else 1.0
        parameter.grad = 1 + math.sqrt(variance) * torch.randn(4000)
        optimiser.expect_noise({parameter: variance})
        optimiser.step()
    state = optimiser.state[parameter]
    assert (state["square"] - state["noise"]).mean().item() == pytest.approx(1.0, abs=0.03)
    assert state["noise"] == pytest.approx(1.0, abs=0.05)


def test_private_training_tells_adam_the_noise() -> None:
    model = make()
    clip = PerLayer({"0": 0.2, "2": 0.7})
    plan = Plan(records=RECORDS, batch=20, steps=4, noise_multiplier=2.0, clip=clip)
    optimiser = AdamBC(model.parameters(), lr=0.01)
    train(Private(model, optimiser, plan, key=Key.from_seed(1)), data())
    names = [name for name, _ in model.named_parameters()]
    first, second = plan.stds(0, names)
    for parameter, std in zip(model.parameters(), (first, first, second, second), strict=True):
        share = 1 - 0.999**4
        assert optimiser.state[parameter]["noise"] == pytest.approx(share * (std / 20) ** 2)


# The ledger


def test_a_step_is_on_disk_before_its_batch_is_handed_out(tmp_path: Path) -> None:
    model = make()
    plan = Plan(records=RECORDS, batch=20, steps=200, noise_multiplier=1.0)
    private = Private(model, sgd(model), plan, ledger=tmp_path / "ledger")
    one = Gaussian(1.0).poisson(20 / RECORDS)
    for done, batch in enumerate(private.batches(data()), start=1):
        charged = Ledger(tmp_path / "ledger").mechanism()
        assert charged is not None
        assert done <= sum(count for _, count in charged.parts()) <= done + 3
        private.step(losses_of(model), *batch)
        if done == 10:
            break
    assert private.steps_done == 10
    del batch
    private.spending.close(private.steps_done)
    assert Ledger(tmp_path / "ledger").mechanism() == one * 10


def test_a_batch_that_was_handed_out_is_spent_whether_or_not_it_is_used() -> None:
    model = make()
    plan = Plan(records=RECORDS, batch=20, steps=5, noise_multiplier=1.0)
    private = Private(model, sgd(model), plan)
    for _ in private.batches(data()):
        pass
    assert private.spent().mechanism == plan.mechanism
    assert list(private.batches(data())) == []


@pytest.mark.parametrize("sampling", [Poisson(), Uniform(), Shuffled()], ids=lambda s: type(s).__name__)
def test_a_whole_run_costs_what_was_planned(sampling: Any, tmp_path: Path) -> None:
    model = make()
    plan = Plan(
        records=RECORDS,
        batch=25,
        steps=130,
        epsilon=3.0,
        delta=1e-3,
        sampling=sampling,
        noise_profile=Schedule((0, 1.0), (70, 1.5)),
    )
    private = Private(model, sgd(model), plan, ledger=tmp_path / "ledger")
    train(private, data(), steps=31)
    train(private, data())
    assert private.spent().mechanism == plan.mechanism
    assert private.spent().epsilon(1e-3).upper <= 3.0


def test_a_target_is_the_budget_of_a_new_ledger_and_a_second_run_is_refused(tmp_path: Path) -> None:
    plan = Plan(records=RECORDS, batch=20, steps=50, epsilon=3.0, delta=1e-3)
    model = make()
    train(Private(model, sgd(model), plan, ledger=tmp_path / "ledger"), data())
    assert Ledger(tmp_path / "ledger").budget == Budget(3.0, 1e-3)
    with pytest.raises(BudgetExceededError):
        Private(model, sgd(model), plan, ledger=tmp_path / "ledger")


def test_runs_may_share_a_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "shared", Budget(8.0, 1e-3))
    plan = Plan(records=RECORDS, batch=10, steps=50, epsilon=1.0, delta=1e-3)
    for _ in range(3):
        model = make()
        train(Private(model, sgd(model), plan, ledger=ledger), data())
    assert ledger.mechanism() == Gaussian(plan.noise_multiplier).poisson(10 / RECORDS) * 150


def test_training_by_budget_ends_when_it_is_spent() -> None:
    plan = Plan(records=RECORDS, batch=10, noise_multiplier=2.0, epsilon=2.0, delta=1e-3)
    model = make()
    private = Private(model, sgd(model), plan)
    train(private, data())
    assert private.spent().epsilon(1e-3).upper <= 2.0
    one_more = Gaussian(2.0).poisson(10 / RECORDS) * (plan.steps + 1)
    assert one_more.epsilon(1e-3).upper > 2.0
    assert list(private.batches(data())) == []


def test_a_budget_that_refuses_the_next_step_ends_the_loop_with_a_warning() -> None:
    plan = Plan(records=RECORDS, batch=10, noise_multiplier=2.0, epsilon=2.0, delta=1e-3)
    model = make()
    ledger = open_ledger(None, plan)
    run = Spending(ledger, plan).run
    ledger.reserve(run, 0, plan.charges(0, 1), 1)  # steps lost to a crash, say
    private = Private(model, sgd(model), plan, ledger=Spending(ledger, plan, run=run))
    with pytest.warns(UserWarning, match="Stopped after"):
        train(private, data())
    assert private.steps_done == plan.steps - 1
    assert private.spent().epsilon(1e-3).upper <= 2.0


def test_a_run_ended_early_leaves_the_rest_to_others() -> None:
    ledger = Ledger(None, Budget(2.0, 1e-3))
    plan = Plan(records=RECORDS, batch=10, noise_multiplier=2.0, epsilon=2.0, delta=1e-3)
    model = make()
    first = Private(model, sgd(model), plan, ledger=ledger)
    train(first, data(), steps=5)
    short = Plan(records=RECORDS, batch=10, noise_multiplier=2.0, steps=plan.steps - 5)
    with pytest.raises(BudgetExceededError):
        Private(model, sgd(model), short, ledger=ledger)
    first.finish()
    assert "quote the whole plan's promise" in first.report()
    train(Private(model, sgd(model), short, ledger=ledger), data())
    assert ledger.mechanism() == plan.mechanism


def test_nothing_of_the_model_is_wrapped_or_renamed() -> None:
    model = make()
    before = {name: type(module) for name, module in model.named_modules()}, list(model.state_dict())
    plan = Plan(records=RECORDS, batch=20, steps=2, noise_multiplier=1.0)
    train(Private(model, sgd(model), plan, average=hush.Average()), data())
    assert ({name: type(module) for name, module in model.named_modules()}, list(model.state_dict())) == before
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def test_batch_normalisation_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="BatchNorm1d"):
        Private(model, sgd(model), Plan(records=RECORDS, batch=20, steps=2, noise_multiplier=1.0))


def test_looking_at_the_loss_leaves_dropout_as_it_was() -> None:
    found = []
    for looked in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        plan = Plan(records=RECORDS, batch=20, steps=3, noise_multiplier=1.0)
        private = Private(model, sgd(model), plan, key=Key.from_seed(1))
        private._watch._done = looked
        train(private, data())
        found.append(weights(model))
    assert torch.equal(*found)


def _compiled_run(engine: Engine) -> tuple[tuple[str, ...], Tensor]:
    model: Any = torch.compile(make())
    plan = Plan(records=RECORDS, batch=20, steps=3, noise_multiplier=1.0)
    private = Private(model, sgd(model), plan, key=Key.from_seed(1), engine=engine)
    train(private, data())
    return private.local.notes, weights(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_the_report_says_that_a_compiled_model_ran_as_written() -> None:
    notes, _ = _compiled_run(Ghost())
    assert any("compiled code was not used" in note for note in notes)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_model_trains_with_compiled_code_to_the_same_weights() -> None:
    notes, compiled = _compiled_run(Auto())
    _, written = _compiled_run(Ghost())
    assert "compiled" in notes
    assert not any("not used" in note for note in notes)
    torch.testing.assert_close(compiled, written, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", [Auto(), Ghost(), Vmap(), Loop()], ids=lambda engine: type(engine).__name__)
def test_autocast_that_begins_after_the_first_step_lowers_the_threshold_at_once(engine: Engine) -> None:
    model = make()
    plan = Plan(records=RECORDS, batch=20, steps=3, noise_multiplier=1.0)
    private = Private(model, sgd(model), plan, engine=engine)
    limits = []
    for step, (x, y) in enumerate(private.batches(data())):

        def losses(x: Tensor, y: Tensor, half: bool = step > 0) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                return F.cross_entropy(model(x), y, reduction="none")

        private.step(losses, x, y)
        limits.append(private.local.limits[0])
    assert limits[0] > 1 - BFLOAT16
    assert max(limits[1:]) <= 1 - BFLOAT16


class Unseen(torch.autograd.Function):
    """A function that no rule knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x[:, 0] * weight.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        return None, (grad * x[:, 0]).sum() * torch.ones_like(weight)


def test_the_report_says_nothing_that_one_record_could_have_brought_about() -> None:
    """What took a slower way is for local eyes; one record out of bounds sends a parameter there."""
    reports, notes = [], []
    for outlier in (False, True):
        model = make()
        plan = Plan(records=RECORDS, batch=RECORDS, steps=1, noise_multiplier=1.0)
        private = Private(model, sgd(model), plan, key=Key.from_seed(1))
        x, y = data()
        x[0, 0] = 100.0 if outlier else 0.0

        def losses(x: Tensor, y: Tensor, model: Any = model) -> Tensor:
            more = Unseen.apply(x, model[0].weight) if x.max() > 50 else 0.0
            return F.cross_entropy(model(x), y, reduction="none") + more

        for batch in private.batches((x, y)):
            private.step(losses, *batch)
        reports.append(private.report())
        notes.append(private.local.notes)
        assert private.local.report().startswith("LOCAL")
    assert notes[0] != notes[1]
    assert any("0.weight" in note for note in notes[1])
    assert reports[0] == reports[1]
