"""How far the computed masses of bins may be off, and pairs that reveal more or less for sure.

A pair computes tails, P(L <= x) and P(L > x), each good to a relative e = 2^-50 (accuracy + |log tail|): sums of so
many terms, and what an exponential loses to its argument.  (Weights that all tails share make bins off by no more than
themselves.)  A bin's mass is the difference of two tails, so it is off by
up to e times their sum, which may be far more than e of the mass.  As measures on the bins

    P' - a  <=  P  <=  P' + a,        Q' - b  <=  Q  <=  Q' + b,

and delta rises with P and falls with Q, also under composition: it is enough to add and take away a and b.

For a Poisson sample that would waste much.  There Q is the inner Q and P = (1-p) Q + p P_inner, so an error of Q by a
factor 1 + t, bin by bin, is an error of P and Q by the same factor, plus p (a_inner + t P_inner) of P's own.  A common
factor changes delta by no more than itself, and moves no loss.

And where bins are narrow that wastes much as well (`sample_bins`).  A tail of Q that is off is the true one of a place
nearby, so the bins' Q-masses are those of bins whose edges are moved, by an error over a density: next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush.accounting.gaussian.closed import inner_loss
from hush.accounting.pairs.losses import (
    Array,
    Atoms,
    Enclosed,
    GaussianPair,
    LaplacePair,
    Pair,
    Poisson,
    Reversed,
    Uniform,
)
from hush.accounting.pairs.projection import ProjectedPair

_UNIT = 2.0**-50
_LOWEST = 60.0  # inner losses this far below 0 can't be told from the lowest
_STEEP = 3.0  # by how much the logarithm of a density may change within a bin that tells how large it is
_NOISY = 10.0  # noise from which on P - Q is far smaller than P and Q
_FAR = 300.0  # losses from which on Q-masses are logarithms


@dataclass(frozen=True)
class Doubts:
    """Of each bin: a factor common to P and Q, and errors of their own, all as bounds."""

    common: Array
    own_p: Array
    own_q: Array

    def with_missed(self, mass: float) -> Doubts:
        """With so much of P and of Q that any bin may have or miss besides."""
        return Doubts(self.common, self.own_p + mass, self.own_q + mass) if mass > 0 else self

    def more(self, p: Array, q: Array) -> tuple[Array, Array]:
        """Masses that reveal no less."""
        return (p + self.own_p) * (1 + self.common), np.maximum(q - self.own_q, 0.0) * (1 + self.common)

    def less(self, p: Array, q: Array) -> tuple[Array, Array]:
        """Masses that reveal no more."""
        return np.maximum(p - self.own_p, 0.0) * (1 - self.common), (q + self.own_q) * (1 - self.common)


def doubts(pair: Pair, p: Array, q: Array, edges: Array) -> Doubts:
    """For the masses of the bins between the edges."""
    accuracy = _accuracy(pair, edges)
    if accuracy is None:
        return Doubts(*np.zeros((3, p.size)))
    if isinstance(pair, Reversed):
        mirrored = doubts(pair.pair, q[::-1], p[::-1], -edges[::-1])
        return Doubts(mirrored.common[::-1], mirrored.own_q[::-1], mirrored.own_p[::-1])
    weights, near = _UNIT * _weight_accuracy(pair, np.minimum(p, q)), int(np.argmax(q > 0))
    if isinstance(pair, Poisson) and pair.rate < 1:
        return _missed(pair.inner, _sampled(p, q, pair.rate, accuracy, weights), near)
    if isinstance(pair, Uniform) and pair.rate < 1:
        # above loss 0 it is the Poisson pair, below 0 its mirror image; what is left sits at 0
        above, below = _sampled(p, q, pair.rate, accuracy), _sampled(q, p, pair.rate, accuracy)
        high, low = np.append(-np.inf, edges) >= 0, np.append(edges, np.inf) <= 0
        own_p, own_q = _absolute(p, accuracy), _absolute(q, accuracy)
        return Doubts(
            np.where(high, above.common, np.where(low, below.common, 0.0)),
            np.where(high, above.own_p, np.where(low, below.own_q, own_p)),
            np.where(high, above.own_q, np.where(low, below.own_p, own_q)),
        )
    own_p, own_q = _absolute(p, accuracy) + weights * p, _absolute(q, accuracy) + weights * q
    return _missed(pair, Doubts(np.zeros(p.size), own_p, own_q), near)


def _missed(inner: Pair, found: Doubts, near: int) -> Doubts:
    """With what the heavy tails of projections may have besides, P at the far end and Q at the near one.

    The near end is the first bin that has any of Q: those before it, which a sample never reaches, are seen as one with
    it.
    """
    if not isinstance(inner, ProjectedPair):
        return found
    own_p, own_q = found.own_p.copy(), found.own_q.copy()
    own_p[-1], own_q[near] = own_p[-1] + inner.depth.missed, own_q[near] + inner.depth.missed
    return Doubts(found.common, own_p, own_q)


def _accuracy(pair: Pair, edges: Array) -> Array | None:
    """Relative accuracy of a pair's tails in units of 2^-50, apart from |log tail|; None for finite sums."""
    if isinstance(pair, Atoms | Enclosed):
        return None
    if isinstance(pair, Reversed):
        found = _accuracy(pair.pair, -edges[::-1])
        return None if found is None else found[::-1]
    if isinstance(pair, Poisson | Uniform):
        loss = edges if isinstance(pair, Poisson) else np.abs(edges)
        with np.errstate(all="ignore"):
            inner = edges if pair.rate == 1 else inner_loss(pair.rate, loss)
        return _accuracy(pair.inner, np.nan_to_num(inner, nan=0.0, neginf=-_LOWEST))
    if isinstance(pair, ProjectedPair):
        return pair.own_accuracy(np.clip(edges, -1e6, 1e6))
    return np.full(edges.shape, 1.0 if isinstance(pair, LaplacePair) else 2.0)


