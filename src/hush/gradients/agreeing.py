"""Is what is summed what was clipped?  The two modes of differentiation, compared at every step.

Norms are projected in forward mode, gradients summed in backward mode.  Let a unit's gradient be f in the one, b in the
other, and w = C/M(f) its weight, M(f)^2 = mean_j <f, v_j>^2 over the projections' own directions.  If

    rms_j <w (b - f), v_j>  <=  t,        then        w M(b)  <=  w M(f) + t  <=  C + t,

by the triangle inequality: w b has the norm ||b|| (C + t) / M(b) at most, which is what is accounted for thresholds of
C + t, whatever the weight knew of the directions.  Nothing here is a matter of chance.

All that is seen is the sum over units, D = sum w (b - f), as <S, v_j> - sum w <f, v_j>, S the sum by backward mode.
Where one unit's modes differ, D is that unit's; and if two neighbouring sums both pass, what one unit added to D is 2t
at most, whatever the others did.  Training clips lower by C/400 = 2.5 t (`hush.rounding.UNNOTICED`), with t = C/1000.
The half t that is left over is for the rounding of D.

Rounding.  Gradients that all point the same way add up to S of norm B C, of which float32 loses up to |S|/100,000 (by
measurement, in honest networks): more than t from a hundred units on.  What it loses is mostly the same for units that
are alike, so it goes away together with S where half of the units, chosen by coins, count negatively.  Then S is about
sqrt(B) C whatever the gradients, and a unit's w (b - f) is as large as it was.  So there are several looks, and the
first that passes decides; all but the first are rarely needed:

1. on eight directions, with t/4.  (Of more than eight: a difference of ten times as much, C/400, passes with
   probability P(chi2_8 <= 8/100) < 2e-7.  Of up to eight this look is the next.)
2. on all directions, with t;
3. one more backward pass with signs, on all directions, with t;
4. every unit by itself, by two backward passes, on all directions, with t.  Here thousands of units may be off by
   rounding, as those with large inputs are, as long as each is off by little.

Before the last two, D must be below t + |S|/50,000: backward passes that aren't linear in the weights, which are no
derivatives, may not be told by signs.  Nor can the first three see units whose differences cancel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hush.gradients.directional import dot, transposed
from hush.gradients.engines import count, one_loss_each
from hush.gradients.fitting import Fit, Fitting
from hush.gradients.unfused import unfused
from hush.gradients.ways import Found, Work, weighted_sums
from hush.rounding import UNNOTICED

_FIRST = 8
_TOLERANCE = UNNOTICED / 2.5
_ROUNDING = 1 / 50_000
"""Of the threshold, and of the sum."""
_PARTS = 8  # two backward passes need several times the memory of one


def agrees(work: Work, found: Found, back: Callable[[], Fit], fitting: Fitting) -> bool | None:
    """Whether the sum's derivatives are the sums of the units' derivatives; None where the sum isn't finite.

    The largest share that a unit has in the sum stands for the threshold, which it doesn't exceed.  `back` says how
    many examples at once a backward pass takes beside the sums that there are.
    """
    allowed = _TOLERANCE * float((found.weights * found.norms).double().max())
    few = found.derivatives[:, :_FIRST]
    everything = few.shape[1] == work.projections
    along = _along(work, found.sums, range(few.shape[1]))
    if not bool(torch.isfinite(along).all()):
        return None
    off, size = _difference(work, found.weights, few, along)
    if off <= (allowed if everything else allowed / 4):
        return True
    if off > 2 * (allowed + _ROUNDING * size):  # nothing that more directions would change
        return False
    if not everything:
        rest = _along(work, found.sums, range(few.shape[1], work.projections))
        off, size = _difference(work, found.weights, found.derivatives, torch.cat([along, rest]))
    if off <= allowed:
        return True
    if off > allowed + _ROUNDING * size:
        return False
    return _by_signs(work, found, back()) <= allowed or _one_by_one(work, found, fitting) <= allowed


def _by_signs(work: Work, found: Found, back: Fit) -> float:
    """The difference where half of the units count negatively.

    Their coins are the same at every step, but which units are drawn isn't.
    """
    coins = torch.randint(2, (len(found.weights), 1), generator=torch.Generator().manual_seed(0))
    weights = found.weights * (2 * coins - 1).to(found.weights)
    sums = weighted_sums(work, weights, found.apart, back)[1]
    return _difference(work, weights, found.derivatives, _along(work, sums, work.wanted))[0]


def _one_by_one(work: Work, found: Found, fitting: Fitting) -> float:
    """The largest difference of a unit; infinite where two backward passes can't be made, or were the way here."""
    if found.twice:
        return torch.inf
    random, each = fitting.of_random(double=True) is not None, []  # then all passes take all rows
    try:
        with unfused():
            for part in work.pieces(Fit(1, fitting.n if random else max(1, fitting.n // _PARTS))):
                values = one_loss_each(work.losses(*part), count(part))
                each.append(transposed(work.parameters, values, work.directions, work.wanted))
                del values
    except Exception:  # whatever stops it, this can't be told
        return torch.inf
    off = work.norms(torch.cat(each)[: work.n].double() - found.derivatives.double())
    return float((found.weights.double() * off).max())


def _along(work: Work, sums: list[Tensor], wanted: range) -> Tensor:
    return torch.stack([dot(sums, work.directions(j)) for j in wanted])


def _difference(work: Work, weights: Tensor, derivatives: Tensor, along: Tensor) -> tuple[float, float]:
    """The root mean squares over directions of D, and of what it is the difference of."""
    each = work.per_example(weights).double()
    forwards = (each[:, None] * derivatives.double()).sum(0)
    return float((along - forwards).square().mean().sqrt()), float(forwards.square().mean().sqrt())
