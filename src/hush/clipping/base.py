"""What every clipping can say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

Groups = tuple[tuple[int, ...], ...]
"""Positions of the parameters that are clipped together, one tuple a group."""


class Clipping(ABC):
    """What every clipping can say.  Its threshold may follow what was released before: `state`, a public number."""

    kind: ClassVar[str]
    _kinds: ClassVar[dict[str, type[Clipping]]] = {}

    def __init_subclass__(cls) -> None:
        Clipping._kinds[cls.kind] = cls

    def groups(self, names: Sequence[str]) -> Groups:
        """The parameters clipped together; by default all of them."""
        return (tuple(range(len(names))),)

    @abstractmethod
    def thresholds(self, step: int, names: Sequence[str], state: float | None = None) -> tuple[float, ...]:
        """Of every group at a step."""

    def weigh(self, norms: Tensor, thresholds: Tensor | Sequence[float]) -> Tensor:
        """The factor of every unit (row) in every group (column): min(1, C/norm) (Abadi et al. 2016, Algorithm 1).

        A unit with a norm that isn't finite in any group gets weight 0 in all: it contributes nothing.
        """
        if isinstance(thresholds, Sequence) and len(thresholds) == 1:  # the usual case, in few operations
            return precise((thresholds[0] / norms.clamp_min(_TINY)).clamp_max_(1.0).nan_to_num_(0.0))
        limits = beside(norms, thresholds)
        return masked(norms, (limits / norms.clamp_min(_TINY)).clamp_max(1.0))

    def stds(self, thresholds: Sequence[float], noise_multiplier: float, names: Sequence[str]) -> tuple[float, ...]:
        """Standard deviation of every group's noise, per unit of the relation's sensitivity.  One group: z C."""
        return tuple(noise_multiplier * threshold for threshold in thresholds)

    def gradient_noise(self, noise_multiplier: float, batch: float) -> float:
        """What is left of the noise multiplier for the gradient once everything released beside it has its part."""
        return noise_multiplier

    def count_std(self, batch: float) -> float | None:
        """Standard deviation of the noise on the count released beside the gradient, where there is one."""
        return None

    def start(self) -> float | None:
        """The state before the first step."""
        return None

    def follow(self, state: float | None, count: float, batch: float) -> float | None:
        """The state after a step that released the (noisy) count."""
        return state

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the kind under 'clipping'."""

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Clipping:
        import hush.methods.expansion  # noqa: F401 (a clipping of another method's makes itself known)

        kinds = Clipping._kinds
        if not isinstance(data, dict) or data.get("clipping") not in kinds:
            raise ValueError(f"Not a clipping: {str(data)[:80]}; its 'clipping' must be one of {', '.join(kinds)}.")
        return kinds[data["clipping"]]._read({key: value for key, value in data.items() if key != "clipping"})

    @classmethod
    @abstractmethod
    def _read(cls, data: dict[str, Any]) -> Clipping: ...


_TINY = 1e-30
_SMALLEST = 2.0**-126


def beside(norms: Tensor, thresholds: Tensor | Sequence[float]) -> Tensor:
    # a sequence becomes a tensor beside the norms; a tensor stays where it is (a captured graph can't copy from here)
    if isinstance(thresholds, Sequence):
        return norms.new_tensor(thresholds)
    return thresholds


def masked(norms: Tensor, weights: Tensor) -> Tensor:
    """Weights with 0 for every unit that has a norm which isn't finite."""
    finite = norms.isfinite().all(dim=1, keepdim=True)
    return precise(weights.where(finite, weights.new_zeros(())))


def precise(weights: Tensor) -> Tensor:
    """Weights with 0 in the place of those that float32 can't hold to its 24 bits: they would be rounded up by as much
    as a half, and 1e-6 times a gradient of 3e38 come out as 1.2e-6."""
    return weights * (weights >= _SMALLEST)
