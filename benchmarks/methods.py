"""One training step of a row by each method: plain PyTorch, hush, and the peers."""

from __future__ import annotations

import functools
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
import torch
from measure import Step
from models import Row
from torch import Tensor

Method = Callable[[Row, torch.device], Step]
Engine = Callable[[Any], Any]  # hush.gradients to one of its engines: imported only where it's used


def _auto(gradients: Any) -> Any:
    return gradients.Auto()


def plain(row: Row, device: torch.device) -> Step:
    """Ordinary training, eager: what every other time is divided by."""
    model = row.model().to(device)
    return _ordinary_step(row, model, model.parameters(), device)


def compiled(row: Row, device: torch.device) -> Step:
    """Ordinary training of the model compiled by torch.compile."""
    model = row.model().to(device)
    return _ordinary_step(row, torch.compile(model), model.parameters(), device)


def _ordinary_step(row: Row, model: Callable[[Tensor], Tensor], parameters: Any, device: torch.device) -> Step:
    optimiser = row.optimiser(parameters)
    losses = row.losses(model, device)
    inputs, targets = row.data(device)

    def step() -> None:
        optimiser.zero_grad()
        losses(inputs, targets).mean().backward()
        optimiser.step()

    return Step(step)


def private(
    row: Row, device: torch.device, *, engine: Engine = _auto, fixed: bool = False, compile: bool = False
) -> Step:
    """hush, with its ledger in a file and the plan of a real data set.

    Poisson's batches vary about the row's batch and are taken from a larger pool on the device; `fixed` draws batches
    of one size, as the other methods get, without replacement.  Drawing is in the step, moving data isn't.
    """
    import hush
    from hush import gradients

    model = row.model().to(device)
    plan = hush.Plan(
        records=row.records,
        batch=row.batch,
        steps=100_000,
        clip=1.0,
        noise_multiplier=1.0,
        sampling=hush.Uniform() if fixed else hush.Poisson(),
    )
    ledger = Path(tempfile.mkdtemp(prefix="hush-benchmark-")) / "ledger.jsonl"
    optimiser = row.optimiser(model.parameters())
    trainer = hush.Private(model, optimiser, plan, ledger=ledger, engine=engine(gradients))
    losses = row.losses(torch.compile(model) if compile else model, device)
    inputs, targets = row.data(device, row.batch if fixed else row.batch + math.ceil(8 * math.sqrt(row.batch) + 8))
    draws = trainer.batches((torch.arange(row.records),))
    drawing: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        (positions,) = next(draws)
        drawing.append(time.perf_counter() - began)
        trainer.step(losses, inputs[: len(positions)], targets[: len(positions)])

    def note() -> str:
        return "; ".join([*trainer.local.notes, f"drawing and charging {1e3 * statistics.median(drawing):.2f} ms"])

    return Step(step, note)


CPU_METHODS: dict[str, Method] = {
    "plain": plain,
    "hush": private,
    "hush fixed": functools.partial(private, fixed=True),
    "hush ghost": functools.partial(private, engine=lambda gradients: gradients.Ghost()),
    "hush vmap": functools.partial(private, engine=lambda gradients: gradients.Vmap()),
    "hush loop": functools.partial(private, engine=lambda gradients: gradients.Loop()),
} | {f"opacus {mode}": functools.partial(peers.opacus_step, mode) for mode in peers.MODES}
METHODS: dict[str, Method] = CPU_METHODS | {
    "hush captured": functools.partial(private, engine=lambda gradients: gradients.Auto(compile=False)),
    "compiled": compiled,
    "hush on compiled model": functools.partial(
        private, engine=lambda gradients: gradients.Auto(capture=False), compile=True
    ),
}
