"""Checkpoints: the same bits as never having stopped, or a fresh key and the gap still charged."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush
from hush.clipping import Adaptive
from hush.keys import Key
from hush.ledger import Ledger
from hush.optim import AdamBC
from hush.plan import Plan
from hush.sampling import Poisson, Shuffled
from hush.training import Private

pytest.importorskip("safetensors")

RECORDS = 60
ADAPTIVE = Adaptive(0.5, count_noise=5.0)


def make(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(RECORDS, 5, generator=generator), torch.randint(0, 3, (RECORDS,), generator=generator)


OPTIMISERS: dict[str, Any] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "AdamBC": lambda m: AdamBC(m.parameters(), lr=0.01),
}


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = make()
    optimiser = OPTIMISERS[name](model)
    return model, optimiser, torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=100)


def go(private: Private, steps: int | None = None) -> None:
    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(private.model(x), y, reduction="none")

    for x, y in private.batches(data(), steps=steps):
        private.step(losses, x, y)


def state(private: Private) -> list[Tensor]:
    return [p.detach().clone() for p in (*private.model.parameters(), *private.averages)]


def plan_of(sampling: Any = None, clip: Any = 1.0, steps: int = 30) -> Plan:
    return Plan(records=RECORDS, batch=20, steps=steps, noise_multiplier=2.0, clip=clip, sampling=sampling)


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize(
    ("sampling", "clip"), [(Poisson(), ADAPTIVE), (Shuffled(), 1.0)], ids=["poisson, adaptive", "shuffled"]
)
def test_a_resumed_run_has_the_same_bits_as_one_that_never_stopped(
    name: str, sampling: Any, clip: Any, tmp_path: Path
) -> None:
    plan = plan_of(sampling, clip)
    found = []
    for stops in ((), (7, 6)):
        model, optimiser, scheduler = build(name)
        torch.manual_seed(11)
        private = Private(
            model,
            optimiser,
            plan,
            ledger=tmp_path / f"ledger{len(stops)}",
            key=Key.from_seed(1),
            scheduler=scheduler,
            average=hush.Average(0.9),
        )
        for steps in stops:
            go(private, steps)
            private.save(tmp_path / "checkpoint")
            torch.manual_seed(99)  # another process would have other states
            random.seed(5)
            np.random.seed(5)
            model, optimiser, scheduler = build(name)
            private = Private.resume(tmp_path / "checkpoint", model, optimiser, plan, scheduler=scheduler)
        go(private)
        assert private.steps_done == plan.steps
        assert private.spent().mechanism == plan.mechanism
        found.append((state(private), private.threshold, scheduler.state_dict()))
    (one, threshold, schedule), (two, other_threshold, other_schedule) = found
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert threshold == other_threshold
    assert schedule["last_epoch"] == other_schedule["last_epoch"]


def test_a_checkpoint_the_ledger_has_passed_goes_on_under_a_fresh_key_with_the_gap_charged(tmp_path: Path) -> None:
    plan = plan_of()
    model, optimiser, _ = build("SGD")
    private = Private(model, optimiser, plan, ledger=tmp_path / "ledger", key=Key.from_seed(1))
    go(private, 10)
    private.save(tmp_path / "checkpoint")
    go(private, 4)
    model, optimiser, _ = build("SGD")
    resumed = Private.resume(tmp_path / "checkpoint", model, optimiser)
    assert resumed.key.secret != Key.from_seed(1).secret
    assert resumed.key.seed is None
    assert resumed.steps_done == 10
    go(resumed)
    assert resumed.spent().mechanism == plan.release(0).poisson(20 / RECORDS) * 34


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "copied"])
def test_a_copy_of_the_ledger_goes_on_under_a_fresh_key_while_the_original_is_there(
    moved: bool, tmp_path: Path
) -> None:
    model, optimiser, _ = build("SGD")
    private = Private(model, optimiser, plan_of(), ledger=tmp_path / "ledger", key=Key.from_seed(1))
    go(private, 10)
    private.save(tmp_path / "checkpoint")
    (tmp_path / "other").write_bytes((tmp_path / "ledger").read_bytes())
    if moved:
        (tmp_path / "ledger").unlink()
    else:
        go(private, 4)  # the original goes on, and its copy doesn't know
    model, optimiser, _ = build("SGD")
    resumed = Private.resume(tmp_path / "checkpoint", model, optimiser, ledger=tmp_path / "other")
    assert (resumed.key == Key.from_seed(1)) is moved


def test_a_shuffled_epoch_begun_again_under_a_fresh_key_is_charged_again(tmp_path: Path) -> None:
    plan = plan_of(Shuffled())  # three steps an epoch
    model, optimiser, _ = build("SGD")
    private = Private(model, optimiser, plan, ledger=tmp_path / "ledger")
    go(private, 10)
    private.save(tmp_path / "checkpoint")
    go(private, 1)
    model, optimiser, _ = build("SGD")
    resumed = Private.resume(tmp_path / "checkpoint", model, optimiser)
    go(resumed)
    charged = resumed.spent().mechanism
    assert charged is not None
    assert sum(count for _, count in charged.parts()) == 11  # ten epochs, and the broken one anew


def test_a_checkpoint_is_secret_and_holds_no_pickle(tmp_path: Path) -> None:
    model, optimiser, _ = build("SGD")
    private = Private(model, optimiser, plan_of(), ledger=tmp_path / "ledger")
    go(private, 3)
    private.save(tmp_path / "checkpoint")
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {path.suffix for path in files} <= {".json", ".safetensors"}


@pytest.mark.parametrize("other", [{"batch": 21}, {"clip": 2.0}, {"noise_multiplier": 1.0}, {"sampling": Shuffled()}])
def test_a_checkpoint_of_another_plan_is_refused_with_the_reason(other: dict[str, Any], tmp_path: Path) -> None:
    numbers = {"records": RECORDS, "batch": 20, "steps": 30, "noise_multiplier": 2.0}
    model, optimiser, _ = build("SGD")
    private = Private(model, optimiser, Plan(**numbers), ledger=tmp_path / "ledger")
    private.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=f"another plan.*{next(iter(other))}"):
        Private.resume(tmp_path / "checkpoint", model, optimiser, Plan(**(numbers | other)))


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    model, optimiser, scheduler = build("SGD")
    private = Private(model, optimiser, plan_of())
    with pytest.raises(ValueError, match="give ledger=path"):
        private.save(tmp_path / "checkpoint")
    private = Private(model, optimiser, plan_of(), ledger=tmp_path / "ledger", scheduler=scheduler)
    loop = private.batches(data())
    next(loop)
    with pytest.raises(ValueError, match="save after step"):
        private.save(tmp_path / "checkpoint")
    loop.close()
    private._pending = None
    private.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="saved with a scheduler"):
        Private.resume(tmp_path / "checkpoint", model, optimiser)
    Private(model, optimiser, plan_of(), ledger=tmp_path / "other")
    with pytest.raises(ValueError, match="doesn't hold the run"):
        Private.resume(tmp_path / "checkpoint", model, optimiser, scheduler=scheduler, ledger=tmp_path / "other")


def test_saving_inside_the_loop_is_possible_with_workers_too(tmp_path: Path) -> None:
    x, y = data()
    rows = [(x[i], y[i]) for i in range(RECORDS)]
    model, optimiser, _ = build("SGD")
    private = Private(model, optimiser, plan_of(steps=12), ledger=tmp_path / "ledger")
    for batch in private.batches(rows, workers=1):
        private.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), *batch)
        private.save(tmp_path / "checkpoint")
    assert private.spent().mechanism == plan_of(steps=12).mechanism


VICTIM = """
import os, sys, signal
sys.path.insert(0, {tests!r})
import test_snapshots as t
from hush.training import Private
kill_after, folder = int(sys.argv[1]), sys.argv[2]
model, optimiser, _ = t.build("SGD")
private = Private(model, optimiser, t.plan_of(steps=200), ledger=folder + "/ledger")
t.go(private, 10)
private.save(folder + "/checkpoint")
print("saved", flush=True)
losses = lambda x, y: t.F.cross_entropy(model(x), y, reduction="none")
for done, batch in enumerate(private.batches(t.data()), start=1):
    private.step(losses, *batch)
    print("released", flush=True)
    if done == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kill_after", [1, 7, pytest.param(150, marks=pytest.mark.full)])
def test_a_killed_run_resumes_under_a_fresh_key_and_nothing_released_is_forgotten(
    kill_after: int, tmp_path: Path
) -> None:
    code = VICTIM.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, str(kill_after), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    victim = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    released = 10 + victim.stdout.count("released")
    assert released == 10 + kill_after
    plan = plan_of(steps=200)
    one = plan.release(0).poisson(20 / RECORDS)
    charged = Ledger(tmp_path / "ledger").mechanism()
    assert charged is not None
    [(part, count)] = charged.parts()
    assert part == one
    assert released <= count <= released + 4  # at most a block more
    model, optimiser, _ = build("SGD")
    resumed = Private.resume(tmp_path / "checkpoint", model, optimiser, plan)
    assert resumed.steps_done == 10
    go(resumed)
    assert resumed.spent().mechanism == one * (count + 190)
