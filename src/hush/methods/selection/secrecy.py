"""What happens inside a run of a search stays there: nothing is printed, warned or logged, and no generator moves."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

import numpy as np
import torch


class TrialFailedError(RuntimeError):
    """A training function raised; which run it was and what it said is nobody's business."""


@contextlib.contextmanager
def in_secret(seed: int) -> Iterator[None]:
    """Silence, and generators that start from `seed`; all is as before afterwards.

    Python's own output goes nowhere, and neither does what is written to the file descriptors 1 and 2, by libraries,
    by other processes that are started, or by handlers that hold the streams of before.
    """
    threshold, for_numpy, for_python = logging.root.manager.disable, np.random.get_state(), random.getstate()
    with (
        _descriptors_silenced(),
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
        torch.random.fork_rng(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(sys.maxsize)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            logging.disable(threshold)
            np.random.set_state(for_numpy)
            random.setstate(for_python)


@contextlib.contextmanager
def _descriptors_silenced() -> Iterator[None]:
    streams = [stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if stream is not None]
    kept: list[tuple[int, int]] = []
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        _flush(streams)
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # one that isn't open needs no silencing
                kept.append((descriptor, os.dup(descriptor)))
                os.dup2(nowhere, descriptor)
        yield
    finally:
        _flush(streams)  # what was written inside goes nowhere before the descriptors come back
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def _flush(streams: list[TextIO]) -> None:
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
