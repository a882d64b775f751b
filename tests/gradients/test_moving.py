"""Examples are followed from call to call; where they can't be, their places are looked for again, at every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import EXACT, Net, assert_same, cross_entropy, parameter, run
from torch import Tensor, nn

from hush.gradients import Auto, Ghost, Loop, Memory, placing, probing
from hush.gradients.axes import Axis
from hush.gradients.company import refuse_company
from hush.gradients.tape import Tape

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import models as benchmarked

sys.path.pop(0)

SORTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # rows put where an index says, in as many ways
    "tensor": lambda h, order: h[order],
    "array": lambda h, order: h[order.numpy()],
    "list": lambda h, order: h[order.tolist()],
    "index_select": lambda h, order: h.index_select(0, order),
    "gather": lambda h, order: h.gather(0, order.view(-1, *[1] * (h.dim() - 1)).expand_as(h)),
    "take_along_dim": lambda h, order: h.take_along_dim(order.view(-1, *[1] * (h.dim() - 1)), 0),
    "embedding": lambda h, order: F.embedding(order, h.reshape(len(h), -1)).reshape(h.shape),
    "stack": lambda h, order: torch.stack([h[i] for i in order.tolist()]),
    "cat of split": lambda h, order: torch.cat([h.split(1)[i] for i in order]),
    "cat of slices": lambda h, order: torch.cat([h[i : i + 1] for i in order.tolist()]),
    "stack of unbind": lambda h, order: torch.stack([h.unbind(0)[i] for i in order]),
    "index_copy": lambda h, order: torch.zeros_like(h).index_copy(0, order.argsort(), h),
    "index_add": lambda h, order: torch.zeros_like(h).index_add(0, order.argsort(), h),
    "scatter": lambda h, order: torch.zeros_like(h).scatter(
        0, order.argsort().view(-1, *[1] * (h.dim() - 1)).expand_as(h), h
    ),
    "index_put": lambda h, order: torch.zeros_like(h).index_put((order.argsort(),), h),
    "setitem": lambda h, order: _written(h, order.argsort()),
    "setitem of an array": lambda h, order: _written(h, order.argsort().numpy()),
    "matrix": lambda h, order: torch.eye(len(h), dtype=h.dtype)[order] @ h,
    "einsum": lambda h, order: torch.einsum("ij,j...->i...", torch.eye(len(h), dtype=h.dtype)[order], h),
    "tensordot": lambda h, order: torch.tensordot(torch.eye(len(h), dtype=h.dtype)[order], h, 1),
    "one-hot": lambda h, order: F.one_hot(order, len(h)).to(h) @ h,
    "roll": lambda h, order: h.roll(len(h) - int(order[0]), 0),
    "flip": lambda h, order: h.flip(0) if int(order[0]) else h + 0,
    "linear": lambda h, order: F.linear(h.T, torch.eye(len(h), dtype=h.dtype)[order]).T,
    "convolution": lambda h, order: F.conv1d(h[None].reshape(1, len(h), -1), _kernel(h, order)).reshape(h.shape),
    "convolution of channels": lambda h, order: F.conv1d(h.reshape(len(h), -1), _kernel(h, order)).reshape(h.shape),
}


def _written(h: Tensor, places: Any) -> Tensor:
    out = torch.zeros_like(h)
    out[places] = h
    return out


def _kernel(h: Tensor, order: Tensor) -> Tensor:
    return torch.eye(len(h), dtype=h.dtype)[order][:, :, None]


def sorting(way: str) -> nn.Module:
    def forward(s: Any, x: Tensor) -> Tensor:
        order = torch.from_numpy(np.argsort(x[:, 0].numpy(), kind="stable"))  # not seen to be data
        if way in ("roll", "flip"):  # orders that these can make
            shift = int(order[0])
            order = torch.arange(len(x)).roll(-shift) if way == "roll" else torch.arange(len(x))
            order = order.flip(0) if way == "flip" and shift else order
        return SORTED[way](s.b(SORTED[way](torch.tanh(s.a(x)), order)), order.argsort())

    return Net(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).double()


def examples(n: int, seed: int, in_order: bool = False) -> tuple[Tensor, Tensor]:
    coins = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=coins, dtype=torch.float64)
    return (x[x[:, 0].argsort()] if in_order else x), torch.randint(0, 3, (n,), generator=coins)


@pytest.mark.parametrize("way", SORTED)
def test_batches_that_were_in_order_do_not_hide_a_model_that_sorts_its_own(way: str) -> None:
    model, memory = sorting(way), Memory()
    for call, in_order in enumerate((True, True, False, True, False)):  # looked at anyway: the 1st, 2nd and 4th
        batch = examples(8, call, in_order)
        found = run(model, cross_entropy(model), batch, Ghost(), memory=memory)
        assert_same(found, run(model, cross_entropy(model), batch, Loop()), EXACT)


@pytest.mark.parametrize("way", ["tensor", "index_select", "scatter", "one-hot"])
def test_a_model_that_sorts_its_batch_is_not_captured(way: str) -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(stable=True)
        return s.b(SORTED[way](torch.tanh(s.a(x)), order))[order.argsort()]

    model, memory = Net(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).double(), Memory(capacity=8)
    losses = cross_entropy(model)
    for call, in_order in enumerate((True, True, False, True, False)):
        batch = examples(8, call, in_order)
        found = run(model, losses, batch, Auto(compile=False), memory=memory)
        assert any("not captured" in note for note in found.notes)
        assert_same(found, run(model, losses, batch, Loop()), EXACT)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_an_order_from_code_that_is_not_seen_is_not_captured() -> None:
    @torch.jit.script
    def ranks(x: Tensor) -> Tensor:
        return torch.argsort(torch.argsort(x[:, 0]))

    model = Net(lambda s, x: s.b(torch.tanh(s.a(x))[ranks(x)]), a=nn.Linear(4, 6), b=nn.Linear(6, 3)).double()
    x, y = examples(8, 0, in_order=True)
    with Tape(list(model.parameters()), (x, y), 8) as tape:
        values = cross_entropy(model)(x, y)
    tape.end(values)
    assert not tape.settled


@pytest.mark.parametrize("index", [lambda n, x: torch.arange(n), lambda n, x: np.arange(n)], ids=["tensor", "array"])
def test_each_rows_own_entry_moves_nothing_and_can_be_captured(index: Any) -> None:
    model, memory = Net(lambda s, x: s.a(x), a=nn.Linear(4, 3)).double(), Memory(capacity=8)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return -model(x).log_softmax(1)[index(len(x), x), y]

    for call in range(3):
        batch = examples(8, call)
        found = run(model, losses, batch, Auto(compile=False), memory=memory)
        assert found.notes == ("ghost",)
        assert_same(found, run(model, losses, batch, Loop()), EXACT)


def _time_first_if_small(s: Any, x: Tensor) -> Tensor:
    n, small = len(x), len(x) < 7
    x = x.unflatten(1, (2, 2))
    flat = x.transpose(0, 1).reshape(2 * n, 2) if small else x.reshape(n * 2, 2)
    y = s.b(torch.tanh(s.a(flat)))
    return y.view(2, n, 3).sum(0) if small else y.view(n, 2, 3).sum(1)


def _time_first_by_numbers(s: Any, x: Tensor) -> Tensor:
    """The same calls in both cases, with other numbers."""
    n, order = len(x), (1, 0, 2) if len(x) < 7 else (0, 1, 2)
    y = s.b(torch.tanh(s.a(x.unflatten(1, (2, 2)).permute(*order).reshape(2 * n, 2))))
    return y.view(*((2, n, 3) if len(x) < 7 else (n, 2, 3))).permute(*order).sum(1)


def _halves(s: Any, x: Tensor) -> Tensor:
    n, h = len(x), torch.tanh(s.a(x[:, :2]))
    if n % 2:
        return s.b(h)
    return s.b(h.view(2, n // 2, 6).transpose(0, 1).reshape(n, 6)).view(n // 2, 2, 3).transpose(0, 1).reshape(n, 3)


def _fours(s: Any, x: Tensor) -> Tensor:
    """No two ways: batches of four are as they were, of eight interleaved."""
    n, four, h = len(x), min(len(x), 4), torch.tanh(s.a(x[:, :2]))
    return s.b(h.view(-1, four, 6).transpose(0, 1).reshape(n, 6)).view(four, -1, 3).transpose(0, 1).reshape(n, 3)


@pytest.mark.parametrize(
    ("forward", "sizes"),
    [
        (_time_first_if_small, (8, 9, 6, 8, 5)),
        (_time_first_by_numbers, (8, 9, 6, 8, 5)),
        (_halves, (7, 9, 8, 7, 6)),
        (_fours, (4, 4, 8, 4, 12)),
    ],
)
def test_code_that_puts_rows_elsewhere_in_batches_of_another_size_is_looked_at_again(forward: Any, sizes: Any) -> None:
    model, memory = Net(forward, a=nn.Linear(2, 6), b=nn.Linear(6, 3)).double(), Memory()
    for call, n in enumerate(sizes):
        batch = examples(n, call)
        found = run(model, cross_entropy(model), batch, Ghost(), memory=memory)
        assert_same(found, run(model, cross_entropy(model), batch, Loop()), EXACT)


def _rotary(s: Any, x: Tensor) -> Tensor:
    """A transformer by hand: words, a class token, rotary positions, einsum, masks of padding and of later words."""
    n, t = x.shape
    h = torch.cat([s.cls.expand(n, 1, 8), s.e(x)], 1)
    padding = torch.cat([torch.ones(n, 1, dtype=torch.bool), x > 0], 1)
    angles = torch.einsum("t,f->tf", torch.arange(t + 1.0), 10.0 ** -torch.arange(2.0))
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    q, k, v = s.qkv(s.n(h)).view(n, t + 1, 3, 2, 4).unbind(2)

    def turned(z: Tensor) -> Tensor:
        one, two = z[..., :2], z[..., 2:]
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    scores = torch.einsum("bihd,bjhd->bhij", turned(q), turned(k)) / 2.0
    later = torch.ones(t + 1, t + 1, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later | ~padding[:, None, None, :], -1e9)
    h = h + torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
    h = h + s.down(F.gelu(s.up(h)))
    mask = padding.unsqueeze(-1).to(h)
    pooled = (h * mask).sum(1) / mask.sum(1).clamp_min(1)
    return s.o(torch.cat([h[:, 0], pooled, h[torch.arange(n), padding.sum(1) - 1]], -1))


def _packed(s: Any, x: Tensor) -> Tensor:
    lengths = torch.full((len(x),), x.shape[1])
    packed = nn.utils.rnn.pack_padded_sequence(s.e(x), lengths, batch_first=True)
    return s.o(nn.utils.rnn.pad_packed_sequence(s.r(packed)[0], batch_first=True)[0].mean(1))


def _by_time(s: Any, x: Tensor) -> Tensor:
    h, out = x.new_zeros(len(x), 6, dtype=torch.float32), x.new_zeros(len(x), x.shape[1], 6, dtype=torch.float32)
    for t, x_t in enumerate(s.e(x).transpose(0, 1)):
        h = torch.tanh(s.i(x_t) + s.h(h))
        out[:, t] = h
    lengths = (x > 0).sum(1)
    inside = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    return s.o((out[:, : inside.shape[1]] * inside[..., None]).amax(1))


def _windows(s: Any, x: Tensor) -> Tensor:
    """Shifted windows, as in Swin."""
    n = len(x)
    x = s.p(x).permute(0, 2, 3, 1).roll((-1, -1), (1, 2))
    w = x.view(n, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 8)
    w = w + s.a(w, w, w, need_weights=False)[0]
    x = w.view(-1, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(n, 4, 4, 8).roll((1, 1), (1, 2))
    return s.o(s.n(x).mean((1, 2)))


def _siamese(s: Any, x: Tensor) -> Tensor:
    one, two = torch.cat([s.a(x), s.a(x.flip(1))]).relu().chunk(2)
    both = s.b(torch.cat([one, two]))
    return s.o(torch.cat([both[: len(x)], both[len(x) :], F.normalize(one * two, dim=-1)], 1))


def _functional(s: Any, x: Tensor) -> Tensor:
    h = torch.addmm(s.c, x, s.w) * s.g
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + 1e-5).sqrt()
    h = torch.where(h > 0, h, 0.1 * h) @ s.w.T
    best = h.topk(3, dim=-1)[0]
    return best + torch.log1p(h.abs()).sum(-1, keepdim=True)


WORDS, IMAGES, NUMBERS = (
    lambda n: torch.randint(1, 11, (n, 8)),
    lambda n: torch.randn(n, 3, 8, 8),
    lambda n: torch.randn(n, 16),
)
ORDINARY: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mnist": (benchmarked.mnist_cnn, lambda n: torch.randn(n, 1, 28, 28)),
    "wide resnet": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), benchmarked.WideBlock(16, 32, 2), _Pooled()), IMAGES),
    "text": (
        lambda: Net(
            lambda s, x: s.o(s.r(s.e(x))[0].mean(1)),
            e=nn.Embedding(11, 8),
            r=nn.LSTM(8, 6, batch_first=True, bidirectional=True, num_layers=2, dropout=0.1),
            o=nn.Linear(12, 3),
        ),
        WORDS,
    ),
    "gpt": (
        lambda: Net(
            lambda s, x: s.o((s.e(x) + s.p(torch.arange(8).expand_as(x)) + s.b(s.e(x))).mean(1)),
            e=nn.Embedding(11, 16),
            p=nn.Embedding(8, 16),
            b=benchmarked.TransformerBlock(16, 2),
            o=nn.Linear(16, 3),
        ),
        WORDS,
    ),
    "encoder": (
        lambda: Net(
            lambda s, x: s.o(s.t(s.e(x), src_key_padding_mask=x > 8)[:, 0]),
            e=nn.Embedding(11, 8),
            t=nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            o=nn.Linear(8, 3),
        ),
        WORDS,
    ),
    "positions first": (
        lambda: Net(
            lambda s, x: s.o(s.t(s.e(x.T)).mean(0)),
            e=nn.Embedding(11, 8),
            t=nn.TransformerEncoderLayer(8, 2, 16),
            o=nn.Linear(8, 3),
        ),
        WORDS,
    ),
    "by hand": (
        lambda: Net(
            _rotary,
            e=nn.Embedding(11, 8),
            cls=parameter(1, 1, 8),
            n=nn.LayerNorm(8),
            qkv=nn.Linear(8, 24),
            up=nn.Linear(8, 16),
            down=nn.Linear(16, 8),
            o=nn.Linear(24, 3),
        ),
        WORDS,
    ),
    "by time": (
        lambda: Net(_by_time, e=nn.Embedding(11, 8), i=nn.Linear(8, 6), h=nn.Linear(6, 6), o=nn.Linear(6, 3)),
        WORDS,
    ),
    "packed": (
        lambda: Net(_packed, e=nn.Embedding(11, 8), r=nn.GRU(8, 6, batch_first=True), o=nn.Linear(6, 3)),
        WORDS,
    ),
    "windows": (
        lambda: Net(
            _windows,
            p=nn.Conv2d(3, 8, 2, 2),
            a=nn.MultiheadAttention(8, 2, batch_first=True),
            n=nn.LayerNorm(8),
            o=nn.Linear(8, 3),
        ),
        IMAGES,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.Dropout2d(0.1),
            nn.AvgPool2d(2),
            nn.PixelShuffle(2),
            nn.Upsample(scale_factor=0.5),
            nn.ConvTranspose2d(2, 4, 2),
            nn.InstanceNorm2d(4, affine=True),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        IMAGES,
    ),
    "siamese": (
        lambda: Net(_siamese, a=nn.Linear(16, 8), b=nn.Linear(8, 8), o=nn.Linear(24, 3)),
        NUMBERS,
    ),
    "functional": (lambda: Net(_functional, c=parameter(8), w=parameter(16, 8), g=parameter(8)), NUMBERS),
}


class _Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_models_are_looked_at_now_and_then_whatever_the_sizes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of batches that are those of other dimensions, too (8 words, 16 features)."""
    calls: list[int] = []
    looks: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        looks.append(len(calls))
        return probing.looked_for(*args, **options)

    monkeypatch.setattr(placing, "looked_for", counted)
    torch.manual_seed(0)
    make, inputs = ORDINARY[kind]
    model, memory = make(), Memory()
    for n in (8, 9, 4, 16, 8, 2, 12):
        calls.append(n)
        batch = inputs(n), torch.randint(0, 3, (n,))
        run(model, cross_entropy(model), batch, Ghost(), memory=memory)
    assert looks == [1, 2, 4]


