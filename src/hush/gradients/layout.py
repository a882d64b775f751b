"""Where the examples are in a tensor: almost always its first dimension, sometimes folded with positions or second."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Order(Enum):
    FIRST = "examples first"
    SECOND = "examples second"
    MAJOR = "examples folded into the first dimension, positions inside"
    MINOR = "examples folded into the first dimension, inside the positions"
    SECOND_MAJOR = "examples folded into the second dimension, positions inside"
    SECOND_MINOR = "examples folded into the second dimension, inside the positions"


@dataclass(frozen=True)
class Layout:
    """How to bring `examples` to the front of a tensor."""

    order: Order
    examples: int

    def first(self, x: Tensor) -> Tensor:
        """`[examples, ...]`; folded orders gain a dimension of positions."""
        if self.order is Order.FIRST:
            return x
        if self.order in (Order.SECOND, Order.SECOND_MAJOR, Order.SECOND_MINOR):
            x = x.transpose(0, 1)
        if self.order is Order.SECOND:
            return x
        if self.order in (Order.MAJOR, Order.SECOND_MAJOR):
            outside: Tensor = x.unflatten(0, (self.examples, -1))
            return outside
        inside: Tensor = x.unflatten(0, (-1, self.examples))
        return inside.transpose(0, 1)

    @property
    def folded(self) -> bool:
        return self.order not in (Order.FIRST, Order.SECOND)


def possible(shape: torch.Size, examples: int) -> list[Layout]:
    """The orders that a tensor of this shape allows, the likeliest first."""
    found = []
    if len(shape) > 0 and shape[0] == examples:
        found.append(Order.FIRST)
    if len(shape) > 1 and shape[1] == examples:
        found.append(Order.SECOND)
    if len(shape) > 0 and _holds(shape[0], examples):
        found += [Order.MAJOR, Order.MINOR]
    if len(shape) > 2 and _holds(shape[1], examples):
        found += [Order.SECOND_MAJOR, Order.SECOND_MINOR]
    return [Layout(order, examples) for order in found]


def _holds(size: int, examples: int) -> bool:
    """Whether examples and positions may share a dimension of this size."""
    return examples > 0 and size > examples and size % examples == 0
