"""Mechanisms as values: what was released, how it was sampled, how often, and who counts as a neighbour.

    >>> run = Gaussian(noise_multiplier=1.3).poisson(256 / 60_000) * 3516
    >>> round(run.epsilon(delta=1e-5).upper, 6)
    0.86454

A mechanism is immutable, comparable, printable, and goes to JSON and back.  Everything that can be asked of privacy
is a function of such a value (`hush.accounting.answers`).

The *noise multiplier* is the standard deviation of the noise divided by the sensitivity of the sum it is added to,
and the sensitivity belongs to the neighbouring relation: a sum of vectors of norm at most C moves by C when one
record is added or removed, and by 2C when one is replaced.  So under replace-one a noise multiplier of 1.3 is a
standard deviation of 2.6 C.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting.bounds import Bounds

if TYPE_CHECKING:
    from hush.accounting.errors import ErrorCurve
    from hush.accounting.limits import Approximation, Edgeworth
    from hush.accounting.losses import Pair
    from hush.accounting.moments import Moments


class Neighbours(Enum):
    """Which two data sets must be hard to tell apart."""

    ADD_REMOVE = "add/remove one"
    REPLACE_ONE = "replace one"

    @property
    def sensitivity(self) -> float:
        """Of a sum of vectors of norm at most 1."""
        return 1.0 if self is Neighbours.ADD_REMOVE else 2.0


ADD_REMOVE, REPLACE_ONE = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE

EXACT, BOUND = "exact", "bound"
"""Exact: the trade-off function is the mechanism's own.  Bound: the mechanism is at least as private."""


