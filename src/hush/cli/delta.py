"""`hush delta`: what escapes the promise."""

from __future__ import annotations

from typing import Annotated

import typer

from hush.cli.accountants import where_defined
from hush.cli.options import JsonOption, about_a_run, parse_epsilon
from hush.cli.printing import facts, interval, print_answer, print_json, promise
from hush.cli.run import Run
from hush.digits import near, number, up


@about_a_run
def command(
    run: Run,
    epsilon: Annotated[
        float, typer.Option("--epsilon", parser=parse_epsilon, metavar="NUMBER", help="The epsilon to hold the run to.")
    ],
    as_json: JsonOption = False,
) -> None:
    """The delta of a run at a given epsilon: how much probability escapes the promise.

    Example: hush delta --rate 256/60000 --noise 1.3 --epochs 15 --epsilon 1
    """
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
    headline = f"delta <= {up(certified.upper)} at epsilon = {number(epsilon)}"
    print_answer(headline, promise(number(epsilon), up(certified.upper, 4), run, mechanism), rows)
