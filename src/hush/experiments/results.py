"""Results as JSON files, one an experiment, kept row by row so that a run can stop and go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def load(folder: Path, name: str) -> Result:
    """What is known of an experiment: `account` (see accounts.found) and `rows`."""
    path = folder / f"{name}.json"
    found: Result = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {"experiment": name, "account": None, "rows": []} | found


def store(folder: Path, result: Result) -> None:
    """Replaces the file at once, so that a crash leaves the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['experiment']}.json"
    beside = path.with_suffix(".partial")
    beside.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(beside, path)


def keep_row(folder: Path, name: str, row: Result) -> None:
    """A row's result in its experiment's file, in the place of an older one; a failure never replaces a number."""
    result = load(folder, name)
    older = next((other for other in result["rows"] if other["name"] == row["name"]), None)
    if older is not None and "mean" in older and "mean" not in row:
        return
    if older is not None and "times" in older and "times" in row:  # some ways measured anew, the others stay
        row = row | {"times": older["times"] | row["times"]}
    result["rows"] = [other for other in result["rows"] if other["name"] != row["name"]] + [row]
    store(folder, result)


def merge(folder: Path, file: Path) -> int:
    """Rows that `experiments/gpu.py` wrote, taken over; how many."""
    count = 0
    for name, rows in json.loads(file.read_text("utf-8")).items():
        for row in rows:
            keep_row(folder, name, row)
            count += 1
    return count
