"""Laws of losses on a lattice: bounds on a `Pair` from both sides, and their composition.

Each step's pair is replaced by two pairs whose losses lie on a lattice: one that reveals more (mass spread to the two
ends of its bin, "connect the dots", Doroshenko et al. 2022) and one that reveals less (bins merged so that their
likelihood ratio is that of a lattice point). Both orders survive composition, and both are second order in the
spacing. Lattice laws are composed by FFT of the exponentially tilted masses, so that delta = 1e-100 keeps its digits;
what wraps around and what rounding may have done is bounded and counted on the safe side. Long compositions go in
stages with coarser lattices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from hush.accounting.pairs.doubts import doubts
from hush.accounting.pairs.losses import Array, Enclosed, Pair

_UNIT = 2.0**-53
UNDERFLOW = 1e-290  # below, a mass has lost its relative accuracy
_WRAP = 44.0  # tilted mass outside the window: at most exp(-44) = 8e-20 on either side
_LONGEST = 2**20  # transform length
_FAINT = -690.0  # log of a tilted mass that may be lost
_WIDEST = 2e7  # nodes
_STEEPEST = 50.0  # log of what a tilted mass grows by between two points
_BASE = 1024  # steps per stage of a long composition
_FEW = 200_000  # up to so many steps the rounding of one long transform is harmless


class WindowTooLongError(Exception):
    """The lattice is too fine for the range of losses: the transform would be ``excess`` times too long."""

    def __init__(self, excess: float) -> None:
        super().__init__(f"The lattice is {excess:.3g} times too fine for the longest transform; use a wider spacing.")
        self.excess = excess


@dataclass(frozen=True)
class Faint:
    """A bound exp(log - tilt x) on the P-mass beyond any x, of either sign: by Markov, as E[e^{tilt L}] is exp(log)."""

    log: float
    tilt: float

    def at(self, losses: Array) -> Array:
        return np.asarray(self.log - self.tilt * losses) if self.log > -math.inf else np.full(losses.shape, -np.inf)


NONE = Faint(-math.inf, 0.0)


@dataclass(frozen=True)
class Law:
    """P-masses ``exp(logs)`` at losses ``origin + spacing * index`` (Q-mass: times e^-loss), and P(L = inf)."""

    spacing: float
    origin: float
    index: NDArray[np.int64]
    logs: Array
    infinite: float
    log_hidden: float = -math.inf
    """log of a bound on further mass at infinite loss, too small to be told by a floating-point number."""
    faint: Faint = NONE
    """Masses that were lost, as tilted ones are too small for floating point: a bound beyond any loss."""

    @property
    def log_infinite(self) -> float:
        return float(np.logaddexp(math.log(self.infinite) if self.infinite > 0 else -math.inf, self.log_hidden))

    @cached_property
    def losses(self) -> Array:
        return np.asarray(self.origin + self.spacing * self.index, dtype=np.float64)

    @cached_property
    def tails(self) -> tuple[Array, Array, Array]:
        """Logs of the P-mass T from each loss l_k on and of e^-l_k delta(l_k), and how far both may be off.

        The latter is the sum over j > k of T_j (e^-l_(j-1) - e^-l_j), by parts: all terms are positive.  A sum of
        logarithms is off by a unit of rounding of each number in it, and a few more, and so on for every point.
        """
        p = np.logaddexp.accumulate(self.logs[::-1])[::-1]
        with np.errstate(divide="ignore"):
            steps = p[1:] - self.losses[:-1] + np.log(-np.expm1(-self.spacing * np.diff(self.index)))
        scaled = np.append(np.logaddexp.accumulate(steps[::-1])[::-1], -np.inf)
        sizes = 3 * np.abs(p) + 3 * np.abs(np.append(scaled[:-1], 0.0)) + np.abs(self.losses) + 32
        return np.append(p, -np.inf), np.append(scaled, -np.inf), np.append(_UNIT * np.cumsum(sizes[::-1])[::-1], 0.0)

    def tilted(self, tilt: float) -> tuple[float, Array]:
        """log E_P[e^{tilt L}; L finite] and the masses of the law tilted by e^{tilt L}, which add up to 1."""
        return _tilted(self.losses, self.logs, tilt)


def _tilted(losses: Array, logs: Array, tilt: float) -> tuple[float, Array]:
    exponents = logs + tilt * losses
    peak = float(exponents.max())
    weights = np.exp(exponents - peak)
    total = float(weights.sum())
    return peak + math.log(total), weights / total


def _kept(
    spacing: float,
    origin: float,
    index: NDArray[np.int64],
    logs: Array,
    infinite: float,
    log_hidden: float = -math.inf,
    faint: Faint = NONE,
) -> Law:
    """A law without its empty points (one point is always kept)."""
    full = logs > -np.inf
    if not full.any():
        full, logs = np.arange(logs.size) == 0, np.full(logs.size, -745.0)
        infinite = max(0.0, infinite)
    return Law(spacing, origin, index[full], logs[full], min(1.0, infinite), log_hidden, faint)


def spread(p: Array, q: Array, nodes: Array) -> tuple[Array, float]:
    """More revealing: masses on the nodes, and at infinity, from those of the bins with edges at the nodes.

    A bin (lo, hi] with masses (p, q) puts u on hi and v on lo, ``u + v = p``, ``u e^-hi + v e^-lo = q``. The
    likelihood ratio under Q is spread with its mean kept, so no test gets worse (Blackwell). Below the first node
    P-mass moves up; above the last, to infinity.
    """
    inner_p, inner_q = p[1:-1], q[1:-1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # as a product where that stays in range: the exponential of a sum would lose as many units as the sum is large
        high = nodes[1:]
        lifted = np.where(high < 600, inner_q * np.exp(np.minimum(high, 600.0)), np.exp(np.log(inner_q) + high))
        low = (lifted - inner_p) / np.expm1(np.diff(nodes))
    low = np.where((inner_q < UNDERFLOW) | np.isnan(low), 0.0, np.clip(low, 0.0, inner_p))
    masses = np.append(low, 0.0)
    masses[1:] += inner_p - low
    masses[0] += p[0]
    return masses, float(p[-1])


def merge(own: Array, gap: Array, above: Array, surplus: Array, below: Array, deficit: Array) -> Array:
    """Less revealing: P-masses on the nodes from those of the bins around them.

    Node l may hold merged parts of bins whose P-mass is at least e^l times their Q-mass: merging is post-processing,
    and raising Q to equality only lowers delta. The bin around a node has P-mass ``own`` and ``gap = P - e^l Q``; the
    next bin up ``above`` and ``surplus = P - e^l Q``, the next one down ``below`` and ``deficit = e^l Q - P``. A node
    short of P takes a fraction x of the bin above, one with too much a fraction y of the bin below; a bin that finds
    no partner moves down. Gaps are of second order, so the fractions are small and a few rounds balance them.
    Whatever the rounds leave, the last lines make valid.
    """
    gap = np.where(np.abs(gap) <= 8 * _UNIT * own, 0.0, gap)
    short, lost = gap < 0, gap == -np.inf
    known = np.where(lost, 0.0, gap)
    # Fractions of bin k: x[k] goes to node k - 1 (asked for there, or forced to leave), y[k + 1] to node k + 1.
    asked, forced, y = np.zeros(own.size + 1), np.zeros(own.size + 1), np.zeros(own.size + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(16):
            free = 1 - asked[:-1] - y[1:]
            asked[1:] = np.where(
                short & (surplus > 0), np.minimum(free * -known / surplus, 1 - y[np.r_[2 : y.size, -1]]), 0.0
            )
            asked[-1] = 0.0
            x = np.maximum(asked, forced)
            forced[:-1] = np.where(short, np.maximum(0.0, 1 - y[1:] - x[1:] * surplus / -gap), 0.0)
            x = np.maximum(asked, forced)
            balance = (1 - x[:-1] - y[1:]) * known + x[1:] * surplus
            y[:-1] = np.where((balance > 0) & (deficit > 0), np.minimum(0.9, balance / deficit), 0.0)
            y[:-1] = np.minimum(y[:-1], 1 - np.append(0.0, asked[:-2]))
            y[0] = 0.0
        x = np.clip(np.maximum(asked, forced), 0.0, 1 - np.append(y[1:], 0.0))
        stay = 1 - x[:-1] - y[1:]
        balance = np.maximum(0.0, stay * known + x[1:] * surplus)
        y[:-1] = np.where(y[:-1] > 0, np.minimum(y[:-1], balance / deficit), 0.0)
        stay = 1 - x[:-1] - y[1:]
        matched = np.where(short, (x[1:] * surplus - y[:-1] * deficit) / (stay * -gap), 1.0)
    matched = np.clip(np.nan_to_num(matched, nan=0.0), 0.0, 1.0)
    left = np.append((1 - matched[1:]) * stay[1:], 0.0)
    return np.asarray(np.nan_to_num(matched * stay * own + (x[1:] + left) * above + y[:-1] * below, nan=0.0))


def discretise(
    pair: Pair, spacing: float, origin: float, index: NDArray[np.int64], *, isolated: NDArray[np.bool_] | None = None
) -> tuple[Law, Law]:
    """Two lattice laws, (lower, upper), that reveal less and more than the pair; ``isolated`` marks nodes on atoms."""
    nodes = np.asarray(origin + spacing * index, dtype=np.float64)
    lower, upper = (pair.lower, pair.upper) if isinstance(pair, Enclosed) else (pair, pair)
    p, q = upper.masses(nodes)
    masses, infinite = spread(*doubts(upper, p, q, nodes).more(p, q), nodes)
    edges, alone = (nodes[1:] + nodes[:-1]) / 2, np.zeros(nodes.size, dtype=np.bool_)
    if isolated is not None:
        edges, alone = _around_atoms(lower, nodes, edges, np.flatnonzero(isolated), spacing)
    p, q = lower.masses(edges)
    p, q = doubts(lower, p, q, edges).less(p, q)
    # Mass at infinite losses stays apart.
    p[-1], q[0] = max(0.0, p[-1] - lower.infinite), max(0.0, q[0] - lower.vanishing)
    _raise_lowest(p, q, nodes, alone)
    with np.errstate(divide="ignore", over="ignore"):
        log_q = np.log(q)
        gap = np.where(q < UNDERFLOW, -np.inf, p - np.exp(log_q + nodes))
        gap[alone] = 0.0
        surplus = np.append(p[1:] - np.exp(log_q[1:] + nodes[:-1]), 0.0)
        deficit = np.append(0.0, np.exp(log_q[:-1] + nodes[1:]) - p[:-1])
    # Bins that lost Q to underflow have a loss above the node before them, and that is all that is known.
    surplus[:-1][q[1:] < UNDERFLOW] = 0.0
    merged = merge(p, gap, np.append(p[1:], 0.0), surplus, np.append(0.0, p[:-1]), deficit)
    with np.errstate(divide="ignore"):
        return (
            _kept(spacing, origin, index, np.log(merged), lower.infinite),
            _kept(spacing, origin, index, np.log(masses), max(infinite, upper.infinite) + UNDERFLOW),
        )


def _raise_lowest(p: Array, q: Array, nodes: Array, alone: NDArray[np.bool_]) -> None:
    """Join the lowest bin to the next one where its node lies below all its losses: nothing could balance it there.

    In place.  The next node then takes what it is short of from the bin above, so that nothing of first order is lost.
    """
    if p[0] > 0 or q[0] > 0:
        return  # a bin without an end
    lowest = int(np.argmax((p > 0) | (q > 0)))
    if lowest + 1 >= p.size or nodes[lowest] < -600 or alone[lowest] or alone[lowest + 1]:
        return
    if p[lowest] > math.exp(nodes[lowest]) * q[lowest] and p[lowest] < 2 * p[lowest + 1]:
        for masses in (p, q):
            masses[lowest + 1] += masses[lowest]
            masses[lowest] = 0.0


def _around_atoms(
    pair: Pair, nodes: Array, edges: Array, atoms: NDArray[np.int64], spacing: float
) -> tuple[Array, NDArray[np.bool_]]:
    """Edges moved so that an atom at an end of the support has a bin of its own, and which nodes hold just an atom.

    The mass on the inner side of such an atom would find no partner in its bin. In the next one it does.
    """
    margin = np.maximum(1e-9 * spacing, 16 * _UNIT * np.abs(nodes))
    low, high = np.append(nodes[0] - spacing, edges), np.append(edges, nodes[-1] + spacing)
    edges, alone = edges.copy(), np.zeros(nodes.size, dtype=np.bool_)
    for k in atoms:
        p, _ = pair.masses(np.array([low[k], nodes[k] - margin[k], nodes[k] + margin[k], high[k]]))
        alone[k] = p[1] == 0 or p[3] == 0
        if p[3] == 0 and k > 0:
            edges[k - 1] = nodes[k] - margin[k]
        elif p[1] == 0 and k < edges.size:
            edges[k] = nodes[k] + margin[k]
    return edges, alone


def coarsen(law: Law, spacing: float, tilt: float, *, upper: bool) -> Law:
    """The law on a coarser lattice, revealing more (``upper``) or less."""
    found = on_lattice(law.losses, law.logs, spacing, tilt, upper=upper)
    both = _joined([(found.faint, 1), (law.faint, 1)], tilt)
    return replace(found, infinite=law.infinite, log_hidden=law.log_hidden, faint=both)


def _joined(lost: Sequence[tuple[Faint, int]], tilt: float) -> Faint:
    """What was lost by laws, each so often: all at one tilt, or at none."""
    some = [(one, count) for one, count in lost if one.log > -math.inf]
    if any(one.tilt != tilt for one, _ in some):
        raise OverflowError("Masses were lost at another tilt.")
    return Faint(float(np.logaddexp.reduce([one.log + math.log(count) for one, count in some])), tilt) if some else NONE


def _lost(losses: Array, logs: Array, tilt: float, mgf: float) -> Faint:
    """What tilted masses below e^-690 of all amount to at most: products of them underflow."""
    few = int(np.sum((logs + tilt * losses - mgf < _FAINT) & (logs > -np.inf)))
    return Faint(mgf + _FAINT + math.log(few) + 1e-9 * (1 + abs(mgf)), tilt) if few else NONE


def on_lattice(losses: Array, logs: Array, spacing: float, tilt: float, *, upper: bool) -> Law:
    """A law at ascending losses on a lattice, revealing more (``upper``) or less; by tilted masses, node by node."""
    if tilt * spacing > _STEEPEST:
        raise OverflowError("A lattice this coarse can't hold masses tilted so much.")
    mgf, weight = _tilted(losses, logs, tilt)
    faint = _lost(losses, logs, tilt, mgf) if upper else NONE
    origin = float(losses[np.argmax(weight)])
    place = (losses - origin) / spacing
    if place.max() - place.min() > _WIDEST:
        raise OverflowError("A lattice this fine can't hold losses this far apart.")
    first = math.floor(place.min()) - 1
    index = np.arange(first, math.ceil(place.max()) + 2)
    nodes = origin + spacing * index

    def total(bins: NDArray[np.int64], values: Array) -> Array:
        return np.bincount(bins, values, index.size).astype(np.float64)

    if upper:
        low = np.floor(place).astype(np.int64) - first
        reach = nodes[low + 1] - losses
        share = np.clip(np.expm1(reach) / math.expm1(spacing), 0.0, 1.0)
        masses = total(low, weight * share * np.exp(tilt * (reach - spacing))) + total(
            low + 1, weight * (1 - share) * np.exp(tilt * reach)
        )
    else:
        near = np.rint(place).astype(np.int64) - first
        shift = nodes[near] - losses
        own, gap = (total(near, weight * np.exp(tilt * shift) * part) for part in (1.0, -np.expm1(shift)))
        down, up = shift - spacing, shift + spacing
        above, surplus = (total(near - 1, weight * np.exp(tilt * down) * part) for part in (1.0, -np.expm1(down)))
        below, deficit = (total(near + 1, weight * np.exp(tilt * up) * part) for part in (1.0, np.expm1(up)))
        masses = merge(own, gap, above, surplus, below, deficit)
    with np.errstate(divide="ignore"):
        if upper and np.isnan(masses).any():
            raise OverflowError("Masses beyond the floating-point range make no law.")
        # split outcomes move by a spacing at most
        faint = replace(faint, log=faint.log + tilt * spacing)
        return _kept(spacing, origin, index, np.log(masses) + mgf - tilt * nodes, 0.0, faint=faint)


def compose(laws: Sequence[Law], counts: Sequence[int], tilt: float, *, upper: bool, floor: float = math.inf) -> Law:
    """The law of the sum of independent losses, rounded up (``upper``) or down in every mass.

    Mass above the window counts as infinite; ``floor`` is the log of the most that may do so. The tilted laws f_i are
    multiplied as transforms, ``prod_i F_i^{T_i}``, on N points that hold all but exp(-44) of the tilted sum
    (Chernoff, from the log-MGF at other tilts). With unit roundoff u each F_i is within ``(4 log2 N + 8) u`` (a
    butterfly network applied to masses that add up to 1); the error of the product is taken point by point, and its
    mean bounds the error of every mass.
    """
    pairs = [law.tilted(tilt) for law in laws]
    mgf = math.fsum(count * pair[0] for count, pair in zip(counts, pairs, strict=True))
    origin = math.fsum(count * law.origin for count, law in zip(counts, laws, strict=True))
    spacing = laws[0].spacing
    start, length, log_escaped, low_tail = _window(laws, [pair[1] for pair in pairs], counts, tilt, mgf, floor)
    first = math.floor((start - origin) / spacing)
    if not abs(first) < 2**62:
        raise OverflowError("The lattice begins beyond what integers count.")
    levels = math.log2(length)
    spectrum_error = (4 * levels + 8) * _UNIT
    log_size, inflated, phase, loose = (np.zeros(length // 2 + 1) for _ in range(4))
    for law, (_, weight), count in zip(laws, pairs, counts, strict=True):
        transform = rfft(np.bincount(law.index % length, weight, length))
        size, angle = np.abs(transform), np.angle(transform)
        with np.errstate(divide="ignore"):
            log_size += count * np.log(size)
        inflated += count * np.log(size + spectrum_error)
        phase += count * angle
        loose += count * (np.abs(angle) + 1)
    size = np.exp(log_size)
    loose -= np.maximum(log_size, -745.0)
    doubt = np.exp(inflated) - size + size * (2 * _UNIT) * (2 + loose)
    masses = irfft(size * np.exp(1j * phase), length)
    error = 2 * float(np.sum(doubt) + 4 * levels * _UNIT * np.sum(size)) / length
    index = np.arange(first, first + length)
    masses = masses[index % length]
    masses = np.maximum(masses, 0.0) + error if upper else masses - error - 2 * math.exp(-_WRAP)
    # Beyond the sum of the largest losses there is nothing, whatever rounding says.
    last = sum(count * int(law.index.max()) for law, count in zip(laws, counts, strict=True))
    masses[index > last] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(masses, 0.0)) + mgf - tilt * (origin + spacing * index)
        infinite = float(
            -np.expm1(sum(count * np.log1p(-law.infinite) for law, count in zip(laws, counts, strict=True)))
        )
    log_hidden = float(np.logaddexp.reduce([math.log(n) + law.log_hidden for law, n in zip(laws, counts, strict=True)]))
    faint = NONE
    if upper and np.isnan(logs).any():
        raise OverflowError("Masses beyond the floating-point range make no law.")
    if upper:
        logs[0] = np.logaddexp(logs[0], low_tail)
        own = [
            (_lost(law.losses, law.logs, tilt, pair[0]), law.faint, pair[0])
            for law, pair in zip(laws, pairs, strict=True)
        ]
        # one step loses it, and all others are as they may be
        shares = [
            (Faint(one.log - size, tilt), count)
            for (new, old, size), count in zip(own, counts, strict=True)
            for one in (new, _joined([(old, 1)], tilt))
        ]
        faint = _joined(shares, tilt)
        faint = replace(faint, log=faint.log + mgf + 1e-9 * (1 + abs(mgf)) + 1e-9)
        if index[-1] < last:
            log_hidden = float(np.logaddexp(log_hidden, log_escaped))
    return _kept(spacing, origin, index, logs, infinite, log_hidden, faint)


def _window(
    laws: Sequence[Law], weights: Sequence[Array], counts: Sequence[int], tilt: float, mgf: float, floor: float
) -> tuple[float, int, float, float]:
    """Where the composed law is computed: first loss, number of points; logs of the P-mass above and below."""
    mean = variance = 0.0
    for law, weight, count in zip(laws, weights, counts, strict=True):
        centre = float(weight @ law.losses)
        mean += count * centre
        variance += count * float(weight @ (law.losses - centre) ** 2)
    spacing = laws[0].spacing
    shifts = math.sqrt(2 * _WRAP / max(variance, spacing**2)) * 2.0 ** np.linspace(-8, 4, 25)
    high, low = np.zeros(shifts.size), np.zeros(shifts.size)
    for law, weight, count in zip(laws, weights, counts, strict=True):
        relative = shifts[:, None] * law.losses
        with np.errstate(divide="ignore"):
            log_weight = np.log(weight)
        high += count * _log_sum(log_weight + relative)
        low += count * _log_sum(log_weight - relative)
    top = max(float(np.min((high + _WRAP) / shifts)), float(np.min((high + mgf - floor) / (shifts + tilt))))
    bottom = float(np.max(-(low + _WRAP) / shifts))
    if (top - bottom) / spacing > _LONGEST:
        raise WindowTooLongError((top - bottom) / spacing / _LONGEST)
    length = next_fast_len(max(16, math.ceil((top - bottom) / spacing) + 4), real=True)
    log_escaped = min(0.0, float(np.min(high + mgf - (shifts + tilt) * top)))
    below = np.where(shifts >= tilt, low + mgf + (shifts - tilt) * bottom, 0.0)
    return bottom - spacing, length, log_escaped, min(0.0, float(below.min()))


def _log_sum(exponents: Array) -> Array:
    """Log of the sum of exponentials along the last axis."""
    peak = exponents.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(exponents - peak).sum(axis=-1)) + peak[:, 0])


def is_short(laws: Sequence[Law], counts: Sequence[int], tilt: float) -> bool:
    """Whether the composition is best done by one transform."""
    deviation = math.sqrt(sum(count * _deviation(law, tilt) ** 2 for law, count in zip(laws, counts, strict=True)))
    length = 24 * deviation / laws[0].spacing
    return length < (2**19 if sum(counts) < _FEW else 2**17) or sum(counts) <= 2 * _BASE


def compose_long(
    laws: Sequence[Law], counts: Sequence[int], tilt: float, fineness: float, floor: float, *, upper: bool
) -> Law:
    """Compose in one go where the transform is short enough, else by the digits of the counts in base 1024 (Horner).

    After each stage the law is put on a lattice of ``fineness`` times its own standard deviation.
    """
    if is_short(laws, counts, tilt):
        return compose(laws, counts, tilt, upper=upper)
    level = 0
    while sum(count // _BASE**level for count in counts) > 8 * _BASE:
        level += 1
    result: Law | None = None
    for power in range(level, -1, -1):
        digits = [count // _BASE**power if power == level else count // _BASE**power % _BASE for count in counts]
        chosen = [(law, digit) for law, digit in zip(laws, digits, strict=True) if digit]
        fresh = (
            compose([law for law, _ in chosen], [digit for _, digit in chosen], tilt, upper=upper, floor=floor)
            if chosen
            else None
        )
        if result is None:
            result = fresh
            continue
        spacing = max(fineness * _deviation(result, tilt), laws[0].spacing)
        parts = [coarsen(law, spacing, tilt, upper=upper) for law in (result, fresh) if law]
        result = compose(parts, [_BASE, 1][: len(parts)], tilt, upper=upper, floor=floor if power else math.inf)
    assert result is not None
    return result


def _deviation(law: Law, tilt: float) -> float:
    _, weight = law.tilted(tilt)
    centre = float(weight @ law.losses)
    return math.sqrt(float(weight @ (law.losses - centre) ** 2))
