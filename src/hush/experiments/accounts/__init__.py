"""What the papers compute rather than train: tables of epsilons and figures, regenerated with the certified answer.

One file a paper; each account is a function from the folder for its pictures to a `Found`.  NumPy, SciPy, Matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hush.experiments.accounts import abadi2016, bu2019, bu2021, dong2022
from hush.experiments.accounts.found import Check, Found, Table

ACCOUNTS: dict[str, Callable[[Path], Found]] = {
    "bu2019_table1": bu2019.table1,
    "bu2019_table2": bu2019.table2,
    "bu2019_table3": bu2019.table3,
    "bu2019_table4": bu2019.table4,
    "bu2019_figure2": bu2019.figure2,
    "bu2019_figure3": bu2019.figure3,
    "bu2019_figure4": bu2019.figure4,
    "bu2019_figure5": bu2019.figure5,
    "abadi2016_figure2": abadi2016.figure2,
    "dong2022_figure1": dong2022.figure1,
    "dong2022_figure3": dong2022.figure3,
    "dong2022_figure5": dong2022.figure5,
    "dong2022_figure6": dong2022.figure6,
    "dong2022_figure7": dong2022.figure7,
    "bu2021_figure8": bu2021.figure8,
}

__all__ = ["ACCOUNTS", "Check", "Found", "Table"]
