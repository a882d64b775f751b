"""Arrays of an .npz file, without pickles."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.tabular.tables import first_line, unchanged


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays by their names."""
    with unchanged(path):
        try:
            with np.load(path, allow_pickle=False) as file:
                found = {name: np.asarray(file[name]) for name in file.files}
        except (ValueError, KeyError, EOFError, TypeError, AttributeError, SyntaxError, NotImplementedError) as error:
            raise ValueError(f"{path} isn't an .npz file of plain arrays: {first_line(error)}.") from error
        except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise ValueError(f"{path} is a damaged .npz file: {first_line(error)}.") from error
    if not found:
        raise ValueError(f"{path} has no arrays.")
    return found
