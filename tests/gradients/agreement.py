"""Do the engines agree with the loop, the reference: one example at a time, through plain autograd?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.clipping import Flat
from hush.gradients import ClippedSum, Engine, Ghost, Loop, Memory, Vmap, clipped_sum
from hush.gradients.filling import AS_IT_IS, Filling

EXACT, SINGLE = 1e-10, 1e-5


class Net(nn.Module):
    """A model made of a function and what it uses: `Net(lambda s, x: s.a(x), a=nn.Linear(2, 3))`."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * 0.5)


def cross_entropy(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: F.cross_entropy(model(x), y, reduction="none")


def trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def run(
    model: nn.Module,
    losses: Callable[..., Tensor],
    batch: Sequence[Any],
    engine: Engine,
    *,
    clip: float = 0.5,
    units: Tensor | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    microbatch: int | None = None,
    filling: Filling = AS_IT_IS,
    memory: Memory | None = None,
) -> ClippedSum:
    parameters = trained(model)
    groups = (tuple(range(len(parameters))),) if groups is None else groups
    return clipped_sum(
        parameters,
        losses,
        batch,
        groups=groups,
        weigh=lambda norms: Flat(clip).weigh(norms, [clip] * len(groups)),
        units=units,
        engine=engine,
        microbatch=microbatch,
        filling=filling,
        memory=memory,
    )


def assert_same(found: ClippedSum, reference: ClippedSum, tolerance: float, *, losses: bool = True) -> None:
    """Norms relative to the largest, sums to the whole: gradients that vanish but for rounding don't count."""
    assert found.norms.shape == reference.norms.shape
    scale = reference.norms.max().clamp_min(1e-300)
    assert float((found.norms - reference.norms).abs().max() / scale) <= tolerance
    whole = torch.stack([x.norm() for x in reference.sums]).norm()
    apart = torch.stack([(a - b).norm() for a, b in zip(found.sums, reference.sums, strict=True)]).norm()
    assert all(a.shape == b.shape for a, b in zip(found.sums, reference.sums, strict=True))
    assert float(apart) <= tolerance * float(whole)
    assert not losses or torch.allclose(found.losses.double(), reference.losses.double(), rtol=max(tolerance, 1e-6))


def assert_agree(
    model: nn.Module,
    batch: Sequence[Any],
    losses: Callable[[nn.Module], Callable[..., Tensor]] = cross_entropy,
    *,
    engines: Sequence[Engine] = (Ghost(), Vmap()),
    single: bool = True,
    **options: Any,
) -> tuple[str, ...]:
    """Both engines against the loop in float64, and in float32 against the float64 loop. Returns ghost's notes."""
    batch = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in batch)
    model = model.double()
    reference = run(model, losses(model), batch, Loop(), **options)
    found = [run(model, losses(model), batch, engine, **options) for engine in engines]
    for result in found:
        assert_same(result, reference, EXACT)
    if single:
        small = copy.deepcopy(model).float()
        halved = tuple(x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in batch)
        for engine in engines:
            assert_same(run(small, losses(small), halved, engine, **options), reference, SINGLE)
    return found[0].notes


def slower(notes: Sequence[str]) -> list[str]:
    return [note for note in notes if note.startswith("parameter ")]
