"""A threshold and noise of its own for every layer or group of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hush.accounting.checks import check_positive
from hush.clipping.base import Clipping, Groups
from hush.schedules import Number, Schedule, at, check_number, from_plain, to_plain


@dataclass(frozen=True)
class PerLayer(Clipping):
    """Each layer, or each group of parameters, is clipped at its own norm and gets its own noise.

    `PerLayer(0.5)` clips every module's parameters at 0.5; `PerLayer({"body": 1.0, "head": 0.3})` groups parameters by
    the longest prefix of their names, `""` taking what is left.  A record moves the whole release by at most
    (sum of the squared norms)^(1/2).

    `noise` gives the standard deviations relative to each other: s_k = n_k z (sum_j (C_j/n_j)^2)^(1/2).  By default
    n_k = C_k (every group equally hidden); a number gives all groups the same standard deviation; a mapping sets n_k.
    """

    kind: ClassVar[str] = "per layer"
    norms: Number | Mapping[str, Number] | tuple[tuple[str, Number], ...]
    noise: float | Mapping[str, float] | tuple[tuple[str, float], ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.norms, Mapping | tuple):
            pairs = self.norms.items() if isinstance(self.norms, Mapping) else self.norms
            object.__setattr__(
                self, "norms", tuple(sorted((p, check_number(f"The clip norm of {p!r}", n)) for p, n in pairs))
            )
            if not self.norms:
                raise ValueError("Clipping by prefixes needs at least one prefix with its norm.")
        else:
            object.__setattr__(self, "norms", check_number("The clip norm of a layer", self.norms))
        if isinstance(self.noise, Mapping | tuple):
            pairs_ = tuple(sorted(self.noise.items() if isinstance(self.noise, Mapping) else self.noise))
            for prefix, value in pairs_:
                check_positive(f"The noise of {prefix!r}", value)
            if not isinstance(self.norms, tuple) or {p for p, _ in pairs_} != {p for p, _ in self.norms}:
                raise ValueError("Noise by prefix needs norms by the same prefixes; give both as mappings.")
            object.__setattr__(self, "noise", pairs_)
        elif self.noise is not None:
            check_positive("The relative noise of the layers", self.noise)

    def groups(self, names: Sequence[str]) -> Groups:
        return tuple(self._named_groups(names).values())

    def thresholds(self, step: int, names: Sequence[str], state: float | None = None) -> tuple[float, ...]:
        labels = self._named_groups(names)
        norms = dict.fromkeys(labels, self.norms) if isinstance(self.norms, float | Schedule) else dict(self.norms)
        return tuple(at(norms[label], step) for label in labels)

    def stds(self, thresholds: Sequence[float], noise_multiplier: float, names: Sequence[str]) -> tuple[float, ...]:
        if self.noise is None:
            relative = tuple(thresholds)
        elif isinstance(self.noise, tuple):
            shares = dict(self.noise)
            relative = tuple(shares[label] for label in self._named_groups(names))
        else:
            relative = (1.0,) * len(thresholds)
        scale = noise_multiplier * math.hypot(*(c / n for c, n in zip(thresholds, relative, strict=True)))
        return tuple(scale * n for n in relative)

    def _named_groups(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for position, name in enumerate(names):
            found.setdefault(self._label(name), []).append(position)
        return {label: tuple(positions) for label, positions in found.items()}

    def _label(self, name: str) -> str:
        if not isinstance(self.norms, tuple):
            return name.rpartition(".")[0]
        fitting = [p for p, _ in self.norms if not p or name == p or name.startswith(p + ".")]
        if not fitting:
            raise ValueError(f"No clip norm is given for the parameter {name!r}; add its prefix, or '' for the rest.")
        return max(fitting, key=len)

    def to_dict(self) -> dict[str, Any]:
        norms = self.norms
        return {
            "clipping": self.kind,
            "norms": to_plain(norms)
            if isinstance(norms, float | Schedule)
            else {p: to_plain(n) for p, n in dict(norms).items()},
            "noise": dict(self.noise) if isinstance(self.noise, tuple) else self.noise,
        }

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Clipping:
        norms = data["norms"]
        return cls(
            {p: from_plain(n) for p, n in norms.items()} if isinstance(norms, dict) else from_plain(norms),
            data["noise"],
        )

    def __str__(self) -> str:
        if isinstance(self.norms, tuple):
            return "clipped by group of parameters: " + ", ".join(f"{p or 'the rest'} at {n}" for p, n in self.norms)
        return f"each layer clipped at norm {self.norms}"
