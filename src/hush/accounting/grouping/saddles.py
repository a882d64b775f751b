"""About log delta of a composition at any epsilon, by saddle points: where a chain's links are, however deep.

With Lambda the log of the losses' moment generating function, the integrand of line.py has its saddle point at c where
epsilon = Lambda'(c) - 1/c - 1/(c + 1).  So c tells epsilon and log delta at once, and a row of c gives a curve that
goes as deep, and comes as close to a largest total, as one likes.  A model: it enters no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hush.accounting.grouping.links import Model
from hush.accounting.pairs.losses import Array, GaussianPair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.points import Points, Scattered, enclosing, exact, loss_range, sampled_loss

Steps = Sequence[tuple[Pair, int]]
Cumulants = Callable[[Array], tuple[Array, Array, Array]]

_ORDERS = 80
_CLOSEST = 1e-9  # to a largest total, as a part of it
NOTHING = -2.5e4
"""log of a delta smaller than any that is asked for."""
_FURTHEST = 3e4  # an epsilon larger than any that is
_MANY = 2000  # points of a law that are worth no bins
_OUT = np.geomspace(1e-10, 1.0, 160)
_MOST = 1500  # orders: where a curve jumps and jumps again, no more are looked for
_NUDGE = 1e-3  # of an order
_REFINED, _BENT = 30, 2e-3  # times that orders are halved, until log delta is straight but for so much of it
_REACH = 9.0  # of a normal variable
_PANELS, _GAUSS = 6, np.polynomial.legendre.leggauss(10)


def model(directions: Sequence[Steps]) -> Model | None:
    """The larger of all directions; None where a loss has no moments, or none that are known."""
    curves = [_curve(steps) for steps in directions]
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(curves):
        return None
    places = np.unique(np.concatenate([at for at, _ in known]))
    logs = np.max([np.interp(places, at, values) for at, values in known], axis=0)
    return Model(places, np.minimum.accumulate(np.minimum(logs, -1e-12)))


@np.errstate(all="ignore")
def _curve(steps: Steps) -> tuple[Array, Array] | None:
    laws = [(_cumulants(pair), count) for pair, count in steps]
    if not all(law is not None for law, _ in laws):
        return None
    top = math.fsum(count * loss_range(pair)[1] for pair, count in steps)
    if not top > 0:
        return None
    bounded = math.isfinite(top)
    new = np.geomspace(*((1e-3 / top, max(1 / (_CLOSEST * top), 1e12)) if bounded else (1e-4, 1e12)), _ORDERS)
    found = np.empty((3, 0))
    for _ in range(_REFINED):
        rows = [count * np.array(law(new)) for law, count in laws if law is not None]
        found = np.concatenate([found, [new, *_saddles(new, np.sum(rows, axis=0))]], axis=1)
        found = found[:, np.argsort(found[0], kind="stable")]
        orders, epsilons, logs = found
        # a chord between two of them is off by an eighth of that; and where one kind takes over, epsilon jumps
        wide = np.diff(epsilons) * np.diff(orders) > _BENT * (1 - logs[1:])
        wide &= (epsilons[1:] > 0) & (logs[:-1] > 2 * NOTHING) & (np.diff(orders) > 1e-9 * orders[1:])
        if not wide.any() or orders.size > _MOST:
            break
        new = np.sqrt(orders[:-1] * orders[1:])[wide]
    kept = (epsilons < (top * (1 - _CLOSEST) if bounded else _FURTHEST)) & np.isfinite(logs)
    kept &= epsilons >= np.maximum.accumulate(np.where(kept, epsilons, -np.inf))
    none = float(np.interp(0.0, epsilons[kept], logs[kept])) if kept.any() else 0.0
    kept &= (epsilons > 0) & (bounded | (logs > 4 * NOTHING))
    if kept.sum() < 2:
        return None
    epsilons, logs = epsilons[kept], np.minimum.accumulate(np.minimum(logs[kept], -1e-12))
    if bounded:
        epsilons = np.append(epsilons, [top, top * (1 + _CLOSEST)])
        logs = np.append(logs, [logs[-1] - 1, NOTHING])
    elif logs[-1] > 4 * NOTHING:  # as it falls at the end, until nothing is left
        fall = max((logs[-2] - logs[-1]) / max(epsilons[-1] - epsilons[-2], 1e-300), 1e-3)
        last = min(max(_FURTHEST, 2 * epsilons[-1]), epsilons[-1] + (logs[-1] - 4 * NOTHING) / fall)
        epsilons, logs = np.append(epsilons, last), np.append(logs, logs[-1] - fall * (last - epsilons[-1]))
    leaks = float(sum(count * pair.infinite for pair, count in steps))
    logs = np.logaddexp(logs, math.log(leaks)) if leaks > 0 else logs
    return np.append(0.0, epsilons), np.minimum.accumulate(np.append(max(none, float(logs[0])), logs))


def _saddles(orders: Array, cumulants: Array) -> tuple[Array, Array]:
    """Epsilons, and about log delta there."""
    sizes, means, variances = cumulants
    spreads = np.maximum(variances, 0.0) + orders**-2 + (orders + 1) ** -2
    epsilons = means - 1 / orders - 1 / (orders + 1)
    return epsilons, sizes - orders * epsilons - np.log(orders * (orders + 1)) - 0.5 * np.log(2 * math.pi * spreads)


def _cumulants(pair: Pair) -> Cumulants | None:
    """About the log of E_P[e^{cL}; L finite] at orders c > 0, and the mean and variance of the tilted loss."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    if isinstance(sample, Poisson | Uniform) and isinstance(sample.inner, GaussianPair):
        return partial(_of_gaussian_samples, pair, sample.rate, sample.inner.mu)
    law = _law(pair)
    if law is None:
        return None
    return law.cumulants if isinstance(law, Points) else partial(_by_differences, law.log_mgf)


