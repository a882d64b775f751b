"""hush trains PyTorch models with differential privacy and certifies how private they are.

`hush.accounting` answers how private a computation is; it needs NumPy and SciPy only and is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush import accounting as accounting

__all__ = ["__version__", "accounting"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Python asks here for what the module doesn't have yet: `import hush` alone stays instant.
    if name == "accounting":
        return importlib.import_module("hush.accounting")
    raise AttributeError(f"module 'hush' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
