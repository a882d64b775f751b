"""The measured tables of the README, rendered from the committed results in benchmarks/results/.

python docs/figures/tables.py            prints them
python docs/figures/tables.py --write    puts them into README.md, between their markers

The tests compare, so a new measurement can't leave an old table behind.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TRAINED = ROOT / "experiments" / "results"
NAMES = {
    "mnist": "MNIST CNN, 26k parameters",
    "cifar": "CIFAR CNN of Papernot et al.",
    "wrn": "WRN-16-4 with GroupNorm",
    "lstm": "bidirectional LSTM, 150 tokens",
    "gpt2": "GPT-2 small, 124M parameters",
}


def accounting(found: dict[str, Any]) -> str:
    lines = ["| run | certified epsilon | hush | PLD | | PRV | |", "|---|---|---|---|---|---|---|"]
    for row in found["rows"]:
        ours, pld, prv = row["hush_seconds"], row["pld_seconds"], row["prv_seconds"]
        lines.append(
            f"| {row['run']} | {row['epsilon_upper']:.6f} | {1e3 * ours:.1f} ms | {pld:.2f} s | {pld / ours:.0f}x "
            f"| {prv:.2f} s | {prv / ours:.0f}x |"
        )
    pld, prv = (found["summary"][f"times_faster_than_{peer}"] for peer in ("pld", "prv"))
    return "\n".join(
        [*lines, "", f"By median times: {pld:.0f} times faster than PLD, {prv:.0f} times faster than PRV."]
    )


def training(found: dict[str, Any]) -> str:
    quoted: dict[str, float] = next(iter(found.get("quoted", {}).values()), {})
    peers = sorted({m for row in found["rows"].values() for m in row["methods"] if m.startswith("opacus")})
    head = ["model and batch", "plain", "hush", "hush, fixed size", "best of Opacus"]
    head += ["JAX-Privacy, quoted"] * bool(quoted) + ["peak memory: hush; fixed size; Opacus"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, row in found["rows"].items():
        methods = {m: r for m, r in row["methods"].items() if r.get("seconds")}
        if "plain" not in methods or not any(m.startswith("hush") for m in methods):
            continue
        best = min((m for m in peers if m in methods), key=lambda m: methods[m]["seconds"], default=None)
        mine = [methods.get("hush"), methods.get("hush fixed")]
        cells = [_name(name), _milliseconds(methods["plain"]["seconds"]), *(_timed(r) for r in mine)]
        cells.append("none finished" if best is None else f"{_timed(methods[best])} ({best.removeprefix('opacus ')})")
        if quoted:
            cells.append(_milliseconds(quoted[name]) if name in quoted else "")
        cells.append("; ".join(_memory(r) for r in (*mine, methods.get(best or ""))))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


REACHED = (  # experiment, row, data, what the papers say at which claimed epsilon
    ("mnist", "epsilon 1", "MNIST", "95.0% at 0.83 (Bu et al.)"),
    ("mnist", "epsilon 3", "MNIST", "97.0% at 5.07 (Bu et al.), 97% at 8 (Abadi et al., Harder et al.)"),
    ("fashion", "epsilon 3", "Fashion-MNIST", ""),
    (
        "abadi2016-cifar10",
        "epsilon 2",
        "CIFAR-10",
        "67% at 2, pre-trained on CIFAR-100 (Abadi et al.)",
    ),
    ("abadi2016-cifar10", "epsilon 4", "CIFAR-10", "70% at 4, likewise"),
    ("abadi2016-cifar10", "epsilon 8", "CIFAR-10", "73% at 8, likewise"),
    ("bu2019-table3", "epsilon 3", "IMDb reviews", "83.8% at 10.43 (Bu et al.)"),
    ("bu2019-table2", "official, epsilon 3", "Adult", "84.0% at 10.2 (Bu et al.)"),
    ("bu2019-table4", "epsilon 10", "MovieLens 1M, RMSE", "0.915 at 10.61 (Bu et al.)"),
)


def reached() -> str:
    """hush's recipes on the papers' data, by the results of `hush reproduce`."""
    lines = ["| data | certified epsilon | hush | the papers, at the epsilon they claim |", "|---|---|---|---|"]
    for experiment, name, data, papers in REACHED:
        rows = json.loads((TRAINED / f"{experiment}.json").read_text())["rows"]
        row = next(row for row in rows if row["name"] == name)
        digits, unit = (4, "") if row["mean"] < 10 else (2, "%")
        score = f"**{row['mean']:.{digits}f}**{unit} ± {row['deviation']:.{digits}f}"
        lines.append(f"| {data} | {row['epsilon']:.2f} | {score}, {len(row['scores'])} seeds | {papers} |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """Every table by the name of its marker; a result that isn't there has none."""
    rendered = {"reached": reached()}
    for name, render in (("accounting", accounting), ("training-cuda", training), ("training-cpu", training)):
        path = RESULTS / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            rendered[name] = render(found)
    return rendered


def shown(page: str) -> dict[str, str]:
    """The tables between markers of a page."""
    return dict(re.findall(r"<!-- table: ([\w-]+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL))


def written(page: str) -> str:
    """The page with every marked table as it is now."""
    for name, table in tables().items():
        block = f"<!-- table: {name} -->\n{table}\n<!-- end -->"
        page = re.sub(rf"<!-- table: {name} -->\n.*?<!-- end -->", lambda _, b=block: b, page, flags=re.DOTALL)
    return page


def _name(row: str) -> str:
    """`gpt2-16x512-bf16` in words: the model, then batch and precision."""
    model, size, *precision = row.split("-")
    batch, _, tokens = size.partition("x")
    words = [NAMES.get(model, model), *([f"{tokens} tokens"] if tokens else []), *precision, f"batch {batch}"]
    return ", ".join(words)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.{2 if seconds < 0.00995 else 1 if seconds < 0.0995 else 0}f} ms"


def _timed(record: dict[str, Any] | None) -> str:
    return "" if record is None else f"{_milliseconds(record['seconds'])}, {_ratio(record['seconds_ratio'])}"


def _memory(record: dict[str, Any] | None) -> str:
    ratio = None if record is None else record.get("peak_mib_ratio")
    return "-" if ratio is None else _ratio(ratio)


def _ratio(value: float) -> str:
    return f"{value:.2f}x" if value < 9.95 else f"{value:.0f}x"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        readme = ROOT / "README.md"
        readme.write_text(written(readme.read_text()))
    else:
        for name, table in tables().items():
            sys.stdout.write(f"{name}\n\n{table}\n\n")
