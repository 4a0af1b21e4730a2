"""Keyring: master keys, and data keys wrapped by them. A core.

Is: the text of master keys, a tenant's data keys as they are stored, wrapping, and unwrapping. Isn't: files, the
configuration, or runs (`cipher`).
Invariants: a data key leaves this process only wrapped (AES-256-GCM under a master key, bound to region, tenant, and
number); its number is made of its digest, so that no two keys ever have the same one; no text of an error holds a key.
The first master key of a text is the current one, and the newest data key of a tenant; the others only read.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from heliograph.model.errors import ConfigError, CorruptData, HeliographError, NotAllowed
from heliograph.model.topic_names import check_name

FORMAT = 1
REMOVED_KEPT = 1000
SETTLED_MS = 24 * 3600 * 1000
"""A broker that was cut off from the configuration for less than this has heard of a rotation."""
_KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class DataKey:
    """As it is stored. master: name of the master key that wrapped it; wrapped: nonce and ciphertext. created_ms: the
    latest that it can have been made, and that the one before it sealed; since_ms: the earliest; None: of an earlier
    version, which knew one time.
    """

    number: int
    master: str
    wrapped: bytes
    created_ms: int
    since_ms: int | None = None

    @property
    def earliest_ms(self) -> int:
        return self.created_ms if self.since_ms is None else self.since_ms


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """The data keys of one tenant in one region, the oldest first; the last one seals. removed: numbers of those that
    were removed, so that a list that went back is told from one that was shortened; None: nobody has said.
    """

    keys: tuple[DataKey, ...] = ()
    removed: tuple[int, ...] | None = None

    def encode(self) -> bytes:
        rows = [
            {
                "number": f"{key.number:016x}",
                "master": key.master,
                "wrapped": base64.b64encode(key.wrapped).decode(),
                "created_ms": key.created_ms,
                **({} if key.since_ms is None else {"since_ms": key.since_ms}),
            }
            for key in self.keys
        ]
        removed = {} if self.removed is None else {"removed": [f"{number:016x}" for number in self.removed]}
        return json.dumps({"format": FORMAT, "keys": rows, **removed}).encode()

    @classmethod
    def decode(cls, blob: bytes) -> TenantKeys:
        """Reads the stored value. Raises CorruptData where it is damaged or of a format that is not known."""
        try:
            fields = json.loads(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(f"data keys: of format {fields['format']}; this version reads format {FORMAT}")
            return cls(
                tuple(
                    DataKey(
                        int(row["number"], 16),
                        row["master"],
                        base64.b64decode(row["wrapped"]),
                        row["created_ms"],
                        row.get("since_ms"),
                    )
                    for row in fields["keys"]
                ),
                tuple(int(number, 16) for number in fields["removed"]) if "removed" in fields else None,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"data keys: {error!r}") from error


class MasterKeys:
    """By name; the first one wraps."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        assert keys
        self._keys = keys
        self.current = next(iter(keys))

    @property
    def names(self) -> list[str]:
        return list(self._keys)

    def secret(self, name: str) -> bytes:
        """The key of one of `names`."""
        return self._keys[name]

    @classmethod
    def parse(cls, text: str, source: str) -> MasterKeys:
        """Lines of a name and 32 bytes in base64, apart by a blank; `#` begins a comment. source: for errors. Raises
        ConfigError.
        """
        keys: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                if len(words) != 2:
                    raise ValueError("expected a name and a key")
                check_name("master key", words[0])
                secret = base64.b64decode(words[1], validate=True)
            except (ValueError, NotAllowed, binascii.Error) as error:
                why = str(error) if isinstance(error, NotAllowed) else "it is no name and key in base64"
                raise ConfigError(
                    f"{source}, line {number}: {why}; `heliograph keys master FILE` writes such lines"
                ) from None
            if len(secret) != _KEY_BYTES:
                raise ConfigError(
                    f"{source}, line {number}: the key has {len(secret)} bytes, and {_KEY_BYTES} are wanted"
                )
            if words[0] in keys:
                raise ConfigError(f"{source}, line {number}: master key {words[0]} stands there twice")
            keys[words[0]] = secret
        if not keys:
            raise ConfigError(f"{source} holds no master key; `heliograph keys master FILE` makes one")
        return cls(keys)

    def wrap(self, region: str, tenant: str, secret: bytes, created_ms: int, since_ms: int | None = None) -> DataKey:
        number = number_of(secret)
        nonce = AESGCM.generate_key(128)[:_NONCE_BYTES]
        wrapped = nonce + AESGCM(self._keys[self.current]).encrypt(nonce, secret, _bound(region, tenant, number))
        return DataKey(number, self.current, wrapped, created_ms, since_ms)

    def unwrap(self, region: str, tenant: str, key: DataKey) -> bytes:
        """Raises ConfigError where the master key is not here, or is another one of that name."""
        master = self._keys.get(key.master)
        if master is None:
            raise ConfigError(
                f"data key {key.number:016x} of tenant {tenant} is wrapped by master key {key.master}, and the master "
                f"keys given are {', '.join(self._keys)}"
            )
        try:
            secret = AESGCM(master).decrypt(
                key.wrapped[:_NONCE_BYTES], key.wrapped[_NONCE_BYTES:], _bound(region, tenant, key.number)
            )
        except (InvalidTag, ValueError):
            raise ConfigError(
                f"master key {key.master} is not the one that wrapped data key {key.number:016x} of tenant {tenant} "
                f"in region {region}"
            ) from None
        if number_of(secret) != key.number:
            raise ConfigError(f"data key {key.number:016x} of tenant {tenant} is damaged")
        return secret


def new_master_line(name: str) -> str:
    check_name("master key", name)
    return f"{name} {base64.b64encode(new_secret()).decode()}\n"


