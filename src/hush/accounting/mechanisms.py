"""Mechanisms as values: what was released, how it was sampled, how often, and who counts as a neighbour.

    >>> from hush.accounting import Gaussian
    >>> run = Gaussian(noise_multiplier=1.3).poisson(256 / 60_000) * 3516
    >>> round(run.epsilon(delta=1e-5).upper, 6)
    0.86454

A mechanism is immutable, comparable, printable, and goes to JSON and back.  Everything that can be asked of privacy
is a function of such a value (`hush.accounting.answers`).  Here are what all mechanisms share and how they compose;
the kinds are in `releases`, `sampled` and `groups`.

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
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting.bounds import Bounds
from hush.accounting.checks import check_batch, check_rate, check_whole

if TYPE_CHECKING:
    from hush.accounting.errors import ErrorCurve
    from hush.accounting.limits import Approximation, Edgeworth
    from hush.accounting.moments import Moments
    from hush.accounting.pairs.losses import Pair


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
    """Its name in JSON."""
    neighbours: Neighbours
    _kinds: ClassVar[dict[str, type[Mechanism]]] = {}

    def __init_subclass__(cls) -> None:
        Mechanism._kinds[cls.kind] = cls

    @property
    def tag(self) -> str:
        """'exact' or 'bound'."""
        return EXACT

    @property
    def records(self) -> int:
        """In how many records neighbours differ: one, except for groups."""
        return 1

    @property
    def single(self) -> Mechanism:
        """The same releases, for neighbours that differ in one record."""
        return self

    @property
    def relation(self) -> str:
        """Who is a neighbour of whom, in words."""
        return self.neighbours.value + ("" if self.records == 1 else f", {self.records} times over")

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
        check_whole("The number of steps", steps)
        return compose([(self, int(steps))])

    __rmul__ = __mul__

    def __add__(self, other: Mechanism) -> Mechanism:
        """One mechanism after the other, on the same data."""
        return compose([(self, 1), (other, 1)]) if isinstance(other, Mechanism) else NotImplemented

    def __radd__(self, other: int) -> Mechanism:
        """So that `sum` composes a list: it starts from 0, which is nothing released."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def poisson(self, rate: float) -> Mechanism:
        """On a sample in which each record takes part by its own coin flip of probability `rate`."""
        from hush.accounting.sampled import Poisson

        check_rate(rate)
        return self if rate == 1 else Poisson(self, float(rate))

    def uniform(self, batch: int, of: int) -> Mechanism:
        """On a uniformly drawn batch of a fixed size out of `of` records; the relation is then replace-one."""
        from hush.accounting.sampled import Uniform

        check_batch(batch, of)
        inner = self.under(REPLACE_ONE)
        return inner if batch == of else Uniform(inner, int(batch), int(of))

    def shuffled(self) -> Mechanism:
        """One epoch over disjoint batches of a shuffled data set: one release, not amplified, under replace-one."""
        from hush.accounting.sampled import Shuffled

        return Shuffled(self.under(REPLACE_ONE))

    def group(self, size: int) -> Mechanism:
        """The same releases, for neighbours that differ in up to `size` records."""
        from hush.accounting.groups import Group

        check_whole("The size of a group", size)
        return self if size == 1 else Group(self, int(size))

    def under(self, neighbours: Neighbours) -> Mechanism:
        """Noise of the same multiplier for another relation: the multiplier is kept, and is of the new sensitivity.

        That of replacing a record is 2C, so the noise itself is twice as large as for adding or removing one.

        Only noise can be restated.  A promise made for one relation says less about the other: (epsilon, 0)-DP for
        adding or removing a record is (2 epsilon, 0)-DP for replacing one.
        """
        if neighbours == self.neighbours:
            return self
        raise ValueError(f"{self.describe()} is stated for {self.neighbours.value}; state it for {neighbours.value}.")

    # Asking

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 with (epsilon, delta)-DP, enclosed; [1e4, inf] beyond 1e4.

        Where something may tell everything, epsilon jumps to infinity at a delta.  For promises it is decided exactly
        on which side a delta lies; for others the interval reaches to infinity within rounding of that delta.
        """
        from hush.accounting import answers

        return answers.epsilon(self, delta)

    def delta(self, epsilon: float) -> Bounds:
        """The smallest delta with (epsilon, delta)-DP, enclosed."""
        from hush.accounting import answers

        return answers.delta(self, epsilon)

    def tradeoff(self, points: int = 1000) -> ErrorCurve:
        """Type II against type I error of the best attack, with a certified band around the mechanism's own function.

        That is the papers' one: the largest convex function below both directions (Dong, Roth, Su 2022).
        """
        from hush.accounting import curves

        return curves.tradeoff(self, points)

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
        from hush.accounting import accountants

        return accountants.moments_of(self)

    def clt(self) -> Approximation:
        """The papers' central limit theorem: an approximation that may be too small, not a bound."""
        from hush.accounting import accountants

        return accountants.clt(self)

    def edgeworth(self) -> Edgeworth:
        """The Edgeworth correction of the central limit theorem: an approximation, not a bound."""
        from hush.accounting import accountants

        return accountants.edgeworth(self)

    # Printing and storing

    def __str__(self) -> str:
        return f"{self.describe()} [{self.relation}, {self.tag}]"

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
        kinds = Mechanism._kinds
        if not isinstance(data, dict) or str(data.get("mechanism")) not in kinds:
            raise ValueError(f"Not a mechanism: {str(data)[:80]}; its 'mechanism' must be one of {', '.join(kinds)}.")
        cls = kinds[str(data["mechanism"])]
        names = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if set(data) - {"mechanism"} != names:
            raise ValueError(f"A {cls.kind} mechanism has the fields {', '.join(sorted(names))}, got {sorted(data)}.")
        try:
            return cls(**{name: _valued(name, data[name]) for name in names})
        except TypeError:
            raise ValueError(f"A {cls.kind} mechanism can't be made of {str(data)[:80]}.") from None

    @staticmethod
    def from_json(text: str) -> Mechanism:
        return Mechanism.from_dict(json.loads(text))