def _weight_accuracy(pair: Pair, masses: Array) -> Array:
    """By how many units of 2^-50 of itself a bin with such masses may be off as well."""
    inner = pair.inner if isinstance(pair, Poisson) else pair
    return inner.bin_accuracy(masses) if isinstance(inner, ProjectedPair) else np.zeros(masses.shape)


def _absolute(masses: Array, accuracy: Array) -> Array:
    """How far each mass may be off: by its two tails, or, around the median, by one of them and itself."""
    errors = _tail_errors(masses, accuracy)
    own = np.maximum(np.append(accuracy[:1], accuracy), np.append(accuracy, accuracy[-1:]))
    return np.asarray(np.append(0.0, errors) + np.append(errors, 0.0) + _UNIT * own * masses)


def _tail_errors(masses: Array, accuracy: Array) -> Array:
    """How far the smaller tail may be off at each edge."""
    tails = np.minimum(np.cumsum(masses)[:-1], np.cumsum(masses[::-1])[::-1][1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(tails > 0, _UNIT * tails * (accuracy + np.abs(np.log(tails))), 0.0)


def _sampled(p: Array, q: Array, rate: float, accuracy: Array, weights: Array | float = 0.0) -> Doubts:
    """Of (1-p) Q + p P_inner against Q."""
    inner = (np.maximum(p - (1 - rate) * q, 0.0) + _UNIT * q) / rate
    own_inner, own_q = _absolute(inner, accuracy) + weights * inner, _absolute(q, accuracy) + weights * q
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(q > 1e-290, own_q / q, np.inf)
    shared = factor < 1e-3
    common = np.where(shared, 1.01 * factor, 0.0)
    apart = rate * own_inner + np.where(shared, rate * common * inner, (1 - rate) * own_q)
    return Doubts(common, 1.01 * apart, np.where(shared, 0.0, own_q))


@dataclass(frozen=True)
class SampleBins:
    """Bins of a sample: masses, P - Q with all its digits, and how far each may be off; also how far edges may be."""

    edges: Array
    p: Array
    q: Array
    gain: Array
    own_gain: Array
    unsure: Doubts
    moved: Array

    def reverse(self) -> SampleBins:
        """The same of (Q, P)."""
        unsure = Doubts(self.unsure.common[::-1], self.unsure.own_q[::-1], self.unsure.own_p[::-1])
        p, q, gain, own_gain = self.q[::-1], self.p[::-1], -self.gain[::-1], self.own_gain[::-1]
        return SampleBins(-self.edges[::-1], p, q, gain, own_gain, unsure, self.moved[::-1])

    def joined(self, above: SampleBins) -> SampleBins:
        """Below the last edge these bins, above it those of another that begin there."""

        def both(part: Callable[[SampleBins], Array]) -> Array:
            return np.concatenate([part(self)[:-1], part(above)[1:]])

        unsure = Doubts(
            both(lambda bins: bins.unsure.common),
            both(lambda bins: bins.unsure.own_p),
            both(lambda bins: bins.unsure.own_q),
        )
        return SampleBins(
            np.append(self.edges[:-1], above.edges),
            both(lambda bins: bins.p),
            both(lambda bins: bins.q),
            both(lambda bins: bins.gain),
            both(lambda bins: bins.own_gain),
            unsure,
            np.append(self.moved[:-1], above.moved),
        )


def sample_bins(sample: Poisson, edges: Array, *, from_zero: bool = False) -> SampleBins:
    """Of (1-p) Q + p P_inner against Q; `from_zero`: the first edge is 0, and stays there.

    Let the smaller of Q's tails be off by a at an edge of inner loss t: it is Q's true tail at t', |t' - t| <= a over
    the density of Q.  So Q-masses are true of the bins between the t', and P_inner is off by its own tails and by
    e^t a there.  The edge's loss is moved by p e^{t-L} |t' - t|; and by 16 * 2^-50 of itself, because t is rounded.
    (Around the median, where one tail gives way to the other, a bin is off by what all masses miss 1 by.)  Next to bins
    too wide or too empty for this, Q is off by a factor, as in `_sampled`.  Where losses are far below 1, P_inner - Q
    is far smaller than either, and of projections known to its own digits: it is off by those, by |e^t - 1| a at an
    edge, and by what Q's rounding has of it.  An atom that rounding takes to the other
    side of an edge is no further from it than the edge's loss is moved.
    """
    rate, released = sample.rate, sample.inner
    floor = math.log1p(-rate) if rate < 1 else -math.inf
    inner, q = sample.parts(edges) if rate < 1 else released.masses(edges)
    accuracy = _accuracy(sample, edges)
    assert accuracy is not None
    all_edges = edges
    edges, inner, q, accuracy, clipped = _merged(edges, inner, q, accuracy)
    weights, errors = _UNIT * _weight_accuracy(sample, np.minimum(inner, q)), _tail_errors(q, accuracy)
    own_inner, own_q = _absolute(inner, accuracy) + weights * inner, _absolute(q, accuracy) + weights * q
    with np.errstate(all="ignore"):
        at = edges if rate == 1 else np.where(edges > floor, sample.inner_loss(edges), -np.inf)
        factor = np.where(q > 1e-290, own_q / q, np.inf)
        shift = _shift(released, at, q, errors)
        moved = np.minimum(rate * np.exp(at - edges), 1.0) * shift
        lifted = 1.01 * np.exp(np.minimum(at, _FAR)) * errors
        missed = (abs(math.fsum(q) - 1) + _UNIT) / q
    shared, firm = factor < 1e-3, np.isfinite(shift)
    steady = shared & ~_beside(~shared) & np.append(True, firm) & np.append(firm, True)
    steady &= ~(clipped | np.append(edges > _FAR, True))
    if isinstance(released, ProjectedPair):
        steady[1:-1] &= ~released.changes(at)
    if from_zero:
        steady[:2] = False
    common = 1.01 * weights + _UNIT + np.where(_around_median(q), 1.01 * missed, 0.0)
    common = np.where(steady, common, np.where(shared, 1.01 * factor, 0.0))
    apart = rate * own_inner + np.where(shared, rate * common * inner, (1 - rate) * own_q)
    apart += np.where(steady, rate * (np.append(0.0, lifted) + np.append(lifted, 0.0)), 0.0)
    unsure = Doubts(common, 1.01 * apart, np.where(shared, 0.0, own_q))
    moved = np.where(steady[:-1] | steady[1:], moved, 0.0) + 16 * _UNIT * np.abs(edges)
    # losses so near the least one that their inner loss can't be told
    if rate < 1:
        moved += np.where(np.exp(np.minimum(edges, 0.0)) - (1 - rate) < 2.0**-59, 2.0**-60 / (1 - rate), 0.0)
    p, gain = (1 - rate) * q + rate * inner, rate * (inner - q)
    own_gain = unsure.own_p + unsure.own_q + _UNIT * rate * (inner + q)
    if isinstance(released, ProjectedPair) and released.noise_multiplier > _NOISY:
        with np.errstate(all="ignore"):
            reached = all_edges[all_edges > floor]
            difference, off = released.gains(sample.inner_loss(reached) if rate < 1 else reached)
            turned = 1.01 * (np.abs(np.expm1(np.minimum(at, _FAR))) + np.exp(np.minimum(at, _FAR)) * shift) * errors
        kept = np.searchsorted(all_edges, edges)
        known = np.append(np.zeros(all_edges.size - difference.size), difference)[kept]
        off = np.append(np.zeros(all_edges.size - difference.size), off)[kept] + turned
        direct = rate * (np.append(0.0, known) - np.append(known, 0.0))
        own = rate * (np.append(0.0, off) + np.append(off, 0.0))
        own += (common - 1.01 * weights + 4 * _UNIT) * np.abs(direct)
        better = steady & (own < own_gain)
        p, gain, own_gain = np.where(better, [q + direct, direct, own], [p, gain, own_gain])
        unsure = Doubts(common, np.where(better, own, unsure.own_p), unsure.own_q)
    return SampleBins(edges, p, q, gain, own_gain, unsure, moved)


def _merged(
    edges: Array, inner: Array, q: Array, accuracy: Array
) -> tuple[Array, Array, Array, Array, NDArray[np.bool_]]:
    """Without edges so close together that the mass between them is hardly known; and whose mass isn't a difference."""
    errors = _tail_errors(q, accuracy)
    empty = (q[1:-1] < 1e4 * (errors[1:] + errors[:-1])) & (edges[1:] < _FAR)
    if not empty.any() or edges.size < 3:
        return edges, inner, q, accuracy, q == 0
    kept = np.append(True, ~empty)
    kept[-1] = True
    starts = np.append(0, np.flatnonzero(kept) + 1)
    inner, q, none = (np.add.reduceat(part, starts) for part in (inner, q, np.where(q == 0, 1.0, 0.0)))
    return edges[kept], inner, q, accuracy[kept], none > 0


def _shift(released: Pair, at: Array, q: Array, errors: Array) -> Array:
    """How far the inner loss may lie from where Q's tail is the computed one; infinite where bins don't tell.

    A density whose logarithm changes by no more than x within a bin is nowhere in it below e^-x of its mean.
    """
    width = np.diff(at)
    steepness = _steepness(released, at)
    change = width * steepness
    least = np.where(change < _STEEP, q[1:-1] / width * np.exp(-change), 0.0)
    density = np.maximum(np.append(0.0, least), np.append(least, 0.0))
    shift = np.where(density > 0, 1.01 * errors / density, np.inf)
    steepest = np.fmax(np.append(0.0, steepness), np.append(steepness, 0.0))
    return np.where(shift * steepest < 0.009, shift, np.inf)


def _beside(bins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The neighbours of some bins."""
    return np.asarray(np.append(bins[1:], False) | np.append(False, bins[:-1]))


def _around_median(q: Array) -> NDArray[np.bool_]:
    """The bin whose ends' smaller tails are not on the same side, and its neighbours."""
    first = int(np.argmax(np.append(np.cumsum(q)[:-1] >= np.cumsum(q[::-1])[::-1][1:], True)))
    return np.asarray(np.abs(np.arange(q.size) - first) <= 1)


def _steepness(pair: Pair, t: Array) -> Array:
    """The most that the logarithm of the density of Q's inner loss changes for a unit of it, between neighbours in t.

    For a Gaussian it is (t + mu^2/2)/mu^2.  With projections the density is e^{-t/2} x^-nu K_nu(x) with
    x = sqrt(t^2 + r/sigma^2)/2, nu = (r + 1)/2, and -(log x^-nu K_nu)' = K_{nu+1}/K_nu <= (2 nu + 1)/x + 1.
    """
    size = np.abs(t)
    largest = np.maximum(size[1:], size[:-1])
    if isinstance(pair, GaussianPair):
        return np.asarray(largest / pair.mu**2 + 0.5)
    if isinstance(pair, ProjectedPair):
        smallest = np.where(t[1:] * t[:-1] > 0, np.minimum(size[1:], size[:-1]), 0.0)
        r = pair.projections
        return np.asarray(1 + (r + 2) * largest / (smallest**2 + r / pair.noise_multiplier**2))
    return np.full(largest.shape, np.inf)
