"""About log delta of a single record: where a group's links are looked for.  It enters no bound.

By saddle points (saddles.py), by bins where a few large losses decide, or by the curve itself where that is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hush.accounting.grouping import saddles, touching
from hush.accounting.grouping.chains import LONGEST
from hush.accounting.grouping.links import Model
from hush.accounting.grouping.makers import Binned, Maker, Whole
from hush.accounting.grouping.samples import Replaced, Sampled
from hush.accounting.groups import Group
from hush.accounting.kinds import directions
from hush.accounting.pairs.losses import Array

_COARSE = np.geomspace(1e-5, 1e4, 24)
_TINY = np.geomspace(1e-13, 3e-6, 24)  # where all that matters is closer to 0
_DEEPER, _TOLD = 3.0, -600.0  # times a log delta: bins that say more, and that it is smaller than that, know too little
_SEEN = -5.0  # and larger than that, they know no better
_FINE = 16  # places where it matters
_PLACES = np.geomspace(1e-6, 1e4, 300)


@np.errstate(all="ignore")
def rough(group: Group, asked: Sequence[Maker], log_delta: float | None, epsilon: float) -> Model:
    """About log delta of a single record, in the first direction: closely where the group's chain will be."""
    first = asked[0]
    by_saddles = saddles.model(directions(group.inner))
    if isinstance(first, Whole):
        places = _PLACES if by_saddles is None else by_saddles.epsilons[1:]
        curves = [maker.known(np.append(0.0, places)) for maker in asked if isinstance(maker, Whole)]
        lower, upper = np.max([low for low, _ in curves], axis=0), np.max([high for _, high in curves], axis=0)
        logs = np.where(np.isfinite(lower), 0.5 * (lower + upper), upper)
        if by_saddles is not None:
            return Model(by_saddles.epsilons, np.minimum.accumulate(np.clip(logs, saddles.NOTHING, -1e-12)))
        return _model(places, logs[1:])
    if by_saddles is not None and isinstance(first, Binned):
        return by_saddles if first.look is None else _where_few_decide(by_saddles, first)
    assert isinstance(first, Sampled | Replaced | Binned)
    places, sizes = _COARSE, first.rough(_COARSE)
    low, high = _reach(_model(places, sizes), group.size, log_delta, epsilon)
    if high < 2 * places[0]:
        places, sizes = np.append(_TINY, places), np.append(first.rough(_TINY), sizes)
        low, high = _reach(_model(places, sizes), group.size, log_delta, epsilon)
    least = 1e-3 * places[0]
    fine = np.geomspace(max(0.4 * low, least), max(2.0 * high, 100 * least), _FINE)
    places = np.append(places, fine)
    order = np.argsort(places, kind="stable")
    return _model(places[order], np.append(sizes, first.rough(fine))[order])


def _reach(model: Model, size: int, log_delta: float | None, epsilon: float) -> tuple[float, float]:
    """From where to where the group's best attack touches the record's curve."""
    if size <= LONGEST:
        slopes = np.abs(model.links(size, log_delta=log_delta, epsilon=epsilon).slopes)
        return float(slopes.min()), float(slopes.max())
    if log_delta is None:
        touched = touching.at_epsilon(model, size, epsilon)
    else:
        touched = touching.at_delta(model, size, log_delta)
    return max(touched.low, touched.high / size), touched.high


def _where_few_decide(model: Model, steps: Binned) -> Model:
    """Where a few large losses decide delta is smaller than saddle points have it: by bins, as far as these know."""
    near = model.epsilons[(model.epsilons > 0) & (model.logs > 2 * _TOLD)]
    places = np.unique(np.append(_COARSE[model.epsilons[-1] > _COARSE], near[:: max(near.size // _FINE, 1)]))
    binned = steps.rough(places)
    ratio = binned / model.at(places)
    ratio = np.where((ratio > 1) & ((ratio < _DEEPER) | (binned > _TOLD)) & (binned < _SEEN), ratio, 1.0)
    at = np.log(np.maximum(model.epsilons, places[0]))
    return Model(model.epsilons, np.minimum.accumulate(model.logs * np.interp(at, np.log(places), ratio)))


def _model(places: Array, logs: Array) -> Model:
    """A smooth curve through points that fall."""
    logs = np.minimum.accumulate(np.maximum(logs, -1e6))
    kept = np.append(True, np.diff(logs) < 0) & np.append(True, np.diff(places) > 0)
    places, logs = places[kept], np.minimum(logs[kept], -1e-9)
    dense = np.unique(np.append(np.geomspace(places[0], places[-1], 500), places))
    heights = _smooth(np.log(places), logs, np.log(dense))
    return Model(np.append(0.0, dense), np.minimum.accumulate(np.append(heights[0], heights)))


def _smooth(places: Array, values: Array, at: Array) -> Array:
    """Cubic interpolation of falling values that falls too: slopes are weighted harmonic means of the neighbours'."""
    if places.size < 3:
        return np.interp(at, places, values)
    steps, slopes = np.diff(places), np.diff(values) / np.diff(places)
    first, second = 2 * steps[1:] + steps[:-1], steps[1:] + 2 * steps[:-1]
    middle = (first + second) / (first / slopes[:-1] + second / slopes[1:])
    slope = np.concatenate([slopes[:1], middle, slopes[-1:]])
    k = np.clip(np.searchsorted(places, at) - 1, 0, places.size - 2)
    t = (at - places[k]) / steps[k]
    return np.asarray(
        values[k] * (1 + 2 * t) * (1 - t) ** 2
        + values[k + 1] * t * t * (3 - 2 * t)
        + steps[k] * t * (1 - t) * (slope[k] * (1 - t) - slope[k + 1] * t)
    )