@dataclass(frozen=True)
class Composition(Mechanism):
    """Releases on the same data, each as often as said, in any order.  Build it with `+` and `*`."""

    kind: ClassVar[str] = "composition"
    counted: tuple[tuple[Mechanism, int], ...]

    def __post_init__(self) -> None:
        if not self.counted:
            raise ValueError("A composition has at least one part.")
        relations = {part.relation for part, _ in self.counted}
        if len(relations) > 1:
            names = " and ".join(sorted(relations))
            raise ValueError(f"Releases stated for {names} don't compose; state all of them for one relation.")
        for part, count in self.counted:
            check_whole("The count of a part", count)
            if isinstance(part, Composition) or part.records > 1:
                raise ValueError("The parts of a composition are single releases; compose with + and *.")
        object.__setattr__(self, "counted", tuple((part, int(count)) for part, count in self.counted))

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
        squares = [count * part.mu**2 for part, count in self.counted if part.mu is not None]
        return math.sqrt(math.fsum(squares)) if len(squares) == len(self.counted) else None

    @property
    def largest_loss(self) -> float:
        return math.fsum(count * part.largest_loss for part, count in self.counted)

    def parts(self) -> tuple[tuple[Mechanism, int], ...]:
        return self.counted

    def to_dict(self) -> dict[str, Any]:
        return {"mechanism": self.kind, "counted": [[part.to_dict(), count] for part, count in self.counted]}


def compose(parts: Iterable[tuple[Mechanism, int]]) -> Mechanism:
    """All the given mechanisms on the same data: equal ones are counted together, so order doesn't matter.

    What is seen by the same groups of records is composed first and then seen by them: A.group(k) + B.group(k) is
    (A + B).group(k).
    """
    parts = list(parts)
    sizes = {mechanism.records for mechanism, _ in parts}
    if len(sizes) == 1 and (size := sizes.pop()) > 1:
        return compose([(mechanism.single, count) for mechanism, count in parts]).group(size)
    counts: dict[Mechanism, int] = {}
    for mechanism, count in parts:
        for part, times in mechanism.parts():
            counts[part] = counts.get(part, 0) + count * times
    ordered = tuple(sorted(counts.items(), key=lambda item: item[0].to_json()))
    if len(ordered) == 1 and ordered[0][1] == 1:
        return ordered[0][0]
    return Composition(ordered)


def _plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return value.to_dict()
    if isinstance(value, Neighbours):
        return value.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, Real):  # NumPy's numbers as well
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def _valued(name: str, value: Any) -> Any:
    if name == "neighbours":
        return Neighbours(value)
    if name == "inner":
        return Mechanism.from_dict(value)
    if name == "counted":
        return tuple((Mechanism.from_dict(part), count) for part, count in value)
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value
