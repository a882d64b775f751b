"""Bu, Gopi, Kulkarni, Lee, Shen and Tantipongpipat 2021, DP-SGD with Johnson-Lindenstrauss projections."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from hush.accounting import Gaussian, Projected
from hush.digits import up
from hush.experiments.accounts.found import BLUE, Found, Table, panels, plain_numbers, save

SETTINGS = ((60_000, 256, 1.3), (25_000, 64, 0.5))
COUNTS = (1, 4, 10, 30, 100)


def figure8(folder: Path) -> Found:
    """epsilon up to five epochs, by Theorem 4.1 in both directions."""
    figure, axes = panels(1, 2, 4.4)
    rows = []
    for axis, (records, batch, noise) in zip(axes, SETTINGS, strict=True):
        rate = batch / records
        epochs = np.arange(1, 6)
        steps = [round(e / rate) for e in epochs]
        cells = []
        for shade, count in zip((0.25, 0.4, 0.55, 0.75, 0.9), COUNTS, strict=True):
            upper = [(Projected(noise, count).poisson(rate) * t).epsilon(1e-5).upper for t in steps]
            if math.isfinite(upper[-1]):
                axis.semilogy(epochs, upper, color=BLUE, alpha=shade, label=f"r = {count}")
            cells.append(up(upper[-1], 4) if math.isfinite(upper[-1]) else "above 10,000")
        exact = [(Gaussian(noise).poisson(rate) * t).epsilon(1e-5).upper for t in steps]
        axis.semilogy(epochs, exact, color="black", label="exact norms")
        axis.set(xlabel="epochs", ylabel="epsilon at delta 1e-5", xticks=epochs)
        plain_numbers(axis.yaxis)
        axis.set_title(f"N = {records}, B = {batch}, sigma = {noise}; r = 1 lies above", fontsize=9)
        rows.append((f"N = {records}, B = {batch}, sigma = {noise}", *cells, up(exact[-1], 4)))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    table = Table(
        "Figure 8, epsilon after five epochs",
        ("setting", *(f"r = {count}" for count in COUNTS), "exact norms"),
        tuple(rows),
    )
    remarks = (
        "The paper's curves for small r stay within a few units of the exact ones; by its own Theorem 4.1, evaluated "
        "in both directions, r = 1 gives no usable privacy and r = 4 hardly any (docs/errata.md).",
    )
    return Found((table,), (), (save(figure, folder, "bu2021-figure8.png"),), remarks)
