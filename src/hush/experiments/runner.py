"""Runs one experiment: its account in full, its training rows with all seeds or, when quick, a taste of them."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.digits import up
from hush.experiments import results
from hush.experiments.rows import Experiment, Row

if TYPE_CHECKING:
    import torch

    from hush.experiments.keeper import Keeper
    from hush.experiments.progress import Progress
    from hush.experiments.tasks import Task

QUICK_RECORDS, QUICK_STEPS = 2000, 30
QUICK = (
    f"Quick: at most {QUICK_RECORDS:,} records, {QUICK_STEPS} steps and one seed a row, which shows that the rows run, "
    "not what they reach; docs/reproduction.md has the full results."
)
Say = Callable[[str], None]


def run_account(experiment: Experiment, folder: Path, images: Path) -> str:
    """The tables, checks and figures that need no training; how they came out, number by number, in words."""
    from hush.experiments.accounts import ACCOUNTS

    if experiment.account is None:
        return ""
    if experiment.account not in ACCOUNTS:
        raise ValueError(f"There is no account {experiment.account!r}; the names are {', '.join(ACCOUNTS)}.")
    found = ACCOUNTS[experiment.account](images)
    results.store(folder, results.load(folder, experiment.name) | {"account": found.to_dict()})
    lines = [
        f"{check.what}: {'the paper' if check.stated else 'expected'} {check.paper:.6g}, here {check.ours:.4g}"
        + ("" if check.holds else ", NOT reproduced")
        for check in found.checks
    ]
    if found.figures:
        lines.append(f"drawn: {', '.join(found.figures)}")
    return "\n".join(f"  {line}" for line in lines or ["computed"])


def run_rows(
    experiment: Experiment,
    folder: Path,
    *,
    data_dir: str | None,
    device: torch.device,
    quick: bool,
    seeds: int | None,
    progress: Progress,
    again: bool,
    searching: bool = True,
    say: Say,
) -> None:
    """The training rows that have no result yet, or with `again` none of this command; until the time runs out."""
    from hush.experiments.keeper import Keeper, OutOfTimeError
    from hush.experiments.tasks import prepare as prepare_task
    from hush.experiments.training import run_row

    done = {row["name"]: row for row in results.load(folder, experiment.name)["rows"] if "mean" in row}
    chosen: dict[str, dict[str, Any]] = {name: row.get("chosen", {}) for name, row in done.items() if searching}
    say(f"{experiment.name}: {experiment.title}")
    task: Task | None = None
    prepared: tuple[str, float | None, int] | None = None
    missing: set[str] = set()
    for row in experiment.rows:
        label = f"{experiment.name}: {row.name}"
        if row.name in done and (not again or label in progress.done):
            say(f"  {row.name}: there is a result already")
            continue
        if row.task in missing:
            continue
        if progress.out_of_time():
            return
        if not quick:
            say(f"  {row.name} ({row.recipe})")
        if task is None or prepared != (row.task, row.pca_noise, row.directions):
            if prepared is None or prepared[0] != row.task:
                say(f"    preparing {row.task}")
            task, prepared = None, (row.task, row.pca_noise, row.directions)
            limit = (QUICK_RECORDS // 4 if "scattering" in row.task else QUICK_RECORDS) if quick else None
            try:
                task = prepare_task(row.task, data_dir, device, row.pca_noise, records=limit, directions=row.directions)
            except (OSError, ValueError) as error:  # the other experiments still count
                say(f"    left out: {error}")
                progress.missing.append(f"{experiment.name} ({row.task})")
                missing.add(row.task)
                continue
        try:
            if quick:
                keeper = Keeper(None, progress.until, say)
                result = run_row(_quick(row, task), task, device, seeds=seeds or 1, keeper=keeper)
                steps = f"{result['steps']} steps, {_seeds(seeds or 1)}" if result["steps"] else "all at once"
                result["quick"] = f"{len(task.train):,} records, {steps}"
            else:
                tried = row.varied(**chosen.get(row.like, {}))
                found = folder / "partial" / f"{experiment.name}-{_digest(tried, seeds, device, searching)}"
                keeper = Keeper(found / "search", progress.deadline, say)
                best, log = _searched(tried, task, found, keeper) if searching else (tried, [])
                chosen[row.name] = best.choices() if log else {}
                keeper = Keeper(found / "run", progress.deadline, say)
                result = run_row(best, task, device, seeds=seeds, keeper=keeper)
                result |= {"search": log, "chosen": chosen[row.name]}
                shutil.rmtree(found, ignore_errors=True)
        except OutOfTimeError:
            progress.late = True
            return
        except (ArithmeticError, RuntimeError, ValueError) as error:  # the other rows still count
            say(f"    {row.name} failed: {error}")
            progress.failed.append(label)
            continue
        results.keep_row(folder, experiment.name, result)
        progress.add(label)
        say((f"  {row.name}: " if quick else "    ") + _in_words(row, result))


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _in_words(row: Row, result: dict[str, Any]) -> str:
    """A row's score, the paper's beside it, and what is certified."""
    unit = "%" if row.metric == "accuracy" else ""
    stated = row.paper.get("accuracy", row.paper.get("rmse"))
    parts = [f"{row.metric} {result['mean']:.4g}{unit}"]
    if result.get("deviation") is not None:
        parts[0] += f" +- {result['deviation']:.2g}"
    if "quick" in result:
        parts[0] += f" after {result['quick']}"
    if stated is not None:
        parts[0] += f" (the paper: {stated:g}{unit})"
    if "epsilon" in result:
        parts.append(f"certified epsilon {up(result['epsilon'], 4)}")
    return ", ".join(parts)


def _digest(row: Row, seeds: int | None, device: torch.device, searching: bool) -> str:
    """Names a row with everything that decides its result, so that nothing goes on from another's state."""
    return hashlib.blake2b(repr((row, seeds, device.type, searching)).encode(), digest_size=8).hexdigest()


