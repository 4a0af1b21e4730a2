"""When the newest thing was made that has the name of what was deleted; and what goes of the configuration at last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.machine_commands import CommandKind
from heliograph.kv.metadata_store import MetadataStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TopicPolicies
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import HeliographError, NotAllowed
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations.automatic_policy import automatic
from region_node.dr.operations.drill_schedule import schedule
from region_node.process.broker_safety import LISTED_S, BrokerDeletions
from tests.region_node.faces.pulsar.harness import settle

RUNTIME = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 7.0))


def topics_of(stored: Iterable[str], **more: Any) -> SimpleNamespace:
    """What a broker's topics say of what is stored: full names. more: what else they do."""

    async def names(namespace: str) -> list[str]:
        return sorted(stored)

    async def forget(name: str) -> None:
        """No region-local policies are there."""

    policies = SimpleNamespace(forget=forget, forget_namespace=forget)
    return SimpleNamespace(stored=names, policies=policies, **more)


def deletions(stored: dict[str, int], parted: dict[str, int]) -> BrokerDeletions:
    """Name of a topic -> when it was made, in ms."""

    async def created_ms(name: str) -> int:
        return stored.get(name, 0)

    view = SimpleNamespace(partitioned=lambda namespace: sorted(parted), created_ms=lambda name: parted.get(name, 0))
    broker: Any = SimpleNamespace(runtime=RUNTIME, topics=topics_of(stored, created_ms=created_ms), view=view)
    return BrokerDeletions(broker)


@pytest.mark.parametrize(
    ("stored", "parted", "newest"),
    [({}, {}, 0), ({"t": 5}, {}, 5), ({}, {"p": 7}, 7), ({"t": 5, "u": 9}, {"p": 7}, 9)],
)
def test_a_namespace_of_which_nothing_is_left_was_never_made_again(
    stored: dict[str, int], parted: dict[str, int], newest: int
) -> None:
    found = Tombstone(topic="t/n", regions=("us",), since_ms=6, until_ms=8)
    assert asyncio.run(deletions(stored, parted).made_ms(found)) == newest


async def stands() -> bool:
    return True


def owned_by(owner: object, record: object, *, served: bool = True) -> SimpleNamespace:
    return SimpleNamespace(owner=owner, record=record, bundles=lambda namespace: object() if served else None)


@pytest.mark.parametrize("topic", ["t/n", "persistent://t/n/x"])
def test_schemas_go_once_the_region_has_nothing_else_of_it(topic: str) -> None:
    stored, gone = dict.fromkeys(("persistent://t/n/x-partition-0", "persistent://t/n/x-partition-1")), list[str]()
    record = object()

    async def exists(name: str) -> bool:
        return name in stored

    async def purge(name: str, *, owned: bool) -> None:
        assert owned
        del stored[name]

    async def owner(name: str) -> object:
        return record if name != "persistent://t/n/x-partition-1" else None

    async def delete(name: object) -> None:
        gone.append(str(name))

    schemas = SimpleNamespace(delete=delete, delete_namespace=delete)
    topics = topics_of(stored, exists=exists, purge=purge, schemas=schemas)
    broker: Any = SimpleNamespace(runtime=RUNTIME, topics=topics, ownership=owned_by(owner, record))
    found = Tombstone(topic=topic, regions=("us",), since_ms=6, until_ms=8)

    async def test() -> None:
        assert not await BrokerDeletions(broker).purge(found, stands) and not gone, "another broker's are left"
        stored.clear()
        assert await BrokerDeletions(broker).purge(found, stands) and gone == [topic]

    asyncio.run(test())


def test_of_thousands_that_are_due_together_the_namespace_is_listed_once() -> None:
    """And anew once another one was heard of, or time has passed: it was maybe made before that."""
    now, listed = [100.0], list[str]()
    topics = topics_of(())

    async def names(namespace: str) -> list[str]:
        listed.append(namespace)
        return []

    async def unloaded(topics: object) -> None:
        """Nothing is loaded."""

    async def created_ms(name: str) -> int:
        return 0

    topics.stored, topics.unload_deleted, topics.created_ms = names, unloaded, created_ms
    view = SimpleNamespace(partitioned=lambda namespace: [], created_ms=lambda name: 0)
    runtime = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: now[0]))
    broker: Any = SimpleNamespace(runtime=runtime, topics=topics, view=view)
    host = BrokerDeletions(broker)

    async def looked() -> int:
        before = len(listed)
        for n in range(2_000):
            await host.made_ms(Tombstone(topic=f"persistent://t/n/x{n}", regions=("us",), since_ms=6, until_ms=8))
        return len(listed) - before

    async def test() -> None:
        assert await looked() == 1 and await looked() == 0
        await host.unload(["persistent://t/n/x7"])
        assert await looked() == 1
        now[0] += LISTED_S
        assert await looked() == 1

    asyncio.run(test())


def test_a_topic_that_is_gone_was_never_made_again() -> None:
    found = Tombstone(topic="persistent://t/n/x", regions=("us",), since_ms=6, until_ms=8)
    assert asyncio.run(deletions({}, {}).made_ms(found)) == 0


