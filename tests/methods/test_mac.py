"""DP-MAC steps: replayed on neighbours, without noise as plain training, with plan, ledger and checkpoint."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import hush
from hush import noise
from hush.accounting import Gaussian, compose
from hush.keys import Key
from hush.ledger import Ledger
from hush.methods.mac import (
    LBFGS,
    MAC,
    Activation,
    Analytic,
    BinaryCrossEntropy,
    ConjugateGradient,
    CrossEntropy,
    Expansion,
    Histogram,
    Limits,
    SquaredError,
    ZSteps,
)
from hush.methods.mac.coordinates import coordinates, penalised
from hush.methods.mac.quadratic import Quadratic, semidefinite
from hush.methods.sums import unpack
from hush.plan import Plan
from hush.sampling import Poisson, Uniform
from hush.training import Private

RECORDS = 60
SILENT = 1e-12
FEW = ZSteps(5, 0.01)


def make(seed: int = 0, hidden: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh() if hidden is None else hidden, nn.Linear(8, 3))


def data(records: int = RECORDS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(records, 5, generator=generator), torch.randint(0, 3, (records,), generator=generator)


def start(
    clip: Expansion, output: Any = None, model: nn.Sequential | None = None, lr: float = 0.1, **options: Any
) -> tuple[MAC, Private]:
    numbers: dict[str, Any] = {"records": RECORDS, "batch": 30, "steps": 4, "noise_multiplier": 1.5}
    given = {name: options.pop(name) for name in list(options) if name in {*numbers, "sampling", "beside"}}
    ledger = options.pop("ledger", None)
    model = make() if model is None else model
    plan = Plan(**(numbers | given), clip=clip)
    private = Private(model, torch.optim.SGD(model.parameters(), lr=lr), plan, key=Key.from_seed(5), ledger=ledger)
    return MAC(
        private, CrossEntropy() if output is None else output, z_steps=options.pop("z_steps", FEW), **options
    ), private


def train(mac: MAC, records: Any, **options: Any) -> None:
    for x, y in mac.private.batches(records, **options):
        mac.step(x, y)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Sums:
    """Stands in for the noise and keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Tensor], list[float]]] = []

    def add(self, key: Key, step: int, sums: Any, stds: Any, purpose: str = "noise") -> list[Tensor]:
        self.seen.append(([s.double().clone() for s in sums], list(stds)))
        return [torch.zeros_like(s) for s in sums]


# The bound, replayed: same coins, neighbouring data

BALLS = {"inputs": 1.0, "coordinates": 1.0, "targets": 1.0}
EXPANSIONS = [
    Expansion(0.1),
    Expansion((0.05, 0.2), curvature=0.1),
    Expansion(0.1, curvature=(0.1, 0.3), value=0.5, coordinates=0.5),
    Expansion(Analytic(), **BALLS),
    Expansion(Analytic(), curvature=Analytic(), value=Analytic(), **BALLS),
    Expansion(0.1, curvature=Analytic(), **BALLS),
]


def said(clip: Expansion) -> str:
    return str(clip).partition(": ")[2]


OUTPUTS = [CrossEntropy(), BinaryCrossEntropy(), SquaredError()]


