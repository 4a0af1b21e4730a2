"""A leadership is effective once every broker of every region has said that it knows of it; that is written down."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import OPS_MAX, RANGE_LIMIT, Put
from heliograph.model.configuration.leadership import Leadership, leadership, subscription_name, writers
from region_node.dr.leadership.effective_leaderships import EffectiveLeaderships
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.leadership.write_leases import WriteLeases

BOTH = ("us", "eu")


class Broker:
    """Of a region that knows its brokers, or does not; in a namespace that has both regions."""

    def __init__(self, store: EmbeddedStore, region: str, name: str, beside: list[str] | None) -> None:
        clock = DriftingClock(1.0)
        self.leases = WriteLeases(
            store,
            region=region,
            broker=name,
            clock=clock,
            url_of=lambda _: "",
            beside=lambda: beside,
        )
        self.effective = EffectiveLeaderships(
            self.leases.core, store, lambda namespace: () if namespace == "t/gone" else BOTH, clock
        )

    async def start(self) -> None:
        await self.leases.start()
        await self.effective.start()

    async def stop(self) -> None:
        await self.effective.stop()
        await self.leases.stop()


async def heard(store: EmbeddedStore, name: str) -> tuple[str, ...]:
    return (await Switching(store, lambda: 0).get(name))[0].heard


def test_it_is_marked_by_whoever_is_there_and_stays_marked_when_a_region_is_lost() -> None:
    async def main() -> None:
        store, beside = EmbeddedStore(), ["a", "b"]
        switching = Switching(store, lambda: 0)
        await switching.begin("t/n", "us", {"rpo_s": 5.0})
        await switching.begin("t/gone", "us", {})
        await store.put(leadership("t/broken"), b"no record")
        us = [Broker(store, "us", name, beside) for name in beside]
        await us[0].start()
        await asyncio.sleep(20)
        assert await heard(store, "t/n") == (), "nobody knows what the other broker of us has heard"
        await us[1].start()
        await asyncio.sleep(10)
        assert await heard(store, "t/n") == ("us",)
        for broker in us:
            await broker.stop()
        eu = Broker(store, "eu", "a", None)
        await eu.start()
        await asyncio.sleep(20)
        assert await heard(store, "t/n") == ("us",), "it does not know its region's brokers yet"
        await eu.stop()
        eu = Broker(store, "eu", "a", ["a"])
        await eu.start()
        await asyncio.sleep(10)
        record, _ = await switching.get("t/n")
        assert record == Leadership(active="us", slo={"rpo_s": 5.0}, heard=("eu", "us")), "nothing else is changed"
        assert not await switching.unheard("t/n", BOTH) and not await store.range(writers("us"), f"{writers('us')}~")
        assert (
            await heard(store, "t/gone") == ()
            and (await store.get(leadership("t/broken")) or (b"",))[0] == b"no record"
        )
        await eu.stop()

    run_alone(main())


@pytest.mark.slow
def test_ten_thousand_become_effective_and_are_told_in_bounded_size_meanwhile() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        names = [subscription_name(f"persistent://t/n/topic-{i:06d}", "billing") for i in range(RANGE_LIMIT + 5)]
        brokers = [Broker(store, region, "a", ["a"]) for region in BOTH]
        for broker in brokers:
            await broker.start()
        for start in range(0, len(names), OPS_MAX):
            now = names[start : start + OPS_MAX]
            await store.txn([Put(leadership(name), Leadership(active="us").encode()) for name in now])
            await asyncio.sleep(0.5)
        await asyncio.sleep(60)
        assert [name for name in names if await heard(store, name) != ("eu", "us")] == []
        for region in BOTH:
            ((_, value, _),) = await store.range(writers(region), f"{writers(region)}~")
            assert len(value) < 128 << 10
        switching = Switching(store, lambda: 0)
        for name in (names[0], names[-1]):
            assert not await switching.unheard(name, BOTH) and not await switching.waiting(name)
        for broker in brokers:
            await broker.stop()

    run_alone(main(), limit_s=600)
