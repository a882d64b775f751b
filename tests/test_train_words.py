"""What `hush train` and its sisters say to somebody who is new to them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hush import cli, noise
from hush.cli import watching
from hush.digits import up
from hush.runs import beginning, load
from hush.runs.inspecting import inspect
from hush.runs.session import Session

DECLARED = ["--records", "200", "--classes", "no,yes", "--bounds", "0:100", "--epsilon", "3", "--steps", "3"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"{age},{'yes' if age > 40 else 'no'}" for age in range(20, 60) for _ in range(5)]
    (tmp_path / "likes.csv").write_text("\n".join(["age,likes", *rows, ""]))
    return tmp_path / "likes.csv"


def train(data: Path, delta: str = "1e-4", more: Sequence[str] = ()) -> int:
    run = str(data.parent / "run")
    return cli.main(["train", str(data), "--target", "likes", "--output", run, "--delta", delta, *DECLARED, *more])


def test_the_columns_and_the_price_of_another_run_are_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "columns 1 of numbers" in told
    assert "Another run on the same records costs again" in told
    assert "warning" not in told
    assert train(data) == 2
    assert "a second run on the same records costs again" in capsys.readouterr().err
    assert cli.main(["verify", str(data.parent / "run")]) == 0
    assert "checks passed" in capsys.readouterr().out
    with pytest.raises(ValueError, match="lacks the column 'age'"):
        load(data.parent / "run").predict([{"agee": 3}])


def test_a_delta_above_one_over_the_records_is_flagged_first_and_last_and_on_the_page(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(beginning, "_registered", lambda *_: pytest.fail("warned too late"))
        with pytest.raises(pytest.fail.Exception):
            train(data, delta="0.01")
        assert "Warning: delta = 0.01 is above one over the 200 records" in capsys.readouterr().err
    assert train(data, delta="0.01") == 0
    assert "Delta = 0.01 is above one over the 180 records" in (data.parent / "run/public/report.html").read_text()
    assert "delta = 0.01 is above one over the 180 records" in " ".join(capsys.readouterr().out.split())


def test_a_number_of_records_that_was_only_counted_is_not_said(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "_registered", lambda *_: pytest.fail("warned too late"))
    run = str(data.parent / "run")
    with pytest.raises(pytest.fail.Exception):
        cli.main(["train", str(data), "--target", "likes", "-o", run, "--epsilon", "3", "--delta", "0.1"])
    told = capsys.readouterr().err
    assert "delta = 0.1 is above one over the number of records" in told
    assert not re.search(r"\b1[5-9]\d\b|\b200\b", told)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [("0.5", "The model is private for"), ("1000", "The model has a promise worth next to nothing")],
)
def test_what_is_said_follows_from_what_an_attacker_can_do(
    epsilon: str, words: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, more=["--epsilon", epsilon]) == 0
    assert words in " ".join(capsys.readouterr().out.split())
    page = " ".join((data.parent / "run/public/report.html").read_text().split())
    assert ("nearly the same whether or not" in page) == (epsilon == "0.5")
    assert ("This promises next to nothing" in page) == (epsilon == "1000")
    assert ("x 10^43" in page) == (epsilon == "1000")  # e^1000 is 1.97 x 10^434
    assert len(max(page.split(), key=len)) < 20_000


def test_the_public_part_answers_under_any_name(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data) == 0
    shutil.copytree(data.parent / "run/public", data.parent / "handed-on")
    for place in (data.parent / "run/public", data.parent / "handed-on"):
        for command in ("verify", "spent", "report", "verify"):
            assert cli.main([command, str(place)]) == 0, (command, place)
    assert str(data.parent / "handed-on/report.html") in capsys.readouterr().out
    assert cli.main(["report", "--local", str(data.parent / "handed-on")]) == 2
    assert cli.main(["report", "--local", str(data.parent / "run/public")]) == 0
    assert cli.main(["verify", str(data.parent)]) == 2
    assert "is no run of" in capsys.readouterr().err


def test_a_changed_report_is_noticed_and_one_written_anew_is_not(data: Path) -> None:
    assert train(data) == 0
    run, page = str(data.parent / "run"), data.parent / "run/public/report.html"
    assert cli.main(["verify", run]) == 0
    page.write_text(page.read_text().replace("Epsilon is at most", "Epsilon is"))
    assert cli.main(["verify", run]) == 1
    assert cli.main(["report", run]) == 0
    assert cli.main(["verify", run]) == 0
    page.unlink()
    assert cli.main(["verify", run]) == 0


def test_a_missing_file_is_told_before_the_wait_for_torch() -> None:
    code = "import sys; from hush.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    asked = ["train", "nowhere.csv", "--target", "y", "--epsilon", "1", "--delta", "1e-5"]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert done.stderr == "Error: There is no file or folder nowhere.csv.\n"


def test_a_new_ledger_takes_the_budget_of_several_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = data.parent / "all.jsonl"
    shared = ["--ledger", str(ledger), "--epsilon", "1"]
    assert train(data, more=["--budget", "3"]) == 2
    assert "name it with --ledger" in capsys.readouterr().err
    assert train(data, more=[*shared, "--budget", "0.5"]) == 2
    assert "must be at least the run's own --epsilon 1" in capsys.readouterr().err
    assert not ledger.exists()
    first = [*shared, "--budget", "3", "--output", str(data.parent / "first")]
    assert train(data, more=first) == 0
    assert train(data, more=[*shared, "--budget", "4"]) == 2
    assert "has a budget of" in capsys.readouterr().err
    assert not (data.parent / "run").exists()
    assert train(data, more=shared) == 0
    assert train(data, more=[*shared, "--epsilon", "3", "--output", str(data.parent / "third")]) == 2
    for name in ("first", "run"):
        assert cli.main(["verify", str(data.parent / name)]) == 0


def test_a_target_lost_in_the_noise_is_told_with_what_can_be_done(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = data.with_name("few.csv")
    rows = [f"{30 + i},<=50K\n{50 + i},>50K\n" for i in range(10)]  # equal ones would be held out together
    few.write_text("age,likes\n" + "".join(rows))
    run = str(data.parent / "run")
    asked = ["train", str(few), "--target", "likes", "--output", run, "--delta", "1e-4", "--epsilon", "0.5"]
    asked += ["--seed", "1"]
    assert cli.main(asked) == 2
    told = capsys.readouterr().err
    assert "neither as classes nor as numbers; declare --classes A,B,..." in told
    assert "this one can't go on" in told
    assert cli.main(["spent", run]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "ended by its survey" in told
    assert "hush resume" not in told


def test_columns_left_out_are_told_with_the_one_cause(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = data.read_text().splitlines()
    data.write_text("\n".join([f"void,id,{lines[0]}", *(f",{n},{line}" for n, line in enumerate(lines[1:])), ""]))
    (data.parent / "s.json").write_text(
        '{"columns": {"id": {"kind": "ignore"}, "age": {"kind": "number", "low": 0, "high": 99}}}'
    )
    asked = ["train", str(data), "--target", "likes", "--output", str(data.parent / "run"), "--schema"]
    given = ["--classes", "no,yes", "--delta", "1e-4", "--epsilon", "3"]
    assert cli.main([*asked, str(data.parent / "s.json"), *given]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "left out as declared: id, lost in the survey's noise, so left out: void (a schema" in told


def test_the_last_line_of_the_bar_is_what_was_spent(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_REFRESH", 1e9)
    look = Session._look

    def interrupted(session: Session) -> None:
        look(session)
        if session.private.steps_done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "_look", interrupted)
    assert train(data) == 130
    shown = capsys.readouterr().err.split("epsilon ")[-1].split()[0]
    assert shown == up(inspect(data.parent / "run").spent.epsilon(1e-4).upper, 3)
    monkeypatch.undo()
    assert cli.main(["resume", str(data.parent / "run")]) == 0
    shown = capsys.readouterr().err.split("epsilon ")[-1].split()[0]
    assert shown == up(inspect(data.parent / "run").spent.epsilon(1e-4).upper, 3)


def test_a_run_that_stopped_before_its_first_step_goes_on(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(beginning, "_private", interrupted)
    assert train(data) == 130
    assert "Stopped at once. What was spent stays charged" in capsys.readouterr().err
    run = str(data.parent / "run")
    assert cli.main(["spent", run]) == 0
    assert "not finished: hush resume" in " ".join(capsys.readouterr().out.split())
    assert train(data) == 2
    assert "go on with it by `hush resume" in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.main(["resume", run]) == 0
    assert cli.main(["verify", run]) == 0


def test_ctrl_c_while_the_records_are_read_stops_at_once(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)  # to this thread: os.kill may reach another one first

    monkeypatch.setattr(beginning, "prepare", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        assert train(data) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "Stopped at once.\n"
    assert not (data.parent / "run").exists()


def test_ctrl_c_before_the_first_step_waits_until_the_run_can_go_on(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = beginning._private

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return make(*arguments)

    monkeypatch.setattr(beginning, "_private", interrupted)
    assert train(data) == 130
    assert "Stopped after 0 of 3 steps; nothing is lost" in " ".join(capsys.readouterr().err.split())
    assert cli.main(["resume", str(data.parent / "run")]) == 0
    assert cli.main(["verify", str(data.parent / "run")]) == 0


def test_ctrl_c_during_the_survey_waits_for_the_answer_and_no_longer(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = noise.add

    def interrupted(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return add(*arguments, **named)

    monkeypatch.setattr(noise, "add", interrupted)
    run = data.parent / "run"
    asked = ["train", str(data), "--target", "likes", "--output", str(run), "--delta", "1e-4", "--epsilon", "3"]
    assert cli.main([*asked, "--classes", "no,yes", "--steps", "3"]) == 130
    assert f"go on with: hush resume {run}" in capsys.readouterr().err
    kept = json.loads((run / "private" / "survey.json").read_text())
    assert list(kept) == ["count"]
    assert kept["count"]["answer"] is not None
    monkeypatch.undo()
    assert cli.main(["resume", str(run)]) == 0
    assert json.loads((run / "private" / "survey.json").read_text())["count"] == kept["count"]
    assert inspect(run).spent.mechanism == inspect(run).planned  # nothing was charged twice


def test_output_that_nobody_reads_any_more_is_no_error(data: Path) -> None:
    assert train(data) == 0
    many = data.with_name("many.csv")
    many.write_text("age\n" + "30\n" * 20_000)
    code = "import sys; from hush.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "predict", str(data.parent / "run"), str(many)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_nothing_is_printed_with_spaces_at_its_end(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data) == 0
    asked = ["--noise", "1", "--rate", "1/9", "--steps", "9", "--delta", "1e-5"]
    for command in (["spent", str(data.parent / "run")], ["epsilon", *asked], ["compare", *asked]):
        assert cli.main(command) == 0
        told = capsys.readouterr().out
        assert [line for line in told.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("command", [[], ["train"], ["report"], ["plan"], ["epsilon"]])
def test_help_names_no_type_for_what_takes_no_value(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--help" in told
    assert "bool" not in told.lower()
