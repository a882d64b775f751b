"""The papers' data sets, read from files that are already here.  Nothing is ever downloaded.

    >>> from hush import data
    >>> digits = data.load("mnist", "~/data")            # or set HUSH_DATA        # doctest: +SKIP
    >>> digits.train.x.shape                                                       # doctest: +SKIP
    (60000, 28, 28)

A set may lie there as `.npz` (see `hush.data.packed`) or in its public distribution's own format
(`hush.data.formats`).  `hush.data.names()` says which sets there are.
"""

from hush.data.catalogue import Facts, names
from hush.data.loading import DataSet, Split, folders, load

__all__ = ["DataSet", "Facts", "Split", "folders", "load", "names"]
