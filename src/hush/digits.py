"""Numbers as they are printed.  Those that bound privacy are rounded to the safe side: upper ends up, lower ends down.

One way to write them everywhere: 0.00012, 1234567, 1.2e-5, 1.2e9.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

_PRECISE = Context(prec=60)


def up(value: float | Decimal, digits: int = 7) -> str:
    """An upper bound in so many significant digits."""
    return _significant(value, digits, ROUND_CEILING)


def down(value: float | Decimal, digits: int = 7) -> str:
    """A lower bound in so many significant digits."""
    return _significant(value, digits, ROUND_FLOOR)


def near(value: float, digits: int = 4) -> str:
    """An approximation in so many significant digits."""
    return _significant(value, digits, ROUND_HALF_EVEN)


def ceiling(value: float, places: int) -> str:
    """An upper bound with so many decimal places, read as it was typed: 0.83, not the float's 0.82999..."""
    return f"{_typed(value).quantize(Decimal(1).scaleb(-places), ROUND_CEILING):f}"


def floor(value: float, places: int) -> str:
    """A lower bound with so many decimal places, read as it was typed."""
    return f"{_typed(value).quantize(Decimal(1).scaleb(-places), ROUND_FLOOR):f}"


def number(value: float) -> str:
    """A number that was given, to its last digit: 1e-5, 0.25, 3."""
    return "infinity" if math.isinf(value) else _written(_typed(value).normalize())


def short(value: float, digits: int = 4) -> str:
    """An upper bound in so many significant digits at most, zeros at its end left out."""
    return number(float(up(value, digits)))


def power(exponent: str) -> Decimal:
    """e to a number as printed, to many digits: what stands beside it is a bound on just this."""
    return Decimal(exponent).exp(_PRECISE)


def _typed(value: float) -> Decimal:
    return Decimal(repr(float(value)))


def _significant(value: float | Decimal, digits: int, rounding: str) -> str:
    exact = Decimal(value)
    if exact.is_infinite():
        return "infinity"
    if exact.is_zero():
        return "0"
    return _written(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding, _PRECISE))


def _written(value: Decimal) -> str:
    return f"{value:f}" if -4 <= value.adjusted() < 7 else f"{value:e}".replace("e+", "e")
