"""Stacked models, the experiments' files, and what reproduces the papers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hush import Normalised, Plan
from hush.experiments import stacked
from hush.experiments.stacked import Tape, clipped_sums
from hush.experiments.trainer import Recipe, Records, Trainer, cross_entropy, half_squared_error


def _by_the_loop(model, parameters, losses, x, y, clip):
    """Each model's clipped sum, one example at a time with autograd on the parameters themselves."""
    models, batch = x.shape[:2]
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for s in range(models):
        for b in range(batch):
            mine = {name: value[s : s + 1].clone().requires_grad_() for name, value in parameters.items()}
            loss = losses(model.forward(Tape(), mine, x[s : s + 1, b : b + 1]), y[s : s + 1, b : b + 1]).sum()
            gradients = torch.autograd.grad(loss, list(mine.values()))
            norm = torch.sqrt(sum(g.square().sum() for g in gradients))
            for name, g in zip(mine, gradients, strict=True):
                total[name][s] += g[0] * min(1.0, clip / norm.item())
    return total


CASES = {
    "linear on three copies": (stacked.linear(7, 10), (2, 4, 3, 7), None, cross_entropy),
    "linear on many inputs": (stacked.linear(200, 10), (2, 3, 2, 200), None, cross_entropy),
    "multilayer": (stacked.multilayer((6, 5, 4, 10)), (2, 4, 1, 6), None, cross_entropy),
    "embeddings": (stacked.multilayer((6, 5, 4, 10), first_linear=True), (2, 4, 1, 6), None, cross_entropy),
    "mnist network": (stacked.mnist_network(), (2, 3, 1, 28, 28, 1), None, cross_entropy),
    "scattering network": (stacked.scattering_network(5, 4, width=6), (2, 3, 2, 4, 4, 5), None, cross_entropy),
    "autoencoder": (stacked.multilayer((8, 3, 8)), (2, 4, 1, 8), 8, half_squared_error),
    "factorisation": (stacked.factorisation(6, 5, 3), None, 0, half_squared_error),
    "neural factorisation": (stacked.neural_factorisation(6, 5, classes=10), None, None, cross_entropy),
}


@pytest.mark.parametrize("case", CASES)
def test_stacked_models_clip_as_the_loop_does(case):
    model, shape, width, losses = CASES[case]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    parameters = {k: v.double() for k, v in model.start(generators, torch.device("cpu")).items()}
    parameters = {k: v + 0.1 * torch.randn(v.shape, generator=generators[0]).double() for k, v in parameters.items()}
    if shape is None:
        x = torch.randint(0, 5, (2, 4, 2), generator=generators[0])
    else:
        x = torch.randn(shape, generator=generators[0]).double()
    y = torch.randint(0, 10, x.shape[:2], generator=generators[0])
    if width is not None:
        y = torch.randn(*x.shape[:2], *[width] * bool(width), generator=generators[0]).double()
    clip = 0.7
    found = clipped_sums(
        model.forward, parameters, losses, x, y, lambda norms: (clip / norms.clamp_min(1e-30)).clamp_max(1)
    )
    expected = _by_the_loop(model, parameters, losses, x, y, clip)
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def _blobs(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    x = F.one_hot(y, 3) + 0.3 * torch.randn(count, 3, generator=generator)
    return Records(x[:, None], y)


def test_a_stacked_run_learns_and_its_seeds_differ():
    records = _blobs(400, 0)
    plan = Plan(records=400, batch=100, steps=40, epsilon=8.0, delta=1e-4, clip=Normalised())
    trainer = Trainer(
        stacked.linear(3, 3), cross_entropy, records, [(plan, Recipe(lr=1.0, average=0.9))], [0, 1], batch=100, steps=40
    )
    trained = trainer.run()
    logits = stacked.linear(3, 3).forward(Tape(), trained.averages, records.x[None].expand(2, *records.x.shape))
    accuracy = (logits[:, :, 0].argmax(2) == records.y).double().mean(1)
    assert (accuracy > 0.9).all()
    assert not torch.equal(trained.weights["out"][0], trained.weights["out"][1])


def test_padding_changes_nothing_a_chunk_neither():
    """A padded slot repeats a record with weight zero, so the sum is over the drawn records exactly."""
    records = _blobs(50, 1)
    plan = Plan(records=50, batch=10, steps=2, noise_multiplier=1.0, delta=1e-3, clip=1.0)
    found = []
    for chunk in (None, 7):
        trainer = Trainer(
            stacked.linear(3, 3), cross_entropy, records, [(plan, Recipe(lr=1.0))], [0], batch=10, steps=2, chunk=chunk
        )
        torch.manual_seed(5)
        found.append(trainer._gradient()["out"])
        torch.manual_seed(5)
        index, real = trainer._draw()
        drawn = index[0][real[0]]
        assert len(set(drawn.tolist())) == len(drawn)
    torch.testing.assert_close(found[0], found[1])


def test_the_noise_of_a_stacked_step_has_the_plans_deviation():
    """No gradient (all targets certain): what moves the weights is noise.  10,000 draws: false alarms below 1e-6."""
    records = Records(torch.zeros(20, 1, 5000), torch.zeros(20, dtype=torch.long))
    plan = Plan(records=20, batch=10, steps=1, noise_multiplier=3.0, delta=1e-3, clip=0.5)
    trainer = Trainer(stacked.linear(5000, 2), cross_entropy, records, [(plan, Recipe(lr=2.0))], [0], batch=10, steps=1)
    moved = trainer.run().weights["out"]
    assert moved.std().item() == pytest.approx(2.0 * 3.0 * 0.5 / 10, rel=0.05)
