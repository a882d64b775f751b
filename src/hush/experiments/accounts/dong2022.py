"""Dong, Roth and Su 2022, Gaussian differential privacy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from hush.accounting import Gaussian, classical, limits
from hush.accounting import moments as ma
from hush.accounting import tradeoff as f
from hush.digits import ceiling
from hush.experiments.accounts.found import (
    BLUE,
    GREEN,
    GREY,
    LEVELS,
    ORANGE,
    Check,
    Found,
    Table,
    errors_axis,
    panels,
    save,
)

MNIST = ((1.3, 15, 95.0), (1.1, 60, 96.6), (0.7, 45, 97.0))
"""Noise, epochs and accuracy of Figure 7's three experiments: m = 256 of n = 60,000."""


def figure1(folder: Path) -> Found:
    """Left: Figure 5's right panel; right: Figure 7's first."""
    figure, axes = panels(1, 2, 4)
    gap, epsilon = _tenfold(axes[0])
    _noisy_sgd(axes[1], *MNIST[0])
    axes[0].legend(frameon=False, fontsize=7)
    axes[1].legend(frameon=False, fontsize=7)
    return Found((), _tenfold_checks(gap, epsilon), (save(figure, folder, "dong2022-figure1.png"),))


def figure3(folder: Path) -> Found:
    """Left: f_{epsilon, delta}; right: G_mu for four mu."""
    figure, axes = panels(1, 2, 4)
    errors_axis(axes[0], r"$f_{\varepsilon,\delta}$ for epsilon 1, delta 0.1")
    axes[0].plot(LEVELS, f.approximate(1.0, 0.1)(LEVELS), color=BLUE)
    errors_axis(axes[1], r"$G_\mu$")
    for mu, shade in ((0.5, 0.4), (1.0, 0.6), (3.0, 0.8), (6.0, 1.0)):
        axes[1].plot(LEVELS, f.gaussian(mu)(LEVELS), color=BLUE, alpha=shade, label=f"mu = {mu:g}")
    axes[1].legend(frameon=False, fontsize=8)
    both = {mu: float(f.gaussian(mu).error_sum()) / 2 for mu in (3.0, 6.0)}
    checks = (
        Check("both errors at once under mu = 3", 0.07, both[3.0], 0.005),
        Check("both errors at once under mu = 6", 0.001, both[6.0], 0.0005),
    )
    return Found((), checks, (save(figure, folder, "dong2022-figure3.png"),))


def figure5(folder: Path) -> Found:
    """Left: tensoring with f_{0, delta} shrinks a curve; right: ten (1/sqrt(10), 0)-DP mechanisms."""
    figure, axes = panels(1, 2, 4)
    errors_axis(axes[0], r"$G_1 \otimes f_{0,\delta}$ for delta 0.2")
    axes[0].plot(LEVELS, f.gaussian(1.0)(LEVELS), color=GREY, label="$G_1$")
    shrunk = f.tensor(f.gaussian(1.0), f.approximate(0.0, 0.2))
    axes[0].plot(LEVELS, shrunk(LEVELS), color=BLUE, label=r"$G_1 \otimes f_{0,\delta}$")
    axes[0].legend(frameon=False, fontsize=8)
    gap, epsilon = _tenfold(axes[1])
    axes[1].legend(frameon=False, fontsize=7)
    scaled = Check(
        "where the left curve meets the axis: 1 - delta", 0.8, float(shrunk(np.array([0.0]))[0]), 1e-6, False
    )
    return Found((), (*_tenfold_checks(gap, epsilon), scaled), (save(figure, folder, "dong2022-figure5.png"),))


def _tenfold(axis: Axes) -> tuple[float, float]:
    each = 1 / math.sqrt(10)
    composed = f.power(f.approximate(each), 10)
    epsilon = classical.optimal_epsilon(each, 0.0, 10, 0.001)
    errors_axis(axis, r"ten steps, each $(1/\sqrt{10}, 0)$-DP")
    axis.plot(LEVELS, composed(LEVELS), color=BLUE, label="exact")
    limit = f.gaussian(1.0)(LEVELS)
    axis.plot(LEVELS, limit, color=ORANGE, linestyle="--", label="CLT: $G_1$")
    line = f.approximate(epsilon, 0.001)(LEVELS)
    axis.plot(LEVELS, line, color=GREY, label=f"epsilon {epsilon:.2f}, delta 0.001")
    return float(f.distance(composed, f.gaussian(1.0))), epsilon


def _tenfold_checks(gap: float, epsilon: float) -> tuple[Check, ...]:
    return (
        Check("ten-fold composition: epsilon at delta 0.001", 2.89, epsilon, 0.0051),
        Check("ten-fold composition: distance to G_1 (at most, the paper says)", 0.013, gap, 0.001),
    )


