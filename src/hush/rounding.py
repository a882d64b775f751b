"""Rounding can't break the bound: how far below its threshold a gradient is clipped, and why that is enough."""

from __future__ import annotations

import math

FLOAT32 = 2.0**-24
BFLOAT16 = 2.0**-8
TF32 = 2.0**-10
"""Unit roundoffs: of a float32, of a bfloat16, and of a product both of whose factors were rounded to TF32."""


TOGETHER = 16
"""So many gradients are added up in float32 on a CPU, before their sums are in float64."""
LONGEST = 4096
"""So many float32 gradients are added up in a row at most, elsewhere."""
UNNOTICED = 1 / 400
"""Of the threshold: by how much a unit's gradient, as it is summed, may differ from the one whose norm was projected.

More than that doesn't pass the check that compares them (`hush.gradients.agreeing`).
"""


def rounding_margin(batch: float, compute: float = FLOAT32) -> float:
    """The share of the threshold kept free, so that rounding can't carry the sum beyond its sensitivity.

    Compare the computed sums S and S' of neighbouring data sets.  In exact arithmetic they differ by one unit's
    clipped gradient.  As computed, three things come on top, u = 2^-24 being float32's unit roundoff:

    * the norm and the weight carry a few roundings: at most 64 u of the threshold;
    * each scaled gradient may be rounded once more to what the products are computed in: `compute` of it;
    * each of the two sums is off by at most g u times the sum of its terms' magnitudes, whose norm is at most B C.
      On a CPU at most 16 terms are added up in float32, and those sums in float64 (`hush.gradients.adding`), so that
      g <= 17 whatever the terms.  Elsewhere n float32 terms are added up.  Roundings that don't conspire give
      g <= lambda sqrt(n) (Higham and Mary 2019).  Those of equal terms do conspire, to n/8 as measured, but in both
      sums alike where both are cut in the same way, and only their difference counts: it was measured at 0.1 of what
      is kept, g = 1 + sqrt(n)/2.

    Together, with B the largest batch to be expected (ten standard deviations above the mean of a Poisson batch),

        margin = 64 u + compute + 2 B g u,      g = max(17, 1 + sqrt(n)/2).

    Batches beyond 4096 are summed in parts and the parts' sums added up (`summed_at_once`): n = 4096 + B/4096.
    The margin depends on public numbers alone, and not on how the work is cut into microbatches.
    """
    largest = _largest(batch)
    growth = 1 + max(TOGETHER, math.sqrt(min(largest, LONGEST + largest / LONGEST)) / 2)
    margin = 64 * FLOAT32 + (compute if compute > FLOAT32 else 0.0) + 2 * largest * growth * FLOAT32
    if margin >= 0.5:
        raise ValueError(f"Batches of {batch:g} are too large for float32 sums to keep the bound; take smaller ones.")
    return margin


def summed_at_once(batch: float, microbatch: int | None) -> int | None:
    """How many examples are summed at once: as wanted, within what the margin counts on.

    m in a row and then B/m sums in a row are no worse than 4096 and B/4096, as long as B/4096 <= m <= 4096.
    """
    largest = _largest(batch)
    if largest <= LONGEST:
        return microbatch
    least = math.ceil(largest / LONGEST)
    if microbatch is not None and microbatch < least:
        raise ValueError(
            f"With batches of {batch:g}, {microbatch} examples at once are too few to add up safely in float32; "
            f"give a microbatch of at least {least}."
        )
    return min(microbatch or LONGEST, LONGEST)


def _largest(batch: float) -> float:
    """The largest batch to be expected: ten standard deviations above the mean of a Poisson batch."""
    return batch + 10 * math.sqrt(batch)
