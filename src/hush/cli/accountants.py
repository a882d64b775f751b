"""The other accountants' word on a run: what the papers would have said."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hush.cli.run import Run

if TYPE_CHECKING:
    from hush.accounting import Mechanism


@dataclass(frozen=True)
class Row:
    """One accountant's epsilon: `certified` and `bound` may be quoted, an `approximation` may not."""

    name: str
    kind: str
    lower: float
    epsilon: float


def others(run: Run, mechanism: Mechanism, delta: float) -> list[Row]:
    """The other accountants, those that apply."""
    single = replace(run, steps=1).mechanism()
    candidates: list[tuple[str, str, Callable[[], float]]] = [
        ("Renyi, today's conversion", "bound", lambda: mechanism.moments().epsilon(delta)),
        ("moments accountant, 2016", "bound", lambda: paper_moments(mechanism, delta)),
        ("strong composition", "bound", lambda: _strong(single, run.steps, delta)),
        ("basic composition", "bound", lambda: run.steps * single.epsilon(delta / run.steps).upper),
    ]
    if mechanism.mu is None:  # a Gaussian run needs no central limit theorem: it is its own limit
        candidates += [
            ("CLT", "approximation", lambda: mechanism.clt().epsilon(delta)),
            ("Edgeworth", "approximation", lambda: mechanism.edgeworth().epsilon(delta)),
        ]
    found = [(name, kind, where_defined(number)) for name, kind, number in candidates]
    return [Row(name, kind, 0.0, number) for name, kind, number in found if number is not None]


def paper_moments(mechanism: Mechanism, delta: float) -> float:
    """The moments accountant with the paper's own tail bound, at its best order."""
    from hush.accounting.moments import TAIL_BOUND

    return mechanism.moments().epsilon(delta, conversion=TAIL_BOUND)


def _strong(single: Mechanism, steps: int, delta: float) -> float:
    """Strong composition of `steps` equal steps; any split of delta is valid and the best of a few is taken."""
    from hush.accounting.classical import strong_composition

    def total(share: float) -> float:
        step = single.epsilon(share * delta / steps).upper
        if step > 700:
            return math.inf
        return strong_composition(step, share * delta / steps, steps, (1 - share) * delta)[0]

    return min(total(share) for share in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99))


def where_defined(number: Callable[[], float]) -> float | None:
    """None where the method says that it doesn't apply."""
    try:
        return number()
    except ValueError:
        return None
