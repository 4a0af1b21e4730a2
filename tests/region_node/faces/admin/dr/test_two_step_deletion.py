"""What is deleted in two steps is deleted wherever a copy of it may be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from global_config.admin import ConfigAdmin
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from tests.region_node.topics.serving.deleting_regions import (
    DAY_S,
    NAMESPACE,
    TOPIC,
    Region,
    deletion,
    elapse,
    until,
    with_regions,
)


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


def test_a_namespace_goes_no_earlier_than_what_was_deleted_in_it_where_no_time_is_given() -> None:
    async def test(us: Region, eu: Region) -> None:
        await us.published()
        assert (await us.rest("PUT", deletion(TOPIC), {"grace_s": 7 * DAY_S}))[0] == 200
        assert (await us.rest("PUT", deletion(NAMESPACE)))[0] == 200
        whole, topic = us.tombstones.known[NAMESPACE][0], us.tombstones.known[TOPIC][0]
        assert whole.until_ms >= topic.until_ms
        await elapse((us, eu), 6 * DAY_S)
        assert await eu.undelete(NAMESPACE) == 204 and await eu.undelete(TOPIC) == 204
        await until(partial(lists, us), "it is back with what it had")

    with_regions(test)


async def lists(region: Region) -> bool:
    return await region.listed() == [TOPIC]


def test_a_topic_is_not_brought_back_into_a_namespace_that_goes() -> None:
    async def test(us: Region, eu: Region) -> None:
        await us.published()
        assert (await us.rest("PUT", deletion(TOPIC), {"grace_s": 7 * DAY_S}))[0] == 200
        assert (await us.rest("PUT", deletion(NAMESPACE), {"grace_s": DAY_S}))[0] == 200
        status, answer = await us.rest("DELETE", deletion(TOPIC))
        assert status == 412 and f"`heliograph dr undelete {NAMESPACE}`" in answer["reason"], answer
        assert TOPIC in us.tombstones.known
        assert await us.undelete(NAMESPACE) == 204 and await us.undelete(TOPIC) == 204

    with_regions(test)
