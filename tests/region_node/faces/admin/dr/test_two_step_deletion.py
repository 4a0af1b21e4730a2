"""What is deleted in two steps is deleted wherever a copy of it may be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.call_parameters import called
from region_node.faces.admin.dr.two_step_deletion import bury, bury_namespace

TOPIC = "persistent://t/n/x"


@pytest.mark.parametrize(("call", "name"), [(bury, TOPIC), (bury_namespace, "t/n")])
def test_a_region_that_left_the_namespace_is_waited_for_as_its_copy_would_come_back_with_it(
    call: Any, name: str
) -> None:
    store = EmbeddedStore()

    async def exists(topic: str) -> bool:
        return True

    async def unload_deleted(topic: str) -> None: ...

    regions = [
        RegionInfo(name=region, number=number, metadata_instance="" if region == "new" else "made")
        for number, region in enumerate(("ap", "eu", "new", "us"), 1)
    ]
    admin: Any = SimpleNamespace(
        region="us",
        view=SimpleNamespace(regions=lambda: regions, partitions=lambda _: 0),
        clock=SimpleNamespace(wall_ms=lambda: 7),
        leases=SimpleNamespace(store=store),
        topics=SimpleNamespace(exists=exists, unload_deleted=unload_deleted),
        namespace=lambda _: "t/n",
        topic=lambda _: TopicName.parse(TOPIC),
        policies=lambda _: NamespacePolicies(regions=("us", "ap")),
        changed=lambda *_: None,
    )

    async def main() -> None:
        request: Any = {}
        await called(call, admin, request, given=None)
        found = await store.get(tombstone(name))
        assert found is not None and set(Tombstone.decode(found[0]).regions) == {"us", "ap", "eu"}, (
            "where no broker ever ran is nothing"
        )

    asyncio.run(main())
