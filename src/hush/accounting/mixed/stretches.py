"""Integrals of g^r q over a stretch of the line, g = 1 - p + p e^u with u linear in x, by Gauss's sums on some panels.

The integrand is analytic, so few nodes are as good as the integral, and how good they are is a bound on its modulus
nearby.  What samples of Gaussian and Laplace noise need of it: unbinned.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.accounting.gaussian.transform import UNIT_ROUNDOFF
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import sampled_loss

ORDER = 20
# the positive ones, each the nearest floating-point number: NumPy's weights are off by up to 7e-14 of themselves
_NODES = np.array(
    [
        0.07652652113349734,
        0.22778585114164507,
        0.37370608871541955,
        0.5108670019508271,
        0.636053680726515,
        0.7463319064601508,
        0.8391169718222188,
        0.912234428251326,
        0.9639719272779138,
        0.9931285991850949,
    ]
)
_WEIGHTS = np.array(
    [
        0.15275338713072584,
        0.14917298647260374,
        0.14209610931838204,
        0.13168863844917664,
        0.11819453196151841,
        0.10193011981724044,
        0.08327674157670475,
        0.06267204833410907,
        0.04060142980038694,
        0.017614007139152118,
    ]
)
_NODES, _WEIGHTS = np.concatenate([-_NODES[::-1], _NODES]), np.concatenate([_WEIGHTS[::-1], _WEIGHTS])
_RADII = np.array([1.4, 2.0, 3.0, 4.5, 7.0])  # of Bernstein ellipses that are tried
_CELLS = np.linspace(-1.0, 1.0, 9)  # of a panel, widened to an ellipse, on each of which a bound is taken
_SHIFTS = np.geomspace(1e-3, 1.0, 14)  # by which paths are moved, as parts of the largest: of the angle, or of x
_TURN, _LIFT = 0.35 * math.pi, 8.0
_SIDES = 16  # cells of what leads to them


@dataclass(frozen=True)
class Ellipses:
    """Around the panels of a stretch, an ellipse for each radius tried: what bounds the integrand, cell by cell."""

    heights: Array
    """Half an ellipse's height, for each radius; and the log of what its largest value is to be multiplied by."""
    factors: Array
    losses: Array
    """At the ends of cells, by radius and panel."""
    shares: Array
    """The largest of a cell; and so are the next."""
    varied: Array
    """w (1 - w)."""
    densities: Array
    """log q."""


