"""What one `hush reproduce` command has done, over all its starts, so that every start goes on from the last one."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from pathlib import Path

import hush


class Progress:
    """Of one command: the same experiments, options and code.

    done      accounts, rows and timings that are finished, of this start and of earlier ones
    failed    rows that have no result, in words; `missing`: those whose data aren't there
    """

    def __init__(self, folder: Path, command: str, deadline: float) -> None:
        digest = hashlib.blake2b(f"{command} {_code()}".encode(), digest_size=8).hexdigest()
        self.path, self.deadline = folder / "partial" / f"command-{digest}.json", deadline
        self.done: list[str] = json.loads(self.path.read_text("utf-8")) if self.path.exists() else []
        self.failed: list[str] = []
        self.missing: list[str] = []
        self.late = False
        self._began = len(self.done)

    def out_of_time(self) -> bool:
        """Whether to stop before the next thing; a start does at least one, however short its time."""
        self.late = time.monotonic() > self.until
        return self.late

    @property
    def until(self) -> float:
        """The deadline of what can't be kept on the way: none for the first thing of a start."""
        return self.deadline if len(self.done) > self._began else math.inf

    def add(self, what: str) -> None:
        self.done.append(what)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(self.done), "utf-8")
        os.replace(beside, self.path)

    def close(self) -> None:
        """Forgets it all once nothing is left to do: the next start is a new run."""
        if not (self.late or self.failed or self.missing):
            self.path.unlink(missing_ok=True)


def _code() -> str:
    """Names this version of hush, to the letter."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(hush.__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
