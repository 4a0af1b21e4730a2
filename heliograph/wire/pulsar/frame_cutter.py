"""FrameCutter: the bytes of a Pulsar connection, as runs of entries and commands.

Is: cutting frames at any split, verifying each entry's checksum, gathering consecutive SENDs to one topic into one run,
the frame limit.
Isn't: I/O, or an answer to anything; what the caller must answer comes out as an event.
Invariants: events come in the order of their frames, except that ACK, FLOW, PING, and PONG may overtake SENDs of the
same read (they do not touch producers); an entry whose checksum is wrong is in no run; at most one frame's bytes wait
here.
Source: docs/protocols/pulsar.md, "Frames".

    u32 total (bytes behind it) | u32 command size | BaseCommand | [headers and payload]
    headers and payload: [0x0e01 | u32 crc32c of all that follows] | u32 metadata size | MessageMetadata | payload

A link listener also cuts private commands (type 1000 and above): BaseCommand is then field 1 (the type) and one
length-delimited field of that number, whose content is handed on unopened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from heliograph.model.errors import CorruptData, PeerError
from heliograph.wire.pulsar.batch_messages import MESSAGE_BYTES_MIN, untrue_count
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSend, MessageMetadata
from heliograph.wire.run import BYTES_MAX, COUNT_MAX, Buffer, ProducerSegment, Run, TxnId
from heliograph.wire.varint import read_varint, varint

HANDSHAKE_BYTES_MAX = 64 << 10
MESSAGE_BYTES_MAX = 5 << 20
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + (10 << 10)
COMMAND_BYTES_MAX = 256 << 10
"""Of a command, without what follows it: all of it is worked through before anybody asks for rights."""
COMMAND_BYTES_MAX_OF: dict[int, int] = {
    BaseCommand.PRODUCER: 1 << 20,
    BaseCommand.SUBSCRIBE: 1 << 20,
    BaseCommand.GET_OR_CREATE_SCHEMA: 1 << 20,
    BaseCommand.ADD_PARTITION_TO_TXN: 1 << 20,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: 1 << 20,
    BaseCommand.ACK: 2 << 20,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: 2 << 20,
}
"""Of those that bring a schema, many names, or many ids."""
_TEXTS_MAX = 50_000
"""Fields and elements of a command that may have texts, and whose bytes are not all ASCII: each is looked at."""
_NO_TEXTS = frozenset((BaseCommand.ACK, BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES))
PRIVATE_MIN = 1000
SEQUENCE_MAX = (1 << 63) - 1
IN_ORDER = "heliograph.in_order"
"""In the metadata of a PRODUCER: behind a message that the topic refuses, nothing of this producer is stored until it
is made again.
"""

_COPY_ABOVE = 8192
"""Entries below this size on average are joined when they are stored, which lets the block go."""
_U32 = struct.Struct(">I").unpack_from
_U32_U32 = struct.Struct(">II").unpack_from
_SEND_START = b"\x08\x06\x32"
_HEADS = [_SEND_START + bytes((max(0, size - 4), 8)) for size in range(16)]
"""Command size -> the first five bytes of a SEND of that size."""
_REPLICATED_FROM = bytes((5 << 3 | 2,))
"""The tag of `replicated_from` in an entry's metadata; where this byte is found, the metadata is decoded to be sure."""
_REPLICATED_FROM_LONG = bytes((_REPLICATED_FROM[0] | 128,))
"""How that tag begins where it is written in more bytes than it needs, as no client does and every reader takes."""
_BATCH = bytes((11 << 3,))
"""The tag of `num_messages_in_batch`, likewise."""
_MARKER, _MARKER_LONG = b"\xa0\x01", b"\xa0\x81"
"""The tag of `marker_type`, likewise, and how it begins where it is written in more bytes than it needs."""
_SUSPECT = _REPLICATED_FROM + _REPLICATED_FROM_LONG + _MARKER[:1]
_ODD = _SUSPECT + _BATCH
"""Where none of these bytes is in an entry's metadata, it is one message that nobody replicated, and no marker: that is
found at once.
"""
_BATCHES = [_BATCH + varint(count) for count in range(1024)]
"""That field, of so many messages."""
_ONE_MESSAGE = b"\x18\x01"
_FLOW_START = b"\x08\x0b\x5a"
_SEND_AHEAD = frozenset((BaseCommand.ACK, BaseCommand.FLOW, BaseCommand.PING, BaseCommand.PONG))
_FIELDS: dict[int, Any] = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields}
"""Command type -> the name of its field: they share their numbers."""
_crc = crc32c.crc32c

