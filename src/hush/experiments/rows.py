"""Experiments as data: one TOML file each, with a row for every number of a paper's table."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hush.accounting import Gaussian, Mechanism, calibrate
from hush.clipping import Clipping, Flat, Normalised, PerLayer
from hush.experiments.speed import Timing
from hush.experiments.trainer import Recipe
from hush.methods.expansion import Expansion
from hush.plan import Plan


@dataclass(frozen=True)
class Row:
    """One training row: what is trained, how, and what a paper says of it.

    recipe      "paper" (the paper's own), "best" (hush's), "plain" (without privacy), "baseline" (another model) or
                "unsound" (noise and clipping that promise nothing, to explain a paper's figure)
    task        the data, prepared: a name in `hush.experiments.tasks`
    noise       the noise multiplier, or `epsilon` at `delta` from which hush finds the smallest; with both, and
                neither steps nor epochs, there are as many steps as epsilon allows
    clip        the norm; `normalised` scales every gradient to it (automatic clipping)
    layers      so many layers are clipped one by one, each at `clip` with noise of `noise` times that: together they
                release with the noise multiplier noise/sqrt(layers)
    projections norms are estimated from so many random projections (Bu et al. 2021); 0: they are computed
    average     the decay of the weights' average, which is then what is evaluated
    final       the learning rate's end over its start; reached in a line, or by equal factors if `geometric`
    z_steps     steps of DP-MAC on auxiliary coordinates with the learning rate `z_rate`, the output's loss counting
                `z_output` times; 0: gradients are clipped
    watch       accuracies are noted every so many epochs
    directions  how many principal directions, released with noise `pca_noise`
    panel       the sub-figure, and `place` where on its axis the row belongs
    copies      augmented copies averaged in an example's gradient
    grid        learning rates, models and more that are searched; "move" is the learning rate times the clip norm
    like        the row whose grid also chose for this one
    paper       the paper's numbers by name: accuracy in percent, rmse, epsilon ...
    target      what the row should reach
    """

    name: str
    task: str
    model: str
    batch: float
    recipe: str = "best"
    epochs: float | None = None
    steps: int | None = None
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    normalised: bool = False
    layers: int = 1
    projections: int = 0
    lr: float = 0.1
    momentum: float = 0.0
    adam: bool = False
    final: float = 1.0
    decay: float = 1.0
    average: float | None = None
    weight_decay: float = 0.0
    copies: int = 1
    seeds: int = 5
    metric: str = "accuracy"
    pca_noise: float | None = None
    directions: int = 60
    geometric: bool = False
    z_steps: int = 0
    z_rate: float = 0.003
    z_output: float = 1.0
    watch: float = 0.0
    panel: str = ""
    place: float | None = None
    grid: dict[str, list[Any]] = field(default_factory=dict)
    like: str = ""
    paper: dict[str, float] = field(default_factory=dict)
    target: float | None = None
    chunk: int | None = None
    note: str = ""

    def length(self, records: int) -> int:
        """How many steps."""
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            return round(self.epochs * records / self.batch)
        if self.together is None or self.epsilon is None:
            raise ValueError(f"The row {self.name!r} needs steps or epochs, or a noise and an epsilon to spend.")
        return _most_steps(self.together, min(1.0, self.batch / records), self.pca_noise, self.epsilon, self.delta)

    @property
    def together(self) -> float | None:
        """The noise multiplier of a whole step."""
        return None if self.noise is None else self.noise / math.sqrt(self.layers)

    def plan(self, records: int, beside: Mechanism | None = None) -> Plan | None:
        """What is promised; nothing for a plain row."""
        if self.recipe in ("plain", "baseline"):
            return None
        clip: Clipping = Normalised(self.clip) if self.normalised else Flat(self.clip)
        if self.z_steps:
            clip = Expansion(self.clip)
        if self.layers > 1:
            clip = PerLayer({f"layer{k}": self.clip for k in range(self.layers)})
        batch, steps = min(self.batch, records), self.length(records)
        epsilon = self.epsilon if self.noise is None else None
        return _plan(records, batch, steps, self.together, epsilon, self.delta, clip, beside, self.projections)

    @property
    def training(self) -> Recipe:
        return Recipe(
            self.lr,
            self.momentum,
            self.adam,
            self.final,
            self.decay,
            self.average,
            self.weight_decay,
            self.copies,
            self.geometric,
        )

    def choices(self) -> dict[str, Any]:
        """What the grid chose, for the rows that are like this one."""
        return {name: getattr(self, name) for name in ("lr", *(key for key in self.grid if key not in ("lr", "move")))}

    def varied(self, **changes: Any) -> Row:
        return replace(self, **changes)


@lru_cache
def _most_steps(noise: float, rate: float, pca_noise: float | None, epsilon: float, delta: float) -> int:
    step = Gaussian(noise).poisson(rate)

    def run(count: int) -> Mechanism:
        return step * count if pca_noise is None else Gaussian(pca_noise) + step * count

    return calibrate.steps(run, epsilon, delta)


@lru_cache
def _plan(
    records: int,
    batch: float,
    steps: int,
    noise: float | None,
    epsilon: float | None,
    delta: float,
    clip: Clipping,
    beside: Mechanism | None,
    projections: int,
) -> Plan:
    """Remembered, since rows that differ in their learning rates share it and its noise is searched for."""
    return Plan(
        records=records,
        batch=batch,
        steps=steps,
        noise_multiplier=noise,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        beside=beside,
        projections=projections or None,
    )


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper."""

    name: str
    title: str
    paper: str
    text: str = ""
    rows: tuple[Row, ...] = ()
    account: str | None = None
    """The name of the accounting in `hush.experiments.accounts`, where there is one."""
    times: tuple[Timing, ...] = ()


def read(path: Path) -> Experiment:
    """An experiment's file; unknown keys are refused by name."""
    data = tomllib.loads(path.read_text("utf-8"))
    shared = data.pop("shared", {})
    rows = tuple(_row(path, shared | row) for row in data.pop("rows", []))
    times = tuple(_timing(path, timing) for timing in data.pop("times", []))
    _known(path, data, Experiment, without={"name", "rows", "times"})
    return Experiment(name=path.stem, rows=rows, times=times, **data)


def read_all(folder: Path) -> dict[str, Experiment]:
    """Every experiment of a folder, by name."""
    found = {path.stem: read(path) for path in sorted(folder.glob("*.toml"))}
    if not found:
        raise ValueError(f"{folder} holds no experiments; run in hush's repository, or give --experiments.")
    return found


def _row(path: Path, data: dict[str, Any]) -> Row:
    _known(path, data, Row, without=set())
    return Row(**data)


def _timing(path: Path, data: dict[str, Any]) -> Timing:
    _known(path, data, Timing, without=set())
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return Timing(**values)


def _known(path: Path, data: dict[str, Any], kind: type, without: set[str]) -> None:
    names = {item.name for item in fields(kind)} - without
    if unknown := sorted(set(data) - names):
        raise ValueError(f"{path} has the unknown key {unknown[0]!r}; the keys are {', '.join(sorted(names))}.")
