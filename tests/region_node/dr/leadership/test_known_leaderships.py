"""Up to which number a leadership may be named, from what the configuration tells, now and at its watches."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import DRAINING, ENDED, FLOOR, LEADERSHIP
from heliograph.model.errors import CorruptData
from region_node.dr.leadership.known_leaderships import KnownLeaderships
from region_node.dr.leadership.leadership_changes import Switching, closing

NAME = "t/n"


class World:
    def __init__(self) -> None:
        self.store = EmbeddedStore()
        self.switching = Switching(self.store, lambda: 5)
        self.known = KnownLeaderships(self.store)

    async def shows(self, number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        assert (self.known.known(NAME), await self.known.newest(NAME)) == (number, number)

    async def another_broker_shows(self, number: int) -> None:
        """One that begins now, and has heard of nothing before."""
        other = World()
        other.store, other.known = self.store, KnownLeaderships(self.store)
        await other.known.start()
        await other.shows(number)
        await other.known.stop()


def test_what_began_ended_and_was_restored_is_known_also_to_who_begins_later() -> None:
    async def main() -> None:
        world = World()
        await world.known.start()
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


def test_nothing_is_kept_of_a_namespace_that_was_forgotten() -> None:
    """Neither of one that had its leadership still, nor of one that had had it: what comes under its name is another
    one, and begins anew.
    """

    async def main() -> None:
        world = World()
        await world.known.start()
        for ends in (False, True):
            await world.switching.begin(NAME, "us", {})
            await world.shows(1)
            if ends:
                await world.switching.end(NAME)
                await world.switching.begin(NAME, "us", {})
                await world.shows(2)
            await world.switching.forget(NAME)
            await world.shows(0)
            assert not world.known._began and not world.known._ended
            await world.switching.begin(NAME, "eu", {})
            await world.shows(1)
            await world.switching.forget(NAME)

    run_alone(main())


@pytest.mark.parametrize("value", [b"", b"[]", b"{}"])
def test_a_leadership_that_cannot_be_read_lets_nothing_pass_and_is_not_said_to_be_none(value: bytes) -> None:
    async def main() -> None:
        world = World()
        await world.known.start()
        await world.store.put(ENDED + NAME, b"7")
        await world.store.put(LEADERSHIP + NAME, value)
        for _ in range(3):
            await asyncio.sleep(0)
        assert world.known.known(NAME) == 0
        with pytest.raises(CorruptData):
            await world.known.newest(NAME)

    run_alone(main())


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff"])
def test_a_number_that_cannot_be_read_lets_nothing_pass(value: bytes) -> None:
    async def main() -> None:
        world = World()
        await world.store.put(FLOOR, value)
        await world.known.start()
        await world.shows(0)

    run_alone(main())
