"""Malformed tables, arrays, images, schemas, ledgers and runs: a sentence, never a traceback, never an unpaid release.

Reduced by default; HUSH_FULL=1 runs 2,300 inputs, and a thousand different tables besides, counted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

from hush import cli, noise
from hush.ledger import Ledger
from hush.runs.preparing import prepare
from hush.runs.recipe import Recipe
from hush.runs.request import Request
from hush.tabular.data import Reading
from hush.tabular.schema import read_schema

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
FEW, MANY = (400, 60) if FULL else (48, 8)

CSV = "age,city,since,likes\n" + "".join(
    f"{20 + k % 50},{('Bern', 'Basel')[k % 2]},20{k % 20:02d}-03-04,{('no', 'yes')[k % 3 == 0]}\n" for k in range(60)
)
SCHEMA = {
    "target": "likes",
    "records": 60,
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "city": {"kind": "category", "values": ["Bern", "Basel"]},
        "since": {"kind": "date", "low": "2000-01-01", "high": "2020-01-01"},
    },
}
SNIPPETS = [
    b"", b"\x00", b"\xff\xfe", b"\n", b'"', b",", b",,,", b"nan", b"1e999", b"-inf", b"\xf0\x9f\x98\x80", b"\r\n\r\n",
    b"=1+1", b"9" * 400, b"null", b"{", b"]", b"\xc0\x80", b"2024-99-99", b"1e308", b"\t", b'""""', b"<b>", b"../../x",
]  # fmt: skip


def mangled(content: bytes, rng: np.random.Generator) -> bytes:
    """A few random edits: bytes flipped, pieces cut, doubled or put in.  Never what it was."""
    while (found := edited(content, rng)) == content:
        pass
    return found


