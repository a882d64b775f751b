"""Random questions over the whole domain: which answers take more than a second, which are wider than promised?

    python benchmarks/corners.py groups --from 0 --to 100
    python benchmarks/corners.py --to 50 --json corners.json     # every family

A question is a pure function of its family and its number, so that one that stands out can be asked again.  Times are
seconds of CPU in this process; widths are shares of epsilon (or of log delta, or of an error for whole curves).  Of
log delta, which changes faster than epsilon, twelve times the share is allowed; and an interval that is wider, as where
delta falls off a cliff, is narrow enough if both of its ends belong to epsilons within the share of the one asked.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np

from hush.accounting import Gaussian, Guarantees, Laplace, RandomisedResponse
from hush.accounting.mechanisms import ADD_REMOVE, REPLACE_ONE, Mechanism, Neighbours, compose
from hush.accounting.releases import Projected

SLOW = 1.0  # seconds
LEAST = 1e-100  # the smallest delta that is asked for

Random = np.random.Generator


def between(random: Random, low: float, high: float) -> float:
    """Even in the logarithm."""
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def whole(random: Random, low: float, high: float) -> int:
    return max(int(low), round(between(random, low, high)))


def some_delta(random: Random) -> float:
    return between(random, *((1e-100, 1e-15), (1e-15, 1e-3), (1e-12, 0.9))[int(random.integers(3))])


def poisson(random: Random) -> Mechanism:
    return Gaussian(between(random, 0.1, 1e4)).poisson(between(random, 1e-9, 1.0)) * whole(random, 1, 1e9)


def moderate(random: Random) -> Mechanism:
    """What people train with."""
    return Gaussian(between(random, 0.4, 10)).poisson(between(random, 1e-5, 0.3)) * whole(random, 1, 1e5)


def plateau(random: Random) -> Mechanism:
    """Little noise, few steps."""
    return Gaussian(between(random, 0.1, 0.5)).poisson(between(random, 1e-9, 0.5)) * whole(random, 1, 100)


def uniform(random: Random) -> Mechanism:
    of = whole(random, 10, 1e7)
    return Gaussian(between(random, 0.2, 1e3)).uniform(whole(random, 1, of / 2), of=of) * whole(random, 1, 1e6)


def replaced(random: Random) -> Mechanism:
    sampled = Gaussian(between(random, 0.2, 1e3), REPLACE_ONE).poisson(between(random, 1e-6, 0.9))
    return sampled * whole(random, 1, 1e6)


def projected(random: Random) -> Mechanism:
    inner: Mechanism = Projected(between(random, 0.3, 30), whole(random, 2, 1000))
    if random.random() < 0.8:
        inner = inner.poisson(between(random, 1e-5, 0.5))
    return inner * whole(random, 1, 1e5)


def released(random: Random, relation: Neighbours = ADD_REMOVE) -> Mechanism:
    """One release of any kind, on a sample or on all records."""
    kind = int(random.integers(6))
    noise = between(random, 0.3, 100)
    inner: Mechanism
    if kind == 0:
        inner = Laplace(between(random, 0.1, 100), relation)
    elif kind == 1:
        inner = RandomisedResponse(between(random, 0.01, 5), relation)
    elif kind == 2:
        delta = 0.0 if random.random() < 0.5 else between(random, 1e-12, 1e-3)
        inner = Guarantees.of(between(random, 0.01, 5), delta, relation)
    else:
        inner = Gaussian(noise, relation)
    sampled = random.random() < 0.6 and (relation is ADD_REMOVE or isinstance(inner, Gaussian))
    return inner.poisson(between(random, 1e-5, 0.9)) if sampled else inner


def alone(random: Random) -> Mechanism:
    return released(random) * whole(random, 1, 1e5)


def mixed(random: Random) -> Mechanism:
    """Releases of several kinds."""
    relation = ADD_REMOVE if random.random() < 0.7 else REPLACE_ONE
    total = released(random, relation) * whole(random, 1, 1e4)
    for _ in range(int(random.integers(1, 4))):
        total = total + released(random, relation) * whole(random, 1, 1e4)
    return total


def distinct(random: Random) -> Mechanism:
    """Up to a hundred distinct steps."""
    total = released(random)
    for _ in range(int(random.integers(5, 100))):
        total = total + released(random)
    return total


def scheduled(random: Random) -> Mechanism:
    """Training with noise that moves, in up to a hundred levels, from one value to another."""
    kind, levels, of = int(random.integers(5)), whole(random, 2, 100), whole(random, 1e3, 1e7)
    first, last, projections = between(random, 0.4, 10), between(random, 0.4, 10), whole(random, 10, 1000)
    batch, steps = whole(random, 1, of / 4), whole(random, 1, 1e5 / levels)
    parts: list[tuple[Mechanism, int]] = []
    for noise in np.geomspace(first, last, levels).tolist():
        kinds: tuple[Mechanism, ...] = (
            Gaussian(noise).poisson(batch / of),
            Gaussian(noise).uniform(batch, of=of),
            Gaussian(noise, REPLACE_ONE).poisson(batch / of),
            Projected(noise, projections).poisson(batch / of),
            Laplace(noise).poisson(batch / of),
        )
        parts.append((kinds[kind], steps))
    return compose(parts)


def grouped(random: Random) -> Mechanism:
    kinds = (moderate, alone, mixed, uniform, replaced, poisson, projected)
    inner = kinds[int(random.integers(len(kinds)))](random)
    return inner.group(whole(random, 2, 100))


def beside(random: Random) -> Mechanism:
    """A group of several runs of several kinds."""
    group = grouped(random)
    other = (released(random, group.neighbours) * whole(random, 1, 1000)).group(group.records)
    return group * whole(random, 1, 100) + other


def crowd(random: Random) -> Mechanism:
    """A thousand to a million records."""
    kinds = (moderate, alone, mixed, uniform, replaced, poisson)
    inner = kinds[int(random.integers(len(kinds)))](random)
    return inner.group(whole(random, 1001, 1e6))


def ordinary(random: Random) -> Mechanism:
    """What people ask, in round numbers, of up to a thousand records: random mixtures hide how few steps do."""

    def one_of(*choices: float) -> float:
        return float(choices[int(random.integers(len(choices)))])

    noise, rate, steps = one_of(0.5, 1, 2, 4), one_of(1, 0.1, 0.01, 1e-3, 1e-4), int(one_of(1, 2, 3, 5, 10, 100, 1e4))
    inner: Mechanism
    kind, projections = int(random.integers(6)), int(one_of(10, 100, 828))
    if kind == 0 and rate < 1:
        inner = Gaussian(noise).uniform(round(1e5 * rate), of=100_000)
    elif kind == 1 and rate < 1:
        inner = Gaussian(noise, REPLACE_ONE).poisson(rate)
    else:
        wholes = (Projected(noise, projections), Laplace(2 * noise), RandomisedResponse(1 / noise, ADD_REMOVE))
        whole_release: Mechanism = wholes[kind - 3] if kind >= 3 else Gaussian(noise)
        inner = whole_release.poisson(rate) if rate < 1 else whole_release
    return (inner * steps).group(int(one_of(2, 3, 5, 10, 20, 50, 100, 1000)))


FAMILIES: dict[str, Callable[[Random], Mechanism]] = {
    "poisson": poisson,
    "moderate": moderate,
    "plateaus": plateau,
    "uniform": uniform,
    "replaced": replaced,
    "projected": projected,
    "alone": alone,
    "mixed": mixed,
    "distinct": distinct,
    "schedules": scheduled,
    "groups": grouped,
    "beside": beside,
    "crowds": crowd,
    "ordinary": ordinary,
}


@dataclass(frozen=True)
class Found:
    family: str
    number: int
    question: str
    mechanism: str
    at: float
    lower: float
    upper: float
    width: float
    allowed: float
    seconds: float

    def __str__(self) -> str:
        marks = "slow " * self.slow + "wide" * self.wide
        what = f"{self.family:9} {self.number:5} {self.question:7} {marks:10}"
        return (
            f"{what} {self.seconds:6.2f} s  width {self.width:.1e}"
            f"  [{self.lower:.6g}, {self.upper:.6g}] at {self.at:.3g}  {self.mechanism}"
        )

    @property
    def slow(self) -> bool:
        return self.seconds > SLOW

    @property
    def wide(self) -> bool:
        return not self.width <= self.allowed


def ask(family: str, number: int) -> list[Found]:
    """Epsilon, delta at about that epsilon, and the sum of errors."""
    from hush.accounting.kinds import gaussian_composition, tolerance

    random = np.random.default_rng([number, sum(map(ord, family))])
    mechanism = FAMILIES[family](random)
    at = some_delta(random)
    if family == "plateaus":
        at = mechanism.delta(0.0).lower * (1 - between(random, 1e-9, 0.5))
    share = tolerance(mechanism) if gaussian_composition(mechanism) is None else 1e-6
    begun = time.process_time()
    found = mechanism.epsilon(at)
    seconds = time.process_time() - begun
    known = found.lower >= 1e4 and math.isinf(found.upper)
    gap = 0.0 if known else max(found.upper - found.lower - 1e-12, 0.0) / max(found.upper, 1e-300)
    gap = math.inf if math.isinf(found.upper) and not known else gap
    answers = [
        Found(family, number, "epsilon", str(mechanism), at, found.lower, found.upper, gap, share * 1.1, seconds)
    ]
    middle = found.lower if known else 0.5 * (found.lower + min(found.upper, 1e4))
    begun = time.process_time()
    delta = mechanism.delta(middle)
    seconds = time.process_time() - begun
    narrow = math.log(delta.upper / delta.lower) if delta.lower > 0 else (0.0 if delta.upper < 1e-290 else math.inf)
    narrow /= max(1.0, -math.log(delta.upper)) if delta.upper > 0 else 1.0
    if narrow > 12 * share and delta.upper < 1:
        narrow = min(narrow, 12 * _as_epsilon(mechanism, middle, delta.lower, delta.upper))
    answers.append(
        Found(family, number, "delta", str(mechanism), middle, delta.lower, delta.upper, narrow, 12 * share, seconds)
    )
    return answers


def _as_epsilon(mechanism: Mechanism, at: float, lower: float, upper: float) -> float:
    """How far from an epsilon, as a share of it, those may be that have a delta's bounds, down to the least told."""
    first = mechanism.epsilon(upper).lower
    last = mechanism.epsilon(max(lower, LEAST)).upper
    return max(at - first, last - at, 0.0) / at


