"""What it costs to run a private algorithm a random number of times and publish the best result only.

Let Q be one run, with a totally ordered result (the score comes first), P and P' the laws of its result on neighbouring
data sets, K the secret number of runs and f(x) = E[x^K].  The best of K runs is at most t with probability f(P(<= t)),
so its density over P's is f'(u), u = P(<= t), and over P' it is f'(u'), u' = P'(<= t).  (Where results may be equal, a
tie is broken by coins; u is then uniform between P(< t) and P(<= t), and the same coins give u'.)  Here (u, u') are the
probabilities of one and the same event, so they obey Q's own privacy: with y = 1 - u and y' = 1 - u',

    y' <= e^eps y + delta(eps)    and    u <= e^eps u' + delta(eps)    for every eps >= 0.               (*)

Two bounds follow.

`profile` (hush's own).  Let L(y) be the largest log f'(u) - log f'(u') that (*) allows for values up to y.  Then

    [f'(u) dP - e^eps f'(u') dP']_+  <=  f'(u) [dP - e^(eps - L(y)) dP']_+,

and the integral of the right side without f'(u), over all results whose y is at most some z, is at most
D(z) = min(delta(eps - L(z)), z): L rises, and y is uniform under P.  f'(1 - y) falls in y, so summing by parts,

    delta_best(eps) <= integral over y from 0 to 1 of D(y) d(-f'(1 - y))  +  f'(0) D(1)  <=  E[K] delta(eps - L(1)).

For an eps0-DP run and the truncated negative binomial law L(1) <= (1 + shape) eps0; for the Poisson law L(1) is E[K]
delta(0).  Everything on the right is certified: delta by the run's own account, the integral by cells, each from above.

`renyi` (Papernot and Steinke 2022, Theorems 2 and 6).  E_P'[(dA/dA')^a] = E[(dP/dP')^a f'(u)^a f'(u')^(1-a)], hence

    truncated negative binomial:  D_best(a) <= D(a) + (1 + shape) ((1 - 1/b) D(b) + log(1/gamma)/b) + log E[K]/(a - 1)
                                  for every order b >= 1;
    Poisson:                      (a - 1) D_best(a) <= log(e^-E[K] + E[K] e^((a - 1) (D(a) + E[K] delta(eps_a)))),
                                  with eps_a = log(1 + 1/(a - 1)).

(The first term of the Poisson law's sum is the chance of no run at all.  Without it the theorem reads D_best(a) <= D(a)
+ E[K] delta(eps_a) + log E[K]/(a - 1), which fails for means below 1, as the tests show.)

Where runs differ (a candidate is drawn by lot, a public choice) Q is a mixture that shows its part: its delta is the
mean of theirs, and so is the exponential of (a - 1) D(a).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from hush.accounting import Guarantees, Mechanism, Renyi, compose
from hush.accounting.answers import log_delta_curve
from hush.methods.selection.runs import Array, NegativeBinomial, Poisson, Runs

ORDERS: Array = 1 + np.geomspace(0.05, 2000.0, 120)
_SMALLEST = 1e-25
_POINTS = 120
_STEP = 0.8  # promises are kept about so far apart
_FIRST, _CELLS, _TOGETHER = 1e-9, 41_999, 10


def profile(mechanisms: Sequence[Mechanism], runs: Runs) -> Guarantees:
    """The best of a random number of runs, each of a mechanism drawn by lot."""
    check(mechanisms)
    epsilons = _where(mechanisms)
    deltas = mean_delta(mechanisms, epsilons)
    lifts, ends, weights = cells(epsilons, deltas, runs)
    # delta is convex in c = e^eps, also below 1: delta(-eps) = 1 - e^-eps + e^-eps delta(eps); chords lie above it
    growth = np.exp(epsilons)
    points = np.concatenate([[0.0], 1 / growth[:0:-1], growth])
    values = np.concatenate([[1.0], (1 - 1 / growth + deltas / growth)[:0:-1], deltas])
    promises: list[tuple[float, float]] = []
    for epsilon in np.unique(np.concatenate([epsilons, epsilons + lifts[-1]])):
        inside = np.minimum(np.interp(np.exp(epsilon - lifts), points, values), ends)
        delta = float(inside @ weights) * (1 + 1e-9)
        if delta < (promises[-1][1] * _STEP if promises else 1.0):
            promises.append((float(epsilon), delta))
    if not promises:
        raise ValueError("A single run already hides nothing; give its plan more noise.")
    return Guarantees(tuple(promises), mechanisms[0].neighbours)


def renyi(mechanisms: Sequence[Mechanism], runs: Runs) -> Renyi:
    """The same by Papernot and Steinke's theorems, for runs whose Renyi divergences are known."""
    check(mechanisms)
    divergence = mean_divergence(mechanisms, ORDERS)
    known = np.isfinite(divergence)
    orders, divergence = ORDERS[known], divergence[known]
    if isinstance(runs, NegativeBinomial):
        other = (1 - 1 / orders) * divergence + math.log(1 / runs.gamma) / orders
        total = divergence + (1 + runs.shape) * np.min(other) + math.log(runs.mean) / (orders - 1)
    elif isinstance(runs, Poisson):
        deltas = mean_delta(mechanisms, np.log1p(1 / (orders - 1))[::-1])[::-1]
        some = math.log(runs.mean) + (orders - 1) * (divergence + runs.mean * deltas)
        total = np.logaddexp(-runs.mean, some) / (orders - 1)
    else:
        raise ValueError(f"No Renyi theorem is known for {runs}; use profile(...).")
    return Renyi(tuple(orders), tuple(np.maximum(total, 0.0)), mechanisms[0].neighbours)