Segment = tuple[int, list[int], list[int] | None]
"""(producer id, sequences, highest sequences as sent (0: not given) or None where no entry gave one)."""


class SendRun(NamedTuple):
    """Consecutive entries for one topic. `group`: what `FrameCutter.producers` holds for its producers. `chunks`:
    indexes of pieces of chunked messages.
    """

    group: object
    run: Run
    segments: list[Segment]
    chunks: tuple[int, ...] = ()

    def cut(self, start: int, stop: int) -> SendRun:
        """Its entries from `start` to before `stop`; at least one."""
        segments: list[Segment] = []
        at = 0
        for producer_id, sequences, highest in self.segments:
            low, high = max(0, start - at), min(len(sequences), stop - at)
            if low < high:
                segments.append((producer_id, sequences[low:high], None if highest is None else highest[low:high]))
            at += len(sequences)
        return SendRun(
            self.group,
            self.run.cut(start, stop),
            segments,
            tuple(index - start for index in self.chunks if start <= index < stop),
        )


class BadSend(NamedTuple):
    """One SEND that is not stored. `checksum`: its checksum is wrong; else it asks for what is not there (`reason`).
    `goes_on`: it concerns that message alone.
    """

    producer_id: int
    sequence: int
    checksum: bool
    reason: str
    goes_on: bool = False


class StraySend(NamedTuple):
    """A SEND of a producer that is not (or no longer) on this connection."""

    producer_id: int
    sequence: int


class Flow(NamedTuple):
    consumer_id: int
    permits: int


class Private(NamedTuple):
    """A command between our own processes: its type, the content of its one field, and what follows the command."""

    kind: int
    command: memoryview
    payload: memoryview


class ReplicatedSend(NamedTuple):
    """One SEND of a replicator of a Pulsar cluster: its entry is sound, and says where it comes from."""

    producer_id: int
    sequence: int
    messages: int
    metadata: MessageMetadata
    part: memoryview


Event = SendRun | BadSend | StraySend | ReplicatedSend | Flow | Private | BaseCommand


