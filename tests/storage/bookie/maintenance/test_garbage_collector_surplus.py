"""Copies that were made elsewhere while a bookie was away: it gives up its own, unless auto-recovery is about to give
it one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from geo_tests.sim.simulation import Simulation
from heliograph.kv.state_machine import KvMachine
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState, pack
from heliograph.wire.bookie_frames import BookieCode, Kind
from local_meta import keys
from storage.bookie.maintenance.garbage_collector import GarbageCollector, Suspects
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import SMALL, add, send
from tests.storage.bookie.maintenance.garbage import QUICK, Lying

COMPACTING = replace(
    SMALL, minor_interval_s=2.0, minor_live_max=1.0, major_live_max=1.0, compaction_bytes_per_s=1 << 20
)
MINE, OTHERS = ("b0", "b1"), ("b1", "b2")


def metadata(ledger: int, bookies: tuple[str, ...] = OTHERS, state: LedgerState = LedgerState.CLOSED) -> bytes:
    return LedgerMetadata(ledger, 2, 2, ((0, bookies),), state, 9 if state == LedgerState.CLOSED else -1).encode()


class World:
    """A bookie `b0` with ten entries of each of the ledgers 1 to 12, of which 1 is fenced; all are closed and its
    own.
    """

    def __init__(self, sim: Simulation) -> None:
        self.box, self.meta = Box(sim), Lying(KvMachine())
        self.box.start(COMPACTING)
        self.rng = sim.rng("collector")

    async def begin(self) -> None:
        for ledger in range(1, 13):
            await self.meta.put(keys.ledger(ledger), metadata(ledger, MINE))
            send(self.box.bookie, self.box.peer, add(ledger, 0, 10))
            if ledger == 1:
                await self.box.ask(Kind.FENCE, 1)
        for _ in range(2):  # of what came while a flush was under way too
            await self.box.flushed()
        self.collector = GarbageCollector(self.box.bookie, self.meta, QUICK, rng=self.rng)

    async def replaced(self, *ledgers: int) -> None:
        for ledger in ledgers:
            await self.meta.put(keys.ledger(ledger), metadata(ledger))

    async def passes(self, count: int) -> list[int]:
        """Returns the ledgers that still have entries here."""
        for _ in range(count):
            await self.collector.once()
        return await self.held()

    async def held(self) -> list[int]:
        return [
            ledger
            for ledger in range(1, 13)
            if (await self.box.ask(Kind.READ, ledger, first=0, last=0))[0] == BookieCode.OK
        ]

    async def compacted(self) -> None:
        for _ in range(60):
            self.box.bookie.tick()
            await asyncio.sleep(0.05)


def scenario(body: Callable[[World], Awaitable[None]]) -> None:
    with Simulation("surplus") as sim:

        async def main() -> None:
            world = World(sim)
            await world.begin()
            await body(world)

        sim.run(main())


def test_a_copy_that_is_not_named_goes_in_the_second_pass_with_its_space_and_may_come_again() -> None:
    async def body(world: World) -> None:
        gone = list(range(2, 12))  # more than a fifth: the metadata says where these copies are
        await world.replaced(*gone)
        assert await world.passes(1) == list(range(1, 13))
        before = world.box.bookie.dirs[0].log_bytes
        assert await world.passes(1) == [1, 12] and world.collector.given_up == len(gone)
        assert world.box.bookie.ledgers() == [1, 12]
        assert (await world.box.ask(Kind.READ, 5, first=0, last=0))[0] == BookieCode.NO_SUCH_LEDGER
        await world.compacted()
        assert world.box.bookie.dirs[0].log_bytes < before / 3
        world.box.restart()
        assert await world.held() == [1, 12], "not after a restart either"
        send(world.box.bookie, world.box.peer, add(5, 0, 10, recovery=900))  # the bookie is its spare now
        await asyncio.sleep(0.1)
        assert world.box.peer.answers[900][0] == BookieCode.OK
        assert await world.held() == [1, 5, 12]
        await world.box.flushed()
        world.box.restart()
        assert await world.held() == [1, 5, 12]

    scenario(body)


def test_its_fence_stays() -> None:
    async def body(world: World) -> None:
        await world.replaced(*range(1, 13))
        assert await world.passes(2) == []
        assert world.box.bookie.ledgers() == [1]
        for _ in range(3):
            send(world.box.bookie, world.box.peer, add(1, 10, 1))
            await asyncio.sleep(0.1)
            assert world.box.peer.losses == {1: BookieCode.FENCED}
            await world.compacted()
            assert not world.box.bookie.dirs[0].log_bytes
            world.box.restart()
        assert (await world.box.ask(Kind.DELETE, 1))[0] == BookieCode.OK
        assert world.box.bookie.ledgers() == []

    scenario(body)


def test_its_fence_goes_with_its_log_where_that_is_written_anew_or_given_back() -> None:
    """No flush has written it down anywhere else when the power goes."""

    async def body(world: World) -> None:
        await world.replaced(1)
        await world.passes(2)
        await world.compacted()
        assert world.box.bookie.dirs[0].compactor.compacted_logs and world.box.bookie.dirs[0].active.touched
        world.box.restart()
        send(world.box.bookie, world.box.peer, add(1, 10, 1))
        assert world.box.peer.losses == {1: BookieCode.FENCED}

        world.box.bookie.dirs[0].compactor.suspend()
        send(world.box.bookie, world.box.peer, add(40, 0, 1))
        await world.box.flushed()
        await world.box.ask(Kind.FENCE, 40)
        await world.box.flushed()  # a log with nothing but this fence
        await world.meta.put(keys.ledger(40), metadata(40))
        world.collector = GarbageCollector(world.box.bookie, world.meta, QUICK, rng=world.rng)
        await world.passes(2)
        world.box.bookie.dirs[0].full = "full"
        assert not world.box.bookie.dirs[0].logs.drop_empty(lambda _error: None)
        world.box.restart()
        send(world.box.bookie, world.box.peer, add(40, 10, 1))
        assert world.box.peer.losses == {40: BookieCode.FENCED}

    scenario(body)


def test_what_may_be_needed_here_stays() -> None:
    async def body(world: World) -> None:
        await world.replaced(3)
        await world.meta.put(keys.ledger(4), metadata(4, OTHERS, LedgerState.OPEN))
        await world.meta.put(keys.ledger(5), metadata(5, OTHERS, LedgerState.IN_RECOVERY))
        await world.meta.put(keys.ledger(6), metadata(6, ("b00", "b01")))  # names that hold this one
        await world.meta.put(keys.ledger(7), b"\x7f of a later version")
        await world.meta.put(
            keys.ledger(8), LedgerMetadata(8, 2, 2, ((0, OTHERS), (5, MINE)), LedgerState.CLOSED, 9).encode()
        )
        assert await world.passes(3) == [1, 2, 4, 5, 7, 8, 9, 10, 11, 12]

    scenario(body)


def test_a_marked_ledger_and_one_of_which_something_comes_stay() -> None:
    """Auto-recovery: the mark, then the entries, then the name in the metadata, then the mark goes."""

    async def body(world: World) -> None:
        await world.replaced(3, 4, 5)
        await world.meta.put(keys.underreplicated(3), pack([["b9"]]))
        assert 3 in await world.passes(3)
        await world.replaced(6)
        assert 6 in await world.passes(1)
        look = world.collector._marked

        async def entries_come_behind_it() -> dict[int, None]:
            found = await look()
            send(world.box.bookie, world.box.peer, add(6, 0, 10, recovery=700))
            return found

        world.collector._marked = entries_come_behind_it  # type: ignore[method-assign]
        assert 6 in await world.passes(1)
        world.collector._marked = look  # type: ignore[method-assign]
        await world.meta.delete(keys.underreplicated(3))
        assert await world.passes(2) == [1, 2, *range(7, 13)]

    scenario(body)


def test_nothing_goes_by_metadata_that_is_not_trusted() -> None:
    async def body(world: World) -> None:
        assert len(await world.passes(1)) == 12
        await world.replaced(3)
        for ledger in range(5, 9):
            await world.meta.delete(keys.ledger(ledger))
        assert 3 in await world.passes(3) and "more than a fifth" in world.collector.rules.refusal
        for ledger in range(5, 9):
            await world.meta.put(keys.ledger(ledger), metadata(ledger, MINE))
        await world.meta.put(keys.INSTANCE, b"restored")
        assert 3 in await world.passes(3) and "restored" in world.collector.rules.refusal
        await world.collector.confirm()
        assert 3 in await world.passes(1), "two passes again"
        world.meta.away = True
        assert 3 in await world.passes(1)
        world.meta.away = False
        assert 3 in await world.passes(1), "one that broke off is none"
        assert 3 not in await world.passes(1)

    scenario(body)


def test_two_passes_at_once_are_no_two_passes() -> None:
    suspects = Suspects(60)
    assert suspects.on_pass([5], 1000) == []
    assert suspects.on_pass([5, 6], 1059) == []
    assert suspects.on_pass([5, 6], 1060) == [5]
    assert suspects.on_pass([6], 1119) == [6]
    assert suspects.on_pass([5], 1200) == []
