"""A few of many kinds of steps that differ in their noise alone, to stand for all of them: they say where to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.thinning import GROUPS, standing
from hush.accounting.pairs.losses import GaussianPair, LaplacePair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.projection import ProjectedPair

_NEIGHBOURS = 5  # kinds that one of them leads


@dataclass(frozen=True)
class Few:
    """Kinds of steps, how many kinds each stands for, and which of them each of all kinds is most like."""

    steps: tuple[tuple[Pair, int], ...]
    shares: tuple[float, ...]
    like: tuple[int, ...]

    @property
    def counted(self) -> tuple[tuple[Pair, int], ...]:
        """The steps, about as many as they stand for."""
        return tuple(
            (pair, max(round(count * share), 1)) for (pair, count), share in zip(self.steps, self.shares, strict=True)
        )


def few_of(steps: Sequence[tuple[Pair, int]]) -> Few:
    """The few of kinds that are many, and all others as they are."""
    chosen: list[int] = []
    shares: list[float] = []
    like = [0] * len(steps)
    for ordered in _alike(steps, counted=True):
        few = standing(ordered) if len(ordered) > 3 * GROUPS else [(place, 1.0) for place in ordered]
        own = np.array([_noise(steps[place][0]) for place, _ in few])
        for place in ordered:
            like[place] = len(chosen) + int(np.argmin(np.abs(np.log(own / _noise(steps[place][0])))))
        chosen += [place for place, _ in few]
        shares += [share for _, share in few]
    return Few(tuple(steps[place] for place in chosen), tuple(shares), tuple(like))


def leading(steps: Sequence[tuple[Pair, int]]) -> dict[int, int]:
    """Which kinds, taken so often, reveal no less than all: of neighbours in noise the one with the least of it.

    Of x = N(m/sigma, 1), a x + (1 - a^2)^(1/2) N(0, 1) is N(m/sigma', 1), sigma' = sigma/a > sigma, whether m is 0, or
    1, or an estimate from projections that is known beside x: what more noise shows can be made of what less noise
    does, in both directions, on Poisson samples too, and step by step of a composition.  (`Uniform` is made of the
    trade-off function of its inner pair, and lies no higher where that doesn't.)
    """
    found: dict[int, int] = {}
    for ordered in _alike(steps, counted=False):
        known = all(isinstance(_inner(steps[place][0]), GaussianPair | ProjectedPair) for place in ordered)
        size = _NEIGHBOURS if known else 1
        for first in range(0, len(ordered), size):
            found[ordered[first]] = sum(steps[place][1] for place in ordered[first : first + size])
    return found


def _alike(steps: Sequence[tuple[Pair, int]], *, counted: bool) -> list[list[int]]:
    """Kinds that differ in their noise alone (`counted`: and are as many), by their noise."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, (pair, count) in enumerate(steps):
        sample = pair.pair if isinstance(pair, Reversed) else pair
        rate, inner = (sample.rate, sample.inner) if isinstance(sample, Poisson | Uniform) else (1.0, sample)
        key: tuple[object, ...] = (place,)
        sampled = isinstance(sample, Poisson | Uniform) and isinstance(inner, GaussianPair | LaplacePair)
        if sampled or isinstance(inner, ProjectedPair):
            projections = inner.projections if isinstance(inner, ProjectedPair) else 0
            key = (type(pair), type(sample), rate, type(inner), projections, count if counted else 0)
        alike.setdefault(key, []).append(place)
    return [sorted(places, key=lambda place: _noise(steps[place][0])) for places in alike.values()]


def _inner(pair: Pair) -> Pair:
    """What a sample is taken for."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    return sample.inner if isinstance(sample, Poisson | Uniform) else sample


def _noise(pair: Pair) -> float:
    """The noise multiplier of a release, sampled or not; 1 where there is none."""
    inner = _inner(pair)
    if isinstance(inner, ProjectedPair):
        return inner.noise_multiplier
    return 1 / inner.mu if isinstance(inner, GaussianPair | LaplacePair) else 1.0
