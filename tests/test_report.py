"""The report: numbers that are the run's own, words that keep to the safe side, nothing fetched, nothing leaked."""

from __future__ import annotations

import html
import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

from hush import cli
from hush.accounting import Gaussian
from hush.report import page, write_report
from hush.report.figures import tradeoff_plot
from hush.report.plots import Axis, Band, Line, Mark, Plot, svg
from hush.report.words import attacks, right_at_most, settings
from hush.runs.inspecting import inspect
from hush.runs.strength import LEVELS, factor, strength

NASTY = '<script>alert("1")</script>'
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a table with an awkward column, surveyed in part."""
    place = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    lines = [f"{a:.2f},{b:.2f},{'yes' if a > b else 'no'}" for a, b in rng.normal(size=(400, 2)).tolist()]
    data = place / "data.csv"
    data.write_text("\n".join(["a," + '"' + NASTY.replace('"', '""') + '",y', *lines, ""]))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    arguments = ["--target", "y", "--classes", "no,yes", "--epsilon", "3", "--delta", "1e-4", "--steps", "16"]
    assert cli.main(["train", str(data), *arguments, "-o", str(place / "run"), "--hold-out", "0.2"]) == 0
    torch.set_num_threads(before)
    return place / "run"


class Parsed(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


def public(run: Path) -> Parsed:
    return Parsed((run / "public" / "report.html").read_text())


def test_the_page_fetches_nothing_and_runs_nothing(run: Path) -> None:
    for path in (run / "public" / "report.html", run / "private" / "report-local.html"):
        text = path.read_text()
        found = Parsed(text)
        assert "script" not in found.tags
        assert found.links == ["data:,"]
        assert "default-src 'none'" in text
        assert not re.search(r"url\(|@import|on(load|error|click)=", text)
        assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_numbers_are_those_of_the_ledger(run: Path) -> None:
    found, page = inspect(run), public(run)
    assert found.run in page.text
    assert found.ledger.head in page.text
    mechanism = found.spent.mechanism
    assert mechanism is not None
    curve = mechanism.tradeoff(400)
    assert f"{right_at_most(curve):.1%}" in page.text
    assert right_at_most(curve) >= 0.5 + mechanism.advantage().lower / 2
    for attack in attacks(curve):
        (misses,), _ = curve(np.array([attack.alarms]))
        assert 1 - misses <= attack.found <= 1 - misses + 1.1e-3
        assert f"{attack.found:.1%}" in page.text


def test_the_page_says_what_it_has_to(run: Path) -> None:
    text = " ".join(public(run).text.split())
    for words in (
        "differential privacy for adding or removing one record",
        "What was not private",
        "false alarm",
        "Poisson",
        "neighbours: add/remove one record",
        "Philox",
        "last digits",
        "ledger's digest",
        "hush 0.",
        "torch",
        "columns, first look",
        "Scores on the hold-out",
        "the option --secure does both",
        "Epsilon is at most",
        "by more than k times epsilon, at the same delta",
        "16 (",
    ):
        assert words in text, words


def test_steps_that_a_crash_cost_are_told_apart_from_those_trained(run: Path) -> None:
    found = inspect(run)
    assert settings(found)["steps"].startswith("16 (")
    crashed = replace(found, written=found.written | {"steps_done": 12})
    assert re.fullmatch(r"12 trained \(.* epochs\), 16 charged, 16 planned", settings(crashed)["steps"])


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 12.99, 13.0, 23.02585092, 23.02585093, 700.0])
def test_what_e_to_the_epsilon_is_said_to_be_is_no_less_and_hardly_more(epsilon: float) -> None:
    told = float(factor(epsilon).replace(",", "").replace(" x 10^", "e"))
    assert math.exp(epsilon) <= told * (1 + 1e-12)
    assert told <= 1.1 * math.exp(epsilon) + 0.1


def test_an_epsilon_beyond_all_numbers_is_told_with_an_exponent() -> None:
    assert factor(1000.0) == "2.0 x 10^434"
    assert factor(math.inf) == "infinity"


def test_weaker_promises_are_never_told_in_stronger_words() -> None:
    assert [level.right for level in LEVELS] == sorted(level.right for level in LEVELS)
    assert [strength(right).brief for right in (0.5, 0.75, 0.76, 0.95, 0.999, 1.0)] == [
        LEVELS[place].brief for place in (0, 0, 1, 2, 3, 3)
    ]


def test_column_names_are_text_and_nothing_else(run: Path) -> None:
    text = (run / "public" / "report.html").read_text()
    assert NASTY not in text
    assert html.escape(NASTY) in text


def test_the_local_edition_is_marked_and_only_it_has_scores(run: Path) -> None:
    local = Parsed((run / "private" / "report-local.html").read_text())
    assert "NOT FOR RELEASE" in local.text
    assert local.tags.count("figure") == public(run).tags.count("figure") + 4
    assert "NOT FOR RELEASE" not in public(run).text
    assert "Norms of single records" not in public(run).text


def test_the_public_edition_needs_the_public_folder_only(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "public", tmp_path / "run" / "public")
    (path,) = write_report(tmp_path / "run")
    assert path.read_text() == (run / "public" / "report.html").read_text()
    with pytest.raises(ValueError, match="no local metrics"):
        write_report(tmp_path / "run", local=True)


def test_pictures_come_as_files_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run / "public", tmp_path / "run" / "public")
    assert cli.main(["report", str(tmp_path / "run"), "--png"]) == 0
    files = capsys.readouterr().out.split()
    assert [Path(file).name for file in files] == [
        "report.html", "report-tradeoff.png", "report-epsilon-delta.png", "report-epsilon-epochs.png",
    ]  # fmt: skip
    for file in files[1:]:
        assert Path(file).read_bytes()[:4] == b"\x89PNG"


# Pictures


@pytest.mark.parametrize(
    "axis",
    [
        Axis("", 0, 1, percent=True),
        Axis("", 1e-12, 0.1, log=True),
        Axis("", 0, 3.3),
        Axis("", 4, 90, log=True),
        Axis("", 7.7e-5, 0.095, log=True),
        Axis("", 0, 1e-9),
    ],
)
def test_ticks_are_few_and_on_the_axis(axis: Axis) -> None:
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 10
    assert all(-1e-12 <= axis.place(tick) <= 1 for tick in ticks)
    assert len({axis.name(tick) for tick in ticks}) == len(ticks)


def test_a_picture_is_well_formed_and_stays_inside_its_frame() -> None:
    from xml.etree import ElementTree as ET

    plot = Plot(
        "p", 'a "picture" & more', Axis("x < y", 0, 1), Axis("y", 0, 1),
        (Line("l", [0, 0.5, 2], [0.1, float("nan"), 9], 1, True),),
        (Band("b", [0, 1], [0, 0], [1, 1]),), (Mark(0.9, 0.5, "m"),),
    )  # fmt: skip
    drawn = svg(plot)
    ET.fromstring(drawn)
    numbers = [float(v) for points in re.findall(r'points="([^"]*)"', drawn) for v in re.split(r"[ ,]", points) if v]
    assert all(0 <= value <= 600 for value in numbers)


@pytest.mark.parametrize(("x", "y", "slope", "side"), [
    (0.2, 0.5, -1, (1, 1)), (0.8, 0.5, -1, (-1, -1)), (0.2, 0.5, 1, (1, -1)), (0.8, 0.5, 1, (-1, 1)),
    (0.2, 0.05, 1, (1, 0)), (0.2, 0.5, 0, (1, 0)),
])  # fmt: skip
def test_words_stand_where_their_curve_does_not_go(x: float, y: float, slope: int, side: tuple[int, int]) -> None:
    plot = Plot("p", "", Axis("", 0, 1), Axis("", 0, 1), (), (), (Mark(x, y, "here", slope),))
    assert plot.marks[0].side(plot) == side
    (rise,) = re.findall(r'dy="([-.\d]+)em"', svg(plot))
    assert float(rise) == {1: -0.45, 0: 0.35, -1: 1.2}[side[1]]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0, 30.0])
def test_the_label_of_the_trade_off_curve_touches_no_line(epsilon: float) -> None:
    """It lies above blind guessing, which no line of the picture crosses."""
    mechanism = Gaussian(5.0 / epsilon)
    (mark,) = tradeoff_plot(mechanism.tradeoff(50), epsilon, 1e-5).marks
    assert mark.apart is not None
    across, height = mark.apart
    assert across + height > 1.15
    assert "leader" in svg(tradeoff_plot(mechanism.tradeoff(50), epsilon, 1e-5))


def test_numbers_with_exponents_are_not_broken_in_two() -> None:
    assert page.prose("a < 1e-6 or 2.5e-13.") == (
        'a &lt; <span class="number">1e-6</span> or <span class="number">2.5e-13</span>.'
    )


# In a browser


PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const wide = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right >
    document.documentElement.clientWidth + 1 && !e.closest(".scroll") && !e.closest("svg")).length;
  const small = [...document.querySelectorAll("figure svg text")].filter(
    e => e.getBoundingClientRect().height < 8).length;
  parent.postMessage({wide, small, page: document.documentElement.scrollWidth,
    screen: document.documentElement.clientWidth, figures: document.querySelectorAll("figure > svg").length}, "*");
}, 100));
</script>"""


