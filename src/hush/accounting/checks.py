"""The numbers a mechanism is made of, refused in one sentence where they make no sense."""

from __future__ import annotations

import math
from numbers import Real

_MOST = 2**53  # more steps, records or projections than anybody has; up to it floating-point numbers are exact


def check_positive(name: str, value: float) -> None:
    """A positive, finite number."""
    if not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(f"{name} must be positive and finite, got {value}.")


def as_noise(value: float) -> float:
    """A noise multiplier as a floating-point number, refused where its square or inverse would be none."""
    check_positive("The noise multiplier", value)
    if not 1e-100 <= float(value) <= 1e100:
        raise ValueError(f"The noise multiplier must lie between 1e-100 and 1e+100, got {float(value):g}.")
    return float(value)


def as_number(name: str, value: object) -> float:
    """A floating-point number of what somebody's library takes for one; NaN and infinity are for others to refuse."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {str(value)[:40]}.") from None


def check_whole(name: str, value: float) -> None:
    """A whole number from 1 on; 3.0 and NumPy's integers will do, True will not, nor what is beyond counting."""
    whole = _is_number(value) and not isinstance(value, bool) and 1 <= value < math.inf and value == int(value)
    if not whole:
        raise ValueError(f"{name} must be a whole number from 1 on, got {value}.")
    if value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST:,}, got {value}.")


def check_rate(rate: float) -> None:
    """A sampling rate: a probability that isn't zero."""
    if not (_is_number(rate) and 0 < rate <= 1):
        raise ValueError(f"A sampling rate lies above 0 and at most at 1, got {rate}.")


def check_batch(batch: int, of: int) -> None:
    """A batch out of a number of records, both whole."""
    check_whole("The number of records", of)
    if not (_is_number(batch) and 1 <= batch <= of and batch == int(batch)):
        raise ValueError(f"A batch has between 1 and {of} of the {of} records, a whole number, got {batch}.")


def check_guarantee(epsilon: float, delta: float = 0.0) -> None:
    """An (epsilon, delta) that a mechanism can promise."""
    if not (_is_number(epsilon) and 0 <= epsilon < math.inf):
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon}.")
    if not (_is_number(delta) and 0 <= delta <= 1):
        raise ValueError(f"delta must lie between 0 and 1, got {delta}.")


def _is_number(value: object) -> bool:
    """Whether it is one at all: a mechanism may come from somebody's JSON."""
    return isinstance(value, Real)
