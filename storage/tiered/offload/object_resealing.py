"""Objects that older data keys sealed, uploaded anew under the newest one: which, and one of them.

Is: the rule, the steps and their records, and the copy of one object to another, from block to block. Isn't: the end of
the older object (`object_collector`), or compacted ledgers, which are compacted anew.
Invariants: what is written was verified against its checksums, its place, and its seals; a run that was sealed is
sealed again, and one in the clear where its topic is to be sealed by now. The older object is only read.
The new one is named before it is begun, and the older one until a manifest names the new one.
Source: docs/protocols/tiered.md, "Objects that are sealed anew".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from heliograph.model.errors import CorruptData, KeyMissing, NoSuchLedger, NoSuchObject
from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, stored
from heliograph.runtime.clock import CautiousClock
from heliograph.runtime.throttle import Throttle
from heliograph.wire.run import Run
from storage.ledger.ledger_context import LedgerContext
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.sealing.cipher import WITH_HEADER, check_form, form_of
from storage.tiered.objects.object_format import Index, cut_blocks
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.offload.ledger_upload import check, put_object, sealed_anew
from storage.tiered.offload.offloader import OffloadStatus, Tiering
from storage.tiered.store import ObjectStore, Stores
from storage.tiered.tiered_settings import TieredSettings

log = logging.getLogger("storage.tiered.tiering")

OBJECTS_AT_ONCE = 16
"""A topic's other steps, and those of other topics, come between."""
NOTHING_KEPT = 1 << 63
"""As `kept_before_ms`: no older object is kept, whatever the clocks say."""


def is_left(info: LedgerInfo, newer: Collection[int]) -> bool:
    """Whether the object of a ledger that was begun before the newer keys were settled is to be sealed anew, or has
    been and the one before it is still kept. newer: numbers of the data keys that may stay.
    """
    record = info.offload
    return stored(info) and record is not None and (bool(record.also) or record.data_key not in newer)


def to_seal_anew(
    ledgers: Sequence[LedgerInfo], newer: Collection[int], settled_ms: int, kept_before_ms: int
) -> list[LedgerInfo]:
    """Those that are due, the oldest first; of those with a second object the ones that were stored by
    `kept_before_ms`. ledgers: all of a topic. settled_ms: what was begun later holds newer keys alone.
    """
    begun = zip([0, *(info.closed_ms for info in ledgers)], ledgers, strict=False)
    found = [info for begun_ms, info in begun if begun_ms < settled_ms and is_left(info, newer)]
    return [info for info in found if not _kept(info, kept_before_ms)]


def _kept(info: LedgerInfo, before_ms: int) -> bool:
    return info.offload is not None and bool(info.offload.also) and info.offload.stored_ms > before_ms


class SealedObject:
    """One that lies in `store`. Raises, with each call, what the store raises, and CorruptData."""

    def __init__(
        self, context: LedgerContext, store: ObjectStore, topic: str, info: LedgerInfo, settings: TieredSettings
    ) -> None:
        assert info.offload is not None
        self._context, self._store, self._topic, self._info, self._settings = context, store, topic, info, settings
        self._record: OffloadRecord = info.offload
        self._index: Index | None = None

    async def needs(self, newer: Collection[int], throttle: Throttle) -> bool:
        """Reads up to the first run that is to be sealed anew."""
        wanted, entry = self._context.sealing is not None and self._context.sealing.wanted(self._topic), 0
        while entry < self._info.entries:
            runs = await self._stored(entry)
            if any((wanted if run.seal is None else run.seal.key not in newer) for _, run in runs):
                return True
            entry = runs[-1][0] + runs[-1][1].count
            await throttle.take(sum(run.size_bytes for _, run in runs))
        return False

    async def upload(
        self, store: ObjectStore, begun: OffloadRecord, data_key: int, throttle: Throttle
    ) -> OffloadRecord:
        """Returns the record of the new object, STORED at wall time 0."""
        sealing, info, record = self._context.sealing, self._info, self._record
        if sealing is None:
            raise KeyMissing("no master key is set here")
        of, forms = (self._topic, info.ledger, info.closed_ms), {WITH_HEADER}

        async def read(first: int) -> list[tuple[int, Run]]:
            out: list[tuple[int, Run]] = []
            for at, run in await self._stored(first):
                check_form(info.ledger, at, run, record.seal_form)
                sealed = await sealed_anew(sealing, of, info.ledger, record.seal_form, at, run, data_key)
                forms.add(form_of(sealed))
                out.append((at, sealed))
            return out

        return await put_object(store, self._topic, info, begun, self._settings, throttle, read, forms)

    async def _stored(self, first: int) -> list[tuple[int, Run]]:
        """The runs of some blocks from entry `first` on, at which one begins."""
        if self._index is None:
            self._index = await check(self._store, self._topic, self._info, self._record)
        ledger = self._info.ledger
        key = ledger_key(self._record.holder, self._topic, ledger, self._record.attempt)
        at, start, stop = self._index.range_of(first, self._settings.read_bytes)
        return cut_blocks(await self._store.read(key, start, stop), ledger, at)