def replayed(clip: Expansion, output: Any, sampling: Any, pair: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = []
    for records in pair:
        kept = Sums()
        monkeypatch.setattr(noise, "add", kept.add)
        mac, _ = start(clip, output, sampling=sampling, lr=0.0)
        train(mac, records)
        found.append(kept)
    return [
        math.sqrt(sum((a - b).square().sum().item() / s**2 for a, b, s in zip(one, two, stds, strict=True))) * 1.5
        for (one, stds), (two, _) in zip(found[0].seen, found[1].seen, strict=True)
    ]


@pytest.mark.parametrize("clip", EXPANSIONS, ids=said)
@pytest.mark.parametrize("output", OUTPUTS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("sampling", [Poisson(), Uniform()], ids=lambda s: type(s).__name__)
def test_replayed_on_a_neighbour_a_step_moves_by_at_most_the_sensitivity(
    clip: Expansion, output: Any, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = data()
    y = labels if not isinstance(output, SquaredError) else 10 * F.one_hot(labels, 3).float()
    largest = []
    for size in (1.0, 1e4):
        one, other = x.clone(), x.clone()
        one[-1] *= size
        other[-1] *= -size
        turned = y.clone()
        turned[-1] = y[labels != labels[-1]][0]
        pair = ((one, y), (one[:-1], y[:-1])) if isinstance(sampling, Poisson) else ((one, y), (other, turned))
        largest.append(max(replayed(clip, output, sampling, pair, monkeypatch)))
    assert max(largest) <= 1.0
    assert max(largest) > 0.05  # the record was drawn, and the bound isn't met by doing nothing


def test_clipped_parts_use_their_bound_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    x[-1] *= 100
    pair = ((x, y), (x[:-1], y[:-1]))
    tiny = Expansion(1e-4, curvature=1e-4)
    assert 0.999 < max(replayed(tiny, BinaryCrossEntropy(), Poisson(), pair, monkeypatch)) <= 1.0


@pytest.mark.parametrize("clip", EXPANSIONS, ids=said)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_that_is_not_finite_contributes_nothing(
    clip: Expansion, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data()
    x[-1, 0] = bad
    pair = ((x, y), (x[:-1], y[:-1]))
    assert max(replayed(clip, CrossEntropy(), Poisson(), pair, monkeypatch)) < 1e-9


@pytest.mark.parametrize("output", [CrossEntropy(), BinaryCrossEntropy()], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("clip", [EXPANSIONS[2], EXPANSIONS[4]], ids=said)
@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_label_that_is_no_class_stops_nothing_and_contributes_nothing(
    output: Any, clip: Expansion, label: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data()
    y[-1] = label
    pair = ((x, y), (x[:-1], y[:-1]))
    assert max(replayed(clip, output, Poisson(), pair, monkeypatch)) == 0.0


@pytest.mark.parametrize("hidden", [nn.ReLU(), nn.Tanh(), nn.SiLU()], ids=lambda m: type(m).__name__)
def test_a_record_is_computed_to_the_same_bits_in_any_company_and_place(hidden: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(5, 9), hidden, nn.Linear(9, 3))
    mac, _ = start(Expansion(0.1), model=model, z_steps=ZSteps(30, 0.01))
    x, y = data(300)
    together, apart = mac.records(x, y), [mac.records(x[i : i + 1], y[i : i + 1]) for i in (0, 4, 255, 256, 299)]
    for i, alone in zip((0, 4, 255, 256, 299), apart, strict=True):
        for layer, own in zip(together, alone, strict=True):
            assert torch.equal(layer.z[i], own.z[0])
            assert torch.equal(layer.slope[i], own.slope[0])


def test_what_comes_before_the_layers_is_computed_in_double_precision() -> None:
    """In float32 a record's numbers would depend on its place by 1e-7, and a batch of them would add that up."""
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.Tanh()).requires_grad_(False)
    mac, _ = start(Expansion(0.1), model=nn.Sequential(frozen, nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3)))
    x, _ = data()
    exact = nn.Sequential(*(type(m)() if not isinstance(m, nn.Linear) else nn.Linear(5, 7) for m in frozen)).double()
    exact.load_state_dict(frozen.state_dict())
    assert torch.allclose(mac.network.start(x), exact(x.double()), rtol=0, atol=1e-14)

    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, torch.ones(2, 5))  # insists on float32

    mac, _ = start(Expansion(0.1), model=nn.Sequential(Single(), nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 3)))
    assert mac.network.start(x).dtype == torch.float64


@pytest.mark.parametrize("records", [1, 7, 255, 256])
@pytest.mark.parametrize("where", ["first", "last"])
def test_one_record_more_does_not_push_the_others_over_a_kink(records: int, where: str) -> None:
    """Copies of a record all of whose units lie at ReLU's kink, to the last bit: rounding decides what they add."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 3))
    weight, bias = model[0].weight.detach().double(), model[0].bias.detach().double()
    mac, _ = start(Expansion(0.3), model=model)
    at_kink = torch.randn(64, dtype=torch.float64)
    for _ in range(4):
        at_kink = at_kink - torch.linalg.pinv(weight) @ (weight @ at_kink + bias)
    others, far = at_kink.repeat(records, 1), 100 * torch.randn(1, 64, dtype=torch.float64)
    one_more = torch.cat([far, others] if where == "first" else [others, far])
    limits = mac._bounds()
    sums = [mac._sums(mac.records(x, torch.zeros(len(x), dtype=torch.long)), limits)[0] for x in (others, one_more)]
    moved = math.sqrt(sum((a - b).square().sum().item() for a, b in zip(*sums, strict=True)))
    assert moved <= 1.0


def test_what_mixes_records_before_the_layers_is_refused() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    mac, _ = start(Expansion(0.1), model=nn.Sequential(Centred(), *make()))
    with pytest.raises(ValueError, match="depends on other examples"):
        train(mac, data())
    train(start(Expansion(0.1), model=nn.Sequential(nn.LayerNorm(5, elementwise_affine=False), *make()))[0], data())


def test_a_step_in_a_fork_of_the_process_is_refused() -> None:
    mac, private = start(Expansion(0.1))
    batch = next(iter(private.batches(data())))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mac.step(*batch)
            os.write(writing, b"stepped")
        except ValueError:
            os.write(writing, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"refused"


# The joint release


def test_a_step_is_one_release_of_all_parts_and_one_event() -> None:
    ledger = Ledger(None)
    mac, private = start(EXPANSIONS[2], ledger=ledger)
    train(mac, data())
    assert private.spent().mechanism == Gaussian(1.5).poisson(0.5) * 4 == private.plan.mechanism
    parts = len(mac.thresholds)
    assert parts == 6
    shares = [1.5 * math.sqrt(parts)] * parts  # every part's noise over its own sensitivity
    assert Gaussian.joint(*shares).noise_multiplier == pytest.approx(1.5)


def test_every_part_carries_the_noise_of_its_bound() -> None:
    # Chi-squared: a variance over n entries lies within 5 (2/n)^(1/2) of its mean but for a chance of about 1e-6.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 30))
    mac, _ = start(Expansion((0.2, 0.7)), model=model, lr=0.0, records=1000, batch=10, steps=1)
    train(mac, (torch.zeros(0, 50), torch.zeros(0, dtype=torch.long)))  # an empty batch is a step
    for layer, bound in zip(mac.layers, (0.2, 0.7), strict=True):
        std = 1.5 * math.sqrt(2) * bound / 10
        entries = torch.cat([p.grad.flatten() for p in layer.linear.parameters() if p.grad is not None]) / std
        assert entries.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / len(entries)))


def test_nothing_but_the_parts_meets_the_noise_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Sums()
    monkeypatch.setattr(noise, "add", kept.add)
    mac, private = start(EXPANSIONS[2], lr=0.1)
    before = weights(private.model).clone()
    train(mac, data())
    shapes = [(8, 6), (8, 21), (1,), (3, 9), (3, 45), (1,)]
    assert [[tuple(p.shape) for p in parts] for parts, _ in kept.seen] == [shapes] * 4
    assert torch.equal(weights(private.model), before)  # the stand-in returned zeros, and weights depend on it alone


# Without noise


def test_one_layer_to_first_order_is_plain_training() -> None:
    x, y = data()
    torch.manual_seed(0)
    ours, theirs = nn.Sequential(nn.Linear(5, 3)).double(), nn.Sequential(nn.Linear(5, 3)).double()
    theirs.load_state_dict(ours.state_dict())
    plan = Plan(records=RECORDS, batch=20, steps=10, noise_multiplier=SILENT, sampling=Uniform(), clip=Expansion(1e6))
    private = Private(ours, torch.optim.Adam(ours.parameters(), lr=0.01), plan, key=Key.from_seed(3))
    train(MAC(private, CrossEntropy()), (x.double(), y))
    plain = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for step in range(10):
        chosen = torch.from_numpy(plan.draw(Key.from_seed(3), step, RECORDS).indices)
        plain.zero_grad()
        F.cross_entropy(theirs(x[chosen].double()), y[chosen]).backward()
        plain.step()
    assert torch.allclose(weights(ours), weights(theirs), atol=1e-5)


@pytest.mark.parametrize("solver", [ConjugateGradient(200, 1e-9), LBFGS(200, 1e-9)], ids=lambda s: type(s).__name__)
def test_one_second_order_step_of_a_linear_layer_is_least_squares(solver: Any) -> None:
    x, _ = data()
    y = torch.randn(RECORDS, 2, generator=torch.Generator().manual_seed(2))
    model = nn.Sequential(nn.Linear(5, 2)).double()
    clip = Expansion(1e6, curvature=1e6)
    mac, _ = start(clip, SquaredError(), model, lr=1.0, solver=solver, batch=RECORDS, steps=1, noise_multiplier=1e-14)
    train(mac, (x, y))
    best = torch.linalg.lstsq(torch.cat([x, torch.ones(RECORDS, 1)], dim=1).double(), y.double()).solution
    found = torch.cat([model[0].weight, model[0].bias[:, None]], dim=1).T
    assert torch.allclose(found, best, atol=2e-5)


def test_the_expansion_is_the_objectives_taylor_polynomial() -> None:
    # G and H as released, against the objective itself: the error of second order is of third order in the step
    mac, _ = start(Expansion(1e6, curvature=1e6, value=1e6), SquaredError(), make(hidden=nn.Softplus()))
    x, _ = data()
    records = mac.records(x, torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(2)))
    generator = torch.Generator().manual_seed(3)
    for layer, own in zip(mac.layers, records, strict=True):
        ones = torch.ones(RECORDS, dtype=torch.float64)
        size = own.z.shape[1]
        quadratic = Quadratic(own.total("gradient", ones), unpack(own.total("curvature", ones), size))
        errors = []
        for step in (1e-2, 1e-3):
            d = step * torch.randn(layer.width, size, dtype=torch.float64, generator=generator.manual_seed(3))
            moved = layer.objective.value(own.z @ (layer.weights() + d).T, own.targets).sum()
            errors.append(abs(float(moved - own.total("value", ones) - quadratic.value(d))))
        assert errors[1] < errors[0] * 2e-3 + 1e-10
        assert torch.allclose(quadratic.slope(torch.zeros_like(d)), quadratic.gradient)


def test_the_noisy_value_of_every_layer_can_be_released() -> None:
    mac, _ = start(Expansion(1.0, value=1e3), lr=0.0, noise_multiplier=SILENT, batch=RECORDS, steps=1)
    x, y = data()
    expected = [float(layer.value.mean()) for layer in mac.records(x, y)]
    train(mac, (x, y))
    assert mac.value == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_without_z_steps_hidden_layers_have_nothing_to_learn() -> None:
    mac, _ = start(Expansion(1.0), z_steps=ZSteps(0), noise_multiplier=SILENT)
    before = mac.layers[0].weights()
    train(mac, data())
    assert torch.allclose(mac.layers[0].weights(), before, atol=1e-6)


# Z steps


@pytest.mark.parametrize("radius", [None, 0.7])
def test_z_steps_lower_the_penalised_objective_inside_their_ball(radius: float | None) -> None:
    mac, _ = start(Expansion(0.1))
    x, labels = data()
    x, y = x.double(), CrossEntropy().prepared(labels, 3)
    energies = []
    for count in (0, 5, 50):
        zs = coordinates(mac.layers, x, y, ZSteps(count, 0.02), radius)
        assert radius is None or max(float(z.norm(dim=1).max()) for z in zs) <= radius * (1 + 1e-12)
        energies.append(float(penalised(mac.layers, [layer.weights() for layer in mac.layers], x, zs, y, 1.0).sum()))
    assert energies[0] > energies[1] > energies[2]


# The perturbed quadratic


def test_a_noisy_curvature_becomes_the_nearest_semidefinite_one() -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(5, 6, 6, dtype=torch.float64, generator=generator)
    matrices = matrices + matrices.mT
    nearest = semidefinite(matrices)
    assert torch.linalg.eigvalsh(nearest).min() > -1e-12
    distance = (nearest - matrices).flatten(1).norm(dim=1)
    for _ in range(200):  # no other semidefinite matrix is closer
        root = torch.randn(5, 6, 6, dtype=torch.float64, generator=generator) * 0.3
        other = nearest + root @ root.mT - 0.05 * nearest
        assert torch.all((other - matrices).flatten(1).norm(dim=1) >= distance - 1e-12)
    assert torch.allclose(semidefinite(nearest), nearest, atol=1e-12)


@pytest.mark.parametrize("solver", [ConjugateGradient(100, 0.05), LBFGS(300, 0.05)], ids=lambda s: type(s).__name__)
def test_solvers_find_the_damped_minimum(solver: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 7, 3, dtype=torch.float64, generator=generator)  # singular: rank 3 of 7
    quadratic = Quadratic(torch.randn(4, 7, dtype=torch.float64, generator=generator), root @ root.mT)
    damped = root @ root.mT + 0.05 * torch.eye(7, dtype=torch.float64)
    best = -torch.linalg.solve(damped, quadratic.gradient[:, :, None])[:, :, 0]
    assert torch.allclose(solver(quadratic), best, rtol=1e-4, atol=1e-4)


def test_by_default_the_damping_is_what_noise_alone_makes_of_eigenvalues() -> None:
    torch.manual_seed(0)
    mac, _ = start(Expansion(0.1, curvature=0.2), model=nn.Sequential(nn.Linear(80, 3)), lr=0.0, batch=10, steps=1)
    edges: list[float] = []
    largest: list[float] = []

    def solver(quadratic: Quadratic) -> Tensor:
        assert quadratic.curvature is not None
        edges.append(quadratic.edge)
        largest.append(float(torch.linalg.eigvalsh(quadratic.curvature).max()))
        return torch.zeros_like(quadratic.gradient)

    mac.solver = solver
    train(mac, (torch.zeros(0, 80), torch.zeros(0, dtype=torch.long)))
    assert largest[0] == pytest.approx(edges[0], rel=0.15)


def test_several_w_steps_walk_down_the_same_quadratic() -> None:
    found = []
    for count in (1, 30):
        model = nn.Sequential(nn.Linear(5, 2)).double()
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        clip = Expansion(1e6, curvature=1e6)
        mac, _ = start(clip, SquaredError(), model, w_steps=count, batch=RECORDS, steps=1, noise_multiplier=1e-14)
        x, _ = data()
        y = x[:, :2] * 2
        train(mac, (x, y))
        found.append(F.mse_loss(model(x.double()), y.double()).item())
    assert found[1] < 0.2 * found[0]


# Thresholds from a histogram


def test_learned_thresholds_are_charged_kept_and_used() -> None:
    histogram = Histogram(records=RECORDS, batch=30, noise_multiplier=0.1, quantile=0.5)
    mac, private = start(Expansion(1.0), beside=histogram.mechanism, steps=6)
    train(mac, data(), steps=3)
    norms = torch.stack([layer.norms("gradient") for layer in mac.records(*data())], dim=1)
    found = mac.learn(histogram, data())
    assert mac.thresholds == found == private.threshold
    share = (norms <= norms.new_tensor(found)).double().mean(dim=0)
    assert share.tolist() == pytest.approx([0.5, 0.5], abs=0.3)
    train(mac, data())
    assert (
        private.spent().mechanism
        == private.plan.mechanism
        == compose([*private.plan.charges(0, 6), (histogram.mechanism, 1)])
    )
    assert private.local.limits == found


def test_a_histogram_is_released_as_often_as_the_plan_counts_it() -> None:
    histogram = Histogram(records=RECORDS, batch=30, noise_multiplier=1.0)
    mac, private = start(Expansion(1.0), beside=histogram.mechanism, steps=6)
    mac.learn(histogram, data())
    with pytest.raises(ValueError, match="doesn't count"):
        mac.learn(histogram, data())
    assert private.spent().mechanism == histogram.mechanism
    twice, _ = start(Expansion(1.0), beside=histogram.mechanism * 2, steps=6)
    twice.learn(histogram, data())
    twice.learn(histogram, data())


@pytest.mark.parametrize("stage", ["draw", "counts"])
def test_a_histogram_is_charged_before_a_record_is_read(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise KeyboardInterrupt

    histogram = Histogram(records=RECORDS, batch=30, noise_multiplier=1.0)
    mac, private = start(Expansion(1.0), beside=histogram.mechanism, steps=6)
    monkeypatch.setattr(Histogram, stage, broken)
    with pytest.raises(KeyboardInterrupt):
        mac.learn(histogram, data())
    assert private.spent().mechanism == histogram.mechanism


def test_thresholds_are_learned_from_an_empty_sample_too() -> None:
    histogram = Histogram(records=RECORDS, batch=30, noise_multiplier=1.0)
    mac, _ = start(Expansion(1.0), beside=histogram.mechanism, steps=6)
    x, y = data()
    assert all(threshold in histogram.edges for threshold in mac.learn(histogram, (x[:0], y[:0])))


@pytest.mark.parametrize("sampling", [Poisson(), Uniform()], ids=lambda s: type(s).__name__)
def test_one_record_moves_all_histograms_by_their_sensitivity(sampling: Any) -> None:
    histogram = Histogram(records=9, batch=9, noise_multiplier=1.0, sampling=sampling)
    norms = torch.rand(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 10
    other = norms[:-1]
    if isinstance(sampling, Uniform):
        other = torch.cat([other, torch.tensor([[math.nan, 1e9, 1e-9, 0.0]], dtype=torch.float64)])
    moved = (histogram.counts(norms) - histogram.counts(other)).norm().item()
    assert moved == pytest.approx(histogram.sensitivity(4))
    assert histogram.counts(norms).sum(dim=1).tolist() == [9.0] * 4


def test_a_histogram_finds_quantiles_through_its_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    norms = torch.exp(torch.randn(2000, 3, generator=generator, dtype=torch.float64) + torch.tensor([0.0, 2.0, -5.0]))
    for quantile in (0.2, 0.5, 0.9):
        histogram = Histogram(records=2000, batch=2000, noise_multiplier=1.0, quantile=quantile)
        found = norms.new_tensor(histogram.quantiles(Key.from_seed(0), norms))
        assert torch.allclose((norms <= found).double().mean(dim=0), norms.new_tensor(quantile), atol=0.1)


# Checkpoints


def checkpointed(folder: Path, stop: bool) -> tuple[Tensor, Any, Any]:
    folder.mkdir()
    histogram = Histogram(records=RECORDS, batch=30, noise_multiplier=1.0)
    plan = Plan(
        records=RECORDS, batch=30, steps=8, noise_multiplier=1.5, beside=histogram.mechanism, clip=Expansion(0.1, 0.1)
    )
    model = make()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    private = Private(model, optimiser, plan, key=Key.from_seed(5), ledger=folder / "ledger")
    mac = MAC(private, CrossEntropy(), z_steps=FEW)
    train(mac, data(), steps=3)
    mac.learn(histogram, data())
    train(mac, data(), steps=2)
    private.save(folder / "checkpoint")
    if stop:
        model = make(seed=9)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        private = Private.resume(folder / "checkpoint", model, optimiser)
        mac = MAC(private, CrossEntropy(), z_steps=FEW)
    train(mac, data())
    return weights(model), mac.thresholds, private.spent().mechanism


def test_a_resumed_run_ends_at_the_same_bits(tmp_path: Path) -> None:
    one, two = (checkpointed(tmp_path / name, stop) for name, stop in (("whole", False), ("stopped", True)))
    assert torch.equal(one[0], two[0])
    assert one[1:] == two[1:]


def test_after_a_crash_what_was_drawn_stays_charged_and_the_key_is_fresh(tmp_path: Path) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=100, noise_multiplier=1.5, clip=Expansion(0.1))
    model = make()
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, ledger=tmp_path / "ledger")
    train(MAC(private, CrossEntropy(), z_steps=FEW), data(), steps=3)
    private.save(tmp_path / "checkpoint")
    train(MAC(private, CrossEntropy(), z_steps=FEW), data(), steps=2)  # lost
    again = Private.resume(tmp_path / "checkpoint", model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert again.key != private.key
    train(MAC(again, CrossEntropy(), z_steps=FEW), data(), steps=1)
    assert again.steps_done == 4
    assert again.spent().mechanism == Gaussian(1.5).poisson(0.5) * 6


VICTIM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_mac as t
folder, kill_after = sys.argv[1], int(sys.argv[2])
model = t.make()
private = t.Private(model, t.torch.optim.SGD(model.parameters(), lr=0.1), t.LONG, ledger=folder + "/ledger")
mac = t.MAC(private, t.CrossEntropy(), z_steps=t.FEW)
t.train(mac, t.data(), steps=10)
private.save(folder + "/checkpoint")
for done, batch in enumerate(private.batches(t.data()), start=1):
    mac.step(*batch)
    print("released", flush=True)
    if done == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)
"""

LONG = Plan(records=RECORDS, batch=30, steps=200, noise_multiplier=1.5, clip=Expansion(0.1))


@pytest.mark.parametrize("kill_after", [3, pytest.param(150, marks=pytest.mark.full)])
def test_of_a_killed_run_nothing_released_is_forgotten(kill_after: int, tmp_path: Path) -> None:
    code = VICTIM.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(tmp_path), str(kill_after)]
    victim = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    released = 10 + victim.stdout.count("released")
    assert released == 10 + kill_after
    charged = Ledger(tmp_path / "ledger").mechanism()
    assert charged is not None
    [(part, count)] = charged.parts()
    assert part == Gaussian(1.5).poisson(0.5)
    assert released <= count <= released + 4  # at most a block more
    model = make()
    resumed = Private.resume(tmp_path / "checkpoint", model, torch.optim.SGD(model.parameters(), lr=0.1), LONG)
    assert resumed.steps_done == 10
    train(MAC(resumed, CrossEntropy(), z_steps=FEW), data(), steps=5)
    assert resumed.spent().mechanism == part * (count + 5)


# Refusals and the rest


@pytest.mark.parametrize(
    ("model", "clip", "output", "message"),
    [
        (nn.Sequential(nn.Conv1d(1, 1, 1)), Expansion(0.1), CrossEntropy(), "not Conv1d"),
        (nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)), Expansion(0.1), CrossEntropy(), "no elementwise"),
        (nn.Sequential(nn.Linear(5, 3), nn.Tanh()), Expansion(0.1), CrossEntropy(), "its own activation"),
        (nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.ReLU()), Expansion(0.1), SquaredError(), "Two activations"),
        (make(), Expansion((0.1, 0.2, 0.3)), CrossEntropy(), "3 thresholds of the gradient"),
        (make(hidden=nn.GELU()), Expansion(Analytic(), **BALLS), CrossEntropy(), "No bounds are known for GELU"),
        (make(), Expansion(Analytic(), inputs=1.0, coordinates=1.0), SquaredError(), "give targets"),
        (make(), hush.Flat(1.0), CrossEntropy(), "plan clip=Expansion"),
    ],
)
def test_what_cannot_be_trained_or_bounded_is_refused(model: Any, clip: Any, output: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(clip, output, model)


@pytest.mark.parametrize(("more", "words"), [({"unit": "user"}, "can't protect a user"), ({"grouped": 2}, "grouped")])
def test_records_of_a_user_or_a_group_are_not_clipped_together(more: dict[str, Any], words: str) -> None:
    plan = Plan(records=RECORDS, batch=30, steps=4, noise_multiplier=1.5, clip=Expansion(0.1), **more)
    model = make()
    private = Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    with pytest.raises(ValueError, match=words):
        MAC(private, CrossEntropy())


def test_an_expansion_is_refused_where_gradients_are_clipped() -> None:
    _, private = start(Expansion(0.1))
    model = private.model
    x, y = next(iter(private.batches(data())))
    with pytest.raises(ValueError, match="make its steps by MAC"):
        private.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)


