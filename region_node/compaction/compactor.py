"""Compactor: writes, beside a topic's log, a ledger with the latest message of each key.

Is: the two readings of a topic, the ledger that comes of them, and the change from the old one to the new. Isn't: a
decision when (the policy's, or an operator's), or what stays of an entry (`latest_keys`, `keyed_entries`).
Invariants: before the new ledger exists it is named as garbage with the cursor `__compaction`; one write of that cursor
makes it the compacted ledger, moves the horizon, and names the old one as garbage. So after a crash at any point the
topic reads as before or as after, and the next owner deletes what is left over. The cursor holds what is not compacted
in the log, whatever retention says. An owner that was replaced changes nothing: every write of a cursor is checked.
What is written is what was counted: where the second reading differs from the first, nothing is changed.
Bounds: one compaction at a time in a broker, `keys_max` keys in memory (more are another reading each), a bit a
message, 4 MiB under way; it takes at most half of the loop's time.
Source: docs/protocols/pulsar.md, "Compaction".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import AlreadyExists, CorruptData, HeliographError, NotAllowed, TopicClosed
from heliograph.model.ledger_metadata import OffloadRecord, OffloadState
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.kafka.entry_conversion import as_pulsar
from heliograph.wire.run import FLAG_KAFKA, Buffer, Run
from local_meta import keys
from region_node.compaction.compacted_view import (
    CURSOR,
    Compacted,
    CompactedView,
    local_ledgers,
    properties_of,
    read_properties,
)
from region_node.compaction.compacted_writer import CompactedWriter, delete_ledgers
from region_node.compaction.compaction_state import CompactedTopic, TopicCompaction
from region_node.compaction.keyed_entries import Opened, open_entry, without
from region_node.compaction.latest_keys import LatestKeys
from region_node.compaction.settings import CompactorSettings
from region_node.runtime.cursor_ports import LedgerPort, Piece, visible
from storage.ledger.ledger_context import LedgerContext
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.log_reader import ColdReads

log = logging.getLogger("region_node.compaction")

_READ_ENTRIES = 512
_READ_BYTES = 1 << 20
_SLICE = 256
"""Messages that are looked at before others have their turn, and the rest of a batch."""


DeleteObject = Callable[[str, int, OffloadRecord], Awaitable[None]]
"""Of a ledger that was replaced: (topic, ledger, record)."""


class Compactor:
    """One a broker. Make it on the event loop."""

    def __init__(
        self,
        context: LedgerContext,
        meta: MetadataStore,
        clock: Clock,
        tasks: TaskSet,
        settings: CompactorSettings | None = None,
        cold: Callable[[], ColdReads | None] = lambda: None,
    ) -> None:
        """cold: reads what was offloaded."""
        self.settings = settings or CompactorSettings()
        self._deleters: list[DeleteObject] = []
        self._cold = cold
        self._context, self._meta, self._clock, self._tasks = context, meta, clock, tasks
        self._compacting = asyncio.Lock()

    def delete_objects_by(self, delete: DeleteObject) -> None:
        """Adds who deletes objects of ledgers that were replaced. What it cannot delete is found by the collection of
        objects.
        """
        self._deleters.append(delete)

    def of(self, topic: CompactedTopic) -> TopicCompaction:
        """The topic's, as it is stored; with what an earlier owner left over being deleted. A topic that is not
        persistent: NotAllowed.
        """
        if topic.volatile:
            raise NotAllowed(f"{topic.text} is not persistent: nothing of it is stored, so there is nothing to compact")
        cursor = topic.ledger.cursors.get(CURSOR)
        compacted, garbage = read_properties(cursor.properties) if cursor is not None else (None, [])
        made = TopicCompaction(self._view(topic, compacted))
        if compacted is not None:
            made.status = "SUCCESS"
        if garbage:
            self._tasks.spawn(self._sweep_quietly(topic, garbage))
        return made

    @property
    def busy(self) -> bool:
        return self._compacting.locked()

    def start(self, topic: CompactedTopic, *, anew: bool = False) -> None:
        """Compacts up to what is confirmed now, in the background. anew: writes what is compacted once more, also where
        nothing came since. Raises NotAllowed; AlreadyExists where that is under way.
        """
        state = topic.compaction()
        if state.status == "RUNNING":
            raise AlreadyExists(f"Compaction already in progress: {topic.text}")
        if state.truncating:
            raise AlreadyExists(f"{topic.text} is being truncated: compact it once that is done")
        state.status, state.error = "RUNNING", ""
        self._tasks.spawn(self._compact(topic, state, anew))

    async def hold_log(self, topic: CompactedTopic) -> None:
        """From now on the log keeps what is not compacted."""
        if CURSOR not in topic.ledger.cursors:
            await topic.ledger.open_cursor(CURSOR, BEFORE_ALL)

    async def stored(self, topic: str) -> tuple[Compacted | None, list[int]]:
        """(what is compacted, every ledger of it), of a topic that is being deleted, as it is stored: it need not be
        loaded.
        """
        found = await self._meta.get(keys.cursor(topic, CURSOR))
        if found is None:
            return None, []
        try:
            compacted, garbage = read_properties(Cursor.properties_in(found[0]))
        except CorruptData as error:  # the topic goes all the same
            log.error("compaction.unreadable", extra={"topic": topic, "error": str(error)})
            return None, []
        return compacted, [*garbage, *local_ledgers(compacted)]

    async def set_offload(self, topic: CompactedTopic, ledger: int, record: OffloadRecord) -> bool:
        """As `storage.tiered.offload.side_ledgers` has it. Nothing is changed while the topic is being compacted: what
        is there may be replaced at any moment.
        """
        state, cursor = topic.compaction(), topic.ledger.cursors.get(CURSOR)
        compacted = state.view.compacted
        if (
            compacted is None
            or compacted.ledger != ledger
            or cursor is None
            or state.status == "RUNNING"
            or topic.closed
        ):
            return False
        gone = local_ledgers(compacted) if record.state == OffloadState.LOCAL_GONE else []
        state.view.compacted = replace(compacted, offload=record)
        cursor.set_properties(properties_of(state.view.compacted, [*read_properties(cursor.properties)[1], *gone]))
        await cursor.flushed()
        if gone:
            await self._sweep(topic, gone)
        return True

    async def truncate(self, topic: CompactedTopic) -> None:
        """Nothing that was published so far is compacted any more. Raises AlreadyExists while it is being compacted."""
        state = topic.compaction()
        if state.status == "RUNNING":
            raise AlreadyExists(f"{topic.text} is being compacted: truncate it once that is done")
        compacted, cursor = state.view.compacted, topic.ledger.cursors.get(CURSOR)
        if compacted is not None and cursor is not None:
            garbage = [*read_properties(cursor.properties)[1], *local_ledgers(compacted)]
            state.view.compacted = None  # with the cursor: whoever comes while it is written has nothing to change
            cursor.set_properties(properties_of(None, garbage))
            await cursor.flushed()
            await self._sweep(topic, garbage)
            await self.forget_object(topic.text, compacted)

    # -- one compaction -----------------------------------------------------------------------------------------------

    async def _compact(self, topic: CompactedTopic, state: TopicCompaction, anew: bool) -> None:
        async with self._compacting:
            began = self._clock.monotonic()
            try:
                await self._run(topic, state, anew)
                state.status, state.succeeded, state.succeeded_ms = (
                    "SUCCESS",
                    state.succeeded + 1,
                    self._clock.wall_ms(),
                )
            except HeliographError as error:
                state.status, state.error, state.failed, state.failed_ms = (
                    "ERROR",
                    str(error),
                    state.failed + 1,
                    self._clock.wall_ms(),
                )
                log.warning("compaction.failed", extra={"topic": topic.text, "error": str(error)})
            except BaseException as error:
                state.status, state.error = "ERROR", repr(error)
                raise
            finally:
                state.duration_ms = int(1000 * (self._clock.monotonic() - began))

    async def _run(self, topic: CompactedTopic, state: TopicCompaction, anew: bool) -> None:
        cursor = await topic.ledger.open_cursor(CURSOR, BEFORE_ALL)
        before, upto = state.view.compacted, topic.readable.last_confirmed
        if upto[1] < 0 or (before is not None and before.horizon >= upto):
            if not anew or before is None:
                state.removed = 0
                return
            upto = before.horizon
        work = _Work(topic, self._view(topic, before), upto, self._clock, self.settings)
        await work.count()
        writer = CompactedWriter(topic, self._context, self._meta, state, self._clock)
        try:
            await work.write(writer)
            after = await writer.finish(upto)
        except BaseException:
            await writer.give_up()
            raise
        garbage = [number for number in read_properties(cursor.properties)[1] if number != after.ledger]
        garbage += local_ledgers(before)
        after, before = replace(after, made_ms=self._clock.wall_ms()), state.view.compacted
        cursor.set_properties(properties_of(after, garbage))
        cursor.ack_cumulative(upto)
        await cursor.flushed()  # where this fails the topic is lost to us, and its next owner knows which ledger counts
        state.view.compacted, state.removed, state.bytes_read = after, work.messages - work.kept, work.bytes_read
        log.info(
            "compaction.done",
            extra={"topic": topic.text, "entries": after.entries, "removed": state.removed, "readings": work.passes},
        )
        await self._sweep(topic, garbage)
        await self.forget_object(topic.text, before)

    async def _sweep(self, topic: CompactedTopic, garbage: list[int]) -> None:
        """What else the cursor says by then stays: another step may be under way."""
        await self._delete(garbage)
        cursor = topic.ledger.cursors.get(CURSOR)
        if garbage and cursor is not None and not topic.closed:
            compacted, named = read_properties(cursor.properties)
            cursor.set_properties(properties_of(compacted, [number for number in named if number not in garbage]))

    async def _delete(self, ledgers: list[int]) -> None:
        await delete_ledgers(self._context, self._meta, ledgers)

    async def _sweep_quietly(self, topic: CompactedTopic, garbage: list[int]) -> None:
        try:
            await self._sweep(topic, garbage)
        except HeliographError as error:  # the next owner does
            log.warning("compaction.leftover", extra={"topic": topic.text, "ledgers": garbage, "error": str(error)})

    async def forget_object(self, topic: str, gone: Compacted | None) -> None:
        """Deletes the object of a compacted ledger that nobody names any more."""
        if gone is None or gone.offload is None:
            return
        try:
            for delete in self._deleters:
                await delete(topic, gone.ledger, gone.offload)
        except HeliographError as error:
            log.warning("compaction.object_left", extra={"topic": topic, "ledger": gone.ledger, "error": str(error)})

    def _view(self, topic: CompactedTopic, compacted: Compacted | None) -> CompactedView:
        return CompactedView(lambda: topic.readable, self._context, compacted, topic.text, self._cold())


class _Work:
    """Reads a topic from its beginning to `upto`, twice. `messages`: how many there are; `kept`: how many of them were
    written.
    """

    def __init__(
        self, topic: CompactedTopic, source: LedgerPort, upto: Position, clock: Clock, settings: CompactorSettings
    ) -> None:
        self._topic, self._source, self._upto, self._clock, self._settings = topic, source, upto, clock, settings
        self._latest = LatestKeys(settings.keys_max)
        self._rested, self._since = clock.monotonic(), 0
        self.messages = self.kept = self.bytes_read = 0

    @property
    def passes(self) -> int:
        return self._latest.passes + 1

    async def count(self) -> None:
        """The first reading, or as many as the keys need."""
        while self._latest.begin():
            number = await self._read(self._look)
            if self._latest.passes > 1 and number != self.messages:
                raise TopicClosed(f"{self._topic.text} changed while it was compacted: nothing was done")
            self.messages = number

    async def write(self, writer: CompactedWriter) -> None:
        """The last reading: what stays goes to `writer`."""

        async def take(piece: Piece, number: int) -> int:
            ledger, first, run = piece
            for index, part in enumerate(run.parts):
                part = _plain(run, index, part)
                opened = open_entry(part)
                stays = [self._latest.stays(number + i) for i in range(len(opened.messages))]
                number += len(stays)
                kept = sum(stays)
                if kept:
                    self.kept += kept
                    entry = part if kept == len(stays) or not opened.batch else without(part, stays)
                    position = (ledger, first + index)
                    await writer.add(
                        position,
                        run.time_ms,
                        run.first_index + run.messages_before(index),
                        entry,
                        run.counts[index] if run.counts else 1,
                    )
                await self._looked_at(len(stays))
            return number

        if await self._read(take) != self.messages:
            raise TopicClosed(f"{self._topic.text} changed while it was compacted: nothing was done")

    async def _look(self, piece: Piece, number: int) -> int:
        for index, part in enumerate(piece[2].parts):
            opened = open_entry(_plain(piece[2], index, part))
            self._note(opened, number)
            number += len(opened.messages)
            await self._looked_at(len(opened.messages))
        return number

    def _note(self, opened: Opened, number: int) -> None:
        latest = self._latest
        for at, message in enumerate(opened.messages, number):
            if message.gone:
                continue
            if message.key is None and not self._settings.retain_null_key:
                continue
            if opened.chunk is not None:
                latest.chunk(at, message.key, *opened.chunk)
            elif message.key is None:
                latest.keep(at)
            else:
                latest.message(at, message.key, tombstone=message.empty)

    async def _read(self, take: Callable[[Piece, int], Any]) -> int:
        """Every piece that clients see, with the number of its first message; returns how many messages there were."""
        position: Position = BEFORE_ALL
        number = 0
        while position <= self._upto:
            pieces = await self._source.read(position, _READ_ENTRIES, _READ_BYTES)
            if not pieces:
                break
            for ledger, first, run in pieces:
                if (ledger, first) > self._upto:
                    return number
                if (ledger, first + run.count - 1) > self._upto:
                    run = run.cut(0, self._upto[1] - first + 1)
                self.bytes_read += run.size_bytes
                for shown in visible((ledger, first, run))[0]:
                    number = await take(shown, number)
                position = (ledger, first + run.count)
            await self._rest()
        return number

    async def _looked_at(self, messages: int) -> None:
        self._since += messages
        if self._since >= _SLICE:
            await self._rest()

    async def _rest(self) -> None:
        """Gives others as long as was worked."""
        if self._topic.closed:
            raise TopicClosed(f"{self._topic.text} is being unloaded")
        now = self._clock.monotonic()
        await asyncio.sleep(min(max(now - self._rested, 0.0), 0.1))
        self._rested, self._since = self._clock.monotonic(), 0


def _plain(run: Run, index: int, part: Buffer) -> Buffer:
    """An entry that a Kafka client wrote, as Pulsar's clients see it; any other, and one that has no such form, as it
    is.
    """
    if run.flags is None or not run.flags[index] & FLAG_KAFKA:
        return part
    with contextlib.suppress(CorruptData):
        return as_pulsar(part)
    return part
