"""Expensive sweeps: skipped unless HUSH_FULL=1, and then their outcome is written down."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections import Counter
from pathlib import Path

import pytest

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
RESULTS = Path(__file__).parent / "results" / "full.json"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FULL:
        return
    skip = pytest.mark.skip(reason="a full sweep: make test-full")
    for item in items:
        if item.get_closest_marker("full") is not None:  # keywords have folder names in them, too
            item.add_marker(skip)


class _Record:
    """Collects the outcome and the duration of every test of a full run."""

    def __init__(self) -> None:
        self.started = time.time()
        self.outcomes: Counter[str] = Counter()
        self.slowest: list[tuple[float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.when == "call":
            self.slowest.append((report.duration, report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config = session.config
        if config.args != config.getini("testpaths") or config.option.keyword or config.option.markexpr:
            return  # a selection of tests is no full run
        result = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(self.started)),
            "outcomes": dict(sorted(self.outcomes.items())),
            "seconds": round(time.time() - self.started, 1),
            "python": platform.python_version(),
            "packages": {name: importlib.metadata.version(name) for name in ("hush", "numpy", "scipy", "mpmath")},
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "slowest": {name: round(seconds, 2) for seconds, name in sorted(self.slowest, reverse=True)[:10]},
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if FULL and not config.option.collectonly and not hasattr(config, "workerinput"):  # not in a worker process
        config.pluginmanager.register(_Record(), "hush-full-record")
