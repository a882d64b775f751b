"""Where each recorded use has its examples: found by differentiating, checked on every example, then remembered.

Let g be the gradient of the sum of all losses at a use's output, and g_r that of `sum_i r_i loss_i`. If the use treats
examples separately and example i sits where a layout says, then `g_r = r_i g` there, and zero where `r_i = 0`. And if
the rule is right, its gradients weighted by r add up to what autograd finds at the parameter's stand-in. Two choices of
r (half of the examples zero, then the other half; the rest powers of two, which scale without rounding) test them all.
A use that fails, or can't be told yet, takes the slower path in that call. Where a loss reaches other examples' places
whatever the layout, all parameters take it: then every example is computed by itself, and nothing can mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from hush.gradients.engines import Memory
from hush.gradients.factors import Factor, Outer, among, weighted_sum, wide
from hush.gradients.layout import Layout, possible
from hush.gradients.rules.common import Unfit
from hush.gradients.tape import Use

_HALF = (torch.bfloat16, torch.float16)
_GOLDEN = (5**0.5 - 1) / 2


class Verdict(Enum):
    """What else may be said of a use."""

    IDLE = "its output doesn't lead to the losses"
    MIXED = "an example's loss depends on what belongs to another, wherever examples are taken to be"


Place = Layout | Verdict | None


def structure(uses: list[Use], parameters: Sequence[Tensor], n: int) -> Any:
    """What tells one course of the forward pass from another: operations, parameters, and what their shapes allow."""
    index = {id(p): k for k, p in enumerate(parameters)}
    orders = [tuple(layout.order for layout in possible(use.shape, n)) for use in uses]
    return n == 1, tuple(
        (use.name, index.get(id(use.source), -1), len(use.shape), order)
        for use, order in zip(uses, orders, strict=True)
    )


def now_and_then(key: Any, memory: Memory) -> bool:
    """At the 1st, 2nd, 4th, 8th, ... call: code may start to mix examples later on. Never while a program is traced."""
    if get_proxy_mode() is not None:
        return False
    calls = memory.calls[key] = memory.calls.get(key, 0) + 1
    return calls & (calls - 1) == 0


def must_look(uses: list[Use], key: Any, memory: Memory, moved: bool) -> bool:
    """Whether places may have to be looked for in this call: where examples move, and now and then anyway."""
    if now_and_then(key, memory) or moved:
        memory.places.pop(key, None)
    if get_proxy_mode() is not None:  # while a program is traced, what is known must do
        return False
    return len(memory.places.get(key, ())) < len(uses)


def places(
    values: Tensor, uses: list[Use], grads: list[Tensor | None], n: int, key: Any, memory: Memory
) -> list[Place]:
    """Each use's layout; None where nothing fits."""
    if not values.requires_grad:
        return [Verdict.IDLE] * len(uses)
    known = memory.places.setdefault(key, {})
    if len(known) < len(uses):
        known |= _looked_for(values, uses, grads, n, [k for k in range(len(uses)) if k not in known])
    found = [known.get(k) for k in range(len(uses))]
    return [Layout(place.order, n) if isinstance(place, Layout) else place for place in found]


def _looked_for(
    values: Tensor, uses: list[Use], grads: list[Tensor | None], n: int, open_uses: list[int]
) -> dict[int, Place]:
    fits = {k: possible(uses[k].shape, n) if _real(grads[k]) else [] for k in open_uses}
    unclear: set[int] = set()
    mixed: set[int] = set()
    leaves = [k for k in open_uses if uses[k].stand_in is not None]
    wanted: list[Any] = [uses[k].edge for k in open_uses] + [uses[k].stand_in for k in leaves]
    idle = {k for k in open_uses if grads[k] is None}
    coarse = values.is_cuda or any(grad is not None and grad.dtype in _HALF for grad in grads)
    sound = {k for k in open_uses if _finite(grads[k])}
    there = {k for k in sound if _any(grads[k])}
    for r in _probes(values, n):
        chosen, rest = r.nonzero().flatten(), (r == 0).nonzero().flatten()
        found: Sequence[Tensor | None] = torch.autograd.grad(values, wanted, r, retain_graph=True, allow_unused=True)
        truths = dict(zip(leaves, found[len(open_uses) :], strict=True))
        for k, part in zip(open_uses, found, strict=False):
            whole, truth = grads[k], truths.get(k)
            if whole is None or part is None:
                if truth is not None:
                    idle.discard(k)
                    fits[k] = []  # its gradient comes by another way than its output
            elif k not in sound or not _finite(truth) or not (k in there or _any(truth)):
                unclear.add(k)
            elif fits[k]:
                fits[k] = [layout for layout in fits[k] if _apart(layout, part, rest)]
                if not fits[k]:
                    mixed.add(k)
                fits[k] = [
                    layout for layout in fits[k] if _fits(uses[k], layout, whole, part, truth, r, chosen, coarse)
                ]
    several = {k for k in open_uses if len(fits[k]) > 1 and n > 1}  # with a single example all mean the same
    told: dict[int, Place] = {k: next(iter(fits[k]), None) for k in open_uses if k not in unclear | several}
    return told | dict.fromkeys(idle, Verdict.IDLE) | dict.fromkeys(mixed, Verdict.MIXED)


