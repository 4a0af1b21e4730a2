"""Metadata of ledgers and managed ledgers, as it lies in a region's local metadata.

Is: the values, and their encoding (msgpack behind a version byte). Isn't: who changes them, and when.
Keys are ordered so that a bundle loads with one range read: /ml/{namespace}/{hash:08x}/{topic}.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self

import msgpack

from heliograph.model.errors import CorruptData

FORMAT = 1


class LedgerState(IntEnum):
    OPEN = 0
    IN_RECOVERY = 1
    CLOSED = 2


def pack(fields: list[Any]) -> bytes:
    """A version byte, then the fields."""
    packed: bytes = msgpack.packb(fields)
    return bytes([FORMAT]) + packed


def unpack(kind: str, blob: bytes) -> list[Any]:
    """Raises CorruptData where the bytes are no `kind` of a format that this version reads."""
    if not blob or blob[0] != FORMAT:
        raise CorruptData(f"{kind}: format {blob[0] if blob else 'none'} is not known here (this version reads format {FORMAT})")
    try:
        fields = msgpack.unpackb(memoryview(blob)[1:], strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"{kind}: {error}") from error
    if not isinstance(fields, list):
        raise CorruptData(f"{kind}: expected a list of fields")
    return fields


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger. `fragments`: (first entry, bookie ids), the first at entry 0; a later fragment replaces from its first entry on."""

    ledger: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[tuple[int, tuple[str, ...]], ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    """Of a closed ledger; -1 where it is empty or not closed."""
    size_bytes: int = 0
    topic: str = ""
    """Whose it is; "" where it is no topic's."""
    owner: int = 0
    """`ManagedLedgerMetadata.owner` of the opening that made it: once the topic has another one, nobody will name this ledger who has not done so."""

    def ensemble_at(self, entry: int) -> tuple[str, ...]:
        """The bookies that hold `entry`."""
        chosen = self.fragments[0][1]
        for first, bookies in self.fragments:
            if first > entry:
                break
            chosen = bookies
        return chosen

    def with_fragment(self, first: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        kept = tuple(f for f in self.fragments if f[0] < first)
        return replace(self, fragments=(*kept, (first, bookies)))

    def encode(self) -> bytes:
        places = [self.write_quorum, self.ack_quorum, self.fragments]
        return pack([self.ledger, *places, int(self.state), self.last_entry, self.size_bytes, self.topic, self.owner])

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        ledger, write_quorum, ack_quorum, fragments, state, last, size, topic, owner = unpack("ledger metadata", blob)
        return cls(ledger, write_quorum, ack_quorum, tuple((f, tuple(b)) for f, b in fragments), LedgerState(state), last, size, topic, owner)


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One ledger of a managed ledger. Stored for the open one (`closed_ms` 0): its numbers as of `state_through`."""

    ledger: int
    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0
    """Wall time of its closing; 0 where it is open."""
    first_index: int = 0
    """Message index before its first message."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerMetadata:
    """One topic's storage. `state_blob`: what the layer above keeps (vector, producers, incarnation), as of `state_through`.

    next_index: index of the first message behind `state_through`. owner: minted at each opening, so that an owner knows its own writes from others'.
    """

    ledgers: tuple[LedgerInfo, ...] = ()
    state_blob: bytes = b""
    state_through: tuple[int, int] = (-1, -1)
    terminated_at: tuple[int, int] | None = None
    properties: dict[str, str] = field(default_factory=dict)
    next_index: int = 0
    owner: int = 0

    def encode(self) -> bytes:
        ledgers = [[i.ledger, i.entries, i.size_bytes, i.closed_ms, i.first_index] for i in self.ledgers]
        return pack([ledgers, self.state_blob, self.state_through, self.terminated_at, self.properties, self.next_index, self.owner])

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        ledgers, state_blob, through, terminated, properties, next_index, owner = unpack("managed ledger metadata", blob)
        return cls(
            tuple(LedgerInfo(*i) for i in ledgers),
            state_blob,
            (through[0], through[1]),
            (terminated[0], terminated[1]) if terminated else None,
            properties,
            next_index,
            owner,
        )
