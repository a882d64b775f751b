"""The tape: which operation met which parameter in the forward pass, and how its per-example gradients come about.

While `losses(*batch)` runs under a `Tape`, every PyTorch function call passes through it. Where data meet a parameter
and a rule knows the operation, the parameter is replaced by a detached stand-in and the use is recorded; autograd
then never reaches the parameter by that way. So whatever gradient *does* reach a parameter came by code the tape
couldn't see or had no rule for (scripted modules, custom functions), and that parameter takes the slower path: never
a wrong one.

A tensor computed from parameters alone (a weight-normed kernel, a positional table) is *derived*: uses of it are
recorded like those of a parameter, and its per-example gradients are pulled back to the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from hush.gradients.aligning import ALIGNED
from hush.gradients.factors import Factor
from hush.gradients.layout import Layout
from hush.gradients.moving import moves_examples

MakeFactor = Callable[[Layout, Tensor], Factor]


@dataclass(frozen=True)
class Use:
    """One meeting of data and a parameter.

    `factor(layout, grad)` gives the per-example gradients of `source`, from the loss's gradient at `edge`, an output
    of shape `shape`. `stand_in` is the leaf that took the parameter's place (None where the rule differentiates by
    itself).
    """

    name: str
    source: Tensor
    stand_in: Tensor | None
    edge: GradientEdge
    shape: torch.Size
    factor: MakeFactor


class Tape(TorchFunctionMode):
    """Records the uses of `parameters` while the forward pass of `batch` runs inside it."""

    def __init__(self, parameters: Sequence[Tensor], batch: Iterable[Any], examples: int) -> None:
        super().__init__()
        self.examples = examples
        self.uses: list[Use] = []
        self._wanted = {id(parameter) for parameter in parameters}
        self._data = {id(tensor) for tensor in tensors_in(batch)}
        self.moved = False  # examples changed places, in an order that may depend on the data
        self.lost: str | None = None  # why nothing that was recorded can be relied on
        self._clean: dict[int, Tensor] = {}  # computed without data; held, so that an id stays its own
        self._filled: dict[int, Tensor] = {}  # by storage: began without data, and had data written into it

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _inside_transform():  # tensors are wrappers here; what comes out will be data, and parameters meet it unseen
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        if func in _DIFFERENTIATING and kwargs.get("create_graph"):
            self.lost = "the loss takes derivatives of its own"
        if not any(self.is_data(tensor) for tensor in tensors):
            result = func(*args, **kwargs)
            for tensor in tensors_in((result,)):
                self._clean[id(tensor)] = tensor
                self._data.discard(id(tensor))
            if func in _SPREADING and any(self.is_source(tensor) for tensor in tensors):
                result = self._recorded(func, args, kwargs, fallback=result)
            return result
        if not self.moved and self.is_data(tensors[1 if func is F.embedding else 0]):  # looking words up moves nothing
            self.moved = moves_examples(func, args, kwargs, self.examples)
        if torch.is_grad_enabled() and any(self.is_source(tensor) for tensor in tensors):
            result = self._recorded(func, args, kwargs)
        else:
            result = ALIGNED.get(func, func)(*args, **kwargs)
        if writes_in_place(func, kwargs):
            written = tensors_in((kwargs["out"],)) if kwargs.get("out") is not None else tensors[:1]
            self._filled |= {_storage(x): x for x in written if id(x) in self._clean}
            self.mark_data(written)
        self.mark_data(tensors_in((result,)))
        return result

    def is_data(self, tensor: Tensor) -> bool:
        """Whether the tensor may depend on the examples; parameters, buffers and what is made of them alone do not."""
        key = id(tensor)
        if key in self._data:
            return True
        if self._filled and _storage(tensor) in self._filled:
            return True
        return key not in self._clean and tensor.grad_fn is not None

    def is_source(self, tensor: Tensor) -> bool:
        """A parameter that is being trained, or a tensor derived from parameters alone."""
        if not tensor.requires_grad or tensor.is_complex() or self.is_data(tensor):
            return False
        return id(tensor) in self._wanted or tensor.grad_fn is not None

    def mark_data(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._clean.pop(id(tensor), None)
            self._data.add(id(tensor))

    def stand_in(self, tensor: Any) -> Any:
        """A leaf in the parameter's place; anything that isn't a parameter passes unchanged."""
        if isinstance(tensor, Tensor) and self.is_source(tensor):
            return tensor.detach().requires_grad_()
        return tensor

    def record(self, name: str, source: Any, stand_in: Any, output: Tensor, factor: MakeFactor) -> None:
        """Note that `source`, replaced by `stand_in`, met data in `output`; where it wasn't replaced, note nothing."""
        if source is not stand_in:
            self.uses.append(Use(name, source, stand_in, get_gradient_edge(output), output.shape, factor))

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fallback: Any = None) -> Any:
        from hush.gradients.rules import rule_for

        before = len(self.uses)
        result = rule_for(func)(self, func, args, kwargs)
        if result is not NotImplemented:
            if fallback is not None:
                self.mark_data(tensors_in((result,)))
            return result
        del self.uses[before:]
        return func(*args, **kwargs) if fallback is None else fallback


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among nested arguments, in order."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors_in(value))
        elif isinstance(value, dict):
            found.extend(tensors_in(value.values()))
    return found


# Calls that may give every example its own copy of a parameter (a class token).
_SPREADING = {
    Tensor.expand,
    Tensor.expand_as,
    Tensor.repeat,
    Tensor.broadcast_to,
    torch.broadcast_to,
}


_DIFFERENTIATING = {torch.autograd.grad, Tensor.backward}


def _inside_transform() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp) of the user's own is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"}
_IN_PLACE |= {"__imatmul__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}


def writes_in_place(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call changes its first argument (or `out=`) rather than making a new tensor."""
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE or kwargs.get("out") is not None or (name.endswith("_") and not name.endswith("__"))
