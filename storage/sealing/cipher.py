"""Ciphers: the bytes of a run under AES-256-GCM, one call a run.

Is: the key and the nonce of a run, sealing, and opening. Isn't: which key (`keyring`), or where keys are kept
(`sealing`).
Invariants: no nonce is used twice under one key. A writer draws a salt of 64 bits; the ledger and the salt make a key
of their own out of the tenant's data key (HKDF-SHA256), and the nonce is the first entry, which a writer gives once.
What is stored again (a recovery, a repair, a copy to an object store) is copied as it is, and never sealed anew under
the same numbers; so also two writers that believe to own one ledger, or a ledger id given twice, share no key. What is
not sealed: the header of a block (lengths, times, producers' names, coordinates). It is covered by the checksum, not by
the tag.
Source: NIST SP 800-38D; docs/decisions/0114-runs-are-sealed-by-the-broker.md.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from heliograph.model.errors import CorruptData
from heliograph.wire.run import Run, Seal

_INFO = struct.Struct(">16sQQ")
_NONCE = struct.Struct(">Q4x")
_LABEL = b"heliograph run 1"
_KEPT = 1024


def cipher_of(secret: bytes, ledger: int, salt: int) -> AESGCM:
    """secret: a data key, 32 bytes."""
    return AESGCM(HKDFExpand(SHA256(), 32, _INFO.pack(_LABEL, ledger, salt)).derive(secret))


class Ciphers:
    """Those of the ledgers that were read last. secret_of: data key by its number; raises KeyMissing."""

    def __init__(self, secret_of: Callable[[int], bytes]) -> None:
        self._secret_of = secret_of
        self._kept: OrderedDict[tuple[int, int, int], AESGCM] = OrderedDict()

    def opened(self, ledger: int, run: Run) -> Run:
        """The same entries, open; `run` itself where it is. Raises KeyMissing; CorruptData where the bytes are not what
        was sealed.
        """
        seal = run.seal
        if seal is None:
            return run
        assert run.body is not None
        try:
            body = self._cipher(seal.key, ledger, seal.salt).decrypt(_NONCE.pack(seal.first), run.body, None)
        except InvalidTag as error:
            raise CorruptData(
                f"ledger {ledger}: the run at entry {seal.first} is not what was sealed with data key {seal.key:016x}"
            ) from error
        return run.with_body(memoryview(body)[seal.offset : seal.offset + run.size_bytes], None)

    def forget(self, key: int) -> None:
        """A data key that was removed."""
        for kept in [kept for kept in self._kept if kept[0] == key]:
            del self._kept[kept]

    def _cipher(self, key: int, ledger: int, salt: int) -> AESGCM:
        at = key, ledger, salt
        found = self._kept.get(at)
        if found is None:
            found = self._kept[at] = cipher_of(self._secret_of(key), ledger, salt)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(at)
        return found


class RunSealer:
    """Seals the runs of one writer of one ledger. current: (number, data key) as they are at each run, so that a
    rotation holds from the next one on.

    None: the newest key cannot be opened here; then what is open goes on with the one it has, which the others can
    read.
    """

    __slots__ = ("_cipher", "_current", "_key", "_ledger", "_salt")

    def __init__(
        self, ledger: int, salt: int, begin: tuple[int, bytes], current: Callable[[], tuple[int, bytes] | None]
    ) -> None:
        self._ledger, self._salt, self._current = ledger, salt, current
        self._key, secret = begin
        self._cipher = cipher_of(secret, ledger, salt)

    def __call__(self, run: Run, first: int) -> Run:
        """`run` as it is stored at entry `first`, which this writer has given to nobody else."""
        assert run.seal is None
        current = self._current()
        if current is not None and current[0] != self._key:
            self._key, self._cipher = current[0], cipher_of(current[1], self._ledger, self._salt)
        buffers = run.buffers()
        body = self._cipher.encrypt(_NONCE.pack(first), buffers[0] if len(buffers) == 1 else b"".join(buffers), None)
        return run.with_body(body, Seal(self._key, self._salt, first, 0))
