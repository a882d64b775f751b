"""Checkpoints: exact round trips without pickle, atomic replacement, for their owner's eyes."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hush import checkpoint  # noqa: E402 (torch may be missing)

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, in value and in type."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(_bits(one), _bits(other))
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one.hex() == other.hex()
    if isinstance(one, complex):
        return repr(one) == repr(other)
    return bool(one == other)


def _bits(tensor: Any) -> Any:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else plain


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Round trips


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        [],
        {"a": 1, "b": [1.5, "x", None, True, False]},
        {1: "one", "1": "another", None: 2, (1, 2): 3, False: 4, 2.5: 5},
        {"$tensor": "looks like a tag"},
        {"$dict": [1]},
        {"a": {"$float": 1}},
        (1, (2, [3, (4,)]), ()),
        [math.inf, -math.inf, math.nan, 0.1, 5e-324, -0.0, 1e308],
        [2**200, -(2**63), 1 + 2j, complex(math.nan, -0.0), b"\x00\xffkey"],
        Counter({30: 1, 80: 2}),
        OrderedDict([("z", 1), ("a", OrderedDict())]),
        [torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda:1")],
        [np.arange(6, dtype=np.uint32).reshape(2, 3), np.array(2.5), np.zeros((0, 3)), np.array([True, False])],
        "é\n\u2028\0",
    ],
    ids=repr,
)
def test_nested_state_comes_back_as_it_was(state: Any, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", state)
    loaded = checkpoint.load(tmp_path / "c")
    assert same(loaded, state)


def test_numbers_of_numpy_come_back_as_pythons() -> None:
    tensors, values = checkpoint.flatten([np.float64(0.1), np.float32(0.5), np.int64(3), np.bool_(True)])
    assert same(checkpoint.unflatten(tensors, values), [0.1, 0.5, 3, True])


TENSORS: dict[str, Callable[[], Any]] = {
    **{
        str(dtype): lambda dtype=dtype: (
            torch.randn(3, 4, dtype=torch.complex128).to(dtype)
            if dtype.is_complex
            else (100 * torch.rand(3, 4)).to(dtype)
        )
        for dtype in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
            *(torch.complex64, torch.complex128),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint32, torch.uint64),
        )
    },
    "no dimensions": lambda: torch.tensor(1.5),
    "no dimensions, complex": lambda: torch.tensor(1.5 - 2j),
    "empty": lambda: torch.zeros(0, 3),
    "transposed": lambda: torch.randn(3, 4).t(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 5),
    "strided": lambda: torch.randn(10)[::3],
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negated view": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "special values": lambda: torch.tensor([math.nan, math.inf, -0.0, 1e-45]),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_comes_back_to_the_bit(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensor = TENSORS[kind]()
    checkpoint.save(tmp_path / "c", {"it": tensor, "again": [tensor]})
    loaded = checkpoint.load(tmp_path / "c")
    assert same(loaded["it"], tensor)
    assert same(loaded["again"][0], tensor)
    assert not loaded["it"].requires_grad


def test_tensors_that_share_memory_are_saved_and_come_back_apart(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    checkpoint.save(tmp_path / "c", {"base": base, "view": base.view(3, 4), "part": base[3:5], "same": base})
    loaded = checkpoint.load(tmp_path / "c")
    loaded["base"].zero_()
    assert torch.equal(loaded["view"], torch.arange(12.0).view(3, 4))
    assert torch.equal(loaded["part"], torch.tensor([3.0, 4.0]))
    assert torch.equal(loaded["same"], torch.arange(12.0))


def test_names_that_collide_keep_their_own_tensors() -> None:
    state = {"a/b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}, 1: torch.tensor(3.0), "1": torch.tensor(4.0)}
    assert same(checkpoint.unflatten(*checkpoint.flatten(state)), state)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"lr_lambdas": [lambda step: 1.0]}, "lr_lambdas.0 is a function"),
        ({"x": object()}, "x is a object"),
        ({"x": deque([1])}, "x is a deque"),
        (np.array(["text"]), "The state is a ndarray"),
        ({"x": torch.eye(3).to_sparse()}, "dense tensors; x is torch.sparse_coo"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_by_name(state: Any, words: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"old": 1})
    with pytest.raises(ValueError, match=words):
        checkpoint.save(tmp_path / "c", state)
    assert checkpoint.load(tmp_path / "c") == {"old": 1}
    assert len(files(tmp_path / "c")) == 2


# Optimisers and schedulers

OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3, line_search_fn="strong_wolfe"),
}


def advance(model: Any, optimiser: Any, steps: int, scheduler: Any = None) -> None:
    x = torch.linspace(-1, 1, 12).view(4, 3)

    def closure() -> Any:
        optimiser.zero_grad()
        loss = (model(x) ** 2).mean() + model(x).sin().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimiser.step(closure)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(1.0)
        elif scheduler is not None:
            scheduler.step()


def fresh(optimiser: str, dtype: Any = torch.float32) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).to(dtype)
    groups = model.parameters() if optimiser == "LBFGS" else [{"params": [p]} for p in model.parameters()]
    return model, OPTIMISERS[optimiser](groups)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    model, optimiser = fresh(name)
    advance(model, optimiser, 5)
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
    checkpoint.save(tmp_path / "c", state)
    loaded = checkpoint.load(tmp_path / "c")
    assert same(dict(loaded["optimiser"]), dict(optimiser.state_dict()))
    other, resumed = fresh(name)
    other.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimiser"])
    advance(model, optimiser, 5)
    advance(other, resumed, 5)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 6, 6]),
    "ConstantLR": lambda o: torch.optim.lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: torch.optim.lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 12),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "WarmRestarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=20),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.StepLR(o, 2)], [4]
    ),
    "ChainedScheduler": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.StepLR(o, 2)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.01),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_to_the_same_learning_rates(name: str, tmp_path: Path) -> None:
    model, optimiser = fresh("momentum")
    scheduler = SCHEDULERS[name](optimiser)
    advance(model, optimiser, 5, scheduler)
    state = [model.state_dict(), optimiser.state_dict(), scheduler.state_dict()]
    checkpoint.save(tmp_path / "c", state)
    loaded = checkpoint.load(tmp_path / "c")
    other, resumed = fresh("momentum")
    again = SCHEDULERS[name](resumed)
    other.load_state_dict(loaded[0])
    resumed.load_state_dict(loaded[1])
    again.load_state_dict(loaded[2])
    advance(model, optimiser, 5, scheduler)
    advance(other, resumed, 5, again)
    assert [group["lr"] for group in resumed.param_groups] == [group["lr"] for group in optimiser.param_groups]
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def test_bfloat16_models_and_random_states_round_trip(tmp_path: Path) -> None:
    model, optimiser = fresh("Adam", torch.bfloat16)
    torch.manual_seed(4)
    optimiser.zero_grad()
    model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    optimiser.step()
    state = {
        "optimiser": optimiser.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.RandomState(5).get_state(),
        "python": random.Random(6).getstate(),
    }
    checkpoint.save(tmp_path / "c", state)
    loaded = checkpoint.load(tmp_path / "c")
    assert same(loaded, state)
    restored = random.Random()
    restored.setstate(loaded["python"])
    assert restored.random() == random.Random(6).random()


# Files


def test_a_checkpoint_is_for_its_owner_only(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o755)
    old = os.umask(0)
    try:
        checkpoint.save(tmp_path / "c", {"key": torch.zeros(3)})
    finally:
        os.umask(old)
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "c").iterdir()] == [0o600, 0o600]


def test_nothing_is_pickled(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3), "y": [1]})
    index, tensors = files(tmp_path / "c")
    assert json.loads((tmp_path / "c" / index).read_text())["values"] == {"x": {"$tensor": "x"}, "y": [1]}
    header = (tmp_path / "c" / tensors).read_bytes()
    assert json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["x"]["dtype"] == "F32"
    source = Path(checkpoint.__file__).read_text() + Path(checkpoint.__file__).with_name("nesting.py").read_text()
    assert "import pickle" not in source
    assert "torch.load" not in source


def test_tensors_and_values_can_be_written_and_read_without_nesting(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "c", {"w": torch.arange(3)}, {"step": 4})
    tensors, values = checkpoint.read(tmp_path / "c")
    assert values == {"step": 4}
    assert torch.equal(tensors["w"], torch.arange(3))
    with pytest.raises(ValueError, match="plain JSON"):
        checkpoint.write(tmp_path / "c", {}, {"step": math.inf})
    with pytest.raises(ValueError, match="plain JSON"):
        checkpoint.write(tmp_path / "c", {}, {"step": torch.ones(1)})


def test_a_second_save_replaces_the_first_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for step in range(3):
        checkpoint.save(tmp_path / "c", {"step": step, "x": torch.full((4,), float(step))})
        assert len(files(tmp_path / "c")) == 2
    (tmp_path / "c" / "notes.txt").write_text("mine")
    checkpoint.save(tmp_path / "c", {"step": 3})
    assert checkpoint.load(tmp_path / "c") == {"step": 3}
    assert (tmp_path / "c" / "notes.txt").read_text() == "mine"


def test_loaded_tensors_outlive_the_file_they_came_from(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", torch.arange(100_000))
    loaded = checkpoint.load(tmp_path / "c")
    checkpoint.save(tmp_path / "c", torch.zeros(100_000))
    assert torch.equal(loaded, torch.arange(100_000))


@pytest.mark.parametrize("call", ["save_file", "sync", "_digest", "os.replace"])
def test_a_save_that_fails_leaves_the_old_checkpoint(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "c", {"step": 1, "x": torch.ones(3)})

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        where = "safetensors.torch.save_file" if call == "save_file" else f"hush.checkpoint.{call}"
        patched.setattr(where, fail)
        with pytest.raises(OSError, match="no space left"):
            checkpoint.save(tmp_path / "c", {"step": 2, "x": torch.zeros(3)})
    assert same(checkpoint.load(tmp_path / "c"), {"step": 1, "x": torch.ones(3)})
    checkpoint.save(tmp_path / "c", {"step": 3})
    assert checkpoint.load(tmp_path / "c") == {"step": 3}
    assert len(files(tmp_path / "c")) == 2


# Forks a child for every line it reads; the child saves one checkpoint over the other and says so, until it is killed.
SAVING = """
import os, sys
import torch
from hush import checkpoint
torch.set_num_threads(1)

