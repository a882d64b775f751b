"""The privacy loss of one step, as a value.

A mechanism on two neighbouring data sets gives two distributions, P and Q. All that differential privacy asks about
them is the law of the loss ``L = log dP/dQ``:

    delta(epsilon) = P(L = inf) + E_P[(1 - exp(epsilon - L))_+].

A `Pair` is such an ordered pair, seen only through the P- and Q-mass of sets ``a < L <= b``. That is enough to bound
any composition (see `hush.accounting.lattices.lattice`). The opposite direction, (Q, P), is `Pair.reverse`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

_TOGETHER = 64  # epsilons for which losses beyond them all are summed at once


class Pair(Protocol):
    """An ordered pair of distributions, seen through its loss."""

    @property
    def infinite(self) -> float:
        """The P-mass where Q vanishes: P(L = +inf)."""

    @property
    def vanishing(self) -> float:
        """The Q-mass where P vanishes: Q(L = -inf)."""

    @property
    def atoms(self) -> tuple[float, ...]:
        """The finite losses that carry mass of their own; a lattice through them loses nothing there."""

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-mass of the bins (-inf, e_0], (e_0, e_1], ..., (e_{n-1}, inf): n + 1 values each.

        Each is good to a few units in its own last place, also in the tails. An atom within rounding of an edge may
        fall to either side. `infinite` counts in the last P-bin, `vanishing` in the first Q-bin.
        """

    def reverse(self) -> Pair:
        """The pair (Q, P): losses negated."""


def bin_masses(below: Array, above: Array) -> Array:
    """Masses of the bins between edges, from the mass below and above each edge.

    A difference of two tails is taken on the side where the tails are smaller, so that small masses keep their digits.
    """
    left = np.diff(below, prepend=0.0)
    right = -np.diff(above, prepend=above[:1])
    inner = np.where(below < above, left, right)
    if below.size == 0:
        return np.ones(1)
    inner[0] = below[0]
    return np.append(np.maximum(inner, 0.0), above[-1])


class Continuous:
    """What most pairs share: P and Q vanish together, and no loss carries mass of its own."""

    @property
    def infinite(self) -> float:
        return 0.0

    @property
    def vanishing(self) -> float:
        return 0.0

    @property
    def atoms(self) -> tuple[float, ...]:
        return ()


@dataclass(frozen=True)
class GaussianPair(Continuous):
    """N(mu, 1) against N(0, 1): ``L = mu x - mu^2 / 2``. One release with noise multiplier 1/mu."""

    mu: float

    def masses(self, edges: Array) -> tuple[Array, Array]:
        scaled, half = edges / self.mu, self.mu / 2
        x, y = scaled - half, scaled + half
        return bin_masses(ndtr(x), ndtr(-x)), bin_masses(ndtr(y), ndtr(-y))

    def reverse(self) -> GaussianPair:
        return self


@dataclass(frozen=True)
class LaplacePair(Continuous):
    """Lap(0, 1) against Lap(mu, 1): ``L = |x - mu| - |x|``.

    Outside [0, mu] the loss is constant, so half of P sits at +mu and half of Q at -mu; between, x = (mu - L) / 2.
    """

    mu: float

    @property
    def atoms(self) -> tuple[float, ...]:
        return (-self.mu, self.mu)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        inside = np.clip(edges, -self.mu, self.mu)
        p_below = np.where(edges < -self.mu, 0.0, 0.5 * np.exp((inside - self.mu) / 2))
        q_above = np.where(edges >= self.mu, 0.0, 0.5 * np.exp((-self.mu - inside) / 2))
        p_below = np.where(edges >= self.mu, 1.0, p_below)
        q_above = np.where(edges < -self.mu, 1.0, q_above)
        return bin_masses(p_below, 1 - p_below), bin_masses(1 - q_above, q_above)

    def reverse(self) -> LaplacePair:
        return self


