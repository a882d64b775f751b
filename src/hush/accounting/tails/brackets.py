"""Paths sorted by their largest loss, so that each kind has a saddle point of its own.

Where losses have heavy tails no single exponential tilt suits a sum of many steps: either one large loss does it or
many small ones do, and a line that sees both is ruled by what is far beyond.  So the paths of a composition are split
by their largest loss.  With B_m the law of a step's losses up to t_m, of mass below 1,

    all paths = B_0^T + (B_1^T - B_0^T) + (B_2^T - B_1^T) + ...,

and each difference is a positive measure: all losses up to t_m, at least one of them above t_{m-1}.  Its transform is
B^T ((1 + J/B)^T - 1) with the jumps J = B_m - B_{m-1}, which keeps its digits however rare the jumps are.  delta is the
sum of the brackets' own, and each is the contour integral of line.py on a line that suits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hush.accounting.contours.line import log_peak
from hush.accounting.contours.turns import Crowd
from hush.accounting.gaussian.contour import log1p
from hush.accounting.gaussian.transform import UNIT_ROUNDOFF, Complex
from hush.accounting.pairs.losses import Array
from hush.accounting.pairs.points import GaussianLaw, Points, Scattered, log_mgfs, on_lines

Laws = Sequence[tuple[Scattered, int]]

_SMALLEST = 1e-250
_LARGEST = 600.0
_TINY = -300.0  # log of jumps beside what doesn't jump, where a product of two of them is nothing
_SAME = -40.0  # x below which e^x, log(1 + e^x) and 1 - e^(-e^x) are the same number


@dataclass(frozen=True)
class Part:
    """The losses of `count` equal steps: those up to the bracket's lower end, and the jumps up to its upper one."""

    base: Scattered
    jump: Points | None
    count: int

    @property
    def laws(self) -> list[Scattered]:
        """All losses but the jumps and, if there are any, all of them."""
        if self.jump is None or not isinstance(self.base, Points):
            return [self.base]
        losses, logs = np.append(self.base.losses, self.jump.losses), np.append(self.base.logs, self.jump.logs)
        return [self.base, Points(losses, logs)]


