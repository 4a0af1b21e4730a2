"""Faults on the ways of an instance, by a real Toxiproxy, without the instance: behind a proxy is a socket."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance import toxiproxy_program
from region_node.instance.nodes.processes import Child, Processes
from region_node.instance.nodes.toxiproxy_api import LINGER, Toxiproxy
from region_node.instance.nodes.wide_area import WideArea
from region_node.instance.plan.layout import HOST, InstancePlan, WanLink, make_plan

pytestmark = pytest.mark.wan
LINK = "link.us-eu.eu-broker-0"


@dataclass
class Ways:
    """us and eu, 80 ms apart, whose processes are not there: a listener stands in the place of eu's broker."""

    plan: InstancePlan
    wan: WideArea
    processes: Processes

    @property
    def link(self) -> WanLink:
        return next(link for link in self.plan.links if link.name == LINK)

    @property
    def toxiproxy(self) -> Toxiproxy:
        return Toxiproxy(f"{HOST}:{self.plan.toxiproxy_port}")

    def toxics(self, name: str = LINK) -> dict[str, dict[str, int]]:
        return {toxic.name: toxic.attributes for toxic in self.toxiproxy.proxies()[name].toxics}

    async def ask(self, verb: str, source: str = "us", target: str = "eu", **fields: Any) -> dict[str, Any]:
        return await self.wan.act({"verb": verb, "source": source, "target": target, **fields})

    async def unusual(self) -> list[dict[str, Any]]:
        return [side for side in (await self.ask("wan show"))["sides"] if not side["usual"]]

    async def until(self, good: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """What is wrong with the ways once that is as wanted."""
        while True:
            with contextlib.suppress(ConfigError):  # it is being started again
                if good(found := await self.unusual()):
                    return found
            await asyncio.sleep(0.02)

    async def healed(self) -> None:
        await self.until(lambda unusual: not unusual)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Ways]:
    program = toxiproxy_program.found()
    if program is None:
        pytest.skip("Toxiproxy is not here: `heliograph wan install`")
    plan = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="default", proxied=True)
    (folder / "logs").mkdir()
    stopping = asyncio.Event()
    processes = Processes(folder, stopping, restart=True, on_fatal=lambda _: None)
    wan = WideArea(lambda: plan, processes, program)
    ways = Ways(plan, wan, processes)
    server = await asyncio.start_server(echo, HOST, ways.link.upstream)
    try:
        await wan.start()
        yield ways
    finally:
        stopping.set()
        await wan.end()
        await processes.end_all()
        server.close()