@pytest.mark.parametrize("kind", [kind for kind in ORDINARY if kind != "packed"])
def test_ordinary_models_can_be_captured(kind: str) -> None:
    torch.manual_seed(0)
    make, inputs = ORDINARY[kind]
    model, x, y = make(), inputs(8), torch.randint(0, 3, (8,))
    with Tape(list(model.parameters()), (x, y), 8) as tape:
        values = cross_entropy(model)(x, y)
    tape.end(values)
    assert tape.settled


N = 4
MOVES: dict[str, Callable[[Tensor], Any]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(2, 0, 1),
    "permuted by a tuple": lambda x: torch.permute(x, (1, 2, 0)),
    "moved": lambda x: x.movedim(0, -1),
    "moved two": lambda x: torch.movedim(x, (0, 1), (2, 0)),
    "mT": lambda x: x.transpose(0, 1).mT,
    "T": lambda x: x[:, 0].T,
    "folded": lambda x: x.reshape(-1, 6),
    "folded inside": lambda x: x.transpose(0, 1).reshape(-1, 6),
    "folded and back": lambda x: x.transpose(0, 1).reshape(-1, 6).view(3, N, 6),
    "folded in three": lambda x: x.unflatten(2, (2, 3)).permute(1, 0, 2, 3).reshape(-1, 3),
    "unfolded in three": lambda x: x.unflatten(2, (2, 3)).permute(1, 0, 2, 3).reshape(-1, 3).view(3, -1, 2, 3),
    "parted": lambda x: x.view(2, 2, 3, 6),
    "parted and folded": lambda x: x.view(2, -1, 6),
    "as a vector": lambda x: x.flatten(),
    "squeezed": lambda x: x[:, :1].squeeze(1).unsqueeze(0),
    "repeated": lambda x: x.repeat(2, 1, 1),
    "repeated before": lambda x: x.repeat(5, 1, 1, 1),
    "stretched": lambda x: x.repeat_interleave(2, 0),
    "stretched elsewhere": lambda x: x.repeat_interleave(2, dim=1),
    "expanded": lambda x: x[:, None].expand(-1, 5, -1, -1),
    "cat": lambda x: torch.cat([x, x + 0]),
    "cat elsewhere": lambda x: torch.cat([x, x], -1),
    "cat of folded": lambda x: torch.cat([x.reshape(-1, 6), x.reshape(-1, 6)]),
    "stack": lambda x: torch.stack([x, x], 1),
    "stack before": lambda x: torch.stack([x, x]),
    "split": lambda x: x.repeat(3, 1, 1).split(N)[1],
    "chunk across": lambda x: x.repeat_interleave(2, 0).chunk(2)[1],
    "split in the middle": lambda x: x.split([1, 3])[1],
    "split of three": lambda x: x.split(2, 2)[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "narrow there": lambda x: x.repeat(3, 1, 1).narrow(0, N, 2 * N),
    "narrow askew": lambda x: x.repeat(3, 1, 1).narrow(0, 1, N),
    "selected": lambda x: x.select(1, 1),
    "unbound": lambda x: x.transpose(0, 1).unbind(0)[1],
    "unbound there": lambda x: x.unbind(0)[1],
    "index": lambda x: x[:, 1],
    "index of a row": lambda x: x[1],
    "slices": lambda x: x[..., 1:3, None],
    "slice there": lambda x: x[1:],
    "slice of rows": lambda x: x.repeat(2, 1, 1)[N:],
    "slice with steps": lambda x: x.repeat(2, 1, 1)[::2],
    "list": lambda x: x[:, [0, 2]],
    "arrays apart": lambda x: x[:, [0, 2], None, [1, 4]],
    "array and number apart": lambda x: x.transpose(0, 1)[1, :, [1, 4]],
    "rows in order": lambda x: x[torch.arange(N)],
    "rows in order, entries": lambda x: x[torch.arange(N), [0, 1, 2, 0]],
    "rows in order, columns": lambda x: x[torch.arange(N)[:, None], torch.tensor([[0, 2]])],
    "rows in order, columns before": lambda x: x[torch.arange(N), torch.tensor([[0], [2]])],
    "rows out of order": lambda x: x[[1, 0, 2, 3]],
    "rows twice": lambda x: x[[0, 0, 2, 3]],
    "rows of a mask": lambda x: x[torch.tensor([True, False, True, True])],
    "select": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "select in order": lambda x: x.index_select(0, torch.arange(N)),
    "select out of order": lambda x: x.index_select(0, torch.tensor([2, 0, 1, 3])),
    "gathered": lambda x: x.gather(2, torch.zeros(N, 3, 2, dtype=torch.long)),
    "flipped": lambda x: x.flip(1),
    "flipped there": lambda x: x.flip(0, 1),
    "rolled": lambda x: x.roll(1, 2),
    "rolled as a vector": lambda x: x.roll(1),
    "padded": lambda x: F.pad(x, (1, 1), mode="replicate"),
    "shifted": lambda x: F.pad(x, (0, 0, 0, 0, 1, -1)),
    "sorted": lambda x: x.sort(1)[0],
    "sorted there": lambda x: (-x).sort(0)[0].neg(),
    "summed": lambda x: x.mean(1),
    "summed, two": lambda x: x.mean((1, -1)),
    "summed before": lambda x: x.transpose(0, 1).mean(0),
    "summed and kept": lambda x: x.mean(2, keepdim=True),
    "largest": lambda x: x.transpose(0, 1).max(0)[0],
    "norm": lambda x: x.transpose(0, 2)[:1].norm(2, 0),
    "broadcast": lambda x: x[:, 0] + torch.zeros(5, 1, 6),
    "against itself": lambda x: torch.maximum(x[:, 0, :1], x[:, 0, 0]),
    "product": lambda x: x @ torch.full((6, 2), 1 / 6),
    "product of rows": lambda x: torch.full((2, 3), 1 / 3) @ x,
    "product from the left": lambda x: torch.full((2, 6), 1 / 6) @ x[:, 0].T,
    "product with a vector": lambda x: x.transpose(0, 1) @ torch.full((6,), 1 / 6),
    "permutation": lambda x: torch.eye(N)[[1, 0, 2, 3]] @ x[:, 0],
    "einsum": lambda x: torch.einsum("btf,fg->gbt", x, torch.full((6, 2), 1 / 6)),
    "einsum with dots": lambda x: torch.einsum("...f,fg->g...", x, torch.full((6, 2), 1 / 6)),
    "einsum of a permutation": lambda x: torch.einsum("ab,btf->atf", torch.eye(N)[[1, 0, 2, 3]], x),
    "tensordot": lambda x: torch.tensordot(x, torch.full((6, 2), 1 / 6), 1),
    "linear": lambda x: F.linear(x, torch.full((2, 6), 1 / 6)),
    "linear there": lambda x: F.linear(x[:, 0].T, torch.eye(N)[[1, 0, 2, 3]]),
    "pooled": lambda x: F.max_pool1d(x, 2),
    "windows": lambda x: x.unfold(2, 2, 1),
    "written": lambda x: _filled(torch.zeros(N, 3, 6), (slice(None), slice(0, 3)), x),
    "written elsewhere": lambda x: _filled(torch.zeros(3, N, 6), slice(None), x.transpose(0, 1)),
    "written by rows": lambda x: _filled(torch.zeros(N, 3, 6), [1, 0, 2, 3], x),
    "distance": lambda x: torch.cdist(x[:, :1, :1], torch.zeros(2, 1)),
    "of another order": lambda x: torch.stack([x[0], x[1], x[2], x[3]]),
    "a call that isn't known": lambda x: x.rot90(1, (1, 2)),
}
LOST = {
    "parted", "parted and folded", "cat of folded", "chunk across", "split in the middle", "narrow askew",
    "unbound there", "index of a row", "slice there", "slice with steps", "rows out of order", "rows twice",
    "rows of a mask", "select out of order", "flipped there", "rolled as a vector", "shifted", "sorted there",
    "against itself", "permutation", "einsum of a permutation", "linear there", "written by rows", "of another order",
    "a call that isn't known",
}  # fmt: skip


def _filled(buffer: Tensor, index: Any, value: Tensor) -> Tensor:
    buffer[index] = value
    return buffer


@pytest.mark.parametrize("move", MOVES)
def test_examples_are_where_they_are_said_to_be(move: str) -> None:
    """Every entry of example i is i, so that one sees where it went."""
    x = torch.arange(float(N)).view(N, 1, 1).expand(N, 3, 6).clone()
    with Tape([], (x,), N) as tape:
        out = MOVES[move](x)
    assert tape.moved == (move in LOST)
    if not tape.moved:
        axis = tape._whereabouts.of(out)
        assert axis is not None
        label = torch.arange(float(N)).repeat_interleave(axis.inner).repeat(axis.outer)
        expected = label.view([-1 if d == axis.dim else 1 for d in range(out.dim())]).expand_as(out)
        torch.testing.assert_close(out, expected)


def test_examples_that_come_in_by_another_view_are_lost() -> None:
    x = torch.randn(4, 6)
    with Tape([], (x,), 4) as tape:
        buffer = x.new_zeros(4, 6)
        other = buffer.view(2, 2, 6)
        buffer.copy_(x)
        assert not tape.moved
        other.transpose(0, 1).reshape(4, 6)
    assert tape.moved


def test_losses_from_code_that_is_not_seen_may_be_anywhere() -> None:
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return torch.from_numpy(x.detach().numpy()[::-1].copy())

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0].flip(0)

    x = torch.randn(4, requires_grad=True)
    with Tape([], (x,), 4) as tape:
        values = Turned.apply(x * 2)
    tape.end(values)
    assert tape.moved
    assert tape._whereabouts._known  # the batch itself is known
    assert tape._whereabouts.of(x) == Axis(0)


