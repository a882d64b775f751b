"""The parameters that an optimiser moves: their names in the model, their noise, and what reaches their `grad`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hush.optim import AdamBC


class Trained:
    """The parameters that require a gradient; asked again at every step, since users freeze layers on the way."""

    def __init__(self, model: nn.Module, optimiser: Optimizer) -> None:
        self._model, self._optimiser = model, optimiser
        self.names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        self.look()

    def look(self) -> tuple[list[str], list[nn.Parameter]]:
        """Their names and themselves, as they are now."""
        found = [p for group in self._optimiser.param_groups for p in group["params"] if p.requires_grad]
        if not found:
            raise ValueError("The optimiser has no parameter that requires a gradient; there is nothing to train.")
        known = self.parameters
        if len(found) != len(known) or not all(a is b for a, b in zip(found, known, strict=True)):
            names = {id(parameter): name for name, parameter in self._model.named_parameters()}
            self.names = [names.get(id(p), f"beside the model.{i}") for i, p in enumerate(found)]
            self.parameters = found
        return self.names, self.parameters

    def drop_gradients(self) -> None:
        """Nothing but noisy gradients ever reaches the optimiser, and those of the step before aren't kept for long."""
        for group in self._optimiser.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def receive(self, means: Sequence[Tensor], stds: Sequence[float]) -> None:
        """The noisy means become the parameters' `grad`; AdamBC is told how much of them is noise."""
        self.drop_gradients()
        for parameter, mean in zip(self.parameters, means, strict=True):
            parameter.grad = mean if mean.dtype is parameter.dtype else mean.to(parameter.dtype)
        if isinstance(self._optimiser, AdamBC):
            spread = [std**2 for std in stds]
            self._optimiser.expect_noise(dict(zip(self.parameters, spread, strict=True)))

    def all_on_one_gpu(self) -> bool:
        """Whether noise for all of them, in float32, can be drawn on one GPU."""
        device = self.parameters[0].device
        return all(p.is_cuda and p.device == device and p.dtype is not torch.float64 for p in self.parameters)


def of_each(groups: Sequence[Sequence[int]], stds: Sequence[float]) -> list[float]:
    """Every parameter's standard deviation, from those of the groups."""
    of = {position: std for group, std in zip(groups, stds, strict=True) for position in group}
    return [of[position] for position in range(len(of))]
