"""What people and machines see; `hush.digits` rounds the numbers that bound privacy to the safe side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hush.cli.run import Run
from hush.digits import down, power, up

if TYPE_CHECKING:
    from rich.console import Console

    from hush.accounting import Bounds, Mechanism


# For machines


def interval(name: str, certified: Bounds) -> dict[str, float]:
    """The number to quote, and the certified interval it comes from."""
    return {name: certified.upper, f"{name}_lower": certified.lower, f"{name}_upper": certified.upper}


def print_json(answer: dict[str, Any], run: Run, mechanism: Mechanism) -> None:
    """The answer with what it is about: the relation, the tag and the run."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return "inf" if isinstance(value, float) and math.isinf(value) else value

    whole = answer | {"neighbours": mechanism.neighbours.value, "tag": mechanism.tag} | run.as_json()
    print(json.dumps(plain(whole), indent=2, allow_nan=False))


# For people


def print_answer(headline: str, promise: str, rows: dict[str, str], good: bool = True) -> None:
    """The number, what it promises, and the facts it rests on."""
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, text)
    console = Console(highlight=False, markup=False)
    with trimmed(console):
        console.print(headline, style="bold green" if good else "bold red")
        console.print(promise)
        console.print()
        console.print(table)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """What is printed inside comes without the spaces that fill its lines up."""
    with console.capture() as captured:
        yield
    console.file.write("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()) + "\n")


def facts(run: Run, mechanism: Mechanism, name: str, certified: Bounds, errors: Bounds) -> dict[str, str]:
    """The rows that every certified answer has."""
    meaning = {
        "exact": "exact: the interval encloses this run's own number, proved from both sides",
        "bound": "bound: the interval encloses what the analysis proves; the run may be more private than that",
    }[mechanism.tag]
    return {
        "run": run.describe(),
        "neighbours": relation(run, mechanism),
        "certified": f"{down(certified.lower)} <= {name} <= {up(certified.upper)}\n{meaning}",
        "attacker": attacker(errors, run, mechanism),
    }


def relation(run: Run, mechanism: Mechanism) -> str:
    """Who is a neighbour of whom."""
    one = f"{mechanism.neighbours.value} record"
    return one if run.group == 1 else f"{one}, {run.group} times over"


def promise(epsilon: str, delta: str, run: Run, mechanism: Mechanism) -> str:
    """(epsilon, delta)-DP in words, of the numbers as printed: Pr[outcome] <= e^epsilon Pr'[outcome] + delta."""
    verb = "Replace" if mechanism.neighbours.value.startswith("replace") else "Add or remove"
    records = "one record" if run.group == 1 else f"{run.group} records"
    factor = power(epsilon) if float(epsilon) < 700 else Decimal("infinity")
    known = " = 1" if factor == 1 else f" <= {up(factor, 4)}" if factor < 10**6 else ""
    return f"{verb} any {records}: no outcome becomes more than e^{epsilon}{known} times as likely, plus {delta}."


def attacker(errors: Bounds, run: Run, mechanism: Mechanism) -> str:
    """How often one with even odds is right at most, 1 - (smallest sum of both errors)/2, in words."""
    if mechanism.neighbours.value.startswith("replace"):
        guessed = (
            "which of two values one record had" if run.group == 1 else f"which of two sets {run.group} records were"
        )
    else:
        guessed = f"whether {'one record was' if run.group == 1 else f'{run.group} records were'} used"
    share = up(min(Decimal(100), 100 - 50 * Decimal(errors.lower)), 4)
    return (
        f"one who guesses {guessed}, knowing everything else, is right at most {share}% of the time, "
        "where guessing is right 50%"
    )
