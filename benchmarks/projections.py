"""Projected norms beside exact ones: certified epsilon against r, and time and memory of a step against r, on a CPU.

`python benchmarks/projections.py` prints the tables of docs/projections.md, writes results/projections.json and the two
pictures.  Times are medians of interleaved steps, in seconds of one thread's own; memory is the peak of what is
allocated in a step, parameters included.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from models import TextLSTM, mnist_cnn
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from hush.accounting import Gaussian, Projected, calibrate
from hush.gradients import Engine, Ghost, Memory, clipped_sum
from hush.gradients import Projected as ProjectedEngine
from hush.gradients.projected import gaussian_directions
from hush.keys import Key

RESULTS = Path(__file__).parent / "results" / "projections.json"
PICTURES = Path(__file__).parent.parent / "docs" / "img"
SETTINGS = {  # Bu et al. 2021: rate, noise multiplier, steps
    "MNIST": (256 / 60_000, 1.3, 3516),
    "CIFAR-10": (256 / 50_000, 0.9, 3906),
    "IMDb": (256 / 25_000, 0.6, 1953),
}
COUNTS = (4, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000)
TIMED = (1, 4, 10, 30, 100)
DELTA = 1e-5


def accounts() -> dict[str, Any]:
    """Certified epsilon at the papers' noise for each r, and the noise that keeps the exact norms' epsilon."""
    found: dict[str, Any] = {}
    for name, (rate, noise, steps) in SETTINGS.items():
        exact = (Gaussian(noise).poisson(rate) * steps).epsilon(DELTA).upper
        rows = [(r, (Projected(noise, r).poisson(rate) * steps).epsilon(DELTA).upper) for r in COUNTS]
        found[name] = {"exact": exact, "projected": rows}
        for r in (30, 100):

            def with_noise(sigma: float, rate: float = rate, steps: int = steps, r: int = r) -> Any:
                return Projected(sigma, r).poisson(rate) * steps

            found[name][f"noise, r={r}"] = calibrate.noise(with_noise, exact, DELTA) / noise
        print(name, found[name], flush=True)
    return found


def models() -> dict[str, tuple[nn.Module, tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    encoder = nn.Sequential(
        *(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(4)),
        nn.Flatten(),
        nn.Linear(32 * 64, 2),
    )
    return {
        "MNIST CNN, B=128": (mnist_cnn(), (torch.randn(128, 1, 28, 28), torch.randint(10, (128,)))),
        "text LSTM, B=32, 64 tokens": (TextLSTM(), (torch.randint(1000, (32, 64)), torch.randint(2, (32,)))),
        "encoder, 4 layers, B=64, 32 tokens": (encoder, (torch.randn(64, 32, 64), torch.randint(2, (64,)))),
    }


def steps(model: nn.Module, batch: tuple[Tensor, Tensor], counts: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Functions that make one step's (clipped) gradient."""
    parameters = list(model.parameters())

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def private(engine: Engine) -> Callable[[], Any]:
        memory = Memory()
        groups = [range(len(parameters))]

        def weigh(norms: Tensor) -> Tensor:
            return (1 / norms).clamp_max(1)

        return lambda: clipped_sum(parameters, losses, batch, groups=groups, weigh=weigh, engine=engine, memory=memory)

    directions = gaussian_directions(Key.from_seed(0), 0, parameters)
    found: dict[str, Callable[[], Any]] = {
        "plain": lambda: torch.autograd.grad(losses(*batch).mean(), parameters),
        "ghost": private(Ghost()),
    }
    found["r=30, 16 at once"] = private(ProjectedEngine(30, directions, at_once=16))
    return found | {f"r={r}": private(ProjectedEngine(r, directions)) for r in counts}


def timed(repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (model, batch) in models().items():
        todo = steps(model, batch, TIMED)
        notes = {label: list(step().notes) for label, step in todo.items() if label != "plain"}
        for _ in range(4):
            todo["plain"](), todo["ghost"]()  # which looks at where examples are at its 1st, 2nd and 4th call
        times: dict[str, list[float]] = {label: [] for label in todo}
        for _ in range(repeats):
            for label, step in todo.items():
                start = time.process_time()
                step()
                times[label].append(time.process_time() - start)
        medians = {label: statistics.median(taken) for label, taken in times.items()}
        peaks = {label: peak(todo[label]) for label in ("plain", "ghost", "r=10", "r=30, 16 at once")}
        own = sum(p.numel() * p.element_size() for p in model.parameters())
        found[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "seconds": medians,
            "relative": {label: value / medians["plain"] for label, value in medians.items()},
            "memory": {label: (value + own) / (peaks["plain"] + own) for label, value in peaks.items()},
            "notes": notes,
        }
        print(name, json.dumps(found[name]["relative"]), json.dumps(found[name]["memory"]), notes["r=10"], flush=True)
    return found


def peak(step: Callable[[], Any]) -> int:
    """The most bytes that were allocated at a time during a step, above those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    kineto: Any = profiler.profiler
    events = [(e.start_ns(), e.nbytes()) for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    return int(max(np.cumsum([size for _, size in sorted(events)])))


def draw(results: dict[str, Any]) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for (name, account), colour in zip(results["epsilon"].items(), ("C0", "C1", "C2"), strict=True):
        left.loglog(*zip(*account["projected"], strict=True), "o-", ms=3, color=colour, label=name)
        left.axhline(account["exact"], color=colour, ls=":", lw=1)
    left.set(xlabel="projections r", ylabel="certified epsilon at delta 1e-5", ylim=(0.5, 3000))
    left.set_title("Privacy (dotted: exact norms)")
    left.legend()
    for (name, taken), colour in zip(results["time"].items(), ("C3", "C4", "C5"), strict=True):
        relative = taken["relative"]
        right.loglog(TIMED, [relative[f"r={r}"] for r in TIMED], "o-", ms=3, color=colour, label=name)
        right.axhline(relative["ghost"], color=colour, ls=":", lw=1)
    right.set(xlabel="projections r", ylabel="time of a step / plain training")
    right.set_title("Time (dotted: ghost, exact norms)")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURES / "projections.png", dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep-accounts", action="store_true", help="measure again, but keep the accounts there are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text()) if options.keep_accounts else None
    results = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, one thread, torch {torch.__version__}",
        "epsilon": kept["epsilon"] if kept else accounts(),
        "time": timed(options.repeats),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    draw(results)
