"""A search: its candidates, how many of them are run, how results are scored, and what all of it costs.

    search = Search.within(
        3.0, 1e-4,
        [({"rate": rate}, {"records": 1437, "batch": batch, "steps": 50, "clip": clip}) for ...],
        runs=Geometric(8),
    )
    print(search)                                     # what is promised, before anything is done
    best = run(search, train, ledger="records.ledger", folder="search")

Every candidate is a plan and the settings that go with it.  A run draws one by lot and trains it by its plan; only the
best of a secret number of runs is ever seen.  The search is one release (`mechanism`), charged before it begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hush.accounting import Bounds, Gaussian, Mechanism, compose
from hush.accounting.checks import check_positive
from hush.digits import number, short
from hush.methods.selection import costs
from hush.methods.selection.runs import Every, Runs
from hush.plan import Plan

_PRECISE = 5e-3


@dataclass(frozen=True)
class Public:
    """Scores from data that are nobody's secret: they cost nothing."""

    kind: ClassVar[str] = "public"

    def mechanism(self, plan: Plan) -> Mechanism | None:
        return None

    def to_dict(self) -> dict[str, Any]:
        return {"score": self.kind}


@dataclass(frozen=True)
class Noised:
    """Scores from private records, such as a number of right answers, with Gaussian noise added before they are seen.

    One record moves the score by at most `sensitivity` (1 for a count when a record comes or goes, and when one is
    replaced); the noise has `noise_multiplier` times that.  A record may be in both the training and the scoring.
    """

    kind: ClassVar[str] = "noised"
    noise_multiplier: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        check_positive("The noise multiplier of the score", self.noise_multiplier)
        check_positive("The sensitivity of the score", self.sensitivity)

    def mechanism(self, plan: Plan) -> Mechanism | None:
        return Gaussian(self.noise_multiplier, plan.neighbours)

    def to_dict(self) -> dict[str, Any]:
        return {"score": self.kind, "noise_multiplier": self.noise_multiplier, "sensitivity": self.sensitivity}


@dataclass(frozen=True)
class Candidate:
    """Settings for the training function, and the plan that its run keeps."""

    settings: Mapping[str, Any]
    plan: Plan

    def to_dict(self) -> dict[str, Any]:
        return {"settings": dict(self.settings), "plan": self.plan.to_dict()}