def _by_differences(log_mgf: Callable[[Array], Array], orders: Array) -> tuple[Array, Array, Array]:
    below, here, above = (log_mgf(orders * (1 + change)) for change in (-_NUDGE, 0.0, _NUDGE))
    steps = _NUDGE * orders
    return here, (above - below) / (2 * steps), (above - 2 * here + below) / steps**2


def _of_gaussian_samples(pair: Pair, rate: float, mu: float, orders: Array) -> tuple[Array, Array, Array]:
    """By sums over a normal variable around 0 and around where e^{cL} puts it.

    With g = 1 - p + p e^{mu z - mu^2/2} the law is that of log g, with g as its density, where a record is removed, and
    of -log g where one is added.  Where one is replaced both are, but for g <= 1, and what is left lies at 0.
    """
    replaced, added = isinstance(pair, Uniform), isinstance(pair, Reversed)
    first = 0.5 * mu if replaced else -_REACH
    far = np.zeros(orders.size) if added else (1 + orders) * mu
    middle = np.maximum(np.minimum(first + 2 * _REACH, 0.5 * (first + far + _REACH)), first)
    start = np.maximum(middle, far - _REACH)
    places, logs = (
        np.concatenate(parts, axis=1)
        for parts in zip(_nodes(np.full(orders.size, first), middle), _nodes(start, far + _REACH), strict=True)
    )
    logs = logs - 0.5 * places**2 - 0.5 * math.log(2 * math.pi)
    losses, c = sampled_loss(mu * places - 0.5 * mu * mu, rate), orders[:, None]
    parts = [] if added else [(losses, logs + losses)]
    parts += [(-losses, logs)] if added or replaced else []
    whole = np.logaddexp.reduce([np.logaddexp.reduce(log + c * loss, axis=1) for loss, log in parts], axis=0)
    change = np.sum([(np.exp(log) * np.expm1(np.minimum(c * loss, 600.0))).sum(axis=1) for loss, log in parts], axis=0)
    size = np.where(whole > 0.5, whole, np.log1p(change))
    tilted = [(loss, np.exp(log + c * loss - size[:, None])) for loss, log in parts]
    mean = np.sum([(mass * loss).sum(axis=1) for loss, mass in tilted], axis=0)
    square = np.sum([(mass * loss**2).sum(axis=1) for loss, mass in tilted], axis=0)
    return size, mean, square - mean**2


def _nodes(low: Array, high: Array) -> tuple[Array, Array]:
    """Gauss's nodes between ends, a row each, and the logs of their weights."""
    width = (high - low)[:, None] / _PANELS
    places = low[:, None, None] + width[:, :, None] * (np.arange(_PANELS)[:, None] + 0.5 * (_GAUSS[0] + 1))
    logs = np.log(0.5 * width[:, :, None] * _GAUSS[1] + np.zeros((1, _PANELS, 1)))
    return places.reshape(low.size, -1), logs.reshape(low.size, -1)


def _law(pair: Pair) -> Scattered | None:
    """About the pair's law, its atoms and what lies close to them told apart."""
    law = exact(pair)
    if law is not None and not (isinstance(law, Points) and law.losses.size > _MANY):
        return law
    atoms = np.asarray(pair.atoms)
    if atoms.size == 0:
        return None
    low, high = float(atoms.min()), float(atoms.max())
    reach = high - low
    beyond = pair.masses(np.array([low - 1e-9 * reach, high + 1e-9 * reach]))[0]
    if not reach > 0 or beyond[0] > 0 or beyond[-1] > pair.infinite:
        return None
    margin = 1e-10 * np.maximum(np.abs(atoms), 1e-4 * reach)
    places = np.concatenate([low + reach * _OUT, high - reach * _OUT, atoms - margin, atoms + margin])
    near = np.multiply.outer(np.array([-1.0, 1.0]), max(-low, high) * _OUT).ravel()
    return enclosing(pair, np.unique(np.append(places, near[(near > low) & (near < high)])))[0]
