"""Where the examples of a use are: found by differentiating weighted sums of the losses, checked on every example.

Let g be the gradient of the sum of all losses at a use's output, and g_r that of `sum_i r_i loss_i`. If the use treats
examples separately and example i sits where a layout says, then `g_r = r_i g` there, and zero where `r_i = 0`. And if
the rule is right, its gradients weighted by r add up to what autograd finds at the parameter's stand-in.

On a CPU, where float32 or better is in play, one r is enough: eight powers of two, spread over the examples. Products
with powers of two aren't rounded, so `g_r = r_i g` holds to the last bit, unless something of an example with another
weight is large enough to change one. What fails there, and whatever is coarser, is asked with two choices of r: half of
the examples zero, then the other half, the rest powers of two.

Two examples of the same weight could have changed places unseen, and two of the same half could have met. So in a
thorough look the weights follow the digits of the examples' numbers to base eight, one digit after the other, and the
halves those to base two: any two differ in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from hush.gradients.chosen import among
from hush.gradients.factors import Factor, Outer, weighted_sum
from hush.gradients.layout import Layout, possible
from hush.gradients.rules.common import Unfit
from hush.gradients.tape import Use

_HALF = (torch.bfloat16, torch.float16)
_LEVELS = 8


@dataclass(frozen=True)
class _Rounding:
    """What may be off: relative to a sum, and in units of what rounding may leave of gradients that cancel."""

    tolerance: float
    units: float
    in_sums: float
    epsilon: float | None = None

    def unit(self, x: Tensor) -> float:
        return torch.finfo(x.dtype).eps if self.epsilon is None else self.epsilon


_EXACT, _FINE = _Rounding(1e-4, 0, 100), _Rounding(1e-3, 100, 100)
# Where any gradient went through half precision, and on a GPU: TF32 products, and additions in any order. What would
# be wrong is wrong by much more.
_COARSE = _Rounding(5e-2, 1, 4, 2.0**-8)


class Verdict(Enum):
    """What else may be said of a use."""

    IDLE = "its output doesn't lead to the losses"
    MIXED = "an example's loss depends on what belongs to another, wherever examples are taken to be"


Place = Layout | Verdict | None


def looked_for(
    values: Tensor, uses: list[Use], grads: Sequence[Tensor | None], n: int, open_uses: Sequence[int], turn: int
) -> dict[int, Place]:
    """The places of the open uses, from the gradients of the sum of all losses; what can't be told yet is left out.

    `turn` numbers the looks: at another one the examples' weights are others. Until the first, looks are thorough.
    """
    half = any(grad is not None and grad.dtype in _HALF for grad in grads)
    rounding = _COARSE if values.is_cuda or half else _FINE
    told: dict[int, Place] = {}
    doubtful = list(open_uses)
    if rounding is _FINE:
        look = _Look(values, uses, grads, n, doubtful, _EXACT)
        for classes in _classes(n, turn):
            look.probe(torch.exp2(classes.to(values)))
        told = {k: place for k, place in look.places().items() if isinstance(place, Layout | Verdict)}
        doubtful = [k for k in doubtful if k not in told and k not in look.unclear]
    if doubtful:
        look = _Look(values, uses, grads, n, doubtful, rounding)
        for r in _halves(values, n, turn):
            look.probe(r)
        told |= look.places()
    return told


class _Look:
    """What is left of what the shapes of some uses allow, after one probe and the next."""

    def __init__(
        self,
        values: Tensor,
        uses: list[Use],
        grads: Sequence[Tensor | None],
        n: int,
        open_uses: Sequence[int],
        rounding: _Rounding,
    ) -> None:
        self._values, self._uses, self._grads, self._n, self._open = values, uses, grads, n, open_uses
        self._rounding = rounding
        self._fits = {k: possible(uses[k].shape, n) if _real(grads[k]) else [] for k in open_uses}
        self._apart = dict(self._fits)  # where nothing arrived yet of a loss that has no share in the sum
        self._idle = {k for k in open_uses if grads[k] is None}
        self._sound = {k for k in open_uses if _finite(grads[k])}
        self._there = {k for k in self._sound if _any(grads[k])}
        self._mixed: set[int] = set()
        self.unclear: set[int] = set()

    def probe(self, r: Tensor) -> None:
        """Differentiate once, and keep what explains what is found."""
        chosen, rest = r.nonzero().flatten(), (r == 0).nonzero().flatten()
        apart: dict[int, list[Layout]] = {}
        scaled: dict[int, list[Layout]] = {}

        def see(k: int, part: Tensor) -> None:
            whole, fits = self._grads[k], self._fits[k]
            if whole is None or k not in self._sound:
                apart[k] = scaled[k] = []
            elif self._rounding is _EXACT:
                apart[k], scaled[k] = fits, [layout for layout in fits if _same(layout, whole, part, r)]
            else:
                apart[k] = [layout for layout in self._apart[k] if _apart(layout, part, rest)]
                left = [layout for layout in fits if layout in apart[k]]
                scaled[k] = [layout for layout in left if _scaled(layout, whole, part, r, chosen, self._rounding)]

        truths = _differentiated(self._values, [(k, self._uses[k]) for k in self._open], r, see)
        for k in self._open:
            use, whole, truth = self._uses[k], self._grads[k], truths.get(k)
            if whole is None or k not in scaled:
                if whole is not None or truth is not None:
                    self._idle.discard(k)
                    self._fits[k] = []  # its gradient comes by another way than its output
            elif k not in self._sound or not _finite(truth) or not (k in self._there or _any(truth)):
                self.unclear.add(k)
            elif self._apart[k]:
                self._apart[k] = apart[k]
                if not apart[k]:
                    self._mixed.add(k)
                if truth is not None:
                    scaled[k] = [
                        layout for layout in scaled[k] if _adds_up(use, layout, whole, truth, r, self._rounding)
                    ]
                self._fits[k] = scaled[k]

    def places(self) -> dict[int, Place]:
        """What is left, where it is one thing."""
        fits = self._fits
        several = {k for k in self._open if len(fits[k]) > 1 and self._n > 1}  # with one example all mean the same
        told: dict[int, Place] = {k: next(iter(fits[k]), None) for k in self._open if k not in self.unclear | several}
        return told | dict.fromkeys(self._idle, Verdict.IDLE) | dict.fromkeys(self._mixed, Verdict.MIXED)


def _differentiated(
    values: Tensor, uses: Sequence[tuple[int, Use]], r: Tensor, see: Callable[[int, Tensor], None]
) -> dict[int, Tensor | None]:
    """Gradients of `sum_i r_i loss_i` at the stand-ins; those at outputs are shown as they arrive, and not kept."""
    leaves = [(k, use.stand_in) for k, use in uses if use.stand_in is not None]
    alone = [(k, use.edge) for k, use in uses if use.stand_in is None]
    watched: dict[Any, list[tuple[int, int]]] = {}
    for k, use in uses:
        if use.stand_in is not None:
            watched.setdefault(use.edge.node, []).append((k, use.edge.output_nr))

    def watch(there: list[tuple[int, int]]) -> Callable[[tuple[Tensor | None, ...]], None]:
        def arrived(grads: tuple[Tensor | None, ...]) -> None:
            for k, number in there:
                grad = grads[number]
                if grad is not None:
                    see(k, grad)

        return arrived

    hooks = [node.register_prehook(watch(there)) for node, there in watched.items()]
    try:
        wanted: list[Any] = [x for _, x in (*leaves, *alone)]
        found = torch.autograd.grad(values, wanted, r, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    for (k, _), grad in zip(alone, found[len(leaves) :], strict=True):
        if grad is not None:
            see(k, grad)
    return {k: grad for (k, _), grad in zip(leaves, found, strict=False)}


def _classes(n: int, turn: int, base: int = _LEVELS) -> list[Tensor]:
    """Numbers below `base`, for as many examples each: all digits of theirs, or by chance, other ones at every turn."""
    if turn > 1:
        return [torch.randperm(n, generator=torch.Generator().manual_seed(turn)) % base]
    number = torch.arange(n)
    found: list[Tensor] = []
    while not found or bool(number.any()):
        found.append(number % base)
        number = number // base
    return found


def _halves(values: Tensor, n: int, turn: int) -> list[Tensor]:
    """Half of the examples with one of four weights, the others with none, and the other way round."""
    (by_chance,) = _classes(n, max(turn, 2))
    sizes = torch.exp2((by_chance % 4).to(values))
    if n == 1:
        return [sizes]
    kinds = _classes(n, turn, 2) if turn <= 1 else [by_chance // 4]
    halves = [torch.where(kind.to(values.device) == side, sizes, 0) for kind in kinds for side in (0, 1)]
    return [r for r in halves if bool(r.any())]


def _same(layout: Layout, whole: Tensor, part: Tensor, r: Tensor) -> bool:
    """Whether what was found is the scaled gradient to the last bit."""
    here = layout.first(whole)
    return torch.equal(layout.first(part), here * r.to(here.dtype).view(-1, *[1] * (here.dim() - 1)))


def _apart(layout: Layout, part: Tensor, rest: Tensor) -> bool:
    """Whether nothing arrives at the examples that have no share in the loss."""
    return not bool(layout.first(part)[rest].any())


def _scaled(layout: Layout, whole: Tensor, part: Tensor, r: Tensor, chosen: Tensor, rounding: _Rounding) -> bool:
    """Whether the chosen examples' gradients, where r isn't zero, are scaled by it, to rounding."""
    weights = r[chosen]
    rows = layout.first(whole).unsqueeze(-1)
    every = torch.linalg.vector_norm(rows, dim=tuple(range(1, rows.dim())), dtype=_at_least_float(rows))
    here, there = (layout.first(x)[chosen].reshape(len(chosen), -1) for x in (whole, part))  # copies
    apart = there.sub_(here.mul_(weights.to(here.dtype)[:, None]))
    away = torch.linalg.vector_norm(apart, dim=1, dtype=_at_least_float(here))
    slack = rounding.units * rounding.unit(whole) * every.max()
    return not bool((away > weights * (rounding.tolerance * every[chosen] + slack)).any())


def _adds_up(use: Use, layout: Layout, whole: Tensor, truth: Tensor, r: Tensor, rounding: _Rounding) -> bool:
    """Whether the rule's gradients, weighted by r, add up to the truth."""
    try:
        factor = use.factor(layout, whole)
        if bool((r == 0).any()):
            chosen = r.nonzero().flatten()
            factor, r = among(factor, chosen), r[chosen]
        off = _norm(weighted_sum([factor], r).view_as(truth).to(truth.dtype) - truth)
    except (Unfit, RuntimeError):
        return False
    near = rounding.tolerance * _norm(truth)
    if bool(off <= near):
        return True
    noise = rounding.in_sums * rounding.unit(whole) * _size(factor, whole) * r.max()
    return bool(off <= near + noise)  # a gradient may vanish but for rounding


def _size(factor: Factor, grad: Tensor) -> Tensor:
    """The sum of the magnitudes that are added up in a gradient, or nearly."""
    if isinstance(factor, Outer):
        return _norm(factor.a) * _norm(factor.b)
    return _norm(grad)


def _norm(x: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(x, dtype=_at_least_float(x))
    return result


def _at_least_float(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _any(x: Tensor | None) -> bool:
    """Whether there is anything but zeros; mostly told by the sum alone, which is one pass."""
    return x is not None and (bool(x.sum() != 0) or bool(x.any()))


def _real(x: Tensor | None) -> bool:
    return x is None or not x.is_complex()


def _finite(x: Tensor | None) -> bool:
    """A sum with anything in it that isn't finite isn't; the other way round it may only have overflowed."""
    return x is None or bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())
