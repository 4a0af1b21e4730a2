"""AutoRecovery: one broker's part in keeping every ledger at its full number of copies.

Is: the shell: the election of the auditor, its scans, and this broker's worker, which repairs one marked ledger at a
time. Isn't: the judgement of what lacks a copy (`lost_bookies`), the check of what bookies hold (`replica_check`), the
end of a ledger without a writer (`abandoned_ledgers`), or the copy (`ledger_repair`).
Invariants: nothing here is needed for safety; two auditors at once, or two workers on one ledger, cost work only. A
broker whose lease has ended gives its work up. The marks in the metadata are all that an auditor or a worker leaves
behind: whoever comes next goes on from them.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgpack

from heliograph.kv.metadata_store import LEASE_TTL_MS, prefix_end
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import HeliographError, LeaseLost, MetadataError, VersionConflict
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.every import every
from heliograph.runtime.task_set import cancel_all
from local_meta import keys
from storage.ledger.bookies.bookie_labels import Labels
from storage.ledger.bookies.placement import adheres, racks
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.recovery.abandoned_ledgers import Abandoned
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.repair.lost_bookies import AutoRecoverySettings, LostBookies, repairs, waits_for_its_writer
from storage.ledger.repair.new_lives import NewLives
from storage.ledger.repair.replica_check import CopyCheck
from storage.ledger.underreplicated_marks import Mark

log = logging.getLogger("storage.ledger.autorecovery")

_PAGE = 1000
_RENEW_S = 1.0
_BATCH = 64
_ABANDONED_MAX = 1000
_WAITING_FACTOR = 30
"""So many times `rescan_s` a mark pauses that only waits for bookies which are away, or for what no bookie has; and so
long no scan goes on to its end that may mark nothing more.
"""
MISPLACED_MAX = 100


@dataclass(frozen=True, slots=True)
class Emptying:
    """How far the decommission of a bookie is. `done`: no fragment with an entry names it, and nothing more will be put
    there.
    """

    bookie: str
    ledgers_left: int
    open_ledgers_left: int
    """How many of those `ledgers_left` are open: their last fragment waits for its writer to leave the bookie. A ledger
    whose record cannot be read, but has the bookie's name in it, is left for good.
    """
    bytes_left: int
    """An estimate: the sizes of those ledgers."""
    done: bool


class AutoRecovery:
    """Made by the composition, over the context of the broker's managed ledgers. `also`: more work of the auditor, once
    a scan.
    """

    def __init__(
        self,
        context: LedgerContext,
        node: str,
        settings: AutoRecoverySettings,
        also: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self.auditor = False
        """Whether this broker is the one that looks."""
        self.repair = LedgerRepair(context, settings.bytes_per_s)
        self.scans = 0
        self.misplaced: list[int] = []
        """Ledgers found by the last scan, the first MISPLACED_MAX of them, whose copies lie on fewer racks than there
        are, or outside of their groups.
        """
        self.misplaced_count = 0
        self.unreadable = 0
        """Ledgers of the last scan whose metadata could not be read: they are told, and left as they are."""
        self._context, self._node, self._settings, self._also = context, node.encode(), settings, also
        self._loop = asyncio.get_running_loop()
        self._lost = LostBookies(settings.lost_after_s)
        self.abandoned = Abandoned(context, settings.abandoned_after_s)
        self._lease = 0
        self._someone: bytes | None = None
        self._marks: dict[int, tuple[int, Mark]] = {}
        self._not_before: dict[int, float] = {}
        self.new_lives = NewLives(context, lambda ledger: self._marks.get(ledger, (-1, Mark()))[1])
        self._audited: list[str] = []
        self._audited_directories: list[tuple[str, int]] = []
        self._scan_at = self._whole_at = 0.0
        self._wake = asyncio.Event()
        self._ledgers = 0
        self.check = CopyCheck(
            context,
            settings,
            leads=lambda: self.auditor and context.meta.stale_s() <= 0,
            ledgers=lambda: self._ledgers,
            marks=lambda: self._gaps,
        )
        self._stops: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        meta, tasks = self._context.meta, self._context.tasks
        self._stops = [
            meta.watch(keys.AUDITOR, self._on_auditor),
            meta.watch(keys.UNDERREPLICATED, self._on_mark),
            meta.watch(keys.BOOKIE_COOKIES, self.new_lives.on_cookie),
            self._context.pool.on_change(self._on_change),
        ]
        await meta.synced(keys.AUDITOR)
        await meta.synced(keys.BOOKIE_COOKIES)
        self._tasks = [
            tasks.spawn(self._keep_lease()),
            tasks.spawn(
                every(
                    self._settings.tick_s,
                    self._audit,
                    failed=lambda error: log.warning("auditor.scan_failed", extra={"error": str(error)}),
                )
            ),
            tasks.spawn(self.check.run()),
            tasks.spawn(self._work()),
        ]

    async def stop(self) -> None:
        for stop in self._stops:
            stop()
        await cancel_all(self._tasks)
        if self._lease:
            try:
                await self._context.meta.revoke(self._lease)
            except MetadataError:
                pass  # it ends by itself

    @property
    def repairs(self) -> int:
        """Ledgers of the region that lack a copy which can be made, as far as an auditor has found them."""
        return sum(not mark.nowhere for _, mark in self._marks.values())

    @property
    def _gaps(self) -> int:
        """Those of them of which a bookie lacks entries that is there, or will be: the others may wait for a spare, for
        as long as there is none, and hold up nothing but their own kind.
        """
        return sum(
            not mark.nowhere and any(b not in mark.lost for b in mark.lacking) for _, mark in self._marks.values()
        )

    # -- the lease, and the election ----------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        meta = self._context.meta
        renewed_at = self._loop.time()
        while True:
            began = self._loop.time()
            try:
                if self._lease:
                    await meta.renew(self._lease)
                else:
                    self._lease = await meta.grant(LEASE_TTL_MS)
                renewed_at = began
                if self._someone is None:
                    await meta.put(keys.AUDITOR, self._node, expected=-1, lease=self._lease)
                    self.auditor, self._scan_at, self._whole_at = True, 0.0, 0.0
                    self.new_lives.on_elected()
                    log.info("auditor.elected", extra={"broker": self._node.decode()})
            except VersionConflict:
                pass  # somebody else was faster
            except LeaseLost:
                self._lease, self.auditor = 0, False
                continue
            except MetadataError:
                if self._loop.time() - renewed_at > LEASE_TTL_MS / 1000:
                    self.auditor = False
            await asyncio.sleep(_RENEW_S * self._context.rng.uniform(0.8, 1.0))

    def _on_auditor(self, key: str, value: bytes | None, _version: int) -> None:
        self._someone = value
        self.auditor = self.auditor and value == self._node

    # -- the auditor --------------------------------------------------------------------------------------------------

    def _on_change(self) -> None:
        """What waited for a bookie is tried again at once."""
        self._on_bookies()
        self._not_before.clear()
        self._wake.set()

    def _on_bookies(self) -> None:
        pool = self._context.pool
        # one in limbo may have lost everything, and gets its old directories back soon, or never
        whole = [b for b in pool.all_registered() if b not in pool.limbo]
        self._lost.on_registered(whole, self._loop.time())
        self._audited = [
            b for b in self._audited if pool.draining(b) or not pool.registered(b) or b in pool.limbo
        ]  # one that goes again is looked for again

    async def _audit(self) -> None:
        if not self.auditor or self._context.meta.stale_s() > 0:
            return
        self._on_bookies()
        now, settings = self._loop.time(), self._settings
        await self.new_lives.step(settings.marks_max - self._gaps, now, settings.rescan_s)
        if self.new_lives.waits:  # for a writer that a scan finds to be gone
            self._scan_at = min(self._scan_at, now + settings.rescan_s)
        wanted = sorted({*self._lost.lost(now), *self._context.pool.all_draining()})
        if (
            now < self._scan_at
            and all(b in self._audited for b in wanted)
            and self._context.pool.failed_directories() == self._audited_directories
        ):
            return
        await self._scan(wanted)

    async def _scan(self, lost: list[str]) -> None:
        """Looks at every ledger, and marks those that lack copies. Where too many are marked by now, most scans end at
        the next one.
        """
        settings, meta = self._settings, self._context.meta
        marked = waiting = misplaced = ledgers = unreadable = 0
        found: list[int] = []
        left: list[int] = []
        pool = self._context.pool
        there = racks(pool.all_registered(), pool.rack)
        full, whole = False, True
        of_lost = sum(
            bool(mark.lost) and not mark.nowhere for _, mark in self._marks.values()
        )  # a gap may wait for the very bookie that is lost by now
        directories = pool.failed_directories()
        partly = sorted({b for b, _ in directories} - set(lost))
        async for key, blob in self._records():
            ledgers += 1
            if (metadata := readable(LedgerMetadata.decode, key, blob)) is None:
                unreadable += 1
                continue
            self._lost.on_named((b for _, ensemble in metadata.fragments for b in ensemble), self._loop.time())
            gone = [*lost, *(b for b in partly if pool.lacks(b, metadata.ledger))]
            if waits_for_its_writer(metadata, [*gone, *self.new_lives.on_scanned(metadata)]):
                waiting += 1
                if len(left) < _ABANDONED_MAX:
                    left.append(metadata.ledger)
            if not adheres(metadata, there, pool.rack, pool.group):
                misplaced += 1
                if len(found) < MISPLACED_MAX:
                    found.append(metadata.ledger)
            version, mark = self._marks.get(metadata.ledger, (-1, Mark()))
            if not repairs(metadata, [b for b in gone if b not in mark.lost]):
                continue
            if version < 0 and of_lost + marked >= settings.marks_max:
                full = True
                if self._loop.time() < self._whole_at:
                    whole = False
                    break
                continue
            try:
                await meta.put(
                    keys.underreplicated(metadata.ledger), Mark(gone, mark.lacking).encode(), expected=version
                )
                marked += 1
            except VersionConflict:
                continue
        if whole:
            self._whole_at = self._loop.time() + _WAITING_FACTOR * settings.rescan_s
            self.new_lives.on_scan_ended()
            self._ledgers, self.unreadable = ledgers, unreadable
            self.misplaced, self.misplaced_count = found, misplaced
            if misplaced:
                log.warning("auditor.misplaced", extra={"ledgers": misplaced, "first": found[:5]})
        self.scans += 1
        if whole:
            await self.abandoned.on_scanned(
                left,
                lambda bookie, ledger: (
                    bookie in lost or pool.lacks(bookie, ledger) or self.new_lives.forgot(bookie, ledger)
                ),
                self._loop.time(),
            )
            if self._also is not None:
                await self._also(self._loop.time())
        if lost:
            log.info("auditor.scanned", extra={"lost": lost, "marked": marked, "open_left": waiting, "more": full})
        self._audited, self._audited_directories = lost, directories
        self._scan_at = self._loop.time() + (settings.rescan_s if full or waiting else settings.scan_s)

    async def _records(self) -> AsyncIterator[tuple[str, bytes]]:
        """(key, metadata) of every ledger of the region, by pages."""
        start = keys.LEDGERS
        while page := await self._context.meta.range(start, prefix_end(keys.LEDGERS), limit=_PAGE):
            for key, blob, _ in page:
                yield key, blob
            start = page[-1][0] + "\0"

    # -- emptying a bookie --------------------------------------------------------------------------------------------

    def bookies(self) -> list[dict[str, object]]:
        """Those that are registered, or being emptied."""
        pool = self._context.pool
        writable = pool.writable()
        return [
            {
                "id": b,
                "registered": pool.registered(b),
                "writable": b in writable,
                "draining": pool.draining(b),
                "limbo": b in pool.limbo,
                "rack": pool.rack(b),
                "group": pool.group(b) or "",
                "free_bytes": pool.free_bytes(b),
            }
            for b in sorted({*pool.all_registered(), *pool.all_draining()})
        ]

    def labels(self) -> dict[str, Labels]:
        """What was set for bookies, registered or not."""
        return dict(self._context.pool.labels)

    async def set_labels(self, bookie: str, labels: Labels | None) -> None:
        """Rack and group of a bookie, above its own; None: its own again. Of copies that lie too close together then,
        the audit finds out.
        """
        if labels is None:
            await self._context.meta.delete(keys.bookie_labels(bookie))
        else:
            await self._context.meta.put(keys.bookie_labels(bookie), labels.encode())

    async def decommission(self, bookie: str) -> None:
        """From now on `bookie` gets nothing new, and its copies are moved to others. Idempotent."""
        await self._context.meta.put(keys.decommission(bookie), msgpack.packb({"by": self._node.decode()}))

    async def recommission(self, bookie: str) -> None:
        """Takes it back: what was not moved yet stays."""
        await self._context.meta.delete(keys.decommission(bookie))

    async def emptying(self, bookie: str) -> Emptying:
        """Says how much of `bookie` is still to be moved. Reads the metadata of every ledger of the region, so it takes
        a while.
        """
        left = open_left = size = 0
        name: bytes = msgpack.packb(bookie)
        async for key, blob in self._records():
            if (metadata := readable(LedgerMetadata.decode, key, blob)) is None:
                left += name in blob
                continue
            waits = waits_for_its_writer(metadata, (bookie,))
            if waits or repairs(metadata, (bookie,)):
                left, open_left, size = left + 1, open_left + waits, size + metadata.size_bytes
        return Emptying(bookie, left, open_left, size, not left and self._context.pool.draining(bookie))

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _on_mark(self, key: str, value: bytes | None, version: int) -> None:
        ledger = keys.ledger_of(key)
        if value is None:
            self._marks.pop(ledger, None)
            self._not_before.pop(ledger, None)
        else:
            mark = Mark.read(ledger, value)
            self._marks[ledger] = version, mark
            if mark.nowhere:
                self._not_before[ledger] = self._loop.time() + _WAITING_FACTOR * self._settings.rescan_s
            elif not self._waits(mark):
                self._not_before.pop(ledger, None)
        self._wake.set()

    def _waits(self, mark: Mark) -> bool:
        """Whether it names no lost bookie, and only such as are away: nothing can be copied before they are back, or
        lost.
        """
        return not mark.lost and bool(mark.lacking) and not any(map(self._context.pool.registered, mark.lacking))

    async def _work(self) -> None:
        while True:
            now = self._loop.time()
            due = [ledger for ledger in self._marks if self._not_before.get(ledger, 0.0) <= now] if self._lease else []
            if not due:
                self._wake.clear()
                try:
                    async with asyncio.timeout(self._settings.tick_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            start = self._context.rng.randrange(len(due))  # somewhere: other brokers are at it too
            for ledger in [*due[start:], *due[:start]][:_BATCH]:
                if ledger in self._marks:
                    await self._try(ledger)

    async def _try(self, ledger: int) -> None:
        mark = self._marks[ledger][1]
        waits = self._waits(mark)
        if (
            waits and ledger not in self._not_before
        ):  # after each change of a bookie it is looked at anew, without asking anybody
            self._not_before[ledger] = self._loop.time() + _WAITING_FACTOR * self._settings.rescan_s
            return
        try:
            await self._claim_and_repair(ledger)
        except HeliographError as error:
            log.info("ledger.repair_failed", extra={"ledger": ledger, "error": str(error)})
        if ledger in self._marks:  # not done, or the watch has not said so yet
            pauses = _WAITING_FACTOR if waits or mark.nowhere else 1
            self._not_before[ledger] = self._loop.time() + pauses * self._settings.rescan_s

    async def _claim_and_repair(self, ledger: int) -> None:
        """Raises VersionConflict where another broker is at it."""
        meta, key = self._context.meta, keys.replicating(ledger)
        claimed = await meta.get(key)
        if claimed is not None and claimed[0] == self._node:  # of an attempt whose outcome was not known
            await meta.delete(key, expected=claimed[1])
        claim = await meta.put(key, self._node, expected=-1, lease=self._lease)
        try:
            if ledger in self._marks:
                await self.repair.run(ledger, *self._marks[ledger])
        finally:
            await meta.delete(key, expected=claim)
