"""Promises that may fail: what they leak is counted apart, exactly, and what is left is a pure mechanism.

The pair of a promise (epsilon, delta) tells everything with probability delta and is randomised response otherwise.
So with leak the chance that some promise of a composition fails,

    1 - delta(epsilon) = (1 - leak) (1 - delta of the rest),        1 - leak = product of all (1 - delta_i).

At a delta near the leak epsilon hangs on the digits of their difference, and at the leak itself it jumps to infinity.
Both sides are numbers given as floating-point numbers, so which is larger is a question of arithmetic: it is answered
with a hundred digits and, if these agree, in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

from hush.accounting.mechanisms import Mechanism, compose
from hush.accounting.releases import Guarantees
from hush.accounting.sampled import Poisson, Uniform

_DIGITS = 130
_SURE = Decimal(10) ** -100  # of the logarithms: what is smaller can't be told from 0
_NEXT_TO_NOTHING = 1e-90  # more than what is left of delta then
_SERIES = 1e-20  # below, log(1 - x) is a series
_ULP = 2.0**-51
_FEW = 1000  # factors that are multiplied as fractions


def without_leaks(mechanism: Mechanism) -> tuple[Mechanism, list[tuple[float, int]]]:
    """The composition without what its promises leak, and (chance to fail, count) of each of them.

    Several promises at once, (epsilon_i, delta_i), leak the least delta; of the others as much is left as keeps
    1 - delta_i = (1 - leak) (1 - what is left).
    """
    kept: list[tuple[Mechanism, int]] = []
    leaks: list[tuple[float, int]] = []
    for part, count in mechanism.parts():
        least = min(delta for _, delta in part.promises) if isinstance(part, Guarantees) else 0.0
        if not (isinstance(part, Guarantees) and 0 < least < 1):
            kept.append((part, count))
            continue
        leaks.append((least, count))
        rest = tuple((epsilon, min((delta - least) / (1 - least), 1.0)) for epsilon, delta in part.promises)
        if not any(epsilon == 0 and delta == 0 for epsilon, delta in rest):
            kept.append((Guarantees(rest, part.neighbours), count))
    return (compose(kept), leaks) if kept and leaks else (mechanism, [])


def log_holds(leaks: Sequence[tuple[float, int]]) -> float:
    """log of the chance that no promise fails."""
    return math.fsum(count * math.log1p(-delta) for delta, count in leaks)


def sampled_leaks(mechanism: Mechanism) -> list[tuple[Fraction, int]] | None:
    """(chance to fail, count) of all promises, on samples too; None where something else may tell everything."""
    leaks: list[tuple[Fraction, int]] = []
    for part, count in mechanism.parts():
        inner, rate = part, Fraction(1)
        if isinstance(part, Poisson):
            inner, rate = part.inner, Fraction(part.rate)
        elif isinstance(part, Uniform):
            inner, rate = part.inner, Fraction(part.batch, part.of)
        if isinstance(inner, Guarantees):
            leaks.append((rate * Fraction(min(delta for _, delta in inner.promises)), count))
        elif not math.isfinite(part.largest_loss):
            return None
    return [(leak, count) for leak, count in leaks if leak > 0]


def left_of(delta: float, leaks: Sequence[tuple[float | Fraction, int]]) -> tuple[float, float]:
    """Bounds on the delta of the rest; both are 0 where the leak is exactly delta, negative where it exceeds it.

    From -1 to 1e-90 where it can't be told whether delta or the leak is larger.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        kept = _log_kept(delta)
        held = sum((count * _log_kept(leak) for leak, count in leaks), Decimal(0))
        apart, unsure = held - kept, (abs(kept) + abs(held)) * _SURE
        if apart > unsure:
            left = -math.expm1(-float(apart))
            return max(left * (1 - _ULP), 0.0), min(max(left * (1 + _ULP), math.ulp(0.0)), 1.0)
        if apart < -unsure:
            return -1.0, -1.0
    if sum(count for _, count in leaks) > _FEW:
        return -1.0, _NEXT_TO_NOTHING
    product = Fraction(1)
    for leak, count in leaks:
        product *= (1 - Fraction(leak)) ** count
    gap = Fraction(delta) - (1 - product)
    return (0.0, 0.0) if gap == 0 else (-1.0, -1.0) if gap < 0 else (0.0, _NEXT_TO_NOTHING)


def _log_kept(delta: float | Fraction) -> Decimal:
    """log(1 - delta), to a hundred digits of its own."""
    given = Fraction(delta)
    exact = Decimal(given.numerator) / Decimal(given.denominator)
    if delta > _SERIES:
        return (1 - exact).ln()
    return -sum((exact**k / k for k in range(1, 7)), Decimal(0))
