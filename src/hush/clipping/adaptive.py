"""A threshold that follows the norms, at the price of a noisy count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting.checks import check_positive
from hush.clipping.base import Clipping

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Adaptive(Clipping):
    """The threshold follows a quantile of the norms (Andrew et al. 2021): C <- C exp(-rate (share - quantile)).

    `share` is the noisy share of gradients below C.  Each record votes +1/2 (its norm is at most C) or -1/2, so the
    count moves by 1/2 where the gradient moves by C; with noise of standard deviation b on the count, count and
    gradient are one release with z^-2 = z_gradient^-2 + (2b)^-2 (their Theorem 1).  The threshold is computed from
    what was released, so it costs nothing more and is public.  `count_noise` is b; by default batch/20, as they use.
    """

    kind: ClassVar[str] = "adaptive"
    initial: float
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        check_positive("The initial clip norm", self.initial)
        check_positive("The rate of the threshold", self.rate)
        if not 0 < self.quantile < 1:
            raise ValueError(f"The quantile of the norms lies between 0 and 1, got {self.quantile}.")
        if self.count_noise is not None:
            check_positive("The noise of the count", self.count_noise)

    def thresholds(self, step: int, names: Sequence[str], state: float | None = None) -> tuple[float, ...]:
        return (self.initial if state is None else state,)

    def count_std(self, batch: float) -> float:
        return self.count_noise if self.count_noise is not None else batch / 20

    def gradient_noise(self, noise_multiplier: float, batch: float) -> float:
        left = noise_multiplier**-2 - (2 * self.count_std(batch)) ** -2
        if left <= 0:
            raise ValueError(
                f"A count with noise {self.count_std(batch):g} uses up the whole noise multiplier "
                f"{noise_multiplier:g}; give count_noise above {noise_multiplier / 2:g}."
            )
        return float(left**-0.5)

    def start(self) -> float:
        return self.initial

    def follow(self, state: float | None, count: float, batch: float) -> float:
        share = count / batch + 0.5
        step = min(max(-self.rate * (share - self.quantile), -20.0), 20.0)
        current = (self.initial if state is None else state) * math.exp(step)
        return min(max(current, 1e-12 * self.initial), 1e12 * self.initial)

    def to_dict(self) -> dict[str, Any]:
        return {
            "clipping": self.kind,
            "initial": self.initial,
            "quantile": self.quantile,
            "rate": self.rate,
            "count_noise": self.count_noise,
        }

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Clipping:
        return cls(data["initial"], data["quantile"], data["rate"], data["count_noise"])

    def __str__(self) -> str:
        return f"the whole gradient clipped at the norms' running {self.quantile:g}-quantile, from {self.initial:g}"


def votes(norms: Tensor, threshold: float | Tensor) -> Tensor:
    """The count an `Adaptive` clipping releases, before noise: +1/2 for every norm up to the threshold, else -1/2."""
    return ((norms[:, 0] <= threshold).to(norms.dtype) - 0.5).sum()
