"""The root of a function of one variable between two points.

SciPy's brentq does the same, but importing scipy.optimize takes longer than a whole answer on the command line.
"""

from __future__ import annotations

from collections.abc import Callable


def bracketed_root(
    function: Callable[[float], float], low: float, high: float, absolute: float = 0.0, relative: float = 1e-15
) -> float:
    """Where a continuous function with opposite signs at low and high vanishes, by Chandrupatla's method (1997).

    Inverse quadratic interpolation where it is safe, bisection elsewhere; stops when the bracket is within
    absolute + 2 relative |root|.
    """
    a, b = float(high), float(low)
    value_a, value_b = function(a), function(b)
    if value_a == 0:
        return a
    if value_b == 0:
        return b
    if (value_a > 0) == (value_b > 0):
        raise ValueError(f"The function has one sign at both {low} and {high}.")
    share = 0.5
    for _ in range(500):
        at = a + share * (b - a)
        value = function(at)
        if (value > 0) == (value_a > 0):
            c, value_c, a, value_a = a, value_a, at, value
        else:
            c, value_c, b, value_b, a, value_a = b, value_b, a, value_a, at, value
        best, smallest = (a, value_a) if abs(value_a) < abs(value_b) else (b, value_b)
        limit = (absolute + 2 * relative * abs(best)) / (2 * abs(b - a)) if b != a else 1.0
        if limit > 0.5 or smallest == 0:
            return best
        position = (a - b) / (c - b)
        height = (value_a - value_b) / (value_c - value_b) if value_c != value_b else 0.0
        if height**2 < position and (1 - height) ** 2 < 1 - position:
            share = value_a / (value_b - value_a) * value_c / (value_b - value_c)
            share += (c - a) / (b - a) * value_a / (value_c - value_a) * value_b / (value_c - value_b)
        else:
            share = 0.5
        share = min(max(share, limit), 1 - limit)
    return best
