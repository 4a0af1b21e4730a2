"""The replication link's private commands, and the SKIP record that both regions store.

Is: bytes to meaning and back. Isn't: a decision about what to send or accept (`replicator.sending.link_sender`,
`replicator.dedup.version_vector`). Framing is Pulsar's; a private command is a protobuf message of field 1 = its type
(varint, 1000 and up) and one length-delimited field with that same number, which older servers skip:

    u32 total, u32 command size, 0x08 varint type, varint (type << 3 | 2) varint size,
    u8 version (1), msgpack list, payload

    1000 OPEN       stream, topic, source region, source's number, feature level
    1001 OPENED     stream, incarnation of the target's copy, window bytes, vector
    1002 RUN        stream, attempt, previous ledger, previous entry [, codec, size]; payload: a block
                    (`heliograph.wire.block`) with its origin column, from level 4 compressed, where it names a codec
                    (`heliograph.wire.links.link_compression`) and the size of the block
    1003 RECEIPT    stream, [origin..., ledger, entry] ...: cumulative, durable through there
    1004 GAP        stream, attempt, vector: the sender rewinds; RUNs and SKIPs of that attempt are dropped from here on
    1005 SKIP       stream, attempt, SKIP record
    1006 HEARTBEAT  wall ms, echoed wall ms, ms since that arrived,
                    [stream, last confirmed coordinate or nil, {region: vector}, risk] ...
                    risk, from the source only: [entries, messages, bytes, broker time in ms of the oldest] that the
                    target does not have. Stream 0, from the source only: topics that the target may not have at all
                    (`heliograph.wire.links.unopened_topics`)
    1007 CLOSE      stream, cause, text: that stream ends, the connection goes on
    1008 CLAIMS     stream, subscription, claims (`replicator.subscriptions.ack_claims`): what was acknowledged;
                    between feature levels of 2 and up, both ways
    1009 ASK, 1010 TELL
                    what the other side holds of a range of coordinates (`heliograph.wire.links.audit_commands`);
                    from level 3, both ways
    1011 SCHEMAS    versions of the topic's schema (`heliograph.wire.links.schema_commands`); from level 3, source to
                    target
    1012 OVERRULE   versions that the target takes in place of its own; as SCHEMAS, from level 6

A `stream` is one topic on one connection, numbered by the sender. `attempt` counts the sender's rewinds on this stream.

A SKIP record, as it lies in a hidden entry, big endian:

    u8 version (1), u8 reason, u32 region, u32 epoch, u64 incarnation, 4 x i64 (after, through),
    route (UTF-8, to the end)

Invariants: whatever arrives is accepted or raises PeerError.   Source: docs/protocols/links.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import CorruptData, PeerError
from heliograph.model.positions import Position
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.links.command_fields import coordinate as _coordinate
from heliograph.wire.links.command_fields import fields as _fields
from heliograph.wire.links.command_fields import number as _number
from heliograph.wire.links.command_fields import position as _position
from heliograph.wire.links.command_fields import text as _text
from heliograph.wire.links.command_fields import vector as _vector
from heliograph.wire.links.link_compression import unpack
from heliograph.wire.links.unopened_topics import STREAM as _UNOPENED
from heliograph.wire.links.unopened_topics import UnopenedTopics, read_unopened
from heliograph.wire.run import FLAG_HIDDEN, FLAG_MARKER, FLAG_TREE, Buffer, Run

VERSION = 1
_MESSAGES_MAX = 1 << 18
"""As of a client (`heliograph.wire.pulsar.batch_messages`): every message moves the topic's index."""
_SEQUENCE_MAX = (1 << 63) - 1
FEATURE_LEVEL = 7
"""2: CLAIMS. 3: ASK and TELL; transactions. 4: compressed RUNs. 5: trees: entries of other regions, and the records
that name their ways.
6: OVERRULE. 7: RUNs that name the leadership under which they were published.
"""
LEADERSHIP_LEVEL = 7
PRIVATE_FROM = 1000
TOPIC_MAX = 4096


