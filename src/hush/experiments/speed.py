"""Seconds and memory of an epoch, way by way: the tables of Bu et al. 2021.

A few steps on random data of the right shape are timed, after some that aren't, and multiplied by the steps of an
epoch.  A step is all of it: drawing the batch and charging it, clipping, noise, the optimiser.  Memory is the most that
PyTorch allocated on a GPU in a step, the network and its optimiser included.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.experiments.networks import network
from hush.gradients import Auto, Engine, Ghost, Loop, Vmap
from hush.keys import Key
from hush.plan import Plan
from hush.training import Private

Result = dict[str, Any]
SECONDS = 1.0
"""About how long the timed steps of one way take, where a single step isn't longer."""
WARM_UP = 4
"""Steps before the timed ones, in which structures are found and graphs captured; fewer where they are long."""


@dataclass(frozen=True)
class Timing:
    """A network, its batches, and the paper's seconds an epoch by way of clipping.

    words    the vocabulary, for networks that take numbers of words; None: they take images
    adam     Adam rather than SGD
    paper    "plain", "loop", "outer" (Opacus), "projected 1", ...: seconds an epoch, by PyTorch and by TensorFlow
             where both are given
    """

    name: str
    network: str
    records: int
    batch: int
    shape: tuple[int, ...]
    classes: int = 10
    words: int | None = None
    adam: bool = False
    noise: float = 1.0
    clip: float = 1.0
    projections: tuple[int, ...] = (1, 10, 30)
    paper: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ways(self) -> dict[str, tuple[Engine | None, int | None]]:
        """Every way's engine (None: no privacy) and its projections."""
        exact: dict[str, tuple[Engine | None, int | None]] = {
            "plain": (None, None),
            "loop": (Loop(), None),
            "vmap": (Vmap(), None),
            "ghost": (Ghost(), None),
            "ghost, captured": (Auto(compile=False), None),
        }
        return exact | {f"projected {r}": (None, r) for r in self.projections}


def measure(
    timing: Timing, device: torch.device, say: Callable[[str], None], deadline: float, ways: Sequence[str] = ()
) -> Result:
    """Every way's seconds a step and an epoch and its memory, or why it has none; of some `ways` only, if given."""
    found: Result = {}
    for way, (engine, projections) in timing.ways.items():
        if ways and way not in ways:
            continue
        if time.monotonic() > deadline:
            break
        if way == "ghost, captured" and device.type != "cuda":
            continue
        gc.collect()
        if device.type == "cuda":
            torch._C._cuda_clearCublasWorkspaces()  # those of the last way's streams
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        try:
            # held by no name: what the last way left must be gone before the next is measured
            found[way] = _timed(_stepper(timing, device, engine, projections, way != "plain"), timing, device)
        except RuntimeError as error:  # out of memory, above all: that is a result
            found[way] = {"failed": str(error).splitlines()[0][:200]}
        say(f"    {way}: {_in_words(found[way])}")
    return found


def _in_words(found: Result) -> str:
    if "failed" in found:
        return str(found["failed"])
    memory = f", {found['mib']:,} MiB" if "mib" in found else ""
    return f"{1000 * found['seconds_a_step']:.3g} ms a step{memory}"


def _timed(step: Callable[[], None], timing: Timing, device: torch.device) -> Result:
    began = time.perf_counter()
    for _ in range(WARM_UP):
        before = _steps(step, device, 1)
        if time.perf_counter() - began > 5 * SECONDS:
            break
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    count = max(1, min(100, round(SECONDS / before / 3)))
    seconds = [_steps(step, device, count) for _ in range(3 if before < SECONDS else 1)]
    middle = statistics.median(seconds)
    result: Result = {
        "seconds_a_step": round(middle, 6),
        "seconds": round(middle * timing.records / timing.batch, 3),
        "timed_steps": count * len(seconds),
    }
    if device.type == "cuda":
        result["mib"] = round((torch.cuda.max_memory_allocated(device) + _in_graphs(device)) / 2**20)
    return result


def _in_graphs(device: torch.device) -> int:
    """Bytes that captured graphs hold for what they compute on the way, which PyTorch's counters call free."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == (device.index or 0) and tuple(segment["segment_pool_id"]) != (0, 0)
    )


def _steps(step: Callable[[], None], device: torch.device, count: int) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / count


def _stepper(
    timing: Timing, device: torch.device, engine: Engine | None, projections: int | None, private: bool
) -> Callable[[], None]:
    torch.manual_seed(0)
    model = network(timing.network).to(device)
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=1e-3) if timing.adam else torch.optim.SGD(model.parameters(), lr=0.01)
    )
    records = 16 * timing.batch
    size = (records, *timing.shape)
    x = torch.randn(size) if timing.words is None else torch.randint(timing.words, size)
    data = x.to(device), torch.randint(timing.classes, (records,)).to(device)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def plain() -> None:
        part = torch.randint(records, (timing.batch,), device=device)
        optimiser.zero_grad()
        losses(data[0][part], data[1][part]).mean().backward()
        optimiser.step()

    if not private:
        return plain
    plan = Plan(
        records=records,
        batch=timing.batch,
        steps=100_000,
        noise_multiplier=timing.noise,
        delta=1e-5,
        clip=timing.clip,
        projections=projections,
    )
    run = Private(model, optimiser, plan, key=Key.from_seed(0), engine=engine)
    batches: Iterator[Any] = run.batches(data)

    def step() -> None:
        run.step(losses, *next(batches))

    return step
