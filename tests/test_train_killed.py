"""`hush train` killed, by SIGKILL, wherever it may hurt: the run goes on, and no noise meets two different sums.

A process of its own forks a child for each trial and kills it, right before or after one of its durable writes (every
fsync and every rename), or at a random moment.  A witness beside the run writes down each draw of noise: under which
key, for what, on which sums.  HUSH_FULL=1 kills at every write, and at 150 random moments.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

from hush import cli, noise
from hush.ledger import Ledger
from hush.runs.inspecting import inspect, verify

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
POINTS, MOMENTS = (10_000, 150) if FULL else (6, 3)
ARGUMENTS = ["--target", "likes", "--epsilon", "8", "--delta", "1e-4", "--steps", "6", "--hidden", "2"]

CHILD = """
import json, os, random, signal, sys, time
import torch
from pathlib import Path
from hush import cli
import hush.runs.beginning, hush.report
from test_train_killed import ARGUMENTS, witnessed

torch.set_num_threads(1)
data, base, trials = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
hush.report.write_report = lambda *_, **__: []
fsync, replace = os.fsync, os.replace

def hooked(at, run):
    seen = [0]
    def passed():
        seen[0] += 1
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
    def before_and_after(write):
        def wrapped(*arguments, **named):
            passed()
            write(*arguments, **named)
            passed()
        return wrapped
    os.fsync, os.replace = before_and_after(fsync), before_and_after(replace)
    return seen

for number, (kind, value) in enumerate(trials):
    run = base / f"run{number}"
    ready, says = os.pipe()
    child = os.fork()
    if child == 0:
        witnessed(run.with_suffix(".witness"))
        begin = hush.runs.beginning.begin
        def announced(*arguments):
            os.write(says, b"x")
            return begin(*arguments)
        hush.runs.beginning.begin = announced
        seen = hooked(value if kind == "write" else -1, run)
        sys.stdout = sys.stderr = open(os.devnull, "w")
        cli.main(["train", data, *ARGUMENTS, "-o", str(run)])
        (base / "writes").write_text(str(seen[0]))
        os._exit(0)
    os.close(says)
    if kind == "moment" and os.read(ready, 1):
        time.sleep(value)
        os.kill(child, signal.SIGKILL)
    os.close(ready)
    os.waitpid(child, 0)
"""


def witnessed(path: Path) -> Any:
    """Write down, durably and before it happens, each draw of noise; returns how to stop that."""
    original = noise.add

    def watched(key: Any, step: int, sums: Any, stds: Any, *, purpose: str = noise.PURPOSE, **named: Any) -> Any:
        content = b"".join(part.detach().numpy().tobytes() for part in sums)
        drawn = [key.secret.hex(), purpose, step, hashlib.blake2b(content, digest_size=8).hexdigest()]
        with path.open("a") as file:
            file.write(json.dumps(drawn) + "\n")
        return original(key, step, sums, stds, purpose=purpose, **named)

    noise.add = watched
    return original


def train(data: Path, base: Path, trials: list[tuple[str, float]]) -> None:
    base.mkdir()
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", CHILD, str(data), str(base), json.dumps(trials)]
    subprocess.run(command, check=True, env=environment, timeout=3600)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("hush.report.write_report", lambda *_, **__: [])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    ages = rng.integers(18, 90, 300).tolist()
    rows = [f"{age},{('Bern', 'Chur')[age % 2]},{'yes' if age > 50 else 'no'}" for age in ages]
    (tmp_path / "a.csv").write_text("\n".join(["age,city,likes", *rows, ""]))
    return tmp_path / "a.csv"


@pytest.mark.filterwarnings("ignore:Stopped after")
def test_a_run_killed_at_any_moment_goes_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(data, tmp_path / "whole", [("write", -1)])
    writes = int((tmp_path / "whole" / "writes").read_text())
    assert writes > 60
    rng = np.random.default_rng(1)
    places = rng.permutation(np.arange(1, writes + 1))[:POINTS].tolist()
    trials = [("write", place) for place in places] + [("moment", m) for m in rng.uniform(0, 0.5, MOMENTS).tolist()]
    train(data, tmp_path / "killed", trials)
    begun = 0
    for number, trial in enumerate(trials):
        begun += goes_on(tmp_path / "killed" / f"run{number}", trial, capsys, monkeypatch)
    assert begun >= len(trials) // 2


def goes_on(run: Path, trial: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Check one killed run; whether anything had been registered."""
    ledger = run / "public" / "ledger.jsonl"
    if not ledger.exists() or not Ledger(ledger).runs:
        assert not run.with_suffix(".witness").exists(), trial  # nothing was asked of the records
        return False
    if not (run / "public" / "manifest.json").exists():
        monkeypatch.setattr(noise, "add", noise.add)  # is put back at the end
        original = witnessed(run.with_suffix(".witness"))
        status = cli.main(["resume", str(run)])
        noise.add = original
        assert status == 0, (trial, capsys.readouterr().err)
    found = inspect(run)
    assert all(check.passed for check in verify(run)), trial
    assert found.spent.epsilon(1e-4).upper <= 8
    drawn = [json.loads(line) for line in run.with_suffix(".witness").read_text().splitlines()]
    used: dict[tuple[str, str, int], set[str]] = {}
    for key, purpose, step, sums in drawn:
        used.setdefault((key, purpose, step), set()).add(sums)
    assert all(len(sums) == 1 for sums in used.values()), (trial, "noise met two different sums")
    steps = [1 for _, purpose, _ in used if not purpose.startswith("survey")]
    asked = [purpose for _, purpose, _ in used if purpose.startswith("survey")]
    assert len(asked) == 4, trial  # each question has one answer
    assert found.spent.mechanism is not None
    charged = sum(count for _, count in found.spent.mechanism.parts())
    assert charged >= len(steps) + len(asked) + 1, trial  # the classes' leak is a charge of its own
    return True


