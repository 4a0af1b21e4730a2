"""A drill's client publishes where brokers lead it, over connections, and knows when the first of it came there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.client.pulsar_connection import Address
from heliograph.model.errors import NotAllowed
from region_node.dr.rehearsal.drill_client import ClientAccess, DrillClient
from tests.region_node.dr.rehearsal.scripted_brokers import TOPIC, LoopClock, Region, any_address, two_regions

Act = Callable[[Region, Region, DrillClient], Awaitable[None]]


def tried(act: Act) -> None:
    """act: (the active region, the one that the client is in, the client), which runs meanwhile."""

    async def main() -> None:
        us, eu = await two_regions()
        access = ClientAccess(
            urls=(us.url, eu.url),
            here=[Address.parse(eu.url)].__contains__,
            check=any_address,
            token=str,
            ssl=ssl.create_default_context,
        )
        client = DrillClient(TOPIC, access, LoopClock())
        running = asyncio.ensure_future(client.run())
        await act(us, eu, client)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(1)
        assert not us.connections and not eu.connections, "it leaves nothing open"

    with Simulation(1) as sim:
        sim.run(main())


def test_it_publishes_in_the_active_region_and_goes_where_it_is_led() -> None:
    async def act(us: Region, eu: Region, client: DrillClient) -> None:
        await asyncio.sleep(2)
        assert client.ready and us.log and not eu.log and client.acked_at is client.read_at is None
        us.passive()
        await asyncio.sleep(5)
        assert client.acked_at is None, "no region takes its messages"
        before, since = len(us.log), LoopClock().monotonic()
        eu.active = True
        await asyncio.sleep(2)
        assert len(us.log) == before and eu.log
        assert client.acked_at is not None and client.read_at is not None
        assert since <= client.acked_at <= since + 1 and since <= client.read_at <= since + 1

    tried(act)


def test_where_the_region_is_lost_it_looks_its_topic_up_in_the_other() -> None:
    async def act(us: Region, eu: Region, client: DrillClient) -> None:
        await asyncio.sleep(2)
        us.stop()
        eu.active = True
        await asyncio.sleep(10)
        assert eu.log and client.acked_at is not None and client.read_at is not None

    tried(act)


def test_what_another_region_has_confirmed_is_not_taken_for_this_ones() -> None:
    async def act(us: Region, eu: Region, client: DrillClient) -> None:
        await asyncio.sleep(2)
        for entry in us.log:  # as links bring them
            eu.log.append(entry)
        for connection in eu.connections:
            connection.deliver()
        await asyncio.sleep(1)
        assert client.ready and client.read_at is None and client.acked_at is None

    tried(act)


def test_it_does_not_go_where_nobody_leads_it() -> None:
    async def act(us: Region, eu: Region, client: DrillClient) -> None:
        await asyncio.sleep(2)
        us.leads, eu.active = False, True
        us.passive()
        await asyncio.sleep(20)
        assert not eu.log and client.acked_at is None and "another region is active" in client.said

    tried(act)


def test_a_token_goes_nowhere_in_clear() -> None:
    async def main() -> None:
        us, eu = await two_regions()
        access = ClientAccess(
            urls=(us.url, eu.url),
            here=lambda _: False,
            check=any_address,
            token=lambda: "secret",
            ssl=ssl.create_default_context,
        )
        client = DrillClient(TOPIC, access, LoopClock())
        running = asyncio.ensure_future(client.run())
        await asyncio.sleep(5)
        assert "in clear" in client.said and not client.ready and not us.connections and not eu.connections
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with Simulation(1) as sim:
        sim.run(main())


def test_it_is_led_to_no_address_that_it_may_not_go_to() -> None:
    async def main() -> None:
        us, eu = await two_regions()

        def check(address: Address, token: str) -> None:
            if address == Address.parse(eu.url):
                raise NotAllowed(f"{address} is not listed")

        access = ClientAccess(
            urls=(us.url,), here=lambda _: False, check=check, token=str, ssl=ssl.create_default_context
        )
        client = DrillClient(TOPIC, access, LoopClock())
        running = asyncio.ensure_future(client.run())
        await asyncio.sleep(2)
        assert us.log
        us.passive()
        eu.active = True
        await asyncio.sleep(5)
        assert not eu.connections and not eu.log and "is not listed" in client.said
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with Simulation(1) as sim:
        sim.run(main())


@pytest.mark.parametrize("seconds", (0.0, 0.07, 1.0))
def test_one_that_ends_in_the_middle_of_anything_closes_its_connections(seconds: float) -> None:
    async def act(us: Region, eu: Region, client: DrillClient) -> None:
        await asyncio.sleep(seconds)

    tried(act)
