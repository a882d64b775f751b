"""Epsilon and delta of a group from a single record's whole curve, drawn at once (lattices/rare.py).

Where losses with a largest value meet others, as where randomised response is beside noise, no few lines are sharp: the
chain's links lie close to that value, and tell most by how little more they are.  So both bounds on the curve are drawn
as deep as the chain goes, and the chain followed on them.  How deep and how finely is known after a first time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.crossing import EPSILON_LIMIT, is_narrow, within
from hush.accounting.grouping import record
from hush.accounting.grouping.chains import Chain
from hush.accounting.grouping.links import Envelope, Links, Model
from hush.accounting.grouping.rounds import fitted, seen_above
from hush.accounting.grouping.saddles import NOTHING
from hush.accounting.lattices.listed import Known
from hush.accounting.pairs.losses import Array, Pair

Steps = Sequence[tuple[Pair, int]]

_SHARE = 0.1  # of the width asked for: what a single record's epsilon may be off, times the group's size
_DEEPER, _SPARE = (1.05, 1.0), (20.0, 8.0)  # times the links' smallest delta, and logs: how deep, first and then
_TIMES = 3
_PLACES, _MOST = 1000, 3000
_NEAR = 600  # around the links
_AROUND = np.geomspace(1e-6, 1.0, 120)
_LEAST = 1e-9  # an epsilon
_BESIDE = 0.0, 0.1, 0.4  # of the width asked for: chains that end so far from an epsilon may tell more of it
_LATER = 0.0, 0.05, 0.2
_FEW = 3.0  # times that width: no other way tells more where delta falls so quickly
_NOTHING = -690.0  # log of a delta that is none
_LEAST_TOLD, _DEEPEST = -230.0, -240.0  # of one so small that it need not be told from less; and a little smaller
_FAR = 0.9 * EPSILON_LIMIT  # where a second look isn't worth it
_BEYOND = 1.0001
_CLOSE = 3.0  # times as wide as is asked for: where a third look may do
_WORTH = 0.5  # times as fine as is asked for


class Drawn(Chain):
    """A chain on curves that are known as well as they will be; the model is the bound from above."""

    def __init__(
        self, curves: Sequence[Known], before: Model, size: int, log_least: float, largest: float, slack: float
    ):
        def oracle(epsilons: Array, sizes: Array, tolerance: float | Array) -> tuple[Array, Array]:
            ends = [curve(epsilons) for curve in curves]
            return np.max([low for low, _ in ends], axis=0), np.max([high for _, high in ends], axis=0)

        super().__init__(oracle, before, size, log_least, largest)
        top = max(float(curve.more.listed.losses[-1]) for curve in curves)
        reach = max(float(curve.more.places[-1]) for curve in curves)
        places = [np.linspace(0.0, top + reach, _PLACES), top + reach * _AROUND, top * (1 - _AROUND)]
        self.draw(np.concatenate([*places, (top + reach) * _AROUND]))
        self.draw(np.append(self.places, self.model.spread(float(self.places[-1]), slack, _MOST)))

    def draw(self, places: Array) -> None:
        places = np.unique(places)
        self.ask(places[(places >= 0) & (places < min(self.largest, 2 * EPSILON_LIMIT))])
        self.places = self.epsilons

    def _corrected(self) -> Model:
        return self._model(self.upper)

    def below(self) -> Model:
        return self._model(self.lower)

    def _model(self, logs: Array) -> Model:
        logs = np.where(np.isfinite(logs), logs, NOTHING)
        falling = np.minimum.accumulate(np.clip(logs, NOTHING, -1e-12))
        return Envelope(self.epsilons, falling).leaking(self.log_least, 2 * EPSILON_LIMIT)

    def draw_near(self, links: Links) -> None:
        sizes = np.abs(links.slopes)
        self.draw(np.linspace(0.98 * float(sizes.min()), 1.02 * float(sizes.max()), _NEAR))


def _links(model: Model, size: int, log_delta: float) -> Links:
    """Of that delta, or of the largest epsilon that is told."""
    links = model.links(size, log_delta=log_delta)
    told = 0 < links.epsilon <= _BEYOND * EPSILON_LIMIT  # what no chain reaches is further out
    return links if told else model.links(size, epsilon=EPSILON_LIMIT)


def _above(chain: Drawn, links: Links, log_delta: float, tolerance: float) -> float:
    """An epsilon that is seen to be large enough: where delta falls quickly, a little more for each link is."""
    for part in _LATER:
        slopes = links.slopes + part * tolerance * links.epsilon / links.slopes.size
        if chain.split(slopes) <= log_delta:
            return max(float(slopes.sum()) * (1 + 1e-12), 0.0)
    return seen_above(chain, links, log_delta, tolerance)


def _off_a_cliff(chain: Drawn, at: float, tolerance: float, low: float, high: float) -> tuple[bool, bool]:
    """Whether delta is known to be larger than the upper bound a little before an epsilon, and no larger than the lower
    one, or tiny, a little after it: then both are deltas of epsilons within the tolerance."""
    before, after = at * (1 - tolerance), at * (1 + tolerance)
    falling = chain.log_delta_below(chain.below().links(chain.size, epsilon=before), before) >= high
    links = chain.model.links(chain.size, epsilon=after)
    return falling, chain.split(fitted(chain, links.slopes, after)) <= max(low, _LEAST_TOLD)


@dataclass(frozen=True)
class Task:
    """The steps in each direction, a model of their curve, the size, the log of the least delta, the largest loss."""

    ways: Sequence[Steps]
    before: Model
    size: int
    log_least: float
    largest: float = math.inf

    @np.errstate(all="ignore")
    def epsilon(self, log_delta: float, tolerance: float) -> tuple[float, float]:
        """Certified bounds on the group's epsilon; (0, inf) where curves can't be drawn."""
        low, high, slack, model = 0.0, math.inf, math.inf, self.before
        for k in range(_TIMES):
            links = _links(model, self.size, log_delta)
            about = high if high < math.inf else links.epsilon if links.epsilon > 0 else EPSILON_LIMIT
            slack = min(slack, _SHARE * tolerance * max(about, low, _LEAST) / self.size)
            if (chain := self._drawn(model, links, slack, known=k > 0)) is None:
                break
            links = _links(chain.model, self.size, log_delta)
            chain.draw_near(links)
            found = chain.epsilon_below(_links(chain.below(), self.size, log_delta), log_delta)
            above = _above(chain, _links(chain.model, self.size, log_delta), log_delta, tolerance)
            before = high - low
            low, high = within((low, high), (found, above))
            if is_narrow(low, high, tolerance) or not about < _FAR:
                break
            if k > 0 and not (high - low < _WORTH * before and is_narrow(low, high, _CLOSE * tolerance)):
                break
            slack *= _WORTH * min(tolerance * high / (high - low), 1.0) if high < math.inf else _WORTH
            model = chain.model
        return (EPSILON_LIMIT, math.inf) if low >= EPSILON_LIMIT else (low, high)

    @np.errstate(all="ignore")
    def log_delta(self, at: float, tolerance: float) -> tuple[float, float, bool]:
        """Certified bounds on log delta of the group at one epsilon, and whether they are as close as was asked for.

        (-inf, 0) where curves can't be drawn.  Where delta falls quickly they need be no closer than epsilon's width.
        """
        low, high, model, told, enough, falling = -math.inf, 0.0, self.before, False, 0.0, False
        slack = _SHARE * tolerance * max(at, _LEAST) / self.size
        for k in range(_TIMES):
            deepest = _DEEPEST - at if falling else 0.0
            links = model.links(self.size, epsilon=at)
            if (chain := self._drawn(model, links, slack, deepest, known=k > 0)) is None:
                break
            chain.draw_near(chain.model.links(self.size, epsilon=at))
            before, below = high - low, chain.below()
            for part in _BESIDE:
                low = max(low, chain.log_delta_below(below.links(self.size, epsilon=at * (1 + part * tolerance)), at))
                links = chain.model.links(self.size, epsilon=at * (1 - part * tolerance))
                high = min(high, chain.split(fitted(chain, links.slopes, min(links.epsilon, at) if part else at)))
            enough = tolerance * max(links.scale, at * links.steep)
            told = high - low <= enough or low >= -tolerance or high < _NOTHING
            falling, fallen = _off_a_cliff(chain, at, tolerance, low, high)
            told = told or (falling and fallen)
            if told or (k > 0 and before < math.inf and not high - low < _WORTH * before):
                break
            model, slack = chain.model, slack * _WORTH * _WORTH
        return min(low, high), max(low, high), told or high - low <= _FEW * enough

    def _drawn(self, model: Model, links: Links, slack: float, deepest: float = 0.0, *, known: bool) -> Drawn | None:
        """Both directions' curves as deep as the links go, and, where the model may be wrong, further."""
        deepest = min(_DEEPER[known] * float(model.log_delta(links.slopes).min()) - _SPARE[known], deepest)
        curves = []
        for steps in self.ways:
            ways = record.FINER if known else record.WAYS
            curve = record.curve(steps, max(deepest, NOTHING), slack, 2 * EPSILON_LIMIT, ways)
            if curve is None:
                return None
            curves.append(curve)
        return Drawn(curves, model, self.size, self.log_least, self.largest, slack)
