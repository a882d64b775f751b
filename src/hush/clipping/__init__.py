"""How much one record may move a step's gradient, and the noise that hides it.

A clipping is a public value: it says which parameters are clipped together, the threshold of each such group at a step,
the weight by which a record's gradient is scaled so that it stays below the threshold, and how the noise is shared
between the groups.  Everything private (norms, gradients) comes in as an argument.

Write C_k for group k's threshold and s_k for the standard deviation of its noise.  Scaled by 1/s_k, a record moves
the whole release by at most (sum_k (C_k/s_k)^2)^(1/2), so the release is one Gaussian mechanism with noise multiplier

    z = (sum_k (s_k/C_k)^-2)^(-1/2),

whatever the shares (`hush.accounting.Gaussian.joint`).  A plan fixes z; a clipping turns z into the s_k.
"""

from hush.clipping.adaptive import Adaptive, votes
from hush.clipping.base import Clipping, Groups
from hush.clipping.flat import Flat, Normalised
from hush.clipping.layers import PerLayer

__all__ = ["Adaptive", "Clipping", "Flat", "Groups", "Normalised", "PerLayer", "votes"]
