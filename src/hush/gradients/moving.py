"""Where the examples of a batch go, followed from call to call.

They begin in the first dimension of the batch's tensors. Every call on data that is listed in `calls` is known to leave
each example where it was, or to take it to where the call's own arguments say, whatever the data. Any other call, and
one that takes examples out of their order (sorted by length, sent to experts, a matrix of a permutation), loses them:
then nothing that was found at another call can be relied on, and the places are looked for again. So it is a list of
what is safe, not of what isn't: what nobody thought of costs time, and nothing else.

Whether examples *mix* is another question, which `probing` and `company` ask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from hush.gradients.axes import PACKED, Axis, Lost, in_order
from hush.gradients.calls import IN_PLACE, PROPERTIES, RULES, Call


class Whereabouts:
    """Which dimension holds the examples, of every tensor made of a batch; None: it holds none (a maximal length)."""

    def __init__(
        self,
        batch: Iterable[Tensor],
        examples: int,
        is_data: Callable[[Tensor], bool],
        is_clean: Callable[[Tensor], bool],
    ) -> None:
        """`is_data`: whether a tensor may be made of the batch; `is_clean`: whether it was seen not to be."""
        self._examples, self._is_data, self._is_clean = examples, is_data, is_clean
        self._known: dict[int, tuple[weakref.ref[Tensor], Axis | None]] = {}
        self._filled: set[int] = set()  # memory that held no examples until some were written into it
        self.chance = False  # an order that comes from the data was 0, 1, ..., n - 1 this time
        for tensor in batch:
            self.note(tensor, Axis(0) if tensor.dim() and tensor.shape[0] == examples else None)

    def note(self, tensor: Tensor, axis: Axis | None) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), axis)

    def of(self, tensor: Tensor) -> Axis | None:
        """Lost where data came from code that wasn't seen."""
        held = self._known.get(id(tensor))
        if held is not None and held[0]() is tensor:
            if held[1] is None and self._filled and _memory(tensor) in self._filled:
                raise Lost  # they came in by another view
            return held[1]
        if self._is_data(tensor):
            raise Lost
        return None

    def follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
        results: list[Tensor],
        in_place: bool,
    ) -> list[Axis | None]:
        """Note and return where a call's results have their examples; `Lost` where that can't be told."""
        name = PROPERTIES.get(func) or getattr(func, "__name__", "").strip("_")
        rule = RULES.get(name)
        if rule is None or (in_place and rule not in IN_PLACE):
            raise Lost
        call = Call(name, args, kwargs, tensors, self._examples, self)
        axes = [rule(call, result, k) for k, result in enumerate(results)]
        for axis, result in zip(axes, results, strict=True):
            if axis is not None and axis != PACKED:
                if not 0 <= axis.dim < result.dim() or result.shape[axis.dim] != axis.size(self._examples):
                    raise Lost
                if in_place and self.of(result) is None:
                    self._filled.add(_memory(result))
            self.note(result, axis)
        return axes

    def stays(self, index: Any) -> bool:
        """Whether an index leaves all examples where they are; while a program is traced, this was asked before."""
        fixed = not isinstance(index, Tensor) or self._is_clean(index)
        if get_proxy_mode() is not None:
            return fixed
        if not in_order(index, self._examples):
            return False
        self.chance = self.chance or not fixed
        return True


def _memory(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
