"""A run from a file of records to a folder that may be published: what `hush train` and its sisters do.

`request` is what was asked, `recipe` the defaults, `folder` what lies where, `preparing` reads and checks, `beginning`
registers a run or goes on with it, `surveying` asks what wasn't declared, `answers` keeps what it was told, `session`
trains, `publishing` writes the outcome, `card` and `networks` are the model as published, `inspecting` asks what a run
spent and whether its parts belong together, `buying` what a budget would buy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from hush.runs.card import Published


def load(folder: str | os.PathLike[str]) -> Published:
    """The model of a run's public folder: `load("run/public").predict([{"age": 41, "workclass": "Private"}])`."""
    from hush.runs.card import Published

    return Published.read(folder)
