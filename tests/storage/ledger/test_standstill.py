"""A broker that stood still (a signal, a hypervisor) blames no bookie, and loses no ledger."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import BookieUnavailable
from heliograph.wire.bookie_frames import HEAD, VERSION, Kind, encode
from storage.ledger.bookies.bookie_client import BookieClient
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.ledger_context import LedgerContext
from tests.storage.ledger.fake_bookies import FakeClient
from tests.storage.ledger.writers import Writer
from tests.storage.managed_ledger.world import Region, run_of, until


@pytest.mark.parametrize(("seed", "stood_s"), [(1, 1.5), (2, 6.0), (3, 12.0), (4, 600.0)])
def test_a_writer_that_stood_still_keeps_its_bookies_and_its_ledger(seed: int, stood_s: float) -> None:
    with Simulation(seed=seed) as sim:
        machine = sim.machine("broker")
        region = Region(sim, 4, delay_s=0.03)
        writers: list[Writer] = []

        async def broker(_: Machine) -> None:
            meta = EmbeddedStore(region.machine)
            pool = BookiePool(meta, lambda name, host, port: FakeClient(region.bookies[name]), sim.rng("pool"))
            await pool.ready()
            for _ in range(3):
                writers.append(Writer(LedgerContext(meta=meta, pool=pool, rng=sim.rng("context"))))
                await writers[-1].open((3, 2))
            for number in range(100):
                for writer in writers:
                    writer.handle.append_run(run_of(f"n{number}"))
                await asyncio.sleep(0.017)

        async def main() -> None:
            await region.start()
            work = machine.start(broker)
            for _ in range(2):
                await asyncio.sleep(0.5)
                life = machine.stop()
                assert life is not None
                await asyncio.sleep(stood_s)
                sim.loop.go_on(life)
            await work
            await until(lambda: all(writer.handle.lac == 99 for writer in writers))
            for writer in writers:
                assert len(writer.handle.metadata.fragments) == 1 and not writer.failed
                assert not any(writer.context.pool.suspected(bookie) for bookie in region.bookies)

        sim.run(main(), limit_s=3600)


class Peer(asyncio.Protocol):
    """Answers each question of a bookie's client after `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s, self.data = delay_s, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        while len(self.data) >= HEAD.size:
            size, version, _, _, ledger, _, _, request = HEAD.unpack_from(self.data)
            assert version == VERSION
            self.data = self.data[size:]
            answer = encode(Kind.ANSWER, ledger=ledger, value=7, request=request)
            asyncio.get_running_loop().call_later(self.delay_s, self.transport.write, answer)


@pytest.mark.parametrize("stood_s", [4.0, 6.0, 30.0, 600.0])
def test_a_client_of_a_bookie_that_stood_still_takes_the_answer_that_lies_there(stood_s: float) -> None:
    with Simulation(seed=1) as sim:
        bookie, broker = sim.machine("bookie"), sim.machine("broker")

        async def serve(_: Machine) -> None:
            await sim.loop.create_server(lambda: Peer(2.0), "bookie", 1)
            await asyncio.sleep(10_000)

        async def ask(_: Machine) -> int:
            client = BookieClient("b", "bookie", 1, rng=sim.rng("client"))
            return await client.read_lac(5)

        async def main() -> None:
            bookie.start(serve)
            asked = broker.start(ask)
            await asyncio.sleep(1.0)
            life = broker.stop()
            assert life is not None
            await asyncio.sleep(stood_s)
            sim.loop.go_on(life)
            assert await asked == 7

        sim.run(main(), limit_s=3600)


def test_a_bookie_that_is_silent_is_given_up_also_by_who_stood_still() -> None:
    with Simulation(seed=1) as sim:
        bookie, broker = sim.machine("bookie"), sim.machine("broker")

        async def serve(_: Machine) -> None:
            await sim.loop.create_server(lambda: Peer(9_000.0), "bookie", 1)
            await asyncio.sleep(10_000)

        async def ask(_: Machine) -> float:
            client = BookieClient("b", "bookie", 1, rng=sim.rng("client"))
            with pytest.raises(BookieUnavailable):
                await client.read_lac(5)
            return sim.now()

        async def main() -> None:
            bookie.start(serve)
            asked = broker.start(ask)
            await asyncio.sleep(1.0)
            life = broker.stop()
            assert life is not None
            await asyncio.sleep(100.0)
            sim.loop.go_on(life)
            assert 102.0 < await asked < 110.0

        sim.run(main(), limit_s=3600)
