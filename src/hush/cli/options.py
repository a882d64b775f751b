"""The options that the commands share: how they are read, what they allow, and what their help says.

Numbers are read exactly, as fractions: 256/60000 records in 15 epochs are 3516 steps, whatever floating point thinks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from hush.cli.run import Rate, Sampling, read_run

RUN = "The run"
LARGEST_EXPONENT = 300  # of ten: all that is read can be a float


def parse_number(text: str) -> Fraction:
    """The exact value of a decimal number or of a fraction of two, `256/60000`."""
    top, slash, bottom = text.partition("/")
    try:
        numbers = [Decimal(part) for part in ([top, bottom] if slash else [top])]
    except InvalidOperation:
        numbers = []
    if not numbers or not all(n.is_finite() for n in numbers):
        raise typer.BadParameter(f"'{text}' is neither a number nor a fraction such as 256/60000.")
    # Exponents are limited because an exact 1e-999999999 would take a gigabyte.
    for extreme in (n.adjusted() for n in numbers if not n.is_zero() and abs(n.adjusted()) >= LARGEST_EXPONENT):
        raise typer.BadParameter(f"'{text}' is too {'large' if extreme > 0 else 'small'} to compute with.")
    if slash and numbers[1].is_zero():
        raise typer.BadParameter(f"'{text}' divides by zero.")
    return Fraction(numbers[0]) / Fraction(numbers[1]) if slash else Fraction(numbers[0])


def parse_rate(text: str) -> Rate:
    """A sampling rate above 0 and at most 1; `256/60000` keeps its batch and its number of records."""
    value = parse_number(text)
    if not 0 < value <= 1:
        raise typer.BadParameter(f"a sampling rate lies above 0 and at most at 1, got {text}.")
    top, slash, bottom = (part.strip() for part in text.partition("/"))
    if slash and top.isdecimal() and bottom.isdecimal():
        return Rate(int(top), int(bottom))
    return Rate(value.numerator, value.denominator)


def parse_whole(text: str | int) -> int:
    """A whole number of at least 1; `1e9` will do."""
    refusal = typer.BadParameter(f"must be a whole number of at least 1, got {text}.")
    try:
        value = parse_number(str(text))
    except typer.BadParameter:
        raise refusal from None
    if value.denominator != 1 or value < 1:
        raise refusal
    return value.numerator


def parse_epochs(text: str) -> Fraction:
    """A positive number of passes over the data."""
    value = parse_number(text)
    if value <= 0:
        raise typer.BadParameter(f"must be a positive number, got {text}.")
    return value


def parse_delta(text: str) -> float:
    """A probability strictly between 0 and 1."""
    value = float(parse_number(text))
    if value == 0:
        raise typer.BadParameter("must be positive: Gaussian noise is never (epsilon, 0)-private at any epsilon.")
    if not 0 < value < 1:
        raise typer.BadParameter(f"must lie strictly between 0 and 1, got {text}.")
    return value


def parse_noise(text: str) -> float:
    """A positive noise multiplier."""
    value = float(parse_number(text))
    if value <= 0:
        raise typer.BadParameter(f"must be positive, got {text}.")
    return value


def parse_epsilon(text: str | float) -> float:
    """A number that isn't negative."""
    value = float(parse_number(str(text)))
    if value < 0:
        raise typer.BadParameter(f"must not be negative, got {text}.")
    return value


def refuse(option: str, words: str) -> typer.BadParameter:
    """What is wrong with an option that can't be told while it is read, in the same style."""
    return typer.BadParameter(words, param_hint=f"'{option}'")


def check_output(path: Path, endings: Sequence[str] = ()) -> None:
    """Before the work is done: can a file be written there, and does its name end in one of these?"""
    if endings and path.suffix.lower() not in endings:
        *first, last = endings
        raise refuse("--output", f"must end in {', '.join(first)} or {last}, got {path}.")
    if path.is_dir():
        raise refuse("--output", f"must be a file, but {path} is a folder.")
    if not path.parent.is_dir():
        raise refuse("--output", f"there is no folder {path.parent}.")


DELTA_HELP = "The probability with which the promise may fail: well below 1/records, e.g. 1e-5 for 10,000 of them."

DeltaOption = Annotated[
    float,
    typer.Option(
        "--delta",
        parser=parse_delta,
        metavar="NUMBER",
        help=DELTA_HELP,
    ),
]
NoiseOption = Annotated[
    float | None,
    typer.Option(
        "--noise",
        parser=parse_noise,
        metavar="NUMBER|A/B",
        rich_help_panel=RUN,
        help="Noise multiplier: the noise's standard deviation divided by the sensitivity. That is the clipping norm C "
        "with Poisson sampling or none, and 2C with uniform or shuffled sampling, where a record is replaced.",
    ),
]
RateOption = Annotated[
    Rate | None,
    typer.Option(
        "--rate",
        parser=parse_rate,
        metavar="NUMBER|A/B",
        rich_help_panel=RUN,
        help="Sampling rate: the share of the records in an expected batch, such as 0.01 or 256/60000.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps",
        parser=parse_whole,
        metavar="COUNT",
        rich_help_panel=RUN,
        help="Noisy steps taken. Or give --epochs.",
    ),
]
EpochsOption = Annotated[
    Fraction | None,
    typer.Option(
        "--epochs",
        parser=parse_epochs,
        metavar="NUMBER",
        rich_help_panel=RUN,
        help="Passes over the data: steps = epochs / rate, rounded half to even.",
    ),
]
SamplingOption = Annotated[
    Sampling,
    typer.Option(
        "--sampling",
        rich_help_panel=RUN,
        help="How a step picks its records. poisson: each by its own coin flip (add/remove one record). uniform: a "
        "batch of fixed size without replacement (replace one record; a bound). shuffled: batches off a shuffled data "
        "set, an epoch as private as one step of it (replace one record; a bound). none: no amplification, as for full "
        "batches; --rate then only turns epochs into steps.",
    ),
]
ProjectionsOption = Annotated[
    int | None,
    typer.Option(
        "--projections",
        parser=parse_whole,
        metavar="R",
        rich_help_panel=RUN,
        help="Clipping used norms estimated from R random projections (Bu et al. 2021). Few of them cost privacy.",
    ),
]
GroupOption = Annotated[
    int,
    typer.Option(
        "--group",
        parser=parse_whole,
        metavar="K",
        rich_help_panel=RUN,
        help="Protect any K records together, such as one person's.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object; infinity is the string 'inf'.")]

RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "noise": (NoiseOption, None),
    "rate": (RateOption, None),
    "steps": (StepsOption, None),
    "epochs": (EpochsOption, None),
    "sampling": (SamplingOption, Sampling.POISSON),
    "projections": (ProjectionsOption, None),
    "group": (GroupOption, 1),
}
"""What describes a run: annotation and default of each option, by the names that `read_run` gives them."""


def about_a_run(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `run: Run` is read from the options that describe one."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        run = read_run(**{name: given.pop(name) for name in RUN_OPTIONS})
        command(run=run, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=keyword)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "run"
    ]
    ours = [inspect.Parameter(n, keyword, annotation=a, default=d) for n, (a, d) in RUN_OPTIONS.items()]
    # what must be given comes first in the help, then the run, then the rest
    own.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    first = sum(parameter.default is inspect.Parameter.empty for parameter in own)
    parameters = [*own[:first], *ours, *own[first:]]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper
