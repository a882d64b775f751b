"""Gaussian noise whose last digits tell nothing: the sum plus real-valued noise, rounded to a grid.

The danger (Mironov 2012, for Laplace noise): floating-point noise z takes finitely many values, so which numbers s + z
can become depends on the last digits of the sum s, and a look at them may tell neighbours apart however large z is.

The remedy: publish g * round((s + sigma Z) / g) with Z a *real* normal variable and g a power of two near sigma/1024.
That is the Gaussian mechanism, then rounding, which is post-processing: no privacy is lost, no sensitivity is rounded
up, and every multiple of g can come from every s.  What must be shown is that a computer draws it with that law.

1. Z = +-|Z| with |Z| = -Phi^-1(u), u uniform in (0, 1/2), of which the first 63 bits are drawn: u = (m + xi) 2^-64, m
   whole, xi in (0, 1) unknown.  Since u / phi(Phi^-1(u)) <= 1.26 below 1/2 (Mills' ratio falls), a relative change t of
   u moves Z by at most 1.26 t: by 1.26/m for the unknown xi, and by 2^-52 for the conversion to floating point.
   SciPy's Phi^-1 errs by less than 2^-50 (1 + |Z|) (measured, see the tests), the product with sigma and the sum with
   s mod g (exact, as is the division by g) by 2^-52 (1 + |Z|) sigma.  So s + sigma Z is known up to
   sigma (2^-46 (1 + |Z|) + 2/m) at the worst, with a factor of eight to spare.
2. If no midpoint of the grid is that near, the rounding is decided: it is that of the real Z.
3. Else u gets 192 more bits and is compared with Phi at the midpoints, computed to 150 places.  That decides as the
   real Z does unless one of the fewer than 2^20 midpoints in reach shares its first 255 bits with u.

So each number has the ideal law up to a total variation of TOTAL_VARIATION = 2^-230, and where the ideal mechanism
satisfies (eps, delta), N numbers satisfy (eps, delta + (1 + e^eps) N 2^-230): the same, for all purposes.  Step 3 takes
about a millisecond and happens once in some 2^33 numbers.  (Not covered: how long a draw takes, and the strength of the
cipher behind the words.)
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from hush.keys import Words

Floats = NDArray[np.float64]

TOTAL_VARIATION = 2.0**-230
MORE_BITS = 192
_ERROR = 2.0**-46
_SIGN = np.uint64(1 << 63)


def grid(std: float) -> float:
    """The distance of neighbouring outputs: the power of two with std/2048 < g <= std/1024.

    Rounding adds a variance of g^2/12, less than a ten-millionth of the noise's own.
    """
    return math.ldexp(1.0, math.frexp(std)[1] - 11)


def rounded(sums: Floats, std: float, words: Words, more: Callable[[int], bytes]) -> Floats:
    """g * round((sums + std * Z) / g), one word of randomness a number; `more(i)` has further 24 bytes for number i."""
    spacing = grid(std)
    remainders = np.fmod(sums, spacing)
    magnitudes = (words & ~_SIGN).astype(np.float64)
    normal = -ndtri((magnitudes + 0.5) * 2.0**-64)
    slack = std / spacing * (_ERROR * (1 + normal) + 2 / np.maximum(magnitudes, 1))
    signed = np.where(words & _SIGN, -normal, normal)
    place = (remainders + std * signed) / spacing
    nearest = np.rint(place)
    for i in np.flatnonzero(0.5 - np.abs(place - nearest) <= slack).tolist():
        bits = (int(words[i] & ~_SIGN) << MORE_BITS) | int.from_bytes(more(i), "little")
        nearest[i] = _decided(float(remainders[i]), std, bool(words[i] & _SIGN), bits, spacing)
    result: Floats = ((sums - remainders) / spacing + nearest) * spacing
    return result


def _decided(remainder: float, std: float, negative: bool, bits: int, spacing: float) -> int:
    """round((remainder +- std |Z|) / spacing), |Z| = -Phi^-1((bits + 1/2) 2^-256)."""
    with decimal.localcontext(prec=200):
        u = Decimal(2 * bits + 1) / 2**257

        def below(place: int) -> bool:
            """Whether the noisy number is below the midpoint that follows this place."""
            midpoint = (Decimal(spacing) * (2 * place + 1) / 2 - Decimal(remainder)) / Decimal(std)
            return u < normal_cdf(midpoint) if negative else u > normal_cdf(-midpoint)

        magnitude = -float(ndtri((bits + 0.5) * 2.0**-256))
        place = round((remainder + std * (-magnitude if negative else magnitude)) / spacing)
        while below(place - 1):
            place -= 1
        while not below(place):
            place += 1
        return place


def normal_cdf(x: Decimal) -> Decimal:
    """Phi(x) = 1/2 + phi(x) (x + x^3/3 + x^5/(3*5) + ...), to the context's digits less those of e^(x^2/2)."""
    term = total = x
    order = 1
    while abs(term) > abs(total) * Decimal(10) ** -decimal.getcontext().prec:
        order += 2
        term *= x * x / order
        total += term
    return Decimal("0.5") + total * (-x * x / 2).exp() / (2 * _pi()).sqrt()


@functools.cache
def _pi() -> Decimal:
    """pi to 220 digits: 16 arctan(1/5) - 4 arctan(1/239) (Machin 1706), in whole numbers."""
    one = 10**230

    def arctan_of_inverse(n: int) -> int:
        total, power, odd = 0, one // n, 1
        while power:
            total += power // odd if odd % 4 == 1 else -(power // odd)
            power //= n * n
            odd += 2
        return total

    return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)).scaleb(-230)