def _searched(row: Row, task: Task, folder: Path, keeper: Keeper) -> tuple[Row, list[dict[str, Any]]]:
    """The search's choice and log; remembered, so that a run that goes on doesn't search again."""
    from hush.experiments.training import search

    if not row.grid:
        return row, []
    place = folder / "search.json"
    if place.exists():
        kept = json.loads(place.read_text("utf-8"))
        return row.varied(**kept["chosen"]), kept["log"]
    best, log = search(row, task, keeper)
    folder.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"chosen": best.choices(), "log": log}), "utf-8")
    return best, log


def run_times(
    experiment: Experiment,
    folder: Path,
    *,
    device: torch.device,
    quick: bool,
    progress: Progress,
    again: bool,
    say: Say,
) -> None:
    """The timings that have no result yet, or with `again` none of this command; quick ones on small batches."""
    from hush.experiments.speed import measure
    from hush.experiments.training import setting

    done = {row["name"]: row["times"] for row in results.load(folder, experiment.name)["rows"] if "times" in row}
    say(f"{experiment.name}: {experiment.title}")
    for timing in experiment.times:
        tried = replace(timing, batch=4, projections=(1,)) if quick else timing
        say(f"  {timing.name}")
        for way in tried.ways:
            label = f"{experiment.name}: {timing.name}, {way}"
            if way in done.get(timing.name, {}) and (not again or label in progress.done):
                say(f"    {way}: there is a result already")
                continue
            if progress.out_of_time():
                return
            times = measure(tried, device, say, math.inf, [way])
            if times:
                found = {"name": timing.name, "times": times, "setting": setting(device)}
                results.keep_row(folder, experiment.name, found)
                progress.add(label)


def _quick(row: Row, task: Task) -> Row:
    """Fewer records and steps: shows that the row runs, not what it reaches."""
    records = len(task.train)
    batch, most = min(row.batch, records / 8), QUICK_STEPS
    if row.model.startswith("cifar-network") or row.model == "text-network":  # the slow ones
        batch, most = 32, 5
    spends = row.steps is None and row.epochs is None  # as many steps as the full number of records would allow
    steps, z_steps = most if spends else min(row.length(records), most), min(row.z_steps, 3)
    # a user's or a movie's share of a batch's ratings grows as the batch shrinks
    lr = row.lr * batch / row.batch if row.metric == "rmse" else row.lr
    return replace(row, batch=batch, steps=steps, epochs=None, copies=1, z_steps=z_steps, watch=0.0, lr=lr)
