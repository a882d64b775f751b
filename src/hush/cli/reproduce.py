"""`hush reproduce`: the papers' tables and figures, regenerated."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

NamesArgument = Annotated[list[str], typer.Argument(help="list, all, or names of experiments.", show_default=False)]
DataOption = Annotated[
    str | None, typer.Option("--data-dir", help="Folder with the data sets (default: HUSH_DATA).", show_default=False)
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Training rows on few records and steps, marked so.")]
SeedsOption = Annotated[int | None, typer.Option("--seeds", help="Instead of each row's own number.")]
LimitOption = Annotated[float | None, typer.Option("--limit", help="Stop after so many seconds; the rest stays to do.")]
FolderOption = Annotated[Path, typer.Option("--experiments", help="Folder with the experiments' files.")]
PageOption = Annotated[Path | None, typer.Option("--page", help="Where to write the page, beside its img folder.")]
SearchOption = Annotated[bool, typer.Option("--search/--no-search", help="Search rows' grids, or take their numbers.")]
AgainOption = Annotated[bool, typer.Option("--again", help="Also rows that have a result already.")]


def command(
    names: NamesArgument,
    data_dir: DataOption = None,
    device: DeviceOption = "cpu",
    quick: QuickOption = False,
    seeds: SeedsOption = None,
    limit: LimitOption = None,
    experiments: FolderOption = Path("experiments"),
    page: PageOption = None,
    again: AgainOption = False,
    search: SearchOption = True,
) -> None:
    """Regenerate the papers' tables and figures, each number beside the paper's.

    Results go to experiments/results (quick ones to experiments/results/quick) and to docs/reproduction.md.

    Example: hush reproduce bu2019-table1 --data-dir ~/data --device cuda
    """
    from hush.experiments.rows import read_all

    known = read_all(experiments)
    if names == ["list"]:
        _list(known)
        return
    wanted = list(known) if names == ["all"] else names
    for name in wanted:
        if name not in known:
            raise ValueError(f"There is no experiment {name!r}; the names are {', '.join(known)}.")
    chosen = [known[name] for name in wanted]
    try:
        _run(chosen, experiments, data_dir, device, quick, seeds, limit, page, again, search)
    except KeyboardInterrupt:
        print("\nStopped. Rows that were done are kept; run it again to go on.", file=sys.stderr)
        raise typer.Exit(130) from None


def _list(known: dict) -> None:  # type: ignore[type-arg]
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)  # a name that is cut off can't be typed
    table.add_column("what")
    table.add_column("training rows", justify="right")
    for name, experiment in known.items():
        table.add_row(name, experiment.title, str(len(experiment.rows) or ""))
    Console().print(table)


def _run(
    wanted: list,  # type: ignore[type-arg]
    experiments: Path,
    data_dir: str | None,
    device: str,
    quick: bool,
    seeds: int | None,
    limit: float | None,
    page: Path | None,
    again: bool,
    search: bool,
) -> None:
    import math

    from hush.data import folders
    from hush.experiments import runner
    from hush.experiments.page import write

    folder = experiments / "results" / "quick" if quick else experiments / "results"
    page = page or experiments.parent / "docs" / "reproduction.md"
    images = page.parent / "img"
    deadline = math.inf if limit is None else time.monotonic() + limit
    for experiment in wanted:
        if experiment.account is not None:
            print(f"{experiment.name}: {experiment.title}", flush=True)
            print(f"  {runner.run_account(experiment, experiments / 'results', images)}", flush=True)
    write(experiments, page)
    training = [experiment for experiment in wanted if experiment.rows]
    finished = True
    if training:
        import torch

        folders(data_dir)  # says at once where data are missing; the accounts are done
        if quick:
            print(f"\n{runner.QUICK}\n", flush=True)
        for experiment in training:
            finished = finished and runner.run_rows(
                experiment,
                folder,
                data_dir=data_dir,
                device=torch.device(device),
                quick=quick,
                seeds=seeds,
                deadline=deadline,
                again=again,
                searching=search,
                say=lambda text: print(text, flush=True),
            )
    for experiment in wanted:
        if experiment.times:
            import torch

            finished = finished and runner.run_times(
                experiment,
                folder,
                device=torch.device(device),
                quick=quick,
                deadline=deadline,
                again=again,
                say=lambda text: print(text, flush=True),
            )
    write(experiments, page)
    print(f"Written: {page}" + ("" if finished else "; time ran out, run it again to go on."))
