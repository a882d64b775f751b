"""A survey's question that was charged, and whose note is gone, isn't answered: it might be another question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hush import cli, noise


def test_a_charged_question_without_its_note_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    data, run = tmp_path / "people.csv", tmp_path / "run"
    rows = [f"{a:.2f},{'yes' if a > 0 else 'no'}" for a in generator.normal(size=200)]
    data.write_text("\n".join(["age,likes", *rows]))
    charged = []

    def killed(*_: object, **__: object) -> None:
        charged.append(True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(noise, "add", killed)  # after the first question is charged, before it is answered
        arguments = ["--target", "likes", "--epsilon", "8", "--delta", "1e-4", "--steps", "4", "-o", str(run)]
        assert cli.main(["train", str(data), *arguments]) != 0
    assert charged
    note = run / "private" / "survey.json"
    kept = note.read_bytes()
    note.unlink()
    assert cli.main(["resume", str(run)]) == 2
    assert "what was noted of it is gone" in " ".join(capsys.readouterr().err.split())
    note.write_bytes(kept)
    assert cli.main(["resume", str(run)]) == 0
