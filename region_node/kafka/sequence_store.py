"""SequenceStore: what a partition knows of its idempotent producers, kept over moves of its topic and deaths of its broker.

Is: a snapshot in the region's metadata now and then, and the replay of what was appended behind it. Isn't: a rule (`producers`).
Invariants: after loading, a batch that is in the log is known, so that a producer that sends it again is answered with its offset; a snapshot holds what is
durable, and names an offset at or below which nothing is missing from it.
Bounds: about SNAPSHOT_BYTES are replayed; of a log without a snapshot, its last SNAPSHOT_BYTES.
Source: docs/protocols/kafka.md, "Producers".

    /kafka/sequences/{topic}  ->  [1, offset, Sequences.dump]
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgpack

from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.positions import Position
from heliograph.raft.store import MetadataStore
from heliograph.wire.kafka_entries import batch_of
from heliograph.wire.kafka_records import CONTROL, peek_batch
from heliograph.wire.run import FLAG_KAFKA
from region_node.kafka.producers import Sequences
from region_node.subscriptions.ready import Tasks

if TYPE_CHECKING:
    from region_node.kafka.log import KafkaLog

log = logging.getLogger("region_node.kafka")

PREFIX = "/kafka/sequences/"
FORMAT = 1
SNAPSHOT_BYTES = 64 << 20
_SAVE_ABOVE = 8 << 20
_READ_BYTES = 4 << 20


def key_of(topic: str) -> str:
    return PREFIX + quote(topic, safe="")


class SequenceStore:
    """Of one partition."""

    __slots__ = ("_log", "_meta", "_saving", "_since_bytes", "_tasks")

    def __init__(self, log: KafkaLog, meta: MetadataStore, tasks: Tasks) -> None:
        self._log, self._meta, self._tasks = log, meta, tasks
        self._since_bytes = 0
        self._saving = False

    async def load(self) -> Sequences:
        """Raises what a read and the metadata raise."""
        found = Sequences()
        offset = await self._stored(found)
        await self._log.ledger.whole()
        at = await self._log.position_of(offset) if offset >= 0 else self._tail()
        end, read_bytes = self._log.ledger.last_confirmed, 0
        while at <= end:
            pieces = await self._log.ledger.read(at, 4096, _READ_BYTES)
            if not pieces:
                break
            for _, _, run in pieces:
                read_bytes += run.size_bytes
                base = run.first_index
                for index, part in enumerate(run.parts):
                    if run.flags is not None and run.flags[index] & FLAG_KAFKA:
                        batch = peek_batch(batch_of(part))
                        if batch.producer >= 0 and base >= offset and not batch.attributes & CONTROL:
                            found.accept(batch, base)
                    base += 1 if run.counts is None else run.counts[index]
            at = (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count)
        self._since_bytes = read_bytes
        if read_bytes >= _SAVE_ABOVE:
            await self._save(found)
        return found

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

    def _tail(self) -> Position:
        """Where the last SNAPSHOT_BYTES begin."""
        infos = [info for info in self._log.ledger.ledgers() if info.entries]
        left, at = SNAPSHOT_BYTES, (-1, -1)
        for info in reversed(infos):
            if info.size_bytes >= left:
                return info.ledger, info.entries - max(1, info.entries * left // info.size_bytes)
            left -= info.size_bytes
            at = (info.ledger, 0)
        return at if infos else (1 << 62, 0)

    def grown(self, size_bytes: int) -> None:
        """So much of idempotent producers is durable."""
        self._since_bytes += size_bytes
        if self._since_bytes >= SNAPSHOT_BYTES and not self._saving and self._log.sequences is not None:
            self._saving = True
            self._tasks.spawn(self._save_later(self._log.sequences))

    async def _save_later(self, sequences: Sequences) -> None:
        try:
            await self._save(sequences)
        except HeliographError as error:  # the next one makes up for it: more is replayed until then
            log.warning("kafka.sequences_not_saved", extra={"topic": self._log.topic.text, "error": str(error)})
        finally:
            self._saving = False

    async def _save(self, sequences: Sequences) -> None:
        self._since_bytes = 0
        packed: bytes = msgpack.packb([FORMAT, self._log.high_watermark, sequences.dump()])
        await self._meta.put(key_of(self._log.topic.text), packed)
