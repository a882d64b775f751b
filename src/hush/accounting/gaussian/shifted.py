"""Bounds on the integrand of E[g^r] along x + ib: how far apart nodes may be, and how |E[g^r]| falls with |Im r|."""

from __future__ import annotations

import numpy as np

from hush.accounting.gaussian.transform import LOG_SQRT_2PI, Array, Grid, log_ratio

_SPARE = 5.0  # log of how much more than what is wanted sides may add: no narrower strip is worth less
_LARGE = 600.0  # a loss whose exponential is a floating-point number


def shifts(grid: Grid) -> Array:
    """Strip half-widths worth trying: below pi*sigma, where g has its zeros, and below 9, the Gaussian's own limit."""
    return np.minimum(np.array([0.1, 0.35, 0.75, 1.4, 2.2]) * grid.step.noise, 9.0)


def log_integral_along(grid: Grid, shift: float, real_power: float, height: float, sign: int) -> float:
    """log of the trapezoidal sum of |g|^a exp(sign * height * |arg g|) |phi| along x + i shift."""
    modulus, angle = grid.moved(float(shift))
    return 0.5 * shift * shift + _log_sum(real_power * modulus + sign * height * np.abs(angle) + grid.log_weight)


def cell_allowance(grid: Grid, modulus: Array, slope: float) -> Array:
    """How much |slope * log g| and the log-density may rise within half a spacing of each node.

    d log g / dx = v/sigma, with |v| = p e^u / |g| (at most e^(spacing/sigma) times as large within the cell).
    """
    half = 0.5 * grid.spacing
    share = np.exp(np.log(grid.step.rate) + grid.exponent - modulus + grid.spacing / grid.step.noise)
    return np.asarray(half * (slope * share / grid.step.noise + np.abs(grid.nodes) + half))


def _log_bound_along(grid: Grid, shift: float, real_power: float, height: float) -> float:
    """A proved upper bound of the integral that `log_integral_along` sums, with sign +1."""
    modulus, angle = grid.moved(float(shift))
    allowance = cell_allowance(grid, modulus, abs(real_power) + height)
    terms = real_power * modulus + height * np.abs(angle) + grid.log_weight + allowance
    return 0.5 * shift * shift + _log_sum(terms)


def _log_sum(terms: Array) -> float:
    top = float(terms.max())
    return top + float(np.log(np.exp(terms - top).sum()))


def fine_enough(
    grid: Grid, real_power: float, height: float, log_error: float, scale: float, most: int
) -> tuple[Grid, float]:
    """The fewest nodes that a strip proves good to exp(log_error), over e^scale, up to |Im r| = height; and its sides.

    Of strips that allow for the same spacing the narrowest, and at up to twice the nodes, but no more than `most`, one
    whose sides add about as little, or else the least.
    """
    strips = []
    for shift in shifts(grid).tolist():
        size = _log_bound_along(grid, shift, real_power, height)
        polynomial = 0.5 * shift**2 + np.log(3 + 2 * (abs(real_power) + height))
        needed = float(np.logaddexp(size, polynomial) + np.log(2) - log_error - scale)
        widest = 2 * np.pi * shift / max(needed, 1.0) if np.isfinite(needed) else 0.0
        strips.append((-min(widest, grid.spacing), shift))
    strips.sort()
    best, least = grid, np.inf
    for spacing, shift in strips:
        if spacing > 0.5 * strips[0][0] or spacing == 0:
            break
        fine = grid.refined(-spacing)
        if least < np.inf and fine.size > most:
            break
        sides = end_sizes(fine, real_power, height, shift, scale)
        if sides < least:
            best, least = fine, sides
        if least <= np.exp(log_error + _SPARE):
            break
    return best, least


def _end_losses(grid: Grid) -> tuple[Array, Array, Array]:
    """Loss, log-density and the hit's share at the two ends of the interval."""
    ends = np.array([grid.left, grid.right])
    exponent = ends / grid.step.noise - 0.5 / grid.step.noise**2
    loss = log_ratio(exponent, grid.step.rate)
    return loss, -0.5 * ends**2 - LOG_SQRT_2PI, np.exp(np.log(grid.step.rate) + exponent - loss)


def end_sizes(grid: Grid, real_power: float, height: float, shift: float, scale: float = 0.0) -> float:
    """What the two vertical sides of the strip of half-width `shift` may add to the quadrature error, over e^scale.

    They are integrated against exp(-2 pi y/spacing), twice for each end; |g^r| grows by exp(height * arg g) at most,
    and |1 + r (g-1)| is bounded on all of a side: only the density grows there.
    """
    loss, density, share = _end_losses(grid)
    most = np.minimum(loss, _LARGE)  # beyond, each of the polynomial's terms grows by e^(loss - most) or less
    polynomial = 1 + (abs(real_power) + height) * (np.abs(np.expm1(most)) + 2 * share * np.exp(most))
    damping = 2 * np.pi / grid.spacing
    sides = [_log_side(grid, share[k], real_power, height, shift, damping) for k in (0, 1)]
    plain = _log_side(grid, 0.0, 0.0, 0.0, shift, damping)
    log_sizes = np.logaddexp(real_power * loss + sides, np.log(polynomial) + (loss - most) + plain) + density
    return float(2 * np.exp(np.minimum(np.logaddexp.reduce(log_sizes) - scale, 700.0)))


