"""A row's models one at a time, by `hush.Private` itself: networks that aren't stacked, and convolutions on a CPU."""

from __future__ import annotations

import shutil
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.experiments.keeper import Keeper, OutOfTimeError, State
from hush.experiments.networks import network
from hush.experiments.rows import Row
from hush.experiments.tasks import Task
from hush.experiments.trainer import Records
from hush.gradients import Auto
from hush.keys import Key
from hush.plan import Plan
from hush.training import Private

NETWORKS = ("cifar-network", "cifar-network-maxima", "mnist-network", "text-network")
Found = list[tuple[float, float]]


def better(row: Row, device: torch.device) -> bool:
    """Whether a row is trained here: on a CPU stacked convolutions and recurrences are slow."""
    return device.type == "cpu" and row.model in NETWORKS and row.recipe in ("paper", "plain") and not row.watch


def accuracies(row: Row, task: Task, seeds: int, keeper: Keeper) -> Found:
    """Test accuracy in percent and seconds of every seed, trained by the row's plan, or plainly where it has none.

    What the keeper notes are the seeds that are done; the one under way is a checkpoint of `Private` in its folder, or
    where nothing is private the keeper's state.
    """
    if row.momentum or row.final != 1 or row.average or row.weight_decay or row.copies != 1:
        raise ValueError(f"The row {row.name!r} has more than a learning rate; train it stacked.")
    keeper.notes["found"] = []
    state = keeper.restore()
    found: Found = [(score, seconds) for score, seconds in keeper.notes["found"]]
    for seed in range(len(found), seeds):
        try:
            found.append(_one(row, task, seed, keeper, state))
        except OutOfTimeError:
            if keeper.folder is None and found:  # nothing can go on: the seeds that are done are the result
                return found
            raise
        keeper.notes["found"] = [list(pair) for pair in found]
        keeper.keep(0, {})
        state = None
    return found


def _one(row: Row, task: Task, seed: int, keeper: Keeper, state: State | None) -> tuple[float, float]:
    plan = row.plan(len(task.train), task.beside)
    torch.manual_seed(seed)
    model = network(row.model).to(task.train.x.device)
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=row.lr) if row.adam else torch.optim.SGD(model.parameters(), lr=row.lr)
    )
    began = time.monotonic()
    if plan is None:
        _plain(row, task, model, optimiser, keeper, state or {})
    else:
        _private(plan, task, model, optimiser, seed, keeper)
    right = _right(model, task.test)  # waits for the device
    return 100 * right / len(task.test), time.monotonic() - began


def _private(
    plan: Plan, task: Task, model: nn.Module, optimiser: torch.optim.Optimizer, seed: int, keeper: Keeper
) -> None:
    # compiling takes longer than it saves in runs as short as these; projections have an engine of their own
    engine = Auto(compile=False) if plan.projections is None else None
    place = None if keeper.folder is None else keeper.folder / f"seed{seed}"
    ledger = None if place is None else place / "ledger"
    if place is not None and (place / "run").exists():
        private = Private.resume(place / "run", model, optimiser, plan, ledger=ledger, engine=engine)
    else:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        private = Private(model, optimiser, plan, key=Key.from_seed(seed), ledger=ledger, engine=engine)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def save() -> State:
        if place is not None:
            private.save(place / "run")
        return {}

    for x, y in private.batches((inputs(task.train), task.train.y)):
        private.step(losses, x, y)
        keeper.tick(private.steps_done, plan.steps, save)


def _plain(
    row: Row, task: Task, model: nn.Module, optimiser: torch.optim.Optimizer, keeper: Keeper, kept: State
) -> None:
    x, y = inputs(task.train), task.train.y
    batch = round(row.batch)
    order = torch.empty(0, dtype=torch.long)
    steps = row.length(len(x))
    if kept:
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        order = kept["order"]
        torch.set_rng_state(kept["coins"])
    for step in range(kept.get("step", 0), steps):
        if len(order) < batch:
            order = torch.randperm(len(x))
        part, order = order[:batch].to(x.device), order[batch:]
        optimiser.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimiser.step()
        keeper.tick(step + 1, steps, partial(_plain_state, step + 1, order, model, optimiser))


def _plain_state(step: int, order: Tensor, model: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    """Everything a plain run needs to go on to the same numbers."""
    state = {"step": step, "order": order, "coins": torch.get_rng_state()}
    return state | {"model": model.state_dict(), "optimiser": optimiser.state_dict()}


def inputs(records: Records) -> Tensor:
    """Images (N, 1, H, W, C) as modules take them, (N, C, H, W); numbers of words as they are."""
    return records.x[:, 0].movedim(3, 1).contiguous() if records.x.dim() == 5 else records.x


@torch.no_grad()
def _right(model: nn.Module, test: Records) -> int:
    found = [(model(x).argmax(1) == y).sum() for x, y in zip(inputs(test).split(1000), test.y.split(1000), strict=True)]
    return int(torch.stack(found).sum())
