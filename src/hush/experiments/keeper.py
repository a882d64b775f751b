"""Long runs: say where they stand, keep their state now and then, stop in time, and go on from what was kept."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

State = dict[str, Any]


class OutOfTimeError(RuntimeError):
    """The time limit came before the run's end; what was done so far is kept."""


class Keeper:
    """Of one row's run.

    folder    where its state is kept, in a folder that belongs to this row and these settings; None: nowhere
    notes     what the row found on the way (plain numbers), kept with the state
    """

    def __init__(
        self,
        folder: Path | None = None,
        deadline: float = math.inf,
        say: Callable[[str], None] | None = None,
        *,
        saying: float = 15.0,
        saving: float = 60.0,
    ) -> None:
        self.folder, self.deadline, self.say = folder, deadline, say
        self.saying, self.saving = saying, saving
        self.notes: State = {}
        self._said = self._saved = time.monotonic()

    def part(self, number: int) -> Keeper:
        """For one of several runs that are kept apart."""
        return Keeper(self.folder and self.folder / str(number), self.deadline, self.say)

    def restore(self) -> State | None:
        """The state that was kept, if there is one; the notes come back too."""
        if self.folder is None or not (self.folder / "state.pt").exists():
            return None
        kept: State = torch.load(self.folder / "state.pt", weights_only=True)
        self.notes |= kept["notes"]
        if self.say is not None:
            self.say(f"    goes on after step {kept['step']}")
        state: State = kept["state"]
        return state

    def tick(self, step: int, steps: int, state: Callable[[], State]) -> None:
        """After every few steps.  Raises OutOfTimeError, with everything kept, once the deadline has passed."""
        now = time.monotonic()
        if self.say is not None and now - self._said > self.saying:
            self.say(f"    step {step} of {steps}")
            self._said = now
        late = now > self.deadline
        if self.folder is not None and (late or now - self._saved > self.saving):
            self.keep(step, state())
        if late:
            raise OutOfTimeError(f"Stopped after {step} of {steps} steps.")

    def keep(self, step: int, state: State) -> None:
        """Replaces what was kept at once, so that a crash leaves the old one."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.folder / "state.new"
        torch.save({"step": step, "notes": self.notes, "state": state}, beside)
        os.replace(beside, self.folder / "state.pt")
        self._saved = time.monotonic()

    def done(self) -> None:
        """The row has a result; its state isn't needed any more."""
        if self.folder is not None and self.folder.exists():
            shutil.rmtree(self.folder)
