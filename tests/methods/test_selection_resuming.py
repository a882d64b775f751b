"""Searches that were broken off: killed at every stage, copied, resumed in the middle of a run."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from searching import Trainer, X, Y, candidates, key_with, same, search
from torch import nn

import hush
from hush import checkpoint
from hush.keys import Key
from hush.ledger import Ledger
from hush.methods import selection

pytest.importorskip("safetensors")

STAGES = [
    pytest.param("after the charge", marks=pytest.mark.full),
    "in the second run",
    pytest.param("while a result is written", marks=pytest.mark.full),
    "before a run is deleted",
    pytest.param("before the winner is written", marks=pytest.mark.full),
    "while the winner is written",
    pytest.param("after the winner is written", marks=pytest.mark.full),
]
VICTIM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import searching as t
from hush.methods.selection import state
folder, stage = sys.argv[1:]
calls = 0

def kill_at(number, function):
    def called(*given, **more):
        global calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **more)
    return called

class Victim(t.Trainer):
    def after_step(self):
        if stage == "in the second run" and self.steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)

if stage == "after the charge":
    state.State.begin = kill_at(1, None)
elif stage == "while a result is written":  # tensors are there, but nothing that names them
    state.State.keep = lambda self, *given, keep=state.State.keep: (
        setattr(os, "replace", kill_at(2, os.replace)), keep(self, *given))[1]
elif stage == "before a run is deleted":
    state.clear = kill_at(3, state.clear)  # after the last run
elif stage == "before the winner is written":
    state.State.finish = kill_at(1, None)
elif stage == "while the winner is written":
    state.State.finish = lambda self, finish=state.State.finish: (
        setattr(os, "replace", kill_at(2, os.replace)), finish(self))[1]
elif stage == "after the winner is written":
    state.State._set_times = kill_at(1, None)
place = dict(ledger=folder + "/ledger", folder=folder + "/search", key=t.key_with(3), save_every=0)
t.selection.run(t.search(), Victim(), **place)
"""


@pytest.mark.parametrize("fail_at", [1, 3, 5])
def test_goes_on_after_a_crash_to_the_same_result_charged_once(tmp_path: Path, fail_at: int) -> None:
    key = key_with(5)
    whole = selection.run(search(), Trainer(), key=key)
    ledger, folder = tmp_path / "ledger", tmp_path / "search"
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Trainer(fail_at), ledger=ledger, folder=folder, key=key)
    later = Trainer()
    best = selection.run(search(), later, ledger=ledger, folder=folder)
    assert later.calls == 5 - fail_at + 1
    assert same(best, whole)
    assert Ledger(ledger).mechanism() == search().mechanism


def test_goes_on_to_the_same_result_under_a_key_that_is_no_seed(tmp_path: Path) -> None:
    """Else whoever can break a run off draws again: the broken one must not get another chance."""
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Trainer(1), ledger=tmp_path / "ledger", folder=tmp_path / "search")
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    found = [selection.run(search(), Trainer(), folder=tmp_path / "search")]
    shutil.rmtree(tmp_path)
    shutil.move(tmp_path.with_name("copy"), tmp_path)  # the ledger, too: as if it had never gone on
    found.append(selection.run(search(), Trainer(), folder=tmp_path / "search"))
    assert same(*found)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_any_time_it_goes_on_to_the_same_result_and_no_loser_is_left(tmp_path: Path, stage: str) -> None:
    key, ledger, folder = key_with(3), tmp_path / "ledger", tmp_path / "search"
    command = [sys.executable, "-c", VICTIM.format(tests=str(Path(__file__).parent)), str(tmp_path), stage]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    victim = subprocess.run(command, capture_output=True, timeout=120, env=environment)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    assert victim.stdout == b""
    for path in tmp_path.rglob("*"):
        if path != ledger:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.parent.name == ".hush-partial"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 if folder.exists() else stage == "after the charge"
    charged = Ledger(ledger).mechanism()
    assert charged == search().mechanism
    later = Trainer()
    best = selection.run(search(), later, ledger=ledger, folder=folder, key=key)
    if stage == "in the second run":
        assert (later.calls, later.steps) == (2, 1 + 2)
    assert same(best, selection.run(search(), Trainer(), key=key))
    twice = stage == "after the charge"  # nothing says that it was paid for: it is paid for again
    assert Ledger(ledger).mechanism() == (search().mechanism * 2 if twice else search().mechanism)
    left = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(left) == 2
    assert not any(key.secret.hex().encode() in content for content in left.values())


def test_does_not_go_on_in_two_places(tmp_path: Path) -> None:
    ledger, folder, copy = tmp_path / "ledger", tmp_path / "search", tmp_path / "copy"
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Trainer(2), ledger=ledger, folder=folder, key=key_with(4))
    shutil.copytree(folder, copy)
    with pytest.raises(ValueError, match="go on there, or move the folder back"):
        selection.run(search(), Trainer(), ledger=ledger, folder=copy)
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Trainer(2), ledger=ledger, folder=folder)
    later = tmp_path / "later"
    shutil.move(folder, later)
    shutil.move(copy, folder)
    with pytest.raises(ValueError, match="went on elsewhere"):
        selection.run(search(), Trainer(), ledger=ledger, folder=folder)
    shutil.rmtree(folder)
    shutil.move(later, folder)
    assert selection.run(search(), Trainer(), folder=folder).score is not None  # the ledger is known


def test_a_search_that_goes_on_elsewhere_meanwhile_publishes_nothing(tmp_path: Path) -> None:
    ledger, folder = tmp_path / "ledger", tmp_path / "search"

    class Overtaken(Trainer):
        def after_step(self) -> None:
            if self.steps == 3:
                selection.run(search(), Trainer(), ledger=ledger, folder=folder)

    with pytest.raises(ValueError, match="went on elsewhere"):
        selection.run(search(), Overtaken(), ledger=ledger, folder=folder, key=key_with(2))


