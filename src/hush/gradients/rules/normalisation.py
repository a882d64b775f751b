"""Layer, group, instance and RMS normalisation: small scales and shifts, whose gradients are simply written out.

`y = w * n(x) + b` gives `dw_i = sum dy * n(x)` and `db_i = sum dy`, added up over an example's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.gradients.factors import Formed
from hush.gradients.layout import Layout
from hush.gradients.rules.common import Unfit, hold, summed
from hush.gradients.tape import Tape


def layer_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    w, b = tape.stand_in(weight), tape.stand_in(bias)
    output = F.layer_norm(input, normalized_shape, w, b, eps)
    shape = tuple(normalized_shape)
    _record(
        tape, input, weight, bias, w, b, output, shape, lambda x: F.layer_norm(x, normalized_shape, None, None, eps)
    )
    return output


def rms_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    w = tape.stand_in(weight)
    output = F.rms_norm(input, list(normalized_shape), w, eps)
    shape = tuple(normalized_shape)
    normalise: Callable[[Tensor], Tensor] = lambda x: F.rms_norm(x, list(normalized_shape), None, eps)  # noqa: E731
    _record(tape, input, weight, None, w, None, output, shape, normalise)
    return output


def group_norm(
    tape: Tape,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    w, b = tape.stand_in(weight), tape.stand_in(bias)
    output = F.group_norm(input, num_groups, w, b, eps)
    shape = (input.shape[1], *[1] * (input.dim() - 2))
    _record(tape, input, weight, bias, w, b, output, shape, lambda x: F.group_norm(x, num_groups, None, None, eps))
    return output


def instance_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if running_mean is not None and use_input_stats:
        raise ValueError(
            "Instance normalisation with track_running_stats=True keeps averages of the data outside the noisy "
            "gradient; use track_running_stats=False."
        )

    def normalise(x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, scale, shift, use_input_stats, momentum, eps)

    w, b = tape.stand_in(weight), tape.stand_in(bias)
    output = normalise(input, w, b)
    shape = (input.shape[1], *[1] * (input.dim() - 2))
    _record(tape, input, weight, bias, w, b, output, shape, normalise)
    return output


def _record(
    tape: Tape,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    w: Any,
    b: Any,
    output: Tensor,
    shape: tuple[int, ...],
    normalise: Callable[[Tensor], Tensor],
) -> None:
    held = hold(input)

    def reshaped(found: Formed, like: Tensor) -> Formed:
        return Formed(found.grads.reshape(-1, *like.shape))

    def scale(layout: Layout, grad: Tensor) -> Formed:
        assert weight is not None
        x = held()
        if x.shape != grad.shape:
            raise Unfit("its input has another shape than its output")
        wider = torch.promote_types(x.dtype, grad.dtype)  # autocast normalises in single precision
        normalised, grad = normalise(x.to(wider)), grad.to(wider)
        return reshaped(summed(layout, normalised * grad, shape), weight)

    def shift(layout: Layout, grad: Tensor) -> Formed:
        assert bias is not None
        return reshaped(summed(layout, grad, shape), bias)

    tape.record("normalisation scale", weight, w, output, scale)
    tape.record("normalisation shift", bias, b, output, shift)


def batch_norm(*args: Any, **kwargs: Any) -> Any:
    training = kwargs.get("training", args[6] if len(args) > 6 else False)
    if training:
        raise ValueError(
            "Batch normalisation mixes the examples of a batch, so no example's gradient can be bounded alone; "
            "use GroupNorm, LayerNorm or InstanceNorm instead."
        )
    return NotImplemented


RULES: dict[Any, Callable[..., Any]] = {
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    F.batch_norm: batch_norm,
}