@dataclass(frozen=True)
class Search:
    """Candidates, the law of the number of runs, and where scores come from: all of it public."""

    candidates: tuple[Candidate, ...]
    runs: Runs | Every
    score: Public | Noised = Public()
    delta: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(self.candidates))
        if not self.candidates or not all(isinstance(item, Candidate) for item in self.candidates):
            raise ValueError("A search needs candidates, each a Candidate(settings, plan).")
        _check_runs(self.runs)
        if not isinstance(self.score, Public | Noised):
            raise ValueError(f"A score is Public() or Noised(noise_multiplier), got {self.score!r}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta lies strictly between 0 and 1, got {self.delta}.")
        try:
            json.dumps(self.to_dict(), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"A candidate's settings are plain numbers, words and lists ({error}).") from None
        units = {candidate.plan.unit for candidate in self.candidates}
        if len(units) > 1:
            raise ValueError(f"The candidates protect different units, {' and '.join(sorted(units))}; choose one.")
        costs.check(self.each)

    @staticmethod
    def within(
        epsilon: float,
        delta: float,
        candidates: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
        runs: Runs | Every,
        score: Public | Noised = Public(),  # noqa: B008
    ) -> Search:
        """The search whose certified cost is just within (epsilon, delta).

        A candidate is its settings and the arguments of its plan without noise or target.  Every run gets the same
        epsilon at delta / E[K], where the bound asks for it; the largest that keeps the whole within the target.
        """
        check_positive("The target epsilon", epsilon)
        _check_runs(runs)
        at = delta / (len(candidates) if isinstance(runs, Every) else max(runs.mean, 1.0))
        found: dict[tuple[str, float], float] = {}

        def search(each: float) -> Search:
            plans = [
                Plan(**arguments, noise_multiplier=noise(arguments, each), delta=at) for _, arguments in candidates
            ]
            items = [Candidate(settings, plan) for (settings, _), plan in zip(candidates, plans, strict=True)]
            return Search(tuple(items), runs, score, delta)

        def noise(arguments: Mapping[str, Any], each: float) -> float:
            # clipping has no say in the noise multiplier, so candidates that differ in it share one calibration
            name = (repr(sorted((k, repr(v)) for k, v in arguments.items() if k != "clip")), each)
            if name not in found:
                found[name] = Plan(**arguments, epsilon=each, delta=at).noise_multiplier
            return found[name]

        low, high, below, above = 0.0, epsilon, -epsilon, None
        best: Search | None = None
        middle = 0.6 * epsilon
        for _ in range(40):
            made = search(middle)
            excess = made.promise().upper - epsilon
            if excess <= 0:
                low, below, best = middle, excess, made
            else:
                high, above = middle, excess
            if best is not None and (-below <= _PRECISE * epsilon or high - low <= _PRECISE * high):
                return best
            # the cost is nearly a line; aim a hair below the target
            share = 0.5 if above is None or best is None else (-below - 0.3 * _PRECISE * epsilon) / (above - below)
            middle = low + (high - low) * min(max(share, 0.05), 0.95)
        raise ValueError(
            f"No noise on the runs keeps epsilon {epsilon:g} at delta {delta:g}: the scores alone cost too much; give "
            "them more noise."
        )

    @cached_property
    def each(self) -> tuple[Mechanism, ...]:
        """What a run of each candidate costs, its score included."""
        found = []
        for candidate in self.candidates:
            scored = self.score.mechanism(candidate.plan)
            whole = candidate.plan.mechanism
            found.append(whole if scored is None else compose([(whole, 1), (scored, 1)]))
        return tuple(found)

    @cached_property
    def accounts(self) -> tuple[Mechanism, ...]:
        """The bounds on the whole search as one release, the best at its delta first; each of them holds."""
        if isinstance(self.runs, Every):
            return (costs.every(self.each),)
        own = costs.profile(self.each, self.runs)
        try:
            known = costs.renyi(self.each, self.runs)
        except ValueError:  # a run without Renyi divergences
            return (own,)
        return tuple(sorted((own, known), key=lambda account: account.epsilon(self.delta).upper))

    @property
    def mechanism(self) -> Mechanism:
        """The whole search as one release."""
        return self.accounts[0]

    def promise(self, delta: float | None = None) -> Bounds:
        """The certified epsilon of the search; quote its upper end."""
        return self.mechanism.epsilon(self.delta if delta is None else delta)

    def __str__(self) -> str:
        costs_of = sorted(mechanism.epsilon(self.delta).upper for mechanism in set(self.each))
        span = " to ".join(dict.fromkeys((short(costs_of[0]), short(costs_of[-1]))))
        scored = "on public data" if isinstance(self.score, Public) else "on private records, with noise"
        promise = (
            f"({short(self.promise().upper)}, {number(self.delta)})-differential privacy for {self.mechanism.relation}"
        )
        return (
            f"{len(self.candidates)} candidates, {self.runs}, scored {scored}; the best is published.\n"
            f"Promise: {promise}, certified; one run alone costs epsilon {span}."
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "search": [candidate.to_dict() for candidate in self.candidates],
            "runs": self.runs.to_dict(),
            "score": self.score.to_dict(),
            "delta": self.delta,
        }


def _check_runs(runs: Runs | Every) -> None:
    if not isinstance(runs, Runs | Every):
        raise ValueError(
            f"Nobody knows what choosing among {runs!r} runs costs; give Geometric(mean), Poisson(mean), "
            "NegativeBinomial(mean, shape), or Every() to pay for all of them."
        )
