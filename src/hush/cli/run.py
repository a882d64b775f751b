"""A training run as asked about: its public numbers, checked, and the mechanism they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.accounting import Mechanism

MOST_STEPS = 10**12
MOST_RECORDS = 2**53
MOST_PROJECTIONS = 10**6
LARGEST_GROUP = 10**6


class Sampling(StrEnum):
    """How a step chooses its records."""

    POISSON = "poisson"
    UNIFORM = "uniform"
    SHUFFLED = "shuffled"
    NONE = "none"

    @property
    def named(self) -> str:
        """As in prose: Poisson was a man."""
        return "Poisson" if self is Sampling.POISSON else self.value

    @property
    def needs_rate(self) -> bool:
        return self in (Sampling.POISSON, Sampling.UNIFORM)

    @property
    def replaces(self) -> bool:
        """Whether neighbours differ by a record replaced, and noise is relative to 2C."""
        return self in (Sampling.UNIFORM, Sampling.SHUFFLED)


@dataclass(frozen=True)
class Rate:
    """A sampling rate as written: `batch` of `records`. Whole numbers, so that counting steps never rounds twice."""

    batch: int
    records: int

    @property
    def exact(self) -> Fraction:
        return Fraction(self.batch, self.records)

    def __float__(self) -> float:
        return self.batch / self.records

    def __str__(self) -> str:
        readable = self.batch > 1 and self.records < 10**10
        return f"{self.batch}/{self.records} = {float(self):.6g}" if readable else f"{float(self):.6g}"


@dataclass(frozen=True)
class Run:
    """The public numbers of a training run.  Of shuffled batches an epoch counts as a step: it meets a record once."""

    noise: float
    rate: Rate | None
    steps: int
    sampling: Sampling
    projections: int | None = None
    group: int = 1

    def mechanism(self) -> Mechanism:
        """The run as a mechanism."""
        from hush.accounting import REPLACE_ONE, Gaussian, Projected, Shuffled

        if self.sampling is Sampling.SHUFFLED:
            return (Shuffled(Gaussian(self.noise, REPLACE_ONE)) * self.steps).group(self.group)
        release: Mechanism = Gaussian(noise_multiplier=self.noise)
        if self.projections is not None:
            release = Projected(noise_multiplier=self.noise, projections=self.projections)
        if self.sampling is Sampling.POISSON:
            release = release.poisson(float(self.required_rate()))
        elif self.sampling is Sampling.UNIFORM:
            rate = self.required_rate()
            if rate.records > MOST_RECORDS:  # a decimal, such as a calibrated one: the nearest fraction rounds to it
                rate = Rate(*rate.exact.limit_denominator(MOST_RECORDS).as_integer_ratio())
            if rate.batch == 0:
                raise ValueError(f"--rate is less than one of {MOST_RECORDS:,} records, more than anybody has.")
            release = release.uniform(rate.batch, of=rate.records)
        return (release * self.steps).group(self.group)

    def required_rate(self) -> Rate:
        if self.rate is None:
            raise ValueError(
                f"{self.sampling.named.capitalize()} sampling needs --rate, a number or a fraction such as 256/60000; "
                "without sampling, say --sampling none."
            )
        return self.rate

    def length(self) -> str:
        """How long it is, in words."""
        return count(self.steps, "shuffled epoch" if self.sampling is Sampling.SHUFFLED else "step")

    def describe(self) -> str:
        """In words, for people."""
        norms = "" if self.projections is None else f"{count(self.projections, 'projection')}, "
        unit = " (times the sensitivity 2C of a replacement)" if self.sampling.replaces else ""
        sampling = f"{self.sampling.named} sampling at rate {self.rate}" if self.sampling.needs_rate else "no sampling"
        if self.sampling is Sampling.SHUFFLED:
            sampling = "each record in one batch an epoch, no amplification claimed"
        return f"{self.length()}, {norms}Gaussian noise {self.noise:.10g}{unit}, {sampling}"

    def as_json(self) -> dict[str, Any]:
        shuffled = self.sampling is Sampling.SHUFFLED
        return {
            "noise_multiplier": self.noise,
            "rate": None if self.rate is None else float(self.rate),
            **({"epochs": self.steps} if shuffled else {"steps": self.steps}),
            "sampling": self.sampling.value,
            "projections": self.projections,
            "group": self.group,
        }


def read_run(
    noise: float | None,
    rate: Rate | None,
    steps: int | None,
    epochs: Fraction | None,
    sampling: Sampling,
    projections: int | None,
    group: int,
) -> Run:
    """Check that all is there which the run needs, and count its steps."""
    if noise is None:
        raise ValueError("The noise multiplier is missing: give --noise, the noise divided by the sensitivity.")
    if not 0 < noise < math.inf:
        raise ValueError(f"--noise must be a positive number, got {noise}.")
    if sampling is Sampling.SHUFFLED:
        steps, epochs = shuffled_epochs(steps, epochs, rate), None
    elif steps is None and epochs is not None:
        steps = count_steps(epochs, rate)
    elif steps is None or epochs is not None:
        raise ValueError(
            "The length is missing: give --steps or --epochs."
            if steps is None
            else "Give --steps or --epochs, not both."
        )
    for number, most, what in (
        (steps, MOST_STEPS, "steps"),
        (projections or 1, MOST_PROJECTIONS, "projections"),
        (group, LARGEST_GROUP, "records in a group"),
    ):
        if number > most:
            raise ValueError(f"More than {most:,} {what} are beyond this command.")
    run = Run(noise, rate, steps, sampling, projections, group)
    if sampling.needs_rate:
        run.required_rate()
    if projections is not None and sampling.replaces:
        raise ValueError(f"Projected norms are analysed for Poisson sampling or none: leave out --sampling {sampling}.")
    return run


def shuffled_epochs(steps: int | None, epochs: Fraction | None, rate: Rate | None) -> int:
    """Whole epochs: what was begun counts in full, for the records that were met."""
    if steps is not None or rate is not None:
        raise ValueError("Shuffled epochs count whole, whatever the batches: give --epochs, no --steps or --rate.")
    if epochs is None:
        raise ValueError("The length is missing: give --epochs.")
    return math.ceil(epochs)


def count_steps(epochs: Fraction, rate: Rate | None) -> int:
    """epochs / rate, rounded half to even from the exact fraction."""
    steps = round(epochs / (rate.exact if rate is not None else 1))
    if steps < 1:
        raise ValueError(f"{float(epochs):g} epochs at this rate round to no step at all: give more epochs or --steps.")
    return steps


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 step, 3,516 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
