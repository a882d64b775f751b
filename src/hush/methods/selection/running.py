"""Run a search: charged once and up front, then in secret, and only the best leaves.

Everything random is derived from one key: the number of runs, each run's candidate, seed, coins and noise.  So a search
that was interrupted goes on from its folder to the same result.  Nobody has seen anything of the runs before, so using
their keys again reveals nothing.

While it runs, the folder (mode 0700) holds the key, how far the search is and the best so far: as secret as a training
checkpoint.  When it is done the folder holds the winner alone.  Runs are silenced: what they print, warn or log goes
nowhere.  What can't be hidden from here is time: whoever sees how long a search took, or what power it drew, learns
about the number of runs.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hush import checkpoint, noise
from hush.keys import Key
from hush.ledger import Budget, BudgetExceededError, Ledger
from hush.methods.selection.runs import Every
from hush.methods.selection.search import Candidate, Noised, Search
from hush.training import Private
from hush.units import choose


@dataclass(frozen=True, eq=False)
class Trial:
    """What a training function gets: its settings and plan, and the one private run it may make."""

    settings: dict[str, Any]
    candidate: Candidate
    key: Key
    _made: list[Private] = field(default_factory=list)

    def private(self, model: nn.Module, optimiser: Optimizer, **options: Any) -> Private:
        """The private run of this trial (see `hush.Private`); the search has paid for one, by the candidate's plan."""
        if self._made:
            raise ValueError("A trial has one private run, which is what the search pays for; train one model only.")
        for name in ("ledger", "key", "plan"):
            if name in options:
                raise ValueError(f"A trial's {name} is the search's own; leave it out.")
        self._made.append(Private(model, optimiser, self.candidate.plan, key=self.key, **options))
        return self._made[0]


@dataclass(frozen=True, eq=False)
class Selected:
    """The winner: its settings, its (public or noised) score, its model's state; all None if there was no run."""

    settings: dict[str, Any] | None
    score: float | None
    state: dict[str, Tensor] | None


Train = Callable[[Trial], tuple[nn.Module, float]]


def run(
    search: Search,
    train: Train,
    *,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    key: Key | None = None,
    budget: Budget | None = None,
) -> Selected:
    """The best of a secret number of runs.

    train   trains a model by `trial.private(...)` and returns it with its score, larger is better; a score from private
            records is returned as it is, and gets its noise here
    ledger  where the whole search is charged before it begins; `BudgetExceededError` if its budget doesn't allow that
    folder  keeps the search's state, so that it can go on after a crash: call `run` again with the same search
    """
    state = _State(None if folder is None else Path(folder), search)
    if state.selected is not None:
        return state.selected
    if state.key is None:
        book = ledger if isinstance(ledger, Ledger) else Ledger(ledger, budget)
        _charge(book, search)
        state.begin(Key.fresh() if key is None else key)
    assert state.key is not None
    total = _number(search, state.key)
    while state.done < total:
        number = state.done
        index = _lot(search, state.key, number)
        score, tensors = _trial(search, search.candidates[index], state.key, number, train)
        # the first of equal scores stays, which for runs that are alike is a tie broken by lot
        state.keep(index, score, tensors)
    return state.finish()


def _charge(book: Ledger, search: Search) -> None:
    """One event, and the end of it: nothing that happens later leaves a mark or a time in the ledger.

    A ledger that other runs have used adds up Renyi divergences, so there the account that has them may fit.
    """
    for account in search.accounts:
        try:
            name = book.register(search.to_dict(), account, block=1)
        except BudgetExceededError:
            if account is search.accounts[-1]:
                raise
        else:
            book.reserve(name, 0, account, 1)
            book.finish(name)
            return


def _number(search: Search, key: Key) -> int:
    if isinstance(search.runs, Every):
        return len(search.candidates)
    return search.runs.draw(key.stream("number of runs"))


def _lot(search: Search, key: Key, number: int) -> int:
    if isinstance(search.runs, Every):
        return number
    return int(choose(key.stream("candidate", number), 1, len(search.candidates))[0])


def _trial(
    search: Search, candidate: Candidate, key: Key, number: int, train: Train
) -> tuple[float, dict[str, Tensor]]:
    own = Key(key.derive("trial", number), key.secure, key.seed)
    trial = Trial(dict(candidate.settings), candidate, own)
    with _in_secret(own.seed64("generators")):
        model, score = train(trial)
    if len(trial._made) != 1 or trial._made[0].plan != candidate.plan or trial._made[0].model is not model:
        raise ValueError("A training function must return the model that it trained by trial.private(...) in one run.")
    value = torch.tensor([float(score)], dtype=torch.float64)
    if isinstance(search.score, Noised):
        std = search.score.noise_multiplier * search.score.sensitivity
        value = noise.add(own, 0, [torch.nan_to_num(value)], [std], purpose="score")[0]
    found = float(value)
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    return (found if found == found else -np.inf), tensors


@dataclass
class _State:
    """How far a search is, in memory and, if it has a folder, there."""

    folder: Path | None
    search: Search
    key: Key | None = None
    done: int = 0
    best: tuple[int, float, dict[str, Tensor]] | None = None
    selected: Selected | None = None

    def __post_init__(self) -> None:
        if self.folder is None or not (self.folder / "checkpoint.json").exists():
            return
        kept = checkpoint.load(self.folder)
        checkpoint.check_same(kept["search"], self.search.to_dict(), "search")
        if "selected" in kept:
            self.selected = Selected(**kept["selected"])
            return
        self.key, self.done = Key.from_json(kept["key"]), kept["done"]
        self.best = None if kept["best"] is None else (kept["best"][0], kept["best"][1], kept["best"][2])

    def begin(self, key: Key) -> None:
        self.key = key
        self._write()

    def keep(self, index: int, score: float, tensors: dict[str, Tensor]) -> None:
        self.done += 1
        if self.best is None or score > self.best[1]:
            self.best = (index, score, tensors)
        self._write()

    def finish(self) -> Selected:
        selected = Selected(None, None, None)
        if self.best is not None:
            index, score, tensors = self.best
            selected = Selected(dict(self.search.candidates[index].settings), score, tensors)
        if self.folder is not None:
            winner = {"settings": selected.settings, "score": selected.score, "state": selected.state}
            checkpoint.save(self.folder, {"search": self.search.to_dict(), "selected": winner})
        return selected

    def _write(self) -> None:
        if self.folder is not None:
            assert self.key is not None
            best = None if self.best is None else list(self.best)
            values = {"search": self.search.to_dict(), "key": self.key.to_json(), "done": self.done, "best": best}
            checkpoint.save(self.folder, values)


@contextlib.contextmanager
def _in_secret(seed: int) -> Iterator[None]:
    """Nothing is printed, warned or logged, and the generators are the run's own; all is as before afterwards."""
    threshold, for_numpy, for_python = logging.root.manager.disable, np.random.get_state(), random.getstate()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
        torch.random.fork_rng(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            logging.disable(threshold)
            np.random.set_state(for_numpy)
            random.setstate(for_python)
