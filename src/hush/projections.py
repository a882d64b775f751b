"""How many random projections a plan needs, and what noise goes with them (Bu et al. 2021, and `docs/projections.md`).

Norms estimated from r projections make the sensitivity random: C/sqrt(chi2_r/r), in rare draws many times C.  With
enough noise any r is private; with few projections so much noise is needed that nothing is left to learn.  A plan is
refused where a target takes more than twice the noise that exact norms need.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hush.accounting import calibrate
from hush.accounting.checks import check_whole
from hush.accounting.mechanisms import Mechanism
from hush.clipping import Flat, Normalised
from hush.digits import short
from hush.sampling import Poisson

if TYPE_CHECKING:
    from hush.plan import Plan

MOST_NOISE = 2.0
"""By how much projections may increase the noise that a target needs."""
_CLOSE = 1e-3
_MOST = 4096


def check(plan: Plan, count: int) -> None:
    """Refuse what Theorem 4.1 doesn't cover."""
    check_whole("The number of projections", count)
    if not isinstance(plan.sampling, Poisson):
        raise ValueError("Projected norms are analysed for Poisson sampling only; leave the sampling out.")
    if not isinstance(plan.clip, Flat | Normalised):
        raise ValueError(
            f"Projected norms are analysed for one norm of the whole gradient, not for {plan.clip}; give a number, "
            "Flat or Normalised."
        )
    if plan.grouped is not None:
        raise ValueError("Projected norms aren't analysed for groups of records; leave one of the two out.")


def noise_for(plan: Plan) -> float:
    """The smallest noise multiplier, to 0.1%, with which the plan keeps its target: certified at that very number."""
    target, delta = _target(plan)
    exact = calibrate.noise(lambda noise: _variant(plan, projections=None, noise_multiplier=noise), target, delta)

    def excess(noise: float) -> float:
        upper = _variant(plan, noise_multiplier=noise).epsilon(delta).upper
        return math.log(upper / target) if upper > 0 else -math.inf

    low, high = exact, MOST_NOISE * exact
    above, below = excess(low), excess(high)
    if above <= 0:
        return low
    if below > 0:
        raise ValueError(_too_few(plan, exact, target * math.exp(above), target * math.exp(below)))
    while high / low > 1 + _CLOSE:
        # epsilon against noise is nearly a power; aim a hair to the private side
        share = min(max(above / (above - below), 0.02), 0.98) if math.isfinite(above - below) else 0.5
        middle = low * (high / low) ** min(share + 0.3 * _CLOSE / math.log(high / low), 0.98)
        value = excess(middle)
        if value <= 0:
            high, below = middle, value
            low = max(low, high / (1 + _CLOSE)) if value > -0.5 * _CLOSE else low
        else:
            low, above = middle, value
    return high


def refusal(plan: Plan, cost: float) -> str:
    """Why a plan with noise, steps and projections misses its target, and how many projections would do."""
    target, delta = _target(plan)
    said = (
        f"{plan.steps} steps with noise multiplier {plan.noise_multiplier:g} and {plan.projections} projections cost "
        f"epsilon {_words(cost)} at delta {delta:g}, more than the target {target:g}; "
    )
    fewest = _fewest(plan, plan.noise_multiplier)
    if fewest is None:
        return said + "no number of projections keeps it, so take more noise or fewer steps."
    return said + f"the fewest projections that keep it are {fewest}."


def _too_few(plan: Plan, exact: float, at_exact: float, at_most: float) -> str:
    target, delta = _target(plan)
    said = (
        f"{plan.projections} projections estimate norms too badly for epsilon {target:g} at delta {delta:g}: with the "
        f"noise that exact norms need ({exact:.4g}) they cost epsilon {_words(at_exact)}, with {MOST_NOISE:g} times as "
        f"much {_words(at_most)}; "
    )
    fewest = _fewest(plan, MOST_NOISE * exact)
    if fewest is None:
        return said + "leave projections out."
    return (
        said
        + f"the fewest that keep it with {MOST_NOISE:g} times the noise are {fewest}, and more of them need less noise."
    )


def _fewest(plan: Plan, noise: float) -> int | None:
    target, delta = _target(plan)
    if _variant(plan, projections=None, noise_multiplier=noise).epsilon(delta).upper > target:
        return None
    try:
        return calibrate.projections(
            lambda count: _variant(plan, projections=count, noise_multiplier=noise), target, delta, _MOST
        )
    except ValueError:
        return None


def _variant(plan: Plan, **changes: Any) -> Mechanism:
    """What the plan would cost with other numbers."""
    other = object.__new__(type(plan))
    other._set(**(plan.__dict__ | changes))
    return other.mechanism


def _target(plan: Plan) -> tuple[float, float]:
    assert plan.epsilon is not None
    assert plan.delta is not None
    return plan.epsilon, plan.delta


def _words(epsilon: float) -> str:
    return short(epsilon) if epsilon < 1e4 else "beyond 10000"
