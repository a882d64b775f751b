"""Which records a step sees: Poisson, uniform without replacement, or a shuffled epoch.

A sampler knows its neighbouring relation and what a step on its sample costs, so that a sample can't be drawn one way
and accounted another.  A draw is a pure function of (key, step): samplers have no state, and resuming needs none.

>>> from hush.keys import Key
>>> Poisson().draw(Key.from_seed(1), 0, 60, batch=3, records=60).indices.tolist()
[9, 18, 32, 43, 45, 46, 55, 56]
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from hush.accounting.checks import check_batch, check_positive, check_rate, check_whole
from hush.accounting.mechanisms import ADD_REMOVE, REPLACE_ONE, Mechanism, Neighbours
from hush.keys import Key, Stream
from hush.units import Draw, Population, Positions, Records, choose, permutation

_CHUNK = 1024  # words of 64 coins each; part of what a key means, so never change it
_SLAB = 1024  # chunks at a time, the bits of a coin counted in, to bound memory


@dataclass(frozen=True)
class Poisson:
    """Every unit by its own coin, heads with probability batch/records; the sample's size varies and may be zero.

    Unit i's coin depends on (key, step, i) alone.  So with one more unit at the end all others are drawn as before,
    which is the relation: add or remove one.  How many units there really are is never used as a number.
    """

    neighbours: ClassVar[Neighbours] = ADD_REMOVE

    def check(self, batch: float, records: int) -> None:
        """Refuses numbers that this sampler can't keep."""
        check_whole("The number of records", records)
        check_positive("The expected batch", batch)
        if batch > records:
            raise ValueError(f"A batch of {batch:g} records can't be expected of {records}; give at most as many.")

    def mechanism(self, release: Mechanism, *, batch: float, records: int) -> Mechanism:
        """What one charge costs, if `release` is what is done with the sample."""
        return release.poisson(batch / records)

    def charges(self, steps: range, *, batch: float, records: int) -> int:
        """How many charges fall due in these steps: one a step."""
        return len(steps)

    def steps(self, epochs: float, *, batch: float, records: int) -> int:
        """The fewest steps that see `epochs` times `records` units in expectation."""
        return _steps(epochs, batch, records)

    def draw(self, key: Key, step: int, population: Population | int, *, batch: float, records: int) -> Draw:
        """The sample of this step."""
        self.check(batch, records)
        population = _population(population)
        chosen = flips(key, step, population.count, batch / records)
        return population.gather(chosen, key, step)


@dataclass(frozen=True)
class Uniform:
    """Exactly `batch` of the `records` units, every set equally likely.

    The size is fixed and so public, and the relation is replace-one: positions are drawn without looking at what is
    there, so replacing a unit's value changes no draw.
    """

    neighbours: ClassVar[Neighbours] = REPLACE_ONE

    def check(self, batch: float, records: int) -> None:
        """Refuses numbers that this sampler can't keep."""
        check_batch(batch, records)  # type: ignore[arg-type]

    def mechanism(self, release: Mechanism, *, batch: float, records: int) -> Mechanism:
        """What one charge costs, if `release` is what is done with the sample."""
        return release.uniform(int(batch), of=records)

    def charges(self, steps: range, *, batch: float, records: int) -> int:
        """How many charges fall due in these steps: one a step."""
        return len(steps)

    def steps(self, epochs: float, *, batch: float, records: int) -> int:
        """The fewest steps that see `epochs` times `records` units."""
        return _steps(epochs, batch, records)

    def draw(self, key: Key, step: int, population: Population | int, *, batch: float, records: int) -> Draw:
        """The sample of this step."""
        self.check(batch, records)
        population = _exactly(population, records, "uniform sampling")
        return population.gather(choose(key.stream("uniform", step), int(batch), records), key, step)


