"""What a broker has for the loss of regions: its canary, the promises that it watches, and the tombstones of what was
deleted meanwhile.

Is: a part of the composition: their making from a broker's objects. Isn't: a decision of any of them
(`region_node.dr`), or when they start (`broker_role`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from global_config.admin import ConfigAdmin
from heliograph.kv.checked_store import checked
from heliograph.kv.metadata_store import Check, MetadataStore
from heliograph.model.configuration.configuration_records import TopicPolicies
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import NotFound
from heliograph.model.topic_names import TopicName
from region_node.dr.canary import Canary
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations.automatic_failover import AutomaticFailover
from region_node.dr.operations.drill_schedule import schedule
from region_node.dr.operations.operation_steps import Conductor, forget_operations
from region_node.dr.operations.silent_regions import SilentRegions
from region_node.dr.slo_monitor import Promises
from region_node.security.authorization import deleted_topic_grants
from region_node.topics.serving.deferred_deletion import Tombstones
from region_node.topics.serving.named_topics import under

if TYPE_CHECKING:
    from region_node.process.broker_parts import BrokerParts


def canary_of(broker: BrokerParts) -> Canary:
    own, bind = broker.settings.broker.canary, broker.settings.bind

    async def owns(topic: str) -> bool:
        return await broker.ownership.owner(topic) is broker.ownership.record

    async def ask_owner(topic: str) -> None:
        await broker.calls.call(await broker.ownership.owner(topic), "GET", "/heliograph/v1/health")

    async def open_port() -> None:
        if own.port:
            await broker.listener.start(bind, own.port, reuse_port=True)

    async def close_port() -> None:
        if own.port:
            broker.listener.stop_listening(own.port)

    return Canary(
        broker=broker.settings.node_id,
        topics=broker.topics,
        owns=owns,
        clock=broker.runtime.clock,
        settings=own,
        open_port=open_port,
        close_port=close_port,
        ask_owner=ask_owner,
    )


def promises_of(broker: BrokerParts) -> Promises:
    return Promises(
        gates=broker.leases.core.gates,
        view=broker.view,
        topics=lambda: list(broker.topics.loaded.values()),
        links=broker.links,
        region=broker.settings.region,
        clock=broker.runtime.clock,
        call_later=broker.links.timers.after,
        told=broker.audit.note,
    )


def automatic_of(broker: BrokerParts, conductor: Callable[[MetadataStore], Conductor] | None) -> AutomaticFailover:
    """conductor: with the credentials of this broker, over a store; None: without an admin interface."""
    region, clock = broker.settings.region, broker.runtime.clock
    return AutomaticFailover(
        broker.leases,
        SilentRegions(broker.leases, broker.links.incoming, region=region, clock=clock, begins=conductor is not None),
        conductor,
        region=region,
        regions_of=lambda namespace: found.regions if (found := broker.view.namespace(namespace)) is not None else (),
        clock=clock,
        told=broker.promises.tell,
    )


LISTED_S = 5.0


class BrokerDeletions:
    """What a broker does of deletions (`region_node.topics.serving.deferred_deletion.DeletionHost`)."""

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._listed: tuple[str, float, list[str]] = ("", 0.0, [])
        """(namespace, when it was asked for, its stored names): of thousands that are due together each asks."""
        self._heard = 0

    async def _names(self, found: Tombstone) -> list[str]:
        """What is stored of it, by name: how many partitions there are in each region, who deletes may not know. It was
        listed at most LISTED_S ago, and behind the last tombstone that was heard: nothing of it is made since.
        """
        name = None if found.whole else TopicName.parse(found.topic)
        namespace, now, heard = found.topic if name is None else name.namespace, self._now(), self._heard
        listed, at, names = self._listed
        if listed != namespace or now - at >= LISTED_S:
            names = await self._broker.topics.stored(namespace)
            if heard == self._heard:
                self._listed = (namespace, now, names)
        return names if name is None else [str(each) for each in under(name, names)]

    def _now(self) -> float:
        return self._broker.runtime.clock.monotonic()

    async def _owned(self, names: list[str]) -> list[str]:
        own = self._broker.ownership
        return [name for name in names if await own.owner(name) is own.record]

    async def _there(self, names: list[str]) -> bool:
        return any([await self._broker.topics.exists(name) for name in names])

    def _left(self, found: Tombstone) -> bool:
        """Whether the region is none of the namespace's any more, so that its copy is nobody's, and anybody's to
        purge.
        """
        namespace = found.topic if found.whole else TopicName.parse(found.topic).namespace
        return self._broker.ownership.bundles(namespace) is None

    async def unload(self, topics: Sequence[str]) -> None:
        self._heard += 1
        self._listed = ("", 0.0, [])
        await self._broker.topics.unload_deleted(topics)

    async def made_ms(self, found: Tombstone) -> int:
        times = [await self._broker.topics.created_ms(name) for name in await self._names(found)]
        view = self._broker.view
        parted = view.partitioned(found.topic) if found.whole else [found.topic]
        return max([0, *times, *(view.created_ms(name) for name in parted)])

    async def purge(self, found: Tombstone, stands: Callable[[], Awaitable[bool]]) -> bool:
        topics, left = self._broker.topics, self._left(found)
        names = await self._names(found)
        for name in names if left else await self._owned(names):
            if await topics.exists(name):
                if left and not await stands():
                    return False
                await topics.purge(name, owned=not left)
        if names and (await topics.stored(found.topic) if found.whole else await self._there(names)):
            return False
        # what its partitions share, and what was never made
        if found.whole:
            await topics.schemas.delete_namespace(found.topic)
            await topics.policies.forget_namespace(found.topic)
        elif (topic := TopicName.parse(found.topic)).partition < 0:
            await topics.schemas.delete(topic)
            await topics.policies.forget(found.topic)
        return True

    async def forget(self, found: Tombstone, version: int) -> None:
        broker = self._broker
        store = checked(broker.config, Check(tombstone(found.topic), version))
        config = ConfigAdmin(store, rng=broker.runtime.rng)
        await Switching(store, broker.runtime.clock.wall_ms, broker.runtime.rng).forget(found.topic)
        if found.whole:
            await forget_operations(store, found.topic)
            await store.delete(schedule(found.topic))
        else:
            await deleted_topic_grants.forget(config, broker.view, TopicName.parse(found.topic))
            await config.change_topic_policies(found.topic, lambda _: TopicPolicies())
        try:
            await (config.delete_namespace if found.whole else config.delete_partitioned)(found.topic)
        except NotFound:
            pass  # it was plain, or somebody was faster

    async def back(self, found: Tombstone) -> None:
        for name in await self._owned(await self._names(found)):
            await self._broker.topics.get(name, create=False)


def tombstones_of(broker: BrokerParts) -> Tombstones:
    return Tombstones(broker.config, BrokerDeletions(broker), region=broker.settings.region, clock=broker.expiry)
