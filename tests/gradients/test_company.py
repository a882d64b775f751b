"""A record's numbers are its own, whoever else is in the batch: to the last bit, since at a kink the last bit decides.

A library rounds a product of 3 rows otherwise than one of 4. With duplicates of a record whose pre-activation lies at
a ReLU's kink, one duplicate more then turns the gradients of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from agreement import Net, run
from torch import Tensor, nn

import hush
from hush.gradients import Auto, Engine, Ghost, Loop, Projected, Vmap
from hush.gradients.company import refuse_company
from hush.gradients.filling import AS_IT_IS, Filling, affordable, cut
from hush.gradients.projected import gaussian_directions
from hush.rounding import rounding_margin

ONE_SIZE = Filling(32, 32)
CLIP = 1.0


@dataclass(frozen=True)
class Kinked:
    """A model, and an example at whose pre-activation `few` duplicates and one more are rounded to different sides."""

    model: nn.Module
    example: Tensor
    few: int

    def losses(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out.squeeze(1)

    def duplicates(self, n: int) -> Tensor:
        return self.example.expand(n, *self.example.shape[1:]).contiguous()


def kinked(make: Callable[[], nn.Module], shape: tuple[int, ...], few: int) -> Kinked:
    """Skips where this machine rounds both alike: then there is nothing to be seen."""
    for seed in range(30):
        torch.manual_seed(seed)
        layer, x = make(), torch.randn(1, *shape)
        some, more = (x.expand(n, *shape).contiguous() for n in (few, few + 1))
        with torch.no_grad():
            before = [layer(batch)[0] for batch in (some, more)]
            for place in (before[0] != before[1]).nonzero().tolist()[:20]:
                bias, at = layer.bias[place[0]].clone(), tuple(place)
                for value in before:
                    layer.bias[place[0]] = bias - value[at]
                    if (layer(some)[0][at] > 0) != (layer(more)[0][at] > 0):
                        return Kinked(_behind(layer, x, at), x, few)
                layer.bias[place[0]] = bias
    return pytest.skip("here no size of a batch changes what a record is rounded to")


def _behind(layer: nn.Module, x: Tensor, at: tuple[int, ...]) -> nn.Module:
    """A network whose loss is one plus the pre-activation at this place, where that is positive, times a hundred."""
    with torch.no_grad():
        marked = torch.zeros_like(layer(x)[0])
        marked[at] = 100.0
        head = nn.Linear(marked.numel(), 1)
        head.weight.copy_(marked.reshape(1, -1))
        head.bias.fill_(1.0)
    return nn.Sequential(layer, nn.ReLU(), nn.Flatten(), head)


def moved(a: list[Tensor], b: list[Tensor]) -> float:
    squares = [(x.double() - y.double()).square().sum() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(squares).sum().sqrt())


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear, 1 and 2": (lambda: nn.Linear(64, 32), (64,), 1),
    "linear, 3 and 4": (lambda: nn.Linear(12, 20), (12,), 3),
    "conv1d": (lambda: nn.Conv1d(2, 6, 3), (2, 8), 1),
    "conv2d": (lambda: nn.Conv2d(3, 8, 3), (3, 6, 6), 1),
    "conv2d of windows of one, 15 and 16": (lambda: nn.Conv2d(16, 64, 1), (16, 32, 32), 15),
}


@pytest.mark.parametrize("engine", [Loop(), Ghost(), Vmap(), Vmap(chunk=20), Auto()], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_duplicates_at_a_kink_move_the_sum_by_one_threshold(layer: str, engine: Engine) -> None:
    case = kinked(*LAYERS[layer])
    clip = CLIP * (1 - rounding_margin(32))

    def sums(n: int, filling: Filling) -> list[Tensor]:
        return run(case.model, case.losses, (case.duplicates(n),), engine, clip=clip, filling=filling).sums

    assert moved(sums(case.few, ONE_SIZE), sums(case.few + 1, ONE_SIZE)) <= CLIP
    if not isinstance(engine, Loop | Vmap):
        assert moved(sums(case.few, AS_IT_IS), sums(case.few + 1, AS_IT_IS)) > 2 * CLIP  # what filling up is for


@pytest.mark.parametrize("layer", LAYERS)
def test_projected_duplicates_at_a_kink_add_the_same_each(layer: str) -> None:
    """A record's share is clipped by an estimate of its norm, so it isn't one threshold, but it is the record's own."""
    case = kinked(*LAYERS[layer])
    parameters = list(case.model.parameters())
    engine = Projected(8, gaussian_directions(hush.Key.from_seed(0), 0, parameters))

    def sums(n: int, filling: Filling) -> list[Tensor]:
        return run(case.model, case.losses, (case.duplicates(n),), engine, filling=filling).sums

    def share(n: int) -> float:
        return moved(sums(n, ONE_SIZE), [torch.zeros_like(p) for p in parameters]) / n

    each = share(case.few + 1)
    assert share(case.few) == pytest.approx(each, rel=1e-5)
    assert moved(sums(case.few, ONE_SIZE), sums(case.few + 1, ONE_SIZE)) == pytest.approx(each, rel=1e-4)
    assert moved(sums(case.few, AS_IT_IS), sums(case.few + 1, AS_IT_IS)) > 2 * each or case.few == 1


