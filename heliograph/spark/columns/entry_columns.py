"""Entries to columns: what clients wrote into entries, taken apart for a reader that wants rows.

Is: metadata, compression, batches, and the columns of the messages themselves. Isn't: on any server path (brokers never
look inside an entry), or a payload's own fields (`declared_columns`, `registered_columns`).
How: what all messages of an entry share is kept once an entry and spread when the columns are made; of a batch without
keys, properties, and times asked for, only the sizes are read, which costs a fifth of a microsecond a message.
Invariants: one row a message, in order; an entry that cannot be taken apart ends the task with its place, or is one bad
row that holds its bytes. Encrypted payloads stay as they are, and so do the pieces of a chunked message. Layout:
docs/protocols/pulsar.md.
"""

from __future__ import annotations

import base64
import struct
from bisect import bisect_right
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from heliograph.client.block_reader import TopicSnapshot
from heliograph.model.errors import CorruptData
from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.entry_conversion import as_pulsar
from heliograph.wire.payload_compression import decompress_pulsar
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.batch_messages import MESSAGE_BYTES_MIN, batch_messages
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Run

_MAGIC_CHECKSUM = b"\x0e\x01"
_OF_MESSAGES = frozenset({"key", "base64_key", "properties", "event_time", "sequence_id"})
_PAYLOAD_SIZE, _COMPACTED_OUT = 0x18, 0x20
"""Tags of SingleMessageMetadata; without key and properties the size comes first."""
_MS_FIRST, _MS_LAST = -62_135_596_800_000, 253_402_300_799_999
"""These bound the years 1 to 9999, which are Spark's timestamps."""
_HEAD = struct.Struct(">IBBBB")
"""Size of a message's metadata, and its first four bytes."""


class _Entry(NamedTuple):
    """What the messages of an entry share."""

    topic: str
    partition: int | None
    origin_region: str
    producer_name: str | None
    publish_ms: int | None
    schema_version: int | None
    ledger: int
    entry: int
    region: int
    epoch: int
    incarnation: str
    stored_ms: int | None
    origin_ms: int | None
    at_ledger: int
    at_entry: int
    replicate_to: str | None
    first_sequence_id: int | None
    sealed: str | None
    messages: int


_TIMES = {"publish_time": "publish_ms", "stored_time": "stored_ms", "origin_time": "origin_ms"}
_FIELDS = {name: index for index, name in enumerate(_Entry._fields)} | {
    name: _Entry._fields.index(field) for name, field in _TIMES.items()
}


