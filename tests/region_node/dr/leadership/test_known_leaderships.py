"""Up to which number a leadership may be named, from what the configuration tells, now and at its watches."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import DRAINING, ENDED, FLOOR, LEADERSHIP, Leadership, name_of
from region_node.dr.leadership.known_leaderships import KnownLeaderships
from region_node.dr.leadership.leadership_changes import Switching, closing
from region_node.dr.leadership.write_gates import Writing

NAME = "t/n"


class World:
    def __init__(self) -> None:
        self.store = EmbeddedStore()
        self.switching = Switching(self.store, lambda: 5)
        self.writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: 0.0)
        self.known = KnownLeaderships(self.store, self.writing.gate)

    async def start(self) -> None:
        def heard(key: str, value: bytes | None, version: int) -> None:
            record = None if value is None else Leadership.decode(value)
            self.writing.on_record(name_of(key), record, version)

        self.store.watch(LEADERSHIP, heard)
        await self.store.synced(LEADERSHIP)
        await self.known.start()

    async def shows(self, number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        assert (self.known.known(NAME), await self.known.newest(NAME)) == (number, number)

    async def another_broker_shows(self, number: int) -> None:
        """One that begins now, and has heard of nothing before."""
        other = World()
        other.store = self.store
        other.known = KnownLeaderships(self.store, other.writing.gate)
        await other.start()
        await other.shows(number)
        await other.known.stop()


def test_what_began_ended_and_was_restored_is_known_also_to_who_begins_later() -> None:
    async def main() -> None:
        world = World()
        await world.start()
        await world.shows(0)
        await world.switching.begin(NAME, "us", {})
        await world.shows(1)
        await world.switching.change(NAME, lambda old: closing(old, "eu", DRAINING, 0))
        await world.switching.flip(NAME, "eu", regions=())
        await world.shows(1)
        await world.switching.end(NAME)
        await world.shows(2)
        await world.another_broker_shows(2)
        await world.switching.begin(NAME, "us", {})
        await world.shows(3)
        await world.store.put(FLOOR, b"1000")
        await world.shows(3)
        await world.switching.end(NAME)
        await world.shows(1000)
        await world.another_broker_shows(1000)
        await world.switching.begin(NAME, "us", {})
        await world.switching.forget(NAME)
        await world.store.put(ENDED + NAME, b"no number")
        await world.shows(1000)

    run_alone(main())


def test_between_the_end_and_the_word_of_it_nothing_is_forgotten() -> None:
    async def main() -> None:
        world = World()
        await world.start()
        await world.switching.begin(NAME, "us", {})
        await world.shows(1)
        world.writing.on_record(NAME, None, 1 << 60)
        assert world.known.known(NAME) == 1

    run_alone(main())


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff"])
def test_a_number_that_cannot_be_read_lets_nothing_pass(value: bytes) -> None:
    async def main() -> None:
        world = World()
        await world.store.put(FLOOR, value)
        await world.start()
        await world.shows(0)

    run_alone(main())
