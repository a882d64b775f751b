"""`hush train`: a private model from a file of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hush.cli.options import DELTA_HELP, parse_delta, parse_number, parse_whole
from hush.cli.trouble import told_plainly

DATA, PRIVACY, RECIPE = "The data", "Privacy", "The recipe"


def parse_bounds(text: str) -> tuple[float, float]:
    """Two numbers, LOW:HIGH."""
    low, colon, high = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"bounds are two numbers such as 0:255, got '{text}'.")
    return float(parse_number(low)), float(parse_number(high))


def parse_shape(text: str) -> tuple[int, int] | Literal[False]:
    """Two whole numbers, HEIGHTxWIDTH; or none, False."""
    if text == "none":
        return False
    height, cross, width = text.partition("x")
    if not (cross and height.isdecimal() and width.isdecimal() and len(text) < 12):
        raise typer.BadParameter(f"an image's shape is two whole numbers such as 28x28, or none, got '{text}'.")
    return int(height), int(width)


def parse_share(text: str | float) -> float:
    """A number or a fraction."""
    return float(parse_number(str(text)))


def command(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A .csv, .tsv, .parquet or .npz file, or a folder of images with a subfolder for each class.",
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon",
            rich_help_panel=PRIVACY,
            metavar="NUMBER",
            help="The budget: the most that the whole run may spend.",
        ),
    ],
    delta: Annotated[
        float,
        typer.Option(
            "--delta",
            parser=parse_delta,
            rich_help_panel=PRIVACY,
            metavar="NUMBER",
            help=DELTA_HELP,
        ),
    ],
    target: Annotated[
        str | None, typer.Option("--target", rich_help_panel=DATA, metavar="COLUMN", help="What is to be predicted.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where the run goes; by default the data's name with -run."
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            rich_help_panel=DATA,
            metavar="FILE",
            help="The columns' kinds, bounds and categories, JSON or TOML. What is declared costs nothing.",
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            "--records",
            parser=parse_whole,
            rich_help_panel=PRIVACY,
            metavar="COUNT",
            help="How many records (users, with --user-column) there are, if that is public; else released with noise.",
        ),
    ] = None,
    user_column: Annotated[
        str | None,
        typer.Option(
            "--user-column",
            rich_help_panel=PRIVACY,
            metavar="COLUMN",
            help="Protect each user named in this column with all their rows, rather than each row.",
        ),
    ] = None,
    user_rows: Annotated[
        int | None,
        typer.Option(
            "--user-rows",
            parser=parse_whole,
            rich_help_panel=PRIVACY,
            metavar="COUNT",
            help="The most rows of a user that take part in a step, drawn anew each time; all, if not given.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            rich_help_panel=DATA,
            metavar="TASK",
            help="classification or regression, if it isn't clear from the declarations.",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            rich_help_panel=DATA,
            metavar="A,B,...",
            help="The target's classes. Otherwise they are released with noise.",
        ),
    ] = None,
    bounds: Annotated[
        Any,
        typer.Option(
            "--bounds",
            parser=parse_bounds,
            rich_help_panel=DATA,
            metavar="LOW:HIGH",
            help="Bounds of every number that the schema doesn't declare.",
        ),
    ] = None,
    target_bounds: Annotated[
        Any,
        typer.Option(
            "--target-bounds",
            parser=parse_bounds,
            rich_help_panel=DATA,
            metavar="LOW:HIGH",
            help="Bounds of a numerical target.",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs", rich_help_panel=DATA, metavar="NAME", help="The array of an .npz file that has the inputs."
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", rich_help_panel=DATA, metavar="CHARACTER", help="Between the cells of a CSV file."),
    ] = None,
    image_size: Annotated[
        int,
        typer.Option(
            "--image-size", rich_help_panel=DATA, metavar="PIXELS", help="Images are brought to this height and width."
        ),
    ] = 32,
    pixels: Annotated[
        Any,
        typer.Option(
            "--pixels",
            parser=parse_shape,
            rich_help_panel=DATA,
            metavar="HEIGHTxWIDTH|none",
            help="The rows of the table are images, such as 28x28: a column for each pixel, row by row. Columns named "
            "pixel_0_0, pixel_0_1, ... or pixel0, pixel1, ... are taken for that unless you say none.",
        ),
    ] = None,
    grey: Annotated[bool, typer.Option("--grey", rich_help_panel=DATA, help="Read images without colours.")] = False,
    hold_out: Annotated[
        float,
        typer.Option(
            "--hold-out",
            parser=parse_share,
            rich_help_panel=DATA,
            metavar="SHARE",
            help="Records put aside, by a coin each, for local scores.",
        ),
    ] = 0.1,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            rich_help_panel=PRIVACY,
            metavar="FILE",
            help="A ledger that belongs to the data, shared by several runs under one budget.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            rich_help_panel=PRIVACY,
            metavar="EPSILON",
            help="The budget of a new --ledger, at this run's delta: what all its runs may spend together. Without it, "
            "this run's --epsilon, which leaves little for others.",
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            rich_help_panel=PRIVACY,
            help="Coins and noise from a cipher, hardened against floating-point attacks; slower.",
        ),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            parser=parse_share,
            rich_help_panel=RECIPE,
            metavar="NUMBER|A/B",
            help="The share of the records in a batch.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", parser=parse_whole, rich_help_panel=RECIPE, metavar="COUNT", help="Noisy steps.")
    ] = 100,
    hidden: Annotated[
        int,
        typer.Option(
            "--hidden",
            rich_help_panel=RECIPE,
            metavar="COUNT",
            help="Hidden units of a table's network; 0 for a linear model. Images have fixed features instead.",
        ),
    ] = 128,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", rich_help_panel=RECIPE, metavar="NUMBER", help="By default from the noise."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", hidden=True, help="A fixed key, for tests: whoever knows it can subtract the noise."),
    ] = None,
) -> int:
    """Train a private model on a table, an array or a folder of images.

    Example: hush train data.csv --target income --epsilon 3 --delta 1e-6
    """
    with told_plainly():
        from hush.tabular.data import Reading, refuse_missing

        refuse_missing(data)  # before the seconds that it takes to load PyTorch
        from hush.cli.watching import watching
        from hush.runs.beginning import opened
        from hush.runs.folder import Folder
        from hush.runs.recipe import Recipe, default_rate
        from hush.runs.request import Request
        from hush.tabular.schema import Schema, read_schema

        declared = Schema() if schema is None else read_schema(schema)
        records = records or declared.records
        target, user_column = target or declared.target, user_column or declared.user_column
        rate = default_rate(records) if rate is None else rate
        by_name = pixels is not False and not set(declared.columns) - {target, user_column}
        request = Request(
            data=data,
            reading=Reading(target, user_column, inputs, delimiter, image_size, grey, pixels or None, by_name=by_name),
            epsilon=epsilon,
            delta=delta,
            recipe=Recipe(rate, steps=steps, hidden=hidden, learning_rate=learning_rate),
            schema=declared,
            records=records,
            task=task,
            classes=None if classes is None else tuple(name.strip() for name in classes.split(",")),
            bounds=bounds,
            target_bounds=target_bounds,
            hold_out=hold_out,
            user_rows=user_rows,
            secure=secure,
            seed=seed,
        )
        output = output or Path(f"{data.name.removesuffix(data.suffix) or data.resolve().name}-run")
        return watching(lambda: opened(request, Folder(output), ledger, budget), output)