def log_missed(grid: Grid, powers: Array) -> Array:
    """log of what `excess` may miss at real powers r where g^r is large at an end of the interval.

    An end adds 2 |f| times the integral of exp(K y^2/2 - 2 pi y/d) over 0 <= y <= b, at most d/pi up to b = 2 pi/(K d).
    K is 1 where r >= 0, since |g(x+iy)| <= g(x), and 1 + |r| w/sigma^2 or less where r < 0, w the hit's share.
    """
    loss, density, _ = _end_losses(grid)
    ends = np.logaddexp.reduce(np.multiply.outer(powers, loss) + density, axis=-1)
    return np.asarray(ends + np.log(2 / np.pi * grid.spacing))


def _log_side(grid: Grid, share: float, real_power: float, height: float, shift: float, damping: float) -> float:
    """log of the integral over 0 <= y <= shift of |g^r phi| at x + iy beside its size at y = 0, cell by cell.

    With w the hit's share at x, |g(x+iy)/g(x)|^2 = 1 - 2 w (1-w) (1 - cos(y/sigma)) falls with y, and
    arg g = atan2(w sin, 1 - w + w cos) is concave where w < 1/2, with slope w/sigma at 0, and rises where w >= 1/2.
    """
    y = np.linspace(0.0, shift, 400)
    angle = y / grid.step.noise
    argument = np.arctan2(share * np.sin(angle), 1 - share * (1 - np.cos(angle)))
    shrunk = 0.5 * np.log(np.maximum(1 - 2 * share * (1 - share) * (1 - np.cos(angle)), 1e-300))
    most = np.maximum(argument[:-1], argument[1:]) + (angle[1] * share if share < 0.5 else 0.0)
    exponent = height * most - damping * y[:-1] + 0.5 * y[1:] ** 2 + np.maximum(real_power * shrunk[1:], 0.0)
    return float(np.log(y[1]) + np.logaddexp.reduce(exponent))


def log_decay(grid: Grid, real_power: float, height: float, log_size: float) -> float:
    """A bound on log |E[g^r]| that holds for *every* |Im r| >= height (Re r = real_power).

    Moving the line of integration to x + ib multiplies the integrand by exp(-|Im r| arg g(x+ib)), and arg g > 0
    there: the modulus of the integral falls with |Im r|.  `log_size` is that of E[g^a] on the axis; the sum of the
    moved modulus is itself exponentially accurate (docs/certificate.md), its error and the two sides join the bound.
    """
    best = np.inf
    noise = grid.step.noise
    loss, density, share = _end_losses(grid)
    # For many steps the best shift is small: exp(b^2/2 - height b E[l']) is least at b = height E[l'].
    tilted = real_power * grid.loss + grid.log_weight
    tilted = np.exp(tilted - tilted.max())
    slope = float(tilted @ grid.hit / tilted.sum()) / noise
    small = np.array([0.1, 0.3, 0.6, 1.0]) * height * slope
    tried = np.concatenate([small[small < 0.5 * noise], shifts(grid)]).tolist()
    for moved, shift in sorted((log_integral_along(grid, shift, real_power, height, -1), shift) for shift in tried):
        if moved >= best:
            break
        # with |y| <= b, or |y| + b <= pi sigma/2, the sum of arg g at b + y and at b - y is not negative
        second = min(0.9 * (np.pi * noise - shift), max(shift, 0.5 * np.pi * noise - shift), 6.0)
        if real_power >= 0:
            size_there = log_size
        else:
            second = min(
                second, 2.0 * noise - 0.5 * shift, 9.0 / np.sqrt(1 + abs(real_power) * grid.step.rate / noise**2)
            )
            modulus, _ = grid.moved(float(shift + second))
            terms = real_power * modulus + grid.log_weight + cell_allowance(grid, modulus, abs(real_power))
            size_there = _log_sum(terms)
        log_error = np.log(2) + size_there + 0.5 * (shift**2 + second**2) - 2 * np.pi * second / grid.spacing
        # what the two ends add, to the moved integral and to its sum: no more than on the axis, over shift + spacing
        angle = (shift + second) / noise
        shrunk = 0.5 * np.log(np.maximum(1 - 2 * share * (1 - share) * (1 - np.cos(angle)), 1e-300))
        ends = real_power * loss + np.maximum(real_power * shrunk, 0.0) + density
        log_ends = float(np.logaddexp.reduce(ends)) + 0.5 * shift**2 + float(np.log(shift + grid.spacing))
        best = min(best, float(np.logaddexp(np.logaddexp(moved, log_error), log_ends)))
    return best