class TestCompany:
    def test_a_record_that_other_sizes_round_in_another_way_stops_nothing(self) -> None:
        """As products of several threads do; here it is made up, so that it happens on every machine."""
        torch.manual_seed(0)
        layer = nn.Linear(8, 1)
        x, y = torch.randn(5, 8), torch.randn(5)
        x[0] *= 1e8

        def losses(x: Tensor, y: Tensor) -> Tensor:
            rounding = torch.where(x.abs().amax(1) > 1e6, 0.02 * len(x), 0.0)
            out: Tensor = rounding + (layer(x / x.norm(dim=1, keepdim=True)).squeeze(1) - y) ** 2
            return out

        for first in range(5):
            given = x.roll(first, 0), y.roll(first, 0)
            refuse_company(losses, given, losses(*given))

    def test_a_record_whose_numbers_all_but_cancel_stops_nothing(self) -> None:
        """Its loss alone, by another algorithm, differs by rounding."""
        torch.manual_seed(0)
        layer = nn.Linear(512, 1)
        x, y = torch.randn(40, 512), torch.randn(40)
        x[0] *= 1e8
        x[0, -1] -= ((x[0].double() @ layer.weight[0].double()) / layer.weight[0, -1]).float().detach()

        def losses(x: Tensor, y: Tensor) -> Tensor:
            out: Tensor = (layer(x).squeeze(1) - y) ** 2
            return out

        for n in (40, 5):
            refuse_company(losses, (x[:n], y[:n]), losses(x[:n], y[:n]))

    @pytest.mark.parametrize("n", [2, 5, 16, 40])
    @pytest.mark.parametrize(
        "losses",
        [
            lambda x: (x - x.mean(0)).square().sum(1),
            lambda x: x.square().sum(1) / len(x),
            lambda x: x.square().sum(1) * (1 + torch.arange(len(x)).flip(0).eq(0)),
            lambda x: x.square().sum(1) * (1 + torch.arange(len(x)).eq(0)),
            lambda x: x.square().sum(1) + x.sum(),
        ],
        ids=["mean", "size", "last", "first", "sum"],
    )
    def test_losses_that_depend_on_others_or_on_how_many_are_refused(self, losses: Any, n: int) -> None:
        x = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
        with pytest.raises(ValueError, match="depends on other examples"):
            refuse_company(losses, (x,), losses(x))
