"""A private training run of stacked models: sample, clip, add noise, move, average; captured as a graph on a GPU.

It is `hush.Private` for many small models at once, for experiments.  Rates, noise and clipping weights are those of a
`hush.Plan`; the coins and the noise come from PyTorch's generator with a seed, so these runs can be repeated and
therefore protect nobody.  The data sets are public.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.averaging import Average
from hush.experiments.coordinates import Coordinates
from hush.experiments.keeper import Keeper, State
from hush.experiments.stacked import Model, Parameters, Tape, clipped_sums
from hush.plan import Plan

Losses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Recipe:
    """What a run does beside its plan.

    The learning rate goes in a straight line, or with `geometric` by equal factors, from `lr` to `lr * final` over the
    share `decay` of the steps, then stays.
    """

    lr: float
    momentum: float = 0.0
    adam: bool = False
    final: float = 1.0
    decay: float = 1.0
    average: float | None = None
    weight_decay: float = 0.0
    copies: int = 1
    """How many augmented copies are averaged in an example's gradient (De et al. 2022, augmentation multiplicity)."""
    geometric: bool = False

    def rates(self, steps: int) -> Tensor:
        progress = (torch.arange(steps, dtype=torch.float64) / max(self.decay * (steps - 1), 1)).clamp_max(1)
        factors = self.final**progress if self.geometric else 1 + (self.final - 1) * progress
        return (self.lr * factors).float()


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs (N, A, ...) with their A augmented copies, or (N, 2) pairs; targets (N, ...)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> Records:
        return Records(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Trained:
    """Stacked weights at the end, their averages, and how long it took."""

    model: Model
    weights: Parameters
    averages: Parameters
    seconds: float
    steps: int
    captured: bool


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(S, B, A, C) logits to (S, B): the mean over an example's copies."""
    models, batch, copies, classes = logits.shape
    each = F.cross_entropy(
        logits.reshape(-1, classes), labels[:, :, None].expand(-1, -1, copies).flatten(), reduction="none"
    )
    return each.view(models, batch, copies).mean(2)


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(S, B) or (S, B, 1, D) outputs against targets of the same size."""
    return (
        0.5 * (outputs - targets.view_as(outputs)).square().flatten(2).sum(2)
        if outputs.dim() > 2
        else (0.5 * (outputs - targets).square())
    )


class Trainer:
    """S models: every (plan, recipe) in every seed.  Plans share the kind of clipping; recipes all but the lr."""

    def __init__(
        self,
        model: Model,
        losses: Losses,
        records: Records,
        runs: Sequence[tuple[Plan | None, Recipe]],
        seeds: Sequence[int],
        *,
        batch: float,
        steps: int,
        chunk: int | None = None,
        coordinates: Coordinates | None = None,
    ) -> None:
        """`coordinates`: the steps of DP-MAC in place of clipped gradients; the losses aren't used then."""
        self.model, self.losses, self.records = model, losses, records
        self.coordinates = coordinates
        self.device = records.x.device
        self.batch, self.steps, self.seeds = batch, steps, list(seeds)
        each = [run for run in runs for _ in seeds]
        self.models = len(each)
        recipe = self.recipe = each[0][1]
        if any(replace(other, lr=recipe.lr) != recipe for _, other in each):
            raise ValueError("Recipes of models trained together may differ in their learning rate only.")
        plans = [plan for plan, _ in each]
        self.clip = plans[0].clip if plans[0] is not None else None
        self.projections = (plans[0].projections or 0) if plans[0] is not None else 0
        self.rate = batch / len(records)
        self.capacity = (
            len(records)
            if self.rate >= 1
            else min(len(records), 16 * math.ceil((batch + 7 * math.sqrt(batch) + 16) / 16))
        )
        self.chunk = min(chunk or self.capacity, self.capacity)
        self.lr = torch.stack([other.rates(steps) for _, other in each], 1).to(self.device)  # (T, S)
        share = Average(recipe.average or 0.99)
        self.shares = self._column([1 - min(share.decay, (1 + t) / (10 + t)) for t in range(steps)])
        names = list(model.shapes)
        limits = [plan.clip.thresholds(0, names)[0] if plan else 0.0 for plan in plans]
        stds = [plan.stds(0, names)[0] if plan else 0.0 for plan in plans]
        if coordinates is not None:
            limits = [coordinates.threshold(plan) for plan in plans]
            stds = [
                std and std * limit * math.sqrt(coordinates.layers) for std, limit in zip(stds, limits, strict=True)
            ]
        self.apart = coordinates is None and any(_layer_by_layer(plan, names) for plan in plans)
        self.limits, self.stds = self._column(limits), self._column(stds)
        self._allocate()

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def _allocate(self) -> None:
        generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        once = self.model.start(generators, self.device)
        repeats = self.models // len(self.seeds)
        self.start = {name: torch.cat([value] * repeats) for name, value in once.items()}
        self.weights = {name: value.clone() for name, value in self.start.items()}
        self.averages = {name: value.clone() for name, value in self.start.items()}
        self.first = {name: torch.zeros_like(value) for name, value in self.start.items()}
        self.second = {name: torch.zeros_like(value) for name, value in self.start.items()} if self.recipe.adam else {}
        self.counter = torch.zeros((), dtype=torch.long, device=self.device)
        self.largest = torch.zeros((), dtype=torch.long, device=self.device)

    def _reset(self) -> None:
        for name, value in self.start.items():
            self.weights[name].copy_(value)
            self.averages[name].copy_(value)
            self.first[name].zero_()
            if self.second:
                self.second[name].zero_()
        self.counter.zero_()
        self.largest.zero_()
        torch.manual_seed(self.seeds[0])

    # A step, of fixed shapes

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Which records each model sees (S, capacity), padded, and which of these are real."""
        count = len(self.records)
        everyone = torch.arange(count, device=self.device).expand(self.models, count)
        if self.rate >= 1:
            return everyone, torch.ones_like(everyone, dtype=torch.bool)
        coins = torch.rand(self.models, count, device=self.device) < self.rate
        places = torch.where(coins, coins.cumsum(1) - 1, self.capacity).clamp_max(self.capacity)
        index = torch.zeros(self.models, self.capacity + 1, dtype=torch.long, device=self.device)
        index.scatter_(1, places, everyone)
        sizes = coins.sum(1)
        self.largest.copy_(torch.maximum(self.largest, sizes.max()))
        real = torch.arange(self.capacity, device=self.device) < sizes[:, None]
        return torch.where(real, index[:, : self.capacity], 0), real

    def _weigh(self, norms: Tensor, real: Tensor) -> Tensor:
        if self.clip is None:
            return real[:, :, None].float()
        limits = self.limits[:, None, None].expand_as(norms).flatten(0, 1)
        return self.clip.weigh(norms.flatten(0, 1), limits).view_as(norms) * real[:, :, None]

    def _gradient(self) -> Parameters:
        index, real = self._draw()
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        directions = [{k: torch.randn_like(v) for k, v in self.weights.items()} for _ in range(self.projections)]
        for begin in range(0, self.capacity, self.chunk):
            part, mask = index[:, begin : begin + self.chunk], real[:, begin : begin + self.chunk]
            x, y = self._everyone(begin) if self.rate >= 1 else (self._inputs(part), self.records.y[part])
            if self.coordinates is not None:
                sums = self.coordinates.sums(self.weights, x[:, :, 0], y, self.limits, mask)
            else:
                weigh = partial(self._weigh, real=mask)
                sums = clipped_sums(self.model.forward, self.weights, self.losses, x, y, weigh, self.apart, directions)
            for name, value in sums.items():
                total[name] += value
        return total

    def _everyone(self, begin: int) -> tuple[Tensor, Tensor]:
        """A chunk of all records in their order, shared by the models: no copies are drawn from them."""
        x, y = self.records.x[begin : begin + self.chunk], self.records.y[begin : begin + self.chunk]
        x = self._as_taken(x)
        return x[None].expand(self.models, *x.shape), y[None].expand(self.models, *y.shape)

    def _inputs(self, part: Tensor) -> Tensor:
        x = self.records.x
        if not x.is_floating_point() and x.dim() == 2:
            return x[part]
        stored = x.shape[1]
        if self.recipe.copies >= stored:
            return self._as_taken(x[part])
        copies = torch.rand(*part.shape, stored, device=self.device).topk(self.recipe.copies, 2).indices
        return self._as_taken(x[part[:, :, None], copies])

    def _as_taken(self, x: Tensor) -> Tensor:
        return as_taken(self.model, x)

    @torch.no_grad()
    def step(self) -> None:
        recipe = self.recipe
        rates = self.lr.index_select(0, self.counter[None])[0]
        share = self.shares.index_select(0, self.counter[None])[0]
        for name, total in self._gradient().items():
            ones = [1] * (total.dim() - 1)
            weight = self.weights[name]
            gradient = (total + self.stds.view(-1, *ones) * torch.randn_like(total)) / self.batch
            gradient = gradient.add_(weight, alpha=recipe.weight_decay)
            if recipe.adam:
                t = (self.counter + 1).float()
                self.first[name].lerp_(gradient, 0.1)
                self.second[name].lerp_(gradient.square(), 0.001)
                mean, square = self.first[name] / (1 - 0.9**t), self.second[name] / (1 - 0.999**t)
                move = mean / (square.sqrt() + 1e-7)
            else:
                move = self.first[name].mul_(recipe.momentum).add_(gradient)
            weight.sub_(rates.view(-1, *ones) * move)
            self.averages[name].lerp_(weight, share)
        self.counter += 1

    # The run

    def run(
        self, keeper: Keeper | None = None, watch: Callable[[int, Trainer], None] | None = None, every: int = 0
    ) -> Trained:
        """All steps, or those that are left of what the keeper kept; `watch(step, self)` is called every so many."""
        keeper = Keeper() if keeper is None else keeper
        graph = self._capture()
        self._reset()
        kept = keeper.restore()
        before = 0.0 if kept is None else self._load(kept)
        began = time.monotonic()
        for step in range(int(self.counter), self.steps):
            graph.replay() if graph is not None else self.step()
            if watch is not None and every and (step + 1) % every == 0:
                watch(step + 1, self)
            if step % 16 == 15:
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                keeper.tick(step + 1, self.steps, lambda: self._state(before + time.monotonic() - began))
        if self.largest.item() > self.capacity:
            raise RuntimeError(
                f"A batch of {self.largest.item()} didn't fit in {self.capacity}; nothing may be dropped."
            )
        seconds = before + time.monotonic() - began
        return Trained(self.model, self.weights, self.averages, seconds, self.steps, graph is not None)

    def _state(self, seconds: float) -> State:
        """Everything the run needs to go on to the same numbers."""
        coins = torch.cuda.get_rng_state() if self.device.type == "cuda" else torch.get_rng_state()
        kinds = {"weights": self.weights, "averages": self.averages, "first": self.first, "second": self.second}
        return kinds | {"counter": self.counter, "largest": self.largest, "coins": coins, "seconds": seconds}

    def _load(self, state: State) -> float:
        for kind in ("weights", "averages", "first", "second"):
            for name, value in getattr(self, kind).items():
                value.copy_(state[kind][name])
        self.counter.copy_(state["counter"])
        self.largest.copy_(state["largest"])
        torch.cuda.set_rng_state(state["coins"]) if self.device.type == "cuda" else torch.set_rng_state(state["coins"])
        return float(state["seconds"])

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        if self.device.type != "cuda" or self.steps < 20:
            return None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.step()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph


def _layer_by_layer(plan: Plan | None, names: Sequence[str]) -> bool:
    """Whether layers are clipped one by one rather than together; no other groups are stacked."""
    groups = plan.clip.groups(names) if plan is not None else ()
    if plan is None or len(groups) == 1:
        return False
    layers = [{names[i].removesuffix(".bias") for i in group} for group in groups]
    alike = len({*plan.clip.thresholds(0, names)}) == 1 and len({*plan.stds(0, names)}) == 1
    if not alike or any(len(layer) > 1 for layer in layers):
        raise ValueError(f"Stacked models are clipped as a whole, or each layer at one norm, not as in {plan.clip}.")
    return True


def as_taken(model: Model, x: Tensor) -> Tensor:
    """Records as the model's products want them: numbers stay, and halves do where a GPU multiplies them fast."""
    return x if not x.is_floating_point() or (model.half and x.is_cuda) else x.float()


@torch.no_grad()
def predict(model: Model, weights: Parameters, x: Tensor, chunk: int = 2000) -> Tensor:
    """Outputs (S, N, ...) of all models on the same inputs."""
    models = len(next(iter(weights.values())))
    found = []
    for part in x.split(chunk):
        inputs = as_taken(model, part)
        found.append(model.forward(Tape(), weights, inputs[None].expand(models, *inputs.shape)).detach())
    return torch.cat(found, 1)


def accuracies(model: Model, weights: Parameters, records: Records, chunk: int = 2000) -> list[float]:
    """Of every model, by the mean logits of an example's copies, in percent."""
    logits = predict(model, weights, records.x, chunk).mean(2)
    return (100 * (logits.argmax(2) == records.y).double().mean(1)).tolist()
