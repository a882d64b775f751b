"""On a GPU: captured programs agree with the loop, keep the bound in every precision, and repeat to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import SINGLE, Net, assert_same, trained
from torch import Tensor, nn

import hush
from hush.clipping import Flat
from hush.gradients import Auto, Engine, Ghost, Loop, Memory, clipped_sum
from hush.gradients.engines import ClippedSum, Weights
from hush.keys import Key
from hush.rounding import BFLOAT16, FLOAT32, TF32, rounding_margin

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),
]
WORDS, TOKENS, WIDTH = 50, 12, 16


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Products in float32; a test that wants TF32 says so."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )


def of_text(middle: nn.Module, width: int, take: Callable[[Any], Tensor]) -> nn.Module:
    return Net(
        lambda s, x: s.out(take(s.middle(s.words(x)))),
        words=nn.Embedding(WORDS, WIDTH),
        middle=middle,
        out=nn.Linear(width, 5),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
    return of_text(layer, WIDTH, lambda x: x.mean(1))


def tied() -> nn.Module:
    return Net(
        lambda s, x: F.linear(torch.tanh(s.middle(s.words(x))), s.words.weight)[:, -1],
        words=nn.Embedding(WORDS, WIDTH),
        middle=nn.Linear(WIDTH, WIDTH),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": convolutional,
    "LSTM": lambda: of_text(nn.LSTM(WIDTH, 16, bidirectional=True, batch_first=True), 32, lambda x: x[0].mean(1)),
    "GRU": lambda: of_text(nn.GRU(WIDTH, 16, num_layers=2, batch_first=True), 16, lambda x: x[0][:, -1]),
    "RNN": lambda: of_text(nn.RNN(WIDTH, 16, batch_first=True), 16, lambda x: x[0][:, -1]),
    "transformer": transformer,
    "tied": tied,
}


def batch_of(name: str, n: int) -> tuple[Tensor, Tensor]:
    coins = torch.Generator().manual_seed(n)
    x = (
        torch.randn(n, 3, 8, 8, generator=coins)
        if name == "convolutional"
        else torch.randint(WORDS, (n, TOKENS), generator=coins)
    )
    return x.cuda(), torch.randint(5, (n,), generator=coins).cuda()


def losses_of(model: nn.Module, half: bool = False) -> Callable[..., Tensor]:
    def losses(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return F.cross_entropy(model(x), y, reduction="none")

    return losses


def summed(
    model: nn.Module, losses: Any, batch: Any, engine: Engine, clip: float, memory: Memory | None = None
) -> ClippedSum:
    parameters = trained(model)
    groups = (tuple(range(len(parameters))),)
    weigh = Weights(Flat(clip).weigh, lambda: (clip,))
    return clipped_sum(parameters, losses, batch, groups=groups, weigh=weigh, engine=engine, memory=memory)


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("name", MODELS)
def test_programs_agree_with_the_loop(name: str, compile: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().cuda()
    losses, memory = losses_of(model), Memory(capacity=16)
    for n in (16, 11, 16, 37):
        batch = batch_of(name, n)
        found = summed(model, losses, batch, Auto(compile=compile), 0.5, memory)
        assert any(note.startswith("captured") for note in found.notes), found.notes
        assert ("compiled" in found.notes) == compile, found.notes
        reference = summed(model, losses, batch, Loop(), 0.5)
        assert_same(found, reference, 5 * SINGLE)  # cuDNN and cuBLAS choose other orders of summation by size


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16 autocast"])
@pytest.mark.parametrize("name", ["convolutional", "LSTM", "transformer", "tied"])
@pytest.mark.parametrize("engine", [Auto(compile=False), Ghost()], ids=["captured", "ghost"])
def test_a_record_moves_the_sum_by_at_most_the_threshold(name: str, precision: str, engine: Engine) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    compute = {"float32": FLOAT32, "tf32": TF32, "bfloat16 autocast": BFLOAT16}[precision]
    torch.manual_seed(0)
    model = MODELS[name]().cuda()
    n = 512
    x, y = batch_of(name, 1)
    x = x.repeat(n, *[1] * (x.dim() - 1))
    x = x + 1e-3 * torch.randn_like(x) if x.is_floating_point() else x
    y = y.repeat(n)  # all gradients point the same way, the worst there is
    losses, memory = losses_of(model, precision.startswith("bfloat16")), Memory(capacity=n)
    clip = 1e-3 * (1 - rounding_margin(n, compute))
    keep = torch.arange(n, device="cuda") != n // 3
    whole = [total.clone() for total in summed(model, losses, (x, y), engine, clip, memory).sums]
    less = summed(model, losses, (x[keep], y[keep]), engine, clip, memory).sums
    moved = torch.stack([(a.double() - b.double()).norm() for a, b in zip(whole, less, strict=True)]).norm()
    assert 0.9e-3 <= float(moved) <= 1e-3


def trainer(ledger: Path, seed: int = 1) -> tuple[nn.Module, hush.Private]:
    torch.manual_seed(0)
    model = convolutional().cuda()
    plan = hush.Plan(records=400, batch=64, steps=12, clip=1.0, noise_multiplier=1.0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = Auto(compile=False)
    return model, hush.Private(model, optimiser, plan, ledger=ledger, key=Key.from_seed(seed), engine=engine)


def trained_for(private: hush.Private, model: nn.Module, steps: int) -> None:
    data = batch_of("convolutional", 400)
    losses = losses_of(model)
    for x, y in private.batches(data, steps=steps):
        private.step(losses, x, y)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_run_can_be_repeated_and_resumed_to_the_bit(tmp_path: Path) -> None:
    model, private = trainer(tmp_path / "one")
    trained_for(private, model, 12)
    assert any(note.startswith("captured") for note in private.local.notes)
    again, other = trainer(tmp_path / "two")
    trained_for(other, again, 5)
    other.save(tmp_path / "checkpoint")
    fresh, _ = trainer(tmp_path / "unused")
    resumed = hush.Private.resume(
        tmp_path / "checkpoint",
        fresh,
        torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9),
        ledger=tmp_path / "two",
        engine=Auto(compile=False),
    )
    trained_for(resumed, fresh, 7)
    assert torch.equal(weights(fresh), weights(model))
    different, third = trainer(tmp_path / "three", seed=2)
    trained_for(third, different, 12)
    assert not torch.equal(weights(different), weights(model))


@pytest.mark.parametrize("name", ["convolutional", "LSTM", "transformer"])
def test_projected_norms_estimate_the_true_ones(name: str) -> None:
    """Of 200 projections an estimate has a standard deviation of 5%; six of them for 16 examples: 3e-8 by chance."""
    from hush.gradients import Projected
    from hush.gradients.projected import gaussian_directions

    torch.manual_seed(0)
    model = MODELS[name]().cuda()
    losses, batch = losses_of(model), batch_of(name, 16)
    exact = summed(model, losses, batch, Ghost(), 0.5)
    directions = gaussian_directions(Key.from_seed(3), 0, trained(model))
    found = summed(model, losses, batch, Projected(200, directions), 0.5)
    assert float((found.norms / exact.norms - 1).abs().max()) < 0.3
