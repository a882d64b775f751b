"""Adam that knows about the noise.  Every other optimiser of `torch.optim` works as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from hush.accounting.checks import check_positive


class AdamBC(Optimizer):
    """Adam with the noise's share taken out of its second moment (the idea of Tang, Shpilevskiy and Lecuyer 2023).

    Private gradients are h = g + z with z of variance F, known and public, so E[h^2] = g^2 + F: the second moment is
    too large by F, which for small gradients dominates, and Adam turns into SGD with momentum.  Precisely, with

        v_t = b v_(t-1) + (1 - b) h_t^2,    n_t = b n_(t-1) + (1 - b) F_t,    b = betas[1],

    E[v_t] - n_t is the average of g^2, also where F varies by step (schedules, adaptive clipping).  So Adam's
    denominator becomes ((v_t - n_t)/(1 - b^t))^(1/2).  The difference may be small or negative by chance: as Var[z^2] =
    2 F^2, the noise alone gives v_t a standard deviation of (2 q_t)^(1/2), q_t = b^2 q_(t-1) + (1 - b)^2 F_t^2.  Below
    `floor` times that, a second moment can't be told from none, and the floor is used instead.

    `hush.Private` tells the optimiser F at every step; without noise this is Adam (decoupled weight decay as in AdamW).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        floor: float = 1.0,
    ) -> None:
        check_positive("The floor of the second moment", floor)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Adam's betas lie from 0 to below 1, got {betas}.")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "floor": floor}
        super().__init__(params, defaults)
        self._variances: Mapping[Tensor, float] = {}

    def expect_noise(self, variances: Mapping[Tensor, float]) -> None:
        """The variance of the noise in each parameter's next gradient, entry by entry."""
        self._variances = variances

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        if closure is not None:
            raise ValueError("A private gradient is computed once a step; AdamBC takes no closure.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        self._variances = {}
        return None

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
            state.update(noise=0.0, spread=0.0)
        variance = self._variances.get(parameter, 0.0)
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        state["noise"] = second * state["noise"] + (1 - second) * variance  # n_t
        state["spread"] = second**2 * state["spread"] + ((1 - second) * variance) ** 2  # q_t
        forgotten = 1 - second ** state["step"]
        least = group["floor"] * math.sqrt(2 * state["spread"])
        square = (state["square"] - state["noise"]).clamp_min_(least).div_(forgotten)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] / (1 - first ** state["step"])
        parameter.addcdiv_(state["mean"], square.sqrt_().add_(group["eps"]), value=-rate)
