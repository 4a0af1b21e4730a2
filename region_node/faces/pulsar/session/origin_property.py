"""Where a message was first published, as a property that clients can read: in namespaces that ask for it (policy
`originProperty`).

Is: a run's entries with the property in their metadata, of batches in each message's, and new checksums. Isn't: what is
stored or replicated: only what goes out to one consumer.
Invariants: payloads, order, number, and indexes of messages stay; a batch that cannot be opened here (encrypted, of a
compression that is not known) has the property in its outer metadata alone, which clients do not show.
Source: docs/protocols/pulsar.md, "Where a message comes from".
"""

from __future__ import annotations

from collections.abc import Callable

import crc32c

from heliograph.model.coordinates import Origin, format_coordinate
from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Buffer, Run
from heliograph.wire.varint import varint
from region_node.compaction.keyed_entries import with_property

POLICY = "originProperty"
PROPERTY = "heliograph.origin"
_MAGIC = b"\x0e\x01"
_KEY = b"\x0a" + bytes([len(PROPERTY)]) + PROPERTY.encode() + b"\x12"


def with_origin(run: Run, ledger: int, first: int, origin_at: Callable[[Position], Origin]) -> Run:
    """The same entries, which lie at (ledger, first), each with its coordinate. origin_at: of what was first published
    here.
    """
    parts: list[Buffer] = []
    own = origin_at((ledger, first)) if run.origin is None else run.origin
    for index, part in enumerate(run.parts):
        at = (ledger, first + index) if run.origin is None else run.coordinate(index)
        parts.append(_named(part, format_coordinate((own, at))))
    return run.with_parts(parts, flags=run.flags)


def _named(entry: Buffer, coordinate: str) -> Buffer:
    try:
        metadata, payload = entry_metadata(entry)
    except CorruptData:
        return entry  # the client judges it
    if (
        metadata.HasField("num_messages_in_batch")
        and not metadata.encryption_keys
        and (batch := with_property(entry, PROPERTY, coordinate)) is not None
    ):
        return batch
    view = memoryview(entry)
    at = 6 if bytes(view[:2]) == _MAGIC else 0
    pair = _KEY + varint(len(coordinate)) + coordinate.encode()
    head = b"".join(
        (view[at + 4 : len(view) - len(payload)], b"\x22", varint(len(pair)), pair)
    )  # one more of a repeated field
    checked = b"".join((len(head).to_bytes(4, "big"), head, payload))
    return b"".join((_MAGIC, crc32c.crc32c(checked).to_bytes(4, "big"), checked))
