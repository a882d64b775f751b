"""A row's models one at a time by `hush.Private` itself: for a CPU, where convolutions gain nothing from stacking."""

from __future__ import annotations

import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.experiments.rows import Row
from hush.experiments.tasks import Task
from hush.experiments.trainer import OutOfTimeError
from hush.keys import Key
from hush.training import Private


def mnist_network() -> nn.Module:
    """The network of `stacked.mnist_network` as a module."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


MODULES = {"mnist-network": mnist_network}


def accuracy(row: Row, task: Task, seed: int, deadline: float = math.inf) -> tuple[float, float]:
    """Test accuracy in percent and seconds of one seed, trained with plain SGD by the row's plan."""
    plan = row.plan(len(task.train), task.beside)
    if plan is None or row.adam or row.final != 1:
        raise ValueError(f"The row {row.name!r} isn't plain private SGD; train it stacked.")
    torch.manual_seed(seed)
    model = MODULES[row.model]()
    optimiser = torch.optim.SGD(model.parameters(), lr=row.lr, momentum=row.momentum)
    private = Private(model, optimiser, plan, key=Key.from_seed(seed))
    images, tests = (part.x[:, 0].movedim(3, 1).contiguous() for part in (task.train, task.test))

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    began = time.monotonic()
    for x, y in private.batches((images, task.train.y)):
        private.step(losses, x, y)
        if time.monotonic() > deadline:
            raise OutOfTimeError(f"Stopped after {private.steps_done} of {plan.steps} steps.")
    seconds = time.monotonic() - began
    with torch.no_grad():
        right = [
            (model(x).argmax(1) == y).sum().item()
            for x, y in zip(tests.split(1000), task.test.y.split(1000), strict=True)
        ]
    return 100 * sum(right) / len(tests), seconds
