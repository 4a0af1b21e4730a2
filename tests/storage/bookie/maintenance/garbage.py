"""Ledgers that come and go at a bookie, and metadata that answers wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import MetadataUnavailable
from local_meta import keys
from storage.bookie.maintenance.garbage_collector import CollectorSettings, GarbageCollector
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import NotingPeer, add, make_bookie, send

QUICK = CollectorSettings(interval_s=1.0, apart_s=0.0, look_s=0.7, page_ledgers=7)


class Lying(EmbeddedStore):
    """Metadata that may forget ledgers in one answer, or be away."""

    hide: int = 0
    """How many answers of `range` lack every ledger."""
    away = False

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        """As if the ledger had been made: its id was given out."""
        if key.startswith(keys.LEDGERS):
            await self.next_ids(keys.LEDGER_IDS, at_least=keys.ledger_of(key))
        return await super().put(key, value, expected=expected, lease=lease)

    async def range(self, start: str, end: str, *, limit: int = 10_000) -> list[tuple[str, bytes, int]]:
        if self.away:
            raise MetadataUnavailable("away")
        found = await super().range(start, end, limit=limit)
        if self.hide and start.startswith(keys.LEDGERS):
            self.hide -= 1
            return found[:-1]
        return found


def put_back(blob: bytes) -> KvMachine:
    """A machine as it was when it made this snapshot."""
    machine = KvMachine()
    machine.restore(blob)
    return machine


def scenario(body: Callable[[Box, Lying, GarbageCollector], Awaitable[None]], ledgers: int = 30) -> None:
    with Simulation(4) as sim:

        async def main() -> None:
            box, meta = Box(sim), Lying(KvMachine())
            for ledger in range(1, ledgers + 1):
                await meta.put(keys.ledger(ledger), b"metadata")
                send(box.bookie, box.peer, add(ledger, 0, 2))
            await asyncio.sleep(0.2)
            await body(box, meta, GarbageCollector(box.bookie, meta, QUICK, rng=sim.rng("collector")))

        sim.run(main())


def ledgers_come_and_go(seed: int) -> None:
    """Ledgers come and go, the metadata answers wrongly now and then, or is put back to a snapshot for a while, the
    power is cut.
    """
    with Simulation(seed) as sim:

        async def main() -> None:
            rng, machine, meta = sim.rng("history"), sim.machine("b0"), Lying(KvMachine())
            living: list[int] = []
            confirmed: list[int] = []
            ids = 0
            snapshot = meta.machine.snapshot()
            newest: KvMachine | None = None  # while it is put back

            async def live(machine: Machine) -> None:
                nonlocal ids, snapshot, newest
                bookie = make_bookie(machine.disk("journal"), machine.disk("ledgers"), machine.rng)
                collector = GarbageCollector(bookie, meta, QUICK, rng=machine.rng)
                collector.start()
                lied, meta.hide = -2, 0
                peer = NotingPeer()
                acked: list[int] = []
                peer.on_acked = lambda ledger, _writer, _through: acked.append(ledger)
                while True:
                    here = bookie.ledgers()
                    lost = [ledger for ledger in confirmed if ledger in living and ledger not in here]
                    assert not lost, f"ledgers {lost} live and are gone here"
                    chance = rng.random()
                    if newest is not None:
                        if chance < 0.2:
                            meta.machine, newest = newest, None
                    elif chance < 0.03:
                        snapshot = meta.machine.snapshot()
                    elif chance < 0.05:
                        newest, meta.machine = meta.machine, put_back(snapshot)
                    elif chance < 0.4:
                        ids += 1
                        await meta.put(keys.ledger(ids), b"metadata")
                        living.append(ids)
                        send(bookie, peer, add(ids, 0, 3))
                    elif chance < 0.5 and len(living) > 10:
                        gone = living.pop(rng.randrange(len(living)))
                        await meta.delete(keys.ledger(gone))
                    elif (
                        chance < 0.55 and collector.passes >= lied + 2
                    ):  # two wrong passes in a row are more than is promised
                        lied, meta.hide = collector.passes, 1
                    elif chance < 0.6:
                        bookie.flush()
                    elif chance < 0.65:
                        bookie.tick()
                    if (
                        newest is None
                        and collector.rules.refusal
                        and not any(ledger in living for ledger in collector.rules.suspects)
                    ):
                        await collector.confirm()  # the operator looked
                    await asyncio.sleep(rng.uniform(0.01, 0.4))
                    confirmed.extend(acked)
                    acked.clear()

            for _ in range(4):
                machine.start(live)
                await asyncio.sleep(rng.uniform(2, 12))
                machine.power_cut()
            machine.start(live)
            await asyncio.sleep(2)
            machine.power_cut()
            assert confirmed and living

        sim.run(main())
