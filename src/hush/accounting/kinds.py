"""Kinds of compositions: what decides which engine answers, how sharply, and in how many directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hush.accounting.gaussian.composition import Composition
from hush.accounting.gaussian.transform import Step
from hush.accounting.groups import Group
from hush.accounting.mechanisms import ADD_REMOVE, REPLACE_ONE, Mechanism
from hush.accounting.pairs.losses import Pair
from hush.accounting.releases import Gaussian, Projected, Renyi, Tradeoff
from hush.accounting.sampled import Poisson, Uniform

Steps = Sequence[tuple[Pair, int]]

_LEAST_NOISE, _MOST_NOISE = 0.005, 1e9  # with less a single hit is beyond any epsilon, and grids take all memory


def has_renyi(mechanism: Mechanism) -> bool:
    return any(isinstance(part, Renyi) for part, _ in mechanism.parts())


def refuse_extremes(mechanism: Mechanism) -> None:
    """Noise far beyond any use is accounted for only where Gaussian releases stand alone."""
    if all(part.mu is not None for part, _ in mechanism.parts()):
        return
    for noise in _noises(mechanism):
        if not _LEAST_NOISE <= noise <= _MOST_NOISE:
            raise ValueError(
                f"On samples and beside other releases noise multipliers are accounted for from {_LEAST_NOISE:g} to "
                f"{_MOST_NOISE:g}, got {noise:g}."
            )


def _noises(mechanism: Mechanism) -> Iterator[float]:
    for part, _ in mechanism.parts():
        if isinstance(part, Gaussian | Projected):
            yield part.noise_multiplier
        elif isinstance(part, Poisson | Uniform | Group):
            yield from _noises(part.inner)


def gaussian_composition(mechanism: Mechanism) -> Composition | None:
    """The composition as Gaussian steps with and without Poisson sampling, or None if it has others."""
    steps, squares = [], []
    for part, count in mechanism.parts():
        if part.mu is not None:
            squares.append(count * part.mu**2)
        elif isinstance(part, Poisson) and isinstance(part.inner, Gaussian) and part.neighbours is ADD_REMOVE:
            steps.append(Step(part.rate, part.inner.noise_multiplier, count))
        else:
            return None
    return Composition(tuple(sorted(steps)), math.fsum(squares))


def replaced_composition(mechanism: Mechanism) -> Composition | None:
    """Gaussian steps under replace-one, with and without samples, as if a record were removed from each sample."""
    steps, squares = [], []
    for part, count in mechanism.parts():
        if part.mu is not None:
            squares.append(count * part.mu**2)
        elif (
            isinstance(part, Poisson | Uniform) and isinstance(part.inner, Gaussian) and part.neighbours is REPLACE_ONE
        ):
            steps.append(Step(part.rate, part.inner.noise_multiplier, count))
        else:
            return None
    return Composition(tuple(sorted(steps)), math.fsum(squares)) if steps else None


def directions(mechanism: Mechanism) -> Sequence[Steps]:
    """The composition as pairs, in the one or two directions that differ: only coin flips tell them apart."""
    forward = [(part.pair(), count) for part, count in mechanism.parts()]
    if not any(isinstance(part, Poisson) and part.neighbours is ADD_REMOVE for part, _ in mechanism.parts()):
        return [forward]
    return [forward, [(pair.reverse(), count) for pair, count in forward]]


def tolerance(mechanism: Mechanism) -> float:
    """Relative width to aim for: 1e-4 for projections and uniform sampling, 1e-3 for the rest."""
    kinds = [part.inner if isinstance(part, Poisson | Uniform) else part for part, _ in mechanism.parts()]
    if isinstance(mechanism, Group) or any(isinstance(kind, Tradeoff) for kind in kinds):
        return 9e-4
    sharp = any(isinstance(kind, Projected) for kind in kinds) or any(
        isinstance(part, Uniform) or (isinstance(part, Poisson) and part.neighbours is not ADD_REMOVE)
        for part, _ in mechanism.parts()
    )
    return 9e-5 if sharp else 9e-4