def test_users_at_a_kink_move_the_sum_by_one_threshold() -> None:
    case = kinked(*LAYERS["linear, 3 and 4"])
    clip = CLIP * (1 - rounding_margin(32))
    found = [
        run(case.model, case.losses, (case.duplicates(n),), Ghost(), clip=clip, units=units, filling=ONE_SIZE).sums
        for n, units in ((3, torch.tensor([0, 1, 1])), (4, torch.tensor([0, 1, 1, 2])))
    ]
    assert moved(*found) <= CLIP


@pytest.mark.parametrize(
    ("secure", "layer", "size", "microbatch"),
    [
        (True, "linear, 3 and 4", 4, None),
        (False, "conv2d of windows of one, 15 and 16", 20, None),
        (False, "linear, 3 and 4", 43, 8),
    ],
)
def test_a_run_on_duplicates_at_a_kink_moves_by_one_threshold(
    secure: bool, layer: str, size: int, microbatch: int | None
) -> None:
    """What is released, with the same coins and noise: by default from batches of 20 on, and secure always."""
    case = kinked(*LAYERS[layer])
    if secure:
        pytest.importorskip("cryptography")
    plan = hush.Plan(records=size, batch=size, steps=1, clip=CLIP, noise_multiplier=1.0)
    start = [p.detach().clone() for p in case.model.parameters()]
    released = []
    before = 0 if microbatch is None else size // microbatch * microbatch  # whole parts come first
    for n in (before + case.few, before + case.few + 1):
        for p, value in zip(case.model.parameters(), start, strict=True):
            p.data.copy_(value)
        optimiser = torch.optim.SGD(case.model.parameters(), lr=0.0)
        settings = {"key": hush.Key.from_seed(1), "secure": secure, "microbatch": microbatch}
        private = hush.Private(case.model, optimiser, plan, **settings)
        for (x,) in private.batches((case.duplicates(n),)):
            private.step(case.losses, x)
        released.append([p.grad.double() * plan.normaliser for p in case.model.parameters() if p.grad is not None])
    assert moved(*released) <= CLIP + 1e-5  # the noise is added in float32


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(13, 7), nn.Sigmoid(), nn.Linear(7, 1)), (13,)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.GroupNorm(1, 5), nn.SiLU(), nn.Flatten(), nn.Linear(45, 1)),
        (3, 5, 5),
    ),
    "recurrent": (
        lambda: Net(lambda s, x: s.o(s.a(x)[0][:, -1]), a=nn.LSTM(5, 7, batch_first=True), o=nn.Linear(7, 1)),
        (3, 5),
    ),
    "attention": (
        lambda: Net(
            lambda s, x: s.o(s.a(x).mean(1)),
            a=nn.TransformerEncoderLayer(6, 2, 9, 0.0, batch_first=True),
            o=nn.Linear(6, 1),
        ),
        (5, 6),
    ),
    "narrow": (lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 1)), (7,)),
    "narrow and frozen": (
        lambda: nn.Sequential(nn.Linear(11, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 1)),
        (11,),
    ),
    "heads of 5": (
        lambda: Net(
            lambda s, x: s.o(s.a(x).mean(1)),
            a=nn.TransformerEncoderLayer(10, 2, 9, 0.0, batch_first=True),
            o=nn.Linear(10, 1),
        ),
        (5, 10),
    ),
    "heads of 5, with their weights": (
        lambda: Net(
            lambda s, x: s.o(s.a(x, x, x)[0].mean(1)),
            a=nn.MultiheadAttention(10, 2, batch_first=True),
            o=nn.Linear(10, 1),
        ),
        (17, 10),
    ),
    "attention of 33 numbers": (
        lambda: Net(
            lambda s, x: s.o(F.scaled_dot_product_attention(s.q(x), s.k(x), x).mean(1)),
            q=nn.Linear(33, 33),
            k=nn.Linear(33, 33),
            o=nn.Linear(33, 1),
        ),
        (5, 33),
    ),
}


