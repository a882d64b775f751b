"""What the documentation shows, runs: code blocks, commands, tables and links of README and docs; docstrings."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.cli import main

ROOT = Path(__file__).parent.parent
SOURCE = Path(hush.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```\n\$ hush (.*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def modules_with_examples() -> list[str]:
    files = sorted(file for file in SOURCE.rglob("*.py") if ">>> " in file.read_text())
    return [".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__") for file in files]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_blocks_run_in_order_in_one_namespace(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    text, namespace = page.read_text(), dict[str, Any]()
    for block in PYTHON.finditer(text):
        assert ">>>" not in block[1]
        # blank lines before it, so that a traceback names the line of the page
        lines = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if CONSOLE.search(page.read_text())], ids=named)
def test_commands_answer_as_shown(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, shown in CONSOLE.findall(page.read_text()):
        assert main(shlex.split(command)) == 0
        # lines break by the width of the terminal; words don't
        assert capsys.readouterr().out.split() == shown.split(), command


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted > 0


def test_tables_of_the_readme_show_the_committed_measurements() -> None:
    path = ROOT / "docs" / "figures" / "tables.py"
    spec = importlib.util.spec_from_file_location("hush_docs_tables", path)
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    shown = tables.shown((ROOT / "README.md").read_text())
    assert {"accounting", "training-cuda"} <= set(shown)
    rendered = tables.tables()
    assert shown == {name: rendered[name] for name in shown}, "run `python docs/figures/tables.py --write`"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    # in code, brackets followed by brackets are no link
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", prose):
        target = target[0] or target[1]
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        other = page.parent / file if file else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


def test_every_page_is_part_of_the_site() -> None:
    contents = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert f": {name}\n" in contents, f"add {name} to nav in mkdocs.yml"
