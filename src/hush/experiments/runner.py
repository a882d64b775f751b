"""Runs one experiment: its account in full, its training rows with all seeds or, when quick, a taste of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.experiments import results
from hush.experiments.rows import Experiment, Row

if TYPE_CHECKING:
    import torch

    from hush.experiments.tasks import Task

QUICK_RECORDS, QUICK_STEPS = 2000, 30
Say = Callable[[str], None]


def run_account(experiment: Experiment, folder: Path, images: Path) -> None:
    """The tables, checks and figures that need no training."""
    from hush.experiments.accounts import ACCOUNTS

    if experiment.account is None:
        return
    if experiment.account not in ACCOUNTS:
        raise ValueError(f"There is no account {experiment.account!r}; the names are {', '.join(ACCOUNTS)}.")
    found = ACCOUNTS[experiment.account](images)
    results.store(folder, results.load(folder, experiment.name) | {"account": found.to_dict()})


def run_rows(
    experiment: Experiment,
    folder: Path,
    *,
    data_dir: str | None,
    device: torch.device,
    quick: bool,
    seeds: int | None,
    deadline: float,
    again: bool,
    searching: bool = True,
    say: Say,
) -> bool:
    """The training rows that have no result yet; False when the time ran out before the last."""
    from hush.experiments.tasks import prepare as prepare_task
    from hush.experiments.trainer import OutOfTimeError
    from hush.experiments.training import run_row, search

    done = {row["name"] for row in results.load(folder, experiment.name)["rows"] if "mean" in row}
    chosen: dict[str, dict[str, Any]] = {}
    task: Task | None = None
    prepared: tuple[str, float | None, int] | None = None
    for row in experiment.rows:
        if row.name in done and not again:
            say(f"{experiment.name}: {row.name}: there is a result already")
            continue
        if time.monotonic() > deadline:
            return False
        if task is None or prepared != (row.task, row.pca_noise, row.directions):
            task, prepared = None, (row.task, row.pca_noise, row.directions)
            limit = QUICK_RECORDS if quick else None
            task = prepare_task(row.task, data_dir, device, row.pca_noise, records=limit, directions=row.directions)
        say(f"{experiment.name}: {row.name} ({row.recipe})")
        try:
            if quick:
                result = run_row(_quick(row, task), task, device, seeds=seeds or 1, deadline=deadline)
                result["quick"] = f"{len(task.train)} records, {result['steps']} steps, {seeds or 1} seed"
            else:
                tried = row.varied(**chosen.get(row.like, {}))
                best, log = search(tried, task, deadline) if row.grid and searching else (tried, [])
                chosen[row.name] = best.choices() if log else {}
                result = run_row(best, task, device, seeds=seeds, deadline=deadline) | {"search": log}
        except OutOfTimeError:
            return False
        results.keep_row(folder, experiment.name, result)
        say(
            f"    {result['metric']} {result['mean']:.4g}"
            + (f", epsilon {result['epsilon']:.4g}" if "epsilon" in result else "")
        )
    return True


def run_times(
    experiment: Experiment,
    folder: Path,
    *,
    device: torch.device,
    quick: bool,
    deadline: float,
    again: bool,
    say: Say,
) -> bool:
    """The timings that have no result yet; quick ones on small batches.  False when the time ran out."""
    from hush.experiments.speed import measure
    from hush.experiments.training import setting

    done = {row["name"] for row in results.load(folder, experiment.name)["rows"] if "times" in row}
    for timing in experiment.times:
        if timing.name in done and not again:
            say(f"{experiment.name}: {timing.name}: there is a result already")
            continue
        if time.monotonic() > deadline:
            return False
        say(f"{experiment.name}: {timing.name}")
        tried = replace(timing, batch=4, projections=(1,)) if quick else timing
        found = {"name": timing.name, "times": measure(tried, device, say, deadline), "setting": setting(device)}
        results.keep_row(folder, experiment.name, found)
    return True


def _quick(row: Row, task: Task) -> Row:
    """Fewer records and steps: shows that the row runs, not what it reaches."""
    records = len(task.train)
    batch, steps = min(row.batch, records / 8), min(row.length(records), QUICK_STEPS)
    return replace(row, batch=batch, steps=steps, epochs=None, copies=1)
