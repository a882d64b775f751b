"""Where examples are, found by one exact probe: as sure as by two, for less, and asked of every example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import EXACT, SINGLE, Net, assert_same, cross_entropy, run, slower
from torch import Tensor, nn

from hush.gradients import Ghost, Loop, Memory, placing, probing
from hush.gradients.tape import Tape

N = 16


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(21)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), (6,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)
        ),
        (2, 5, 5),
    ),
    "recurrent": (
        lambda: Net(lambda s, x: s.o(s.a(x)[0].mean(1)), a=nn.LSTM(5, 7, batch_first=True), o=nn.Linear(7, 3)),
        (16, 5),
    ),
    "time first": (
        lambda: Net(lambda s, x: s.o(s.a(x.transpose(0, 1))[0][-1]), a=nn.GRU(5, 7), o=nn.Linear(7, 3)),
        (16, 5),
    ),
    "attention": (
        lambda: Net(
            lambda s, x: s.o(s.a(x).mean(1)),
            a=nn.TransformerEncoderLayer(8, 2, 9, 0.0, batch_first=True),
            o=nn.Linear(8, 3),
        ),
        (16, 8),
    ),
    "folded": (lambda: Net(lambda s, x: s.a(x.flatten(0, 1)).view(-1, 16, 3).mean(1), a=nn.Linear(4, 3)), (16, 4)),
}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_one_probe_tells_the_places_of_ordinary_layers(
    name: str, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any) -> Any:
        raise AssertionError("two more were needed")

    monkeypatch.setattr(probing, "_halves", asked)
    make, shape = MODELS[name]
    model, x, y = make(), torch.randn(N, *shape), torch.randint(0, 3, (N,))
    model, x = (model.double(), x.double()) if double else (model, x)
    found = run(model, cross_entropy(model), (x, y), Ghost())
    assert not slower(found.notes)
    assert_same(found, run(model, cross_entropy(model), (x, y), Loop()), EXACT if double else SINGLE)


def _pair(h: Tensor) -> Tensor:
    return torch.cat([h[:5], h[5:6] + 0.1 * h[11:12], h[6:]])


def _faintly(h: Tensor) -> Tensor:
    strength = 1e-5 if h.dtype == torch.float32 else 1e-13
    return torch.cat([h[:1], h[1:-1] + strength * h[1:-1].sum(0), h[-1:]])


def _neighbours(h: Tensor) -> Tensor:
    return torch.cat([h[:1], h[1:-1] + 1e-3 * h[2:], h[-1:]])


@pytest.mark.parametrize("meet", [_pair, _faintly, _neighbours])
@pytest.mark.parametrize("double", [True, False])
def test_examples_that_meet_inside_a_batch_are_computed_by_themselves(
    meet: Callable[[Tensor], Tensor], double: bool
) -> None:
    """Neither the first nor the last one, which are computed alone to compare; also where it is next to nothing."""
    model = Net(
        lambda s, x: s.o(torch.tanh(meet(s.a(x)) if len(x) > 1 else s.a(x))), a=nn.Linear(4, 6), o=nn.Linear(6, 3)
    )
    x, y = torch.randn(N, 4), torch.randint(0, 3, (N,))
    model, x = (model.double(), x.double()) if double else (model, x)
    found = run(model, cross_entropy(model), (x, y), Ghost())
    assert any("examples meet" in note for note in found.notes)


@pytest.mark.parametrize("n", [1, 2, 8, 9, 200, 513])
def test_a_thorough_look_gives_every_two_examples_other_weights_and_other_halves_once(n: int) -> None:
    values = torch.zeros(n)
    for probes in (
        [torch.exp2(classes.float()) for classes in probing._classes(n, 1)],
        [r != 0 for r in probing._halves(values, n, 1)],
    ):
        same = torch.ones(n, n, dtype=torch.bool)
        for r in probes:
            same &= r[:, None] == r[None, :]
        assert int(same.sum()) == n


def test_later_looks_tell_almost_every_two_examples_apart() -> None:
    """An eighth of the pairs share a weight in each; 4 looks leave one in 4,000."""
    same = torch.ones(200, 200, dtype=torch.bool)
    for look, turn in enumerate((2, 4, 8, 16), start=1):
        (r,) = probing._classes(200, turn)
        same &= r[:, None] == r[None, :]
        share = (int(same.sum()) - 200) / (200 * 199)
        assert share < 1.5 / 8**look + 1e-3


@pytest.mark.parametrize("n", [2, 16, 256])
def test_a_rule_that_is_wrong_for_one_example_is_found(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever example it is, and whatever its weight."""
    record = Tape.record
    wrong = 0

    def mistaken(tape: Tape, name: str, source: Any, stand_in: Any, output: Tensor, factor: Any) -> None:
        def off(layout: Any, grad: Tensor) -> Any:
            scale = torch.ones(len(grad), 1, dtype=grad.dtype)
            scale[wrong] = 1.5
            return factor(layout, grad * scale)

        record(tape, name, source, stand_in, output, off)

    monkeypatch.setattr(Tape, "record", mistaken)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(n, 4).double(), torch.randint(0, 3, (n,))
    reference = run(model, cross_entropy(model), (x, y), Loop())
    for wrong in range(0, n, max(n // 16, 1)):  # noqa: B007
        found = run(model, cross_entropy(model), (x, y), Ghost())
        assert len(slower(found.notes)) == 4
        assert_same(found, reference, EXACT)


def test_another_size_of_batch_is_no_reason_to_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that coincides with other dimensions (16 channels, 32 positions)."""
    looks = []

    def counted(*args: Any, **options: Any) -> Any:
        looks.append(args[3])
        return probing.looked_for(*args, **options)

    monkeypatch.setattr(placing, "looked_for", counted)
    model = nn.Sequential(nn.Conv1d(2, 16, 1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 3)).double()
    memory = Memory()
    sizes = (20, 32, 24, 17, 16, 32, 8, 16, 32, 16, 64, 4)
    for size in sizes:
        x, y = torch.randn(size, 2, 32).double(), torch.randint(0, 3, (size,))
        found = run(model, cross_entropy(model), (x, y), Ghost(), memory=memory)
        assert_same(found, run(model, cross_entropy(model), (x, y), Loop()), EXACT)
    assert looks == [sizes[0], sizes[1], sizes[3], sizes[7]]


def test_a_place_that_a_shape_does_not_allow_is_looked_for_anew() -> None:
    """A model that is given its examples first, then second: what was found at first doesn't hold."""
    model = Net(lambda s, x: s.a(x), a=nn.Linear(4, 3)).double()
    memory = Memory()
    for call in range(12):
        n, time_first = 16 + call % 3, call % 2 == 1
        x, y = torch.randn(n, 5, 4).double(), torch.randint(0, 3, (n,))

        def losses(x: Tensor, y: Tensor, time_first: bool = time_first) -> Tensor:
            out = model(x.transpose(0, 1)).mean(0) if time_first else model(x).mean(1)
            return F.cross_entropy(out, y, reduction="none")

        found = run(model, losses, (x, y), Ghost(), memory=memory)
        assert not slower(found.notes)
        assert_same(found, run(model, losses, (x, y), Loop()), EXACT)
