"""Projected norms at a glance: some thousandths off, for searches and never for a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting.pairs.losses import Array, Continuous, GaussianPair, Pair, Poisson, Reversed
from hush.accounting.pairs.projection import ProjectedPair, instead

_ALMOST_SURE = 10**8  # projections from which on z is 1/sigma to a few thousandths, however deep
_PLACES = np.geomspace(1e-3, 1e12, 240)  # losses at which a glance looks in any case, by their scale


@dataclass(frozen=True)
class Glance(Continuous):
    """The same pair by the closed form of its loss's density: some thousandths off, far faster, for no bound.

    With nu = (r+1)/2 and x = sqrt(v^2 + r/sigma^2)/2 the densities of the loss v under P and Q are e^{v/2} and e^{-v/2}
    times E(v), a constant times x^-nu K_nu(x).  K_nu is taken by Debye's expansion, log E is linear between places, and
    both laws are scaled alike to a mass of 1, so that they fit each other to the last digit, as T steps need it.
    """

    noise_multiplier: float
    projections: int

    def masses(self, edges: Array) -> tuple[Array, Array]:
        middles, up, down, _ = self._cells(edges)
        where = np.searchsorted(edges, np.concatenate([-middles[::-1], middles]))
        whole = float(up.sum() + down.sum())
        p = np.bincount(where, np.concatenate([down[::-1], up]), edges.size + 1) / whole
        q = np.bincount(where, np.concatenate([up[::-1], down]), edges.size + 1) / whole
        return np.asarray(p), np.asarray(q)

    @property
    def log_whole(self) -> float:
        """log of what E e^{v/2} and E e^{-v/2} add up to over all v > 0."""
        _, up, down, peak = self._cells(np.zeros(1))
        return peak + math.log(float(up.sum() + down.sum()))

    def _cells(self, edges: Array) -> tuple[Array, Array, Array, float]:
        """Middles of cells of |v| that no edge cuts, what E e^{v/2} and E e^{-v/2} have there, both over e^peak."""
        sizes = np.unique(np.concatenate([[0.0], np.abs(edges), _PLACES / max(self.noise_multiplier, 1.0)]))
        middles = 0.5 * (sizes[1:] + sizes[:-1])
        ends, between, half = self.log_even(sizes), self.log_even(middles), 0.5 * np.diff(sizes)
        peak = float((ends + 0.5 * sizes).max())
        up, down = (
            half
            * (
                _log_mean(ends[:-1] - peak + share * sizes[:-1], between - peak + share * middles)
                + _log_mean(between - peak + share * middles, ends[1:] - peak + share * sizes[1:])
            )
            for share in (0.5, -0.5)
        )
        return middles, up, down, peak

    def log_even(self, loss: Array) -> Array:
        """log E, but for a constant."""
        r, nu = float(self.projections), 0.5 * (self.projections + 1)
        square = 0.25 * (loss * loss + r / self.noise_multiplier**2)
        root = np.sqrt(square + nu * nu)
        t = nu / root
        series = (5 * t**3 - 3 * t) / (24 * nu) + (81 * t**2 - 462 * t**4 + 385 * t**6) / (1152 * nu * nu)
        return np.asarray(-nu * np.log(square / (root + nu)) - 0.5 * np.log(root) + np.log1p(series) - root)

    def reverse(self) -> Glance:
        return self


def glance(pair: Pair) -> Pair:
    """The pair as a look at it needs it: projected norms by a closed form, the rest as it is."""

    def seen(projected: ProjectedPair) -> Pair:
        if projected.projections > _ALMOST_SURE:
            return GaussianPair(1 / projected.noise_multiplier)
        return Glance(projected.noise_multiplier, projected.projections)

    return instead(pair, seen)


def glance_far(pair: Pair, nodes: Array) -> Array | None:
    """About the logs of a projected release's P-masses around the nodes, however small; None for others."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    inner = sample.inner if isinstance(sample, Poisson) else sample
    if not isinstance(inner, ProjectedPair):
        return None
    mirrored, seen = sample is not pair, Glance(inner.noise_multiplier, min(inner.projections, _ALMOST_SURE))
    at = -nodes[::-1] if mirrored else nodes
    floor, log_rate = -math.inf, 0.0
    with np.errstate(all="ignore"):
        if isinstance(sample, Poisson) and sample.rate < 1:
            floor, log_rate = math.log1p(-sample.rate), math.log(sample.rate)
            at = np.where(at > floor, sample.inner_loss(at), np.nan)
        even = seen.log_even(np.abs(at)) - seen.log_whole + np.log(np.gradient(at))
        log_q = even - 0.5 * at
        logs = log_q if mirrored else np.logaddexp(floor + log_q, log_rate + even + 0.5 * at)
    logs = np.where(np.isnan(logs), -np.inf, logs)
    return np.asarray(logs[::-1] if mirrored else logs)


def _log_mean(one: Array, other: Array) -> Array:
    """The mean of e^f where f runs straight from the one to the other."""
    gap = np.abs(one - other) + 1e-9
    return np.asarray(np.exp(np.maximum(one, other)) * (-np.expm1(-gap) / gap))
