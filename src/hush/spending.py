"""A run's hand on its ledger: every step is charged, block by block, before it is drawn."""

from __future__ import annotations

import os
from pathlib import Path

from hush.accounting import Mechanism
from hush.ledger import Budget, BudgetExceededError, Ledger
from hush.plan import Plan


class Spending:
    """Charges a run's steps ahead in blocks, so that a crash overcounts by at most a block and never undercounts.

    A block is a fiftieth of the run, at most 64 steps: one synced write for many steps.  `fresh` is the step from which
    on the run's key is another than before, if there is one (see `Plan.charges`).
    Without `run` a new one is registered.
    """

    def __init__(self, ledger: Ledger, plan: Plan, run: str | None = None, fresh: int | None = None) -> None:
        self.ledger = ledger
        self.plan = plan
        self.block = min(64, max(1, plan.steps // 50))
        self.run = run if run is not None else ledger.register(plan.to_dict(), plan.mechanism, block=self.block)
        self.fresh = fresh
        self._first = self._end = 0

    @property
    def path(self) -> Path | None:
        """Where the ledger is kept; None if it is in memory."""
        kept = self.ledger._journal.path
        return None if kept is None else Path(kept)

    def charge(self, step: int) -> None:
        """When this returns, `step` is in the ledger; `BudgetExceededError` if the budget doesn't allow it."""
        if self._first <= step < self._end:
            return
        count = min(self.block, self.plan.steps - step)
        while True:
            try:
                self.ledger.reserve(self.run, step, self._cost(step, count), count)
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
        self.ledger.reserve(self.run, -1, release, 1)

    def close(self, step: int) -> str:
        """Give back what was reserved from `step` on, the first that was not drawn; returns the run's mark."""
        if self._first == self._end:
            return self.ledger.mark(self.run)
        mark = self.ledger.close(self.run, step, self._cost(self._first, step - self._first))
        self._first = self._end = step
        return mark

    def finish(self, step: int) -> None:
        """The run will charge nothing more; `step` is the first that was not drawn."""
        self.close(step)
        self.ledger.finish(self.run)

    def _cost(self, first: int, count: int) -> tuple[tuple[Mechanism, int], ...]:
        return self.plan.charges(first, count, fresh=first == self.fresh)


def open_ledger(ledger: Ledger | str | os.PathLike[str] | None, plan: Plan) -> Ledger:
    """The ledger itself, or the one in a file; a new one has the plan's target, if it has one, as its budget."""
    if isinstance(ledger, Ledger):
        return ledger
    if ledger is not None and Path(ledger).exists():
        return Ledger(ledger)
    budget = None if plan.epsilon is None or plan.delta is None else Budget(plan.epsilon, plan.delta)
    return Ledger(ledger, budget)
