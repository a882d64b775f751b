"""The examples run, keep their promises, and read nothing from the network."""

from __future__ import annotations

import importlib.util
import re
import socket
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")

import torch

from hush.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ("tabular", "images", "text_lstm", "transformer", "finetune", "pca_mlp", "mac")
ELSEWHERE = {"demo", "selection", "people"}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hush_example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", QUICK)
def test_an_example_keeps_its_promise_and_shows_both_scores(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an example asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    module = loaded(name)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    module.main(quick=True)
    torch.set_num_threads(before)
    told = capsys.readouterr().out
    spent = [float(number) for number in re.findall(r"epsilon (\d+\.\d{4})(?: at delta [\de.-]+,)? certified", told)]
    assert spent
    assert all(0.99 * module.EPSILON < number <= module.EPSILON for number in spent)
    assert "without privacy" in told
    assert len(re.findall(r"\d+\.\d%", told)) >= 2


def test_every_example_is_listed_and_run() -> None:
    there = {path.stem for path in EXAMPLES.glob("*.py")}
    assert there == set(QUICK) | ELSEWHERE
    listed = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert all(f"[{name}.py](../examples/{name}.py)" in listed for name in there)


def test_the_made_up_table_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("safetensors")
    loaded("people").write(tmp_path / "people.csv", people=600)
    budget = ["--epsilon", "3", "--delta", "1e-6", "--steps", "5", "-o", str(tmp_path / "run")]
    assert main(["train", str(tmp_path / "people.csv"), "--target", "income", "--classes", "<=50K,>50K", *budget]) == 0
    assert "epsilon <= 3.000" in capsys.readouterr().out


@pytest.mark.parametrize("name", QUICK)
def test_an_example_is_short_and_starts_with_its_lesson(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 120
    assert text.startswith('"""')


@pytest.mark.full
@pytest.mark.parametrize(("name", "least"), [("tabular", 88), ("images", 94), ("text_lstm", 95), ("transformer", 95),
                                             ("finetune", 78), ("pca_mlp", 87), ("mac", 85)])  # fmt: skip
def test_an_example_learns(name: str, least: float, capsys: pytest.CaptureFixture[str]) -> None:
    # runs draw fresh noise; the bars lie three standard deviations or more below what was seen, but for the
    # transformer's, which a run in five misses: three of three once in a hundred times
    torch.set_num_threads(1)
    reached = []
    while not reached or (name == "transformer" and reached[-1] <= least and len(reached) < 3):
        loaded(name).main(quick=False)
        rows = capsys.readouterr().out.splitlines()
        found = re.search(r"(\d+\.\d)%", next(row for row in rows if re.match("private:|DP-MAC|its last layer", row)))
        assert found is not None
        reached.append(float(found[1]))
    assert reached[-1] > least
