"""What privacy protects: a record, or a user with all of theirs; and what a step drew.

Coins are tossed for *units*, numbered 0, 1, ...  A population says how many there are and which records belong to each.
How many is private: only the plan's declared number is public.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.accounting.checks import check_whole
from hush.keys import Key, Stream

Positions = NDArray[np.int64]

_WORD = 1 << 64


@dataclass(frozen=True, eq=False)
class Draw:
    """The records of one step: a secret, never to be published.

    `indices` are positions in the data set, ascending.  `units[i]` says which unit, from 0 to `count` - 1, record
    `indices[i]` is clipped with; None means that every record is a unit of its own.
    """

    indices: Positions
    units: Positions | None = None
    count: int = 0

    def __post_init__(self) -> None:
        if self.units is None:
            object.__setattr__(self, "count", len(self.indices))

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Records:
    """Every record is a unit."""

    count: int

    def gather(self, chosen: Positions, key: Key, step: int) -> Draw:
        return Draw(chosen)


class Users:
    """Every user is a unit: `ids[i]` names the user whom record i belongs to, by a number or a string.

    Users are numbered in the order of their first record, so that a user who joins at the end moves nobody's coins.
    All records of a drawn user come along or, with `most`, a public number, at most that many of them, chosen anew each
    step by coins of the user's own.  (Clipping bounds a user's influence with or without it; `most` bounds the work.)
    """

    def __init__(self, ids: Any, most: int | None = None) -> None:
        names = np.asarray(ids)
        if names.ndim != 1:
            raise ValueError(f"Users are given by one id per record, a list of ids, got shape {names.shape}.")
        if names.dtype == object and any(name is None or name != name for name in names):
            raise ValueError("Every record needs a user's id, but some are None or NaN; give those records ids.")
        if names.dtype.kind == "f":
            raise ValueError("Users' ids are whole numbers or strings, got floating-point numbers; convert them.")
        if most is not None:
            check_whole("The most records of a user", most)
        self.records = len(names)
        self.most = most
        try:
            _, first, alphabetic = np.unique(names, return_index=True, return_inverse=True)
        except TypeError:
            raise ValueError(
                "Users' ids must be comparable, all whole numbers or all strings, got a mixture."
            ) from None
        self.count = len(first)
        rank = np.empty(self.count, dtype=np.int64)
        rank[np.argsort(first)] = np.arange(self.count)
        user = rank[alphabetic]
        self._order = np.argsort(user, kind="stable")  # record positions, user by user
        self._sizes = np.bincount(user, minlength=self.count)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def gather(self, chosen: Positions, key: Key, step: int) -> Draw:
        """The records of the chosen users, in the data's order."""
        sizes = self._sizes[chosen]
        units = np.repeat(np.arange(len(chosen)), sizes)
        within = np.arange(len(units)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        if self.most is not None:
            kept = np.ones(len(units), dtype=bool)
            ends = np.cumsum(sizes)
            for unit in np.flatnonzero(sizes > self.most):
                own = kept[ends[unit] - sizes[unit] : ends[unit]]
                own[:] = False
                own[choose(key.stream("records of user", step, int(chosen[unit])), int(self.most), len(own))] = True
            units, within = units[kept], within[kept]
        indices = self._order[self._starts[chosen][units] + within]
        order = np.argsort(indices)
        return Draw(indices[order], units[order], len(chosen))


Population = Records | Users


def population(records: int, users: Any = None, most: int | None = None) -> Population:
    """The units of a data set of so many records: its records or, with `users`, one id per record, its users."""
    if users is None:
        if most is not None:
            raise ValueError("The most records of a user were given but no users; pass users=, one id per record.")
        return Records(records)
    units = users if isinstance(users, Users) else Users(users, most)
    if units.records != records:
        raise ValueError(f"Users need one id per record: the data has {records} records, but {units.records} ids came.")
    return units


def choose(stream: Stream, size: int, of: int) -> Positions:
    """`size` of the numbers 0 ... of-1, ascending, every set of that size equally likely.

    Numbers drawn with replacement, repetitions skipped, are a draw without replacement.  A number comes from a 64-bit
    word, and words beyond the largest multiple of `of` are skipped: no rounding, so the law is exact.
    """
    if 2 * size > of:  # leave some out rather than wait for the last ones
        left = np.ones(of, dtype=bool)
        left[choose(stream, of - size, of)] = False
        return np.flatnonzero(left)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < size:
        words = stream.words(size - len(drawn) + (size >> 1) + 8)
        words = words[words <= np.uint64(_WORD - _WORD % of - 1)]
        drawn = np.concatenate([drawn, (words % np.uint64(of)).astype(np.int64)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]  # first occurrences, in the order drawn
    return np.sort(drawn[:size])


def permutation(stream: Stream, count: int) -> Positions:
    """A uniformly random order of 0 ... count-1: that of `count` random words, drawn again should two be equal."""
    while True:
        words = stream.words(count)
        order = np.argsort(words)
        if np.all(np.diff(words[order]) > 0):
            return order


def grouped(draw: Draw, key: Key, step: int, groups: int) -> Draw:
    """The same records, put in `groups` groups that are clipped together (the papers' microbatches).

    Groups may be empty.  Which group a record joins depends on its own coins only, those of (key, step, position).  So
    adding a record changes one group's gradient, from one vector of norm at most C to another: sensitivity 2C.
    """
    check_whole("The number of groups", groups)
    if draw.units is not None:
        raise ValueError("Groups are made of single records; draw by record, or clip user by user without groups.")
    coins = key.derive("group", step)
    units = [
        int.from_bytes(hashlib.blake2b(position.to_bytes(8, "little"), key=coins, digest_size=16).digest(), "little")
        % groups
        for position in draw.indices.tolist()
    ]
    return Draw(draw.indices, np.array(units, dtype=np.int64), int(groups))
