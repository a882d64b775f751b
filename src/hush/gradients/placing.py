"""Where each recorded use has its examples: looked for by `probing`, then remembered, and looked for again.

A place belongs to a course of the forward pass: which operations met which parameters, with the examples in which
dimension, as far as calls tell (`moving`). Batches of another size take the same course, so what was found with one is
known for all, as long as their shapes allow it; a place that they don't allow is looked for anew. So are all at the
1st, 2nd, 4th, 8th, ... call, and at every call where calls don't tell, since examples may have moved.

A use that fails, or can't be told yet, takes the slower path in that call. Where a loss reaches other examples' places
whatever the layout, all parameters take it: then every example is computed by itself, and nothing can mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Size, Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from hush.gradients.engines import Memory
from hush.gradients.layout import Layout, Order, possible
from hush.gradients.probing import Place, Verdict, looked_for
from hush.gradients.tape import Tape, Use


def structure(tape: Tape, parameters: Sequence[Tensor]) -> Any:
    """What tells one course of the forward pass from another: operations, parameters, dimensions, examples' places."""
    index = {id(p): k for k, p in enumerate(parameters)}
    uses = tuple((use.name, index.get(id(use.source), -1), len(use.shape)) for use in tape.uses)
    return tape.examples == 1, tape.moved, uses, tuple(tape.course)


def now_and_then(key: Any, memory: Memory) -> bool:
    """At the 1st, 2nd, 4th, 8th, ... call: code may start to mix examples later on. Never while a program is traced."""
    if get_proxy_mode() is not None:
        return False
    calls = memory.calls[key] = memory.calls.get(key, 0) + 1
    return calls & (calls - 1) == 0


def must_look(uses: list[Use], n: int, key: Any, memory: Memory, moved: bool) -> bool:
    """Whether places may have to be looked for in this call: where examples move, and now and then anyway."""
    if now_and_then(key, memory) or moved:
        memory.places.pop(key, None)
    if get_proxy_mode() is not None:  # while a program is traced, what is known must do
        return False
    return len(_remembered(uses, n, key, memory)) < len(uses)


def places(
    values: Tensor, uses: list[Use], grads: Sequence[Tensor | None], n: int, key: Any, memory: Memory, moved: bool
) -> list[Place]:
    """Each use's layout; None where nothing fits.  Where examples move, every look is as thorough as the first."""
    if not values.requires_grad:
        return [Verdict.IDLE] * len(uses)
    found = _remembered(uses, n, key, memory)
    if len(found) < len(uses):
        missing = [k for k in range(len(uses)) if k not in found]
        told = looked_for(values, uses, grads, n, missing, turn=0 if moved else memory.calls.get(key, 0))
        known = memory.places.setdefault(key, {})
        for k, place in told.items():
            known.setdefault(k, {})[_orders(uses[k].shape, n)] = place
        found |= told
    every = [found.get(k) for k in range(len(uses))]
    return [Layout(place.order, n) if isinstance(place, Layout) else place for place in every]


def _remembered(uses: list[Use], n: int, key: Any, memory: Memory) -> dict[int, Place]:
    """What is known of the uses: found where the shape allowed the same orders, or one that it allows now as well."""
    found: dict[int, Place] = {}
    for k, known in memory.places.get(key, {}).items():
        orders = _orders(uses[k].shape, n)
        elsewhere = {place.order: place for place in known.values() if isinstance(place, Layout)}
        here = [place for order, place in elsewhere.items() if order in orders]
        if orders in known:
            found[k] = known[orders]
        elif len(here) == 1:
            found[k] = here[0]
    return found


def _orders(shape: Size, n: int) -> tuple[Order, ...]:
    return tuple(layout.order for layout in possible(shape, n))
