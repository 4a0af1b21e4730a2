"""Ciphers: the bytes of a run under AES-256-GCM, one call a run.

Is: the key and the nonce of a run, sealing, and opening. Isn't: which key (`keyring`), or where keys are kept
(`sealing`).
Invariants: no nonce is used twice under one key. A writer draws a salt of 64 bits; the ledger and the salt make a key
of their own out of the tenant's data key (HKDF-SHA256), and the nonce is the first entry, which a writer gives once.
What is stored again (a recovery, a repair, a copy to an object store) is copied as it is, and never sealed anew under
the same numbers; so also two writers that believe to own one ledger, or a ledger id given twice, share no key. What is
not sealed: the header of a block (lengths, times, producers' names, coordinates). The tag covers it, with the ledger
and the entries that it was sealed for; but not in form 1, which is only read.
Source: NIST SP 800-38D; docs/decisions/0114-runs-are-sealed-by-the-broker.md,
docs/decisions/0237-a-seal-holds-where-it-was-put.md.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from heliograph.model.errors import CorruptData, KeyMissing
from heliograph.wire.block import header_to_seal
from heliograph.wire.run import Run, Seal

_INFO = struct.Struct(">16sQQ")
_NONCE = struct.Struct(">Q4x")
_LABELS = (b"", b"heliograph run 1", b"heliograph run 2")
_KEPT = 1024


UNSEALED, BYTES_ALONE, WITH_HEADER = 0, 1, 2
"""Forms in which runs are stored: as they are; sealed; sealed so that the tag covers their header too."""


def cipher_of(secret: bytes, ledger: int, salt: int, form: int = WITH_HEADER) -> AESGCM:
    """secret: a data key, 32 bytes. No two forms share a key, so that no run of one is taken for one of another."""
    return AESGCM(HKDFExpand(SHA256(), 32, _INFO.pack(_LABELS[form], ledger, salt)).derive(secret))


def form_of(run: Run) -> int:
    if run.seal is None:
        return UNSEALED
    return BYTES_ALONE if run.seal.header is None else WITH_HEADER


def promised(form: int) -> int:
    """What a ledger's metadata says of it when its runs are sealed in `form`: of form 1 nothing, as versions that know
    of no other read it.
    """
    return form if form >= WITH_HEADER else UNSEALED


def check_form(ledger: int, first: int, run: Run, form: int) -> None:
    """Raises CorruptData where a run at entry `first` has a lower form than every one of its ledger has."""
    if form_of(run) < form:
        found = "not sealed" if run.seal is None else "sealed in an older form"
        raise CorruptData(f"ledger {ledger}: entry {first} is {found}, and nothing of this ledger was written so")


class Ciphers:
    """Those of the ledgers that were read last. secret_of: data key by its number; raises KeyMissing."""

    def __init__(self, secret_of: Callable[[int], bytes]) -> None:
        self._secret_of = secret_of
        self._kept: OrderedDict[tuple[int, int, int, int], AESGCM] = OrderedDict()

    def opened(self, ledger: int, first: int, run: Run) -> Run:
        """The same entries, open; `run` itself where it is. Raises KeyMissing; CorruptData where the bytes, or what is
        said of them, are not what was sealed.

        first: the entry at which the run was found; for errors, as its place is among what is said of it.
        """
        seal = run.seal
        if seal is None:
            return run
        assert run.body is not None
        try:
            cipher = self._cipher(seal.key, ledger, seal.salt, form_of(run))
            body = cipher.decrypt(_NONCE.pack(seal.first), run.body, seal.header)
        except KeyMissing as error:
            raise KeyMissing(f"ledger {ledger}: entry {first} is sealed with {error}") from error
        except InvalidTag as error:
            raise CorruptData(
                f"ledger {ledger}: the run at entry {first} is not what was sealed there with data key {seal.key:016x}"
            ) from error
        return run.with_body(memoryview(body)[seal.offset : seal.offset + run.size_bytes], None)

    def forget(self, key: int) -> None:
        """A data key that was removed."""
        for kept in [kept for kept in self._kept if kept[0] == key]:
            del self._kept[kept]

    def _cipher(self, key: int, ledger: int, salt: int, form: int) -> AESGCM:
        at = key, ledger, salt, form
        found = self._kept.get(at)
        if found is None:
            found = self._kept[at] = cipher_of(self._secret_of(key), ledger, salt, form)
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

    __slots__ = ("_cipher", "_current", "_form", "_key", "_ledger", "_salt")

    def __init__(
        self,
        ledger: int,
        salt: int,
        begin: tuple[int, bytes],
        current: Callable[[], tuple[int, bytes] | None],
        form: int = WITH_HEADER,
    ) -> None:
        self._ledger, self._salt, self._current, self._form = ledger, salt, current, form
        self._key, secret = begin
        self._cipher = cipher_of(secret, ledger, salt, form)

    def __call__(self, run: Run, first: int) -> Run:
        """`run` as it is stored at entry `first`, which this writer has given to nobody else."""
        assert run.seal is None
        current = self._current()
        if current is not None and current[0] != self._key:
            self._key, self._cipher = current[0], cipher_of(current[1], self._ledger, self._salt, self._form)
        header = None
        if self._form == WITH_HEADER:
            header = header_to_seal(run, self._ledger, first, self._key, self._salt)
        buffers = run.buffers()
        body = self._cipher.encrypt(_NONCE.pack(first), buffers[0] if len(buffers) == 1 else b"".join(buffers), header)
        return run.with_body(body, Seal(self._key, self._salt, first, 0, header))
