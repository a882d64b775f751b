"""Time a private training step beside Opacus and ordinary PyTorch training, in one run.

    python benchmarks/training.py                        # on the CPU: every row that two cores finish
    python benchmarks/training.py --device cuda --seconds-limit 10
    python benchmarks/training.py --rows mnist-256,lstm-256 --methods plain,hush,opacus

A step is all of it: forward, per-example clipping, noise, the optimiser, and for hush the ledger.  Every method is fed
the same full batch, already on the device.  Prints a table and writes benchmarks/results/training-DEVICE.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from measure import Record, cpu_memory, failure, in_a_process, limit_memory, processor, take_turns
from methods import CPU_METHODS, METHODS
from models import CPU_ROWS, CUDA_ROWS, ROWS, Row
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
# Measured on one H200 with jit-compiled JAX-Privacy 2; not repeated in this run.
JAX_PRIVACY_SECONDS = {"mnist-256": 1.0e-3, "mnist-2048": 5.8e-3, "cifar-1024": 44.5e-3, "gpt2-16x512-bf16": 39.6e-3}


def import_libraries() -> None:
    """So that memory is counted above what the libraries take, whichever method is measured."""
    for name in ("hush", "hush.training", "opacus"):
        try:
            __import__(name)
        except Exception as error:  # the methods that need it will fail and say so
            print(f"{name} can't be imported: {failure(error)}", file=sys.stderr)


@dataclass(frozen=True)
class Settings:
    """What a measuring process needs to know beside its row."""

    device: str
    seconds: float
    setup_seconds: float
    memory_gib: float
    threads: int | None

    def prepare(self, row: Row) -> torch.device:
        """What a process does before it measures."""
        device = torch.device(self.device)
        torch.manual_seed(0)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if device.type == "cpu":
            limit_memory(self.memory_gib)
        if row.precision == "tf32":
            torch.set_float32_matmul_precision("high")
        import_libraries()
        return device


def time_row(send: Callable[[Any], None], name: str, methods: list[str], settings: Settings) -> None:
    """All methods of a row, in this process: sends (method, record) pairs."""
    row = ROWS[name]
    device = settings.prepare(row)
    builders = {method: functools.partial(METHODS[method], row, device) for method in methods}
    take_turns(
        builders, device, settings.seconds, settings.setup_seconds, lambda method, record: send((method, record))
    )


def memory_of(send: Callable[[Any], None], name: str, method: str, settings: Settings) -> None:
    """The memory of one method on the CPU, in this process: sends a record."""
    row = ROWS[name]
    device = settings.prepare(row)
    try:
        cpu_memory(functools.partial(METHODS[method], row, device), send)
    except Exception as error:  # whatever a method does wrong is its result
        send({"memory_failed": failure(error)})


def measure_row(row: Row, methods: list[str], settings: Settings) -> dict[str, Record]:
    """Method to record, with ratios to plain training."""
    most = 2 * settings.seconds + len(methods) * settings.setup_seconds + 60
    sent, ending = in_a_process(time_row, (row.name, methods, settings), most)
    records: dict[str, Record] = dict(sent)
    for name in methods:
        records.setdefault(name, {"failed": ending or "not measured"})
        if settings.device == "cpu" and records[name].get("failed", "").endswith("out of memory"):
            # every method keeps its own model and optimiser: what doesn't fit beside the others may fit alone
            alone, ending = in_a_process(time_row, (row.name, [name], settings), most)
            records |= dict(alone)
            records[name] |= {"alone": True}
        if settings.device == "cpu" and "failed" not in records[name]:
            memory, ending = in_a_process(memory_of, (row.name, name, settings), 60 + settings.setup_seconds)
            records[name] |= memory[0] if memory else {"memory_failed": ending}
    ordinary = records.get("plain", {})
    for record in records.values():
        for quantity in ("seconds", "peak_mib"):
            if quantity in record and quantity in ordinary:
                record[f"{quantity}_ratio"] = record[quantity] / ordinary[quantity]
    return {name: records[name] for name in methods}


def table(row: Row, records: dict[str, Record], device: str) -> Table:
    result = Table(title=f"{row.name} ({device})", title_justify="left")
    for column in ("method", "ms a step", "quartiles", "x plain", "peak MiB", "x plain", "note"):
        result.add_column(column, justify="left" if column in ("method", "note") else "right")
    for name, record in records.items():
        if "failed" in record:
            result.add_row(name, "-", "-", "-", "-", "-", record["failed"])
            continue
        low, high = record["quartiles"]
        result.add_row(
            name,
            f"{1e3 * record['seconds']:.2f}",
            f"{1e3 * low:.2f} - {1e3 * high:.2f}",
            f"{record['seconds_ratio']:.2f}" if "seconds_ratio" in record else "-",
            f"{record['peak_mib']:.0f}" if "peak_mib" in record else "-",
            f"{record['peak_mib_ratio']:.2f}" if "peak_mib_ratio" in record else "-",
            "; ".join(filter(None, [record.get("note", "") or record.get("memory_failed", ""), _alone(record)])),
        )
    if device == "cuda" and row.name in JAX_PRIVACY_SECONDS:
        quoted = f"{1e3 * JAX_PRIVACY_SECONDS[row.name]:.2f}"
        result.add_row("JAX-Privacy 2", quoted, "-", "-", "-", "-", "quoted: an earlier run on an H200")
    return result


def _alone(record: Record) -> str:
    return "timed alone: no room beside the others" if record.get("alone") else ""


def hardware(device: str, threads: int | None) -> dict[str, Any]:
    about: dict[str, Any] = {"processor": processor(), "threads": threads or torch.get_num_threads()}
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        about |= {
            "card": card.name,
            "card_memory_gib": round(card.total_memory / 2**30),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return about


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("hush", "opacus", "numpy", "scipy", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def chosen(wanted: str | None, known: list[str], default: list[str], what: str) -> list[str]:
    """The names that start with one of those asked for, in the order in which they are known."""
    if wanted is None:
        return default
    parts = [part.strip() for part in wanted.split(",")]
    for part in parts:
        if not any(name == part or name.startswith(part) for name in known):
            raise SystemExit(f"There is no {what} {part!r}; there are {', '.join(known)}.")
    return [name for name in known if name in parts or any(name.startswith(p) for p in parts if p not in known)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", help="names or their beginnings, with commas between them")
    parser.add_argument("--methods", help="likewise; a full name means itself alone, so opacus means all of Opacus's")
    parser.add_argument("--seconds-limit", type=float, help="for timing a row (15 on CUDA, 90 on the CPU)")
    parser.add_argument("--setup-limit", type=float, default=60.0, help="seconds a method may take to get ready (60)")
    parser.add_argument("--memory-limit", type=float, default=10.0, help="GiB that a process may take on the CPU (10)")
    parser.add_argument("--threads", type=int, help="CPU threads of PyTorch (its own choice)")
    parser.add_argument("--output", type=Path, help="where to write the JSON instead of the results folder")
    options = parser.parse_args()
    device: str = options.device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device here; use --device cpu.")
    seconds = options.seconds_limit or (15.0 if device == "cuda" else 90.0)
    default_rows = [row.name for row in (CUDA_ROWS if device == "cuda" else CPU_ROWS)]
    rows = chosen(options.rows, list(ROWS), default_rows, "row")
    methods = chosen(options.methods, list(METHODS), list(METHODS if device == "cuda" else CPU_METHODS), "method")
    settings = Settings(device, seconds, options.setup_limit, options.memory_limit, options.threads)
    output: Path = options.output or RESULTS / f"training-{device}.json"
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": device,
        "hardware": hardware(device, options.threads),
        "versions": versions(),
        "seconds_limit": seconds,
        "quoted": {"JAX-Privacy 2, jit-compiled, on one H200, seconds": JAX_PRIVACY_SECONDS}
        if device == "cuda"
        else {},
        "rows": {},
    }
    console = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "130")))
    for name in rows:
        records = measure_row(ROWS[name], methods, settings)
        report["rows"][name] = {"batch": ROWS[name].batch, "precision": ROWS[name].precision, "methods": records}
        console.print(table(ROWS[name], records, device))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
