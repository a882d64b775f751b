"""Steps whose loss is continuous, or has very many values, as two finite laws each: where to cut it into bins.

A composition may mix steps of any kind, and contour integrals (scattered.py) ask only for each step's transform.  A
step without a closed form is cut into bins and replaced by two finite laws (`points.enclosing`).  That adds or takes
away variance: with tilted density rho, bins of width w and T steps T times the integral of rho w^2/6, or half of that.
For a given number n of bins this is least where w is proportional to rho^(-1/3) (Panter and Dite 1951), and then it is
T A^3/(6 n^2), A the integral of rho^(1/3).  Among different steps it is least for n proportional to T^(1/3) A.

None of this enters a bound: poor bins cost width, not truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hush.accounting.pairs.losses import Array, Enclosed, Pair
from hush.accounting.pairs.points import Points, Scattered, enclosing, exact
from hush.accounting.tails.binning import directed

Steps = Sequence[tuple[Pair, int]]
Laws = list[tuple[Scattered, int]]

_MANY = 400  # points that are worth binning
_FEWEST, _MOST = 24, 3000  # bins of one step
_SMALLEST = 1e-12  # loss, as a part of the largest, down to which the first bins are told apart
_FIRST = 180  # bins on either side of 0 in the first cut
_EVENLY = 0.02  # the least density, as a share of the mean of rho^(1/3): no bin is much wider than its neighbours


def is_open(pair: Pair) -> bool:
    """Whether the pair needs bins."""
    sides = (pair.lower, pair.upper) if isinstance(pair, Enclosed) else (pair,)
    return isinstance(pair, Enclosed) or any(_closed(side) is None for side in sides)


def enclosing_laws(steps: Steps, low: float, high: float, tilt: float, variance: float) -> tuple[Laws, Laws]:
    """Laws that reveal less and more, changing the variance of the total, tilted, by about so much.

    Losses above `high` count as infinite in the second and not at all in the first.
    """
    sides = [(pair.lower, pair.upper) if isinstance(pair, Enclosed) else (pair, pair) for pair, _ in steps]
    counts = [count for _, count in steps]
    first = _first_edges(low, high)
    cuts: dict[int, tuple[Array, Array, float]] = {}
    for one in {id(side): side for both in sides for side in both if _closed(side) is None}.values():
        edges = np.unique(np.append(first, _beside(one, low, high)))
        roots = _roots(one, edges, tilt)
        cuts[id(one)] = (edges, roots, float(roots.sum()))
    needed = math.fsum(
        count ** (1 / 3) * max(cuts[id(side)][2] for side in both if id(side) in cuts)
        for both, count in zip(sides, counts, strict=True)
        if any(id(side) in cuts for side in both)
    )
    share = math.sqrt(needed / (6 * variance)) if variance > 0 else math.inf
    less, more = [], []
    for (below, above), count in zip(sides, counts, strict=True):
        made: dict[int, tuple[Scattered, Scattered]] = {}
        for side in (below, above):
            if id(side) not in cuts:
                law = _closed(side)
                assert law is not None
                made[id(side)] = (law, law)
            elif id(side) not in made:
                edges, roots, size = cuts[id(side)]
                bins = int(min(max(share * count ** (1 / 3) * size, _FEWEST), _MOST))
                # once more with the bins found among the first ones: they tell apart what lies close together
                edges = np.union1d(edges, _recut(edges, roots, bins))
                allowed = 0.5 * tilt * (1 + tilt) * variance / (count * len(steps))
                edges = _kept_apart(side, _recut(edges, _roots(side, edges, tilt), bins), first, tilt, allowed)
                edges = np.union1d(edges, _beside(side, low, high))
                made[id(side)] = directed(side, edges, cut=True) or enclosing(side, edges)
        less.append((made[id(below)][0], count))
        more.append((made[id(above)][1], count))
    return less, more


def _closed(pair: Pair) -> Scattered | None:
    law = exact(pair)
    return None if isinstance(law, Points) and law.losses.size > _MANY else law


def _first_edges(low: float, high: float) -> Array:
    reach = max(abs(low), abs(high))
    out = np.geomspace(_SMALLEST * reach, reach, _FIRST)
    places = np.concatenate([-out[::-1], [0.0], out])
    return np.concatenate([[low], places[(places > low) & (places < high)], [high]])


def _beside(pair: Pair, low: float, high: float) -> Array:
    """Edges on both sides of every atom."""
    atoms = np.asarray(pair.atoms)
    margin = 1e-10 * np.maximum(np.abs(atoms), 1e-4 * np.ptp(atoms)) if atoms.size else atoms
    places = np.concatenate([atoms - margin, atoms + margin])
    return places[(places > low) & (places < high)]


def _roots(pair: Pair, edges: Array, tilt: float) -> Array:
    """The integral of rho^(1/3) over each bin between the edges, rho the tilted density."""
    width, middle = np.diff(edges), 0.5 * (edges[1:] + edges[:-1])
    tilted = _tilted(pair, edges, tilt, middle)
    return np.asarray(tilted ** (1 / 3) * width ** (2 / 3))


def _tilted(pair: Pair, edges: Array, tilt: float, at: Array) -> Array:
    """P-masses of the bins between the edges, tilted as if they lay there, as parts of the tilted whole."""
    with np.errstate(divide="ignore"):
        logs = np.log(pair.masses(edges)[0][1:-1])
    middle = logs + tilt * 0.5 * (edges[1:] + edges[:-1])
    top = float(middle.max())
    if not math.isfinite(top):
        return np.ones(at.size)
    return np.asarray(np.exp(np.minimum(logs + tilt * at - top - math.log(np.exp(middle - top).sum()), 700.0)))


def _kept_apart(pair: Pair, edges: Array, first: Array, tilt: float, allowed: float) -> Array:
    """With the first edges within bins so wide that what is moved to their upper ends would count."""
    width = np.diff(edges)
    moved = _tilted(pair, edges, tilt, edges[1:]) * np.minimum(1.0, tilt * (1 + tilt) * width**2)
    wide = moved > allowed / width.size
    inside = np.clip(np.searchsorted(edges, first) - 1, 0, width.size - 1)
    return np.union1d(edges, first[wide[inside]])


def _recut(edges: Array, roots: Array, bins: int) -> Array:
    """So many bins instead, each with as much of the integral."""
    width = np.diff(edges)
    density = np.maximum(roots / width, _EVENLY * float(roots.sum()) / float(width.sum()))
    grown = np.append(0.0, np.cumsum(density * width))
    return np.interp(np.linspace(0.0, grown[-1], bins + 1), grown, edges)
