"""Runs training rows: prepare, search where asked, train all seeds together, test."""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from statistics import mean, stdev
from typing import Any

import torch

from hush import __version__
from hush.experiments import alone, baselines, tasks
from hush.experiments.coordinates import Coordinates
from hush.experiments.keeper import Keeper
from hush.experiments.rows import Row
from hush.experiments.stacked import Model, Parameters
from hush.experiments.tasks import Task
from hush.experiments.trainer import Records, Trained, Trainer, accuracies, cross_entropy, half_squared_error, predict

Result = dict[str, Any]
Watch = Callable[[int, Trainer], None]


def setting(device: torch.device) -> Result:
    """When and on what: part of every result."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hush": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
    }


def run_row(
    row: Row, task: Task, device: torch.device, *, seeds: int | None = None, keeper: Keeper | None = None
) -> Result:
    """The row's result: scores of every seed, the certified epsilon, seconds."""
    keeper = Keeper() if keeper is None else keeper
    if row.recipe == "baseline":
        return _baseline(row, task, device)
    count = seeds or row.seeds
    if alone.better(row, device):
        return _one_by_one(row, task, device, count, keeper)
    if row.watch:
        keeper.notes |= {"epochs": [], "test": [], "train": []}
    every = max(1, round(row.watch * len(task.train) / row.batch)) if row.watch else 0
    trained = _train(task, row, [row], range(count), keeper, partial(_note, row, task, keeper.notes), every)
    score = scores(row.metric, trained.model, trained.averages if row.average else trained.weights, task.test)
    result = _result(row, score, trained.steps, trained.seconds, device) | {"captured": trained.captured}
    if row.average:
        result["last"] = round(mean(scores(row.metric, trained.model, trained.weights, task.test)), 4)
    if row.watch:
        result["curve"] = dict(keeper.notes)
    return result | _promise(row, task)


def _note(row: Row, task: Task, curve: Result, step: int, trainer: Trainer) -> None:
    """Accuracies on the way: means over the seeds, of training records those of the first 10,000."""
    weights = trainer.averages if row.average else trainer.weights
    seen = Records(task.train.x[:10_000], task.train.y[:10_000])
    curve["epochs"].append(round(step * row.batch / len(task.train), 3))
    for name, part in (("test", task.test), ("train", seen)):
        curve[name].append(round(mean(scores(row.metric, trainer.model, weights, part)), 3))


def _one_by_one(row: Row, task: Task, device: torch.device, count: int, keeper: Keeper) -> Result:
    found = alone.accuracies(row, task, count, keeper)
    score = [each for each, _ in found]
    result = _result(row, score, row.length(len(task.train)), sum(seconds for _, seconds in found), device)
    return result | {"by": "hush.Private" if row.recipe != "plain" else "PyTorch"} | _promise(row, task)


def _result(row: Row, score: list[float], steps: int, seconds: float, device: torch.device) -> Result:
    """What every row says of itself."""
    finite = all(math.isfinite(value) for value in score)
    if not finite:
        raise ValueError(f"The row {row.name!r} diverged: its scores are {score}; lower its learning rate.")
    return {
        "name": row.name,
        "recipe": row.recipe,
        "metric": row.metric,
        "scores": [round(value, 4) for value in score],
        "mean": round(mean(score), 4),
        "deviation": round(stdev(score), 4) if len(score) > 1 else None,
        "steps": steps,
        "batch": row.batch,
        "seconds": round(seconds, 2),
        "lr": row.lr,
        "clip": row.clip,
        "setting": setting(device),
    }


def _promise(row: Row, task: Task) -> Result:
    """What is certified of the row; nothing where nothing is promised."""
    plan = row.plan(len(task.train), task.beside)
    if plan is None or row.recipe == "unsound":
        return {}
    promise = plan.promise()
    known = {"epsilon": promise.upper} if math.isfinite(promise.upper) else {"epsilon_above": promise.lower}
    return {"noise": plan.noise_multiplier, "delta": plan.delta, **known, "neighbours": plan.neighbours.value}


