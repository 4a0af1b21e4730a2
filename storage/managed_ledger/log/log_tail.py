"""LogTail: the end of a topic, where runs are appended.

Is: the open ledger, the runs that wait for it, and the move to the next ledger. Isn't: when that is due
(`rollover_rule`), or what is kept, read, or stored of the topic.
Invariants: runs are confirmed in the order of the appends, over any number of ledgers; a run that fails fails all
behind it. The next ledger gets its first run only when everything in the one before is confirmed, or was closed by
compare-and-set at its LAC: so no entry is found in a later ledger while an earlier one is missing. Nothing in a ledger
is confirmed before the topic's metadata names it.
`append_run` never waits: while the ledger changes, runs are kept here and get their entry ids when they are sent.
What an append takes is read from the clock: the time of the event loop stands still within a pass, and uvloop's counts
whole milliseconds.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from heliograph.model.errors import HeliographError, KeyMissing, LedgerFenced, NotEnoughBookies, TopicClosed
from heliograph.model.ledger_metadata import Affinity, LedgerInfo, LedgerMetadata
from heliograph.runtime.clock import Clock
from heliograph.wire.run import Run
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.writing.ledger_creation import create_ledger
from storage.ledger.writing.ledger_handle import LedgerHandle
from storage.managed_ledger.append_counts import AppendCounts
from storage.managed_ledger.log.rollover_rule import idle_left_s, is_full
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.sealing.cipher import UNSEALED, RunSealer, promised

Done = Callable[[int, int, Run], None]
Failed = Callable[[HeliographError], None]
_NOTHING: Any = ()
"""Stands for the queues of every topic that was loaded and not appended to yet: an empty deque takes 760 bytes."""


class TailHost(Protocol):
    """The managed ledger, as its tail sees it. quorums, affinity: of the ledgers that are made from now on."""

    quorums: tuple[int, int, int]
    affinity: Affinity

    def on_confirmed(self, ledger: int, first: int, run: Run) -> None:
        """The catalog has grown by this run; its `done` follows."""
        ...

    def on_drained(self) -> None:
        """After one or more `on_confirmed`."""
        ...

    def on_ledgers_changed(self, dropped: LedgerMetadata | None) -> None:
        """The catalog has another last ledger, or its last one is closed: write it. dropped: an empty one that is no
        part of the topic.
        """
        ...

    def on_tail_failed(self, error: HeliographError) -> None:
        """Nothing can be appended any more: the topic closes with this error. Only the first one counts."""
        ...


class LogTail:
    __slots__ = (
        "_catalog",
        "_clock",
        "_context",
        "_counts",
        "_dead",
        "_empty",
        "_giving_up",
        "_handle",
        "_host",
        "_loop",
        "_moving",
        "_old",
        "_opened_at",
        "_owner",
        "_queue",
        "_recorded",
        "_refusal",
        "_resting",
        "_sent",
        "_settings",
        "_used_at",
        "_wake",
        "confirmed_index",
        "metadata",
        "next_index",
        "pending_bytes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        context: LedgerContext,
        settings: ManagedLedgerSettings,
        clock: Clock,
        catalog: Catalog,
        host: TailHost,
        next_index: int,
        owner: int,
        counts: AppendCounts,
    ) -> None:
        """next_index: of the next message. owner: this opening of the topic. counts: shared with others."""
        self.topic = topic
        self.next_index = self.confirmed_index = next_index
        self.pending_bytes = 0
        self.metadata: dict[int, LedgerMetadata] = {}
        """The metadata of the ledgers that this owner made, as they were when they were closed."""
        self._context, self._settings, self._clock, self._catalog, self._host = context, settings, clock, catalog, host
        self._owner, self._counts = owner, counts
        self._loop = asyncio.get_running_loop()
        self._handle: LedgerHandle | None = None
        self._opened_at = self._used_at = 0.0
        self._old: LedgerHandle | None = None
        self._sent: deque[tuple[LedgerHandle, int, int, float, Run, Done, Failed]] = (
            _NOTHING  # (handle, first, last, appended at, run, ...)
        )
        self._queue: deque[tuple[float, Run, Done, Failed]] = _NOTHING
        self._recorded = -1
        self._moving: asyncio.Task[None] | None = None  # while it is under way, to the next ledger or to rest
        self._giving_up: HeliographError | None = None
        self._refusal: HeliographError | None = None
        self._dead = self._resting = False
        self._wake: asyncio.Future[None] | None = None
        self._empty: asyncio.Future[None] | None = None

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_run(self, run: Run, done: Done, failed: Failed) -> None:
        """Raises what nobody expected, as MemoryError: then all that waits has failed, and `failed` may not have been
        called.
        """
        if self._refusal is not None:
            failed(self._refusal)
            return
        if self._sent is _NOTHING:
            self._sent = deque()
        if run.time_ms == 0:
            run.time_ms = self._clock.wall_ms()
        run.first_index = self.next_index
        self.next_index += run.messages
        self.pending_bytes += run.size_bytes
        handle, now = self._handle, self._clock.monotonic()
        try:
            if handle is None:
                self._queue = deque() if self._queue is _NOTHING else self._queue
                self._queue.append((now, run, done, failed))
                self._move()
            else:
                first = handle.append_run(run)
                last = first + run.count - 1
                self._sent.append((handle, first, last, now, run, done, failed))
                if self._moving is None and is_full(
                    self._settings, last + 1, handle.size_bytes + handle.pending_bytes, now - self._opened_at
                ):
                    self._move()
        except Exception as error:  # some bookies may have it: nothing may follow behind it
            self._host.on_tail_failed(TopicClosed(f"{self.topic}: {error!r}"))
            raise
        if self.pending_bytes > self._settings.pending_bytes_max:
            self._give_up(
                NotEnoughBookies(f"{self.topic}: {self.pending_bytes} bytes wait for bookies; no more are taken")
            )

    @property
    def open_ledger(self) -> LedgerHandle | None:
        return self._handle or self._old

    def leave_bookies(self) -> bool:
        return self._handle is not None and self._handle.leave_bookies()

    @property
    def idle(self) -> bool:
        return not self._sent and not self._queue

    def drain(self) -> None:
        """Confirms, in order, what has reached its ack quorum."""
        sent, counts = self._sent, self._counts
        now = -1.0
        while sent:
            handle, first, last, at, run, done, _ = sent[0]
            if handle.lac < last or self._recorded < handle.ledger:
                break
            sent.popleft()
            if now < 0:
                now = self._clock.monotonic()
            counts.confirmed(run.count, run.size_bytes, handle.metadata.write_quorum, now - at)
            self.pending_bytes -= run.size_bytes
            self.confirmed_index = run.first_index + run.messages
            self._catalog.grow(run.count, run.size_bytes)
            self._host.on_confirmed(handle.ledger, first, run)
            done(handle.ledger, first, run)
        if now >= 0:
            self._used_at = now
            self._host.on_drained()
            self._notice_empty()

    def on_recorded(self, ledger: int) -> None:
        """The topic's metadata names every ledger up to this one."""
        self._recorded = max(self._recorded, ledger)
        self._wake_mover()
        self.drain()

    # -- ending -------------------------------------------------------------------------------------------------------

    def refuse(self, error: HeliographError) -> None:
        """Takes no more runs; those taken go on."""
        self._refusal = error

    def fail(self, error: HeliographError) -> None:
        """Everything that waits fails, and all that comes."""
        self.refuse(error)
        self._dead = True
        for handle in (self._handle, self._old):
            if handle is not None:
                handle.stop()
        self._handle = None
        self._wake_mover()
        self._fail_waiting(error)

    def follow_sealing(self) -> None:
        """Goes on in another ledger where the open one is sealed and should not be, or the other way round."""
        sealing, handle = self._context.sealing, self._handle
        if sealing is not None and handle is not None and handle.sealed != sealing.wanted(self.topic):
            self._move()

    async def roll(self, open_for_s: float = 0.0) -> None:
        """Goes on in another ledger, where one has been open for so long; returns once that is closed. Raises
        NotEnoughBookies where that takes too long.
        """
        if self._handle is not None and self._clock.monotonic() - self._opened_at < open_for_s:
            return
        if self._refusal is not None:
            raise self._refusal
        if self._moving is not None and self._resting:
            await asyncio.wait([self._moving])
        self._move()
        assert self._moving is not None
        _, late = await asyncio.wait([self._moving], timeout=self._settings.pending_timeout_s)
        if self._refusal is not None:
            raise self._refusal
        if late or self._handle is None:
            raise NotEnoughBookies(
                f"{self.topic}: the next ledger could not be made yet; it is as soon as there are bookies: then try "
                "again"
            )

    def rest(self, idle_s: float) -> bool:
        """Closes the open ledger, in the background, where nothing was appended for so long. Returns whether there is
        none any more.

        Also where everything else is done, and this tail may be forgotten: another one goes on from `next_index`.
        """
        if self._moving is not None or not self.idle:
            return False
        handle = self._handle or self._old
        if handle is None:
            return True
        if self._old is not None or idle_left_s(idle_s, self._opened_at, self._used_at, self._clock.monotonic()) == 0.0:
            self._resting = True
            self._context.background.closing += 1
            self._moving = self._context.tasks.spawn(self._moved(self._let_go))
        return False

    def rests_in_s(self, idle_s: float) -> float:
        """Until `rest` has something to do if nothing is appended meanwhile; 0: by now."""
        if self._moving is not None or not self.idle or self._handle is None or self._old is not None:
            return 0.0
        return idle_left_s(idle_s, self._opened_at, self._used_at, self._clock.monotonic())

    async def emptied(self, timeout_s: float) -> bool:
        """Waits until nothing waits any more; returns whether that is so."""
        if not self.idle:
            if self._empty is None:
                self._empty = self._loop.create_future()
            await asyncio.wait([self._empty], timeout=timeout_s)
        return self.idle

    async def close(self, error: HeliographError) -> None:
        """Closes the open ledger; what still waits fails with `error`. Raises what `LedgerHandle.close` raises."""
        self.refuse(error)
        if not self.idle or self._moving is not None:
            self._give_up(error)
        if self._moving is not None:
            await asyncio.wait([self._moving])
        handle, self._handle, self._old = self._handle or self._old, None, None
        if handle is not None and not self._dead:
            await self._close(handle)

    # -- from one ledger to the next ----------------------------------------------------------------------------------

    def _move(self) -> None:
        if self._moving is None:
            self._moving = self._context.tasks.spawn(self._moved(self._move_on))

    async def _moved(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except LedgerFenced as error:
            self._host.on_tail_failed(error)
        except HeliographError as error:  # the metadata can't be written: whether we still own the topic is not known
            closed = TopicClosed(f"{self.topic}: {error}")
            closed.__cause__ = error
            self._host.on_tail_failed(closed)
        except Exception as error:  # a fault of ours: whoever waits hears of it, and the topic is loaded anew
            self._host.on_tail_failed(TopicClosed(f"{self.topic}: {error!r}"))
            raise
        finally:
            self._moving, self._resting = None, False
        if not self._dead and (self._giving_up is not None or (self._handle is None and self._queue)):
            self._move()
        elif self._refusal is None:
            self.follow_sealing()  # the policy may have changed after the next ledger was made

    async def _end_failed(self) -> None:
        """Few at a time: whoever publishes needs the metadata too."""
        async with self._context.background.few:
            self._context.background.closing += 1
            await self._let_go()

    async def _let_go(self) -> None:
        """Closes the open ledger; what comes meanwhile waits for the next one."""
        old = self._handle or self._old
        assert old is not None
        self._handle, self._old = None, old
        try:
            await self._close(old)
        except HeliographError as error:
            if isinstance(error, LedgerFenced) or not error.retryable:
                raise
            return  # the metadata is away: it takes no more adds, and the next look, or the next append, closes it
        finally:
            self._context.background.closing -= 1
        if not self._dead:
            self._old = None

    async def _move_on(self) -> None:
        """Makes the next ledger while the open one still takes runs; then ends that one, and sends what has gathered
        meanwhile.
        """
        began = self._clock.monotonic()
        created = await self._create()
        old, self._handle = self._handle or self._old, None
        self._old = old
        if old is not None:
            await old.drained()
            if not self._dead:
                await self._close(old)
            if self._dead:
                return
            self._take_back(old)
            self._old = None
        if created is None or self._giving_up is not None or self._dead:
            self._finish_giving_up(created)
        else:
            self._open(*created)
            self._counts.switched(self._clock.monotonic() - began)

    async def _create(self) -> tuple[LedgerMetadata, int, RunSealer | None] | None:
        """None where bookies or metadata were missing for too long while runs wait."""
        deadline = self._loop.time() + self._settings.pending_timeout_s
        attempt, host = 0, self._host
        while self._giving_up is None and not self._dead:
            try:
                sealing = self._context.sealing
                # before there is a ledger that could not be written to
                form = UNSEALED if sealing is None else await sealing.ensure(self.topic)
                made, version = await create_ledger(
                    self._context,
                    *host.quorums,
                    topic=self.topic,
                    owner=self._owner,
                    affinity=host.affinity,
                    seal_form=promised(form),
                )
                return made, version, None if sealing is None else sealing.sealer(self.topic, made.ledger, form)
            except HeliographError as error:
                if (self._handle is None or isinstance(error, KeyMissing)) and (
                    not error.retryable or self._loop.time() > deadline
                ):
                    self._giving_up = error
                attempt += 1
            await asyncio.sleep(self._context.pause_s(attempt))
        return None

    async def _close(self, handle: LedgerHandle) -> None:
        """Ends a ledger at its LAC, and takes it into the catalog as closed, or out of it where it is empty."""
        closed = await handle.close()
        while (
            self._recorded < handle.ledger and not self._dead
        ):  # until the topic's metadata names it, nothing in it is confirmed
            self._wake = self._loop.create_future()
            await self._wake
        if self._dead:
            return
        self.metadata[handle.ledger] = closed
        self.drain()
        if closed.last_entry < 0:
            self._catalog.drop_last()
            self._host.on_ledgers_changed(closed)
        else:
            self._catalog.close_last(self._clock.wall_ms())
            self._host.on_ledgers_changed(None)

    def _take_back(self, old: LedgerHandle) -> None:
        """What `old` has not confirmed is sent again, before what has gathered; its entry ids are given anew."""
        if self._sent and self._queue is _NOTHING:
            self._queue = deque()
        while self._sent:
            handle, first, _, at, run, done, failed = self._sent.pop()
            assert handle is old and first > old.lac
            self._queue.appendleft((at, run, done, failed))

    def _open(self, metadata: LedgerMetadata, version: int, sealer: RunSealer | None) -> None:
        handle = LedgerHandle(
            self._context, metadata, version, on_lac=self.drain, on_failed=self._on_handle_failed, sealer=sealer
        )
        first_index = self._queue[0][1].first_index if self._queue else self.next_index
        self._catalog.append(LedgerInfo(metadata.ledger, first_index=first_index))
        self._handle, self._opened_at = handle, self._clock.monotonic()
        self._host.on_ledgers_changed(None)
        while self._queue:
            at, run, done, failed = self._queue[0]  # it waits there still if that raises
            first = handle.append_run(run)
            self._sent.append((handle, first, first + run.count - 1, at, run, done, failed))
            self._queue.popleft()
        self._queue = _NOTHING
        handle.leave_bookies()  # those of which was heard since it was made

    def _on_handle_failed(self, error: HeliographError) -> None:
        if isinstance(error, LedgerFenced):
            self._host.on_tail_failed(error)
            return
        if self._handle is not None:
            self._old, self._handle = self._handle, None
        if (
            self.idle and self._moving is None
        ):  # bookies may have failed very many open ledgers at once: the next one is made with the next append
            self._resting = True
            self._moving = self._context.tasks.spawn(self._moved(self._end_failed))
        else:
            self._move()

    # -- giving up ----------------------------------------------------------------------------------------------------

    def _give_up(self, error: HeliographError) -> None:
        """Fails what waits, but not before the ledger is closed: what was sent there and fails must never appear."""
        if self._giving_up is None:
            self._giving_up = error
            if self._handle is not None:
                self._old, self._handle = self._handle, None
            if self._old is not None:
                self._old.stop()
            self._move()

    def _finish_giving_up(self, created: tuple[LedgerMetadata, int, RunSealer | None] | None) -> None:
        error, self._giving_up = self._giving_up, None
        if created is not None:
            self._host.on_ledgers_changed(created[0])
        if error is not None:
            self._fail_waiting(error)

    def _fail_waiting(self, error: HeliographError) -> None:
        waiting = [failed for *_, failed in self._sent] + [failed for *_, failed in self._queue]
        self._counts.errors += sum(run.count for *_, run, _, _ in self._sent) + sum(
            run.count for _, run, _, _ in self._queue
        )
        for kept in (self._sent, self._queue):
            if kept:
                kept.clear()
        self.pending_bytes = 0
        self.next_index = self.confirmed_index
        for failed in waiting:
            failed(error)
        self._notice_empty()

    def _wake_mover(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _notice_empty(self) -> None:
        if self._empty is not None and self.idle:
            if not self._empty.done():
                self._empty.set_result(None)
            self._empty = None
