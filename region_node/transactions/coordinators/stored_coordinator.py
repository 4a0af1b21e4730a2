"""StoredCoordinator: one coordinator on the broker that owns it: its state in the region's metadata, and the way of
each transaction to its end.

Is: loading, writes in groups, telling participants until each has it, timeouts. Isn't: the rules (`coordinator`), or
who owns it (`transaction_service`).
Invariants: no answer before what it says is stored; every write checks the epoch that this owner set when it loaded, so
an owner of before writes nothing; a write that failed ends this object: the next request loads what is stored. A
transaction is ended for good only after every participant has said that it is durable there.

    /transactions/coordinators/{number:04}          u8 version (1), msgpack [epoch]: raised by each owner; all its
                                                    writes check it
    /transactions/open/{number:04}/{txn:020}        a transaction (`coordinator`)
    counter transactions/{number:04}                numbers of transactions, taken in blocks
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from heliograph.kv.metadata_store import ABSENT, Check, Delete, MetadataStore, Op, Put, pages_under
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotFound, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Clock, Rng
from heliograph.wire.run import TxnId
from region_node.runtime.logged_tasks import logged_tasks
from region_node.transactions.coordinators.coordinator import (
    CoordinatorSettings,
    TransactionCoordinator,
    TransactionStatus,
    Txn,
)
from region_node.transactions.coordinators.transaction_latency import Latencies
from region_node.transactions.participants.transaction_errors import NoCoordinator, TransactionState
from replicator.log.transaction_buffer import PARTICIPANTS_MAX

log = logging.getLogger("region_node.transactions")

COORDINATORS = "/transactions/coordinators/"
OPEN = "/transactions/open/"
_BLOCK = 1000
_OPS_MAX = 500
_BYTES_MAX = 2 << 20
_RETRY = Backoff(0.05, 2.0, spread=(0.5, 1.5))
_WRITE_TRIES = 5
_TOLD_AT_ONCE = 32
"""Participants of one transaction that are on their way to its end at a time."""


def open_key(txn: TxnId) -> str:
    return f"{OPEN}{txn[0]:04}/{txn[1]:020}"


async def as_stored(meta: MetadataStore, txn: TxnId) -> Txn | None:
    """A transaction as every broker can read it; None: it has ended for good. Raises CorruptData, and what the metadata
    raises.
    """
    found = await meta.get(open_key(txn))
    return None if found is None else Txn.decode(txn[1], found[0])


class Participants(Protocol):
    """The way to a topic or subscription, wherever it is. Raises NotFound where it is gone; what is retryable is tried
    again.
    """

    async def end_partition(
        self, topic: str, txn: TxnId, *, commit: bool, low: int, others: Sequence[str] = (), again: bool = False
    ) -> bool:
        """others: the topics that it commits in beside this one. again: it has ended there, and named topics that had
        no part in it.
        False: this topic has none, and never will.
        """
        ...

    async def end_subscription(self, topic: str, subscription: str, txn: TxnId, *, commit: bool, low: int) -> None: ...


class StoredCoordinator:
    """Runs one coordinator while this broker owns it; `load` makes it. `failed`: why it takes nothing any more."""

    def __init__(
        self,
        number: int,
        meta: MetadataStore,
        participants: Participants,
        clock: Clock,
        rng: Rng,
        settings: CoordinatorSettings,
    ) -> None:
        self.number, self.core = number, TransactionCoordinator(settings)
        self.failed: NoCoordinator | None = None
        self.epoch = 0
        self.writes = 0
        self.loaded_ms = (0, 0)
        """Wall time when loading began and ended."""
        self.latencies = Latencies()
        self._meta, self._participants, self._clock, self._rng = meta, participants, clock, rng
        self._ahead_ms = clock.wall_ms() - clock.monotonic() * 1000
        self._key = f"{COORDINATORS}{number:04}"
        self._version = ABSENT
        self._queue: deque[tuple[Txn | Delete | None, asyncio.Future[None] | None]] = deque()
        """What is to be stored: a transaction as it is when it is written, however often it changed before; None:
        nothing, but what is ahead.
        """
        self._numbers: list[int] = []
        self._taking: asyncio.Future[None] | None = None
        self._writing = False
        self._ended: dict[int, asyncio.Future[None]] = {}
        self._tasks = logged_tasks()

    @classmethod
    async def load(
        cls,
        number: int,
        meta: MetadataStore,
        participants: Participants,
        clock: Clock,
        rng: Rng,
        settings: CoordinatorSettings,
    ) -> StoredCoordinator:
        """Becomes its owner: everybody before is fenced. What was decided and not ended goes on. Raises what the
        metadata raises.
        """
        made = cls(number, meta, participants, clock, rng, settings)
        began_ms = clock.wall_ms()
        found = await meta.get(made._key)
        made.epoch = 1 if found is None else int(unpack("coordinator", found[0])[0]) + 1
        try:
            made._version = await meta.put(
                made._key, pack([made.epoch]), expected=ABSENT if found is None else found[1]
            )
        except VersionConflict as error:
            raise NoCoordinator(
                f"coordinator {number} is taken by another broker at this moment: look it up again"
            ) from error
        prefix = f"{OPEN}{number:04}/"
        txns: list[Txn] = []
        async for rows in pages_under(meta, prefix):
            txns += [Txn.decode(int(key.removeprefix(prefix)), value) for key, value, _ in rows]
        await made._take_numbers(txns[-1].number + 1 if txns else 1)
        made.core.restore(txns, made._numbers[0], made._now_ms())
        made.loaded_ms = (began_ms, clock.wall_ms())
        log.info("coordinator.loaded", extra={"coordinator": number, "epoch": made.epoch, "transactions": len(txns)})
        for txn in made.core.ending():
            made._finish_soon(txn.number)
        return made

    async def close(self) -> None:
        """Another broker goes on with it."""
        self._fail(NoCoordinator(f"coordinator {self.number} has moved: look it up again"))
        await self._tasks.close()

    def _now_ms(self) -> int:
        """The wall clock as it was when this was made, run on by the monotonic one: whoever sets it anew ends no
        transaction.
        """
        return int(self._ahead_ms + self._clock.monotonic() * 1000)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def begin(self, ttl_ms: int, owner: str = "") -> TxnId:
        """Opens a transaction; returns once it is stored. Raises NoCoordinator, NotAllowed (too many are open). A ttl
        above the settings' is shortened.
        """
        started = self._clock.monotonic()
        while not self._numbers:
            self._check()
            if self._taking is None:
                self._taking = asyncio.get_running_loop().create_future()
                self._tasks.spawn(self._refill(self._taking))
            await asyncio.shield(self._taking)
        self._check()
        txn = self.core.begin(self._numbers.pop(0), ttl_ms, owner, self._now_ms())
        await self._store(txn)
        self.latencies.begun(self._clock.monotonic() - started)
        return self.number, txn.number

    async def join(
        self, number: int, partitions: list[str], subscriptions: list[tuple[str, str]], owner: str | None = None
    ) -> None:
        """Raises NoCoordinator, NoSuchTransaction, TransactionState, NotAllowed."""
        self._check()
        txn = self.core.join(number, owner, partitions, subscriptions)
        if txn is not None:
            await self._store(txn)
        else:
            await self._stored()  # the first try may still be on its way

    async def end(self, number: int, *, commit: bool, owner: str | None = None) -> None:
        """Returns when every participant has it durably. Raises NoCoordinator, NoSuchTransaction, TransactionState."""
        self._check()
        txn = self.core.end(number, commit=commit, owner=owner)
        if txn is not None:
            await self._store(txn)
        else:
            await self._stored()  # who asked first may still wait for that: nobody is told before
        if self.core.find(number).status.final:
            return
        await asyncio.shield(self._finish_soon(number))

    async def tick(self, asked_for: Callable[[StoredCoordinator, int], bool] | None = None) -> None:
        """Once in a while: what is over time is aborted, what is long over is forgotten, unless it is asked for. Raises
        NoCoordinator.
        """
        self._check()
        now_ms = self._now_ms()
        expired = self.core.expired(now_ms)
        for txn in expired:
            txn.timed_out = True
            self.core.timed_out += 1
            self.core.end(txn.number, commit=False)
            log.warning(
                "transaction.timed_out", extra={"transaction": f"{self.number}:{txn.number}", "ttl_ms": txn.ttl_ms}
            )
        if expired:
            for txn in expired[:-1]:
                self._append(txn)
            await self._store(expired[-1])
            for txn in expired:
                self._finish_soon(txn.number)
        for number in self.core.forget(now_ms, *(() if asked_for is None else (partial(asked_for, self),))):
            self._append(Delete(self._txn_key(number)))

    # -- to the end ---------------------------------------------------------------------------------------------------

    def _finish_soon(self, number: int) -> asyncio.Future[None]:
        """Done when the transaction has ended everywhere."""
        waiting = self._ended.get(number)
        if waiting is None:
            waiting = self._ended[number] = asyncio.get_running_loop().create_future()
            waiting.add_done_callback(_heard)
            self._tasks.spawn(self._finish(number, waiting))
        return waiting

    async def _finish(self, number: int, waiting: asyncio.Future[None]) -> None:
        try:
            txn = self.core.find(number)
            commit = txn.status is TransactionStatus.COMMITTING
            left: list[tuple[str, str | None]] = [(topic, None) for topic in txn.partitions]
            left += txn.subscriptions
            named = list(txn.partitions) if commit and len(txn.partitions) <= PARTICIPANTS_MAX + 1 else []
            empty = set[str]()
            await self._end_all(left, partial(self._end_one, number, commit, named, empty, False))
            if empty and (named := [topic for topic in named if topic not in empty]):
                # the others have named them, and other regions would wait for their parts
                again = partial(self._end_one, number, commit, named, empty, True)
                await self._end_all([(topic, None) for topic in named], again)
            if (changed := self.core.done(number, self._now_ms())) is not None:
                await self._store(changed)
                self.latencies.ended(max(0, changed.ended_ms - changed.opened_ms))
            if not waiting.done():
                waiting.set_result(None)
        except HeliographError as error:
            if not waiting.done():
                waiting.set_exception(error)
        finally:
            self._ended.pop(number, None)
            if not waiting.done():
                waiting.set_exception(
                    self.failed or NoCoordinator(f"coordinator {self.number} has stopped here: look it up again")
                )

    async def _end_all(
        self, left: list[tuple[str, str | None]], end_one: Callable[[str, str | None], Awaitable[bool]]
    ) -> None:
        """Returns once it is ended in each."""
        failures = 0
        while left:
            each, left = iter(left), []
            await asyncio.gather(*(self._end_some(each, left, end_one) for _ in range(_TOLD_AT_ONCE)))
            self._check()
            if left:
                failures += 1
                await asyncio.sleep(_RETRY.pause_s(failures, self._rng))
                self._check()

    async def _end_some(
        self,
        each: Iterator[tuple[str, str | None]],
        left: list[tuple[str, str | None]],
        end_one: Callable[[str, str | None], Awaitable[bool]],
    ) -> None:
        """Takes from `each` until nothing is there, or this object has ended. left: what has to be told again."""
        for topic, name in each:
            if self.failed is not None:
                return
            if not await end_one(topic, name):
                left.append((topic, name))
            await asyncio.sleep(0)  # others have their turn, also where one is gone, which says so at once

    async def _end_one(
        self,
        number: int,
        commit: bool,
        named: list[str],
        empty: set[str],
        again: bool,
        topic: str,
        subscription: str | None,
    ) -> bool:
        """Whether it is ended there for good. named: the topics that each names in its end, but for itself. empty:
        topics that have no part in it; those found now are added. again: they are not named any more.
        """
        txn, low, began = (self.number, number), self.core.low_watermark, self._clock.monotonic()
        try:
            if subscription is None:
                others = [other for other in named if other != topic and not (again and other in empty)]
                if not await self._participants.end_partition(
                    topic, txn, commit=commit, low=low, others=others, again=again
                ):
                    empty.add(topic)
            else:
                await self._participants.end_subscription(topic, subscription, txn, commit=commit, low=low)
        except NotFound:  # deleted meanwhile, or never made
            if subscription is None:
                empty.add(topic)
            return True
        except TransactionState as error:
            log.error(
                "transaction.contradicted",
                extra={"transaction": f"{txn[0]}:{txn[1]}", "topic": topic, "error": str(error)},
            )
            return True
        except (HeliographError, TimeoutError, OSError) as error:
            self.latencies.told(commit, 0.0, well=False)
            log.info(
                "transaction.end_retried",
                extra={"transaction": f"{txn[0]}:{txn[1]}", "topic": topic, "error": str(error)},
            )
            return False
        self.latencies.told(commit, (self._clock.monotonic() - began) * 1000, well=True)
        return True

    # -- storing ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _txn_key(self, number: int) -> str:
        return open_key((self.number, number))

    async def _store(self, txn: Txn) -> None:
        """Until it, and everything before it, is stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._append(txn, stored)
        await stored

    async def _stored(self) -> None:
        """Until what was changed so far is stored."""
        if self._queue or self._writing:
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._append(None, stored)
            await stored

    def _append(self, change: Txn | Delete | None, stored: asyncio.Future[None] | None = None) -> None:
        self._check()
        self._queue.append((change, stored))
        if not self._writing:
            self._writing = True
            self._tasks.spawn(self._write())

    async def _write(self) -> None:
        """One transaction of the metadata for everything that waits, one after the other."""
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._queue:
                ops: dict[str, Op] = {}
                size = 0
                waiting = []
                while self._queue and len(ops) < _OPS_MAX and size < _BYTES_MAX:
                    change, stored = self._queue.popleft()
                    if isinstance(change, Delete):
                        ops[change.key] = change
                    elif change is not None and (key := self._txn_key(change.number)) not in ops:
                        value = change.encode()
                        ops[key] = Put(key, value)
                        size += len(value)
                    if stored is not None:
                        waiting.append(stored)
                await self._commit([Check(self._key, self._version), *ops.values()])
                self.writes += len(ops)
                for stored in waiting:
                    if not stored.done():
                        stored.set_result(None)
        except HeliographError as error:
            reason = (
                "is owned by another broker now"
                if isinstance(error, VersionConflict)
                else f"could not store its state ({error})"
            )
            self._fail(NoCoordinator(f"coordinator {self.number} {reason}: look it up again"))
        finally:
            self._writing = False
            for stored in waiting:  # whatever ended this: nobody waits for ever
                if not stored.done():
                    stored.set_exception(
                        self.failed or NoCoordinator(f"coordinator {self.number} has stopped here: look it up again")
                    )

    async def _commit(self, ops: list[Op]) -> None:
        for attempt in range(_WRITE_TRIES):
            try:
                await self._meta.txn(ops)
                return
            except MetadataUnavailable:
                if attempt == _WRITE_TRIES - 1:
                    raise
                await asyncio.sleep(_RETRY.pause_s(attempt + 1, None))

    async def _refill(self, taking: asyncio.Future[None]) -> None:
        try:
            await self._take_numbers(self.core.next_number)
        except HeliographError as error:
            self._fail(NoCoordinator(f"coordinator {self.number} got no numbers ({error}): try again"))
        finally:
            self._taking = None
            taking.set_result(None)

    async def _take_numbers(self, at_least: int) -> None:
        first = await self._meta.next_ids(f"transactions/{self.number:04}", _BLOCK, at_least=at_least)
        self._numbers += range(first, first + _BLOCK)

    def _fail(self, error: NoCoordinator) -> None:
        self.failed = self.failed or error
        queued = [stored for _, stored in self._queue if stored is not None]
        self._queue.clear()
        for future in [*queued, *self._ended.values()]:
            if not future.done():
                future.set_exception(self.failed)


def _heard(waiting: asyncio.Future[None]) -> None:
    """Whoever asked may be gone."""
    if not waiting.cancelled():
        waiting.exception()