class LinkFrameKind(IntEnum):
    OPEN = 1000
    OPENED = 1001
    RUN = 1002
    RECEIPT = 1003
    GAP = 1004
    SKIP = 1005
    HEARTBEAT = 1006
    CLOSE = 1007
    CLAIMS = 1008
    ASK = 1009
    TELL = 1010
    SCHEMAS = 1011
    OVERRULE = 1012


class SkipReason(IntEnum):
    """Why a range is not delivered. All but FILTERED and ALIAS count as loss."""

    FILTERED = 0
    TRIMMED = 1
    EXPIRED = 2
    ADMIN = 3
    LOST = 4
    DELETED = 5
    ALIAS = 6
    """Stored already, under the coordinate of another region where its producer tried again."""


# -- SKIP records -----------------------------------------------------------------------------------------------------

_SKIP = struct.Struct(">BBIIQqqqq")


@dataclass(frozen=True, slots=True)
class SkipRecord:
    """(after, through] of `origin` is not delivered on `route` (the target region's name)."""

    origin: Origin
    after: Position
    through: Position
    reason: SkipReason
    route: str

    @property
    def loss(self) -> bool:
        return self.reason not in (SkipReason.FILTERED, SkipReason.ALIAS)

    def encode(self) -> bytes:
        return _SKIP.pack(VERSION, self.reason, *self.origin, *self.after, *self.through) + self.route.encode()

    @classmethod
    def decode(cls, blob: Buffer) -> SkipRecord:
        """Reads a record. Raises CorruptData where it is cut off, of another version, or its range is empty or
        negative.
        """
        try:
            version, reason, region, epoch, incarnation, a, b, c, d = _SKIP.unpack_from(blob)
            if version != VERSION:
                raise CorruptData(
                    f"SKIP record: format {version} is not known here (this version reads format {VERSION})"
                )
            record = cls(
                (region, epoch, incarnation),
                (a, b),
                (c, d),
                SkipReason(reason),
                str(memoryview(blob)[_SKIP.size :], "utf-8"),
            )
        except (struct.error, ValueError) as error:
            raise CorruptData(f"SKIP record: {error}") from error
        if record.after >= record.through or c < 0 or d < 0:
            raise CorruptData("SKIP record: an empty or negative range")
        return record

    def as_run(self) -> Run:
        """The hidden entry that holds it: one entry of no message, whose coordinate is the end of the range."""
        blob = self.encode()
        return Run(
            [blob],
            [len(blob)],
            counts=(0,),
            flags=(FLAG_HIDDEN,),
            origin=self.origin,
            spans=((*self.through, 1),),
        )


# -- frames -----------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_PREFIX = {kind: b"\x08" + _varint(kind) + _varint(kind << 3 | 2) for kind in LinkFrameKind}


def frame(kind: LinkFrameKind, fields: Sequence[Any], payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """One frame, ready for a gathered write."""
    packed: bytes = msgpack.packb(fields)
    command = b"%b%b\x01%b" % (_PREFIX[kind], _varint(len(packed) + 1), packed)
    total = 4 + len(command) + sum(map(len, payload))
    return [struct.pack(">II", total, len(command)) + command, *payload]


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view) or shift > 28:
            raise PeerError("link: a number runs past the end of the command")
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def command_kind(command: Buffer) -> int:
    """The type of a command of any kind. Raises PeerError."""
    view = memoryview(command)
    if not len(view) or view[0] != 8:
        raise PeerError("link: a command starts with its type")
    return _read_varint(view, 1)[0]


def command_content(command: Buffer) -> tuple[int, memoryview]:
    """(type, content of its one field) of a whole private command. Raises PeerError."""
    view = memoryview(command)
    number = command_kind(view)
    _, at = _read_varint(view, 1)
    tag, at = _read_varint(view, at)
    size, at = _read_varint(view, at)
    if tag != number << 3 | 2 or at + size != len(view):
        raise PeerError(f"link: command {number} is not one field of that number")
    return number, view[at:]


