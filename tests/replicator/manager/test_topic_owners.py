"""Whoever looks owners up goes on, whatever becomes of one link."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

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
