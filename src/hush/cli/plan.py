"""`hush plan`: before touching any data, what a budget buys for so many records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.options import DeltaOption, JsonOption, check_output, parse_epsilon, parse_number, parse_whole, refuse
from hush.cli.printing import trimmed
from hush.cli.trouble import told_plainly

EPOCHS = (5.0, 10.0, 20.0, 40.0, 80.0)


def parse_list(text: str) -> tuple[float, ...]:
    """Positive numbers with commas between."""
    values = tuple(float(parse_number(part)) for part in text.split(","))
    if not all(value > 0 for value in values):
        raise typer.BadParameter(f"must be positive numbers with commas between, got '{text}'.")
    return values


def command(
    records: Annotated[
        int,
        typer.Option("--records", parser=parse_whole, metavar="COUNT", help="How many records (or users) there are."),
    ],
    epsilon: Annotated[float, typer.Option("--epsilon", parser=parse_epsilon, metavar="NUMBER", help="The budget.")],
    delta: DeltaOption,
    epochs: Annotated[
        Any,
        typer.Option("--epochs", parser=parse_list, metavar="A,B,...", help="Passes over the data to compare."),
    ] = None,
    batches: Annotated[
        Any,
        typer.Option("--batches", parser=parse_list, metavar="A,B,...", help="Expected batch sizes to compare."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A picture to write: .png or .svg.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What noise a budget buys, for each batch size and number of epochs: a table, and with --output a plot.

    Example: hush plan --records 30000 --epsilon 3 --delta 1e-6 --output plan.svg
    """
    if output is not None:
        check_output(output, (".png", ".svg"))
    if epsilon == 0:
        raise refuse("--epsilon", "must be positive, got 0.")
    with told_plainly():
        from hush.runs.buying import buy, table

        bought = buy(records, epsilon, delta, epochs or EPOCHS, batches)
        if output is not None:
            from hush.report.plots import buying_plot, write_plot

            write_plot(buying_plot(bought), output)
    if as_json:
        print(json.dumps(bought.to_dict(), indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    with trimmed(console):
        console.print(table(bought))
        if output is not None:
            console.print(f"[dim]picture[/]  {output}")
