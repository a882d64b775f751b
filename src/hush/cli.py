"""The command line: `hush epsilon`, `delta`, `calibrate`, `curve` and `compare`.

Options are read here, turned into one mechanism (`Run.mechanism`), and everything else is asked of `hush.accounting`.
NumPy, SciPy, Rich and Matplotlib are imported where they are needed: an answer should take less than a second.

Numbers that bound privacy are printed rounded to the safe side: upper bounds up, lower bounds down.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, InvalidOperation
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from hush import __version__

if TYPE_CHECKING:
    from hush.accounting import Bounds, Mechanism

LIMIT = 1e4
"""The largest epsilon that the accountant resolves; beyond it the answer is [1e4, inf] and the delta that remains."""

MOST_STEPS = 10**12


# What was asked


class Sampling(StrEnum):
    """How a step chooses its records."""

    POISSON = "poisson"
    UNIFORM = "uniform"
    NONE = "none"


class Find(StrEnum):
    """What `hush calibrate` can solve for."""

    NOISE = "noise"
    STEPS = "steps"
    RATE = "rate"
    PROJECTIONS = "projections"


@dataclass(frozen=True)
class Rate:
    """A sampling rate as written: `batch` of `records`. Whole numbers, so that counting steps never rounds twice."""

    batch: int
    records: int

    @property
    def exact(self) -> Fraction:
        return Fraction(self.batch, self.records)

    def __float__(self) -> float:
        return self.batch / self.records

    def __str__(self) -> str:
        readable = self.batch > 1 and self.records < 10**10
        return f"{self.batch}/{self.records} = {float(self):.6g}" if readable else f"{float(self):.6g}"


@dataclass(frozen=True)
class Run:
    """The public numbers of a training run."""

    noise: float
    rate: Rate | None
    steps: int
    sampling: Sampling
    projections: int | None = None
    group: int = 1

    def mechanism(self) -> Mechanism:
        """The run as a mechanism."""
        from hush.accounting import Gaussian, Projected

        release: Mechanism = Gaussian(noise_multiplier=self.noise)
        if self.projections is not None:
            release = Projected(noise_multiplier=self.noise, projections=self.projections)
        if self.sampling is not Sampling.NONE:
            rate = self.required_rate()
            if self.sampling is Sampling.POISSON:
                release = release.poisson(float(rate))
            else:
                release = release.uniform(rate.batch, of=rate.records)
        return (release * self.steps).group(self.group)

    def required_rate(self) -> Rate:
        if self.rate is None:
            raise ValueError(
                f"{self.sampling.value.capitalize()} sampling needs --rate, a number or a fraction such as 256/60000; "
                "without sampling, say --sampling none."
            )
        return self.rate

    def describe(self) -> str:
        """In words, for people."""
        norms = "" if self.projections is None else f"{_count(self.projections, 'projection')}, "
        unit = " (times the sensitivity 2C of a replacement)" if self.sampling is Sampling.UNIFORM else ""
        sampling = "no sampling" if self.sampling is Sampling.NONE else f"{self.sampling} sampling at rate {self.rate}"
        return f"{_count(self.steps, 'step')}, {norms}Gaussian noise {self.noise:.10g}{unit}, {sampling}"

    def as_json(self) -> dict[str, Any]:
        return {
            "noise_multiplier": self.noise,
            "rate": None if self.rate is None else float(self.rate),
            "steps": self.steps,
            "sampling": self.sampling.value,
            "projections": self.projections,
            "group": self.group,
        }


def parse_number(text: str) -> Fraction:
    """The exact value of a decimal number or of a fraction of two, `256/60000`."""
    top, slash, bottom = text.partition("/")
    try:
        numbers = [Decimal(part) for part in ([top, bottom] if slash else [top])]
    except InvalidOperation:
        numbers = []
    # Exponents are limited because an exact 1e-999999999 would take a gigabyte.
    if not numbers or not all(n.is_finite() and (n.is_zero() or abs(n.adjusted()) < 400) for n in numbers):
        raise typer.BadParameter(f"'{text}' is neither a number nor a fraction such as 256/60000.")
    if slash and numbers[1].is_zero():
        raise typer.BadParameter(f"'{text}' divides by zero.")
    return Fraction(numbers[0]) / Fraction(numbers[1]) if slash else Fraction(numbers[0])


def parse_rate(text: str) -> Rate:
    """A sampling rate above 0 and at most 1; `256/60000` keeps its batch and its number of records."""
    value = parse_number(text)
    if not 0 < value <= 1:
        raise typer.BadParameter(f"a sampling rate lies above 0 and at most at 1, got {text}.")
    top, slash, bottom = (part.strip() for part in text.partition("/"))
    if slash and top.isdecimal() and bottom.isdecimal():
        return Rate(int(top), int(bottom))
    return Rate(value.numerator, value.denominator)


def parse_whole(text: str | int) -> int:
    """A whole number of at least 1; `1e9` will do."""
    value = parse_number(str(text))
    if value.denominator != 1 or value < 1:
        raise typer.BadParameter(f"must be a whole number of at least 1, got {text}.")
    return value.numerator


def parse_epochs(text: str) -> Fraction:
    """A positive number of passes over the data."""
    value = parse_number(text)
    if value <= 0:
        raise typer.BadParameter(f"must be a positive number, got {text}.")
    return value


def count_steps(epochs: Fraction, rate: Rate | None) -> int:
    """epochs / rate, rounded half to even from the exact fraction."""
    steps = round(epochs / (rate.exact if rate is not None else 1))
    if steps < 1:
        raise ValueError(f"{float(epochs):g} epochs at this rate round to no step at all: give more epochs or --steps.")
    return steps


def _run(
    noise: float | None,
    rate: Rate | None,
    steps: int | None,
    epochs: Fraction | None,
    sampling: Sampling,
    projections: int | None,
    group: int,
) -> Run:
    """Check what has to be there and count the steps."""
    if noise is None:
        raise ValueError("The noise multiplier is missing: give --noise, the noise divided by the sensitivity.")
    _check_noise(noise)
    if (steps is None) == (epochs is None):
        raise ValueError("Give either --steps or --epochs, and not both.")
    if steps is None and epochs is not None:
        steps = count_steps(epochs, rate)
    if steps is None or steps > MOST_STEPS:
        raise ValueError(f"More than {MOST_STEPS:,} steps are beyond this command.")
    run = Run(noise, rate, steps, sampling, projections, group)
    if sampling is not Sampling.NONE:
        run.required_rate()
    if projections is not None and sampling is Sampling.UNIFORM:
        raise ValueError("Projected norms are analysed for Poisson sampling only: leave out --sampling uniform.")
    return run


def _check_noise(noise: float) -> None:
    if not 0 < noise < math.inf:
        raise ValueError(f"--noise must be a positive number, got {noise}.")


def _check_delta(delta: float) -> None:
    if delta == 0:
        raise ValueError("--delta must be positive: Gaussian noise is never (epsilon, 0)-private at any epsilon.")
    if not 0 < delta < 1:
        raise ValueError(f"--delta must lie strictly between 0 and 1, got {delta}.")


def _check_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"--epsilon must be a finite number that isn't negative, got {epsilon}.")


# Options

app = typer.Typer(
    name="hush",
    help="How private is this training run? Certified answers.\n\n"
    "Example: hush epsilon --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

NoiseOption = Annotated[
    float | None,
    typer.Option(
        "--noise",
        help="Noise multiplier: the noise's standard deviation divided by the sensitivity. That is the clipping norm C "
        "with Poisson sampling or none, and 2C with uniform sampling, where a record is replaced.",
    ),
]
RateOption = Annotated[
    Rate | None,
    typer.Option(
        "--rate",
        parser=parse_rate,
        metavar="NUMBER|A/B",
        help="Sampling rate: the share of the records in an expected batch, such as 0.01 or 256/60000.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", parser=parse_whole, metavar="COUNT", help="Noisy steps taken. Or give --epochs."),
]
EpochsOption = Annotated[
    Fraction | None,
    typer.Option(
        "--epochs",
        parser=parse_epochs,
        metavar="NUMBER",
        help="Passes over the data: steps = epochs / rate, rounded half to even.",
    ),
]
DeltaOption = Annotated[
    float, typer.Option("--delta", help="The slack delta; well below one over the number of records.")
]
SamplingOption = Annotated[
    Sampling,
    typer.Option(
        "--sampling",
        help="How a step picks its records. poisson: each by its own coin flip (add/remove one record). uniform: a "
        "batch of fixed size without replacement (replace one record; a bound). none: no amplification, as for full "
        "batches; --rate then only turns epochs into steps. Shuffled epochs are neither poisson nor uniform.",
    ),
]
ProjectionsOption = Annotated[
    int | None,
    typer.Option(
        "--projections",
        parser=parse_whole,
        metavar="R",
        help="Clipping used norms estimated from R random projections (Bu et al. 2021). Few of them cost privacy.",
    ),
]
GroupOption = Annotated[
    int,
    typer.Option(
        "--group", parser=parse_whole, metavar="K", help="Protect any K records together, such as one person's."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object; infinity is the string 'inf'.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hush {__version__}")
        raise typer.Exit


@app.callback()
def _hush(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# Commands


@app.command("epsilon")
def epsilon_command(
    delta: DeltaOption,
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    as_json: JsonOption = False,
) -> None:
    """The epsilon of a run at a given delta: the number to quote, with its certificate.

    Example: hush epsilon --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5
    """
    _check_delta(delta)
    run = _run(noise, rate, steps, epochs, sampling, projections, group)
    mechanism = run.mechanism()
    certified = mechanism.epsilon(delta)
    errors = mechanism.error_sum()
    limit = mechanism.delta(LIMIT).upper if math.isinf(certified.upper) else None
    mu = _where_defined(lambda: mechanism.clt().mu)
    clt = _where_defined(lambda: mechanism.clt().epsilon(delta))
    moments = _where_defined(lambda: _paper_moments(mechanism, delta))
    if as_json:
        answer = {
            "epsilon": certified.upper,
            "epsilon_lower": certified.lower,
            "epsilon_upper": certified.upper,
            "delta": delta,
            "neighbours": mechanism.neighbours.value,
            "tag": mechanism.tag,
            "epsilon_clt": clt,
            "mu_clt": mu,
            "epsilon_moments": moments,
            "min_error_sum": errors.lower,
        }
        _print_json(answer | ({} if limit is None else {"delta_at_limit": limit}) | run.as_json())
        return
    rows = _facts(run, mechanism, "epsilon", certified)
    rows["attacker"] = _attacker(errors, run)
    if moments is not None:
        rows["moments"] = f"epsilon <= {_up(moments, 5)} by the moments accountant: true as well, but not as tight"
    if mechanism.mu is not None:
        rows["Gaussian"] = f"mu-GDP with mu = {_up(mechanism.mu)}, exactly"
    elif clt is not None:
        rows["CLT"] = f"epsilon ~ {_near(clt)} (mu ~ {_near(mu)}): an approximation, not a bound; don't quote it"
    if limit is None:
        headline = f"epsilon <= {_up(certified.upper)} at delta = {delta:g}"
        promise = _promise(_up(certified.upper, 4), f"{delta:g}", _exp(certified.upper), run, mechanism)
        _print_answer(headline, promise, rows)
    else:
        verdict = f"exceeds {LIMIT:,.0f}" if certified.lower >= LIMIT else f"may exceed {LIMIT:,.0f}"
        headline = f"epsilon {verdict} at delta = {delta:g}: no protection worth the name"
        remains = f"Even at epsilon = {LIMIT:,.0f} a delta of {_up(limit)} remains."
        _print_answer(headline, remains, rows, good=False)


@app.command("delta")
def delta_command(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon to hold the run to.")],
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    as_json: JsonOption = False,
) -> None:
    """The delta of a run at a given epsilon: how much probability escapes the promise.

    Example: hush delta --rate 256/60000 --noise 1.3 --epochs 15 --epsilon 1
    """
    _check_epsilon(epsilon)
    run = _run(noise, rate, steps, epochs, sampling, projections, group)
    mechanism = run.mechanism()
    certified = mechanism.delta(epsilon)
    errors = mechanism.error_sum()
    clt = _where_defined(lambda: mechanism.clt().delta(epsilon))
    if as_json:
        answer = {
            "delta": certified.upper,
            "delta_lower": certified.lower,
            "delta_upper": certified.upper,
            "epsilon": epsilon,
            "neighbours": mechanism.neighbours.value,
            "tag": mechanism.tag,
            "delta_clt": clt,
            "min_error_sum": errors.lower,
        }
        _print_json(answer | run.as_json())
        return
    rows = _facts(run, mechanism, "delta", certified)
    rows["attacker"] = _attacker(errors, run)
    if mechanism.mu is None and clt is not None:
        rows["CLT"] = f"delta ~ {_near(clt)}: an approximation, not a bound; don't quote it"
    headline = f"delta <= {_up(certified.upper)} at epsilon = {epsilon:g}"
    promise = _promise(f"{epsilon:g}", _up(certified.upper, 4), _exp(epsilon), run, mechanism)
    _print_answer(headline, promise, rows)


@app.command("calibrate")
def calibrate_command(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The certified epsilon will be at most this.")],
    delta: DeltaOption,
    find: Annotated[
        Find,
        typer.Option(
            "--find",
            help="What to solve for, everything else being given: the smallest noise, the most steps, the largest rate "
            "or the fewest projections.",
        ),
    ] = Find.NOISE,
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    as_json: JsonOption = False,
) -> None:
    """The parameter that meets a target: how much noise do I need, or how long may I train?

    Example: hush calibrate --epsilon 3 --delta 1e-5 --rate 256/60000 --epochs 60
    """
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"--epsilon must be a positive number, got {epsilon}.")
    _check_unknown(find, noise, rate, steps if epochs is None else 1, projections)
    if find is Find.NOISE:
        run = _calibrate_noise(_run(1.0, rate, steps, epochs, sampling, projections, group), epsilon, delta)
    elif find is Find.STEPS:
        run = _calibrate_steps(_run(noise, rate, 1, None, sampling, projections, group), epsilon, delta)
    elif find is Find.RATE:
        if steps is None or sampling is Sampling.NONE:
            raise ValueError("Finding the rate needs --steps and sampling: with --epochs, steps would change with it.")
        run = _calibrate_rate(_run(noise, Rate(1, 1), steps, None, sampling, projections, group), epsilon, delta)
    else:
        run = _calibrate_projections(_run(noise, rate, steps, epochs, sampling, 1, group), epsilon, delta)
    mechanism = run.mechanism()
    certified = mechanism.epsilon(delta)
    if as_json:
        answer = {
            "found": find.value,
            "target_epsilon": epsilon,
            "epsilon": certified.upper,
            "epsilon_lower": certified.lower,
            "epsilon_upper": certified.upper,
            "delta": delta,
            "neighbours": mechanism.neighbours.value,
            "tag": mechanism.tag,
            "min_error_sum": mechanism.error_sum().lower,
        }
        _print_json(answer | run.as_json())
        return
    found = {
        Find.NOISE: f"noise multiplier {_up(run.noise, 8)}",
        Find.STEPS: _count(run.steps, "step"),
        Find.RATE: f"sampling rate {_down(float(run.required_rate()), 8)}",
        Find.PROJECTIONS: _count(run.projections or 0, "projection"),
    }[find]
    rows = _facts(run, mechanism, "epsilon", certified) | {"attacker": _attacker(mechanism.error_sum(), run)}
    word = {Find.NOISE: "smallest", Find.STEPS: "most", Find.RATE: "largest", Find.PROJECTIONS: "fewest"}[find]
    _print_answer(found, f"The {word} with a certified epsilon of at most {epsilon:g} at delta = {delta:g}.", rows)


@app.command("curve")
def curve_command(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write; its ending says which kind: .png, .svg or .csv.")
    ] = Path("tradeoff.png"),
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    points: Annotated[
        int, typer.Option("--points", parser=parse_whole, metavar="COUNT", help="Points on the curve.")
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """The whole trade-off curve: for each rate of false alarms, how often any attacker must miss.

    Example: hush curve --rate 256/60000 --noise 1.3 --epochs 15 --output tradeoff.svg
    """
    ending = output.suffix.lower()
    if ending not in (".png", ".svg", ".csv"):
        raise ValueError(f"--output must end in .png, .svg or .csv, got {output}.")
    if points < 2:
        raise ValueError(f"A curve needs at least two --points, got {points}.")
    run = _run(noise, rate, steps, epochs, sampling, projections, group)
    mechanism = run.mechanism()
    curve = mechanism.tradeoff(points)
    if ending == ".csv":
        lines = ["type_one_error,type_two_error_lower,type_two_error_upper"]
        rows = zip(curve.alpha.tolist(), curve.lower.tolist(), curve.upper.tolist(), strict=True)
        lines += [f"{alpha!r},{lower!r},{upper!r}" for alpha, lower, upper in rows]
        output.write_text("\n".join(lines) + "\n")
    else:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 6), layout="constrained")
        axes = curve.plot(figure.subplots())
        axes.set_title(f"{run.describe()}\n{_relation(run, mechanism)}, {mechanism.tag}", fontsize=8)
        figure.savefig(output, dpi=160)
    if as_json:
        _print_json(
            {
                "file": str(output),
                "points": points,
                "neighbours": mechanism.neighbours.value,
                "tag": mechanism.tag,
                "min_error_sum": curve.error_sum.lower,
            }
            | run.as_json()
        )
        return
    facts = {
        "run": run.describe(),
        "neighbours": _relation(run, mechanism),
        "attacker": _attacker(curve.error_sum, run),
    }
    _print_answer(str(output), "The trade-off curve, type II against type I error, with its certified band.", facts)


@app.command("compare")
def compare_command(
    delta: DeltaOption,
    noise: NoiseOption = None,
    rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    sampling: SamplingOption = Sampling.POISSON,
    projections: ProjectionsOption = None,
    group: GroupOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Every accountant on the same run, side by side: why do two of them differ, and which may be quoted?

    Example: hush compare --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5
    """
    _check_delta(delta)
    run = _run(noise, rate, steps, epochs, sampling, projections, group)
    mechanism = run.mechanism()
    certified = mechanism.epsilon(delta)
    rows = [Row("hush", "certified", certified.lower, certified.upper), *_compared(run, mechanism, delta)]
    if as_json:
        accountants = [
            {"name": row.name, "kind": row.kind, "epsilon": row.epsilon}
            | ({"epsilon_lower": row.lower, "epsilon_upper": row.epsilon} if row.kind == "certified" else {})
            for row in rows
        ]
        answer = {"accountants": accountants, "delta": delta, "neighbours": mechanism.neighbours.value}
        _print_json(answer | {"tag": mechanism.tag} | run.as_json())
        return
    _print_comparison(run, mechanism, delta, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; bad input is one sentence on stderr and status 2."""
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="hush", standalone_mode=False)
    except TyperException as error:
        return _complain(error.format_message(), error.exit_code)
    except ValueError as error:
        return _complain(str(error), 2)
    except ArithmeticError:
        return _complain("These numbers are too extreme to compute with: check --noise, --rate and --steps.", 2)
    except OSError as error:
        return _complain(f"Can't write {error.filename}: {error.strerror}.", 2)
    except typer.Abort:
        return 1
    return status if isinstance(status, int) else 0


def _complain(sentence: str, status: int) -> int:
    if sentence:
        print(f"Error: {' '.join(sentence.split())}", file=sys.stderr)
    return status


# Calibration and comparison


def _check_unknown(
    find: Find, noise: float | None, rate: Rate | None, steps: int | None, projections: int | None
) -> None:
    given = {Find.NOISE: noise, Find.STEPS: steps, Find.RATE: rate, Find.PROJECTIONS: projections}[find]
    if given is not None:
        raise ValueError(f"The {find} is what --find {find} solves for: leave it out.")


def _calibrate_noise(run: Run, epsilon: float, delta: float) -> Run:
    from hush.accounting import calibrate

    return replace(
        run, noise=calibrate.noise(lambda noise: replace(run, noise=noise).mechanism(), epsilon=epsilon, delta=delta)
    )


def _calibrate_steps(run: Run, epsilon: float, delta: float) -> Run:
    from hush.accounting import calibrate

    return replace(
        run, steps=calibrate.steps(lambda steps: replace(run, steps=steps).mechanism(), epsilon=epsilon, delta=delta)
    )


def _calibrate_rate(run: Run, epsilon: float, delta: float) -> Run:
    from hush.accounting import calibrate

    def at(rate: float) -> Run:
        return replace(run, rate=Rate(*rate.as_integer_ratio()))

    return at(calibrate.rate(lambda rate: at(rate).mechanism(), epsilon=epsilon, delta=delta))


def _calibrate_projections(run: Run, epsilon: float, delta: float) -> Run:
    from hush.accounting import calibrate

    return replace(
        run,
        projections=calibrate.projections(
            lambda count: replace(run, projections=count).mechanism(), epsilon=epsilon, delta=delta
        ),
    )


@dataclass(frozen=True)
class Row:
    """One accountant's word on a run: `certified` and `bound` may be quoted, an `approximation` may not."""

    name: str
    kind: str
    lower: float
    epsilon: float


def _compared(run: Run, mechanism: Mechanism, delta: float) -> list[Row]:
    """The other accountants, those that apply."""
    single = replace(run, steps=1).mechanism()
    candidates: list[tuple[str, str, Callable[[], float]]] = [
        ("Renyi, today's conversion", "bound", lambda: mechanism.moments().epsilon(delta)),
        ("moments accountant, 2016", "bound", lambda: _paper_moments(mechanism, delta)),
        ("strong composition", "bound", lambda: _strong(single, run.steps, delta)),
        ("basic composition", "bound", lambda: _basic(single, run.steps, delta)),
    ]
    if mechanism.mu is None:  # a Gaussian run needs no central limit theorem: it is its own limit
        candidates += [
            ("CLT", "approximation", lambda: mechanism.clt().epsilon(delta)),
            ("Edgeworth", "approximation", lambda: mechanism.edgeworth().epsilon(delta)),
        ]
    found = [(name, kind, _where_defined(number)) for name, kind, number in candidates]
    return [Row(name, kind, 0.0, number) for name, kind, number in found if number is not None]


def _paper_moments(mechanism: Mechanism, delta: float) -> float:
    """The moments accountant with the paper's own tail bound, at its best order."""
    from hush.accounting.moments import TAIL_BOUND

    return mechanism.moments().epsilon(delta, conversion=TAIL_BOUND)


def _basic(single: Mechanism, steps: int, delta: float) -> float:
    return steps * single.epsilon(delta / steps).upper


def _strong(single: Mechanism, steps: int, delta: float) -> float:
    """Strong composition of `steps` equal steps; any split of delta is valid and the best of a few is taken."""
    from hush.accounting.classical import strong_composition

    def total(share: float) -> float:
        step = single.epsilon(share * delta / steps).upper
        if step > 700:
            return math.inf
        return strong_composition(step, share * delta / steps, steps, (1 - share) * delta)[0]

    return min(total(share) for share in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99))


