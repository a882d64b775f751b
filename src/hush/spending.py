"""A run's hand on its ledger: every step is charged, block by block, before it is drawn."""

from __future__ import annotations

import os
from pathlib import Path

from hush.accounting import Mechanism
from hush.filters import Counts, added, within
from hush.ledger import Budget, BudgetExceededError, Ledger
from hush.plan import Plan
from hush.tally import counts_of


class Spending:
    """Charges a run's steps ahead in blocks, so that a crash overcounts by at most a block and never undercounts.

    A block is a fiftieth of the run, at most 64 steps: one synced write for many steps.  `fresh` is the step from which
    on the run's key is another than before, if there is one (see `Plan.charges`).
    Without `run` a new one is registered.  `mark` is the run's last record: if there is another by the time a step is
    charged, the run went on elsewhere under the same key, and the step is refused.
    """

    def __init__(
        self, ledger: Ledger, plan: Plan, run: str | None = None, fresh: int | None = None, mark: str | None = None
    ) -> None:
        self.ledger = ledger
        self.plan = plan
        self.block = min(64, max(1, plan.steps // 50))
        self.run = run if run is not None else ledger.register(plan.to_dict(), plan.mechanism, block=self.block)
        self.fresh = fresh
        self._first = self._end = 0
        self._beside: Counts = {}
        self._mark: str | None = ledger.mark(self.run) if mark is None else mark
        self._process = os.getpid()

    @property
    def path(self) -> Path | None:
        """Where the ledger is kept; None if it is in memory."""
        return self.ledger.path

    def check_process(self) -> None:
        """Refuse to go on in a fork: it has the same key, and the same block in hand, as the process it came from."""
        if os.getpid() != self._process:
            raise ValueError(
                "This run was begun in another process, whose noise would be used twice; make it, or resume it, in the "
                "process that trains."
            )

    def charge(self, step: int) -> None:
        """When this returns, `step` is in the ledger; `BudgetExceededError` if the budget doesn't allow it."""
        self.check_process()
        if self._first <= step < self._end:
            return
        count = min(self.block, self.plan.steps - step)
        while True:
            try:
                self._reserve(step, self._cost(step, count), count)
            except BudgetExceededError:
                if count == 1:
                    raise
                count = (count + 1) // 2
            else:
                self._first, self._end = step, step + count
                return

    def charge_beside(self, release: Mechanism) -> None:
        """When this returns, a release that isn't a step is in the ledger; one that the plan counts in `beside`."""
        if self._first != self._end:
            raise ValueError("A block of steps is in hand; release what lies beside the steps before or after them.")
        counted = {} if self.plan.beside is None else counts_of([(self.plan.beside, 1)])
        charged = added(self._beside, counts_of([(release, 1)]))
        if not within(charged, counted):
            raise ValueError(
                f"The plan doesn't count {release} beside its steps, or not that often; give it to Plan(beside=...)."
            )
        self._reserve(-1, ((release, 1),), 1)
        self._beside = charged

    def close(self, step: int) -> str:
        """Give back what was reserved from `step` on, the first that was not drawn; returns the run's mark."""
        if self._first == self._end or os.getpid() != self._process:
            return self.ledger.mark(self.run)
        used = self._cost(self._first, step - self._first)
        self._first = self._end = step  # first of all: if closing is interrupted, nothing more is drawn from the block
        mine, now = self._mark, self.ledger.mark(self.run)
        if mine != now:  # somebody else goes on with the run: the block counts in full
            return now
        self._mark = None  # unknown, if it is interrupted after it was written
        self._mark = self.ledger.close(self.run, step, used, block=mine)
        return self._mark

    def finish(self, step: int) -> None:
        """The run will charge nothing more; `step` is the first that was not drawn."""
        self.close(step)
        self.ledger.finish(self.run)

    def _reserve(self, first: int, pieces: tuple[tuple[Mechanism, int], ...], count: int) -> None:
        before, self._mark = self._mark, None
        try:
            self._mark = self.ledger.reserve(self.run, first, pieces, count, after=before)
        except ValueError:  # nothing was written
            self._mark = before
            raise

    def _cost(self, first: int, count: int) -> tuple[tuple[Mechanism, int], ...]:
        return self.plan.charges(first, count, fresh=first == self.fresh)


def open_ledger(ledger: Ledger | str | os.PathLike[str] | None, plan: Plan) -> Ledger:
    """The ledger itself, or the one in a file; a new one has the plan's target, if it has one, as its budget."""
    if isinstance(ledger, Ledger):
        return ledger
    if ledger is not None and not isinstance(ledger, str | os.PathLike):
        raise ValueError(f"A ledger is a path, a hush.Ledger, or None for one in memory, got {type(ledger).__name__}.")
    if ledger is not None and Path(ledger).exists():
        return Ledger(ledger)
    budget = None if plan.epsilon is None or plan.delta is None else Budget(plan.epsilon, plan.delta)
    return Ledger(ledger, budget)
