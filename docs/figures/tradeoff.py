"""Draws the trade-off curve at the top of the README: img/tradeoff.png.

python docs/figures/tradeoff.py     takes a few seconds

One training run (60,000 records, 20 epochs, batches of about 1,024) with noise for three budgets.  The bands are the
certified intervals, narrower than the lines.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

import hush

PICTURE = Path(__file__).parent.parent / "img" / "tradeoff.png"
STYLES = {1.0: ("#009E73", "-"), 3.0: ("#0072B2", (0, (6, 1.5))), 8.0: ("#D55E00", (0, (2, 1.2)))}
"""Colours of Okabe and Ito; dashes for whoever prints in grey."""


def main() -> None:
    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [1, 0], color="#8a8a8a", linewidth=1, linestyle=(0, (1, 2)), label="blind guessing")
    for epsilon, (colour, dashes) in STYLES.items():
        plan = hush.Plan(records=60_000, batch=1024, epochs=20, epsilon=epsilon, delta=1e-6)
        curve = plan.mechanism.tradeoff()
        axes.fill_between(curve.alpha, curve.lower, curve.upper, color=colour, alpha=0.25, linewidth=0)
        axes.plot(curve.alpha, curve.lower, color=colour, linestyle=dashes, linewidth=2.2, label=f"epsilon {epsilon:g}")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="false alarms (type I error)", ylabel="misses (type II error)")
    axes.set_aspect("equal")
    axes.set_title("What whoever looks for one record must get wrong", fontsize=10)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", fontsize=9)
    figure.savefig(PICTURE, dpi=130, facecolor="white")


if __name__ == "__main__":
    main()