class Mechanism(ABC):
    """A randomised release, or a composition of releases."""

    kind: ClassVar[str]
    neighbours: Neighbours

    @property
    def tag(self) -> str:
        """'exact' or 'bound'."""
        return EXACT

    @abstractmethod
    def describe(self) -> str:
        """What it is, in a few words, without the relation."""

    @property
    def mu(self) -> float | None:
        """The exact mu where the mechanism is Gaussian: mu-GDP and nothing better (Dong et al. 2022, Corollary 2)."""
        return None

    @property
    def largest_loss(self) -> float:
        """The largest privacy loss possible, infinite for all but pure mechanisms: their epsilon at delta = 0."""
        return math.inf

    def pair(self) -> Pair:
        """The pair (P, Q) of distributions that decides its privacy, P with the record in question."""
        raise ValueError(f"{self.describe()} has no single pair of distributions.")

    def parts(self) -> tuple[tuple[Mechanism, int], ...]:
        """The distinct releases, each with its count."""
        return ((self, 1),)

    # Building

    def __mul__(self, steps: int) -> Mechanism:
        """The mechanism run `steps` times."""
        if isinstance(steps, bool) or int(steps) != steps or steps < 1:
            raise ValueError(f"The number of steps must be a whole number from 1 on, got {steps}.")
        return compose([(self, int(steps))])

    __rmul__ = __mul__

    def __add__(self, other: Mechanism) -> Mechanism:
        """One mechanism after the other, on the same data."""
        return compose([(self, 1), (other, 1)])

    def poisson(self, rate: float) -> Mechanism:
        """On a sample in which each record takes part by its own coin flip of probability `rate`."""
        _check_rate(rate)
        return self if rate == 1 else Poisson(self, float(rate))

    def uniform(self, batch: int, of: int) -> Mechanism:
        """On a uniformly drawn batch of a fixed size out of `of` records; the relation is then replace-one."""
        if not 1 <= batch <= of:
            raise ValueError(f"A batch has between 1 and {of} of the {of} records, got {batch}.")
        inner = self.under(REPLACE_ONE)
        return inner if batch == of else Uniform(inner, int(batch), int(of))

    def shuffled(self) -> Mechanism:
        """One epoch over disjoint batches of a shuffled data set: one release, not amplified, under replace-one."""
        return self.under(REPLACE_ONE)

    def group(self, size: int) -> Mechanism:
        """The same releases, for neighbours that differ in up to `size` records."""
        if isinstance(size, bool) or int(size) != size or size < 1:
            raise ValueError(f"A group has a whole number of records from 1 on, got {size}.")
        return self if size == 1 else Group(self, int(size))

    def under(self, neighbours: Neighbours) -> Mechanism:
        """The same release stated for another relation; its noise multiplier is then of that relation's sensitivity."""
        if neighbours == self.neighbours:
            return self
        raise ValueError(f"{self.describe()} is stated for {self.neighbours.value}; state it for {neighbours.value}.")

    # Asking

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 with (epsilon, delta)-DP, enclosed; [1e4, inf] beyond 1e4."""
        from hush.accounting import answers

        return answers.epsilon(self, delta)

    def delta(self, epsilon: float) -> Bounds:
        """The smallest delta with (epsilon, delta)-DP, enclosed."""
        from hush.accounting import answers

        return answers.delta(self, epsilon)

    def tradeoff(self, points: int = 1000) -> ErrorCurve:
        """Type II against type I error of the best attack, with a certified band."""
        from hush.accounting import answers

        return answers.tradeoff(self, points)

    def error_sum(self) -> Bounds:
        """The smallest sum of type I and type II error of any attack: 1 - delta(0)."""
        from hush.accounting import answers

        return answers.error_sum(self)

    def advantage(self) -> Bounds:
        """The largest membership-inference advantage, true minus false positive rate: delta(0), the total variation."""
        return self.delta(0.0)

    def bayes_error(self) -> Bounds:
        """The smallest error of an attacker who thinks both data sets equally likely beforehand: (1 - delta(0))/2."""
        total = self.error_sum()
        return Bounds(total.lower / 2, total.upper / 2)

    def moments(self) -> Moments:
        """The moments accountant (Abadi et al. 2016): valid upper bounds, not the tightest."""
        from hush.accounting import answers

        return answers.moments_of(self)

    def clt(self) -> Approximation:
        """The papers' central limit theorem: an approximation that may be too small, not a bound."""
        from hush.accounting import answers

        return answers.clt(self)

    def edgeworth(self) -> Edgeworth:
        """The Edgeworth correction of the central limit theorem: an approximation, not a bound."""
        from hush.accounting import answers

        return answers.edgeworth(self)

    # Printing and storing

    def __str__(self) -> str:
        return f"{self.describe()} [{self.neighbours.value}, {self.tag}]"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: numbers, strings, lists and dictionaries."""
        return {"mechanism": self.kind} | {
            item.name: _plain(getattr(self, item.name))
            for item in fields(self)  # type: ignore[arg-type]
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Mechanism:
        kinds = {cls.kind: cls for cls in _KINDS}
        if not isinstance(data, dict) or data.get("mechanism") not in kinds:
            raise ValueError(f"Not a mechanism: {str(data)[:80]}; its 'mechanism' must be one of {', '.join(kinds)}.")
        cls = kinds[data["mechanism"]]
        names = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if set(data) - {"mechanism"} != names:
            raise ValueError(f"A {cls.kind} mechanism has the fields {', '.join(sorted(names))}, got {sorted(data)}.")
        return cls(**{name: _valued(name, data[name]) for name in names})

    @staticmethod
    def from_json(text: str) -> Mechanism:
        return Mechanism.from_dict(json.loads(text))


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise of `noise_multiplier` times the sensitivity, on all coordinates of one release."""

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        _check_positive("The noise multiplier", self.noise_multiplier)

    def describe(self) -> str:
        return f"Gaussian(noise_multiplier={self.noise_multiplier:g})"

    @property
    def mu(self) -> float:
        return 1 / self.noise_multiplier

    def pair(self) -> Pair:
        from hush.accounting.losses import GaussianPair

        return GaussianPair(1 / self.noise_multiplier)

    def under(self, neighbours: Neighbours) -> Gaussian:
        return Gaussian(self.noise_multiplier, neighbours)

    @staticmethod
    def joint(*noise_multipliers: float, neighbours: Neighbours = ADD_REMOVE) -> Gaussian:
        """Several releases from one and the same sample: one release with (sum of sigma_i^-2)^(-1/2).

        Per-layer noise, or a count beside a gradient.  Charging them as separately subsampled releases would
        understate the loss, so subsample this value instead.
        """
        for noise in noise_multipliers:
            _check_positive("The noise multiplier", noise)
        if not noise_multipliers:
            raise ValueError("A joint release needs at least one noise multiplier.")
        return Gaussian(sum(noise**-2 for noise in noise_multipliers) ** -0.5, neighbours)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise whose scale is `noise_multiplier` times the (one-norm) sensitivity: 1/noise_multiplier-DP."""

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        _check_positive("The noise multiplier", self.noise_multiplier)

    def describe(self) -> str:
        return f"Laplace(noise_multiplier={self.noise_multiplier:g})"

    @property
    def largest_loss(self) -> float:
        return 1 / self.noise_multiplier

    def pair(self) -> Pair:
        from hush.accounting.losses import LaplacePair

        return LaplacePair(1 / self.noise_multiplier)

    def under(self, neighbours: Neighbours) -> Laplace:
        return Laplace(self.noise_multiplier, neighbours)


@dataclass(frozen=True)
class RandomisedResponse(Mechanism):
    """The truth with probability e^eps / (1 + e^eps), else the opposite: epsilon-DP and nothing better."""

    kind: ClassVar[str] = "randomised response"
    truth_epsilon: float
    neighbours: Neighbours = REPLACE_ONE

    def __post_init__(self) -> None:
        _check_epsilon(self.truth_epsilon)

    def describe(self) -> str:
        return f"RandomisedResponse(truth_epsilon={self.truth_epsilon:g})"

    @property
    def largest_loss(self) -> float:
        return self.truth_epsilon

    def pair(self) -> Pair:
        from hush.accounting.losses import randomised_response

        return randomised_response(self.truth_epsilon)

    def under(self, neighbours: Neighbours) -> RandomisedResponse:
        return RandomisedResponse(self.truth_epsilon, neighbours)


@dataclass(frozen=True)
class Guarantees(Mechanism):
    """Any mechanism that keeps all the given (epsilon, delta) promises (Dong, Roth, Su 2022, Proposition 5)."""

    kind: ClassVar[str] = "guarantees"
    promises: tuple[tuple[float, float], ...]
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        if not self.promises:
            raise ValueError("At least one (epsilon, delta) pair is needed.")
        for epsilon, delta in self.promises:
            _check_epsilon(epsilon)
            if not 0 <= delta <= 1:
                raise ValueError(f"delta must lie between 0 and 1, got {delta}.")
        object.__setattr__(self, "promises", tuple((float(e), float(d)) for e, d in self.promises))

    @staticmethod
    def of(epsilon: float, delta: float = 0.0, neighbours: Neighbours = ADD_REMOVE) -> Guarantees:
        """A single (epsilon, delta) guarantee."""
        return Guarantees(((epsilon, delta),), neighbours)

    @property
    def tag(self) -> str:
        return BOUND

    def describe(self) -> str:
        return "Guarantees(" + ", ".join(f"({e:g}, {d:g})" for e, d in self.promises) + ")"

    @property
    def largest_loss(self) -> float:
        return min((epsilon for epsilon, delta in self.promises if delta == 0), default=math.inf)

    def pair(self) -> Pair:
        from hush.accounting.losses import guarantees

        return guarantees(self.promises)

    def under(self, neighbours: Neighbours) -> Guarantees:
        return Guarantees(self.promises, neighbours)


@dataclass(frozen=True)
class Tradeoff(Mechanism):
    """Any mechanism whose attacker's errors satisfy beta >= f(alpha), f convex and given at points.

    Between the points f lies below its chords and above their extensions; both envelopes are kept, so that the
    answer encloses that of the f behind the points.  f is made symmetric first (Proposition 2 of Dong, Roth, Su).
    """

    kind: ClassVar[str] = "trade-off"
    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "alphas", tuple(float(a) for a in self.alphas))
        object.__setattr__(self, "betas", tuple(float(b) for b in self.betas))
        from hush.accounting.errors import check_tradeoff_points

        check_tradeoff_points(self.alphas, self.betas)

    @staticmethod
    def of(function: Any, points: int = 2000, neighbours: Neighbours = ADD_REMOVE) -> Tradeoff:
        """Sample a trade-off function (any callable on [0, 1]) densely, most densely near its ends."""
        from hush.accounting.errors import sample_tradeoff

        return Tradeoff(*sample_tradeoff(function, points), neighbours)

    @property
    def tag(self) -> str:
        return BOUND

    def describe(self) -> str:
        return f"Tradeoff({len(self.alphas)} points)"

    def pair(self) -> Pair:
        from hush.accounting.errors import pair_of_points

        return pair_of_points(self.alphas, self.betas)

    def under(self, neighbours: Neighbours) -> Tradeoff:
        return Tradeoff(self.alphas, self.betas, neighbours)


@dataclass(frozen=True)
class Renyi(Mechanism):
    """A published Renyi curve: divergence at most `divergences[i]` at order `orders[i]`.  Upper bounds only."""

    kind: ClassVar[str] = "renyi"
    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        from hush.accounting.moments import renyi_moment

        renyi_moment(self.orders, self.divergences)  # refuses bad curves
        object.__setattr__(self, "orders", tuple(float(a) for a in self.orders))
        object.__setattr__(self, "divergences", tuple(float(d) for d in self.divergences))

    @property
    def tag(self) -> str:
        return BOUND

    def describe(self) -> str:
        return f"Renyi({len(self.orders)} orders)"


@dataclass(frozen=True)
class Projected(Mechanism):
    """The Gaussian mechanism, clipped by norms estimated from r random projections (Bu et al. 2021, Theorem 4.1)."""

    kind: ClassVar[str] = "projected"
    noise_multiplier: float
    projections: int
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        _check_positive("The noise multiplier", self.noise_multiplier)
        if isinstance(self.projections, bool) or int(self.projections) != self.projections or self.projections < 1:
            raise ValueError(f"The number of projections must be a whole number from 1 on, got {self.projections}.")

    def describe(self) -> str:
        return f"Projected(noise_multiplier={self.noise_multiplier:g}, projections={self.projections})"

    def pair(self) -> Pair:
        from hush.accounting.projection import ProjectedPair

        return ProjectedPair(self.noise_multiplier, self.projections)

    def under(self, neighbours: Neighbours) -> Mechanism:
        if neighbours != ADD_REMOVE:
            raise ValueError("Projected norms are analysed for add/remove one only; sample with .poisson(rate).")
        return self


@dataclass(frozen=True)
class Poisson(Mechanism):
    """A mechanism on a Poisson sample.

    Under add/remove its trade-off function is p f + (1-p) Id in one direction and the inverse in the other (Bu et al.
    2019); under replace-one it is bounded by C_p(f) (Dong, Roth, Su 2022, Theorem 9).
    """

    kind: ClassVar[str] = "poisson"
    inner: Mechanism
    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_samplable(self.inner)

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return self.inner.neighbours

    @property
    def tag(self) -> str:
        return self.inner.tag if self.neighbours is ADD_REMOVE else BOUND

    def describe(self) -> str:
        return f"{self.inner.describe()}.poisson({self.rate:.6g})"

    @property
    def largest_loss(self) -> float:
        return _amplified(self.inner.largest_loss, self.rate, both=self.neighbours is ADD_REMOVE)

    def pair(self) -> Pair:
        return _sampled_pair(self.inner, self.rate, self.neighbours)

    def under(self, neighbours: Neighbours) -> Poisson:
        return Poisson(self.inner.under(neighbours), self.rate)


@dataclass(frozen=True)
class Uniform(Mechanism):
    """A mechanism on a batch drawn uniformly without replacement: at least C_p(f), p = batch/of, replace-one."""

    kind: ClassVar[str] = "uniform"
    inner: Mechanism
    batch: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.of:
            raise ValueError(f"A batch has between 1 and {self.of} of the {self.of} records, got {self.batch}.")
        if self.inner.neighbours is not REPLACE_ONE:
            raise ValueError("Uniform sampling is analysed for replace-one; state the inner mechanism for it.")
        _check_samplable(self.inner)

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return REPLACE_ONE

    @property
    def rate(self) -> float:
        return self.batch / self.of

    @property
    def tag(self) -> str:
        return BOUND

    def describe(self) -> str:
        return f"{self.inner.describe()}.uniform({self.batch}, of={self.of})"

    @property
    def largest_loss(self) -> float:
        return _amplified(self.inner.largest_loss, self.rate, both=False)

    def pair(self) -> Pair:
        return _sampled_pair(self.inner, self.rate, REPLACE_ONE)


@dataclass(frozen=True)
class Group(Mechanism):
    """A mechanism seen by neighbours that differ in up to `size` records: 1 - (1 - f)^(o size) (Theorem 3)."""

    kind: ClassVar[str] = "group"
    inner: Mechanism
    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or int(self.size) != self.size or self.size < 1:
            raise ValueError(f"A group has a whole number of records from 1 on, got {self.size}.")
        if any(isinstance(part, Renyi) for part, _ in self.inner.parts()):
            raise ValueError("A Renyi curve has no trade-off function to take to groups.")

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return self.inner.neighbours

    @property
    def tag(self) -> str:
        return EXACT if self.mu is not None and self.inner.tag == EXACT else BOUND

    @property
    def mu(self) -> float | None:
        return None if self.inner.mu is None else self.size * self.inner.mu

    def describe(self) -> str:
        return f"({self.inner.describe()}).group({self.size})"

    @property
    def largest_loss(self) -> float:
        return self.size * self.inner.largest_loss

    def pair(self) -> Pair:
        from hush.accounting import answers

        return answers.group_pair(self)


@dataclass(frozen=True)
class Composition(Mechanism):
    """Releases on the same data, each as often as said, in any order.  Build it with `+` and `*`."""

    kind: ClassVar[str] = "composition"
    counted: tuple[tuple[Mechanism, int], ...]

    def __post_init__(self) -> None:
        if not self.counted:
            raise ValueError("A composition has at least one part.")
        relations = {part.neighbours for part, _ in self.counted}
        if len(relations) > 1:
            names = " and ".join(sorted(relation.value for relation in relations))
            raise ValueError(f"Releases stated for {names} don't compose; state all of them for one relation.")
        for part, count in self.counted:
            if isinstance(part, Composition) or isinstance(count, bool) or int(count) != count or count < 1:
                raise ValueError("The parts of a composition are single releases with whole counts from 1 on.")

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return self.counted[0][0].neighbours

    @property
    def tag(self) -> str:
        return EXACT if all(part.tag == EXACT for part, _ in self.counted) else BOUND

    def describe(self) -> str:
        return " + ".join(part.describe() + (f" * {count}" if count > 1 else "") for part, count in self.counted)

    @cached_property
    def mu(self) -> float | None:
        total = 0.0
        for part, count in self.counted:
            if part.mu is None:
                return None
            total += count * part.mu**2
        return math.sqrt(total)

    @property
    def largest_loss(self) -> float:
        return sum(count * part.largest_loss for part, count in self.counted)

    def parts(self) -> tuple[tuple[Mechanism, int], ...]:
        return self.counted

    def to_dict(self) -> dict[str, Any]:
        return {"mechanism": self.kind, "counted": [[part.to_dict(), count] for part, count in self.counted]}


_KINDS: tuple[type[Mechanism], ...] = (
    Gaussian,
    Laplace,
    RandomisedResponse,
    Guarantees,
    Tradeoff,
    Renyi,
    Projected,
    Poisson,
    Uniform,
    Group,
    Composition,
)


def compose(parts: Iterable[tuple[Mechanism, int]]) -> Mechanism:
    """All the given mechanisms on the same data: equal ones are counted together, so order doesn't matter."""
    counts: dict[Mechanism, int] = {}
    for mechanism, count in parts:
        for part, times in mechanism.parts():
            counts[part] = counts.get(part, 0) + count * times
    ordered = tuple(sorted(counts.items(), key=lambda item: item[0].to_json()))
    if len(ordered) == 1 and ordered[0][1] == 1:
        return ordered[0][0]
    return Composition(ordered)


