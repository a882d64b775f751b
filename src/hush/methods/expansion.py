"""What a DP-MAC step releases of every layer, and how much of it one record may be: public numbers, part of a plan.

A layer's objective is expanded around its present weights, which are public.  Released, as one vector with one noise,
are for each layer the sum over the sample of

    the gradient    of the records' objectives in the layer's weights,
    the curvature   their second derivatives, where a second-order expansion is wanted, and
    the value       the objectives themselves, where somebody wants to see them.

Each of these parts has a bound D on the norm of what one record adds to it: a threshold at which it is clipped, or
`Analytic()`, derived from the norms of inputs, coordinates, targets and weights (docs/mac.md).  With P parts, each
divided by P^(1/2) D, a record moves the whole vector by at most 1 (Harder et al. 2018, Section 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting.checks import check_positive
from hush.clipping import Clipping

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Analytic:
    """The bound follows from the norms of inputs, coordinates and targets; nothing is clipped."""

    def __str__(self) -> str:
        return "bounded by analysis"


Bound = float | tuple[float, ...] | Analytic
"""One threshold for all layers, one for each, or by analysis."""

PARTS = ("gradient", "curvature", "value")


@dataclass(frozen=True)
class Expansion(Clipping):
    """The parts of a release and their bounds; a part that is None is not released.

    `Expansion(0.3)` is the paper's: a first-order expansion, every layer's gradient clipped at 0.3.
    `Expansion(0.3, curvature=0.1)` is of second order.

    inputs, coordinates, targets: records, auxiliary coordinates and (for the squared error) targets are projected to
    balls of these radii; None leaves them as they are, which bounds by analysis don't allow.
    """

    kind: ClassVar[str] = "expansion"
    gradient: Bound
    curvature: Bound | None = None
    value: Bound | None = None
    inputs: float | None = None
    coordinates: float | None = None
    targets: float | None = None

    def __post_init__(self) -> None:
        for part in PARTS:
            bound = getattr(self, part)
            if bound is None and part == "gradient":
                raise ValueError("An expansion releases at least the gradient; give its threshold, or Analytic().")
            if isinstance(bound, Analytic) and (self.inputs is None or self.coordinates is None):
                raise ValueError(
                    f"To bound the {part} by analysis, inputs and coordinates need bounds on their norms; give both."
                )
            if isinstance(bound, Sequence):
                object.__setattr__(self, part, tuple(float(each) for each in bound))
            for each in () if isinstance(bound, Analytic) or bound is None else _listed(bound):
                check_positive(f"The threshold of the {part}", each)
        for ball in ("inputs", "coordinates", "targets"):
            if getattr(self, ball) is not None:
                check_positive(f"The radius of the {ball}", getattr(self, ball))

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of what is released of a layer."""
        return tuple(part for part in PARTS if getattr(self, part) is not None)

    def bound(self, part: str, layer: int, layers: int) -> float | Analytic:
        """Of one part of one of so many layers."""
        bound = getattr(self, part)
        if isinstance(bound, Analytic):
            return bound
        listed = _listed(bound)
        if len(listed) not in (1, layers):
            raise ValueError(
                f"{len(listed)} thresholds of the {part} are given for {layers} layers; give one for each."
            )
        return listed[layer if len(listed) > 1 else 0]

    # As a clipping: the scaled vector is one group of norm at most 1

    def thresholds(self, step: int, names: Sequence[str], state: Any = None) -> tuple[float, ...]:
        return (1.0,)

    def weigh(self, norms: Tensor, thresholds: Tensor | Sequence[float]) -> Tensor:
        raise ValueError("An expansion clips the parts of layers' objectives, not gradients; make its steps by MAC.")

    def to_dict(self) -> dict[str, Any]:
        bounds = {part: _plain(getattr(self, part)) for part in PARTS}
        return {"clipping": self.kind, **bounds} | {
            "inputs": self.inputs,
            "coordinates": self.coordinates,
            "targets": self.targets,
        }

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Clipping:
        bounds = {part: _valued(data[part]) for part in PARTS}
        return cls(**(data | bounds))

    def __str__(self) -> str:
        said = ", ".join(f"{part} {_said(getattr(self, part))}" for part in self.parts)
        return f"every layer's objective expanded around its weights: {said}"


def _listed(bound: float | tuple[float, ...]) -> tuple[float, ...]:
    return tuple(bound) if isinstance(bound, Sequence) else (bound,)


def _said(bound: Bound) -> str:
    if isinstance(bound, Analytic):
        return str(bound)
    return "clipped at " + ", ".join(f"{each:g}" for each in _listed(bound))


def _plain(bound: Bound | None) -> Any:
    if isinstance(bound, Analytic):
        return "analytic"
    return list(bound) if isinstance(bound, tuple) else bound


def _valued(plain: Any) -> Bound | None:
    if plain == "analytic":
        return Analytic()
    return tuple(plain) if isinstance(plain, list) else plain