class FrameCutter:
    """One connection's input. `producers`: producer id -> (topic or whatever stands for it, producer name), kept by the
    owner.
    """

    def __init__(self, *, private: bool = False, bytes_max: int = HANDSHAKE_BYTES_MAX) -> None:
        self.producers: dict[int, tuple[object, str]] = {}
        self.bytes_max = bytes_max
        """Largest `total` of a frame; the owner raises it after the handshake."""
        self.replicators: dict[int, str] = {}
        """Producer id -> the Pulsar cluster that it sends for: these come entry by entry, and are not in
        `producers`.
        """
        self._private = private
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 8

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._have

    def lone(self, data: bytes) -> SendRun | None:
        """The run that `feed` would make of a read that is one whole SEND of one message in its usual shape; None:
        `feed` is to take it.
        """
        size = len(data)
        if self._parts or not 20 <= size <= self.bytes_max + 4:
            return None
        total, command_size = _U32_U32(data)
        entry = 8 + command_size
        if total + 4 != size or not 8 <= command_size <= 15 or size - entry < 10 or data[8:13] != _HEADS[command_size]:
            return None
        producer_id, known = data[13], self.producers.get(data[13])
        if producer_id >= 128 or known is None or data[14] != 16 or data[entry] != 14 or data[entry + 1] != 1:
            return None
        sequence, at = data[15], 16
        if sequence >= 128:
            if data[entry - 1] >= 128:
                return None
            sequence, at = read_varint(data, 15)
        checksum, metadata_size = _U32_U32(data, entry + 2)
        view = memoryview(data)
        if (
            (at != entry and data[at:entry] != _ONE_MESSAGE)
            or metadata_size > size - entry - 10
            or _crc(view[entry + 6 :]) != checksum
        ):
            return None
        stop = entry + 10 + metadata_size
        if len(data[entry + 10 : stop].translate(None, _ODD)) != metadata_size and not _plain(data, entry + 10, stop):
            return None
        run = Run([view[entry:]], [size - entry], producers=((known[1], 1, sequence, None),))
        return SendRun(known[0], run, [(producer_id, [sequence], None)])

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events of one read. The owner handles each before it takes the next (a PRODUCER command changes
        `producers`).

        Raises PeerError where the stream makes no sense; nothing can be read behind that.
        """
        sends = _Sends(len(data))
        at = 0
        while (
            self._parts
        ):  # only the frame that the last read cut is put together; the rest of this read stays where it is
            missing = self._need - self._have
            if len(data) - at < missing:
                self._parts.append(data[at:] if at else data)
                self._have += len(data) - at
                return
            self._parts.append(data[at : at + missing])
            at += missing
            whole = b"".join(self._parts)
            self._parts, self._have, self._need = [], 0, 8
            yield from self._cut(whole, 0, sends)
        yield from self._cut(data, at, sends)
        if sends.lengths:
            yield sends.pop()

    def _cut(self, data: bytes, at: int, sends: _Sends) -> Iterator[Event]:
        """Cuts all whole frames from `at` on, and keeps what is behind them."""
        size, need = len(data), 8
        view = memoryview(data)
        bytes_max = self.bytes_max
        unpack, crc = _U32_U32, _crc
        again, room, left = sends.again, sends.bytes_left, COUNT_MAX - len(sends.lengths)
        add_part, add_length, add_sequence = sends.parts.append, sends.lengths.append, sends.sequences.append
        while size - at >= 8:
            total, command_size = unpack(data, at)
            if total > bytes_max:
                raise PeerError(f"a frame of {total} bytes; at most {bytes_max} are allowed here")
            if not 2 <= command_size <= total - 4:
                raise PeerError(f"a frame of {total} bytes cannot hold a command of {command_size}")
            start = at + 8
            entry = start + command_size
            end = at + 4 + total
            if end > size:
                need = total + 4
                break
            # What most entries are: one message of the producer before it, fields 1 and 2 only. All else goes the
            # longer ways below.
            if (
                data[start + 1] == 6
                and end - entry >= 10
                and command_size >= 8
                and data[start + 5] == again
                and data[start + 6] == 16
            ):
                sequence, field = data[start + 7], start + 8
                if sequence >= 128:
                    byte = data[field]
                    if byte < 128:
                        sequence = sequence & 127 | byte << 7
                        field += 1
                    else:
                        third = data[field + 1]
                        sequence = sequence & 127 | (byte & 127) << 7 | third << 14
                        field += 2 if third < 128 else 99
                if (
                    field == entry
                    and data[start : start + 5] == _HEADS[command_size]
                    and data[entry] == 14
                    and data[entry + 1] == 1
                ):
                    checksum, metadata_size = unpack(data, entry + 2)
                    body = view[entry + 6 : end]
                    at = entry + 10
                    behind = at + metadata_size
                    size_bytes = end - entry
                    if (
                        left
                        and size_bytes <= room
                        and crc(body) == checksum
                        and metadata_size <= size_bytes - 10
                        and (len(data[at:behind].translate(None, _ODD)) == metadata_size or _plain(data, at, behind))
                    ):
                        left -= 1
                        room -= size_bytes
                        add_part(view[entry:end])
                        add_length(size_bytes)
                        add_sequence(sequence)
                        at = end
                        continue
            sends.bytes_left = room
            if data[start : start + 3] != _SEND_START:
                yield from self._command(data, view, start, entry, end, sends)
            elif not sends.take_fast(self.producers, data, view, start, entry, end):
                yield from self._send(view, start, entry, end, sends)
            at = end
            bytes_max, again, room, left = self.bytes_max, sends.again, sends.bytes_left, COUNT_MAX - len(sends.lengths)
            add_part, add_length, add_sequence = sends.parts.append, sends.lengths.append, sends.sequences.append
        sends.bytes_left = room
        if at < size:
            self._parts = [data[at:] if at else data]
            self._have, self._need = size - at, need

    def _send(self, view: memoryview, start: int, entry: int, end: int, sends: _Sends) -> Iterator[Event]:
        """A SEND that the fast way left alone: another shape, the first of another run, or one that is refused."""
        command = _parse(view[start:entry]).send
        if entry == end:
            raise PeerError("a SEND without an entry")
        producer_id, sequence, messages = command.producer_id, command.sequence_id, command.num_messages
        if sequence > SEQUENCE_MAX or command.highest_sequence_id > SEQUENCE_MAX or messages < 1:
            raise PeerError(
                f"a SEND with sequence {sequence}, highest {command.highest_sequence_id}, {messages} messages"
            )
        if (cluster := self.replicators.get(producer_id)) is not None:
            if sends.lengths:
                yield sends.pop()
            yield _replicated_send(command, cluster, view[entry:end])
            return
        known = self.producers.get(producer_id)
        reason, goes_on = "", True
        sound = known is None or verify_entry(view[entry:end])
        if not sound:
            reason = "the checksum of the message is wrong"
        elif known is not None and command.marker:
            reason, goes_on = "only a replicator may send markers: send it as a message, without `marker`", False
        elif known is not None:
            reason, goes_on = _untrue(view[entry:end], messages)
        if known is None or reason:
            if sends.lengths:
                yield sends.pop()
            yield (
                StraySend(producer_id, sequence)
                if known is None
                else BadSend(producer_id, sequence, not sound, reason, goes_on)
            )
            return
        transaction = (
            (command.txnid_most_bits, command.txnid_least_bits) if command.HasField("txnid_least_bits") else None
        )
        if sends.lengths and (
            sends.group is not known[0] or transaction != sends.transaction or not sends.has_room(end - entry)
        ):
            yield sends.pop()
            known = self.producers.get(producer_id)
            if known is None:  # what was just taken has ended its producer
                yield StraySend(producer_id, sequence)
                return
        sends.transaction = transaction
        sends.begin(producer_id, *known)
        sends.add(command, view[entry:end])

    def _command(
        self, data: bytes, view: memoryview, start: int, stop: int, end: int, sends: _Sends
    ) -> Iterator[Event]:
        if data[start : start + 3] == _FLOW_START and (flow := _flow(data, start + 3, stop)) is not None:
            yield flow
            return
        if self._private and data[start] == 8 and (private := _private(view, start, stop, end)) is not None:
            if sends.lengths:
                yield sends.pop()
            yield private
            return
        command = _parse(view[start:stop])
        kind = command.type
        if kind == BaseCommand.SEND:
            yield from self._send(view, start, stop, end, sends)
            return
        if sends.lengths and kind not in _SEND_AHEAD:
            yield sends.pop()
        yield command


class _Sends:
    """The run that is being gathered from one read."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._clear()

    def _clear(self) -> None:
        self.bytes_left = BYTES_MAX
        """Room in this run; a single larger entry makes it negative."""
        self.group: object = None
        self.producer_id = self.again = -1
        """`again`: the producer id where it is one byte and no entry needs more than the three columns, else -1."""
        self.parts: list[Buffer] = []
        self.lengths: list[int] = []
        self.sequences: list[int] = []
        self.counts: list[int] | None = None
        self.highest: list[int] | None = None
        self.pieces: set[int] = set()
        """Entries that are pieces of a chunked message, all but its last: they have that one's sequence, and none of
        their own in the run.
        """
        self.chunks: tuple[int, ...] = ()
        """Those, and the last one of each."""
        self.starts: list[tuple[int, int, str]] = []
        self.transaction: TxnId | None = None

    def has_room(self, size: int) -> bool:
        return len(self.lengths) < COUNT_MAX and size <= self.bytes_left

    def begin(self, producer_id: int, group: object, name: str) -> None:
        """What is added from here on is this producer's."""
        if producer_id != self.producer_id:
            self.producer_id, self.group = producer_id, group
            self.starts.append((len(self.lengths), producer_id, name))
            plain = self.counts is None and self.highest is None and self.transaction is None
            self.again = producer_id if producer_id < 128 and plain else -1

    def take_fast(
        self, producers: dict[int, tuple[object, str]], data: bytes, view: memoryview, start: int, entry: int, end: int
    ) -> bool:
        """Takes a SEND in the shape that clients write: fields 1 and 2, then 3 and 6 where they are there. False:
        nothing was taken.
        """
        if self.transaction is not None:
            return False
        size = end - entry
        try:
            at = start + 4
            if data[at - 1] != entry - at or data[at] != 8 or size < 10 or data[entry] != 14 or data[entry + 1] != 1:
                return False
            producer_id = data[at + 1]
            at += 2
            if producer_id >= 128:
                producer_id, at = read_varint(data, at - 1)
            if data[at] != 16:
                return False
            sequence = data[at + 1]
            at += 2
            if sequence >= 128:
                byte = data[at]
                if byte < 128:
                    sequence = sequence & 127 | byte << 7
                    at += 1
                elif (third := data[at + 1]) < 128:
                    sequence = sequence & 127 | (byte & 127) << 7 | third << 14
                    at += 2
                else:
                    sequence, at = read_varint(data, at - 1)
            messages, highest = 1, 0
            if at != entry:
                if data[at] == 24:
                    messages, at = read_varint(data, at + 1)
                if at < entry and data[at] == 48:
                    highest, at = read_varint(data, at + 1)
                if at != entry or not 1 <= messages < 1 << 31 or highest > SEQUENCE_MAX:
                    return False
        except IndexError:
            return False
        if sequence > SEQUENCE_MAX or not self.has_room(size):
            return False
        if producer_id != self.producer_id:
            known = producers.get(producer_id)
            if known is None or (self.lengths and known[0] is not self.group):
                return False
        checksum, metadata_size = _U32_U32(data, entry + 2)
        if (
            metadata_size > size - 10
            or _crc(view[entry + 6 : end]) != checksum
            or (
                len(data[entry + 10 : entry + 10 + metadata_size].translate(None, _SUSPECT)) != metadata_size
                and _may_be_a_replicators(data, entry + 10, entry + 10 + metadata_size)
            )
            or not _plainly_true(data, view, entry, metadata_size, end, messages)
        ):
            return False
        if producer_id != self.producer_id:
            self.begin(producer_id, *producers[producer_id])
        self._append(sequence, messages, highest, view[entry:end])
        return True

    def add(self, command: CommandSend, part: memoryview) -> None:
        """The general way: any fields in any order."""
        if command.is_chunk:
            self.chunks = (*self.chunks, len(self.lengths))
            if _goes_on(part):
                self.pieces.add(len(self.lengths))
        self._append(
            command.sequence_id,
            command.num_messages,
            command.highest_sequence_id,
            part,
        )

    def _append(self, sequence: int, messages: int, highest: int, part: Buffer) -> None:
        count = len(self.lengths)
        self.parts.append(part)
        self.lengths.append(len(part))
        self.sequences.append(sequence)
        if messages != 1 or self.counts is not None:
            self.counts = self.counts or [1] * count
            self.counts.append(messages)
        if highest or self.highest is not None:
            self.highest = self.highest or [0] * count
            self.highest.append(highest)
        self.bytes_left -= len(part)
        if messages != 1 or highest:
            self.again = -1

    def pop(self) -> SendRun:
        """What was gathered, as a run; nothing is left here."""
        segments: list[Segment] = []
        producers: list[ProducerSegment] = []
        stop = count = len(self.lengths)
        for start, producer_id, name in reversed(self.starts):
            sequences = self.sequences[start:stop] if start or stop != count else self.sequences
            highest = None if self.highest is None else self.highest[start:stop]
            counts = None if self.counts is None else self.counts[start:stop]
            segments.append((producer_id, sequences, highest))
            made = producer_segment(name, sequences, highest, counts)
            producers.append(
                made if not self.pieces else _without_sequences(made, {piece - start for piece in self.pieces})
            )
            stop = start
        segments.reverse()
        producers.reverse()
        size_bytes = BYTES_MAX - self.bytes_left
        if size_bytes * 2 < self.block_bytes and (count == 1 or size_bytes >= _COPY_ABOVE * count):
            self.parts = [bytes(part) for part in self.parts]  # small beside the block that it would keep alive
        run = Run(
            self.parts,
            self.lengths,
            counts=self.counts,
            producers=tuple(producers),
            transaction=self.transaction,
        )
        event = SendRun(self.group, run, segments, self.chunks)
        self._clear()
        return event


