"""A rough picture of the losses of many steps: where a certified computation should look.

Nothing here enters a bound but the scale of rounding (`Survey.doubt`). The lattice accountant takes its tilt, cut-offs
and spacing from a `Plan`; a poor plan costs width, not truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hush.accounting.lattices.laws import spread
from hush.accounting.pairs.glances import glance, glance_far
from hush.accounting.pairs.losses import Array, Atoms, Enclosed, GaussianPair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.projection import ProjectedPair

_SMALLEST = 1e-10  # loss that is told apart, or a hundredth of what is usual
_LEAST = 1e-290  # as long as that is a floating-point number, and so are ratios of losses
LARGEST = 1e4  # no epsilon beyond is looked for
_MARGIN = 12.0  # losses that far beyond epsilon may count as infinite: it costs exp(-12) of their mass
_RARE = 16.0  # losses count as rare that make up less than exp(-16) of delta
_DEPTH = 45.0  # losses below -45 have P-mass below exp(-45)
_FAINT = -600.0  # log of a mass that floating-point numbers may not tell
_EASE = 8.0  # log of how far above delta the Chernoff bound may be: the transform's rounding grows with it


def _usual(pair: Pair) -> float:
    """The size of a sample's usual losses, the rate over the noise; 1 for others."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    if not isinstance(sample, Poisson | Uniform):
        return 1.0
    if isinstance(sample.inner, ProjectedPair):
        return sample.rate / max(sample.inner.noise_multiplier, 1.0)
    return sample.rate * min(sample.inner.mu, 1.0) if isinstance(sample.inner, GaussianPair) else 1.0


def _furthest(pair: Pair) -> float:
    """The largest |loss| that carries mass of its own, however many there are."""
    if isinstance(pair, Enclosed):
        return max(_furthest(pair.lower), _furthest(pair.upper))
    inner = pair.pair if isinstance(pair, Reversed) else pair.inner if isinstance(pair, Poisson | Uniform) else None
    own = pair.losses if isinstance(pair, Atoms) else pair.atoms
    return max(0.0 if inner is None else _furthest(inner), *map(abs, own), 0.0)


@dataclass(frozen=True)
class Plan:
    """Where to look: exponential tilt, cut-offs, centres of the tilted losses and their root mean square deviation."""

    tilt: float
    low: float
    high: float
    centres: Array
    deviation: float
    epsilon: float = 0.0
    """Where delta is wanted: one loss of about this size may decide."""