def test_a_charged_question_without_an_answer_is_answered_by_the_same_noise_and_not_charged_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert cli.main(["train", str(data), *ARGUMENTS, "-o", str(run)]) == 0
    kept = json.loads((run / "private" / "survey.json").read_text())
    answer = kept["columns, first look"]["answer"]
    card = (run / "public" / "model.json").read_bytes()
    spent = survey_only(run)
    kept["columns, first look"]["answer"] = None
    kept["columns, second look"]["answer"] = None
    (run / "private" / "survey.json").write_text(json.dumps(kept))
    capsys.readouterr()
    assert cli.main(["resume", str(run)]) == 0
    assert json.loads((run / "private" / "survey.json").read_text())["columns, first look"]["answer"] == answer
    assert (run / "public" / "model.json").read_bytes() == card
    assert inspect(run).spent.mechanism == inspect(run).planned
    assert spent < inspect(run).spent.epsilon(1e-4).upper


def test_noise_of_a_question_is_not_used_on_another(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert cli.main(["train", str(data), *ARGUMENTS, "-o", str(run)]) == 0
    survey_only(run)
    before = (run / "public" / "ledger.jsonl").read_bytes()
    path = run / "private" / "survey.json"
    kept = json.loads(path.read_text())
    kept["columns, first look"] = {"query": "0" * 64, "answer": None}
    path.write_text(json.dumps(kept))
    capsys.readouterr()
    assert cli.main(["resume", str(run)]) == 2
    assert "isn't the one that was asked before" in capsys.readouterr().err
    assert (run / "public" / "ledger.jsonl").read_bytes() == before


def test_a_run_whose_checkpoint_was_taken_away_does_not_draw_its_steps_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert cli.main(["train", str(data), *ARGUMENTS, "-o", str(run)]) == 0
    (run / "public" / "manifest.json").unlink()
    shutil.rmtree(run / "private" / "checkpoint")
    capsys.readouterr()
    assert cli.main(["resume", str(run)]) == 2
    assert "its checkpoint is gone" in capsys.readouterr().err


def test_a_damaged_plan_is_not_gone_on_with(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hush.runs.session.Session.finish", lambda _: (_ for _ in ()).throw(ValueError("full")))
    run = tmp_path / "run"
    assert cli.main(["train", str(data), *ARGUMENTS, "-o", str(run)]) == 2
    path = run / "public" / "plan.json"
    whole = json.loads(path.read_text())
    for broken in ({"run": whole["run"], "terms": whole["terms"]}, whole | {"plan": []}, whole | {"plan": {}}):
        path.write_text(json.dumps(broken))
        capsys.readouterr()
        assert cli.main(["resume", str(run)]) == 2
        assert "damaged" in capsys.readouterr().err


def survey_only(run: Path) -> float:
    """Put a finished run back to where it had just asked the survey; returns what that had spent."""
    ledger = run / "public" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    asked = [n for n, line in enumerate(lines) if b'"event":"reserve"' in line and b'"first":-' in line]
    ledger.write_bytes(b"".join(lines[: asked[-1] + 1]))
    shutil.rmtree(run / "private" / "checkpoint")
    for name in ("manifest.json", "model.safetensors"):
        (run / "public" / name).unlink()
    return inspect(run).spent.epsilon(1e-4).upper
