"""No grant is left for the next topic of a name: by whatever way the one before it is deleted, and where its deletion
fails on the way, until it is given again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TopicPolicies
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import MetadataUnavailable
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.topics import topics as topic_calls
from region_node.process.broker_safety import BrokerDeletions
from region_node.security.authorization import deleted_topic_grants
from tests.region_node.faces.pulsar.harness import settle

NAME = TopicName.parse("persistent://t/n/x")
GRANTS = {"ann": ["consume"]}
OTHERS = ["persistent://t/n/x-partition-y", "persistent://t/n/x2", "non-persistent://t/n/x"]


class World:
    """A configuration in which the topic has two partitions, and policies that hold in all regions; it, a partition,
    and others of similar names have grants.
    """

    async def start(self) -> World:
        self.store = EmbeddedStore()
        self.config, self.view = ConfigAdmin(self.store), ConfigView(self.store)
        await self.view.ready()
        await self.config.create_region("us")
        await self.config.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        names = [str(NAME), str(NAME.with_partition(1)), *OTHERS]
        await self.config.create_namespace(
            "t/n", NamespacePolicies(regions=("us",), topic_permissions=dict.fromkeys(names, GRANTS))
        )
        await self.config.create_partitioned(str(NAME), 2)
        await self.config.change_topic_policies(str(NAME), lambda _: TopicPolicies(policies={"maxConsumers": 3}))
        await settle(20)
        return self

    async def check_gone(self) -> None:
        await settle(20)
        policies = self.view.namespace("t/n")
        assert policies is not None and sorted(policies.topic_permissions) == sorted(OTHERS)
        assert self.view.topic_policies(str(NAME)) is None and not self.view.partitions(str(NAME))


def test_grants_of_a_topic_and_its_partitions_go_and_those_of_others_stay() -> None:
    async def main() -> None:
        world = await World().start()
        assert await deleted_topic_grants.forget(world.config, world.view, NAME.with_partition(1))
        await settle(20)
        assert str(NAME) in world.view.namespace("t/n").topic_permissions  # type: ignore[union-attr]
        assert await deleted_topic_grants.forget(world.config, world.view, NAME)
        await settle(20)
        assert not await deleted_topic_grants.forget(world.config, world.view, NAME)
        assert sorted(world.view.namespace("t/n").topic_permissions) == sorted(OTHERS)  # type: ignore[union-attr]

    run_alone(main())


def test_a_namespace_that_goes_meanwhile_has_no_grants() -> None:
    async def main() -> None:
        world = await World().start()
        old: Any = SimpleNamespace(namespace=lambda name: found)
        found = world.view.namespace("t/n")
        await world.config.delete_namespace("t/n")
        assert not await deleted_topic_grants.forget(world.config, old, NAME)

    run_alone(main())


def test_a_tombstone_takes_grants_and_policies_along() -> None:
    async def main() -> None:
        world = await World().start()
        clock = SimpleNamespace(wall_ms=lambda: 0)
        broker: Any = SimpleNamespace(
            config=world.store, view=world.view, runtime=SimpleNamespace(rng=None, clock=clock)
        )
        stone = Tombstone(topic=str(NAME), partitions=2, regions=("us",), since_ms=0, until_ms=0)
        version = await world.store.put(tombstone(str(NAME)), stone.encode())
        for _ in range(2):
            await BrokerDeletions(broker).forget(stone, version)
            await world.check_gone()

    run_alone(main())


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_partitioned_topic_whose_deletion_loses_the_majority_is_deleted_when_it_is_asked_again(lost: int) -> None:
    """lost: the write of the configuration that does not go through."""

    async def main() -> None:
        world = await World().start()
        writes = {"txn": world.store.txn, "delete": world.store.delete}
        left = lost

        def counted(write: Any) -> Any:
            async def given(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    raise MetadataUnavailable("no majority")
                return await write(*args, **kwargs)

            return given

        for name, write in writes.items():
            setattr(world.store, name, counted(write))

        async def nothing(*_: Any, **__: Any) -> None: ...

        admin: Any = SimpleNamespace(
            topic=lambda request: NAME,
            policies=world.view.namespace,
            view=world.view,
            config=world.config,
            at_owner=nothing,
            topics=SimpleNamespace(
                policies=SimpleNamespace(forget=nothing),
                schemas=SimpleNamespace(delete=nothing),
                everywhere=None,  # no other region has it
                tombstone_of=lambda name: "",
            ),
            seen=nothing,
        )
        request: Any = None  # nothing is asked in a caller's name
        with pytest.raises(MetadataUnavailable):
            await topic_calls.delete_partitioned(admin, request, NAME)
        await settle(20)
        await topic_calls.delete_partitioned(admin, request, NAME)
        await world.check_gone()

    run_alone(main())
