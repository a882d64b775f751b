"""What the documentation shows, runs: code blocks of the README and the docs, and examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import hush.accounting

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULES = sorted(module.name for module in pkgutil.iter_modules(hush.accounting.__path__, "hush.accounting."))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_in_order_in_one_namespace(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    text, namespace = page.read_text(), dict[str, Any]()
    for block in BLOCK.finditer(text):
        assert ">>>" not in block[1]
        # blank lines before it, so that a traceback names the line of the page
        lines = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("name", ["hush.accounting", *MODULES])
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        other = page.parent / file if file else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target
