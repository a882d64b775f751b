"""One threshold for the whole gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting.checks import check_positive
from hush.clipping.base import Clipping, beside, masked
from hush.schedules import Number, at, check_number, from_plain, to_plain

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Flat(Clipping):
    """The norm of the whole gradient is clipped at `norm` (Abadi et al. 2016)."""

    kind: ClassVar[str] = "flat"
    norm: Number

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", check_number("The clip norm", self.norm))

    def thresholds(self, step: int, names: Sequence[str], state: float | None = None) -> tuple[float, ...]:
        return (at(self.norm, step),)

    def to_dict(self) -> dict[str, Any]:
        return {"clipping": self.kind, "norm": to_plain(self.norm)}

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Clipping:
        return cls(from_plain(data["norm"]))

    def __str__(self) -> str:
        return f"the whole gradient clipped at norm {self.norm}"


@dataclass(frozen=True)
class Normalised(Clipping):
    """Every gradient is scaled to just below `norm`: weight C/(norm + stability) (Bu et al. 2023, automatic clipping).

    No threshold to tune: with SGD only lr * C matters.  The stability keeps small gradients smaller than large ones,
    without which training need not converge.
    """

    kind: ClassVar[str] = "normalised"
    norm: Number = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", check_number("The clip norm", self.norm))
        check_positive("The stability", self.stability)

    def thresholds(self, step: int, names: Sequence[str], state: float | None = None) -> tuple[float, ...]:
        return (at(self.norm, step),)

    def weigh(self, norms: Tensor, thresholds: Tensor | Sequence[float]) -> Tensor:
        return masked(norms, beside(norms, thresholds) / (norms + self.stability))

    def to_dict(self) -> dict[str, Any]:
        return {"clipping": self.kind, "norm": to_plain(self.norm), "stability": self.stability}

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Clipping:
        return cls(from_plain(data["norm"]), float(data["stability"]))

    def __str__(self) -> str:
        return f"the whole gradient scaled to norm {self.norm} (stability {self.stability:g})"