def test_does_not_go_on_without_its_charge_or_without_a_ledger_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "search"
    with pytest.raises(ValueError, match="give ledger=path"):
        selection.run(search(), Trainer(), folder=folder)
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Trainer(1), ledger=tmp_path / "ledger", folder=folder, key=key_with(2))
    os.remove(tmp_path / "ledger")
    for ledger in (None, tmp_path / "another"):
        with pytest.raises(ValueError, match="doesn't hold the run"):
            selection.run(search(), Trainer(), ledger=ledger, folder=folder)


def test_a_run_that_was_broken_off_does_not_go_on_with_another_model(tmp_path: Path) -> None:

    class Broken(Trainer):
        def after_step(self) -> None:
            raise KeyboardInterrupt

    def other(trial: selection.Trial) -> tuple[nn.Module, float]:
        model = nn.Linear(3, 3)
        trial.private(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return model, 0.0

    ledger, folder = tmp_path / "ledger", tmp_path / "search"
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Broken(), ledger=ledger, folder=folder, key=key_with(2), save_every=0)
    with pytest.raises(ValueError, match="had another model"):
        selection.run(search(), other, ledger=ledger, folder=folder)
    shutil.rmtree(folder / "run")
    assert selection.run(search(), Trainer(), ledger=ledger, folder=folder).score is not None


def test_a_trial_by_auxiliary_coordinates_goes_on_too(tmp_path: Path) -> None:
    from hush.methods.mac import MAC, CrossEntropy, Expansion

    plan = hush.Plan(records=40, batch=20, steps=4, noise_multiplier=4.0, delta=1e-3, clip=Expansion(0.3))
    wanted = selection.Search((selection.Candidate({}, plan),), selection.Every(), delta=1e-3)
    steps: list[int] = []

    def train(trial: selection.Trial, stop: int = 10) -> tuple[nn.Module, float]:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        private = trial.private(model, torch.optim.Adam(model.parameters(), lr=0.1))
        mac = MAC(private, CrossEntropy())
        for x, y in private.batches((X, Y)):
            mac.step(x, y)
            steps.append(private.steps_done)
            if len(steps) == stop:
                raise KeyboardInterrupt
        return model, float(next(model.parameters()).sum())

    whole = selection.run(wanted, train, key=Key.from_seed(0))
    steps.clear()
    ledger, folder = tmp_path / "ledger", tmp_path / "search"
    with pytest.raises(KeyboardInterrupt):
        selection.run(wanted, lambda t: train(t, 2), ledger=ledger, folder=folder, key=Key.from_seed(0), save_every=0)
    assert same(selection.run(wanted, train, ledger=ledger, folder=folder), whole)
    assert steps == [1, 2, 3, 4]


def test_refuses_to_go_on_with_another_search(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        selection.run(search(), Trainer(1), ledger=tmp_path / "ledger", folder=tmp_path / "search")
    other = selection.Search(candidates(noise=1.0), selection.Geometric(6), delta=1e-3)
    with pytest.raises(ValueError, match="another search"):
        selection.run(other, Trainer(), ledger=tmp_path / "ledger", folder=tmp_path / "search")


def test_dropout_schedulers_and_averages_go_on_to_the_same_bits(tmp_path: Path) -> None:
    plan = hush.Plan(records=40, batch=20, steps=6, noise_multiplier=4.0, delta=1e-3)
    wanted = selection.Search((selection.Candidate({}, plan),), selection.Every(), delta=1e-3)

    def train(trial: selection.Trial, stop: int | None = None) -> tuple[nn.Module, float]:
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.8)
        private = trial.private(model, optimiser, scheduler=scheduler, average=hush.Average(0.9))
        for x, y in private.batches((X, Y)):
            private.step(lambda x, y: nn.functional.cross_entropy(model(x), y, reduction="none"), x, y)
            if private.steps_done == stop:
                raise KeyboardInterrupt
        with private.averaged():
            score = float(next(model.parameters()).sum())
        return model, score

    whole = selection.run(wanted, train, key=Key.from_seed(0))
    ledger, folder = tmp_path / "ledger", tmp_path / "search"
    for stop in (2, 5):
        with pytest.raises(KeyboardInterrupt):
            selection.run(
                wanted,
                lambda trial, stop=stop: train(trial, stop),  # type: ignore[misc]
                ledger=ledger,
                folder=folder,
                key=Key.from_seed(0),
                save_every=0,
            )
    assert same(selection.run(wanted, train, ledger=ledger, folder=folder), whole)
    assert Ledger(ledger).mechanism() == wanted.mechanism


def test_when_the_next_run_begins_nothing_of_the_losers_is_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "search"
    results: list[tuple[float, torch.Tensor]] = []

    def train(trial: selection.Trial) -> tuple[nn.Module, float]:
        assert not (folder / "run").exists()
        if results:
            kept = checkpoint.load(folder)["best"]
            best = max(results, key=lambda result: result[0])
            assert kept[1] == best[0]
            assert torch.equal(kept[2]["weight"], best[1])
            content = b"".join(path.read_bytes() for path in folder.iterdir())
            for score, weight in results:
                assert (weight.numpy().tobytes() in content) == (score == best[0])
        model, score = Trainer()(trial)
        assert (folder / "run" / "checkpoint.json").exists()
        results.append((score, next(model.parameters()).detach().clone()))
        return model, score

    selection.run(search(), train, ledger=tmp_path / "ledger", folder=folder, key=key_with(5), save_every=0)
    assert len(results) == 5
