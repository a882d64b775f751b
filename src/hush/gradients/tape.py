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
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from hush.gradients.aligning import ALIGNED
from hush.gradients.axes import Axis, Lost
from hush.gradients.factors import Factor
from hush.gradients.layout import Layout
from hush.gradients.moving import Whereabouts

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
        given = tensors_in(batch)
        self._data = {id(tensor) for tensor in given}
        self.moved = False  # where examples are can't be followed: they may have changed places
        self.course: list[Any] = []  # where the uses have their examples, as far as the calls say
        self.lost: str | None = None  # why nothing that was recorded can be relied on
        self._clean: dict[int, Tensor] = {}  # computed without data; held, so that an id stays its own
        self._filled: dict[int, Tensor] = {}  # by storage: began without data, and had data written into it
        self._inside = False  # a rule, of a call that is followed as a whole
        self._whereabouts = Whereabouts(given, examples, self.is_data, lambda tensor: id(tensor) in self._clean)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _inside_transform():  # tensors are wrappers here; what comes out will be data, and parameters meet it unseen
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        if func in _DIFFERENTIATING and kwargs.get("create_graph"):
            self.lost = "the loss takes derivatives of its own"
        before = len(self.uses)
        if not any(self.is_data(tensor) for tensor in tensors):
            result = func(*args, **kwargs)
            for tensor in tensors_in((result,)):
                self._clean[id(tensor)] = tensor
                self._data.discard(id(tensor))
            if func in _SPREADING and any(self.is_source(tensor) for tensor in tensors):
                result = self._recorded(func, args, kwargs, fallback=result)
                if len(self.uses) > before:  # a copy for every example
                    where = list(result.shape[:2]).index(self.examples) if self.examples in result.shape[:2] else None
                    self._whereabouts.note(result, None if where is None else Axis(where))
                    self.course.append(where)
            return result
        if torch.is_grad_enabled() and any(self.is_source(tensor) for tensor in tensors):
            result = self._recorded(func, args, kwargs)
        else:
            result = ALIGNED.get(func, func)(*args, **kwargs)
        results, in_place = tensors_in((result,)), writes_in_place(func, kwargs)
        if in_place:
            written = tensors_in((kwargs["out"],)) if kwargs.get("out") is not None else tensors[:1]
            results = results or written
        if results and not self._inside and not self.moved and self.examples > 1:
            self._follow(func, args, kwargs, tensors, results, in_place, used=len(self.uses) > before)
        if in_place:
            self._filled |= {_storage(x): x for x in written if id(x) in self._clean}
            self.mark_data(written)
        self.mark_data(results)
        return result

    def _follow(self, *call: Any, used: bool) -> None:
        try:
            axes = self._whereabouts.follow(*call)
        except Exception:  # Lost, or arguments of a kind that nobody thought of
            self.moved = True
        else:
            if used:
                self.course += [axis and (axis.dim, axis.outer > 1, axis.inner > 1) for axis in axes]

    def end(self, values: Tensor) -> None:
        """The losses must be where the examples were."""
        try:
            self.moved = self.moved or (self.examples > 1 and self._whereabouts.of(values) != Axis(0))
        except Lost:
            self.moved = True

    @property
    def settled(self) -> bool:
        """Whether examples are where they are whatever the data."""
        return not self.moved and not self._whereabouts.chance

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
        inside, self._inside = self._inside, True
        result = rule_for(func)(self, func, args, kwargs)
        self._inside = inside
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
