"""`hush report`: one page for whoever asks how private a run is."""

from __future__ import annotations

from typing import Annotated

import typer

from hush.cli.resume import RunArgument
from hush.cli.trouble import told_plainly


def command(
    run: RunArgument,
    local: Annotated[
        bool, typer.Option("--local", help="The edition with losses, scores and gradient norms: not for release.")
    ] = False,
    png: Annotated[bool, typer.Option("--png", help="Write the pictures as PNG files beside the page, too.")] = False,
) -> None:
    """Write one self-contained HTML page: the promise in plain words, the trade-off curve, all settings.

    Example: hush report data-run
    """
    with told_plainly():
        from hush.report import write_report

        for path in write_report(run, local=local, png=png):
            print(path)
