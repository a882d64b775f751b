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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hush.accounting.closed import inner_loss
from hush.accounting.losses import Array, Atoms, Enclosed, LaplacePair, Pair, Poisson, Reversed, Uniform
from hush.accounting.projection import ProjectedPair

_UNIT = 2.0**-50
_LOWEST = 60.0  # inner losses this far below 0 can't be told from the lowest


@dataclass(frozen=True)
class Doubts:
    """Of each bin: a factor common to P and Q, and errors of their own, all as bounds."""

    common: Array
    own_p: Array
    own_q: Array

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
    weights = _UNIT * _weight_accuracy(pair)
    if isinstance(pair, Poisson) and pair.rate < 1:
        return _sampled(p, q, pair.rate, accuracy, weights)
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
    return Doubts(np.zeros(p.size), _absolute(p, accuracy) + weights * p, _absolute(q, accuracy) + weights * q)


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


def _weight_accuracy(pair: Pair) -> float:
    """By how many units of 2^-50 of itself any bin may be off as well."""
    inner = pair.inner if isinstance(pair, Poisson) else pair
    return inner.weight_accuracy if isinstance(inner, ProjectedPair) else 0.0


def _absolute(masses: Array, accuracy: Array) -> Array:
    """How far each mass may be off: by its two tails, or, around the median, by one of them and itself."""
    tails = np.minimum(np.cumsum(masses)[:-1], np.cumsum(masses[::-1])[::-1][1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(tails > 0, _UNIT * tails * (accuracy + np.abs(np.log(tails))), 0.0)
    own = np.maximum(np.append(accuracy[:1], accuracy), np.append(accuracy, accuracy[-1:]))
    return np.asarray(np.append(0.0, errors) + np.append(errors, 0.0) + _UNIT * own * masses)


def _sampled(p: Array, q: Array, rate: float, accuracy: Array, weights: float = 0.0) -> Doubts:
    """Of (1-p) Q + p P_inner against Q."""
    inner = (np.maximum(p - (1 - rate) * q, 0.0) + _UNIT * q) / rate
    own_inner, own_q = _absolute(inner, accuracy) + weights * inner, _absolute(q, accuracy) + weights * q
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(q > 1e-290, own_q / q, np.inf)
    shared = factor < 1e-3
    common = np.where(shared, 1.01 * factor, 0.0)
    apart = rate * own_inner + np.where(shared, rate * common * inner, (1 - rate) * own_q)
    return Doubts(common, 1.01 * apart, np.where(shared, 0.0, own_q))
