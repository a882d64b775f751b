"""The plan: one set of public numbers, from which both the computation and its account are derived.

Nothing else in hush says how records are sampled, how much noise is added, or what a step costs, so a run can't sample
one way and account another.  Every field is public: the number of records is declared, never counted.

    >>> plan = Plan(records=60_000, batch=256, epochs=15, noise_multiplier=1.3, delta=1e-5)
    >>> plan.steps, round(plan.promise().upper, 4)
    (3516, 0.8645)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Real
from typing import Any

from hush import projections as projecting
from hush.accounting import Bounds, Gaussian, Mechanism, Neighbours, Projected, calibrate, compose
from hush.accounting.checks import check_positive, check_whole
from hush.clipping import Clipping, Flat
from hush.digits import number, short
from hush.keys import Key
from hush.sampling import Poisson, Sampler, Shuffled, Uniform, check_sampler
from hush.schedules import Schedule
from hush.units import Draw, Population, grouped

_SAMPLERS: dict[str, type[Sampler]] = {"poisson": Poisson, "uniform": Uniform, "shuffled": Shuffled}


@dataclass(frozen=True, init=False)
class Plan:
    """What will be done and what it will cost, fixed before the data are looked at.

    Give `steps` or `epochs`, and `noise_multiplier` or a target (`epsilon`, `delta`); with both noise and target, the
    steps may be left out: the run is as long as the target allows.  What was left out is filled in, and a target is
    checked by its certified upper bound.

    records           how many records (or users) the data set is declared to have
    batch             how many of them a step is expected to see; also the normaliser of the gradient
    steps, epochs     the length of the run; the last epoch's fraction of a step counts as one
    clip              a norm, a `Schedule` of norms, or a `Clipping`
    noise_multiplier  the noise's standard deviation over the sensitivity
    epsilon, delta    the target; delta alone only says at which delta to print
    noise_profile     factors on the noise multiplier by step, fixed in advance
    sampling          how a step's sample is drawn
    unit              who is protected: 'record', or what shares an id in `batches(users=...)`, such as 'user'
    grouped           clip groups of about this many units together instead of each (the papers' microbatches)
    projections       estimate norms from so many random projections instead of computing them (`docs/projections.md`)
    beside            what else is released from the same records in this run, such as `hush.methods.pca`'s directions;
                      the promise and the calibration count it
    """

    records: int
    batch: float
    steps: int
    clip: Clipping
    noise_multiplier: float
    epsilon: float | None
    delta: float | None
    noise_profile: Schedule | None
    sampling: Sampler
    unit: str
    grouped: int | None
    projections: int | None
    beside: Mechanism | None

    def __init__(
        self,
        *,
        records: int,
        batch: float,
        steps: int | None = None,
        epochs: float | None = None,
        clip: float | Schedule | Clipping = 1.0,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_profile: Schedule | None = None,
        sampling: Sampler | None = None,
        unit: str = "record",
        grouped: int | None = None,
        projections: int | None = None,
        beside: Mechanism | None = None,
    ) -> None:
        sampling = Poisson() if sampling is None else sampling
        check_sampler(sampling)
        sampling.check(batch, records)
        if noise_profile is not None and not isinstance(noise_profile, Schedule):
            raise ValueError(f"A noise profile is a hush.Schedule of factors, got {noise_profile!r}.")
        if not isinstance(unit, str) or not unit:
            raise ValueError(f"The unit is a word for who is protected, such as 'record' or 'user', got {unit!r}.")
        self._set(records=int(records), batch=int(batch) if batch == int(batch) else float(batch), sampling=sampling)
        self._set(clip=clip if isinstance(clip, Clipping) else Flat(clip), noise_profile=noise_profile, unit=unit)
        self._set_beside(beside)
        self._set_groups(grouped)
        self._set(projections=projections)
        if projections is not None:
            projecting.check(self, projections)
        self._set_target(epsilon, delta)
        if epochs is not None:
            if steps is not None:
                raise ValueError(f"Give steps or epochs, not both; got {steps} steps and {epochs} epochs.")
            steps = sampling.steps(epochs, batch=self.batch, records=self.records)
        self._set_length_and_noise(steps, noise_multiplier)
        self.clip.gradient_noise(self._least_noise(range(self.steps)), self.batch)  # refuses a count that takes it all

    # What a step is

    @property
    def rate(self) -> float:
        """The probability with which a record takes part in a step."""
        return self.batch / self.records

    @property
    def neighbours(self) -> Neighbours:
        """Who counts as a neighbour: the sampling decides."""
        return self.sampling.neighbours

    @property
    def sensitivity(self) -> float:
        """By how many clip norms one unit moves the sum: 2 when it is replaced, or when it shares a group, else 1.

        A group's clipped sum goes from one vector of norm at most C to another: 2C.  Replacing a unit keeps its
        place and so its group: still 2C.
        """
        return 2.0 if self.grouped is not None else self.neighbours.sensitivity

    @property
    def normaliser(self) -> float:
        """What the noisy sum is divided by: the expected batch, never the size of the batch that came.

        Of groups the mean gradients are clipped, so there it is the number of groups.
        """
        return float(self.batch if self.grouped is None else self.groups)

    def release(self, step: int) -> Gaussian | Projected:
        """What a step does to its sample: one Gaussian release, whatever goes out together."""
        return self._release(range(step, step + 1))

    def draw(self, key: Key, step: int, population: Population | int) -> Draw:
        """The sample of a step, with the groups that are clipped together."""
        draw = self.sampling.draw(key, step, population, batch=self.batch, records=self.records)
        return draw if self.grouped is None else grouped(draw, key, step, self.groups)

    @property
    def groups(self) -> int:
        """How many groups a step has where records are clipped in groups."""
        return max(1, -int(-self.batch // (self.grouped or 1)))

    def stds(self, step: int, names: Sequence[str], state: float | None = None) -> tuple[float, ...]:
        """The noise's standard deviation in every group of parameters."""
        noise = self.clip.gradient_noise(self._least_noise(range(step, step + 1)), self.batch)
        thresholds = self.clip.thresholds(step, names, state)
        return tuple(self.sensitivity * std for std in self.clip.stds(thresholds, noise, names))

    @property
    def count_std(self) -> float | None:
        """The noise's standard deviation on the count an adaptive clipping releases."""
        std = self.clip.count_std(self.batch)
        return None if std is None else self.sensitivity * std

    # What it costs

    def charges(self, first: int, count: int, fresh: bool = False) -> tuple[tuple[Mechanism, int], ...]:
        """What the steps first, ..., first + count - 1 cost: mechanisms with their counts.

        `fresh` says that the sampling starts anew at `first` under another key.  For a shuffled epoch that is broken
        off this means a second release: a record may be both in the old order's part and in the new one's.
        """
        per_epoch = self._steps_per_epoch
        parts: dict[Mechanism, int] = {}

        def add(steps: range, due: int) -> None:
            part = self.sampling.mechanism(self._release(steps), batch=self.batch, records=self.records)
            parts[part] = parts.get(part, 0) + due

        def epoch_of(step: int) -> range:
            begun = step // per_epoch * per_epoch
            return range(begun, begun + per_epoch)

        for start, stop in pairwise(self._corners(first, first + count)):
            due = self.sampling.charges(range(start, stop), batch=self.batch, records=self.records)
            if due > 1:
                add(range(start, start + 1), due - 1)
            if due:  # the last epoch that begins here may reach into pieces with less noise
                add(epoch_of(stop - 1), 1)
        if fresh and count and first % per_epoch:
            add(epoch_of(first), 1)
        return tuple(parts.items())

    @property
    def mechanism(self) -> Mechanism:
        """The whole run, with what is released beside its steps."""
        return self._of_steps(self.steps)

    def promise(self, delta: float | None = None) -> Bounds:
        """The certified epsilon of the whole run; quote its upper end."""
        return self.mechanism.epsilon(self._delta if delta is None else delta)

    # Words and JSON

    def __str__(self) -> str:
        from hush.explaining import explain

        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["clip"] = self.clip.to_dict()
        plain["beside"] = None if self.beside is None else self.beside.to_dict()
        plain["sampling"] = type(self.sampling).__name__.lower()
        plain["noise_profile"] = None if self.noise_profile is None else [list(p) for p in self.noise_profile.pieces]
        return plain

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Plan:
        names = {item.name for item in fields(Plan)}
        if set(data) != names:
            raise ValueError(f"A plan has the fields {', '.join(sorted(names))}, got {', '.join(sorted(data))}.")
        profile = data["noise_profile"]
        if data["sampling"] not in _SAMPLERS:
            raise ValueError(f"The sampling of a plan is one of {', '.join(_SAMPLERS)}, got {data['sampling']!r}.")
        valued = {
            "clip": Clipping.from_dict(data["clip"]),
            "sampling": _SAMPLERS[data["sampling"]](),
            "beside": None if data["beside"] is None else Mechanism.from_dict(data["beside"]),
            "noise_profile": None if profile is None else Schedule(*map(tuple, profile)),
        }
        return Plan(**(data | valued))

    @staticmethod
    def from_json(text: str) -> Plan:
        return Plan.from_dict(json.loads(text))

    # Filling in

    @property
    def _delta(self) -> float:
        """Where to quote epsilon: as asked for, or at a power of ten below 1/records."""
        return self.delta if self.delta is not None else float(f"1e-{len(str(self.records))}")

    @property
    def _steps_per_epoch(self) -> int:
        """How many steps share one charge."""
        sampling = self.sampling
        return sampling.batches(batch=self.batch, records=self.records) if isinstance(sampling, Shuffled) else 1

    def _corners(self, first: int, end: int) -> list[int]:
        """Steps between which the noise is constant."""
        pieces = () if self.noise_profile is None else self.noise_profile.pieces
        return sorted({first, end, *(start for start, _ in pieces if first < start < end)})

    def _least_noise(self, steps: range) -> float:
        profile = self.noise_profile
        if profile is None:
            return self.noise_multiplier
        corners = self._corners(steps.start, steps.stop)[:-1]
        return self.noise_multiplier * min(profile.at(step) for step in corners)

    def _release(self, steps: range) -> Gaussian | Projected:
        noise = self._least_noise(steps)
        if self.projections is not None:
            return Projected(noise, self.projections, self.neighbours)
        return Gaussian(noise, self.neighbours)

    def _of_steps(self, count: int) -> Mechanism:
        """The run, had it so many steps."""
        besides = () if self.beside is None else ((self.beside, 1),)
        return compose((*besides, *self.charges(0, count)))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _set_groups(self, size: int | None) -> None:
        if size is not None:
            check_whole("The size of the groups", size)
            if self.clip.count_std(self.batch) is not None:
                raise ValueError("The norms of groups aren't counted; clip groups at a fixed norm.")
            if self.unit != "record":
                raise ValueError(f"Groups are made of single records; clip {self.unit} by {self.unit} without groups.")
        self._set(grouped=size)

    def _set_beside(self, beside: Mechanism | None) -> None:
        if beside is not None and not isinstance(beside, Mechanism):
            raise ValueError(f"What is released beside the steps is a mechanism of hush.accounting, got {beside!r}.")
        if beside is not None and beside.neighbours != self.neighbours:
            raise ValueError(
                f"What is released beside the training is stated for {beside.relation} and its sampling for "
                f"{self.neighbours.value}; sample both the same way."
            )
        self._set(beside=beside)

    def _set_target(self, epsilon: float | None, delta: float | None) -> None:
        if epsilon is not None:
            check_positive("The target epsilon", epsilon)
            if delta is None:
                raise ValueError(f"A target epsilon of {epsilon:g} needs its delta: one below 1/records, such as 1e-5.")
        given: Any = delta
        if given is not None and not (isinstance(given, Real) and 0 < float(given) < 1):
            raise ValueError(f"Gaussian noise needs a delta above 0 and below 1, got {delta!r}.")
        self._set(epsilon=epsilon, delta=delta)

    def _set_length_and_noise(self, steps: int | None, noise: float | None) -> None:
        """Finds the one that is missing from the target, or checks the target if none is."""
        if self.epsilon is None and (steps is None or noise is None):
            raise ValueError(
                "A plan needs steps (or epochs) and noise_multiplier, or a target (epsilon and delta) that stands in "
                "for one of them."
            )
        if steps is None and noise is None:
            raise ValueError("A plan with a target needs steps (or epochs) or noise_multiplier; the other is found.")
        if steps is not None:
            check_whole("The number of steps", steps)
        if noise is not None:
            check_positive("The noise multiplier", noise)
        self._set(steps=int(steps or 1), noise_multiplier=float(noise or 1.0))
        if self.epsilon is None or self.delta is None:
            return
        if steps is None:
            whole = lambda count: self._of_steps(count * self._steps_per_epoch)  # noqa: E731
            self._set(steps=calibrate.steps(whole, self.epsilon, self.delta) * self._steps_per_epoch)
        elif noise is None and self.projections is not None:
            self._set(noise_multiplier=projecting.noise_for(self))
        elif noise is None:
            self._set(noise_multiplier=calibrate.noise(self._with_noise, self.epsilon, self.delta))
        elif (cost := self.promise().upper) > self.epsilon:
            if self.projections is not None:
                raise ValueError(projecting.refusal(self, cost))
            raise ValueError(
                f"{self.steps} steps with noise multiplier {noise:g} cost epsilon {short(cost)} at delta "
                f"{number(self.delta)}, more than the target {number(self.epsilon)}; leave one of the three out "
                "and it is found."
            )

    def _with_noise(self, noise: float) -> Mechanism:
        plan = object.__new__(Plan)
        plan._set(**(self.__dict__ | {"noise_multiplier": noise}))
        return plan.mechanism