class ObjectResealing:
    """One a broker, for the topics that it has open. clock: by it ends how long an older object is kept."""

    def __init__(
        self,
        tiering: Tiering,
        context: LedgerContext,
        stores: Stores,
        settings: TieredSettings,
        clock: CautiousClock,
        at_once: int = OBJECTS_AT_ONCE,
    ) -> None:
        self._clock, self._at_once = clock, at_once
        self._tiering, self._context, self._stores, self._settings = tiering, context, stores, settings

    @property
    def possible(self) -> bool:
        """Whether the broker is set to a store."""
        return bool(self._tiering.holder)

    def busy(self, topic: str) -> bool:
        return self._tiering.status(topic).state == "RUNNING"

    def left(self, ledgers: Sequence[LedgerInfo], newer: Collection[int], settled_ms: int, keep_ms: int) -> bool:
        """Whether anything is to be done with a topic's objects now. The arguments are those of `begin`."""
        return bool(to_seal_anew(ledgers, newer, settled_ms, self._kept_before_ms(keep_ms)))

    def begin(
        self,
        ledger: ManagedLedger,
        newer: Sequence[int],
        settled_ms: int,
        bytes_per_s: int,
        keep_ms: int,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Seals some of the topic's objects anew, in the background. False: not now, as it is being offloaded, or has
        failed a moment ago. newer: numbers of the data keys that may stay, the oldest first. keep_ms: so
        long an older object stays beside the newer one. goes_on: whether one more object is to be sealed anew.
        """
        steps = partial(self._all_anew, ledger, newer, settled_ms, keep_ms, goes_on, Throttle(bytes_per_s))
        return self.possible and self._tiering.begin(ledger, steps, put_off=True)

    async def _all_anew(
        self,
        ledger: ManagedLedger,
        newer: Sequence[int],
        settled_ms: int,
        keep_ms: int,
        goes_on: Callable[[], bool],
        throttle: Throttle,
        status: OffloadStatus,
    ) -> None:
        await ledger.whole()
        left, done, trouble = to_seal_anew(ledger.ledgers(), newer, settled_ms, self._kept_before_ms(keep_ms)), 0, None
        left = [info for info in left if info.offload is not None and info.offload.data_key not in newer]
        if any(info.offload is not None and info.offload.also for info in left):
            await self._tiering.store_manifest(ledger, status)  # the last one may name a second object of before
        for info in left:
            assert info.offload is not None
            if done == self._at_once or not goes_on():
                break
            try:
                await self._object_anew(ledger, info, info.offload, newer, goes_on, throttle)
                done += 1
            except (CorruptData, KeyMissing, NoSuchObject) as error:  # of that object alone
                trouble = trouble or type(error)(f"the object of ledger {info.ledger} is not sealed anew: {error}")
        kept = [info for info in ledger.ledgers() if info.offload is not None and info.offload.also]
        if kept:
            await self._tiering.store_manifest(ledger, status)
        for info in kept:
            assert info.offload is not None
            if info.offload.data_key in newer and not _kept(info, self._kept_before_ms(keep_ms)):
                await self._recorded(ledger, info, replace(info.offload, also=""))
        if trouble is not None and done < self._at_once:
            raise trouble

    async def _object_anew(
        self,
        ledger: ManagedLedger,
        info: LedgerInfo,
        old: OffloadRecord,
        newer: Sequence[int],
        goes_on: Callable[[], bool],
        throttle: Throttle,
    ) -> None:
        source = SealedObject(self._context, self._stores.get(old.store), ledger.topic, info, self._settings)
        if not await source.needs(newer, throttle):
            await self._recorded(ledger, info, replace(old, data_key=newer[0], also=""))
            return
        begun = OffloadRecord(f"{self._context.rng.getrandbits(128):032x}", self._tiering.holder)
        if not goes_on() or not await self._recorded(ledger, info, replace(old, also=begun.attempt)):
            return
        done = await source.upload(self._stores.get(), begun, newer[-1], throttle)
        anew = replace(done, state=old.state, stored_ms=self._clock.latest_ms(), data_key=newer[-1], also=old.attempt)
        if await self._recorded(ledger, info, anew):
            log.info("ledger.object_sealed_anew", extra={"topic": ledger.topic, "ledger": info.ledger})

    def _kept_before_ms(self, keep_ms: int) -> int:
        return self._clock.wall_ms() - keep_ms if keep_ms else NOTHING_KEPT

    async def _recorded(self, ledger: ManagedLedger, info: LedgerInfo, record: OffloadRecord) -> bool:
        """False: it was trimmed meanwhile, and its objects are named by nobody."""
        try:
            await ledger.set_offload(info.ledger, record)
        except NoSuchLedger:
            if any(one.ledger == info.ledger for one in ledger.ledgers()):
                raise
            return False
        return True
