"""ShadowLedger: the log of one topic, read by another one as if it were its own.

Is: a topic without entries: its catalog is what the source's owner stored and what the bookies say is confirmed since,
its cursors are its own. Isn't: a copy, or a hold on what the source keeps: what is trimmed there is gone here too.
Invariants: nothing of the source is written, fenced, or freed; positions are the source's; nothing beyond a LAC that a
bookie was told of, or the last entry of a closed ledger, is shown; entries come to the state in order, each once. What
the source did to its past that cannot be followed (it was deleted and made again, it was terminated) closes the topic:
it is opened again as it is then.
Cost: one reader of the source's new entries, whether anybody is connected or not; while nothing is published, a long
poll every two seconds.
Source: docs/protocols/pulsar.md, "Shadow topics".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from heliograph.model.errors import (
    BookieUnavailable,
    HeliographError,
    MetadataUnavailable,
    NoSuchLedger,
    NotAllowed,
    TopicClosed,
)
from heliograph.model.ledger_metadata import (
    LedgerInfo,
    LedgerMetadata,
    LedgerState,
    ManagedLedgerMetadata,
    OffloadRecord,
)
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.reading.ledger_follow import WAIT_S, wait_for_lac
from storage.ledger.reading.ledger_reader import ledger_metadata, read_open, same_places
from storage.ledger.repair.in_place_repair import Refilled, Source
from storage.managed_ledger.log.log_reader import LogReader
from storage.managed_ledger.log.log_tail import Done, Failed
from storage.managed_ledger.log.managed_ledger import LogState, ManagedLedger
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.managed_ledger.metadata.topic_times import dated, published_by, published_ms

log = logging.getLogger("storage.managed_ledger")

SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""Property of a topic: the full name of the one that it shadows."""
REFUSAL = "Cannot send messages to a shadow topic"
_READ_BYTES = 1 << 20
_PAUSE_S = 0.1
_LOOK_S = 5.0
"""The source is looked at so often where no watch said that it changed."""


class NoState:
    """What a shadow keeps beside its cursors."""

    def restore(self, blob: bytes) -> None: ...

    def replay(self, ledger: int, first: int, run: Run) -> None: ...

    def snapshot(self) -> bytes:
        return b""


