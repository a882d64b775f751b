"""Two finite laws around a continuous loss, bins wherever they are wanted, also where Q underflows.

The bins of a pair enclose it as in points.py: mass spread to the two ends of its bin reveals more, a bin seen as one
outcome reveals less.  At losses beyond 600 the Q-mass of a bin is below any floating-point number; there its logarithm
is taken from tails that are scaled by e^loss.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.gaussian.closed import inner_loss
from hush.accounting.lattices.laws import UNDERFLOW, spread
from hush.accounting.pairs.doubts import SampleBins, doubts, sample_bins
from hush.accounting.pairs.losses import Array, GaussianPair, LaplacePair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.points import LOOSE, Points, loss_range
from hush.accounting.pairs.projection import ProjectedPair
from hush.accounting.tails.faint import faint

_UNIT = 2.0**-50
_LEAST = 1e-280  # a mass that is surely good to its last digits
_TAIL = 200  # bins of a tail that has only logarithms
_FAR = 300.0
"""Losses from which on Q-masses are logarithms."""


def enclosing(pair: Pair, edges: Array) -> tuple[Points, Points]:
    """Two finite laws that reveal less and more than the pair, from its bins."""
    far = faint(pair, edges)
    return _enclosing(pair, edges) if far is None else far.beyond(below(pair, edges[: far.first + 1]))


def below(pair: Pair, edges: Array) -> tuple[Points, Points]:
    """The same, without what lies beyond the last edge."""
    return _enclosing(pair, edges, open=True)


def _enclosing(pair: Pair, edges: Array, *, open: bool = False) -> tuple[Points, Points]:
    """`open`: what lies beyond the last edge isn't counted."""
    found = directed(pair, edges, open=open)
    if found is not None and (found[1].infinite > 2 * _LEAST or not isinstance(_released(pair), GaussianPair)):
        return found
    p, q = pair.masses(edges)
    unsure = doubts(pair, p, q, edges).with_missed(_missed(pair) if open else 0.0)
    less_p, less_q = unsure.less(p, q)
    more_p, more_q = unsure.more(p, q)
    less_p[-1] = max(0.0, less_p[-1] - pair.infinite)
    if open:
        less_p[-1] = more_p[-1] = 0.0
    logs, doubt = _far_logs(pair, edges)
    far = np.isfinite(logs)
    masses, infinite = spread(more_p, more_q, edges)
    above = np.flatnonzero(far[1:-1])
    if above.size:
        masses, infinite = _spread_far(more_p, more_q, edges, logs - doubt)
    more = _with_far_tail(pair, edges, more_p, more_q)
    if more is None:
        more = _points(edges, masses, 0.0 if open else max(infinite, pair.infinite) + UNDERFLOW)
    less_p = _told(pair, less_p)
    known = (less_p > 0) & ((less_q > UNDERFLOW) | far)
    p, q = less_p[known], less_q[known]
    losses = np.where(far[known], np.log(p) - (logs + doubt)[known], _log_quotient(p, q))
    losses -= 4 * _UNIT * np.where(far[known], np.abs(np.log(p)) + np.abs(losses), 0.0)
    return _points(losses, p, pair.infinite), more


def directed(pair: Pair, edges: Array, *, cut: bool = False, open: bool = False) -> tuple[Points, Points] | None:
    """The same for samples and projections, from P - Q, which keeps the digits of small losses; None for others.

    With a bin's ends lo and hi, the mass at lo is (Q e^hi - P)/(e^{hi-lo} - 1) = (Q (e^hi - 1) - gain)/(e^{hi-lo} - 1).
    It is rounded down, so that mass moves up; and so is the loss log(1 + gain/Q) of a bin seen as one outcome.  A bin's
    ends are taken as far apart as they may be, and then mass at either of them to where that may be at most.  `cut`: no
    loss exceeds the last edge, since it would rule the moments.  `open`: what lies beyond it is counted elsewhere, and
    what tails may be off in any case is any bin's.
    """
    made = _bins(pair, edges)
    if made is None:
        return None
    bins, atom = made
    edges, unsure = bins.edges, bins.unsure.with_missed(_missed(pair) if open else 0.0)
    less_p, less_q = unsure.less(bins.p, bins.q)
    more_p, more_q = unsure.more(bins.p, bins.q)
    own_gain = bins.own_gain + (2 * _missed(pair) if open else 0.0)
    more_gain = (bins.gain + own_gain) * (1 + unsure.common)
    less_gain = (bins.gain - own_gain) * (1 - unsure.common)
    if open:
        less_p[-1] = more_p[-1] = 0.0
    more_gain, less_gain = more_gain + _UNIT * np.abs(more_gain), less_gain - _UNIT * np.abs(less_gain)
    logs, doubt = _far_logs(pair, edges)
    masses = _spread_down(more_p, more_q, more_gain, edges, bins.moved, logs - doubt)
    places = np.append(edges + bins.moved, 0.0)
    # masses too small for floating point: at the largest loss, or, where there is none, at an infinite one
    last = int(np.searchsorted(edges, loss_range(pair)[1] * (1 + LOOSE)))
    missed = 0.0 if open else _missed(pair)
    if last < edges.size:
        masses[last], missed = masses[last] + missed, 0.0
    more = _points(places, np.append(masses, atom[1]), float(more_p[-1]) + missed, directed=True)
    less_p = _told(pair, less_p)
    far = np.isfinite(logs)
    known = (less_p > 0) & ((less_q > UNDERFLOW) | far)
    p, q, gain, far = less_p[known], less_q[known], less_gain[known], far[known]
    with np.errstate(all="ignore"):
        near = np.abs(gain) < 0.5 * q
        losses = np.where(near, np.log1p(gain / q), np.log(p / q))
        losses = np.where(far, np.log(p) - (logs + doubt)[known], losses)
    losses -= 4 * _UNIT * (np.abs(losses) + np.where(far, np.abs(np.log(p)), 0.0))
    if cut:
        losses = np.minimum(losses, edges[-1])
    return _points(np.append(losses, 0.0), np.append(p, atom[0]), 0.0, directed=True), more