def with_ways(folder: Path, body: Callable[[Ways], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(folder) as ways:
            await asyncio.wait_for(body(ways), 200)

    asyncio.run(main())


BEGUN = {"latency_upstream": {"latency": 40, "jitter": 2}, "latency_downstream": {"latency": 40, "jitter": 2}}


def test_what_is_set_is_in_the_place_of_what_was_and_heal_leaves_nothing(tmp_path: Path) -> None:
    async def body(ways: Ways) -> None:
        assert ways.toxics() == BEGUN and await ways.unusual() == []
        await ways.ask("wan set", fault={"latency_ms": 120, "jitter_ms": 20, "bandwidth_kb_s": 6250})
        slow = {"latency": 60, "jitter": 10}
        rate = {"rate": 6250}
        both = {"latency_upstream": slow, "latency_downstream": slow}
        assert ways.toxics() == both | {"bandwidth_upstream": rate, "bandwidth_downstream": rate}
        await ways.ask("wan set", fault={"latency_ms": 300}, both=False)
        back = {"latency_downstream": slow, "bandwidth_downstream": rate}
        assert ways.toxics() == back | {"latency_upstream": {"latency": 300, "jitter": 0}}, "that direction alone"
        assert len(await ways.unusual()) == 8, "a stream each, of links and of the configuration's connections"
        await ways.ask("cut", both=False)
        assert not ways.toxiproxy.proxies()[LINK].enabled and ways.toxiproxy.proxies()["link.eu-us.us-broker-0"].enabled
        await ways.ask("wan set", "clients", "us", fault={"latency_ms": 10})
        await ways.ask("wan set", "brokers", "us", fault={"bandwidth_kb_s": 100, "reset_after_ms": 60_000})
        ways.toxiproxy.black_hole(LINK, "upstream")
        await ways.ask("heal", "", "")
        assert ways.toxics() == BEGUN and await ways.unusual() == []
        names = {name for proxy in ways.toxiproxy.proxies() for name in ways.toxics(proxy)}
        assert names == set(BEGUN) and all(proxy.enabled for proxy in ways.toxiproxy.proxies().values())

    with_ways(tmp_path, body)


def test_one_way_is_healed_and_the_other_stays(tmp_path: Path) -> None:
    async def body(ways: Ways) -> None:
        await ways.ask("wan set", fault={"latency_ms": 120})
        await ways.ask("wan set", "clients", "us", fault={"latency_ms": 10})
        await ways.ask("heal", "eu", "us")
        assert {side["from"] for side in await ways.unusual()} == {
            "clients",
            "us",
            "us-broker-0",
            "us-bookie-0",
            "us-bookie-1",
        }
        with pytest.raises(ConfigError, match="cannot vary"):
            await ways.ask("wan set", fault={"latency_ms": 1, "jitter_ms": 5, "bandwidth_kb_s": 5})
        assert ways.toxics() == BEGUN, "what is refused sets nothing"

    with_ways(tmp_path, body)


def test_what_ends_by_itself_ends_and_what_was_set_since_does_not(tmp_path: Path) -> None:
    async def body(ways: Ways) -> None:
        await ways.ask("wan set", fault={"latency_ms": 500}, ends_in_s=0.3)
        assert all(0 <= side["ends_in_s"] <= 0.3 for side in await ways.unusual())
        await ways.healed()
        assert ways.toxics() == BEGUN
        await ways.ask("cut", ends_in_s=0.3)
        assert not ways.toxiproxy.proxies()[LINK].enabled
        await ways.healed()
        await ways.ask("wan set", fault={"latency_ms": 500}, ends_in_s=0.3)
        await ways.ask("wan set", fault={"latency_ms": 200}, both=False)
        found = await ways.until(lambda unusual: len(unusual) <= 4)
        assert {(side["from"], side["one_way_ms"], side["ends_in_s"]) for side in found} == {("us", 200, None)}

    with_ways(tmp_path, body)


def test_connections_are_reset_again_and_again_and_a_cut_way_stays_cut(tmp_path: Path) -> None:
    async def reset(ways: Ways) -> None:
        """Returns once a connection that had carried something has been reset."""
        for _ in range(1000):
            try:
                reader, writer = await asyncio.open_connection(HOST, ways.link.port)
            except ConnectionRefusedError:  # in the moment of a reset
                continue
            writer.write(b"x")
            carried = False
            try:
                while await reader.read(1):
                    carried = True
                raise AssertionError("it was closed, and not reset")
            except ConnectionResetError:
                if carried:
                    return
            finally:
                writer.close()
        raise AssertionError("no connection carries anything")

    async def body(ways: Ways) -> None:
        await ways.ask("wan set", fault={"latency_ms": 0, "reset_after_ms": 1500})
        assert {side["reset_after_ms"] for side in await ways.unusual()} == {1500} and LINGER in ways.toxics()
        await reset(ways)
        await reset(ways)
        await ways.ask("wan set", fault={"latency_ms": 0, "reset_after_ms": 100})
        await ways.ask("cut", both=False)
        for _ in range(3):
            await asyncio.sleep(0.1)  # a reset or two would be due
            assert not ways.toxiproxy.proxies()[LINK].enabled
        await ways.ask("heal")
        assert ways.toxics() == BEGUN and await ways.unusual() == []

    with_ways(tmp_path, body)


@pytest.mark.parametrize("by_command", [False, True])
def test_every_fault_ends_with_the_toxiproxy_that_is_killed(tmp_path: Path, by_command: bool) -> None:
    async def body(ways: Ways) -> None:
        await ways.ask("wan set", fault={"latency_ms": 500, "reset_after_ms": 60_000}, ends_in_s=3600.0)
        await ways.ask("cut", "clients", "eu")
        child: Child = ways.processes.find("toxiproxy")
        before = child.pid
        if by_command:
            ways.processes.kill(child)
            await ways.processes.start(child)
        else:
            child.send(signal.SIGKILL)
        await ways.until(lambda unusual: child.pid not in (None, before) and not unusual)
        assert ways.toxics() == BEGUN
        assert {side["ends_in_s"] for side in (await ways.ask("wan show"))["sides"]} == {None}

    with_ways(tmp_path, body)


def test_what_the_plan_wants_is_made_and_what_is_wrong_with_others_stays(tmp_path: Path) -> None:
    async def body(ways: Ways) -> None:
        await ways.ask("wan set", fault={"latency_ms": 500})
        await ways.wan.close([ways.link])
        assert LINK not in ways.toxiproxy.proxies()
        await ways.wan.open(ways.plan.links)
        assert ways.toxics() == BEGUN
        assert len(await ways.unusual()) == 6

    with_ways(tmp_path, body)


def test_without_its_program_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    plan = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="default")
    processes = Processes(tmp_path, asyncio.Event(), restart=True, on_fatal=lambda _: None)
    for program in (None, tmp_path / "toxiproxy-server"):
        with pytest.raises(ConfigError, match="`heliograph wan install` builds it"):
            asyncio.run(WideArea(lambda: plan, processes, program).start())


def test_where_toxiproxy_does_not_answer_it_is_said_what_to_do(tmp_path: Path) -> None:
    plan = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="default")
    processes = Processes(tmp_path, asyncio.Event(), restart=True, on_fatal=lambda _: None)
    with socket.socket() as nobody:
        nobody.bind((HOST, plan.toxiproxy_port))
        wan = WideArea(lambda: plan, processes, None)
        with pytest.raises(ConfigError, match=r"does not answer.*process kill toxiproxy"):
            asyncio.run(wan.act({"verb": "wan show"}))