@dataclass(frozen=True)
class Atoms:
    """A finite pair: P-mass ``p[i]`` and Q-mass ``q[i]`` at loss ``losses[i] = log(p[i] / q[i])``."""

    losses: tuple[float, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    infinite: float = 0.0
    vanishing: float = 0.0

    @property
    def atoms(self) -> tuple[float, ...]:
        return self.losses if len(self.losses) <= 32 else ()

    @cached_property
    def _arrays(self) -> tuple[Array, Array, Array]:
        """Losses, P- and Q-masses; groups have thousands of them, and ask as often."""
        return np.array(self.losses), np.array(self.p), np.array(self.q)

    def log_delta(self, epsilons: Array, margin: float = 0.0) -> Array:
        """log delta of this one pair, its finite part taken (1 + margin) times.

        All terms of E_P[(1 - exp(eps - L))_+] are positive, so small ones keep their digits.  Losses beyond the last
        epsilon e of a few enter as sums: 1 - exp(eps - L) = 1 - exp(eps - e) + exp(eps - e) (1 - exp(e - L)).
        """
        losses, p, _ = self._arrays
        found = np.empty(epsilons.shape)
        order = np.argsort(epsilons, kind="stable")
        for start in range(0, order.size, _TOGETHER):
            few = order[start : start + _TOGETHER]
            own, last = epsilons[few], float(epsilons[few[-1]])
            far = losses > last
            near = (losses > own[0]) & ~far
            spared = -np.expm1(np.minimum(np.subtract.outer(own, losses[near]), 0.0))
            beyond = (
                -np.expm1(own - last) * p[far].sum()
                + np.exp(own - last) * (p[far] * -np.expm1(last - losses[far])).sum()
            )
            found[few] = beyond + (spared * p[near]).sum(axis=1)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.infinite + (1 + margin) * found))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        losses, *both = self._arrays
        where = np.searchsorted(edges, losses, side="left")
        p, q = (np.bincount(where, masses, edges.size + 1).astype(np.float64) for masses in both)
        p[-1] += self.infinite
        q[0] += self.vanishing
        return p, q

    def reverse(self) -> Atoms:
        return Atoms(tuple(-x for x in self.losses), self.q, self.p, self.vanishing, self.infinite)


def randomised_response(epsilon: float, delta: float = 0.0) -> Atoms:
    """The most revealing (epsilon, delta)-private pair (Kairouz et al. 2015); delta = 0 is randomised response.

    P = (delta, (1 - delta) e^eps / (1 + e^eps), (1 - delta) / (1 + e^eps), 0) and Q is its mirror image.
    """
    return guarantees(((epsilon, delta),))


def guarantees(promises: Sequence[tuple[float, float]]) -> Atoms:
    """The most revealing pair that keeps every promise (epsilon_i, delta_i) at once, in both directions.

    Its trade-off function is the largest of the f_{epsilon_i, delta_i} (Dong, Roth and Su 2022, Proposition 5), where
    ``f_{eps,delta}(a) = max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a))``: the upper envelope of straight lines.
    A line of slope -e^l that rules on a stretch of type I errors a gives an atom at loss l, Q-mass the length of the
    stretch and P-mass e^l times that.  Where f(a) > a only the steep lines rule, and what is below the diagonal is the
    mirror image of what is above: an atom at -l with P- and Q-mass exchanged.  So nothing here is 1 minus something,
    and lengths are never formed: masses keep their digits where e^-eps is below a unit in the last place of 1.
    """
    infinite, loss = min((delta, epsilon) for epsilon, delta in promises)  # the highest line at a = 0, then flattest
    given, start = infinite, 0.0  # the delta of the line at hand; where it begins to rule, as e^loss a
    losses: list[float] = []
    masses: list[float] = []
    while True:
        diagonal = (1 - given) / (1 + math.exp(-loss))
        flatter = [((delta - given) / -math.expm1(low - loss), low, delta) for low, delta in promises if low < loss]
        meeting, low, delta = min(flatter, default=(math.inf, 0.0, 0.0))
        end = min(meeting, diagonal)
        if end > start:
            losses.append(loss)
            masses.append(end - start)
        if meeting >= diagonal:
            break
        start = end * math.exp(low - loss)
        loss, given = low, delta
    found = [(at, mass, mass * math.exp(-at)) for at, mass in zip(losses, masses, strict=True)]
    above = [atom for atom in found if atom[0] > 0]
    middle = [(0.0, 2 * mass, 2 * mass) for at, mass, _ in found if at == 0]  # its own mirror image
    atoms = [*above, *middle, *((-at, q, p) for at, p, q in reversed(above))]
    ordered, p, q = (tuple(atom[k] for atom in atoms) for k in range(3))
    return Atoms(ordered, p, q, infinite, infinite)


@dataclass(frozen=True)
class Reversed:
    """(Q, P) for the pair (P, Q)."""

    pair: Pair

    @property
    def infinite(self) -> float:
        return self.pair.vanishing

    @property
    def vanishing(self) -> float:
        return self.pair.infinite

    @property
    def atoms(self) -> tuple[float, ...]:
        return tuple(-loss for loss in self.pair.atoms)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        p, q = self.pair.masses(-edges[::-1])
        return q[::-1], p[::-1]

    def reverse(self) -> Pair:
        return self.pair


