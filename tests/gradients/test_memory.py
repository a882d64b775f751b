"""Memory on a CPU: looks for places, gradients written out and large batches take little more than plain training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from allocations import peak
from torch import Tensor, nn

import hush
from hush.gradients import Ghost, Memory, clipped_sum
from hush.gradients.filling import AT_ONCE, VECTOR, cut

N = 512


def network() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, stride=1)
    second = nn.Conv2d(16, 32, kernel_size=4, stride=2), nn.ReLU(), nn.MaxPool2d(2, stride=1)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))


def test_a_step_takes_hardly_more_than_plain_training_and_one_that_looks_a_third_more() -> None:
    """Where a look kept the graph while gradients were written out, it was 1.54 times as much."""
    model, memory = network(), Memory()
    parameters = list(model.parameters())
    x, y = torch.randn(N, 1, 28, 28), torch.arange(N) % 10

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def step() -> None:
        groups = [range(len(parameters))]
        clipped_sum(parameters, losses, (x, y), groups=groups, weigh=torch.ones_like, engine=Ghost(), memory=memory)

    plain = peak(lambda: torch.autograd.grad(losses(x, y).sum(), parameters))
    looking, again, usual = peak(step), peak(step), peak(step)
    assert usual < 1.2 * plain
    assert max(looking, again) < 1.45 * plain


def test_large_batches_go_in_parts_on_a_cpu_only() -> None:
    assert cut(AT_ONCE, None, alike=False, on_cpu=True)[0] is None
    size, filling = cut(2 * AT_ONCE, None, alike=False, on_cpu=True)
    assert size == AT_ONCE
    assert filling.multiple == VECTOR
    assert cut(2 * AT_ONCE, None, alike=False, on_cpu=False)[0] is None
    assert cut(2 * AT_ONCE, 7, alike=False, on_cpu=True)[0] == 7
    assert cut(2 * AT_ONCE, None, alike=False, whole=True, on_cpu=True)[0] is None


def test_a_run_with_large_batches_takes_less_than_plain_training() -> None:
    model = network()
    plan = hush.Plan(records=4000, batch=2000, steps=1, noise_multiplier=1.0, clip=1.0)
    private = hush.Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    x, y = torch.randn(4000, 1, 28, 28), torch.arange(4000) % 10

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    plain = peak(lambda: torch.autograd.grad(losses(x[:2000], y[:2000]).sum(), list(model.parameters())))
    for batch in private.batches((x, y)):
        assert peak(lambda batch=batch: private.step(losses, *batch)) < 1.1 * plain
