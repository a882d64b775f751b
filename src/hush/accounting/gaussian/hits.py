"""Sampled Gaussian steps with next to no noise: a hit tells everything, and delta is the chance of one.

At most that, in both directions, as nothing is told without a hit.  And a hit shows in some x above its mean less 9:
with A that one does, delta(eps) >= P(A) - e^eps Q(A), where P(A) is at least Phi(9) times the chance of a hit, which is
concave in the scale of the rates, and Q(A) at most the sum of Phi(9 - 1/sigma).  Other engines take grids as fine as
the noise, and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from hush.accounting.gaussian.transform import Array, Step

WIDTH = 1e-9
"""Of log delta: known so well it need not be computed."""
_LITTLE = 1 / 18  # noise
_SHOWN = 9.0  # deviations below its mean at which a hit shows; Phi(-9) is lost in rounding


@np.errstate(all="ignore")
def log_delta(steps: Sequence[Step], gaussian: float, epsilons: Array) -> tuple[Array, Array]:
    """Bounds on log delta at epsilons >= 0, from 0 to 1 where steps have more noise or aren't on samples."""
    if gaussian > 0 or not steps or any(step.noise > _LITTLE for step in steps):
        return np.full(len(epsilons), -np.inf), np.zeros(len(epsilons))
    log_none = math.fsum(step.count * math.log1p(-step.rate) for step in steps)
    log_any = math.log(-math.expm1(log_none))
    log_false = max(math.log(step.count) + float(log_ndtr(_SHOWN - 1 / step.noise)) for step in steps)
    log_false += math.log(len(steps)) + 1e-9 * abs(log_false)
    off = 2.0**-48 * (1 - log_any)
    lower = log_any - off + np.log1p(-np.exp(np.minimum(epsilons + log_false - log_any, 0.0)))
    return lower, np.full(len(epsilons), min(log_any + off, 0.0))
