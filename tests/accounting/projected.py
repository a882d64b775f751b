"""Compositions of projected releases, from plain numbers."""

from __future__ import annotations

from hush.accounting import Mechanism, Projected

Kind = tuple[float, int, float, int]
"""sigma, projections, rate, steps."""


def composed(kinds: list[Kind]) -> Mechanism:
    parts = [(Projected(s, r) if rate == 1 else Projected(s, r).poisson(rate)) * steps for s, r, rate, steps in kinds]
    run: Mechanism = parts[0]
    for part in parts[1:]:
        run = run + part
    return run
