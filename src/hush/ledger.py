"""The ledger: what was spent, on disk before anything computed from it can leave the process.

    >>> from hush.accounting import Gaussian
    >>> ledger = Ledger(None, budget=Budget(epsilon=3.0, delta=1e-5))       # a path instead of None keeps it
    >>> step = Gaussian(noise_multiplier=1.3).poisson(256 / 60_000)
    >>> run = ledger.register({"name": "first try"}, total=step * 3516)     # refused if it exceeds the budget
    >>> mark = ledger.reserve(run, first=0, pieces=step, count=10)          # now steps 0 to 9 may be drawn
    >>> head = ledger.close(run, at=7)                                      # steps 7 to 9 never were
    >>> ledger.spent() == Spent(step * 7)
    True

A ledger may belong to a data set and be shared by runs and processes.  Its records are chained by digests
(`hush.journal`), its budget is kept by a filter that holds whatever is chosen on the way (`hush.filters`).  A crash
loses nothing that was released: an open block counts in full, and so does a damaged last record, as the largest block
that each open run may reserve.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.accounting.checks import check_whole
from hush.accounting.mechanisms import Mechanism, compose
from hush.filters import Budget, BudgetExceededError, Counts, Renyi, added, within
from hush.journal import CorruptLedgerError, Journal
from hush.tally import Run, RunSummary, Spent, Tally, counts_of, counts_to_json

__all__ = ["Budget", "BudgetExceededError", "CorruptLedgerError", "Ledger", "RunSummary", "Spent"]

if TYPE_CHECKING:
    Pieces = Mechanism | Iterable[tuple[Mechanism, int]]

LARGEST_BLOCK = 64


@dataclass(frozen=True)
class _Block:
    """Steps that this process reserved: only it knows which of them it drew."""

    digest: str
    first: int
    count: int
    charged: Counts


class Ledger:
    """A journal of what was spent, with a filter over it if it has a budget.

    path    the file, created with the first record; None keeps the ledger in memory, for trying things out
    budget  fixed by whoever creates the ledger; may be left out when opening one that exists
    order   of the Renyi filter; by default the first plan fixes the one that suits it
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, budget: Budget | None = None, *, order: float | None = None
    ) -> None:
        if order is not None and budget is None:
            raise ValueError(f"An order of {order} was given without a budget; it belongs to a budget's filter.")
        self._wish = budget
        if budget is not None and order is not None:
            Renyi.at(budget, order)  # refuses a bad order
        self._tally = Tally(budget=budget, order=order)
        self._journal = Journal(path, self._tally.fold)
        self._blocks: dict[str, _Block] = {}
        self._lock = threading.RLock()
        with self._reading():
            pass

    # Spending

    def register(self, plan: Any, total: Mechanism | None, block: int = LARGEST_BLOCK) -> str:
        """Enter a run and return its id; `BudgetExceededError` if its releases and all others break the budget.

        plan   what the run will do, as JSON, for people and for resuming
        total  all releases of the plan, fixed in advance; None if they are chosen on the way, each then filtered
        block  the most steps it will reserve at once, which is what a damaged record of its counts as
        """
        check_whole("A run's largest block", block)
        counts = None if total is None else counts_of([(total, 1)])
        stated = None if counts is None else counts_to_json(counts)
        with self._writing():
            name = secrets.token_hex(8)
            kind = self._tally.admit_plan(counts)
            record = {"event": "register", "run": name, "plan": plan, "total": stated, "block": int(block)}
            self._append(record | {"filter": kind})
            return name

    def reserve(self, run: str, first: int, pieces: Pieces, count: int, after: str | None = None) -> str:
        """Charge `count` steps from step `first` on; when this returns they are on disk and may be drawn.

        Returns the run's `mark`.  With `after`, the mark it had last, nothing is charged if it has another by now: then
        somebody else goes on with the run.

        `pieces` are the releases of these steps: a mechanism that every step runs, or mechanisms with their counts.
        A block of the run that was reserved before and not closed counts as drawn.
        """
        check_whole("The number of steps to reserve", count)
        charged = _charged(pieces, count)
        with self._writing():
            known = self._run(run)
            if known.finished:
                raise ValueError(f"Run {run} is finished; register a new one.")
            if after is not None and after != known.mark:
                raise ValueError(
                    f"Run {run} went on elsewhere, in another process or from another copy of its checkpoint, and its "
                    "noise would be used twice; resume it from its checkpoint, which gives it a fresh key."
                )
            if count > known.block:
                raise ValueError(
                    f"Run {run} may reserve {known.block} steps at once, not {count}; register(block=...)."
                )
            self._tally.admit_steps(run, charged)
            record = {"event": "reserve", "run": run, "first": int(first), "count": int(count)}
            digest = self._append(record | {"charged": counts_to_json(charged)})
            self._blocks[run] = _Block(digest, int(first), int(count), charged)
            return digest

    def close(self, run: str, at: int, used: Pieces | None = None, block: str | None = None) -> str:
        """End the block this process holds at step `at`, the first that was not drawn; returns the run's `mark`.

        What the steps from `at` on would have cost is no longer charged.  `used` says what the steps before cost; a
        block whose steps are all alike doesn't need it.  Without a block in hand there is nothing to close, nor if it
        isn't the one that was meant: `block` is what `reserve` returned for it.
        """
        with self._writing():
            known, held = self._run(run), self._blocks.get(run)
            if held is None or block not in (None, held.digest):
                return known.mark
            if not held.first <= at <= held.first + held.count:
                end = held.first + held.count
                raise ValueError(f"The block in hand has the steps {held.first} to {end}; it can't be closed at {at}.")
            unused = _unused(held, int(at), used)
            del self._blocks[run]
            record = {"event": "close", "run": run, "block": held.digest, "at": int(at)}
            return self._append(record | {"unused": counts_to_json(unused)})

    def finish(self, run: str) -> None:
        """Say that a run will reserve nothing more, so that others may have what it was admitted to and left over."""
        with self._writing():
            if not self._run(run).finished:
                self._append({"event": "finish", "run": run})

    # Asking

    def mechanism(self, run: str | None = None) -> Mechanism | None:
        """Everything charged, by one run or by all, as one composition; None if there is nothing."""
        with self._reading():
            if run is not None:
                self._run(run)
            counts = self._tally.spent(run)
            if run is None and self._journal.damage:
                counts = added(counts, self._tally.largest_record())
        return compose(counts.items()) if counts else None

    def spent(self, run: str | None = None) -> Spent:
        """The odometer: how private everything so far is, had it been planned to stop here."""
        return Spent(self.mechanism(run))

    def quoted(self) -> Budget | None:
        """What holds after any stop, one that looked at results too: the budget.  None if the ledger has none."""
        return self.budget

    def admits(self, run: str, pieces: Pieces, count: int = 1) -> bool:
        """Whether `reserve` would charge these steps now."""
        with self._reading():
            self._run(run)
            try:
                self._tally.admit_steps(run, _charged(pieces, count))
            except BudgetExceededError:
                return False
            return True

    def most_steps(self, step: Mechanism) -> int:
        """How many steps a new run may have that goes on until the budget is spent: found once, by one search."""
        with self._reading():
            return self._tally.further(_charged(step, 1))

    @property
    def path(self) -> Path | None:
        """Where it is kept; None if it is in memory."""
        return None if self._journal.path is None else Path(self._journal.path)

    @property
    def budget(self) -> Budget | None:
        return self._tally.budget

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """All runs, in the order in which they were registered."""
        with self._reading():
            return tuple(
                RunSummary(
                    name,
                    run.plan,
                    compose(run.total.items()) if run.total else None,
                    Spent(compose(run.spent.items()) if run.spent else None),
                    run.finished,
                )
                for name, run in self._tally.runs.items()
            )

    @property
    def head(self) -> str:
        """The digest of the last record: kept elsewhere, it shows whether records were cut off (`verify`)."""
        with self._reading():
            return self._journal.head

    def mark(self, run: str) -> str:
        """The digest of the last record of a run: as long as it is the same, the run has drawn nothing."""
        with self._reading():
            return self._run(run).mark

    def verify(self, head: str | None = None) -> tuple[str, ...]:
        """Read everything again; raise if it was changed, or if `head`, recorded earlier, isn't in it.

        Returns remarks, in words, about damage that a crash explains.
        """
        again = Ledger(self._journal.path) if self._journal.path is not None else self
        if head is not None and not again._journal.contains(head):
            raise CorruptLedgerError(
                f"The ledger doesn't hold the record {head[:12]} that was its last one once: "
                "records were cut off, or it is another ledger."
            )
        remarks = []
        if again._tally.torn_records:
            remarks.append(f"{again._tally.torn_records} damaged record(s), counted as spent.")
        if again._journal.damage:
            remarks.append(f"The last record is damaged ({len(again._journal.damage)} bytes), counted as spent.")
        return tuple(remarks)

    # Inside

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep this process's other threads out, with everything read that anybody has written."""
        with self._lock:
            self._journal.read()
            self._check_wish()
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the ledger's lock with everything read, the first record written, and damage vouched for."""
        with self._lock, self._journal.writing():
            self._check_wish()
            if self._journal.damage:
                self._append({"event": "torn", "charged": counts_to_json(self._tally.largest_record())})
            if not self._tally.opened:
                budget = self._tally.budget
                stated = None if budget is None else [budget.epsilon, budget.delta]
                self._append({"event": "open", "format": 1, "budget": stated, "order": self._tally.order})
            yield

    def _check_wish(self) -> None:
        if self._wish is not None and self._wish != self._tally.budget:
            has = "no budget" if self._tally.budget is None else f"a budget of {self._tally.budget}"
            raise ValueError(f"The ledger has {has}, not {self._wish}; open it without a budget, or start another.")

    def _append(self, record: dict[str, Any]) -> str:
        # the day only: how long steps take depends on the records, and a ledger may be published
        stamp = {"time": time.strftime("%Y-%m-%d", time.gmtime())}
        return self._journal.append(record | stamp)

    def _run(self, run: str) -> Run:
        if run not in self._tally.runs:
            raise ValueError(f"The ledger has no run {run!r}; register it, or open the ledger it belongs to.")
        return self._tally.runs[run]


def _charged(pieces: Pieces, count: int) -> Counts:
    return counts_of([(pieces, count)] if isinstance(pieces, Mechanism) else pieces)


def _unused(block: _Block, at: int, used: Pieces | None) -> Counts:
    """What the steps of a block from `at` on were charged: nothing is given back that isn't known to be unused."""
    drawn = at - block.first
    if drawn == block.count:
        return {}
    if drawn == 0:
        return block.charged
    if used is None:
        alike = len(block.charged) == 1 and sum(block.charged.values()) == block.count
        spent = dict.fromkeys(block.charged, drawn) if alike else block.charged
    else:
        spent = dict(_charged(used, drawn))
    if not within(spent, block.charged):
        return {}
    left = {part: count - spent.get(part, 0) for part, count in block.charged.items()}
    return {part: count for part, count in left.items() if count}
