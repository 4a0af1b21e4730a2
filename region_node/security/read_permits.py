"""Read permits: the right to read a range of a ledger's entries from bookies, as a broker gives it and a bookie
verifies it.

Is: the permit (ledger, entries, until when), its MAC, and the region's keys for that, which lie in the local metadata.
Isn't: who may have one (the broker that owns the topic decides), or the reading (`region_node.bookie.entry_ranges`).
Invariants: a bookie that was shown no permit of a key that it knows gives nothing; a key is followed by another after a
day, and is believed for another day, which is longer than any permit holds. Who can read the region's metadata can read
its bookies anyway.
Source: docs/protocols/storage.md, "Reads without a broker".
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Mapping
from typing import NamedTuple

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import CorruptData, MetadataUnavailable, NotAllowed, OutcomeUnknown, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.runtime.clock import Clock
from local_meta.keys import READ_KEYS

PERMIT_MS = 3_600_000
_NEXT_KEY_MS = 24 * 3_600_000
_SIGNED = struct.Struct(">QQQQQ")
_PURPOSE = b"heliograph read 1"
_FIELDS = ("ledger", "first", "last", "until", "key")
_NUMBER_MAX = (1 << 63) - 1


class ReadKey(NamedTuple):
    number: int
    made_ms: int
    secret: bytes


class PermitRefused(NotAllowed):
    """A permit that is none. `reason`: malformed, forged, or expired."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Permit(NamedTuple):
    """Entries [first, last] of a ledger, until a wall time in milliseconds."""

    ledger: int
    first: int
    last: int
    until_ms: int

    def query(self, key: ReadKey) -> str:
        """As a part of a URL."""
        values = (*self, key.number)
        return "&".join(
            [
                *(f"{name}={value}" for name, value in zip(_FIELDS, values, strict=True)),
                f"mac={_mac(key.secret, values)}",
            ]
        )


def _mac(secret: bytes, values: tuple[int, ...]) -> str:
    return hmac.digest(secret, _PURPOSE + _SIGNED.pack(*values), "sha256").hex()


def number(given: Mapping[str, str], name: str) -> int:
    """Reads a parameter of a request as a whole number, 0 to _NUMBER_MAX. Raises PermitRefused (malformed), also where
    it is missing.
    """
    text = given.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _NUMBER_MAX):
        raise PermitRefused("malformed", f"{name} is no number: a permit is what a broker gave, as a whole")
    return int(text)


class ReadKeys:
    """Keeps the region's keys as one process knows them, fed by a watch until `close`."""

    def __init__(self, meta: MetadataStore, clock: Clock) -> None:
        self._meta, self._clock = meta, clock
        self._keys: tuple[ReadKey, ...] = ()
        self.close = meta.watch(READ_KEYS, self._heard)

    async def permit(self, ledger: int, first: int, last: int) -> str:
        """The query of a new one, for an hour. Makes a key where there is none, or where it is old. Raises
        MetadataUnavailable.
        """
        now = self._clock.wall_ms()
        if not self._keys or now - self._keys[-1].made_ms > _NEXT_KEY_MS:
            await self._make(now)
        return Permit(ledger, first, last, now + PERMIT_MS).query(self._keys[-1])

    def check(self, given: Mapping[str, str]) -> Permit:
        """Returns the permit that a request shows. Raises PermitRefused: malformed, forged (or of a key that is gone),
        expired.
        """
        values = tuple(number(given, name) for name in _FIELDS)
        key = next((one for one in self._keys if one.number == values[-1]), None)
        if key is None or not hmac.compare_digest(_mac(key.secret, values), given.get("mac", "")):
            raise PermitRefused(
                "forged", "this permit is of no broker of this region, or of a key that is not known here any more"
            )
        permit = Permit(*values[:-1])
        if permit.until_ms < self._clock.wall_ms():
            raise PermitRefused("expired", "this permit has expired: a broker gives another one")
        return permit

    async def _make(self, now: int) -> None:
        found = await self._meta.get(READ_KEYS)
        held = _decoded(found[0]) if found is not None else ()
        if not held or now - held[-1].made_ms > _NEXT_KEY_MS:
            made = ReadKey(held[-1].number + 1 if held else 1, now, secrets.token_bytes(32))
            wanted = (*held[-1:], made)
            try:
                await self._meta.put(
                    READ_KEYS, pack([list(key) for key in wanted]), expected=ABSENT if found is None else found[1]
                )
            except (VersionConflict, OutcomeUnknown) as error:
                found = await self._meta.get(READ_KEYS)
                wanted = _decoded(found[0]) if found is not None else ()
                if not wanted:
                    raise MetadataUnavailable("the keys of reads are being changed; try again") from error
            held = wanted
        self._keys = held

    def _heard(self, key: str, value: bytes | None, _: int) -> None:
        if key == READ_KEYS:
            self._keys = () if value is None else _decoded(value)


def _decoded(blob: bytes) -> tuple[ReadKey, ...]:
    """None of a later version's: then nothing is permitted here."""
    try:
        return tuple(ReadKey(*fields) for fields in unpack("read keys", blob))
    except (CorruptData, TypeError):
        return ()
