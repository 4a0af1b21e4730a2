"""A broker's clients for drills: begun once for each shadow, timed from the switch, and ended whatever happens."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.client.pulsar_connection import Address
from heliograph.model.errors import NotAllowed
from region_node.dr.rehearsal.drill_clients import DrillClients
from tests.region_node.dr.rehearsal.scripted_brokers import TOPIC, LoopClock, any_address, two_regions

SHADOW = "t/n-drill-1"


def test_they_are_begun_once_timed_from_the_switch_and_ended() -> None:
    async def main() -> None:
        us, eu = await two_regions()
        clients = DrillClients(LoopClock(), str, ssl.create_default_context)
        for _ in range(2):
            clients.begin(SHADOW, [TOPIC, TOPIC], (us.url, eu.url), [Address.parse(eu.url)].__contains__, any_address)
        await asyncio.sleep(2)
        found = clients.status(SHADOW)
        assert (found["count"], found["ready"], found["acked_s"]) == (2, 2, []) and len(us.connections) == 2
        clients.switch(SHADOW)
        us.passive()
        await asyncio.sleep(4)
        eu.active = True
        await asyncio.sleep(2)
        found = clients.status(SHADOW)
        assert len(found["acked_s"]) == len(found["read_s"]) == 2
        assert all(4 <= took <= 6 for took in (*found["acked_s"], *found["read_s"])), found
        clients.end(SHADOW)
        await asyncio.sleep(1)
        assert clients.status(SHADOW)["count"] == 0 and not eu.connections
        clients.end(SHADOW)
        await clients.stop()

    with Simulation(1) as sim:
        sim.run(main())


def test_those_that_nobody_ends_end_by_themselves_and_with_their_broker() -> None:
    async def main() -> None:
        us, eu = await two_regions()
        clients = DrillClients(LoopClock(), str, ssl.create_default_context)
        clients.begin(SHADOW, [TOPIC], (us.url, eu.url), [Address.parse(eu.url)].__contains__, any_address)
        await asyncio.sleep(1000)
        assert clients.status(SHADOW)["count"] == 0 and not us.connections and not eu.connections
        clients.begin(SHADOW, [TOPIC], (us.url, eu.url), [Address.parse(eu.url)].__contains__, any_address)
        await asyncio.sleep(1)
        assert us.connections
        await clients.stop()
        await asyncio.sleep(1)
        assert not us.connections and not eu.connections

    with Simulation(1) as sim:
        sim.run(main(), limit_s=3000)


def test_a_broker_has_clients_for_so_many_drills() -> None:
    async def main() -> None:
        clients = DrillClients(LoopClock(), str, ssl.create_default_context)
        for index in range(32):
            clients.begin(f"t/n-drill-{index}", [], (), lambda _: False, any_address)
        with pytest.raises(NotAllowed, match="wait until"):
            clients.begin("t/n-drill-32", [], (), lambda _: False, any_address)
        clients.end("t/n-drill-0")
        clients.begin("t/n-drill-32", [], (), lambda _: False, any_address)
        await clients.stop()

    with Simulation(1) as sim:
        sim.run(main())
