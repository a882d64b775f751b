"""The ghost engine: one forward pass on tape, one backward pass to the recorded outputs, norms and sums from factors.

The backward pass computes no weight gradients. Each use's per-example gradients are known as factors; norms come from
those, the weights from the norms, and the sum from the factors again. What the tape missed is computed apart, and
noted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from hush.gradients.chosen import emptied, regroup
from hush.gradients.company import refuse_company
from hush.gradients.engines import ClippedSum, Groups, Memory, Task, count, one_loss_each, slots_of
from hush.gradients.factors import Factor, Formed, formed, settle, weighted_sum
from hush.gradients.filling import weights_of
from hush.gradients.layout import Layout
from hush.gradients.norms import squared_norms
from hush.gradients.placing import must_look, now_and_then, places, structure
from hush.gradients.plain import per_example
from hush.gradients.probing import Verdict
from hush.gradients.rules.common import Unfit, without_speed_warnings
from hush.gradients.tape import Tape, Use
from hush.precision import computes_in_half


@dataclass(frozen=True)
class Prepared:
    """The first half's outcome: the units' norms, the examples' losses, each parameter's factors, notes."""

    norms: Tensor
    values: Tensor
    factors: dict[int, list[Factor]]
    notes: tuple[str, ...]
    settled: bool
    """Whether the examples are where they are whatever the data."""


def ghost(task: Task, memory: Memory) -> ClippedSum:
    """Both halves with the weights in between."""
    found = prepare(task, memory)
    factors, weights = found.factors, weights_of(task, found.norms)
    spoiled = ~torch.isfinite(found.norms).all(1)
    if bool(spoiled.any()):
        weights = weights.masked_fill(spoiled[:, None], 0)
        factors = {k: [emptied(factor, spoiled) for factor in of_one] for k, of_one in factors.items()}
    sums = finish(task, factors, weights)
    # a slower way may be gone for want of finite examples only, and it has random numbers of its own
    doubtful = (spoiled.any() | ~torch.isfinite(found.values).all()) & (len(found.notes) > 1)
    return ClippedSum(sums, found.norms, found.values, found.notes, doubtful)


def prepare(task: Task, memory: Memory) -> Prepared:
    """Forward on tape, backward to the recorded outputs, factors and norms."""
    parameters, losses, batch = task.parameters, task.losses, task.batch
    n = count(batch)
    with torch.compiler.set_stance("force_eager"), Tape(parameters, batch, n) as tape:
        values = one_loss_each(losses(*batch), n)
    tape.end(values)
    if n - task.copies > 1 and now_and_then("company", memory):
        with torch.compiler.set_stance("force_eager"):
            refuse_company(losses, batch, values, last=n - task.copies - 1)
    slots = slots_of(task.units, values.device)
    held, values = [values], values.detach()
    factors, missed = _factors(held, tape, parameters, memory, slots, lambda: computes_in_half(losses, batch))
    notes = ["ghost"]
    if missed:
        order = sorted(missed)
        if memory.begun is not None:
            memory.begun.go_back()  # vectorised, the loss draws the same numbers: who came here changes nobody else's
        grads, _, how = per_example(parameters, losses, batch, order)
        for k, grad in zip(order, grads, strict=True):
            factors[k] = _settled([Formed(grad)], slots)
        notes += [f"parameter {k} by {how}: {missed[k]}" for k in order]
    norms = _norms(factors, task.groups, len(slots) if slots is not None else n, values)
    return Prepared(norms, values, factors, tuple(notes), tape.settled)


def finish(task: Task, factors: dict[int, list[Factor]], weights: Tensor) -> list[Tensor]:
    """The weighted sum of the units' gradients, parameter by parameter; factors are let go as they are used."""
    sums: list[Tensor] = []
    of = {k: g for g, group in enumerate(task.groups) for k in group}
    for k, parameter in enumerate(task.parameters):
        if k in factors:
            sums.append(weighted_sum(factors.pop(k), weights[:, of[k]]).view_as(parameter))
        else:
            sums.append(torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32)))
    return sums


def _settled(factors: list[Factor], slots: Tensor | None) -> list[Factor]:
    return settle(factors if slots is None else [regroup(factor, slots) for factor in factors])