def _any(x: Tensor | None) -> bool:
    """Whether there is anything but zeros; mostly told by the sum alone, which is one pass."""
    return x is not None and (bool(x.sum() != 0) or bool(x.any()))


def _real(x: Tensor | None) -> bool:
    return x is None or not x.is_complex()


def _finite(x: Tensor | None) -> bool:
    """A sum with anything in it that isn't finite isn't; the other way round it may only have overflowed."""
    return x is None or bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def _probes(values: Tensor, n: int) -> list[Tensor]:
    number = torch.arange(n, device=values.device)
    spread = (number.double() * _GOLDEN) % 1
    chosen = spread < 0.5  # neighbours mostly apart
    sizes = torch.exp2((spread * 8 % 4).floor()).to(values.dtype)
    if n == 1:
        return [sizes]
    return [torch.where(chosen, sizes, 0), torch.where(chosen, 0, sizes)]


def _apart(layout: Layout, part: Tensor, rest: Tensor) -> bool:
    """Whether nothing arrives at the examples that have no share in the loss."""
    return not bool(layout.first(part)[rest].any())


def _fits(
    use: Use,
    layout: Layout,
    whole: Tensor,
    part: Tensor,
    truth: Tensor | None,
    r: Tensor,
    chosen: Tensor,
    coarse: bool,
) -> bool:
    """Whether the layout explains what was found, to rounding; asked of the chosen examples, where r isn't zero.

    At the others what was found is zero, and so is their share in the truth. Rounding is coarse where any gradient
    went through half precision, and on a GPU: TF32 products, and additions in any order. What would be wrong is wrong
    by much more.
    """
    weights = r[chosen]
    rows = layout.first(whole).unsqueeze(-1)
    every = torch.linalg.vector_norm(rows, dim=tuple(range(1, rows.dim())), dtype=_at_least_float(rows))
    here, there = (layout.first(x)[chosen].reshape(len(chosen), -1) for x in (whole, part))  # copies
    apart = there.sub_(here.mul_(weights.to(here.dtype)[:, None]))
    away = torch.linalg.vector_norm(apart, dim=1, dtype=_at_least_float(here))
    tolerance, eps = (5e-2, 2.0**-8) if coarse else (1e-3, torch.finfo(whole.dtype).eps)
    slack = (1 if coarse else 100) * eps * every.max()
    sizes = every[chosen]
    if bool((away > weights * (tolerance * sizes + slack)).any()):
        return False
    if truth is None:
        return True
    try:
        factor = among(use.factor(layout, whole), chosen)
        off = _norm(weighted_sum([factor], weights).view_as(truth).to(truth.dtype) - truth)
    except (Unfit, RuntimeError):
        return False
    if bool(off <= tolerance * _norm(truth)):
        return True
    noise = (4 if coarse else 100) * eps * _size(factor, whole) * r.max()  # a gradient may vanish but for rounding
    return bool(off <= tolerance * _norm(truth) + noise)


def _size(factor: Factor, grad: Tensor) -> Tensor:
    """The sum of the magnitudes that are added up in a gradient, or nearly."""
    if isinstance(factor, Outer):
        return _norm(wide(factor.a)) * _norm(wide(factor.b))
    return _norm(wide(grad))


def _norm(x: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(x)
    return result


def _at_least_float(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
