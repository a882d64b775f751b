"""DP-MAC's bounds by analysis, each attacked by a search over inputs and targets; derivatives against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hush.methods.mac import Analytic, BinaryCrossEntropy, CrossEntropy, Expansion, SquaredError
from hush.methods.mac.activations import IDENTITY, RELU, SIGMOID, SOFTPLUS, TANH, Activation, activation_of
from hush.methods.mac.coefficients import analytic_bounds, at_present
from hush.methods.mac.coordinates import projected
from hush.methods.mac.network import Layer
from hush.methods.mac.objectives import Objective

ACTIVATIONS = [IDENTITY, RELU, SOFTPLUS, SIGMOID, TANH]
HIDDEN: list[Objective] = [SquaredError(a) for a in ACTIVATIONS]
OUTPUTS: list[Objective] = [BinaryCrossEntropy(), CrossEntropy()]


def named(value: Any) -> str:
    return value.activation.name if isinstance(value, SquaredError) else type(value).__name__


# Derivatives


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: a.name)
def test_an_activations_derivatives_are_those_of_autograd(activation: Activation) -> None:
    u = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    u = u[u.abs() > 1e-9]
    first = torch.func.grad(lambda v: activation.value(v).sum())
    assert torch.allclose(activation.slope(u), first(u), atol=1e-12)
    assert torch.allclose(activation.bend(u), torch.func.grad(lambda v: first(v).sum())(u), atol=1e-12)


@pytest.mark.parametrize("module", [nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus(beta=2), nn.LeakyReLU()], ids=str)
def test_any_elementwise_module_is_differentiated(module: nn.Module) -> None:
    activation = activation_of(module)
    u = torch.linspace(-3, 3, 61, dtype=torch.float64) + 1e-3
    step = 1e-4
    ahead, here, behind = activation.value(u + step), activation.value(u), activation.value(u - step)
    assert torch.allclose(activation.slope(u), (ahead - behind) / (2 * step), atol=1e-6)
    assert torch.allclose(activation.bend(u), (ahead - 2 * here + behind) / step**2, atol=1e-5)


@pytest.mark.parametrize("module", [nn.Softmax(dim=1), nn.Dropout(), nn.LayerNorm(6), nn.PReLU()], ids=str)
def test_what_is_no_elementwise_activation_is_refused(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="no elementwise activation"):
        activation_of(module)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: a.name)
@pytest.mark.parametrize("radius", [0.1, 1.0, 8.0])
def test_an_activations_limits_hold_where_it_can_reach_and_hardly_exceed_the_truth(
    activation: Activation, radius: float
) -> None:
    u = torch.linspace(-radius, radius, 200_001, dtype=torch.float64)
    limits, r = activation.limits, u.new_tensor([radius])
    assert limits is not None
    f, slope, bend = activation.value(u), activation.slope(u), activation.bend(u)
    square = slope.square() + f * bend
    assert f.abs().max() <= limits.size(r) * (1 + 1e-12)
    assert f.abs().max() >= limits.size(r) * 0.999
    assert slope.abs().max() <= limits.slope(r) * (1 + 1e-12)
    assert slope.abs().max() >= limits.slope(r) * 0.999
    assert bend.abs().max() <= limits.bend * (1 + 1e-12)
    assert square.abs().max() <= limits.square * (1 + 1e-12)
    assert (f * slope).abs().max() <= limits.product * (1 + 1e-12)
    assert abs(float(activation.value(r.new_zeros(1)))) == pytest.approx(limits.offset)
    if radius == 8:  # large enough to see all of it
        assert bend.abs().max() >= limits.bend * 0.999
        assert square.abs().max() >= limits.square * 0.999
        assert limits.product == math.inf or (f * slope).abs().max() >= limits.product * 0.999


@pytest.mark.parametrize("objective", HIDDEN + OUTPUTS, ids=named)
def test_an_objectives_derivatives_are_those_of_autograd(objective: Objective) -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(20, 4, dtype=torch.float64, generator=generator)
    targets = torch.randn(20, 4, dtype=torch.float64, generator=generator)
    if objective in OUTPUTS:
        targets = objective.prepared(torch.randint(0, 4, (20,), generator=generator), 4)
    gradient = torch.func.grad(lambda v: objective.value(v, targets).sum())
    assert torch.allclose(objective.slope(u, targets), gradient(u), atol=1e-12)
    total = lambda v: objective.value(v, targets).sum()  # noqa: E731
    hessians = torch.autograd.functional.hessian(total, u)[torch.arange(20), :, torch.arange(20), :]
    gap = torch.diag_embed(objective.bend(u, targets)) - hessians
    if isinstance(objective, CrossEntropy):
        assert torch.linalg.eigvalsh(gap).min() > -1e-12  # the separate curvature is never too small
    else:
        assert gap.abs().max() < 1e-12


# The attack: maximise what one record adds to a part, over its input and its target


def layer_of(objective: Objective, bias: bool, scale: float, seed: int, width: int = 4, inputs: int = 3) -> Layer:
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, width, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for p in linear.parameters():
            p.copy_(scale * torch.randn_like(p))
    activation = objective.activation if isinstance(objective, SquaredError) else IDENTITY
    return Layer(linear, activation, objective)


def attacked(layer: Layer, part: str, inputs: float, targets: float, starts: int = 40, steps: int = 120) -> float:
    """The largest norm that a search finds, over inputs and targets in their balls (or all classes, or [0, 1])."""
    generator = torch.Generator().manual_seed(1)
    objective, width = layer.objective, layer.width
    z = torch.randn(starts, layer.linear.in_features, dtype=torch.float64, generator=generator)
    z *= torch.rand(starts, 1, dtype=torch.float64, generator=generator) * inputs / z.norm(dim=1, keepdim=True)
    z[: starts // 2] *= (inputs / z[: starts // 2].norm(dim=1, keepdim=True)).clamp_min(1)
    t = torch.randn(starts, width, dtype=torch.float64, generator=generator) * targets
    t[::5] = 0.0
    z.requires_grad_()
    t.requires_grad_()
    optimiser = torch.optim.Adam([z, t], lr=0.05 * inputs)

    def target() -> Tensor:
        if isinstance(objective, SquaredError):
            return projected(t, targets)
        if isinstance(objective, BinaryCrossEntropy):
            return torch.sigmoid(20 * t)
        return torch.eye(width, dtype=torch.float64)[torch.arange(starts) % width]

    best = 0.0
    for _ in range(steps):
        optimiser.zero_grad()
        norms = at_present(layer, projected(z, inputs), target()).norms(part)
        best = max(best, float(norms.detach().max()))
        (-norms.sum()).backward()
        optimiser.step()
    return best


@pytest.mark.parametrize("part", ["gradient", "curvature", "value"])
@pytest.mark.parametrize("objective", HIDDEN + OUTPUTS, ids=named)
@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
def test_no_record_exceeds_its_bound_and_the_worst_comes_close(objective: Objective, part: str, bias: bool) -> None:
    shares = []
    for seed, scale, inputs, targets in [(0, 0.3, 1.0, 1.0), (1, 1.5, 2.0, 0.5), (2, 1.0, 0.5, 3.0)]:
        layer = layer_of(objective, bias, scale, seed)
        expansion = Expansion(Analytic(), inputs=inputs, coordinates=inputs, targets=targets)
        bound = analytic_bounds([layer], expansion)[0][part]
        shares.append(attacked(layer, part, inputs, targets) / bound)
    assert max(shares) <= 1 + 1e-12
    assert min(shares) > (0.2 if part == "value" else 0.4)


@pytest.mark.full
@pytest.mark.parametrize("part", ["gradient", "curvature", "value"])
@pytest.mark.parametrize("objective", HIDDEN + OUTPUTS, ids=named)
def test_no_record_exceeds_its_bound_in_wide_and_narrow_layers(objective: Objective, part: str) -> None:
    for seed in range(40):
        width, inputs = 1 + seed % 7, 1 + seed // 7
        layer = layer_of(objective, seed % 2 == 0, 10 ** (seed % 5 - 2), seed, width, inputs)
        radius, targets = 10 ** (seed % 3 - 1), 10 ** (seed % 4 - 2)
        expansion = Expansion(Analytic(), inputs=radius, coordinates=radius, targets=targets)
        bound = analytic_bounds([layer], expansion)[0][part]
        assert attacked(layer, part, radius, targets, starts=100, steps=400) <= bound * (1 + 1e-12)


def test_the_bound_of_a_linear_layer_is_attained() -> None:
    # |t'| |z| = |W z - y| |z| is largest at the first singular vector, with y opposite: R (s R + Y)
    layer = layer_of(SquaredError(IDENTITY), False, 1.0, 0)
    expansion = Expansion(Analytic(), inputs=2.0, coordinates=2.0, targets=3.0)
    strongest = float(torch.linalg.matrix_norm(layer.weights(), 2))
    bound = analytic_bounds([layer], expansion)[0]["gradient"]
    assert bound == pytest.approx(2 * (strongest * 2 + 3))
    assert attacked(layer, "gradient", 2.0, 3.0, steps=600) > 0.999 * bound


@pytest.mark.parametrize("objective", [SquaredError(TANH), CrossEntropy()], ids=named)
def test_replacing_a_record_moves_a_sum_by_up_to_two_bounds(objective: Objective) -> None:
    layer = layer_of(objective, False, 1.0, 0)
    z = torch.tensor([[0.6, 0.0, 0.8], [-0.6, 0.0, -0.8]], dtype=torch.float64)
    targets = torch.zeros(2, 4, dtype=torch.float64)
    targets[:, 1] = 1.0
    ones = torch.ones(1, dtype=torch.float64)
    one, two = (at_present(layer, z[i : i + 1], targets[i : i + 1]).total("gradient", ones) for i in range(2))
    bound = analytic_bounds([layer], Expansion(Analytic(), inputs=1.0, coordinates=1.0, targets=1.0))[0]["gradient"]
    assert bound * 0.2 < float((one - two).norm()) <= 2 * bound


# What the paper has


def papers_b(w: Tensor, radius: float) -> float:
    """Appendix F of Harder et al. for softplus: (b_k1 + b_k2)^(1/2), alpha and beta at the edge of the reach."""
    reach = w.norm(dim=1) * radius
    alpha, beta = torch.nn.functional.softplus(reach), torch.sigmoid(reach)
    mixed = min(float(alpha.sum()), math.sqrt(len(w)) * float((alpha * beta.square()).max()))
    first = 2 * radius**2 * (float((alpha * beta).norm()) ** 2 + 2 * radius * mixed + radius**2)
    second = (
        radius**4 / 8 * (radius**2 * float(w.norm()) ** 2 + float(((4 * beta**2 + alpha)[:, None] * w).norm()) ** 2)
    )
    return math.sqrt(first + second)


def uncentred(w: Tensor, z: Tensor, target: Tensor) -> Tensor:
    """What a record adds to the paper's b: dT - d2T w with T = (z_k - f(w z_{k-1}))^2, without the 1/2."""
    objective = SquaredError(SOFTPLUS)
    u = z @ w.T
    return 2 * (objective.slope(u, target) - objective.bend(u, target) * u).norm(dim=1) * z.norm(dim=1)


