"""What a broker says of a region of which nothing comes: for how long, by its own clock, and under its lease."""

from __future__ import annotations

import asyncio

from geo_tests.sim.loop import run_alone
from global_config import keys
from region_node.dr.operations.silent_regions import Vote
from tests.region_node.dr.operations.automatic_instance import Broker, Instance


async def listening() -> tuple[Instance, Broker]:
    """A broker of eu that looks when the test does."""
    instance = await Instance("us", "eu").start()
    (broker,) = instance.of("eu")
    await broker.automatic.stop()
    await broker.silent.start()
    return instance, broker


def test_a_vote_changes_as_often_as_somebody_waits_for_it_and_goes_with_the_lease() -> None:
    async def main() -> None:
        instance, broker = await listening()
        await instance.lose("us")
        await asyncio.sleep(8)
        seen = list[bytes]()
        instance.store.watch(keys.SILENCES, lambda _key, value, _version: seen.append(value or b""))
        for _ in range(60):
            await broker.silent.look({"us": {10.0, 30.0}})
            await asyncio.sleep(1)
        assert [Vote.decode(value).silent_s["us"] for value in seen if value] == [0.0, 10.0, 30.0]
        said = await broker.silent.said("us", ["eu"], 30.0)
        assert (said.silent, said.there, len(said.checks)) == (["eu"], ["eu"], 1)
        assert (await broker.silent.said("us", ["eu"], 31.0)).silent == []
        await broker.leases.stop()
        await asyncio.sleep(1)
        assert seen[-1] == b"" and not instance.store.machine.under(keys.SILENCES)
        await instance.stop()

    run_alone(main())


def test_a_lease_of_the_region_and_a_gap_in_the_looks_begin_the_time_anew() -> None:
    async def main() -> None:
        instance, broker = await listening()
        await broker.silent.look({"us": {10.0}})
        assert broker.silent.lost_s("us") == 0.0
        await instance.lose("us")
        await asyncio.sleep(8)

        async def looks(seconds: int) -> None:
            for _ in range(seconds):
                await broker.silent.look({"us": {10.0}})
                await asyncio.sleep(1)

        await looks(20)
        assert 18 <= broker.silent.lost_s("us") <= 20 and broker.silent.silent_s("us") >= 20
        await asyncio.sleep(10)
        assert broker.silent.lost_s("us") == 0.0, "what was seen is too old"
        await looks(3)
        assert broker.silent.lost_s("us") <= 3 and broker.silent.silent_s("us") <= 3, "this broker stood still"
        await instance.back("us")
        await asyncio.sleep(5)
        await looks(2)
        assert broker.silent.lost_s("us") == 0.0
        await instance.stop()

    run_alone(main())


def test_a_configuration_that_does_not_answer_makes_nobody_lost() -> None:
    async def main() -> None:
        instance, broker = await listening()
        await instance.lose("us")
        await asyncio.sleep(8)
        for second in range(40):
            broker.store.unavailable = None if second < 5 else "no majority"
            await broker.silent.look({"us": {10.0}})
            await asyncio.sleep(1)
        assert broker.silent.lost_s("us") == 0.0
        broker.store.unavailable = None
        await instance.stop()

    run_alone(main())


def test_who_never_had_a_link_says_for_how_long_it_has_listened_and_one_that_ended_counts() -> None:
    async def main() -> None:
        instance, broker = await listening()
        (heard,) = broker.incoming.region("us").on
        for _ in range(20):
            await broker.silent.look({})
            await asyncio.sleep(1)
        assert broker.silent.silent_s("us") < 1
        broker.incoming.regions.clear()
        assert 19 <= broker.silent.silent_s("us") <= 31
        found = broker.incoming.region("us")
        found.on.append(heard)
        found.end(heard)
        await asyncio.sleep(3)
        assert 3 <= broker.silent.silent_s("us") <= 4
        await instance.stop()

    run_alone(main())
