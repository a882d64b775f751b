"""Networks nobody designed: random blocks, layouts and sharing, drawn from a seed. Engines must agree on all."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import EXACT, Net, assert_agree, cross_entropy, parameter, run
from torch import Tensor, nn

from hush.gradients import Ghost, Loop, Memory

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
COUNT = 400 if FULL else 40
D = 6  # features of every position

Block = tuple[Any, Callable[[Any, Tensor], Tensor]]


def _linear(rng: random.Random) -> Block:
    return nn.Linear(D, D, bias=rng.random() < 0.8), lambda m, x: m(x)


def _mlp(rng: random.Random) -> Block:
    inner = nn.Sequential(nn.Linear(D, 9), nn.ReLU(inplace=True), nn.Linear(9, D))
    return inner, lambda m, x: x + m(x)


def _norm(rng: random.Random) -> Block:
    kind = rng.choice([lambda: nn.LayerNorm(D), lambda: nn.RMSNorm(D), lambda: nn.GroupNorm(2, D)])()
    if isinstance(kind, nn.GroupNorm):
        return kind, lambda m, x: m(x.transpose(1, 2)).transpose(1, 2)
    return kind, lambda m, x: m(x)


def _convolution(rng: random.Random) -> Block:
    options = rng.choice([{}, {"groups": 2}, {"groups": 3, "dilation": 2}, {"dilation": 2}])
    layer = nn.Conv1d(D, D, 3, padding="same", **options)
    return layer, lambda m, x: torch.tanh(m(x.transpose(1, 2)).transpose(1, 2))


def _attention(rng: random.Random) -> Block:
    layer = nn.MultiheadAttention(D, rng.choice([1, 2, 3]), batch_first=rng.random() < 0.5)

    def forward(m: Any, x: Tensor) -> Tensor:
        y = x if m.batch_first else x.transpose(0, 1)
        y = m(y, y, y, need_weights=False)[0]
        return x + (y if m.batch_first else y.transpose(0, 1))

    return layer, forward


def _recurrent(rng: random.Random) -> Block:
    kind, both = rng.choice([nn.LSTM, nn.GRU, nn.RNN]), rng.random() < 0.4
    layer = kind(D, D // 2 if both else D, bidirectional=both, batch_first=True)
    return layer, lambda m, x: m(x)[0]


def _raw(rng: random.Random) -> Block:
    pieces = nn.ParameterList([parameter(D, D), parameter(D), parameter()])

    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.tanh(x @ (m[0] / (1 + m[0].norm())) + m[1]) * (1 + m[2])

    return pieces, forward


def _folded(rng: random.Random) -> Block:
    return nn.Linear(D, D), lambda m, x: m(x.reshape(-1, D)).view(x.shape)


def _sequence_first(rng: random.Random) -> Block:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = x.transpose(0, 1).reshape(-1, D)
        return m(y).view(x.shape[1], x.shape[0], D).transpose(0, 1)

    return nn.Linear(D, D), forward


def _token(rng: random.Random) -> Block:
    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.cat([m[0].expand(x.shape[0], -1, -1), x], 1)[:, : x.shape[1]]

    return nn.ParameterList([parameter(1, 1, D)]), forward


BLOCKS = [_linear, _mlp, _norm, _convolution, _attention, _recurrent, _raw, _folded, _sequence_first, _token]


def network(rng: random.Random) -> nn.Module:
    blocks = [rng.choice(BLOCKS)(rng) for _ in range(rng.randint(2, 4))]
    order = list(range(len(blocks)))
    if rng.random() < 0.5:
        order.append(rng.choice(order))  # a layer used again

    def forward(s: Any, x: Tensor) -> Tensor:
        for k in order:
            x = blocks[k][1](s.blocks[k], x)
        return s.head(x.mean(1))

    model = Net(forward, blocks=nn.ModuleList([module for module, _ in blocks]), head=nn.Linear(D, 3))
    matrices = [m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.shape == (D, D)]
    if len(matrices) > 1 and rng.random() < 0.5:
        matrices[0].weight = matrices[1].weight  # tied
    names = [name for name, _ in model.named_parameters()]
    for name in rng.sample(names, rng.randint(0, min(2, len(names) - 1))):
        model.get_parameter(name).requires_grad_(False)
    if rng.random() < 0.3:
        model.unused = nn.Linear(2, 2)
    return model


@pytest.mark.parametrize("seed", range(COUNT))
def test_engines_agree_on_a_random_network(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = network(rng)
    n, length = rng.randint(1, 6), rng.randint(1, 6)
    batch = (torch.randn(n, length, D), torch.randint(0, 3, (n,)))
    count = len([p for p in model.parameters() if p.requires_grad])
    options: dict[str, Any] = {"single": seed % 4 == 0}
    if rng.random() < 0.5:
        options["units"] = torch.unique(torch.randint(0, 3, (n,)), return_inverse=True)[1]
    if rng.random() < 0.5:
        options["microbatch"] = rng.randint(1, n)
    if rng.random() < 0.5:
        cut = rng.randint(0, count)
        options["groups"] = tuple(group for group in (tuple(range(cut)), tuple(range(cut, count))) if group)
    assert_agree(model, batch, **options)


@pytest.mark.parametrize("seed", range(1000, 1000 + COUNT // 2))
def test_what_is_remembered_of_a_random_network_stays_right(seed: int) -> None:
    """Calls with batches and sequences of all lengths, some with an example that isn't finite, share one memory."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model, memory = network(rng).double(), Memory()
    for _ in range(5):
        n, length = rng.randint(1, 6), rng.randint(1, 6)
        x, y = torch.randn(n, length, D, dtype=torch.float64), torch.randint(0, 3, (n,))
        if rng.random() < 0.2:
            x[rng.randrange(n)] = float("nan")
        found = run(model, cross_entropy(model), (x, y), Ghost(), memory=memory)
        reference = run(model, cross_entropy(model), (x, y), Loop())
        assert torch.equal(torch.isfinite(found.norms), torch.isfinite(reference.norms))
        apart = [float((a - b).norm()) for a, b in zip(found.sums, reference.sums, strict=True)]
        assert max(apart) <= EXACT * max(float(b.norm()) for b in reference.sums) + 1e-14