def _factors(
    held: list[Tensor],
    tape: Tape,
    parameters: Sequence[Tensor],
    memory: Memory,
    slots: Tensor | None,
    in_half: Callable[[], bool],
) -> tuple[dict[int, list[Factor]], dict[int, str]]:
    """Each parameter's factors, and the parameters that need another way, with the reason.

    The losses' graph, all of whose activations are kept where places are looked for, is let go before factors are made:
    nobody else may hold the losses, nor the tape's uses.
    """
    if tape.lost is not None:
        return {}, dict.fromkeys(range(len(parameters)), tape.lost)
    values, uses, n = held.pop(), tape.uses, tape.examples
    key = structure(tape, parameters)
    grads, direct = _backward(values, uses, parameters, keep=must_look(uses, n, key, memory, tape.moved))
    if not memory.half and any(grad is not None and grad.dtype in (torch.bfloat16, torch.float16) for grad in grads):
        memory.half = get_proxy_mode() is not None or in_half()  # a program is the same whatever the records
        if not memory.half:  # products would be coarser for some records, and thresholds lower for all of them
            return {}, dict.fromkeys(range(len(parameters)), "some examples only are computed in half precision")
    layouts = places(values, uses, grads, n, key, memory, tape.moved)
    if Verdict.MIXED in layouts:
        name = uses[layouts.index(Verdict.MIXED)].name
        return {}, dict.fromkeys(range(len(parameters)), f"examples meet or change places before the use in {name}")
    missed = {k: "it is used by code that can't be seen" for k, grad in enumerate(direct) if grad is not None}
    index = {id(p): k for k, p in enumerate(parameters)}
    derived_at = {id(use.source): use for use in uses if id(use.source) not in index}
    behind = {at: _reached(use.source, parameters, uses) for at, use in derived_at.items()}
    mistaken = [derived_at[at].name for at, reached in behind.items() if reached is None]
    if mistaken:
        return {}, dict.fromkeys(range(len(parameters)), f"its use in {mistaken[0]} was mistaken")
    factors: dict[int, list[Factor]] = {}
    derived: dict[int, tuple[Tensor, list[Tensor]]] = {}
    left = Counter(id(use.source) for use in uses)
    settled: set[int] = set()
    rest = deque((use.name, use.source, use.factor, layout) for use, layout in zip(uses, layouts, strict=True))
    tape.uses.clear()
    del values, derived_at
    for where in range(len(rest)):  # what isn't needed any more is let go
        (name, source, make, layout), grad = rest.popleft(), grads[where]
        grads[where] = None
        left[id(source)] -= 1
        k = index.get(id(source))
        if layout is Verdict.IDLE and grad is None:
            continue
        try:
            if grad is None or not isinstance(layout, Layout):
                raise Unfit(f"no rule fits its use in {name}")
            factor = make(layout, grad)
        except Unfit as reason:
            missed |= dict.fromkeys([k] if k is not None else behind[id(source)] or [], str(reason))
            continue
        if k is None:
            derived.setdefault(id(source), (source, []))[1].append(formed(factor))
        else:
            factors.setdefault(k, []).append(factor)
            if left[id(source)] == 0:
                factors[k] = _settled(factors[k], slots)
                settled.add(k)
        del make, grad, factor
    factors |= {k: _settled(found, slots) for k, found in factors.items() if k not in settled}
    for source, pieces in derived.values():
        for k, grad in _pulled_back(source, sum(pieces[1:], pieces[0]), parameters, behind[id(source)] or []):
            factors[k] = settle([*factors.get(k, []), *_settled([Formed(grad)], slots)])
    for k in missed:
        factors.pop(k, None)
    return factors, missed


def _backward(
    values: Tensor, uses: list[Use], parameters: Sequence[Tensor], *, keep: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients at every use's output, and at the parameters themselves: None there, unless a use was missed."""
    if not values.requires_grad:
        return [None] * len(uses), [None] * len(parameters)
    edges = {(use.edge.node, use.edge.output_nr): use.edge for use in uses}
    wanted: list[Any] = [*edges.values(), *parameters]
    found = torch.autograd.grad(values.sum(), wanted, retain_graph=keep, allow_unused=True)
    at = dict(zip(edges, found, strict=False))
    return [at[use.edge.node, use.edge.output_nr] for use in uses], list(found[len(edges) :])


def _norms(factors: dict[int, list[Factor]], groups: Groups, units: int, like: Tensor) -> Tensor:
    dtype = torch.promote_types(like.dtype, torch.float32)
    columns = []
    for group in groups:
        total = torch.zeros(units, dtype=dtype, device=like.device)
        for k in group:
            if k in factors:
                total = total + squared_norms(factors[k])
        columns.append(total.sqrt())
    return torch.stack(columns, 1)


def _reached(source: Tensor, parameters: Sequence[Tensor], uses: list[Use]) -> list[int] | None:
    """The parameters that a derived tensor was computed from; None if data are behind it after all."""
    wanted: list[Any] = [*parameters, *(use.edge for use in uses)]
    found: Sequence[Tensor | None] = torch.autograd.grad(source.sum(), wanted, retain_graph=True, allow_unused=True)
    if any(grad is not None for grad in found[len(parameters) :]):
        return None
    return [k for k, grad in enumerate(found[: len(parameters)]) if grad is not None]


def _pulled_back(
    source: Tensor, grads: Tensor, parameters: Sequence[Tensor], reached: list[int]
) -> list[tuple[int, Tensor]]:
    """Per-example gradients of a derived tensor, as those of the parameters it was computed from."""
    chosen = [parameters[k] for k in reached]
    grads = grads.to(source.dtype)
    try:
        with without_speed_warnings():
            found = torch.autograd.grad(source, chosen, grads, retain_graph=True, is_grads_batched=True)
    except RuntimeError:  # an operation without a vectorised derivative
        each = [torch.autograd.grad(source, chosen, grad, retain_graph=True) for grad in grads]
        found = tuple(torch.stack(column) for column in zip(*each, strict=True))
    return list(zip(reached, found, strict=True))
