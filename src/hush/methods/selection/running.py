"""Run a search: charged once and up front, then in secret, and only the best leaves.

Everything random is derived from one key: the number of runs, each run's candidate, seed, coins and noise.  So a search
that was interrupted goes on from its folder, in the middle of a run, to the same result.  Nobody has seen anything of
the runs before, so using their keys again reveals nothing.

Runs are silenced: what they print, warn, log or say when they fail goes nowhere.  What can't be hidden from here is
time: whoever sees how long a search took, or what power it drew, learns about the number of runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hush import noise
from hush.accounting import Mechanism
from hush.keys import Key
from hush.ledger import Budget, BudgetExceededError, Ledger
from hush.methods.selection.runs import Every
from hush.methods.selection.search import Candidate, Noised, Search
from hush.methods.selection.secrecy import TrialFailedError, in_secret
from hush.methods.selection.state import Selected, State
from hush.methods.selection.trials import MisuseError, Place, Trial
from hush.units import choose

Train = Callable[[Trial], tuple[nn.Module, float]]


def run(
    search: Search,
    train: Train,
    *,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    key: Key | None = None,
    budget: Budget | None = None,
    save_every: float = 60.0,
) -> Selected:
    """The best of a secret number of runs.

    train       trains a model by `trial.private(...)` and returns it with its score, larger is better; a score from
                private records is returned as it is, and gets its noise here
    ledger      where the whole search is charged before it begins; `BudgetExceededError` if its budget doesn't allow it
    folder      keeps the search's state, so that it can go on after a crash: call `run` again with the same search
    key         of everything random; None asks the operating system.  `Key.from_seed` is for tests
    save_every  seconds between checkpoints inside a run
    """
    found = _searched(search, train, ledger, None if folder is None else Path(folder), key, budget, save_every)
    if isinstance(found, BaseException):
        raise found  # out here: a traceback that shows its frames' variables shows none of the search's
    return found


def _searched(
    search: Search,
    train: Train,
    ledger: Ledger | str | os.PathLike[str] | None,
    folder: Path | None,
    key: Key | None,
    budget: Budget | None,
    save_every: float,
) -> Selected | BaseException:
    """The winner, or what a run was stopped by."""
    state = State(folder, search)
    if state.selected is not None:
        return state.selected
    if state.key is None:
        book = ledger if isinstance(ledger, Ledger) else Ledger(ledger, budget)
        if folder is not None and book.path is None:
            raise ValueError(
                "A ledger in memory is lost with the process, so its search can't go on later; give ledger=path."
            )
        charged = _charge(book, search)
        state.begin((Key.fresh() if key is None else key).of_run(charged), book, charged)
    else:
        state.resume(ledger)
    assert state.key is not None
    total = _number(search, state.key)
    while state.done < total:
        number = state.done
        index = _lot(search, state.key, number)
        made = _trial(search, search.candidates[index], state.key, number, train, state.place(save_every))
        if isinstance(made, BaseException):
            return made
        # the first of equal scores stays, which for runs that are alike is a tie broken by lot
        state.keep(index, *made)
    return state.finish()


def _charge(book: Ledger, search: Search) -> str:
    """One event, and the end of it: nothing that happens later leaves a mark or a time in the ledger.

    A ledger that other runs have used adds up Renyi divergences, so there the account that has them may fit.
    """
    *others, last = search.accounts
    for account in others:
        try:
            return _charged(book, search, account)
        except BudgetExceededError:
            continue
    return _charged(book, search, last)


def _charged(book: Ledger, search: Search, account: Mechanism) -> str:
    name = book.register(search.to_dict(), account, block=1)
    book.reserve(name, 0, account, 1)
    book.finish(name)
    return name


def _number(search: Search, key: Key) -> int:
    if isinstance(search.runs, Every):
        return len(search.candidates)
    return search.runs.draw(key.stream("number of runs"))


def _lot(search: Search, key: Key, number: int) -> int:
    if isinstance(search.runs, Every):
        return number
    return int(choose(key.stream("candidate", number), 1, len(search.candidates))[0])


def _trial(
    search: Search, candidate: Candidate, key: Key, number: int, train: Train, place: Place | None
) -> tuple[float, dict[str, Tensor]] | BaseException:
    own = Key(key.derive("trial", number), key.secure, key.seed)
    found = _in_secret(train, Trial(dict(candidate.settings), candidate, own, place))
    if isinstance(found, BaseException):
        return found
    score, tensors = found
    value = torch.tensor([score], dtype=torch.float64)
    if isinstance(search.score, Noised):
        std = search.score.noise_multiplier * search.score.sensitivity
        value = noise.add(own, 0, [torch.nan_to_num(value)], [std], purpose="score")[0]
    score = float(value)
    return (score if score == score else -np.inf), tensors


def _in_secret(train: Train, trial: Trial) -> tuple[float, dict[str, Tensor]] | BaseException:
    """A run's score and model; or an error that has nothing of what stopped it: neither what it said nor where."""
    try:
        with in_secret(trial.key.seed64("generators")):
            try:
                return _made(train, trial)
            finally:
                trial.put_back()
    except MisuseError as error:
        return MisuseError(str(error))
    except KeyboardInterrupt:
        return KeyboardInterrupt()
    except BaseException as error:  # that of sys.exit too, whose text would be printed at the end
        kind = type(error).__name__
    return TrialFailedError(
        f"A run of the search failed with {kind}; what it said stays secret, as it may tell about the records: try the "
        "training function on records that are nobody's secret, then go on with the search."
    )


def _made(train: Train, trial: Trial) -> tuple[float, dict[str, Tensor]]:
    returned = train(trial)
    if not isinstance(returned, tuple) or len(returned) != 2 or returned[1] is None:
        raise MisuseError("A training function must return two things: the model that it trained, and its score.")
    model, score = returned
    if len(trial._made) != 1 or trial._made[0].plan != trial.candidate.plan or trial._made[0].model is not model:
        raise MisuseError("A training function must return the model that it trained by trial.private(...) in one run.")
    return float(score), {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
