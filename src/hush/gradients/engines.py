"""Clipped sums of per-example gradients: `sum_u w_u G_u`, where `w_u` bounds the norm of unit u's gradient `G_u`.

A unit is one example, or all the examples of one user or group. Every engine gives the same sum:

- `Loop`: one unit at a time, the reference, on any code that autograd can differentiate ("vanilla");
- `Vmap`: vectorised over examples, gradients formed, in chunks ("multiple");
- `Ghost`: norms from factors, one backward pass, nothing formed that needn't be ("outer", made exact and general);
- `Auto`: `Ghost`, which itself takes the slower ways where it must and says so.

Two are methods of their own, with accounts of their own. `Grouped(size)`: the examples' coins put them into groups, and
a group's mean gradient is clipped. `Projected(r)`: the norms are estimates from r random projections ("JL").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hush.gradients.adding import added
from hush.gradients.filling import AS_IT_IS, Filling, filled
from hush.gradients.leaving import of_finite_units

Losses = Callable[..., Tensor]
Weigh = Callable[[Tensor], Tensor]
Directions = Callable[[int], Iterable[Tensor]]
"""Direction j in flat pieces, in the order of the parameters and of their entries, none across two parameters.

They are drawn as they are taken, so that a direction needs no memory of its own, and the same whenever asked for.
"""
Groups = Sequence[Sequence[int]]
_LAST_WAY = 3  # to projected norms: one unit after the other


@dataclass(frozen=True)
class Weights:
    """Weights of the norms by thresholds that may change from step to step and depend on what the engine met.

    A captured program takes the thresholds as inputs; of any other function of the norms it makes a part of itself.
    """

    rule: Callable[[Tensor, Any], Tensor]
    limits: Callable[[], Sequence[float]]

    def __call__(self, norms: Tensor) -> Tensor:
        return self.rule(norms, self.limits())


@dataclass(frozen=True, eq=False)
class Task:
    """What every engine is given: of what, on which examples, clipped together how, weighed how, joined in which units.

    `units[i]` is the number of example i's unit (0, 1, ... ; None: each its own). What is computed at once is filled up
    by `filling`: then the last `copies` examples have no unit, and nothing is asked of them. They are copies of the
    first example, or of `spare` ones. Units that are `left_out` have weight zero.
    """

    parameters: Sequence[Tensor]
    losses: Losses
    batch: Sequence[Any]
    groups: Groups
    weigh: Weigh
    units: Tensor | None = None
    filling: Filling = AS_IT_IS
    copies: int = 0
    spare: Sequence[Any] | None = None
    left_out: Tensor | None = None

    def weights(self, norms: Tensor, first: int = 0) -> Tensor:
        """The weights of units, from the `first` on, by their norms."""
        weights = self.weigh(norms)
        if self.left_out is None:
            return weights
        return weights.where(~self.left_out[first : first + len(norms), None], 0.0)


@dataclass(frozen=True)
class Loop:
    """One unit at a time: slow, and right wherever autograd is."""


@dataclass(frozen=True)
class Vmap:
    """All examples of a chunk at once, their gradients formed; `chunk` bounds memory (default: a gigabyte's worth)."""

    chunk: int | None = None


@dataclass(frozen=True)
class Ghost:
    """Norms without per-example gradients, then one weighted sum."""


@dataclass(frozen=True)
class Auto:
    """The cheapest exact engine for the model and batch at hand.

    That is `Ghost`; on a GPU, and with `capture`, its whole computation is compiled and replayed as a CUDA graph.
    """

    capture: bool = True
    compile: bool = True


@dataclass(frozen=True)
class Grouped:
    """Clip the mean gradient of coin-drawn groups of about `size` examples.

    A record may change its group's clipped mean from any vector of norm C to any other, so the sensitivity is 2C.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Groups of {self.size} examples can't be clipped; give a size of at least 1.")


@dataclass(frozen=True)
class Projected:
    """Clip by norms estimated from so many random projections; sensitivity C / sqrt(chi2_r / r) (Bu et al. 2021).

    The directions belong to the mechanism's randomness; a plan draws them from its run's key. `at_once` of them share
    a pass over the batch (default: as many as plain training's memory allows), and `rows` examples at most (a
    microbatch; default: as many as that allows).
    """

    projections: int
    directions: Directions | None = None
    at_once: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.projections < 1 or (self.at_once is not None and self.at_once < 1):
            raise ValueError(f"Norms need at least one projection, and one at once; got {self}.")


Engine = Loop | Vmap | Ghost | Auto | Grouped | Projected


@dataclass
class Memory:
    """What an engine learned about a model's structure in earlier calls; forgetting it costs time, nothing else."""

    places: dict[Any, dict[int, Any]] = field(default_factory=dict)  # by structure of the forward pass and use
    calls: dict[Any, int] = field(default_factory=dict)
    half: bool = False  # some gradient went through half precision: weights must leave room for its rounding
    capacity: int | None = None  # examples a captured program takes at once; None: nothing is captured
    programs: dict[Any, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    way: int = 0  # the first way to differentiate along directions that may work, and why the ones before don't
    reason: str = ""
    sizes: dict[Any, float] = field(default_factory=dict)
    begun: Any = None  # where the generators were when what is computed began (`randomness.Place`)


@dataclass(frozen=True)
class ClippedSum:
    """The clipped sum, and what must stay local: norms, losses, and notes on how it was computed.

    Sums of a captured program lie in its own memory: the next call with the same `Memory` overwrites them.
    """

    sums: list[Tensor]
    norms: Tensor
    losses: Tensor
    notes: tuple[str, ...] = ()
    spoiled: Tensor | None = None
    """Whether what isn't finite may be in the sums, where the engine knows; else it is if a norm isn't finite."""


def clipped_sum(
    parameters: Sequence[Tensor],
    losses: Losses,
    batch: Sequence[Any],
    *,
    groups: Groups,
    weigh: Weigh,
    units: Tensor | None = None,
    engine: Engine = Auto(),  # noqa: B008
    microbatch: int | None = None,
    filling: Filling = AS_IT_IS,
    memory: Memory | None = None,
    meanwhile: Callable[[list[Tensor]], object] | None = None,
    random: bool = True,
) -> ClippedSum:
    """The weighted sum of the units' gradients, one tensor a parameter, in float32 or better.

    `losses(*batch)` gives one loss an example and may be called on parts of the batch. `groups` says which parameters
    are clipped together; `weigh` maps norms `[units, groups]` to weights. `units[i]` is the number of example i's
    unit (0, 1, ... ; None: each its own). A unit whose gradient isn't finite contributes nothing, and changes nobody
    else's random numbers (`leaving`), be they drawn on a GPU or, if `random`, by a global generator of the CPU's. What
    is computed at once is filled up with copies of an example by `filling`, for every example to be rounded alike in
    any company; captured programs have one size anyway, and the loop needs none. `meanwhile` is called once, while a
    GPU computes the last part and there would be nothing to do but wait: with the list of tensors that will be its
    sums, and are what is returned if it is the only part and all its units are finite.
    """
    n = count(batch)
    _refuse(parameters)
    versions = [x._version for x in batch if isinstance(x, Tensor) and not x.is_inference()]
    memory = Memory() if memory is None else memory
    task = Task(parameters, losses, batch, groups, weigh, units, filling)
    parts = _parts(n, units, microbatch)
    if isinstance(engine, Projected) and units is None:  # it parts batches itself: sums of parts need no memory there
        engine, parts = replace(engine, rows=microbatch), [slice(0, n)]
    if n == 0:
        return _nothing(parameters, groups)
    with torch.enable_grad():
        if len(parts) == 1:
            whole = task if units is None else _piece(task, parts[0])
            result = _part(whole, engine, memory, meanwhile, random)
        else:
            result = _in_parts(task, engine, memory, parts, meanwhile, random)
    if versions != [x._version for x in batch if isinstance(x, Tensor) and not x.is_inference()]:
        raise ValueError(
            "The loss function writes into its batch, which it may be given again; let it copy what it changes."
        )
    return ClippedSum(result.sums, result.norms, result.losses, tuple(dict.fromkeys(result.notes)))


def _refuse(parameters: Sequence[Tensor]) -> None:
    for k, parameter in enumerate(parameters):
        if parameter.is_complex():
            raise ValueError(
                f"Parameter {k} is complex, and noise is drawn for real numbers; keep its real and imaginary parts in "
                "a real parameter and use torch.view_as_complex on it."
            )
        if parameter._backward_hooks:
            raise ValueError(
                f"Parameter {k} has a hook on its gradient, which no example's gradient passes through; remove the "
                "hook and change the loss or the optimiser instead."
            )


def count(batch: Sequence[Any]) -> int:
    """How many examples a batch holds: the common first dimension of its tensors."""
    sizes = {x.shape[0] if x.dim() else -1 for x in batch if isinstance(x, Tensor)}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            f"A batch's tensors must share their first dimension, the examples, but have {sorted(sizes)} entries "
            "there; give tensors of shape [examples, ...]."
        )
    return int(sizes.pop())


def pick(batch: Sequence[Any], index: Tensor | slice) -> tuple[Any, ...]:
    """Some of a batch's examples; what isn't a tensor passes as it is."""
    return tuple(x[index] if isinstance(x, Tensor) else x for x in batch)


def one_loss_each(values: Tensor, n: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (n,):
        shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"The loss function returned {shape} for {n} examples; it must return one loss per example, shape [{n}] "
            '(reduction="none").'
        )
    return values


def slots_of(units: Tensor | None, device: torch.device) -> Tensor | None:
    """Row u holds the examples of unit u, padded with -1."""
    if units is None:
        return None
    sizes = torch.bincount(units)
    slots = torch.full((len(sizes), int(sizes.max())), -1, dtype=torch.long)
    order = torch.argsort(units, stable=True)
    starts = torch.cumsum(sizes, 0) - sizes
    ranks = torch.arange(len(units)) - starts[units[order]]
    slots[units[order], ranks] = order
    return slots.to(device)


def _parts(n: int, units: Tensor | None, microbatch: int | None) -> list[Any]:
    """Positions of the examples computed together; a unit's examples are never parted."""
    if microbatch is not None and microbatch < 1:
        raise ValueError(f"A microbatch of {microbatch} examples is impossible; give at least 1.")
    if microbatch is None or n <= microbatch:
        return [slice(0, n)]
    if units is None:
        return [slice(k, min(k + microbatch, n)) for k in range(0, n, microbatch)]
    parts: list[Tensor] = []
    current: list[Tensor] = []
    size = 0
    sizes = torch.bincount(units).tolist()
    members = torch.argsort(units, stable=True).split(sizes)
    for member in filter(len, members):  # groups may be empty
        if current and size + len(member) > microbatch:
            parts.append(torch.cat(current))
            current, size = [], 0
        current.append(member)
        size += len(member)
    return [*parts, torch.cat(current)]


def _piece(task: Task, part: Any) -> Task:
    """Some of the examples, their units numbered anew."""
    own = None if task.units is None else torch.unique(task.units[part], return_inverse=True)[1]
    return replace(task, batch=pick(task.batch, part), units=own)


def _in_parts(
    task: Task,
    engine: Engine,
    memory: Memory,
    parts: Sequence[Any],
    meanwhile: Callable[[list[Tensor]], object] | None,
    random: bool,
) -> ClippedSum:
    """One microbatch after the other."""
    found: list[ClippedSum] = []
    sums: list[Tensor] = []
    for part in parts:
        piece = _part(_piece(task, part), engine, memory, meanwhile if part is parts[-1] else None, random)
        if sums:
            torch._foreach_add_(sums, piece.sums)
        else:  # a captured program writes the next part's sums where these are
            dtypes = [total.dtype for total in piece.sums]
            sums = [added(None, total) for total in piece.sums]
        found.append(replace(piece, sums=[]))
        del piece  # and with it sums as large as the parameters
    sums = [total.to(dtype) for total, dtype in zip(sums, dtypes, strict=True)]
    values = found[0].losses.new_empty(count(task.batch))
    for part, piece in zip(parts, found, strict=True):
        values[part] = piece.losses
    notes = tuple(note for piece in found for note in piece.notes)
    return ClippedSum(sums, torch.cat([piece.norms for piece in found]), values, notes)


def _part(
    task: Task, engine: Engine, memory: Memory, meanwhile: Callable[[list[Tensor]], object] | None, random: bool
) -> ClippedSum:
    """What is computed at once, without the units whose gradients aren't finite, should there be any."""
    if isinstance(engine, Grouped):
        task, engine = _of_means(task), Auto()

    def alone() -> ClippedSum:
        """One after the other."""
        return _run(task, Memory(way=_LAST_WAY), engine if isinstance(engine, Projected) else Loop())

    return of_finite_units(task, partial(_run, engine=engine), alone, memory, random, meanwhile)


def _of_means(task: Task) -> Task:
    """Of groups' means instead of their sums."""
    if task.units is None:
        raise ValueError("Grouped clipping needs every example's group; draw the batch with the plan's sampler.")
    sizes, inner = torch.bincount(task.units).to(torch.float32)[:, None], task.weigh

    def of_mean(norms: Tensor) -> Tensor:
        shares = sizes.to(norms.device)
        return inner(norms / shares) / shares

    return replace(task, weigh=of_mean)


def _run(task: Task, memory: Memory, engine: Engine) -> ClippedSum:
    from hush.gradients import captured, ghost, plain, projected

    if isinstance(engine, Projected):
        return projected.projected(task, engine, memory)
    if isinstance(engine, Loop):
        return plain.loop(task)
    if isinstance(engine, Vmap):
        return filled(task, lambda full: plain.vmap(full, engine.chunk))
    if isinstance(engine, Auto) and engine.capture and memory.capacity is not None and task.units is None:
        try:
            return captured.captured_sum(task, memory, memory.capacity, engine.compile)
        except captured.NotCapturable as reason:
            result = filled(task, lambda full: ghost.ghost(full, memory))
            return replace(result, notes=(*result.notes, f"not captured: {reason}"))
    return filled(task, lambda full: ghost.ghost(full, memory))


def _nothing(parameters: Sequence[Tensor], groups: Groups) -> ClippedSum:
    device = parameters[0].device
    sums = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
    return ClippedSum(sums, torch.zeros(0, len(groups), device=device), torch.zeros(0, device=device), ())
