"""A journal: lines of JSON, each chained to the line before by a digest, appended under a lock and synced.

    {"digest":"<64 hex digits>","record":{...}}        digest = BLAKE2b-256(the digest before + the record's bytes)

What holds, and why:

- *Durable.* `append` returns after the line, and for a new file its folder entry, is on the disk (fsync).
- *One writer at a time.* Appending holds an exclusive lock on the file, which the system drops if the process dies.  A
  line is synced before the next one is begun, so a crash can damage the last line only.
- *Readable after a crash.* What a crash leaves behind the last good line (half a line, zeros, other files' blocks, the
  line twice) is `damage`.  It is never deleted: the next record appended names its digest, and so vouches for it.
- *Edits are detected.* After a change, a deletion, an insertion or a swap some intact line no longer follows from the
  line before it, which no crash can bring about: reading raises `CorruptLedgerError`.  Lines cut off the end leave a
  shorter, valid journal; that shows against a digest kept elsewhere (`contains`).  Whoever can rewrite the whole file
  and everything that recorded its digests can't be caught by digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

GENESIS = "0" * 64
"""The digest before the first line."""

_BEFORE, _BETWEEN, _AFTER = b'{"digest":"', b'","record":', b"}"
_DIGITS = slice(len(_BEFORE), len(_BEFORE) + 64)
_BODY = slice(len(_BEFORE) + 64 + len(_BETWEEN), -1)
_VOUCHES = "damage"


class CorruptLedgerError(ValueError):
    """The file isn't what was written: no crash does that."""


class Entry(NamedTuple):
    """A record of the journal and the digest of its line."""

    digest: str
    record: dict[str, Any]


class Journal:
    """The records of a file, or of memory if there is no path; `head` is the digest of the last one read.

    `reader` is handed every record once, in order, whoever appended it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, reader: Callable[[Entry], object]) -> None:
        self.path = None if path is None else Path(path)
        self._reader = reader
        self.head = GENESIS
        self.damage = b""
        self._offset = 0
        self._memory = bytearray()
        self._descriptor: int | None = None
        self._failed = False

    def read(self) -> None:
        """Hand on the records that were appended, by anybody, since the last call."""
        if self.path is None:
            self._advance()
        elif self.path.exists():
            with self._opened(os.O_RDONLY):
                self._advance()
        elif self._offset:
            raise CorruptLedgerError(f"{self.path} was there and is gone; put it back to go on.")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock, with everything read: `append` may be called."""
        if self.path is None:
            self._advance()
            yield
            return
        with self._opened(os.O_RDWR | os.O_APPEND | os.O_CREAT):
            self._advance()
            yield

    def append(self, record: dict[str, Any]) -> str:
        """Add a record and return its digest once it is on the disk; inside `writing` only."""
        if self._failed:
            raise OSError(f"An earlier write to {self.path} failed; check the disk and open the ledger anew.")
        if self.damage:
            record = {**record, _VOUCHES: _digest_of(self.damage)}
        try:
            body = json.dumps(record, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"A ledger holds plain JSON (finite numbers, texts, lists, dictionaries): {error}."
            ) from error
        digest = _chain(self.head, body)
        line = _BEFORE + digest.encode() + _BETWEEN + body + _AFTER + b"\n"
        self._store(line)
        self.head, self.damage, self._offset = digest, b"", self._size()
        self._reader(Entry(digest, record))
        return digest

    def contains(self, digest: str) -> bool:
        """Whether the journal, read again from its beginning, has a line of this digest."""
        digests = {GENESIS}
        again = Journal(self.path, lambda entry: digests.add(entry.digest))
        again._memory = self._memory
        again.read()
        return digest in digests

    # The bytes

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[None]:
        try:
            import fcntl
        except ImportError as error:
            raise ValueError("A ledger in a file needs POSIX file locks; use Ledger(None), kept in memory.") from error
        assert self.path is not None
        if not self.path.parent.is_dir():
            raise ValueError(f"The ledger's folder {self.path.parent} isn't there; create it first.")
        if self.path.is_dir():
            raise ValueError(f"The ledger {self.path} is a folder; give the path of a file.")
        # A file of one's own for each use: the lock belongs to it, whatever threads and forks there are.
        descriptor = os.open(self.path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if flags & os.O_APPEND else fcntl.LOCK_SH)
            self._descriptor = descriptor
            yield
        finally:
            self._descriptor = None
            os.close(descriptor)

    def _size(self) -> int:
        return len(self._memory) if self._descriptor is None else os.fstat(self._descriptor).st_size

    def _bytes(self, start: int) -> bytes:
        if self._descriptor is None:
            return bytes(self._memory[start:])
        wanted = self._size() - start
        pieces = []
        while wanted > 0 and (piece := os.pread(self._descriptor, min(wanted, 1 << 26), start)):
            pieces.append(piece)
            start, wanted = start + len(piece), wanted - len(piece)
        return b"".join(pieces)

    def _store(self, line: bytes) -> None:
        if self._descriptor is None:
            if self.path is not None:
                raise RuntimeError("append is for use inside `writing`.")
            self._memory += line
            return
        size = self._size()
        if size and self._bytes(size - 1) != b"\n":
            line = b"\n" + line
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            _sync(self._descriptor)
            if size == 0 and self.path is not None:
                sync(self.path.parent)
        except OSError:
            # After a failed sync the system may call lost pages clean, and a later sync would seem to succeed.
            self._failed = True
            raise

    def _advance(self) -> None:
        if self._size() < self._offset:
            raise CorruptLedgerError(
                f"{self.path} has become shorter since it was last read: lines were cut off its end."
            )
        if self._size() == self._offset and not self.damage:
            return
        data = self._bytes(self._offset)
        start, used = self._offset, 0
        for entry, used in _follow(data, self.head):
            self._reader(entry)
            self.head, self._offset = entry.digest, start + used
        if used < len(data):
            self._check_damage(data[used:])
        self.damage = data[used:]

    def _check_damage(self, damage: bytes) -> None:
        """Raise unless a crash can have left this behind the last good line."""
        earlier = set(self._bytes(0)[: -len(damage)].split(b"\n"))
        lines = damage.split(b"\n")
        # An honest line starts after a line's end; one glued to what is left of another is just as telling.
        intact = [_BEFORE + rest for line in lines for rest in line.split(_BEFORE)[1:]]
        for line in (*lines, *intact):
            if line not in earlier and _parsed(line) is not None:
                raise CorruptLedgerError(
                    f"{self.path} was changed after it was written: a record doesn't follow from the one before it."
                )
        if not earlier - {b""} and (len(lines) > 1 or not _may_begin_line(damage)):
            raise CorruptLedgerError(f"{self.path} is not a ledger; give another path.")


