"""A fully connected network as DP-MAC sees it: what comes before, and layers with an objective each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.methods.mac.activations import IDENTITY, Activation, activation_of
from hush.methods.mac.objectives import Objective, Reach, SquaredError

_LINE = 8
"""Float64 numbers in a cache line."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer of the model and the activation after it; the objective is what its weights are fitted by."""

    linear: nn.Linear
    activation: Activation
    objective: Objective

    @property
    def width(self) -> int:
        return self.linear.out_features

    def weights(self) -> Tensor:
        """The weights in float64, the bias, if there is one, as their last column; they are public."""
        weight = self.linear.weight.detach().to(torch.float64)
        bias = self.linear.bias
        return weight if bias is None else torch.cat([weight, bias.detach().to(torch.float64)[:, None]], dim=1)

    def applied(self, extended: Tensor, weights: Tensor) -> Tensor:
        """The pre-activations W z.  Both are filled up with zeros to whole cache lines.

        Where rows begin in the middle of one, libraries add in another order, and a row's result would depend on its
        place.  The gradient's product is filled up as well, since units are.
        """
        columns, rows = -extended.shape[1] % _LINE, -len(weights) % _LINE
        product = F.pad(extended, (0, columns)) @ F.pad(weights, (0, columns, 0, rows)).T
        return product[:, : len(weights)]

    def extended(self, z: Tensor) -> Tensor:
        """Inputs with a one at the end for the bias."""
        return z if self.linear.bias is None else torch.cat([z, torch.ones_like(z[:, :1])], dim=1)

    def input_norm(self, radius: float) -> float:
        """The largest norm of extended inputs, if inputs have norm at most `radius`."""
        return radius if self.linear.bias is None else math.sqrt(radius**2 + 1)

    def reach(self, radius: float) -> Reach:
        """Where pre-activations get from inputs of norm at most `radius`."""
        weights = self.weights()
        matrix = weights if self.linear.bias is None else weights[:, :-1]
        bias = torch.zeros_like(weights[:, 0]) if self.linear.bias is None else weights[:, -1]
        whole = float(torch.linalg.matrix_norm(matrix, ord=2)) * radius + float(bias.norm())
        return Reach(matrix.norm(dim=1) * radius + bias.abs(), whole)


@dataclass(frozen=True, eq=False)
class Network:
    """`before` has no trained parameters (a projection, a flattening); then come the layers."""

    before: nn.Sequential
    layers: tuple[Layer, ...]

    def start(self, x: Tensor) -> Tensor:
        """What the layers are given, one row a record: in float64 from the beginning, if the modules before allow it.

        In float32 rounding that depends on a record's place would be a billion times as large.
        """
        if not x.is_floating_point() or len(self.before) == 0:
            return self.before(x).flatten(1).to(torch.float64)  # type: ignore[no-any-return]
        held = itertools.chain(self.before.named_parameters(), self.before.named_buffers())
        wide = {name: tensor.detach().double() for name, tensor in held if tensor.is_floating_point()}
        try:
            found = torch.func.functional_call(self.before, wide, (x.double(),))
        except RuntimeError:  # a module that insists on its own precision
            found = self.before(x)
        return found.flatten(1).to(torch.float64)  # type: ignore[no-any-return]


def network_of(model: nn.Module, output: Objective, known: Sequence[tuple[type[nn.Module], Activation]]) -> Network:
    """Takes a sequential model apart; its parts stay the user's own modules."""
    modules = list(_flat(model))
    start = next((i for i, module in enumerate(modules) if _trained(module)), len(modules))
    before, rest = modules[:start], modules[start:]
    layers: list[Layer] = []
    for module in rest:
        if isinstance(module, nn.Linear):
            if not all(p.requires_grad for p in module.parameters()):
                raise ValueError(
                    "DP-MAC trains every linear layer after the first that is trained; freeze only those before."
                )
            layers.append(Layer(module, IDENTITY, SquaredError(IDENTITY)))
            continue
        found = next((activation for kind, activation in known if type(module) is kind), None)
        activation = activation_of(module) if found is None else found
        if layers[-1].activation is not IDENTITY:
            raise ValueError(f"Two activations follow each other ({type(module).__name__}); put them into one module.")
        layers[-1] = Layer(layers[-1].linear, activation, SquaredError(activation))
    if not layers:
        raise ValueError("The model has no linear layer to train.")
    layers[-1] = _last(layers[-1], output)
    return Network(nn.Sequential(*before), tuple(layers))


def _last(layer: Layer, output: Objective) -> Layer:
    if isinstance(output, SquaredError):
        return replace(layer, objective=SquaredError(layer.activation))
    if layer.activation is not IDENTITY:
        raise ValueError(f"{type(output).__name__} has its own activation; end the model with a linear layer.")
    return replace(layer, objective=output)


def _flat(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _flat(child)
    elif _trained(module) and type(module) is not nn.Linear:
        raise ValueError(
            f"DP-MAC trains sequential models of linear layers and activations, not {type(module).__name__}."
        )
    else:
        yield module


def _trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())
