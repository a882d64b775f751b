"""DP-MAC for many models at once: `hush.methods.mac` of first order, with what `trainer` stacks (Harder et al. 2018).

Dimensions as in `stacked`.  Every record has coordinates z_k (S, B, width of layer k) for each hidden layer, started
at the forward pass and moved by Adam down

    E = t_out(z_{L-1} W_L + b_L; y) + sum over hidden layers of |relu(z_{k-1} W_k + b_k) - z_k|^2/2;

then each layer's gradient t'_k (z_{k-1}, 1)^T is clipped by itself.  In float64, as there and for the same reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.methods.expansion import Analytic, Expansion
from hush.plan import Plan


@dataclass(frozen=True)
class Coordinates:
    """Which network (its layers' names), how it is fitted, and how coordinates are moved.

    classes  the outputs are fitted by binary cross-entropy to one class of so many; None: by squared error
    output   t_out is multiplied by this: Harder et al.'s code halves it beside the hidden layers' squares
    """

    names: tuple[str, ...]
    classes: int | None
    steps: int = 30
    rate: float = 0.003
    output: float = 1.0

    @property
    def layers(self) -> int:
        return len(self.names)

    def threshold(self, plan: Plan | None) -> float:
        """Where each layer's gradient is clipped."""
        if plan is None:
            return math.inf
        bound = plan.clip.bound("gradient", 0, self.layers) if isinstance(plan.clip, Expansion) else None
        if bound is None or isinstance(bound, Analytic):
            raise ValueError(f"Stacked DP-MAC clips all layers at one threshold; plan clip=Expansion(C), not {plan}.")
        return bound

    def sums(
        self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, limits: Tensor, real: Tensor
    ) -> dict[str, Tensor]:
        """Each model's and layer's sum of clipped gradients, `limits` (S,) being the thresholds."""
        weights = [parameters[name].double() for name in self.names]
        biases = [parameters[name + ".bias"].double()[:, None] for name in self.names]
        start = x.double()
        target = y.double() if self.classes is None else _one_hot(y, self.classes)
        entered = torch.baddbmm(biases[0], start, weights[0])  # the first layer's sums, which no coordinate changes
        zs = self._moved(weights, biases, entered, target)
        found: dict[str, Tensor] = {}
        slopes, _ = self._slopes(weights, biases, entered, zs, target)
        for name, z, slope in zip(self.names, [start, *zs], slopes, strict=True):
            norms = slope.norm(dim=2) * (z.square().sum(2) + 1).sqrt()
            share = (limits[:, None] / norms.clamp_min(1e-300)).clamp_max(1.0) * real
            kept = slope * share[:, :, None]
            found |= {name: (z.mT @ kept).float(), name + ".bias": kept.sum(1).float()}
        return found

    def _slopes(
        self, weights: list[Tensor], biases: list[Tensor], entered: Tensor, zs: list[Tensor], target: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """t' of every layer, and what its hidden ones miss their coordinates by."""
        slopes, missed = [], []
        for k in range(len(weights)):
            u = torch.baddbmm(biases[k], zs[k - 1], weights[k]) if k else entered
            if k < len(zs):
                gap = u.relu() - zs[k]
                missed.append(gap)
                slopes.append(gap * (u > 0))
            else:
                slopes.append(self.output * ((u if self.classes is None else u.sigmoid()) - target))
        return slopes, missed

    def _moved(self, weights: list[Tensor], biases: list[Tensor], entered: Tensor, target: Tensor) -> list[Tensor]:
        """Coordinates after Adam, which sees all of a record's as one row."""
        zs: list[Tensor] = []
        for k in range(len(weights) - 1):
            zs.append((torch.baddbmm(biases[k], zs[-1], weights[k]) if k else entered).relu())
        if not self.steps or not zs:
            return zs
        widths = [z.shape[2] for z in zs]
        whole = torch.cat(zs, 2)
        first, second = torch.zeros_like(whole), torch.zeros_like(whole)
        for t in range(1, self.steps + 1):
            hidden = list(whole.split(widths, 2))
            slopes, missed = self._slopes(weights, biases, entered, hidden, target)
            back = [slope @ weight.mT for slope, weight in zip(slopes[1:], weights[1:], strict=True)]
            gradient = torch.cat([b - m for b, m in zip(back, missed, strict=True)], 2)
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = second.sqrt().div_(math.sqrt(1 - 0.999**t)).add_(1e-8)
            whole = whole.addcdiv(first, scale, value=-self.rate / (1 - 0.9**t))
        return list(whole.split(widths, 2))


def _one_hot(y: Tensor, classes: int) -> Tensor:
    """Without looking at the labels' values, which a captured graph can't."""
    return (y[..., None] == torch.arange(classes, device=y.device)).double()
