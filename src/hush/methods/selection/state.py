"""How far a search is, in memory and, if it has a folder, there.

While a search runs its folder (mode 0700) holds the key, how far the search is, the best so far and, in `run/`, how far
the present run is: as secret as a training checkpoint, and for the same reason not encrypted.  Whoever may go on with a
search without being asked for a password has its key at hand, and so has whoever reads the folder.  A run that has
lost, or that was kept, is deleted at once; when the search is done the folder holds the winner alone, and its files
have the times of the search's beginning.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hush import checkpoint
from hush.keys import Key
from hush.ledger import Ledger
from hush.methods.selection.search import Search
from hush.methods.selection.trials import Place, clear


@dataclass(frozen=True, eq=False)
class Selected:
    """The winner: its settings, its (public or noised) score, its model's state; all None if there was no run."""

    settings: dict[str, Any] | None
    score: float | None
    state: dict[str, Tensor] | None


@dataclass
class State:
    """What a search knows; with a folder, what it finds there."""

    folder: Path | None
    search: Search
    key: Key | None = None
    done: int = 0
    best: tuple[int, float, dict[str, Tensor]] | None = None
    selected: Selected | None = None
    began: float = field(default_factory=time.time)
    run: str = ""
    _home: str = ""
    _path: str | None = None
    _book: Ledger | None = None
    _tokens: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.folder is None or not (self.folder / "checkpoint.json").exists():
            return
        kept = checkpoint.load(self.folder)
        checkpoint.check_same(kept["search"], self.search.to_dict(), "search")
        if "selected" in kept:
            self.selected = Selected(**kept["selected"])
            self._tidy()
            return
        self.key, self.done, self.began = Key.from_json(kept["key"]), kept["done"], kept["began"]
        self.best = None if kept["best"] is None else (kept["best"][0], kept["best"][1], kept["best"][2])
        self.run, self._path, self._tokens, self._home = kept["run"], kept["ledger"], kept["tokens"], kept["folder"]

    def begin(self, key: Key, book: Ledger, run: str) -> None:
        """The search is charged as `run` of the ledger."""
        self.key, self._book, self.run = key, book, run
        self._path = None if book.path is None else str(book.path.resolve())
        self._write()

    def resume(self, ledger: Ledger | str | os.PathLike[str] | None) -> None:
        """Go on with a search that was broken off, here and nowhere else.

        Its ledger must still hold the charge.  Every resumption leaves a word of its own there, which the folder knows
        first; if the ledger has one that the folder doesn't know, another copy of the folder went on.  A search that
        was done leaves no such word, as its time would tell how long it took; so copies elsewhere don't go on at all.
        """
        assert self._path is not None
        assert self.folder is not None
        if self._home != str(self.folder.resolve()):
            raise ValueError(
                f"This search was begun in {self._home}, and a copy of it may go on there, while it is charged for one "
                "winner; go on there, or move the folder back."
            )
        book = ledger if isinstance(ledger, Ledger) else Ledger(self._path if ledger is None else ledger)
        if self.run not in {known.run for known in book.runs}:
            raise ValueError(
                f"The ledger doesn't hold the run {self.run} that this search was charged as; give the ledger it was "
                "begun with."
            )
        self._book = book
        self.check_alone()
        self._tokens.append(secrets.token_hex(8))
        self._write()
        book.finish(book.register({"method": "selection", "resumed": self.run, "by": self._tokens[-1]}, None, block=1))
        self.check_alone()

    def check_alone(self) -> None:
        """Refuse to go on where the search went on elsewhere: two winners would be published for one charge."""
        if self._book is None:
            return
        resumed = (known.plan for known in self._book.runs if isinstance(known.plan, dict))
        if {plan["by"] for plan in resumed if plan.get("resumed") == self.run} - set(self._tokens):
            raise ValueError(
                "This search went on elsewhere, in another process or from another copy of its folder, and is charged "
                "for one winner; go on there, or begin another search."
            )

    def place(self, seconds: float) -> Place | None:
        """Where the present run is kept."""
        return None if self.folder is None else Place(self.folder / "run", self.done, seconds)

    def keep(self, index: int, score: float, tensors: dict[str, Tensor]) -> None:
        """Take in the result of the present run; of a loser nothing is left."""
        self.check_alone()
        self.done += 1
        if self.best is None or score > self.best[1]:
            self.best = (index, score, tensors)
        self._write()
        if self.folder is not None:
            clear(self.folder / "run")

    def finish(self) -> Selected:
        """The winner, which alone stays in the folder."""
        self.check_alone()
        selected = Selected(None, None, None)
        if self.best is not None:
            index, score, tensors = self.best
            selected = Selected(dict(self.search.candidates[index].settings), score, tensors)
        if self.folder is not None:
            clear(self.folder / "run")
            winner = {"settings": selected.settings, "score": selected.score, "state": selected.state}
            checkpoint.save(self.folder, {"search": self.search.to_dict(), "selected": winner})
            self._set_times()
        return selected

    def _write(self) -> None:
        if self.folder is None:
            return
        assert self.key is not None
        values = {
            "search": self.search.to_dict(),
            "key": self.key.to_json(),
            "done": self.done,
            "best": None if self.best is None else list(self.best),
            "began": self.began,
            "ledger": self._path,
            "run": self.run,
            "folder": str(self.folder.resolve()),
            "tokens": self._tokens,
        }
        checkpoint.save(self.folder, values)

    def _tidy(self) -> None:
        """Delete what a search that was killed at its last moment has left beside the winner."""
        assert self.folder is not None
        named = checkpoint.files(self.folder)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in named:
                path.unlink(missing_ok=True)

    def _set_times(self) -> None:
        """How long a search took tells about the number of runs."""
        assert self.folder is not None
        for path in (*self.folder.iterdir(), self.folder):
            os.utime(path, (self.began, self.began))