def _where_defined(number: Callable[[], float]) -> float | None:
    """None where the method says that it doesn't apply."""
    try:
        return number()
    except ValueError:
        return None


# Printing


def _print_json(answer: dict[str, Any]) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return "inf" if isinstance(value, float) and math.isinf(value) else value

    print(json.dumps(plain(answer), indent=2, allow_nan=False))


def _print_answer(headline: str, promise: str, rows: dict[str, str], good: bool = True) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, text)
    console = Console(highlight=False, markup=False)
    console.print(headline, style="bold green" if good else "bold red")
    console.print(promise)
    console.print()
    console.print(table)


def _print_comparison(run: Run, mechanism: Mechanism, delta: float, rows: list[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("accountant", "epsilon", "what it is", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        if row.kind == "certified":
            number, kind, style = (
                f"{_down(row.lower)} to {_up(row.epsilon)}",
                "certified: quote upper",
                "bold green",
            )
        elif row.kind == "bound":
            number, kind, style = f"at most {_up(row.epsilon, 5)}", "a bound", ""
        else:
            number, kind, style = f"about {_near(row.epsilon)}", "approx., not a bound", "yellow"
        table.add_row(row.name, number, kind, style=style)
    console = Console(highlight=False, markup=False)
    console.print(run.describe())
    console.print(f"{_relation(run, mechanism)}, {mechanism.tag}, delta = {delta:g}")
    console.print(table)


def _facts(run: Run, mechanism: Mechanism, name: str, certified: Bounds) -> dict[str, str]:
    meaning = {
        "exact": "exact: the interval encloses this run's own number, proved from both sides",
        "bound": "bound: the interval encloses what the analysis proves; the run may be more private than that",
    }[mechanism.tag]
    upper = _up(certified.upper)
    return {
        "run": run.describe(),
        "neighbours": _relation(run, mechanism),
        "certified": f"{_down(certified.lower)} <= {name} <= {upper}\n{meaning}",
    }


def _relation(run: Run, mechanism: Mechanism) -> str:
    relation = mechanism.neighbours.value
    return f"{relation} record" if run.group == 1 else f"{relation} record, {run.group} times over"


def _change(run: Run, mechanism: Mechanism) -> str:
    verb = "Replace" if mechanism.neighbours.value.startswith("replace") else "Add or remove"
    return f"{verb} any one record" if run.group == 1 else f"{verb} any {run.group} records"


def _promise(epsilon: str, delta: str, factor: float, run: Run, mechanism: Mechanism) -> str:
    """(epsilon, delta)-DP in words: Pr[outcome] <= e^epsilon Pr'[outcome] + delta."""
    known = f" = {_up(factor, 4)}" if factor < 1e6 else ""
    return f"{_change(run, mechanism)}: no outcome becomes more than e^{epsilon}{known} times as likely, plus {delta}."


def _attacker(errors: Bounds, run: Run) -> str:
    whom = "one record was" if run.group == 1 else f"{run.group} records were"
    share = _down(100 * errors.lower, 4)
    return (
        f"one who guesses whether {whom} used, knowing everything else, errs at least {share}% of the time, "
        "false alarms and misses summed (100% is guessing blindly)"
    )


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _up(value: float, digits: int = 7) -> str:
    return _significant(value, digits, ROUND_CEILING)


def _down(value: float, digits: int = 7) -> str:
    return _significant(value, digits, ROUND_FLOOR)


def _near(value: float | None, digits: int = 4) -> str:
    return "?" if value is None else _significant(value, digits, ROUND_HALF_EVEN)


def _significant(value: float, digits: int, rounding: str) -> str:
    """`value` with that many significant digits, rounded in the given direction."""
    if math.isinf(value):
        return "infinity"
    exact = Decimal(value)
    if exact.is_zero():
        return "0"
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=rounding)
    return f"{rounded:f}" if -5 <= exact.adjusted() < 7 else f"{rounded:.{digits - 1}e}"
