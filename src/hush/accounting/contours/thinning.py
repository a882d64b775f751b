"""A few of many kinds of steps, to stand for all: where a search only says where to look, they say it sooner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from hush.accounting.gaussian.transform import Step

GROUPS = 4  # of labels, and fewer of steps, for which whole set-ups are tried
_FEW = 3
_GROWTH = 2.5  # of neighbouring groups
Item = TypeVar("Item")


def alike(ordered: Sequence[Item], groups: int = GROUPS) -> list[Sequence[Item]]:
    """At most a few groups of such as follow each other, the first of them the smallest.

    Steps are ordered by their noise, and those with the least may decide.
    """
    parts = len(ordered) * (_GROWTH ** np.arange(1, groups + 1) - 1) / (_GROWTH**groups - 1)
    ends = np.unique(np.append(0, np.ceil(parts - 1e-9).astype(int)))
    return [ordered[first:last] for first, last in pairwise(ends.tolist())]


def standing(ordered: Sequence[Item], groups: int = GROUPS) -> list[tuple[Item, float]]:
    """The first, middle and last of each group, and how many they stand for each.

    The sum over a group of what is quadratic in the position is theirs, so counted.
    """
    found: list[tuple[Item, float]] = []
    for group in alike(ordered, groups):
        places = np.unique([0, len(group) // 2, len(group) - 1])
        powers = np.arange(places.size)[:, None]
        totals = (np.arange(len(group)) ** powers).sum(axis=1)
        shares = np.linalg.solve(places.astype(float) ** powers, totals)
        found += [(group[place], float(share)) for place, share in zip(places, shares, strict=True)]
    return found


def thinned(steps: Sequence[Step]) -> list[Step]:
    """Some of the steps, counted for all of them, and at least once."""
    if len(steps) <= _FEW:
        return list(steps)
    return [replace(step, count=max(step.count * share, 1.0)) for step, share in standing(steps, _FEW)]
