"""`hush predict`: a private model applied to new rows."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer

from hush.cli.options import check_output
from hush.cli.resume import RunArgument
from hush.cli.trouble import told_plainly


def command(
    run: RunArgument,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="New rows: a file or a folder like the one trained on.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A CSV file to write; by default the screen.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", metavar="CHARACTER", help="Between the cells of a CSV file.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", metavar="NAME", help="The array of an .npz file that has the inputs.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="COLUMN",
            help="Where the right answers are, if they are there, under another name than in training.",
        ),
    ] = None,
) -> None:
    """Predict the target of new rows. If they have it already, the share of right answers is told, for your eyes only.

    Example: hush predict data-run new.csv --output predictions.csv
    """
    if output is not None:
        check_output(output)
    with told_plainly():
        from hush.runs.card import Published
        from hush.runs.session import score
        from hush.tabular.data import read_data
        from hush.tabular.images import classes_of

        published = Published.read(run)
        card = published.card
        how = published.how(target, inputs, delimiter)
        labelled = data.is_dir() and bool(classes_of(data))
        found = read_data(data, how, labelled=labelled)
        outputs = published.scores(found)
        answers = published.told(outputs)
        name = card.target or "class"
        header = [f"predicted_{name}"] + ([] if card.classes is None else ["probability"])
        rows = [[text] if share is None else [text, f"{share:.4f}"] for text, share in answers]
        if output is None:
            csv.writer(sys.stdout).writerows([header, *rows])
        else:
            with output.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([header, *rows])
        if found.targets is None:
            return
        targets = card.encode_targets(found.targets)
        usable = [
            row for row, value in enumerate(targets.tolist()) if value == value and (card.classes is None or value >= 0)
        ]
        if usable:
            reached = score(card, outputs[usable], targets[usable])
            words = f"{reached:.2%} right" if card.classes is not None else f"root mean squared error {reached:.4g}"
            print(f"{words} of {len(usable)} rows (local: publish it only if these rows are public)", file=sys.stderr)
