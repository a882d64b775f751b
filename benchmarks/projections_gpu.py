"""Projected norms on a GPU: time and peak memory of whole private steps beside plain ones, and where the peak lies.

    PYTHONPATH=src python benchmarks/projections_gpu.py --out projections-gpu.json

Networks and batches are those of Bu et al. 2021's tables.  A step is all of it: drawing and charging, clipping, noise,
the optimiser.  Memory is what PyTorch allocated at most above what was there before the network, in the first steps of
a run and in later ones.  Plain training is measured as PyTorch does it by default (convolutions in TF32) and in full
float32, in which projected norms are computed: kernels of either kind need memory of their own.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import hush
from hush.experiments.networks import network
from hush.keys import Key

NETWORKS: dict[str, tuple[int, tuple[int, ...], int | None]] = {  # batch, shape, words
    "alexnet": (64, (1, 28, 28), None),
    "vgg13": (256, (3, 32, 32), None),
    "cifar-network": (256, (3, 32, 32), None),
    "text-network": (256, (150,), 8185),
}
MIB = 2**20
Step = Callable[[], None]


def stepper(name: str, r: int | None, device: torch.device) -> tuple[Step, Callable[[], dict[str, Any]]]:
    """A function that makes a step, plain or with r projections, and one that says how it was made."""
    batch, shape, words = NETWORKS[name]
    torch.manual_seed(0)
    model = network(name).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    size = (4 * batch, *shape)
    x = torch.randn(size) if words is None else torch.randint(words, size)
    data = x.to(device), torch.randint(2, (4 * batch,)).to(device)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def plain() -> None:
        part = torch.randint(4 * batch, (batch,), device=device)
        optimiser.zero_grad()
        losses(data[0][part], data[1][part]).mean().backward()
        optimiser.step()

    if r is None:
        return plain, dict
    plan = hush.Plan(
        records=4 * batch, batch=batch, steps=100_000, noise_multiplier=1.0, delta=1e-5, clip=1.0, projections=r
    )
    run = hush.Private(model, optimiser, plan, key=Key.from_seed(0))
    batches = run.batches(data)

    def step() -> None:
        run.step(losses, *next(batches))

    return step, lambda: {"notes": run.local.notes, "sizes": fitted(run)}


def measured(name: str, r: int | None, device: torch.device, seconds: float, look: bool) -> dict[str, Any]:
    before = clean(device)
    step, notes = stepper(name, r, device)
    first = []
    began = time.perf_counter()
    for _ in range(4):
        first.append(taken(step, device))
        if time.perf_counter() - began > seconds:
            break
    result: dict[str, Any] = {"first_mib": since(before, device)}
    times = [first[-1], *(taken(step, device) for _ in range(max(1, min(20, int(seconds / first[-1])))))]
    result |= {"mib": since(before, device), "seconds": statistics.median(times), "steps": len(first) + len(times) - 1}
    result |= notes()
    if look and device.type == "cuda":
        try:
            result["peak"] = at_peak(step, device)
        except Exception as error:  # PyTorch's record of allocations isn't a promised interface
            result["peak"] = f"{type(error).__name__}: {error}"[:200]
    return result


def fitted(run: hush.Private) -> dict[str, float]:
    """MiB that passes over so many examples need, beyond vectors of the parameters' size; minus: more than that."""
    return {f"{what}, {rows}": round(size / MIB, 1) for (what, _, rows), size in run._memory.sizes.items()}


def clean(device: torch.device) -> int:
    gc.collect()
    if device.type != "cuda":
        return 0
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def taken(step: Step, device: torch.device) -> float:
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def since(before: int, device: torch.device) -> float | None:
    """MiB at most, above what was there before, since this was last asked."""
    if device.type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.reset_peak_memory_stats(device)
    return round(most / MIB, 1)


def at_peak(step: Step, device: torch.device) -> list[tuple[float, str]]:
    """Where the memory was allocated, in this step, that was held when most was; in MiB, the largest first."""
    torch.cuda.synchronize(device)
    torch.cuda.memory._record_memory_history(max_entries=500_000, stacks="python")
    already = torch.cuda.memory_allocated(device)
    try:
        step()
        torch.cuda.synchronize(device)
        trace = torch.cuda.memory._snapshot(device)["device_traces"][device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    held: dict[int, tuple[int, str]] = {}
    now = most = 0
    best: list[tuple[int, str]] = []
    for event in trace:
        if event["action"] == "alloc":
            held[event["addr"]] = event["size"], place(event.get("frames", []))
            now += event["size"]
            if now > most:
                most, best = now, list(held.values())
        elif event["action"] in ("free_requested", "free") and event["addr"] in held:
            now -= held.pop(event["addr"])[0]
        elif event["action"] == "free_requested":  # it was there before
            now -= event["size"]
    total: Counter[str] = Counter({"before the step": already})
    for size, where in best:
        total[where] += size
    return [(round(size / MIB, 1), where) for where, size in total.most_common(8)]


def place(frames: list[dict[str, Any]]) -> str:
    """The innermost line of the project's that allocated, with PyTorch's below it."""
    if not frames:
        return "backward pass"
    own = next((f for f in frames if "hush" in f["filename"] or "benchmarks" in f["filename"]), None)
    texts = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in (frames[0], own) if f]
    return " < ".join(dict.fromkeys(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS))
    parser.add_argument("--projections", type=int, nargs="*", default=[1, 10, 30])
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed steps, about")
    parser.add_argument("--limit", type=float, default=110.0, help="seconds after which nothing new is begun")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device, began = torch.device(options.device), time.perf_counter()
    found: dict[str, Any] = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "networks": {}}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    ways: dict[str, tuple[int | None, bool]] = {"plain": (None, True), "plain, float32": (None, False)}
    ways |= {f"r={r}": (r, True) for r in options.projections}
    for name in options.only:
        rows = found["networks"][name] = {}
        for way, (r, tf32) in ways.items():
            if time.perf_counter() - began > options.limit:
                break
            torch.backends.cudnn.allow_tf32 = tf32
            try:
                rows[way] = measured(name, r, device, options.seconds, look=r is None or r == options.projections[0])
            except RuntimeError as error:
                rows[way] = {"failed": str(error).splitlines()[0][:200]}
            for against in ("plain", "plain, float32"):
                if rows[way].get("mib") and rows.get(against, {}).get("mib"):
                    rows[way][f"memory / {against}"] = round(rows[way]["mib"] / rows[against]["mib"], 3)
                    rows[way][f"first / {against}"] = round(rows[way]["first_mib"] / rows[against]["first_mib"], 3)
            print(f"{time.perf_counter() - began:6.1f} s  {name}, {way}: {json.dumps(rows[way])}", flush=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
