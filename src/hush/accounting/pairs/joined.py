"""Fewer steps with the same composition: plain Gaussians are one, and a few finite losses are one list of sums.

Bins of a list of sums cost no more than those of one step.  And the law that reveals less is of second order in the
spacing if neighbouring bins hold mass, while an atom alone between two lattice points moves by a part of the spacing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hush.accounting.pairs.losses import Atoms, GaussianPair, Pair, Poisson, Reversed
from hush.accounting.pairs.points import GaussianLaw, sampled_atoms

Steps = Sequence[tuple[Pair, int]]

_MOST = 1500  # sums in one list


def joined(steps: Steps) -> tuple[tuple[tuple[Pair, int], ...], float]:
    """The same composition, and what rounding adds to what the steps owe themselves, in units of 4 * 2^-50 of epsilon.

    Masses are products and losses sums of what they were, each off by a unit of rounding more, for which 2^-50 a step
    is enough.  A sum of n mu^2 is off by n + 2 units of itself, mu by half as much, and a mu that is off by a factor
    1 + e moves epsilon by less than e (mu^2 + 40 mu) (`GaussianLaw.largest`).
    """
    squared, terms, rest, lists = 0.0, 0, [], [Atoms((0.0,), (1.0,), (1.0,))]
    for pair, count in steps:
        atoms = finite(pair)
        if isinstance(pair, GaussianPair):
            squared, terms = squared + count * pair.mu**2, terms + 1
        elif atoms is not None and 1 < len(atoms.losses) <= _MOST ** (1 / count):
            for _ in range(count):
                if len(lists[-1].losses) * len(atoms.losses) > _MOST:
                    lists.append(Atoms((0.0,), (1.0,), (1.0,)))
                lists[-1] = _sums(lists[-1], atoms)
        else:
            rest.append((pair, count))
    gaussians: list[tuple[Pair, int]] = [(GaussianPair(math.sqrt(squared)), 1)] if squared > 0 else []
    owed = (terms + 4) / 64 * GaussianLaw(squared).largest
    return (*gaussians, *((one, 1) for one in lists if len(one.losses) > 1), *rest), owed


def finite(pair: Pair) -> Atoms | None:
    """The pair as a list of atoms, if it is one."""
    if isinstance(pair, Atoms):
        return pair
    if isinstance(pair, Poisson) and isinstance(pair.inner, Atoms):
        losses, p, q = sampled_atoms(pair.inner, pair.rate)
        kept = ((p > 0) | (q > 0)) & np.isfinite(losses)  # of a large loss one of them is no floating-point number
        losses, p, q = losses[kept], p[kept], q[kept]
        return Atoms(tuple(losses.tolist()), tuple(p.tolist()), tuple(q.tolist()), pair.infinite, pair.vanishing)
    if isinstance(pair, Reversed):
        other = finite(pair.pair)
        return None if other is None else other.reverse()
    return None


def _sums(one: Atoms, other: Atoms) -> Atoms:
    losses = np.add.outer(one.losses, other.losses).ravel()
    p, q = (np.multiply.outer(first, second).ravel() for first, second in ((one.p, other.p), (one.q, other.q)))
    infinite, vanishing = (
        first + second - first * second
        for first, second in ((one.infinite, other.infinite), (one.vanishing, other.vanishing))
    )
    return Atoms(tuple(losses.tolist()), tuple(p.tolist()), tuple(q.tolist()), infinite, vanishing)
