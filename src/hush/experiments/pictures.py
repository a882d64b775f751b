"""Figures drawn from training results: accuracy over epochs, accuracy against epsilon, one setting varied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hush.accounting import Gaussian, Mechanism
from hush.experiments.accounts.found import BLUE, GREEN, GREY, ORANGE, panels, plain_numbers, save, whole_epochs
from hush.experiments.rows import Experiment, Row

Scores = dict[str, dict[str, Any]]
RECORDS = 60_000
"""Of MNIST, which all of these figures are about."""


def draw(experiment: Experiment, scores: Scores, folder: Path) -> list[str]:
    """The names of the figures that there are results for, drawn into the folder."""
    return [name for name in (make(experiment, scores, folder) for make in FIGURES.get(experiment.name, ())) if name]


def _curves(experiment: Experiment, scores: Scores) -> list[tuple[Row, dict[str, Any]]]:
    return [
        (row, scores[row.name]["curve"]) for row in experiment.rows if "curve" in scores.get(row.name, {}) and row.watch
    ]


def _spent(row: Row, epochs: list[float]) -> list[Mechanism]:
    """The row's mechanism after so many epochs, what was released beside the training included."""
    assert row.together is not None
    step = Gaussian(row.together).poisson(row.batch / RECORDS)
    runs = [step * max(1, round(count * RECORDS / row.batch)) for count in epochs]
    return [*runs] if row.pca_noise is None else [Gaussian(row.pca_noise) + run for run in runs]


def accuracy_over_epochs(experiment: Experiment, scores: Scores, folder: Path) -> str | None:
    """Abadi et al. 2016, Figure 3: training and test accuracy and, at the claimed epsilon, delta."""
    curves = _curves(experiment, scores)
    if not curves:
        return None
    figure, axes = panels(1, len(curves), 3.8)
    lines = []
    for axis, (row, curve) in zip(axes, curves, strict=True):
        epsilon = row.paper["epsilon"]
        lines = axis.plot(curve["epochs"], curve["train"], color=ORANGE, linestyle="--", label="training accuracy")
        lines += axis.plot(curve["epochs"], curve["test"], color=BLUE, label="test accuracy")
        end = axis.axhline(row.paper["accuracy"], color=GREY, linewidth=0.8, linestyle=":", label="the paper's end")
        axis.set(ylabel="accuracy, percent", ylim=(80, 100))
        whole_epochs(axis)
        axis.set_title(f"{row.name}: sigma {row.noise:g}; delta at epsilon {epsilon:g}", fontsize=9)
        beside = axis.twinx()
        deltas = [run.delta(epsilon).upper for run in _spent(row, curve["epochs"])]
        lines += [end, *beside.semilogy(curve["epochs"], np.maximum(deltas, 1e-30), color=GREEN, label="delta (right)")]
        beside.set(ylabel="certified delta", ylim=(1e-20, 1))
        beside.spines[["top"]].set_visible(False)
    figure.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return save(figure, folder, f"{experiment.name}-epochs.png")


def accuracy_against_epsilon(experiment: Experiment, scores: Scores, folder: Path) -> str | None:
    """Abadi et al. 2016, Figure 4: the best accuracy of any of the runs, stopped in time, for several deltas."""
    curves = _curves(experiment, scores)
    if not curves:
        return None
    figure, (axis,) = panels(1, 1, 4.8)
    styles = {1e-5: (BLUE, "-"), 1e-4: (ORANGE, "--"), 1e-3: (GREEN, "-."), 1e-2: (GREY, ":")}
    for delta, (colour, style) in styles.items():
        points: list[tuple[float, float]] = []
        for row, curve in curves:
            epsilons = [run.epsilon(delta).upper for run in _spent(row, curve["epochs"])]
            points += zip(epsilons, curve["test"], strict=True)
        points.sort()
        best = np.maximum.accumulate([accuracy for _, accuracy in points])
        places = [epsilon for epsilon, _ in points]
        axis.step(
            places, best, where="post", color=colour, linestyle=style, label=f"delta {delta:.0e}".replace("e-0", "e-")
        )
    axis.set(xscale="log", xlabel="certified epsilon", ylabel="test accuracy, percent", ylim=(84, 98))
    plain_numbers(axis.xaxis)
    axis.legend(frameon=False, fontsize=8)
    return save(figure, folder, f"{experiment.name}-epsilon.png")


def noises_over_epochs(experiment: Experiment, scores: Scores, folder: Path) -> str | None:
    """Bu et al. 2019, Figure 4, left: test accuracy over epochs with the noise of one account and of the other."""
    curves = _curves(experiment, scores)
    names = list(dict.fromkeys(row.panel for row, _ in curves))
    if not curves:
        return None
    figure, axes = panels(1, len(names), 4.4)
    for axis, name in zip(axes, names, strict=True):
        pair = [(row, curve) for row, curve in curves if row.panel == name]
        for (row, curve), (colour, style) in zip(pair, ((GREEN, "-"), (ORANGE, "--")), strict=False):
            axis.plot(curve["epochs"], curve["test"], color=colour, linestyle=style, label=f"sigma {row.noise:g}")
        axis.set(ylabel="test accuracy, percent", ylim=(85, 99))
        whole_epochs(axis)
        axis.set_title(f"epsilon {name} at the end", fontsize=9)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    return save(figure, folder, f"{experiment.name}-accuracy.png")


def one_varied(experiment: Experiment, scores: Scores, folder: Path) -> str | None:
    """Abadi et al. 2016, Figure 5: a panel for each setting; the reference belongs to all."""
    names = list(dict.fromkeys(row.panel for row in experiment.rows if row.panel))
    reference = next((row for row in experiment.rows if not row.panel), None)
    if reference is None or "mean" not in scores.get(reference.name, {}):
        return None
    middle = {
        "projection dimensions": float(reference.directions),
        "hidden units": 1000.0,
        "lot size": reference.batch,
        "learning rate": reference.lr,
        "clipping norm": reference.clip,
        "noise level": reference.noise or 0.0,
    }
    figure, axes = panels(2, 3, 3.2)
    for axis, name in zip(axes, names, strict=False):
        axis.set(xlabel=name, ylabel="test accuracy, percent", ylim=(78, 96))
        rows = [row for row in experiment.rows if row.panel == name and "mean" in scores.get(row.name, {})]
        points = [(row.place or 0.0, scores[row.name]) for row in rows] + [(middle[name], scores[reference.name])]
        points.sort(key=lambda point: point[0])
        _panel(axis, points)
        axis.plot([middle[name]], [scores[reference.name]["mean"]], "o", color=ORANGE, label="reference")
    axes[0].legend(frameon=False, fontsize=8)
    return save(figure, folder, f"{experiment.name}.png")


def _panel(axis: Axes, points: list[tuple[float, dict[str, Any]]]) -> None:
    from matplotlib.ticker import NullLocator

    places = [place for place, _ in points]
    means = [score["mean"] for _, score in points]
    axis.set_xscale("log")
    axis.errorbar(places, means, [score.get("deviation") or 0.0 for _, score in points], color=BLUE, marker=".")
    axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.xaxis.set_minor_locator(NullLocator())


FIGURES: dict[str, tuple[Callable[[Experiment, Scores, Path], str | None], ...]] = {
    "abadi2016-mnist": (accuracy_over_epochs, accuracy_against_epsilon),
    "abadi2016-figure5": (one_varied,),
    "bu2019-figure4": (noises_over_epochs,),
}