@dataclass(frozen=True)
class Bracket:
    """The paths whose losses are all up to `high`, at least one of them above `low`."""

    parts: tuple[Part, ...]

    @property
    def jumps(self) -> bool:
        """Whether some loss must be large; else all paths of the laws as they are."""
        return any(part.jump is not None for part in self.parts)

    @cached_property
    def _jumping(self) -> tuple[list[int], list[Points]]:
        """Which parts jump, and their jumps."""
        return (
            [k for k, part in enumerate(self.parts) if part.jump is not None],
            [part.jump for part in self.parts if part.jump is not None],
        )

    @cached_property
    def _counts(self) -> Array:
        return np.array([part.count for part in self.parts], dtype=np.float64)

    def _log_mgfs(self, orders: Array) -> tuple[Array, Array]:
        """Of each part's losses up to the lower end, and of the jumps of those that jump."""
        rows = np.empty((len(self.parts), orders.size))
        at_points = [k for k, part in enumerate(self.parts) if isinstance(part.base, Points)]
        for k in set(range(len(self.parts))) - set(at_points):
            rows[k] = self.parts[k].base.log_mgf(orders)
        if at_points:
            rows[at_points] = log_mgfs([b for part in self.parts if isinstance(b := part.base, Points)], orders)
        jumps = self._jumping[1]
        return rows, log_mgfs(jumps, orders) if jumps else np.empty((0, orders.size))

    def log_mgf(self, orders: Array) -> Array:
        """log E_P[e^{sL}; the path is in this bracket] at real s."""
        values, jumps = self._log_mgfs(orders)
        total, jumping = self._counts @ values, self._jumping[0]
        if not jumping:
            return np.asarray(total)
        rises = log_of_log1p(jumps - values[jumping]) + np.log(self._counts[jumping])[:, None]
        log_more = np.logaddexp.reduce(rises, axis=0)
        return np.asarray(total + np.exp(log_more) + log_share(log_more))

    def spread(self, order: float) -> float:
        """Roughly the standard deviation of the loss, tilted by this order."""
        nudge = 1e-3 * abs(order)
        below, here, above = self.log_mgf(np.array([order - nudge, order, order + nudge]))
        return math.sqrt(max(float(above - 2 * here + below), 1e-12) / nudge**2)

    def transform(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, float]:
        """E_P[e^{sL}; in this bracket] at s = c + i spacing j over its value at c, bounds on the errors, log of that.

        As a polynomial in the B's and J's it has positive coefficients.  So where these are off by a and j, it is off
        by no more than its value at |B| + a and |J| + j exceeds that at |B| and |J|.

        Where all J/B are below e^-300 they are divided by e^shift, and only the first order of them is left: the rest
        is less than e^-200 of it.
        """
        counts, (jumping, jump_laws) = self._counts, self._jumping
        at_c, jumps_at_c = self._log_mgfs(np.array([c]))
        most = float((jumps_at_c - at_c[jumping]).max()) if jumping else 0.0
        shift = most if most < _TINY else 0.0
        values, errors, scales = self._on_line(c, spacing, count)
        small = np.abs(values) < _SMALLEST
        modulus = np.maximum(np.abs(values), _SMALLEST)
        log_modulus, angles = np.log(modulus), np.angle(values)
        log_base = size = counts @ log_modulus
        angle, inflated = counts @ angles, counts @ np.log(modulus + errors)
        loose = counts @ (2 + 2 * np.abs(angles) + 2 * np.abs(log_modulus))
        scale, unsure, blind = float(counts @ scales), float(counts @ np.abs(scales)), small.any(axis=0)
        if jumping:
            jumps, jump_errors, jump_scales = on_lines(jump_laws, c, spacing, count)
            repeats, own, moduli = counts[jumping], values[jumping], modulus[jumping]
            ahead_by = jump_scales - scales[jumping] - shift
            factors = np.exp(np.minimum(ahead_by, _LARGEST))
            repeated = np.ones(factors.size) if shift else np.maximum(1.0, repeats * np.minimum(1.0, factors))
            unsure += float(repeated @ (np.abs(jump_scales) + np.abs(scales[jumping]) + 1))
            unsure += math.inf if (ahead_by > _LARGEST).any() else 0.0
            turned = factors[:, None] * jumps * np.conj(own / moduli) / moduli
            sure = factors[:, None] * np.abs(jumps) / moduli
            most_sure = factors[:, None] * (np.abs(jumps) + jump_errors) / (moduli + errors[jumping])
            rise = repeats @ (turned if shift else log1p(turned))
            rise_size = repeats @ (sure if shift else np.log1p(sure))
            rise_inflated = repeats @ (most_sure if shift else np.log1p(most_sure))
        logs = log_base + 1j * angle
        if shift:
            logs, size, inflated = logs + np.log(rise), size + np.log(rise_size), inflated + np.log(rise_inflated)
        elif self.jumps:
            ahead = rise.real >= 0
            back = np.where(ahead, -rise, rise)
            logs = np.where(ahead, logs + rise, logs) + np.log(np.where(ahead, -1.0, 1.0) * np.expm1(back) + 0j)
            size = size + rise_size + np.log(-np.expm1(-rise_size))
            inflated = inflated + rise_inflated + np.log(-np.expm1(-rise_inflated))
            loose = loose + 2 * rise_size
        first = float(logs[0].real)
        shape = np.exp(logs - first)
        whole = np.exp(size - first)
        excess = inflated - size
        doubt = np.where(excess < 1, whole * np.expm1(np.clip(excess, 0.0, 1.0)), np.exp(inflated - first))
        doubt += np.where(blind, np.exp(inflated - first), 0.0)
        doubt += whole * ((16 + 2 * len(self.parts)) * UNIT_ROUNDOFF * (loose + unsure + 4 * len(self.parts)))
        return shape, doubt, scale + shift + first

    def _on_line(self, c: float, spacing: float, count: int) -> tuple[Complex, Array, Array]:
        """The transforms of each part's losses up to the lower end."""
        values, errors = np.empty((len(self.parts), count), dtype=np.complex128), np.empty((len(self.parts), count))
        scales = np.empty(len(self.parts))
        at_points = [k for k, part in enumerate(self.parts) if isinstance(part.base, Points)]
        for k in set(range(len(self.parts))) - set(at_points):
            values[k], errors[k], scales[k] = self.parts[k].base.on_line(c, spacing, count)
        laws = [b for part in self.parts if isinstance(b := part.base, Points)]
        values[at_points], errors[at_points], scales[at_points] = on_lines(laws, c, spacing, count)
        return values, errors, scales

    def crowd(self, c: float) -> Crowd:
        """The steps, for bounds on |transform|.

        It is a sum over the first step that jumps, of products of its J, the (B + J)'s of the steps before it and the
        B's of those after it, all of them positive at c.  Each product has decayed by all factors but one.
        """
        kinds = tuple(tuple(part.laws) for part in self.parts)
        return Crowd(kinds, np.array([float(part.count) for part in self.parts]), c, spare=self.jumps)

    @property
    def steps(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def squared(self) -> float:
        return sum(part.count * part.base.squared for part in self.parts if isinstance(part.base, GaussianLaw))


def bracket(laws: Laws, low: float, high: float) -> Bracket | None:
    """The paths with all losses up to `high`, at least one above `low` (which may be -inf); None if there are none."""
    below = low > -math.inf and all(not isinstance(law, Points) or float(law.losses.min()) <= low for law, _ in laws)
    parts = []
    for law, count in laws:
        if not isinstance(law, Points):
            parts.append(Part(law, None, count))
            continue
        base = law.losses <= (low if below else high)
        jump = (law.losses > low) & (law.losses <= high) if below else np.zeros(law.losses.size, dtype=np.bool_)
        if not base.any():
            return None
        parts.append(Part(_some(law, base), _some(law, jump) if jump.any() else None, count))
    found = Bracket(tuple(parts))
    return found if found.jumps or not below else None


def _some(law: Points, where: NDArray[np.bool_]) -> Points:
    return Points(law.losses[where], law.logs[where])


def log_of_log1p(x: Array) -> Array:
    """log of log(1 + e^x), which is x where e^x is no floating-point number."""
    return np.asarray(np.where(x < _SAME, x, np.log(np.logaddexp(0.0, np.maximum(x, _SAME)))))


def log_share(x: Array) -> Array:
    """log of 1 - e^-rise at x = log(rise), likewise."""
    return np.asarray(np.where(x < _SAME, x, np.log(-np.expm1(-np.exp(np.maximum(x, _SAME))))))


def log_bound(paths: Bracket, order: float, epsilons: Array) -> Array:
    """Chernoff's bound on log delta of a bracket: Lambda(t) - t eps + log k(t)."""
    raised = 1e-6 + 64 * UNIT_ROUNDOFF * paths.steps
    return np.asarray(float(paths.log_mgf(np.array([order]))[0]) + raised - order * epsilons + log_peak(order))
