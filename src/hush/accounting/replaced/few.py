"""A few equal Gaussian releases on samples, one record replaced: the curve by quadrature, to ten digits of delta(0).

With the density of all losses but one (densities.py) and delta_1, the closed form of the last,

    delta(eps) = a^(k-1) delta_1(eps)
                 + integral over l > 0 of f(l) (e^{l/2} delta_1(eps - l) + e^{-l/2} delta_1(eps + l)),

a sum of positive terms.  So epsilons keep their digits where delta is close to delta(0), which says more than that it
is smaller.  Far below delta(0) other engines know more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.contours.crossing import Curve, certified_root
from hush.accounting.pairs import single
from hush.accounting.pairs.losses import Array, GaussianPair, Pair, Uniform
from hush.accounting.replaced.densities import SUMS, Density, Loss, Panels, convolved, sub_panels

_MOST_PANELS = {5: 50, 9: 46, 16: 36, 32: 29}  # up to so many steps: convolutions cost their square
_MOST_STEPS = max(_MOST_PANELS)
_FEW_STEPS = 9
_CLOSE = 0.7  # of a delta(0) that grows like the root of the number of steps, at least
_DEEPEST = 1e-4  # of delta(0): below, what is lost to rounding counts
_MISSED = 1e-16
_ORDERS = np.geomspace(0.5, 1000, 60)  # over the largest loss
_UNIT = 2.0**-53


def fits(steps: Sequence[tuple[Pair, int]], log_delta: float) -> bool:
    """Whether these are a few equal steps, and delta isn't far below delta(0)."""
    if len(steps) != 1 or not 2 <= steps[0][1] <= _MOST_STEPS:
        return False
    pair = steps[0][0]
    if not (isinstance(pair, Uniform) and isinstance(pair.inner, GaussianPair) and pair.rate < 1):
        return False
    alone = float(single.curve(pair)(np.zeros(1))[1][0])
    if steps[0][1] > _FEW_STEPS:  # others are as good, and sooner, but close to delta(0)
        one = min(max(math.exp(alone), 1e-300), 1 - 1e-9)
        return log_delta > math.log(-math.expm1(_CLOSE * math.sqrt(steps[0][1]) * math.log1p(-one)))
    return log_delta > alone + math.log(_DEEPEST)


def serves(steps: Sequence[tuple[Pair, int]], epsilons: Array) -> bool:
    """The same by epsilons: all steps tell at least as much as one."""
    return fits(steps, 0.0) and fits(steps, float(single.curve(steps[0][0])(epsilons)[0].min()))


def epsilon(steps: Sequence[tuple[Pair, int]], log_delta: float, tolerance: float) -> tuple[float, float]:
    """Certified bounds on the smallest epsilon >= 0 with delta(epsilon) <= exp(log_delta)."""
    known = curve(steps)
    if known is None:
        return 0.0, math.inf
    return certified_root(known, loss_of(steps[0][0]).scale, log_delta)


@np.errstate(all="ignore")
def curve(steps: Sequence[tuple[Pair, int]]) -> Curve | None:
    """Certified bounds on log delta at epsilons >= 0; None where losses are spread too far."""
    ((pair, count),) = steps
    loss = loss_of(pair)
    nothing = math.exp(float(single.curve(pair)(np.zeros(1))[1][0]))
    missed = _MISSED * nothing / (1 + math.exp(float(loss.log_density(np.zeros(1))[0]))) / count
    most = next(panels for steps, panels in _MOST_PANELS.items() if count <= steps)
    panels = Panels.of(loss, count - 1, _reach(loss, count - 1, missed), missed, most)
    if panels is None:
        return None
    others = _sum_of(Density.single(panels), count - 1)
    single_curve = single.curve(pair)
    excess = others.most_excess * Density.single(panels).most_excess
    largest = 16 * excess * (nothing + loss.scale) + 16 * panels.edges[1:]
    ellipses = panels.quadrature_error(others.sizes() * np.exp(0.75 * panels.edges[1:]) * largest)
    atom = loss.atom ** (count - 1)

    def found(epsilons: Array) -> tuple[Array, Array]:
        ends = []
        for epsilon in epsilons:
            at, weights = sub_panels(panels, float(epsilon))
            value, error = others(at)
            rounded = 4 * _UNIT * (epsilon + at)
            low, high = 0.0, 0.0
            for sign in (-1.0, 1.0):
                further = epsilon + sign * at
                tilt = np.exp(-0.5 * sign * at) * weights
                below = np.exp(single.anywhere(single_curve, single_curve, further + rounded)[0])
                above = np.exp(single.anywhere(single_curve, single_curve, further - rounded)[1])
                low += float((np.maximum(value - error, 0.0) * tilt * below).sum())
                high += float(((value + error) * tilt * above).sum())
            alone = [math.exp(float(side[0])) for side in single_curve(np.array([epsilon]))]
            wrong = ellipses + 2 * count * missed
            ends.append((atom * alone[0] + low - wrong, atom * alone[1] + high + wrong))
        lower, upper = np.array(ends).T
        rounding = (SUMS + 2 * panels.top) * _UNIT
        lower, upper = lower * (1 - rounding), upper * (1 + rounding)
        return np.log(np.maximum(lower, 0.0)), np.minimum(np.log(upper), 0.0)

    return np.errstate(all="ignore")(found)


def loss_of(pair: Pair) -> Loss:
    assert isinstance(pair, Uniform)
    assert isinstance(pair.inner, GaussianPair)
    return Loss(pair.rate, 1 / pair.inner.mu)


def _sum_of(one: Density, count: int) -> Density:
    """So many of it, by doubling."""
    if count == 1:
        return one
    half = _sum_of(one, count // 2)
    twice = convolved(half, half)
    return convolved(twice, one) if count % 2 else twice


def _reach(loss: Loss, count: int, missed: float) -> float:
    """What the total of so many losses exceeds with no more than this chance.

    Each is below an edge but for half of it, and of those that are Chernoff's inequality says the rest: in every bin
    losses are taken for the largest, and those below 0 for 0.
    """
    mu, rate = 1 / loss.noise, loss.rate
    x = np.linspace(0.5 * mu, mu + 30, 1000)
    inner = mu * (x - 0.5 * mu)
    edges = np.where(inner < 30, np.log1p(rate * np.expm1(np.minimum(inner, 30))), inner + math.log(rate))
    log_above = np.logaddexp(math.log1p(-rate) + log_ndtr(-x), math.log(rate) + log_ndtr(mu - x))
    last = int(np.searchsorted(-log_above, math.log(4 * count / missed))) + 1
    edges, log_above = edges[: last + 1], log_above[: last + 1]
    log_bins = log_above[:-1] + np.log(-np.expm1(np.diff(log_above))) + 1e-6  # more than they may be off
    moment = np.logaddexp.reduce(np.outer(_ORDERS, edges[1:]) / edges[-1] + log_bins, axis=1, initial=0.0)
    by_chernoff = (count * moment + math.log(4 / missed)) / _ORDERS * edges[-1]
    return float(min(by_chernoff.min(), count * edges[-1]))
