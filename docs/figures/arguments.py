"""For the site: docstrings' columns of names and meanings become lists, which Markdown would run together.

records           how many records the data set is declared to have
steps, epochs     the length of the run
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*)$")


class Arguments(griffe.Extension):
    """Rewrites the docstrings as they are collected; the sources stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_lists(obj.docstring.value)


def as_lists(text: str) -> str:
    lines: list[str] = []
    listing = False
    for line in text.split("\n"):
        entry = _ENTRY.match(line)
        if entry:
            lines += [""] * (not listing) + [f"- `{entry[1]}`: {entry[2]}"]
            listing = True
        elif listing and line.startswith("      "):
            lines.append("    " + line.strip())
        else:
            lines += [""] * (listing and bool(line.strip())) + [line]
            listing = False
    return "\n".join(lines)
