"""Bounds on |E[g^r; label]| for every Im r beyond some height: what lets nodes of a line be left out."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hush.accounting.gaussian.strips import LOG_SQRT_2PI, Part, ladder, log_sum

_NEGLIGIBLE = 36.0
"""log of how much less of a bound counts for nothing, whatever the power it is raised to."""
Bend = tuple[int, int]
"""Which of the shifts worth trying a line of integration runs at: first at one, then at a lower one, or the same."""


def log_bound(part: Part, real: float, height: float, known: Collection[Bend] = ()) -> tuple[float, Bend]:
    """A bound on log |E[g^r; label]| for every |Im r| >= height, by cells: good to a few parts in a hundred.

    The line of integration runs at one height b0 up to some x and then, nearer to the axis, at b1 < b0, where a narrow
    window ends.  On the piece that joins them |g|^a, exp(-H arg g) and the window are each at their largest at one end.
    The best of all such bends, or of those `known` to be good for a step that is much alike; and which it is.
    """
    shifts = [shift for shift in [0.0, *ladder(part)] if shift <= 0.5 * np.pi * part.step.noise]
    bends = [(i, j) for i, j in known if i < len(shifts)] or [(i, j) for i in range(len(shifts)) for j in range(i + 1)]
    used = sorted({k for bend in bends for k in bend})
    lines = {k: part.log_cells(real, height, float(shifts[k])) for k in used}
    lefts = {k: part.log_left(real, height, float(shifts[k])) for k in used}
    sides = {k: part.log_side(real, height, 0.0, float(shifts[k])) for k in used}
    best, chosen = np.inf, bends[0]
    with np.errstate(all="ignore"):
        top = min(float(line.max()) for line in lines.values())  # others may be infinite beside it: so they are
        cells = {k: np.exp(line - top) for k, line in lines.items()}
        # sums over the cells before and after, relative to the top, with 1e-300 for what underflows
        befores = {k: np.cumsum(cell) + 1e-300 for k, cell in cells.items()}
        afters = {k: np.cumsum(cell[::-1])[::-1] + 1e-300 for k, cell in cells.items()}
        for i, j in bends:
            if i == j:
                bound = part.log_total(real, height, float(shifts[i]))
            else:
                high, low = shifts[i], shifts[j]
                far, near = part.profile(float(high)), part.profile(float(low))
                modulus = near.modulus if real >= 0 else far.modulus
                side = (
                    real * modulus
                    - height * near.angle
                    + abs(real) * np.maximum(near.slope, far.slope)
                    + height * near.turn
                )
                side = side + (far.base + np.log((high - low) / part.cells[1]) - top)
                total = befores[i][:-1] + afters[j][1:] + np.exp(side[:-1])
                bound = float(np.logaddexp.reduce([np.log(np.nanmin(total)) + top, lefts[i], sides[j]]))
            if bound < best:
                best, chosen = bound, (i, j)
    return best, chosen


def log_sharp_bound(part: Part, real: float, height: float, known: Collection[float] = ()) -> tuple[float, float]:
    """The same, good to many digits: fit to be raised to a large power.  For a label without `rises`.

    By the best shift, or those `known` to be good for a step that is much alike, in units of its noise; and which.

    M(b) is summed by the trapezoidal rule.  Its integrand |g(x+ib)|^a exp(-H arg g(x+ib)) and the bound of the window
    extend to complex x + iy, where 2 Re arg g -> arg g(x + i(b+y)) + arg g(x + i(b-y)) >= 0 for |y| <= b or
    |y| + b <= pi sigma/2, and |g(x+i(b+y)) g(x-i(b-y))|^(a/2) is at most g^a on the axis (a >= 0) or its value at
    b + |y| (a < 0).
    """
    spacing, noise, fine = 0.5 * part.cells[1], part.step.noise, part.fine
    tilted = real * fine.loss - 0.5 * fine.x * fine.x + np.log(spacing) - LOG_SQRT_2PI
    shape = np.exp(tilted - tilted.max()) * np.exp(fine.moved(0.0)[2])
    slope = float((shape * fine.hit).sum() / shape.sum()) / noise
    # the same few shifts whatever the height, so that what they need is computed once
    small = 0.5 * noise * 2.0 ** -np.arange(40)
    least, most = (0.2, 0.8) if known else (0.06, 1.1)
    small = small[(small > least * height * slope) & (small < most * height * slope)]
    wide = ladder(part)
    others = [noise * share for share in known if noise * share <= wide[-1]] if known else wide
    sums: list[tuple[float, float]] = []
    for shift in np.unique(np.concatenate([small, others])).tolist():
        change, angle, window = fine.moved(shift)
        sums.append((log_sum(tilted + real * change - height * angle + window) + 0.5 * shift**2, shift))
    best, chosen = np.inf, float(wide[-1])
    for moved, shift in sorted(sums):
        if moved >= best:
            break
        bound = float(np.logaddexp(moved, _log_sum_error(part, real, shift, moved - _NEGLIGIBLE)))
        if bound < best:
            best, chosen = bound, shift
    return best, chosen / noise


def _log_sum_error(part: Part, real: float, shift: float, enough: float) -> float:
    """log of how far the trapezoidal sum for M(shift) may be off, its ends included.

    By the best of a few strips, or the first that is good enough; each is computed once for all heights.
    """
    noise, spacing = part.step.noise, 0.5 * part.cells[1]
    furthest = min(max(shift, 0.5 * np.pi * noise - shift), 2.3 * noise - shift, 6.0)
    known = part.fine.unsure.setdefault((real, shift), [])
    betas = np.minimum(furthest, np.array([furthest, 0.4 * furthest, *(part.narrowest * np.array([4.0, 8.0, 12.0]))]))
    for beta in betas[len(known) :].tolist():
        if known and min(known) <= enough:
            break
        line = part.profile(shift + beta)
        modulus = part.losses if real >= 0 else line.modulus
        strip = log_sum(real * modulus + abs(real) * line.slope + line.base) + np.log(2)
        side = part.log_side(real, 0.0, -(shift + beta), shift + beta) + 2
        ends = part.log_ends(real, 0.0, shift) + 2
        known.append(float(np.logaddexp.reduce([strip - 2 * np.pi * beta / spacing, side, ends])))
    return min(known)