@pytest.mark.parametrize("clip", EXPANSIONS, ids=said)
def test_a_plan_with_an_expansion_goes_to_json_and_back(clip: Expansion) -> None:
    plan = Plan(records=100, batch=10, steps=5, noise_multiplier=1.0, clip=clip)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_says_in_words_what_is_expanded() -> None:
    assert "gradient clipped at 0.1" in str(
        Plan(records=100, batch=10, steps=5, noise_multiplier=1.0, clip=EXPANSIONS[0])
    )


def test_analysis_needs_balls_and_a_solver_needs_curvature() -> None:
    with pytest.raises(ValueError, match="inputs and coordinates need bounds"):
        Expansion(Analytic())
    with pytest.raises(ValueError, match="no minimum"):
        start(Expansion(0.1), solver=ConjugateGradient())


def test_an_activation_of_ones_own_may_come_with_its_limits() -> None:
    half = Limits(lambda r: r / 2, lambda r: torch.full_like(r, 0.5), 0.0, 0.25)

    class Half(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return u / 2

    known = {Half: Activation.differentiated("half", lambda u: u / 2, half)}
    mac, _ = start(Expansion(Analytic(), **BALLS), model=make(hidden=Half()), activations=known)
    train(mac, data())


def test_what_is_before_the_layers_is_applied_and_left_alone() -> None:
    frozen = nn.Linear(5, 4, bias=False)
    frozen.weight.requires_grad_(False)
    model = nn.Sequential(frozen, nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 3))
    before = frozen.weight.clone()
    mac, _ = start(Expansion(1.0), model=model)
    x, y = data()
    assert torch.allclose(mac.records(x, y)[0].z[:, :4].float(), frozen(x), atol=1e-6)
    train(mac, (x, y))
    assert torch.equal(frozen.weight, before)


