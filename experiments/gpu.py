# ruff: noqa: T201
"""All training rows and timings on one GPU, most informative first, within a time limit.

    PYTHONPATH=src python experiments/gpu.py --data-dir DATA --limit 560 --out results.json

Writes the JSON after every row, so nothing is lost when time runs out; `--only NAME ...` takes some experiments.  Each
row is searched over its grid where it has one (on held-out training records), then trained in all seeds at once.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from hush.experiments import results, tasks
from hush.experiments.keeper import Keeper, OutOfTimeError
from hush.experiments.page import write
from hush.experiments.rows import Row, read_all
from hush.experiments.speed import measure
from hush.experiments.training import run_row, search, setting

ORDER = (
    "bu2021-times",
    "mnist",
    "fashion",
    "bu2019-table3",
    "bu2019-table2",
    "bu2019-table4",
    "harder2018-classifier",
    "harder2018-autoencoder",
    "bu2021-accuracy",
    "abadi2016-cifar10",
    "bu2019-table1",
    "bu2019-figure4",
    "abadi2016-mnist",
    "abadi2016-figure5",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", help="folder with the data sets (several, separated as in PATH)")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--merge", type=Path, nargs="*", help="take such files over into experiments/results, no more")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no new row is begun")
    parser.add_argument("--seeds", type=int, help="instead of each row's own number")
    parser.add_argument("--only", nargs="*", default=list(ORDER))
    parser.add_argument("--rows", nargs="*", help="rows whose names begin so; the others are left out")
    parser.add_argument("--ways", nargs="*", default=(), help="of timings: plain, ghost, ...; the others are left out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-search", action="store_true")
    parser.add_argument("--shorten", type=float, default=1.0, help="steps are multiplied by this (for a try)")
    options = parser.parse_args()
    here = Path(__file__).parent
    if options.merge:
        print(sum(results.merge(here / "results", file) for file in options.merge), "rows taken over")
        write(here, here.parent / "docs" / "reproduction.md")
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    device = torch.device(options.device)
    began = time.monotonic()
    deadline = began + options.limit
    experiments = read_all(here)
    done: dict[str, list[dict[str, Any]]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only:
        cached: tuple[tuple[str, float | None, int], tasks.Task] | None = None
        chosen: dict[str, dict[str, Any]] = {}
        for timing in experiments[name].times:
            if time.monotonic() > deadline:
                break
            print(f"{time.monotonic() - began:6.1f} s  {timing.name}", flush=True)
            times = measure(timing, device, lambda text: print(text, flush=True), deadline, options.ways)
            keep(done, name, {"name": timing.name, "times": times, "setting": setting(device)}, options.out)
        for row in experiments[name].rows:
            if options.rows and not row.name.startswith(tuple(options.rows)):
                continue
            if time.monotonic() > deadline:
                break
            said = f"{time.monotonic() - began:6.1f} s  {name}: {row.name} ({row.recipe})"
            print(said, flush=True)
            wanted = (row.task, row.pca_noise, row.directions)
            try:
                if cached is None or cached[0] != wanted:
                    cached = None
                    clear(device)
                    started = time.monotonic()
                    cached = (wanted, prepared(row, options.data_dir, device))
                    print(f"          prepared in {time.monotonic() - started:.1f} s", flush=True)
                if not options.no_search:
                    row = row.varied(**chosen.get(row.like, {}))
                result = one(row, cached[1], device, options, deadline)
                chosen[row.name] = result["chosen"]
            except OutOfTimeError as stopped:
                result = {"name": row.name, "recipe": row.recipe, "stopped": str(stopped)}
            except Exception as error:  # the other rows still count
                traceback.print_exc()
                result = {"name": row.name, "recipe": row.recipe, "failed": f"{type(error).__name__}: {error}"[:500]}
            clear(device)
            keep(done, name, result, options.out)
            print(f"          {json.dumps({k: v for k, v in result.items() if k in SHOWN})}", flush=True)
    print(f"{time.monotonic() - began:6.1f} s  done", flush=True)


def keep(done: dict[str, list[dict[str, Any]]], name: str, result: dict[str, Any], out: Path) -> None:
    done[name] = [*(other for other in done.get(name, []) if other["name"] != result["name"]), result]
    beside = out.with_suffix(".partial")
    beside.write_text(json.dumps(done, indent=1))
    os.replace(beside, out)


SHOWN = (
    "mean",
    "deviation",
    "last",
    "epsilon",
    "seconds",
    "search_seconds",
    "lr",
    "steps",
    "captured",
    "failed",
    "stopped",
)


def one(
    row: Row, task: tasks.Task, device: torch.device, options: argparse.Namespace, deadline: float
) -> dict[str, Any]:
    started = time.monotonic()
    if options.shorten != 1:
        row = row.varied(steps=max(2, round(options.shorten * row.length(len(task.train)))), epochs=None)
        row = row.varied(grid={k: v for k, v in row.grid.items() if k != "steps"})
    log: list[dict[str, Any]] = []
    if not options.no_search and row.grid:
        row, log = search(row, task, Keeper(deadline=deadline))
        clear(device)
    searched = time.monotonic() - started
    result = run_row(row, task, device, seeds=options.seeds, keeper=Keeper(deadline=deadline))
    return result | {
        "search": log,
        "search_seconds": round(searched, 2),
        "chosen": row.choices(),
    }


def prepared(row: Row, folder: str | None, device: torch.device) -> tasks.Task:
    return tasks.prepare(row.task, folder, device, row.pca_noise, directions=row.directions)


def clear(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