def _bins(pair: Pair, edges: Array) -> tuple[SampleBins, tuple[float, float]] | None:
    """A sample's bins, and the mass at loss 0 besides, which lies between two numbers; of projections all bins."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    released = _released(pair)
    if isinstance(pair, ProjectedPair):
        return sample_bins(Poisson(pair, 1.0), edges), (0.0, 0.0)
    if not isinstance(sample, Poisson | Uniform) or not sample.rate < 1:
        return None
    known = (GaussianPair, LaplacePair) if isinstance(sample, Uniform) else (GaussianPair, LaplacePair, ProjectedPair)
    if not isinstance(released, known):
        return None
    if isinstance(sample, Poisson):
        mirrored = pair is not sample
        bins = sample_bins(sample, -edges[::-1] if mirrored else edges)
        return bins.reverse() if mirrored else bins, (0.0, 0.0)
    half = Poisson(sample.inner, sample.rate)
    high = sample_bins(half, np.append(0.0, edges[edges > 0]), from_zero=True)
    low = sample_bins(half, np.append(0.0, -edges[edges < 0][::-1]), from_zero=True).reverse()
    rest = 1 - float(high.p[1:].sum() + low.p[:-1].sum())
    return low.joined(high), (max(rest - 8 * _UNIT, 0.0), max(rest + 8 * _UNIT, 0.0))


def _missed(pair: Pair) -> float:
    """What masses may miss, at any loss."""
    released = _released(pair)
    return released.depth.missed if isinstance(released, ProjectedPair) else UNDERFLOW


def _told(pair: Pair, p: Array) -> Array:
    """P-masses of bins, less those in tails too small for their digits to be known."""
    released = _released(pair)
    if not isinstance(released, ProjectedPair):
        return p
    below, above = np.cumsum(p), np.cumsum(p[::-1])[::-1]
    return np.where(np.minimum(below, above) < 2 * released.depth.least, 0.0, p)


def _released(pair: Pair) -> Pair:
    """What a sample is taken for."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    return sample.inner if isinstance(sample, Poisson | Uniform) else sample


def _spread_down(p: Array, q: Array, gain: Array, nodes: Array, moved: Array, logs: Array) -> Array:
    """laws.spread, or _spread_far, with the mass at the lower end of each bin rounded down, ends as far off as said."""
    p, q, gain, logs, first = p[1:-1], q[1:-1], gain[1:-1], logs[1:-1], p[0]
    low_end, high = nodes[:-1] - moved[:-1], nodes[1:] + moved[1:]
    near = np.maximum(np.abs(high), np.abs(low_end)) <= 0.5
    with np.errstate(all="ignore"):
        small = q * np.expm1(np.minimum(high, 1.0))
        whole = q * np.exp(np.minimum(high, 600.0))
        top = np.where(near, small - gain, whole - p)
        slack = np.where(near, np.abs(small) + np.abs(gain), whole + p)
        far = np.isfinite(logs)
        lifted = np.exp(logs + high)
        top = np.where(far, lifted - p, top)
        slack = np.where(far, lifted * (8 + np.abs(logs) + np.abs(high)) + p, slack)
        low = (top - _UNIT * slack) / np.expm1(high - low_end) * (1 - _UNIT)
    unknown = ~far & ((q < UNDERFLOW) | (high > 600)) | np.isnan(low)
    low = np.where(unknown, 0.0, np.clip(low, 0.0, p))
    masses = np.append(low, 0.0)
    masses[1:] += p - low
    masses[0] += first
    return masses


