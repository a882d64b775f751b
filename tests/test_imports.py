"""What must not be imported: accounting has no use for PyTorch, and an answer in text none for Matplotlib."""

from __future__ import annotations

import subprocess
import sys

import pytest

ANSWER = """
from hush.cli import main
assert main("epsilon --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5".split()) == 0
"""


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running `code`."""
    report = "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    command = [sys.executable, "-c", code + report]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return set(output.splitlines()[-1].split())


@pytest.mark.parametrize("code", ["import hush.accounting", ANSWER], ids=["import hush.accounting", "hush epsilon"])
def test_accounting_loads_neither_torch_nor_matplotlib(code: str) -> None:
    assert loaded_by(code) & {"torch", "matplotlib"} == set()


def test_an_answer_does_not_wait_for_the_slow_half_of_scipy() -> None:
    # half a second of imports, more than all the rest
    assert loaded_by(ANSWER) & {"scipy.stats", "scipy.optimize"} == set()


def test_importing_hush_alone_loads_nothing_heavy() -> None:
    assert loaded_by("import hush") & {"numpy", "scipy", "typer", "rich", "hush.accounting"} == set()


def test_accounting_is_there_when_asked_for() -> None:
    assert "hush.accounting" in loaded_by("import hush; hush.accounting.Gaussian")


def test_unknown_names_are_refused() -> None:
    import hush

    with pytest.raises(AttributeError, match="no attribute 'loud'"):
        _ = hush.loud