def producer_segment(
    name: str, sequences: list[int], highest: list[int] | None, counts: list[int] | None
) -> ProducerSegment:
    """What a run says of consecutive entries of one producer; the columns as SENDs have them."""
    size, first = len(sequences), sequences[0]
    if (
        highest is None
        and counts is None
        and sequences[-1] - first == size - 1
        and sequences == list(range(first, first + size))
    ):
        return name, size, first, None
    if highest is None:
        return name, size, first, tuple(zip(sequences, sequences, strict=True))
    return name, size, first, tuple((s, max(s, h)) for s, h in zip(sequences, highest, strict=True))


def _without_sequences(segment: ProducerSegment, pieces: set[int]) -> ProducerSegment:
    """pieces: indexes of entries that get -1, which is nobody's sequence; others than the segment's change nothing."""
    name, count, first, pairs = segment
    numbered = pairs or tuple((sequence, sequence) for sequence in range(first, first + count))
    if pieces.isdisjoint(range(count)):
        return segment
    numbered = tuple((-1, -1) if index in pieces else pair for index, pair in enumerate(numbered))
    return name, count, numbered[0][0], numbered


def _goes_on(entry: memoryview) -> bool:
    """Whether it is a piece of a chunked message with others behind it. Raises PeerError where the metadata cannot be
    decoded.
    """
    try:
        metadata, _ = entry_metadata(entry)
    except CorruptData as error:
        raise PeerError(str(error)) from error
    return metadata.chunk_id < metadata.num_chunks_from_msg - 1


