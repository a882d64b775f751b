"""The ghost engine: one forward pass on tape, one backward pass to the recorded outputs, norms and sums from factors.

The backward pass computes no weight gradients. Each use's per-example gradients are known as factors; norms come from
those, the weights from the norms, and the sum from the factors again. What the tape missed is computed apart, and
noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hush.gradients.engines import ClippedSum, Groups, Losses, Memory, Weigh, count, one_loss_each, slots_of
from hush.gradients.factors import Factor, Formed, formed, regroup, settle, squared_norms, take, weighted_sum
from hush.gradients.layout import Layout, possible
from hush.gradients.plain import per_example
from hush.gradients.rules.common import Unfit
from hush.gradients.tape import Tape, Use


def ghost(
    parameters: Sequence[Tensor],
    losses: Losses,
    batch: Sequence[Any],
    groups: Groups,
    weigh: Weigh,
    units: Tensor | None,
    memory: Memory,
) -> ClippedSum:
    n = count(batch)
    with torch.compiler.set_stance("force_eager"), Tape(parameters, batch, n) as tape:
        values = one_loss_each(losses(*batch), n)
    uses = tape.uses
    key = _structure(uses, parameters)
    factors, missed = _factors(values, uses, _known_layouts(values, uses, n, key, memory), parameters)

    notes = ["ghost"]
    if missed:
        order = sorted(missed)
        grads, _, how = per_example(parameters, losses, batch, order)
        for k, grad in zip(order, grads, strict=True):
            factors[k] = [Formed(grad)]
        notes += [f"parameter {k} by {how}: {missed[k]}" for k in order]

    slots = slots_of(units, n, values.device)
    if slots is not None:
        factors = {k: [regroup(factor, slots) for factor in found] for k, found in factors.items()}
    for k, found in factors.items():
        factors[k] = settle(found)
    norms = _norms(factors, groups, len(slots) if slots is not None else n, values)
    weights = weigh(norms)
    sums: list[Tensor] = []
    of = {k: g for g, group in enumerate(groups) for k in group}
    for k, parameter in enumerate(parameters):
        if k in factors:
            sums.append(weighted_sum(factors.pop(k), weights[:, of[k]]).view_as(parameter))
        else:
            sums.append(torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32)))
    return ClippedSum(sums, norms, values.detach(), tuple(notes))


def _factors(
    values: Tensor, uses: list[Use], layouts: list[Layout | None], parameters: Sequence[Tensor]
) -> tuple[dict[int, list[Factor]], dict[int, str]]:
    """Each parameter's factors, and the parameters that need another way, with the reason."""
    grads, direct = _backward(values, uses, parameters)
    missed = {k: "it is used by code that can't be seen" for k, grad in enumerate(direct) if grad is not None}
    index = {id(p): k for k, p in enumerate(parameters)}
    factors: dict[int, list[Factor]] = {}
    derived: dict[int, tuple[Tensor, list[Tensor]]] = {}
    for use, layout, grad in zip(uses, layouts, grads, strict=True):
        if grad is None:
            continue
        k = index.get(id(use.source))
        if k is None and use.source.grad_fn is None:
            continue
        try:
            if layout is None:
                raise Unfit(f"no rule fits its use in {use.name}")
            factor = use.factor(layout, grad)
        except Unfit as reason:
            missed |= dict.fromkeys([k] if k is not None else _reached(use.source, parameters), str(reason))
            continue
        if k is None:
            derived.setdefault(id(use.source), (use.source, []))[1].append(formed(factor))
        else:
            factors.setdefault(k, []).append(factor)
    for source, pieces in derived.values():
        for k, grad in _pulled_back(source, sum(pieces[1:], pieces[0]), parameters):
            factors.setdefault(k, []).append(Formed(grad))
    for k in missed:
        factors.pop(k, None)
    return factors, missed


