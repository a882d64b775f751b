"""Per-example gradients formed: one at a time (`loop`), or vectorised (`vmap`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hush.gradients.adding import added, weighted_rows
from hush.gradients.aligning import ALIGNED
from hush.gradients.engines import ClippedSum, Losses, Task, one_loss_each, pick
from hush.gradients.filling import weights_of
from hush.gradients.products import wide
from hush.gradients.rules.attention import multi_head_attention
from hush.gradients.rules.common import without_speed_warnings

_CHUNK_BYTES = 1 << 30


def loop(task: Task) -> ClippedSum:
    """Each unit's gradient by itself, clipped and added. The reference that the other engines are held against."""
    dtypes = [torch.promote_types(p.dtype, torch.float32) for p in task.parameters]
    sums = [added(None, torch.zeros_like(p, dtype=dtype)) for p, dtype in zip(task.parameters, dtypes, strict=True)]
    all_norms, values = [], []
    for u, members in enumerate(members_of(task.batch, task.units)):
        value, grads = gradient_of(task.parameters, task.losses, pick(task.batch, members))
        norms = torch.stack([_norm([grads[k] for k in group]) for group in task.groups])
        weights = task.weights(norms[None], first=u)[0]
        if bool(torch.isfinite(norms).all()):
            for group, weight in zip(task.groups, weights, strict=True):
                for k in group:
                    sums[k] += weight * grads[k]
        all_norms.append(norms)
        values.append((members, value))
    total = torch.cat([value for _, value in values])
    order = torch.cat([members for members, _ in values]).to(total.device)
    sums = [x.to(dtype) for x, dtype in zip(sums, dtypes, strict=True)]
    values_in_order = torch.empty_like(total).index_copy_(0, order, total)
    none = torch.zeros((), dtype=torch.bool, device=total.device)
    return ClippedSum(sums, torch.stack(all_norms), values_in_order, ("loop",), spoiled=none)


def vmap(task: Task, chunk: int | None) -> ClippedSum:
    """Gradients of a chunk of examples formed in one vectorised call, joined into units, clipped and added."""
    wanted = list(range(len(task.parameters)))
    formed, values, note = per_example(task.parameters, task.losses, task.batch, wanted, chunk)
    if task.units is not None:
        where = task.units.to(formed[0].device)
        total = int(task.units.max()) + 1
        formed = [g.new_zeros(total, *g.shape[1:]).index_add_(0, where, g[: len(where)]) for g in formed]
    norms = torch.stack([_row_norms([formed[k] for k in group]) for group in task.groups], 1)
    weights = weights_of(task, norms)
    spoiled = ~torch.isfinite(norms).all(1)
    if bool(spoiled.any()):  # zero times what isn't finite wouldn't be zero
        weights = weights.masked_fill(spoiled[:, None], 0)
        formed = [grads.masked_fill(spoiled.view(-1, *[1] * (grads.dim() - 1)), 0) for grads in formed]
    sums = []
    of = {k: g for g, group in enumerate(task.groups) for k in group}
    for k, grads in enumerate(formed):
        flat = grads.reshape(len(grads), -1)
        sums.append(weighted_rows(flat, weights[:, of[k]]).view(grads.shape[1:]))
    return ClippedSum(sums, norms, values, (note,), spoiled=torch.zeros_like(spoiled).any())


