"""What nobody declared, released with noise: how many records, which classes, which kinds and bounds of columns.

A survey asks a few *questions*, fixed in advance with their noise, so a run's account covers them from the start:

    count      the number of units                                                  moved by 1
    classes    how often each text occurs as the target                             moved by 1
    columns    of d columns a histogram of kinds and magnitudes each,               moved by d^(1/2)
               then the sums of t and t^2, where t runs from -1 to 1 over           moved by (2 d)^(1/2)
               the range that the histogram showed
    pixels     of all d numbers of an array together one histogram of magnitudes,   moved by d
               then one of where they lie in the range that it showed               moved by d

Every unit speaks by one record (a user by their first), which adds 1 to a single bin of a histogram; so one unit moves
the vector of d histograms by d^(1/2) at most, and noise of z d^(1/2) on every bin is a Gaussian release of noise
multiplier z.  Likewise (t, t^2) has a norm of 2^(1/2) at most.  Answers are rounded to whole numbers after the noise,
so that their last digits tell nothing.

Classes are counted only where they occur, and shown only above a threshold 1 + z t, where a class of a single unit
comes through with probability Phi(-t) = leak.  A unit that adds to a class others have is hidden by the noise; one
that brings a new class is, up to probability `leak`.  So the question costs a Gaussian release and a (0, leak) promise
(Korolova et al. 2009, with Gaussian noise).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.accounting import Gaussian, Guarantees, Mechanism, calibrate
from hush.tabular import cells as reading
from hush.tabular.columns import LOG_FROM, Column, Date, Hashed, Ignored, Number
from hush.tabular.schema import Wanted

Floats = NDArray[np.float64]
Ask = Callable[["Question", Floats, float], Floats]
"""Charges a question, then returns the sums with noise of its multiplier times the sensitivity."""

COUNT, CLASSES, FIRST_LOOK, SECOND_LOOK = "count", "classes", "columns, first look", "columns, second look"
FIRST_PIXELS, SECOND_PIXELS = "pixels, first look", "pixels, second look"
_SHARES = {COUNT: 0.005, CLASSES: 0.02, FIRST_LOOK: 0.06, SECOND_LOOK: 0.06, FIRST_PIXELS: 0.01, SECOND_PIXELS: 0.01}
"""Of the whole budget's mu^2."""

_LEAST, _OCTAVES = -30, 81  # magnitudes from 2^-30 to 2^51, the last bins taking what lies beyond
_FIRST_YEAR, _YEARS, _SPANS = 1900, 4, 50
_DATES = 1 + 2 * _OCTAVES
_TEXT = _DATES + _SPANS
_MISSING = _TEXT + 1
_BINS = _MISSING + 1
_MANY, _NARROW = 8, 6  # so many columns over so few octaves are measured alike
_USUAL, _VARIES = 0.1, 0.05  # the variance of numbers within the octaves they span, and how it varies
_PARTS = 16  # of the range that pixels lie in
_EPOCH = -25567.0  # 1900-01-01 in days from 1970
_SPAN = _YEARS * 365.2425


@dataclass(frozen=True)
class Question:
    """A release of the survey: public."""

    name: str
    noise_multiplier: float
    leak: float = 0.0

    def charges(self) -> tuple[tuple[Mechanism, int], ...]:
        noise: tuple[tuple[Mechanism, int], ...] = ((Gaussian(self.noise_multiplier), 1),)
        return noise if self.leak == 0 else (*noise, (Guarantees.of(0.0, self.leak), 1))


def questions(names: Sequence[str], epsilon: float, delta: float, columns: int = 3) -> tuple[Question, ...]:
    """The named questions, each with its share of a budget; looks at one or two columns take less than at many."""
    whole = calibrate.noise(lambda noise: Gaussian(noise), epsilon, delta)
    shares = {name: _SHARES[name] * (min(columns / 3, 1) if name in (FIRST_LOOK, SECOND_LOOK) else 1) for name in names}
    return tuple(
        Question(name, whole / math.sqrt(share), delta / 100 if name == CLASSES else 0.0)
        for name, share in shares.items()
    )


def count(ask: Ask, question: Question, units: int) -> int:
    """How many units there are, at least 1."""
    return max(1, int(ask(question, np.array([float(units)]), 1.0)[0]))


def classes(ask: Ask, question: Question, cells: Sequence[str]) -> dict[str, int]:
    """The texts that occur often enough to be shown, with their noisy counts."""
    counted = Counter(cell.strip() for cell in cells if not reading.is_missing(cell))
    names = sorted(counted)
    threshold = 1 + question.noise_multiplier * -NormalDist().inv_cdf(question.leak)
    noisy = ask(question, np.array([float(counted[name]) for name in names]), 1.0)
    # the noisy counts are rounded, hence the one more
    shown = {name: int(value) for name, value in zip(names, noisy.tolist(), strict=True) if value > threshold + 1}
    return dict(sorted(shown.items(), key=lambda item: _order(item[0])))


