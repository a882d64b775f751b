"""What a ledger's records add up to: runs, what each has spent and may still spend, and the filter over all of them.

The events of a ledger, in its journal:

    open      the budget, if any, and the order of its Renyi filter, if it was given; the first record
    register  a run: its plan, the releases it may make (`total`), its largest block; the first one fixes the filter
    reserve   steps of a run, charged before any of them is drawn
    close     the end of a block before its last step: what was charged and never drawn
    finish    the end of a run: what it has not reserved by then it never will
    torn      a damaged end of the file, and what it may have charged
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hush.accounting.bounds import Bounds
from hush.filters import (
    Budget,
    BudgetExceededError,
    Counts,
    Filter,
    Fixed,
    Renyi,
    added,
    choose,
    larger,
    most_steps,
)
from hush.journal import CorruptLedgerError, Entry

if TYPE_CHECKING:
    from hush.accounting.mechanisms import Mechanism


_EVENTS = frozenset({"open", "register", "reserve", "close", "finish", "torn"})


@dataclass(frozen=True)
class Spent:
    """An odometer's reading: the releases charged so far, to be asked like a mechanism; None: nothing yet.

    Its epsilon is that of a computation which was to stop here from the start.  After a stop that looked at results,
    quote `Ledger.quoted()`.
    """

    mechanism: Mechanism | None

    def epsilon(self, delta: float) -> Bounds:
        return Bounds(0.0, 0.0) if self.mechanism is None else self.mechanism.epsilon(delta)

    def delta(self, epsilon: float) -> Bounds:
        return Bounds(0.0, 0.0) if self.mechanism is None else self.mechanism.delta(epsilon)

    def __str__(self) -> str:
        return "nothing" if self.mechanism is None else str(self.mechanism)


@dataclass(frozen=True)
class RunSummary:
    """One run of a ledger, for reports."""

    run: str
    plan: Any
    total: Mechanism | None
    spent: Spent
    finished: bool


@dataclass
class Run:
    """A registered run as the records so far tell it."""

    plan: Any
    total: Counts | None
    block: int
    mark: str
    spent: dict[Mechanism, int] = field(default_factory=dict)
    finished: bool = False

    def committed(self) -> Counts:
        """What it has spent or was admitted to spend, whichever is more."""
        return self.spent if self.finished or self.total is None else larger(self.spent, self.total)

    def largest_block(self) -> Counts:
        """At least what one record of this run can charge: a full block of every kind of step it has."""
        kinds = self.spent if self.total is None else self.total
        return {part: min(count, self.block) if self.total is not None else self.block for part, count in kinds.items()}


@dataclass
class Tally:
    """Everything the records say, folded in one at a time."""

    opened: bool = False
    budget: Budget | None = None
    order: float | None = None
    filter: Filter | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    torn: dict[Mechanism, int] = field(default_factory=dict)
    torn_records: int = 0
    _closed: set[str] = field(default_factory=set)
    _known: dict[str, Counts] = field(default_factory=dict)

    def fold(self, entry: Entry) -> None:
        """Take in the next record."""
        event = entry.record.get("event")
        if event not in _EVENTS:
            raise CorruptLedgerError(f"The ledger has an event {event!r}; a newer hush wrote it, so use that one.")
        getattr(self, f"_{event}")(entry.digest, entry.record)

    def spent(self, run: str | None = None) -> dict[Mechanism, int]:
        """The releases charged by a run, or by all and by what was torn."""
        if run is not None:
            return dict(self.runs[run].spent)
        return total_of([self.torn, *(one.spent for one in self.runs.values())])

    def committed(self) -> dict[Mechanism, int]:
        """What is spent and what open runs were admitted to spend."""
        return total_of([self.torn, *(one.committed() for one in self.runs.values())])

    def largest_record(self) -> dict[Mechanism, int]:
        """At least what a single lost record can have charged, whichever run's it was."""
        return total_of(run.largest_block() for run in self.runs.values() if not run.finished)

    # Admission

    def admit_plan(self, total: Counts | None) -> list[Any] | None:
        """Raise unless a run of these releases (None: chosen later) may be added; for the first, what its filter is."""
        self._check_relation(total or {})
        if self.budget is None:
            return None
        if self.filter is None:
            found = choose(self.budget, self.order, total)
            return ["renyi", found.order] if isinstance(found, Renyi) else ["fixed"]
        self._check(added(self.committed(), total or {}), "The plan")
        return None

    def admit_steps(self, run: str, charged: Counts) -> None:
        """Raise unless a run may charge these releases, next to what the others spent or were admitted to."""
        self._check_relation(charged)
        others = [one.committed() for name, one in self.runs.items() if name != run]
        self._check(total_of([self.torn, *others, self.runs[run].spent, charged]), "The next step")

    def further(self, step: Counts) -> int:
        """How many steps a new run may have."""
        self._check_relation(step)
        if self.budget is None:
            raise ValueError("A ledger without a budget allows any number of steps; open it with budget=Budget(...).")
        return most_steps(self.budget, step) if self.filter is None else self.filter.further(self.committed(), step)

    def _check(self, counts: Counts, what: str) -> None:
        if self.filter is None or self.budget is None or self.filter.admits(counts):
            return
        raise BudgetExceededError(
            f"{what} would exceed the ledger's budget of {self.budget}, which all runs on these records share "
            f"({len(self.runs)} so far; the rest is for {self.filter}); stop here, finish runs that won't go on, plan "
            "less, or, for other records, give another ledger."
        )

    def _check_relation(self, counts: Counts) -> None:
        relations = {part.relation for part in added(self.committed(), counts)}
        if len(relations) > 1:
            names = " and ".join(sorted(relations))
            raise ValueError(f"A ledger holds one neighbouring relation, not {names}; use a ledger for each.")

    # The events

    def _open(self, digest: str, record: dict[str, Any]) -> None:
        self.opened = True
        self.budget = None if record["budget"] is None else Budget(*record["budget"])
        self.order = record["order"]

    def _register(self, digest: str, record: dict[str, Any]) -> None:
        total = None if record["total"] is None else self._counts(record["total"])
        self.runs[record["run"]] = Run(record["plan"], total, record["block"], digest)
        if self.budget is not None and self.filter is None:
            kind, *order = record["filter"]
            self.filter = Fixed(total or {}, self.budget) if kind == "fixed" else Renyi.at(self.budget, *order)

    def _reserve(self, digest: str, record: dict[str, Any]) -> None:
        run = self.runs[record["run"]]
        run.mark = digest
        for part, count in self._counts(record["charged"]).items():
            run.spent[part] = run.spent.get(part, 0) + count

    def _close(self, digest: str, record: dict[str, Any]) -> None:
        run = self.runs[record["run"]]
        run.mark = digest
        if record["block"] in self._closed:
            raise CorruptLedgerError("The ledger closes a block twice, which would take back what was spent.")
        self._closed.add(record["block"])
        for part, count in self._counts(record["unused"]).items():
            run.spent[part] -= count
            if not run.spent[part]:
                del run.spent[part]

    def _finish(self, digest: str, record: dict[str, Any]) -> None:
        run = self.runs[record["run"]]
        run.mark, run.finished = digest, True

    def _torn(self, digest: str, record: dict[str, Any]) -> None:
        self.torn_records += 1
        self.torn = added(self.torn, self._counts(record["charged"]))

    def _counts(self, listed: list[list[Any]]) -> Counts:
        """Releases and counts from their JSON; a ledger repeats itself, so each text is understood once."""
        text = repr(listed)
        if text not in self._known:
            self._known[text] = counts_from_json(listed)
        return self._known[text]


def total_of(many: Iterable[Counts]) -> dict[Mechanism, int]:
    """All of them together."""
    total: dict[Mechanism, int] = {}
    for counts in many:
        for part, count in counts.items():
            total[part] = total.get(part, 0) + count
    return total


def counts_of(pieces: Iterable[tuple[Mechanism, int]]) -> dict[Mechanism, int]:
    """Single releases and how often each happens."""
    return total_of({part: count * times} for mechanism, count in pieces for part, times in mechanism.parts())


def counts_to_json(counts: Counts) -> list[list[Any]]:
    return [[part.to_dict(), count] for part, count in counts.items()]


def counts_from_json(listed: list[list[Any]]) -> dict[Mechanism, int]:
    import hush.accounting  # noqa: F401 (its mechanisms make themselves known)
    from hush.accounting.mechanisms import Mechanism

    return counts_of((Mechanism.from_dict(data), int(count)) for data, count in listed)