def test_averages_schedulers_and_bias_corrected_adam_come_along() -> None:
    model = make()
    plan = Plan(records=RECORDS, batch=30, steps=4, noise_multiplier=1.5, clip=Expansion(0.1))
    optimiser = hush.optim.AdamBC(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    private = Private(model, optimiser, plan, scheduler=scheduler, average=hush.Average(0.5))
    train(MAC(private, CrossEntropy(), z_steps=FEW), data())
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.01 / 16)
    own = weights(model).clone()
    with private.averaged() as averaged:
        assert not torch.equal(weights(averaged), own)


# It learns


def test_a_classifier_learns_the_digits_at_epsilon_three() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    plan = Plan(records=1437, batch=500, steps=40, epsilon=3.0, delta=1e-4, clip=Expansion(0.3))
    private = Private(model, torch.optim.Adam(model.parameters(), lr=0.02), plan, key=Key.from_seed(0))
    train(MAC(private, CrossEntropy(), z_steps=ZSteps(5, 0.02)), (x[:1437], y[:1437]))
    accuracy = (model(x[1437:]).argmax(1) == y[1437:]).double().mean().item()
    assert accuracy > 0.7
    assert private.spent().epsilon(1e-4).upper <= 3.0


def test_an_autoencoder_learns_to_reconstruct() -> None:
    x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10), nn.ReLU(), nn.Linear(10, 64))
    before = F.mse_loss(model(x), x).item()
    plan = Plan(records=1797, batch=600, steps=40, noise_multiplier=1.0, clip=Expansion(0.3))
    private = Private(model, torch.optim.Adam(model.parameters(), lr=0.01), plan, key=Key.from_seed(0))
    train(MAC(private, SquaredError(), z_steps=ZSteps(5, 0.02)), (x, x))
    assert F.mse_loss(model(x), x).item() < 0.5 * before


