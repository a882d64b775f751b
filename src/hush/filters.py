"""Filters: may these releases happen as well, whatever made somebody want them?

A budget (epsilon, delta) is a promise about everything a ledger will ever hold.  What is released next may depend on
what was seen before: whether to stop, which run to start, which noise to use.  Two filters hold under such choices.

`Fixed`: the releases charged are, on every path, some of those of *one composition fixed in advance*, the envelope.

    Proof.  Each release i of the envelope is dominated by a pair (P_i, Q_i): by Blackwell's theorem its output,
    whatever query it answers, is a randomised function of one draw X_i from P_i or Q_i.  Draw all X_i beforehand.  Then
    the whole interaction (which release comes next, with which query, when to stop) is a function of (X_1, ..., X_n),
    so it is no easier to tell apart than the product of the P_i from the product of the Q_i, which is what the
    certified account of the envelope bounds.

`Renyi`: each release is charged its Renyi divergence at *one order fixed in advance*, up to a limit, and anything may
be chosen on the way (Feldman and Zrnic 2021; Lecuyer 2021).

    Proof.  Let a > 1 be the order, p_i and q_i the densities of release i given the past, rho_i its divergence, which
    the past determines.  Under Q, exp(a sum log(p_i/q_i) - (a - 1) sum rho_i) is a supermartingale that starts at 1, as
    E_Q[(p_i/q_i)^a | past] <= exp((a - 1) rho_i).  At the end sum rho_i <= limit on every path, hence
    E_Q[(dP/dQ)^a] <= exp((a - 1) limit): the whole has Renyi divergence at most `limit` at order a, which gives
    (epsilon, delta) by Canonne, Kamath and Steinke 2020, Proposition 12.  With the best of several orders, picked at
    the end, the exponent would be chosen by the outcome and the argument fails.

The two don't mix: a ledger that on one path goes on inside the envelope and on another leaves it keeps neither proof.
So the first plan decides, before anything is released, which one a ledger has (`choose`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from hush.accounting.checks import check_positive

if TYPE_CHECKING:
    from hush.accounting.mechanisms import Mechanism
    from hush.accounting.moments import Array, LogMoment

Counts = Mapping["Mechanism", int]
"""Releases and how often each happens."""

_ROUNDING = 1 + 1e-9
"""The moments are computed to about 1e-12 of themselves."""
_LARGEST_STRETCH = 1 << 30
"""By how much a plan may be stretched at most: steps that cost next to nothing have no last one."""


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) that everything in a ledger together is to keep."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive("A budget's epsilon", self.epsilon)
        if not 0 < self.delta < 1:
            raise ValueError(f"A budget's delta lies strictly between 0 and 1, got {self.delta}.")

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


class BudgetExceededError(ValueError):
    """The filter refuses: nothing was charged, and nothing may be released."""


@dataclass(frozen=True)
class Renyi:
    """Divergences at one order add up to at most a limit, whatever is chosen on the way."""

    order: float
    limit: float

    def __str__(self) -> str:
        return f"what a Renyi filter of order {self.order:g} admits"

    @staticmethod
    def at(budget: Budget, order: float) -> Renyi:
        """The filter of a budget at an order: limit(a) = epsilon + log(a/(a - 1)) + (log delta + log a)/(a - 1).

        That is the conversion to (epsilon, delta), solved for the divergence.
        """
        if not 1 < order < math.inf:
            raise ValueError(f"A Renyi order lies above 1, got {order}.")
        excess = order - 1
        limit = budget.epsilon + math.log1p(1 / excess) + (math.log(budget.delta) + math.log1p(excess)) / excess
        return Renyi(order, max(limit, 0.0))

    @staticmethod
    def for_plan(budget: Budget, plan: Counts | None) -> Renyi:
        """The filter at the order at which a plan takes the smallest share of the limit; None: a Gaussian release.

        A Gaussian release costs a mu^2/2 at order a, and so, nearly, does a subsampled one up to the order where it
        explodes.  That order is low where the noise is low, so the plan has a say.
        """
        import numpy as np

        excesses = np.geomspace(1e-2, 1e8, 4001)
        order = _cheapest(budget, excesses, 1 + excesses)
        moment = None if plan is None else _log_moment(plan)
        if moment is not None:
            excesses = (order - 1) * np.geomspace(0.02, 2, 48)  # below the Gaussian's order, never far above
            order = _cheapest(budget, excesses, moment(excesses) / excesses)
        return Renyi.at(budget, float(f"{order:.4g}"))

    def cost(self, counts: Counts) -> float:
        """The sum of the divergences, infinite where one is unknown."""
        return math.fsum(count * _divergence(part, self.order) for part, count in counts.items()) * _ROUNDING

    def admits(self, counts: Counts) -> bool:
        return self.cost(counts) <= self.limit

    def further(self, counts: Counts, step: Counts) -> int:
        """How many more of `step` are admitted beside `counts`."""
        room, cost = self.limit - self.cost(counts), self.cost(step)
        if not (room > 0 and math.isfinite(cost)):
            return 0
        most = min(int(room / cost), _LARGEST_STRETCH) if cost > 0 else _LARGEST_STRETCH
        while most > 0 and not self.admits(added(counts, scaled(step, most))):
            most -= 1
        return most


@dataclass(frozen=True, eq=False)
class Fixed:
    """Some of the releases of a first plan, stretched in proportion for as long as the certified account allows.

    The stretched plan (the envelope) is a function of the plan and the budget alone.  It leaves room for steps that
    were charged twice because a run crashed, and for more runs with the same steps.
    """

    plan: Counts
    budget: Budget

    def __str__(self) -> str:
        return "steps like the first run's"

    @cached_property
    def envelope(self) -> Counts:
        steps = sum(self.plan.values())
        return _stretched(self.plan, _most(lambda n: keeps(_stretched(self.plan, n), self.budget), steps))

    def admits(self, counts: Counts) -> bool:
        return within(counts, self.plan) or within(counts, self.envelope)

    def further(self, counts: Counts, step: Counts) -> int:
        """How many more of `step` are admitted beside `counts`."""
        room = {part: self.envelope.get(part, 0) - counts.get(part, 0) for part in step}
        return max(min(room[part] // count for part, count in step.items()), 0)


Filter = Renyi | Fixed


def choose(budget: Budget, order: float | None, plan: Counts | None) -> Filter:
    """The filter of a ledger whose first plan this is (None: its steps will be chosen on the way).

    The order, unless it is given, is the one that suits this plan: it is fixed before anything is released.

    If the Renyi filter admits the plan, later plans of any kind may follow under it.  If only the certified account
    does, which is tighter, the ledger is left to steps of this plan's kind.
    """
    renyi = Renyi.for_plan(budget, plan) if order is None else Renyi.at(budget, order)
    if plan is None or renyi.admits(plan):
        return renyi
    if keeps(plan, budget):
        return Fixed(plan, budget)
    raise BudgetExceededError(
        f"The plan would spend epsilon {epsilon(plan, budget.delta):.8g} at delta {budget.delta:g} and the budget is "
        f"{budget}; take fewer steps, more noise or smaller batches."
    )


def most_steps(budget: Budget, step: Counts) -> int:
    """The most steps that a plan of such steps alone may have."""
    from hush.accounting import calibrate
    from hush.accounting.mechanisms import compose

    if not keeps(step, budget):
        return 0
    return calibrate.steps(lambda count: compose(scaled(step, count).items()), budget.epsilon, budget.delta)


def keeps(counts: Counts, budget: Budget) -> bool:
    """Whether the certified upper epsilon of these releases, fixed in advance, is within the budget."""
    return epsilon(counts, budget.delta) <= budget.epsilon


def epsilon(counts: Counts, delta: float) -> float:
    from hush.accounting.mechanisms import compose

    return compose(counts.items()).epsilon(delta).upper


# Counts of releases


def within(counts: Counts, others: Counts) -> bool:
    """Whether `others` has each release at least as often."""
    return all(count <= others.get(part, 0) for part, count in counts.items())


def added(counts: Counts, others: Counts) -> dict[Mechanism, int]:
    return {part: counts.get(part, 0) + others.get(part, 0) for part in {**counts, **others}}


def larger(counts: Counts, others: Counts) -> dict[Mechanism, int]:
    """Each release as often as the one or the other has it, whichever is more."""
    return {part: max(counts.get(part, 0), others.get(part, 0)) for part in {**counts, **others}}


def scaled(counts: Counts, times: int) -> dict[Mechanism, int]:
    return {part: count * times for part, count in counts.items()}


def _stretched(counts: Counts, steps: int) -> dict[Mechanism, int]:
    """The same releases in the same proportions, about `steps` in all."""
    total = sum(counts.values())
    return {part: count * steps // total for part, count in counts.items() if count * steps >= total}


def _most(allowed: Callable[[int], bool], least: int) -> int:
    """The largest allowed number, `least` being allowed and everything below an allowed number too."""
    low, high = least, 2 * least
    while high <= least * _LARGEST_STRETCH and allowed(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def _cheapest(budget: Budget, excesses: Array, costs: Array) -> float:
    """The order, 1 + excess, at which the cost is the smallest share of the limit."""
    shares = [
        float(cost) / filtered.limit if (filtered := Renyi.at(budget, 1 + float(excess))).limit > 0 else math.inf
        for excess, cost in zip(excesses, costs, strict=True)
    ]
    return 1 + float(excesses[shares.index(min(shares))])


def _log_moment(counts: Counts) -> LogMoment | None:
    """The log moments of releases, None where they have none that are known: those can't be charged at an order."""
    from hush.accounting.mechanisms import compose

    try:
        return compose(counts.items()).moments().log_moment
    except ValueError:
        return None


@cache
def _divergence(part: Mechanism, order: float) -> float:
    import numpy as np

    moment = _log_moment({part: 1})
    return math.inf if moment is None else float(moment(np.array([order - 1.0]))[0]) / (order - 1)
