"""The papers' accountants of a mechanism: moments, central limit theorems and the Edgeworth correction."""

from __future__ import annotations

import math

from hush.accounting import limits, moments
from hush.accounting.mechanisms import ADD_REMOVE, Mechanism
from hush.accounting.releases import Gaussian, Guarantees, Laplace, RandomisedResponse, Renyi
from hush.accounting.sampled import Poisson, Uniform


def moments_of(mechanism: Mechanism) -> moments.Moments:
    """The moments accountant of a composition."""
    return moments.Moments(log_moments(mechanism))


def clt(mechanism: Mechanism) -> limits.Approximation:
    """The central limit theorem that the papers state for this kind of mechanism."""
    parts = mechanism.parts()
    if all(isinstance(part, Guarantees) and len(part.promises) == 1 for part, _ in parts):
        promises = [(part.promises[0], count) for part, count in parts if isinstance(part, Guarantees)]
        return limits.guarantees_limit(promises)
    squared, kinds = 0.0, []
    for part, count in parts:
        one = _step_limit(part, count)
        kinds.append(one.kind)
        squared += one.mu**2
    return limits.Approximation(kinds[0] if len(set(kinds)) == 1 else "CLT, mixed", math.sqrt(squared))


def _step_limit(part: Mechanism, count: int) -> limits.Approximation:
    if part.mu is not None:
        return limits.Approximation("Gaussian, exact", math.sqrt(count) * part.mu)
    if isinstance(part, Poisson) and isinstance(part.inner, Gaussian) and part.neighbours is ADD_REMOVE:
        return limits.poisson_limit(part.rate, part.inner.noise_multiplier, count)
    if isinstance(part, Uniform | Poisson) and isinstance(part.inner, Gaussian):
        return limits.uniform_limit(part.rate, part.inner.noise_multiplier, count)
    raise ValueError(f"The papers state no central limit theorem for {part.describe()}.")


def edgeworth(mechanism: Mechanism) -> limits.Edgeworth:
    """The Edgeworth correction for Poisson-subsampled Gaussian steps."""
    found = []
    for part, count in mechanism.parts():
        if not (isinstance(part, Poisson) and isinstance(part.inner, Gaussian) and part.neighbours is ADD_REMOVE):
            raise ValueError("The Edgeworth correction is for Poisson-subsampled Gaussian steps.")
        found.append((limits.poisson_step_moments(part.rate, part.inner.noise_multiplier), float(count)))
    return limits.edgeworth(found)


def log_moments(mechanism: Mechanism) -> moments.LogMoment:
    return moments.compose([(_log_moment(part), count) for part, count in mechanism.parts()])


def _log_moment(part: Mechanism) -> moments.LogMoment:
    moment = closed_moment(part)
    if moment is None:
        raise ValueError(f"The moments of {part.describe()} are infinite or unknown.")
    return moment


def closed_moment(part: Mechanism) -> moments.LogMoment | None:
    """The log moments of a release, where they are finite and known."""
    if part.mu is not None:
        return moments.gaussian_moment(1 / part.mu)
    if isinstance(part, Laplace):
        return moments.laplace_moment(part.noise_multiplier)
    if isinstance(part, Renyi):
        return moments.renyi_moment(part.orders, part.divergences)
    if isinstance(part, Poisson) and isinstance(part.inner, Gaussian) and part.neighbours is ADD_REMOVE:
        return moments.subsampled_gaussian_moment(part.rate, part.inner.noise_multiplier)
    if isinstance(part, RandomisedResponse) or math.isfinite(part.largest_loss):
        return moments.pure_moment(part.largest_loss)
    return None
