"""Tails of projected releases below any floating-point number, against mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from hush.accounting import Gaussian, Guarantees, Projected
from hush.accounting.general import log_least
from hush.accounting.grouping import grouped
from hush.accounting.pairs.glances import glance_far
from hush.accounting.pairs.losses import Pair, Poisson
from hush.accounting.pairs.points import Points
from hush.accounting.pairs.projection import ProjectedPair
from hush.accounting.pairs.single import curve
from hush.accounting.tails.binning import enclosing
from hush.accounting.tails.brackets import bracket

_CASES = [(0.7, 839, 700.0), (3.1, 263, 9000.0), (30.0, 1000, 9000.0), (30.0, 1000, 2.5), (0.3, 1000, 300.0)]


def _mean(sigma: float, r: int, given: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
    """The mean over z of what is seen given z, by the trapezoidal rule in log z around its largest term."""

    def term(v: mp.mpf) -> mp.mpf:
        weight = mp.exp(-mp.mpf(r) / 2 * (mp.expm1(-2 * v) + 2 * v))
        return weight * given(mp.exp(v) / mp.mpf(sigma))

    def total(f: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
        places = [mp.mpf(k) / 50 for k in range(-40, 600)]
        best = max(places, key=f)
        step = mp.mpf(1) / 800
        return step * mp.fsum(f(best + step * k) for k in range(-700, 701))

    whole = total(lambda v: mp.exp(-mp.mpf(r) / 2 * (mp.expm1(-2 * v) + 2 * v)))
    return total(term) / whole


def _phi(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _log_delta(sigma: float, r: int, t: mp.mpf) -> mp.mpf:
    return mp.log(_mean(sigma, r, lambda z: _phi(z / 2 - t / z) - mp.exp(t) * _phi(-z / 2 - t / z)))


@pytest.mark.parametrize(("sigma", "r", "t"), _CASES)
def test_logarithms_of_tails_are_good_to_what_they_say(sigma: float, r: int, t: float) -> None:
    pair = ProjectedPair(sigma, r, deep=True)
    with mp.workdps(30):
        truth = [mp.log(_mean(sigma, r, lambda z, s=s: _phi(s * z / 2 - t / z))) for s in (1, -1)]
    at = np.array([t])
    found = pair.log_tails(np.array([0.9 * t, t]), 8000.0)
    assert truth[0] < -600
    for logs, true in zip(found, truth, strict=True):
        assert abs(logs[1] - true) <= pair.log_doubt(at, logs[1:])[0]


@pytest.mark.parametrize(
    ("sigma", "r", "t", "rate", "reverse"),
    [
        *((*case, rate, False) for case in _CASES for rate in (1.0, 0.01)),
        (30.0, 1000, 2.5, 0.6, True),
    ],
)
def test_laws_beyond_floating_point_enclose_the_release(
    sigma: float, r: int, t: float, rate: float, reverse: bool
) -> None:
    """delta of one release deep in its tail, which on a sample is p delta(t), or p e^{eps+t} delta(t) in reverse."""
    inner = ProjectedPair(sigma, r, deep=True)
    sample: Pair = inner if rate == 1 else Poisson(inner, rate)
    with mp.workdps(40):
        eps = mp.mpf(t) if rate == 1 else mp.log(1 - rate + rate * mp.exp(mp.mpf(t)))
        truth = mp.log(rate) + _log_delta(sigma, r, mp.mpf(t))
        if reverse:
            eps = -mp.log(1 - rate + rate * mp.exp(-mp.mpf(t)))
            truth += eps - t  # Q(u < -t) - e^eps ((1-p) Q + p P) = p e^eps (e^-t Q - P), and P(u < -t) = Q(u > t)
        epsilon = float(eps)
    edges = epsilon * np.unique(np.append(np.linspace(-1.0, 2.5, 500), np.linspace(0.9, 1.2, 2000)))
    pair = sample.reverse() if reverse else sample
    less, more = enclosing(pair, edges)
    at = np.array([epsilon])
    low, high = float(less.log_delta(at)[0]), float(np.logaddexp(more.log_delta(at)[0], more.log_hidden))
    assert truth < -560
    assert low <= truth <= high
    assert high - low < 0.2 * max(1.0, -float(truth) / 100)


def test_brackets_of_jumps_below_floating_point_keep_their_digits() -> None:
    """Against a sum over all paths of three steps."""
    losses, logs = np.array([-0.2, 0.1, 0.4, 500.0, 520.0]), np.array([-1.0, -0.9, -1.5, -2500.0, -2600.0])
    found = bracket([(Points(losses, logs), 3)], 1.0, math.inf)
    assert found is not None
    c, spacing, count = 0.7, 0.01, 40
    shape, errors, scale = found.transform(c, spacing, count)
    with mp.workdps(40):
        for k in range(count):
            s = mp.mpc(c, spacing * k)
            terms = [mp.exp(mp.mpf(float(m)) + s * mp.mpf(float(at))) for at, m in zip(losses, logs, strict=True)]
            small, large = sum(terms[:3]), sum(terms[3:])
            true = complex((3 * small**2 * large + 3 * small * large**2 + large**3) / mp.exp(mp.mpf(scale)))
            assert abs(shape[k] - true) <= errors[k] < 1e-10
    value = float(found.log_mgf(np.array([c]))[0])
    assert abs(value - scale - math.log(abs(shape[0]))) < 1e-10


def test_a_glance_knows_about_what_floating_point_does_not() -> None:
    sigma, r, rate = 3.1, 263, 0.05
    nodes = np.geomspace(1.0, 2e4, 600)
    logs = glance_far(Poisson(ProjectedPair(sigma, r), rate), nodes)
    assert logs is not None
    beyond = np.logaddexp.accumulate(logs[::-1])[::-1]
    inner = ProjectedPair(sigma, r, deep=True)
    t = nodes[::100] - math.log(rate)
    tails = inner.log_tails(t, 3000.0)[0] + math.log(rate)
    assert tails[-1] < -1000
    assert np.all(np.abs(beyond[::100][1:-1] - tails[1:-1]) < 3)


@pytest.mark.parametrize(
    ("sigma", "r", "rate", "steps", "size", "delta"),
    [(0.698304, 839, 0.000478113, 10_833, 24, 1.3e-72), (3.11421, 263, 0.0664686, 509, 66, 6e-6)],
)
def test_groups_whose_single_records_have_deltas_below_e_640(
    sigma: float, r: int, rate: float, steps: int, size: int, delta: float
) -> None:
    """Were [27, inf] and [2, inf]."""
    bounds = (Projected(sigma, r).poisson(rate) * steps).group(size).epsilon(delta)
    assert (bounds.lower, bounds.upper) == (1e4, math.inf)


def test_deep_groups_of_very_many_projections_are_those_of_a_gaussian() -> None:
    """With 1e12 of them z is 1/sigma to some 1e-4 even in tails of e^-1100; was [11, inf]."""
    bounds = (Projected(5.0, 10**12) * 100).group(20).epsilon(1e-6)
    plain = (Gaussian(5.0) * 100).group(20).epsilon(1e-6)
    assert bounds.width < 1e-3 * bounds.upper
    assert bounds.lower < plain.upper * (1 + 1e-5)
    assert plain.lower * (1 - 1e-5) < bounds.upper


@pytest.mark.parametrize(("sigma", "r", "t"), _CASES)
def test_one_release_has_its_delta_however_small(sigma: float, r: int, t: float) -> None:
    low, high = curve(ProjectedPair(sigma, r, deep=True))(np.array([t]))
    with mp.workdps(40):
        truth = _log_delta(sigma, r, mp.mpf(t))
    assert low[0] <= truth <= high[0] < low[0] + 1e-6


def test_that_a_group_never_tells_everything_takes_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole curves began with one as deep as floating point goes; a leak is still seen."""
    leaky = Guarantees.of(1.0, 1e-6).group(3)
    assert math.log(1e-6) <= log_least(leaky) <= math.log(1e-6 * (1 + math.e + math.e**2)) + 1e-9

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(grouped, "pair", refuse)
    assert log_least((Projected(2.0, 50).poisson(0.1) * 20).group(3)) == -math.inf
