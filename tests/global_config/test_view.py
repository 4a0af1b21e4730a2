"""The copy that a process starts with is as new as the configuration, where that can be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import WatchCallback
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import NamespacePolicies, PartitionedTopic
from heliograph.model.errors import MetadataUnavailable
from tests.storage.managed_ledger.ledger_cases import turns


class Replaying:
    """Reached through a node that replays its log: it lists what its last snapshot had, and tells the rest later."""

    def __init__(self, inner: EmbeddedStore, replays_s: float) -> None:
        self._inner, self._replays_s = inner, replays_s
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._replays_s

        def heard(key: str, value: bytes | None, version: int) -> None:
            loop.call_at(max(until, loop.time()), callback, key, value, version)

        return self._inner.watch(prefix, heard)

    async def put(self, key: str, value: bytes, **given: Any) -> int:
        if self.cut:
            await asyncio.sleep(1)
            raise MetadataUnavailable("no majority")
        return await self._inner.put(key, value, **given)


@pytest.mark.parametrize(("replays_s", "cut", "knows"), ((1.0, False, True), (10.0, False, False), (10.0, True, False)))
def test_it_is_ready_once_it_is_fresh_or_that_takes_too_long(replays_s: float, cut: bool, knows: bool) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await ConfigAdmin(store).create_region("us")
        reached = Replaying(store, replays_s)
        reached.cut = cut
        began = asyncio.get_running_loop().time()
        view = ConfigView(reached)  # type: ignore[arg-type]
        await view.ready(fresh_within_s=3.0)
        assert (view.region("us") is not None) == knows
        assert asyncio.get_running_loop().time() <= began + 4.3, "a region that is cut off starts all the same"
        await asyncio.sleep(10)
        assert view.region("us") is not None
        view.close()

    run_alone(main(), limit_s=60)


def test_who_does_not_ask_for_a_fresh_copy_writes_nothing() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await ConfigAdmin(store).create_region("us")
        index = store.machine.index
        view = ConfigView(store)
        await view.ready()
        assert view.region("us") is not None and store.machine.index == index
        view.close()

    run_alone(main(), limit_s=60)


def test_a_number_that_a_restored_configuration_does_not_know_is_nobodys() -> None:
    """No admin takes a number away: its region is younger than the backup, and did not end."""

    async def main() -> None:
        store = EmbeddedStore()
        view = ConfigView(store)
        await view.ready()
        for name in ("us", "eu"):
            await ConfigAdmin(store).create_region(name)
        await asyncio.sleep(0)
        assert view.region_numbers == {1: "us", 2: "eu"}
        for key in (keys.region_number(2), keys.region("eu")):  # as a watch tells it
            await store.delete(key)
        await asyncio.sleep(0)
        assert view.region("eu") is None and view.region_numbers == {1: "us"}
        view.close()

    run_alone(main())


def test_one_who_waits_for_changes_and_fails_keeps_them_from_nobody() -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        store = EmbeddedStore(KvMachine())
        view, heard = ConfigView(store), list[str]()
        view.on_change(lambda key: [].remove(key))
        view.on_change(heard.append)
        await store.put(keys.namespace("a/x"), NamespacePolicies(regions=("us",)).encode())
        await turns()
        view.set_pending(keys.namespace("a/x"), [])
        assert heard == [keys.namespace("a/x")] * 2
        assert [type(context["exception"]) for context in told] == [ValueError] * 2

    asyncio.run(main())


def test_partitioned_topics_are_found_by_their_namespace() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        view = ConfigView(store)

        async def put(topic: str, partitions: int) -> None:
            await store.put(keys.partitioned(topic), PartitionedTopic(partitions=partitions).encode())

        await put("persistent://t/n/a", 3)
        await put("non-persistent://t/n/b", 2)
        await put("persistent://t/n/a", 5)
        await put("persistent://t/nn/c", 7)
        await view.ready()
        await turns()
        assert view.partitioned("t/n") == ["non-persistent://t/n/b", "persistent://t/n/a"]
        assert (view.partitions_in("t/n"), view.partitions_in("t/nn"), view.partitions_in("t/x")) == (7, 7, 0)
        for topic in ("persistent://t/n/a", "non-persistent://t/n/b"):
            await store.delete(keys.partitioned(topic))
        await turns()
        assert view.partitioned("t/n") == [] and view.partitions_in("t/n") == 0
        assert list(view._partitioned_in) == ["t/nn"]

    run_alone(main())
