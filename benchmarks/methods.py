"""One training step of a row by each method: plain PyTorch, hush, and the peers."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import peers
import torch
from measure import Step
from models import Row

Method = Callable[[Row, torch.device], Step]


def plain(row: Row, device: torch.device) -> Step:
    """Ordinary training, eager: what every other time is divided by."""
    model = row.model().to(device)
    return _ordinary_step(row, model, model.parameters(), device)


def compiled(row: Row, device: torch.device) -> Step:
    """Ordinary training of the model compiled by torch.compile."""
    model = row.model().to(device)
    return _ordinary_step(row, torch.compile(model), model.parameters(), device)


def _ordinary_step(row: Row, model: Callable, parameters, device: torch.device) -> Step:  # type: ignore[no-untyped-def,type-arg]
    optimiser = row.optimiser(parameters)
    losses = row.losses(model, device)
    inputs, targets = row.data(device)

    def step() -> None:
        optimiser.zero_grad()
        losses(inputs, targets).mean().backward()
        optimiser.step()

    return Step(step)


def private(
    row: Row, device: torch.device, *, engine: str = "Auto", compile: bool = False, capture: bool = False
) -> Step:
    """hush, with its ledger in a file.  At a sampling rate of 1 Poisson's coins always draw the whole batch."""
    import hush
    from hush import gradients

    model = row.model().to(device)
    run = torch.compile(model) if compile else model
    plan = hush.Plan(records=row.batch, batch=row.batch, steps=1_000_000, clip=1.0, noise_multiplier=1.0)
    ledger = Path(tempfile.mkdtemp(prefix="hush-benchmark-")) / "ledger.jsonl"
    trainer = hush.Private(
        model,
        row.optimiser(model.parameters(), captured=capture),
        plan,
        ledger=ledger,
        engine=getattr(gradients, engine)(),
        **({"capture": True} if capture else {}),
    )
    losses = row.losses(run, device)
    inputs, targets = row.data(device)
    draws = trainer.batches((torch.arange(row.batch),))

    def step() -> None:
        next(draws)
        trainer.step(losses, inputs, targets)

    return Step(step, lambda: "; ".join(trainer.notes))


CPU_METHODS: dict[str, Method] = {
    "plain": plain,
    "hush": private,
    "hush ghost": functools.partial(private, engine="Ghost"),
    "hush vmap": functools.partial(private, engine="Vmap"),
    "hush loop": functools.partial(private, engine="Loop"),
} | {f"opacus {mode}": functools.partial(peers.opacus_step, mode) for mode in peers.MODES}
METHODS: dict[str, Method] = CPU_METHODS | {
    "compiled": compiled,
    "hush captured": functools.partial(private, capture=True),
    "hush compiled": functools.partial(private, compile=True),
    "hush compiled captured": functools.partial(private, compile=True, capture=True),
}
