"""Activation functions with their first two derivatives, and how large these get where pre-activations can reach.

Bounds by analysis need, for |u| <= r,

    a(r) >= |f(u)|,   s(r) >= |f'(u)|,   e(r) >= |f''(u)|,   k(r) >= |f'(u)^2 + f(u) f''(u)|.

and p(r) >= |f(u) f'(u)|.  These last two are the derivatives of f^2/2; a e + s^2 and a s bound them, and where a
constant is better it is given.  An activation without such bounds can be used with clipped parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Limits:
    """Bounds of an activation for |u| <= r.

    size      a(r), an increasing function of r
    slope     s(r), the same
    bend      e, for all u
    square    k, for all u, where it is known; else infinite
    product   p, the same
    offset    |f(0)|
    """

    size: Function
    slope: Function
    bend: float
    square: float = math.inf
    product: float = math.inf
    offset: float = 0.0


@dataclass(frozen=True)
class Activation:
    """An elementwise function f with f' and f''.  ReLU counts as one: f''= 0, and f'(0) = 0."""

    name: str
    value: Function
    slope: Function
    bend: Function
    limits: Limits | None = None

    @staticmethod
    def differentiated(name: str, function: Function, limits: Limits | None = None) -> Activation:
        """Any elementwise function, its derivatives by automatic differentiation."""

        def total(u: Tensor) -> Tensor:
            return function(u).sum()

        first = torch.func.grad(total)
        second = torch.func.grad(lambda u: first(u).sum())
        return Activation(name, function, first, second, limits)


def _one(u: Tensor) -> Tensor:
    return torch.ones_like(u)


def _zero(u: Tensor) -> Tensor:
    return torch.zeros_like(u)


def _sigmoid_bend(u: Tensor) -> Tensor:
    s = torch.sigmoid(u)
    return s * (1 - s) * (1 - 2 * s)


IDENTITY = Activation("identity", lambda u: u, _one, _zero, Limits(lambda r: r, _one, 0.0, 1.0))
RELU = Activation("ReLU", torch.relu, lambda u: (u > 0).to(u.dtype), _zero, Limits(lambda r: r, _one, 0.0, 1.0))
SOFTPLUS = Activation(
    "softplus",
    F.softplus,
    torch.sigmoid,
    lambda u: torch.sigmoid(u) * torch.sigmoid(-u),
    Limits(F.softplus, torch.sigmoid, 0.25, 1.04534, offset=math.log(2)),  # (f^2/2)'' is largest at u = 3.098
)
SIGMOID = Activation(
    "sigmoid",
    torch.sigmoid,
    lambda u: torch.sigmoid(u) * torch.sigmoid(-u),
    _sigmoid_bend,
    Limits(torch.sigmoid, lambda r: _one(r) / 4, 1 / (6 * math.sqrt(3)), 0.07703, 4 / 27, 0.5),
)
TANH = Activation(
    "tanh",
    torch.tanh,
    lambda u: 1 - torch.tanh(u).square(),
    lambda u: -2 * torch.tanh(u) * (1 - torch.tanh(u).square()),
    Limits(torch.tanh, _one, 4 / (3 * math.sqrt(3)), 1.0, 2 / (3 * math.sqrt(3))),
)


def activation_of(module: nn.Module) -> Activation:
    """The activation a module computes; refuses, by name, one that isn't elementwise."""
    if isinstance(module, nn.Softplus):
        plain = module.beta == 1 and module.threshold >= 20
        return SOFTPLUS if plain else Activation.differentiated("softplus", module)
    known = {nn.Identity: IDENTITY, nn.ReLU: RELU, nn.Sigmoid: SIGMOID, nn.Tanh: TANH}
    if type(module) in known:
        return known[type(module)]
    name = type(module).__name__
    if any(True for _ in module.parameters()) or not _elementwise(module):
        raise ValueError(
            f"{name} is no elementwise activation; DP-MAC takes linear layers with elementwise activations between."
        )
    return Activation.differentiated(name, module)


def _elementwise(module: nn.Module) -> bool:
    """Whether every entry of the output is a function of its own input: tried on numbers."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(4, 6, generator=generator)
    v = u.clone()
    v[:, 1:] = torch.randn(4, 5, generator=generator)
    try:
        with torch.no_grad():
            one, two, turned = module(u), module(v), module(u.flip(1))
    except Exception:
        return False
    alike = isinstance(one, Tensor) and one.shape == u.shape and not torch.equal(one, two)
    return alike and torch.equal(one[:, 0], two[:, 0]) and torch.equal(one.flip(1), turned)