def parse(number: int, content: Buffer) -> tuple[LinkFrameKind, list[Any]]:
    """(kind, fields) of a private command, from its type and the content of its field. The `read_` functions check the
    fields. Raises PeerError.
    """
    if not len(content) or content[0] != VERSION:
        raise PeerError(f"link: command {number} is empty, or of another version than {VERSION}")
    try:
        kind = LinkFrameKind(number)
        fields = msgpack.unpackb(memoryview(content)[1:], strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"link: command {number}: {error}") from error
    if not isinstance(fields, list):
        raise PeerError(f"link: command {number}: expected a list")
    return kind, fields


def open_frame(stream: int, topic: str, source: str, number: int, level: int = FEATURE_LEVEL) -> list[Buffer]:
    return frame(LinkFrameKind.OPEN, [stream, topic, source, number, level])


def read_open(fields: list[Any]) -> tuple[int, str, str, int, int]:
    """(stream, topic, source region, its number, feature level)."""
    stream, topic, source, number, level = _fields(fields, 5)
    return (
        _number(stream, high=(1 << 32) - 1),
        _text(topic, TOPIC_MAX),
        _text(source),
        _number(number, high=(1 << 32) - 1),
        _number(level),
    )


def opened_frame(
    stream: int, incarnation: int, window_bytes: int, vector: Vector, level: int = FEATURE_LEVEL
) -> list[Buffer]:
    return frame(LinkFrameKind.OPENED, [stream, incarnation, window_bytes, vector.encode(), level])


def read_opened(fields: list[Any]) -> tuple[int, int, int, Vector, int]:
    """(stream, incarnation of the target's copy, window bytes, durable vector, feature level: 1 where it says none)."""
    stream, incarnation, window, vector = _fields(fields, 4)
    return (
        _number(stream),
        _number(incarnation),
        _number(window, 1),
        _vector(vector),
        _number(fields[4]) if len(fields) > 4 else 1,
    )


def claims_frame(stream: int, subscription: str, claims: Sequence[Any]) -> list[Buffer]:
    return frame(LinkFrameKind.CLAIMS, [stream, subscription, list(claims)])


def read_claims(fields: list[Any]) -> tuple[int, str, list[Any]]:
    """(stream, subscription, fields of the claims, unchecked)."""
    stream, subscription, claims = _fields(fields, 3)
    if not isinstance(claims, list):
        raise PeerError("link: expected claims")
    return _number(stream), _text(subscription, TOPIC_MAX), claims


def run_frame(stream: int, attempt: int, previous: Position, run: Run) -> list[Buffer]:
    ledger, first, _ = run.spans[0]
    return block_frame(stream, attempt, previous, encode_block(run, ledger, first))


def block_frame(
    stream: int, attempt: int, previous: Position, block: Sequence[Buffer], codec: int = 0, size: int = 0
) -> list[Buffer]:
    """RUN, of a block that is encoded already; where `codec` says so it is compressed, from `size` bytes."""
    return frame(
        LinkFrameKind.RUN, [stream, attempt, *previous, codec, size] if codec else [stream, attempt, *previous], block
    )


def run_stream(fields: list[Any]) -> tuple[int, int]:
    """(stream, bytes that are to be unpacked: 0 where it is not compressed) of a RUN, before it is read. Raises
    PeerError.
    """
    head = _fields(fields, 4)
    packed = len(fields) > 4 and fields[4] != 0
    return _number(head[0]), _number(_fields(fields, 6)[5]) if packed else 0


