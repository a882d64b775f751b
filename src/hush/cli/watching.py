"""A run on the screen: progress with the time left, the loss (local), the epsilon spent; Ctrl-C stops it cleanly."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hush.cli.trouble import told_plainly
from hush.digits import number, up
from hush.runs.strength import delta_warning, strength

if TYPE_CHECKING:
    from hush.runs.beginning import Opened
    from hush.runs.card import Card
    from hush.runs.session import Session

STOPPED = 130
"""The exit status of a run that was stopped by Ctrl-C."""
_REFRESH = 0.5  # seconds between two looks at the account
_SMALL = 1e8  # products in a forward pass


def watching(read: Callable[[], Opened], run: Path) -> int:
    """Read the records, begin and train; returns the exit status.

    While the records are read Ctrl-C stops at once, since nothing is released yet.  From then on it waits until what is
    under way is kept, and a second one doesn't.
    """
    from hush.runs.beginning import begin

    try:
        found = read()
        _warn(found)
        with interrupted() as stopped, told_plainly(charged=True):
            return watch(begin(found, stopped.is_set), run, stopped)
    except KeyboardInterrupt:
        asked = f" What was spent stays charged; go on with: hush resume {run}" if run.exists() else ""
        print(f"Stopped at once.{asked}", file=sys.stderr)
        return STOPPED


def _warn(found: Opened) -> None:
    """Before anything is spent, to the owner of the data only: a delta that promises nothing for so many records."""
    train, asked = found.known.train, found.request
    units = asked.records or len(train.speakers())
    words = delta_warning(asked.delta, units, asked.unit, public=asked.records is not None)
    if words and not found.folder.settings.exists():
        print(f"Warning: {words}", file=sys.stderr)


def watch(session: Session, run: Path, stopped: threading.Event) -> int:
    """Train to the end, or until `stopped` by Ctrl-C; returns the exit status."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with _threads(session):
        if _train(session, console, stopped):
            done, steps = session.private.steps_done, session.plan.steps
            console.print(f"Stopped after {done} of {steps} steps; nothing is lost. Go on with: hush resume {run}")
            return STOPPED
        last = session.finish()
        from hush.report import write_report

        write_report(session.folder.path, local=False)
        write_report(session.folder.path, local=True)
    _tell(session, last, run)
    return 0


def _train(session: Session, console: Any, stopped: threading.Event) -> bool:
    """Whether it was stopped, and then saved."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("training"), BarColumn(28), MofNCompleteColumn(), TimeRemainingColumn())
    facts = (TextColumn("loss {task.fields[loss]} (local)"), TextColumn("epsilon {task.fields[epsilon]}"))
    epsilon, looked = up(session.epsilon(), 3), time.monotonic()
    with Progress(*columns, *facts, console=console) as progress:
        done = session.private.steps_done
        task = progress.add_task("", total=session.plan.steps, completed=done, loss="-", epsilon=epsilon)
        if not stopped.is_set():
            for seen in session.steps():
                if time.monotonic() - looked > _REFRESH:
                    epsilon, looked = up(session.epsilon(), 3), time.monotonic()
                loss = f"{seen.loss:.3f}" if math.isfinite(seen.loss) else "-"
                progress.update(task, completed=seen.step, loss=loss, epsilon=epsilon)
                if stopped.is_set() and seen.step < seen.steps:
                    break
            else:
                progress.update(task, epsilon=up(session.epsilon(), 3))
                return False
        session.pause()
        progress.update(task, epsilon=up(session.epsilon(), 3))
        return True


@contextmanager
def _threads(session: Session) -> Iterator[None]:
    """One thread where a step is so small that several would wait for each other most of the time."""
    import torch

    before = torch.get_num_threads()
    products = session.plan.batch * sum(parameter.numel() for parameter in session.private.model.parameters())
    if products < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def interrupted() -> Iterator[threading.Event]:
    """Set by Ctrl-C; a second Ctrl-C interrupts at once, as usual."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(session: Session, last: dict[str, Any], run: Path) -> None:
    from hush.cli.printing import print_answer
    from hush.runs.folder import read_json

    plan, card = session.plan, session.card
    assert plan.delta is not None
    score = last.get("score")
    rows = {
        "publish": f"{run}/public: model, loader, plan, ledger, report.html",
        "keep": f"{run}/private: checkpoint, local metrics, report-local.html; not for release",
        "columns": _columns(card),
        "model": f"{card.network.inputs} features, "
        + (f"{len(card.classes)} classes" if card.classes is not None else f"the number {card.target!r}"),
    }
    if score is not None:
        what = f"{score:.1%} right" if card.classes is not None else f"root mean squared error {score:.4g}"
        rows["hold-out"] = (
            f"{what} of {session._held.records} (LOCAL ONLY: not paid for, so don't publish or choose by it)"
        )
    share = float(read_json(session.folder.plan).get("share", 1))
    if share < 1:
        rows["share"] = f"{share:.0%} of the {plan.unit}s took part, by a coin each; with --records all of them can"
    mechanism = session.private.spent().mechanism
    level = strength(1 - mechanism.error_sum().lower / 2 if mechanism is not None else 0.5)
    warnings = (level.warning, delta_warning(plan.delta, plan.records, plan.unit))
    rows["warning"] = "\n".join(words for words in warnings if words)
    if session.private.steps_done < plan.steps:
        rows["stopped"] = f"after {session.private.steps_done} of {plan.steps} steps: the budget was used up by a crash"
    print_answer(
        f"epsilon <= {up(session.epsilon(), 4)} at delta = {number(plan.delta)}",
        f"{level.brief} for adding or removing one {plan.unit}; hush report {run} explains what that means. "
        "Another run on the same records costs again; --ledger FILE with --budget EPSILON keeps one budget "
        "for all of them.",
        {name: words for name, words in rows.items() if words},
        good=not level.warning,
    )


def _columns(card: Card) -> str:
    """What a table's columns were taken for: declared, or told by the survey."""
    if card.pixels is not None:
        shape = card.network.image
        size = "" if shape is None else f", {shape[1]}x{shape[2]}"
        return f"{card.pixels[0]} to {card.pixels[-1]} are the pixels of one image{size} (if not: --pixels none)"
    if card.columns is None:
        return ""
    from hush.tabular.columns import Ignored

    named: dict[str, list[str]] = {}
    for name, column in card.columns.items():
        lost = isinstance(column, Ignored) and not column.declared
        named.setdefault("lost" if lost else column.kind, []).append(name)
    parts = [f"{len(named[kind])} {words}" for kind, words in _KINDS.items() if kind in named]
    if "text" in named:
        parts.append(f"free texts: {_some(named['text'])} (a schema can ignore them or declare their categories)")
    if "ignore" in named:
        parts.append(f"left out as declared: {_some(named['ignore'])}")
    if "lost" in named:
        parts.append(f"lost in the survey's noise, so left out: {_some(named['lost'])} (a schema can declare them)")
    return ", ".join(parts)


_KINDS = {"number": "of numbers", "date": "of dates", "category": "of categories"}


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