def edited(content: bytes, rng: np.random.Generator) -> bytes:
    found = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        place = int(rng.integers(0, len(found) + 1))
        match int(rng.integers(5)):
            case 0 if found:
                found[min(place, len(found) - 1)] = int(rng.integers(256))
            case 1:
                del found[place : place + int(rng.integers(1, 1 + len(found) // 2 + 1))]
            case 2:
                found[place:place] = found[place : place + int(rng.integers(1, 40))]
            case 3:
                found[place:place] = SNIPPETS[rng.integers(len(SNIPPETS))]
            case _:
                del found[place:]
    return bytes(found)


def refused_or_done(action: Callable[[], Any]) -> bool:
    """Whether it was refused, which only ever is a ValueError of a readable sentence."""
    words = None
    try:
        action()
    except ValueError as error:
        words = str(error)
    assert words is None or 0 < len(words) < 2000
    return words is not None


def asked(path: Path, **changes: Any) -> Request:
    settings: dict[str, Any] = {"data": path, "reading": Reading("likes"), "epsilon": 3.0, "delta": 1e-4}
    return Request(**(settings | {"recipe": Recipe(0.5, steps=2, hidden=2)} | changes))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_mangled_tables_are_read_or_refused(tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(0), 0
    path, plan = tmp_path / "a.csv", tmp_path / "s.json"
    plan.write_text(json.dumps(SCHEMA))
    schema = read_schema(plan)
    for trial in range(FEW):
        path.write_bytes(mangled(CSV.encode(), rng))
        changes = {"schema": schema, "classes": ("no", "yes")} if trial % 2 else {}
        refused += refused_or_done(lambda changes=changes: prepare(asked(path, **changes), b"secret"))  # type: ignore[misc]
    assert 0 < refused < FEW


def test_mangled_schemas_are_read_or_refused(tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(1), 0
    for _ in range(FEW):
        path = tmp_path / "s.json"
        path.write_bytes(mangled(json.dumps(SCHEMA).encode(), rng))
        refused += refused_or_done(lambda path=path: read_schema(path))  # type: ignore[misc]
    assert refused > 0


@pytest.mark.filterwarnings("ignore")
def test_mangled_arrays_are_read_or_refused(tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(2), 0
    path = tmp_path / "a.npz"
    np.savez(path, x=rng.normal(size=(30, 4)), y=np.arange(30) % 3)
    whole = path.read_bytes()
    for _ in range(FEW):
        path.write_bytes(mangled(whole, rng))
        request = asked(path, reading=Reading("y"), bounds=(0.0, 1.0))
        refused += refused_or_done(lambda request=request: prepare(request, b"secret"))  # type: ignore[misc]
    assert refused > FEW // 2


def test_mangled_parquet_is_read_or_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path, rng, refused = tmp_path / "a.parquet", np.random.default_rng(8), 0
    columns = {"age": [1, 2, None] * 20, "city": ["Bern", "", None] * 20, "likes": ["no", "yes"] * 30}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)
    whole = path.read_bytes()
    for _ in range(FEW):
        path.write_bytes(mangled(whole, rng))
        refused += refused_or_done(lambda: prepare(asked(path), b"secret"))
    assert refused > FEW // 2


@pytest.mark.filterwarnings("ignore")
def test_mangled_images_are_read_or_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(3)
    for label in "ab":
        (tmp_path / label).mkdir()
        image.fromarray(rng.integers(0, 255, (9, 9, 3)).astype(np.uint8)).save(tmp_path / label / "1.png")
    path = tmp_path / "a" / "1.png"
    whole = path.read_bytes()
    refused = 0
    for _ in range(FEW):
        path.write_bytes(mangled(whole, rng))
        request = asked(tmp_path, reading=Reading(None, image_size=8))
        refused += refused_or_done(lambda request=request: prepare(request, b"secret"))  # type: ignore[misc]
    assert refused > 0


# The whole command


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Every draw of noise is checked: the ledger on the disk has a charge for it.  The ledger's place goes in here."""
    places: list[Path] = []
    original, drawn = noise.add, [0]

    def watched(*arguments: Any, **named: Any) -> Any:
        drawn[0] += 1
        mechanism = Ledger(places[-1]).mechanism()
        assert mechanism is not None
        assert sum(count for _, count in mechanism.parts()) >= 1
        return original(*arguments, **named)

    monkeypatch.setattr(noise, "add", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield places
    torch.set_num_threads(before)
    assert drawn[0] > 0


@pytest.mark.filterwarnings("ignore")
def test_the_command_ends_in_a_model_or_a_sentence(
    tmp_path: Path, paid: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hush.report.write_report", lambda *_, **__: [])  # has its own tests, and takes a second
    rng = np.random.default_rng(4)
    path, plan = tmp_path / "a.csv", tmp_path / "s.json"
    plan.write_text(json.dumps(SCHEMA))
    statuses = []
    for trial in range(MANY):
        content = CSV.encode() if trial == 0 else mangled(CSV.encode(), rng)
        path.write_bytes(content)
        run = tmp_path / f"run{trial}"
        paid.append(run / "public" / "ledger.jsonl")
        known = ["--schema", str(plan), "--classes", "no,yes"] if trial % 3 == 0 else ["--target", "likes"]
        budget = ["--epsilon", "3", "--delta", "1e-4", "--steps", "2", "--hidden", "2", "-o", str(run)]
        status = cli.main(["train", str(path), *known, *budget])
        told = capsys.readouterr().err
        statuses.append(status)
        assert status in (0, 2), told
        assert "Traceback" not in told
        if status == 2:
            assert told.splitlines()[-1].startswith("Error: ")
        if (run / "public" / "model.json").exists():
            assert Ledger(run / "public" / "ledger.jsonl").runs
    assert statuses[0] == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    place = tmp_path_factory.mktemp("run")
    (place / "a.csv").write_text(CSV)
    (place / "s.json").write_text(json.dumps(SCHEMA))
    settings = ["--schema", str(place / "s.json"), "--classes", "no,yes", "--steps", "4", "--hidden", "2"]
    assert (
        cli.main(
            ["train", str(place / "a.csv"), *settings, "--epsilon", "3", "--delta", "1e-4", "-o", str(place / "r")]
        )
        == 0
    )
    return place / "r"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "public/ledger.jsonl",
        "public/plan.json",
        "public/model.json",
        "public/manifest.json",
        "public/model.safetensors",
    ],
)
def test_mangled_runs_are_answered_or_refused(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(5)
    copy = tmp_path / "r"
    shutil.copytree(run, copy)
    whole = (copy / name).read_bytes()
    rows = tmp_path / "rows.csv"
    rows.write_text(CSV)
    for trial in range(FEW // 8):
        (copy / name).write_bytes(mangled(whole, rng))
        commands = [
            ["verify", str(copy)],
            ["spent", str(copy)],
            ["predict", str(copy), str(rows), "-o", str(tmp_path / "p")],
        ]
        if trial < 2:
            commands += [["report", str(copy)], ["resume", str(copy)]]
        for command in commands:
            status = cli.main(command)
            told = capsys.readouterr().err
            assert status in (0, 1, 2), (command, told)
            assert "Traceback" not in told
        # a changed ledger or plan or model is never called whole
        if name != "public/manifest.json" and (copy / name).read_bytes() != whole:
            assert cli.main(["verify", str(copy)]) in (1, 2)
            capsys.readouterr()


def test_random_arguments_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(6)
    words = [
        "train",
        "plan",
        "spent",
        "--epsilon",
        "--delta",
        "nan",
        "-1",
        "1e999",
        "x.csv",
        "--records",
        "0",
        "--rate",
        "1/0",
    ]
    words += [
        "--steps",
        "--bounds",
        "1:1",
        ":",
        "--hidden",
        "--classes",
        "",
        "--output",
        "--schema",
        "predict",
        "report",
    ]
    for _ in range(FEW):
        chosen = [words[k] for k in rng.integers(len(words), size=int(rng.integers(1, 8))).tolist()]
        status = cli.main(chosen)
        told = capsys.readouterr()
        assert status != 0 or told.out
        assert "Traceback" not in told.err


# The fuzz tests themselves


def test_a_traceback_or_an_unpaid_release_would_be_noticed(
    tmp_path: Path, paid: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError):
        refused_or_done(lambda: 1 / 0)
    with pytest.raises(AssertionError):
        refused_or_done(lambda: (_ for _ in ()).throw(ValueError("")))
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    paid.append(tmp_path / "run" / "public" / "ledger.jsonl")
    budget = ["--epsilon", "3", "--delta", "1e-4", "--steps", "2", "--hidden", "2", "-o", str(tmp_path / "run")]
    monkeypatch.setattr(Ledger, "reserve", lambda *_, **__: None)  # a ledger that forgets to charge
    with pytest.raises(AssertionError):
        cli.main(["train", str(path), "--target", "likes", *budget])


@pytest.mark.full
def test_a_thousand_different_malformed_tables_are_read_or_refused(tmp_path: Path) -> None:
    """Beside the 2,300 inputs of the other tests, which may repeat themselves."""
    rng, path, refused = np.random.default_rng(7), tmp_path / "a.csv", 0
    tried: set[bytes] = set()
    while len(tried) < 1000:
        content = mangled(CSV.encode(), rng)
        tried.add(content)
        path.write_bytes(content)
        refused += refused_or_done(lambda: prepare(asked(path), b"secret"))
    assert 100 < refused < 1000