def read_run(fields: list[Any], payload: Buffer) -> tuple[int, int, Position, Run]:
    """(stream, attempt, previous coordinate of that origin on this route, run with origin, spans, and origin
    checksums).
    """
    stream, attempt, ledger, entry = _fields(fields, 4)
    previous = _position(ledger, entry)
    if len(fields) > 4 and fields[4] != 0:
        payload = unpack(_number(fields[4]), payload, _number(_fields(fields, 6)[5]))
    try:
        _, _, run = decode_block(payload)
    except CorruptData as error:
        raise PeerError(f"link: {error}") from error
    flags = run.flags[0] if run.count == 1 and run.flags is not None else 0
    ends = flags == FLAG_HIDDEN | (FLAG_MARKER if run.transaction is not None else FLAG_TREE)  # and nothing else hidden
    if (
        run.origin is None
        or run.checksums is None
        or (run.flags is not None and not ends and any(flag & FLAG_HIDDEN for flag in run.flags))
    ):
        raise PeerError("link: a run on a link names its origin and checksums, and holds nothing hidden")
    if run.seal is not None:
        raise PeerError("link: a run on a link is open, whatever its region does at rest")
    check_spans(run, previous)
    check_claims(run)
    return _number(stream), _number(attempt), previous, run


def check_spans(run: Run, after: Position) -> Position:
    """Returns the last coordinate. Raises PeerError where the coordinates are not one for each entry, ascending from
    `after`.
    """
    before, covered = after, 0
    for ledger, first, count in run.spans:
        if count < 1 or (ledger, first) <= before:
            raise PeerError("link: coordinates of a run ascend from the previous coordinate")
        before, covered = (ledger, first + count - 1), covered + count
    if covered != run.count:
        raise PeerError("link: each entry of a run has one coordinate")
    return before


def check_claims(run: Run) -> None:
    """Raises PeerError where a run's columns say what no entries can bear out, and would be counted on: what is stored
    of it would be out of its order, or beyond what an index or a client's protocol can name.
    """
    if run.counts is not None and max(run.counts) > _MESSAGES_MAX:
        raise PeerError(f"link: an entry of {max(run.counts)} messages; at most {_MESSAGES_MAX} are taken")
    told = 0
    for _, count, first, pairs in run.producers:
        if count < 1 or (pairs is None and first + count - 1 > _SEQUENCE_MAX):
            raise PeerError("link: a producer of no entries, or with sequences that there are not")
        told += count
    if told > run.count:
        raise PeerError("link: each entry of a run has one producer")


def receipt_frame(stream: int, through: Sequence[tuple[Origin, Position]]) -> list[Buffer]:
    return frame(LinkFrameKind.RECEIPT, [stream, *([*origin, *position] for origin, position in through)])


def read_receipt(fields: list[Any]) -> tuple[int, list[tuple[Origin, Position]]]:
    """(stream, durable through, by origin)."""
    return _number(_fields(fields, 1)[0]), [_coordinate(values) for values in fields[1:]]


def gap_frame(stream: int, attempt: int, vector: Vector) -> list[Buffer]:
    return frame(LinkFrameKind.GAP, [stream, attempt, vector.encode()])


def read_gap(fields: list[Any]) -> tuple[int, int, Vector]:
    """Returns (stream, attempt, durable vector). Raises PeerError."""
    stream, attempt, vector = _fields(fields, 3)
    return _number(stream), _number(attempt), _vector(vector)


def skip_frame(stream: int, attempt: int, record: SkipRecord) -> list[Buffer]:
    return frame(LinkFrameKind.SKIP, [stream, attempt, record.encode()])


def read_skip(fields: list[Any]) -> tuple[int, int, SkipRecord]:
    """Returns (stream, attempt, record). Raises PeerError."""
    stream, attempt, blob = _fields(fields, 3)
    if not isinstance(blob, bytes):
        raise PeerError("link: expected a SKIP record")
    try:
        record = SkipRecord.decode(blob)
    except CorruptData as error:
        raise PeerError(f"link: {error}") from error
    return _number(stream), _number(attempt), record


