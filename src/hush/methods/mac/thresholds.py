"""Thresholds learned from a noisy histogram of norms (Harder et al. 2018, Algorithm 2), which is charged.

For every part of every layer the norms of what the sample's records add are counted in fixed bins.  A record adds one
count to each of P histograms: P^(1/2) in Euclidean norm; replacing it moves two counts in each, (2 P)^(1/2).  The
thresholds are quantiles of the noisy counts: post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hush import noise
from hush.accounting import Gaussian, Mechanism
from hush.accounting.checks import check_positive
from hush.keys import Key
from hush.sampling import Poisson, Uniform
from hush.units import Draw


def _decades() -> tuple[float, ...]:
    return tuple(10 ** (i / 5) for i in range(-25, 16))


@dataclass(frozen=True)
class Histogram:
    """The public numbers of the release.

    records, batch    as in a plan; the sample is drawn by `sampling`
    noise_multiplier  the noise's standard deviation over the sensitivity
    quantile          the share of the sample's norms that the thresholds are to leave as they are
    edges             of the bins; by default five a decade from 1e-5 to 1e3; fewer bins add less noise
    """

    records: int
    batch: float
    noise_multiplier: float
    quantile: float = 0.5
    edges: tuple[float, ...] = field(default_factory=_decades)
    sampling: Poisson | Uniform = field(default_factory=Poisson)

    def __post_init__(self) -> None:
        self.sampling.check(self.batch, self.records)
        check_positive("The noise multiplier of the histogram", self.noise_multiplier)
        if not 0 < self.quantile < 1:
            raise ValueError(f"The quantile of the norms lies between 0 and 1, got {self.quantile}.")
        if not self.edges or any(b <= a for a, b in zip((0.0, *self.edges), self.edges, strict=False)):
            raise ValueError("The edges of a histogram are positive and ascending.")

    @property
    def mechanism(self) -> Mechanism:
        """The release on its sample, for a plan's `beside`."""
        release = Gaussian(self.noise_multiplier, self.sampling.neighbours)
        return self.sampling.mechanism(release, batch=self.batch, records=self.records)

    def draw(self, key: Key, population: int) -> Draw:
        return self.sampling.draw(key, 0, population, batch=self.batch, records=self.records)

    def counts(self, norms: Tensor) -> Tensor:
        """How many norms (records by parts) lie up to each edge and above the one before: PRIVATE.

        What is larger than the last edge, or isn't a number, counts in the last bin.
        """
        edges = norms.new_tensor(self.edges)
        norms = torch.where(norms.isfinite(), norms, edges[-1])
        places = torch.searchsorted(edges, norms.contiguous()).clamp_max(len(edges) - 1)
        counts = norms.new_zeros(norms.shape[1], len(edges))
        return counts.scatter_add_(1, places.T, torch.ones_like(norms).T)

    def sensitivity(self, parts: int) -> float:
        """Of all counts together."""
        return math.sqrt(parts * self.sampling.neighbours.sensitivity)

    def quantiles(self, key: Key, norms: Tensor) -> tuple[float, ...]:
        """For every part, the edge up to which the noisy counts have the wanted share."""
        counts = self.counts(norms)
        std = self.noise_multiplier * self.sensitivity(len(counts))
        (noisy,) = noise.add(key, 0, [counts], [std], purpose="histogram noise")
        # A cumulative sum of noise wanders; of clamped counts it also grows.  Sums from both ends, unclamped, meet
        # where the share is right.
        below = noisy.cumsum(dim=1)
        above = noisy.sum(dim=1, keepdim=True) - below
        balance = (1 - self.quantile) * below - self.quantile * above
        places = balance.abs().argmin(dim=1)
        return tuple(self.edges[int(place)] for place in places)