@dataclass(frozen=True)
class Survey:
    """A rough picture of the steps' losses, on points that grow geometrically from 1e-10 or less to 3e4."""

    steps: tuple[tuple[Pair, int], ...]
    reach: float = 3 * LARGEST
    fineness: int = 1
    """How many times as many points."""
    owed: float = 0.0
    """What rounding did to the steps before."""
    shares: tuple[float, ...] = ()
    """How many kinds each step stands for, if not for itself."""

    @cached_property
    def total(self) -> float:
        return float(self.counts.sum())

    @cached_property
    def doubt(self) -> float:
        """Steps, weighted by how far out their atoms lie: the scale of the rounding of losses."""
        return self.owed + sum(count * (1 + _furthest(pair)) for pair, count in self.steps)

    @cached_property
    def counts(self) -> Array:
        return np.array([count for _, count in self.steps], dtype=np.float64) * (self.shares or 1.0)

    @cached_property
    def nodes(self) -> Array:
        smallest = max(min(_SMALLEST, *(0.01 * _usual(pair) for pair, _ in self.steps)), _LEAST)
        positive = np.geomspace(
            smallest, self.reach, math.ceil(75.8 * self.fineness * math.log10(self.reach / smallest))
        )
        return np.concatenate([-positive[::-1], [0.0], positive])

    @cached_property
    def masses(self) -> Array:
        """P-masses of the more revealing laws on the nodes, one row a step; a token at 0 where all is infinite."""
        rows = np.array([masses for masses, _ in self._laws])
        rows[rows.max(axis=1) == 0, self.nodes.size // 2] = 1e-300
        return rows

    @cached_property
    def log_masses(self) -> Array:
        """Their logarithms, of projected norms also where they are below any floating-point number."""
        rows = self._logs.copy()
        for k, (pair, _) in enumerate(self.steps):
            far = glance_far(pair, self.nodes)
            if far is not None:
                rows[k] = np.where(rows[k] < _FAINT, np.maximum(rows[k], far), rows[k])
        return rows

    @cached_property
    def _logs(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.masses))

    @cached_property
    def infinite(self) -> float:
        """How many losses are expected beyond the last node."""
        return float(self.counts @ [beyond for _, beyond in self._laws])

    @cached_property
    def _laws(self) -> list[tuple[Array, float]]:
        return [spread(*glance(pair).masses(self.nodes), self.nodes) for pair, _ in self.steps]

    def plan(self, epsilon: float, log_delta: float) -> tuple[Plan, float]:
        """How to compute delta at an epsilon where it is about so large, and a rough value of its logarithm.

        Losses so rare that they can't matter are cut off, and so are those beyond any doubt above epsilon: else they
        would rule the moments.
        """
        low, high, tilts, exponents = self._chernoff(epsilon, log_delta)
        best = float(exponents.min())
        # The smallest tilt that leaves the transform's rounding errors far below delta keeps heavy tails out of the
        # window.
        tilt = float(tilts[np.argmax(exponents <= max(best + 0.5, log_delta + _EASE))])
        return replace(self.plan_tilt(tilt, low, high), epsilon=epsilon), self._with_beyond(best, high)

    def _with_beyond(self, log_delta: float, high: float) -> float:
        """With what lies beyond a cut-off."""
        after = self.nodes.size - int(np.searchsorted(self.nodes, high, side="right"))
        beyond = float(self._cumulated_back[after - 1]) if after else 0.0
        return float(np.logaddexp(log_delta, math.log(max(beyond + self.infinite, 1e-300))))

    def saddle(self, epsilon: float, log_delta: float) -> float:
        """The tilt with the best of Chernoff's bounds."""
        _, _, tilts, exponents = self._chernoff(epsilon, log_delta)
        return float(tilts[1 + np.argmin(exponents[1:])])

    def window(self, epsilon: float, log_delta: float) -> tuple[float, float, float]:
        """Cut-offs, and roughly the deviation of the total."""
        rare_low, rare_high = self.quantiles(log_delta - _RARE)
        low, high = rare_low, min(rare_high, abs(epsilon) + _MARGIN)
        for _ in range(2):
            width = 8 * self._deviation(low, high)
            low, high = max(rare_low, -_DEPTH - width), min(rare_high, abs(epsilon) + _MARGIN + width)
        return low, high, max(width / 8, 1e-12)

    def _deviation(self, low: float, high: float) -> float:
        """About that of the total of losses in between."""
        first = int(np.searchsorted(self.nodes, low))
        last = max(int(np.searchsorted(self.nodes, high, side="right")), first)
        mass, mean, square = (rows[:, last] - rows[:, first] for rows in self._powers)
        with np.errstate(all="ignore"):
            variances = np.where(mass > 0, square / mass - (mean / mass) ** 2, 0.0)
        return math.sqrt(float(self.counts @ np.maximum(variances, 0.0)))

    @cached_property
    def _powers(self) -> tuple[Array, Array, Array]:
        """Mass, and sums of losses and of their squares, up to each node."""
        mass, mean, square = (np.cumsum(self.masses * self.nodes**power, axis=1) for power in (0, 1, 2))
        return tuple(np.pad(rows, ((0, 0), (1, 0))) for rows in (mass, mean, square))  # type: ignore[return-value]

    @cached_property
    def _cumulated(self) -> Array:
        """How many losses are expected up to each node."""
        return np.append(0.0, np.cumsum(self.counts @ self.masses))

    def _chernoff(self, epsilon: float, log_delta: float) -> tuple[float, float, Array, Array]:
        """Cut-offs, tilts, and the logarithms of Chernoff's bounds at these."""
        low, high, scale = self.window(epsilon, log_delta)
        tilts = np.append(0.0, np.geomspace(1e-3 / (scale + abs(epsilon)), 1e3 / scale, 60))
        exponents = self._log_mgf(tilts, low, high) - tilts * epsilon
        exponents[1:] += tilts[1:] * np.log(tilts[1:] / (1 + tilts[1:])) - np.log1p(tilts[1:])
        return low, high, tilts, exponents

    def plan_at(self, epsilon: float) -> tuple[Plan, float]:
        """The same where nothing is known of delta: try sizes, until it is no smaller than that."""
        rough = math.inf
        for size in (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 640.0):
            rough = min(rough, self.plan(epsilon, -size)[1])
            if rough >= -size:
                break
        return self.plan(epsilon, rough)

    def quantiles(self, log_mass: float) -> tuple[float, float]:
        """Losses below and above which all steps together have no more P-mass than this."""
        allowed = math.exp(max(log_mass, -690.0))
        below, above = self._cumulated[1:] > allowed, self._cumulated_back > allowed
        first, last = int(np.argmax(below)), above.size - 1 - int(np.argmax(above))
        if not below.any() or first > last:
            return -1.0, 1.0
        return float(self.nodes[max(first - 1, 0)]), float(self.nodes[min(last + 1, above.size - 1)])

    @cached_property
    def _cumulated_back(self) -> Array:
        """The same from the last node on, in that order: what is rare keeps its digits."""
        return np.asarray(np.cumsum((self.counts @ self.masses)[::-1]))

    def plan_tilt(self, tilt: float, low: float, high: float) -> Plan:
        centres, deviation = self._moments(tilt, low, high)
        return Plan(tilt, low, high, centres, max(deviation, 1e-12, 1e-7 * float(np.abs(centres).max())))

    def guess(self, log_delta: float) -> float:
        """A rough epsilon for a delta, by bisection."""
        low, high = 1e-12, 1.01 * LARGEST
        for _ in range(12):
            middle = math.sqrt(low * high)
            _, cut, _, exponents = self._chernoff(middle, log_delta)
            more = self._with_beyond(float(exponents.min()), cut) > log_delta
            low, high = (middle, high) if more else (low, middle)
        return high

    def _between(self, low: float, high: float) -> NDArray[np.bool_]:
        charged = self._charged
        inside = charged & (self.nodes >= low) & (self.nodes <= high)
        return np.asarray(inside if inside.any() else charged)

    @cached_property
    def _charged(self) -> NDArray[np.bool_]:
        return np.asarray(self.masses.max(axis=0) > 0)

    def _log_mgf(self, tilts: Array, low: float, high: float) -> Array:
        here = self._between(low, high)
        masses = self.masses[:, here]
        largest = masses.max(axis=0)
        exponents = np.log(largest)[:, None] + np.outer(self.nodes[here], tilts)
        peaks = exponents.max(axis=0)
        sums = (masses / largest) @ np.exp(exponents - peaks)
        return np.asarray(self.counts @ (np.log(sums + 1e-300) + peaks))

    def _moments(self, tilt: float, low: float, high: float) -> tuple[Array, float]:
        """Mean of each step's tilted loss, and the root mean square deviation over all steps.

        A step with no mass in between is looked for at the end that is nearest to its commonest loss.
        """
        here = self._between(low, high)
        nodes = self.nodes[here]
        exponents = self._logs[:, here] + tilt * nodes
        for absent in np.flatnonzero(~np.isfinite(exponents.max(axis=1))):
            exponents[absent, np.argmin(np.abs(nodes - self.nodes[np.argmax(self.masses[absent])]))] = 0.0
        weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        centres = weights @ nodes
        variances = weights @ nodes**2 - centres**2
        return centres, math.sqrt(max(0.0, float(self.counts @ variances)) / self.total)