@pytest.fixture(scope="module")
def seen(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, dict[str, int]], str, str]:
    """What the browser measured at phone and desktop width, what it said on its console, and what it asked the net."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    place = tmp_path_factory.mktemp("browser")
    text = (run / "private" / "report-local.html").read_text()
    probed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE + "</body>")
    (place / "probe.html").write_text(probed)
    frames = "".join(f'<iframe src="probe.html" style="width:{w}px;height:900px"></iframe>' for w in (390, 1280))
    listen = (
        "<pre id=out></pre><script>const found=[];addEventListener('message',e=>{found.push(e.data);"
        "document.getElementById('out').textContent=JSON.stringify(found)})</script>"
    )
    (place / "both.html").write_text(f"<!doctype html><body>{frames}{listen}</body>")
    log = place / "net.json"
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
        "--no-first-run", "--disable-component-update", "--virtual-time-budget=4000", "--enable-logging=stderr",
        f"--user-data-dir={place / 'profile'}", f"--log-net-log={log}", "--window-size=1700,1000",
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(place)}
    measured = subprocess.run(
        [*command, "--dump-dom", (place / "both.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment,
    )
    plain = subprocess.run(
        [*command, "--dump-dom", (run / "public" / "report.html").as_uri()],
        capture_output=True, text=True, timeout=90, env=environment,
    )  # fmt: skip
    body = re.search(r'<pre id="out">(.*?)</pre>', measured.stdout)
    if body is None:
        pytest.skip("Chromium doesn't run here")
    results = {int(row["screen"]) // 500: row for row in json.loads(html.unescape(body[1]))}
    return results, plain.stderr, log.read_text(errors="replace") if log.exists() else ""


def test_the_page_fits_a_phone_and_a_desk(seen: tuple[dict[int, dict[str, int]], str, str]) -> None:
    results, _, _ = seen
    assert set(results) == {0, 2}
    for row in results.values():
        assert row["page"] <= row["screen"]
        assert row["wide"] == 0
        assert row["small"] == 0
        assert row["figures"] == 7


def test_the_console_is_silent(seen: tuple[dict[int, dict[str, int]], str, str]) -> None:
    assert "CONSOLE" not in seen[1]


def test_no_request_leaves_the_machine(seen: tuple[dict[int, dict[str, int]], str, str]) -> None:
    requested = set(re.findall(r'"url":"((?:https?|wss?)://[^"]+)"', seen[2]))
    own = re.compile(r"https?://[\w.-]*(google|gstatic|googleapis)\.com")  # the browser's own errands, not the page's
    assert {url for url in requested if not own.match(url)} == set()