def every(mechanisms: Sequence[Mechanism]) -> Mechanism:
    """Naive composition: all runs are paid for, and all of them may be looked at."""
    check(mechanisms)
    return compose((mechanism, 1) for mechanism in mechanisms)


@dataclass(frozen=True)
class Gupta:
    """Theorem D.1 of Abadi et al. 2016 (Theorem 10.2 of Gupta et al. 2010), for comparison.

    M is epsilon-DP, *purely*; a share p of its results has quality at least Q, where one record changes the quality by
    at most 1.  For 0 < extra < 1/2 some mechanism makes `calls` calls to M, is (epsilon + 8 extra)-DP, and with
    probability 1 - failure has quality at least Q - `loss`, with

        calls = (1/(extra failure p))^2 log(1/(extra failure p)),    loss = (4/extra) log(1/(extra failure p)).

    DP-SGD isn't purely private, so the theorem says nothing about it; and its calls are beyond reach (the paper's own
    example, 6,700 settings with extra = 1/2 and failure = 0.05, makes 9e11).
    """

    epsilon: float
    extra: float
    failure: float
    share: float

    def __post_init__(self) -> None:
        if not 0 < self.extra <= 0.5:  # the paper's example uses the end of its open interval
            raise ValueError(f"The extra epsilon lies above 0 and not above 1/2, got {self.extra}.")
        if not (0 < self.failure < 1 and 0 < self.share < 1):
            raise ValueError("The probability of failure and the share of good results lie between 0 and 1.")

    @property
    def calls(self) -> float:
        return self._many**2 * math.log(self._many)

    @property
    def loss(self) -> float:
        return 4 / self.extra * math.log(self._many)

    @property
    def total(self) -> Guarantees:
        return Guarantees.of(self.epsilon + 8 * self.extra)

    @property
    def _many(self) -> float:
        return 1 / (self.extra * self.failure * self.share)


def cells(epsilons: Array, deltas: Array, runs: Runs) -> tuple[Array, Array, Array]:
    """L at the ends of cells of y, from above and rising; the ends; and what f' loses from each cell to the next.

    log f'(1 - y) falls in y, so the largest y' counts, and on a cell from a to b the difference of the logarithms is at
    most its value with y at a and y' at b.
    """
    edges = np.concatenate([[0.0], np.geomspace(_FIRST, 1.0, _CELLS + 1)])
    low, high = edges[:-1], edges[1:]
    partner = np.ones_like(high)
    for factor, delta in zip(np.exp(epsilons), deltas, strict=True):
        partner = np.minimum(partner, np.minimum(factor * high + delta, 1 - (1 - high - delta) / factor))
    slope = runs.log_slope(low)
    lifts = np.maximum.accumulate(np.maximum(slope - runs.log_slope(np.clip(partner, high, 1.0)), 0.0))
    # several cells in one: L at the end of the last, f' at the beginning of the first
    lifts, starts = lifts[_TOGETHER - 1 :: _TOGETHER], slope[::_TOGETHER]
    weights = runs.mean * np.exp(starts)
    return lifts, high[_TOGETHER - 1 :: _TOGETHER], weights - np.append(weights[1:], 0.0)


def mean_delta(mechanisms: Sequence[Mechanism], epsilons: Array) -> Array:
    """The certified delta of a mechanism drawn by lot, at ascending epsilons."""
    total = np.zeros(len(epsilons))
    for mechanism, times in Counter(mechanisms).items():
        total += times * np.exp(log_delta_curve(mechanism, epsilons)[1])
    mean: Array = np.minimum(total / len(mechanisms) * (1 + 1e-12), 1.0)
    return mean


def mean_divergence(mechanisms: Sequence[Mechanism], orders: Array) -> Array:
    """The Renyi divergences of a mechanism drawn by lot: (a - 1) D(a) = log of the mean of exp((a - 1) D_c(a))."""
    counted = Counter(mechanisms)
    moments = [mechanism.moments().log_moment(orders - 1) for mechanism in counted]
    weights = np.array(list(counted.values()), dtype=np.float64)[:, None] / len(mechanisms)
    result: Array = logsumexp(np.array(moments), axis=0, b=weights) / (orders - 1)
    return np.maximum(result, 0.0)


def _where(mechanisms: Sequence[Mechanism]) -> Array:
    """Epsilons from 0 to where delta is tiny, evenly in log delta."""
    distinct = list(Counter(mechanisms))
    far = max(mechanism.epsilon(_SMALLEST).upper for mechanism in distinct)
    if not math.isfinite(far):
        far = max(mechanism.epsilon(1e-12).upper for mechanism in distinct)
    far = min(far, 600.0) if math.isfinite(far) else 600.0
    ends = [mechanism.largest_loss * (1 + 1e-9) for mechanism in distinct if mechanism.largest_loss < 600]
    rough = np.linspace(0.0, max(far, 1e-6), 40)
    logs = np.log(np.maximum(mean_delta(mechanisms, rough), 1e-300))
    levels = np.linspace(logs[0], max(logs[-1], math.log(_SMALLEST)), _POINTS)
    fine = np.interp(-levels, -logs, rough)
    found: Array = np.unique(np.concatenate([[0.0], fine, rough[rough < far / 4], [far], ends]))
    return found


def check(mechanisms: Sequence[Mechanism]) -> None:
    if not mechanisms:
        raise ValueError("A search needs at least one candidate.")
    relations = {mechanism.relation for mechanism in mechanisms}
    if len(relations) > 1:
        raise ValueError(f"The candidates are stated for {' and '.join(sorted(relations))}; sample all the same way.")
