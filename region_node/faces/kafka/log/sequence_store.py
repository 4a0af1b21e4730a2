"""SequenceStore: what a partition knows of its idempotent producers, and of its records' times, kept over moves of its
topic and deaths of its broker.

Is: a snapshot in the region's metadata now and then, and the replay of what was appended behind it. Isn't: a rule
(`producer_sequences`, `time_index`).
Invariants: after loading, a batch that is in the log is known, so that a producer that sends it again is answered with
its offset; a snapshot holds what is durable, and names an offset at or below which nothing is missing from it; both
kinds are written at once, so that one replay brings both to the end.
Bounds: about SNAPSHOT_BYTES are replayed, behind what other regions have brought REPLAYED_BYTES_MAX; of a log without
a snapshot, its last SNAPSHOT_BYTES. A snapshot is one value of the metadata: what does not fit into it is left out, the
longest idle producers first.
Source: docs/protocols/kafka.md, "Producers".

    /kafka/sequences/{topic}  ->  [1, offset, Sequences.dump]
    /kafka/times/{topic}      ->  Times.dump
"""

from __future__ import annotations

import logging
from typing import Any, Protocol
from urllib.parse import quote

import msgpack

from heliograph.kv.metadata_store import VALUE_BYTES_MAX, MetadataStore, Put
from heliograph.model.errors import CorruptData, EntriesLost, HeliographError
from heliograph.model.positions import Position
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.kafka.entry_conversion import batch_of
from heliograph.wire.kafka.record_batches import CONTROL, peek_batch
from heliograph.wire.run import FLAG_KAFKA
from region_node.faces.kafka.log.producer_sequences import Sequences
from region_node.faces.kafka.log.time_index import UNSEEN, Times, entries_of, highest_of, times_key
from region_node.topics.topic import Topic

log = logging.getLogger("region_node.kafka")

PREFIX = "/kafka/sequences/"
FORMAT = 1
SNAPSHOT_BYTES = 64 << 20
REPLAYED_BYTES_MAX = 256 << 20
"""So much is replayed at most, where a snapshot is older: in a passive region none is stored of what links bring."""
SAVE_ABOVE_BYTES = 8 << 20
"""Where a partition has to read so much to open, it stores what it found."""
_READ_BYTES = 4 << 20


def key_of(topic: str) -> str:
    return PREFIX + quote(topic, safe="")


class SequencedLog(Protocol):
    """`region_node.faces.kafka.log.partition_log.KafkaLog`, as its sequences and times are read from it."""

    @property
    def ledger(self) -> Any: ...

    @property
    def topic(self) -> Topic: ...

    @property
    def sequences(self) -> Sequences | None: ...

    @property
    def times(self) -> Times: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_offset(self) -> int: ...

    async def position_of(self, offset: int) -> Position: ...


