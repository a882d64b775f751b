"""Time certified epsilons beside dp-accounting's PLD and prv-accountant, in one run.

    make bench        # or: python benchmarks/accounting.py [--quick]

Every accountant answers the same question, epsilon at delta for the nine runs of Bu et al. 2019's tables, from the
parameters on: nothing is shared between repetitions.  Prints tables and writes benchmarks/results/accounting.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hush.accounting import Gaussian, Mechanism, calibrate

RESULTS = Path(__file__).parent / "results" / "accounting.json"

ROWS = [
    ("MNIST, sigma 1.3", 256 / 60_000, 1.3, 3516, 1e-5),
    ("MNIST, sigma 1.1", 256 / 60_000, 1.1, 14062, 1e-5),
    ("MNIST, sigma 0.7", 256 / 60_000, 0.7, 10547, 1e-5),
    ("MNIST, sigma 0.6", 256 / 60_000, 0.6, 14531, 1e-5),
    ("MNIST, sigma 0.55", 256 / 60_000, 0.55, 15938, 1e-5),
    ("MNIST, sigma 0.5", 256 / 60_000, 0.5, 23438, 1e-5),
    ("Adult", 256 / 29_305, 0.55, 2061, 1e-5),
    ("IMDb", 512 / 25_000, 0.56, 439, 1e-5),
    ("MovieLens", 1 / 80, 0.6, 1600, 1e-6),
]


def run_of(rate: float, noise: float, steps: int) -> Mechanism:
    return Gaussian(noise_multiplier=noise).poisson(rate) * steps


def seconds(question: Callable[[], Any], repetitions: int) -> float:
    """The median time of an answer, after one that isn't counted."""
    question()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        question()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def pld_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-4, use_connect_dots=True
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def prv_epsilon(rate: float, noise: float, steps: int, delta: float) -> tuple[float, float, float]:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    accountant = PRVAccountant(
        prvs=[mechanism], max_self_compositions=[steps], eps_error=0.01, delta_error=delta / 1000
    )
    low, middle, high = accountant.compute_epsilon(delta, [steps])
    return float(low), float(middle), float(high)


def peak_megabytes() -> float:
    """The most memory that a fresh process takes for the nine certified answers, imports included."""
    script = (
        "import resource\n"
        "from hush.accounting import Gaussian\n"
        f"for _, rate, noise, steps, delta in {ROWS!r}:\n"
        "    (Gaussian(noise).poisson(rate) * steps).epsilon(delta)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def nine_rows(repetitions: int, peers: bool) -> list[dict[str, Any]]:
    answers = []
    for name, rate, noise, steps, delta in ROWS:
        mechanism = run_of(rate, noise, steps)
        bounds = mechanism.epsilon(delta)
        row: dict[str, Any] = {
            "run": name,
            "epsilon_lower": bounds.lower,
            "epsilon_upper": bounds.upper,
            "hush_seconds": seconds(lambda m=mechanism, d=delta: m.epsilon(d), repetitions),  # type: ignore[misc]
        }
        if peers:
            question = (rate, noise, steps, delta)
            row["pld_epsilon"] = pld_epsilon(*question)
            row["pld_seconds"] = seconds(lambda q=question: pld_epsilon(*q), 1)  # type: ignore[misc]
            row["prv_epsilon"] = prv_epsilon(*question)[1]
            row["prv_seconds"] = seconds(lambda q=question: prv_epsilon(*q), 1)  # type: ignore[misc]
        answers.append(row)
    return answers


def flat_in_steps(repetitions: int) -> list[dict[str, float]]:
    """The same total privacy spread over ever more steps: the time must not grow."""
    answers = []
    for steps in (10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9):
        mechanism = run_of(0.3 / steps**0.5, 1.0, steps)
        answers.append(
            {
                "steps": steps,
                "epsilon_upper": mechanism.epsilon(1e-5).upper,
                "seconds": seconds(lambda m=mechanism: m.epsilon(1e-5), repetitions),  # type: ignore[misc]
            }
        )
    return answers


def searches(repetitions: int, one_answer: float) -> dict[str, float]:
    """Calibration and a whole trade-off curve, in units of one answer."""
    rate, steps = 256 / 60_000, 3516
    noise = seconds(lambda: calibrate.noise(lambda s: run_of(rate, s, steps), 1.0, 1e-5), repetitions)
    curve = seconds(lambda: run_of(rate, 1.3, steps).tradeoff(points=1000), repetitions)
    return {
        "calibration_seconds": noise,
        "calibration_in_answers": noise / one_answer,
        "curve_of_1000_points_seconds": curve,
        "curve_of_1000_points_in_answers": curve / one_answer,
    }


def show(report: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="One epsilon, certified, beside the peers (seconds, medians)")
    for column in ("run", "certified epsilon", "hush", "PLD 1e-4", "ratio", "PRV 0.01", "ratio"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for row in report["rows"]:
        peers = ["-"] * 4
        if "pld_seconds" in row:
            peers = [
                f"{row['pld_seconds']:.3f}",
                f"{row['pld_seconds'] / row['hush_seconds']:.0f}x",
                f"{row['prv_seconds']:.3f}",
                f"{row['prv_seconds'] / row['hush_seconds']:.0f}x",
            ]
        table.add_row(row["run"], f"{row['epsilon_upper']:.6f}", f"{row['hush_seconds']:.4f}", *peers)
    console.print(table)
    steps = Table(title="Flat in the number of steps")
    steps.add_column("steps", justify="right")
    steps.add_column("epsilon", justify="right")
    steps.add_column("seconds", justify="right")
    for line in report["steps"]:
        steps.add_row(f"{line['steps']:.0e}", f"{line['epsilon_upper']:.6f}", f"{line['seconds']:.4f}")
    console.print(steps)
    for name, value in report["summary"].items():
        console.print(f"{name.replace('_', ' ')}: {value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the peers, and without writing the results")
    quick = parser.parse_args().quick
    repetitions = 5 if quick else 25
    memory = peak_megabytes()  # first: a process inherits the high-water mark of the one it was forked from
    rows = nine_rows(repetitions, peers=not quick)
    ours = statistics.median(row["hush_seconds"] for row in rows)
    summary = {"hush_median_seconds": ours, "peak_memory_megabytes": memory}
    if not quick:
        pld = statistics.median(row["pld_seconds"] for row in rows)
        prv = statistics.median(row["prv_seconds"] for row in rows)
        summary |= {
            "pld_median_seconds": pld,
            "prv_median_seconds": prv,
            "times_faster_than_pld": pld / ours,
            "times_faster_than_prv": prv / ours,
        }
    summary |= searches(3 if quick else 7, rows[0]["hush_seconds"])
    report = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": {name: version(name) for name in ("hush", "numpy", "scipy")}
        | ({} if quick else {name: version(name) for name in ("dp-accounting", "prv-accountant")}),
        "rows": rows,
        "steps": flat_in_steps(repetitions),
        "summary": summary,
    }
    show(report)
    if not quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
