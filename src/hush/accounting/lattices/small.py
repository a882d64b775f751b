"""What small losses reveal beside a sum of large ones (rare.py): a few contour integrals, there is no second hump."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.averaged import Wanted, averaged_line
from hush.accounting.contours.crossing import Curve
from hush.accounting.contours.line import log_peak
from hush.accounting.contours.smoothing import Kernel, width_for
from hush.accounting.lattices.framed import Frame
from hush.accounting.mixed import tilted
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import Points

_DEVIATIONS = 12.0  # below 0 to which the small losses' curve is drawn
_FLATTEST = 0.3  # over a deviation: orders of lines
_SERVED = 400  # points to the left that a line may serve
_NODES = 1500
_BLUNTER = 15.0  # times as much as is wanted: an average that ends sooner
_FAILED = 3  # lines that take more: no more are tried
_SPARED = 20.0  # logs
_DIGITS = 24.0  # logs: how far below Chernoff's bound lines tell


@dataclass(frozen=True)
class Saddles:
    """Lattice points, the first of them so many below 0; and where the small losses' saddle points are."""

    grid: Array
    below: int
    orders: Array
    slopes: Array
    heights: Array
    least: float

    @staticmethod
    def of(side: tilted.Side, frame: Frame) -> Saddles | None:
        if not side.laws:
            return None
        orders = np.geomspace(1e-3, 1e3, 160) * max(frame.steepest, 1.0)
        value, mean, variance = side.cumulants(orders)
        slopes = mean - 1 / orders - 1 / (orders + 1)
        kept = np.isfinite(slopes) & (np.maximum.accumulate(slopes) == slopes)
        orders, slopes, value, variance = orders[kept], slopes[kept], value[kept], variance[kept]
        if slopes.size < 2:
            return None
        deviation = math.sqrt(max(float(np.interp(0.0, slopes, variance)), 0.0))
        below = math.ceil(min(_DEVIATIONS * deviation + 2 * frame.spacing, 4 * frame.end) / frame.spacing)
        grid: Array = np.asarray(frame.spacing * np.arange(-below, frame.points), dtype=np.float64)
        heights = np.minimum(value - orders * slopes + log_peak(orders), 0.0)
        return Saddles(grid, below, orders, slopes, heights, _FLATTEST / max(deviation, 1e-300))

    def height(self, at: Array) -> Array:
        """About log D there, by Chernoff's bound."""
        return np.interp(at, self.slopes, self.heights, right=-np.inf)

    def order(self, at: Array) -> Array:
        """Of the saddle point; where D is next to 1, of one nearby, as lines of small orders take many nodes."""
        return np.asarray(np.maximum(np.exp(np.interp(at, self.slopes, np.log(self.orders))), self.least))


def small_curve(side: tilted.Side, saddles: Saddles, compound: Array, frame: Frame, lines: int) -> Array:
    """A bound on log D at lattice points, from no more lines than so many."""
    grid, below = saddles.grid, saddles.below
    found = np.full(grid.size, _log_mass(side)) if side.above else _least(side, grid)
    if not side.laws:
        return np.log(-np.expm1(np.minimum(grid, 0.0))) + (1e-12 if side.above else -1e-12)
    wanted = np.maximum(0.1 * saddles.order(grid) * frame.slack, 1e-4)
    # where sums of large losses are far more likely, or nothing is asked, what small ones do need not be known
    beyond = np.logaddexp.accumulate(compound[::-1])[::-1]
    least = np.full(grid.size, frame.deepest - _SPARED)
    least[below + 1 :] = np.maximum(least[below + 1 :], beyond[1:] + float(saddles.height(np.zeros(1))[0]) - _SPARED)
    counts = saddles.height(grid) > least
    at = int(np.flatnonzero(counts)[-1]) if counts.any() else 0
    (shift, margin), known, failed, last = side.doubt, np.full(grid.size, np.inf), 0, grid.size
    for _ in range(lines):
        change = min(float(wanted[at]), 0.3)
        line = _line(side, saddles, float(grid[at]), change) or _line(side, saddles, float(grid[at]), _BLUNTER * change)
        failed += line is None
        if failed == _FAILED:
            break
        if line is not None:
            near = slice(max(at - _SERVED, 0), last)
            last = at + 1
            low, high = line(grid[near] - shift if side.above else grid[near] + shift)
            found[near] = np.fmin(found[near], high + margin) if side.above else np.fmax(found[near], low - margin)
            known[near] = np.fmin(known[near], np.where(np.isnan(high - low), np.inf, high - low))
        wide = (known > wanted) & (np.arange(grid.size) < at)
        if not wide.any():
            break
        at = int(np.flatnonzero(wide)[-1])
    return np.minimum.accumulate(found) if side.above else np.maximum.accumulate(found[::-1])[::-1]


def _line(side: tilted.Side, saddles: Saddles, at: float, change: float) -> Curve | None:
    """The average of D on its side, near an epsilon."""
    c = float(saddles.order(np.array([at]))[0])
    kernel = Kernel(width_for(c, change, side.above), side.above)
    _, _, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    spread = math.sqrt(max(variance, 1e-300))
    scale = 1 / (c * (c + 1) * math.sqrt(2 * math.pi * (max(variance, 0.0) + c**-2 + (c + 1) ** -2)))
    line = averaged_line(side, c, spread, kernel, Wanted(at, scale * change * math.exp(-_DIGITS), _NODES))
    return None if line is None else line.log_delta


def _least(side: tilted.Side, places: Array) -> Array:
    """A lower bound on log D: P less e^epsilon Q."""
    log_p = _log_mass(side)
    log_q = math.fsum(n * float(np.logaddexp.reduce(law.logs - law.losses)) for law, n in _points(side))
    rest = -np.expm1(np.minimum(places + log_q - log_p, 0.0))
    return np.asarray(log_p + np.log(np.maximum(rest - 1e-9, 0.0)) - 1e-9)


def _log_mass(side: tilted.Side) -> float:
    """Of the small losses, which D can't exceed."""
    return math.fsum(n * float(np.logaddexp.reduce(law.logs)) for law, n in _points(side))


def _points(side: tilted.Side) -> list[tuple[Points, int]]:
    return [(law, count) for law, count in side.laws if isinstance(law, Points)]


def with_left(side: tilted.Side, values: Array, saddles: Saddles, frame: Frame) -> Array:
    """With as many points further left as C has: there D is at least P less e^epsilon Q, and at most on a chord."""
    places = saddles.grid[0] - frame.spacing * np.arange(frame.points - 1, 0, -1)
    if side.above:
        most = max(_log_mass(side), float(values[0]))
        left = most + np.log1p(np.exp(places - saddles.grid[0]) * np.expm1(values[0] - most)) + 1e-12
    else:
        left = np.maximum(_least(side, places), values[0])
    return np.concatenate([left, values])
