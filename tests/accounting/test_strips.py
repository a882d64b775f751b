"""The bounds behind the contour integrals' errors, each held against the number it bounds."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp

from hush.accounting.contours.line import power_errors
from hush.accounting.gaussian import contour, jumps
from hush.accounting.gaussian.contour import ADD, REMOVE
from hush.accounting.gaussian.labels import Labels, log_overlap, log_peak
from hush.accounting.gaussian.rules import Rule
from hush.accounting.gaussian.strips import Edge, Part
from hush.accounting.gaussian.transform import Step, log_ratio

NARROW = Part(Step(0.01, 0.5, 1), Edge(3.0, 0.5 / 300), Edge(1.5, 0.1))
WIDE_BULK = Part(Step(0.01, 0.5, 1), Edge(3.0, 0.5 / 12), Edge(3.0 - 11 * 0.125, 0.125))


def log_window(part: Part, x: float, shift: float) -> float:
    """log |W(x + i shift)|, to fifty digits."""
    with mp.workdps(50):
        z = mp.mpc(x, shift)
        edges = [mp.erfc((z - edge.place) / edge.width / mp.sqrt(2)) / 2 for edge in (part.falls, part.rises) if edge]
        return float(mp.log(abs(edges[0] - edges[1])))


@pytest.mark.parametrize("part", [NARROW, WIDE_BULK])
@pytest.mark.parametrize("shift", [0.0, 0.01, 0.1, 0.5, 1.1])
def test_a_window_is_no_larger_than_its_bound_however_narrow_it_is(part, shift):
    places = np.array([0.5, 1.4, 1.7, 2.9, 2.99, 3.003, 3.02])
    bounds = part.log_window(places, shift, 0.0)
    for place, bound in zip(places, bounds, strict=True):
        assert bound >= log_window(part, float(place), shift) - 1e-9


@pytest.mark.parametrize("part", [NARROW, WIDE_BULK])
def test_both_edges_count_beyond_the_cut_and_to_the_left(part):
    left, width, count = part.cells
    right = left + width * count
    for shift in (1e-3, 0.05, 0.4):
        at_the_cut = part.log_side(0.0, 0.0, 0.0, shift) - math.log(shift)
        assert at_the_cut >= log_window(part, right, 0.0) - 0.5 * right**2 - 0.919
    with mp.workdps(50):
        inside = mp.quad(lambda x: mp.npdf(x) * mp.exp(log_window(part, float(x), 0.0)), [left - 3, left - 0.5, left])
    assert part.log_left(0.0, 0.0, 0.0) >= float(mp.log(inside))


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.2), (0.2, 0.05)])
@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_what_bulk_and_huge_have_beyond_one_together_is_counted_whichever_is_wider(low, high, direction):
    label = Labels(Step(0.3, 1.0, 1), Edge(1.0, high), True, Edge(0.45, low))
    x = np.linspace(-12, 14, 200_001)
    log_beyond = np.maximum(log_ndtr((0.45 - x) / low), log_ndtr((x - 1.0) / high))
    log_short = np.minimum(log_ndtr((x - 0.45) / low), log_ndtr((1.0 - x) / high))
    smaller = np.minimum(log_ndtr((0.45 - x) / low), log_ndtr((x - 1.0) / high))
    excess = np.where(log_beyond > -0.7, np.exp(smaller) - np.exp(log_short), -1.0)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    if direction == REMOVE:
        density = 0.7 * density + 0.3 * np.exp(-0.5 * (x - 1) ** 2) / math.sqrt(2 * math.pi)
    mass = float((np.maximum(excess, 0.0) * density).sum() * (x[1] - x[0]))
    assert 0 < mass <= math.exp(log_overlap(label, direction))


def log_moments(part: Part, powers: np.ndarray) -> np.ndarray:
    """log E[g^r; label] up to the cut, by a sum with far more nodes."""
    left, width, count = part.cells
    right, nodes = left + width * count, 100_000
    spacing = (right + 39.0) / nodes
    x = -39.0 + spacing * (0.5 + np.arange(nodes))
    loss = log_ratio(x / part.step.noise - 0.5 / part.step.noise**2, part.step.rate)
    base = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(spacing)
    base += log_ndtr((part.falls.place - x) / part.falls.width)
    return np.array([logsumexp(r * loss + base) for r in powers])


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "direction", "epsilon", "target"),
    [
        (2.6e-6, 0.3157, 72, REMOVE, 0.0741, -172.8),
        (5.8e-7, 0.2437, 5, REMOVE, 0.00666, -8.0),
        (0.00642, 0.2187, 9, ADD, 1.9e-6, -2.46),
    ],
)
def test_all_steps_bulk_count_by_chernoff_even_where_they_press_against_the_cut(
    rate, noise, steps, direction, epsilon, target
):
    jump = jumps.jumps([Step(rate, noise, steps)], direction, epsilon, target, -9.0)
    assert jump is not None
    assert jump.labels[0].bulk is not None
    true = steps * log_moments(jump.labels[0].bulk, 1 + jump.bulk_points)
    exponents = (-jump.bulk_points if direction == REMOVE else 1 + jump.bulk_points) * epsilon
    taken = jump.bulk_values + exponents + log_peak(jump.bulk_points)
    assert np.nanmin(taken) + 1e-6 >= np.nanmin(true + exponents + log_peak(jump.bulk_points))
    assert np.all(jump.bulk_values + 1e-6 >= true)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "log_delta"),
    [(0.00108, 1.843, 87, -37.6), (0.0622, 24.39, 4, -1.27), (0.00164, 8.26, 28, -4.65)],
)
def test_aliases_are_bounded_by_the_moments_of_the_law_that_is_cut_also_far_from_the_line(
    rate, noise, steps, log_delta
):
    step = Step(rate, noise, steps)
    task, c, _ = contour.solve_for_delta([step], 0.0, REMOVE, log_delta)
    line = contour.line(task, c)
    assert line is not None
    (grid,) = task.grids
    nodes = 100_000
    spacing = (grid.right - grid.left) / nodes
    x = grid.left + spacing * (0.5 + np.arange(nodes))
    loss = log_ratio(x / noise - 0.5 / noise**2, rate)
    base = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(spacing)
    for point, value in zip(line.chernoff_points, line.chernoff_values, strict=True):
        if point not in (0.0, -1.0):
            assert value >= steps * logsumexp((1 + point) * loss + base)


def test_an_error_is_counted_whole_where_the_power_it_belongs_to_is_below_any_floating_point_number():
    # (1e-200)^4, each factor off by 1e-20: the product may be 1e-80
    errors = power_errors(np.array([4 * math.log(1e-200)]), np.array([4 * math.log1p(1e180)]))
    assert errors[0] >= 0.99e-80


def test_nodes_that_are_rounded_count_where_a_window_is_narrow():
    rule = Rule(Part(Step(0.1, 1.0, 1), Edge(3.0, 1e-6)), 0.0, 3.0 - 2.03e-5, 1.01e-6, 40, -np.inf)
    with mp.workdps(40):
        nodes = [mp.mpf(rule.left) + k * mp.mpf(rule.spacing) for k in range(rule.size)]
        width = mp.mpf(rule.part.falls.width)
        true = mp.fsum(rule.spacing * mp.npdf(x) * mp.erfc((x - 3) / width / mp.sqrt(2)) / 2 for x in nodes)
    computed = rule.mgf(np.zeros(1))[0]
    assert abs(computed - true) <= rule.rounding(0.0, np.zeros(1), False)[0]


@pytest.mark.parametrize(("noise", "first", "last"), [(0.1, 150.0, 200.0), (0.1, 90.0, 95.0)])
def test_what_lies_left_of_a_far_label_is_bounded(noise, first, last):
    """Where e^u is no floating-point number any more, below the axis, too; against an integral by mpmath."""
    part = Part(Step(rate=0.5, noise=noise, count=1), Edge(last, 1.0), Edge(first, 1.0))
    real, height, shift = 1.5, 2.0, -0.1 * noise
    left = part.cells[0]
    with mp.workdps(20):

        def modulus(x):
            at = mp.mpc(x, shift)
            ratio = mp.mpf(1) / 2 + mp.exp(at / noise - 1 / (2 * mp.mpf(noise) ** 2)) / 2
            window = (mp.erfc((at - last) / mp.sqrt(2)) - mp.erfc((at - first) / mp.sqrt(2))) / 2
            power = mp.exp(mp.mpc(real, height) * mp.log(ratio))
            return abs(power * window * mp.exp(-at * at / 2) / mp.sqrt(2 * mp.pi))

        true = mp.log(mp.quad(modulus, [left - 4 * k * mp.mpf(noise) for k in range(5, -1, -1)]))
    assert float(true) <= part.log_left(real, height, shift) < math.inf