@dataclass(frozen=True)
class Stretch:
    """The integral of g^r q over [start, end], log q(x) = -bend x^2/2 - fall x - constant and u = slope x + offset.

    A sum over n Gauss-Legendre nodes is exact for polynomials up to degree 2n - 1.  Let f be analytic in the ellipse
    with foci -1, 1 and semi-axes (R +- 1/R)/2, and |f| <= M there.  Then its Chebyshev coefficients are at most
    2 M R^-k (Bernstein); those of odd degree add nothing to integral and sum, and one of degree k >= 2n no more than
    2/(k^2 - 1) + 2 <= 32/15.  So the sum errs by at most 64/15 M R^-2n/(1 - R^-2), times half the panel's length.
    """

    rate: float
    slope: float
    offset: float
    bend: float
    fall: float
    constant: float
    above: bool
    """Whether L = log g, else -log g."""
    start: float
    end: float

    def losses(self, x: Array) -> Array:
        """log g."""
        return sampled_loss(self.slope * x + self.offset, self.rate)

    def _log_density(self, x: Array) -> Array:
        return np.asarray(-0.5 * self.bend * x * x - self.fall * x - self.constant)

    def _shares(self, x: Array, losses: Array) -> Array:
        """p e^u/g, which is d log g/du."""
        return np.minimum(np.exp(math.log(self.rate) + self.slope * x + self.offset - losses), 1.0)

    def _panels(self, count: int) -> tuple[Array, float]:
        half = 0.5 * (self.end - self.start) / count
        return np.asarray(self.start + half * (2.0 * np.arange(count) + 1), dtype=np.float64), half

    def points(self, count: int) -> tuple[Array, Array, Array, Array]:
        """Losses, logs of masses, and what rounding does to log(g^r q) at a node: so much, and so much of |r|.

        Nodes are off by 8 u of the largest |x|, u by 4 u of its two terms, log g by 8 u of itself, logs by 8 u.
        """
        middles, half = self._panels(count)
        x = np.add.outer(middles, half * _NODES).ravel()
        found = self.losses(x)
        shares = self._shares(x, found)
        reach = max(abs(self.start), abs(self.end))
        moved = 8 * reach * self.slope + 4 * (np.abs(self.slope * x) + abs(self.offset))
        logs = self._log_density(x) + np.tile(np.log(half * _WEIGHTS), count)
        own = 64 + 8 * (np.abs(self.bend * x) + abs(self.fall)) * reach + 8 * np.abs(logs)
        losses = found if self.above else -found
        return losses, logs + found if self.above else logs, own, shares * moved + 8 * np.abs(found)

    @np.errstate(all="ignore")
    def log_errors(self, count: int, orders: Array, height: float, shift: float = 0.0) -> Array:
        """Logs of the errors of sums at s with such real parts, and imaginary parts up to a height.

        At x + iy, v = slope y <= pi/2, and with the share w at x: |g| <= g(x), |g|^2 = g(x)^2 (1 - 2 w (1-w) (1 - cos
        v)), arg g = arctan(w sin v/(1 - w (1 - cos v))), which rises with w and v, and |q| = q(x) e^{bend y^2/2}.
        With a shift b > 0: the errors of `log_decay`'s sums, the integrand being |g^r q| at x + ib as a function of x.
        At x + iy each power of |g| is the root of those at y + b and y - b, and the angle the mean of those at b + y
        and b - y, which is not negative: it rises with v up to pi/2.
        """
        nearby = self._ellipses(count)
        powers = 1 + orders if self.above else -orders
        turns = self.slope * (nearby.heights + shift)
        kept = int(np.searchsorted(turns, math.pi / 2, side="right"))  # heights rise with the radius
        if kept == 0:
            return np.full(orders.shape, np.inf)
        losses, shares, varied = (part[:kept] for part in (nearby.losses, nearby.shares, nearby.varied))
        sines, less = (part[:kept, None, None] for part in (np.sin(turns), 1 - np.cos(turns)))
        common = nearby.densities[:kept] + 0.5 * self.bend * (nearby.heights[:kept, None, None] ** 2 + shift**2)
        if shift == 0 and height > 0:
            common = common + height * np.arctan2(shares * sines, 1 - shares * less)
        thin = 0.5 * np.log1p(-2 * varied * less) if powers.min() < 0 else np.zeros(varied.shape)
        best = np.empty((orders.size, kept, count))
        for k, power in enumerate(powers):
            tilted = power * losses
            sizes = np.maximum(tilted[..., :-1], tilted[..., 1:]) + common + min(power, 0.0) * thin
            best[k] = sizes.max(axis=2) + nearby.factors[:kept, None]
        best = best.min(axis=1)
        # the logarithms above are good to some units in their last places
        return np.asarray(np.logaddexp.reduce(best, axis=1) + 1e-6 + 1e-12 * np.abs(best).max(axis=1))

    def _ellipses(self, count: int) -> Ellipses:
        """What bounds the integrand nearby: looked up, since orders and heights are asked for often."""
        if count not in self._known:
            self._known[count] = self._around(count)
        return self._known[count]

    @cached_property
    def _known(self) -> dict[int, Ellipses]:
        return {}

    @np.errstate(all="ignore")
    def _around(self, count: int) -> Ellipses:
        middles, half = self._panels(count)
        ends = middles[:, None] + np.multiply.outer(0.5 * half * (_RADII + 1 / _RADII), _CELLS)[:, None, :]
        losses = self.losses(ends)
        shares = self._shares(ends, losses)
        density = self._log_density(ends)
        left, right = shares[..., :-1], shares[..., 1:]
        largest = np.maximum(density[..., :-1], density[..., 1:])
        if self.bend > 0:
            largest = np.where((ends[..., :-1] < 0) & (ends[..., 1:] > 0), -self.constant, largest)
        varied = np.where((left < 0.5) & (right > 0.5), 0.25, np.maximum(left * (1 - left), right * (1 - right)))
        factors = np.log(64 / 15 * half / (1 - _RADII**-2)) - 2 * ORDER * np.log(_RADII)
        return Ellipses(0.5 * half * (_RADII - 1 / _RADII), factors, losses, right, varied, largest)

    @np.errstate(all="ignore")
    def log_decay(self, count: int, order: float, height: float) -> float:
        """log of a bound on |integral| at all s with that real part and at least that imaginary part.

        The path runs along the axis, at the end of some panel up by b (or down, where L = -log g), along, and back to
        the axis at the end.  Up there |g^r| has the factor e^{-|Im s| arg g} <= 1, which only falls as Im s grows; on
        the ways up and down the angle is taken at the lower end of each cell, and |g|^r and q where they are largest.
        """
        middles, half = self._panels(count)
        x = np.add.outer(middles, half * _NODES).ravel()
        edges = np.append(middles - half, self.end)
        power = 1 + order if self.above else -order
        losses, at_edges = self.losses(x), self.losses(edges)
        shares, edge_shares = self._shares(x, losses), self._shares(edges, at_edges)
        logs = power * losses + self._log_density(x) + np.tile(np.log(half * _WEIGHTS), count)
        peak = float(logs.max())
        along = np.append(0.0, np.cumsum(np.exp(logs - peak).reshape(count, -1).sum(axis=1)))
        edge_logs = power * at_edges + self._log_density(edges) - peak
        shifts = min(_TURN / self.slope, _LIFT) * _SHIFTS
        turns = self.slope * shifts
        lifted = 0.5 * self.bend * shifts**2
        angle, thin = _turned(shares, turns[:, None])
        above = np.exp(logs - peak + power * thin - height * angle + lifted[:, None])
        panels = above.reshape(shifts.size, count, -1).sum(axis=2)
        after = np.pad(np.cumsum(panels[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
        cells = np.multiply.outer(turns, np.arange(_SIDES) / _SIDES)
        damped = np.exp(-height * _turned(edge_shares[:, None, None], cells)[0]).sum(axis=2).T
        highest = lifted - min(power, 0.0) * np.log(1 / np.cos(0.5 * turns)) + np.log(shifts / _SIDES)
        sides = np.exp(edge_logs + highest[:, None]) * damped
        found = along + after + sides + sides[:, -1:]
        best, edge = divmod(int(np.argmin(found)), found.shape[1])
        used = [float(shifts[best])] if edge == 0 else [0.0, float(shifts[best])]
        missed = [self.log_errors(count, np.array([order]), 0.0, shift)[0] for shift in used]
        smallest = max(float(found.min()), 1e-300)  # what underflowed is less than that
        total = float(np.logaddexp.reduce([math.log(smallest) + peak, *missed]))
        return total + UNIT_ROUNDOFF * (256 + 16 * float(np.abs(logs).max()))


def _turned(shares: Array, turns: Array) -> tuple[Array, Array]:
    """arg g and log |g| - log g(x) at x + iy, from shares at x and v = slope y."""
    less = 1 - np.cos(turns)
    return np.arctan2(shares * np.sin(turns), 1 - shares * less), 0.5 * np.log1p(-2 * shares * (1 - shares) * less)
