"""Samples of Gaussian and Laplace noise without bins: their transforms by Gauss's sums, as good as rounding allows.

With inner loss u = a x + b, linear in x, and q the density of x under Q, a sample's ratio is g = 1 - p + p e^u, and

    E_P[e^{sL}] = integral of g^r q dx,    r = 1 + s where L = log g,  r = -s where L = -log g.

The integrand is analytic: on each of some panels a sum over a few nodes is as good as the integral (stretches.py), and
the law is as if it had its mass at these nodes.  C_p has the Poisson sample's positive losses, their mirror images and
an atom at 0: stretches that begin where u = 0.  What lies beyond the ends of the stretches is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Complex
from hush.accounting.mixed.stretches import ORDER, Stretch
from hush.accounting.pairs.losses import Array, GaussianPair, LaplacePair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.points import Points, sampled_loss

_FEWEST, _ROUGHLY, _MOST = 4, 24, 256  # panels
_AIM = -37.0  # log of a sum's error, as a share of it
_STEEPER = 1.5  # times the tilt: Chernoff's bounds are asked for beyond it
_PLACES = 1500  # at which the ends of a stretch are looked for
_LOG_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Smooth:
    """One step's law: stretches, atoms beside them, and the log of what has an infinite loss."""

    stretches: tuple[Stretch, ...]
    atoms: tuple[tuple[float, float], ...]
    """Losses and logs of masses."""
    panels: tuple[int, ...]
    """Of each stretch, that are enough near the order it was made for."""
    log_size: float
    """About log E[e^{sL}] there."""
    log_hidden: float = -math.inf
    infinite: float = 0.0

    @cached_property
    def _ends(self) -> Array:
        found = [loss for loss, _ in self.atoms]
        for one in self.stretches:
            ends = one.losses(np.array([one.start, one.end]))
            found += list(ends if one.above else -ends)
        return np.array(found)

    @property
    def largest(self) -> float:
        return float(np.abs(self._ends).max())

    @property
    def unsure(self) -> float:
        return self.largest

    @property
    def top(self) -> float:
        return float(self._ends.max())

    @property
    def size(self) -> int:
        """About how many nodes it takes."""
        return ORDER * sum(self.panels) + len(self.atoms)

    def _enough(self, order: float, height: float) -> tuple[int, ...]:
        """Panels for which sums are as good as rounding, or the most there are."""
        return tuple(
            _panels(stretch, first, order, height, self.log_size)
            for stretch, first in zip(self.stretches, self.panels, strict=True)
        )

    def _sum(self, counts: tuple[int, ...]) -> tuple[Points, Array, Array]:
        made = [stretch.points(count) for stretch, count in zip(self.stretches, counts, strict=True)]
        none = np.zeros(len(self.atoms))
        losses, logs, own, turned = (np.concatenate(rows) for rows in zip(*made, strict=True))
        losses = np.append(losses, [loss for loss, _ in self.atoms])
        logs = np.append(logs, [log for _, log in self.atoms])
        return Points(losses, logs), np.append(own, none + 64), np.append(turned, none)

    def log_mgf(self, orders: Array) -> Array:
        """From above: with the errors of the sums."""
        known, own, turned = self._at_tilt
        logs = [
            stretch.log_errors(count, orders, 0.0) for stretch, count in zip(self.stretches, self.panels, strict=True)
        ]
        found = known.log_mgf(orders)
        rounding = UNIT_ROUNDOFF * (float(own.max()) + (1 + np.abs(orders)) * float(turned.max()))
        return np.asarray(np.logaddexp.reduce([found + rounding, *logs]))

    def rise(self, more: Smooth, order: float) -> float:
        """What further atoms of another law add to the log-MGF, from above.

        This law's own is known from its sum but for what `log_mgf` adds: where that is a tenth at most, it is no less
        than 0.89 times the sum.
        """
        at = np.array([order])
        logs = [log + order * loss for loss, log in more.atoms[len(self.atoms) :]]
        if not logs:
            return 0.0
        known = float(self.usual.log_mgf(at)[0])
        if not float(self.log_mgf(at)[0]) - known <= 0.1:
            return math.inf
        return float(np.logaddexp(0.0, math.log(1.2) + float(np.logaddexp.reduce(logs)) - known))

    @property
    def usual(self) -> Points:
        """What is as good as this law near the tilt, for those who ask for no bound."""
        return self._at_tilt[0]

    @cached_property
    def _at_tilt(self) -> tuple[Points, Array, Array]:
        return self._sum(self.panels)

    def on_line(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        height = spacing * count
        counts = self._enough(c, height)
        known, own, turned = self._sum(counts)
        values, errors, scale = known.on_line(c, spacing, count)
        weights = np.exp(c * known.losses + known.logs - scale)
        order = 1 + abs(c) + spacing * np.arange(count)
        missed = [
            stretch.log_errors(panels, np.array([c]), height)[0]
            for stretch, panels in zip(self.stretches, counts, strict=True)
        ]
        missing = math.exp(min(float(np.logaddexp.reduce(missed)) - scale, 700.0))
        rounding = UNIT_ROUNDOFF * (float(weights @ own) + order * float(weights @ turned))
        return values, np.asarray(errors + rounding + missing), scale

    def log_decay(self, c: float, height: float) -> float:
        """log of a bound on |E[e^{sL}]| for Re s = c and all Im s of at least that."""
        found = [log + c * loss for loss, log in self.atoms]
        found += [one.log_decay(count, c, height) for one, count in zip(self.stretches, self.panels, strict=True)]
        return float(np.logaddexp.reduce(found)) + 16 * UNIT_ROUNDOFF * (4 + abs(max(found)))


def fits(pair: Pair) -> bool:
    """Whether it is a sample of Gaussian or Laplace noise."""
    one = pair.pair if isinstance(pair, Reversed) else pair
    return isinstance(one, Poisson | Uniform) and isinstance(one.inner, GaussianPair | LaplacePair) and one.rate < 1


def mu(pair: Pair) -> float:
    """The inner release's, of such a sample."""
    one = pair.pair if isinstance(pair, Reversed) else pair
    assert isinstance(one, Poisson | Uniform)
    assert isinstance(one.inner, GaussianPair | LaplacePair)
    return one.inner.mu


def enclosing_laws(
    steps: Sequence[tuple[Pair, int]], tilt: float, log_delta: float, digits: float
) -> tuple[list[tuple[Smooth, int]], list[tuple[Smooth, int]]]:
    """Laws that reveal less and more: what is left out is e^-digits of such a delta, and of the tilted law."""
    every = math.log(sum(count for _, count in steps)) + digits
    made = [(_laws(pair, tilt, log_delta - every, -every - 8), count) for pair, count in steps]
    return [(less, count) for (less, _), count in made], [(more, count) for (_, more), count in made]


def _laws(pair: Pair, tilt: float, log_infinite: float, log_left: float) -> tuple[Smooth, Smooth]:
    """Two laws: beyond the ends of the stretches there is such a P-mass at most, or such a part of the tilted law."""
    one = pair.pair if isinstance(pair, Reversed) else pair
    assert isinstance(one, Poisson | Uniform)
    rate, inner = one.rate, one.inner
    ways = (True, False) if isinstance(one, Uniform) else (not isinstance(pair, Reversed),)
    assert isinstance(inner, GaussianPair | LaplacePair)
    mu = inner.mu
    cut, left_out, hidden = [], [], -math.inf
    atoms: list[tuple[float, float]] = []
    half = isinstance(one, Uniform)
    for above in ways:
        if isinstance(inner, LaplacePair):
            whole = Stretch(rate, 2.0, -mu, 0.0, 1.0, math.log(2), above, 0.5 * mu if half else 0.0, mu)
            low, high = (float(end) for end in sampled_loss(np.array([-mu, mu]), rate))
            log_half = math.log(0.5)
            # the inner P- and Q-mass of either end: half of one, e^-mu times that of the other
            ends = [(high, log_half - mu, log_half)] + ([] if half else [(low, log_half, log_half - mu)])
            for loss, log_q, log_p in ends:
                mixed = float(np.logaddexp(math.log1p(-rate) + log_q, math.log(rate) + log_p))
                atoms.append((loss, mixed) if above else (-loss, log_q))
            cut.append(whole)
            continue
        start = 0.5 * mu if half else -math.inf
        whole = Stretch(rate, mu, -0.5 * mu * mu, 1.0, 0.0, _LOG_ROOT, above, start, math.inf)
        stretch, more, beyond = _cut(whole, tilt, log_infinite, log_left)
        cut.append(stretch)
        left_out += more
        hidden = float(np.logaddexp(hidden, beyond))
    if half:
        rest = math.erf(0.5 * mu / math.sqrt(2)) if isinstance(inner, GaussianPair) else -math.expm1(-0.5 * mu)
        atoms.append((0.0, math.log1p(-rate) + math.log(rest)))
    rough = Smooth(tuple(cut), tuple(atoms), tuple(_ROUGHLY for _ in cut), 0.0)
    log_size = float(rough.usual.log_mgf(np.array([tilt]))[0])
    panels = tuple(_panels(stretch, _FEWEST, tilt, 0.0, log_size) for stretch in cut)
    less = Smooth(tuple(cut), tuple(atoms), panels, log_size)
    return less, replace(less, atoms=(*atoms, *left_out), log_hidden=hidden)


def _panels(stretch: Stretch, first: int, order: float, height: float, log_size: float) -> int:
    """How many panels make sums as good as rounding, or the most there are."""
    count = first
    while count < _MOST and not stretch.log_errors(count, np.array([order]), height)[0] < log_size + _AIM:
        count *= 2
    return count


def _cut(
    whole: Stretch, tilt: float, log_infinite: float, log_left: float
) -> tuple[Stretch, list[tuple[float, float]], float]:
    """A stretch of finite length, atoms with no less than what is left out, and the log of what is beyond its end.

    Beyond its end, where L = log g, losses count as infinite that have hardly any mass, and the others as the largest
    of them.  To the left of a sample's start lie losses below that at the start, to the right of its end, where
    L = -log g, losses below that at the end; each is raised to it.
    """
    mu, rate = whole.slope, whole.rate
    deepest = float(ndtri_exp(min(log_left, log_infinite if not whole.above else 0.0) - 40.0))
    if whole.above:
        far = max(
            -float(ndtri_exp(min(log_infinite - math.log1p(-rate), -1.0))),
            mu - float(ndtri_exp(min(log_infinite - math.log(rate), -1.0))),
        )
    else:
        far = max(-deepest, whole.start + 1.0)  # with little noise C_p's negative losses begin further out
    x = np.linspace(max(whole.start, deepest), far, _PLACES)
    losses = whole.losses(x)
    if whole.above:
        tilted = (1 + tilt) * losses - 0.5 * x * x
        below = np.logaddexp(math.log1p(-rate) + log_ndtr(x), math.log(rate) + log_ndtr(x - mu))
        left = below + tilt * losses
    else:
        tilted = -tilt * losses - 0.5 * x * x
        below = log_ndtr(x)
        left = below - tilt * math.log1p(-rate) if math.isinf(whole.start) else np.full(x.shape, math.inf)
    total = float(np.logaddexp.reduce(tilted)) + math.log(x[1] - x[0]) - _LOG_ROOT
    first = int(np.searchsorted(left, total + log_left)) - 1
    atoms: list[tuple[float, float]] = []
    start = float(x[max(first, 0)])
    if start > whole.start:
        k = max(first, 0)
        # rounded up: Gaussian tails are good to 3e-13, losses to a few units in their last places
        loss = float(losses[k]) if whole.above else -math.log1p(-rate)
        atoms.append((loss + 1e-15 * (1 + abs(loss)), float(below[k]) + 1e-12 * (1 + abs(float(below[k])))))
    if whole.above:
        after = np.logaddexp(math.log1p(-rate) + log_ndtr(-x), math.log(rate) + log_ndtr(mu - x))
        after += 1e-12 * (1 + np.abs(after))
        # what lies between the stretch and where losses count as infinite is raised to there
        raised = after + _STEEPER * tilt * losses[-1] < total + log_left
        last = max(int(np.argmax(raised)) if raised.any() else x.size - 1, max(first, 0) + 1)
        if last < x.size - 1:
            atoms.append((float(losses[-1]) + 1e-15 * (1 + float(losses[-1])), float(after[last])))
        return replace(whole, start=start, end=float(x[last])), atoms, float(after[-1])
    right = log_ndtr(-x) - tilt * losses
    last = min(int(np.argmax(right < total + log_left)) if (right < total + log_left).any() else x.size, x.size - 1)
    last = max(last, max(first, 0) + 1)
    end, mass = float(x[last]), float(log_ndtr(-x[last]))
    atoms.append((-float(losses[last]) + 1e-15 * (1 + abs(float(losses[last]))), mass + 1e-12 * (1 + abs(mass))))
    return replace(whole, start=start, end=end), atoms, -math.inf
