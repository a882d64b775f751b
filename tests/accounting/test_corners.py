"""Corners where a certified answer once was wrong, or none: each with the truth from elsewhere."""

from __future__ import annotations

import pytest

from hush.accounting import Gaussian


@pytest.mark.parametrize("delta", [1e-305, 5e-324])
def test_no_lower_bound_exceeds_what_the_unsampled_releases_cost(delta: float) -> None:
    # a floor of 1e-300 under a lower bound of delta(1e4) made it [1e4, inf] at every delta below
    sampled, whole = Gaussian(1.0).poisson(0.1) * 5, Gaussian(1.0) * 5
    found = sampled.epsilon(delta)
    assert found.lower <= whole.epsilon(delta).upper
