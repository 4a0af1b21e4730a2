"""What is deleted in two steps is deleted wherever a copy of it may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from global_config.admin import ConfigAdmin
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from tests.region_node.topics.serving.deleting_regions import NAMESPACE, TOPIC, Region, deletion, with_regions


@pytest.mark.parametrize("name", [TOPIC, NAMESPACE])
def test_a_region_that_left_the_namespace_is_waited_for_as_its_copy_would_come_back_with_it(name: str) -> None:
    async def test(us: Region, eu: Region) -> None:
        config = ConfigAdmin(us.store)
        await config.create_region("new")
        await us.published()
        await config.update_namespace(NAMESPACE, lambda old: replace(old, regions=("us",)))
        assert (await us.rest("PUT", deletion(name), {"grace_s": 60}))[0] == 200
        found = await us.store.get(tombstone(name))
        assert found is not None and set(Tombstone.decode(found[0]).regions) == {"us", "eu"}, (
            "where no broker ever ran is nothing"
        )

    with_regions(test)
