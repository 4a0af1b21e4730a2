"""BackupSeal: what lies in a backup's file, under AES-256-GCM.

Is: the key and the nonce of each record, sealing, and opening. Isn't: the file (`heliograph.kv.backup_file`), or whose
the key is: a line of a file as those of master keys are (`keyring`), which an operator keeps elsewhere.
Invariants: each backup has a key of its own, made of the line's and of a salt of 128 bits that is drawn for it; a
record's nonce is its number, which comes once. The tag covers what stands before all records, so that none is taken for
one of another place, backup, store, or key. What stands there of the seal, in clear, is the key's name and the salt.
Source: NIST SP 800-38D; docs/operating/keys.md, "Backups".
"""

from __future__ import annotations

import struct

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from heliograph.model.errors import ConfigError, CorruptData
from storage.sealing.keyring import MasterKeys

_NONCE = struct.Struct(">Q4x")
_LABEL = b"heliograph backup 1"
_SALT_BYTES = 16
_FIRST = 1
"""The number of the first record that is sealed: one that cannot be opened has another key, later ones are damaged."""


class BackupSeal:
    """Implements `heliograph.kv.backup_file.RecordSeal`. Made by `new`, or by `found` from what a file says."""

    def __init__(self, name: str, salt: bytes, secret: bytes, source: str) -> None:
        self._name, self._source = name, source
        self._cipher = AESGCM(HKDFExpand(SHA256(), 32, _LABEL + salt).derive(secret))
        self.about: bytes = msgpack.packb({"key": name, "salt": salt})

    @classmethod
    def new(cls, keys: MasterKeys, source: str) -> BackupSeal:
        """By the first key. source: the file of the keys, for errors."""
        return cls(keys.current, AESGCM.generate_key(128)[:_SALT_BYTES], keys.secret(keys.current), source)

    @classmethod
    def found(cls, about: bytes, keys: MasterKeys | None, source: str) -> BackupSeal:
        """For what a file says of its seal. Raises ConfigError (that key is not given), CorruptData."""
        try:
            fields = msgpack.unpackb(about)
            name, salt = str(fields["key"]), bytes(fields["salt"])
        except (ValueError, KeyError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"what the backup says of its seal is not readable: {error!r}") from error
        if keys is None:
            raise ConfigError(f"the backup is sealed with the key {name}: give the file that has it with --key-file")
        if name not in keys.names:
            raise ConfigError(
                f"the backup is sealed with the key {name}, and {source} has {', '.join(keys.names)}: give the file "
                "that has it with --key-file"
            )
        return cls(name, salt, keys.secret(name), source)

    def sealed(self, number: int, body: bytes, bound: bytes) -> bytes:
        return self._cipher.encrypt(_NONCE.pack(number), body, bound)

    def opened(self, number: int, body: bytes, bound: bytes) -> bytes:
        """Raises ConfigError where it is another key of that name, CorruptData where that was no record of it."""
        try:
            return self._cipher.decrypt(_NONCE.pack(number), body, bound)
        except InvalidTag:
            if number == _FIRST:
                raise ConfigError(
                    f"the key {self._name} in {self._source} is not the one that sealed this backup, or somebody has "
                    "changed its head: give the file of keys that it was made with, or take another backup"
                ) from None
            raise CorruptData(f"its record {number} is not what was sealed there") from None
