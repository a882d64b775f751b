"""How much longer than alone a computation may take on a busy machine: beyond that, something hangs.

How fast it is, `benchmarks/accounting.py` measures.
"""

BUSY = 3
