"""LedgerHandle: the single writer of one open ledger.

Is: the shell around LedgerAppend: it sends runs to the ensemble, replaces bookies, and closes the ledger. Isn't:
rollover, or who may write.
Invariants: runs are sent in order; a run is kept until LAC has passed it, so that a spare can be sent everything from
LAC + 1 on;
after `close` began nothing moves LAC any more. Only a recovery changes the state of an open ledger under its writer:
any other state than OPEN, and LedgerFenced from any bookie, is final.
Source: docs/protocols/ledger.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from heliograph.model.errors import (
    BookieUnavailable,
    HeliographError,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.wire.block import encode_block
from heliograph.wire.run import Buffer, Run
from local_meta import keys
from storage.ledger.bookies.bookie_pool import ends_for
from storage.ledger.bookies.bookie_port import BookiePort
from storage.ledger.ledger_context import SLOW_AFTER_S, STALL_S, LedgerContext
from storage.ledger.underreplicated_marks import mark_lacking
from storage.ledger.writing.ledger_append import LedgerAppend
from storage.sealing.cipher import RunSealer

_MARK_ATTEMPTS = 8
_NOTHING: Any = ()
"""In place of an empty deque, which is large."""
_Pending = tuple[int, int, list[Buffer], int]
"""(first entry, count, block, bytes of the entries)."""


class _Slot:
    """One place of the ensemble, for as long as one writer of one bookie lasts: acks of an earlier writer never
    count.
    """

    __slots__ = ("bookie", "client", "moved_at", "sent", "writing")

    def __init__(self, bookie: str, now: float) -> None:
        self.bookie = bookie
        self.client: BookiePort | None = None
        self.writing = False
        self.moved_at = now
        self.sent = -1


class LedgerHandle:
    """Decides nothing about durability: that is `LedgerAppend`.

    on_lac: called after LAC moved. on_failed: called once, where nothing more can be confirmed here (LedgerFenced is
    final for the topic;
    NotEnoughBookies: close this ledger, and go on in another).
    """

    __slots__ = (
        "_attempts",
        "_context",
        "_core",
        "_cut",
        "_drained",
        "_forgave_at",
        "_fresh",
        "_gaps",
        "_lac_moved_at",
        "_lac_sent",
        "_loop",
        "_next",
        "_on_failed",
        "_on_lac",
        "_pending",
        "_recording",
        "_retry",
        "_sealer",
        "_slots",
        "_stop_watching",
        "_stopped",
        "_striping",
        "_ticking",
        "_unknown",
        "_version",
        "failed",
        "ledger",
        "metadata",
        "pending_bytes",
        "size_bytes",
    )

    def __init__(
        self,
        context: LedgerContext,
        metadata: LedgerMetadata,
        version: int,
        *,
        on_lac: Callable[[], None],
        on_failed: Callable[[HeliographError], None],
        sealer: RunSealer | None = None,
    ) -> None:
        """sealer: runs are stored as it seals them; None: as they are."""
        self.ledger, self.metadata = metadata.ledger, metadata
        self.size_bytes = 0
        """Bytes of the entries at or below LAC."""
        self.pending_bytes = 0
        self.failed: HeliographError | None = None
        self._context, self._version, self._sealer = context, version, sealer
        self._on_lac, self._on_failed = on_lac, on_failed
        self._loop = asyncio.get_running_loop()
        self._striping = metadata.striping
        self._core = LedgerAppend(metadata.fragments[-1][1], metadata.ack_quorum, self._striping)
        self._next = 0
        self._pending: deque[_Pending] = _NOTHING
        self._cut: deque[tuple[int, int]] = _NOTHING  # (first, last) of runs that lie in several stripes
        self._drained: asyncio.Future[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._unknown = False
        self._stopped = False
        self._ticking = False
        self._fresh = False
        self._lac_sent = -1
        self._lac_moved_at = self._loop.time()
        self._attempts: dict[str, int] = {}
        self._gaps: dict[
            str, int
        ] = {}  # bookie that was away -> LAC up to which it may lack entries, and no mark says so yet
        self._forgave_at = -float("inf")
        self._retry: asyncio.TimerHandle | None = None
        self._stop_watching: Callable[[], None] | None = None
        self._slots = [self._open_slot(bookie, place, 0) for place, bookie in enumerate(self._core.ensemble)]

    @property
    def lac(self) -> int:
        """Whole runs only: one that was cut at its stripes is confirmed, told of, and closed at with its last piece; so
        none is confirmed in part.
        """
        lac = self._core.lac
        while self._cut and self._cut[0][1] <= lac:
            self._cut.popleft()
        return min(lac, self._cut[0][0] - 1) if self._cut else lac

    @property
    def sealed(self) -> bool:
        return self._sealer is not None

    @property
    def last_appended(self) -> int:
        return self._next - 1

    def append_run(self, run: Run) -> int:
        """Sends one run to its write set, cut where a stripe ends, and returns its first entry id; in the order of the
        calls.

        Nothing is allocated an entry.
        """
        assert not self._stopped
        idle = not self._pending
        first, last = self._next, self._striping.last(self._next)
        if first + run.count - 1 <= last:
            self._append(run)
        else:
            if self._cut is _NOTHING:
                self._cut = deque()
            self._cut.append((first, first + run.count - 1))
            start = 0
            while start < run.count:
                stop = min(run.count, self._striping.last(first + start) + 1 - first)
                self._append(run.cut(start, stop))
                start = stop
        self._fresh = True
        if idle:
            self._lac_moved_at = now = self._loop.time()
            if not self._ticking:
                self._ticking = True
                for slot in self._slots:
                    slot.moved_at = now
                self._context.ticker.watch(self)
        return first

    def _append(self, run: Run) -> None:
        """Gives the run its entries and sends it to its write set; the caller has cut it so that it lies in one
        stripe.
        """
        first, count = self._next, run.count
        block = encode_block(run if self._sealer is None else self._sealer(run, first), self.ledger, first)
        self._next = first + count
        if self._pending is _NOTHING:
            self._pending = deque()
        self._pending.append((first, count, block, run.size_bytes))
        self.pending_bytes += run.size_bytes
        self._lac_sent = lac = self.lac
        for place in self._striping.places(first):
            slot = self._slots[place]
            if slot.writing:
                slot.sent = first + count - 1
                slot.client.add(self.ledger, first, count, block, lac)  # type: ignore[union-attr]

    async def drained(self) -> None:
        """Returns once LAC has passed everything appended, or nothing moves it any more."""
        if self._pending and not self._stopped:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    async def close(self) -> LedgerMetadata:
        """Closes the ledger by compare-and-set at its LAC, and returns its metadata. What waits above LAC is not part
        of it.

        Raises LedgerFenced where somebody else has taken it over: then nothing may be appended elsewhere. Raises what
        the metadata raises when it stays unavailable for `lost_after_s`.
        """
        self.stop()
        if isinstance(self.failed, LedgerFenced):
            raise self.failed
        if self._recording is not None:
            await asyncio.wait([self._recording])
        deadline = self._loop.time() + self._context.settings.lost_after_s
        attempt = 0
        while True:
            closed = replace(self.metadata, state=LedgerState.CLOSED, last_entry=self.lac, size_bytes=self.size_bytes)
            try:
                if await self._write(closed):
                    return closed
            except HeliographError as error:
                if not error.retryable or self._loop.time() > deadline:
                    raise
            attempt += 1
            await asyncio.sleep(self._context.pause_s(attempt))

    def stop(self) -> None:
        """From now on no ack counts. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        for slot in self._slots:
            if not slot.writing:
                self._note_gap(slot.bookie)
            self._end_slot(slot)
        self._mark_gaps()
        if self._retry is not None:
            self._retry.cancel()
        self._watch_pool(False)
        self._context.ticker.drop(self)
        self._wake_drained()

    def leave_bookies(self) -> bool:
        """Goes on elsewhere than on bookies that are being emptied, as far as there are spares, and on those that began
        a new life; without a spare for such a one it fails. Returns whether it would leave one, and cannot.
        """
        pool, stays = self._context.pool, False
        for slot in list(self._slots):
            forgot = pool.forgot(slot.bookie, self.ledger)
            if not slot.writing or not (forgot or pool.draining(slot.bookie)):
                continue
            if self._spare(self._slots.index(slot)) is None and not ends_for(
                self._context.pool, self.metadata, slot.bookie
            ):
                stays = True
            else:
                self._end_slot(slot)
                self._loop.call_soon(self._replace, slot, None)
        return stays

    def tick(self, now: float, stood_s: float) -> bool:
        """Notices what is overdue, and tells the bookies the LAC once appends have paused. Nobody is to blame for the
        time that this process stood still.
        """
        settings = self._context.settings
        if stood_s:
            self._lac_moved_at = min(now, self._lac_moved_at + stood_s)
            for slot in self._slots:
                slot.moved_at = min(now, slot.moved_at + stood_s)
        stands_s = now - self._lac_moved_at if self._pending else 0.0
        for slot in self._slots:
            if not slot.writing:
                if self._pending and self._retry is None:
                    self._retry = self._loop.call_later(self._context.pause_s(1), self._retry_lost)
                continue
            assert slot.client is not None
            if self._core.durable(slot.bookie) >= slot.sent:
                slot.moved_at = now
            elif now - slot.moved_at > settings.add_timeout_s:
                self._on_lost(
                    slot,
                    BookieUnavailable(f"bookie {slot.bookie} has not acknowledged for {settings.add_timeout_s:.0f} s"),
                )
            elif stands_s > STALL_S / 4 and self._holds_up(slot, now, stands_s):
                self._on_lost(
                    slot,
                    BookieUnavailable(
                        f"bookie {slot.bookie} alone has held up ledger {self.ledger} for {stands_s:.1f} s"
                    ),
                )
            elif (
                self._core.durable(slot.bookie) < self._core.lac
                and slot.client.backlog_bytes > settings.backlog_bytes_max
            ):
                self._on_lost(slot, BookieUnavailable(f"bookie {slot.bookie} is too far behind"))
            elif self._core.durable(slot.bookie) < self._core.lac and now - slot.moved_at > SLOW_AFTER_S:
                self._context.pool.suspect(slot.bookie)
        if self._pending:
            if now - self._lac_moved_at > settings.lost_after_s:
                self._fail(NotEnoughBookies(f"ledger {self.ledger}: no ack quorum for {settings.lost_after_s:.0f} s"))
                return False
            return True
        if self._fresh:
            self._fresh = False
            return True
        if self._lac_sent < (lac := self.lac):
            self._lac_sent = lac
            for slot in self._slots:
                if slot.writing and slot.client is not None:
                    slot.client.write_lac(self.ledger, lac)
        self._ticking = any(slot.writing and self._core.durable(slot.bookie) < slot.sent for slot in self._slots)
        if not self._ticking:
            self._pending = _NOTHING  # very many ledgers are open, and few are written to
        return self._ticking

    def _holds_up(self, slot: _Slot, now: float, stands_s: float) -> bool:
        limit_s = self._context.stalled_s(self._context.pool.suspected(slot.bookie))
        if min(stands_s, now - slot.moved_at) <= limit_s or not self._core.waits_only_for(slot.bookie):
            return False
        at = self._slots.index(slot)
        return self._spare(at) is not None or self._can_go_on(slot.bookie) or self._spare(at, forgiven=True) is not None

    def _can_go_on(self, without: str) -> bool:
        """Whether the next ledger could do without it."""
        return self._context.pool.can_go_on(self.metadata.write_quorum, self.metadata.affinity, but=without)

    # -- bookies that come and go -------------------------------------------------------------------------------------

    def _open_slot(self, bookie: str, place: int, first: int) -> _Slot:
        """A new writer on `bookie`, which is sent everything of its stripes from `first` on that still waits."""
        slot = _Slot(bookie, self._loop.time())
        try:
            slot.client = self._context.pool.client(bookie)
        except BookieUnavailable as error:
            self._loop.call_soon(self._replace, slot, error)
            return slot
        slot.writing = True
        slot.client.open_writer(self.ledger, partial(self._on_ack, slot), partial(self._on_lost, slot))
        for start, count, block, _ in self._pending:
            if start + count > first and slot.writing and self._striping.holds(place, start):
                slot.sent = start + count - 1
                slot.client.add(self.ledger, start, count, block, self.lac)
        return slot

    def _end_slot(self, slot: _Slot) -> None:
        if slot.writing and slot.client is not None:
            slot.writing = False
            slot.client.close_writer(self.ledger)

    def _on_ack(self, slot: _Slot, through: int) -> None:
        if not slot.writing:  # an earlier writer's ack, or one that came after the end
            return
        now = self._loop.time()
        self._context.acks.add(now - slot.moved_at)
        slot.moved_at = now
        self._attempts.pop(slot.bookie, None)
        if self._gaps:
            self._mark_gaps(slot.bookie)
        if self._core.on_ack(slot.bookie, through):
            self._lac_moved()

    def _on_lost(self, slot: _Slot, error: Exception) -> None:
        """May be called from inside an add: so it is acted upon in a pass of its own."""
        if slot.writing:
            self._end_slot(slot)
            self._loop.call_soon(self._replace, slot, error)

    def _replace(self, slot: _Slot, error: Exception | None) -> None:
        """Puts a spare in the place of a lost bookie; where there is none, the same one is tried again, for as long as
        the ledger lives. One that is not registered is not while nothing waits: very many ledgers may be open, and the
        pool says when it is back. error: why it was lost; None: it is tried now.
        """
        if self._stopped or slot.writing or slot not in self._slots:
            return
        if isinstance(error, LedgerFenced | NoSuchLedger):  # a ledger that was recovered may be deleted already
            self._fail(error if isinstance(error, LedgerFenced) else LedgerFenced(str(error)))
            return
        if error is not None:
            self._context.pool.suspect(slot.bookie)
        at = self._slots.index(slot)
        tried = bool(self._pending) or self._context.pool.registered(slot.bookie)
        spare = self._spare(at)
        if spare is None and error is not None and self._stuck() and not self._can_go_on(slot.bookie):
            spare = self._spare(at, forgiven=True)
            self._forgave_at = self._loop.time()
        if spare is not None:
            self._note_gap(slot.bookie)  # the earlier fragment goes on naming it
            first = self._core.on_bookie_replaced(slot.bookie, spare)
            self._slots[at] = self._open_slot(spare, at, first)
            self._mark_gaps(slot.bookie)
            if self._recording is None:
                self._recording = self._context.tasks.spawn(self._record())
        elif ends_for(self._context.pool, self.metadata, slot.bookie):
            self._fail(
                NotEnoughBookies(
                    f"ledger {self.ledger}: {slot.bookie} began a new life, and no spare is there; the next ledger is "
                    "written to it again"
                )
            )
        elif error is None and tried:
            self._note_gap(slot.bookie)
            if self._context.pool.registered(slot.bookie):
                self._mark_gaps(slot.bookie)
            self._slots[at] = self._open_slot(slot.bookie, at, self._core.on_bookie_back(slot.bookie))
        elif self._stuck() and self._can_go_on(slot.bookie):
            self._fail(
                NotEnoughBookies(
                    f"ledger {self.ledger}: no spare is left in the place of {slot.bookie}; a narrower one goes on "
                    "without it"
                )
            )
        else:
            self._attempts[slot.bookie] = attempt = self._attempts.get(slot.bookie, 0) + 1
            self._watch_pool(True)
            if tried and self._retry is None:
                self._retry = self._loop.call_later(self._context.pause_s(attempt), self._retry_lost)

    def _note_gap(self, bookie: str) -> None:
        """Before it is written to again, or never will be: what it misses at or below LAC is kept here no more."""
        if self._core.misses(bookie):
            self._gaps[bookie] = self._core.lac

    def _mark_gaps(self, *bookies: str) -> None:
        """Has the ledger marked for repair of what these bookies lack; without arguments, of what any bookie lacks."""
        if gaps := {b: through for b, through in self._gaps.items() if not bookies or b in bookies}:
            self._gaps = {b: through for b, through in self._gaps.items() if b not in gaps}
            self._context.tasks.spawn(self._mark(gaps))

    async def _mark(self, gaps: dict[str, int]) -> None:
        for attempt in range(1, _MARK_ATTEMPTS + 1):
            try:
                async with self._context.background.few:
                    await mark_lacking(self._context.meta, self.ledger, gaps)
                return
            except HeliographError:
                await asyncio.sleep(self._context.pause_s(attempt))
        # once more with the next ack of that bookie, retry, or the end of the handle; after that the check of copies
        # finds it
        self._gaps = {b: max(through, self._gaps.get(b, -1)) for b, through in {**self._gaps, **gaps}.items()}

    def _stuck(self) -> bool:
        """Whether some write set has too few bookies left that are written to."""
        return any(
            sum(self._slots[place].writing for place in places) < self.metadata.ack_quorum
            for places in self._striping.sets
        )

    def _spare(self, at: int, *, forgiven: bool = False) -> str | None:
        """forgiven: also one that failed a while ago; but not one behind the other, where all of them are away."""
        if forgiven and self._loop.time() - self._forgave_at < STALL_S:
            return None
        ensemble, pool = self._core.ensemble, self._context.pool
        beside = [[ensemble[place] for place in others] for others in self._striping.others(at)]
        unfit = [*ensemble, *(b for b in pool.floors if pool.forgot(b, self.ledger))]
        return pool.spare(unfit, beside, self.metadata.affinity, STALL_S if forgiven else None)

    def _retry_lost(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for slot in list(self._slots):
            if not slot.writing:
                self._replace(slot, None)
        self._watch_pool(any(not slot.writing for slot in self._slots))

    def _watch_pool(self, wanted: bool) -> None:
        if wanted and self._stop_watching is None and not self._stopped:
            self._stop_watching = self._context.pool.on_change(self._retry_lost)
        elif not wanted and self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    # -- the metadata -------------------------------------------------------------------------------------------------

    async def _record(self) -> None:
        """Writes the ensemble to the metadata until it is what is written to. Ends early where the handle is
        stopped.
        """
        attempt = 0
        while not self._core.settled and not self._stopped:
            change = self._core.changes
            wanted = self.metadata.with_fragment(self._core.lac + 1, tuple(self._core.ensemble))
            try:
                landed = await self._write(wanted)
            except LedgerFenced as error:
                self._fail(error)
                break
            except HeliographError:
                landed = False
            if landed:
                attempt = 0
                if not self._stopped and self._core.on_ensemble_recorded(change):
                    self._lac_moved()
            else:
                attempt += 1
                await asyncio.sleep(self._context.pause_s(attempt))
        self._recording = None

    async def _write(self, wanted: LedgerMetadata) -> bool:
        """One compare-and-set. Returns whether it landed; where not, the next attempt stands on what was found. Raises
        LedgerFenced.
        """
        try:
            self._version = await self._context.meta.put(
                keys.ledger(self.ledger), wanted.encode(), expected=self._version
            )
        except (VersionConflict, OutcomeUnknown) as error:
            self._unknown = self._unknown or isinstance(error, OutcomeUnknown)
            found = await self._context.meta.get(keys.ledger(self.ledger))
            if found is None:
                raise LedgerFenced(f"ledger {self.ledger} was deleted under its writer") from error
            stored = LedgerMetadata.decode(found[0])
            landed = (
                stored == wanted and self._unknown
            )  # without an attempt of ours in the dark, somebody else wrote the very same
            if not landed and stored.state != LedgerState.OPEN:
                raise LedgerFenced(f"ledger {self.ledger} was taken over by another owner") from error
            self.metadata, self._version = stored, found[1]
            return landed
        self.metadata = wanted
        return True

    # -- progress -----------------------------------------------------------------------------------------------------

    def _lac_moved(self) -> None:
        lac, pending = self.lac, self._pending
        while pending and pending[0][0] + pending[0][1] - 1 <= lac:
            size = pending.popleft()[3]
            self.pending_bytes -= size
            self.size_bytes += size
        self._lac_moved_at = self._loop.time()
        if not pending:
            self._wake_drained()
        self._on_lac()

    def _fail(self, error: HeliographError) -> None:
        if self.failed is None:
            self.failed = error
            self.stop()
            self._on_failed(error)

    def _wake_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
