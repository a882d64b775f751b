"""How much a promise is worth, in words: by how often the best attacker is right, who starts from a coin toss.

The certified share is 1 - (smallest sum of both errors)/2: 50% is guessing, 100% is knowing.  Needs nothing else, so
that the screen and the page say the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Strength:
    """What may be said where the best attacker is right at most `right` of the time."""

    right: float
    model: str  # it was trained so that ...
    brief: str  # on the screen
    warning: str = ""


LEVELS = (
    Strength(0.75, "it is nearly the same whether or not any {one} took part", "The model is private"),
    Strength(
        0.9,
        "it doesn't depend on any {one} by more than is stated below, which is a weak promise",
        "The model is weakly private",
        "This is a weak promise: choose a smaller epsilon where the records are sensitive.",
    ),
    Strength(
        0.99,
        "there is a limit to how much it depends on any {one}, but that limit promises little",
        "The model has a promise worth little",
        "This promises little: an attacker may be nearly sure who took part. Choose a smaller epsilon.",
    ),
    Strength(
        1.0,
        "there is a limit to how much it depends on any {one}, but that limit promises next to nothing",
        "The model has a promise worth next to nothing",
        "This promises next to nothing: treat the model as if it were trained without privacy.",
    ),
)
"""From strong to none."""


def strength(right: float) -> Strength:
    """The words for a certified share of right guesses."""
    return next((level for level in LEVELS if right <= level.right), LEVELS[-1])


def delta_warning(delta: float, units: int, unit: str, public: bool = True) -> str:
    """Nothing, unless delta allows for publishing some unit outright: below 1/units it doesn't, on average.

    A number of units that was counted, rather than declared or released, isn't `public`, and isn't said.
    """
    if delta * units <= 1:
        return ""
    many, advice = (f"{units:,} {unit}s", f"{1 / units:.1g}") if public else (f"number of {unit}s", "that")
    return (
        f"delta = {delta:g} is above one over the {many}: the promise would allow publishing one of them outright. "
        f"Choose it well below {advice}."
    )


def factor(epsilon: float) -> str:
    """e^epsilon rounded up, with an exponent where it is large."""
    if epsilon < 13:
        return f"{math.ceil(math.exp(epsilon) * 10 - 1e-9) / 10:,.1f}"
    if math.isinf(epsilon):
        return "infinity"
    exponent = math.floor(epsilon / math.log(10))
    mantissa = math.ceil(10 ** (epsilon / math.log(10) - exponent) * 10) / 10
    return f"{mantissa:.1f} x 10^{exponent}" if mantissa < 10 else f"1.0 x 10^{exponent + 1}"
