"""Bounds on transforms from fewer points: never below the truth, and close enough to leave nodes out."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from hush.accounting.contours import averaged
from hush.accounting.contours.averaged import Wanted, averaged_line
from hush.accounting.contours.heights import Heights
from hush.accounting.contours.smoothing import Kernel
from hush.accounting.contours.turns import Crowd, gathered
from hush.accounting.mixed.tilted import Side
from hush.accounting.pairs.points import GaussianLaw, LaplaceLaw, Points, log_mgfs, on_lines
from hush.accounting.tails.brackets import bracket


def some_law(seed: int, points: int) -> Points:
    generator = np.random.default_rng(seed)
    losses = generator.normal(0.0, 0.3, points) + 2.0 * (generator.random(points) < 0.1)
    masses = generator.random(points) ** 4
    return Points(losses, np.log(masses / masses.sum()))


def log_size(law: Points, c: float, height: float) -> float:
    """log |E[e^{sL}]/E[e^{cL}]| with fifty digits."""
    with mpmath.workdps(50):
        points = [
            (mpmath.mpf(float(loss)), mpmath.mpf(float(log))) for loss, log in zip(law.losses, law.logs, strict=True)
        ]
        top = mpmath.fsum(mpmath.exp(log + mpmath.mpc(c, height) * loss) for loss, log in points)
        return float(mpmath.log(abs(top) / mpmath.fsum(mpmath.exp(log + c * loss) for loss, log in points)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("c", [0.3, 20.0])
@pytest.mark.parametrize("spacing", [0.02, 0.7, 9.0])
def test_fewer_points_never_make_a_transform_smaller(seed: int, c: float, spacing: float) -> None:
    law, nodes = some_law(seed, 400), 12
    found = gathered([some_law(9, 50), law], c, spacing * nodes)
    assert found.points.size < 250 or spacing > 1
    looks = Heights.between(spacing, spacing * nodes, 2 * spacing)
    at, alone = spacing * np.arange(nodes), found.near(looks)[0][1]
    both = [*zip(at, found.at(spacing, nodes)[1], strict=True), *zip(looks.middles[::8], alone[::8], strict=True)]
    for height, bound in both:
        exact = log_size(law, c, float(height))
        assert exact - 1e-15 <= bound <= 0
        assert c > 1 or 1 - math.exp(bound) >= 0.5 * (1 - math.exp(exact)) - 1e-12  # nor much larger


@pytest.mark.parametrize("points", [30, 400])
@pytest.mark.parametrize("c", [0.3, 20.0])
@pytest.mark.parametrize("longest", [0.1, 2.0])
def test_a_bound_with_a_reach_holds_between_nodes(points: int, c: float, longest: float) -> None:
    law, looks = some_law(5, points), Heights.between(0.5 * longest, 9 * longest, longest)
    bounds = gathered([law], c, 9 * longest).near(looks)[1][0]
    for k in range(0, looks.count, 3):
        for part in (0.0, 0.7, 1.0):
            assert log_size(law, c, (1 - part) * looks.ends[k] + part * looks.ends[k + 1]) <= bounds[k] + 1e-12
    assert longest > 1 or c > 1 or bounds.min() < -0.03  # nor is nothing said


@pytest.mark.parametrize("c", [0.3, 3.0])
def test_small_heights_are_known_within_a_part_of_themselves(c: float) -> None:
    """There the transform turns by the square of the height: far less than a deviation times the reach."""
    law, looks = some_law(6, 300), Heights.between(1e-3, 1.05e-3, 1.0)
    ((bound,),) = gathered([law], c, 1.0).near(looks)[1]
    assert looks.ends == pytest.approx([1e-3, 1.0625e-3])
    assert log_size(law, c, 1e-3) <= bound <= 0.8 * log_size(law, c, 1.03e-3) < 0


@pytest.mark.parametrize("deviation", [1e-6, 0.1, 1e3])
def test_stretches_of_heights_leave_no_gap(deviation: float) -> None:
    for first, last in ((1.0, 1.01), (0.3, 40.0), (1e-3, 1e3)):
        looks = averaged._heights(first, last, deviation)
        assert looks.ends[0] == first
        assert last <= looks.ends[-1] <= last + np.diff(looks.ends)[-1] * (1 + 1e-9)
        assert np.all(np.diff(looks.ends) > 0)
        assert np.all(np.diff(looks.ends) <= np.maximum(0.4 / deviation, last / 80) * (1 + 1e-12))
        assert np.all(looks.middles - looks.reach < looks.ends[:-1])
        assert np.all(looks.middles + looks.reach > looks.ends[1:])
        assert looks.ends.size < 1000


@pytest.mark.parametrize(("first", "last", "longest"), [(0.3, 40.0, 0.4), (1e-3, 1e3, 12.0), (5.0, 9.0, 0.01)])
def test_turns_that_are_products_are_off_by_no_more_than_is_said(first: float, last: float, longest: float) -> None:
    """One point of each of several laws: its size is 1 whatever the turns, so two of them are compared."""
    looks = Heights.between(first, last, longest)
    assert np.all(np.diff(looks.ends) <= longest)
    generator = np.random.default_rng(1)
    points, masses = generator.normal(size=20), np.full(20, 0.5)
    sizes = looks.sizes(points, masses, 2 * np.arange(10))
    for k in np.unique(np.linspace(0, looks.count - 1, 15).astype(int)):
        with mpmath.workdps(40):
            t = mpmath.mpf(float(looks.middles[k]))
            for law in range(10):
                gap = mpmath.mpf(points[2 * law]) - mpmath.mpf(points[2 * law + 1])
                exact = float(abs(mpmath.cos(t * gap / 2)))
                angle = 2.0**-50 * float(t) * np.abs(points[2 * law : 2 * law + 2]).max()  # what angles are off
                assert abs(sizes[k, law] - exact) <= looks.rounding[k] + angle
    assert np.all(looks.rounding < 1e-7)


def test_kernels_fall_from_every_height_on() -> None:
    for kernel in (Kernel(0.3, True), Kernel(0.3, False), Kernel(3.0, False)):
        for c in (0.01, 2.0):
            heights = np.geomspace(0.01, 20.0, 200)
            nodes = c + 1j * heights
            true = np.abs(kernel.on_line(nodes)[0] / (nodes * (nodes + 1)))
            assert np.all(kernel.most(c, heights) >= np.maximum.accumulate(true[::-1])[::-1])


@pytest.mark.parametrize("jumping", [False, True])
def test_the_paths_of_a_bracket_have_decayed_no_more_than_is_said(jumping: bool) -> None:
    laws = [(some_law(1, 300), 40), (some_law(2, 200), 3), (GaussianLaw(0.01), 1), (LaplaceLaw(0.1), 5)]
    paths = bracket(laws, 1.0 if jumping else -math.inf, 5.0)
    assert paths is not None
    assert paths.jumps is jumping
    c, spacing, nodes = 1.3, 0.2, 30
    values, errors, _ = paths.transform(c, spacing, nodes)
    sizes = paths.crowd(c).seen(spacing * nodes).at(spacing, nodes)
    assert np.all(np.exp(sizes) >= np.abs(values) - errors)
    assert sizes[-1] < -20  # nor is nothing said


@pytest.mark.parametrize("spare", [False, True])
def test_some_kinds_never_say_more_than_all_of_them(spare: bool) -> None:
    kinds = tuple((some_law(seed, 60 + seed), some_law(seed + 1, 70)) for seed in range(9))
    crowd = Crowd((*kinds, (GaussianLaw(0.3),), (LaplaceLaw(0.1),)), np.arange(1.0, 12.0), 0.7, spare)
    looks, few = Heights.between(0.01, 30.0, 0.3), crowd.some(30.0)
    assert len(few.kinds) == 4
    (_, some), (_, every) = (one.seen(30.0).near(looks) for one in (few, crowd))
    assert np.all(some >= every - 1e-12)
    assert some.min() < -10
    counts = [count - (k == 0) * spare for k, count in enumerate(crowd.counts[:9])]  # the first is spared
    for place in (0, looks.count // 2, -1):
        exact = sum(
            count * max(log_size(law, 0.7, float(looks.middles[place])) for law in laws)
            for laws, count in zip(kinds, counts, strict=True)
        )
        assert exact <= some[place] + 1e-9


def test_many_steps_take_few_nodes_and_say_the_same() -> None:
    """The sum of a thousand losses is nearly Gaussian: its transform ends long before that of a narrow kernel."""
    side = Side(((some_law(3, 400), 1000),), above=True)
    c = 0.8
    value, mean, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    line = averaged_line(side, c, math.sqrt(variance), Kernel(0.02, True), Wanted(mean, 1e-9, 10**6))
    assert line is not None
    assert line.nodes.size < 60
    low, high = line.log_delta(np.array([mean]))
    assert 0 < high[0] - low[0] < 1e-5
    # every node up to the kernel's end, one after the other
    every = c + 1j * line.spacing * np.arange(10_000)
    law = side.laws[0][0]
    assert isinstance(law, Points)
    steps = np.array([np.exp(law.logs + s * law.losses).sum() for s in every])
    angles, sizes = np.angle(steps), np.log(np.abs(steps))
    terms = np.exp(1000 * sizes - value + 1j * (1000 * angles - every.imag * mean)) * np.exp(
        0.5 * 0.02**2 * every * (every + 1)
    )
    terms = terms / (every * (every + 1))
    total = line.spacing / math.pi * float(terms.real.sum() - 0.5 * terms[0].real)
    assert math.log(total) + value - c * mean == pytest.approx(high[0], abs=1e-5)


def test_nodes_left_out_by_looks_at_some_of_them_change_no_more_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [Points(0.02 * law.losses, law.logs) for law in (some_law(3, 400), some_law(4, 300))]
    side = Side(((small[0], 1000), (small[1], 500), (LaplaceLaw(0.1), 5)), above=True)
    c = 0.8
    _, mean, variance = (float(part[0]) for part in side.cumulants(np.array([c])))
    found = []
    for affordable in (averaged._AFFORDABLE, 10_000):
        monkeypatch.setattr(averaged, "_AFFORDABLE", affordable)
        line = averaged_line(side, c, math.sqrt(variance), Kernel(0.004, True), Wanted(mean, 1e-9, 10**6))
        assert line is not None
        assert line.nodes.size < 100
        found.append([float(bound[0]) for bound in line.log_delta(np.array([mean]))])
    (low, high), (other_low, other_high) = found
    assert max(low, other_low) <= min(high, other_high)
    assert other_high - other_low < 1e-5


def test_transforms_of_several_laws_at_once_are_each_their_own() -> None:
    laws = [some_law(seed, points) for seed, points in enumerate((3, 400, 50, 60, 1, 390))]
    c, spacing, nodes = 2.5, 0.3, 70
    values, errors, scales = on_lines(laws, c, spacing, nodes)
    orders = np.array([0.1, 2.5, 40.0])
    for law, row, doubt, scale, logs in zip(laws, values, errors, scales, log_mgfs(laws, orders), strict=True):
        assert logs == pytest.approx(law.log_mgf(orders), rel=1e-12)
        assert scale == pytest.approx(logs[1], rel=1e-12)
        with mpmath.workdps(40):
            for node in (0, 1, 8, 37, 69):
                s = mpmath.mpc(c, spacing * node)
                exact = mpmath.fsum(
                    mpmath.exp(mpmath.mpf(float(log)) + s * mpmath.mpf(float(loss)) - mpmath.mpf(float(scale)))
                    for loss, log in zip(law.losses, law.logs, strict=True)
                )
                assert abs(complex(exact) - complex(row[node])) <= doubt[node] < 1e-9