def new_secret() -> bytes:
    """Draws a key of 32 bytes from the operating system's source of chance."""
    return AESGCM.generate_key(256)


def number_of(secret: bytes) -> int:
    return int.from_bytes(sha256(b"heliograph data key 1" + secret).digest()[:8], "big") >> 1


def _bound(region: str, tenant: str, number: int) -> bytes:
    return f"{region}/{tenant}/{number:016x}".encode()


class Keyring:
    """The data keys of one region that this process can use. `refused`: tenant -> why its keys cannot be used. `lost`:
    the tenants of whose keys the configuration lacks some that are known here.
    """

    def __init__(self, region: str, masters: MasterKeys | None) -> None:
        self.region, self.masters = region, masters
        self.stored: dict[str, TenantKeys] = {}
        self.refused: dict[str, str] = {}
        self.lost: set[str] = set()
        self._secrets: dict[int, bytes] = {}
        self._current: dict[str, tuple[int, bytes]] = {}

    def heard(self, tenant: str, blob: bytes | None) -> list[int]:
        """What the configuration has for a tenant now. Returns the numbers of keys that were removed; what it lost
        otherwise stays `stored` here. A key that was opened once stays open until it is removed.
        """
        known = self.stored.get(tenant, TenantKeys())
        before = {key.number for key in known.keys}
        self.refused.pop(tenant, None)
        try:
            heard = TenantKeys() if blob is None else TenantKeys.decode(blob)
        except CorruptData as error:
            self.refused[tenant] = str(error)
            return []
        keys = completed(known, heard)
        (self.lost.discard if keys is heard else self.lost.add)(tenant)
        if keys.keys:
            self.stored[tenant] = keys
        else:
            self.stored.pop(tenant, None)
            self._current.pop(tenant, None)
        gone = before - {key.number for key in keys.keys}
        for number in gone:
            self._secrets.pop(number, None)
        for key in keys.keys:
            if key.number in self._secrets:
                continue
            try:
                if self.masters is None:
                    raise ConfigError(
                        f"data key {key.number:016x} of tenant {tenant} is wrapped by master key {key.master}, and no "
                        "master key is set"
                    )
                self._secrets[key.number] = self.masters.unwrap(self.region, tenant, key)
            except HeliographError as error:
                self.refused[tenant] = str(error)
        if keys.keys:
            newest = keys.keys[-1].number
            if newest in self._secrets:
                self._current[tenant] = newest, self._secrets[newest]
            else:
                self._current.pop(tenant, None)  # an older one would seal what the others no longer do
        return sorted(gone)

    def current(self, tenant: str) -> tuple[int, bytes] | None:
        return self._current.get(tenant)

    def at(self, tenant: str, time_ms: int) -> tuple[int, bytes] | None:
        """The key that sealed then; where there was none yet, the first one. None: there is none at all, or it cannot
        be opened.
        """
        keys = self.stored.get(tenant, TenantKeys()).keys
        found = next((key for key in reversed(keys) if key.created_ms <= time_ms), keys[0] if keys else None)
        secret = None if found is None else self._secrets.get(found.number)
        return None if found is None or secret is None else (found.number, secret)

    def numbered(self, number: int) -> tuple[int, bytes] | None:
        """None: it is not there, or cannot be opened."""
        secret = self._secrets.get(number)
        return None if secret is None else (number, secret)

    def secret(self, number: int) -> bytes | None:
        return self._secrets.get(number)

    def rewrapped(self, tenant: str) -> TenantKeys | None:
        """All of a tenant's keys wrapped by the current master key; None where they are. Raises ConfigError."""
        assert self.masters is not None
        stored = self.stored.get(tenant, TenantKeys())
        if all(key.master == self.masters.current for key in stored.keys):
            return None
        out = []
        for key in stored.keys:
            secret = self._secrets.get(key.number)
            if secret is None:
                raise ConfigError(
                    self.refused.get(
                        tenant, f"data key {key.number:016x} of tenant {tenant} is not known here yet: try again"
                    )
                )
            out.append(
                key
                if key.master == self.masters.current
                else self.masters.wrap(self.region, tenant, secret, key.created_ms, key.since_ms)
            )
        return replace(stored, keys=tuple(out))


def without(keys: TenantKeys, number: int) -> TenantKeys:
    removed = (*(keys.removed or ()), number)[-REMOVED_KEPT:]
    return TenantKeys(tuple(key for key in keys.keys if key.number != number), removed)


def completed(known: TenantKeys, heard: TenantKeys) -> TenantKeys:
    """`heard`, with the keys of `known` that it lacks though nobody removed them: it comes from an older copy then."""
    there = {key.number for key in heard.keys}
    left = known.keys
    if heard.removed is None:  # that version removed a key only while a later one was there
        left = left[max((at + 1 for at, key in enumerate(left) if key.number in there), default=0) :]
    lost = [key for key in left if key.number not in there and key.number not in (heard.removed or ())]
    if not lost:
        return heard
    keys = sorted((*heard.keys, *lost), key=lambda key: (key.created_ms, key.number))
    numbers = {key.number for key in keys}
    removed = dict.fromkeys((*(known.removed or ()), *(heard.removed or ())))
    return TenantKeys(tuple(keys), tuple(number for number in removed if number not in numbers)[-REMOVED_KEPT:])


def refusal(refused: Iterable[str], source: str) -> ConfigError:
    """What a process says that is started without the right master keys. source: where they were looked for."""
    reasons = list(refused)
    more = f" (and {len(reasons) - 1} other tenants)" if len(reasons) > 1 else ""
    return ConfigError(
        f"{reasons[0]}{more}; master keys come from {source}. Give the right ones: nothing was changed, and what is "
        "stored can be read again with them"
    )