def figure6(folder: Path) -> Found:
    """What the operator C_p does."""
    figure, axes = panels(1, 2, 4)
    errors_axis(axes[0], "$f = G_{1.8}$, $p = 0.35$")
    axes[0].plot(LEVELS, f.gaussian(1.8)(LEVELS), color=GREY, label="$f$")
    mixed = 0.35 * f.gaussian(1.8)(LEVELS) + 0.65 * (1 - LEVELS)
    axes[0].plot(LEVELS, mixed, color=ORANGE, linestyle="--", label="$f_p$")
    axes[0].plot(LEVELS, f.subsample(f.gaussian(1.8), 0.35)(LEVELS), color=BLUE, label="$C_p(f)$")
    axes[0].legend(frameon=False, fontsize=8)
    errors_axis(axes[1], r"$f = f_{\varepsilon,\delta}$ for epsilon 3, delta 0.1; $p = 0.2$")
    lemma = f.approximate(*classical.amplified(3.0, 0.1, 0.2))
    sampled = f.subsample(f.approximate(3.0, 0.1), 0.2)
    axes[1].plot(LEVELS, f.approximate(3.0, 0.1)(LEVELS), color=GREY, label="$f$")
    axes[1].plot(LEVELS, lemma(LEVELS), color=GREEN, label="Lemma 2")
    axes[1].plot(LEVELS, sampled(LEVELS), color=BLUE, label="$C_p(f)$")
    axes[1].legend(frameon=False, fontsize=8)
    # By (13) with the fixed point x = (1 - delta)/(1 + e^epsilon): x + f_p(x) = 1 - p (1 - 2 x)
    expected = 1 - 0.2 * (1 - 2 * 0.9 / (1 + math.exp(3.0)))
    printed = 1 - 0.2 * 0.1 - 0.2 * math.expm1(3.0) / (math.exp(3.0) + 1)
    ours = float(sampled.error_sum())
    table = Table(
        "Figure 6, the least sum of errors at epsilon 3, delta 0.1, p = 0.2",
        ("Lemma 2", "Equation (14) as printed", "Equation (13)", "C_p, ours"),
        ((f"{lemma.error_sum():.4f}", f"{printed:.4f}", f"{expected:.4f}", f"{ours:.4f}"),),
    )
    check = Check("least sum of errors of C_p, by Equation (13)", expected, ours, 1e-6, False)
    remark = "Equation (14) has p delta where (13) gives 2 p delta/(1 + e^epsilon): valid, but below C_p in the middle."
    return Found((table,), (check,), (save(figure, folder, "dong2022-figure6.png"),), (remark,))


def figure7(folder: Path) -> Found:
    """NoisySGD on MNIST, uniform batches, one record replaced, noise of 2C sigma: Corollary 4 and the moments line."""
    figure, axes = panels(1, 3)
    rows, checks = [], []
    for axis, (noise, epochs, accuracy) in zip(axes, MNIST, strict=True):
        limit, certified = _noisy_sgd(axis, noise, epochs, accuracy)
        rows.append(
            (f"{noise:g}, {epochs} epochs", f"{limit.mu:.4f}", f"{limit.epsilon(1e-5):.4f}", ceiling(certified, 4))
        )
        if noise == 1.3:
            checks.append(
                Check("Corollary 4, recomputed apart, at sigma 1.3, 15 epochs: mu", 0.2847, limit.mu, 5.1e-5, False)
            )
            checks.append(
                Check(
                    "Corollary 4, recomputed apart, at sigma 1.3, 15 epochs: epsilon",
                    1.0686,
                    limit.epsilon(1e-5),
                    5.1e-5,
                    False,
                )
            )
    axes[0].legend(frameon=False, fontsize=7)
    table = Table(
        "Figure 7, at delta 1e-5",
        ("sigma", "mu by Corollary 4", "its epsilon (approximation)", "certified epsilon, uniform batches"),
        tuple(rows),
    )
    return Found((table,), tuple(checks), (save(figure, folder, "dong2022-figure7.png"),))


def _noisy_sgd(axis: Axes, noise: float, epochs: int, accuracy: float) -> tuple[limits.Approximation, float]:
    rate = 256 / 60_000
    steps = round(epochs / rate)
    limit = limits.uniform_limit(rate, noise, steps)
    moments = ma.moments_epsilon(rate, noise, steps, 1e-5, ma.FOOTNOTE_13_ORDERS, ma.TAIL_BOUND)
    run = Gaussian(noise).uniform(256, of=60_000) * steps
    errors_axis(axis, f"sigma {noise:g}, {epochs} epochs, accuracy {accuracy:g}%")
    curve = run.tradeoff(200)
    axis.plot(LEVELS, limit.tradeoff(LEVELS), color=ORANGE, linewidth=3, alpha=0.6, label="CLT")
    axis.plot(curve.alpha, curve.lower, color=BLUE, label="certified, uniform batches")
    axis.plot(LEVELS, f.approximate(moments, 1e-5)(LEVELS), color=GREEN, label="moments accountant")
    return limit, run.epsilon(1e-5).upper
