"""Sums on a lattice, in logarithms: against exact fractions, however far apart the masses are."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hush.accounting.lattices import logs


def log_of(value: Fraction) -> float:
    """log of a fraction that no floating-point number holds."""
    if value == 0:
        return -math.inf
    bits = value.numerator.bit_length() - value.denominator.bit_length()
    scaled = value / Fraction(2) ** bits
    return math.log(scaled) + bits * math.log(2)


def masses(seed: int, size: int, reach: int) -> tuple[list[Fraction], np.ndarray]:
    """Powers of two, so that fractions and logarithms are the same numbers, some of them missing."""
    generator = np.random.default_rng(seed)
    exponents = -generator.integers(0, reach, size)
    exact = [Fraction(2) ** int(k) if generator.random() < 0.9 else Fraction(0) for k in exponents]
    return exact, np.array([log_of(value) for value in exact])


def convolution(one: list[Fraction], other: list[Fraction]) -> list[Fraction]:
    found = [Fraction(0)] * (len(one) + len(other) - 1)
    for i, p in enumerate(one):
        for j, q in enumerate(other):
            found[i + j] += p * q
    return found


def assert_same(found: np.ndarray, exact: list[Fraction]) -> None:
    expected = np.array([log_of(value) for value in exact[: found.size]])
    assert np.array_equal(np.isneginf(found), np.isneginf(expected))
    told = np.isfinite(expected)
    np.testing.assert_allclose(found[told], expected[told], rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize("reach", [20, 400, 9000])
@pytest.mark.parametrize(("first", "second"), [(1, 7), (12, 12), (30, 5)])
def test_convolutions_keep_their_digits_at_any_depth(first: int, second: int, reach: int) -> None:
    (one, a), (other, b) = masses(first, first, reach), masses(second + 50, second, reach)
    exact = convolution(one, other)
    assert_same(logs.convolved(a, b, 100), exact)
    assert_same(logs.convolved(a, b, 4), exact)


@pytest.mark.parametrize("slope", [0, 3, 40])
@pytest.mark.parametrize("reach", [20, 900])
def test_long_rows_keep_their_digits_as_well(reach: int, slope: int) -> None:
    """However steeply they fall, and with a whole stretch of the masses missing."""
    rows = []
    for seed, size in ((1, 150), (2, 331)):
        exact, _ = masses(seed, size, reach)
        fallen = [value / 2 ** (slope * k) for k, value in enumerate(exact)]
        fallen[70:140] = [Fraction(0)] * 70
        rows.append((fallen, np.array([log_of(value) for value in fallen])))
    (one, a), (other, b) = rows
    exact = convolution(one, other)
    assert_same(logs.convolved(a, b, 1000), exact)
    assert_same(logs.convolved(b, a, 200), exact)


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_powers_are_repeated_convolutions(count: int) -> None:
    one, a = masses(3, 6, 700)
    exact = [Fraction(1)]
    for _ in range(count):
        exact = convolution(exact, one)
    assert_same(logs.powered(a, count, 1000), exact)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40, 1000])
@pytest.mark.parametrize("first", [1, 3])
def test_compounds_are_never_less_than_they_are(count: int, first: int) -> None:
    """And no more, where steps are as many as points."""
    size = 25
    large, known = masses(count + first, size, 300)
    large[:first], known[:first] = [Fraction(0)] * first, -math.inf
    exact, power = [Fraction(1)] + [Fraction(0)] * (size - 1), [Fraction(1)]
    for k in range(1, min(count, size) + 1):
        power = convolution(power, large)[:size]
        for n, value in enumerate(power):
            exact[n] += math.comb(count, k) * value
    found = logs.compounded(known, count, size)
    expected = np.array([log_of(value) for value in exact])
    assert np.all(found >= expected - 1e-12)
    if count >= size:
        assert_same(found, exact)
