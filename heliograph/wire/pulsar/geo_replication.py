"""What Pulsar's own geo-replication puts on the wire: producers of replicators, the origin of an entry, and markers of
replicated subscriptions.

Is: bytes to meaning and back, for links with real Pulsar clusters, both ways. Isn't: a link between Heliograph regions
(`heliograph.wire.links.link_commands`), or a decision.
Invariants: an entry's payload stays as it is; markers that cannot be read raise CorruptData.
Source: docs/protocols/interop.md.

A replicator is a producer named `pulsar.repl.<its cluster>`, with `--><target>` behind it since 2.11. Each entry
carries `replicated_from`; towards brokers that judge repetitions by it, also the property below, `<ledger>:<entry>` at
the source, and its receipt then names that position in place of the sequences.

    marker           MessageMetadata.marker_type, and a message of its own as payload:
    10 request       1 snapshot id, 2 the cluster that asks
    11 response      1 snapshot id, 2 (1 the cluster that answers, 2 position)
    12 snapshot      for the cluster that wrote it alone
    13 update        1 subscription, 2 (1 cluster, 2 position), repeated
    position         1 ledger, 2 entry
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import crc32c

from heliograph.model.errors import CorruptData, PeerError
from heliograph.model.positions import Position
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from heliograph.wire.run import Buffer
from heliograph.wire.varint import read_varint, varint

PREFIX = "pulsar.repl."
_TO = "-->"
SOURCE_POSITION = "__MSG_PROP_REPL_SOURCE_POSITION"
MARKER_RECEIPT = 1 << 63
"""`highest_sequence_id` in the receipt of a marker, where receipts name source positions."""
_MAGIC = b"\x0e\x01"
_REPLICATED_FROM = 5
_SIZES = struct.Struct(">II").pack


class Marker(IntEnum):
    """`marker_type` of the markers that cross a link."""

    SNAPSHOT_REQUEST = 10
    SNAPSHOT_RESPONSE = 11
    SNAPSHOT = 12
    UPDATE = 13


class Snapshot(NamedTuple):
    """A request (`position` None) or a response, of `cluster`."""

    id: str
    cluster: str
    position: Position | None


class Update(NamedTuple):
    """`subscription` has everything at or before `positions[cluster]`."""

    subscription: str
    positions: dict[str, Position]


def producer_name(source: str, target: str) -> str:
    """Returns the name of the replicator that sends from cluster `source` to `target`."""
    return f"{PREFIX}{source}{_TO}{target}"


def source_of(producer: str) -> str:
    """The cluster whose replicator has this name; "": it is none's."""
    return producer.removeprefix(PREFIX).partition(_TO)[0] if producer.startswith(PREFIX) else ""


def source_position(metadata: MessageMetadata) -> Position | None:
    """Where an entry lies at its source. Raises CorruptData where what stands there is no position."""
    for pair in metadata.properties:
        if pair.key == SOURCE_POSITION:
            ledger, _, entry = pair.value.partition(":")
            if not (ledger.isascii() and ledger.isdigit() and entry.isascii() and entry.isdigit()):
                raise CorruptData(f"{SOURCE_POSITION} is {pair.value!r:.60}, which is no position")
            return int(ledger), int(entry)
    return None


def sources_of(entry: Buffer) -> list[str]:
    """Every region and cluster that a stored entry says it came from: each link appends one, the newest last. Raises
    CorruptData.
    """
    at = 6 if bytes(entry[:2]) == _MAGIC else 0
    size = int.from_bytes(entry[at : at + 4], "big")
    fields = _fields(entry[at + 4 : at + 4 + size])
    return [
        value.decode("utf-8", "replace")
        for number, value in fields
        if number == _REPLICATED_FROM and isinstance(value, bytes)
    ]


def send_frame(
    producer: int, sequence: int, messages: int, metadata: MessageMetadata, payload: Buffer, *, marker: bool = False
) -> bytes:
    """Makes one whole SEND frame, checksum included."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id, command.send.num_messages = producer, sequence, messages
    if marker:
        command.send.marker = True
    head, packed = command.SerializeToString(), metadata.SerializeToString()
    size = len(packed).to_bytes(4, "big")
    checksum = crc32c.crc32c(payload, crc32c.crc32c(packed, crc32c.crc32c(size)))
    total = 4 + len(head) + 6 + 4 + len(packed) + len(payload)
    return b"".join((_SIZES(total, len(head)), head, _MAGIC, checksum.to_bytes(4, "big"), size, packed, payload))


# -- markers -----------------------------------------------------------------------------------------------------------


def request(snapshot: str, cluster: str) -> bytes:
    return _text(1, snapshot) + _text(2, cluster)


def response(snapshot: str, cluster: str, position: Position) -> bytes:
    return _text(1, snapshot) + _field(2, _at(cluster, position))


def update(subscription: str, positions: Mapping[str, Position]) -> bytes:
    return _text(1, subscription) + b"".join(
        _field(2, _at(cluster, position)) for cluster, position in positions.items()
    )


def read_request(payload: Buffer) -> Snapshot:
    """Reads a request for a snapshot. Raises CorruptData."""
    fields = _fields(payload)
    return Snapshot(_string(fields, 1), _string(fields, 2), None)


def read_response(payload: Buffer) -> Snapshot:
    """Reads where a cluster is, its answer to a request. Raises CorruptData."""
    fields = _fields(payload)
    cluster, position = _read_at(_bytes(fields, 2))
    return Snapshot(_string(fields, 1), cluster, position)


def read_update(payload: Buffer) -> Update:
    """Reads a subscription's positions by cluster. Raises CorruptData."""
    fields = _fields(payload)
    return Update(
        _string(fields, 1),
        dict(_read_at(value) for number, value in fields if number == 2 and isinstance(value, bytes)),
    )


def _at(cluster: str, position: Position) -> bytes:
    return _text(1, cluster) + _field(2, b"\x08" + varint(position[0]) + b"\x10" + varint(position[1]))


def _read_at(blob: bytes) -> tuple[str, Position]:
    fields = _fields(blob)
    numbers = {number: value for number, value in _fields(_bytes(fields, 2)) if isinstance(value, int)}
    if 1 not in numbers or 2 not in numbers:
        raise CorruptData("a marker whose position lacks its ledger or entry")
    return _string(fields, 1), (numbers[1], numbers[2])


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


_Fields = Sequence[tuple[int, int | bytes]]


def _fields(payload: Buffer) -> _Fields:
    """(number, value) of a message of varints and byte strings. Raises CorruptData."""
    blob, at = bytes(payload), 0
    found: list[tuple[int, int | bytes]] = []
    try:
        while at < len(blob):
            tag, at = read_varint(blob, at)
            value, at = read_varint(blob, at)
            if tag & 7 == 2:
                if at + value > len(blob):
                    raise CorruptData("a field that ends early")
                found.append((tag >> 3, blob[at : at + value]))
                at += value
            elif tag & 7 == 0:
                found.append((tag >> 3, value))
            else:
                raise CorruptData("a field of a kind that does not belong here")
    except (IndexError, PeerError) as error:
        raise CorruptData("fields that cannot be decoded") from error
    return found


def _bytes(fields: _Fields, number: int) -> bytes:
    for known, value in fields:
        if known == number and isinstance(value, bytes):
            return value
    raise CorruptData(f"a marker without field {number}")


def _string(fields: _Fields, number: int) -> str:
    try:
        return _bytes(fields, number).decode()
    except UnicodeDecodeError as error:
        raise CorruptData("a marker with a name that is no text") from error
