"""Entries that the source lost before a target got them: the link waits until somebody decides, names them to it, and
goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import NoSuchEntry, NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from replicator.health.link_causes import Cause
from replicator.links.give_up_lost import give_up
from replicator.log.coordinate_lookup import LookupStatus, position_of
from replicator.log.routing_trees import is_skip
from tests.replicator.link_instance import Instance, TestRegion


def lose(region: TestRegion, first: Position, last: Position) -> None:
    """No bookie has them any more; what comes before is read up to there."""
    ledger: Any = region.ledger
    ledger.cache = False
    read = ledger.read

    async def reads(position: Position, max_entries: int, max_bytes: int) -> Any:
        position = await ledger.first_from(position) or position
        if first <= position <= last:
            raise NoSuchEntry(f"no bookie has {position[0]}:{position[1]}")
        before = first[1] - position[1] if position < first and position[0] == first[0] else max_entries
        return await read(position, min(max_entries, before), max_bytes)

    async def damaged(number: int, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        return [(max(first[1], start), last[1])] if number == first[0] and start <= last[1] else []

    ledger.read, ledger.damaged = reads, damaged


def test_what_is_lost_is_named_once_somebody_has_decided() -> None:
    with Simulation(4) as sim:

        async def scenario() -> None:
            instance = Instance(sim, ("us", "eu", "ap"))
            await instance.load()
            us, eu, ap = instance.regions.values()
            us.publish(5)
            await asyncio.sleep(3)
            link = us.outgoing("eu")
            with pytest.raises(NotAllowed, match="does not wait for entries"):
                await give_up(link)
            sim.network.cut("us", "eu")
            for _ in range(10):
                us.publish(2)
            await asyncio.sleep(10)
            assert len(ap.bodies()) == 25
            start = us.store.runs()[0][0]
            lose(us, (start, 11), (start, 16))
            sim.network.heal("us", "eu")
            await asyncio.sleep(30)
            assert us.link("eu").cause == Cause.STORAGE and eu.bodies() == us.bodies()[:11], (
                "it waits, and nothing is passed over"
            )
            damaged = us.ledger.damaged  # type: ignore[attr-defined]

            async def moves(*given: Any) -> list[tuple[int, int]]:
                link.state = "detached"
                return await damaged(*given)  # type: ignore[no-any-return]

            us.ledger.damaged, state = moves, link.state  # type: ignore[attr-defined]
            with pytest.raises(NotAllowed, match="moved to another broker meanwhile"):
                await give_up(link)
            us.ledger.damaged, link.state = damaged, state  # type: ignore[attr-defined]
            found = await give_up(link, dry_run=True)
            assert found == ((start, 11), (start, 16))
            await asyncio.sleep(20)
            assert len(eu.bodies()) == 11, "a dry run changes nothing"
            assert await us.brokers[0].machine.ask(give_up, link) == found
            await asyncio.sleep(20)
            assert eu.bodies() == [*us.bodies()[:11], *us.bodies()[17:]]
            assert us.link("eu").state == "open" and us.link("eu").backlog_entries == 0 and us.link("ap").restarts == 0
            (record,) = [SkipRecord.decode(run.parts[0]) for _, _, run in eu.store.runs() if is_skip(run)]
            assert record.reason is SkipReason.LOST and eu.log.vector.missing(us.log.origin) == (
                (record.after, record.through),
            )
            assert [(await position_of(eu.log, us.log.origin, (start, n))).status for n in (10, 11, 16, 17)] == [
                LookupStatus.HERE,
                LookupStatus.LOST,
                LookupStatus.LOST,
                LookupStatus.HERE,
            ]
            assert not ap.log.vector.missing(us.log.origin)
            with pytest.raises(NotAllowed):
                await give_up(link)

        sim.run(scenario(), limit_s=300)


def test_a_whole_ledger_is_given_up_where_the_link_stands_at_the_end_of_the_one_before() -> None:
    with Simulation(6) as sim:

        async def scenario() -> None:
            instance = Instance(sim, ("us", "eu"))
            await instance.load()
            us, eu = instance.regions.values()
            us.publish(5)
            await asyncio.sleep(3)
            sim.network.cut("us", "eu")
            await asyncio.sleep(10)  # it is noticed, and nothing more is on its way
            us.ledger.rollover()
            us.publish(4)
            us.ledger.rollover()
            us.publish(3)
            (kept, _, _), (gone, _, lost), _ = us.store.runs()
            lose(us, (gone, 0), (gone, lost.count - 1))
            sim.network.heal("us", "eu")
            await asyncio.sleep(30)
            link = us.outgoing("eu")
            assert us.link("eu").cause == Cause.STORAGE and link.core.read_at == (kept, 5)
            assert await us.brokers[0].machine.ask(give_up, link) == ((gone, 0), (gone, 3))
            await asyncio.sleep(20)
            assert eu.bodies() == [*us.bodies()[:5], *us.bodies()[9:]] and us.link("eu").state == "open"
            assert (await position_of(eu.log, us.log.origin, (gone, 0))).status is LookupStatus.LOST

        sim.run(scenario(), limit_s=300)


def test_what_is_repaired_before_it_was_named_is_sent() -> None:
    """Somebody gave it up, and the link broke at once; by the time it is back, an audit has brought it."""
    with Simulation(7) as sim:

        async def scenario() -> None:
            instance = Instance(sim, ("us", "eu"))
            await instance.load()
            us, eu = instance.regions.values()
            us.publish(5)
            await asyncio.sleep(3)
            sim.network.cut("us", "eu")
            for _ in range(10):
                us.publish(2)
            await asyncio.sleep(10)
            start, ledger = us.store.runs()[0][0], us.ledger
            read = ledger.read
            lose(us, (start, 11), (start, 16))
            sim.network.heal("us", "eu")
            await asyncio.sleep(30)
            link = us.outgoing("eu")
            assert us.link("eu").cause == Cause.STORAGE
            sim.network.cut("us", "eu")
            await us.brokers[0].machine.ask(give_up, link)
            await asyncio.sleep(20)
            ledger.read = read  # type: ignore[method-assign]
            sim.network.heal("us", "eu")
            await asyncio.sleep(30)
            assert eu.bodies() == us.bodies() and not eu.log.vector.missing(us.log.origin)
            assert us.link("eu").state == "open" and link._pump.given_up is None, (
                "nor is anything there given up when it is lost another time"
            )

        sim.run(scenario(), limit_s=300)


def test_what_can_be_read_is_never_given_up() -> None:
    with Simulation(5) as sim:

        async def scenario() -> None:
            instance = Instance(sim, ("us", "eu"))
            await instance.load()
            us, eu = instance.regions.values()
            sim.network.cut("us", "eu")
            us.publish(5)
            await asyncio.sleep(10)
            start = us.store.runs()[0][0]
            lose(us, (start, 2), (start, 3))

            async def nothing(*_: Any) -> list[tuple[int, int]]:
                return []

            us.ledger.damaged = nothing  # type: ignore[attr-defined]
            sim.network.heal("us", "eu")
            await asyncio.sleep(20)
            assert us.link("eu").cause == Cause.STORAGE
            with pytest.raises(NotAllowed, match="can be read, or the ledger is still open"):
                await give_up(us.outgoing("eu"))
            assert eu.bodies() == us.bodies()[:2]

        sim.run(scenario(), limit_s=300)