def per_example(
    parameters: Sequence[Tensor],
    losses: Losses,
    batch: Sequence[Any],
    wanted: Sequence[int],
    chunk: int | None = None,
) -> tuple[list[Tensor], Tensor, str]:
    """The gradients of the `wanted` parameters for each example, `[n, *shape]`, the losses, and how it was done.

    Vectorised where every use of the parameters can be seen and vectorised; otherwise one example at a time.
    """
    chosen = [parameters[k] for k in wanted]
    tensors = [x for x in batch if isinstance(x, Tensor)]
    n = tensors[0].shape[0]
    if _every_use_is_seen(chosen, losses, pick(batch, slice(0, 1))):
        try:
            if chunk is None:
                bytes_each = sum(p.numel() * max(p.element_size(), 4) for p in chosen)
                chunk = max(1, _CHUNK_BYTES // max(bytes_each, 1))
            return (*_vectorised(chosen, losses, batch, _evenly(n, chunk)), "vmap")
        except (RuntimeError, ValueError, NotImplementedError, TypeError):
            pass  # an operation that can't be vectorised: the loop can do it
    values, grads = [], []
    for i in range(n):
        value, each = gradient_of(chosen, losses, pick(batch, slice(i, i + 1)))
        values.append(value)
        grads.append(each)
    return [torch.stack(column) for column in zip(*grads, strict=True)], torch.cat(values), "loop"


def _evenly(n: int, most: int) -> int:
    """Chunks of one size, where they needn't be much smaller than allowed: then no example is in a smaller one."""
    most = min(n, most)
    best = next(size for size in range(most, 0, -1) if n % size == 0)
    return best if 2 * best >= most else most


class Substitute(TorchFunctionMode):
    """Other tensors in the parameters' places, wherever a PyTorch function meets them.

    Operations that would round an example otherwise in another place are replaced, too.
    """

    def __init__(self, replacements: dict[int, Tensor]) -> None:
        super().__init__()
        self._replacements = replacements

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = self._replaced(args), self._replaced(kwargs or {})
        return ALIGNED.get(func, func)(*args, **kwargs)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._replacements.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(self._replaced(item) for item in value)
        if isinstance(value, dict):
            return {key: self._replaced(item) for key, item in value.items()}
        return value


class _Apart(Substitute):
    """Takes attention layers apart, too, for their narrow products to be seen; nothing is recorded."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.multi_head_attention_forward:
            taped: Any = self
            result = multi_head_attention(taped, *self._replaced(args), **self._replaced(kwargs or {}))
            if result is not NotImplemented:
                return result
        return super().__torch_function__(func, types, args, kwargs)

    def stand_in(self, tensor: Any) -> Any:
        return tensor

    def record(self, *use: Any) -> None:
        pass

    def mark_data(self, tensors: Any) -> None:
        pass


def _vectorised(
    parameters: Sequence[Tensor], losses: Losses, batch: Sequence[Any], chunk: int
) -> tuple[list[Tensor], Tensor]:
    is_tensor = [isinstance(x, Tensor) for x in batch]

    def loss(current: tuple[Tensor, ...], *example: Tensor) -> tuple[Tensor, Tensor]:
        rest = iter(example)
        full = [next(rest).unsqueeze(0) if flag else x for flag, x in zip(is_tensor, batch, strict=True)]
        with _Apart({id(p): c for p, c in zip(parameters, current, strict=True)}):
            value = one_loss_each(losses(*full), 1)[0]
        return value, value.detach()

    gradient: Callable[..., Any] = torch.func.grad(loss, has_aux=True)
    tensors = [x for x in batch if isinstance(x, Tensor)]
    current = tuple(p.detach() for p in parameters)
    mapped = torch.func.vmap(gradient, in_dims=(None, *[0] * len(tensors)), randomness="different", chunk_size=chunk)
    with torch.compiler.set_stance("force_eager"), without_speed_warnings():
        grads, values = mapped(current, *tensors)
    return [wide(g.detach()) for g in grads], values


def _every_use_is_seen(parameters: Sequence[Tensor], losses: Losses, example: Sequence[Any]) -> bool:
    """Whether substitution catches all uses: then no gradient reaches the parameters themselves."""
    replacements = {id(p): p.detach().requires_grad_() for p in parameters}
    with torch.compiler.set_stance("force_eager"), torch.random.fork_rng(devices=_devices(parameters)):
        with _Apart(replacements):
            value = one_loss_each(losses(*example), 1).sum()
        if not value.requires_grad:
            return True
        grads = torch.autograd.grad(value, list(parameters), allow_unused=True)
    return all(grad is None for grad in grads)


def _devices(tensors: Sequence[Tensor]) -> list[torch.device]:
    return sorted({t.device for t in tensors if t.is_cuda}, key=str)


def gradient_of(parameters: Sequence[Tensor], losses: Losses, batch: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
    n = next(x.shape[0] for x in batch if isinstance(x, Tensor))
    value = one_loss_each(losses(*batch), n)
    grads: Sequence[Tensor | None] = [None] * len(parameters)
    if value.requires_grad:
        grads = torch.autograd.grad(value.sum(), list(parameters), allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
    return value.detach(), [wide(g.to_dense() if g.is_sparse else g) for g in filled]


def members_of(batch: Sequence[Any], units: Tensor | None) -> list[Tensor]:
    if units is None:
        n = next(x.shape[0] for x in batch if isinstance(x, Tensor))
        return list(torch.arange(n).split(1))
    return list(torch.argsort(units, stable=True).split(torch.bincount(units).tolist()))


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """In float64, as float32 sums of squares lose up to some hundredths of ten million equal entries."""
    each = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) for g in grads])
    result: Tensor = torch.linalg.vector_norm(each).to(grads[0].dtype)
    return result


def _row_norms(grads: Sequence[Tensor]) -> Tensor:
    each = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1, dtype=torch.float64) for g in grads])
    result: Tensor = torch.linalg.vector_norm(each, dim=0).to(grads[0].dtype)
    return result
