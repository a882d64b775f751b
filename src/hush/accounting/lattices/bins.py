"""One step's law in bins that end at lattice points, on the safe side, also where masses have only logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.gaussian.closed import inner_loss
from hush.accounting.pairs.losses import Array, Enclosed, GaussianPair, Pair, Poisson, Uniform
from hush.accounting.pairs.points import Points, exact, loss_range
from hush.accounting.tails.binning import below, enclosing

_UNIT = 2.0**-50
_MISSED = 1e-289  # what laws of floating-point masses may miss
_DEEP = -600.0  # log of a tail below which masses have only logarithms


def one_sided(pair: Pair, edges: Array, *, above: bool) -> Points:
    """One step's law from bins between these edges, revealing more or less; as it is, where it has few outcomes."""
    side = (pair.upper if above else pair.lower) if isinstance(pair, Enclosed) else pair
    known = exact(side)
    if isinstance(known, Points):
        return known
    return _more(side, edges) if above else _less(side, edges)


def one_law(pair: Pair, edges: Array, *, above: bool) -> Points:
    """One step's law from bins; where losses have a largest value, what masses may have missed lies there at most."""
    law, top = one_sided(pair, edges, above=above), loss_range(pair)[1]
    missed = float(np.logaddexp(math.log(law.infinite) if law.infinite > 0 else -math.inf, law.log_hidden))
    if not above or not math.isfinite(top) or pair.infinite > 0 or missed == -math.inf:
        return law
    losses, masses = np.append(law.losses, top + 1e-12 * abs(top)), np.append(law.logs, missed)
    return replace(law, losses=losses, logs=masses, infinite=0.0, log_hidden=-math.inf)


def balanced(pair: Pair, inner: Array, lattice: Array, last: float = math.inf) -> Points:
    """Bins seen as one outcome, whose losses are those of lattice points or a little more, where they are large.

    An atom at the largest loss, the `last`, is a bin of its own.
    """
    h = float(lattice[1] - lattice[0])
    ends, atom = lattice - 0.5 * h, np.array([last] if math.isfinite(last) else [])
    ends[0] = lattice[0]
    for k in range(3):
        law = one_law(pair, np.concatenate([inner, ends, atom]), above=False)
        bins = np.searchsorted(ends, law.losses, side="right") - 1
        told = (bins >= 1) & (law.losses >= ends[0]) & (law.losses < last)
        if k == 2 or not told.any():
            break
        missing = np.interp(lattice, law.losses[told], lattice[bins[told]] - law.losses[told])
        missing += 1e-3 * np.abs(missing) + 1e-9 * h
        ends[1:] += np.clip(missing[1:], -0.2 * h, 0.2 * h)
    return law


def _less(pair: Pair, ends: Array) -> Points:
    """What reveals less: bins seen as one outcome, of Gaussian noise also where masses have only logarithms."""
    far = _Far.of(pair, ends)
    if far is None:
        return enclosing(pair, ends)[0]
    law = below(pair, ends[: far.first + 1])[0]
    found = far.log_p - far.log_q - far.off_p - far.off_q
    told = np.isfinite(found) & (far.off_p + far.off_q < 1e-3)
    return Points(
        np.append(law.losses, found[told] - far.rounding[told]),
        np.append(law.logs, (far.log_p - far.off_p)[told]),
        law.infinite,
    )


def _more(pair: Pair, ends: Array) -> Points:
    """What reveals more: bins split between their ends, of Gaussian noise also where masses have only logarithms.

    With a bin's P as large and Q as small as they may be.  (What enclosing laws count beyond their last edge is counted
    here, bin by bin; masses too small for floating point, at losses below 0, are put at 0.)
    """
    far = _Far.of(pair, ends)
    if far is None:
        return enclosing(pair, ends)[1]
    law = enclosing(pair, ends[: far.first + 1])[1]
    low, high = ends[far.first : -1], ends[far.first + 1 :]
    log_p, log_q = far.log_p + far.off_p, far.log_q - far.off_q
    whole = np.log(-np.expm1(low - high))
    # (P - e^lo Q)/(1 - e^{lo-hi}) at the upper end, no more than P, and the rest, rounded up, at the lower one
    up = log_p + np.log(np.clip(-np.expm1(low + log_q - log_p - far.rounding), 0.0, 1.0)) - whole
    up = np.minimum(np.where(np.isnan(up), log_p, up), log_p)
    down = low + log_q + np.log(np.clip(-np.expm1(log_p - log_q - high - far.rounding), 0.0, 1.0)) - whole
    down = np.minimum(np.where(np.isnan(down), log_p, down), log_p)
    return Points(
        np.concatenate([law.losses, [0.0], low, high]),
        np.concatenate([law.logs, [math.log(_MISSED)], down + far.rounding, up + far.rounding]),
        0.0,
        log_hidden=far.log_beyond,
    )


@dataclass(frozen=True)
class _Far:
    """Bins of a Gaussian release, on a sample or not, from an edge on: logs of P- and Q-masses, how far these are off.

    P is (1-p) Q + p P', and Q and P' are a Gaussian's.
    """

    first: int
    log_p: Array
    log_q: Array
    off_p: Array
    off_q: Array
    rounding: Array
    log_beyond: float

    @staticmethod
    def of(pair: Pair, ends: Array) -> _Far | None:
        """None where no tail is that small, or the pair is another."""
        rate, inner = (pair.rate, pair.inner) if isinstance(pair, Poisson | Uniform) else (1.0, pair)
        above = np.flatnonzero(ends > 0)
        if not isinstance(inner, GaussianPair) or above.size < 2:
            return None
        mu, at = inner.mu, ends[above] if rate == 1 else inner_loss(rate, ends[above])
        tails = log_ndtr(mu / 2 - at / mu) + math.log(rate)
        if rate < 1:
            tails = np.logaddexp(tails, log_ndtr(-mu / 2 - at / mu) + math.log1p(-rate))
        deep = np.flatnonzero(tails < _DEEP)
        if deep.size < 2 or deep[0] == 0:
            return None
        (log_p, off_p), (log_q, off_q) = (_log_bins(at[deep] / mu + way * mu / 2, mu) for way in (-1, 1))
        if rate < 1:
            log_p = np.logaddexp(log_p + math.log(rate), log_q + math.log1p(-rate))
            off_p = np.maximum(off_p, off_q)
        rounding = 32 * _UNIT * (1 + np.abs(log_p) + np.abs(log_q) + ends[above[deep[1:]]])
        last = float(tails[-1])
        return _Far(int(above[deep[0]]), log_p, log_q, off_p, off_q, rounding, last + 1e-9 * (1 + abs(last)))


def _log_bins(x: Array, mu: float) -> tuple[Array, Array]:
    """Logs of a normal variable's masses between points, sums with a mu, and how far they may be off."""
    left, right = log_ndtr(x), log_ndtr(-x)
    near, far = np.where(x[:-1] < 0, left[1:], right[:-1]), np.where(x[:-1] < 0, left[:-1], right[1:])
    apart = near - far
    size = np.maximum(np.abs(x[1:]), np.abs(x[:-1]))
    off = 1e-14 * (2 + np.abs(near) + np.abs(far)) + _UNIT * (1 + size) * (size + mu)
    return near + np.log(-np.expm1(-apart)), off * (1 + 1 / np.expm1(np.clip(apart, 1e-300, 700.0)))
