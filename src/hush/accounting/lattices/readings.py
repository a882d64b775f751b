"""What a lattice law says: delta at an epsilon and epsilon at a delta, on the safe side of all rounding."""

from __future__ import annotations

import math

import numpy as np

from hush.accounting.lattices.laws import Law
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.survey import LARGEST
from hush.accounting.roots import bracketed_root

MASS_ERROR = 2.0**-50


def _log_delta(law: Law, epsilon: float) -> float:
    """log of P(L = inf) + sum of P-masses times (1 - e^{epsilon - loss})_+."""
    losses = law.losses
    first = int(np.searchsorted(losses, epsilon, side="right"))
    infinite = float(np.logaddexp(law.log_infinite, law.faint.at(np.asarray(epsilon))))
    if first == losses.size:
        return infinite
    exponents = law.logs[first:]
    peak = float(exponents.max())
    total = float(np.exp(exponents - peak) @ -np.expm1(epsilon - losses[first:]))
    return float(np.logaddexp(infinite, peak + math.log(total))) if total > 0 else infinite


def curve(law: Law, epsilons: Array, doubt: float, *, upper: bool) -> Array:
    """`_log_delta` at many epsilons at once, on the safe side.

    With l the next loss above eps, delta(eps) = (1 - e^{eps - l}) P(L >= l) + e^{eps - l} delta(l): nothing cancels.
    """
    shift, margin = _shift(law, epsilons, doubt), _margin(doubt)
    at = epsilons - shift if upper else epsilons + shift
    first = np.searchsorted(law.losses, at, side="right")
    p_tail, scaled, off = (row[first] for row in law.tails)
    with np.errstate(divide="ignore", invalid="ignore"):
        here = np.append(law.losses, np.inf)[first]
        finite = np.logaddexp(p_tail + np.log(-np.expm1(np.minimum(at - here, 0.0))), scaled + at)
    finite = np.where(np.isneginf(p_tail), -np.inf, finite + (off if upper else -off))
    finite = np.logaddexp(finite, law.faint.at(at))
    result = np.logaddexp(finite, law.log_infinite) + (margin if upper else -margin)
    return np.asarray(np.minimum(result, 0.0))


def _shift(law: Law, epsilons: Array, doubt: float) -> Array:
    """What rounding of that many steps may move epsilons by, the law's losses being rounded sums."""
    return np.asarray(4 * doubt * MASS_ERROR + 2.0**-51 * (np.abs(epsilons) + abs(law.origin)) * (1 + 1e-9))


def _margin(doubt: float) -> float:
    """And log delta."""
    return 2 * doubt * MASS_ERROR + 1e-12


def _log_delta_upper(law: Law, epsilon: float, doubt: float) -> float:
    shift = float(_shift(law, np.asarray(epsilon), doubt))
    return min(0.0, _log_delta(law, epsilon - shift) + _margin(doubt))


def _log_delta_lower(law: Law, epsilon: float, doubt: float) -> float:
    shift = float(_shift(law, np.asarray(epsilon), doubt))
    return min(0.0, _log_delta(law, epsilon + shift) - _margin(doubt))


def epsilon_upper(law: Law, log_delta: float, doubt: float) -> float:
    """An epsilon >= 0 at which the law's delta is small enough, the margins counted."""
    shift, margin = float(_shift(law, np.zeros(()), doubt)), _margin(doubt)
    top = float(law.losses[-1])
    if _log_delta_upper(law, 0.0, doubt) <= log_delta:
        return 0.0
    if _log_delta(law, top) + margin > log_delta:
        return math.inf
    found = _crossing(law, log_delta - margin, -shift, top)
    nudge = 1e-12 * (1 + abs(found))
    while _log_delta(law, found) + margin > log_delta:
        found, nudge = found + nudge, 2 * nudge
    return found + float(_shift(law, np.asarray(found), doubt))


def epsilon_lower(law: Law, log_delta: float, doubt: float) -> float:
    """An epsilon >= 0 at which the law's delta is still too large, the margins counted; 0 if there is none."""
    shift, margin = float(_shift(law, np.zeros(()), doubt)), _margin(doubt)
    top = float(law.losses[-1])
    if _log_delta(law, max(top, shift)) - margin > log_delta:
        return LARGEST
    if _log_delta_lower(law, 0.0, doubt) <= log_delta:
        return 0.0
    found = _crossing(law, log_delta + margin, shift, top)
    nudge = 1e-12 * (1 + abs(found))
    while found > shift and _log_delta(law, found) - margin < log_delta:
        found, nudge = found - nudge, 2 * nudge
    return max(0.0, found - float(_shift(law, np.asarray(found), doubt)))


def _crossing(law: Law, log_delta: float, low: float, high: float) -> float:
    """Roughly where the law's log delta crosses a value between low and high."""
    losses = law.losses
    used = losses >= low
    losses, weights = losses[used], np.exp(np.minimum(law.logs[used] - log_delta, 700.0))
    rest = 1 - math.exp(min(700.0, law.log_infinite - log_delta))
    # delta(l_k) = tail_k - e^{l_k} sum_{j > k} w_j e^{-l_j}, and between lattice points it is linear in e^epsilon.
    decay = np.minimum(losses - losses[0], 600.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        tail = np.cumsum(weights[::-1])[::-1]
        discount = np.cumsum((weights * np.exp(-decay))[::-1])[::-1]
        k = int(np.searchsorted(np.exp(decay) * discount - tail, -rest))
        found = float(losses[0] + np.log((tail[k] - rest) / discount[k])) if k < losses.size else math.nan
    if low < found < high and abs(_log_delta(law, found) - log_delta) < 1e-9:
        return found

    def excess(epsilon: float) -> float:
        return min(max(_log_delta(law, epsilon) - log_delta, -50.0), 50.0)

    if excess(low) <= 0:
        return low
    return bracketed_root(excess, low, high, absolute=1e-14, relative=1e-11) if excess(high) < 0 else high