def curve(family: str, number: int) -> list[Found]:
    random = np.random.default_rng([number, sum(map(ord, family))])
    mechanism = FAMILIES[family](random)
    begun = time.process_time()
    drawn = mechanism.tradeoff()
    seconds = time.process_time() - begun
    gap = float(np.max(np.asarray(drawn.upper) - np.asarray(drawn.lower)))
    return [Found(family, number, "curve", str(mechanism), 0.0, 0.0, 0.0, gap, 1e-3, seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help=", ".join(FAMILIES))
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="last", type=int, default=20)
    parser.add_argument("--curves", action="store_true", help="whole trade-off curves instead of single answers")
    parser.add_argument("--json", help="where the answers that stand out are written")
    options = parser.parse_args()
    families: dict[str, dict[str, float]] = {}
    standing_out: list[Found] = []
    for family in options.families:
        found: list[Found] = []
        for number in range(options.first, options.last):
            for row in (curve if options.curves else ask)(family, number):
                found.append(row)
                if row.slow or row.wide:
                    print(row, flush=True)
        seconds = [row.seconds for row in found]
        families[family] = {
            "answers": len(found),
            "slow": sum(row.slow for row in found),
            "wide": sum(row.wide for row in found),
            "median_seconds": round(float(np.median(seconds)), 4),
            "worst_seconds": round(max(seconds), 2),
        }
        standing_out += [row for row in found if row.slow or row.wide]
        print(family, families[family], flush=True)
    if options.json:
        told = {
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {platform.system()}",
            "numbers": [options.first, options.last],
            "curves": options.curves,
            "families": families,
            "slow or wide": [
                {name: "inf" if value == math.inf else value for name, value in asdict(row).items()}
                for row in standing_out
            ],
        }
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
