"""A plan in words: what will be done, what is promised to whom, and what a change would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hush.accounting import ADD_REMOVE
from hush.digits import ceiling, number, short
from hush.sampling import Poisson, Uniform

if TYPE_CHECKING:
    from hush.plan import Plan


def explain(plan: Plan) -> str:
    """Three paragraphs: the computation, the promise, the price of changing it."""
    return "\n".join([_computation(plan), _promise(plan), _price(plan)])


def _computation(plan: Plan) -> str:
    units = f"{plan.records:,} {plan.unit}s"
    if isinstance(plan.sampling, Poisson):
        sample = f"each of {units} by its own coin of probability {plan.rate:.4g}, about {plan.batch:g} a step"
    elif isinstance(plan.sampling, Uniform):
        sample = f"exactly {plan.batch:g} of {units}, drawn anew each step"
    else:
        sample = f"{units} in a new random order each epoch, {plan.batch:g} a step"
    who = f"groups of about {plan.grouped}" if plan.grouped else f"every {plan.unit}"
    noise = f"Gaussian noise of {plan.noise_multiplier:.4g} times the sensitivity"
    if plan.noise_profile is not None:
        noise += f" (times {plan.noise_profile})"
    beside = "" if plan.beside is None else f" Beside them, from the same records: {plan.beside.describe()}."
    estimated = "" if plan.projections is None else f" (the norm estimated from {plan.projections} random projections)"
    return f"{plan.steps:,} steps: {sample}; for {who}, {plan.clip}{estimated}; {noise}.{beside}"


def _promise(plan: Plan) -> str:
    upper = plan.promise().upper
    change = "adding or removing" if plan.neighbours is ADD_REMOVE else "replacing"
    right = ceiling(min(100.0, 50 + 50 * plan.mechanism.advantage().upper), 1)
    return (
        f"Promise: ({short(upper)}, {number(plan._delta)})-differential privacy for {change} one {plan.unit}, "
        f"certified ({plan.mechanism.tag} account). "
        f"Whoever guesses whether one {plan.unit} took part is right at most {right}% of the time."
    )


def _price(plan: Plan) -> str:
    def cost(steps: int, noise: float) -> str:
        scaled = plan._with_noise(plan.noise_multiplier * noise) if noise != 1 else plan._of_steps(steps)
        return short(scaled.epsilon(plan._delta).upper)

    return (
        f"To change it: half the steps would cost epsilon {cost(max(plan.steps // 2, 1), 1)}, twice the steps "
        f"{cost(2 * plan.steps, 1)}, half the noise {cost(plan.steps, 0.5)}, twice the noise {cost(plan.steps, 2)}."
    )
