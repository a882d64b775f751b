"""Bu, Dong, Long and Su 2019, Deep learning with Gaussian differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.special import ndtr

from hush.accounting import Gaussian, Mechanism, calibrate, limits
from hush.accounting import moments as ma
from hush.accounting import tradeoff as f
from hush.digits import ceiling, floor
from hush.experiments.accounts.found import (
    BLUE,
    GREEN,
    LEVELS,
    ORANGE,
    Check,
    Found,
    Table,
    errors_axis,
    panels,
    save,
    whole_epochs,
)

MNIST = 256 / 60_000


@dataclass(frozen=True)
class Setting:
    """One row: a sampling rate, a noise multiplier, epochs, and what the paper says of them."""

    name: str
    rate: float
    noise: float
    epochs: float
    mu: float
    clt: float
    moments: float
    delta: float = 1e-5

    @property
    def steps(self) -> int:
        """Epochs over the rate; what the paper's numbers come out with."""
        return round(self.epochs / self.rate)

    @property
    def run(self) -> Mechanism:
        return Gaussian(self.noise).poisson(self.rate) * self.steps

    @property
    def limit(self) -> limits.Approximation:
        return limits.poisson_limit(self.rate, self.noise, self.steps)

    def by_moments(self) -> float:
        """With the orders of the paper's footnote 13 and Theorem 2.2 of Abadi et al. 2016."""
        return ma.moments_epsilon(self.rate, self.noise, self.steps, self.delta, ma.FOOTNOTE_13_ORDERS, ma.TAIL_BOUND)


TABLE1 = (
    Setting("sigma 1.3, 15 epochs", MNIST, 1.3, 15, 0.23, 0.83, 1.19),
    Setting("sigma 1.1, 60 epochs", MNIST, 1.1, 60, 0.57, 2.32, 3.01),
    Setting("sigma 0.7, 45 epochs", MNIST, 0.7, 45, 1.13, 5.07, 7.10),
    Setting("sigma 0.6, 62 epochs", MNIST, 0.6, 62, 2.00, 9.98, 13.27),
    Setting("sigma 0.55, 68 epochs", MNIST, 0.55, 68, 2.76, 14.98, 18.72),
    Setting("sigma 0.5, 100 epochs", MNIST, 0.5, 100, 4.78, 31.12, 32.40),
)
TABLE2 = Setting("Adult, sigma 0.55, 18 epochs", 256 / 29_305, 0.55, 18, 2.03, 10.20, 14.70)
TABLE3 = Setting("IMDb, sigma 0.56, 9 epochs", 512 / 25_000, 0.56, 9, 2.07, 10.43, 15.24)
TABLE4 = Setting("MovieLens, sigma 0.6, 20 epochs", 1 / 80, 0.6, 20, 1.94, 10.61, 15.39, 1e-6)


def table1(folder: Path) -> Found:
    return _table("Table 1, privacy columns", TABLE1)


def table2(folder: Path) -> Found:
    return _table("Table 2, privacy columns", (TABLE2,))


def table3(folder: Path) -> Found:
    return _table("Table 3, privacy columns", (TABLE3,))


def table4(folder: Path) -> Found:
    return _table("Table 4, privacy columns", (TABLE4,))


def _table(title: str, settings: tuple[Setting, ...]) -> Found:
    rows, checks = [], []
    for s in settings:
        limit, moments, certified = s.limit, s.by_moments(), s.run.epsilon(s.delta)
        clt = limit.epsilon(s.delta)
        rows.append(
            (
                s.name,
                f"{s.mu:.2f} / {limit.mu:.2f}",
                f"{s.clt:.2f} / {clt:.2f}",
                f"{s.moments:.2f} / {moments:.2f}",
                f"**{ceiling(certified.upper, 4)}**",
                f"{100 * (certified.lower / s.clt - 1):+.0f}%",
            )
        )
        checks += [
            Check(f"{s.name}: mu of the CLT", s.mu, limit.mu, 0.0051),
            Check(f"{s.name}: epsilon of the CLT", s.clt, clt, 0.0051),
            Check(f"{s.name}: epsilon of the moments accountant", s.moments, moments, 0.006 * s.moments),
        ]
    columns = (
        "setting",
        "mu, paper / ours",
        "epsilon by the CLT, paper / ours",
        "by moments, paper / ours",
        "certified epsilon",
        "the truth against the paper's claim",
    )
    return Found((Table(title, columns, tuple(rows)),), tuple(checks))