class SequenceStore:
    """Loads and stores one partition's sequences and times; stores them each SNAPSHOT_BYTES that `grown` tells of."""

    __slots__ = ("_log", "_meta", "_saving", "_since_bytes", "_tasks")

    def __init__(self, log: SequencedLog, meta: MetadataStore, tasks: TaskSet) -> None:
        self._log, self._meta, self._tasks = log, meta, tasks
        self._since_bytes = 0
        self._saving = False

    async def load(
        self, save_above_bytes: int = SAVE_ABOVE_BYTES, replayed_bytes_max: int = REPLAYED_BYTES_MAX
    ) -> tuple[Sequences, Times]:
        """Raises what a read and the metadata raise."""
        found = Sequences()
        offset = await self._stored(found)
        await self._log.ledger.whole()
        times, fed = await self._stored_times(), True
        at = await self._log.position_of(offset) if offset >= 0 else self._tail(SNAPSHOT_BYTES)
        if offset >= 0 and (tail := self._tail(replayed_bytes_max)) > at:  # links have brought so much meanwhile
            at, times = tail, None
            found.carry()
        end, read_bytes = self._log.ledger.last_confirmed, 0
        while at <= end:
            try:
                pieces = await self._log.ledger.read(at, 4096, _READ_BYTES)
            except EntriesLost as lost:  # what its producers sent there cannot be known any more
                at, times, fed = (lost.ledger, lost.last + 1), None, True
                continue
            if not pieces:
                break
            if times is None:
                times = Times(pieces[0][2].first_index)
            for _, _, run in pieces:
                read_bytes += run.size_bytes
                for entry in entries_of(run):
                    base, count, part, flag = entry
                    if flag & FLAG_KAFKA:
                        batch = peek_batch(batch_of(part))
                        if batch.producer >= 0 and base >= offset and not batch.attributes & CONTROL:
                            found.accept(batch, base, carried=run.origin is not None)
                    fed = fed and bool(flag & (FLAG_KAFKA | UNSEEN))
                    if fed:  # entries of Pulsar's clients are looked into once somebody asks for a time
                        times.add(base, count, highest_of(entry), len(part))
            at = (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count)
        times = times or Times(self._log.high_watermark)
        self._since_bytes = read_bytes
        if read_bytes >= save_above_bytes:
            await self._try_to_save(found, times)
        return found, times

    async def _stored(self, into: Sequences) -> int:
        """The offset of the snapshot; -1: there is none, or none that can be read."""
        stored = await self._meta.get(key_of(self._log.topic.text))
        if stored is None:
            return -1
        try:
            number, offset, rows = msgpack.unpackb(stored[0])
            if number != FORMAT:
                raise CorruptData(f"producers of a partition: format {number}; this version reads {FORMAT}")
            into.load(rows)
            return min(int(offset), self._log.high_watermark)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException, CorruptData) as error:
            log.warning("kafka.sequences_bad", extra={"topic": self._log.topic.text, "error": str(error)})
            return -1

    async def _stored_times(self) -> Times | None:
        """None: there are none, or they are not of this log."""
        stored = await self._meta.get(times_key(self._log.topic.text))
        if stored is None:
            return None
        try:
            ledger, times = Times.load(stored[0])
        except CorruptData as error:
            log.warning("kafka.times_bad", extra={"topic": self._log.topic.text, "error": str(error)})
            return None
        return times if times.end <= self._log.high_watermark and ledger == self._ledger_of(times.end - 1) else None

    def _ledger_of(self, offset: int) -> int:
        """Where that record lies; -1: nowhere any more. Numbers of ledgers only grow, so a log that has begun anew has
        others.
        """
        infos = [info for info in self._log.ledger.ledgers() if info.entries and info.first_index <= offset]
        return infos[-1].ledger if infos and offset >= 0 else -1

    def _tail(self, size_bytes: int) -> Position:
        """Where the last bytes begin, so many of them."""
        infos = [info for info in self._log.ledger.ledgers() if info.entries]
        left, at = size_bytes, (-1, -1)
        for info in reversed(infos):
            if info.size_bytes >= left:
                return info.ledger, info.entries - max(1, info.entries * left // info.size_bytes)
            left -= info.size_bytes
            at = (info.ledger, 0)
        return at if infos else (1 << 62, 0)

    def grown(self, size_bytes: int) -> None:
        """So much more is durable."""
        self._since_bytes += size_bytes
        if self._since_bytes >= SNAPSHOT_BYTES and not self._saving and self._log.sequences is not None:
            self._saving = True
            self._tasks.spawn(self._try_to_save(self._log.sequences, self._log.times))

    async def _try_to_save(self, sequences: Sequences, times: Times) -> None:
        try:
            await self._save(sequences, times)
        except HeliographError as error:  # the next one makes up for it: more is replayed until then
            log.warning("kafka.sequences_not_saved", extra={"topic": self._log.topic.text, "error": str(error)})
        finally:
            self._saving = False

    async def _save(self, sequences: Sequences, times: Times) -> None:
        self._since_bytes = 0
        await self._log.ledger.whole()
        times.forget_before(self._log.log_offset)
        topic, packed = self._log.topic.text, self._packed(sequences)
        await self._meta.txn(
            [Put(key_of(topic), packed), Put(times_key(topic), times.dump(self._ledger_of(times.end - 1)))]
        )

    def _packed(self, sequences: Sequences) -> bytes:
        rows = sequences.dump()
        while True:
            packed: bytes = msgpack.packb([FORMAT, self._log.high_watermark, rows])
            over = len(packed) - VALUE_BYTES_MAX
            if over <= 0:
                return packed
            rows = rows[len(rows) * over // len(packed) + 1 :]