def verify_entry(entry: memoryview) -> bool:
    """False where the checksum is wrong. Raises PeerError where the entry has no room for what it announces."""
    at = 0
    checksum = None
    if bytes(entry[:2]) == b"\x0e\x01":
        if len(entry) < 10:
            raise PeerError(f"an entry of {len(entry)} bytes")
        at, (checksum,) = 6, _U32(entry, 2)
        if _crc(entry[6:]) != checksum:
            return False
    if len(entry) < at + 4 or _U32(entry, at)[0] > len(entry) - at - 4:
        raise PeerError("an entry whose metadata is larger than itself")
    return True


def _replicated_send(command: CommandSend, cluster: str, entry: memoryview) -> ReplicatedSend | BadSend:
    """Raises PeerError where the entry makes no sense."""
    if not verify_entry(entry):
        return BadSend(command.producer_id, command.sequence_id, True, "the checksum of the message is wrong", True)
    try:
        metadata, payload = entry_metadata(entry)
    except CorruptData as error:
        raise PeerError(str(error)) from error
    if metadata.replicated_from != cluster:
        reason = (
            f"a replicator of {cluster} may not send what was replicated from "
            f"{metadata.replicated_from or 'nowhere'!r:.80}"
        )
        return BadSend(command.producer_id, command.sequence_id, False, reason)
    messages = command.num_messages
    if untrue_count(metadata, len(payload), messages):
        messages = 1  # refused, it would hold up all that its cluster sends behind it
    return ReplicatedSend(command.producer_id, command.sequence_id, messages, metadata, entry)


