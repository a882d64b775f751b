"""What nobody declared, released with noise: how many records, which classes, which kinds and bounds of columns.

A survey asks a few *questions*, fixed in advance with their noise, so a run's account covers them from the start:

    count      the number of units                                                  moved by 1
    classes    how often each text occurs as the target                             moved by 1
    columns    of every column a histogram of kinds and magnitudes, then a finer    moved by d^(1/2), d columns
               one within the range that the first one showed

Every unit speaks by one record (a user by their first), which adds 1 to a single bin of a histogram; so one unit moves
the vector of d histograms by d^(1/2) at most, and noise of z d^(1/2) on every bin is a Gaussian release of noise
multiplier z.  Counts are rounded to whole numbers after the noise: what is published is the count plus a whole number,
and its last digits tell nothing.

Classes are counted only where they occur, and shown only above a threshold 1 + z t, where a class of a single unit
comes through with probability Phi(-t) = leak.  A unit that adds to a class others have is hidden by the noise; one
that brings a new class is, up to probability `leak`.  So the question costs a Gaussian release and a (0, leak) promise
(Korolova et al. 2009, with Gaussian noise).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hush.accounting import Gaussian, Guarantees, Mechanism, calibrate
from hush.tabular import cells as reading
from hush.tabular.columns import Column, Date, Hashed, Ignored, Number
from hush.tabular.schema import Wanted

Floats = NDArray[np.float64]
Ask = Callable[["Question", Floats, float], Floats]
"""Charges a question, then returns the sums with noise of its multiplier times the sensitivity."""

COUNT, CLASSES, FIRST_LOOK, SECOND_LOOK = "count", "classes", "columns, first look", "columns, second look"
_SHARES = {COUNT: 0.005, CLASSES: 0.02, FIRST_LOOK: 0.04, SECOND_LOOK: 0.04}
"""Of the whole budget's mu^2."""

_LEAST, _OCTAVES = -30, 81  # magnitudes from 2^-30 to 2^51, the last bins taking what lies beyond
_FIRST_YEAR, _YEARS, _SPANS = 1900, 4, 50
_DATES = 1 + 2 * _OCTAVES
_TEXT = _DATES + _SPANS
_MISSING = _TEXT + 1
_BINS = _MISSING + 1
_FINE = 32
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


def questions(names: Sequence[str], epsilon: float, delta: float) -> tuple[Question, ...]:
    """The named questions, each with its share of a budget."""
    whole = calibrate.noise(lambda noise: Gaussian(noise), epsilon, delta)
    return tuple(
        Question(name, whole / math.sqrt(_SHARES[name]), delta / 100 if name == CLASSES else 0.0) for name in names
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
) -> dict[str, Column]:
    """The kinds and bounds of the columns named in `wanted`, as two looks at histograms show them."""
    names = list(wanted)
    sensitivity = math.sqrt(len(names))
    bins = np.concatenate([_histogram(_first_bins(table[n], wanted[n]), _BINS) for n in names])
    noise = first.noise_multiplier * sensitivity
    looks = ask(first, bins, sensitivity).reshape(len(names), _BINS)
    ranges = {name: _range(look, noise, wanted[name]) for name, look in zip(names, looks, strict=True)}
    found: dict[str, Column] = {
        n: Hashed() if r == "text" else Ignored() for n, r in ranges.items() if isinstance(r, str)
    }
    ranged = {n: r for n, r in ranges.items() if not isinstance(r, str)}
    sensitivity = math.sqrt(max(len(ranged), 1))
    fine = [_histogram(_fine_bins(table[n], *r), _FINE) for n, r in ranged.items()]
    # asked in any case: which questions are charged doesn't depend on the answers
    answers = ask(second, np.concatenate(fine) if fine else np.zeros(_FINE), sensitivity).reshape(-1, _FINE)
    for (name, (low, high, dated)), look in zip(ranged.items(), answers, strict=False):
        found[name] = _fitted(look, second.noise_multiplier * sensitivity, low, high, dated)
    return {name: found[name] for name in names}


