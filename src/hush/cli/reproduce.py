"""`hush reproduce`: the papers' tables and figures, regenerated."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

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
AccountsOption = Annotated[bool, typer.Option("--accounts", help="No training: only what is computed, without data.")]


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
    accounts: AccountsOption = False,
) -> None:
    """Regenerate the papers' tables and figures, each number beside the paper's.

    Results go to experiments/results (quick ones to experiments/results/quick) and to docs/reproduction.md.

    Example: hush reproduce bu2019-table1 --data-dir ~/data --device cuda
    """
    from hush.experiments.rows import read_all

    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds is at least 1, not {seeds}.")
    if limit is not None and not limit > 0:
        raise ValueError(f"--limit is a number of seconds above 0, not {limit:g}.")
    known = read_all(experiments)
    if names == ["list"]:
        _list(known)
        return
    wanted = list(known) if names == ["all"] else names
    for name in wanted:
        if name not in known:
            raise ValueError(f"There is no experiment {name!r}; the names are {', '.join(known)}.")
    chosen = [known[name] for name in dict.fromkeys(wanted)]
    try:
        status = _run(chosen, experiments, data_dir, device, quick, seeds, limit, page, again, search, accounts)
    except KeyboardInterrupt:
        print("\nStopped. Rows that were done are kept; run it again to go on.", file=sys.stderr)
        raise typer.Exit(130) from None
    raise typer.Exit(status)


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
    accounts: bool,
) -> int:
    from hush.data import folders
    from hush.experiments import runner
    from hush.experiments.page import write
    from hush.experiments.progress import Progress

    place = _device(device)
    folder = experiments / "results" / "quick" if quick else experiments / "results"
    page = page or experiments.parent / "docs" / "reproduction.md"
    names = [experiment.name for experiment in wanted]
    deadline = math.inf if limit is None else time.monotonic() + limit
    progress = Progress(folder, repr((names, device, quick, seeds, again, search, accounts)), deadline)
    for experiment in wanted:
        label = f"{experiment.name}: account"
        if experiment.account is None or label in progress.done:
            continue
        if progress.out_of_time():
            break
        print(f"{experiment.name}: {experiment.title}", flush=True)
        print(runner.run_account(experiment, experiments / "results", page.parent / "img"), flush=True)
        progress.add(label)
    write(experiments, page)
    training = [experiment for experiment in wanted if experiment.rows and not accounts]
    if training and not progress.late:
        folders(data_dir)  # says at once where data are missing; the accounts are done
        if quick:
            print(f"\n{runner.QUICK}\n", flush=True)
    for experiment in training:
        if progress.late:
            break
        runner.run_rows(
            experiment,
            folder,
            data_dir=data_dir,
            device=place,
            quick=quick,
            seeds=seeds,
            progress=progress,
            again=again,
            searching=search,
            say=lambda text: print(text, flush=True),
        )
    for experiment in wanted:
        if experiment.times and not accounts and not progress.late:
            runner.run_times(
                experiment,
                folder,
                device=place,
                quick=quick,
                progress=progress,
                again=again,
                say=lambda text: print(text, flush=True),
            )
    progress.close()
    write(experiments, page)
    print(f"Written: {page}" + (f"; the quick rows are in {folder} only" if quick and training else ""))
    if progress.late:
        print("Time ran out; run it again to go on.")
    if progress.failed:
        print(f"Failed: {'; '.join(progress.failed)}.", file=sys.stderr)
    if progress.missing:
        print(f"Left out, since their data can't be read: {'; '.join(progress.missing)}.", file=sys.stderr)
    return 2 if progress.missing else 1 if progress.failed else 0


def _device(name: str) -> torch.device:
    """A device that is there."""
    import torch

    try:
        found = torch.device(name)
    except RuntimeError:
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, not {name}.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"PyTorch sees no device {name} here; leave --device out to run on the CPU.")
    return found
