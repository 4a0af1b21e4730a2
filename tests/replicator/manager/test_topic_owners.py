"""Whoever looks owners up goes on, whatever becomes of one link."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.client.pulsar_connection import Address, BrokerConnection
from heliograph.runtime.task_set import TaskSet
from replicator.health.link_causes import Cause
from replicator.manager.link_manager import LinkSettings
from replicator.manager.topic_owners import Owners


class Link:
    """One that asks for a connection and notes what it hears."""

    ended, failures, log = False, 0, SimpleNamespace(topic="persistent://t/n/x")

    def __init__(self, target: str) -> None:
        self.target, self.heard = target, list[tuple[Cause, str]]()

    def open_on(self, connection: object) -> None:
        raise AssertionError("there is no connection")

    def on_ended(self, cause: Cause, text: str) -> None:
        self.heard.append((cause, text))


class Regions:
    """A configuration that cannot be read of one region, and knows no other."""

    def region(self, name: str) -> None:
        if name == "eu":
            raise RuntimeError("nobody expected this")


def test_a_link_by_which_something_unexpected_happens_hears_of_it_and_the_next_one_has_its_turn() -> None:
    async def test() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        work = TaskSet()
        given: Any = Regions(), SimpleNamespace(monotonic=lambda: 0.0), LinkSettings(establishing_max=1), None
        owners = Owners("us", *given, work.spawn, lambda call: call(), lambda _: None)
        links: list[Any] = [Link("eu"), Link("ap")]
        for link in links:
            owners.establish(link)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert links[0].heard == [(Cause.UNREACHABLE, "nobody expected this")]
        assert [cause for cause, _ in links[1].heard] == [Cause.NO_ADDRESS]
        assert [str(error) for error in told] == ["nobody expected this"], "it is not silent"

    asyncio.run(test())


def test_a_region_that_swallows_packets_holds_up_no_link_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: Address, *, timeout_s: float, **_: Any) -> BrokerConnection:
        if address.host == "eu":
            await asyncio.sleep(timeout_s)
            raise TimeoutError("no answer")
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(BrokerConnection, "connect", connect)
    view = SimpleNamespace(region=lambda name: SimpleNamespace(link_urls={}, service_url=f"pulsar://{name}:6650"))

    async def test() -> None:
        work = TaskSet()
        settings = LinkSettings(establishing_max=2)
        given: Any = view, SimpleNamespace(monotonic=lambda: 0.0), settings, None
        owners = Owners("us", *given, work.spawn, lambda call: call(), lambda _: None)
        links: list[Any] = [Link(region) for region in ("eu", "eu", "eu", "ap")]
        for link in links:
            owners.establish(link)
        await asyncio.sleep(1)
        assert [len(link.heard) for link in links] == [0, 0, 0, 1]
        await asyncio.sleep(settings.connect_timeout_s)
        assert [len(link.heard) for link in links] == [1, 1, 0, 1], "so many at a time"
        await asyncio.sleep(settings.connect_timeout_s)
        assert [cause for cause, _ in links[2].heard] == [Cause.TIMEOUT]

    Simulation(0).run(test())
