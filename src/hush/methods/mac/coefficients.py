"""The coefficients of a layer's expanded objective: what one record adds, how much it may add, and the sums.

Around the present weights V, a record's objective in a layer's weights W is

    t(W z) = t + <G, W - V> + 1/2 sum_h (w_h - v_h)^T H_h (w_h - v_h) + ...,    G = t' z^T,    H_h = t''_h z z^T,

z being its input with a one for the bias.  |G| = |t'| |z| and (sum_h |H_h|^2)^(1/2) = |t''| |z|^2 in Frobenius norms.
The paper writes the same polynomial in powers of W (its b is G - H V); but V is public, so G and H say as much, and
the record's share of G doesn't grow with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hush.methods.expansion import Analytic, Expansion
from hush.methods.mac.network import Layer
from hush.methods.mac.objectives import Objective
from hush.methods.sums import pack

_UNITS_AT_ONCE = 16
_ROWS = 256


def pieces(rows: Tensor) -> tuple[Tensor, ...]:
    """The rows in pieces of one size, filled up with zeros; one piece if there are none.

    Computations of different sizes are rounded differently.  In pieces of one size a record's numbers are its own to
    the last bit: where a pre-activation lies at a kink, one record more or less doesn't change all the others.
    """
    missing = -len(rows) % _ROWS if len(rows) else _ROWS
    filled = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return tuple(filled[k : k + _ROWS] for k in range(0, len(filled), _ROWS))


@dataclass(frozen=True, eq=False)
class Records:
    """A layer's inputs (with ones for the bias), pre-activations and targets for every record of a sample: PRIVATE."""

    objective: Objective
    z: Tensor
    u: Tensor
    targets: Tensor

    @cached_property
    def value(self) -> Tensor:
        return self._piecewise(self.objective.value)

    @cached_property
    def slope(self) -> Tensor:
        return self._piecewise(self.objective.slope)

    @cached_property
    def bend(self) -> Tensor:
        return self._piecewise(self.objective.bend)

    def _piecewise(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        found = [function(*part) for part in zip(pieces(self.u), pieces(self.targets), strict=True)]
        return torch.cat(found)[: len(self.u)]

    def norms(self, part: str) -> Tensor:
        """Of what every record adds to a part."""
        if part == "value":
            return self.value.abs()
        return (
            _lengths(self.slope) * _lengths(self.z)
            if part == "gradient"
            else _lengths(self.bend) * _lengths(self.z) ** 2
        )

    def total(self, part: str, weights: Tensor) -> Tensor:
        """The weighted sum of what the records add to a part; records of weight zero are left out, NaN or not."""
        kept = weights > 0
        z, weights = self.z[kept], weights[kept]
        if part == "value":
            return (self.value[kept] * weights).sum().reshape(1)
        if part == "gradient":
            return (self.slope[kept] * weights[:, None]).T @ z
        scaled = (self.bend[kept] * weights[:, None]).T
        blocks = [(block[:, :, None] * z).mT @ z for block in scaled.split(_UNITS_AT_ONCE)]
        return pack(torch.cat(blocks))


def at_present(layer: Layer, inputs: Tensor, targets: Tensor) -> Records:
    """The records as the layer's present weights see them."""
    z = layer.extended(inputs)
    return Records(layer.objective, z, layer.applied(z, layer.weights()), targets)


def joined(parts: Sequence[Records], count: int) -> Records:
    """The first `count` records of several pieces of a sample."""
    z, u, targets = (torch.cat([getattr(part, name) for part in parts])[:count] for name in ("z", "u", "targets"))
    return Records(parts[0].objective, z, u, targets)


def clipped_weights(norms: Tensor, bound: float, analytic: bool) -> Tensor:
    """min(1, bound/norm); by analysis nothing is clipped."""
    return torch.ones_like(norms) if analytic else (bound / norms.clamp_min(1e-300)).clamp_max(1.0)


def analytic_bounds(layers: Sequence[Layer], expansion: Expansion) -> list[dict[str, float]]:
    """For every layer, the most that one record can add to each part: |t'| |z|, |t''| |z|^2, and t.

    Inputs, coordinates and targets lie in their balls; the weights are the present ones, which are public.
    """
    found = []
    for k, layer in enumerate(layers):
        radius = expansion.inputs if k == 0 else expansion.coordinates
        targets = expansion.targets if k == len(layers) - 1 else expansion.coordinates
        if radius is None:
            raise ValueError("Bounds by analysis need bounds on the norms of inputs and coordinates; give both.")
        largest = layer.objective.largest(layer.reach(radius), targets)
        z = layer.input_norm(radius)
        found.append({"gradient": largest.slope * z, "curvature": largest.bend * z**2, "value": largest.value})
    return found


def bounds(layers: Sequence[Layer], expansion: Expansion, learned: Sequence[float] | None) -> list[tuple[float, bool]]:
    """Of every part of every layer, in the order of their release, with whether it is by analysis.

    `learned` are thresholds that were released, in place of the expansion's own.
    """
    listed = [(k, part) for k in range(len(layers)) for part in expansion.parts]
    given = [expansion.bound(part, k, len(layers)) for k, part in listed]
    by_analysis = analytic_bounds(layers, expansion) if any(isinstance(b, Analytic) for b in given) else []
    found = []
    for i, ((k, part), bound) in enumerate(zip(listed, given, strict=True)):
        if isinstance(bound, Analytic):
            found.append((max(by_analysis[k][part], 1e-12), True))
        else:
            found.append((bound if learned is None else learned[i], False))
    return found


def _lengths(rows: Tensor) -> Tensor:
    """Norms, by the largest entry first: squares of tiny numbers vanish, and times a long input they might matter."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    lengths: Tensor = torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]
    return lengths
