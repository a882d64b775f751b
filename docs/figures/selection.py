"""The table and the picture of docs/selection.md: what a search costs against the mean number of its runs.

A run is the first of the GDP paper's MNIST settings, epsilon 0.8645 at delta 1e-5.  `python docs/figures/selection.py`
prints the table and writes img/selection.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

from hush.accounting import Gaussian
from hush.methods.selection.costs import every, profile, renyi
from hush.methods.selection.runs import Geometric, Logarithmic, NegativeBinomial, Poisson, Runs

DELTA = 1e-5
MEANS = (2, 5, 10, 20, 50, 100, 200)
PICTURE = Path(__file__).parent.parent / "img" / "selection.png"
LAWS = {
    "geometric": Geometric,
    "logarithmic": Logarithmic,
    "shape -1/2": lambda mean: NegativeBinomial(mean, -0.5),
    "Poisson": Poisson,
}


def seen(runs: Runs, candidates: int) -> float:
    """How likely a given one of so many candidates is run at least once: 1 - E[(1 - 1/n)^K]."""
    missed = 0.0
    for k, mass in runs.masses():
        missed += mass * (1 - 1 / candidates) ** k
        if k > runs.mean and mass < 1e-15:
            return 1 - missed
    raise AssertionError


def table() -> dict[str, list[float]]:
    run = Gaussian(1.3).poisson(256 / 60_000) * 3516
    rows: dict[str, list[float]] = {"naive composition": [every([run] * m).epsilon(DELTA).upper for m in MEANS]}
    for name, law in LAWS.items():
        rows[f"{name}, hush"] = [profile([run], law(m)).epsilon(DELTA).upper for m in MEANS]
        rows[f"{name}, Renyi"] = [renyi([run], law(m)).epsilon(DELTA).upper for m in MEANS]
    return rows


def draw(rows: dict[str, list[float]]) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2))
    axes.plot(MEANS, rows["naive composition"], "k-", label="naive composition")
    for name, colour in zip(LAWS, ("C0", "C1", "C2", "C3"), strict=True):
        axes.plot(MEANS, rows[f"{name}, hush"], "o-", ms=3, color=colour, label=f"{name}, hush")
        axes.plot(MEANS, rows[f"{name}, Renyi"], ":", color=colour, label=f"{name}, Papernot and Steinke")
    axes.axhline(0.8645, color="grey", lw=1)
    axes.text(2, 0.78, "one run", color="grey", va="top")
    axes.set(xlabel="mean number of runs", ylabel="certified epsilon at delta 1e-5", xscale="log", yscale="log")
    axes.set(ylim=(0.6, 20), xticks=MEANS, xticklabels=MEANS)
    axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.legend(fontsize=7, ncol=2)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    found = table()
    lines = [f"| mean number of runs | {' | '.join(map(str, MEANS))} |"]
    lines += [f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |" for name, values in found.items()]
    for name, law in LAWS.items():
        shares = " | ".join(f"{seen(law(m), m):.0%}" for m in MEANS)
        lines.append(f"| a given one of as many candidates is run, {name} | {shares} |")
    sys.stdout.write("\n".join(lines) + "\n")
    draw(found)
