"""Abadi et al. 2016, Deep learning with differential privacy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hush.accounting import Gaussian, classical
from hush.accounting import moments as ma
from hush.digits import ceiling
from hush.experiments.accounts.found import BLUE, GREEN, GREY, Check, Found, Table, panels, save

RATE, NOISE, DELTA = 0.01, 4.0, 1e-5


def figure2(folder: Path) -> Found:
    """epsilon against epochs: strong composition, the moments accountant, the truth."""
    epochs = np.unique(np.round(np.geomspace(1, 400, 24)))
    figure, (axis,) = panels(1, 1, 4.8)

    def strong(e: float) -> float:
        return classical.strong_epsilon_of_subsampled_gaussian(RATE, NOISE, round(e / RATE), DELTA)

    def moments(e: float) -> float:
        return ma.moments_epsilon(RATE, NOISE, e / RATE, DELTA, ma.INTEGER_ORDERS, ma.TAIL_BOUND)

    def certified(e: float) -> float:
        return (Gaussian(NOISE).poisson(RATE) * round(e / RATE)).epsilon(DELTA).upper

    axis.plot(epochs, [strong(e) for e in epochs], color=GREY, label="strong composition, as in the paper")
    axis.plot(epochs, [moments(e) for e in epochs], color=GREEN, label="moments accountant")
    axis.plot(epochs, [certified(e) for e in epochs], color=BLUE, label="certified")
    axis.set(xlabel="epochs", ylabel="epsilon at delta 1e-5")
    axis.set_title("sampling rate 0.01, sigma 4", fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    rows = tuple(
        (str(e), f"{a} / {strong(e):.2f}", f"{b} / {moments(e):.3f}", f"**{ceiling(certified(e), 4)}**")
        for e, a, b in ((100, 9.34, 1.26), (400, 24.22, 2.55))
    )
    columns = ("epochs", "strong composition, paper / ours", "moments, paper / ours", "certified epsilon")
    finer = ma.moments_epsilon(RATE, NOISE, 40_000, DELTA, conversion=ma.TAIL_BOUND)
    return Found(
        (Table("Figure 2, the stated numbers", columns, rows),),
        (
            Check("strong composition after 100 epochs", 9.34, strong(100), 0.02),
            Check("strong composition after 400 epochs", 24.22, strong(400), 0.04),
            Check("moments accountant after 100 epochs", 1.26, moments(100), 0.0051),
            Check("moments accountant after 400 epochs, all orders", 2.55, finer, 0.03),
        ),
        (save(figure, folder, "abadi2016-figure2.png"),),
        ("The strong-composition values rest on two steps that don't hold; docs/errata.md has the proper value.",),
    )
