"""The command line: what it reads, what it answers, and how it refuses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import pytest
import typer

from hush import __version__, cli
from hush.accounting import Bounds, Gaussian, Projected
from hush.cli.options import parse_epochs, parse_number, parse_rate, parse_whole
from hush.cli.run import Rate, Run, Sampling, count_steps
from hush.digits import down, number, power, up

MNIST = ["--rate", "256/60000", "--noise", "1.3", "--epochs", "15"]
BUDGET = ["--records", "1000", "--epsilon", "3", "--delta", "1e-6"]
SMALL = ["--rate", "0.1", "--noise", "2", "--steps", "10"]


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON object of a command that succeeds and prints nothing else."""
    status = cli.main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    answer: dict[str, Any] = json.loads(captured.out)
    return answer


def tell(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a person reads, line breaks removed."""
    status = cli.main(arguments)
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return " ".join(captured.out.split())


# Reading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.01", Fraction(1, 100)),
        ("256/60000", Fraction(256, 60000)),
        ("1e-9", Fraction(1, 10**9)),
        ("1/8e1", Fraction(1, 80)),
    ],
)
def test_numbers_and_fractions_are_read_exactly(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1/", "/2", "1/2/3", "1/0", "nan", "inf", "1e-999999999", "1e999999999", "0x10", "1/nan"]
)
def test_what_is_no_number_is_refused_at_once(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_number(text)


def test_a_rate_keeps_the_batch_and_the_records_it_was_written_with() -> None:
    assert parse_rate("256/60000") == Rate(256, 60000)
    assert parse_rate("0.0125") == Rate(1, 80)
    assert float(parse_rate("256/60000")) == 256 / 60000


def test_whole_numbers_may_have_an_exponent() -> None:
    assert parse_whole("1e9") == 10**9


@pytest.mark.parametrize(
    ("epochs", "rate", "steps"),
    [
        ("15", "256/60000", 3516),  # 3515.625
        ("60", "256/60000", 14062),  # 14062.5, half to even
        ("18", "256/29305", 2061),
        ("9", "512/25000", 439),
        ("20", "1/80", 1600),
        ("1", "1/782", 782),  # int(1 / (1 / 782)) is 781
        ("0.5", "0.2", 2),  # 2.5, half to even
        ("0.7", "0.2", 4),  # 3.5, half to even
    ],
)
def test_steps_are_epochs_over_rate_rounded_half_to_even(epochs: str, rate: str, steps: int) -> None:
    assert count_steps(parse_epochs(epochs), parse_rate(rate)) == steps


def test_the_options_become_the_mechanism_they_name() -> None:
    rate = Rate(256, 60000)
    gaussian = Gaussian(noise_multiplier=1.3)
    assert Run(1.3, rate, 7, Sampling.POISSON).mechanism() == gaussian.poisson(256 / 60000) * 7
    assert Run(1.3, rate, 7, Sampling.UNIFORM).mechanism() == gaussian.uniform(256, of=60000) * 7
    assert Run(1.3, None, 7, Sampling.NONE).mechanism() == gaussian * 7
    assert Run(1.3, rate, 7, Sampling.POISSON, projections=30, group=2).mechanism() == (
        Projected(noise_multiplier=1.3, projections=30).poisson(256 / 60000) * 7
    ).group(2)


# Answering


def test_epsilon_of_the_mnist_run(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "epsilon", *MNIST, "--delta", "1e-5")
    assert answer["epsilon"] == answer["epsilon_upper"] == pytest.approx(0.864540, abs=5e-7)
    assert 0 <= answer["epsilon_upper"] - answer["epsilon_lower"] <= 1e-6
    assert answer["epsilon_moments"] == pytest.approx(1.19, rel=6e-3)
    assert answer["epsilon_clt"] == pytest.approx(0.83, abs=5e-3)
    assert answer["mu_clt"] == pytest.approx(0.2273, abs=5e-5)
    assert answer["min_error_sum"] == pytest.approx(0.909824, abs=1e-6)
    assert "delta_at_limit" not in answer
    assert answer == answer | {
        "delta": 1e-5,
        "steps": 3516,
        "neighbours": "add/remove one",
        "tag": "exact",
        "sampling": "poisson",
        "group": 1,
        "projections": None,
    }


def test_uniform_sampling_is_a_bound_for_replacing_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "epsilon", *MNIST, "--delta", "1e-5", "--sampling", "uniform")
    assert (answer["neighbours"], answer["tag"]) == ("replace one", "bound")
    assert answer["epsilon_clt"] == pytest.approx(1.0686, abs=1e-4)
    assert answer["epsilon_moments"] is None


def test_shuffled_epochs_are_accounted_as_one_release_each(capsys: pytest.CaptureFixture[str]) -> None:
    shuffled = ["--sampling", "shuffled", "--noise", "4", "--delta", "1e-5"]
    answer = ask(capsys, "epsilon", *shuffled, "--epochs", "14.5")
    assert answer["epochs"] == 15  # an epoch that was begun counts
    assert "steps" not in answer
    assert (answer["neighbours"], answer["tag"]) == ("replace one", "bound")
    assert answer["epsilon"] == (Gaussian(4.0).shuffled() * 15).epsilon(1e-5).upper
    assert ask(capsys, "calibrate", *shuffled, "--find", "steps", "--epsilon", str(answer["epsilon"]))["epochs"] == 15
    for wrong in (["--steps", "15"], ["--epochs", "15", "--rate", "0.1"], []):
        assert cli.main(["epsilon", *shuffled, *wrong]) == 2
        assert "give --epochs" in capsys.readouterr().err


def test_no_sampling_needs_no_rate_and_is_never_more_private(capsys: pytest.CaptureFixture[str]) -> None:
    plain = ask(capsys, "epsilon", "--noise", "4", "--steps", "10", "--sampling", "none", "--delta", "1e-5")
    sampled = ask(capsys, "epsilon", "--noise", "4", "--steps", "10", "--rate", "0.5", "--delta", "1e-5")
    assert plain["epsilon"] > sampled["epsilon"]
    assert plain["epsilon_clt"] == pytest.approx(plain["epsilon"], rel=1e-9)


def test_without_sampling_epochs_are_steps_or_are_counted_at_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    unsampled = ["epsilon", "--noise", "40", "--epochs", "10", "--sampling", "none", "--delta", "1e-5"]
    assert ask(capsys, *unsampled)["steps"] == 10
    assert ask(capsys, *unsampled, "--rate", "1/8")["steps"] == 80


def test_projections_have_no_moments_and_no_limit_theorem(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "epsilon", *MNIST, "--delta", "1e-5", "--projections", "30")
    assert answer["epsilon"] == pytest.approx(0.955, rel=5e-3)
    assert (answer["epsilon_clt"], answer["mu_clt"], answer["epsilon_moments"]) == (None, None, None)


def test_a_group_is_less_protected_than_one_record(capsys: pytest.CaptureFixture[str]) -> None:
    single = ask(capsys, "epsilon", *SMALL, "--delta", "1e-5")
    pair = ask(capsys, "epsilon", *SMALL, "--delta", "1e-5", "--group", "2")
    assert pair["group"] == 2
    assert pair["tag"] == "bound"
    assert pair["epsilon"] > single["epsilon"]


def test_infinity_is_a_word_and_comes_with_the_delta_that_remains(capsys: pytest.CaptureFixture[str]) -> None:
    hopeless = ["epsilon", "--rate", "1", "--noise", "0.01", "--steps", "100", "--delta", "1e-5"]
    answer = ask(capsys, *hopeless)
    assert (answer["epsilon"], answer["epsilon_upper"], answer["epsilon_lower"]) == ("inf", "inf", 1e4)
    assert 0 < answer["delta_at_limit"] <= 1
    assert "epsilon exceeds 10,000" in tell(capsys, *hopeless)


def test_delta_and_epsilon_undo_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    epsilon = ask(capsys, "epsilon", *SMALL, "--delta", "1e-5")["epsilon"]
    answer = ask(capsys, "delta", *SMALL, "--epsilon", repr(epsilon))
    assert answer["delta"] == answer["delta_upper"] == pytest.approx(1e-5, rel=1e-4)
    assert answer["delta_lower"] <= answer["delta"]


def test_calibrated_noise_keeps_the_target_and_less_would_not(capsys: pytest.CaptureFixture[str]) -> None:
    target = ["--rate", "0.01", "--steps", "100", "--delta", "1e-5"]
    answer = ask(capsys, "calibrate", *target, "--epsilon", "1")
    assert answer["found"] == "noise"
    assert 0.9999 < answer["epsilon"] <= 1 == answer["target_epsilon"]
    less = ask(capsys, "epsilon", *target, "--noise", repr(answer["noise_multiplier"] * (1 - 3e-6)))
    assert less["epsilon"] > 1


def test_calibration_finds_steps_and_rate_too(capsys: pytest.CaptureFixture[str]) -> None:
    target = ["calibrate", "--epsilon", "2", "--delta", "1e-6", "--noise", "1"]
    steps = ask(capsys, *target, "--find", "steps", "--rate", "0.01")["steps"]
    more = ask(capsys, "epsilon", "--rate", "0.01", "--noise", "1", "--steps", str(steps + 1), "--delta", "1e-6")
    assert more["epsilon"] > 2
    found = ask(capsys, *target, "--find", "rate", "--steps", str(steps))
    assert found["rate"] == pytest.approx(0.01, rel=1e-3)
    assert found["epsilon"] <= 2


def test_the_curve_is_written_as_the_ending_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".csv", b"type_one_error,")):
        file = tmp_path / f"curve{ending}"
        answer = ask(capsys, "curve", *SMALL, "--points", "50", "--output", str(file))
        assert answer["file"] == str(file)
        assert file.read_bytes().startswith(start)
    rows = [[float(cell) for cell in line.split(",")] for line in (tmp_path / "curve.csv").read_text().split()[1:]]
    assert len(rows) == 50
    assert all(0 <= lower <= upper <= 1 - alpha + 1e-15 for alpha, lower, upper in rows)
    assert min(alpha + upper for alpha, _, upper in rows) >= answer["min_error_sum"]


def test_comparison_marks_approximations_and_no_bound_beats_the_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "compare", *MNIST, "--delta", "1e-5")
    by_name = {row["name"]: row for row in answer["accountants"]}
    truth = by_name["hush"]["epsilon_lower"]
    assert {name for name, row in by_name.items() if row["kind"] == "approximation"} == {"CLT", "Edgeworth"}
    assert all(row["epsilon"] >= truth for row in by_name.values() if row["kind"] == "bound")
    assert by_name["moments accountant, 2016"]["epsilon"] == pytest.approx(1.19, rel=6e-3)
    assert by_name["Renyi, today's conversion"]["epsilon"] == pytest.approx(0.954, abs=1e-3)
    text = tell(capsys, "compare", *MNIST, "--delta", "1e-5")
    assert text.count("not a bound") == 2


def test_people_read_the_promise_the_relation_and_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    text = tell(capsys, "epsilon", *MNIST, "--delta", "1e-5")
    for phrase in (
        "epsilon <= 0.8645402 at delta = 1e-5",
        "Add or remove any one record",
        "3,516 steps",
        "add/remove one record",
        "exact",
        "is right at most 54.51% of the time, where guessing is right 50%",
        "an approximation, not a bound",
    ):
        assert phrase in text


@pytest.mark.parametrize("command", ["epsilon", "delta", "calibrate", "curve", "compare"])
def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert f"Example: hush {command}" in tell(capsys, command, "--help")


def test_a_missing_delta_is_asked_for_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Choose one well below 1/records, e.g. 1e-5." in refuse(capsys, "epsilon", *MNIST)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(capsys, "--version") == f"hush {__version__}"


def test_printed_bounds_are_rounded_to_the_safe_side() -> None:
    assert up(0.86454012, 4) == "0.8646"
    assert down(0.86459, 4) == "0.8645"
    assert up(1.23456e-9, 3) == "1.24e-9"
    assert up(9.9999, 3) == "10.00"
    assert (up(0.0), up(math.inf)) == ("0", "infinity")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-5"),
        (1e-4, "0.0001"),
        (0.25, "0.25"),
        (3.0, "3"),
        (1e6, "1000000"),
        (1e9, "1e9"),
        (1.5e-300, "1.5e-300"),
    ],
)
def test_numbers_are_written_in_one_way_and_to_their_last_digit(value: float, text: str) -> None:
    assert number(value) == text
    assert up(value, 3).count("e") == text.count("e")
    assert "e+" not in up(value)
    assert "e-0" not in up(value)


@pytest.mark.parametrize("exponent", ["0", "0.8646", "1.068", "13.69", "1e-5", "700"])
def test_a_power_beside_its_exponent_is_no_less_than_the_power_of_what_is_printed(exponent: str) -> None:
    told = mpmath.mpf(up(power(exponent), 4))
    with mpmath.workdps(50):
        truth = mpmath.exp(mpmath.mpf(exponent))
    assert truth <= told <= truth * mpmath.mpf("1.0011")


def test_the_factor_of_a_promise_is_that_of_the_printed_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    assert "more than e^0.8646 <= 2.375 times" in tell(capsys, "epsilon", *MNIST, "--delta", "1e-5")
    assert "more than e^0 = 1 times" in tell(capsys, "delta", *SMALL, "--epsilon", "0")


def test_an_approximation_that_says_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    wild = ["--rate", "0.1", "--noise", "0.05", "--steps", "100", "--delta", "1e-5"]
    assert ask(capsys, "epsilon", *wild)["epsilon_clt"] > 1e4
    text = tell(capsys, "epsilon", *wild)
    assert "says nothing here" in text
    assert "epsilon ~" not in text


# Refusing

BAD = {
    "rate 0": ["--rate", "0", "--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "rate above 1": ["--rate", "1.5", "--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "negative rate": ["--rate", "-0.1", "--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "rate NaN": ["--rate", "nan", "--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "unparsable fraction": ["--rate", "256/", "--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "division by zero": ["--rate", "1/0", "--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "no rate": ["--noise", "1", "--steps", "10", "--delta", "1e-5"],
    "no noise": ["--rate", "0.1", "--steps", "10", "--delta", "1e-5"],
    "negative noise": ["--rate", "0.1", "--noise", "-1", "--steps", "10", "--delta", "1e-5"],
    "noise 0": ["--rate", "0.1", "--noise", "0", "--steps", "10", "--delta", "1e-5"],
    "noise NaN": ["--rate", "0.1", "--noise", "nan", "--steps", "10", "--delta", "1e-5"],
    "infinite noise": ["--rate", "0.1", "--noise", "inf", "--steps", "10", "--delta", "1e-5"],
    "noise in words": ["--rate", "0.1", "--noise", "much", "--steps", "10", "--delta", "1e-5"],
    "delta 0": [*SMALL, "--delta", "0"],
    "delta 1": [*SMALL, "--delta", "1"],
    "negative delta": [*SMALL, "--delta", "-1e-5"],
    "delta NaN": [*SMALL, "--delta", "nan"],
    "no delta": SMALL,
    "steps 0": ["--rate", "0.1", "--noise", "1", "--steps", "0", "--delta", "1e-5"],
    "half a step": ["--rate", "0.1", "--noise", "1", "--steps", "1.5", "--delta", "1e-5"],
    "too many steps": ["--rate", "0.1", "--noise", "1", "--steps", "1e30", "--delta", "1e-5"],
    "steps and epochs": ["--rate", "0.1", "--noise", "1", "--steps", "1", "--epochs", "1", "--delta", "1e-5"],
    "neither steps nor epochs": ["--rate", "0.1", "--noise", "1", "--delta", "1e-5"],
    "epochs 0": ["--rate", "0.1", "--noise", "1", "--epochs", "0", "--delta", "1e-5"],
    "epochs that round to no step": ["--rate", "1", "--noise", "1", "--epochs", "0.5", "--delta", "1e-5"],
    "unknown sampling": [*SMALL, "--delta", "1e-5", "--sampling", "shuffled"],
    "projections 0": [*SMALL, "--delta", "1e-5", "--projections", "0"],
    "projections with uniform sampling": [*SMALL, "--delta", "1e-5", "--projections", "9", "--sampling", "uniform"],
    "too many projections": [*SMALL, "--delta", "1e-5", "--projections", "1e12"],
    "too large a group": [*SMALL, "--delta", "1e-5", "--group", "1e12"],
    "group 0": [*SMALL, "--delta", "1e-5", "--group", "0"],
    "unknown option": [*SMALL, "--delta", "1e-5", "--colour"],
    "beyond floating point": ["--rate", "0.1", "--noise", "1e-200", "--steps", "10", "--delta", "1e-5"],
}


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence on stderr of a command that fails with status 2 and prints nothing else."""
    status = cli.main(arguments)
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert captured.err.startswith("Error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_bad_input_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], more: list[str]
) -> None:
    refuse(capsys, "epsilon", *arguments, *more)


@pytest.mark.parametrize(
    "arguments",
    [
        ["delta", *SMALL, "--epsilon", "-1"],
        ["delta", *SMALL, "--epsilon", "nan"],
        ["delta", *SMALL, "--epsilon", "inf"],
        ["delta", *SMALL],
        ["calibrate", *SMALL, "--epsilon", "1", "--delta", "1e-5"],
        ["calibrate", "--rate", "0.1", "--steps", "10", "--epsilon", "0", "--delta", "1e-5"],
        ["calibrate", "--rate", "0.1", "--steps", "10", "--epsilon", "nan", "--delta", "1e-5"],
        ["calibrate", "--rate", "0.1", "--steps", "10", "--epsilon", "1", "--delta", "1"],
        ["calibrate", "--rate", "0.1", "--epsilon", "1", "--delta", "1e-5"],
        ["calibrate", *SMALL, "--find", "steps", "--epsilon", "1", "--delta", "1e-5"],
        ["calibrate", "--find", "rate", "--noise", "1", "--epochs", "2", "--epsilon", "1", "--delta", "1e-5"],
        ["calibrate", "--find", "steps", "--noise", "0.2", "--rate", "1", "--epsilon", "1e-3", "--delta", "1e-9"],
        ["calibrate", "--find", "happiness", "--epsilon", "1", "--delta", "1e-5"],
        ["curve", *SMALL, "--output", "curve.pdf"],
        ["curve", *SMALL, "--output", "curve.csv", "--points", "1"],
        ["curve", *SMALL, "--output", "curve.csv", "--points", "1e12"],
        ["curve", *SMALL, "--output", "no/such/folder/curve.csv"],
        ["compare", *SMALL, "--delta", "0"],
        ["divine"],
    ],
    ids=" ".join,
)
def test_every_command_refuses_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--sampling", "foo"],
            "Invalid value for '--sampling': 'foo' is not one of 'poisson', 'uniform', 'shuffled', 'none'.",
        ),
        (["--steps", "abc"], "Invalid value for '--steps': must be a whole number of at least 1, got abc."),
        (["--noise", "1e400"], "Invalid value for '--noise': '1e400' is too large to compute with."),
        (["--noise", "1e-999999999"], "Invalid value for '--noise': '1e-999999999' is too small to compute with."),
        (["--noise", "-1"], "Invalid value for '--noise': must be positive, got -1."),
        (["--noise", "1", "--rate", "0.1"], "The length is missing: give --steps or --epochs."),
        ([*SMALL, "--epochs", "2"], "Give --steps or --epochs, not both."),
        (
            [*SMALL, "--projections", "9", "--sampling", "uniform"],
            "Projected norms are analysed for Poisson sampling or none: leave out --sampling uniform.",
        ),
    ],
)
def test_a_refusal_names_the_fault(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert refuse(capsys, "epsilon", *arguments, "--delta", "1e-5") == f"Error: {words}\n"


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e999"])
@pytest.mark.parametrize("command", ["delta", "calibrate"])
def test_epsilons_are_refused_in_the_style_of_the_other_options(
    capsys: pytest.CaptureFixture[str], command: str, value: str
) -> None:
    assert refuse(capsys, command, *SMALL, "--epsilon", value).startswith("Error: Invalid value for '--epsilon': ")


@pytest.mark.parametrize("command", [["curve", *SMALL], ["plan", *BUDGET], ["predict", "run", "data.csv"]])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setattr("hush.cli.run.Run.mechanism", lambda self: pytest.fail("computed"))
    monkeypatch.setattr("hush.runs.buying.buy", lambda *given: pytest.fail("computed"))
    for place, words in ((tmp_path / "no" / "x.png", "there is no folder"), (tmp_path, "must ")):
        assert f"'--output': {words}" in refuse(capsys, *command, "--output", str(place))


def test_a_refusal_of_the_library_is_passed_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Gaussian, delta: float) -> Bounds:
        raise ValueError("Not with\nthese numbers.")

    monkeypatch.setattr("hush.accounting.Mechanism.epsilon", refused)
    assert refuse(capsys, "epsilon", *SMALL, "--delta", "1e-5") == "Error: Not with these numbers.\n"


