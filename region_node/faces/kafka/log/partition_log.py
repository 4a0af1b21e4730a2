"""KafkaLog: one loaded topic, as Kafka's clients see it: a partition with dense offsets.

Is: reading batches from an offset on, where the log begins and ends, finding an offset. Isn't: requests, or finding a
time (`time_search`).
Invariants: an offset is the index of a message in the topic, which the run's header carries, so it survives moves and
restarts; a batch that Kafka's client wrote is stored and sent as it came, but for base offset and leader epoch; a
reader always comes further: where nothing is to be seen, an empty batch takes its place.
Source: docs/protocols/kafka.md, "Offsets".
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import CorruptData, EntriesLost, HeliographError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.kafka.entry_conversion import as_batch, batch_of
from heliograph.wire.kafka.record_batches import (
    HEADER_BYTES,
    PREFIX,
    offsets_of,
    old_message_set,
    peek_batch,
    records_of,
    sealed,
)
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Buffer, Run, TxnId
from region_node.faces.kafka.log.compacted_reads import CompactedReads
from region_node.faces.kafka.log.large_conversions import NONE_AHEAD, Ahead
from region_node.faces.kafka.log.producer_sequences import Sequences
from region_node.faces.kafka.log.sequence_store import SequenceStore
from region_node.faces.kafka.log.time_index import Times
from region_node.topics.policies.policy_maintenance import KAFKA_CURSOR
from region_node.topics.topic import Topic

if TYPE_CHECKING:
    from region_node.faces.kafka.cluster.kafka_configs import Configs

events = logging.getLogger("region_node.kafka")

READ_CURSOR = "pulsar.kafka.reader"
"""Not durable: tells the entry cache how far back Kafka's consumers read."""
_UNSEEN = FLAG_HIDDEN | FLAG_MARKER
_ENDS_KEPT = 64
_ENTRIES_A_READ = 2048
Piece = tuple[int, int, Run]


