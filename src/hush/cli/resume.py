"""`hush resume`: go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hush.cli.trouble import told_plainly

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run of `hush train`, or its public part.")
]


def command(
    run: RunArgument,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DATA", help="Where the records are now, if they moved.")
    ] = None,
) -> int:
    """Go on with a run that was stopped by Ctrl-C or by a crash: what was spent stays spent, nothing is spent twice.

    Example: hush resume data-run
    """
    with told_plainly():
        from hush.cli.watching import watching
        from hush.runs.beginning import reopened
        from hush.runs.folder import Folder

        return watching(lambda: reopened(Folder(run), data), run)
