"""ManagedLedgerFactory: opens, deletes, and lists the topics' logs of one broker.

Is: the claim on a topic, the recovery of its last ledger, and what that opens. Isn't: a judge of who should own a
topic, or the replay of what its stored state lacks (`storage.managed_ledger.log.log_replay`).
Invariants: the claim (a compare-and-set that changes the metadata's owner, and marks the last ledger where its writer
left it open) comes first, then that ledger is fenced and recovered, then the cursors are read: an earlier owner can add
no ledger after the first, confirm nothing after the second, and store no cursor that is not seen. A deletion takes
cursors before the topic, and nothing where another opening has it than the one that was judged; a topic that is made
begins without those that another one of its name has left: of a restore, or a deletion, that was cut off.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Op, Put, pages_under, prefix_end
from heliograph.model.errors import (
    HeliographError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.model.ledger_metadata import (
    UNOPENED,
    LedgerInfo,
    LedgerMetadata,
    LedgerState,
    ManagedLedgerMetadata,
    local_gone,
)
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.throttle import Throttle, pause
from local_meta import keys
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.known_losses import KnownLosses
from storage.ledger.ledger_context import LedgerContext, LedgerSettings
from storage.ledger.ledger_deletion import delete_on_bookies
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.recovery.ledger_recovery import recover_ledger
from storage.ledger.repair.in_place_repair import Refilled, Source
from storage.managed_ledger.append_counts import Appends
from storage.managed_ledger.cache.entry_cache import SWEEP_S, EntryCache
from storage.managed_ledger.cache.read_ahead import ReadAhead
from storage.managed_ledger.cursors.acknowledged import Elsewhere, KnownEnds
from storage.managed_ledger.cursors.cursor import CURSOR_SETTINGS, Cursor, CursorSettings
from storage.managed_ledger.log import damaged_ledgers
from storage.managed_ledger.log.log_reader import ColdReads
from storage.managed_ledger.log.log_replay import replayed
from storage.managed_ledger.log.managed_ledger import LogState, ManagedLedger
from storage.managed_ledger.log.rollover_rule import last_entry_max
from storage.managed_ledger.log.shadow_ledger import SHADOW_SOURCE, NoState, ShadowLedger
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS, Catalog
from storage.managed_ledger.metadata.ledger_history import History
from storage.managed_ledger.metadata.ledger_pages import read_pages, stored_topic
from storage.managed_ledger.metadata.metadata_flusher import MetadataFlusher
from storage.managed_ledger.metadata.topic_times import CREATED_MS, created_ms, dated, published_ms
from storage.managed_ledger.retention.sweep_schedule import Sweeping
from storage.sealing.sealing import Sealing

_CLAIMS_MAX = 10
_DELETES_A_WRITE = 500
_SWEPT_A_SLICE = 200
_CLOSING_MAX = 64
_SLICE_S = 0.05
_PAGE = 1000
_SHADOW_S = 5.0
"""How long opening a shadow waits for what its source has confirmed."""


@dataclass
class _Loading:
    """One topic on its way."""

    metadata: ManagedLedgerMetadata
    version: int
    created: bool = False
    """Nobody has opened it before: what lies under its name is of an earlier one."""
    marked: tuple[LedgerMetadata, int] | None = None
    """The last ledger, as it was marked IN_RECOVERY together with the claim, and its version."""
    recovered: LedgerMetadata | None = None
    dropped: LedgerMetadata | None = None


class ManagedLedgerFactory:
    """Opens logs for one broker, which has one of it; it owns what their topics share."""

    def __init__(
        self,
        meta: MetadataStore,
        pool: BookiePool,
        cache: EntryCache,
        settings: ManagedLedgerSettings | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        *,
        ledger_settings: LedgerSettings | None = None,
        sealing: Sealing | None = None,
        page_ledgers: int = PAGE_LEDGERS,
        cursor_settings: CursorSettings = CURSOR_SETTINGS,
        expiry: Clock | None = None,
        may_page: Callable[[], bool] = lambda: True,
        ends_elsewhere: Elsewhere | None = None,
    ) -> None:
        """may_page: pages of ledgers are made only where it says so; those that are there are kept up.

        page_ledgers: how many ledgers of a topic that has very many go into a page of its metadata. expiry: by it
        retention ends. ends_elsewhere: asks other regions of a ledger that all of its bookies have lost.
        """
        assert clock is not None and rng is not None
        self.cache, self.settings = cache, settings or ManagedLedgerSettings()
        self.context = LedgerContext(
            meta=meta,
            pool=pool,
            rng=rng,
            settings=ledger_settings or LedgerSettings(),
            sealing=sealing,
            confirmed=KnownEnds(meta, last_entry_max(self.settings), ends_elsewhere),
        )
        self.ahead = ReadAhead(min(self.settings.read_ahead_cache_bytes, cache.byte_bound // 4), cache.reserve)
        cache.on_first = self._start_evicting
        self._evicting: asyncio.TimerHandle | None = None
        self._meta, self._clock, self._rng = meta, clock, rng
        self._flusher = MetadataFlusher(self.context)
        self._restless = Sweeping(self.settings.sweep_s)
        self._parts = SharedParts(
            context=self.context,
            flusher=self._flusher,
            cache=cache,
            ahead=self.ahead,
            settings=self.settings,
            clock=clock,
            expiry=expiry or clock,
            on_closed=self._closed,
            touch=self._restless.touch,
            mending=Throttle(self.settings.mend_bytes_per_s),
            page_ledgers=page_ledgers,
            may_page=may_page,
            cursor_settings=cursor_settings,
        )
        self._open: dict[str, ManagedLedger] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._sweeping: list[str] = []
        self._lives = dict(pool.floors)
        self._staying = False
        """Whether an open ledger would leave a bookie, and cannot until others come."""
        self._stop_watching = pool.on_change(self._on_bookies)

    @property
    def losses(self) -> KnownLosses:
        """What readers of this broker have found to be lost."""
        return self.context.losses

    @property
    def appends(self) -> Appends:
        """What is counted of them."""
        return self._parts.appends

    @property
    def cold(self) -> ColdReads | None:
        """Reads ledgers that only an object store has; set before the first topic is opened."""
        return self._parts.cold

    @cold.setter
    def cold(self, cold: ColdReads | None) -> None:
        self._parts.cold = cold

    @property
    def opened(self) -> list[ManagedLedger]:
        return list(self._open.values())

    async def open(
        self, topic: str, state: LogState, persistence: tuple[int, int, int], *, create: bool
    ) -> ManagedLedger:
        """Takes the topic over from whoever had it. persistence: ensemble, write quorum, ack quorum of new ledgers.

        Raises NotFound unless `create`; BookieUnavailable where its last ledger can't be recovered now; LedgerFenced
        where another broker takes it at the same time; what the metadata raises.
        """
        former = self._open.get(topic)
        if former is not None:
            former.abandon(LedgerFenced(f"{topic} was opened again"))
        loading = await self._claim(topic, state if create else None)
        if SHADOW_SOURCE in loading.metadata.properties:  # whoever opens it has not heard that yet
            raise MetadataUnavailable(f"{topic} is a shadow topic: try again")
        infos = await self._recovered(loading)
        stored = loading.metadata
        catalog = Catalog(infos, stored.state_through, stored.pages)
        cursors = await _cursors(self._meta, topic, loading)
        if catalog.history is not None and (starts := [Cursor.begins_at(blob) for blob in cursors.values()]):
            await read_pages(self._meta, topic, stored.owner, catalog.history.missing(min(starts)))
        state.restore(stored.state_blob)
        next_index, newest_ms = await replayed(
            self.context, topic, state, catalog, stored, loading.recovered, published_ms(stored, infos)
        )
        stored = replace(stored, properties=dated(stored.properties, created_ms(stored), newest_ms, stored.next_index))
        ledger = ManagedLedger(topic, state, persistence, catalog, stored, loading.version, next_index, self._parts)
        for key, blob in cursors.items():
            ledger.add_cursor(keys.cursor_of(key), (-1, -1), True, {}).restore(blob)
        self._take_in(ledger)
        if loading.dropped is not None:
            ledger.on_ledgers_changed(loading.dropped)
        return ledger

    async def open_shadow(
        self, topic: str, source: str, state: LogState, persistence: tuple[int, int, int], *, create: bool
    ) -> ShadowLedger:
        """Takes over a topic that reads the ledgers of another one. `state` is restored to the source's, and hears of
        its entries from there on.

        Raises NotFound unless `create`; NotAllowed where it has entries of its own, or is the shadow of another one;
        else as `open`.
        """
        former = self._open.get(topic)
        if former is not None:
            former.abandon(LedgerFenced(f"{topic} was opened again"))
        loading = await self._claim(topic, NoState() if create else None)
        stored = loading.metadata
        if stored.ledgers or stored.pages or stored.properties.get(SHADOW_SOURCE, source) != source:
            raise NotAllowed(f"{topic} cannot be a shadow of {source}: it is there, and is something else")
        cursors = await _cursors(self._meta, topic, loading)
        found = await stored_topic(self._meta, source)
        followed = found[0] if found is not None else ManagedLedgerMetadata()
        state.restore(followed.state_blob)
        ledger = ShadowLedger(topic, source, state, persistence, followed, stored, loading.version, self._parts)
        for key, blob in cursors.items():
            ledger.add_cursor(keys.cursor_of(key), (-1, -1), True, {}).restore(blob)
        self._take_in(ledger)
        try:
            if SHADOW_SOURCE not in stored.properties:
                await ledger.name_source()
            await ledger.arrived(_SHADOW_S)
        except HeliographError as error:
            ledger.abandon(error)
            raise
        return ledger

    def _take_in(self, ledger: ManagedLedger) -> None:
        self._open[ledger.topic] = ledger
        self._restless.touch(ledger.topic)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self.settings.sweep_s, self._swept)

    async def exists(self, topic: str) -> bool:
        return await self._meta.get(keys.managed_ledger(topic)) is not None

    async def created_ms(self, topic: str) -> int:
        """When it was made, by the wall clock of who made it; 0: there is none, or it is too old to know."""
        found = await self._meta.get(keys.managed_ledger(topic))
        return 0 if found is None else created_ms(ManagedLedgerMetadata.decode(found[0]))

    async def names(self, namespace: str) -> list[str]:
        """Full names of the topics of `tenant/namespace`, sorted."""
        prefix = keys.managed_ledgers(namespace)
        names: list[str] = []
        async for page in self._pages(prefix, prefix_end(prefix)):
            names += sorted(page)
        names.sort()  # in one go: of pages that are sorted it takes half as long
        return names

    def names_between(self, namespace: str, low: int, high: int) -> AsyncIterator[list[str]]:
        """Those whose hashes are in [low, high), a page at a time, by hash."""
        return self._pages(*keys.managed_ledgers_between(namespace, low, high))

    async def _pages(self, start: str, end: str) -> AsyncIterator[list[str]]:
        while page := await self._meta.range(start, end, limit=_PAGE):
            yield [keys.topic_of(key) for key, _, _ in page]
            start = page[-1][0] + "\0"

    async def count(self, namespace: str) -> int:
        """How many topics `tenant/namespace` has, partitions one by one; it costs one question, however many they
        are.
        """
        return await self._meta.count(keys.managed_ledgers(namespace))

    async def delete(
        self,
        topic: str,
        claimed: Callable[[], Awaitable[Sequence[int]]] | None = None,
        *,
        owner: int | None = None,
    ) -> None:
        """Deletes the topic's cursors, it, and its ledgers. Raises NotFound; LedgerFenced where another broker takes it
        at the same time, and what `claimed` raises.

        claimed: called before anything goes; returns ledgers that are the topic's, though its metadata does not name
        them. owner: of the opening that was found fit to be deleted: LedgerFenced where another one has the topic by
        now, and nothing is touched.
        """
        former = self._open.get(topic)
        if former is not None:
            if owner not in (None, former.owner):
                raise LedgerFenced(_opened_again(topic))
            former.abandon(NotFound(f"{topic} was deleted"))
        loading = await self._claim(topic, None, owner)
        beside = await _drop_beside(self.context, topic, loading, await claimed()) if claimed is not None else []
        history = History(loading.metadata.pages)
        await read_pages(self._meta, topic, loading.metadata.owner, history.pages)
        infos = [*history.infos(), *await self._recovered(loading)]
        ledgers: list[LedgerMetadata] = []
        for info in infos:
            if not local_gone(info):
                with suppress(NoSuchLedger):  # its record is lost: bookies collect what is left of it
                    ledgers.append(await ledger_metadata(self.context, info.ledger))
        if loading.dropped is not None:
            ledgers.append(loading.dropped)
        pages = [keys.ledger_page(topic, page.key) for page in loading.metadata.pages]
        rest: list[Op] = [Delete(key) for key in [*pages, *(keys.ledger(m.ledger) for m in ledgers)]]
        await _drop_cursors(self._meta, topic, loading)
        try:
            await self._meta.txn([Delete(keys.managed_ledger(topic), loading.version), *rest[:_DELETES_A_WRITE]])
        except VersionConflict as error:
            raise LedgerFenced(f"{topic} was taken over while it was being deleted") from error
        for start in range(_DELETES_A_WRITE, len(rest), _DELETES_A_WRITE):
            await self._meta.txn(rest[start : start + _DELETES_A_WRITE])
        self.context.tasks.spawn(self._delete_ledgers([*ledgers, *beside]))

    async def damaged(self, topic: str, ledger: int, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
        """As `ManagedLedger.damaged`, also of a topic that is not open here. Raises NotFound, NoSuchLedger."""
        opened = self._open.get(topic)
        if opened is not None:
            return await opened.damaged(ledger, first, last)
        return await damaged_ledgers.damaged(
            self.context,
            await damaged_ledgers.stored_info(self.context, topic, ledger),
            self._parts.mending,
            first,
            last,
        )

    async def refill(
        self,
        topic: str,
        ledger: int,
        source: Source,
        persistence: tuple[int, int, int],
        first: int = 0,
        last: int | None = None,
    ) -> Refilled:
        """As `ManagedLedger.refill`, also of a topic that is not open here; nobody's ownership is touched. Raises
        NotFound too.
        """
        opened = self._open.get(topic)
        if opened is not None:
            return await opened.refill(ledger, source, first, last)
        info = await damaged_ledgers.stored_info(self.context, topic, ledger)
        return await damaged_ledgers.mend(
            self.context, topic, info, persistence, source, self._parts.mending, first, last
        )

    async def close(self) -> None:
        """Closes every topic that is still open, and ends the background work."""
        await asyncio.gather(*(ledger.close() for ledger in self.opened))
        self._stop()
        await self.context.close()

    def abandon(self) -> None:
        """Ends everything at once, as a crash would."""
        for ledger in self.opened:
            ledger.abandon(LedgerFenced("the broker has lost its lease"))
        self._stop()

    # -- opening ------------------------------------------------------------------------------------------------------

    async def _claim(self, topic: str, new: LogState | None, former: int | None = None) -> _Loading:
        """Writes our own name into the metadata. From then on the former owner can change nothing there.

        new: makes the topic where there is none, with the first snapshot of this state in it. Raises NotFound without
        it. former: LedgerFenced where another one than this has it.
        """
        key = keys.managed_ledger(topic)
        owner, making = self._rng.getrandbits(62) + 1, False
        for attempt in range(1, _CLAIMS_MAX + 1):
            found = await self._meta.get(key)
            marked: tuple[LedgerMetadata, int] | None = None
            if found is None:
                making = True
                if new is None:
                    raise NotFound(f"topic {topic} does not exist")
                new.restore(b"")
                made = dated({}, self._clock.wall_ms())
                claimed, expected = ManagedLedgerMetadata(state_blob=new.snapshot(), properties=made, owner=owner), -1
            else:
                stored, expected = ManagedLedgerMetadata.decode(found[0]), found[1]
                if stored.owner == owner:  # an attempt whose outcome was not known
                    return _Loading(stored, expected, making)
                if former not in (None, stored.owner):
                    raise LedgerFenced(_opened_again(topic))
                making = stored.owner == UNOPENED
                properties = {**stored.properties, CREATED_MS: str(created_ms(stored, self._clock.wall_ms()))}
                claimed, marked = replace(stored, owner=owner, properties=properties), await self._left_open(stored)
            ops = [Put(key, claimed.encode(), expected)]
            if marked is not None:
                ops.append(Put(keys.ledger(marked[0].ledger), marked[0].encode(), marked[1]))
            try:
                version = await self._meta.txn(ops)
                return _Loading(claimed, version, making, None if marked is None else (marked[0], version))
            except (VersionConflict, OutcomeUnknown):
                await asyncio.sleep(self.context.pause_s(attempt))
        raise LedgerFenced(f"{topic}: other brokers take it over at the same time")

    async def _left_open(self, stored: ManagedLedgerMetadata) -> tuple[LedgerMetadata, int] | None:
        """(the last ledger as it is to be marked for recovery, its version); None where it is closed, gone, or marked
        already.
        """
        if not stored.ledgers or stored.ledgers[-1].closed_ms:
            return None
        found = await self._meta.get(keys.ledger(stored.ledgers[-1].ledger))
        metadata = LedgerMetadata.decode(found[0]) if found is not None else None
        if found is None or metadata is None or metadata.state != LedgerState.OPEN:
            return None
        return replace(metadata, state=LedgerState.IN_RECOVERY), found[1]

    async def _recovered(self, loading: _Loading) -> list[LedgerInfo]:
        """The ledgers, the last one fenced and closed; an empty last one is left out."""
        infos = list(loading.metadata.ledgers)
        if infos and infos[-1].closed_ms == 0:
            last = infos.pop()
            closed = loading.recovered = await recover_ledger(self.context, last.ledger, loading.marked)
            if closed.last_entry < 0:
                loading.dropped = closed
            else:
                infos.append(replace(last, entries=closed.last_entry + 1, closed_ms=self._clock.wall_ms()))
        return infos

    # -- inside -------------------------------------------------------------------------------------------------------

    def _closed(self, ledger: ManagedLedger) -> None:
        if self._open.get(ledger.topic) is ledger:
            del self._open[ledger.topic]
            self.context.losses.forget_topic(ledger.topic)

    def _on_bookies(self) -> None:
        pool = self.context.pool
        lives, self._lives = self._lives, dict(pool.floors)
        if self._staying or pool.all_draining() or lives != self._lives:
            self.context.tasks.spawn(self._leave_bookies())

    async def _leave_bookies(self) -> None:
        """In slices: to look at very many topics takes a while."""
        self._staying = False
        for looked_at, ledger in enumerate(self.opened, 1):
            self._staying |= ledger.leave_bookies()
            if looked_at % _SWEPT_A_SLICE == 0:
                await pause()

    def _swept(self) -> None:
        """In slices: to look at very many topics takes a while, and to close their ledgers writes metadata."""
        self._sweep, loop = None, asyncio.get_running_loop()
        if not self._sweeping:
            self._sweeping = self._restless.due(loop.time())
        for _ in range(min(len(self._sweeping), _SWEPT_A_SLICE)):
            if (
                self.context.background.closing >= _CLOSING_MAX
            ):  # the metadata is busy with them; whoever publishes writes there too
                break
            topic = self._sweeping.pop()
            ledger = self._open.get(topic)
            if ledger is not None:
                self._restless.visited(topic, loop.time(), ledger.rest())
        if self._open:
            self._sweep = loop.call_later(_SLICE_S if self._sweeping else self.settings.sweep_s, self._swept)
        else:
            self._sweeping.clear()

    def _start_evicting(self) -> None:
        loop = asyncio.get_running_loop()
        self.cache.now = loop.time()
        if self._evicting is None:
            self._evicting = loop.call_later(SWEEP_S, self._evict)

    def _evict(self) -> None:
        loop = asyncio.get_running_loop()
        self._evicting = loop.call_later(SWEEP_S, self._evict) if self.cache.sweep(loop.time()) else None

    def _stop(self) -> None:
        self._stop_watching()
        self._flusher.close()
        self.cache.on_first = None
        if self._evicting is not None:
            self._evicting.cancel()
            self._evicting = None
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    async def _delete_ledgers(self, ledgers: Sequence[LedgerMetadata]) -> None:
        for metadata in ledgers:
            try:
                await delete_on_bookies(self.context, metadata)
            except HeliographError:
                continue


async def _cursors(meta: MetadataStore, topic: str, loading: _Loading) -> dict[str, bytes]:
    """Key -> what is stored of the topic's cursors; those that are not its own are deleted. Raises LedgerFenced, what
    the metadata raises.
    """
    if loading.created:
        await _drop_cursors(meta, topic, loading)
        return {}
    return {key: blob async for page in pages_under(meta, keys.cursors(topic)) for key, blob, _ in page}


async def _drop_cursors(meta: MetadataStore, topic: str, loading: _Loading) -> None:
    prefix = keys.cursors(topic)
    while page := await meta.range(prefix, prefix_end(prefix), limit=_DELETES_A_WRITE):
        await _delete_held(meta, topic, loading, [key for key, _, _ in page])


async def _drop_beside(
    context: LedgerContext, topic: str, loading: _Loading, numbers: Sequence[int]
) -> list[LedgerMetadata]:
    """Deletes the records of ledgers that the topic's metadata does not name. One that names a topic is a log's,
    whoever says otherwise.
    """
    found: list[LedgerMetadata] = []
    for number in numbers:
        with suppress(NoSuchLedger):
            found.append(await ledger_metadata(context, number))
    found = [one for one in found if not one.topic]
    for start in range(0, len(found), _DELETES_A_WRITE):
        part = found[start : start + _DELETES_A_WRITE]
        await _delete_held(context.meta, topic, loading, [keys.ledger(one.ledger) for one in part])
    return found


async def _delete_held(meta: MetadataStore, topic: str, loading: _Loading, gone: list[str]) -> None:
    """Deletes keys while the topic is ours."""
    try:
        await meta.txn([Check(keys.managed_ledger(topic), loading.version), *(Delete(key) for key in gone)])
    except VersionConflict as error:
        raise LedgerFenced(f"{topic} was taken over meanwhile") from error


def _opened_again(topic: str) -> str:
    return f"{topic} was opened again since it was to be deleted, and may be in use: nothing was deleted; try again"
