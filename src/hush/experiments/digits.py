"""Numbers that bound privacy as they are printed: upper ends rounded up, lower ends down."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def up(value: float, digits: int = 4) -> str:
    """An upper end in so many significant digits."""
    exact = _decimal(value)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_CEILING):f}"


def ceiling(value: float, places: int) -> str:
    """An upper end with so many decimal places."""
    return f"{_decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_CEILING):f}"


def floor(value: float, places: int) -> str:
    """A lower end with so many decimal places."""
    return f"{_decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_FLOOR):f}"


def _decimal(value: float) -> Decimal:
    """As it was typed, if it was: 0.83, not the float's 0.82999..."""
    return Decimal(repr(float(value)))
