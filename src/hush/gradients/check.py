"""Can this model be trained with per-example clipping? Said before training, by name, with the way out.

Known mixers of examples are refused by their type. What has no name is looked for: buffers that change when data
pass, losses that change when other examples leave the batch, and derivatives of one example's loss by another
example's input. A model that mixes examples only now and then, or only for particular values, can escape such a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush.gradients.company import CROSSING
from hush.gradients.engines import Losses, count, pick
from hush.gradients.tape import tensors_in

_MIXES = (
    "{name} ({kind}) mixes the examples of a batch, so no example's gradient can be bounded alone; "
    "use GroupNorm, LayerNorm or InstanceNorm in its place."
)
_KEEPS = (
    "{name} ({kind}) keeps running averages of the data outside the noisy gradient; "
    "set track_running_stats=False or use GroupNorm in its place."
)
_RENORMS = (
    "{name} ({kind}) has max_norm, which rewrites weights as it looks at the data, outside the noisy gradient; "
    "leave max_norm out."
)
_REMEMBERS = (
    "The buffer {name} depends on the data that passed, outside the noisy gradient; "
    "use a layer that keeps no statistics of its input."
)
_REWRITES = "{name} changes in the forward pass, outside the noisy gradient; only the optimiser may change it."
_COUNTS = (
    "{name} ({kind}) has scale_grad_by_freq, which scales an example's gradient by counts of the whole batch; "
    "leave scale_grad_by_freq out."
)


@dataclass(frozen=True)
class Report:
    """What `check` found in a model that may be trained: the parameters, by name, that take a slower path, and why."""

    slower: tuple[str, ...]

    def __str__(self) -> str:
        if not self.slower:
            return "Every parameter takes the fast path."
        return "These parameters take a slower path:\n" + "\n".join(f"  {line}" for line in self.slower)


def refuse(model: nn.Module) -> None:
    """Raise where a module of a known kind mixes examples or keeps data outside the gradients."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"A model is a torch.nn.Module, got {type(model).__name__}.")
    for name, module in model.named_modules():
        reason = _reason(module)
        if reason is not None:
            raise ValueError(reason.format(name=name or "The model", kind=type(module).__name__))


def check(model: nn.Module, batch: Sequence[Any] | Tensor, losses: Losses | None = None) -> Report:
    """Refuse what can't be trained privately; report what will be slow.

    `batch` is a few examples, as `losses` takes them (at least two). Without `losses` the model's output, added up per
    example, stands in for the loss.
    """
    from hush.gradients.engines import Ghost, Memory, clipped_sum

    examples = (batch,) if isinstance(batch, Tensor) else tuple(batch)
    n = count(examples)
    if n < 2:
        raise ValueError(f"Whether examples mix can't be seen on {n} of them; give at least 2.")
    refuse(model)
    of = losses if losses is not None else _output_sums(model)
    with torch.random.fork_rng(devices=_devices(model)):
        _refuse_changing_buffers(model, of, examples)
        _refuse_crossing(of, examples, n)
        _refuse_company(model, of, examples)
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("The model has no parameter with requires_grad=True: there is nothing to train.")
        if not _reaches(of, examples, parameters):
            raise ValueError(
                "The loss depends on no parameter of the model, so training would be noise alone; is it computed under "
                "torch.no_grad, detached, or of another model?"
            )
        found = clipped_sum(
            parameters,
            of,
            examples,
            groups=(tuple(range(len(parameters))),),
            weigh=torch.ones_like,
            engine=Ghost(),
            memory=Memory(),
        )
    return Report(tuple(named(note, names) for note in found.notes if note.startswith("parameter ")))


def named(note: str, names: Sequence[str]) -> str:
    """An engine's note with the parameter's name in place of its number."""
    if not note.startswith("parameter "):
        return note
    number, rest = note.removeprefix("parameter ").split(" ", 1)
    return f"{names[int(number)]} {rest}"


def _reason(module: nn.Module) -> str | None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            return None
        return _MIXES
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        return _KEEPS
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return _RENORMS
        if module.scale_grad_by_freq:
            return _COUNTS
    return None


def _reaches(losses: Losses, batch: Sequence[Any], parameters: Sequence[Tensor]) -> bool:
    """Whether a gradient of the losses gets to any of the parameters."""
    with torch.enable_grad():
        values = losses(*batch)
        if not values.requires_grad:
            return False
        return any(grad is not None for grad in torch.autograd.grad(values.sum(), parameters, allow_unused=True))


def _output_sums(model: nn.Module) -> Losses:
    def losses(*batch: Any) -> Tensor:
        output = model(*batch)
        first = next((x for x in tensors_in((output,)) if x.is_floating_point()), None)
        if first is None:
            raise ValueError("The model's output holds no tensor of floating-point numbers; give `losses` to check it.")
        return first.flatten(1).sum(1) if first.dim() > 1 else first

    return losses


