"""The closed forms of labels that decide on their own: every chance lies within the doubt stated with it."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from hush.accounting.gaussian import certain
from hush.accounting.gaussian.rules import Rule
from hush.accounting.gaussian.strips import Edge, Part
from hush.accounting.gaussian.transform import Step


def _logs(step: Step, edge: Edge) -> tuple[mp.mpf, mp.mpf]:
    """log of the chance of `count` steps below the edge without the record, and of the ratio of that with it."""
    spread = mp.sqrt(1 + mp.mpf(edge.width) ** 2)
    at, hit_at = mp.mpf(edge.place) / spread, (mp.mpf(edge.place) - 1 / mp.mpf(step.noise)) / spread
    absent = mp.log(mp.ncdf(at)) if at < 0 else mp.log1p(-mp.ncdf(-at))
    change = (mp.ncdf(-at) - mp.ncdf(-hit_at)) / mp.ncdf(at)
    return step.count * absent, step.count * mp.log1p(mp.mpf(step.rate) * change)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "width", "place"),
    [
        (0.9999999999988977, 0.12422356262332106, 12126, 0.004264681930123745, 0.015100495102736922),  # 1 + p change
        (1 - 1e-9, 0.1, 2, 0.01, -0.3),
        (0.09541328883707051, 0.3550296618672362, 84363, 0.05674816327121975, 35.61500995754693),  # a far tail
        (1 - 1e-6, 0.2, 50, 0.02, 4.0),
        (1e-9, 3.0, 10**6, 0.2, 5.0),
    ],
)
def test_chances_below_an_edge_lie_within_their_doubt(
    rate: float, noise: float, count: int, width: float, place: float
) -> None:
    step, edge = Step(rate, noise, count), Edge(place, width)
    below = certain._all_below(((step, edge),))
    with mp.workdps(60):
        absent, ratio = _logs(step, edge)
        assert abs(below.log_absent - absent) <= 0.7 * below.doubt_absent
        assert abs(below.log_ratio - ratio) <= 0.7 * below.doubt_ratio
        assert abs(below.log_present - absent - ratio) <= 0.7 * below.doubt_present


def test_random_chances_below_an_edge_lie_within_their_doubt() -> None:
    rng = np.random.default_rng(11)
    with mp.workdps(60):
        for _ in range(600):
            short = float(10 ** rng.uniform(-12, -0.1))
            step = Step(short if rng.random() < 0.5 else 1 - short, float(10 ** rng.uniform(-1, 1)), 1000)
            edge = Edge(
                float(rng.choice([rng.uniform(-3, 8), rng.uniform(-6, 36)])), float(10 ** rng.uniform(-3, -0.3))
            )
            below = certain._all_below(((step, edge),))
            absent, ratio = _logs(step, edge)
            assert abs(below.log_absent - absent) <= 0.7 * below.doubt_absent
            assert abs(below.log_ratio - ratio) <= 0.7 * below.doubt_ratio


@pytest.mark.parametrize("place", [0.7, 2.0, 3.5])
def test_the_rounding_of_a_sum_counts_the_gaussian_tails_above_its_window(place: float) -> None:
    # all nodes by series: the rest of the error once was far below that of the two tails, which went uncounted
    step, edge = Step(1e-7, 0.1, 2), Edge(place, 0.008)
    part = Part(step, edge)
    rule = Rule(part, 0.0, -12.0, 0.01, round((place + 12.16) / 0.01), -np.inf)
    power, unit = 1e3, 2.0**-53
    claimed = float(rule.rounding(power, np.zeros(1), True)[0])
    with mp.workdps(40):
        spread = mp.sqrt(1 + mp.mpf(edge.width) ** 2)
        absent, present = mp.ncdf(-mp.mpf(place) / spread), mp.ncdf((10 - mp.mpf(place)) / spread)
        # five operations on r p (present - absent), and an ulp of each tail
        assert claimed >= 7 * unit * (absent + power * step.rate * present)


def test_gaussian_tails_are_as_good_as_assumed() -> None:
    rng = np.random.default_rng(5)
    unit = 2.0**-53
    places = np.concatenate([rng.uniform(0, 3, 400), rng.uniform(3, 38, 1200), 10 ** rng.uniform(-9, 3, 400)])
    with mp.workdps(50):
        for y in map(float, places):
            tail, allowed = mp.ncdf(-mp.mpf(y)), 6 * unit * (4 + 0.5 * y * y)
            if tail > 1e-300:
                assert abs(ndtr(-y) - tail) <= allowed * tail
                assert abs(log_ndtr(y) - mp.log1p(-tail)) <= allowed * -mp.log1p(-tail)
            assert abs(ndtr(y) - (1 - tail)) <= 2 * unit
            assert abs(log_ndtr(-y) - mp.log(tail)) <= 6 * unit * -mp.log(tail)
