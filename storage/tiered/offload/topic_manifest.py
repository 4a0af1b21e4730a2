"""TopicManifest: what a restore needs of a topic beside its entries.

Is: one small object a change: the managed ledger's metadata, its cursors, states, and policies. Isn't: where or when it
is stored.
Invariants: among its states is, wherever there was ever one, one that reaches no further than the entries that the
store has, so that replaying the entries behind it gives the state exactly: a state that knew more would call entries
delivered that are lost.

    0  4s "HELM"   4  u8 version (1)   5  3x 0   8  u32 size of the body   12  u32 crc32c of the body   16  body

    body, msgpack: [topic, wall ms, metadata, states, cursors, policies, partitions]
    metadata: as in the region's metadata      states: [[ledger, entry, blob], ...], each as of that position
    cursors: [[name, as in the region's metadata], ...]   policies: {name: JSON text}
    partitions: of the topic that it is one of, 0: of none
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import crc32c
import msgpack

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import ManagedLedgerMetadata
from heliograph.model.positions import Position
from storage.tiered.offload.offload_plan import stored_prefix

VERSION = 1
_HEAD = struct.Struct(">4sB3xII")

State = tuple[Position, bytes]
"""(as of which position, snapshot)."""
States = tuple[State, ...]
"""In order of the positions."""


@dataclass(frozen=True, slots=True)
class TopicManifest:
    topic: str
    made_ms: int
    metadata: ManagedLedgerMetadata
    states: States
    cursors: tuple[tuple[str, bytes], ...] = ()
    policies: dict[str, str] = field(default_factory=dict)
    partitions: int = 0

    @property
    def end(self) -> Position:
        """The last position that the store has; (-1, -1) where that is none."""
        return stored_end(self.metadata)

    def encode(self) -> bytes:
        states = [[*position, blob] for position, blob in self.states]
        body: bytes = msgpack.packb(
            [self.topic, self.made_ms, self.metadata.encode(), states, self.cursors, self.policies, self.partitions]
        )
        return _HEAD.pack(b"HELM", VERSION, len(body), crc32c.crc32c(body)) + body

    @classmethod
    def decode(cls, blob: bytes | memoryview) -> Self:
        """Reads an object as it was stored. Raises CorruptData where it is damaged or of a format that is not known."""
        view = memoryview(blob)
        if len(view) < _HEAD.size:
            raise CorruptData("manifest: cut off")
        magic, version, size, checksum = _HEAD.unpack_from(view)
        if magic != b"HELM" or version != VERSION:
            raise CorruptData(f"manifest: format {version} is not known here (this version reads format {VERSION})")
        body = view[_HEAD.size :]
        if len(body) != size or crc32c.crc32c(body) != checksum:
            raise CorruptData("manifest: checksum mismatch")
        try:
            fields: list[Any] = msgpack.unpackb(body, strict_map_key=False)
            topic, made_ms, metadata, states, cursors, policies, partitions = fields
            found = tuple(((ledger, entry), state) for ledger, entry, state in states)
            return cls(
                topic,
                made_ms,
                ManagedLedgerMetadata.decode(metadata),
                found,
                tuple((n, c) for n, c in cursors),
                policies,
                partitions,
            )
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"manifest: {error}") from error


def stored_end(metadata: ManagedLedgerMetadata) -> Position:
    prefix = stored_prefix(metadata.ledgers)
    return (prefix[-1].ledger, prefix[-1].entries - 1) if prefix else (-1, -1)


def merge_states(former: Sequence[State], new: State, end: Position) -> States:
    """What the next manifest keeps: the newest state at or before `end`, and the oldest one behind it, which will be
    the next of that kind.
    """
    ordered = sorted([*former, new], key=lambda state: state[0])
    covered = [state for state in ordered if state[0] <= end]
    ahead = [state for state in ordered if state[0] > end]
    return (*covered[-1:], *ahead[:1])
