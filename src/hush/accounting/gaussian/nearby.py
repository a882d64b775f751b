"""What is lost of the labels' integrand (integrals.py) where the parts that it is made of are off."""

from __future__ import annotations

import numpy as np

from hush.accounting.gaussian.transform import Array, Numbers


class Nearby:
    """What errors of B0 and B1 at some s do to (B0+B1)^T - B0^T there, for each kind of step multiplied together.

    On the way from what was computed to the truth, |B0|, |B1| and |B0+B1| are at most b0, b1 and a: as computed, and
    their errors e0 and e1 more.  The derivative by B1 has the modulus T (B0+B1)^(T-1) at most, in all a^T/a.  That by
    B0 is T times the difference of two products that differ in every factor, B0+B1 in one where the other has B0: the
    sum of what exchanging one after the other changes, T b1 (b0+b1)^(T-2) each, or T' b1' (b0+b1)^T/(...) by another
    kind.  Far from the axis b1 is next to nothing, and so is this.
    """

    def __init__(self, size: int) -> None:
        self.log_most, self.log_all = np.zeros(size), np.zeros(size)
        self.exchanged, self.by_bulk, self.by_middle = np.zeros(size), np.zeros(size), np.zeros(size)

    def add(self, count: float, bulk: Numbers, middle: Numbers, wrong_bulk: Array, wrong: Array) -> None:
        """One kind of step: B0, B1, e0 and e1."""
        one = np.abs(middle) + wrong
        most = np.maximum(np.abs(bulk) + wrong_bulk + one, 1e-300)
        both = np.maximum(np.abs(bulk + middle) + wrong_bulk + wrong, 1e-300)
        self.log_most += count * np.log(most)
        self.log_all += count * np.log(both)
        self.exchanged += count * one / most
        self.by_bulk += count * wrong_bulk / most
        self.by_middle += count * wrong / both

    def errors(self, log_scale: float) -> tuple[Array, Array]:
        """By the errors of B1, and by those of B0; over e^log_scale, and a millionth more for rounding."""
        whole, most = (1.000001 * np.exp(log - log_scale) for log in (self.log_all, self.log_most))
        return np.asarray(whole * self.by_middle), np.asarray(most * self.exchanged * self.by_bulk)
