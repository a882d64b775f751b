"""`hush compare`: every accountant on the same run."""

from __future__ import annotations

import math
from typing import Any

from hush.cli.accountants import Row, others
from hush.cli.options import DeltaOption, JsonOption, about_a_run
from hush.cli.printing import interval, print_json, relation, trimmed
from hush.cli.run import Run
from hush.digits import down, near, number, up


@about_a_run
def command(
    run: Run,
    delta: DeltaOption,
    as_json: JsonOption = False,
) -> None:
    """Every accountant on the same run, side by side: why do two of them differ, and which may be quoted?

    Example: hush compare --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5
    """
    mechanism = run.mechanism()
    certified = mechanism.epsilon(delta)
    rows = [Row("hush", "certified", certified.lower, certified.upper), *others(run, mechanism, delta)]
    if as_json:
        accountants: list[dict[str, Any]] = [
            {"name": row.name, "kind": row.kind, "epsilon": row.epsilon} for row in rows
        ]
        accountants[0] |= interval("epsilon", certified)
        print_json({"accountants": accountants, "delta": delta}, run, mechanism)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    quoted = "quote upper" if math.isfinite(certified.upper) else "no epsilon to quote"
    table = Table("accountant", "epsilon", "what it is", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        shown, meaning, style = {
            "certified": (f"{down(row.lower)} to {up(row.epsilon)}", f"certified: {quoted}", "bold green"),
            "bound": (f"at most {up(row.epsilon, 5)}", "a bound", ""),
            "approximation": (_about(row.epsilon), "approx., not a bound", "yellow"),
        }[row.kind]
        table.add_row(row.name, shown, meaning, style=style)
    console = Console(highlight=False, markup=False)
    with trimmed(console):
        console.print(run.describe())
        console.print(f"{relation(run, mechanism)}, {mechanism.tag}, delta = {number(delta)}")
        console.print(table)


def _about(epsilon: float) -> str:
    """An approximation, where it says anything."""
    from hush.accounting.answers import EPSILON_LIMIT

    return f"about {near(epsilon)}" if epsilon <= EPSILON_LIMIT else "says nothing here"