@dataclass(frozen=True)
class Poisson:
    """(1 - rate) Q + rate P against Q, for the inner pair (P, Q): each record takes part by its own coin flip.

    With inner loss u the loss is ``L = log(1 - rate + rate e^u) > log(1 - rate)``. This is the direction in which the
    record is added to the second data set; `reverse` is the other neighbouring direction, and both count.
    """

    inner: Pair
    rate: float

    @property
    def infinite(self) -> float:
        return self.rate * self.inner.infinite

    @property
    def vanishing(self) -> float:
        return self.inner.vanishing if self.rate == 1 else 0.0

    @property
    def atoms(self) -> tuple[float, ...]:
        if self.rate == 1:
            return self.inner.atoms
        floor = math.log1p(-self.rate)
        mapped = tuple(float(np.logaddexp(floor, math.log(self.rate) + u)) for u in self.inner.atoms)
        return (*mapped, floor) if self.inner.vanishing > 0 else mapped

    def masses(self, edges: Array) -> tuple[Array, Array]:
        if self.rate == 1:
            return self.inner.masses(edges)
        inner, q = self.parts(edges)
        return (1 - self.rate) * q + self.rate * inner, q

    def parts(self, edges: Array) -> tuple[Array, Array]:
        """The inner pair's P- and Q-mass of the same bins, for rates below 1: P - Q is the rate times P_inner - Q."""
        reached = edges[edges > math.log1p(-self.rate)]
        empty = np.zeros(edges.size - reached.size)
        p, q = self.inner.masses(self.inner_loss(reached))
        return np.concatenate([empty, p]), np.concatenate([empty, q])

    def inner_loss(self, loss: Array) -> Array:
        """``u = log((e^L - (1 - rate)) / rate)``, without overflow for large losses."""
        small = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / self.rate, -1 + 2.0**-53))
        large = loss - math.log(self.rate) + np.log1p(-(1 - self.rate) * np.exp(-np.maximum(loss, 1.0)))
        # p > 1/2 where losses are below -0.7, so 1 - p is exact, and only the true difference loses digits
        least = 2.0**-60
        negative = np.log(np.maximum(np.exp(np.minimum(loss, 0.0)) - (1 - self.rate), least) / self.rate)
        return np.where(loss < -0.7, negative, np.where(loss < 1.0, small, large))

    def reverse(self) -> Pair:
        return Reversed(self)


@dataclass(frozen=True)
class Uniform:
    """A batch of fixed size, one record replaced: C_p of a symmetric inner pair (Dong, Roth and Su 2022, Eq. (13)).

    ``C_p(f) = min{f_p, f_p^-1}**`` with ``f_p = p f + (1 - p) Id``. Above loss 0 it is the Poisson pair, below 0 the
    mirror image of that, and what remains has loss 0. A bound on what sampling reveals, and symmetric.
    """

    inner: Pair
    rate: float

    @property
    def infinite(self) -> float:
        return self.rate * self.inner.infinite

    @property
    def vanishing(self) -> float:
        return self.infinite

    @property
    def atoms(self) -> tuple[float, ...]:
        positive = tuple(loss for loss in Poisson(self.inner, self.rate).atoms if loss > 0)
        return (*(-loss for loss in positive), 0.0, *positive)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        half = Poisson(self.inner, self.rate)
        positive, negative = edges[edges > 0], edges[edges <= 0]
        p_high, q_high = half.masses(np.append(0.0, positive))
        p_low, q_low = half.masses(np.append(0.0, -negative[negative < 0][::-1]))
        zeros = np.zeros(int(np.sum(negative == 0)))
        atom = max(0.0, 1 - float(p_high[1:].sum() + q_high[1:].sum()))
        # Bins: strictly negative edges (mirrored), then any edge at 0, then the positive ones; the bin that ends or
        # straddles 0 holds the atom.
        p = np.concatenate([q_low[1:][::-1], zeros, p_high[2:]])
        q = np.concatenate([p_low[1:][::-1], zeros, q_high[2:]])
        straddling = p_low.size - 2
        at = straddling + zeros.size
        p[straddling] += atom
        q[straddling] += atom
        p[at] += p_high[1]
        q[at] += q_high[1]
        return p, q

    def reverse(self) -> Uniform:
        return self


@dataclass(frozen=True)
class Enclosed:
    """A pair known only to lie between two others: ``lower`` reveals no more than it, ``upper`` no less.

    For general trade-off functions and group privacy. The accountant takes its lower bounds from ``lower`` and its
    upper bounds from ``upper``. Subsample the two ends, not the enclosure.
    """

    lower: Pair
    upper: Pair

    @property
    def infinite(self) -> float:
        return self.upper.infinite

    @property
    def vanishing(self) -> float:
        return self.upper.vanishing

    @property
    def atoms(self) -> tuple[float, ...]:
        return self.upper.atoms

    def masses(self, edges: Array) -> tuple[Array, Array]:
        return self.upper.masses(edges)

    def reverse(self) -> Enclosed:
        return Enclosed(self.lower.reverse(), self.upper.reverse())
