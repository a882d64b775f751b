"""How private is it?  Mechanisms as values, and certified answers about them.  NumPy and SciPy only.

>>> from hush.accounting import Gaussian
>>> run = Gaussian(noise_multiplier=1.3).poisson(256 / 60_000) * 3516
>>> run.epsilon(delta=1e-5).upper < 0.864541
True
"""

from hush.accounting import calibrate
from hush.accounting.bounds import Bounds
from hush.accounting.groups import Group
from hush.accounting.mechanisms import (
    ADD_REMOVE,
    BOUND,
    EXACT,
    REPLACE_ONE,
    Composition,
    Mechanism,
    Neighbours,
    compose,
)
from hush.accounting.releases import (
    Gaussian,
    Guarantees,
    Laplace,
    Projected,
    RandomisedResponse,
    Renyi,
    Tradeoff,
)
from hush.accounting.sampled import Poisson, Shuffled, Uniform

__all__ = [
    "ADD_REMOVE",
    "BOUND",
    "EXACT",
    "REPLACE_ONE",
    "Bounds",
    "Composition",
    "Gaussian",
    "Group",
    "Guarantees",
    "Laplace",
    "Mechanism",
    "Neighbours",
    "Poisson",
    "Projected",
    "RandomisedResponse",
    "Renyi",
    "Shuffled",
    "Tradeoff",
    "Uniform",
    "calibrate",
    "compose",
]
