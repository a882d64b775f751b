"""A few of many kinds of steps that differ in their noise alone, to stand for all of them: they say where to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hush.accounting.contours.thinning import GROUPS, standing
from hush.accounting.pairs.losses import GaussianPair, LaplacePair, Pair, Poisson, Reversed, Uniform
from hush.accounting.pairs.projection import ProjectedPair


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
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, (pair, count) in enumerate(steps):
        sample = pair.pair if isinstance(pair, Reversed) else pair
        rate, inner = (sample.rate, sample.inner) if isinstance(sample, Poisson | Uniform) else (1.0, sample)
        key: tuple[object, ...] = (place,)
        sampled = isinstance(sample, Poisson | Uniform) and isinstance(inner, GaussianPair | LaplacePair)
        if sampled or isinstance(inner, ProjectedPair):
            projections = inner.projections if isinstance(inner, ProjectedPair) else 0
            key = (type(pair), type(sample), rate, type(inner), projections, count)
        alike.setdefault(key, []).append(place)
    chosen: list[int] = []
    shares: list[float] = []
    like = [0] * len(steps)
    for places in alike.values():
        ordered = sorted(places, key=lambda place: _noise(steps[place][0]))
        few = standing(ordered) if len(places) > 3 * GROUPS else [(place, 1.0) for place in ordered]
        own = np.array([_noise(steps[place][0]) for place, _ in few])
        for place in places:
            like[place] = len(chosen) + int(np.argmin(np.abs(np.log(own / _noise(steps[place][0])))))
        chosen += [place for place, _ in few]
        shares += [share for _, share in few]
    return Few(tuple(steps[place] for place in chosen), tuple(shares), tuple(like))


def _noise(pair: Pair) -> float:
    """The noise multiplier of a release, sampled or not; 1 where there is none."""
    sample = pair.pair if isinstance(pair, Reversed) else pair
    inner = sample.inner if isinstance(sample, Poisson | Uniform) else sample
    if isinstance(inner, ProjectedPair):
        return inner.noise_multiplier
    return 1 / inner.mu if isinstance(inner, GaussianPair | LaplacePair) else 1.0
