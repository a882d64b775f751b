"""Labelled integrals at deltas whose tails no floating-point number holds, against one step's closed form."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from hush.accounting import jumps
from hush.accounting.contour import REMOVE
from hush.accounting.transform import Step


@pytest.mark.parametrize(
    ("noise", "rate", "epsilon"),
    [
        (0.0853241, 0.000311883, 397.289),
        (0.247788, 0.000756661, 136.775),
        (0.375314, 1.68334e-06, 84.3558),
        (1.16718, 3.74148e-06, 26.8986),
        (0.119461, 0.0410288, 314.198),
    ],
)
def test_tails_below_the_floating_point_range_are_counted(noise: float, rate: float, epsilon: float) -> None:
    """They were taken for nothing: bounds of log delta were 0.07 to 0.5 too large, one upper bound 7e-8 too small."""
    with mpmath.workdps(400):
        sigma, p, e = mpmath.mpf(noise), mpmath.mpf(rate), mpmath.mpf(epsilon)
        inner = mpmath.log(1 + (mpmath.e**e - 1) / p)
        place = sigma**2 * inner + mpmath.mpf(1) / 2
        tails = [mpmath.erfc(x / sigma / mpmath.sqrt(2)) / 2 for x in (place - 1, place)]
        truth = float(mpmath.log(p * (tails[0] - mpmath.e**inner * tails[1])))
    found = jumps.jumps((Step(rate, noise, 1),), REMOVE, epsilon, truth, -14.0, None)
    assert found is not None
    with np.errstate(all="ignore"):
        lower, upper = (float(side[0]) for side in found.log_delta(np.array([epsilon])))
    assert lower <= truth <= upper
