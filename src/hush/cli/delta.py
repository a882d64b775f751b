"""`hush delta`: what escapes the promise."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from hush.cli.accountants import where_defined
from hush.cli.options import (
    EpochsOption,
    GroupOption,
    JsonOption,
    NoiseOption,
    ProjectionsOption,
    RateOption,
    SamplingOption,
    StepsOption,
)
from hush.cli.printing import exponential, facts, interval, near, print_answer, print_json, promise, up
from hush.cli.run import Sampling, read_run


def command(
    epsilon: Annotated[float, typer.Option("--epsilon", metavar="NUMBER", help="The epsilon to hold the run to.")],
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    as_json: JsonOption = False,
) -> None:
    """The delta of a run at a given epsilon: how much probability escapes the promise.

    Example: hush delta --rate 256/60000 --noise 1.3 --epochs 15 --epsilon 1
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"--epsilon must be a finite number that isn't negative, got {epsilon}.")
    run = read_run(noise, rate, steps, epochs, sampling, projections, group)
    mechanism = run.mechanism()
    certified, errors = mechanism.delta(epsilon), mechanism.error_sum()
    clt = where_defined(lambda: mechanism.clt().delta(epsilon))
    if as_json:
        answer = {"epsilon": epsilon, "delta_clt": clt, "min_error_sum": errors.lower}
        print_json(interval("delta", certified) | answer, run, mechanism)
        return
    rows = facts(run, mechanism, "delta", certified, errors)
    if mechanism.mu is None and clt is not None:
        rows["CLT"] = f"delta ~ {near(clt)}: an approximation, not a bound; don't quote it"
    headline = f"delta <= {up(certified.upper)} at epsilon = {epsilon:g}"
    print_answer(headline, promise(f"{epsilon:g}", up(certified.upper, 4), exponential(epsilon), run, mechanism), rows)