@dataclass(frozen=True, slots=True)
class Risk:
    """What a target does not have, as the source counts it. oldest_ms: broker time there of the oldest; 0 where there
    is none.
    """

    entries: int
    messages: int
    size_bytes: int
    oldest_ms: int


HEARTBEAT_BYTES = 1 << 20
"""A heartbeat that takes so much is full: one stream more may have a vector of some hundred KiB, and a frame has a
bound.
"""
_BEAT_BYTES = 64


@dataclass(frozen=True, slots=True)
class StreamBeat:
    """What a heartbeat tells of one stream. `last_confirmed`: of the teller's own origin. `vectors`: durable, as the
    teller knows them.
    """

    stream: int
    last_confirmed: tuple[Origin, Position] | None
    vectors: dict[str, Vector]
    risk: Risk | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in a heartbeat."""
        return _BEAT_BYTES + sum(len(region) + vector.size_bytes for region, vector in self.vectors.items())


@dataclass(frozen=True, slots=True)
class LinkHeartbeat:
    """`echo_ms`: the newest wall time that the teller heard from the other side (0: none), `echo_age_ms` ago. wall_ms:
    0 where it only goes on with one that a frame was too small for: no way is measured by it. unopened: from a source
    that tells of them.
    """

    wall_ms: int
    echo_ms: int
    echo_age_ms: int
    streams: tuple[StreamBeat, ...] = ()
    unopened: UnopenedTopics | None = None


def heartbeat_frame(beat: LinkHeartbeat) -> list[Buffer]:
    return frame(
        LinkFrameKind.HEARTBEAT,
        [
            beat.wall_ms,
            beat.echo_ms,
            beat.echo_age_ms,
            *(() if beat.unopened is None else (beat.unopened.item(),)),
            *(_stream_fields(s) for s in beat.streams),
        ],
    )


def _stream_fields(told: StreamBeat) -> list[Any]:
    confirmed = None if told.last_confirmed is None else [*told.last_confirmed[0], *told.last_confirmed[1]]
    fields = [told.stream, confirmed, {region: vector.encode() for region, vector in told.vectors.items()}]
    risk = told.risk
    return fields if risk is None else [*fields, [risk.entries, risk.messages, risk.size_bytes, risk.oldest_ms]]


def read_heartbeat(fields: list[Any]) -> LinkHeartbeat:
    wall, echo, age = _fields(fields, 3)
    streams, named, unopened = [], set[int](), None
    for item in fields[3:]:
        if not isinstance(item, list) or len(item) < 3 or not isinstance(item[2], dict):
            raise PeerError("link: a heartbeat names stream, coordinate, and vectors")
        confirmed = None if item[1] is None else _coordinate(item[1])
        risk = None
        if len(item) > 3:
            if not isinstance(item[3], list) or len(item[3]) < 4:
                raise PeerError("link: a risk has four numbers")
            risk = Risk(*(_number(value) for value in item[3][:4]))
        stream = _number(item[0])
        if stream in named:
            raise PeerError("link: a heartbeat names a stream once")
        named.add(stream)
        if stream == _UNOPENED:
            unopened = read_unopened(item)
            continue
        streams.append(
            StreamBeat(stream, confirmed, {_text(region): _vector(blob) for region, blob in item[2].items()}, risk)
        )
    return LinkHeartbeat(_number(wall), _number(echo), _number(age), tuple(streams), unopened)


def close_frame(stream: int, cause: str, text: str, rows: Sequence[tuple[int, bytes]] = ()) -> list[Buffer]:
    """rows: what is here, of that which parts both sides (`heliograph.wire.links.schema_commands.close_rows`)."""
    return frame(LinkFrameKind.CLOSE, [stream, cause, text[:1024], *([[list(row) for row in rows]] if rows else [])])


def read_close(fields: list[Any]) -> tuple[int, str, str]:
    """(stream, cause code, one sentence)."""
    stream, cause, text = _fields(fields, 3)
    if not isinstance(text, str):
        raise PeerError("link: expected a text")
    return _number(stream), _text(cause), text
