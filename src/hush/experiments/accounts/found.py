"""What an account found: tables, checks of the numbers a paper states, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8a8a8a"
"""Certified answers are blue, approximations orange, the papers' bounds green: Okabe and Ito's palette."""

LEVELS = np.concatenate([np.geomspace(1e-6, 1e-2, 60), np.linspace(0.01, 1, 300)])
"""Type I errors at which curves are drawn."""


@dataclass(frozen=True)
class Table:
    """Cells as they are printed."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Check:
    """A number that a paper states, or that was found otherwise, beside the same quantity computed here."""

    what: str
    paper: float
    ours: float
    tolerance: float
    """How far apart they may be and still be called reproduced."""
    stated: bool = True
    """Whether the paper states the number; else it was computed in another way."""
    number: str = ""
    """Names a number that several checks are about: it is counted once."""

    @property
    def holds(self) -> bool:
        return abs(self.paper - self.ours) <= self.tolerance


@dataclass(frozen=True)
class Found:
    """Everything an account has to say."""

    tables: tuple[Table, ...] = ()
    checks: tuple[Check, ...] = ()
    figures: tuple[str, ...] = ()
    """Names of the pictures in the folder."""
    remarks: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        return {
            "tables": [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in self.tables],
            "checks": [
                {
                    "what": c.what,
                    "paper": c.paper,
                    "ours": c.ours,
                    "tolerance": c.tolerance,
                    "holds": c.holds,
                    "stated": c.stated,
                    "number": c.number or c.what,
                }
                for c in self.checks
            ],
            "figures": list(self.figures),
            "remarks": list(self.remarks),
        }


def panels(rows: int, columns: int, size: float = 3.6) -> tuple[Figure, list[Axes]]:
    """An empty figure, drawn without a screen."""
    figure = Figure(figsize=(size * columns, size * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(rows * columns)]
    for axis in axes:
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def errors_axis(axis: Axes, title: str) -> None:
    """The unit square of an attacker's two errors."""
    axis.plot([0, 1], [1, 0], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="type I error", ylabel="type II error")
    axis.set_title(title, fontsize=9)
    axis.set_aspect("equal")


def whole_epochs(axis: Axes) -> None:
    """Epochs along a line: nobody trains for 12.5."""
    axis.set_xlabel("epochs")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))


def plain_numbers(axis: Axis) -> None:
    """0.1, 1, 10 along a logarithmic axis, not powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def save(figure: Figure, folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "hush"}):
        figure.savefig(folder / name, dpi=110, metadata={"Software": None})
    return name


def numbers(values: Sequence[float], digits: int = 3) -> tuple[str, ...]:
    return tuple(f"{value:.{digits}f}" for value in values)
