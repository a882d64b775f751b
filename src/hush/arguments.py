"""What `Private` is given, made ready or refused in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hush.accounting import ADD_REMOVE
from hush.averaging import Average
from hush.gradients import Auto, Engine, Grouped, Projected
from hush.gradients.projected import gaussian_directions
from hush.keys import Key
from hush.plan import Plan
from hush.precision import is_compiled
from hush.rounding import FLOAT32
from hush.units import Records, Users


def key_of(key: Key | None, secure: bool) -> Key:
    if key is None:
        return Key.fresh(secure)
    if not isinstance(key, Key):
        raise ValueError(f"A key is Key.fresh() or, in tests, Key.from_seed(seed), got {key!r}.")
    return Key(key.secret, True, key.seed) if secure and not key.secure else key


def average_of(average: Average | None) -> Average | None:
    if average is not None and not isinstance(average, Average):
        raise ValueError(f"An average of the weights is a value such as hush.Average(0.99), got {_named(average)}.")
    return average


def engine_of(engine: Engine | None, plan: Plan) -> Engine:
    if not isinstance(plan, Plan):
        raise ValueError(f"A run needs a hush.Plan, got {_named(plan)}.")
    if engine is not None and not isinstance(engine, Engine):
        raise ValueError(f"An engine is a value such as hush.gradients.Ghost(), got {_named(engine)}.")
    if plan.grouped is not None:
        if engine is not None and engine != Grouped(plan.grouped):
            raise ValueError(f"The plan clips groups of {plan.grouped}; leave the engine to it.")
        return Grouped(plan.grouped)
    if isinstance(engine, Grouped):
        raise ValueError(f"Groups change the sensitivity, so they belong to the plan: Plan(grouped={engine.size}).")
    if plan.projections is not None:
        if engine is None:
            return Projected(plan.projections)
        if not isinstance(engine, Projected) or engine.projections != plan.projections:
            raise ValueError(f"The plan estimates norms from {plan.projections} projections; leave the engine to it.")
    elif isinstance(engine, Projected):
        raise ValueError(f"Projected norms change the sensitivity: Plan(projections={engine.projections}) counts them.")
    return engine if engine is not None else Auto()


def engine_at(engine: Engine, key: Key, step: int, parameters: Sequence[Tensor], roundoff: float) -> Engine:
    """The engine of a step: that of projections gets the step's directions, and float32 or nothing."""
    if not isinstance(engine, Projected):
        return engine
    if roundoff > FLOAT32:
        raise ValueError(
            "Projected norms need float32, and this loss uses autocast or is compiled; turn that off, or leave "
            "projections out of the plan."
        )
    return replace(engine, directions=gaussian_directions(key, step, parameters))


def capacity_of(plan: Plan, microbatch: int | None, model: nn.Module, parameters: Sequence[Tensor]) -> int | None:
    """How many examples a compiled program takes at once: on a GPU, or where the user compiled the model.

    From public numbers only.
    """
    if not all(p.is_cuda for p in parameters) and not is_compiled(model):
        return None
    batch = plan.batch
    if plan.neighbours is not ADD_REMOVE:  # batches of one size
        room = math.ceil(batch)
    elif batch < 64:  # room for the largest batch would be mostly padding: one in seven goes in two rounds instead
        room = math.ceil(batch + math.sqrt(batch))
    else:
        # twice for one batch in forty costs less than more padding for all
        room = 8 * math.ceil((batch + 2 * math.sqrt(batch)) / 8)
    return min(room, plan.records, microbatch or room)


def population_of(plan: Plan, records: int, users: Any) -> Records | Users:
    """Whose coins are tossed."""
    if (users is None) != (plan.unit == "record"):
        if users is None:
            raise ValueError(f"The plan's unit is the {plan.unit}; give batches(users=...), an id for every record.")
        raise ValueError("The plan's unit is the record, so it takes no users; give Plan(unit='user') for those.")
    if users is None:
        return Records(records)
    population = users if isinstance(users, Users) else Users(users)
    if population.records != records:
        raise ValueError(f"Users are given for {population.records} records, but the data has {records}.")
    return population


def check_optimiser(optimiser: Optimizer, scheduler: Any) -> None:
    if not isinstance(optimiser, Optimizer):
        raise ValueError(f"A run needs an optimiser of torch.optim or one like it, got {_named(optimiser)}.")
    if isinstance(optimiser, torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates the loss several times a step, which isn't paid for; use another optimiser.")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau looks at a loss that isn't paid for; use a scheduler that is fixed in advance."
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise ValueError(f"A scheduler is one of torch.optim.lr_scheduler, got {_named(scheduler)}.")
    if getattr(scheduler, "optimizer", optimiser) is not optimiser:
        raise ValueError("The scheduler was made for another optimiser; make it for the one that is trained with.")


def check_size(leaves: Sequence[Any], size: int) -> None:
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0}
    if sizes - {size}:
        raise ValueError(
            f"The batch has {sorted(sizes)} examples and {size} were drawn; give step the batch as it came."
        )


def _named(value: Any) -> str:
    """What was given, in a word or two."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if isinstance(value, str) else type(value).__name__