def _may_be_a_replicators(data: bytes, start: int, stop: int) -> bool:
    """Whether the metadata in `data` has to be decoded, because it may have what only a replicator may say:
    `replicated_from`, or `marker_type`.
    """
    return (
        data.find(_REPLICATED_FROM, start, stop) >= 0
        or (data.find(_REPLICATED_FROM_LONG, start, stop) >= 0 and _long_tag(data, start, stop))
        or data.find(_MARKER, start, stop) >= 0
        or data.find(_MARKER_LONG, start, stop) >= 0
    )


def _plain(data: bytes, start: int, stop: int) -> bool:
    """Whether the metadata in `data` is of one message that nobody replicated, and no marker."""
    return data.find(_BATCH, start, stop) < 0 and not _may_be_a_replicators(data, start, stop)


def _long_tag(data: bytes, start: int, stop: int) -> bool:
    return data.find(b"\xaa\x80", start, stop) >= 0 or data.find(b"\xaa\x00", start, stop) >= 0


def _untrue(entry: memoryview, messages: int) -> tuple[str, bool]:
    """(why an entry is not taken for what it says of itself, or ""; whether that concerns this entry alone). Raises
    PeerError where the metadata cannot be decoded.
    """
    try:
        metadata, payload = entry_metadata(entry)
    except CorruptData as error:
        raise PeerError(str(error)) from error
    if metadata.HasField("replicated_from"):
        return "only a replication link may say where a message was replicated from", False
    if metadata.HasField("marker_type"):
        return "only a replicator may send markers: leave `marker_type` out of the message's metadata", False
    return untrue_count(metadata, len(payload), messages), True