def _with_far_tail(pair: Pair, edges: Array, p: Array, q: Array) -> Points | None:
    """The law that reveals more where the last bins' masses are no floating-point numbers, but have logarithms.

    Beyond a loss with next to nothing above it, a bin has no more than the whole tail, and all of it at its upper end.
    What lies so far below that it can't be told goes to where it can.  None where this isn't needed, or not known.
    """
    above = np.cumsum(p[::-1])[::-1][1:]
    if above[-1] > _LEAST or pair.infinite > 0:
        return None
    j = int(np.argmax(above <= _LEAST))
    logs = _log_tails(pair, edges[j:])
    if j < 1 or logs is None:
        return None
    masses, _ = spread(np.append(p[: j + 1], 0.0), np.append(q[: j + 1], 0.0), edges[: j + 1])
    first = int(np.argmax(np.cumsum(p) > _LEAST))
    if first > 0:  # the first bin with a mass that is known begins at the edge before
        lowest = min(first, j) - 1
        masses[:lowest] = 0.0
        masses[lowest] += 2 * _LEAST
    known = _points(edges[: j + 1], masses, 0.0)
    kept = np.unique(np.linspace(0, logs.size - 1, min(logs.size, _TAIL)).astype(int))
    places, logs = edges[j:][kept], logs[kept]
    return Points(
        np.append(known.losses, places[1:]), np.append(known.logs, logs[:-1]), 0.0, log_hidden=float(logs[-1])
    )


def _log_tails(pair: Pair, edges: Array) -> Array | None:
    """Upper bounds on log P(L > edge) at ascending edges > 0 for Gaussian releases, sampled or not; None for others."""
    rate, inner = (pair.rate, pair.inner) if isinstance(pair, Poisson | Uniform) else (1.0, pair)
    if not isinstance(inner, GaussianPair) or not edges[0] > 0:
        return None
    scaled = (edges if rate == 1 else inner_loss(rate, edges)) / inner.mu
    logs = log_ndtr(inner.mu / 2 - scaled) + math.log(rate)
    if rate < 1:
        logs = np.logaddexp(logs, log_ndtr(-inner.mu / 2 - scaled) + math.log1p(-rate))
    return np.asarray(np.minimum(logs + 1e-9 * (1 + np.abs(logs)), 0.0))


def _log_quotient(p: Array, q: Array) -> Array:
    """log(p/q), to a few ulp of itself: a difference of neighbours is exact."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = (p - q) / q
        near = np.abs(change) < 0.5
        return np.where(near, np.log1p(np.where(near, change, 0.0)), np.log(p / q))


def _spread_far(p: Array, q: Array, nodes: Array, logs: Array) -> tuple[Array, float]:
    """laws.spread with the logarithms of Q-masses where these are known."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_q = np.where(np.isfinite(logs), logs, np.log(q))[1:-1]
        low = (np.exp(log_q + nodes[1:]) - p[1:-1]) / np.expm1(np.diff(nodes))
    low = np.where((log_q < math.log(UNDERFLOW)) & ~np.isfinite(logs[1:-1]) | np.isnan(low), 0.0, low)
    low = np.clip(low, 0.0, p[1:-1])
    masses = np.append(low, 0.0)
    masses[1:] += p[1:-1] - low
    masses[0] += p[0]
    return masses, float(p[-1])


def _far_logs(pair: Pair, edges: Array) -> tuple[Array, Array]:
    """log of the Q-mass of the bins at large losses (NaN elsewhere), and how far it may be off."""
    logs, doubt = np.full(edges.size + 1, np.nan), np.zeros(edges.size + 1)
    rate, inner = (pair.rate, pair.inner) if isinstance(pair, Poisson) else (1.0, pair)
    far = np.flatnonzero(edges > _FAR)
    if far.size == 0 or not isinstance(inner, ProjectedPair):
        return logs, doubt
    at = edges[far] if rate == 1 else inner_loss(rate, edges[far])
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled, accuracy = np.log(inner.scaled_tail(at)), inner.accuracy(at) + 64
        gap = np.append(scaled[1:] - scaled[:-1] - np.diff(at), -np.inf)
        share = -np.expm1(np.minimum(gap, 0.0))
        logs[far + 1] = scaled - at + np.log(share)
        doubt[far + 1] = 2 * _UNIT * accuracy / share + 8 * _UNIT
    good = doubt < 1e-3
    return np.where(good, logs, np.nan), np.where(good, doubt, 0.0)


def _points(losses: Array, masses: Array, infinite: float, *, directed: bool = False) -> Points:
    kept = masses > 0
    if not kept.any():
        return Points(np.zeros(1), np.full(1, -745.0), infinite, directed=directed)
    return Points(losses[kept], np.log(masses[kept]), infinite, directed=directed)
