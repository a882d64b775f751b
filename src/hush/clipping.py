"""How much one record may move a step's gradient, and the noise that hides it.

A clipping is a public value: it says which parameters are clipped together, the threshold of each such group at a step,
the weight by which a record's gradient is scaled so that it stays below the threshold, and how the noise is shared
between the groups.  Everything private (norms, gradients) comes in as an argument.

Write C_k for group k's threshold and s_k for the standard deviation of its noise.  Scaled by 1/s_k, a record moves
the whole release by at most (sum_k (C_k/s_k)^2)^(1/2), so the release is one Gaussian mechanism with noise multiplier

    z = (sum_k (s_k/C_k)^-2)^(-1/2),

whatever the shares (`hush.accounting.Gaussian.joint`).  A plan fixes z; a clipping turns z into the s_k.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting.checks import check_positive
from hush.schedules import Number, Schedule, at, check_number, from_plain, to_plain

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
        limits = _beside(norms, thresholds)
        return _masked(norms, (limits / norms.clamp_min(_TINY)).clamp_max(1.0))

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
        kinds = Clipping._kinds
        if not isinstance(data, dict) or data.get("clipping") not in kinds:
            raise ValueError(f"Not a clipping: {str(data)[:80]}; its 'clipping' must be one of {', '.join(kinds)}.")
        return kinds[data["clipping"]]._read({key: value for key, value in data.items() if key != "clipping"})

    @classmethod
    @abstractmethod
    def _read(cls, data: dict[str, Any]) -> Clipping: ...


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
        return _masked(norms, _beside(norms, thresholds) / (norms + self.stability))

    def to_dict(self) -> dict[str, Any]:
        return {"clipping": self.kind, "norm": to_plain(self.norm), "stability": self.stability}

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Clipping:
        return cls(from_plain(data["norm"]), float(data["stability"]))

    def __str__(self) -> str:
        return f"the whole gradient scaled to norm {self.norm} (stability {self.stability:g})"


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


_TINY = 1e-30


def _beside(norms: Tensor, thresholds: Tensor | Sequence[float]) -> Tensor:
    # a sequence becomes a tensor beside the norms; a tensor stays where it is (a captured graph can't copy from here)
    if isinstance(thresholds, Sequence):
        return norms.new_tensor(thresholds)
    return thresholds


def _masked(norms: Tensor, weights: Tensor) -> Tensor:
    """Weights with 0 for every unit that has a norm which isn't finite."""
    finite = norms.isfinite().all(dim=1, keepdim=True)
    return weights.where(finite, weights.new_zeros(()))
