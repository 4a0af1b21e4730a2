"""A block that a disk has spoilt comes back from another copy, and the spoilt one goes; what nobody else has stays
named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.wire.bookie_frames import BookieCode, Kind
from local_meta import keys
from storage.bookie.maintenance.block_refill import Refill
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.ledger_context import LedgerContext
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.entry_log.scrubbed import QUICK, fill, rounds, ticks
from tests.storage.bookie.history import add, block, content, entries_of, read, send
from tests.storage.ledger.fake_bookies import FakeBookie, FakeClient

OPEN, CLOSED = LedgerState.OPEN, LedgerState.CLOSED


class World:
    """Bookie `b0`, which is real, with the ledgers 1 to 3 in three entry logs, and `b1`, which has the same entries
    under other cuts.
    """

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.box, self.meta = sim, Box(sim), EmbeddedStore(KvMachine())
        self.others = {
            name: FakeBookie(name, sim.rng(name)) for name in ("b0", "b1")
        }  # this b0 stands for what others can read of the real one: nothing
        self.contexts = 0

    async def begin(self) -> None:
        self.logs = await fill(self.box)
        for ledger in (1, 2, 3):
            for first, count in ((0, 7), (7, 1), (8, 7)):
                self.others["b1"].store(ledger, first, count, block(ledger, first, count), -1)
            await self.name(ledger, ("b0", "b1"))
        for bookie in self.others.values():
            await bookie.register(self.meta)
        self.refill = Refill(self.box.bookie, self.context)

    async def name(self, ledger: int, bookies: tuple[str, ...], state: LedgerState = CLOSED) -> None:
        await self.meta.put(
            keys.ledger(ledger),
            LedgerMetadata(ledger, 2, 2, ((0, bookies),), state, 14 if state == CLOSED else -1).encode(),
        )

    async def context(self) -> LedgerContext:
        self.contexts += 1
        pool = BookiePool(self.meta, lambda name, _host, _port: FakeClient(self.others[name]), self.sim.rng("pool"))
        await pool.ready()
        return LedgerContext(meta=self.meta, pool=pool, rng=self.sim.rng("context"))

    def spoil(self, log: int, ledger: int, first: int) -> None:
        at = self.box.ledgers.content(self.logs[log]).index(block(ledger, first, 5)) + 200
        self.box.ledgers.flip_bit(self.logs[log], at)

    async def whole(self, *ledgers: int) -> bool:
        for ledger in ledgers or (1, 2, 3):
            for entry in range(15):
                code, _, _, body = await self.box.ask(Kind.READ, ledger, first=entry, last=entry)
                if code != BookieCode.OK or entries_of(body, ledger)[entry] != content(ledger, entry):
                    return False
        return True

    def restart(self) -> None:
        self.box.journal.power_cut()
        self.box.ledgers.power_cut()
        self.box.start(QUICK)

    @property
    def bad(self) -> list[tuple[int, int, int]]:
        return sorted(self.box.bookie.dirs[0].scrubber.bad)


def scenario(body: Callable[[World], Awaitable[None]]) -> None:
    with Simulation("refill") as sim:

        async def main() -> None:
            world = World(sim)
            await world.begin()
            await body(world)

        sim.run(main())


@pytest.mark.parametrize("state", [OPEN, CLOSED])
def test_a_finding_of_the_scrub_is_brought_and_its_log_is_written_anew(state: LedgerState) -> None:
    async def body(world: World) -> None:
        await world.name(2, ("b0", "b1"), state)
        world.spoil(1, 2, 5)
        world.spoil(1, 3, 5)
        await rounds(world.box, 1)
        assert world.bad == [(1, 2, 5), (1, 3, 5)] and not await world.whole(2)
        await world.refill.once()
        assert not world.bad and world.refill.refilled_blocks == 2 and world.contexts == 1
        assert await world.whole()
        world.restart()
        assert await world.whole(), "durable"
        world.refill = Refill(world.box.bookie, world.context)
        for _ in range(3):  # found again, as the log was not written anew yet
            await rounds(world.box, 1)
            await world.refill.once()
            await ticks(world.box, 20)
        assert world.logs[1] not in world.box.ledgers.names() and world.box.bookie.dirs[0].compactor.compacted_logs == 1
        for _ in range(2):
            assert await world.whole()
            await rounds(world.box, 1)
            assert not world.bad
            world.restart()

    scenario(body)


def test_what_a_reader_meets_is_brought_without_waiting_for_the_scrub() -> None:
    async def body(world: World) -> None:
        world.refill.start()
        world.spoil(0, 1, 0)
        assert (await world.box.ask(Kind.READ, 1, first=3, last=3))[0] == BookieCode.UNKNOWN
        for _ in range(200):
            if world.refill.refilled_blocks:
                break
            await asyncio.sleep(0.01)
        assert await world.whole() and world.refill.refilled_bytes == len(block(1, 0, 5)) - len(
            b"".join(block_head(1, 0, 5))
        )
        world.spoil(2, 3, 10)
        send(world.box.bookie, world.box.peer, read(3, 5, 14, 700))  # what comes before the bad one is answered
        await asyncio.sleep(0.5)
        assert sorted(entries_of(world.box.peer.answers[700][3], 3)) == [5, 6, 7, 8, 9]
        assert world.refill.refilled_blocks == 2 and await world.whole()
        await world.refill.stop()

    scenario(body)


def block_head(ledger: int, first: int, count: int) -> list[bytes]:
    """What a block has beside its entries."""
    whole = block(ledger, first, count)
    size = sum(len(content(ledger, first + index)) for index in range(count))
    return [whole[: len(whole) - size]]


def test_what_nobody_else_has_stays_named_until_somebody_does() -> None:
    async def body(world: World) -> None:
        world.spoil(1, 2, 5)
        await rounds(world.box, 1)
        world.others["b1"].crash()
        await world.refill.once()
        assert world.bad == [(1, 2, 5)] and world.refill.trouble and not world.refill.refilled_blocks
        assert world.logs[1] in world.box.ledgers.names()
        world.others["b1"].start()
        await asyncio.sleep(10)
        await world.refill.once()
        assert not world.bad and not world.refill.trouble and await world.whole()

    scenario(body)


def test_nothing_is_taken_for_good_that_is_not_durable() -> None:
    async def body(world: World) -> None:
        world.spoil(1, 2, 5)
        await rounds(world.box, 1)
        world.box.journal.fail_syncs = True
        await world.refill.once()
        assert world.bad == [(1, 2, 5)] and not world.refill.refilled_blocks and "failed" in world.refill.trouble
        await world.refill.once()
        assert world.bad == [(1, 2, 5)]

    scenario(body)


def test_what_is_not_wanted_here_is_not_brought() -> None:
    async def body(world: World) -> None:
        world.spoil(1, 2, 5)
        world.spoil(1, 3, 5)
        await rounds(world.box, 1)
        await world.name(2, ("b1", "b2"))
        await world.meta.delete(keys.ledger(3))
        await world.refill.once()
        assert not world.refill.refilled_blocks and not world.refill.trouble

    scenario(body)


def test_an_index_that_rots_is_written_anew_while_it_is_in_memory() -> None:
    async def body(world: World) -> None:
        world.box.ledgers.flip_bit(world.logs[2], len(world.box.ledgers.content(world.logs[2])) - 60)
        await rounds(world.box, 1)
        assert world.bad == [(2, -1, -1)]
        await world.refill.once()
        await ticks(world.box, 20)
        await rounds(world.box, 1)
        assert not world.bad and world.logs[2] not in world.box.ledgers.names() and not world.contexts
        world.box.restart()
        assert not world.box.bookie.limbo and await world.whole()

    scenario(body)


def test_an_index_that_rots_with_a_block_that_it_names_is_written_anew_and_the_block_is_brought() -> None:
    """Neither is in memory: the page agrees with its checksum where the bad block is what its head says."""

    async def body(world: World) -> None:
        world.box.start(replace(QUICK, index_bytes_max=1))
        world.refill = Refill(world.box.bookie, world.context)
        world.spoil(2, 2, 10)
        world.box.ledgers.flip_bit(world.logs[2], len(world.box.ledgers.content(world.logs[2])) - 60)
        for _ in range(4):
            await rounds(world.box, 1)
            await world.refill.once()
            await ticks(world.box, 20)
        assert world.refill.refilled_blocks == 1 and not world.bad
        assert world.logs[2] not in world.box.ledgers.names() and await world.whole()
        world.box.restart()
        assert not world.box.bookie.limbo and await world.whole()

    scenario(body)


def test_a_deletion_on_the_way_wins() -> None:
    async def body(world: World) -> None:
        world.spoil(1, 2, 5)
        await rounds(world.box, 1)
        send(world.box.bookie, world.box.peer, add(9, 0, 1))
        task = asyncio.ensure_future(world.refill.once())
        await asyncio.sleep(0)
        assert (await world.box.ask(Kind.DELETE, 2))[0] == BookieCode.OK
        await task
        assert 2 not in world.box.bookie.ledgers() and not world.refill.refilled_blocks

    scenario(body)
