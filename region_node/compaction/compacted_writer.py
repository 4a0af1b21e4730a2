"""CompactedWriter: the ledger that one compaction writes, from its first entry to its end.

Is: naming it as garbage before it exists, appending, waiting, closing, giving up; how long its writes took. Isn't: what
is written (`compactor`), or the change from the old ledger to the new.
Invariants: the ledger is named with the cursor `__compaction` before anybody can find it in the metadata; nothing is
made before there is an entry. One data key seals all of it, which is still the newest that is known here when it ends:
so what is compacted a day after a rotation needs no older key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import HeliographError, KeyMissing, LedgerFenced, TopicClosed
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock
from heliograph.wire.run import Buffer, Run
from local_meta import keys
from region_node.compaction.compacted_entries import Gather, wrap
from region_node.compaction.compacted_view import CURSOR, OPEN, UNKNOWN, Compacted, properties_of, read_properties
from region_node.compaction.compaction_state import CompactedTopic, TopicCompaction
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.ledger_deletion import delete_on_bookies
from storage.ledger.writing.ledger_handle import LedgerHandle
from storage.sealing.cipher import UNSEALED, RunSealer, promised

log = logging.getLogger("region_node.compaction")

_UNDER_WAY_BYTES = 4 << 20


async def delete_ledgers(context: LedgerContext, meta: MetadataStore, ledgers: list[int]) -> None:
    """Their metadata first. What is gone already is no error; one that names a topic is a log's, and stays."""
    for ledger in ledgers:
        found = await meta.get(keys.ledger(ledger))
        metadata = None if found is None else LedgerMetadata.decode(found[0])
        if metadata is not None and not metadata.topic:
            await meta.delete(keys.ledger(ledger))
            await delete_on_bookies(context, metadata)


class CompactedWriter:
    """A new compacted ledger, from its first entry to its end. Nothing is made before there is one."""

    def __init__(
        self, topic: CompactedTopic, context: LedgerContext, meta: MetadataStore, state: TopicCompaction, clock: Clock
    ) -> None:
        self._topic, self._context, self._meta, self._view, self._clock = topic, context, meta, state.view, clock
        self._writes, self._appended = state.writes, deque[tuple[int, int, float]]()
        self._gather = Gather()
        self._handle: LedgerHandle | None = None
        self._number, self._data_key = -1, OPEN
        self._failed: HeliographError | None = None
        self._moved = asyncio.Event()

    async def add(self, position: Position, time_ms: int, index: int, entry: Buffer, messages: int) -> None:
        run = self._gather.add(wrap(position, time_ms, index, entry), messages)
        if run is not None:
            await self._append(run)

    async def finish(self, horizon: Position) -> Compacted:
        run = self._gather.rest()
        if run is not None:
            await self._append(run)
        if self._handle is None:
            return Compacted(-1, 0, 0, horizon, data_key=OPEN)
        last = self._handle.last_appended
        await self._handle.drained()
        closed = await self._handle.close()
        if self._failed is not None or closed.last_entry != last:
            raise self._failed or TopicClosed(
                f"ledger {self._number} was closed before all of it was durable; compact again"
            )
        if self._data_key != OPEN:
            assert self._context.sealing is not None
            if self._context.sealing.seals_with(self._topic.text) != self._data_key:
                raise KeyMissing(f"a data key was rotated while {self._topic.text} was compacted: compact it again")
        return Compacted(self._number, last + 1, closed.size_bytes, horizon, data_key=self._data_key)

    async def give_up(self) -> None:
        """Nobody will name it. Where it cannot be deleted now, the next owner of the topic, or the next compaction,
        does.
        """
        if self._handle is not None:
            self._handle.stop()
        if self._number >= 0:
            try:
                await delete_ledgers(self._context, self._meta, [self._number])
            except HeliographError as error:
                log.warning(
                    "compaction.leftover",
                    extra={"topic": self._topic.text, "ledger": self._number, "error": str(error)},
                )

    async def _append(self, run: Run) -> None:
        if self._handle is None:
            self._handle = await self._create()
        if self._failed is not None:
            raise self._failed
        self._handle.append_run(run)
        self._appended.append((self._handle.last_appended, run.count, self._clock.monotonic()))
        while self._failed is None and self._handle.pending_bytes > _UNDER_WAY_BYTES:
            self._moved.clear()
            await self._moved.wait()

    async def _create(self) -> LedgerHandle:
        policies, sealing = self._topic.policies, self._context.sealing
        form = UNSEALED if sealing is None else await sealing.ensure(self._topic.text)
        former = self._view.compacted
        if sealing is not None and former is not None and former.data_key not in (OPEN, UNKNOWN):
            form = form or sealing.form()  # what lay there sealed is not written in the clear, whatever is wanted today
        affinity = policies.affinity
        bookies = self._context.pool.pick(policies.ensemble, policies.write_quorum, affinity)
        self._number = await self._meta.next_ids(keys.LEDGER_IDS)
        cursor = self._topic.ledger.cursors[CURSOR]
        garbage = [*read_properties(cursor.properties)[1], self._number]
        cursor.set_properties(properties_of(self._view.compacted, garbage))
        await cursor.flushed()
        stride = self._context.settings.stride if len(bookies) > policies.write_quorum else 0
        places = ((0, bookies),)
        metadata = LedgerMetadata(
            self._number,
            policies.write_quorum,
            policies.ack_quorum,
            places,
            stride=stride,
            affinity=affinity,
            seal_form=promised(form),
        )
        version = await self._meta.put(keys.ledger(self._number), metadata.encode(), expected=-1)
        cursor.set_properties(properties_of(self._view.compacted, garbage))
        # still the owner: so whoever comes next finds the ledger named, and no owner before has looked for it in vain
        await cursor.flushed()
        sealer: RunSealer | None = None
        if sealing is not None and (form != UNSEALED or sealing.wanted(self._topic.text)):
            self._data_key, sealer = await sealing.anew(self._topic.text, self._number)
        return LedgerHandle(
            self._context, metadata, version, on_lac=self._confirmed, on_failed=self._on_failed, sealer=sealer
        )

    def _confirmed(self) -> None:
        assert self._handle is not None
        now = self._clock.monotonic()
        while self._appended and self._appended[0][0] <= self._handle.lac:
            _, count, at = self._appended.popleft()
            self._writes.add(now - at, count)
        self._moved.set()

    def _on_failed(self, error: HeliographError) -> None:
        self._failed = error if not isinstance(error, LedgerFenced) else TopicClosed(str(error))
        self._moved.set()
