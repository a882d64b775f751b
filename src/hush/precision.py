"""In which precision a loss is really computed: what autocast and TF32 do to it is seen, not declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hush.randomness import unmoved
from hush.rounding import BFLOAT16, FLOAT32, TF32

_HALF = (torch.float16, torch.bfloat16)


def unit_roundoff(parameters: Sequence[Tensor]) -> float:
    """The coarsest rounding that is in force here: of the parameters, of autocast, of TF32 products."""
    devices = {p.device.type for p in parameters}
    half = not {p.dtype for p in parameters}.isdisjoint(_HALF)
    if half or any(torch.is_autocast_enabled(device) for device in devices):
        return BFLOAT16
    on_cpu = getattr(torch.backends.mkldnn, "matmul", None)  # what set_float32_matmul_precision("medium") sets
    if "cpu" in devices and getattr(on_cpu, "fp32_precision", "none") == "bf16":
        return BFLOAT16
    if "cuda" in devices and tf32_allowed():
        return TF32
    return FLOAT32


def tf32_allowed() -> bool:
    """Whether anything on a GPU may be rounded to TF32; recurrent layers have a switch of their own by now."""
    recurrent = getattr(torch.backends.cudnn, "rnn", None)
    return tf32_in_products() or tf32_in_convolutions() or getattr(recurrent, "fp32_precision", "ieee") == "tf32"


def tf32_in_products() -> bool:
    """Whether matrix products on a GPU may be; where PyTorch's newer switches were used, the older can't be read."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return bool(torch.backends.cuda.matmul.fp32_precision != "ieee")


def tf32_in_convolutions() -> bool:
    """Whether convolutions on a GPU may be: PyTorch's default."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return bool(torch.backends.cudnn.conv.fp32_precision != "ieee")  # type: ignore[attr-defined]


@contextmanager
def with_tf32() -> Iterator[None]:
    """Matrix products in TF32 inside."""
    matmul = torch.backends.cuda.matmul
    with _switched(True, [matmul], lambda: [matmul]):
        yield


@contextmanager
def full_float32(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Nothing in TF32 inside, where any of the parameters is on a GPU."""
    if not any(p.is_cuda for p in parameters):
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with _switched(False, [matmul, cudnn], lambda: [matmul, cudnn.conv, cudnn.rnn]):  # type: ignore[attr-defined]
        yield


@contextmanager
def _switched(on: bool, older: Sequence[Any], newer: Callable[[], Sequence[Any]]) -> Iterator[None]:
    """TF32 on or off inside, by PyTorch's older switches; where the newer ones were used, the older can't be read."""
    name: str = "allow_tf32"
    value: Any = on
    try:
        before = [(part, part.allow_tf32) for part in older]
    except RuntimeError:
        name, value = "fp32_precision", "tf32" if on else "ieee"
        before = [(part, part.fp32_precision) for part in newer()]
    try:
        for part, _ in before:
            setattr(part, name, value)
        yield
    finally:
        for part, kept in before:
            setattr(part, name, kept)


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, was given to `torch.compile`."""
    return any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )


class Watch:
    """Looks for half precision inside the loss function, which can't be seen from outside.

    Compiled code can't be looked into, so it is taken to be coarse: the threshold is then 0.4% lower than it might be.
    """

    def __init__(self, model: nn.Module) -> None:
        self._done = self._half = is_compiled(model)

    @property
    def roundoff(self) -> float:
        """As seen so far."""
        return BFLOAT16 if self._half else FLOAT32

    def look(self, losses: Callable[..., Tensor], batch: Sequence[Any], size: int, again: bool = False) -> None:
        """Once, or at every call with `again`, for engines that don't see in what precision they compute."""
        if self._half or (self._done and not again) or size == 0:
            return
        self._half = computes_in_half(losses, batch)
        self._done = True


def computes_in_half(losses: Callable[..., Tensor], batch: Sequence[Any]) -> bool:
    """Whether the loss is computed in half precision, tried on an example of ones; True if that doesn't work.

    Whole numbers are zeros first, as any table has an entry there, and a GPU doesn't survive a wrong place.

    Of a batch only the shapes are looked at.  A coarser precision lowers the thresholds of all records, so it must not
    hang on one of them: with a model that computes some records in bfloat16 and others not, the first of those would
    move the sum by 0.4% of a threshold for every other record.  Random numbers are put back as they were.
    """
    tensors = [part for part in batch if isinstance(part, Tensor) and part.dim() > 0]
    with unmoved({part.device for part in tensors}):
        for whole in (0, 1):
            one = [_made_up(part[:1], whole) if isinstance(part, Tensor) and part.dim() > 0 else part for part in batch]
            seen = _Seen()
            try:
                with torch.enable_grad(), seen:  # a loss may take derivatives of its own
                    losses(*one)
            except Exception:
                continue
            return seen.half
    return True


def _made_up(part: Tensor, whole: int) -> Tensor:
    return torch.full_like(part, 1 if part.is_floating_point() else whole)


class _Seen(TorchFunctionMode):
    half = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.half = self.half or torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        self.half = self.half or (isinstance(found, Tensor) and found.dtype in _HALF)
        return found