def _plainly_true(data: bytes, view: memoryview, entry: int, size: int, end: int, messages: int) -> bool:
    """Whether an entry can have the messages that its SEND says and its metadata, of `size` bytes; False: `_untrue` is
    to say why not. What honest clients send is found without decoding: one such tag, and the same number behind it.
    """
    stop = entry + 10 + size
    tag = data.find(_BATCH, entry + 10, stop)
    if tag < 0:
        if messages == 1:
            return True
    elif (
        messages < len(_BATCHES)
        and messages * MESSAGE_BYTES_MIN <= end - stop
        and data.startswith(_BATCHES[messages], tag, stop)
        and data.find(_BATCH, tag + 1, stop) < 0
    ):
        return True
    try:
        metadata, payload = entry_metadata(view[entry:end])
    except CorruptData:
        return False
    return not untrue_count(metadata, len(payload), messages)


def _check_size(size: int, kind: int) -> None:
    if size > (size_max := COMMAND_BYTES_MAX_OF.get(kind, COMMAND_BYTES_MAX)):
        raise PeerError(f"a command of {size} bytes; at most {size_max} are allowed of this one")


def _parse(view: memoryview) -> BaseCommand:
    if len(view) > COMMAND_BYTES_MAX:  # clients write the type first
        _check_size(len(view), view[1] if view[0] == 8 else -1)
    command = BaseCommand()
    blob = bytes(view)
    try:
        command.ParseFromString(blob)
    except DecodeError as error:
        raise PeerError("a command that cannot be decoded") from error
    if not command.IsInitialized():
        raise PeerError("a command that lacks what it must have, or of a type that is not known")
    if not command.HasField(_FIELDS[command.type]) and command.type not in (BaseCommand.PING, BaseCommand.PONG):
        raise PeerError(f"a command {BaseCommand.Type.Name(command.type)} without its content")
    _check_size(len(blob), command.type)  # it may have come twice
    if command.type not in _NO_TEXTS and not blob.isascii():
        _check_texts(command, 0)
    return command


def _check_texts(message: Message, before: int) -> int:
    """Returns how many fields and elements there are, with those before. Raises PeerError where a string field holds
    something else: the decoder then gives bytes for it.
    """
    count = before
    for field, value in message.ListFields():
        for item in value if field.is_repeated else (value,):
            count += 1
            if count > _TEXTS_MAX:
                raise PeerError(f"a command of more than {_TEXTS_MAX} fields: send several")
            if isinstance(item, Message):
                count = _check_texts(item, count)
            elif field.type == FieldDescriptor.TYPE_STRING and not isinstance(item, str):
                raise PeerError("a string that is not UTF-8")
    return count


def _flow(data: bytes, at: int, stop: int) -> Flow | None:
    """FLOW in the shape that clients write; None where it has another."""
    try:
        if data[at] != stop - at - 1 or data[at + 1] != 8:
            return None
        consumer_id, at = read_varint(data, at + 2)
        if data[at] != 16:
            return None
        permits, at = read_varint(data, at + 1)
    except IndexError:
        return None
    return Flow(consumer_id, permits) if at == stop and permits < 1 << 32 else None


def _private(view: memoryview, start: int, stop: int, end: int) -> Private | None:
    """A private command, or None where it is one of Pulsar's."""
    try:
        kind, at = read_varint(view, start + 1)
        if kind < PRIVATE_MIN:
            return None
        tag, at = read_varint(view, at)
        size, at = read_varint(view, at)
    except IndexError:
        raise PeerError("a private command that ends early") from None
    if tag != kind << 3 | 2 or at + size != stop:
        raise PeerError(f"a private command {kind} with other fields than its own")
    return Private(kind, view[at:stop], view[stop:end])
