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


@dataclass(frozen=True)
class Layout:
    """How to bring `examples` to the front of a tensor."""

    order: Order
    examples: int

    def first(self, x: Tensor) -> Tensor:
        """`[examples, ...]`; folded orders gain a dimension of positions."""
        if self.order is Order.FIRST:
            return x
        if self.order is Order.SECOND:
            return x.transpose(0, 1)
        if self.order is Order.MAJOR:
            outside: Tensor = x.unflatten(0, (self.examples, -1))
            return outside
        inside: Tensor = x.unflatten(0, (-1, self.examples))
        return inside.transpose(0, 1)

    @property
    def folded(self) -> bool:
        return self.order in (Order.MAJOR, Order.MINOR)


def possible(shape: torch.Size, examples: int) -> list[Layout]:
    """The orders that a tensor of this shape allows, the likeliest first."""
    found = []
    if len(shape) > 0 and shape[0] == examples:
        found.append(Order.FIRST)
    if len(shape) > 1 and shape[1] == examples:
        found.append(Order.SECOND)
    if len(shape) > 0 and examples > 0 and shape[0] != examples and shape[0] % examples == 0 and shape[0] > 0:
        found += [Order.MAJOR, Order.MINOR]
    return [Layout(order, examples) for order in found]
