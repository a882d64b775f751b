"""The whole curve of a single record, however deep: what a chain of links is followed on (drawn.py).

What has few sums or bounded losses is listed (lattices/listed.py), and delta is a mean over the sums listed of what all
else has.  That is drawn by lines, where lines are sharp as far down as it's asked for, or by sums of large losses on a
lattice (lattices/rare.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hush.accounting.grouping import saddles
from hush.accounting.grouping.asked import Asked
from hush.accounting.grouping.links import extended
from hush.accounting.grouping.makers import DEEP, Maker, Smooth, Whole
from hush.accounting.lattices import rare
from hush.accounting.lattices.listed import Beside, Known, apart, listed
from hush.accounting.pairs import bounded, single
from hush.accounting.pairs.losses import Array, Pair

Steps = Sequence[tuple[Pair, int]]
Way = Callable[[Steps, float, float, float], Beside | None]
"""Of steps, down to a log delta, to so much of epsilon, no further out than that."""

_MOST = 3000  # of them
_SHALLOW = -40.0  # log of a delta that is nothing beside 1
_FURTHER = 1.02  # times as far as the model says
_SHARP = 1e-4, 0.3  # of log delta: lines are asked for no more, and for no less
_BLUNT = 4.0  # times as wide as they are wanted
_PROBED = 8  # places, the furthest first: where one is blunt, others will be
_TOGETHER = 100  # that are asked for at once
_REACHED = 12_000  # sums listed that count at one epsilon


@np.errstate(all="ignore")
def curve(
    steps: Steps, deepest: float, slack: float, furthest: float, ways: Sequence[Way] | None = None
) -> Known | None:
    """Certified bounds on log delta at epsilons >= 0, down to about a `deepest` one, to about so much of epsilon.

    None where all losses are listed, or no way serves.
    """
    few, even, rest = apart(steps, slack)
    if not rest:
        return None
    tried = (way(rest, deepest, slack, furthest) for way in ways or WAYS)
    beside = next((found for found in tried if found is not None), None)
    if beside is None:
        return None
    below, above = (listed(few, even, slack, beside.end, above=above) for above in (False, True))
    if below is None or above is None:
        return None
    known = Known.of(below, above, beside, bounded.largest_total(steps))
    return known if max(known.less.together, known.more.together) <= _REACHED else None


def lined(steps: Steps, deepest: float, slack: float, furthest: float) -> Beside | None:
    """By lines, wherever they end; None where they are blunt."""
    right = _half(steps, deepest, slack)
    reverse = [(pair.reverse(), count) for pair, count in steps]
    left = (right if reverse == list(steps) else _half(reverse, _SHALLOW, slack)) if right is not None else None
    if right is None or left is None:
        return None
    kept = left[0] > 0
    places = np.concatenate([-left[0][kept][::-1], right[0]])
    lower, upper = (
        np.concatenate([extended(-left[0][kept], left[k][kept])[::-1], right[k]]) - sign * 1e-12
        for k, sign in ((1, 1), (2, -1))
    )
    return Beside((places, lower), (places, np.minimum(upper, 0.0)), -np.inf, -np.inf, float(upper[-1]))


def _half(steps: Steps, deepest: float, slack: float) -> tuple[Array, Array, Array] | None:
    """Places from 0 on, and bounds on log delta there."""
    model = saddles.model([steps])
    if model is None:
        return None
    end = _FURTHER * float(np.interp(-deepest, -model.logs, model.epsilons))
    places = model.spread(end, slack, _MOST)
    if places.size < 2:
        return None
    sizes, falls = model.at(places), model.falls(places)
    wanted = np.maximum(slack * falls, _SHARP[0])
    curve = single.curve(steps[0][0]) if len(steps) == 1 and steps[0][1] == 1 else None
    maker: Maker = Smooth(steps) if curve is None else Whole(curve)
    asked = Asked([maker])

    def ask(some: NDArray[np.intp]) -> tuple[Array, Array] | None:
        tolerance = np.minimum(wanted[some], _SHARP[1]) / np.clip(-sizes[some], 1.0, DEEP)
        lower, upper = asked(places[some], sizes[some], tolerance)
        blunt = ~(upper - lower <= _BLUNT * wanted[some]) & (upper > deepest)
        return None if blunt.any() else (lower, upper)

    probed = [np.array([k]) for k in np.linspace(places.size - 1, 1, _PROBED).astype(np.intp)]
    if any(ask(part) is None for part in probed):
        return None
    found = [ask(part) for part in np.array_split(np.arange(places.size), -(-places.size // _TOGETHER))]
    known = [ends for ends in found if ends is not None]
    if len(known) < len(found):
        return None
    lower, upper = (np.concatenate(row) for row in zip(*known, strict=True))
    return places, lower, upper


WAYS: tuple[Way, ...] = (lined, rare.curve)
FINER: tuple[Way, ...] = (lined, rare.finely)