def figure2(folder: Path) -> Found:
    """epsilon against delta, epochs and noise, at sigma = 0.7: the CLT, the moments accountant, and the truth."""
    figure, axes = panels(2, 2)
    epsilons = np.linspace(0.5, 12, 24)
    for axis, epochs in zip(axes, (15, 45), strict=False):
        s = Setting("", MNIST, 0.7, epochs, 0, 0, 0)
        moments = ma.Moments(ma.compose([(ma.subsampled_gaussian_moment(MNIST, 0.7), s.steps)]))
        axis.semilogy(epsilons, [s.limit.delta(e) for e in epsilons], color=ORANGE, label="CLT (approximation)")
        axis.semilogy(
            epsilons,
            [moments.delta(e, ma.FOOTNOTE_13_ORDERS, ma.TAIL_BOUND) for e in epsilons],
            color=GREEN,
            label="moments accountant",
        )
        axis.semilogy(epsilons, [s.run.delta(e).upper for e in epsilons], color=BLUE, label="certified")
        axis.set(xlabel="epsilon", ylabel="delta", ylim=(1e-12, 1))
        axis.set_title(f"sigma 0.7, {epochs} epochs", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    grid = np.array([1, 5, 10, 20, 30, 45, 60, 80, 100])
    _against(axes[2], grid, [Setting("", MNIST, 0.7, e, 0, 0, 0) for e in grid], "epochs (sigma 0.7)")
    noises = np.array([0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3])
    _against(axes[3], noises, [Setting("", MNIST, z, 45, 0, 0, 0) for z in noises], "sigma (45 epochs)")
    return Found(figures=(save(figure, folder, "bu2019-figure2.png"),))


def _against(axis: Axes, places: NDArray[Any], settings: list[Setting], label: str) -> None:
    axis.plot(places, [s.limit.epsilon(1e-5) for s in settings], color=ORANGE)
    axis.plot(places, [s.by_moments() for s in settings], color=GREEN)
    axis.plot(places, [s.run.epsilon(1e-5).upper for s in settings], color=BLUE)
    axis.set(xlabel=label, ylabel="epsilon at delta 1e-5")


def figure3(folder: Path) -> Found:
    """The six rows of Table 1 as trade-off curves."""
    figure, axes = panels(2, 3)
    rows = []
    for axis, s in zip(axes, TABLE1, strict=True):
        run = s.run
        errors_axis(axis, s.name)
        axis.plot(LEVELS, f.gaussian(s.limit.mu)(LEVELS), color=ORANGE, linewidth=3, alpha=0.6, label="CLT")
        axis.plot(
            LEVELS, f.approximate(s.by_moments(), s.delta)(LEVELS), color=GREEN, label="moments, one (eps, delta)"
        )
        curve = run.tradeoff(300)
        axis.plot(curve.alpha, curve.lower, color=BLUE, linewidth=1.2, label="certified")
        sums = (2 * ndtr(-s.limit.mu / 2), f.approximate(s.by_moments(), s.delta).error_sum())
        certified = floor(100 * run.error_sum().lower, 1)
        rows.append((s.name, *(f"{100 * value:.1f}%" for value in sums), f"{certified}%"))
    axes[0].legend(frameon=False, fontsize=7)
    second = TABLE1[1]
    clt = 100 * 2 * ndtr(-second.limit.mu / 2)
    moments = 100 * f.approximate(second.by_moments(), second.delta).error_sum()
    return Found(
        (
            Table(
                "Figure 3, the least sum of an attacker's errors",
                ("setting", "by the CLT", "by the moments accountant's epsilon", "certified"),
                tuple(rows),
            ),
        ),
        (
            Check("96.6% model: least sum of errors by the CLT, percent", 77.6, float(clt), 0.2),
            Check("96.6% model: least sum of errors by the moments accountant, percent", 9.4, float(moments), 0.1),
        ),
        (save(figure, folder, "bu2019-figure3.png"),),
    )


def _at(noise: float, epochs: float) -> Setting:
    return Setting("", MNIST, noise, epochs, 0, 0, 0)


def _steps(count: int, noise: float) -> Mechanism:
    return Gaussian(noise).poisson(MNIST) * count


def figure4(folder: Path) -> Found:
    """Two noises, the same claimed epsilon: what is certified of both, and the noise that would keep the claim."""
    figure, axes = panels(1, 2, 4.4)
    rows, checks = [], []
    pairs = ((1.3, 1.06, 20, 1.34, 0.35), (0.7, 0.638, 70, 8.68, 1.78))
    for axis, (large, small, last, claimed, mu) in zip(axes, pairs, strict=True):
        epochs = np.unique(np.linspace(1, last, 12).round())
        before, after = partial(_at, large), partial(_at, small)
        axis.plot(epochs, [before(e).by_moments() for e in epochs], color=GREEN, label=f"moments, sigma {large}")
        clt = [after(e).limit.epsilon(1e-5) for e in epochs]
        axis.plot(epochs, clt, color=ORANGE, label=f"CLT, sigma {small}")
        axis.plot(
            epochs, [before(e).run.epsilon(1e-5).upper for e in epochs], color=BLUE, label=f"certified, sigma {large}"
        )
        certified = [after(e).run.epsilon(1e-5).upper for e in epochs]
        axis.plot(epochs, certified, color=BLUE, linestyle="--", label=f"certified, sigma {small}")
        axis.set(ylabel="epsilon at delta 1e-5")
        whole_epochs(axis)
        axis.legend(frameon=False, fontsize=8)
        kept = calibrate.noise(partial(_steps, before(last).steps), claimed, 1e-5)
        rows.append((f"{small} after {last} epochs", f"{claimed}", ceiling(certified[-1], 3), ceiling(kept, 4)))
        both = f"Figure 4: epsilon {claimed}, by both accounts"
        moments, limit = before(last).by_moments(), after(last).limit.epsilon(1e-5)
        checks += [
            Check(f"sigma {large}, {last} epochs: moments accountant", claimed, moments, 0.015, number=both),
            Check(f"sigma {small}, {last} epochs: CLT", claimed, limit, 0.03, number=both),
            Check(f"sigma {small}, {last} epochs: mu", mu, after(last).limit.mu, 0.0051),
        ]
    table = Table(
        "Figure 4, what the smaller noise really costs",
        ("sigma", "epsilon the paper claims", "certified epsilon", "smallest sigma that keeps the claim"),
        tuple(rows),
    )
    return Found((table,), tuple(checks), (save(figure, folder, "bu2019-figure4.png"),))


def figure5(folder: Path) -> Found:
    """The exact curve and its Gaussian limit at sigma = 1.1: 234 steps at a rate that keeps p sqrt(T); 60 epochs."""
    figure, axes = panels(1, 2)
    rows = []
    second = TABLE1[1]
    early = second.rate * math.sqrt(second.steps / 234)
    for axis, (rate, steps) in zip(axes, ((early, 234), (second.rate, second.steps)), strict=True):
        run, limit = Gaussian(1.1).poisson(rate) * steps, limits.poisson_limit(rate, 1.1, steps)
        curve = run.tradeoff(300)
        drawn = f.gaussian(limit.mu)(curve.alpha)
        errors_axis(axis, f"sigma 1.1, {steps} steps at rate {rate:.4f}")
        axis.plot(curve.alpha, drawn, color=ORANGE, linewidth=3, alpha=0.6, label="CLT")
        axis.plot(curve.alpha, curve.lower, color=BLUE, linestyle="--", label="certified")
        gap = float(np.max(np.abs(drawn - curve.lower)))
        epsilon = limit.epsilon(1e-5)
        true = run.epsilon(1e-5).upper
        rows.append(
            (f"{steps} at rate {rate:.4f}", f"{limit.mu:.3f}", f"{gap:.4f}", f"{epsilon:.3f}", ceiling(true, 3))
        )
    axes[0].legend(frameon=False, fontsize=8)
    table = Table(
        "Figure 5, how far the limit is",
        ("steps", "mu", "largest distance of the curves", "epsilon by the CLT", "certified epsilon"),
        tuple(rows),
    )
    remark = "The curves look alike at every scale a picture shows; at the deltas that are quoted they differ."
    return Found((table,), (), (save(figure, folder, "bu2019-figure5.png"),), (remark,))