def test_the_papers_appendix_f_is_exceeded() -> None:
    torch.manual_seed(0)
    w = 0.05 * torch.randn(50, 2, dtype=torch.float64)
    radius = 1.0
    z, t = (torch.randn(50, n, dtype=torch.float64, requires_grad=True) for n in (2, 50))
    optimiser = torch.optim.Adam([z, t], lr=0.05)
    best = 0.0
    for _ in range(200):
        optimiser.zero_grad()
        norms = uncentred(w, projected(z, radius), projected(t, radius))
        best = max(best, float(norms.detach().max()))
        (-norms.sum()).backward()
        optimiser.step()
    assert best > 1.2 * papers_b(w, radius)


def test_a_centred_expansion_does_not_grow_with_the_weights_as_the_papers_does() -> None:
    # saturated units: the gradient around the present weights stays bounded, the paper's b has d2T w in it
    search: Callable[[float], tuple[float, float]] = lambda scale: _worst(scale)  # noqa: E731
    small, large = search(1.0), search(30.0)
    assert large[0] / small[0] < 2  # tanh: |t'| <= 1 + |z_k|
    assert large[1] / small[1] > 10


def _worst(scale: float) -> tuple[float, float]:
    objective = SquaredError(TANH)
    u = torch.linspace(-scale, scale, 20_001, dtype=torch.float64)[:, None]
    found = []
    for target in (-1.0, 1.0):
        t = torch.full_like(u, target)
        slope, bend = objective.slope(u, t), objective.bend(u, t)
        found.append((float(slope.abs().max()), float((slope - bend * scale).abs().max())))
    return max(f[0] for f in found), max(f[1] for f in found)