for line in sys.stdin:
    folder, log = line.split()
    child = os.fork()
    if child == 0:
        saved = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for step in range(10**6):
            checkpoint.save(folder, {"step": step, "x": torch.full((step % 7 * 1000 + 1,), float(step))})
            os.write(saved, b"%d\\n" % step)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def test_killing_the_process_while_it_saves_leaves_the_last_or_the_next_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(3)
    seen = 0
    with subprocess.Popen([sys.executable, "-c", SAVING], stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for attempt in range(200 if FULL else 10):
            folder, log = tmp_path / str(attempt), tmp_path / f"{attempt}.log"
            process.stdin.write(f"{folder} {log}\n")
            child = int(process.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.15))
            os.kill(child, signal.SIGKILL)
            assert process.stdout.readline() == "gone\n"
            saved = [int(step) for step in log.read_text().split()] if log.exists() else []
            if not saved:
                continue
            seen += len(saved)
            loaded = checkpoint.load(folder)
            assert loaded["step"] in (saved[-1], saved[-1] + 1)
            assert torch.equal(loaded["x"], torch.full((loaded["step"] % 7 * 1000 + 1,), float(loaded["step"])))
            checkpoint.save(folder, {"step": -1})
            assert len(files(folder)) == 2
        process.stdin.close()
    assert seen > 5


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint in"):
        checkpoint.load(tmp_path)
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3)})
    index, name = (tmp_path / "c" / file for file in files(tmp_path / "c"))
    whole = name.read_bytes()
    name.write_bytes(whole[:-1] + b"\1")
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.load(tmp_path / "c")
    name.unlink()
    with pytest.raises(ValueError, match="lost its tensors"):
        checkpoint.load(tmp_path / "c")
    for text in ("{", "[]", '{"format": 99}'):
        index.write_text(text)
        with pytest.raises(ValueError, match="can read"):
            checkpoint.load(tmp_path / "c")


def test_another_plan_is_refused_with_the_numbers_that_differ() -> None:
    saved = {"batch": 256, "clip": {"kind": "flat", "norm": 1.0}, "steps": 100, "gone": 1}
    checkpoint.check_same(saved, json.loads(json.dumps(saved)))
    given = {"batch": 512, "clip": {"kind": "flat", "norm": 0.5}, "steps": 100, "new": 2}
    with pytest.raises(
        ValueError, match=r"another plan: batch is 256 there and 512 here; clip\.norm is 1\.0 there and 0\.5 here; gone"
    ):
        checkpoint.check_same(saved, given)