class MessageRows:
    """Messages that are gathered for one Arrow batch. `values`: their payloads; `bad`: the rows whose entry could not
    be taken apart.
    """

    def __init__(self, wanted: frozenset[str], *, keep_bad: bool, by_entry: bool = False) -> None:
        """wanted: the columns of the raw source that will be asked for. keep_bad: an undecodable entry is a row, and no
        CorruptData.

        by_entry: a row is an entry, and what its messages hold is not looked at.
        """
        self.values: list[bytes | None] = []
        self.bad: list[int] = []
        self.size_bytes = 0
        self._wanted, self._keep_bad, self._by_entry = wanted, keep_bad, by_entry
        self._whole = bool(wanted & _OF_MESSAGES)
        self._addressed = bool(wanted & {"replicate_to", "sealed"})
        self._indexes = bool(wanted & {"batch_index", "coordinate"})
        self._entries: list[_Entry] = []
        self._ends: list[int] = []
        self._batch_index: list[int] = []
        self._keys: list[str | None] = []
        self._base64: list[bool] = []
        self._properties: list[list[tuple[str, str]]] = []
        self._event_ms: list[int | None] = []
        self._sequences: list[int | None] = []
        self._spread: Any = None
        self._known: dict[bytes, tuple[int, int]] = {}
        """Maps messages' first bytes, which repeat, to where their payloads lie. It holds no more of them than
        messages.
        """

    def __len__(self) -> int:
        return len(self.values)

    def add(self, topic: str, snapshot: TopicSnapshot, ledger: int, first: int, run: Run) -> None:
        """The visible entries of the run at (ledger, first). Raises CorruptData, unless bad ones are kept."""
        origin = run.origin or snapshot.origin_at((ledger, first))
        region = snapshot.regions.get(origin[0], str(origin[0]))
        incarnation = f"{origin[2]:016x}"
        partition = TopicName.parse(topic).partition
        number = partition if partition >= 0 else None
        for index in range(run.count):
            flags = 0 if run.flags is None else run.flags[index]
            if flags & (FLAG_HIDDEN | FLAG_MARKER):
                continue
            part, before = run.parts[index], len(self.values)
            metadata = None
            try:
                metadata, payload = _body(
                    memoryview(as_pulsar(part) if flags & FLAG_KAFKA and not self._by_entry else part)
                )
                if self._by_entry:
                    self._one(metadata, None)
                else:
                    self._messages(metadata, payload)
            except (CorruptData, DecodeError, struct.error) as error:
                self._cut(before)
                if not self._keep_bad:
                    raise CorruptData(f"{topic} {ledger}:{first + index} cannot be read: {error}") from error
                self.bad.append(before)
                self._one(None, bytes(part))
            at = (ledger, first + index) if run.origin is None else run.coordinate(index)
            version = metadata.schema_version if metadata is not None else b""
            self._entries.append(
                _Entry(
                    topic,
                    number,
                    region,
                    None if metadata is None else _text(metadata.producer_name),
                    None if metadata is None else _time(metadata.publish_time),
                    int.from_bytes(version, "big", signed=True) if len(version) == 8 else None,
                    ledger,
                    first + index,
                    origin[0],
                    origin[1],
                    incarnation,
                    run.time_ms or None,
                    (run.time_ms if run.origin is None else run.origin_time_ms) or None,
                    *at,
                    ",".join(map(_text, metadata.replicate_to)) or None
                    if self._addressed and metadata is not None
                    else None,
                    None if metadata is None else _signed(metadata.sequence_id),
                    _sealed(metadata) if self._addressed and metadata is not None else None,
                    1 if metadata is None else metadata.num_messages_in_batch,
                )
            )
            self._ends.append(len(self.values))

    def place(self, row: int) -> str:
        """Where the message of a row lies, for an error."""
        number = bisect_right(self._ends, row)
        entry = self._entries[number]
        return f"{entry.topic} {entry.ledger}:{entry.entry}, message {row - (self._ends[number - 1] if number else 0)}"

    def schema_versions(self) -> list[tuple[str, int | None, int, int]]:
        """(topic, schema version, first row, end) of consecutive rows."""
        found: list[tuple[str, int | None, int, int]] = []
        start = 0
        for entry, stop in zip(self._entries, self._ends, strict=True):
            if found and found[-1][0] == entry.topic and found[-1][1] == entry.schema_version:
                found[-1] = (entry.topic, entry.schema_version, found[-1][2], stop)
            elif stop > start:
                found.append((entry.topic, entry.schema_version, start, stop))
            start = stop
        return found

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column of the raw source, one value a message, as Spark declares its type."""
        if name == "value":
            return pa.array(
                [None if v is None else v.decode(errors="replace") for v in self.values]
                if kind == pa.string()
                else self.values,
                kind,
            )
        if name == "coordinate":
            return self._coordinate(kind)
        if name in _FIELDS:
            found = self._shared(name)
            return found.cast(pa.timestamp("ms", "UTC")).cast(kind) if name in _TIMES else found.cast(kind)
        if name == "event_time":
            return pa.array(self._event_ms, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(kind)
        of_messages: dict[str, list[Any]] = {
            "key": self._keys,
            "base64_key": self._base64,
            "properties": self._properties,
            "sequence_id": self._sequences,
            "batch_index": self._batch_index,
        }
        return pa.array(of_messages[name], kind)

    def _shared(self, name: str) -> pa.Array:
        if self._spread is None:
            ends = pa.array(self._ends, pa.int32())
            keep = [number for number, end in enumerate(self._ends) if end > (self._ends[number - 1] if number else 0)]
            numbers = pa.array(keep, pa.int32())
            self._spread = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends.take(numbers), numbers))
        field = _FIELDS[name]
        values = [entry[field] for entry in self._entries]
        kind = pa.string() if any(isinstance(value, str) for value in values) else pa.int64()
        return pa.array(values, kind).take(self._spread)

    def _coordinate(self, kind: pa.StructType) -> pa.Array:
        fields = [self._shared(name) for name in ("region", "epoch", "incarnation", "at_ledger", "at_entry")]
        fields.append(pa.array(self._batch_index, pa.int32()))
        return pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(fields, kind, strict=True)], fields=list(kind)
        )

    def _messages(self, metadata: Any, payload: memoryview) -> None:
        sealed = _sealed(metadata) is not None
        body = (
            bytes(payload)
            if sealed or not metadata.compression
            else decompress_pulsar(metadata.compression, payload, metadata.uncompressed_size)
        )
        if sealed or not metadata.HasField("num_messages_in_batch"):
            self._one(metadata, None if metadata.null_value else body)
        elif self._whole:
            self._every(metadata, body)
        else:
            self._sizes(metadata.num_messages_in_batch, body)

    def _one(self, metadata: Any, value: bytes | None) -> None:
        """A message that is an entry by itself; metadata None: of an entry that could not be read."""
        self.values.append(value)
        self.size_bytes += len(value or b"")
        if self._indexes:
            self._batch_index.append(-1)
        if self._whole:
            self._about(metadata, None if metadata is None else metadata.sequence_id)

    def _sizes(self, count: int, body: bytes) -> None:
        """The payloads of a batch, and nothing else of its messages."""
        values, before, at = self.values, len(self.values), 0
        if not 0 <= count * MESSAGE_BYTES_MIN <= len(body):
            raise CorruptData(f"the batch says {count} messages, in {len(body)} bytes")
        padded, known, skipped = body + b"\0\0\0", self._known, False
        for index in range(count):
            head = padded[at : at + 8]
            span = known.get(head)
            if span is None and (span := _span(head)) is not None:
                known[head] = span
            if span is not None:
                start = at + span[0]
                at = start + span[1]
            else:
                start = at + 4 + int.from_bytes(head[:4], "big")
                single = pb.SingleMessageMetadata.FromString(body[at + 4 : start])
                at = start + single.payload_size
                if single.compacted_out or single.null_value:
                    skipped |= single.compacted_out
                    if single.null_value and not single.compacted_out:
                        values.append(None)
                        if self._indexes:
                            self._batch_index.append(index)
                    continue
            values.append(body[start:at])
            if self._indexes:
                self._batch_index.append(index)
        if at > len(body):
            raise CorruptData("the batch ends inside a message")
        self.size_bytes += len(body)
        assert skipped or len(values) == before + count

    def _every(self, metadata: Any, body: bytes) -> None:
        for index, (single, start, at) in enumerate(batch_messages(body, metadata.num_messages_in_batch)):
            if single.compacted_out:
                continue
            self.values.append(None if single.null_value else body[start:at])
            if self._indexes:
                self._batch_index.append(index)
            self._about(single, single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index)
        self.size_bytes += len(body)

    def _about(self, metadata: Any, sequence: int | None) -> None:
        """metadata: of the message, whether it stands in a batch or not."""
        self._sequences.append(None if sequence is None else _signed(sequence))
        if metadata is None:
            self._keys.append(None)
            self._base64.append(False)
            self._properties.append([])
            self._event_ms.append(None)
            return
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        encoded = metadata.partition_key_b64_encoded
        if type(key) is bytes:
            key, encoded = base64.b64encode(key).decode(), True
        self._keys.append(key)
        self._base64.append(encoded)
        self._properties.append([(_text(p.key), _text(p.value)) for p in metadata.properties])
        self._event_ms.append(_time(metadata.event_time))

    def _cut(self, length: int) -> None:
        """Takes back what an entry gave before it turned out to be broken."""
        for column in (self.values, *((self._batch_index,) if self._indexes else ())):
            del column[length:]
        for column in (
            (self._keys, self._base64, self._properties, self._event_ms, self._sequences) if self._whole else ()
        ):
            del column[length:]


def _sealed(metadata: Any) -> str | None:
    """Why the payload stays as it is stored: a message is compressed before it is cut or encrypted, so no piece opens
    by itself.
    """
    return "encrypted" if metadata.encryption_keys else "piece" if metadata.num_chunks_from_msg > 1 else None


def _text(value: Any) -> str:
    """Protobuf gives bytes where a client wrote a string that is no UTF-8."""
    return value if type(value) is str else value.decode(errors="replace")


def _signed(number: int) -> int:
    """As who wrote it meant it: Java's long is an unsigned number on the wire."""
    return number if number < 1 << 63 else number - (1 << 64)


def _time(ms: int) -> int | None:
    """None: there is none, or it is no time that Spark has; nanoseconds in its place are the commonest."""
    signed = _signed(ms)
    return signed if signed and _MS_FIRST <= signed <= _MS_LAST else None


def _span(head: bytes) -> tuple[int, int] | None:
    """(where the payload begins, its size), of a message's first eight bytes; None: they do not say all of it."""
    size, tag, low, high, third = _HEAD.unpack(head)
    if tag == _PAYLOAD_SIZE and low < 128 and low and (size == 2 or high != _COMPACTED_OUT):
        return 4 + size, low
    if tag == _PAYLOAD_SIZE and low > 127 and high < 128 and (size == 3 or third != _COMPACTED_OUT):
        return 4 + size, low & 127 | high << 7
    return None


def _body(entry: memoryview) -> tuple[Any, memoryview]:
    """(MessageMetadata, payload as it was sent)."""
    at = 6 if entry[:2] == _MAGIC_CHECKSUM else 0
    size = int.from_bytes(entry[at : at + 4], "big")
    if at + 4 + size > len(entry):
        raise CorruptData("it ends inside its metadata")
    return pb.MessageMetadata.FromString(bytes(entry[at + 4 : at + 4 + size])), entry[at + 4 + size :]