def _sampled_pair(inner: Mechanism, rate: float, neighbours: Neighbours) -> Pair:
    from hush.accounting import losses

    sampler = losses.Poisson if neighbours is ADD_REMOVE else losses.Uniform
    pair = inner.pair()
    if isinstance(pair, losses.Enclosed):
        return losses.Enclosed(sampler(pair.lower, rate), sampler(pair.upper, rate))
    return sampler(pair, rate)


def _amplified(loss: float, rate: float, both: bool) -> float:
    """The largest loss after sampling: log(1 + p (e^loss - 1)) and, with both directions, -log(1 - p (1 - e^-loss))."""
    if math.isinf(loss):
        return math.inf
    forward = math.log1p(rate * math.expm1(loss)) if loss < 700 else loss + math.log(rate)
    return max(forward, -math.log1p(rate * math.expm1(-loss))) if both and rate < 1 else forward


def _check_samplable(inner: Mechanism) -> None:
    if not isinstance(inner, Gaussian | Laplace | RandomisedResponse | Guarantees | Tradeoff | Projected):
        raise ValueError(
            f"Only a single release can be put on a sample, not {inner.describe()}; "
            "several Gaussian releases from one sample are Gaussian.joint(...)."
        )


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}.")


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"A sampling rate lies above 0 and at most at 1, got {rate}.")


def _check_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return value.to_dict()
    if isinstance(value, Neighbours):
        return value.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _valued(name: str, value: Any) -> Any:
    if name == "neighbours":
        return Neighbours(value)
    if name == "inner":
        return Mechanism.from_dict(value)
    if name == "counted":
        return tuple((Mechanism.from_dict(part), int(count)) for part, count in value)
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value
