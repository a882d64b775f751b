"""Random settings across the whole domain: the promises hold, and independent computations lie inside the intervals.

`make test` runs a seeded choice of them, `make test-full` (HUSH_FULL=1) all, and writes what came out to
tests/results/accounting-sweep.json.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import reference
from reference import ADD, REMOVE, Setting

from hush.accounting import Bounds, Gaussian
from hush.accounting.mechanisms import Mechanism

# The last tests judge what the others found, so all must run in one process: without xdist.
FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
RESULTS = Path(__file__).parents[1] / "results" / "accounting-sweep.json"
LIMIT = 1e4
QUOTAS = {
    "anywhere": 110,
    "little noise, few steps": 40,
    "rate 1e-9, noise 100": 10,
    "little noise, many steps": 10,
    "delta near the total variation": 20,
    "epsilon near 0": 10,
    "epsilon beyond 1e4": 10,
}
REDUCED = {
    "anywhere": 8,
    "little noise, few steps": 7,
    "rate 1e-9, noise 100": 2,
    "little noise, many steps": 1,
    "delta near the total variation": 3,
    "epsilon near 0": 2,
    "epsilon beyond 1e4": 2,
}
Case = tuple[str, Setting, float]


def _run(setting: Setting) -> Mechanism:
    return Gaussian(noise_multiplier=setting.noise).poisson(setting.rate) * setting.steps


def _cases() -> list[Case]:
    """Every setting of the sweep, the same in every run: one seed for each kind."""
    cases = []
    for seed, (kind, count) in enumerate(QUOTAS.items()):
        random = np.random.default_rng([2, seed])
        wanted = count if FULL else REDUCED[kind]
        cases += [_case(kind, random) for _ in range(wanted)]
    return cases


def _case(kind: str, random: np.random.Generator) -> Case:
    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    noise, rate, steps = between(0.1, 1e4), between(1e-9, 1.0), round(between(1, 1e9))
    delta = float(10 ** random.uniform(-100, np.log10(0.5)))
    if kind == "little noise, few steps":
        noise, steps = between(0.1, 0.5), round(between(1, 100))
    elif kind == "little noise, many steps":
        noise, rate = between(0.1, 0.5), between(1e-9, 1e-3)
    elif kind == "rate 1e-9, noise 100":
        noise, rate = 100.0, 1e-9
    elif kind == "epsilon beyond 1e4":
        noise, rate, steps = between(0.1, 1.0), between(0.05, 1.0), round(between(1e5, 1e9))
    elif kind in ("delta near the total variation", "epsilon near 0"):
        noise, rate, steps = between(0.1, 30), between(1e-7, 0.5), round(between(1, 1e5))
        short = 10 ** random.uniform(*((-3, -0.3) if kind != "epsilon near 0" else (-12, -5)))
        delta = -float(short)
    return kind, Setting(rate, noise, steps), delta


@functools.cache
def _delta(case: Case) -> float:
    """The delta asked for: the total variation, by the reference, less a share of it where that is what is given."""
    _, setting, delta = case
    if delta > 0:
        return delta
    curve = reference.delta_curve(setting, -30.0)
    assert curve is not None
    return min(math.exp(curve(0.0)[0]) * (1 + delta), 1 - 1e-9)


CASES = _cases()


def _id(case: Case) -> str:
    _, setting, delta = case
    asked = f"delta={delta:.2g}" if delta > 0 else f"delta(0)*(1-{-delta:.2g})"
    return f"sigma={setting.noise:.3g} p={setting.rate:.3g} T={setting.steps} {asked}"


class _Summary:
    """What the sweep found, written down at its end."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.worst_width = self.worst_seconds = self.worst_reference = 0.0
        self.misses: list[dict[str, Any]] = []

    def miss(self, what: str, case: Case, bounds: Bounds | None, seconds: float) -> None:
        kind, setting, _ = case
        self.misses.append(
            {
                "what": what,
                "kind": kind,
                "noise": setting.noise,
                "rate": setting.rate,
                "steps": setting.steps,
                "delta": _delta(case),
                "interval": None if bounds is None else [repr(bounds.lower), repr(bounds.upper)],
                "seconds": round(seconds, 3),
            }
        )

    def write(self) -> None:
        result = {
            "settings": len(CASES),
            "counts": dict(sorted(self.counts.items())),
            "worst relative width": self.worst_width,
            "worst CPU seconds": round(self.worst_seconds, 3),
            "worst relative error of a reference's delta": self.worst_reference,
            "misses": self.misses,
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


@pytest.fixture(scope="session")  # tests of other files may run in between
def summary() -> Any:
    record = _Summary()
    yield record
    if FULL:
        record.write()


@pytest.fixture(scope="session")
def lattices() -> dict[int, tuple[float, float]]:
    return _pld_intervals()


def _invalid(bounds: Bounds) -> str | None:
    """What makes an answer no answer."""
    if math.isnan(bounds.lower) or math.isnan(bounds.upper):
        return "NaN"
    return "not an interval" if bounds.lower < 0 or bounds.lower > bounds.upper else None


def _shortfall(bounds: Bounds, seconds: float) -> str | None:
    """Which promise a valid answer breaks."""
    if bounds.upper > LIMIT and (bounds.lower != LIMIT or bounds.upper != math.inf):
        return "too wide"
    if bounds.upper <= LIMIT and bounds.upper - bounds.lower > max(1e-6 * bounds.upper, 1e-12):
        return "too wide"
    return "too slow" if seconds > 1 else None


@pytest.mark.parametrize("index", range(len(CASES)), ids=[_id(case) for case in CASES])
def test_interval_keeps_its_promises_and_encloses_the_reference(
    index: int, summary: _Summary, lattices: dict[int, tuple[float, float]]
) -> None:
    case = CASES[index]
    run, delta = _run(case[1]), _delta(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.process_time()
        try:
            bounds = run.epsilon(delta)
        except Exception as error:
            summary.miss(f"raised {type(error).__name__}: {error}", case, None, time.process_time() - start)
            raise
        seconds = time.process_time() - start
        if seconds > 1:  # whatever else the machine does may slow one run down, not two
            start = time.process_time()
            run.epsilon(delta)
            seconds = min(seconds, time.process_time() - start)
    summary.counts["answered"] += 1
    problem = _invalid(bounds) or _outside(case, bounds, run, summary)
    if problem is None and index in lattices:
        low, high = lattices[index]
        summary.counts["dp-accounting compared"] += 1
        if not (low <= bounds.upper * (1 + 1e-9) + 1e-9 and bounds.lower <= high * (1 + 1e-9) + 1e-9):
            problem = f"dp-accounting's interval [{low}, {high}] does not meet it"
    if bounds.upper <= LIMIT and bounds.upper > 1e-6:
        summary.worst_width = max(summary.worst_width, (bounds.upper - bounds.lower) / bounds.upper)
    summary.worst_seconds = max(summary.worst_seconds, seconds)
    shortfall = _shortfall(bounds, seconds)
    if problem or shortfall:
        summary.miss(str(problem or shortfall), case, bounds, seconds)
    if shortfall:
        summary.counts[shortfall] += 1
    assert problem is None, f"{problem}: [{bounds.lower!r}, {bounds.upper!r}] in {seconds:.2f} s"


def test_intervals_are_as_narrow_as_promised_in_at_most_a_second(summary: _Summary) -> None:
    """Six digits, or 1e-12: everywhere."""
    assert summary.counts["answered"] == len(CASES)
    assert not summary.misses, summary.misses


def _outside(case: Case, bounds: Bounds, run: Mechanism, summary: _Summary) -> str | None:
    """delta(lower) >= delta >= delta(upper) by an independent computation; delta(epsilon) encloses it too."""
    setting, delta = case[1], _delta(case)
    beyond = math.isinf(bounds.upper) and not FULL
    curve = None if beyond else reference.delta_curve(setting, math.log(delta))
    if curve is None or curve(bounds.lower)[1] > 1e-6:
        summary.counts["no reference affordable"] += 1
        return None
    summary.counts[f"reference: {curve.name}"] += 1
    target = math.log(delta)
    if bounds.lower > 0:
        value, error = curve(bounds.lower)
        summary.worst_reference = max(summary.worst_reference, error)
        if value < target - error:
            return f"the lower end is above the truth: log delta there is {value!r} (error {error:.1g}), not {target!r}"
    if math.isinf(bounds.upper):
        return None
    value, error = curve(bounds.upper)
    if value > target + error:
        return f"the upper end is below the truth: log delta there is {value!r} (error {error:.1g}), not {target!r}"
    at = bounds.upper
    value, error = curve(at)
    found = run.delta(at)
    if value > -600 and not (math.exp(value - error) <= found.upper and found.lower <= math.exp(value + error)):
        return f"delta({at!r}) = [{found.lower!r}, {found.upper!r}] misses {math.exp(value)!r} (error {error:.1g})"
    return None


_WORKER = """
import json, resource, signal, sys
from dp_accounting.pld import privacy_loss_distribution as pld
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
for index, rate, noise, steps, delta, grid in json.load(sys.stdin):
    signal.alarm(4)
    try:
        ends = []
        for pessimistic in (False, True):
            one = pld.from_gaussian_mechanism(noise, sampling_prob=rate, pessimistic_estimate=pessimistic,
                value_discretization_interval=grid, use_connect_dots=pessimistic)
            ends.append(one.self_compose(steps).get_epsilon_for_delta(delta))
        print(json.dumps([index, *map(float, ends)]), flush=True)
    except Exception:
        pass
    signal.alarm(0)
"""


def _pld_intervals() -> dict[int, tuple[float, float]]:
    """dp-accounting's optimistic and pessimistic epsilon, where it finishes: in a process that can be given up."""
    jobs = []
    for index, case in enumerate(CASES):
        setting, delta = case[1], _delta(case)
        if delta > 1e-10 and setting.steps <= 100_000 and setting.noise <= 100 and setting.rate >= 1e-6:
            spread = setting.rate * math.sqrt(setting.steps * min(math.expm1(min(setting.noise**-2, 5.0)), 100.0))
            jobs.append([index, setting.rate, setting.noise, setting.steps, delta, min(1e-3, max(1e-5, spread / 300))])
    limit = 400 if FULL else 12
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        out, _ = process.communicate(json.dumps(jobs), timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    rows = [json.loads(line) for line in out.splitlines() if line.endswith("]")]
    return {int(i): (low, high) for i, low, high in rows}


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.01, 0.6), (1e-9, 0.1), (0.9, 0.1), (1e-9, 100.0), (0.3, 1e4), (0.5, 2.0)]
)
@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_the_real_space_reference_agrees_with_mpmath_at_two_steps(rate: float, noise: float, direction: int) -> None:
    law = reference.RealSpace(Setting(rate, noise, 2), resolution=1.5)
    for epsilon in (0.0, 0.3 * rate / noise):
        exact, _ = reference.two_steps(rate, noise, direction, epsilon, digits=30)
        assert law.log_delta(direction, epsilon) == pytest.approx(float(mp.log(exact)), abs=1e-9)
