"""How `training.py` measures: interleaved medians, peak memory, time limits, and a process for whatever may die.

All methods of a row are set up in one process and then take turns, a few steps each, so that whatever else the machine
does meanwhile falls on all of them alike.  A method that fails or takes too long is recorded as such.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import multiprocessing
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Record = dict[str, Any]
BLOCK_SECONDS = 0.05  # short steps are timed in blocks of about this length, without waiting for the device in between
WARM_UP = 3
ROUNDS = 30
LEAST_TURNS = 3


@dataclass(frozen=True)
class Step:
    """One training step of one method, and what there is to say about it once it has run."""

    run: Callable[[], None]
    note: Callable[[], str] = lambda: ""


Builder = Callable[[], Step]


class OutOfTimeError(Exception):
    """A time limit was reached."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside after so many seconds (in a main thread, between two bytecodes)."""

    def interrupt(*_: Any) -> None:
        raise OutOfTimeError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def failure(error: BaseException) -> str:
    """An error in one line."""
    text = str(error)
    if isinstance(error, torch.cuda.OutOfMemoryError) or "allocate memory" in text or isinstance(error, MemoryError):
        return "out of memory"
    first = text.strip().splitlines()[0] if text.strip() else ""
    return f"{type(error).__name__}: {first}"[:300]


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clean_up(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def seconds_of(step: Step, count: int, device: torch.device) -> float:
    """The mean time of a step over a block of them."""
    wait_for(device)
    began = time.perf_counter()
    for _ in range(count):
        step.run()
    wait_for(device)
    return (time.perf_counter() - began) / count


def graph_pools(device: torch.device) -> int:
    """Bytes that captured graphs hold for what they compute on the way, which PyTorch's counters call free."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == (device.index or 0) and tuple(segment["segment_pool_id"]) != (0, 0)
    )


class CudaMemory:
    """Peak memory above what was there before, in MiB."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = torch.cuda.memory_allocated(device)
        self.pools_before = graph_pools(device)
        torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> float:
        """The peak since the last call, with what captured graphs hold now."""
        most = torch.cuda.max_memory_allocated(self.device) - self.before
        torch.cuda.reset_peak_memory_stats(self.device)
        return (most + graph_pools(self.device) - self.pools_before) / 2**20


def warm_up(step: Step) -> None:
    """A few steps that aren't counted; fewer where a step is long and its first can't matter much."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        step.run()
        if time.perf_counter() - began > 5:
            return


def set_up(build: Builder, device: torch.device) -> tuple[Step, Record]:
    """Build a method, warm it up, and note its memory and about how long a step takes."""
    memory = CudaMemory(device) if device.type == "cuda" else None
    began = time.perf_counter()
    step = build()
    warm_up(step)
    wait_for(device)
    record: Record = {"setup_seconds": time.perf_counter() - began}
    setup_peak = memory.peak() if memory else 0.0
    record["first_seconds"] = seconds_of(step, 1, device)
    if memory:
        record["setup_peak_mib"] = setup_peak
        record["peak_mib"] = memory.peak()
    return step, record


def take_turns(
    builders: dict[str, Builder],
    device: torch.device,
    seconds: float,
    setup_seconds: float,
    send: Callable[[str, Record], None],
) -> None:
    """Set the methods up, each within `setup_seconds`, and time them in turns, within `seconds` in all.

    Every method gets three turns if there is time, and more while it has used less than its share of it.
    """
    ready: dict[str, tuple[Step, Record]] = {}
    for name, build in builders.items():
        try:
            with time_limit(setup_seconds):
                step, record = set_up(build, device)
            ready[name] = step, record
            send(name, record | summary([record["first_seconds"]]) | {"note": step.note()})
        except Exception as error:  # whatever a method does wrong is its result
            send(name, {"failed": failure(error)})
        clean_up(device)
    times: dict[str, list[float]] = {name: [] for name in ready}
    used = dict.fromkeys(ready, 0.0)
    end = time.monotonic() + seconds
    for turn, (name, (step, record)) in itertools.product(range(ROUNDS), ready.items()):
        if time.monotonic() > end:
            break
        if used[name] > seconds / len(ready) and (turn >= LEAST_TURNS or math.isinf(used[name])):
            continue
        count = max(1, math.ceil(BLOCK_SECONDS / record["first_seconds"]))
        try:
            with time_limit(seconds + setup_seconds):
                each = seconds_of(step, count, device)
        except Exception as error:  # whatever a method does wrong is its result
            send(name, record | {"failed": f"while timed: {failure(error)}"})
            times[name].clear()
            used[name] = math.inf
            continue
        used[name] += each * count
        times[name].append(each)
    for name, (step, record) in ready.items():
        if times[name]:
            send(name, record | summary(times[name]) | {"note": step.note()})


def summary(times: list[float]) -> Record:
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return {
        "seconds": statistics.median(times),
        "mean_seconds": statistics.mean(times),
        "quartiles": [low, high],
        "fastest": min(times),
        "turns": len(times),
    }


def resident(field: str) -> float:
    """A line of the kernel's account of this process's memory, in MiB; a new process starts with a new account."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"the kernel doesn't report {field}")


def cpu_memory(build: Builder, send: Callable[[Record], None]) -> None:
    """Peak resident memory of setting up and a few steps, above what the imported libraries take: for a new process."""
    before = resident("VmRSS")
    step = build()
    warm_up(step)
    peak = resident("VmHWM")
    send({"peak_mib": peak - before, "peak_resident_mib": peak})


def limit_memory(gigabytes: float) -> None:
    """Let this process fail by itself rather than the machine with it."""
    size = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def in_a_process(target: Callable[..., None], arguments: tuple[Any, ...], seconds: float) -> tuple[list[Any], str]:
    """Run `target(send, *arguments)` in a fresh process: all it sent, and how it ended ("" if well)."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=target, args=(sender.send, *arguments))
    process.start()
    sender.close()
    sent: list[Any] = []
    end = time.monotonic() + seconds
    with contextlib.suppress(EOFError):
        while receiver.poll(max(0.0, end - time.monotonic())):
            sent.append(receiver.recv())
    process.join(timeout=max(5.0, end - time.monotonic()) if time.monotonic() < end else 0)
    if process.is_alive():
        process.kill()
        process.join()
        return sent, f"stopped after {seconds:.0f} s"
    return sent, "" if process.exitcode == 0 else f"its process ended with {process.exitcode}"


def processor() -> str:
    """The name of the CPU and how many cores of it are ours."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return f"{os.cpu_count()} cores"
