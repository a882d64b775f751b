"""What lies where in a run's folder: what may be published, and what may not, apart from each other.

RUN/public/    model.safetensors, model.json, load.py, plan.json, ledger.jsonl, manifest.json, report.html
RUN/private/   checkpoint/, settings.json, survey.json, ended.txt, local.json, report-local.html  (modes 0700 and 0600)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.journal import sync

BOUND = ("model.safetensors", "model.json", "plan.json", "load.py")
"""The public files whose digests the manifest holds."""

_SOME_TIME = 315_532_800  # the first that all archives can hold: 1980-01-01

WARNING = "NOT-FOR-RELEASE.txt"
_WORDS = """This folder is private. It holds what was computed from the records without noise (losses, scores, gradient
norms), where the records lie, and the key of the noise: whoever has it can take the noise off the model.
Publish the folder `public` beside it instead.
"""


@dataclass(frozen=True)
class Folder:
    """The places of a run."""

    path: Path
    bare: bool = False  # the public part alone, handed on under any name

    @staticmethod
    def at(path: Path) -> Folder:
        """The run at a path: its folder, the public one in it, or a copy of the public one."""
        if (path / "public").is_dir() or not (path / "plan.json").is_file():
            return Folder(path)
        whole = Folder(path.resolve().parent)
        return whole if path.resolve() == whole.public and whole.private.is_dir() else Folder(path, bare=True)

    @property
    def public(self) -> Path:
        return self.path if self.bare else self.path / "public"

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def weights(self) -> Path:
        return self.public / "model.safetensors"

    @property
    def card(self) -> Path:
        return self.public / "model.json"

    @property
    def plan(self) -> Path:
        return self.public / "plan.json"

    @property
    def manifest(self) -> Path:
        return self.public / "manifest.json"

    @property
    def ledger(self) -> Path:
        return self.public / "ledger.jsonl"

    @property
    def loader(self) -> Path:
        return self.public / "load.py"

    @property
    def checkpoint(self) -> Path:
        return self.private / "checkpoint"

    @property
    def settings(self) -> Path:
        return self.private / "settings.json"

    @property
    def survey(self) -> Path:
        return self.private / "survey.json"

    @property
    def ended(self) -> Path:
        """Why a run can't go on, if its survey told too little."""
        return self.private / "ended.txt"

    @property
    def local(self) -> Path:
        return self.private / "local.json"

    def refuse_taken(self) -> None:
        """A run never goes over another one."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(f"{self.path} is there already; {self._how_to_go_on()}")

    def create(self) -> None:
        """Make the folders."""
        self.refuse_taken()
        try:
            self.public.mkdir(parents=True)
            self.private.mkdir(mode=0o700)
            for place in (self.path, self.path.absolute().parent):
                sync(place)
            write_text(self.private / ".gitignore", "*\n", mode=0o600)
            write_text(self.private / WARNING, _WORDS, mode=0o600)
        except OSError as error:
            raise ValueError(f"{self.path} can't be written: {error.strerror or error}.") from error

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to go on from; before it only the survey can have been asked."""
        return (self.checkpoint / "checkpoint.json").exists()

    def _how_to_go_on(self) -> str:
        if self.manifest.exists():
            return (
                "give another --output, and remember that a second run on the same records costs again (--ledger "
                "with --budget keeps one budget for all of them)."
            )
        if not self.settings.exists():
            return "give another --output."
        return f"go on with it by `hush resume {self.path}`, or give another --output."

    def remove(self) -> None:
        """Take away what `create` made, for a run that couldn't begin."""
        shutil.rmtree(self.path, ignore_errors=True)

    def hide_times(self) -> None:
        """One time for everything that may be published: how long a run took depends on its records."""
        for path in (*self.public.iterdir(), self.public):
            os.utime(path, (_SOME_TIME, _SOME_TIME))

    def bind(self, name: str, text: str) -> None:
        """Enter a page that is about to be written beside a published model into the manifest.

        Before it is written: a kill in between leaves the page missing, or as it was, and never one unaccounted for.
        """
        if self.manifest.exists():
            manifest = read_json(self.manifest)
            files = manifest.get("files")
            entered = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
            if isinstance(files, dict) and files.get(name) != entered:
                write_json(self.manifest, manifest | {"files": files | {name: entered}})

    def check(self) -> None:
        """Refuse what isn't a run's folder."""
        if not self.plan.is_file() and not self.settings.is_file():
            raise ValueError(
                f"{self.path} is no run of `hush train`: it has neither a plan.json nor a public/plan.json."
            )

    def need_room(self, size: int) -> None:
        """Refuse to begin on a disk that is nearly full: nothing is to be spent that can't be kept."""
        free = shutil.disk_usage(self.path).free
        if free < size:
            raise ValueError(
                f"The disk of {self.path} has {free >> 20} MiB left and the run needs {size >> 20}; make room."
            )


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Put a text in place of what is there, in one step: after a crash it is the old one or the new one."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", mode)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that hush wrote."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; the run didn't get that far, or the folder is incomplete.") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is damaged: it isn't the JSON that hush wrote.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it isn't the JSON that hush wrote.")
    return value


def digest(path: Path) -> str:
    """BLAKE2b-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error
