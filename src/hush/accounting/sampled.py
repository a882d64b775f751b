"""A release on a random part of the data: each record by its own coin flip, or a batch of fixed size.

Whoever isn't in the sample leaves no trace, so sampling amplifies privacy.  The sampling must be real: batches from a
shuffled epoch are neither of these (`Mechanism.shuffled`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hush.accounting.checks import check_batch, check_rate
from hush.accounting.mechanisms import ADD_REMOVE, BOUND, REPLACE_ONE, Mechanism, Neighbours
from hush.accounting.releases import Gaussian, Guarantees, Laplace, Projected, RandomisedResponse, Tradeoff

if TYPE_CHECKING:
    from hush.accounting.pairs.losses import Pair


@dataclass(frozen=True)
class Poisson(Mechanism):
    """A mechanism on a Poisson sample.

    Under add/remove its trade-off function is p f + (1-p) Id in one direction and the inverse in the other (Bu et al.
    2019).

    Under replace-one both data sets agree where the coin keeps the record out, and C_p(f) is a bound *if* a record is
    no easier to tell from an absent one than from another record.  For noise on a sum it is: absent and present differ
    by C, two records by 2C.  A mere promise about replacements doesn't say: randomised response that is silent about
    absent records gains nothing from sampling.
    """

    kind: ClassVar[str] = "poisson"
    inner: Mechanism
    rate: float

    def __post_init__(self) -> None:
        check_rate(self.rate)
        object.__setattr__(self, "rate", float(self.rate))
        _check_samplable(self.inner)
        if self.neighbours is REPLACE_ONE and not isinstance(self.inner, Gaussian | Laplace):
            raise ValueError(
                f"{self.inner.describe()}, stated for replace-one, gains nothing from coin flips that is known; "
                "state it for add/remove or sample with .uniform(batch, of=records)."
            )

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
        check_batch(self.batch, self.of)
        object.__setattr__(self, "batch", int(self.batch))
        object.__setattr__(self, "of", int(self.of))
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
class Shuffled(Mechanism):
    """One epoch over disjoint batches of a shuffled data set, one record replaced: each record is in just one batch.

    So the epoch is at least as private as one release, and that is all that is claimed: no amplification.
    """

    kind: ClassVar[str] = "shuffled"
    inner: Mechanism

    def __post_init__(self) -> None:
        if self.inner.neighbours is not REPLACE_ONE:
            raise ValueError("A shuffled epoch is analysed for replace-one; state the inner mechanism for it.")
        _check_samplable(self.inner)

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return REPLACE_ONE

    @property
    def tag(self) -> str:
        return BOUND

    @property
    def mu(self) -> float | None:
        return self.inner.mu

    def describe(self) -> str:
        return f"{self.inner.describe()}.shuffled()"

    @property
    def largest_loss(self) -> float:
        return self.inner.largest_loss

    def pair(self) -> Pair:
        return self.inner.pair()


def _sampled_pair(inner: Mechanism, rate: float, neighbours: Neighbours) -> Pair:
    from hush.accounting.pairs import losses

    sampler = losses.Poisson if neighbours is ADD_REMOVE else losses.Uniform
    pair = inner.pair()
    if isinstance(pair, losses.Enclosed):
        return losses.Enclosed(sampler(pair.lower, rate), sampler(pair.upper, rate))
    return sampler(pair, rate)


def _amplified(loss: float, rate: float, both: bool) -> float:
    """The largest loss after sampling: log(1 + p (e^loss - 1)) and, with both directions, -log(1 - p (1 - e^-loss))."""
    if math.isinf(loss):
        return math.inf
    missed = math.log1p(-rate) if rate < 1 else -math.inf
    forward = math.log1p(rate * math.expm1(loss)) if loss < 700 else _log_sum(missed, loss + math.log(rate))
    return max(forward, -math.log1p(rate * math.expm1(-loss))) if both and rate < 1 else forward


def _log_sum(first: float, second: float) -> float:
    """log(e^first + e^second)."""
    return max(first, second) + math.log1p(math.exp(-abs(first - second)))


def _check_samplable(inner: Mechanism) -> None:
    if not isinstance(inner, Gaussian | Laplace | RandomisedResponse | Guarantees | Tradeoff | Projected):
        raise ValueError(
            f"Only a single release can be put on a sample, not {inner.describe()}; "
            "several Gaussian releases from one sample are Gaussian.joint(...)."
        )