def columns(
    ask: Ask,
    first: Question,
    second: Question,
    table: Mapping[str, Sequence[str]],
    wanted: Mapping[str, Wanted | None],
    linear: Sequence[str] = (),
) -> dict[str, Column]:
    """The kinds and bounds of the columns named in `wanted`, as two looks show them; no logarithms of `linear` ones."""
    names = list(wanted)
    sensitivity = math.sqrt(len(names))
    bins = np.concatenate([np.bincount(_bins(table[n], wanted[n]), minlength=_BINS) for n in names])
    looks = ask(first, bins.astype(np.float64), sensitivity).reshape(len(names), _BINS)
    noise = first.noise_multiplier * sensitivity
    sure = noise * math.sqrt(2 * math.log(looks.size))  # rarely reached by noise alone in any bin of any column
    shown = {name: _shown(look, noise, sure, wanted[name]) for name, look in zip(names, looks, strict=True)}
    ranges = {name: found for name, found in shown.items() if isinstance(found, _Range)}
    numbers = [name for name, found in ranges.items() if not found.dated]
    shared = _shared(looks[[names.index(name) for name in numbers]], noise)
    ranges |= dict(zip(numbers, shared, strict=False))
    ranges = {name: replace(found, log=found.log and name not in linear) for name, found in ranges.items()}
    # asked in any case: which questions are charged doesn't depend on the answers
    sums = np.array([found.sums(table[name]) for name, found in ranges.items()] or [(0.0, 0.0)])
    sensitivity = math.sqrt(2 * len(sums))
    answers = ask(second, sums.ravel(), sensitivity).reshape(-1, 2)
    fitted = _fitted(ranges, answers, second.noise_multiplier * sensitivity, numbers if shared else [])
    return {name: fitted[name] if isinstance(found, _Range) else found for name, found in shown.items()}


def bounds(ask: Ask, first: Question, second: Question, values: NDArray[Any]) -> tuple[float, float] | None:
    """Where the numbers of an array lie, a row a unit, one range for all of them; None if none stands out.

    A unit has d numbers and counts d times, whichever bins they fall into: it moves a histogram by d at most.
    """
    sensitivity = float(values[0].size)
    known = values[np.isfinite(values)].astype(np.float64)
    noise = first.noise_multiplier * sensitivity
    look = ask(first, np.bincount(_magnitudes(known), minlength=_BINS).astype(np.float64), sensitivity)
    look[_DATES:] = 0
    # one bin too many, far off, would make all pixels alike: noise alone is to reach this once in ten thousand runs
    clear = _standing_out(look, noise, noise * NormalDist().inv_cdf(1 - 1e-4 / _DATES))
    shown = _numbers(clear, 1.0) if clear.any() else _Range(-1.0, 1.0, 1.0, dated=False)
    # asked in any case: which questions are charged doesn't depend on the answers
    low, step = shown.low, (shown.high - shown.low) / _PARTS
    parts = np.clip((known - low) / step, 0, _PARTS - 1).astype(np.int64)
    heights = ask(second, np.bincount(parts, minlength=_PARTS).astype(np.float64), sensitivity)
    noise = second.noise_multiplier * sensitivity
    there = np.flatnonzero(heights > noise * math.sqrt(2 * math.log(_PARTS)))
    if not clear.any():
        return None
    return (low + step * float(there[0]), low + step * float(there[-1] + 1)) if len(there) else (low, shown.high)


# Bins


def _magnitudes(values: Floats) -> NDArray[np.int64]:
    """0 for 0, then the octave of positive numbers, then that of negative ones."""
    with np.errstate(divide="ignore"):
        octaves = np.clip(np.floor(np.log2(np.abs(values))) - _LEAST, 0, _OCTAVES - 1)
    return np.where(values == 0, 0, 1 + octaves + _OCTAVES * (values < 0)).astype(np.int64)


def _bins(cells: Sequence[str], wanted: Wanted | None) -> NDArray[np.int64]:
    kind = None if wanted is None else wanted.kind
    values = reading.numbers(cells) if kind in (None, "number") else np.full(len(cells), np.nan)
    bins = _magnitudes(np.nan_to_num(values))
    for row in np.flatnonzero(np.isnan(values)).tolist():
        bins[row] = _other_bin(cells[row], kind)
    return bins


