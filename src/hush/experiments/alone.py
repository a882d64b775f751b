"""A row's models one at a time, by `hush.Private` itself: networks that aren't stacked, and convolutions on a CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.experiments.networks import network
from hush.experiments.rows import Row
from hush.experiments.tasks import Task
from hush.experiments.trainer import OutOfTimeError, Records
from hush.gradients import Auto
from hush.keys import Key
from hush.plan import Plan
from hush.training import Private


def accuracy(row: Row, task: Task, seed: int, deadline: float = math.inf) -> tuple[float, float]:
    """Test accuracy in percent and seconds of one seed, trained by the row's plan, or plainly where it has none."""
    if row.momentum or row.final != 1 or row.average or row.weight_decay or row.copies != 1:
        raise ValueError(f"The row {row.name!r} has more than a learning rate; train it stacked.")
    plan = row.plan(len(task.train), task.beside)
    torch.manual_seed(seed)
    model = network(row.model).to(task.train.x.device)
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=row.lr) if row.adam else torch.optim.SGD(model.parameters(), lr=row.lr)
    )
    began = time.monotonic()
    steps = _plain(row, task, model, optimiser) if plan is None else _private(plan, task, model, optimiser, seed)
    for done in steps:
        if time.monotonic() > deadline:
            raise OutOfTimeError(f"Stopped after {done} of {row.length(len(task.train))} steps.")
    right = _right(model, task.test)  # waits for the device
    return 100 * right / len(task.test), time.monotonic() - began


def _private(plan: Plan, task: Task, model: nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> Iterator[int]:
    # compiling takes longer than it saves in runs as short as these
    private = Private(model, optimiser, plan, key=Key.from_seed(seed), engine=Auto(compile=False))

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    for x, y in private.batches((inputs(task.train), task.train.y)):
        private.step(losses, x, y)
        yield private.steps_done


def _plain(row: Row, task: Task, model: nn.Module, optimiser: torch.optim.Optimizer) -> Iterator[int]:
    x, y = inputs(task.train), task.train.y
    batch = round(row.batch)
    order = torch.empty(0, dtype=torch.long)
    for step in range(row.length(len(x))):
        if len(order) < batch:
            order = torch.randperm(len(x))
        part, order = order[:batch].to(x.device), order[batch:]
        optimiser.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimiser.step()
        yield step + 1


def inputs(records: Records) -> Tensor:
    """Images (N, 1, H, W, C) as modules take them, (N, C, H, W); numbers of words as they are."""
    return records.x[:, 0].movedim(3, 1).contiguous() if records.x.dim() == 5 else records.x


@torch.no_grad()
def _right(model: nn.Module, test: Records) -> int:
    found = [(model(x).argmax(1) == y).sum() for x, y in zip(inputs(test).split(1000), test.y.split(1000), strict=True)]
    return int(torch.stack(found).sum())
