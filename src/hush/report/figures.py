"""The pictures of a report: from the account alone, and, for the local edition, from what was seen while training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hush.accounting import Mechanism, compose
from hush.accounting.errors import ErrorCurve
from hush.digits import floor, number, short
from hush.report.plots import Axis, Band, Line, Mark, Plot
from hush.runs.inspecting import step_of
from hush.tabular.survey import Question


def tradeoff_plot(curve: ErrorCurve, epsilon: float, delta: float) -> Plot:
    """Missed against false alarms: the certified band, blind guessing, and what (epsilon, delta) alone would say."""
    alpha, lower, upper = curve.drawn()
    times = math.exp(min(epsilon, 700.0))  # more would overflow, and can't be told apart
    classical = np.maximum.reduce([1 - delta - times * alpha, (1 - delta - alpha) / times, 0 * alpha])
    best = int(np.argmin(alpha + lower))
    total = floor(100 * curve.error_sum.lower, 1)
    return Plot(
        "tradeoff",
        "Trade-off curve: the least share of misses of any attacker against their share of false alarms.",
        Axis("false alarms (type I error)", 0, 1, percent=True),
        Axis("misses (type II error)", 0, 1, percent=True),
        (
            Line("guessing blindly", [0, 1], [1, 0], 4),
            Line("best possible attack (certified)", alpha.tolist(), lower.tolist(), 0),
            Line("what epsilon and delta alone say", alpha.tolist(), classical.tolist(), 1),
        ),
        (
            Band("within an attacker's reach", alpha.tolist(), lower.tolist(), (1 - alpha).tolist(), 0),
            Band("", alpha.tolist(), lower.tolist(), upper.tolist(), 0),
        ),
        (Mark(float(alpha[best]), float(lower[best]), f"both errors:\n{total}% or more", apart=(0.6, 0.64)),),
    )


def delta_plot(mechanism: Mechanism, delta: float) -> Plot:
    """Epsilon against delta."""
    floor = max(1e-12, min(delta / 1e3, 1e-9))
    deltas = np.geomspace(floor, 0.1, 36).tolist()
    epsilons = [mechanism.epsilon(value).upper for value in deltas]
    pairs = [(d, e) for d, e in zip(deltas, epsilons, strict=True) if math.isfinite(e)]
    quoted = mechanism.epsilon(delta).upper
    return Plot(
        "epsilon-delta",
        "Epsilon against delta: the same run promises a smaller epsilon at a larger delta.",
        Axis("delta", floor, 0.1, log=True),
        Axis("epsilon", 0, _ceiling([e for _, e in pairs] + [quoted])),
        (Line("", [d for d, _ in pairs], [e for _, e in pairs], 0),),
        marks=(Mark(delta, quoted, f"quoted: {short(quoted)} at {number(delta)}", slope=-1),),
    )


def epochs_plot(terms: dict[str, Any], charged: int) -> Plot:
    """Epsilon spent over the epochs, the survey first."""
    asked = [part for question in terms["questions"] for part in Question(**question).charges()]
    step, rate, delta = step_of(terms), float(terms["rate"]), float(terms["delta"])
    counts = sorted({round(charged * share) for share in np.linspace(0, 1, 26) ** 1.5} | {charged})
    points = []
    for count in counts:
        parts = [*asked, *([(step, count)] if count else [])]
        points.append((count * rate, compose(parts).epsilon(delta).upper if parts else 0.0))
    heights = [epsilon for _, epsilon in points]
    return Plot(
        "epsilon-epochs",
        "Epsilon spent against epochs of training; at epoch 0 stands what the survey of the data cost.",
        Axis("epochs", 0, max(charged * rate, rate)),
        Axis(f"epsilon spent, at delta {number(delta)}", 0, _ceiling(heights)),
        (Line("", [epoch for epoch, _ in points], heights, 0),),
        marks=(Mark(points[0][0], points[0][1], "survey of the data", slope=1),) if asked else (),
    )


# Local only


def local_plots(epochs: Sequence[dict[str, Any]], classes: bool, unit: str) -> list[tuple[Plot, str]]:
    """Score, loss and gradient norms over the epochs, with captions."""
    found: list[tuple[Plot, str]] = []
    scored = _column(epochs, "score")
    if scored[0]:
        axis = (
            Axis("accuracy", 0, 1, percent=True) if classes else Axis("root mean squared error", 0, _ceiling(scored[1]))
        )
        words = "Accuracy on the hold-out over the epochs." if classes else "Error on the hold-out over the epochs."
        plot = Plot("score", words, _epochs(scored[0]), axis, (Line("", *scored, 0, True),))
        found.append((plot, words + " Averaged weights."))
    losses = _column(epochs, "loss")
    if losses[0]:
        plot = Plot(
            "loss",
            "Mean training loss by epoch.",
            _epochs(losses[0]),
            Axis("loss", 0, _ceiling(losses[1])),
            (Line("", *losses, 0, True),),
        )
        found.append((plot, "Mean loss of the drawn records by epoch."))
    rows = [row for row in epochs if row.get("norms") and None not in row["norms"]]
    if rows:
        x = [float(row["epoch"]) for row in rows]
        low, middle, high = ([float(row["norms"][k]) for row in rows] for k in range(3))
        floor, top = max(min(low) / 1.5, 1e-12), max(max(high) * 1.5, 1e-11)
        plot = Plot(
            "norms",
            f"Gradient norms of single {unit}s by epoch, before clipping.",
            _epochs(x),
            Axis("gradient norm", floor, top, log=True),
            (Line("median", x, middle, 0, True),),
            (Band("middle half", x, low, high, 0),),
        )
        found.append((plot, f"Norms of single {unit}s' gradients, before clipping."))
    clipped = _column(epochs, "clipped")
    if clipped[0]:
        plot = Plot(
            "clipped",
            "Share of clipped gradients by epoch.",
            _epochs(clipped[0]),
            Axis("share", 0, 1, percent=True),
            (Line("", *clipped, 0, True),),
        )
        found.append((plot, "Share of gradients longer than the clip norm (those are scaled down, the others up)."))
    return found


def _column(epochs: Sequence[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in epochs if isinstance(row.get(name), int | float)]
    return [float(row["epoch"]) for row in rows], [float(row[name]) for row in rows]


def _epochs(values: Sequence[float]) -> Axis:
    return Axis("epochs", 0, max(max(values), 1e-6))


def _ceiling(values: Sequence[float]) -> float:
    """A little above the largest."""
    largest = max((value for value in values if math.isfinite(value)), default=1.0)
    return max(largest, 1e-9) * 1.12
