"""A run of `hush train` in progress: trained step by step, paused, and at its end published."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch  # noqa: F401 (missing, it should be missed before anything is spent)
import torch.nn.functional as F
from torch import Tensor

from hush import Plan, Private
from hush.runs import publishing
from hush.runs.card import Card, Published
from hush.runs.folder import Folder, read_json, write_json
from hush.tabular.data import Data
from hush.units import Users

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHECKPOINTS = 10
"""How often a run saves its state."""

_ROWS = 50
"""The most rows of the local history."""


@dataclass(frozen=True)
class Seen:
    """After a step: LOCAL ONLY but for the counts."""

    step: int
    steps: int
    loss: float


class Session:
    """A run in progress."""

    def __init__(
        self,
        folder: Folder,
        card: Card,
        private: Private,
        train: tuple[Tensor, Tensor],
        held: Data,
        users: Users | None,
    ) -> None:
        self.folder, self.card, self.private = folder, card, private
        self._train, self._held, self._users = train, held, users
        targets = card.encode_targets(held.targets or [])
        rows = usable(card, targets)
        self._scored = card.encode(held.take(rows)), targets[rows]
        self._loss = F.cross_entropy if card.classes is not None else F.smooth_l1_loss
        found = read_json(folder.local)["epochs"] if folder.local.exists() else []
        self._history: list[dict[str, Any]] = [row for row in found if row["step"] <= private.steps_done]
        self._window: list[tuple[float, float, float, float]] = []

    @property
    def plan(self) -> Plan:
        return self.private.plan

    def epsilon(self) -> float:
        """What the run has spent so far, its survey included."""
        assert self.plan.delta is not None
        return self.private.spent().epsilon(self.plan.delta).upper

    def steps(self) -> Iterator[Seen]:
        """Train, step by step; stop asking at any time and call `pause`."""
        private, plan = self.private, self.plan
        if self._ended():
            return
        an_epoch = max(1, round(1 / plan.rate), math.ceil(plan.steps / _ROWS))
        every = max(1, plan.steps // _CHECKPOINTS)
        for x, y in private.batches(self._train, users=self._users):
            private.step(self._losses, x, y)
            self._look()
            done = private.steps_done
            if done % an_epoch == 0 or done == plan.steps:
                self._remember(done)
            if done % every == 0 or done == plan.steps:
                private.save(self.folder.checkpoint)
            yield Seen(done, plan.steps, private.local.loss)

    def pause(self) -> None:
        """Keep the state, so that `resume` goes on to the same bits."""
        if self.private._pending is None:
            self.private.save(self.folder.checkpoint)

    def finish(self) -> dict[str, Any]:
        """Publish the averaged weights with plan and ledger; returns the local scores."""
        self.private.finish()
        with self.private.averaged() as model:
            publishing.publish(self.folder, self.card, model, self.private)
        return self._history[-1] if self._history else {}

    def score(self) -> float | None:
        """Of the averaged weights on the hold-out: accuracy, or the root mean squared error.  LOCAL ONLY."""
        features, targets = self._scored
        if not len(targets):
            return None
        with self.private.averaged() as model:
            outputs = Published(self.card, model).outputs(features)
            model.train()
        return score(self.card, outputs, targets)

    def _ended(self) -> bool:
        """Whether the ledger says so already: then a crash came between the last step and publishing."""
        spending = self.private.spending
        return any(summary.run == spending.run and summary.finished for summary in spending.ledger.runs)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        outputs = self.private.model(x)
        if self.card.classes is None:
            outputs = outputs[:, 0]
        return self._loss(outputs, y, reduction="none")

    def _look(self) -> None:
        local = self.private.local
        if local.size:
            norms = local.norms.norm(dim=1).float()
            quarter, half = (float(norms.nanquantile(q)) for q in (0.25, 0.5))
            self._window.append((local.loss, quarter, half, float(norms.nanquantile(0.75))))

    def _remember(self, step: int) -> None:
        """One row of the local history for every epoch."""
        means = [float(np.mean(column)) for column in zip(*self._window, strict=True)] or [math.nan] * 4
        clean = [value if math.isfinite(value) else None for value in means]
        row = {"step": step, "epoch": step * self.plan.rate, "loss": clean[0], "norms": clean[1:]}
        row |= {"clipped": _finite(self.private.local.clipped), "score": _finite(self.score())}
        self._history.append(row)
        self._window = []
        write_json(self.folder.local, {"epochs": self._history, "held": self._held.records}, mode=0o600)


def score(card: Card, outputs: Tensor, targets: NDArray[Any]) -> float:
    """Accuracy, or the root mean squared error in the target's units."""
    if card.classes is not None:
        return float((outputs.argmax(dim=1).numpy() == targets).mean())
    assert card.scaling is not None
    return float(np.sqrt(np.mean((outputs[:, 0].numpy() - targets) ** 2))) * card.scaling.scale


def usable(card: Card, targets: NDArray[Any]) -> NDArray[np.int64]:
    """The records whose target is one of the classes, or a number."""
    return np.flatnonzero(targets >= 0 if card.classes is not None else np.isfinite(targets))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
