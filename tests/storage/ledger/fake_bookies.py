"""Bookies in memory behind the BookiePort, with delays, losses, crashes, and fences drawn from a seed.

Is: what a bookie promises: adds are durable before they are acknowledged, a fence holds for ever, also over a deletion,
"no such entry" is said only where it is true.
Isn't: the real bookie's journal or frames. Each connection is ordered; a crash loses what was not synced, and ends
every connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence

import msgpack

from geo_tests.sim.loop import LIFE
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import BookieUnavailable, LedgerFenced, NoSuchEntry, NoSuchLedger
from heliograph.wire.block import peek_block
from heliograph.wire.run import Buffer
from local_meta import keys


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

    def holds(self, ledger: int) -> bool:
        return ledger in self.ledgers and ledger not in self.deleted

    def delay(self) -> float:
        return self.rng.uniform(0.0, self.delay_s) * (20 if self.rng.random() < 0.02 else 1)

    def ledger(self, ledger: int) -> Held:
        return self.ledgers.setdefault(ledger, Held())

    def store(self, ledger: int, first: int, count: int, block: bytes, lac: int) -> None:
        held = self.ledger(ledger)
        for entry in range(first, first + count):
            held.blocks.setdefault(entry, (first, block))
        held.lac = max(held.lac, lac)

    def read(self, ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        held = self.ledgers.get(ledger)
        if self.limbo:
            raise BookieUnavailable(f"{self.name} is in limbo")
        if held is None or ledger in self.deleted:
            raise NoSuchLedger(f"{self.name}: ledger {ledger}")
        if first not in held.blocks:
            raise NoSuchEntry(f"{self.name}: {ledger}:{first}")
        blocks: list[bytes] = []
        size, at = 0, first
        while at <= min(last, held.last) and at in held.blocks:
            start, block = held.blocks[at]
            if blocks and size + len(block) > max_bytes:
                break
            blocks.append(block if not self.corrupt else block[:-1] + bytes([block[-1] ^ 1]))
            size += len(block)
            at = start + int.from_bytes(block[2:4], "big")
        return blocks

    async def register(
        self, meta: MetadataStore, *, writable: bool = True, rack: str = "", group: str = "", free_bytes: int = 0
    ) -> None:
        said = {"writable": writable, "rack": rack, "group": group, "free_bytes": free_bytes}
        value = msgpack.packb({"host": self.name, "port": 1, "http_port": 2, **said})
        await meta.put(keys.bookie(self.name), value)

    async def unregister(self, meta: MetadataStore) -> None:
        await meta.delete(keys.bookie(self.name))


class FakeClient:
    """One broker's connection to one bookie."""

    def __init__(self, bookie: FakeBookie) -> None:
        self.backlog_bytes = 0
        self._bookie = bookie
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._there = self._back = self._sync_at = 0.0
        self._writers: dict[int, tuple[Callable[[int], None], Callable[[Exception], None]]] = {}
        self._waiting: list[asyncio.Future[object]] = []
        self._number = 0
        self._broken = False  # the connection has ended, and we have not heard of it

    # -- the connection -----------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection ends: in both directions, what is under way is lost."""
        self._number += 1
        self._broken = True
        self._loop.call_soon(self._hear_cut, context=self._context)

    def _hear_cut(self) -> None:
        self._broken = False
        writers, self._writers = self._writers, {}
        waiting, self._waiting = self._waiting, []
        for _, on_lost in writers.values():
            on_lost(BookieUnavailable(f"{self._bookie.name}: connection lost"))
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(BookieUnavailable(f"{self._bookie.name}: connection lost"))

    def _connected(self) -> bool:
        if not self._bookie.alive or self._broken:
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
        assert ledger not in self._writers
        if not self._connected():
            on_lost(BookieUnavailable(f"{self._bookie.name}: connection refused"))
            return
        self._writers[ledger] = (on_ack, on_lost)

    def add(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        writer = self._writers.get(ledger)
        if writer is None or self._broken:
            return
        data = b"".join(block)
        self.backlog_bytes += len(data)

        def there() -> None:
            bookie = self._bookie
            bookie.on_add(bookie, ledger)
            if bookie.ledger(ledger).fenced:
                self._answer(
                    lambda: self._lost(ledger, writer, LedgerFenced(f"{bookie.name}: ledger {ledger} is fenced"))
                )
                return

            life = bookie.life

            def synced() -> None:
                if life == bookie.life:
                    if bookie.ledger(ledger).fenced:
                        self._answer(
                            lambda: self._lost(
                                ledger, writer, LedgerFenced(f"{bookie.name}: ledger {ledger} is fenced")
                            )
                        )
                        return
                    bookie.store(ledger, first, count, data, lac)
                    self._answer(lambda: self._acked(ledger, writer, first + count - 1, len(data)))

            self._sync_at = max(self._sync_at + 1e-9, self._loop.time() + bookie.delay())
            self._loop.call_at(self._sync_at, synced, context=bookie.context)

        self._send(there)

    def _acked(self, ledger: int, writer: object, through: int, size: int) -> None:
        self.backlog_bytes -= size
        if self._writers.get(ledger) is writer:
            self._writers[ledger][0](through)

    def _lost(self, ledger: int, writer: object, error: Exception) -> None:
        if self._writers.get(ledger) is writer:
            self._writers.pop(ledger)[1](error)

    def close_writer(self, ledger: int) -> None:
        self._writers.pop(ledger, None)

    async def add_recovery(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        data = b"".join(block)

        def there() -> None:
            if ledger in self._bookie.deleted:
                raise NoSuchLedger(f"{self._bookie.name}: ledger {ledger} was deleted")
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
        def there() -> tuple[int, int]:
            held = self._bookie.ledger(ledger)
            held.fenced = True
            return held.lac, held.last

        return await self._ask(there)  # type: ignore[return-value]

    def write_lac(self, ledger: int, lac: int) -> None:
        def there() -> None:
            held = self._bookie.ledger(ledger)
            held.lac = max(held.lac, lac)

        if self._connected():
            self._send(there)

    async def wait_lac(self, ledger: int, known: int, wait_s: float) -> int:
        end = self._loop.time() + wait_s
        while (lac := await self.read_lac(ledger)) <= known and self._loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return lac

    async def read_lac(self, ledger: int) -> int:
        return await self._ask(lambda: self._bookie.ledger(ledger).lac)  # type: ignore[return-value]

    async def held(self, ledger: int, first: int, last: int) -> Sequence[tuple[int, int]] | None:
        def there() -> Sequence[tuple[int, int]]:
            if self._bookie.limbo:
                raise BookieUnavailable(f"{self._bookie.name} is in limbo")
            if not self._bookie.holds(ledger):
                raise NoSuchLedger(f"{self._bookie.name}: ledger {ledger}")
            return [(entry, entry) for entry in sorted(self._bookie.ledgers[ledger].blocks) if first <= entry <= last]

        return await self._ask(there)  # type: ignore[return-value]

    async def delete(self, ledger: int) -> None:
        def there() -> None:
            self._bookie.ledgers[ledger] = gone = (
                Held()
            )  # what is deleted stays fenced, for ever: its writer may still be alive
            gone.fenced = True
            self._bookie.deleted.append(ledger)

        await self._ask(there)

    def close(self) -> None:
        self.cut()