@dataclass(slots=True)
class KafkaCounts:
    """Since this broker started. Converted: records that went from one form to another, in or out."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    converted_in: int = 0
    converted_out: int = 0

    def sent(self, messages: int, size_bytes: int) -> None:
        self.messages_out += messages
        self.bytes_out += size_bytes


class KafkaLog:
    """`low`: the offset below which nothing is shown. `sequences`: of its idempotent producers; None until they were
    read. `times`: of its records.
    """

    __slots__ = (
        *(
            "_configs",
            "_ends",
            "_first",
            "_oldest_read",
            "_read_now",
            "_undecided",
            "compaction",
            "counts",
            "low_cursor",
            "ledger",
        ),
        *(
            "_lost_through",
            "leader_epoch",
            "low",
            "name",
            "reader",
            "sequences",
            "store",
            "times",
            "topic",
            "transactions",
        ),
    )

    def __init__(
        self,
        topic: Topic,
        counts: KafkaCounts,
        meta: MetadataStore,
        tasks: TaskSet,
        configs: Configs,
        expiry: Clock,
        read_now: dict[KafkaLog, None],
        leader_epoch: int = 0,
    ) -> None:
        """expiry: by which what deletes by time goes. read_now: where it puts itself when it is read, and takes itself
        out once the cache knows that it is not any more. leader_epoch: under which it is opened: offsets are given with
        it.
        """
        self.topic, self.counts, self._configs, self._read_now = topic, counts, configs, read_now
        self.compaction = CompactedReads(topic, expiry)
        self.name = str(topic.name.partitioned)
        """Holds the full name of the topic that it is a partition of."""
        self.store = SequenceStore(self, meta, tasks)
        self.ledger: Any = topic.ledger
        self.leader_epoch = leader_epoch
        self.sequences: Sequences | None = None
        self.times = Times(0)
        self.transactions: dict[int, tuple[int, TxnId]] = {}
        """Producer -> (epoch, the transaction that its batches belong to), as long as that is open here."""
        self.low_cursor: Any = None
        self.reader: Any = None
        self._oldest_read: Position | None = None
        self.low = 0
        self._ends: OrderedDict[int, Position] = OrderedDict()
        self._first: tuple[int, int] = (-2, 0)
        self._undecided: tuple[Position, int] = ((-1, -1), 0)
        self._lost_through = 0
        """The offset behind what was passed over last, because it is lost."""

    async def open(self) -> None:
        """Finds, or makes, the cursor that keeps its messages."""
        self.low_cursor = await self.ledger.open_cursor(KAFKA_CURSOR, BEFORE_ALL)
        self.low = int(self.low_cursor.properties.get("low", 0))
        await self.follow_keeper()
        self.sequences, self.times = await self.store.load()

    @property
    def compacts(self) -> bool:
        """Whether its topic's cleanup.policy says so, alone or beside `delete`."""
        return self._configs.compacts(self.name)

    @property
    def only_compacts(self) -> bool:
        return self._configs.of(self.name).get("cleanup.policy") == "compact"

    async def follow_keeper(self) -> None:
        """The cursor has moved: so has the beginning of the log, unless its records go by their keys alone."""
        if self.only_compacts:
            return
        self.low = max(self.low, await self.offset_at(self.ledger.next_position(self.low_cursor.mark_delete)))

    # -- ends ----------------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The offset behind the last durable record."""
        end: int = self.ledger.confirmed_index
        return end

    @property
    def start_offset(self) -> int:
        first = 0 if self.compacts and self.compaction.view is not None else self.log_offset
        return min(max(first, self.low), self.high_watermark)

    @property
    def log_offset(self) -> int:
        """Returns the offset of the first record in the log itself, whatever is left beside it of a compacted topic; of
        an empty log its end.
        """
        ledger = self.ledger.first_position()[0]
        if self._first[0] != ledger:
            first = self.ledger.first_index
            self._first = (ledger, self.high_watermark if first is None else first)
        return self._first[1]

    async def offset_at(self, position: Position) -> int:
        """The offset of the entry at `position`, or of the first one behind it; of one that is lost, where its range
        begins.
        """
        try:
            pieces = await self.ledger.read(position, 1, 1)
        except EntriesLost as lost:
            return await self._offset_before(lost)
        return pieces[0][2].first_index if pieces else self.high_watermark

    async def _offset_before(self, lost: EntriesLost) -> int:
        """The offset of the first record that is lost: what stands before it is there, or is another range."""
        if lost.first:
            try:
                before = await self.one((lost.ledger, lost.first - 1))
            except EntriesLost as earlier:
                return await self._offset_before(earlier)
            if before is not None:
                return before.first_index + before.messages
        first: int = (await self.ledger.ledger_info(lost.ledger)).first_index
        return first

    # -- reading -------------------------------------------------------------------------------------------------------

    def cached(self, offset: int, max_bytes: int, *, committed: bool = False) -> list[Piece] | None:
        """What follows `offset`, straight from memory; None: `fetch` must look for it. committed: what is decided only,
        and nothing that was aborted.
        """
        at = self._ends.get(offset)
        if at is None or (self.compacts and self.compaction.holds(at)):
            return None
        self._reads(at)
        reader: Any = self.topic.readable if committed else self.ledger
        return reader.cached(at, _ENTRIES_A_READ, max(1, max_bytes)) or None

    async def fetch(self, offset: int, max_bytes: int, *, committed: bool = False) -> list[Piece]:
        """The same, from wherever it is. Raises what a read raises. What is lost is passed over where the brokers are
        set to that.
        """
        at = self._ends.get(offset)
        if self.compacts and self.compaction.view is not None:
            at = at or (
                await self.position_of(offset)
                if offset >= self.log_offset
                else await self.compaction.position_of(offset)
            )
            left = await self.compaction.read(at, self._delete_retention_ms, _ENTRIES_A_READ, max(1, max_bytes))
            if isinstance(left, list):
                return left
            at = left
        elif at is None:
            at = await self.position_of(offset)
        self._reads(at)
        reader: Any = self.topic.readable if committed else self.ledger
        while True:
            try:
                pieces: list[Piece] = await reader.read(at, _ENTRIES_A_READ, max(1, max_bytes))
            except EntriesLost as lost:
                if not self.topic.policies.on("autoSkipNonRecoverableData"):
                    raise
                events.warning("kafka.lost_skipped", extra={"topic": self.topic.text, "error": str(lost)})
                at = lost.ledger, lost.last + 1
                self._lost_through = await self.offset_at(at)
            else:
                return pieces

    @property
    def _delete_retention_ms(self) -> int:
        return self._configs.number(self.name, "delete.retention.ms")

    async def passed_over(self, offset: int, magic: int) -> list[Buffer]:
        """An empty batch in place of what was compacted away behind `offset`, or is lost there, where nothing comes
        behind it; [] where nothing was.
        """
        if magic == 2 and self._lost_through > offset:
            return [self._at(offset, memoryview(sealed(b"", 0, self._lost_through - offset - 1, -1, -1, 0)))]
        horizon = self.compaction.horizon
        if horizon is None or magic < 2:
            return []
        at = (horizon[0], horizon[1] + 1)
        end = await self.offset_at(at)
        if end <= offset:
            return []
        self._remember(end, at)
        return [self._at(offset, memoryview(sealed(b"", 0, end - offset - 1, -1, -1, 0)))]

    def _reads(self, at: Position) -> None:
        if self._oldest_read is None or at < self._oldest_read:
            self._oldest_read = at
            self._read_now[self] = None

    async def tell_cache(self) -> None:
        """Now and then: from the oldest place that was read since the last time, the cache keeps what it can; nothing,
        where nobody reads.
        """
        at, self._oldest_read = self._oldest_read, None
        if at is None:
            if self.reader is not None:
                self.reader.reading = None
            self._read_now.pop(self, None)
            return
        if self.reader is None:
            self.reader = await self.ledger.open_cursor(READ_CURSOR, (at[0], at[1] - 1), durable=False)
        self.reader.reset((at[0], at[1] - 1))
        self.reader.reading = lambda: at

    async def stable_offset(self) -> int:
        """The offset of the first record of an open transaction, or of one that waits for its other topics; where there
        is none, the high watermark.
        """
        if self.topic.readable is self.ledger:
            return self.high_watermark
        buffer = self.topic.transactions.buffer
        undecided = None if buffer is None else buffer.unseen_from()
        if undecided is None:
            return self.high_watermark
        if self._undecided[0] != undecided:
            self._undecided = (undecided, await self.offset_at(undecided))
        return self._undecided[1]

    def transaction_of(self, producer: int, epoch: int) -> TxnId | None:
        """The transaction of its last batches, where it is still open here; None: its coordinator's record must be
        read.
        """
        found = self.transactions.get(producer)
        if found is None or found[0] != epoch:
            return None
        buffer = self.topic.transactions.buffer
        if (
            buffer is not None
            and (None, *found[1]) in buffer.open
            and self.topic.transactions.refusal(found[1]) is None
        ):
            return found[1]
        del self.transactions[producer]
        return None

    def batches(
        self, pieces: list[Piece], offset: int, max_bytes: int, magic: int = 2, ahead: Ahead = NONE_AHEAD
    ) -> list[Buffer]:
        """Record batches of what was read, from the one that holds `offset` on: at least one, then at most
        `max_bytes`; nothing of what `ahead` stops at, or behind it.
        """
        out: list[Buffer] = []
        size, end, shown = 0, offset, 0
        at: Position | None = None
        for ledger, first, run in pieces:
            base, flags, counts = run.first_index, run.flags, run.counts
            for index, part in enumerate(run.parts):
                count = 1 if counts is None else counts[index]
                flag = 0 if flags is None else flags[index]
                if base + count > offset and not flag & _UNSEEN:
                    at = ledger, first + index
                    if base == ahead.stop or (out and size >= max_bytes):
                        return self._sent(out, offset, end, shown, at, size, magic)
                    made = self._entry(part, flag, count, base, offset, magic, ahead.made.get(base))
                    length = sum(map(len, made))
                    if out and size + length > max_bytes:
                        return self._sent(out, offset, end, shown, at, size, magic)
                    out += made
                    size += length
                    shown += count
                base += count
                end = max(end, base)
            at = ledger, first + run.count
        return self._sent(out, offset, end, shown, at, size, magic)

    def _sent(
        self, out: list[Buffer], offset: int, end: int, shown: int, at: Position | None, size: int, magic: int
    ) -> list[Buffer]:
        """at: of what stands at `end`, where anything was read."""
        if at is not None:
            self._remember(end, at)
        self.counts.sent(shown, size)
        if not out and end > offset and magic == 2:
            return [self._at(offset, memoryview(sealed(b"", 0, end - offset - 1, -1, -1, 0)))]
        return out

    def _entry(
        self, part: Buffer, flag: int, count: int, base: int, offset: int, magic: int, ahead: bytes | CorruptData | None
    ) -> list[Buffer]:
        """What is sent of an entry; of one that has no form for this reader nothing: whoever waited for it would wait
        for ever.
        """
        try:
            return self._made(part, flag, count, base, offset, magic, ahead)
        except CorruptData as error:
            self.topic.unreadable_out += 1
            events.warning(
                "kafka.unreadable_skipped", extra={"topic": self.topic.text, "offset": base, "error": str(error)}
            )
            return []

    def _made(
        self, part: Buffer, flag: int, count: int, base: int, offset: int, magic: int, ahead: bytes | CorruptData | None
    ) -> list[Buffer]:
        if flag & FLAG_KAFKA:
            batch = batch_of(part)
            if magic == 2:
                return [PREFIX.pack(base, len(batch) - 12, self.leader_epoch), batch[16:]]
        else:
            if isinstance(ahead, CorruptData):
                raise ahead
            batch = memoryview(as_batch(part, count) if ahead is None else ahead)
            self._converted(count)
            if magic == 2:
                return [self._at(base, batch)]
        if peek_batch(batch).attributes & 32:
            return []
        if flag & FLAG_KAFKA:
            self._converted(count)
        records = [(base + delta, record) for delta, record in zip(offsets_of(batch), records_of(batch), strict=True)]
        return [old_message_set(records, magic, offset)]

    def _at(self, base: int, batch: memoryview) -> bytes:
        """A batch that was made here, at its place in the log."""
        assert len(batch) >= HEADER_BYTES
        return PREFIX.pack(base, len(batch) - 12, self.leader_epoch) + batch[16:]

    def _converted(self, count: int) -> None:
        self.counts.converted_out += count
        self.topic.converted_out += count

    def _remember(self, offset: int, at: Position) -> None:
        self._ends[offset] = at
        self._ends.move_to_end(offset)
        if len(self._ends) > _ENDS_KEPT:
            self._ends.popitem(last=False)

    # -- finding -------------------------------------------------------------------------------------------------------

    async def position_of(self, offset: int) -> Position:
        """The entry that holds it. Halves the ledger that must have it; each step reads one entry."""
        await self.ledger.whole()
        infos = [info for info in self.ledger.ledgers() if info.entries]
        if not infos:
            return BEFORE_ALL
        which = max(0, bisect_right([info.first_index for info in infos], offset) - 1)
        info = infos[which]
        low, high = 0, info.entries - 1
        while low < high:
            middle = (low + high + 1) // 2
            try:
                run = await self.one((info.ledger, middle))
            except EntriesLost as lost:
                begins, behind = await self._offset_before(lost), lost.last + 1
                if offset < begins:
                    high = lost.first - 1
                elif behind > high or await self.offset_at((info.ledger, behind)) > offset:
                    return info.ledger, max(low, lost.first)
                else:
                    low = behind
                continue
            if run is None or run.first_index > offset:
                high = middle - 1
            elif run.first_index + run.messages > offset:
                return info.ledger, middle
            else:
                low = middle
        return info.ledger, low

    async def one(self, position: Position) -> Run | None:
        """The entry at `position` alone; None: it is not there."""
        pieces = await self.ledger.read(position, 1, 1)
        return pieces[0][2] if pieces and pieces[0][:2] == position else None

    # -- keeping -------------------------------------------------------------------------------------------------------

    async def delete_before(self, offset: int) -> int:
        """Kafka's DeleteRecords: nothing below `offset` is shown any more; returns where the log begins now."""
        offset = min(offset, self.high_watermark)
        if offset > self.start_offset:
            at = await self.position_of(offset) if offset < self.high_watermark else None
            if at is None:
                self.low_cursor.ack_cumulative(self.ledger.last_confirmed)
            elif at[1] > 0:
                self.low_cursor.ack_cumulative((at[0], at[1] - 1))
            else:
                before = self.ledger.position_before(at)
                if before[1] >= 0:
                    self.low_cursor.ack_cumulative(before)
            self.low = offset
            self.low_cursor.set_properties({**self.low_cursor.properties, "low": str(offset)})
            await self.low_cursor.flushed()
        return self.start_offset

    async def keep(self, before_ms: int, size_bytes: int) -> None:
        """Lets go what is older (0: nothing is too old), and what is beyond that size (-1: nothing is)."""
        try:
            if self.only_compacts:
                if (horizon := self.compaction.horizon) is not None:
                    self.low_cursor.ack_cumulative(horizon)
                return
            if before_ms > 0:
                await self.ledger.expire_before(before_ms, [KAFKA_CURSOR])
            if size_bytes >= 0 and self.ledger.size_bytes > size_bytes:
                await self.ledger.drop_to(size_bytes, [KAFKA_CURSOR])
            await self.follow_keeper()
        except HeliographError:
            pass  # the next look tries again
