"""Bookies in memory behind the BookiePort, with delays, losses, crashes, and fences drawn from a seed.

Is: what a bookie promises: adds are durable before they are acknowledged, a fence holds for ever, what was deleted
never comes again, "no such entry" is said only where it is true. It answers as the real one does, and with the same
errors (`test_fake_bookies`).
Isn't: the real bookie's journal or frames, full or failed disks, or the real client's bounds and backoff: a connection
is there at once, or is refused, and one request that is not answered for two seconds fails alone. Each connection is
ordered; a crash loses what was not synced, and ends every connection. On purpose an add whose sync is under way is not
read, and is refused when a fence comes: a real bookie, which has one order for all, does so only with adds of which the
fence was ahead.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgpack

from geo_tests.sim.loop import LIFE
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import BookieUnavailable, HeliographError, LedgerFenced, NoSuchEntry, NoSuchLedger
from heliograph.wire.block import peek_block
from heliograph.wire.run import Buffer
from local_meta import keys
from storage.bookie.entry_log.block_cutting import cut_block

_WAIT_S_MAX = 2.5
"""As the real client: half of what an answer may take."""


class Held:
    """One ledger on one bookie."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, bytes]] = {}  # entry -> (first entry of its block, block)
        self.fenced = False
        self.lac = -1

    @property
    def last(self) -> int:
        return max(self.blocks, default=-1)


