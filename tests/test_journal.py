"""Crashes, concurrent processes and tampering: a ledger is always readable, never reports less than was released."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hush.accounting import Gaussian, Mechanism
from hush.journal import CorruptLedgerError
from hush.ledger import Budget, BudgetExceededError, Ledger

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
STEP = Gaussian(1.3).poisson(256 / 60_000)
BLOCK = 5

# Forks a child for every line it reads, so that Python starts once; the child charges steps and then "releases" them:
# it writes their numbers to another file after reserve has returned, until it is killed.
NURSERY = f"""
import os, sys
from hush.accounting import Gaussian
from hush.ledger import Ledger
assert "torch" not in sys.modules

def train(ledger_path, released_path, closes):
    step = Gaussian(1.3).poisson(256 / 60_000)
    ledger = Ledger(ledger_path)
    runs = ledger.runs
    run = runs[0].run if runs else ledger.register({{}}, step * 10**6, block={BLOCK})
    released = os.open(released_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    first = 0
    while True:
        ledger.reserve(run, first, step, {BLOCK})
        drawn = (first // 3) % {BLOCK} + 1 if closes else {BLOCK}
        for number in range(first, first + drawn):
            os.write(released, b"%d\\n" % number)
        if closes:
            ledger.close(run, first + drawn)
        first += drawn

for line in sys.stdin:
    ledger_path, released_path, closes = line.split()
    child = os.fork()
    if child == 0:
        train(ledger_path, released_path, closes == "closes")
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@contextmanager
def nursery() -> Iterator[Callable[[Path, Path, str, float], None]]:
    """A function that lets a child train for some seconds and kills it with SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", NURSERY], stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def live(ledger: Path, released: Path, closes: str, seconds: float) -> None:
            stdin.write(f"{ledger} {released} {closes}\n")
            child = int(stdout.readline())
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
            assert stdout.readline() == "gone\n"

        yield live
        stdin.close()


def spent(path: Path) -> int:
    """How many steps a ledger read afresh reports."""
    mechanism = Ledger(path).mechanism()
    return 0 if mechanism is None else dict(mechanism.parts())[STEP]


def released(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def damaged(path: Path) -> int:
    """How many records of a ledger read afresh are torn; nothing else may be wrong with it."""
    remarks = [re.fullmatch(r"(The last|\d+) .*damaged.*, counted as spent\.", text) for text in Ledger(path).verify()]
    assert all(remarks)
    return sum(1 if found[1] == "The last" else int(found[1]) for found in remarks if found)


def filled(path: Path, blocks: int = 6) -> tuple[Ledger, str]:
    """A ledger with some blocks, the last of them closed early."""
    ledger = Ledger(path, Budget(3.0, 1e-5))
    run = ledger.register({"name": "é"}, STEP * 1000, block=BLOCK)
    for index in range(blocks):
        ledger.reserve(run, index * BLOCK, STEP, BLOCK)
    return ledger, run


# Crashes


@pytest.mark.parametrize("closes", ["closes", "leaves"])
def test_killing_the_process_at_any_moment_leaves_a_ledger_with_all_that_was_released(
    closes: str, tmp_path: Path
) -> None:
    rng = random.Random(7)
    kills = 150 if FULL else 6
    progress = 0
    with nursery() as live:
        for attempt in range(kills):
            ledger, log = tmp_path / f"{attempt % 5}", tmp_path / f"{attempt % 5}.released"
            live(ledger, log, closes, rng.uniform(0.0, 0.1))
            assert spent(ledger) >= released(log)
            # each life over-counts by the block it was killed in, at most, and by another where the kill tore a record:
            # a write across two pages may end between them
            torn = damaged(ledger)
            assert torn <= attempt // 5 + 1
            assert spent(ledger) <= released(log) + BLOCK * (attempt // 5 + 1 + torn)
            progress += released(log)
        for _ in range(20):  # on a busy machine lives are short: let some last until enough was released to mean much
            if progress > 10:
                break
            live(tmp_path / "longer", tmp_path / "longer.released", closes, 0.5)
            assert spent(tmp_path / "longer") >= released(tmp_path / "longer.released")
            progress += released(tmp_path / "longer.released")
    assert progress > 10


def test_what_was_not_synced_may_be_lost_at_any_byte_and_the_rest_still_counts(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    filled(whole, 4)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(0, len(data) + 1, 1 if FULL else 11):
        path = tmp_path / "cut"
        path.write_bytes(data[:cut])
        durable = sum(end <= cut for end in ends)  # the lines that were synced: open, register, reserve...
        least = max(durable - 2, 0) * BLOCK
        assert spent(path) >= least
        torn = cut > 0 and cut not in ends and cut + 1 not in ends
        assert bool(Ledger(path).verify()) == torn
        if torn and durable >= 2:
            assert spent(path) == least + BLOCK  # a torn record counts as spent
        continued = Ledger(path, Budget(3.0, 1e-5))
        run = continued.runs[0].run if continued.runs else continued.register({}, STEP * 1000, block=BLOCK)
        before = spent(path)
        continued.reserve(run, 0, STEP, 2)
        assert spent(path) == before + 2


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 4096,
        b"\0" * 4096 + b"\n",
        b"\n",
        b"\n\n\n",
        b"garbage",
        b"garbage\nmore garbage\n",
        bytes(range(256)) * 20,
        b"{}\n[]\n",
        b"[" * 100_000,
        b'{"digest":"00',
        "duplicate",
        "two duplicates",
        "half a duplicate",
    ],
    ids=repr,
)
def test_garbage_behind_the_last_record_counts_as_a_block_and_the_ledger_goes_on(
    tail: bytes | str, tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    ledger, run = filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    copies = {"duplicate": lines[-1], "two duplicates": lines[-1] + lines[-3], "half a duplicate": lines[-1][:100]}
    with path.open("ab") as file:
        file.write(copies[tail] if isinstance(tail, str) else tail)
    assert spent(path) == 7 * BLOCK
    assert "damaged" in Ledger(path).verify(ledger.head)[0]
    for opened in (ledger, Ledger(path)):
        opened.reserve(run, 0, STEP, 1)
    assert spent(path) == 7 * BLOCK + 2
    assert Ledger(path).verify(ledger.head) == ("1 damaged record(s), counted as spent.",)
    # damage may come again
    with path.open("ab") as file:
        file.write(b"half a rec")
    assert spent(path) == 8 * BLOCK + 2
    ledger.finish(run)
    assert spent(path) == 8 * BLOCK + 2
    assert Ledger(path).verify() == ("2 damaged record(s), counted as spent.",)


def test_a_torn_record_counts_against_the_budget(tmp_path: Path) -> None:
    budget = Budget(3.0, 1e-5)
    ledger = Ledger(tmp_path / "ledger", budget)
    most = ledger.most_steps(STEP)
    run = ledger.register({}, STEP * most, block=most)
    ledger.reserve(run, 0, STEP, most - 10)
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(BudgetExceededError):
        ledger.reserve(run, most - 10, STEP, 1)


def test_a_failing_disk_stops_the_step_and_the_ledger_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, run = filled(tmp_path / "ledger")

    def fail(_: int) -> None:
        raise OSError("the disk is on fire")

    with monkeypatch.context() as patched:
        patched.setattr("hush.journal._sync", fail)
        with pytest.raises(OSError, match="on fire"):
            ledger.reserve(run, 0, STEP, 1)
    with pytest.raises(OSError, match="open the ledger anew"):
        ledger.reserve(run, 0, STEP, 1)
    assert spent(tmp_path / "ledger") >= 6 * BLOCK


def test_a_full_disk_leaves_half_a_record_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, run = filled(tmp_path / "ledger")
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError("no space left")
        return write(descriptor, data[: len(data) - 50])

    with monkeypatch.context() as patched:
        patched.setattr("hush.journal.os.write", half)
        with pytest.raises(OSError, match="no space left"):
            ledger.reserve(run, 0, STEP, 1)
    assert spent(tmp_path / "ledger") == 7 * BLOCK
    Ledger(tmp_path / "ledger").reserve(run, 0, STEP, 1)
    assert spent(tmp_path / "ledger") == 7 * BLOCK + 1


def test_reserve_returns_after_one_sync_and_creation_syncs_the_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr("hush.journal.os.fsync", watched)
    ledger = Ledger(tmp_path / "ledger")
    run = ledger.register({}, STEP * 1000, block=500)
    assert synced == [False, True, False]
    synced.clear()
    ledger.reserve(run, 0, STEP, 500)
    assert synced == [False]


# Several processes

SHARING = """
import sys
from hush.accounting import Gaussian
from hush.ledger import Budget, BudgetExceededError, Ledger

step = Gaussian(1.3).poisson(256 / 60_000)
ledger = Ledger(sys.argv[1], Budget(1.0, 1e-5))
run = ledger.register({"process": sys.argv[2]}, None, block=40)
steps = 0
try:
    for _ in range(60):
        ledger.reserve(run, steps, step, 40)
        steps += 40
except BudgetExceededError:
    pass
ledger.close(run, max(steps - 1, 0)) if steps else None
print(max(steps - 1, 0))
"""


def test_processes_that_share_a_ledger_keep_one_budget_together(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    command = [sys.executable, "-c", SHARING, str(path)]
    children = [subprocess.Popen([*command, str(number)], stdout=-1, text=True) for number in range(4)]
    steps = [int(child.communicate(timeout=60)[0]) for child in children]
    assert all(child.returncode == 0 for child in children)
    ledger = Ledger(path)
    assert spent(path) == sum(steps)
    assert len(ledger.runs) == 4
    assert {summary.plan["process"] for summary in ledger.runs} == {"0", "1", "2", "3"}
    assert ledger.verify() == ()
    epsilon = ledger.spent().epsilon(1e-5).upper
    assert 0.7 < epsilon <= 1.0  # all were stopped by the budget they share: 4 * 2400 steps would be 1.5


def test_threads_that_share_a_ledger_lose_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")

    def train() -> None:
        run = ledger.register({}, STEP * 1000)
        for first in range(25):
            ledger.reserve(run, first, STEP, 1)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spent(tmp_path / "ledger") == 100
    assert ledger.mechanism() == STEP * 100


# Tampering

EDITS: dict[str, Callable[[list[bytes], int], list[bytes]]] = {
    "change a number": lambda lines, i: [*lines[:i], lines[i].replace(b'"time":"2', b'"time":"1', 1), *lines[i + 1 :]],
    "delete a line": lambda lines, i: [*lines[:i], *lines[i + 1 :]],
    "swap two lines": lambda lines, i: [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]],
    "insert a line": lambda lines, i: [*lines[: i + 1], lines[i].replace(b"2", b"3"), *lines[i + 1 :]],
    "repeat a line": lambda lines, i: [*lines[: i + 1], lines[i], *lines[i + 1 :]],
    "change a digest": lambda lines, i: [*lines[:i], lines[i][:20] + b"0000000000" + lines[i][30:], *lines[i + 1 :]],
    "break a line": lambda lines, i: [*lines[:i], lines[i][:50], *lines[i + 1 :]],
    "blank a line": lambda lines, i: [*lines[:i], b"\n", *lines[i + 1 :]],
    "lay it out anew": lambda lines, i: [*lines[:i], lines[i].replace(b":", b": "), *lines[i + 1 :]],
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("where", range(7))
def test_an_edit_inside_the_chain_is_detected(edit: str, where: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 8
    path.write_bytes(b"".join(EDITS[edit](lines, where)))
    with pytest.raises(CorruptLedgerError):
        Ledger(path)


def test_an_edit_of_the_last_line_is_detected_or_counts_as_a_block(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    filled(path)
    data = path.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for at in range(start, len(data), 1 if FULL else 7):
        for value in (b"0", b"}", b'"', b"\n"):
            if data[at : at + 1] == value:
                continue
            path.write_bytes(data[:at] + value + data[at + 1 :])
            try:
                assert spent(path) >= 6 * BLOCK
                assert Ledger(path).verify()
            except CorruptLedgerError:
                pass


def test_records_cut_off_the_end_show_against_a_head_recorded_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger, run = filled(path)
    head = ledger.head
    assert Ledger(path).verify(head) == ()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    assert Ledger(path).verify() == ()
    with pytest.raises(CorruptLedgerError, match="cut off"):
        Ledger(path).verify(head)
    with pytest.raises(CorruptLedgerError, match="shorter"):
        ledger.reserve(run, 0, STEP, 1)
    path.unlink()
    with pytest.raises(CorruptLedgerError, match="gone"):
        ledger.spent()


def test_records_replaced_by_others_are_noticed_by_those_who_read_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger, run = filled(path)
    path.unlink()
    filled(path, 8)
    with pytest.raises(CorruptLedgerError):
        ledger.reserve(run, 0, STEP, 1)


def test_damage_that_was_vouched_for_can_neither_be_changed_nor_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger, run = filled(path)
    with path.open("ab") as file:
        file.write(b"torn")
    ledger.reserve(run, 0, STEP, 1)
    data = path.read_bytes()
    for edited in (data.replace(b"\ntorn", b""), data.replace(b"torn\n", b""), data.replace(b"torn\n", b"born\n")):
        path.write_bytes(edited)
        with pytest.raises(CorruptLedgerError):
            Ledger(path)


@pytest.mark.parametrize("text", ["# Notes\n\nNot a ledger.\n", "one line", '{"a": 1}\n', "\x7fELF\0\0\n"])
def test_another_file_is_not_taken_for_a_ledger(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(CorruptLedgerError, match="is not a ledger"):
        Ledger(path)
    assert path.read_text() == text


# Speed


def test_a_long_ledger_is_read_in_about_a_second(tmp_path: Path) -> None:
    records = 100_000 if FULL else 20_000
    ledger = Ledger(None)
    run = ledger.register({}, STEP * 10**6)
    for first in range(records):
        ledger.reserve(run, first, STEP, 1)
    path = tmp_path / "ledger"
    path.write_bytes(ledger._journal._memory)
    started = time.process_time()
    again = Ledger(path)
    assert again.mechanism() == STEP * records
    assert time.process_time() - started < 4e-5 * records  # measured: 1 s for 1e5 records
    started = time.process_time()
    for first in range(100):
        again.reserve(run, first, STEP, 1)
    assert time.process_time() - started < 1.0  # what was read once isn't read again
    assert isinstance(again.mechanism(), Mechanism)