@dataclass(frozen=True)
class Shuffled:
    """Epoch after epoch, each a fresh random order cut in batches; the last is shorter if `batch` doesn't divide.

    A unit is in just one batch of an epoch, so under replace-one an epoch costs one release without any amplification,
    charged in full at its first step, short last batch included.  That is often far more than Poisson steps cost: the
    amplification that is often quoted for shuffled batches isn't true of them.
    """

    neighbours: ClassVar[Neighbours] = REPLACE_ONE

    def check(self, batch: float, records: int) -> None:
        """Refuses numbers that this sampler can't keep."""
        check_batch(batch, records)  # type: ignore[arg-type]

    def batches(self, *, batch: float, records: int) -> int:
        """The batches of an epoch, the short one too."""
        return -(-records // int(batch))

    def mechanism(self, release: Mechanism, *, batch: float, records: int) -> Mechanism:
        """What one charge costs; `release` has the least noise of the epoch's steps."""
        return release.shuffled()

    def charges(self, steps: range, *, batch: float, records: int) -> int:
        """How many charges fall due in these steps: the epochs that begin in them."""
        per_epoch = self.batches(batch=batch, records=records)
        return -(-steps.stop // per_epoch) + -steps.start // per_epoch if steps else 0

    def steps(self, epochs: float, *, batch: float, records: int) -> int:
        """The steps of `epochs` epochs."""
        return _steps(epochs, 1, self.batches(batch=batch, records=records))

    def draw(self, key: Key, step: int, population: Population | int, *, batch: float, records: int) -> Draw:
        """The batch of this step."""
        self.check(batch, records)
        population = _exactly(population, records, "a shuffled epoch")
        epoch, place = divmod(step, self.batches(batch=batch, records=records))
        part = _order(key, epoch, records)[place * int(batch) : (place + 1) * int(batch)]
        return population.gather(np.sort(part), key, step)


Sampler = Poisson | Uniform | Shuffled


def check_sampler(sampler: Any) -> None:
    """Refuses, by name, a sampler whose privacy isn't known here, such as PyTorch's."""
    if not isinstance(sampler, Sampler):
        name = sampler.__name__ if isinstance(sampler, type) else type(sampler).__name__
        raise ValueError(
            f"{name} draws batches in a way that hush can't account for; "
            "use Poisson(), Uniform() or Shuffled() from hush.sampling."
        )


def flips(key: Key, step: int, count: int, rate: float) -> Positions:
    """Where `count` independent coins of probability `rate` show heads, ascending.

    The AND of k random bits is one with probability 2^-k, and a word does this for 64 coins at once; each of the few
    ones is kept if a 64-bit word of its own lies below a threshold.  That takes k/64 words a coin and one more for
    every candidate, instead of a word for each coin.  Both the bits of coin i and the number of candidates before it
    depend on (key, step, i) alone; so does the coin.

    With 2^-k the least such power that isn't below the rate, the threshold rate * 2^k * 2^64 is a whole number, since a
    floating-point number has 53 digits: what is drawn has the accounted rate exactly, not nearly.
    """
    check_rate(rate)
    halvings = -math.frexp(rate)[1] + (math.frexp(rate)[0] == 0.5)  # k
    threshold = int(math.ldexp(rate, halvings + 64))
    slab = 64 * _CHUNK * max(1, _SLAB // (16 + halvings))  # coins at a time
    bits, marks = key.stream("poisson", step), key.stream("poisson threshold", step)
    found = []
    for start in range(0, count, slab):
        candidates = start + _ones(bits, min(count - start, slab), halvings)
        if threshold < 2**64:
            candidates = candidates[marks.words(len(candidates)) < np.uint64(threshold)]
        found.append(candidates)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _ones(bits: Stream, coins: int, halvings: int) -> Positions:
    """The positions of the ones among so many bits, each one with probability 2^-halvings, drawn in whole chunks."""
    if halvings == 0:
        return np.arange(coins)
    chunks = -(-coins // (64 * _CHUNK))
    words = bits.words(chunks * halvings * _CHUNK).reshape(chunks, halvings, _CHUNK)
    words = np.bitwise_and.reduce(words, axis=1).ravel()[: -(-coins // 64)]
    (hit,) = np.nonzero(words)
    octets = words[hit].astype("<u8").view(np.uint8)
    ones = np.flatnonzero(np.unpackbits(octets, bitorder="little").view(bool))
    positions: Positions = hit[ones >> 6] * 64 + (ones & 63)
    return positions[: np.searchsorted(positions, coins)]


@functools.lru_cache(maxsize=2)
def _order(key: Key, epoch: int, records: int) -> Positions:
    """The order of an epoch; remembered, since all its steps ask for it."""
    return permutation(key.stream("shuffled", epoch), records)


def _population(population: Population | int) -> Population:
    return Records(population) if isinstance(population, int) else population


def _exactly(population: Population | int, records: int, what: str) -> Population:
    population = _population(population)
    if population.count != records:
        raise ValueError(
            f"For {what} the number of units is public and the plan's {records} must be exact, "
            f"but the data has {population.count}; correct the plan or use Poisson()."
        )
    return population


def _steps(epochs: float, batch: float, records: int) -> int:
    """ceil(epochs * records / batch), in whole numbers: 0.1 means a tenth, and no step is lost to rounding."""
    check_positive("The number of epochs", epochs)
    return math.ceil(Fraction(str(epochs)) * records / Fraction(str(batch)))
