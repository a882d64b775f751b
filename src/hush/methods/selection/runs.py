"""How many runs a search makes: a random number, drawn in secret.

With a number that everybody knows, choosing the best of many runs costs about as much as publishing all of them.  If
the number is random, and large numbers are not too surprising, it hides how often a good result came up (Liu and Talwar
2019; Papernot and Steinke 2022).

A law is known here by the slope of its generating function f(x) = E[x^K]: all costs are functions of it
(`hush.methods.selection.costs`).  f'(1) = E[K], and `log_slope(y)` is log f'(1 - y) - log f'(1), which falls from 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hush.accounting.checks import check_positive
from hush.keys import Stream

Array = NDArray[np.float64]


class Runs(ABC):
    """The law of the number of runs."""

    kind: ClassVar[str]
    mean: float

    @abstractmethod
    def log_slope(self, y: Array) -> Array:
        """log f'(1 - y) - log f'(1) for 0 <= y <= 1."""

    @abstractmethod
    def masses(self) -> Iterator[tuple[int, float]]:
        """P(K = k) for k from the smallest on, without end."""

    def draw(self, stream: Stream) -> int:
        """A number of runs, by the inverse of the distribution function at 53 random bits."""
        uniform = float(stream.words(1)[0] >> np.uint64(11)) * 2.0**-53
        below = 0.0
        for k, mass in self.masses():
            below += mass
            if uniform < below or (k > self.mean and mass < 1e-18):
                return k
        raise AssertionError("the masses never end")

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class NegativeBinomial(Runs):
    """The truncated negative binomial law, at least one run (Papernot and Steinke 2022, Definition 1).

    P(K = k) is proportional to (1 - gamma)^k (shape)(shape + 1)...(shape + k - 1)/k!, and gamma is found from the mean.
    Shape 1 is the geometric law, shape 0 the logarithmic one; below it the law has a heavier tail at the same mean:
    cheaper, but often a single run.  f'(x) is proportional to (1 - (1 - gamma) x)^-(1 + shape).
    """

    kind: ClassVar[str] = "negative binomial"
    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not 1 < self.mean < math.inf:
            raise ValueError(f"The mean number of runs lies above 1, got {self.mean}.")
        if not -1 < self.shape < math.inf:
            raise ValueError(f"The shape of a truncated negative binomial law lies above -1, got {self.shape}.")
        if not math.isclose(_mean(self._log_gamma, self.shape), self.mean, rel_tol=1e-9):
            raise ValueError(
                f"A truncated negative binomial law of shape {self.shape} can't be computed at a mean of "
                f"{self.mean:g}; take a larger shape or a smaller mean."
            )

    @cached_property
    def _log_gamma(self) -> float:
        low, high = -700.0, -1e-12  # of log gamma; the mean falls in gamma
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if _mean(middle, self.shape) > self.mean else (low, middle)
        return (low + high) / 2

    @property
    def gamma(self) -> float:
        """The parameter of the law: the chance to stop after a run, for the geometric one."""
        return math.exp(self._log_gamma)

    def log_slope(self, y: Array) -> Array:
        gamma = self.gamma
        slope: Array = -(1 + self.shape) * np.log1p((1 - gamma) * y / gamma)
        return slope

    def masses(self) -> Iterator[tuple[int, float]]:
        log_gamma, shape = self._log_gamma, self.shape
        # f'(0) = E[K] gamma^(1 + shape); by logarithms, since the first masses of a large shape are below any number
        mass = math.log(self.mean) + (1 + shape) * log_gamma
        more = math.log(-math.expm1(log_gamma))  # of 1 - gamma
        for k in count(1):
            yield k, math.exp(mass)
            mass += more + math.log((k + shape) / (k + 1))

    def to_dict(self) -> dict[str, Any]:
        return {"runs": self.kind, "mean": self.mean, "shape": self.shape}

    def __str__(self) -> str:
        names = {1.0: "geometric", 0.0: "logarithmic"}
        named = names.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")
        return f"a secret number of runs, {named} with mean {self.mean:g}"


def Geometric(mean: float) -> NegativeBinomial:
    """After every run a coin decides whether to stop: at least one run."""
    return NegativeBinomial(mean, 1.0)


def Logarithmic(mean: float) -> NegativeBinomial:
    """P(K = k) proportional to (1 - gamma)^k / k: at least one run, and more often just one."""
    return NegativeBinomial(mean, 0.0)


@dataclass(frozen=True)
class Poisson(Runs):
    """The Poisson law: rarely far from its mean, for which it pays; with probability e^-mean no run and no model."""

    kind: ClassVar[str] = "poisson"
    mean: float

    def __post_init__(self) -> None:
        check_positive("The mean number of runs", self.mean)
        if self.mean > 600:
            raise ValueError(f"A search of {self.mean:g} runs on average is too long; give at most 600.")

    def log_slope(self, y: Array) -> Array:
        return -self.mean * y

    def masses(self) -> Iterator[tuple[int, float]]:
        mass = math.exp(-self.mean)
        for k in count(0):
            yield k, mass
            mass *= self.mean / (k + 1)

    def to_dict(self) -> dict[str, Any]:
        return {"runs": self.kind, "mean": self.mean}

    def __str__(self) -> str:
        return f"a secret number of runs, Poisson with mean {self.mean:g}"


@dataclass(frozen=True)
class Every:
    """Each candidate once, everything composed: what it costs to look at all of them."""

    kind: ClassVar[str] = "every"

    def to_dict(self) -> dict[str, Any]:
        return {"runs": self.kind}

    def __str__(self) -> str:
        return "every candidate once, all of them paid for"


def _mean(log_gamma: float, shape: float) -> float:
    """E[K] = shape (1 - gamma)/(gamma (1 - gamma^shape)), and (1/gamma - 1)/log(1/gamma) at shape 0."""
    odds = -math.expm1(log_gamma) * math.exp(-log_gamma)  # (1 - gamma)/gamma
    scaled = shape * log_gamma
    if abs(scaled) < 1e-12:
        return odds / -log_gamma
    if scaled > 700:  # a negative shape, gamma tiny: gamma^shape is all there is
        return -shape * odds * math.exp(-scaled)
    return shape * odds / -math.expm1(scaled)