def _refuse_changing_buffers(model: nn.Module, losses: Losses, batch: Sequence[Any]) -> None:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    weights = _fingerprints(model)
    losses(*batch)
    once = {name: buffer.clone() for name, buffer in model.named_buffers()}
    _refuse_rewriting(weights, _fingerprints(model))
    _restore(model, before)
    losses(*(_other(x) for x in batch))
    twice = dict(model.named_buffers())
    for name, buffer in once.items():
        if not torch.equal(buffer, twice[name]):
            raise ValueError(_REMEMBERS.format(name=name))
    _restore(model, before)


def refuse_memories(model: nn.Module, losses: Losses, batch: Sequence[Any]) -> list[Tensor]:
    """Raise if what is left in a buffer after one example isn't what two others leave: no parameter's gradient is that.

    Nor may a parameter be another after a pass. For training, on the first examples that come, and on made-up ones
    where there are fewer than two; random numbers are the same each time, and buffers are put back. Returns the buffers
    that change, whatever passes.
    """
    before, weights, left = {name: buffer.clone() for name, buffer in model.named_buffers()}, _fingerprints(model), []
    for examples, made_up in _samples(batch):
        with torch.enable_grad(), torch.random.fork_rng(devices=_devices(model)):  # a loss may differentiate, too
            try:
                losses(*examples)
            except Exception:
                if not made_up:
                    raise
                continue
            finally:
                after = {name: buffer.clone() for name, buffer in model.named_buffers()}
                _restore(model, before)
        left.append(after)
        _refuse_rewriting(weights, _fingerprints(model))
    for other in left[1:]:
        for name, buffer in left[0].items():
            if not torch.equal(buffer, other[name]):
                raise ValueError(_REMEMBERS.format(name=name))
    return [buffer for name, buffer in model.named_buffers() if left and not torch.equal(left[0][name], before[name])]


def _samples(batch: Sequence[Any]) -> list[tuple[Sequence[Any], bool]]:
    """One example and two others, and whether they are made up."""
    n = count(batch)
    if n > 1:
        return [(pick(batch, slice(0, 1)), False), (pick(batch, slice(-2, None)), False)]
    made = [[x.new_full((k, *x.shape[1:]), 2 - k) if isinstance(x, Tensor) else x for x in batch] for k in (1, 2)]
    return [(batch, False) if n == 1 else (made[0], True), (made[1], True)]


def _fingerprints(model: nn.Module) -> dict[str, str]:
    """What tells a parameter's values from others, in little memory."""
    known = {name: p.detach() for name, p in model.named_parameters() if not nn.parameter.is_lazy(p) and not p.is_meta}
    return {name: _fingerprint(values) for name, values in known.items()}


def _fingerprint(values: Tensor) -> str:
    if not values.is_floating_point():
        return f"{values.sum()}"
    if values.element_size() == 2:  # whose sums have too few digits
        return f"{values.view(torch.int16).sum()}"
    return f"{values.sum()} {torch.linalg.vector_norm(values)}"  # in its own type: another would take a copy


def _refuse_rewriting(before: dict[str, str], after: dict[str, str]) -> None:
    for name, value in before.items():
        if after.get(name, value) != value:
            raise ValueError(_REWRITES.format(name=name))


def _devices(model: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in model.parameters() if p.is_cuda}, key=str)


def _restore(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _other(x: Any) -> Any:
    """The same examples in another order, which changes statistics of position and few others; and other values."""
    if not isinstance(x, Tensor):
        return x
    return x.flip(0) * 0.5 if x.is_floating_point() else x.roll(1, 0)


def _refuse_crossing(losses: Losses, batch: Sequence[Any], n: int) -> None:
    leaves = [x.detach().clone().requires_grad_() if _differentiable(x) else x for x in batch]
    inputs = [x for x in leaves if _differentiable(x)]
    if not inputs:
        return
    values = losses(*leaves)
    if not values.requires_grad:
        return
    for i in sorted({0, n - 1}):
        found: Sequence[Tensor | None] = torch.autograd.grad(values[i], inputs, retain_graph=True, allow_unused=True)
        for grad in found:
            if grad is None:
                continue
            others = grad.clone()
            others[i] = 0
            if bool((others.nan_to_num() != 0).any()):
                raise ValueError(CROSSING)


def _refuse_company(model: nn.Module, losses: Losses, batch: Sequence[Any]) -> None:
    """An example's loss must be the same in any company (dropout off, so that it may be compared)."""
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.enable_grad():  # a loss may take derivatives of its own
            together, alone = losses(*batch).detach(), losses(*pick(batch, slice(0, 1))).detach()
    finally:
        for module, flag in training.items():
            module.training = flag
    scale = together.abs().max().clamp_min(1e-6) if torch.isfinite(together).all() else torch.tensor(1.0)
    tolerance = 1e-2 if together.dtype in (torch.bfloat16, torch.float16) else 1e-3
    if bool(((together[:1] - alone).abs() > tolerance * scale).any()):
        raise ValueError(CROSSING)


def _differentiable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
