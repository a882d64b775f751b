"""What goes wrong outside of hush, in one sentence each."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def told_plainly(charged: bool = False) -> Iterator[None]:
    """Missing packages, a full disk and too little memory become a `ValueError` of one sentence."""
    kept = " What was spent is in the ledger." if charged else ""
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0] or str(error)
        raise ValueError(f"This takes the {name} package: pip install 'hush[train]'.") from error
    except MemoryError:
        raise ValueError(
            f"There isn't enough memory for this; give fewer rows or columns, or a lower --rate.{kept}"
        ) from None
    except BrokenPipeError:  # whoever reads the output has seen enough: head, less
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno in _FULL:
            raise ValueError(_full(charged)) from error
        where = f" {error.filename}" if error.filename else ""
        raise ValueError(f"The file{where} can't be read or written: {error.strerror or error}.{kept}") from error
    except RuntimeError as error:
        if "alloc" in str(error) or "out of memory" in str(error):
            raise ValueError(f"There isn't enough memory for this; give a lower --rate.{kept}") from None
        raise
    except Exception as error:
        # safetensors has an error of its own, which tells the operating system's in words only
        if type(error).__name__ == "SafetensorError" and any(f"(os error {number})" in str(error) for number in _FULL):
            raise ValueError(_full(charged)) from error
        raise


def _full(charged: bool) -> str:
    if not charged:
        return "The disk is full, or files may not grow so large; make room. What was spent by then is in the ledger."
    return (
        "The disk is full, or files may not grow so large; make room and go on with `hush resume`. "
        "What was spent is in the ledger."
    )