CASES = [(name, engine) for name in MODELS for engine in (Ghost(), Vmap(), Vmap(chunk=9))]


@pytest.mark.parametrize(("name", "engine"), CASES, ids=str)
def test_a_records_loss_and_norm_are_the_same_to_the_bit_in_any_company(name: str, engine: Engine) -> None:
    torch.manual_seed(5)
    make, shape = MODELS[name]
    model = make()
    record, others = torch.randn(1, *shape), torch.randn(70, *shape)

    def losses(x: Tensor) -> Tensor:
        out: Tensor = model(x)
        return out.squeeze(1)

    found = set()
    for n, place in ((0, 0), (1, 1), (2, 0), (14, 14), (15, 3), (31, 31), (32, 32), (33, 5), (70, 64), (70, 69)):
        batch = torch.cat([others[:place], record, others[place:n]])
        result = run(model, losses, (batch,), engine, microbatch=32, filling=ONE_SIZE)
        found.add((float(result.losses[place]), float(result.norms[place])))
    assert len(found) == 1


def test_filling_up_changes_nothing_but_rounding() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    x, users = torch.randn(21, 5).double(), torch.arange(21) // 4
    for engine in (Ghost(), Vmap()):
        for units in (None, users):
            plain, full = (
                run(model, lambda x: model(x).squeeze(1), (x,), engine, units=units, filling=filling)
                for filling in (AS_IT_IS, ONE_SIZE)
            )
            assert moved(plain.sums, full.sums) <= 1e-12
            assert plain.norms.shape == full.norms.shape
            assert plain.losses.shape == full.losses.shape
            assert torch.allclose(plain.norms, full.norms, rtol=1e-12)


def test_a_spoiled_example_is_left_out_of_a_filled_batch_even_where_it_comes_first() -> None:
    torch.manual_seed(7)
    model = nn.Linear(3, 1)
    x = torch.randn(5, 3)
    x[0] = float("nan")
    found = run(model, lambda x: model(x).squeeze(1), (x,), Ghost(), filling=ONE_SIZE)
    expected = run(model, lambda x: model(x).squeeze(1), (x[1:],), Ghost(), filling=ONE_SIZE)
    assert moved(found.sums, expected.sums) == 0.0


@pytest.mark.parametrize("batch", [1.0, 2.0, 5.0, 16.0, 20.0, 33.0, 100.0, 256.0, 5000.0])
def test_what_is_affordable_costs_a_tenth_at_most(batch: float) -> None:
    filling = affordable(batch, None)
    sizes = torch.poisson(torch.full((4000,), batch), generator=torch.Generator().manual_seed(1)).int().tolist()
    sizes = [n for n in sizes if n]
    assert sum(filling.size(n) for n in sizes) <= 1.11 * sum(sizes)
    assert all(filling.size(n) >= n for n in sizes)


def test_pieces_of_one_size_are_the_microbatch_or_a_public_number() -> None:
    assert cut(256, None, alike=True) == (64, Filling(64, 64))
    assert cut(2, None, alike=True) == (32, Filling(32, 32))
    assert cut(256, 100, alike=True) == (96, Filling(96, 96))
    assert [cut(256, most, alike=True)[0] for most in (33, 31, 15, 7, 1)] == [32, 16, 8, 1, 1]
    assert cut(256, 8, alike=False) == (8, Filling(8, 8))
    assert cut(256, 100, alike=False) == (100, Filling(4, 16))
    assert cut(256, None, alike=False) == (None, Filling(32, 16))


@pytest.mark.parametrize("kind", ["a huge record", "dropout by Python"])
def test_random_losses_stop_no_run_by_chance(kind: str) -> None:
    """One record's loss hides how random the others' are, and dropout may leave it the same mask twice."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 5)
    x, y = torch.randn(70, 16), torch.arange(70) % 5
    if kind == "a huge record":
        x[0] = 1e6 * torch.eye(16)[3]

    def losses(x: Tensor, y: Tensor) -> Tensor:
        if kind == "a huge record":
            x = F.dropout(x, 0.5)
        elif random.random() < 0.1:
            x = x.flip(1)
        return F.cross_entropy(layer(x), y, reduction="none")

    for number in range(60):  # one in six and one in fourteen were refused
        torch.manual_seed(number)
        random.seed(number)
        refuse_company(losses, (x, y), losses(x, y))