@pytest.mark.parametrize("topic", ["t/n", "persistent://t/n/x"])
def test_a_region_that_has_left_the_namespace_purges_its_copy_though_nobody_owns_it(topic: str) -> None:
    stored, schemas = ["persistent://t/n/x"], list[object]()

    async def exists(name: str) -> bool:
        return name in stored

    async def purge(name: str, *, owned: bool) -> None:
        assert not owned
        stored.remove(name)

    async def owner(name: str) -> object:
        raise NotAllowed("namespace t/n is not served in region us, but in eu")

    async def delete(name: object) -> None:
        schemas.append(name)

    forgotten = SimpleNamespace(delete=delete, delete_namespace=delete)
    topics = topics_of(stored, exists=exists, purge=purge, schemas=forgotten)
    broker: Any = SimpleNamespace(runtime=RUNTIME, topics=topics, ownership=owned_by(owner, object(), served=False))
    found = Tombstone(topic=topic, regions=("us",), since_ms=6, until_ms=8)
    assert asyncio.run(BrokerDeletions(broker).purge(found, stands))
    assert not stored and schemas


def test_what_nobody_owns_is_left_once_its_deletion_has_ended() -> None:
    """Another broker was faster, and the namespace, which has the region again, is somebody else's."""
    stored = ["persistent://t/n/x", "persistent://t/n/y", "persistent://t/n/z"]

    async def names(namespace: str) -> list[str]:
        return list(stored)

    async def exists(name: str) -> bool:
        return name in stored

    async def purge(name: str, *, owned: bool) -> None:
        stored.remove(name)

    async def ends() -> bool:
        return len(stored) > 2

    topics = SimpleNamespace(stored=names, exists=exists, purge=purge)
    broker: Any = SimpleNamespace(runtime=RUNTIME, topics=topics, ownership=owned_by(None, object(), served=False))
    found = Tombstone(topic="t/n", regions=("us",), since_ms=6, until_ms=8)
    assert not asyncio.run(BrokerDeletions(broker).purge(found, ends))
    assert stored == ["persistent://t/n/y", "persistent://t/n/z"]


class Slow(EmbeddedStore):
    """Something happens before its write of that number."""

    def __init__(self, machine: KvMachine, at: int, what: Callable[[], Awaitable[None]]) -> None:
        super().__init__(machine)
        self.writes, self._at, self._what = 0, at, what

    async def _apply(self, kind: CommandKind, fields: list[Any]) -> list[Any]:
        self.writes += 1
        if self.writes == self._at:
            await self._what()
        return await super()._apply(kind, fields)


TOPIC = "persistent://t/n/x"


async def made(store: MetadataStore, name: str) -> None:
    """A namespace, or a topic, with all that the configuration may have of one."""
    config, switching = ConfigAdmin(store), Switching(store, lambda: 0)
    if name == "t/n":
        await config.create_namespace(name, NamespacePolicies(regions=("us",)))
        await switching.begin(name, "us", {})
        for key in (schedule(name), automatic(name)):
            await store.put(key, b"{}")
    await config.update_namespace("t/n", lambda p: replace(p, topic_permissions={TOPIC: {"role": ["produce"]}}))
    await config.create_partitioned(TOPIC, 2)
    await config.change_topic_policies(TOPIC, lambda _: TopicPolicies(policies={"maxConsumers": 3}))
    await switching.begin(f"{TOPIC}/s", "us", {})


async def ended(store: MetadataStore, view: ConfigView, found: Tombstone, version: int) -> None:
    """As one broker does it."""
    runtime = SimpleNamespace(rng=None, clock=SimpleNamespace(wall_ms=lambda: 0))
    broker: Any = SimpleNamespace(config=store, view=view, runtime=runtime)
    await BrokerDeletions(broker).forget(found, version)
    await store.delete(tombstone(found.topic), expected=version)


async def rows(store: MetadataStore) -> list[str]:
    return [key for key, _, _ in await store.range("/", "0") if "t/n" in key]


@pytest.mark.parametrize("name", ["t/n", TOPIC])
def test_a_slow_broker_takes_nothing_of_what_was_made_again_under_the_name(name: str) -> None:
    """All brokers of all regions end a deletion at once: one of them is slower by so many writes."""

    async def after(at: int) -> int:
        """The number of its writes."""
        store = EmbeddedStore()
        config, view = ConfigAdmin(store), ConfigView(store)
        await view.ready()
        await config.create_region("us")
        await config.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await made(store, "t/n")
        there = await rows(store)
        found = Tombstone(topic=name, regions=("us",), since_ms=0, until_ms=0, purging=("us",), purged=("us",))
        version = await store.put(tombstone(name), found.encode())
        await settle(20)

        async def another_is_faster() -> None:
            await ended(store, view, found, version)
            if name == "t/n":
                assert not await rows(store)
            await made(store, name)
            assert await rows(store) == there
            await settle(20)

        slow = Slow(store.machine, at, another_is_faster)
        with suppress(HeliographError):
            await ended(slow, view, found, version)
        if slow.writes >= at:
            assert await rows(store) == there, f"before its write {at}"
            policies = await store.get(keys.namespace("t/n"))
            assert policies is not None and NamespacePolicies.decode(policies[0]).topic_permissions
        else:
            assert await store.get(keys.namespace("t/n") if name == "t/n" else keys.partitioned(TOPIC)) is None
        return slow.writes

    async def main() -> None:
        at = 1
        while await after(at) >= at:
            at += 1
        assert at > 4

    asyncio.run(main())