# Bins


def _first_bins(cells: Sequence[str], wanted: Wanted | None) -> NDArray[np.int64]:
    kind = None if wanted is None else wanted.kind
    values = reading.numbers(cells) if kind in (None, "number") else np.full(len(cells), np.nan)
    with np.errstate(divide="ignore"):
        octaves = np.clip(np.floor(np.log2(np.abs(np.nan_to_num(values)))) - _LEAST, 0, _OCTAVES - 1)
    bins = np.where(values == 0, 0, 1 + octaves + _OCTAVES * (values < 0))
    for row in np.flatnonzero(np.isnan(values)).tolist():
        bins[row] = _other_bin(cells[row], kind)
    return bins.astype(np.int64)


def _other_bin(cell: str, kind: str | None) -> int:
    if not reading.is_missing(cell):
        if kind != "number" and (day := reading.date(cell)) is not None:
            return _DATES + min(max(int((day - _EPOCH) // _SPAN), 0), _SPANS - 1)
        if kind is None:
            return _TEXT
    return _MISSING


def _fine_bins(cells: Sequence[str], low: float, high: float, dated: bool) -> NDArray[np.int64]:
    values = reading.dates(cells) if dated else reading.numbers(cells)
    known = values[np.isfinite(values)]
    return np.clip((known - low) / (high - low) * _FINE, 0, _FINE - 1).astype(np.int64)


def _histogram(bins: NDArray[np.int64], size: int) -> Floats:
    return np.bincount(bins, minlength=size).astype(np.float64)


# What they show


def _range(look: Floats, noise: float, wanted: Wanted | None) -> tuple[float, float, bool] | str:
    """(low, high, whether dates), 'text', or 'nothing' if nothing stands out from the noise."""
    clear = np.where(look > noise * math.sqrt(2 * math.log(_BINS)), look, 0.0)
    masses = {"number": clear[:_DATES].sum(), "date": clear[_DATES:_TEXT].sum(), "text": clear[_TEXT]}
    kind = max(masses, key=lambda name: float(masses[name]))
    if wanted is not None and masses[wanted.kind] == 0:
        return 0.0, 1.0, wanted.kind == "date"  # declared to be there, but lost in the noise
    if masses[kind] == 0:
        return "nothing"
    if kind == "text":
        return "text"
    if kind == "date":
        spans = np.flatnonzero(clear[_DATES:_TEXT])
        return _EPOCH + _SPAN * float(spans[0]), _EPOCH + _SPAN * float(spans[-1] + 1), True
    edges = [0.0] if clear[0] > 0 else []
    for place in np.flatnonzero(clear[1:_DATES]).tolist():
        sign, octave = (1.0, place) if place < _OCTAVES else (-1.0, place - _OCTAVES)
        edges += [sign * 2.0 ** (octave + _LEAST), sign * 2.0 ** (octave + _LEAST + 1)]
    low, high = min(edges), max(edges)
    return (low, high, False) if low < high else (low - 1, high + 1, False)


def _fitted(look: Floats, noise: float, low: float, high: float, dated: bool) -> Column:
    """Mean and standard deviation from the bins that stand out; bounds three of the latter away."""
    weights = np.where(look > 3 * noise, look, 0.0)
    if not weights.any():
        weights = np.ones(_FINE)
    middles = low + (high - low) * (np.arange(_FINE) + 0.5) / _FINE
    centre = float(np.average(middles, weights=weights))
    variance = float(np.average((middles - centre) ** 2, weights=weights)) + ((high - low) / _FINE) ** 2 / 12
    scale = math.sqrt(variance)
    kind = Date if dated else Number
    return kind(max(low, centre - 3 * scale), min(high, centre + 3 * scale), centre, scale, declared=False)


def _order(text: str) -> tuple[bool, float, str]:
    value = reading.number(text)
    return value is None, value or 0.0, text
