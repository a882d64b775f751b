"""One run of a search: the settings it was drawn, the private run it may make, and how far that is, on disk."""

from __future__ import annotations

import contextlib
import copy
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hush import checkpoint, snapshots
from hush.keys import Key
from hush.methods.selection.search import Candidate
from hush.spending import Spending, open_ledger
from hush.training import Private


class MisuseError(ValueError):
    """A training function that the search hasn't paid for, whatever the records are."""


@dataclass
class Place:
    """Where a run of a search is kept while it is trained, so that a search can go on in the middle of it: SECRET.

    A run that is broken off goes on under the same key, unlike a training: nobody has seen anything of it, and the same
    key makes sure that breaking off changes nothing about the result.
    """

    folder: Path
    number: int
    seconds: float
    _last: float = field(default_factory=time.monotonic)

    def found(self) -> dict[str, Any] | None:
        """How far this run was; what another one left is deleted."""
        if not (self.folder / "checkpoint.json").exists():
            return None
        kept = checkpoint.load(self.folder)
        if kept["number"] != self.number:
            clear(self.folder)
            return None
        progress: dict[str, Any] = kept["progress"]
        return progress

    def keep(self, private: Private) -> None:
        """Write down how far the run is, if the last time was long ago."""
        if time.monotonic() - self._last >= self.seconds:
            checkpoint.save(self.folder, {"number": self.number, "progress": snapshots.progress(private)})
            self._last = time.monotonic()


def clear(folder: Path) -> None:
    """Delete what a run has left."""
    shutil.rmtree(folder, ignore_errors=True)


class _Run(Private):
    """A private run that is kept after its steps."""

    def __init__(self, place: Place | None, *given: Any, **options: Any) -> None:
        self._place = place
        super().__init__(*given, **options)

    def follow(self, step: int) -> None:
        super().follow(step)
        if self._place is not None:
            self._place.keep(self)


@dataclass(frozen=True, eq=False)
class _Before:
    """Model, optimiser and scheduler, and their states before a run."""

    model: nn.Module
    states: tuple[tuple[Any, dict[str, Any]], ...]

    @staticmethod
    def of(model: nn.Module, *others: Any) -> _Before:
        held = (model, *(other for other in others if other is not None))
        return _Before(model, tuple((one, copy.deepcopy(one.state_dict())) for one in held))

    def put_back(self) -> None:
        for one, state in self.states:
            with contextlib.suppress(Exception):  # what has changed its shape isn't begun with again
                one.load_state_dict(state)
        for parameter in self.model.parameters():
            parameter.grad = None


@dataclass(frozen=True, eq=False)
class Trial:
    """What a training function gets: its settings and plan, and the one private run it may make."""

    settings: dict[str, Any]
    candidate: Candidate
    key: Key
    _place: Place | None = None
    _made: list[Private] = field(default_factory=list)
    _before: list[_Before] = field(default_factory=list)

    def private(self, model: nn.Module, optimiser: Optimizer, **options: Any) -> Private:
        """The private run of this trial (see `hush.Private`); the search has paid for one, by the candidate's plan.

        Where the search was broken off in the middle of this run, model, optimiser and scheduler are put where they
        were, and `batches` goes on from there.
        """
        if self._made:
            raise MisuseError("A trial has one private run, which is what the search pays for; train one model only.")
        for name in ("ledger", "key", "plan"):
            if name in options:
                raise MisuseError(f"A trial's {name} is the search's own; leave it out.")
        self._before.append(_Before.of(model, optimiser, options.get("scheduler")))
        plan = self.candidate.plan
        # in memory: the search is charged as a whole, and a run of its own in the ledger would tell that there was one
        spending = Spending(open_ledger(None, plan), plan)
        private = _Run(self._place, model, optimiser, plan, ledger=spending, key=self.key, **options)
        found = None if self._place is None else self._place.found()
        if found is not None:
            self._go_on(private, found)
        self._made.append(private)
        return private

    def put_back(self) -> None:
        """Undo what the run did to model, optimiser and scheduler: who keeps them doesn't begin the next run there.

        Runs are accounted as independent of each other.
        """
        for before in self._before:
            before.put_back()

    def _go_on(self, private: Private, found: dict[str, Any]) -> None:
        try:
            snapshots.restore(private, found)
        except Exception:
            assert self._place is not None
            raise MisuseError(
                "The run that was broken off had another model, optimiser or scheduler; train as before, or delete "
                f"{self._place.folder} to begin that run anew."
            ) from None