def sync(path: Path) -> None:
    """Make a file's contents durable, or a folder's entries: a file created or renamed in it survives a crash then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    import fcntl

    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's cache
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def _follow(data: bytes, head: str) -> Iterator[tuple[Entry, int]]:
    """The records that follow from `head`, each with where its line ends; stops where nothing follows any more."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        entry = _verified(data[at:end], head)
        if entry is None or _VOUCHES in entry.record:
            vouched = _vouched(data, at, head)
            if vouched is None:
                return
            entry, end = vouched
        head, at = entry.digest, min(end + 1, len(data))
        yield entry, at


def _vouched(data: bytes, at: int, head: str) -> tuple[Entry, int] | None:
    """The record that vouches for the damage beginning at `at`, and where its line ends."""
    start = data.find(b"\n", at) + 1
    while start:
        end = data.find(b"\n", start)
        entry = _verified(data[start : end if end >= 0 else len(data)], head)
        if entry is not None:
            honest = entry.record.get(_VOUCHES) == _digest_of(data[at:start])
            return (entry, end if end >= 0 else len(data)) if honest else None
        start = end + 1
    return None


def _verified(line: bytes, head: str) -> Entry | None:
    digest = line[_DIGITS]
    body = line[_BODY]
    if not body or _chain(head, body).encode() != digest or not _framed(line):
        return None
    return Entry(digest.decode(), json.loads(body.decode()))


def _framed(line: bytes) -> bool:
    between = slice(_DIGITS.stop, _BODY.start)
    return line.startswith(_BEFORE) and line[between] == _BETWEEN and line.endswith(_AFTER)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The record of an intact line, whether or not it follows from anything."""
    try:
        outer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    record = outer.get("record") if isinstance(outer, dict) else None
    return record if isinstance(record, dict) and "digest" in outer else None


def _may_begin_line(damage: bytes) -> bool:
    """Whether this may be the beginning of a journal's very first line, cut short (or zeros in its place)."""
    text = damage.rstrip(b"\0")
    return text[: len(_BEFORE)] == _BEFORE[: len(text)]


def _digest_of(damage: bytes) -> str:
    return hashlib.blake2b(damage.rstrip(b"\n"), digest_size=32).hexdigest()


def _chain(head: str, body: bytes) -> str:
    return hashlib.blake2b(head.encode() + body, digest_size=32).hexdigest()
