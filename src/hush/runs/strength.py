"""How much a promise is worth, in words: by how often the best attacker is right, who starts from a coin toss.

The certified share is 1 - (smallest sum of both errors)/2: 50% is guessing, 100% is knowing.  Needs nothing else, so
that the screen and the page say the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from hush.digits import number, power


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
    many, advice = (
        (f"{units:,} {unit}s", number(float(f"{1 / units:.1g}"))) if public else (f"number of {unit}s", "that")
    )
    return (
        f"delta = {number(delta)} is above one over the {many}: the promise would allow publishing one of them "
        f"outright. Choose it well below {advice}."
    )


def factor(epsilon: float) -> str:
    """e^epsilon rounded up, with an exponent where it is large."""
    if math.isinf(epsilon):
        return "infinity"
    whole = power(str(epsilon))
    unit = Decimal(1).scaleb(max(whole.adjusted() - 1, -1) if epsilon >= 13 else -1)
    rounded = whole.quantize(unit, ROUND_CEILING)
    if epsilon < 13:
        return f"{rounded:,}"
    return f"{rounded.scaleb(-rounded.adjusted()):.1f} x 10^{rounded.adjusted()}"
