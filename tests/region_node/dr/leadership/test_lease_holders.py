"""Which regions have a broker with a write lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import writer
from region_node.dr.leadership.lease_holders import LeaseHolders
from tests.region_node.faces.pulsar.harness import settle


def with_holders(test: Callable[[EmbeddedStore, LeaseHolders, list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        store, came = EmbeddedStore(), list[str]()
        await store.put(writer("us", "b0", 7), b"{}")
        holders = LeaseHolders(store, came.append)
        await holders.start()
        await test(store, holders, came)
        holders.stop()

    asyncio.run(run())


def test_a_region_is_there_as_long_as_any_of_its_brokers_has_a_lease() -> None:
    async def test(store: EmbeddedStore, holders: LeaseHolders, came: list[str]) -> None:
        assert holders.there("us") and not holders.there("eu") and came == ["us"]
        await store.put(writer("us", "b1", 8), b"{}")
        await store.put(writer("eu", "b0", 9), b"{}")
        await store.delete(writer("us", "b0", 7))
        await settle(5)
        assert holders.there("us") and holders.there("eu")
        await store.delete(writer("us", "b1", 8))
        await settle(5)
        assert not holders.there("us") and holders.there("eu")

    with_holders(test)


def test_a_lease_that_comes_is_told_and_one_that_ends_is_not() -> None:
    async def test(store: EmbeddedStore, holders: LeaseHolders, came: list[str]) -> None:
        came.clear()
        await store.delete(writer("us", "b0", 7))
        await settle(5)
        assert came == []
        await store.put(writer("us", "b0", 8), b"{}")
        await store.put(writer("us", "b0", 8), b"{ }")
        await settle(5)
        assert came == ["us", "us"] and holders.there("us")

    with_holders(test)


def test_nothing_is_heard_any_more_once_it_is_stopped() -> None:
    async def test(store: EmbeddedStore, holders: LeaseHolders, came: list[str]) -> None:
        holders.stop()
        await store.put(writer("eu", "b0", 9), b"{}")
        await settle(5)
        assert came == ["us"]

    with_holders(test)
