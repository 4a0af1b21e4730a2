"""A bookie that lost one of its ledger directories, and is registered: auto-recovery copies what was there, and only
that.
"""

from __future__ import annotations

import asyncio

import msgpack

from heliograph.model.ledger_homes import home_of
from heliograph.model.ledger_metadata import LedgerState
from local_meta import keys
from tests.storage.ledger.repair.lost_bookie_worlds import Worlds, scenario
from tests.storage.managed_ledger.world import until


def test_what_was_in_a_dropped_directory_is_copied_although_its_bookie_lives() -> None:
    async def work(world: Worlds) -> None:
        broker = world.broker()
        for opening in range(8):
            log = await broker.open(quorums=world.quorums)
            log.set_retention(-1, -1)
            for number in range(10):
                broker.append(log, f"n{number}", pad=50)
            await until(lambda opening=opening: len(broker.done) == 10 * opening + 10)  # type: ignore[misc]
            await log.close()
        closed = [m.ledger for m in await world.ledgers() if m.state == LedgerState.CLOSED]
        half = max(world.region.bookies.values(), key=lambda b: len(b.ledgers))
        held = [ledger for ledger in closed if half.holds(ledger)]
        at = home_of(held[0], 3)
        lost = [ledger for ledger in held if home_of(ledger, 3) == at]
        fields = {"host": half.name, "port": 3181, "writable": True, "lost_dirs": (3, [at])}
        for ledger in lost:
            del half.ledgers[ledger]
        assert not await world.whole()
        before = {m.ledger for m in await world.ledgers() if any(half.name in ensemble for _, ensemble in m.fragments)}
        await world.meta.put(keys.bookie(half.name), msgpack.packb(fields))
        await world.settled()
        sealed = {(m.ledger, name) for m in await world.ledgers() for _, name in world.sealed(m)}
        assert not any((ledger, half.name) in sealed for ledger in lost)
        kept = [ledger for ledger in before if ledger not in lost]
        assert kept and all(
            any(half.name in e for _, e in m.fragments) for m in await world.ledgers() if m.ledger in kept
        ), "the rest stays where it is"
        scans = [part.scans for part in world.parts]
        await asyncio.sleep(3.0)
        assert scans == [part.scans for part in world.parts], "seen once"

    scenario(work)