def _baseline(row: Row, task: Task, device: torch.device) -> Result:
    began = time.monotonic()
    found = baselines.score(row.model, task.train, task.test)
    return _result(row, [found], 0, time.monotonic() - began, device)


def search(row: Row, task: Task, keeper: Keeper | None = None) -> tuple[Row, list[Result]]:
    """The best of the row's grid on a sixth of the training records, which are not trained on.

    The choice looks at the data and is not paid for: the same holds for the papers.  `hush.methods.selection` pays.
    """
    if not row.grid:
        return row, []
    part = tasks.held_out(task)
    others = {name: values for name, values in row.grid.items() if name not in ("lr", "move")}
    found: list[tuple[float, Row]] = []
    for k, values in enumerate(itertools.product(*others.values())):
        changed = row.varied(
            **{k: int(v) if k in ("steps", "copies") else v for k, v in zip(others, values, strict=True)}
        )
        rates = row.grid.get("lr") or [move / changed.clip for move in row.grid.get("move", [row.lr * changed.clip])]
        rows = [changed.varied(lr=lr) for lr in rates]
        found += zip(_tried(part, changed, rows, keeper and keeper.part(k)), rows, strict=True)
    sign = 1 if row.metric == "accuracy" else -1
    best = max(found, key=lambda pair: sign * pair[0] if math.isfinite(pair[0]) else -math.inf)[1]
    log = [
        {name: getattr(tried, name) for name in ("lr", *others)}
        | {"score": round(score, 4) if math.isfinite(score) else None}
        for score, tried in found
    ]
    return best, log


def _tried(task: Task, row: Row, rows: list[Row], keeper: Keeper | None) -> list[float]:
    """Scores of rows trained together; kept, so that a search that was stopped goes on with the others."""
    place = None if keeper is None or keeper.folder is None else keeper.folder / "scores.json"
    if place is not None and place.exists():
        kept: list[float] = json.loads(place.read_text("utf-8"))
        return kept
    trained = _train(task, row, rows, [0], keeper)
    found = scores(row.metric, trained.model, trained.averages if row.average else trained.weights, task.test)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(found), "utf-8")
    return found


def _train(
    task: Task,
    row: Row,
    rows: list[Row],
    seeds: Any,
    keeper: Keeper | None,
    watch: Watch | None = None,
    every: int = 0,
) -> Trained:
    records = len(task.train)
    model = tasks.model(row.model, task)
    losses = half_squared_error if row.metric in ("rmse", "error") else cross_entropy
    names = tuple(name for name in model.shapes if not name.endswith(".bias"))
    classes = None if row.metric == "error" else 10
    coordinates = Coordinates(names, classes, row.z_steps, row.z_rate, row.z_output) if row.z_steps else None
    runs = [(each.plan(records, task.beside), each.training) for each in rows]
    trainer = Trainer(
        model,
        losses,
        task.train,
        runs,
        list(seeds),
        batch=min(row.batch, records),
        steps=row.length(records),
        chunk=row.chunk,
        coordinates=coordinates,
    )
    return trainer.run(keeper, watch, every)


def scores(metric: str, model: Model, weights: Parameters, test: Records) -> list[float]:
    """Of every model: accuracy in percent, RMSE of ratings, or squared reconstruction error per record."""
    if metric == "accuracy":
        return accuracies(model, weights, test, chunk=1000)
    if metric == "error":
        outputs = predict(model, weights, test.x)[:, :, 0]
        return (outputs - test.y).square().sum(2).mean(1).double().tolist()
    outputs = predict(model, weights, test.x, chunk=20_000)
    if metric == "rmse of classes":
        ratings = outputs[:, :, 0].softmax(2) @ torch.arange(5.0, device=outputs.device)
    else:
        ratings = outputs.clamp(-2.5, 1.5)
    return (ratings - test.y).square().mean(1).sqrt().double().tolist()
