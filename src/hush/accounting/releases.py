"""The single releases: noise on a number or a vector, a coin on an answer, or just a promise that was made.

A release is decided by its pair of distributions (P, Q), P with the record in question and Q without it; each class
names its own.  Put it on a sample with `.poisson` or `.uniform`, repeat it with `*`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hush.accounting.checks import as_noise, check_guarantee, check_whole
from hush.accounting.mechanisms import ADD_REMOVE, BOUND, REPLACE_ONE, Mechanism, Neighbours

if TYPE_CHECKING:
    from hush.accounting.errors import Array
    from hush.accounting.pairs.losses import Pair

_ADDED_ONLY = "Projected norms are analysed for add/remove one only; sample with .poisson(rate)."


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise of `noise_multiplier` times the sensitivity, on all coordinates of one release."""

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", as_noise(self.noise_multiplier))

    def describe(self) -> str:
        return f"Gaussian(noise_multiplier={self.noise_multiplier:g})"

    @property
    def mu(self) -> float:
        return 1 / self.noise_multiplier

    def pair(self) -> Pair:
        from hush.accounting.pairs.losses import GaussianPair

        return GaussianPair(1 / self.noise_multiplier)

    def under(self, neighbours: Neighbours) -> Gaussian:
        return Gaussian(self.noise_multiplier, neighbours)

    @staticmethod
    def joint(*noise_multipliers: float, neighbours: Neighbours = ADD_REMOVE) -> Gaussian:
        """Several releases from one and the same sample: one release with (sum of sigma_i^-2)^(-1/2).

        Per-layer noise, or a count beside a gradient.  Charging them as separately subsampled releases would
        understate the loss, so subsample this value instead.
        """
        if not noise_multipliers:
            raise ValueError("A joint release needs at least one noise multiplier.")
        return Gaussian(math.fsum(as_noise(noise) ** -2 for noise in noise_multipliers) ** -0.5, neighbours)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise whose scale is `noise_multiplier` times the (one-norm) sensitivity: 1/noise_multiplier-DP."""

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", as_noise(self.noise_multiplier))

    def describe(self) -> str:
        return f"Laplace(noise_multiplier={self.noise_multiplier:g})"

    @property
    def largest_loss(self) -> float:
        return 1 / self.noise_multiplier

    def pair(self) -> Pair:
        from hush.accounting.pairs.losses import LaplacePair

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
        check_guarantee(self.truth_epsilon)
        object.__setattr__(self, "truth_epsilon", float(self.truth_epsilon))

    def describe(self) -> str:
        return f"RandomisedResponse(truth_epsilon={self.truth_epsilon:g})"

    @property
    def largest_loss(self) -> float:
        return self.truth_epsilon

    def pair(self) -> Pair:
        from hush.accounting.pairs.losses import randomised_response

        return randomised_response(self.truth_epsilon)


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
            check_guarantee(epsilon, delta)
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
        from hush.accounting.pairs.losses import guarantees

        return guarantees(self.promises)


@dataclass(frozen=True)
class Tradeoff(Mechanism):
    """Any mechanism whose attacker's errors satisfy beta >= f(alpha) at the points given, f convex.

    That is a promise about the points and no more, so what is answered is the epsilon that every such f keeps: that of
    the greatest convex function below them all, whose corners are where neighbouring chords, extended, meet.  A few
    points promise little: where that function falls at once, by 1 - f(0), epsilon is infinite at every delta below.
    f is made symmetric (Proposition 2 of Dong, Roth, Su).
    """

    kind: ClassVar[str] = "trade-off"
    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    neighbours: Neighbours = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "alphas", tuple(float(a) for a in self.alphas))
        object.__setattr__(self, "betas", tuple(float(b) for b in self.betas))
        from hush.accounting.tradeoff_points import check_tradeoff_points

        check_tradeoff_points(self.alphas, self.betas)

    @staticmethod
    def of(function: Callable[[Array], Array], points: int = 2000, neighbours: Neighbours = ADD_REMOVE) -> Tradeoff:
        """A trade-off function (any callable on [0, 1]) sampled densely, most densely near its ends; enclosed."""
        from hush.accounting.tradeoff_points import sample_tradeoff

        return SampledTradeoff(*sample_tradeoff(function, points), neighbours)

    @property
    def tag(self) -> str:
        return BOUND

    def describe(self) -> str:
        return f"{type(self).__name__}({len(self.alphas)} points)"

    def pair(self) -> Pair:
        from hush.accounting.tradeoff_points import pair_of_points

        return pair_of_points(self.alphas, self.betas, chords=False)


@dataclass(frozen=True)
class SampledTradeoff(Tradeoff):
    """A trade-off function known at points: between them it lies below its chords and above their extensions.

    Both envelopes are kept, so that the answer encloses that of the function behind the points.
    """

    kind: ClassVar[str] = "sampled trade-off"

    def pair(self) -> Pair:
        from hush.accounting.tradeoff_points import pair_of_points

        return pair_of_points(self.alphas, self.betas, chords=True)


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
        object.__setattr__(self, "noise_multiplier", as_noise(self.noise_multiplier))
        check_whole("The number of projections", self.projections)
        object.__setattr__(self, "projections", int(self.projections))
        if self.neighbours is not ADD_REMOVE:
            raise ValueError(_ADDED_ONLY)

    @property
    def tag(self) -> str:
        """A bound: the analysis hands the attacker the norm's estimate, which the release doesn't show."""
        return BOUND

    def describe(self) -> str:
        return f"Projected(noise_multiplier={self.noise_multiplier:g}, projections={self.projections})"

    def pair(self) -> Pair:
        from hush.accounting.pairs.projection import ProjectedPair

        return ProjectedPair(self.noise_multiplier, self.projections)

    def under(self, neighbours: Neighbours) -> Mechanism:
        if neighbours != ADD_REMOVE:
            raise ValueError(_ADDED_ONLY)
        return self
