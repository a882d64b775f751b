"""hush trains PyTorch models with differential privacy and certifies how private they are.

`hush.accounting` answers how private a computation is; it needs NumPy and SciPy only.  `hush.Plan` fixes the public
numbers of a run, `hush.Private` runs it.  Everything is imported when it is first used, so `import hush` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush import accounting as accounting
    from hush import methods as methods
    from hush import optim as optim
    from hush.averaging import Average as Average
    from hush.clipping import Adaptive as Adaptive
    from hush.clipping import Flat as Flat
    from hush.clipping import Normalised as Normalised
    from hush.clipping import PerLayer as PerLayer
    from hush.gradients.check import check as check
    from hush.keys import Key as Key
    from hush.ledger import Budget as Budget
    from hush.ledger import BudgetExceededError as BudgetExceededError
    from hush.ledger import CorruptLedgerError as CorruptLedgerError
    from hush.ledger import Ledger as Ledger
    from hush.plan import Plan as Plan
    from hush.sampling import Poisson as Poisson
    from hush.sampling import Shuffled as Shuffled
    from hush.sampling import Uniform as Uniform
    from hush.schedules import Schedule as Schedule
    from hush.training import Private as Private

__version__ = "0.1.0"

_HOMES = {
    "Adaptive": "hush.clipping",
    "Average": "hush.averaging",
    "Budget": "hush.ledger",
    "BudgetExceededError": "hush.ledger",
    "CorruptLedgerError": "hush.ledger",
    "Flat": "hush.clipping",
    "Key": "hush.keys",
    "Ledger": "hush.ledger",
    "Normalised": "hush.clipping",
    "PerLayer": "hush.clipping",
    "Plan": "hush.plan",
    "Poisson": "hush.sampling",
    "Private": "hush.training",
    "Schedule": "hush.schedules",
    "Shuffled": "hush.sampling",
    "Uniform": "hush.sampling",
    "check": "hush.gradients",
}
_MODULES = ("accounting", "gradients", "methods", "optim")

__all__ = ["__version__", *_MODULES, *_HOMES]


def __getattr__(name: str) -> Any:
    # Python asks here for what the module doesn't have yet.
    if name in _MODULES:
        return importlib.import_module(f"hush.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hush' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