def test_the_papers_autoencoder_takes_a_step_on_usps() -> None:
    path = Path(os.environ.get("HUSH_DATA", "")) / "usps.npz"
    if "HUSH_DATA" not in os.environ or not path.exists():
        pytest.skip("needs usps.npz in the folder HUSH_DATA")
    with np.load(path) as held:
        images = next(held[name] for name in held.files if held[name].ndim >= 2 and len(held[name]) > 5000)
    x = torch.tensor(images.reshape(len(images), -1), dtype=torch.float32)
    x = (x - x.min()) / (x.max() - x.min())
    sizes = [x.shape[1], 300, 100, 20, 100, 300, x.shape[1]]
    torch.manual_seed(0)
    linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = nn.Sequential(*[m for one in linear[:-1] for m in (one, nn.ReLU())], linear[-1])
    plan = Plan(records=len(x), batch=500, steps=3, noise_multiplier=1.8, clip=Expansion(0.0005))
    private = Private(model, torch.optim.Adam(model.parameters(), lr=0.003), plan)
    train(MAC(private, SquaredError(), z_steps=ZSteps(3, 0.001)), (x, x))
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("far", [1e60, 1e100, 1e150])
@pytest.mark.parametrize("depth", [370.0, 380.0, 400.0])
def test_a_curvature_whose_square_vanishes_is_clipped_all_the_same(depth: float, far: float) -> None:
    """Sure predictions bend the objective by e^-400, an input whose weight is zero is long: their product is not small.

    The squares of the former vanish, so a norm of them is zero, and nothing would be clipped.
    """
    model = nn.Sequential(nn.Linear(2, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]] * 3))
        model[0].bias.zero_()
    mac, _ = start(Expansion(0.3, curvature=0.1), BinaryCrossEntropy(), model)
    x = torch.tensor([[depth, far]], dtype=torch.float64)
    parts, _ = mac._sums(mac.records(x, torch.ones(1, 3)), mac._bounds())
    assert math.sqrt(sum(float(part.square().sum()) for part in parts)) <= 1
