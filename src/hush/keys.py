"""One secret key, and every random number of a run derived from it.

A number is named by its purpose and its counters (`key.stream("noise", step)`), not by how many were drawn before it.
So there is no generator state to save, and a run resumes to the same bits from its key and step alone.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Words = NDArray[np.uint64]

BYTES = 32


class Stream(Protocol):
    """A source of independent uniform 64-bit words, in a fixed order."""

    def words(self, count: int) -> Words:
        """The next `count` words."""
        ...


@dataclass(frozen=True, repr=False)
class Key:
    """The secret of a run: whoever knows it can subtract the noise.

    `Key.fresh()` asks the operating system; `Key.from_seed(0)` is for tests.  `secure` says where the words come from:
    a cipher (AES-256 in counter mode, from the `cryptography` library), or else Philox, which is fast and passes every
    statistical test but isn't made to withstand an attacker.
    """

    secret: bytes
    secure: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != BYTES:
            raise ValueError(f"A key is {BYTES} bytes; use Key.fresh() or, in tests, Key.from_seed(seed).")
        if self.secure:
            _cipher_library()

    @staticmethod
    def fresh(secure: bool = False) -> Key:
        """A new key from the operating system."""
        return Key(os.urandom(BYTES), secure)

    @staticmethod
    def from_seed(seed: int, secure: bool = False) -> Key:
        """The key of a whole number, the same every time: for tests, since a number that is known hides nothing."""
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ValueError(f"A seed is a whole number, got {seed!r}.")
        digest = hashlib.blake2b(str(int(seed)).encode(), digest_size=BYTES, person=b"hush seed")
        return Key(digest.digest(), secure, int(seed))

    def derive(self, purpose: str, *counters: int, size: int = BYTES) -> bytes:
        """`size` bytes (at most 64) that belong to this purpose and these counters alone.

        BLAKE2b with the secret as its key is a pseudo-random function (Aumasson et al. 2013), so what is derived for
        one purpose and step says nothing about another.  The message is prefixed so that no two of them coincide.
        """
        message = b"".join(c.to_bytes(8, "little", signed=True) for c in counters) + purpose.encode()
        salt = len(counters).to_bytes(8, "little")
        return hashlib.blake2b(message, key=self.secret, digest_size=size, person=b"hush key", salt=salt).digest()

    def of_run(self, run: str) -> Key:
        """A run's own key, so that one key given to several runs gives no two the same noise; a seed stays as it is."""
        return self if self.seed is not None else Key(self.derive(f"run {run}"), self.secure)

    def seed64(self, purpose: str, *counters: int) -> int:
        """A seed for a generator that takes 64 bits and no more (PyTorch's on a GPU)."""
        return int.from_bytes(self.derive(purpose, *counters, size=8), "little")

    def philox(self, purpose: str, *counters: int) -> np.random.Philox:
        """NumPy's counter-based generator: 128 derived bits are its key, 128 more are where its counter starts."""
        words = np.frombuffer(self.derive(purpose, *counters), dtype="<u8")
        start = np.array([0, 0, words[2], words[3]], dtype=np.uint64)
        generator = np.random.Philox(_NOTHING)  # type: ignore[arg-type]  # a key given here would cost a seed as well
        generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": start, "key": words[:2]},
            "buffer": np.zeros(4, dtype=np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator

    def stream(self, purpose: str, *counters: int) -> Stream:
        """The words of this purpose and these counters, from the beginning."""
        if self.secure:
            return _CipherStream(self.derive(purpose, *counters))
        return _PhiloxStream(self.philox(purpose, *counters))

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint, which is secret because of it."""
        return {"secret": self.secret.hex(), "secure": self.secure, "seed": self.seed}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Key:
        return Key(bytes.fromhex(value["secret"]), bool(value["secure"]), value["seed"])

    def report(self) -> str:
        """In words, for the report: where coins and noise come from, and whom that stops."""
        origin = "32 bytes from the operating system"
        if self.seed is not None:
            origin = f"the fixed seed {self.seed}, which is for tests: whoever knows it can subtract the noise"
        if self.secure:
            return (
                f"Sampling coins and noise come from AES-256 in counter mode; the key is {origin}. "
                "Noise is added and rounded to a grid as if it were real-valued, so its last digits tell nothing."
            )
        return (
            f"Sampling coins and noise come from the Philox generator; the key is {origin}. Philox is not "
            "cryptographic and the last digits of floating-point noise are not hardened: secure=True does both."
        )

    def __repr__(self) -> str:
        origin = "fresh" if self.seed is None else f"seed={self.seed}"
        return f"Key({origin}{', secure' if self.secure else ''})"


class _Nothing(ISeedSequence):
    """A seed for generators whose whole state is set."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


_NOTHING = _Nothing()


class _PhiloxStream:
    def __init__(self, generator: np.random.Philox) -> None:
        self._generator = generator

    def words(self, count: int) -> Words:
        words: Words = self._generator.random_raw(count)
        return words


class _CipherStream:
    """The key stream of AES-256-CTR: the cipher's encryption of zeros."""

    def __init__(self, key: bytes) -> None:
        ciphers = _cipher_library()
        self._cipher = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)


def _cipher_library() -> Any:
    try:
        from cryptography.hazmat.primitives import ciphers
    except ImportError:
        raise ValueError(
            "secure=True takes its randomness from the `cryptography` library, which isn't installed; "
            "run `pip install cryptography`."
        ) from None
    return ciphers
