"""`hush calibrate`: the parameter that meets a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

import typer

from hush.cli.options import (
    DeltaOption,
    EpochsOption,
    GroupOption,
    JsonOption,
    NoiseOption,
    ProjectionsOption,
    RateOption,
    SamplingOption,
    StepsOption,
    parse_epsilon,
    refuse,
)
from hush.cli.printing import facts, interval, print_answer, print_json
from hush.cli.run import Rate, Run, Sampling, count, read_run
from hush.digits import down, number, up


class Find(StrEnum):
    """What can be solved for."""

    NOISE = "noise"
    STEPS = "steps"
    RATE = "rate"
    PROJECTIONS = "projections"


def command(
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon", parser=parse_epsilon, metavar="NUMBER", help="The certified epsilon will be at most this."
        ),
    ],
    delta: DeltaOption,
    find: Annotated[
        Find,
        typer.Option(
            "--find",
            help="What to solve for, everything else being given: the smallest noise, the most steps, the largest rate "
            "or the fewest projections.",
        ),
    ] = Find.NOISE,
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    as_json: JsonOption = False,
) -> None:
    """The parameter that meets a target: how much noise do I need, or how long may I train?

    Example: hush calibrate --epsilon 3 --delta 1e-5 --rate 256/60000 --epochs 60
    """
    if epsilon == 0:
        raise refuse("--epsilon", "must be positive, got 0.")
    known = _with_placeholder(find, noise, rate, steps, epochs, sampling, projections, group)
    run = _solve(find, known, epsilon, delta)
    mechanism = run.mechanism()
    certified, errors = mechanism.epsilon(delta), mechanism.error_sum()
    if as_json:
        answer = {"found": find.value, "target_epsilon": epsilon, "delta": delta, "min_error_sum": errors.lower}
        print_json(interval("epsilon", certified) | answer, run, mechanism)
        return
    headline, superlative = {
        Find.NOISE: (f"noise multiplier {up(run.noise, 8)}", "smallest"),
        Find.STEPS: (run.length(), "most"),
        Find.RATE: (f"sampling rate {down(float(run.rate or 1), 8)}", "largest"),
        Find.PROJECTIONS: (count(run.projections or 0, "projection"), "fewest"),
    }[find]
    words = f"The {superlative} with a certified epsilon of at most {number(epsilon)} at delta = {number(delta)}."
    print_answer(headline, words, facts(run, mechanism, "epsilon", certified, errors))


def _with_placeholder(
    find: Find,
    noise: float | None,
    rate: Rate | None,
    steps: int | None,
    epochs: Fraction | None,
    sampling: Sampling,
    projections: int | None,
    group: int,
) -> Run:
    """The run with any value in place of the unknown one, which must not be given."""
    given = {Find.NOISE: noise, Find.STEPS: steps or epochs, Find.RATE: rate, Find.PROJECTIONS: projections}[find]
    if given is not None:
        options = "--steps and --epochs" if find is Find.STEPS else f"--{find}"
        raise ValueError(f"--find {find} solves for the {find}: leave {options} out.")
    if find is Find.NOISE:
        noise = 1.0
    elif find is Find.STEPS and sampling is Sampling.SHUFFLED:
        epochs = Fraction(1)
    elif find is Find.STEPS:
        steps = 1
    elif find is Find.PROJECTIONS:
        projections = 1
    elif not sampling.needs_rate:
        raise ValueError("Finding the rate needs sampling: say --sampling poisson or uniform.")
    elif steps is None:
        raise ValueError("Finding the rate needs --steps: with --epochs, steps would change with it.")
    else:
        rate = Rate(1, 1)
    return read_run(noise, rate, steps, epochs, sampling, projections, group)


def _solve(find: Find, known: Run, epsilon: float, delta: float) -> Run:
    """The run with the unknown at its best value."""
    from hush.accounting import calibrate

    searches: dict[Find, tuple[Callable[..., float], Callable[[Any], Run]]] = {
        Find.NOISE: (calibrate.noise, lambda noise: replace(known, noise=noise)),
        Find.STEPS: (calibrate.steps, lambda steps: replace(known, steps=steps)),
        Find.RATE: (calibrate.rate, lambda rate: replace(known, rate=Rate(*rate.as_integer_ratio()))),
        Find.PROJECTIONS: (calibrate.projections, lambda projections: replace(known, projections=projections)),
    }
    search, at = searches[find]
    return at(search(lambda value: at(value).mechanism(), epsilon, delta))