def _backward(
    values: Tensor, uses: list[Use], parameters: Sequence[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients at every use's output, and at the parameters themselves: None there, unless a use was missed."""
    if not values.requires_grad:
        return [None] * len(uses), [None] * len(parameters)
    edges = {(use.edge.node, use.edge.output_nr): use.edge for use in uses}
    wanted: list[Any] = [*edges.values(), *parameters]
    found = torch.autograd.grad(values.sum(), wanted, allow_unused=True)
    at = dict(zip(edges, found, strict=False))
    return [at[use.edge.node, use.edge.output_nr] for use in uses], list(found[len(edges) :])


def _known_layouts(values: Tensor, uses: list[Use], n: int, key: Any, memory: Memory) -> list[Layout | None]:
    """The structure's layouts; looked for again at its 2nd, 4th, 8th, ... call while parts had no gradient to see."""
    calls = memory.doubts.get(key, 0) + 1
    if key not in memory.layouts or (key in memory.doubts and calls & (calls - 1) == 0):
        memory.layouts[key], settled = _layouts(values, uses, n)
        if settled:
            memory.doubts.pop(key, None)
            return memory.layouts[key]
        memory.doubts[key] = calls
    elif key in memory.doubts:
        memory.doubts[key] = calls
    return [None if layout is None else Layout(layout.order, n) for layout in memory.layouts[key]]


def _layouts(values: Tensor, uses: list[Use], n: int) -> tuple[list[Layout | None], bool]:
    """Where each use has its examples, found and checked by differentiating single examples' losses.

    For an example i alone the gradient at a use's output must vanish outside i, and the rule's gradient of example i
    must be autograd's. A use that fits no order gets None. False where some gradients were all zero, so that nothing
    could be told.
    """
    if not uses or not values.requires_grad:
        return [None] * len(uses), not uses
    fits = [possible(use.shape, n) for use in uses]
    seen = [False] * len(uses)
    for example in sorted({0, n // 2, n - 1}):
        wanted: list[Any] = [use.edge for use in uses]
        wanted += [use.stand_in for use in uses if use.stand_in is not None]
        found: Sequence[Tensor | None] = torch.autograd.grad(
            values[example], wanted, retain_graph=True, allow_unused=True
        )
        truths = iter(found[len(uses) :])
        for k, (use, grad) in enumerate(zip(uses, found, strict=False)):
            truth = None if use.stand_in is None else next(truths)
            if grad is None:
                seen[k] = True  # nothing leads from here to the losses
            elif bool(grad.any()):
                seen[k] = True
                fits[k] = [layout for layout in fits[k] if _fits(use, layout, grad, truth, example)]
    chosen = [fit[0] if len(fit) == 1 or (fit and sure) else None for fit, sure in zip(fits, seen, strict=True)]
    return chosen, all(seen)


def _fits(use: Use, layout: Layout, grad: Tensor, truth: Tensor | None, example: int) -> bool:
    others = layout.first(grad).clone()
    others[example] = 0
    if bool((others.nan_to_num() != 0).any()):
        return False
    if truth is None or not bool(torch.isfinite(truth).all()):
        return True
    try:
        mine = take(use.factor(layout, grad), example).to(truth.dtype)
    except Unfit:
        return False
    tolerance = 5e-2 if grad.dtype in (torch.bfloat16, torch.float16) else 1e-3
    noise = 1e4 * torch.finfo(grad.dtype).eps * grad.norm()  # a gradient may vanish but for rounding
    return bool((mine - truth).norm() <= tolerance * truth.norm() + noise)


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


def _structure(uses: list[Use], parameters: Sequence[Tensor]) -> Any:
    index = {id(p): k for k, p in enumerate(parameters)}
    return tuple((use.name, index.get(id(use.source), -1), len(use.shape)) for use in uses)


def _reached(source: Tensor, parameters: Sequence[Tensor]) -> list[int]:
    found = torch.autograd.grad(source.sum(), list(parameters), retain_graph=True, allow_unused=True)
    return [k for k, grad in enumerate(found) if grad is not None]


def _pulled_back(source: Tensor, grads: Tensor, parameters: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
    """Per-example gradients of a derived tensor, as those of the parameters it was computed from."""
    reached = _reached(source, parameters)
    chosen = [parameters[k] for k in reached]
    grads = grads.to(source.dtype)
    try:
        found = torch.autograd.grad(source, chosen, grads, retain_graph=True, is_grads_batched=True)
    except RuntimeError:  # an operation without a vectorised derivative
        each = [torch.autograd.grad(source, chosen, grad, retain_graph=True) for grad in grads]
        found = tuple(torch.stack(column) for column in zip(*each, strict=True))
    return list(zip(reached, found, strict=True))