def _other_bin(cell: str, kind: str | None) -> int:
    if not reading.is_missing(cell):
        if kind != "number" and (day := reading.date(cell)) is not None:
            return _DATES + min(max(int((day - _EPOCH) // _SPAN), 0), _SPANS - 1)
        if kind is None:
            return _TEXT
    return _MISSING


# What they show


@dataclass(frozen=True)
class _Range:
    """Where a column's numbers or dates lie, about how many there are, and whether they are dates."""

    low: float
    high: float
    units: float
    dated: bool
    log: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """Where t is -1 and 1."""
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def sums(self, cells: Sequence[str]) -> tuple[float, float]:
        """Of t and of t^2."""
        values = reading.dates(cells) if self.dated else reading.numbers(cells)
        known = np.clip(values[np.isfinite(values)], self.low, self.high)
        low, high = self.ends
        t = ((np.log(known) if self.log else known) - low) / (high - low) * 2 - 1
        t = np.clip(t, -1, 1)
        return float(t.sum()), float((t * t).sum())

    def moments(self, first: float, second: float, noise: float) -> tuple[float, float]:
        """Mean and variance of t from the noisy sums; the variance drawn towards a usual one as far as it is noise."""
        mean = min(max(first / self.units, -0.9), 0.9)
        trust = 1 / (1 + (noise / self.units / _VARIES) ** 2)
        return mean, _USUAL + trust * (second / self.units - mean**2 - _USUAL)

    def fitted(self, mean: float, variance: float) -> Column:
        """Around the mean, in standard deviations, with bounds three of them away."""
        deviation = math.sqrt(min(max(variance, 0.01), 1.0))
        low, high = self.ends
        half = (high - low) / 2
        centre, scale = low + half * (1 + mean), half * deviation
        bounds = centre - 3 * scale, centre + 3 * scale
        if self.dated:
            return Date(*bounds, centre, scale, declared=False)
        if self.log:
            return Number(math.exp(bounds[0]), math.exp(bounds[1]), centre, scale, declared=False, log=True)
        return Number(*bounds, centre, scale, declared=False)


def _shown(look: Floats, noise: float, sure: float, wanted: Wanted | None) -> _Range | Column:
    """What a noisy histogram says about a column."""
    clear = _standing_out(look, noise, sure)
    masses = {"number": clear[:_DATES].sum(), "date": clear[_DATES:_TEXT].sum(), "text": clear[_TEXT]}
    kind = max(masses, key=lambda name: float(masses[name])) if wanted is None else wanted.kind
    units = float(masses[kind])
    if units == 0 or kind == "text":
        return Ignored(declared=False) if units == 0 else Hashed()
    if kind == "date":
        spans = np.flatnonzero(clear[_DATES:_TEXT])
        return _Range(_EPOCH + _SPAN * float(spans[0]), _EPOCH + _SPAN * float(spans[-1] + 1), units, True)
    return _numbers(clear, units)


def _numbers(clear: Floats, units: float) -> _Range:
    """The range of the octaves that stand out, on a logarithmic scale if it is wide and positive."""
    edges = [0.0] if clear[0] > 0 else []
    for place in np.flatnonzero(clear[1:_DATES]).tolist():
        sign, octave = (1.0, place) if place < _OCTAVES else (-1.0, place - _OCTAVES)
        edges += [sign * 2.0 ** (octave + _LEAST), sign * 2.0 ** (octave + _LEAST + 1)]
    low, high = min(edges), max(edges)
    if low == high:
        return _Range(low - 1, high + 1, units, False)
    return _Range(low, high, units, False, log=low > 0 and high / low >= LOG_FROM)


def _shared(looks: Floats, noise: float) -> list[_Range]:
    """One range for all of many columns that together span a few octaves, such as pixels; none otherwise.

    Added up, the columns show through the noise what each of them alone doesn't.
    """
    if len(looks) < _MANY:
        return []
    louder = noise * math.sqrt(len(looks))
    clear = _standing_out(looks.sum(axis=0), louder, louder * math.sqrt(2 * math.log(_BINS)))
    clear[_DATES:] = 0
    if not 1 <= np.count_nonzero(clear[1:]) <= _NARROW:
        return []
    masses = looks[:, clear > 0].sum(axis=1)
    usual, spread = float(masses.mean()), noise * math.sqrt(np.count_nonzero(clear))
    return [_numbers(clear, usual if abs(mass - usual) < 3 * spread else mass) for mass in masses.tolist()]


def _fitted(ranges: Mapping[str, _Range], sums: Floats, noise: float, alike: Sequence[str]) -> dict[str, Column]:
    """The columns by the noisy sums of t and t^2; those that are measured alike are scaled alike."""
    found = {n: r.moments(float(a), float(b), noise) for (n, r), (a, b) in zip(ranges.items(), sums, strict=False)}
    if alike:
        variance = float(np.mean([found[name][1] for name in alike]))
        found |= {name: (found[name][0], variance) for name in alike}
    return {name: ranges[name].fitted(*moments) for name, moments in found.items()}


def _standing_out(look: Floats, noise: float, height: float) -> Floats:
    """The bins above `height`, which can't be noise, and what rises beside them; 0 elsewhere."""
    sure = look > height
    beside = np.zeros_like(sure)
    for first, last in ((1, 1 + _OCTAVES), (1 + _OCTAVES, _DATES), (_DATES, _TEXT)):  # neighbours within a family
        part = sure[first:last]
        beside[first : last - 1] |= part[1:]
        beside[first + 1 : last] |= part[:-1]
    return np.where(sure | (beside & (look > 1.5 * noise)), look, 0.0)


def _order(text: str) -> tuple[bool, float, str]:
    value = reading.number(text)
    return value is None, value or 0.0, text
