"""Open ledgers whose writer is gone, with a bookie that is gone too: closed and copied where that can be, and never
under a writer that lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Machine
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from region_node.commands.storage import ledger_commands
from storage.ledger.ledger_context import LedgerContext, LedgerSettings
from storage.ledger.recovery.abandoned_ledgers import EMPTIED_AFTER_S
from storage.ledger.repair.repair_waits import waits_for
from storage.ledger.underreplicated_marks import Mark, mark_lacking
from tests.storage.ledger.repair.lost_bookie_worlds import SETTINGS, SMALL, Worlds, filled
from tests.storage.ledger.repair.three_bookies import THREE, three
from tests.storage.managed_ledger.world import Broker, read_all, until

SOON = replace(SETTINGS, check_s=1e9, abandoned_after_s=5.0)


def test_what_a_ledger_waits_for_is_said() -> None:
    async def work(world: Worlds) -> None:
        pool = world.broker().pool
        closed = LedgerMetadata(7, 2, 2, ((0, ("b0", "b1")),), LedgerState.CLOSED, 5)
        open_one = replace(closed, state=LedgerState.OPEN)
        await world.lose("b0")
        await until(lambda: not pool.registered("b0"))
        assert waits_for(pool, None, Mark()) == "its metadata is gone: the mark goes with the next look"
        assert waits_for(pool, closed, Mark(("b0",))) == "copies are being made"
        assert waits_for(pool, closed, Mark((), {"b0": 5})) == "waits for bookie b0, which is away"
        assert waits_for(pool, open_one, Mark((), {"b0": 5})).startswith("open, and its writer has to leave bookie b0")
        assert waits_for(pool, closed, Mark((), {"b1": 5}), ["b1"]) == "bookie b1 does not say what it holds"
        assert (
            waits_for(pool, closed, Mark((), {"b1": 5}))
            == waits_for(pool, closed, Mark((), {"b9": 5}))
            == "copies are being made"
        )
        await world.lose("b2")
        await until(lambda: not pool.registered("b2"))
        assert waits_for(pool, closed, Mark(("b0",))) == "no bookie is left for the copy of what b0 had: start one more"

    three(work, replace(SOON, lost_after_s=1e6), bookies=3, quorums=(2, 2, 2))


async def written_by_one_who_dies(world: Worlds) -> LedgerMetadata:
    """The metadata of its ledger, of six entries."""
    machine = world.sim.machine("writer")
    done: list[int] = []

    async def life(machine: Machine) -> None:
        broker = Broker(world.region, settings=SMALL, ledger_settings=LedgerSettings())
        log = await broker.open(quorums=world.quorums)
        broker.append(log, *"abcdef")
        await until(lambda: len(broker.done) == 6)
        done.append(6)
        await asyncio.Event().wait()

    machine.start(life)
    await until(lambda: bool(done))
    machine.kill()
    (metadata,) = await world.ledgers()
    assert metadata.state == LedgerState.OPEN
    return metadata


def test_it_is_closed_and_gets_its_copies_and_its_mark_goes() -> None:
    async def work(world: Worlds) -> None:
        metadata = await written_by_one_who_dies(world)
        lost = metadata.fragments[0][1][0]
        await mark_lacking(world.meta, metadata.ledger, {lost: 5})
        await world.lose(lost)
        await asyncio.sleep(5.0)
        assert (await world.ledgers())[0] == metadata, "its writer may only be slow"
        await world.settled()
        (closed,) = await world.ledgers()
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 5) and lost not in closed.fragments[-1][1]
        assert await world.meta.get(keys.underreplicated(metadata.ledger)) is None
        assert sum(part.abandoned.closed for part in world.parts) == 1
        log = await world.broker().open(quorums=world.quorums)
        assert [name for *_, name in await read_all(log)] == list("abcdef")
        await log.close()

    three(work, SOON, bookies=4, quorums=(2, 2, 2))


def test_whoever_empties_a_bookie_waits_a_minute_for_a_writer_that_is_no_more() -> None:
    async def work(world: Worlds) -> None:
        metadata = await written_by_one_who_dies(world)
        emptied = metadata.fragments[0][1][0]
        await world.parts[0].decommission(emptied)
        await asyncio.sleep(EMPTIED_AFTER_S / 2)
        assert (await world.ledgers())[0] == metadata, "its writer may only be slow"
        for _ in range(3):
            await asyncio.sleep(EMPTIED_AFTER_S)
            if (await world.parts[0].emptying(emptied)).done:
                break
        found = await world.parts[0].emptying(emptied)
        assert found.done, found
        (closed,) = await world.ledgers()
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 5)

    three(work, replace(SETTINGS, check_s=1e9), bookies=4, quorums=(2, 2, 2))


def test_a_ledger_whose_writer_lives_is_left_to_it() -> None:
    async def work(world: Worlds) -> None:
        log, broker = await filled(world, 6), world.broker()
        for _ in range(2):
            (metadata,) = await world.ledgers()
            await world.lose(metadata.fragments[-1][1][0])
            await asyncio.sleep(20.0)
        broker.append(log, "more")
        await until(lambda: len(broker.done) == 7)
        (after,) = await world.ledgers()
        assert after.state == LedgerState.OPEN and len(await read_all(log)) == 7
        assert not any(part.abandoned.closed for part in world.parts)
        await log.close()

    three(work, SOON, bookies=4, quorums=(2, 2, 2))


def test_without_a_spare_it_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: Worlds) -> None:
        metadata = await written_by_one_who_dies(world)
        lost = metadata.fragments[0][1][0]
        await mark_lacking(world.meta, metadata.ledger, {lost: 5})
        await world.lose(lost)
        await asyncio.sleep(60.0)
        assert await world.ledgers() == [metadata]
        stored = await world.meta.get(keys.underreplicated(metadata.ledger))
        assert stored is not None and Mark.decode(stored[0]).lacking == {lost: 5}
        assert (
            waits_for(world.broker().pool, metadata, Mark.decode(stored[0]))
            == f"open, and its writer has to leave bookie {lost}, or that to come back"
        )

        @asynccontextmanager
        async def here(_: str) -> AsyncIterator[LedgerContext]:
            yield world.broker().factory.context

        monkeypatch.setattr(ledger_commands, "_context", here)
        (row,) = await ledger_commands._lacking("")
        assert (row["ledger"], row["topic"], row["lacking"]) == (metadata.ledger, metadata.topic, {lost: 5}) and str(
            row["waits_for"]
        ).startswith("open")
        await world.region.bookies["b3"].register(world.meta)  # one more
        await world.settled()
        assert (await world.ledgers())[0].state == LedgerState.CLOSED

    async def ready(world: Worlds) -> None:
        await world.region.bookies["b3"].unregister(world.meta)
        await work(world)

    three(ready, SOON, bookies=4, quorums=THREE)
