"""`hush curve`: the whole trade-off curve, as a picture or as numbers."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from hush.cli.options import JsonOption, about_a_run, check_output, parse_whole, refuse
from hush.cli.printing import attacker, print_answer, print_json, relation
from hush.cli.run import Run

_TITLE = 80  # letters on a line above a picture

FEWEST_POINTS, MOST_POINTS = 10, 10_000


@about_a_run
def command(
    run: Run,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write; its ending says which kind: .png, .svg or .csv.",
        ),
    ] = Path("tradeoff.png"),
    points: Annotated[
        int,
        typer.Option(
            "--points",
            parser=parse_whole,
            metavar="COUNT",
            help="Points on the curve, 10 to 10,000; few of them make the band wider.",
        ),
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """The whole trade-off curve: for each rate of false alarms, how often any attacker must miss.

    Example: hush curve --rate 256/60000 --noise 1.3 --epochs 15 --output tradeoff.svg
    """
    check_output(output, (".png", ".svg", ".csv"))
    if not FEWEST_POINTS <= points <= MOST_POINTS:
        raise refuse("--points", f"must lie between {FEWEST_POINTS} and {MOST_POINTS:,}, got {points}.")
    mechanism = run.mechanism()
    curve = mechanism.tradeoff(points)
    if output.suffix.lower() == ".csv":
        rows = zip(curve.alpha.tolist(), curve.lower.tolist(), curve.upper.tolist(), strict=True)
        lines = [f"{alpha!r},{lower!r},{upper!r}" for alpha, lower, upper in rows]
        output.write_text("\n".join(["type_one_error,type_two_error_lower,type_two_error_upper", *lines, ""]))
    else:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 6), layout="constrained")
        axes = curve.plot(figure.subplots())
        about = textwrap.fill(run.describe(), _TITLE)
        axes.set_title(f"{about}\n{relation(run, mechanism)}, {mechanism.tag}", fontsize=8)
        figure.savefig(output, dpi=160)
    if as_json:
        answer = {"file": str(output), "points": points, "min_error_sum": curve.error_sum.lower}
        print_json(answer, run, mechanism)
        return
    facts = {
        "run": run.describe(),
        "neighbours": relation(run, mechanism),
        "attacker": attacker(curve.error_sum, run, mechanism),
    }
    print_answer(str(output), "The trade-off curve, type II against type I error, with its certified band.", facts)