class ShadowLedger(ManagedLedger):
    """Made by ManagedLedgerFactory.open_shadow. `shadow_of`: the source's full name."""

    __slots__ = ("_arrived", "_changed", "_follower", "_seen", "_stop_watching", "shadow_of")

    def __init__(
        self,
        topic: str,
        source: str,
        state: LogState,
        quorums: tuple[int, int, int],
        followed: ManagedLedgerMetadata,
        stored: ManagedLedgerMetadata,
        version: int,
        parts: SharedParts,
    ) -> None:
        """followed: what is stored of the source; `state` is as of its `state_through`. stored: what is stored of the
        shadow itself.
        """
        own = replace(
            stored, properties={**stored.properties, SHADOW_SOURCE: source}, terminated_at=followed.terminated_at
        )
        super().__init__(
            topic,
            state,
            quorums,
            Catalog(followed.ledgers, followed.state_through),
            own,
            version,
            followed.next_index,
            parts,
        )
        self.shadow_of = source
        self._record.published_ms = published_ms(followed, followed.ledgers)
        self._seen = 0  # version of the newest that is known of the source
        self._arrived: asyncio.Future[None] = parts.loop.create_future()
        self._changed = asyncio.Event()
        self._stop_watching: Callable[[], None] = parts.context.meta.watch(keys.managed_ledger(source), self._on_source)
        self._follower = parts.context.tasks.spawn(self._follow())

    async def name_source(self) -> None:
        """Whose shadow it is stands in its metadata, durably, when it returns. Raises what closed it."""
        self._record.change(0.0)
        await self._record.written()

    async def arrived(self, timeout_s: float) -> None:
        """Returns once it has what was confirmed when it was opened, or after `timeout_s`. Raises what closed it."""
        await asyncio.wait([self._arrived], timeout=timeout_s)
        if self.failed is not None:
            raise self.failed

    # -- following ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        failures = 0
        while not self.ended:
            try:
                await self._pass()
                failures = 0
            except (BookieUnavailable, MetadataUnavailable) as error:
                failures += 1
                log.warning("shadow.waits", extra={"topic": self.topic, "source": self.shadow_of, "error": str(error)})
                await asyncio.sleep(self._parts.context.pause_s(failures))
            except HeliographError as error:
                self._lost(error)

    def _lost(self, error: HeliographError) -> None:
        self._fail(TopicClosed(f"{self.topic}: {self.shadow_of} cannot be followed from here on: {error}"))

    async def _pass(self) -> None:
        """Reads what the source has more; returns once all its ledgers are closed and read, and it has changed or a
        while is over.
        """
        self._changed.clear()
        source = await self._stored()
        self._take(source)
        for info in source.ledgers:
            ids = self._catalog.ids
            if info.ledger > max(self._catalog.last[0], ids[-1] if ids else -1):
                self._catalog.append(LedgerInfo(info.ledger, first_index=info.first_index))
            is_last = bool(self._catalog.ids) and info.ledger == self._catalog.ids[-1]
            if is_last and not self._catalog.closed(info.ledger) and not await self._read_on(info):
                return
        self._here()
        if source.terminated_at is not None and self.terminated_at is None:
            raise TopicClosed("it was terminated")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _LOOK_S)

    async def _stored(self) -> ManagedLedgerMetadata:
        """Reads the source's metadata; empty, where it is not there yet. Raises TopicClosed where it was, and is not
        any more.
        """
        found = await stored_topic(self._parts.context.meta, self.shadow_of)
        if found is None:
            if self._seen:
                raise TopicClosed("it was deleted")
            return ManagedLedgerMetadata()
        self._seen = max(self._seen, found[1])
        return found[0]

    def _on_source(self, key: str, value: bytes | None, version: int) -> None:
        """What is stored of it has changed: ledgers may have gone, which readers are to know at once."""
        if key != keys.managed_ledger(self.shadow_of) or version < self._seen or self.ended:
            return
        self._seen = version
        self._changed.set()
        try:
            if value is None:
                raise TopicClosed("it was deleted")
            source = ManagedLedgerMetadata.decode(value)
            if not source.pages:  # otherwise it takes reads to know: the next pass does them
                self._take(source)
        except HeliographError as error:
            self._lost(error)

    def _take(self, source: ManagedLedgerMetadata) -> None:
        """Ledgers that the source has let go are gone here too; what it says of object stores holds here too."""
        catalog, there = self._catalog, {info.ledger for info in source.ledgers}
        if catalog.ids and catalog.ids[-1] not in there and not catalog.entries_of(catalog.ids[-1]):
            catalog.drop_last()
        gone = [ledger for ledger in catalog.ids if ledger not in there]
        if gone != catalog.ids[: len(gone)]:
            raise NoSuchLedger(f"ledgers {gone} of {self.shadow_of} are gone, and older ones are not")
        catalog.drop_first(len(gone))
        for ledger in gone if self._reader is not None else ():
            self._reads().on_trimmed(ledger)
        for cursor in self.cursors.values() if gone else ():
            cursor.on_trimmed()
        for info in source.ledgers:
            if (
                info.offload is not None
                and info.offload != catalog.offload_of(info.ledger)
                and catalog.closed(info.ledger)
            ):
                catalog.set_offload(info.ledger, info.offload)

    async def _read_on(self, info: LedgerInfo) -> bool:
        """A ledger of the source until it is closed and read; False: it was dropped while it was empty. Raises
        NoSuchLedger, and what reads raise.
        """
        context, loop, ledger = self._parts.context, self._parts.loop, info.ledger
        known, wait_s = self._catalog.entries_of(ledger) - 1, 0.0
        while not self.ended:
            read = self._catalog.entries_of(ledger)
            try:
                metadata = await ledger_metadata(context, ledger)
                self._check_last(ledger)
            except NoSuchLedger:
                if read or any(other.ledger == ledger for other in (await self._stored()).ledgers):
                    raise
                return False  # the source's next owner found nothing in it
            closed = metadata.state == LedgerState.CLOSED
            known = metadata.last_entry if closed else known
            while (at := self._catalog.entries_of(ledger)) <= known:
                try:
                    runs = await read_open(context, metadata, at, known, _READ_BYTES)
                except NoSuchLedger:
                    moved = await ledger_metadata(context, ledger)
                    if same_places(moved, metadata):
                        raise
                    metadata = moved  # it was sealed anew meanwhile, and lies elsewhere
                    continue
                self._confirm(ledger, at, runs)
            if closed:
                self._catalog.close_last(info.closed_ms or self._parts.clock.wall_ms())
                return True
            if wait_s:
                self._here()
            began = loop.time()
            try:
                reached = await wait_for_lac(context, metadata, known, wait_s)
            except BookieUnavailable:
                reached = known  # the ensemble may be another by now, or the ledger closed
            if reached == known and wait_s and loop.time() - began < _PAUSE_S:
                await asyncio.sleep(_PAUSE_S)
            known, wait_s = reached, WAIT_S
        return False

    def _check_last(self, ledger: int) -> None:
        if self.ended or not self._catalog.ids or self._catalog.ids[-1] != ledger:
            raise NoSuchLedger(f"ledger {ledger} of {self.shadow_of} went while it was read")

    def _confirm(self, ledger: int, first: int, runs: list[tuple[int, Run]]) -> None:
        """They are confirmed at the source, and are so here from now on."""
        self._check_last(ledger)
        for start, run in runs:
            assert start == first, "reads have no holes"
            self._state.replay(ledger, start, run)
            self._catalog.grow(run.count, run.size_bytes)
            self._record.published_ms = published_by(run, self._record.published_ms)
            self._cached().append(ledger, start, run)
            self._index = run.first_index + run.messages
            first += run.count
        if not self._woken and self._wakers:
            self._woken = True
            self._parts.loop.call_soon(self._wake)

    def _here(self) -> None:
        if not self._arrived.done():
            self._arrived.set_result(None)

    # -- what is another's --------------------------------------------------------------------------------------------

    def form(self, trimmed: int) -> ManagedLedgerMetadata:
        """No ledger is its own: whoever deletes or collects what it names touches nothing of the source."""
        return ManagedLedgerMetadata(properties=dated(self.properties, self._record.created_ms), owner=self.owner)

    def page_changes(self, trimmed: int) -> tuple[dict[int, bytes], list[int]]:
        return {}, []

    def _reads(self) -> LogReader:
        if self._reader is None:  # objects in a store go by the name of the source
            self._reader = LogReader(self._parts, self._catalog, self._cached(), self._known_metadata, self.shadow_of)
        return self._reader

    def trim_soon(self) -> None:
        """The source's owner does that."""

    def append_run(self, run: Run, done: Done, failed: Failed) -> None:
        failed(NotAllowed(f"{REFUSAL}: publish to {self.shadow_of}"))

    def _not_here(self) -> NoReturn:
        raise NotAllowed(f"{self.topic} is a shadow of {self.shadow_of}: ask that of the source")

    async def truncate(self, names: Collection[str] | None = None) -> dict[str, int]:
        self._not_here()

    async def roll_over(self, begun_before_ms: int | None = None) -> None:
        self._not_here()

    async def terminate(self) -> Position:
        self._not_here()

    async def set_offload(self, ledger: int, record: OffloadRecord, local: LedgerMetadata | None = None) -> None:
        self._not_here()

    async def refill(self, ledger: int, source: Source, first: int = 0, last: int | None = None) -> Refilled:
        self._not_here()

    # -- ending -------------------------------------------------------------------------------------------------------

    def _finish(self, error: HeliographError) -> None:
        super()._finish(error)
        self._stop_watching()
        self._here()
        if self._follower is not asyncio.current_task():
            self._follower.cancel()
