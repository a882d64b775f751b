"""Pictures of trade-off curves.  Matplotlib is imported here and nowhere else in the accounting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hush.accounting.errors import ErrorCurve

BLUE, GREY, ORANGE = "#0072B2", "#8a8a8a", "#D55E00"
"""From the palette of Okabe and Ito, which colour-blind readers can tell apart."""
_CORNER = 0.6  # a sum of errors with no room for words between the curve and the axes


def plot_errors(curve: ErrorCurve, axes: Axes | None = None, label: str | None = None, **style: Any) -> Axes:
    """Draw the least type II error against the type I error, the certified band, and the line of perfect privacy."""
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.figure(figsize=(5.6, 5.2), layout="constrained").add_subplot()
    options: dict[str, Any] = {"color": BLUE, "linewidth": 2.2} | style
    axes.plot([0, 1], [1, 0], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="perfect privacy")
    alpha, lower, upper = curve.drawn()
    axes.fill_between(alpha, lower, upper, color=options["color"], alpha=0.25, linewidth=0)
    axes.plot(alpha, lower, label=label or "no attack does better (certified)", **options)
    at = float(curve.alpha[int(np.argmin(curve.alpha + curve.lower))])
    least = math.floor(curve.error_sum.lower * 1e4) / 1e4
    beta = float(curve(np.array([at]))[0][0])
    axes.plot([at], [beta], "o", color=options["color"], markersize=6, clip_on=False)
    axes.annotate(
        f"errors sum to\nat least {least:.4f}",
        (at, beta),
        xytext=(14, 14) if at + beta < _CORNER else (-14, -14),
        textcoords="offset points",
        ha="left" if at + beta < _CORNER else "right",
        va="bottom" if at + beta < _CORNER else "top",
        fontsize=9,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="type I error (false alarm)", ylabel="type II error (miss)")
    axes.set_aspect("equal")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", fontsize=9)
    return axes
