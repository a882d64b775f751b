"""What a checkpoint of a run holds, and how a run goes on from it.

Everything that decides the next step: parameters and buffers, optimiser, scheduler, averages, threshold, the state of
PyTorch's, NumPy's and Python's generators (dropout), the key and the step, the plan, and where the ledger stood.  The
sampler and the noise have no state: they are functions of key and step.

The ledger decides whether the key may be used again.  Its mark is the run's last record; the block in hand is closed
before a checkpoint is written, so an unchanged mark says that nothing was drawn since.  Otherwise steps were drawn, and
perhaps released, that the checkpoint doesn't know: they stay charged, and a fresh key makes sure that no noise is used
a second time on other data or code.  A copy of a ledger doesn't know what the original has been through, so where both
are there a run goes on from the copy under a fresh key, too.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hush import checkpoint
from hush.averaging import Average
from hush.gradients import Engine
from hush.keys import Key
from hush.ledger import Ledger
from hush.local import Local
from hush.plan import Plan
from hush.spending import Spending

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from hush.training import Private


def save(private: Private, folder: str | os.PathLike[str]) -> None:
    """Writes the run's state; the batch in hand must have been stepped on."""
    path = private.spending.path
    if path is None:
        raise ValueError("A ledger in memory is lost with the process, so its run can't be resumed; give ledger=path.")
    if private._pending is not None:
        raise ValueError("A batch was handed out that no step was made on; save after step().")
    mark = private.spending.close(private.steps_done)
    state = progress(private) | {
        "key": private.key.to_json(),
        "fresh": private.spending.fresh,
        "plan": private.plan.to_dict(),
        "average": None if private.average is None else private.average.decay,
        "ledger": {"path": str(path.resolve()), "run": private.spending.run, "mark": mark},
    }
    checkpoint.save(folder, state)


def progress(private: Private) -> dict[str, Any]:
    """How far a run is: what its steps have changed, and nothing that says who it is or what it was charged."""
    return {
        "model": private.model.state_dict(),
        "optimiser": private.optimiser.state_dict(),
        "scheduler": None if private.scheduler is None else private.scheduler.state_dict(),
        "averages": private.averages,
        "generators": _generators(),
        "threshold": private.threshold,
        "step": private.steps_done,
        "notes": list(private.local.notes),
        "way": [private._memory.way, private._memory.reason],
    }


def restore(private: Private, state: dict[str, Any]) -> None:
    """Put a run, just made, where `progress` found it."""
    private.model.load_state_dict(state["model"])
    private.optimiser.load_state_dict(state["optimiser"])
    if private.scheduler is not None:
        private.scheduler.load_state_dict(state["scheduler"])
    for average, value in zip(private.averages, state["averages"], strict=True):
        average.copy_(value)
    private.threshold = state["threshold"]
    private.steps_done = state["step"]
    private.local = Local(notes=tuple(state["notes"]))
    private._memory.way, private._memory.reason = state.get("way", (0, ""))  # another way would round differently
    _set_generators(state["generators"])


def resume(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimiser: Optimizer,
    plan: Plan | None,
    ledger: Ledger | str | os.PathLike[str] | None,
    engine: Engine | None,
    microbatch: int | None,
    scheduler: LRScheduler | None,
) -> Private:
    """The run as it was saved; under a fresh key where the ledger has run ahead."""
    from hush.training import Private

    state = checkpoint.load(folder)
    saved = Plan.from_dict(state["plan"])
    _check(saved, plan, state, scheduler)
    book = ledger if isinstance(ledger, Ledger) else Ledger(state["ledger"]["path"] if ledger is None else ledger)
    run, mark = state["ledger"]["run"], state["ledger"]["mark"]
    if run not in {known.run for known in book.runs}:
        raise ValueError(f"The ledger doesn't hold the run {run} of this checkpoint; give the ledger it was made with.")
    book.verify(mark)
    key, fresh = Key.from_json(state["key"]), state["fresh"]
    now = book.mark(run)
    if now != mark or _is_copy(book, state["ledger"]["path"]):
        key, fresh = Key.fresh(key.secure), state["step"]
    kept = None if state["average"] is None else Average(state["average"])
    spending = Spending(book, saved, run, fresh, now)
    private = Private(
        model,
        optimiser,
        saved,
        ledger=spending,
        key=key,
        engine=engine,
        microbatch=microbatch,
        scheduler=scheduler,
        average=kept,
    )
    restore(private, state)
    return private


def _is_copy(book: Ledger, path: str) -> bool:
    """Whether the checkpoint's ledger is still where it was, beside the one that is given: both may go on from here."""
    return book.path is not None and os.path.exists(path) and not os.path.samefile(book.path, path)


def _check(saved: Plan, plan: Plan | None, state: dict[str, Any], scheduler: LRScheduler | None) -> None:
    if plan is not None:
        checkpoint.check_same(saved.to_dict(), plan.to_dict())
    if (scheduler is None) != (state["scheduler"] is None):
        has = "a" if state["scheduler"] is not None else "no"
        raise ValueError(f"The checkpoint was saved with {has} scheduler; resume it the same way.")


def _generators() -> dict[str, Any]:
    kind, words, position, has_gauss, gauss = np.random.get_state()
    version, internal, following = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, np.asarray(words).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), following],
    }


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    cuda: list[Tensor] = state["cuda"]
    if cuda and torch.cuda.device_count() == len(cuda):
        torch.cuda.set_rng_state_all(cuda)
    kind, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