def test_what_numpy_thinks_of_the_numbers_stays_inside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def grumbling(self: Gaussian, delta: float) -> Bounds:
        warnings.warn("overflow encountered in exp", RuntimeWarning, stacklevel=1)
        return Bounds(1.0, 1.0)

    monkeypatch.setattr("hush.accounting.Mechanism.epsilon", grumbling)
    with warnings.catch_warnings():
        warnings.resetwarnings()  # as from the shell, without pytest's filters
        tell(capsys, "epsilon", *SMALL, "--delta", "1e-5")


# From the shell


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hush", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_shell_gets_the_answer_and_the_status() -> None:
    good = shell("epsilon", *MNIST, "--delta", "1e-5", "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert round(json.loads(good.stdout)["epsilon"], 6) == 0.864540
    bad = shell("epsilon", *MNIST, "--delta", "0")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.count("\n") == 1


def test_a_decimal_rate_is_sampled_uniformly_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Its fraction has more records than anybody: the nearest with fewer stands for it."""
    given = ["--sampling", "uniform", "--noise", "3", "--delta", "1e-5"]
    found = ask(capsys, "epsilon", *given, "--rate", "0.12345678901234568", "--steps", "5")
    assert 0 < found["epsilon_lower"] <= found["epsilon"] < 5
    assert ask(capsys, "calibrate", *given, "--epsilon", "1", "--find", "rate", "--steps", "50")["epsilon"] <= 1


@pytest.mark.parametrize("noise", ["0.03", "0.005"])
def test_an_approximation_that_overflows_hides_no_answer(capsys: pytest.CaptureFixture[str], noise: str) -> None:
    found = ask(capsys, "epsilon", "--rate", "0.5", "--noise", noise, "--steps", "3", "--delta", "1e-5")
    assert found["epsilon_lower"] > 1000
    assert found["epsilon_clt"] == "inf"


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--epochs", "60"], "needs --steps"), (["--steps", "9", "--sampling", "none"], "needs sampling")],
)
def test_finding_a_rate_says_what_it_needs(capsys: pytest.CaptureFixture[str], given: list[str], said: str) -> None:
    asked = ["calibrate", "--find", "rate", "--noise", "1", "--epsilon", "1", "--delta", "1e-5"]
    assert cli.main([*asked, *given]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_rate_below_one_of_all_records_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["epsilon", "--sampling", "uniform", "--rate", "1e-17", "--noise", "2", "--steps", "3", "--delta", "1e-5"]
    assert cli.main(asked) == 2
    assert "--rate is less than one of" in " ".join(capsys.readouterr().err.split())


def test_nothing_is_to_be_quoted_beyond_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    told = tell(capsys, "compare", "--rate", "0.5", "--noise", "0.1", "--steps", "1000", "--delta", "1e-5")
    assert "no epsilon to quote" in told