class FakeBookie:
    def __init__(self, name: str, rng: random.Random, *, delay_s: float = 0.002) -> None:
        self.name, self.rng, self.delay_s = name, rng, delay_s
        self.ledgers: dict[int, Held] = {}
        self.deleted: list[int] = []
        self.alive = True
        self.silent = False
        """Takes what comes, and answers nothing: hung, or cut off one way."""
        self.limbo = False
        self.corrupt = False
        self.floor = 0
        """Of ledgers below it, this life may have lost what it had."""
        self.on_add: Callable[[FakeBookie, int], None] = lambda bookie, ledger: None
        self.life = 0
        self.clients: list[FakeClient] = []
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, None)

    def crash(self) -> None:
        self.alive = False
        self.life += 1
        clients, self.clients = self.clients, []
        for client in clients:
            client.cut()

    def start(self) -> None:
        self.alive = True

    def begin_anew(self, floor: int) -> None:
        """Its directories were emptied, and a new life was granted."""
        self.ledgers.clear()
        self.floor = floor

    def holds(self, ledger: int) -> bool:
        return ledger in self.ledgers and ledger not in self.deleted

    def delay(self) -> float:
        return self.rng.uniform(0.0, self.delay_s) * (20 if self.rng.random() < 0.02 else 1)

    def ledger(self, ledger: int) -> Held:
        return self.ledgers.setdefault(ledger, Held())

    # -- what it answers ----------------------------------------------------------------------------------------------

    def check_limbo(self) -> None:
        """Raises BookieUnavailable where nothing is stored, or said to be absent."""
        if self.limbo:
            raise BookieUnavailable(f"{self.name} is in limbo")

    def check_add(self, ledger: int, *, recovery: bool = False) -> None:
        """Raises BookieUnavailable, NoSuchLedger, LedgerFenced where an add is not taken."""
        self.check_limbo()
        if ledger in self.deleted:
            raise NoSuchLedger(f"{self.name}: ledger {ledger} was deleted")
        if not recovery and ledger in self.ledgers and self.ledgers[ledger].fenced:
            raise LedgerFenced(f"{self.name}: ledger {ledger} is fenced")

    def store(self, ledger: int, first: int, count: int, block: bytes, lac: int) -> None:
        """What is stored last counts: of a block that was there, what is not of these entries is left."""
        held, end = self.ledger(ledger), first + count
        for start, old in {held.blocks[entry] for entry in range(first, end) if entry in held.blocks}:
            for low, high in ((start, first), (end, start + peek_block(old)[2])):
                if low < high:
                    rest = low, bytes(cut_block(old, low, high))
                    held.blocks.update(dict.fromkeys(range(low, high), rest))
        held.blocks.update(dict.fromkeys(range(first, end), (first, block)))
        held.lac = max(held.lac, lac)

    def there(self, ledger: int) -> Held:
        """What it has of a ledger, at least a fence."""
        if not self.holds(ledger):
            self.check_limbo()
            if ledger < self.floor and ledger not in self.deleted:
                raise BookieUnavailable(f"{self.name}: ledger {ledger} is older than its life", forgotten=True)
            raise NoSuchLedger(f"{self.name}: ledger {ledger}")
        return self.ledgers[ledger]

    def read(self, ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        held = self.there(ledger)
        blocks: list[bytes] = []
        size, at = 0, first
        while at <= min(last, held.last) and at in held.blocks:
            start, block = held.blocks[at]
            if blocks and size + len(block) > max_bytes:
                break
            blocks.append(block if not self.corrupt else block[:-1] + bytes([block[-1] ^ 1]))
            size += len(block)
            at = start + peek_block(block)[2]
        if not blocks:
            self.check_limbo()
            raise NoSuchEntry(f"{self.name}: {ledger}:{first}")
        return blocks

    def held(self, ledger: int, first: int, last: int) -> list[tuple[int, int]]:
        self.check_limbo()
        ranges: list[tuple[int, int]] = []
        for entry in sorted(self.there(ledger).blocks):
            if first <= entry <= last:
                begin = ranges.pop()[0] if ranges and ranges[-1][1] == entry - 1 else entry
                ranges.append((begin, entry))
        return ranges

    def fence(self, ledger: int) -> tuple[int, int]:
        """Nothing is left to fence of a ledger that was deleted: its adds are refused."""
        self.check_limbo()
        if ledger in self.deleted:
            return -1, -1
        held = self.ledger(ledger)
        held.fenced = True
        return held.lac, held.last

    def know_lac(self, ledger: int, lac: int) -> None:
        if self.holds(ledger):
            self.ledgers[ledger].lac = max(self.ledgers[ledger].lac, lac)

    def waits(self, ledger: int, known: int) -> bool:
        """Whether its LAC may become more than `known`, and is not."""
        held = self.ledgers.get(ledger)
        return ledger not in self.deleted and (held is None or (held.lac <= known and not held.fenced))

    def delete(self, ledger: int) -> None:
        self.check_limbo()
        self.ledgers.pop(ledger, None)
        self.deleted.append(ledger)

    # -- registration -------------------------------------------------------------------------------------------------

    async def register(
        self,
        meta: MetadataStore,
        *,
        writable: bool = True,
        rack: str = "",
        group: str = "",
        free_bytes: int = 0,
        level: int = 1,
    ) -> None:
        said = {"writable": writable, "rack": rack, "group": group, "free_bytes": free_bytes, "level": level}
        value = msgpack.packb({"host": self.name, "port": 1, "http_port": 2, **said})
        await meta.put(keys.bookie(self.name), value)

    async def unregister(self, meta: MetadataStore) -> None:
        await meta.delete(keys.bookie(self.name))


class _Writer:
    """One ledger's adds on a connection that are not acknowledged."""

    def __init__(self, on_ack: Callable[[int], None], on_lost: Callable[[Exception], None], *, connected: bool) -> None:
        self.on_ack, self.on_lost, self.connected = on_ack, on_lost, connected
        self.waiting: deque[tuple[int, int]] = deque()  # (last entry, bytes) of each add


class FakeClient:
    """One broker's connection to one bookie."""

    def __init__(self, bookie: FakeBookie) -> None:
        self.backlog_bytes = 0
        self._bookie = bookie
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._there = self._back = self._sync_at = 0.0
        self._writers: dict[int, _Writer] = {}
        self._waiting: list[asyncio.Future[object]] = []
        self._number = 0
        self._broken = False  # the connection has ended, and we have not heard of it
        self._closed = False

    # -- the connection -----------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection ends: in both directions, what is under way is lost."""
        self._number += 1
        self._broken = True
        self._loop.call_soon(self._hear_cut, context=self._context)

    def _hear_cut(self) -> None:
        self._broken = False
        waiting, self._waiting = self._waiting, []
        for ledger, writer in list(self._writers.items()):
            self._lost(ledger, writer, BookieUnavailable(f"{self._bookie.name}: connection lost"))
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(BookieUnavailable(f"{self._bookie.name}: connection lost"))

    def _connected(self) -> bool:
        if not self._bookie.alive or self._broken or self._closed:
            return False
        if self not in self._bookie.clients:
            self._bookie.clients.append(self)
        return True

    def _send(self, work: Callable[[], None]) -> None:
        """Runs `work` at the bookie, in order, unless the connection ends before."""
        number, life = self._number, self._bookie.life
        self._there = max(self._there + 1e-9, self._loop.time() + self._bookie.delay())

        def arrive() -> None:
            if (number, life) == (self._number, self._bookie.life):
                work()

        self._loop.call_at(self._there, arrive, context=self._bookie.context)

    def _answer(self, work: Callable[[], None]) -> None:
        if self._bookie.silent:
            return
        number = self._number
        self._back = max(self._back + 1e-9, self._loop.time() + self._bookie.delay())

        def arrive() -> None:
            if number == self._number:
                work()

        self._loop.call_at(self._back, arrive, context=self._context)

    async def _ask(self, work: Callable[[], object]) -> object:
        if not self._connected():
            raise BookieUnavailable(f"{self._bookie.name}: connection refused")
        future: asyncio.Future[object] = self._loop.create_future()
        self._waiting.append(future)

        def resolve(result: object, error: Exception | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        def there() -> None:
            try:
                result, error = work(), None
            except Exception as raised:
                result, error = None, raised
            self._answer(lambda: resolve(result, error))

        self._send(there)
        try:
            return await asyncio.wait_for(future, 2.0)
        except TimeoutError as error:
            raise BookieUnavailable(f"{self._bookie.name}: no answer") from error
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    # -- the port -----------------------------------------------------------------------------------------------------

    def open_writer(self, ledger: int, on_ack: Callable[[int], None], on_lost: Callable[[Exception], None]) -> None:
        self.close_writer(ledger)
        self._writers[ledger] = writer = _Writer(on_ack, on_lost, connected=self._connected())
        if not writer.connected:
            error = BookieUnavailable(f"{self._bookie.name}: connection refused")
            self._loop.call_soon(self._lost, ledger, writer, error, context=self._context)

    def add(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        writer = self._writers.get(ledger)
        if writer is None or not writer.connected or self._broken:
            return
        data = b"".join(block)
        writer.waiting.append((first + count - 1, len(data)))
        self.backlog_bytes += len(data)

        def refused() -> bool:
            try:
                self._bookie.check_add(ledger)
            except HeliographError as error:
                self._answer(partial(self._lost, ledger, writer, error))
                return True
            return False

        def there() -> None:
            bookie = self._bookie
            bookie.on_add(bookie, ledger)
            if refused():
                return
            life = bookie.life

            def synced() -> None:
                if life == bookie.life and not refused():
                    bookie.store(ledger, first, count, data, lac)
                    self._answer(lambda: self._acked(ledger, writer, first + count - 1))

            self._sync_at = max(self._sync_at + 1e-9, self._loop.time() + bookie.delay())
            self._loop.call_at(self._sync_at, synced, context=bookie.context)

        self._send(there)

    def _acked(self, ledger: int, writer: _Writer, through: int) -> None:
        if self._writers.get(ledger) is writer:
            while writer.waiting and writer.waiting[0][0] <= through:
                self.backlog_bytes -= writer.waiting.popleft()[1]
            writer.on_ack(through)

    def _lost(self, ledger: int, writer: _Writer, error: Exception) -> None:
        if self._writers.get(ledger) is writer:
            self.close_writer(ledger)
            writer.on_lost(error)

    def close_writer(self, ledger: int) -> None:
        writer = self._writers.pop(ledger, None)
        if writer is not None:
            self.backlog_bytes -= sum(size for _, size in writer.waiting)

    async def add_recovery(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        data = b"".join(block)

        def there() -> None:
            self._bookie.check_add(ledger, recovery=True)
            self._bookie.on_add(self._bookie, ledger)
            self._bookie.store(ledger, first, count, data, lac)

        await self._ask(there)

    async def read(
        self, ledger: int, first: int, last: int, max_bytes: int, on_end: Callable[[int], None] | None = None
    ) -> Sequence[Buffer]:
        def there() -> Sequence[Buffer]:
            blocks = self._bookie.read(ledger, first, last, max_bytes)
            if on_end is not None and len(blocks) > 1:  # the end of a long answer is known before it is here
                _, start, count = peek_block(blocks[-1])
                self._answer(lambda: on_end(start + count))
            return blocks

        return await self._ask(there)  # type: ignore[return-value]

    async def fence(self, ledger: int) -> tuple[int, int]:
        return await self._ask(lambda: self._bookie.fence(ledger))  # type: ignore[return-value]

    def write_lac(self, ledger: int, lac: int) -> None:
        if self._connected():
            self._send(lambda: self._bookie.know_lac(ledger, lac))

    async def wait_lac(self, ledger: int, known: int, wait_s: float) -> int:
        end = self._loop.time() + min(wait_s, _WAIT_S_MAX)
        while (lac := await self._ask(lambda: self._lac_above(ledger, known, end))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return lac  # type: ignore[return-value]

    def _lac_above(self, ledger: int, known: int, end: float) -> int | None:
        if self._bookie.waits(ledger, known) and self._loop.time() < end:
            return None
        return self._bookie.there(ledger).lac

    async def read_lac(self, ledger: int) -> int:
        return await self._ask(lambda: self._bookie.there(ledger).lac)  # type: ignore[return-value]

    async def held(self, ledger: int, first: int, last: int) -> Sequence[tuple[int, int]] | None:
        return await self._ask(lambda: self._bookie.held(ledger, first, last))  # type: ignore[return-value]

    async def delete(self, ledger: int) -> None:
        await self._ask(lambda: self._bookie.delete(ledger))

    def close(self) -> None:
        self._closed = True
        self.cut()
